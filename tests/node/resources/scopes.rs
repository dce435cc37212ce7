// SPDX-License-Identifier: Apache-2.0
//! Containers in systemd's scopes (`--systemd-cgroup`): plugins' values are set by the runtime's own
//! `update`, so that systemd knows them and does not undo them. It needs systemd as the first process and
//! v2 alone: the second boot of `make vm`. Each test runs with runc and with crun.

use std::process::{Command, Output};

use nri_plugin::Adjustment;
use serde_json::{Value, json};

use super::{Place, is_done, skip, succeeds, unstarted_place, wait_until};

/// A guest without KVM is slow: no plugin is late there.
const PATIENT: &str = "[nri]\nplugin_request_timeout = \"20s\"";

/// The change, the resources, the files, and systemd's properties: file or property, text.
type Case = (&'static str, &'static str, Texts, Texts);
type Text = (&'static str, &'static str);
type Texts = &'static [Text];

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("memory limit raised", r#"{"memory": {"limit": 100663296}}"#, &[("memory.max", "100663296"), ("memory.swap.max", "0")], &[("MemoryMax", "100663296"), ("MemorySwapMax", "0")]),
    ("memory limit lowered, with swap", r#"{"memory": {"limit": 50331648, "swap": 83886080}}"#, &[("memory.max", "50331648"), ("memory.swap.max", "33554432")], &[("MemoryMax", "50331648"), ("MemorySwapMax", "33554432")]),
    ("reservation set", r#"{"memory": {"reservation": 8388608}}"#, &[("memory.low", "8388608")], &[("MemoryLow", "8388608")]),
    ("shares raised", r#"{"cpu": {"shares": 2048}}"#, &[("cpu.weight", "79")], &[("CPUWeight", "79")]),
    ("shares lowered", r#"{"cpu": {"shares": 512}}"#, &[("cpu.weight", "20")], &[("CPUWeight", "20")]),
    ("quota and period set", r#"{"cpu": {"quota": 50000, "period": 100000}}"#, &[("cpu.max", "50000 100000")], &[("CPUQuotaPerSecUSec", "500ms")]),
    ("quota lowered", r#"{"cpu": {"quota": 20000, "period": 100000}}"#, &[("cpu.max", "20000 100000")], &[("CPUQuotaPerSecUSec", "200ms")]),
    ("quota removed", r#"{"cpu": {"quota": -1, "period": 100000}}"#, &[("cpu.max", "max 100000")], &[("CPUQuotaPerSecUSec", "infinity")]),
    ("cpus lowered", r#"{"cpu": {"cpus": "0", "mems": "0"}}"#, &[("cpuset.cpus", "0"), ("cpuset.mems", "0")], &[("AllowedCPUs", "0"), ("AllowedMemoryNodes", "0")]),
    ("cpus raised", r#"{"cpu": {"cpus": "0-1"}}"#, &[("cpuset.cpus", "0-1")], &[("AllowedCPUs", "0-1")]),
    ("pids lowered", r#"{"pids": {"limit": 64}}"#, &[("pids.max", "64")], &[("TasksMax", "64")]),
    ("pids raised", r#"{"pids": {"limit": 128}}"#, &[("pids.max", "128")], &[("TasksMax", "128")]),
    ("unified memory.high set", r#"{"unified": {"memory.high": "41943040"}}"#, &[("memory.high", "41943040")], &[("MemoryHigh", "41943040")]),
];

/// The properties that crun 1.8.1 sends to systemd; it writes the rest only to its own cgroup below the
/// scope.
const KNOWN_BY_CRUN: [&str; 1] = ["CPUWeight"];

/// runc 1.1.5 does not send a swap of 0 to systemd, so the next reload restores the swap.
const FORGOTTEN_BY_RUNC: (&str, &str) = ("memory.swap.max", "MemorySwapMax");

/// Held to reload systemd, and to read values that a reload would reset.
static RELOADS: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// A host whose containers are in scopes.
pub(super) struct Scopes {
    pub(super) place: Place,
    runtime: &'static str,
    systemctl: std::path::PathBuf,
}

fn scopes(runtime: &'static str) -> Option<Scopes> {
    scopes_with(runtime, PATIENT)
}

fn scopes_with(runtime: &'static str, more: &str) -> Option<Scopes> {
    let mut scopes = unstarted_with(runtime, more)?;
    scopes.place.host.start_daemon();
    Some(scopes)
}

/// Like [`Self::new`], for a test that starts the daemon itself.
pub(super) fn unstarted(runtime: &'static str) -> Option<Scopes> {
    unstarted_with(runtime, PATIENT)
}

pub(super) fn unstarted_with(runtime: &'static str, more: &str) -> Option<Scopes> {
    let is_there = |path: &str| std::path::Path::new(path).exists();
    if !is_there("/run/systemd/private") || !is_there("/sys/fs/cgroup/cgroup.controllers") {
        skip::machine_lacks(
            "systemd and v2 alone are not here (make vm has a guest where they are)",
        );
        return None;
    }
    let tools = test_support::tools::find_in_guest(&["busybox", "systemctl", runtime])?;
    let systemctl = tools.join("systemctl");
    Some(Scopes { place: unstarted_place(runtime, more)?, runtime, systemctl })
}

impl Scopes {
    /// The part of the scopes' names that distinguishes this test's from others'.
    pub(super) fn prefix(&self) -> String {
        let name = self.place.real.cgroup("");
        name.chars().filter(char::is_ascii_alphanumeric).collect()
    }

    fn unit(&self, id: &str) -> String {
        format!("{}-{id}.scope", self.prefix())
    }

    fn verb(&self, words: &[&str], stdin: &Value) -> Output {
        let root = self.place.host.path("root").display().to_string();
        let words = [&["--root", &root, "--systemd-cgroup"][..], words].concat();
        self.place.host.call_with(&words, &stdin.to_string())
    }

    pub(super) fn create(&self, id: &str, resources: &Value) -> Output {
        let mut document = self.place.real.document(id, &["sleep", "1000"]);
        document["linux"]["cgroupsPath"] = json!(format!("system.slice:{}:{id}", self.prefix()));
        document["linux"]["resources"] = resources.clone();
        std::fs::create_dir_all(self.place.host.path(id)).unwrap();
        self.place.host.write(&format!("{id}/config.json"), &document.to_string());
        let bundle = self.place.host.path(id).display().to_string();
        self.verb(&["create", "--bundle", &bundle, id], &json!(null))
    }

    pub(super) fn run(&self, id: &str, resources: &Value) {
        succeeds(&self.create(id, resources));
        self.place.settled(id);
        succeeds(&self.verb(&["start", id], &json!(null)));
    }

    pub(super) fn update(&self, id: &str, request: &Value) -> Output {
        self.verb(&["update", "--resources", "-", id], request)
    }

    /// The program `systemctl`.
    pub(super) fn program(&self) -> &std::path::Path {
        &self.systemctl
    }

    pub(super) fn systemctl(&self, words: &[&str]) -> String {
        let output = Command::new(&self.systemctl).args(words).output().unwrap();
        succeeds(&output);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Makes systemd write the limits of all scopes again, also those of other tests.
    pub(super) fn reload_systemd(&self) {
        self.while_systemd_reloads(|| self.systemctl(&["daemon-reload"]));
    }

    /// Reloads while no test reads values that a reload resets.
    pub(super) fn while_systemd_reloads<T>(&self, reload: impl FnOnce() -> T) -> T {
        let _nobody_looks = RELOADS.write().unwrap();
        reload()
    }

    fn property(&self, id: &str, name: &str) -> String {
        self.systemctl(&["show", "--value", "--property", name, &self.unit(id)])
    }

    /// A file of the cgroup of the container's process: crun's is below its scope.
    fn file(&self, id: &str, file: &str) -> String {
        let state = self.verb(&["state", id], &json!(null));
        let state: Value = serde_json::from_slice(&state.stdout).unwrap();
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", state["pid"])).unwrap();
        assert!(cgroup.contains(&self.unit(id)), "{cgroup}");
        let path = format!("/sys/fs/cgroup{}/{file}", cgroup.trim().trim_start_matches("0::"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| format!("{path}: {e}"));
        text.trim_end().to_owned()
    }

    /// The files and properties with other values than these.
    fn wrong(&self, id: &str, files: &[Text], properties: &[Text]) -> Vec<String> {
        let files = files.iter().map(|(name, wanted)| (name, wanted, self.file(id, name)));
        let is_crun = self.runtime == "crun";
        let properties =
            properties.iter().filter(|(name, _)| !is_crun || KNOWN_BY_CRUN.contains(name));
        let known = properties.map(|(name, wanted)| (name, wanted, self.property(id, name)));
        let wrong = files.chain(known).filter(|(_, wanted, text)| text != *wanted);
        wrong.map(|(name, wanted, text)| format!("{name} says {text}, not {wanted}")).collect()
    }

    #[track_caller]
    pub(super) fn all_say(&self, id: &str, files: &[Text], properties: &[Text]) {
        assert_eq!(self.wrong(id, files, properties), Vec::<String>::new());
    }

    fn last_reason(&self, id: &str) -> String {
        let explained = self.place.host.admin(&["explain", id]);
        let skipped = explained["skipped"].as_array().and_then(|all| all.last().cloned());
        skipped.map_or_else(String::new, |skipped| skipped["reason"].to_string())
    }

    #[expect(clippy::print_stderr, reason = "the table of cases")]
    pub(super) fn show(&self, case: &str, outcome: &str) {
        eprintln!("case {}: {case}, in a scope: {outcome}", self.runtime);
    }
}

fn first() -> Value {
    json!({"memory": {"limit": 67_108_864}, "cpu": {"shares": 1024}, "pids": {"limit": 100}})
}

fn each_field(runtime: &'static str) {
    let Some(scopes) = scopes(runtime) else { return };
    scopes.run("c1", &first());
    let asking = scopes.place.asker();
    let mut failed = Vec::new();
    for (case, text, files, properties) in CASES {
        let unwritten = RELOADS.read().unwrap();
        let done = is_done(&asking, "c1", &serde_json::from_str(text).unwrap());
        let is_forgotten = |text: &&Text| {
            runtime == "runc"
                && [FORGOTTEN_BY_RUNC.0, FORGOTTEN_BY_RUNC.1].contains(&text.0)
                && text.1 == "0"
        };
        let known: Vec<Text> =
            properties.iter().filter(|text| !is_forgotten(text)).copied().collect();
        let mut wrong = scopes.wrong("c1", files, &known);
        if !done {
            wrong.push(format!("refused: {}", scopes.last_reason("c1")));
        }
        drop(unwritten);
        // systemd writes all of its values again.
        scopes.reload_systemd();
        let files: Vec<Text> = files.iter().filter(|text| !is_forgotten(text)).copied().collect();
        let after = scopes.wrong("c1", &files, &known);
        wrong.extend(after.into_iter().map(|wrong| format!("after a reload {wrong}")));
        let outcome = if wrong.is_empty() { "ok".to_owned() } else { wrong.join("; ") };
        scopes.show(case, &outcome);
        if outcome != "ok" {
            failed.push(format!("{case}: {outcome}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    let explained = scopes.place.host.admin(&["explain", "c1"]);
    let changes = explained["changes"].as_array().unwrap();
    let is_shares = |change: &&Value| change["field"] == "linux.resources.cpu.shares";
    let shares = changes.iter().find(is_shares).unwrap();
    assert_eq!((&shares["plugin"], &shares["before"]), (&json!("10-asker"), &json!(1024)));
}

/// The values that the plugin owns: 300 shares are a weight of 12.
const OWNED: (Texts, Texts) = (
    &[("cpu.weight", "12"), ("pids.max", "33"), ("memory.high", "41943040")],
    &[("CPUWeight", "12"), ("TasksMax", "33"), ("MemoryHigh", "41943040")],
);

fn beside_the_engine(runtime: &'static str) {
    let Some(mut scopes) = scopes(runtime) else { return };
    scopes.run("c1", &first());
    let asking = scopes.place.asker();
    let owned = json!({"cpu": {"shares": 300}, "pids": {"limit": 33}, "unified": {"memory.high": "41943040"}});
    assert!(is_done(&asking, "c1", &owned), "{}", scopes.last_reason("c1"));
    scopes.all_say("c1", OWNED.0, OWNED.1);
    // The engine repeats its old values and changes one.
    let request =
        json!({"memory": {"limit": 83_886_080}, "cpu": {"shares": 1024}, "pids": {"limit": 100}});
    succeeds(&scopes.update("c1", &request));
    scopes.all_say("c1", OWNED.0, OWNED.1);
    scopes.all_say("c1", &[("memory.max", "83886080")], &[("MemoryMax", "83886080")]);
    scopes.reload_systemd();
    scopes.all_say("c1", OWNED.0, OWNED.1);
    scopes.show("the engine updates beside a plugin", "ok");
    for verb in ["state", "pause", "resume"] {
        succeeds(&scopes.verb(&[verb, "c1"], &json!(null)));
        scopes.all_say("c1", OWNED.0, OWNED.1);
    }
    scopes.show("state, pause and resume bring nothing back", "ok");
    // The kernel refuses: afterwards the plugin's values are in force, whatever the runtime wrote.
    let wrong = json!({"cpu": {"cpus": "4000", "shares": 700}, "pids": {"limit": 44}});
    assert!(!scopes.update("c1", &wrong).status.success());
    wait_until("what the plugin owns is there again", || {
        scopes.wrong("c1", OWNED.0, OWNED.1).is_empty()
    });
    scopes.show("the engine is refused", "ok");
    scopes.place.host.kill_daemon();
    scopes.place.host.start_daemon();
    let again = json!({"memory": {"limit": 50_331_648}, "pids": {"limit": 100}});
    succeeds(&scopes.update("c1", &again));
    scopes.all_say("c1", OWNED.0, OWNED.1);
    scopes.show("a daemon that was killed knows what plugins own", "ok");
    // A deliberate change takes precedence: 900 shares are 35.
    succeeds(&scopes.update("c1", &json!({"cpu": {"shares": 900}})));
    scopes.all_say("c1", &[("cpu.weight", "35"), OWNED.0[1]], &[("CPUWeight", "35"), OWNED.1[1]]);
    scopes.show("the engine wins by a deliberate change", "ok");
    succeeds(&scopes.verb(&["delete", "--force", "c1"], &json!(null)));
    wait_until("it is gone", || scopes.place.state("c1").is_none());
    scopes.run("c1", &first());
    scopes.all_say("c1", &[("cpu.weight", "39"), ("memory.high", "max")], &[("CPUWeight", "39")]);
    scopes.show("nothing stale comes back with the name", "ok");
}

/// The request, and a word of the reason: pids, which could be set, keep their value.
const REFUSED: &[(&str, &str, &str)] = &[
    ("cpus that are not there", r#"{"cpu": {"cpus": "4000"}}"#, "4000"),
    ("quota too small", r#"{"cpu": {"quota": 1, "period": 100000}}"#, "CPUQuota"),
    ("swap below memory", r#"{"memory": {"limit": 67108864, "swap": 33554432}}"#, "swap"),
    ("a file that is not there", r#"{"unified": {"memory.nothing": "1"}}"#, "memory.nothing"),
];

fn refusals(runtime: &'static str) {
    let Some(scopes) = scopes(runtime) else { return };
    scopes.run("c1", &json!({"cpu": {"shares": 500}, "pids": {"limit": 40}}));
    let asking = scopes.place.asker();
    let files: Texts = &[("pids.max", "40"), ("cpu.weight", "19"), ("cpuset.cpus", "")];
    let known: Texts = &[("TasksMax", "40"), ("CPUWeight", "19")];
    scopes.all_say("c1", files, known);
    let mut failed = Vec::new();
    for (case, text, why) in REFUSED {
        let mut wrong: Value = serde_json::from_str(text).unwrap();
        wrong["pids"] = json!({"limit": 50});
        let done = is_done(&asking, "c1", &wrong);
        let (wrong, reason) = (scopes.wrong("c1", files, known), scopes.last_reason("c1"));
        let is_right = !done && wrong.is_empty() && reason.contains(why);
        scopes.show(&format!("{case} is refused"), if is_right { "ok" } else { &reason });
        if !is_right {
            failed.push(format!("{case}: done {done}, {reason}, {wrong:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(scopes.place.host.admin(&["explain", "c1"])["owners"], json!({}));
}

fn moved(runtime: &'static str) {
    let Some(scopes) = scopes(runtime) else { return };
    let (prefix, slice) = (scopes.prefix(), format!("{}.slice", scopes.prefix()));
    let adjust = Adjustment::new().cgroups_path(&format!("{slice}:{prefix}:c1"));
    let _plugin = scopes.place.host.plugin("20", "mover", adjust);
    scopes.run("c1", &first());
    assert_eq!(scopes.property("c1", "Slice"), slice);
    assert_eq!(scopes.systemctl(&["is-active", &scopes.unit("c1")]), "active");
    scopes.all_say("c1", &[("pids.max", "100")], &[("TasksMax", "100")]);
    assert!(is_done(&scopes.place.asker(), "c1", &json!({"pids": {"limit": 64}})));
    scopes.all_say("c1", &[("pids.max", "64")], &[("TasksMax", "64")]);
    scopes.show("a plugin names another slice", "ok");
    succeeds(&scopes.verb(&["delete", "--force", "c1"], &json!(null)));
}

fn lives(runtime: &'static str) {
    let Some(scopes) = scopes(runtime) else { return };
    scopes.run("c1", &first());
    let asking = scopes.place.asker();
    succeeds(&scopes.verb(&["pause", "c1"], &json!(null)));
    let done = is_done(&asking, "c1", &json!({"pids": {"limit": 33}}));
    assert!(done, "{}", scopes.last_reason("c1"));
    scopes.all_say("c1", &[("pids.max", "33"), ("cgroup.freeze", "1")], &[("TasksMax", "33")]);
    succeeds(&scopes.verb(&["resume", "c1"], &json!(null)));
    scopes.show("a frozen container is updated and stays frozen", "ok");
    succeeds(&scopes.verb(&["kill", "c1", "KILL"], &json!(null)));
    wait_until("it has ended", || scopes.place.state("c1").as_deref() == Some("stopped"));
    assert!(!is_done(&asking, "c1", &json!({"pids": {"limit": 44}})));
    assert!(scopes.last_reason("c1").contains("it has ended"), "{}", scopes.last_reason("c1"));
    scopes.show("one that has ended is reported", "ok");
}

/// The guest's disk (scripts/vm/boot.sh).
const DISK: &str = "/dev/nvme0n1";

/// Huge pages and block I/O, which runc's `update` accepts without applying them.
const BESIDE: Texts = &[("hugetlb.2MB.max", "4194304"), ("hugetlb.2MB.rsvd.max", "4194304")];

/// A host with a block I/O class for the guest's disk, and its text in `io.max`.
fn with_a_disk() -> Option<(Scopes, tempfile::TempDir, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("blockio.yaml");
    let class = format!("Classes:\n  slow:\n  - Devices: [{DISK}]\n    ThrottleReadBps: 1048576\n");
    nri_runc::testing::files::replace(&file, class.as_bytes()).unwrap();
    let more = format!("{PATIENT}\n[blockio]\nconfig_file = \"{}\"", file.display());
    let scopes = scopes_with("runc", &more)?;
    let numbers = std::fs::read_to_string("/sys/block/nvme0n1/dev").unwrap();
    let limit = format!("{} rbps=1048576 wbps=max riops=max wiops=max", numbers.trim());
    Some((scopes, folder, limit))
}

#[test]
fn values_that_runc_does_not_apply_stay_in_the_scope() {
    let Some((mut scopes, _folder, limit)) = with_a_disk() else { return };
    let pages = |limit: u64| json!([{"pageSize": "2MB", "limit": limit}]);
    let mut made = first();
    made["hugepageLimits"] = pages(8_388_608);
    scopes.run("c1", &made);
    scopes.all_say("c1", &[("hugetlb.2MB.max", "8388608"), ("io.max", "")], &[]);
    let asking = scopes.place.asker();
    let with_class = |resources: &Value| {
        let mut update = test_support::adjustments::update_of("c1", resources);
        let linux = update.linux.mut_or_insert_default();
        linux.resources.mut_or_insert_default().blockio_class =
            Some("slow".to_owned().into()).into();
        update
    };
    // Together with a value that the runtime applies, all values are applied.
    let both = with_class(&json!({"hugepageLimits": pages(4_194_304), "pids": {"limit": 33}}));
    // A guest without KVM may be too slow for the plugin, but the request is still applied.
    let answer = asking.ask(super::request(vec![both]));
    let failed = answer.is_ok_and(|answer| !answer.failed.is_empty());
    assert!(!failed, "{}", scopes.last_reason("c1"));
    let holds = |scopes: &Scopes| {
        let mut wrong = scopes.wrong("c1", BESIDE, &[]);
        wrong.extend(scopes.wrong("c1", &[("pids.max", "33")], &[("TasksMax", "33")]));
        let io = scopes.file("c1", "io.max");
        if io != limit {
            wrong.push(format!("io.max says {io}, not {limit}"));
        }
        wrong
    };
    wait_until("all of it is done", || holds(&scopes).is_empty());
    scopes.show("huge pages and block I/O beside pids", "ok");
    scopes.reload_systemd();
    assert_eq!(holds(&scopes), Vec::<String>::new(), "after a reload of systemd");
    // Each `update` of runc writes the values of the creation.
    succeeds(&scopes.update("c1", &json!({"memory": {"limit": 83_886_080}})));
    wait_until("they are written again", || holds(&scopes).is_empty());
    scopes.show("they are written again after the engine's update", "ok");
    scopes.place.host.kill_daemon();
    scopes.place.host.start_daemon();
    succeeds(&scopes.update("c1", &json!({"memory": {"limit": 50_331_648}})));
    wait_until("the next daemon writes them again", || holds(&scopes).is_empty());
    let wrong = json!({"cpu": {"cpus": "4000", "shares": 700}});
    assert!(!scopes.update("c1", &wrong).status.success());
    wait_until("they are there after a failed update", || holds(&scopes).is_empty());
    scopes.show("they are there after a restart and a failed update", "ok");
}

#[test]
fn an_update_with_an_unwritable_value_is_undone_as_a_whole() {
    let Some((scopes, _folder, _limit)) = with_a_disk() else { return };
    scopes.run("c1", &first());
    let asking = scopes.place.asker();
    let files: Texts = &[("pids.max", "100"), ("hugetlb.2MB.max", "max"), ("io.max", "")];
    let device = json!({"allow": true, "type": "c", "major": 1, "minor": 11, "access": "rw"});
    let pages = json!([{"pageSize": "3MB", "limit": 1}]);
    for (case, wrong, why) in [
        ("a device", json!({"devices": [device]}), "devices"),
        ("pages of 3 MB", json!({"hugepageLimits": pages}), "hugetlb.3MB"),
    ] {
        let mut wrong = wrong;
        wrong["pids"] = json!({"limit": 50});
        assert!(!is_done(&asking, "c1", &wrong), "{case}");
        let reason = scopes.last_reason("c1");
        assert!(reason.contains(why), "{case}: {reason}");
        scopes.all_say("c1", files, &[("TasksMax", "100")]);
        scopes.show(&format!("{case} is refused"), "ok");
    }
}

#[test]
fn each_field_is_known_to_systemd_with_runc() {
    each_field("runc");
}

#[test]
fn each_field_is_known_to_systemd_with_crun() {
    each_field("crun");
}

#[test]
fn a_scope_keeps_plugin_owned_values_with_runc() {
    beside_the_engine("runc");
}

#[test]
fn a_scope_keeps_plugin_owned_values_with_crun() {
    beside_the_engine("crun");
}

#[test]
fn a_refused_update_leaves_a_scope_unchanged_with_runc() {
    refusals("runc");
}

#[test]
fn a_refused_update_leaves_a_scope_unchanged_with_crun() {
    refusals("crun");
}

#[test]
fn a_plugin_may_name_another_slice_with_runc() {
    moved("runc");
}

#[test]
fn a_plugin_may_name_another_slice_with_crun() {
    moved("crun");
}

#[test]
fn a_frozen_scope_does_not_count_as_ended_with_runc() {
    lives("runc");
}

#[test]
fn a_frozen_scope_does_not_count_as_ended_with_crun() {
    lives("crun");
}

/// kubelet with the systemd driver resizes a pod by its slice: systemd writes the cgroup, and then kubelet
/// writes the same values. A write by systemd alone is not a resize.
#[test]
fn a_pods_slice_is_resized_by_kubelet_and_not_by_systemd_alone() {
    let kubelet = format!("{PATIENT}\n{}", test_support::cgroup::test_is_kubelet());
    let Some(scopes) = scopes_with("runc", &kubelet) else { return };
    let uid = scopes.prefix();
    let slice = format!("kubepods-pod{uid}.slice");
    scopes.systemctl(&["start", &slice]);
    let set = |what: &str| scopes.systemctl(&["set-property", "--runtime", &slice, what]);
    set("MemoryMax=67108864");
    let requests = super::resized::listen(&scopes.place, "a");
    let mut document = scopes.place.real.document("p1", &["sleep", "1000"]);
    document["linux"]["cgroupsPath"] = json!(format!("{slice}:cri-containerd:p1"));
    document["annotations"] = super::resized::sandbox("p1", &uid);
    let folder = "io.containerd.runtime.v2.task/k8s.io/p1";
    std::fs::create_dir_all(scopes.place.host.path(folder)).unwrap();
    scopes.place.host.write(&format!("{folder}/config.json"), &document.to_string());
    let bundle = scopes.place.host.path(folder).display().to_string();
    succeeds(&scopes.verb(&["create", "--bundle", &bundle, "p1"], &json!(null)));
    succeeds(&scopes.verb(&["start", "p1"], &json!(null)));
    set("MemoryMax=134217728");
    let all = |event| super::resized::all(&requests, event);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(all("UpdatePodSandbox").len(), 0, "systemd alone");
    let limit = format!("/sys/fs/cgroup/kubepods.slice/{slice}/memory.max");
    std::fs::write(limit, "134217728").unwrap();
    wait_until("it is reported", || all("PostUpdatePodSandbox").len() == 1);
    let received = all("UpdatePodSandbox")[0]["linuxResources"].clone();
    assert_eq!(received["memory"]["limit"]["value"], "134217728", "{received}");
    // systemd writes all of its values again: that is not a resize.
    scopes.reload_systemd();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(all("UpdatePodSandbox").len(), 1);
    scopes.systemctl(&["stop", &slice]);
    scopes.show("a pod that systemd resizes", "ok");
}
