// SPDX-License-Identifier: Apache-2.0
//! Tests names resolved on trees of files in place of a host; needs of adjustments are in `needs.rs`.

mod delegated;
mod device_nodes;
mod needs;
mod node;
mod settings;

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{rdt_group, resolve};
use crate::config::Config;
use crate::error::RESERVED_PHRASES;
use crate::host::Host;
use crate::limits;
use crate::plugin::api;
use crate::spec::patch::{CdiDevice, Class, PatchError, Resolved};

/// A host made of files.
struct HostTree {
    temp: tempfile::TempDir,
    config: Config,
}

impl HostTree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self {
            temp: tempfile::tempdir().unwrap(),
            config: Config {
                blockio_config_file: Some(PathBuf::from("/etc/blockio.yaml")),
                ..Config::default()
            },
        };
        files.iter().for_each(|(path, text)| tree.put(path, text));
        tree
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.host().path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        crate::files::replace(&path, text.as_bytes()).unwrap();
    }

    fn host(&self) -> Host {
        Host::new(&self.temp.path().display().to_string(), "")
    }

    fn resolve(&self, adjustment: &api::ContainerAdjustment) -> Result<Resolved, PatchError> {
        let (resolved, missing) = resolve(adjustment, &self.config, &self.host())?;
        missing.into_iter().next().map_or(Ok(resolved), Err)
    }

    /// Checks that `field` is refused in one line that contains all of `wanted`.
    #[track_caller]
    fn refuses(&self, adjustment: &api::ContainerAdjustment, field: &str, wanted: &[&str]) {
        let error = self.resolve(adjustment).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        says(&error, wanted);
        let line = error.to_string();
        assert!(!line.contains(&*self.temp.path().to_string_lossy()), "{line}");
    }
}

#[track_caller]
fn says(error: &PatchError, wanted: &[&str]) {
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for phrase in RESERVED_PHRASES {
        assert!(!line.to_lowercase().contains(phrase), "{line}");
    }
    for word in wanted {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

/// Returns the adjustment that a plugin writes as this JSON.
fn asks(adjustment: &Value) -> api::ContainerAdjustment {
    crate::plugin::json::read(adjustment).unwrap()
}

fn cdi(names: &[&str]) -> api::ContainerAdjustment {
    let devices: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    asks(&json!({ "CDIDevices": devices }))
}

fn linux(linux: &Value) -> api::ContainerAdjustment {
    asks(&json!({ "linux": linux }))
}

fn blockio(class: &str) -> api::ContainerAdjustment {
    linux(&json!({"resources": {"blockioClass": {"value": class}}}))
}

fn rdt(class: &str) -> api::ContainerAdjustment {
    linux(&json!({"resources": {"rdtClass": {"value": class}}}))
}

const GPU: &str = r#"
cdiVersion: "1.1.0"
kind: v.com/gpu
containerEdits:
  env: [VENDOR=v]
  hooks:
    - {hookName: createContainer, path: /bin/once, args: [once], timeout: 5}
devices:
  - name: "0"
    containerEdits:
      env: [GPU=0]
      deviceNodes:
        - {path: /dev/gpu0, type: c, major: 195, minor: 0, fileMode: 432, permissions: rw}
        - {path: /dev/quiet, type: b, major: 8, minor: 1, permissions: none}
        - {path: /dev/full, type: c, major: 195, minor: 9}
      mounts:
        - {hostPath: /lib/gpu, containerPath: /lib/gpu, options: [ro, bind]}
      additionalGids: [44]
  - name: "1"
    containerEdits:
      env: [GPU1=1]
      netDevices: [{hostInterfaceName: eth9, name: gpu9}]
      intelRdt: {closID: gold, enableMonitoring: true}
"#;

#[test]
fn a_cdi_device_brings_its_edits_and_those_of_its_file_once() {
    let tree = HostTree::new(&[("/etc/cdi/gpu.yaml", GPU)]);
    let resolved = tree.resolve(&cdi(&["v.com/gpu=1", "v.com/gpu=0"])).unwrap();
    let [one, zero] = &resolved.cdi[..] else { panic!("{resolved:?}") };
    let env = |device: &CdiDevice| -> Vec<String> {
        device.env.iter().map(|kv| format!("{}={}", kv.key, kv.value)).collect()
    };
    assert_eq!(
        (env(one), env(zero)),
        (vec!["VENDOR=v".into(), "GPU1=1".into()], vec!["GPU=0".into()])
    );
    let hooks = &one.hooks.create_container;
    assert_eq!((hooks.len(), hooks[0].path.as_str()), (1, "/bin/once"));
    assert_eq!(hooks[0].timeout.as_ref().map(|timeout| timeout.value), Some(5));
    assert_eq!(zero.hooks, api::Hooks::default());
    assert_eq!(one.net_devices, [("eth9".to_owned(), "gpu9".to_owned())]);
    assert_eq!(one.intel_rdt, Some(json!({"closID": "gold", "enableMonitoring": true})));
    let access: Vec<_> =
        zero.nodes.iter().map(|(node, access)| (node.path.as_str(), access.as_str())).collect();
    assert_eq!(access, [("/dev/gpu0", "rw"), ("/dev/quiet", ""), ("/dev/full", "rwm")]);
    assert_eq!(zero.nodes[0].0.file_mode.as_ref().map(|mode| mode.value), Some(432));
    let mount = &zero.mounts[0];
    assert_eq!((mount.source.as_str(), mount.options.len()), ("/lib/gpu", 2));
    assert_eq!((zero.mounts.len(), &zero.additional_gids[..]), (1, &[44][..]));
    assert_eq!((one.mounts.len(), one.nodes.len()), (0, 0), "nothing comes from defaults");
}

fn device_file(kind: &str, value: &str) -> String {
    format!(
        r#"{{"cdiVersion": "0.6.0", "kind": "{kind}",
            "devices": [{{"name": "x", "containerEdits": {{"env": ["FROM={value}"]}}}}]}}"#
    )
}

#[test]
fn the_later_folder_wins_and_a_broken_file_is_skipped() {
    let tree = HostTree::new(&[
        ("/etc/cdi/a.json", &device_file("v.com/d", "etc")),
        ("/var/run/cdi/a.json", &device_file("v.com/d", "run")),
        ("/etc/cdi/broken.json", "{"),
        ("/etc/cdi/notes.txt", "no spec"),
    ]);
    let resolved = tree.resolve(&cdi(&["v.com/d=x"])).unwrap();
    assert_eq!(resolved.cdi[0].env[0].value, "run");
}

#[test]
fn an_unavailable_cdi_device_is_refused_by_its_name() {
    let field = "CdiDevices[v.com/d=x]";
    let tree = HostTree::new(&[("/etc/cdi/a.json", &device_file("v.com/other", "1"))]);
    tree.refuses(&cdi(&["v.com/d=x"]), field, &["/etc/cdi, /var/run/cdi", "defines"]);
    tree.put("/etc/cdi/b.yaml", "cdiVersion: 0.6.0\nkind: v.com/d\ndevices: 5\n");
    tree.refuses(&cdi(&["v.com/d=x"]), field, &["/etc/cdi/b.yaml is broken"]);
    tree.put("/etc/cdi/b.yaml", &device_file("v.com/d", "1"));
    assert!(tree.resolve(&cdi(&["v.com/d=x"])).is_ok());
    tree.put("/etc/cdi/c.json", &device_file("v.com/d", "2"));
    tree.refuses(&cdi(&["v.com/d=x"]), field, &["/etc/cdi/b.yaml and /etc/cdi/c.json both"]);
    tree.refuses(&cdi(&["gpu0"]), "CdiDevices[gpu0]", &["vendor/class=name"]);
}

#[test]
fn an_irregular_spec_file_is_reported_without_blocking() {
    let field = "CdiDevices[v.com/d=x]";
    let tree = HostTree::new(&[("/etc/cdi/a.json", &device_file("v.com/other", "1"))]);
    let at = |name: &str| tree.host().path("/etc/cdi").join(name);
    nix::unistd::mkfifo(&at("fifo.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("fifo.yaml", at("link.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("zero.json")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.json")).unwrap();
    tree.put("/etc/cdi/large.json", &" ".repeat(limits::SETTINGS_FILE + 1));
    let broken = ["fifo.yaml", "link.json", "socket.json", "zero.json"];
    let broken = broken.map(|name| format!("/etc/cdi/{name} is broken: it is not a regular file"));
    let mut wanted: Vec<&str> = broken.iter().map(String::as_str).collect();
    wanted.push("/etc/cdi/large.json is broken: it has more than 4194304 bytes");
    tree.refuses(&cdi(&["v.com/d=x"]), field, &wanted);
    tree.put("/etc/shared/spec", &device_file("v.com/d", "linked"));
    std::os::unix::fs::symlink("../shared/spec", at("spec.yaml")).unwrap();
    let resolved = tree.resolve(&cdi(&["v.com/d=x"])).unwrap();
    assert_eq!(resolved.cdi[0].env[0].value, "linked");
}

#[test]
fn no_error_quotes_a_file_that_is_not_a_spec() {
    let tree = HostTree::new(&[("/etc/cdi/a.json", &device_file("v.com/other", "1"))]);
    for text in ["root:s3cret:1:2\n", "kind: [s3cret", "cdiVersion: {s3cret: 1}", "- s3cret\n- 2"] {
        tree.put("/etc/secrets", text);
        let link = tree.host().path("/etc/cdi/b.yaml");
        let _earlier = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("../secrets", &link).unwrap();
        let error = tree.resolve(&cdi(&["v.com/d=x"])).unwrap_err().to_string();
        assert!(error.contains("b.yaml is broken: it is not a CDI spec"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn a_spec_file_with_invalid_edits_counts_as_broken() {
    for edits in [
        r#"{"env": ["NONAME"]}"#,
        r#"{"env": ["-X=1"]}"#,
        r#"{"mounts": [{"hostPath": "/a", "containerPath": "-/b"}]}"#,
        r#"{"deviceNodes": [{"path": "/dev/none", "hostPath": "/dev/there/is/none"}]}"#,
        r#"{"hooks": [{"hookName": "sometimes", "path": "/bin/x"}]}"#,
        r#"{"surprise": true}"#,
    ] {
        let text = format!(
            r#"{{"cdiVersion": "0.6.0", "kind": "v.com/d",
                "devices": [{{"name": "x", "containerEdits": {edits}}}]}}"#
        );
        let tree = HostTree::new(&[("/etc/cdi/a.json", &text)]);
        tree.refuses(&cdi(&["v.com/d=x"]), "CdiDevices[v.com/d=x]", &["/etc/cdi/a.json"]);
    }
}

const CLASSES: &str = "
Classes:
  slow:
    - Weight: 80
    - Devices: [/dev/sd*, '/dev/disk/by-id/*SSD*']
      ThrottleReadBps: 60M
      throttlewriteiops: 1k
    - Devices: [/dev/sdb]
      ThrottleReadBps: 1Mi
      Weight: 50
  nothing:
  bad-weight: [{Weight: 5}]
  bad-number: [{Devices: [/dev/sda], ThrottleReadBps: many}]
  no-devices: [{ThrottleReadBps: 1M}]
  bad-key: [{Wait: 5}]
  bad-device: [{Devices: [sda], Weight: 50}]
  no-list: {Weight: 50}
";

fn disks() -> HostTree {
    let tree = HostTree::new(&[
        ("/etc/blockio.yaml", CLASSES),
        ("/dev/sda", ""),
        ("/dev/sda1", ""),
        ("/dev/sdb", ""),
        ("/dev/cciss/c0d0", ""),
        ("/sys/block/sda/dev", "8:0\n"),
        ("/sys/block/sdb/dev", "8:16\n"),
        ("/sys/block/cciss!c0d0/dev", "104:0\n"),
    ]);
    let by_id = tree.host().path("/dev/disk/by-id");
    std::fs::create_dir_all(&by_id).unwrap();
    std::os::unix::fs::symlink("../../cciss/c0d0", by_id.join("ata-SSD-1")).unwrap();
    tree
}

#[test]
fn a_block_io_class_becomes_limits_of_existing_disks() {
    let resolved = disks().resolve(&blockio("slow")).unwrap();
    let rate = |major, minor, rate| json!({"major": major, "minor": minor, "rate": rate});
    let wanted = json!({
        "weight": 80,
        "throttleReadBpsDevice": [
            rate(8, 0, 60_000_000), rate(104, 0, 60_000_000), rate(8, 16, 1_048_576),
        ],
        "throttleWriteIOPSDevice": [rate(8, 0, 1000), rate(8, 16, 1000), rate(104, 0, 1000)],
        "weightDevice": [{"major": 8, "minor": 16, "weight": 50}],
    });
    assert_eq!(resolved.block_io, Class::Set(wanted));
    assert!(resolved.notes.iter().any(|note| note.contains("/dev/sda1")), "{:?}", resolved.notes);
}

#[test]
fn a_class_without_limits_differs_from_the_empty_class() {
    let tree = disks();
    assert_eq!(tree.resolve(&blockio("nothing")).unwrap().block_io, Class::Set(json!({})));
    assert_eq!(tree.resolve(&blockio("")).unwrap().block_io, Class::Cleared);
    assert_eq!(tree.resolve(&api::ContainerAdjustment::default()).unwrap(), Resolved::default());
}

#[test]
fn patterns_that_match_nothing_limit_nothing_and_are_noted() {
    let tree = HostTree::new(&[("/etc/blockio.yaml", CLASSES)]);
    let resolved = tree.resolve(&blockio("slow")).unwrap();
    assert_eq!(resolved.block_io, Class::Set(json!({"weight": 80})));
    assert_eq!(resolved.notes.len(), 3, "{:?}", resolved.notes);
}

#[test]
fn an_invalid_block_io_class_is_refused_with_its_file() {
    let mut tree = disks();
    for (class, wanted) in [
        ("unheard", "there is no class"),
        ("bad-weight", "outside 10 to 1000"),
        ("bad-number", "many"),
        ("no-devices", "without Devices"),
        ("bad-key", "Wait"),
        ("bad-device", "not a path in /dev"),
        ("no-list", "not a list"),
    ] {
        tree.refuses(&blockio(class), "BlockioClass", &[class, "/etc/blockio.yaml", wanted]);
    }
    tree.put("/etc/blockio.yaml", "Classes: [\n");
    tree.refuses(&blockio("slow"), "BlockioClass", &["slow", "/etc/blockio.yaml is not YAML"]);
    tree.put("/etc/blockio.yaml", "Other: 1\n");
    tree.refuses(&blockio("slow"), "BlockioClass", &["slow", "has no Classes"]);
    std::fs::remove_file(tree.host().path("/etc/blockio.yaml")).unwrap();
    tree.refuses(&blockio("slow"), "BlockioClass", &["slow", "/etc/blockio.yaml"]);
    tree.config.blockio_config_file = None;
    tree.refuses(&blockio("slow"), "BlockioClass", &["slow", "config_file is not set"]);
}

#[test]
fn an_rdt_class_is_a_folder_in_resctrl() {
    let tree = HostTree::new(&[
        ("/sys/fs/resctrl/info/x", ""),
        ("/sys/fs/resctrl/gold/schemata", ""),
        ("/sys/fs/resctrl/schemata", ""),
    ]);
    let gold = Class::Set(json!({"closID": "gold"}));
    assert_eq!(tree.resolve(&rdt("gold")).unwrap().intel_rdt, gold);
    assert_eq!(tree.resolve(&rdt("")).unwrap().intel_rdt, Class::Cleared);
    for class in ["tin", "schemata", "info"] {
        tree.refuses(&rdt(class), "RdtClass", &[class, "/sys/fs/resctrl"]);
    }
    for class in ["../gold", "/gold", "gold/.", "..", "."] {
        tree.refuses(&rdt(class), "RdtClass", &["not the name of a class"]);
    }
    let bare = HostTree::new(&[("/sys/fs/resctrl/gold/schemata", "")]);
    bare.refuses(&rdt("gold"), "RdtClass", &["not mounted at /sys/fs/resctrl"]);
}

/// Two partitions, as the operator of a node writes them for its engine.
const RDT_CLASSES: &str = r#"
options:
  l3: {optional: true}
partitions:
  exclusive:
    l3Allocation: "60%"
    mbAllocation: ["100%"]
    classes:
      gold:
        l3Allocation: "100%"
        kubernetes: {denyPodAnnotation: true}
  shared:
    l3Allocation: {all: "40%", 2-3: "20%"}
    classes:
      silver: {mbAllocation: ["50%", "1000MBps"]}
      7:
      tin:
      system/default:
"#;

fn tree_with_rdt_file(text: &str) -> HostTree {
    let groups =
        ["gold", "silver", "7", "foreign"].map(|group| format!("/sys/fs/resctrl/{group}/tasks"));
    let mut tree = HostTree::new(&[("/sys/fs/resctrl/info/x", ""), ("/etc/rdt.yaml", text)]);
    groups.iter().for_each(|path| tree.put(path, ""));
    tree.config.rdt_config_file = Some(PathBuf::from("/etc/rdt.yaml"));
    tree
}

#[test]
fn an_rdt_class_of_the_engines_file_resolves_to_its_group() {
    let tree = tree_with_rdt_file(RDT_CLASSES);
    for class in ["gold", "silver", "7"] {
        let group = Class::Set(json!({"closID": class}));
        assert_eq!(tree.resolve(&rdt(class)).unwrap().intel_rdt, group);
    }
    for root in ["system/default", ""] {
        assert_eq!(tree.resolve(&rdt(root)).unwrap().intel_rdt, Class::Cleared, "{root}");
    }
    assert_eq!((rdt_group("system/default"), rdt_group("gold")), ("", "gold"));
}

#[test]
fn a_group_missing_in_the_engines_file_is_not_a_class() {
    let tree = tree_with_rdt_file(RDT_CLASSES);
    for class in ["foreign", "lead", "exclusive", "Gold"] {
        tree.refuses(&rdt(class), "RdtClass", &[class, "/etc/rdt.yaml: there is no such class"]);
    }
    tree.refuses(&rdt("tin"), "RdtClass", &["tin", "/etc/rdt.yaml", "no such group", "the engine"]);
    tree.refuses(&rdt("../gold"), "RdtClass", &["not the name of a class"]);
    let twice = RDT_CLASSES.replace("tin:", "gold:");
    for (text, wanted) in [
        (twice.as_str(), "in two partitions"),
        ("partitions: [\n", "it is not YAML"),
        ("classes: {gold: {}}\n", "it has no partitions"),
        ("partitions: {a: {classes: [gold]}}\n", "there is no such class"),
        ("", "it has no partitions"),
    ] {
        let tree = tree_with_rdt_file(text);
        tree.refuses(&rdt("gold"), "RdtClass", &["gold", "/etc/rdt.yaml", wanted]);
    }
    let mut away = tree_with_rdt_file("");
    away.config.rdt_config_file = Some(PathBuf::from("/etc/other.yaml"));
    away.refuses(&rdt("gold"), "RdtClass", &["gold", "/etc/other.yaml"]);
}
