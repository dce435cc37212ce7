// SPDX-License-Identifier: Apache-2.0
//! Some kills with the real runc: its cgroups and mounts must be removed too.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::adjustments::limits_processes;
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, wait_until};

pub(super) fn pids_limit(real: &RealRuntime, id: &str) -> String {
    let name = real.cgroup(id);
    let paths =
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|top| format!("{top}{name}/pids.max"));
    let found = paths.iter().find_map(|path| std::fs::read_to_string(path).ok());
    found.unwrap_or_default().trim().to_owned()
}

fn cgroups_left(real: &RealRuntime, id: &str) -> Vec<String> {
    let name = real.cgroup(id);
    let tops = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let paths = tops.map(|top| format!("{}{name}", top.path().display()));
    paths.filter(|path| std::path::Path::new(path).exists()).collect()
}

fn mounts_left(host: &TestHost) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let own = host.path("").display().to_string();
    mounts.lines().filter(|line| line.contains(own.trim_end_matches('/'))).map(Into::into).collect()
}

fn words<'w>(host: &TestHost, words: &[&'w str]) -> (bool, Vec<&'w str>) {
    (host.verb(words).status.success(), words.to_vec())
}

/// Waits until the plugin is synchronized.
fn wait_until_synchronized(host: &TestHost) {
    if host.admin(&["status"])["plugins"] == 0 {
        let _plugin = host.plugin("10", "limits", limits_processes(42));
    }
}

/// Runs one lifecycle in which `dies` happens during the create, then an undisturbed one.
fn life(host: &mut TestHost, real: &RealRuntime, pristine: &str, dies: impl FnOnce(&mut TestHost)) {
    wait_until_synchronized(host);
    dies(host);
    wait_until_synchronized(host);
    let (is_deleted, _) = words(host, &["delete", "--force", "c1"]);
    assert!(is_deleted);
    wait_until("it is undone", || {
        host.admin(&["pods"]) == Value::Array(vec![]) && host.read("bundle/config.json") == pristine
    });
    for verb in [
        &["create", "--bundle", "BUNDLE", "c1"][..],
        &["start", "c1"],
        &["update", "--pids-limit", "99", "c1"],
    ] {
        let output = host.spawn(verb).wait().unwrap();
        assert!(output.success(), "{verb:?}");
        if verb[0] == "start" {
            assert_eq!(pids_limit(real, "c1"), "42");
        }
    }
    wait_until("the engine's deliberate change wins", || pids_limit(real, "c1") == "99");
    assert!(words(host, &["delete", "--force", "c1"]).0);
    wait_until("it is gone", || host.admin(&["pods"]) == Value::Array(vec![]));
    assert_eq!(host.read("bundle/config.json"), pristine);
    assert_eq!(cgroups_left(real, "c1"), Vec::<String>::new());
    assert_eq!(mounts_left(host), Vec::<String>::new());
    let names = std::fs::read_dir(host.path("bundle")).unwrap().count();
    assert_eq!(names, 2, "something is left in the bundle");
}

#[test]
fn a_kill_with_the_real_runc_leaves_no_cgroup_mount_or_file() {
    let mut host = TestHost::default();
    let Some(real) = RealRuntime::new(&host.path("")) else { return };
    let fault = host.path("fault").display().to_string();
    let more = format!(
        "autostart = false\n[nri]\nplugin_request_timeout = \"20s\"\n[debug]\nfault = \"@{fault}\"\n"
    );
    host.configure(real.runc(), &more);
    let mut document = real.document("c1", &["sleep", "300"]);
    document["linux"]["resources"] = json!({"pids": {"limit": 10}});
    let pristine = document.to_string();
    host.write("bundle/config.json", &pristine);
    host.start_daemon();
    for point in ["daemon.written", "daemon.exec", "daemon.settle", "wrapper.committed"] {
        life(&mut host, &real, &pristine, |host| {
            host.write("fault", &format!("{point}:kill"));
            let _one_of_them_died = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]).wait();
            wait_until("it has struck", || !host.path("fault").exists());
            if point.starts_with("daemon") {
                host.kill_daemon();
                host.start_daemon();
            }
        });
    }
    // runc itself, at whatever step it is by then.
    for millis in [5, 20, 40, 80] {
        life(&mut host, &real, &pristine, |host| {
            let mut create = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
            std::thread::sleep(Duration::from_millis(millis));
            let _may_be_over = create.kill();
            create.wait().unwrap();
        });
    }
}
