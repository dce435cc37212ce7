// SPDX-License-Identifier: Apache-2.0
//! Groups of resctrl with a real runc, in a file system that responds like the kernel: each refusal
//! reaches the operator with the text of `last_cmd_status`, and none leaves a group or a thread in
//! another place than before.

use nix::errno::Errno;
use nri_plugin::{Adjustment, Resources, Update};
use serde_json::{Value, json};
use test_support::adjustments::adjusts;
use test_support::resctrl::{Command, Resctrl, runtime_for_it};
use test_support::tools;

use super::{Place, Script, fails, request, succeeds, unstarted_place, wait_until};

/// A host with resctrl; containers are ended before it.
struct Divided {
    place: Place,
    resctrl: Resctrl,
}

const SLEEPS: &[&str] = &["sleep", "1000"];

/// Class IDs of the processor, one of them for the default group.
const CLASS_IDS: usize = 4;

/// A host whose runtime finds resctrl, before its daemon.
fn unstarted() -> Option<Divided> {
    let runc = tools::newer("runc-1.5.2")?.join("runc");
    let resctrl = Resctrl::in_its_place(CLASS_IDS)?;
    let mut place = unstarted_place("runc", "")?;
    let copy = place.host.path("runc");
    runtime_for_it(&runc, &copy).expect("runc 1.5 compares with resctrl's number once");
    place.real.becomes(&copy);
    place.host.configure(&copy, "");
    Some(Divided { place, resctrl })
}

fn divided() -> Option<Divided> {
    let mut divided = unstarted()?;
    divided.place.host.start_daemon();
    Some(divided)
}

/// A plugin that sets a group, its schemata and whether it is monitored.
fn sets(group: &str, schemata: &[&str], is_monitored: bool) -> Script {
    adjusts(&json!({"linux": {"rdt": {
        "closId": {"value": group},
        "schemata": {"value": schemata},
        "enableMonitoring": {"value": is_monitored},
    }}}))
}

impl Divided {
    /// Writes a bundle whose devices are on a tmpfs, so that the root file system stays unchanged.
    fn prepare(&self, id: &str, args: &[&str]) {
        let mut document = self.place.real.document(id, args);
        let dev = json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"});
        document["mounts"].as_array_mut().unwrap().push(dev);
        std::fs::create_dir_all(self.place.host.path(id)).unwrap();
        self.place.host.write(&format!("{id}/config.json"), &document.to_string());
    }

    fn run(&self, id: &str, args: &[&str]) {
        self.prepare(id, args);
        succeeds(&self.place.host.create_from(id, id));
        self.place.settled(id);
        succeeds(&self.place.host.verb(&["start", id]));
    }

    /// Creates a container that is refused, and returns the runtime's line.
    fn refuses(&self, id: &str) -> String {
        self.prepare(id, SLEEPS);
        let log = self.place.host.path(&format!("{id}.log"));
        let root = self.place.host.path("root").display().to_string();
        let (log, bundle) = (log.display().to_string(), self.place.host.path(id));
        let bundle = bundle.display().to_string();
        let words = ["--root", &root, "--log", &log, "create", "--bundle", &bundle, id];
        let out = self.place.host.call(&words);
        fails(&out, &[]);
        wait_until("the create is rolled back", || self.place.state(id).is_none());
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn explained(&self, id: &str) -> Value {
        self.place.host.admin(&["explain", id])
    }

    /// Moves a running container into a class; returns whether that was applied.
    fn moves(&self, asking: &super::Asking, id: &str, class: &str) -> bool {
        let update = Update::of(id).rdt_class(class).into();
        asking.ask(request(vec![update])).unwrap().failed.is_empty()
    }
}

#[test]
fn a_group_set_by_a_plugin_is_created_and_monitored() {
    let Some(host) = divided() else { return };
    let script = sets("gold", &["L3:0=f;1=ff0", "MB:0=50"], true);
    let _plugin = host.place.host.plugin("10", "rdt", script);
    host.run("c1", SLEEPS);
    assert_eq!(host.resctrl.kernel().groups(), ["gold", "gold/mon_groups/c1"]);
    let schemata = host.resctrl.kernel().schemata("gold");
    assert_eq!(schemata, "    L3:0=0000f;1=00ff0\n    MB:0=  50;1= 100\n");
    assert_eq!(host.resctrl.kernel().entered("gold"), 1);
    assert_eq!(host.resctrl.kernel().entered("gold/mon_groups/c1"), 1);
    succeeds(&host.place.host.verb(&["delete", "--force", "c1"]));
    wait_until("the container is removed", || host.place.state("c1").is_none());
    assert_eq!(host.resctrl.kernel().groups(), ["gold"], "a named group is not the container's");
}

#[test]
fn schemata_that_the_kernel_refuses_leave_no_group_behind() {
    let Some(host) = divided() else { return };
    let next = std::sync::Arc::new(std::sync::Mutex::default());
    let script = Script { next: Some(std::sync::Arc::clone(&next)), ..Script::default() };
    let _plugin = host.place.host.plugin("10", "rdt", script);
    host.resctrl.kernel().group("mine");
    let before = host.resctrl.kernel().schemata("mine");
    for (number, (line, why)) in [
        ("L3:0=5", "The mask 5 has non-consecutive 1-bits"),
        ("L3:0=0", "Mask out of range"),
        ("L3:0=xyz", "Non-hex character in the mask xyz"),
        ("L3:0=f;0=f", "Duplicate domain 0"),
        ("L3:zero=f", "Missing '=' or non-numeric domain"),
        ("MB:0=5", "MB value 5 out of range [10,100]"),
        ("MB:0=many", "Invalid MB value many"),
        ("L2:0=f", "Unknown or unsupported resource name 'L2'"),
        // A missing cache: the kernel gives no reason.
        ("L3:7=f", "invalid argument"),
    ]
    .into_iter()
    .enumerate()
    {
        for group in ["gold", "mine"] {
            let id = format!("{group}{number}");
            *next.lock().unwrap() = sets(group, &[line], false).adjust;
            let printed = host.refuses(&id);
            assert!(
                printed.contains(why) && printed.trim().lines().count() == 1,
                "{line}: {printed}"
            );
            let refused = host.explained(&id)["refused"].to_string();
            assert!(refused.contains(why), "{line}: {refused}");
            assert!(refused.contains("10-rdt set linux.intelRdt.schemata"), "{line}: {refused}");
            assert_eq!(host.resctrl.kernel().groups(), ["mine"], "{line}");
        }
    }
    assert_eq!(host.resctrl.kernel().schemata("mine"), before);
    // Several times as many containers were refused as there are class IDs.
    *next.lock().unwrap() = sets("gold", &["L3:0=f"], false).adjust;
    host.run("c1", SLEEPS);
    assert_eq!(host.resctrl.kernel().groups(), ["gold", "mine"]);
}

#[test]
fn a_group_without_a_free_class_id_refuses_the_container() {
    let Some(host) = divided() else { return };
    let _plugin = host.place.host.plugin("10", "rdt", sets("gold", &["L3:0=f"], true));
    let taken = ["a", "b", "c"];
    taken.iter().for_each(|name| host.resctrl.kernel().group(name));
    let printed = host.refuses("c1");
    assert!(printed.contains("last_cmd_status: Out of CLOSIDs"), "{printed}");
    let refused = host.explained("c1")["refused"].to_string();
    assert!(refused.contains("Out of CLOSIDs") && refused.contains("10-rdt set"), "{refused}");
    assert_eq!(host.resctrl.kernel().groups(), taken);
    host.resctrl.kernel().remove("a");
    // Monitoring IDs of removed groups are in use until their caches are empty.
    host.resctrl.kernel().refuse(Command::Mkdir, 0, Errno::EBUSY, "Out of RMIDs");
    let printed = host.refuses("c2");
    assert!(printed.contains("busy, last_cmd_status: Out of RMIDs"), "{printed}");
    // The group is created, but not its monitoring group.
    host.resctrl.kernel().refuse(Command::Mkdir, 1, Errno::EBUSY, "Out of RMIDs");
    let printed = host.refuses("c3");
    assert!(printed.contains("busy, last_cmd_status: Out of RMIDs"), "{printed}");
    assert_eq!(host.resctrl.kernel().groups(), ["b", "c"]);
    host.run("c4", SLEEPS);
    assert_eq!(host.resctrl.kernel().groups(), ["b", "c", "gold", "gold/mon_groups/c4"]);
}

#[test]
fn a_container_kept_out_of_its_class_by_the_kernel_is_refused() {
    let Some(host) = divided() else { return };
    let adjust = Adjustment::new().resources(Resources::new().rdt_class("gold"));
    let _plugin = host.place.host.plugin("10", "class", adjust);
    let printed = host.refuses("c1");
    assert!(printed.contains("there is no class \"gold\" in /sys/fs/resctrl"), "{printed}");
    host.resctrl.kernel().group("gold");
    host.resctrl.kernel().refuse(Command::Tasks, 0, Errno::EINVAL, "Pseudo-locking in progress");
    let printed = host.refuses("c2");
    assert!(printed.contains("last_cmd_status: Pseudo-locking in progress"), "{printed}");
    let refused = host.explained("c2")["refused"].to_string();
    assert!(refused.contains("Pseudo-locking in progress"), "{refused}");
    assert_eq!(host.resctrl.kernel().groups(), ["gold"], "the administrator's stays");
    host.run("c3", SLEEPS);
    assert_eq!(host.resctrl.kernel().entered("gold"), 1);
}

#[test]
fn a_partially_refused_move_is_rolled_back() {
    let Some(host) = divided() else { return };
    for name in ["gold", "silver"] {
        host.resctrl.kernel().group(name);
    }
    host.run("c1", &["sh", "-c", "sleep 1000 & sleep 1000 & exec sleep 1000"]);
    let all = || {
        let pids = host.place.file("c1", "pids", "cgroup.procs");
        pids.lines().map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    wait_until("all its processes run", || all().len() == 3);
    let threads: std::collections::BTreeSet<u32> = all().into_iter().collect();
    let asking = host.place.asker();
    assert!(host.moves(&asking, "c1", "silver"), "{}", host.place.host.read("daemon.err"));
    assert_eq!(host.resctrl.kernel().tasks("silver"), threads);
    for (errno, status, shown) in [
        (Errno::EPERM, "No permission to move task", "EPERM), last_cmd_status: No permission"),
        (
            Errno::EINVAL,
            "Pseudo-locking\nin progress",
            "EINVAL), last_cmd_status: Pseudo-locking in",
        ),
        (Errno::EBUSY, "ok", "/sys/fs/resctrl/gold: device or resource busy (EBUSY)"),
    ] {
        host.resctrl.kernel().refuse(Command::Tasks, 1, errno, status);
        assert!(!host.moves(&asking, "c1", "gold"), "{status}");
        let explained = host.explained("c1");
        let skipped = explained["skipped"].as_array().unwrap().last().unwrap().clone();
        let reason = skipped["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(shown) && reason.lines().count() == 1, "{status}: {explained}");
        assert_eq!(host.resctrl.kernel().tasks("silver"), threads, "{status}");
        assert!(host.resctrl.kernel().tasks("gold").is_empty(), "{status}");
    }
    // A thread that exits meanwhile is not a failure.
    host.resctrl.kernel().refuse(Command::Tasks, 1, Errno::ESRCH, "No task 1");
    assert!(host.moves(&asking, "c1", "gold"));
    assert_eq!(host.resctrl.kernel().tasks("gold").len(), 2);
    host.resctrl.kernel().remove("gold");
    assert!(!host.moves(&asking, "c1", "gold"), "the group is gone");
}

#[test]
fn the_group_of_a_refused_container_is_removed_too() {
    let Some(mut host) = unstarted() else { return };
    let runc = host.place.real.runc().display().to_string();
    let held = host.place.host.path("held");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' create '*) until [ -e {} ]; do sleep 0.05; done;; esac\n\
         exec {runc} \"$@\"\n",
        held.display()
    );
    host.place.host.put_program("held-runc", &script);
    let program = host.place.host.path("held-runc");
    host.place.host.configure(&program, "");
    host.place.host.start_daemon();
    let _plugin = host.place.host.plugin("10", "rdt", sets("gold", &["L3:0=5"], false));
    host.prepare("c1", SLEEPS);
    let root = host.place.host.path("root").display().to_string();
    let bundle = host.place.host.path("c1").display().to_string();
    let mut runtime =
        host.place.host.spawn(&["--root", &root, "create", "--bundle", &bundle, "c1"]);
    wait_until("the runtime runs", || {
        let name = std::fs::read(format!("/proc/{}/cmdline", runtime.id())).unwrap_or_default();
        String::from_utf8_lossy(&name).contains("held-runc")
    });
    host.place.host.kill_daemon();
    host.place.host.write("held", "");
    assert!(!runtime.wait().unwrap().success());
    assert_eq!(host.resctrl.kernel().groups(), ["gold"], "what runc leaves");
    host.place.host.start_daemon();
    wait_until("the creation is rolled back", || host.resctrl.kernel().groups().is_empty());
}
