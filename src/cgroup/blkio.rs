// SPDX-License-Identifier: Apache-2.0
//! Plans writes of block I/O limits, on both layouts of cgroups.
//!
//! A list replaces the file's limits: for a device that is not in the list, the limit is lifted. An
//! absent list leaves the limits unchanged, and a `weight` of zero sets the kernel's default.
//! Reference: kernel `cgroup-v1/blkio-controller.rst`, `cgroup-v2.rst` (io), `block/bfq-iosched`;
//! for the choice of the file, runc's `cgroups/fs/blkio.go` and `fs2/io.go`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Result, SeenFiles, Write, refused, write};

/// `linux.resources.blockIO`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct BlockIoResources {
    weight: Option<u64>,
    leaf_weight: Option<u64>,
    weight_device: Option<Vec<Limit>>,
    throttle_read_bps_device: Option<Vec<Limit>>,
    throttle_write_bps_device: Option<Vec<Limit>>,
    #[serde(rename = "throttleReadIOPSDevice")]
    throttle_read_iops_device: Option<Vec<Limit>>,
    #[serde(rename = "throttleWriteIOPSDevice")]
    throttle_write_iops_device: Option<Vec<Limit>>,
}

/// A weight or a rate of one device.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    major: u64,
    minor: u64,
    #[serde(alias = "weight")]
    rate: u64,
}

/// A device (`MAJOR:MINOR`), as the kernel writes it.
type Device = String;

/// One of the four throttles.
struct Throttle<'a> {
    limits: Option<&'a Vec<Limit>>,
    field: &'static str,
    /// The throttle's file on v1.
    v1: &'static str,
    /// The throttle's key in `io.max`.
    v2: &'static str,
}

impl BlockIoResources {
    fn throttles(&self) -> [Throttle<'_>; 4] {
        let throttle = |limits, field, v1, v2| Throttle { limits, field, v1, v2 };
        [
            throttle(
                self.throttle_read_bps_device.as_ref(),
                "blockIO.throttleReadBpsDevice",
                "blkio.throttle.read_bps_device",
                "rbps",
            ),
            throttle(
                self.throttle_write_bps_device.as_ref(),
                "blockIO.throttleWriteBpsDevice",
                "blkio.throttle.write_bps_device",
                "wbps",
            ),
            throttle(
                self.throttle_read_iops_device.as_ref(),
                "blockIO.throttleReadIOPSDevice",
                "blkio.throttle.read_iops_device",
                "riops",
            ),
            throttle(
                self.throttle_write_iops_device.as_ref(),
                "blockIO.throttleWriteIOPSDevice",
                "blkio.throttle.write_iops_device",
                "wiops",
            ),
        ]
    }
}

const WEIGHT: &str = "blockIO.weight";
const DEVICES: &str = "blockIO.weightDevice";

pub(super) fn plan_v1(io: &BlockIoResources, files: &SeenFiles<'_>, writes: &mut Vec<Write>) {
    if *io == BlockIoResources::default() {
        return;
    }
    let controller = "blkio";
    // The disk's I/O scheduler decides which files exist: those of the former CFQ, or of BFQ.
    let (weight, devices, lifted, default) = if files.exists(controller, "blkio.weight") {
        ("blkio.weight", "blkio.weight_device", "0", 500)
    } else {
        ("blkio.bfq.weight", "blkio.bfq.weight_device", "default", 100)
    };
    plan_weight(io.weight, (controller, weight), default, files, writes);
    if let Some(leaf) = io.leaf_weight.filter(|weight| *weight != 0) {
        writes.push(write(controller, "blkio.leaf_weight", leaf, "blockIO.leafWeight"));
    }
    let lists = io.throttles().map(|throttle| (throttle.limits, throttle.v1, "0", throttle.field));
    let weights = (io.weight_device.as_ref(), devices, lifted, DEVICES);
    for (limits, file, lifted, field) in std::iter::once(weights).chain(lists) {
        plan_list(limits, (controller, file), lifted, field, files, writes);
    }
}

pub(super) fn plan_v2(
    io: &BlockIoResources,
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) -> Result<()> {
    const BFQ: &str = "io.bfq.weight";
    if *io == BlockIoResources::default() {
        return Ok(());
    }
    if io.leaf_weight.is_some_and(|weight| weight != 0) {
        return refused("blockIO.leafWeight", "cgroup v2 has no such setting");
    }
    if files.exists("", BFQ) {
        plan_weight(io.weight, ("", BFQ), 100, files, writes);
    } else {
        // Runtimes map 10 to 1000 linearly to 1 to 10000.
        let wide = io.weight.map(|weight| match weight {
            0 => 0,
            weight => 1 + weight.clamp(10, 1000).saturating_sub(10) * 9999 / 990,
        });
        plan_weight(wide, ("", "io.weight"), 100, files, writes);
    }
    plan_list(io.weight_device.as_ref(), ("", BFQ), "default", DEVICES, files, writes);
    plan_max(io, files, writes);
    Ok(())
}

/// Plans the weight for all devices; zero restores the default if it was changed.
fn plan_weight(
    weight: Option<u64>,
    (controller, file): (&'static str, &str),
    default: u64,
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) {
    let Some(weight) = weight else { return };
    // On v2 the file shows "default 100", followed by the devices; on v1 it shows the number alone.
    let text = files.text(controller, file).unwrap_or_default();
    let now = text.lines().next().unwrap_or_default().trim_start_matches("default ").trim();
    if weight == 0 && (now.is_empty() || now == default.to_string()) {
        return;
    }
    let value = if weight == 0 { default } else { weight };
    let undo = (!now.is_empty()).then(|| (file.to_owned(), now.to_owned()));
    writes.push(Write { undo, ..write(controller, file, value, WEIGHT) });
}

/// Plans a file with one line for each device.
fn plan_list(
    limits: Option<&Vec<Limit>>,
    (controller, file): (&'static str, &str),
    lifted: &str,
    field: &str,
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) {
    let Some(limits) = limits else { return };
    let before = lines(files.text(controller, file));
    let mut after: BTreeMap<Device, String> =
        before.keys().map(|device| (device.clone(), lifted.to_owned())).collect();
    for Limit { major, minor, rate } in limits {
        let rate = if *rate == 0 { lifted.to_owned() } else { rate.to_string() };
        after.insert(format!("{major}:{minor}"), rate);
    }
    after.retain(|device, value| before.get(device) != Some(value));
    if after.is_empty() {
        return;
    }
    let undo = after.keys().map(|device| {
        let value = before.get(device).map_or(lifted, String::as_str);
        format!("{device} {value}")
    });
    let undo = Some((file.to_owned(), undo.collect::<Vec<_>>().join("\n")));
    let value: Vec<String> =
        after.iter().map(|(device, value)| format!("{device} {value}")).collect();
    writes.push(Write { undo, ..write(controller, file, value.join("\n"), field) });
}

/// Plans `io.max`, which has all four limits of a device on one line; keys that the line omits are
/// unchanged.
fn plan_max(io: &BlockIoResources, files: &SeenFiles<'_>, writes: &mut Vec<Write>) {
    let before = lines(files.text("", "io.max"));
    let key_of = |line: &str, key: &str| {
        let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key).map_or("max", |(_, value)| value).to_owned()
    };
    let mut after: BTreeMap<Device, Vec<String>> = BTreeMap::new();
    let mut undo: BTreeMap<Device, Vec<String>> = BTreeMap::new();
    let mut field = None;
    for Throttle { limits, field: of, v1: _, v2: key } in io.throttles() {
        let Some(limits) = limits else { continue };
        let mut wanted: BTreeMap<Device, String> =
            before.keys().map(|device| (device.clone(), "max".to_owned())).collect();
        for Limit { major, minor, rate } in limits {
            let rate = if *rate == 0 { "max".to_owned() } else { rate.to_string() };
            wanted.insert(format!("{major}:{minor}"), rate);
        }
        for (device, value) in wanted {
            let now = before.get(&device).map_or_else(|| "max".into(), |line| key_of(line, key));
            if now == value {
                continue;
            }
            field.get_or_insert(of);
            after.entry(device.clone()).or_default().push(format!("{key}={value}"));
            undo.entry(device).or_default().push(format!("{key}={now}"));
        }
    }
    let Some(field) = field else { return };
    let text = |lines: BTreeMap<Device, Vec<String>>| {
        let lines = lines.into_iter().map(|(device, keys)| format!("{device} {}", keys.join(" ")));
        lines.collect::<Vec<_>>().join("\n")
    };
    let undo = Some(("io.max".to_owned(), text(undo)));
    writes.push(Write { undo, ..write("", "io.max", text(after), field) });
}

/// Reads the lines of a file, by device.
fn lines(text: Option<String>) -> BTreeMap<Device, String> {
    let text = text.unwrap_or_default();
    let found = text.lines().filter_map(|line| line.split_once(' '));
    let found = found.filter(|(device, _)| device.contains(':'));
    found.map(|(device, rest)| (device.to_owned(), rest.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{CgroupFiles, Unfit};
    use super::*;

    /// Files by name; the controller does not matter.
    struct FakeFiles(BTreeMap<&'static str, &'static str>);

    impl CgroupFiles for FakeFiles {
        fn exists(&self, _controller: &str, file: &str) -> std::io::Result<bool> {
            Ok(self.0.contains_key(file))
        }

        fn text(&self, _controller: &str, file: &str) -> std::io::Result<Option<String>> {
            Ok(self.0.get(file).map(|text| (*text).to_owned()))
        }
    }

    fn fake_files(files: &[(&'static str, &'static str)]) -> FakeFiles {
        FakeFiles(files.iter().copied().collect())
    }

    /// Returns the file, value and undo value of each write.
    fn shown(writes: &[Write]) -> Vec<String> {
        let show = |write: &Write| {
            let undo = write.undo.as_ref().map(|(_, value)| value.as_str()).unwrap_or_default();
            format!("{}={} < {undo}", write.file, write.value).replace('\n', ", ")
        };
        writes.iter().map(show).collect()
    }

    fn io(value: Value) -> BlockIoResources {
        serde_json::from_value(value).unwrap()
    }

    fn v1(value: Value, files: &FakeFiles) -> Vec<String> {
        let mut writes = Vec::new();
        plan_v1(&io(value), &SeenFiles::new(files), &mut writes);
        shown(&writes)
    }

    fn v2(value: Value, files: &FakeFiles) -> Vec<String> {
        let mut writes = Vec::new();
        plan_v2(&io(value), &SeenFiles::new(files), &mut writes).unwrap();
        shown(&writes)
    }

    #[test]
    fn v1_lists_contain_the_limits_of_the_class() {
        let files = fake_files(&[
            ("blkio.bfq.weight", "100"),
            ("blkio.bfq.weight_device", "default 100\n8:16 300"),
            ("blkio.throttle.read_bps_device", "8:0 500\n8:16 700"),
            ("blkio.throttle.write_bps_device", "8:0 9"),
        ]);
        let class = json!({
            "weight": 300,
            "weightDevice": [{"major": 8, "minor": 0, "weight": 200}],
            "throttleReadBpsDevice": [
                {"major": 8, "minor": 0, "rate": 600}, {"major": 8, "minor": 16, "rate": 700}],
            "throttleWriteBpsDevice": [],
        });
        let wanted = [
            "blkio.bfq.weight=300 < 100",
            "blkio.bfq.weight_device=8:0 200, 8:16 default < 8:0 default, 8:16 300",
            "blkio.throttle.read_bps_device=8:0 600 < 8:0 500",
            "blkio.throttle.write_bps_device=8:0 0 < 8:0 9",
        ];
        assert_eq!(v1(class, &files), wanted);
    }

    #[test]
    fn v1_block_io_weights_use_the_files_of_the_io_scheduler() {
        let class = json!({"weight": 300, "leafWeight": 20,
            "weightDevice": [{"major": 8, "minor": 0, "weight": 200}]});
        let cfq = fake_files(&[("blkio.weight", "500"), ("blkio.weight_device", "8:0 7")]);
        let wanted = [
            "blkio.weight=300 < 500",
            "blkio.leaf_weight=20 < ",
            "blkio.weight_device=8:0 200 < 8:0 7",
        ];
        assert_eq!(v1(class, &cfq), wanted);
        let lifted = v1(json!({"weight": 0, "weightDevice": []}), &cfq);
        assert_eq!(lifted, ["blkio.weight_device=8:0 0 < 8:0 7"], "500 is CFQ's default");
    }

    #[test]
    fn v2_writes_only_the_keys_that_change() {
        let files = fake_files(&[
            ("io.weight", "default 100"),
            (
                "io.max",
                "8:0 rbps=5 wbps=max riops=max wiops=7\n8:16 rbps=max wbps=3 riops=max wiops=max",
            ),
        ]);
        let class = json!({
            "weight": 1000,
            "weightDevice": [],
            "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 6}],
            "throttleWriteBpsDevice": [{"major": 8, "minor": 16, "rate": 3}],
            "throttleReadIOPSDevice": [{"major": 9, "minor": 0, "rate": 1}],
            "throttleWriteIOPSDevice": [],
        });
        let wanted = [
            "io.weight=10000 < 100",
            "io.max=8:0 rbps=6 wiops=max, 9:0 riops=1 < 8:0 rbps=5 wiops=7, 9:0 riops=max",
        ];
        assert_eq!(v2(class, &files), wanted);
    }

    #[test]
    fn v2_writes_bfq_weights_of_devices_unchanged() {
        let files = fake_files(&[("io.bfq.weight", "default 100\n8:0 50")]);
        let class =
            json!({"weight": 300, "weightDevice": [{"major": 8, "minor": 16, "weight": 20}]});
        let wanted = [
            "io.bfq.weight=300 < 100",
            "io.bfq.weight=8:0 default, 8:16 20 < 8:0 50, 8:16 default",
        ];
        assert_eq!(v2(class, &files), wanted);
        let mut writes = Vec::new();
        let refused = plan_v2(&io(json!({"leafWeight": 20})), &SeenFiles::new(&files), &mut writes);
        assert!(matches!(refused, Err(Unfit::Refused { .. })), "{refused:?}");
    }

    #[test]
    fn without_limits_to_lift_nothing_is_written() {
        let none = json!({"weight": 0, "weightDevice": [], "throttleReadBpsDevice": [],
            "throttleWriteBpsDevice": [], "throttleReadIOPSDevice": [],
            "throttleWriteIOPSDevice": []});
        for files in [fake_files(&[]), fake_files(&[("io.weight", "default 100"), ("io.max", "")])]
        {
            assert_eq!(v1(none.clone(), &files), [""; 0]);
            assert_eq!(v2(none.clone(), &files), [""; 0]);
        }
        assert_eq!(
            v1(json!({}), &fake_files(&[("blkio.throttle.read_bps_device", "8:0 1")])),
            [""; 0]
        );
    }
}
