// SPDX-License-Identifier: Apache-2.0
//! `[nri] scope = "node"`: plugins see containers that the plain runtime created without nri-runc.

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::adjustments::update_of;
use test_support::{Script, TestHost, life, succeeds, wait_until};

/// A host whose runtime root also has containers of the plain runtime.
fn shared_root(scope: &str) -> TestHost {
    let host = TestHost::default();
    configure(&host, scope);
    host
}

fn configure(host: &TestHost, scope: &str) {
    let root = host.path("root").display().to_string();
    std::fs::create_dir_all(&root).unwrap();
    let more = format!(
        "autostart = false\ndebug.runtime_roots = [\"{root}\"]\ndebug.look_every = \"1s\"\n[nri]\nscope = \"{scope}\""
    );
    host.configure(&host.path("fake/runc"), &more);
}

/// Calls the runtime directly, as another handler of the engine does.
fn plain(host: &TestHost, words: &[&str]) {
    let root = host.path("root").display().to_string();
    let called = Command::new(host.path("fake/runc")).args(["--root", &root]).args(words).status();
    assert!(called.unwrap().success());
}

fn plain_create(host: &TestHost, id: &str) {
    let bundle = format!("bundles/{id}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), test_support::BUNDLE);
    let bundle = host.path(&bundle).display().to_string();
    plain(host, &["create", "--bundle", &bundle, id]);
}

fn plain_run(host: &TestHost, id: &str) {
    plain_create(host, id);
    plain(host, &["start", id]);
}

fn ids(host: &TestHost) -> Vec<String> {
    let pods = host.admin(&["pods"]);
    let mut ids: Vec<String> =
        pods.as_array().unwrap().iter().map(|pod| pod["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn plain_containers_from_before_the_daemon_have_exit_events() {
    let mut host = shared_root("node");
    plain_run(&host, "theirs");
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    assert_eq!(*received.lock().unwrap(), ["Synchronize theirs"]);
    let explained = host.admin(&["explain", "theirs"]);
    assert!(explained["skipped"].to_string().contains("created without nri-runc"), "{explained}");
    assert_eq!((&explained["found"], &explained["state"]), (&json!(false), &json!("running")));
    let page = host.call(&["nri", "explain", "theirs"]).stdout;
    assert!(String::from_utf8_lossy(&page).contains("created without nri-runc"));
    plain(&host, &["kill", "theirs"]);
    wait_until("its exit is reported", || received.lock().unwrap().len() == 2);
    plain(&host, &["delete", "theirs"]);
    wait_until("its removal is reported", || host.admin(&["pods"]) == json!([]));
    let wanted = [&["Synchronize theirs".to_owned()], &life("theirs")[5..]].concat();
    wait_until("all events are there", || *received.lock().unwrap() == wanted);
}

#[test]
fn plugins_receive_no_createcontainer_of_plain_containers() {
    let mut host = shared_root("node");
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    plain_create(&host, "theirs");
    wait_until("it is announced", || received.lock().unwrap().len() == 2);
    plain(&host, &["start", "theirs"]);
    wait_until("its start is reported", || received.lock().unwrap().len() == 4);
    plain(&host, &["delete", "theirs"]);
    let mut wanted = life("theirs");
    wanted.remove(1);
    wait_until("all events are there", || received.lock().unwrap().len() == wanted.len());
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn containers_of_nri_runc_in_a_shared_root_are_announced_once() {
    let mut host = shared_root("node");
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    succeeds(&host.create("ours"));
    succeeds(&host.verb(&["start", "ours"]));
    plain_run(&host, "theirs");
    wait_until("the other one is announced", || {
        test_support::has_received(&received, "PostStartContainer theirs")
    });
    succeeds(&host.verb(&["kill", "ours", "9"]));
    wait_until("its exit is reported", || {
        test_support::has_received(&received, "StopContainer ours")
    });
    succeeds(&host.verb(&["delete", "ours"]));
    wait_until("it is removed", || test_support::has_received(&received, "RemovePodSandbox ours"));
    let received = received.lock().unwrap().clone();
    let ours: Vec<String> = received.into_iter().filter(|line| line.ends_with(" ours")).collect();
    assert_eq!(ours, life("ours"));
}

#[test]
fn foreign_containers_are_updated_without_the_engines_values() {
    let mut host = shared_root("node");
    plain_run(&host, "theirs");
    host.start_daemon();
    let wants = vec![update_of("theirs", &json!({"memory": {"limit": 64 << 20}}))];
    let _plugin = host.plugin("10", "memory", Script { wants, ..Script::default() });
    wait_until("the runtime is called", || !host.read("fake/update.json").is_empty());
    let update: Value = serde_json::from_str(&host.read("fake/update.json")).unwrap();
    assert_eq!(update, json!({"memory": {"limit": 64 << 20, "swap": 64 << 20}}));
    wait_until("it is on record", || {
        host.admin(&["explain", "theirs"])["changes"].to_string().contains("memory.limit")
    });
}

#[test]
fn an_update_refused_by_a_plain_runtime_is_not_recorded() {
    let mut host = shared_root("node");
    host.write("fake/fail-update", "");
    plain_run(&host, "theirs");
    host.start_daemon();
    let wants = vec![update_of("theirs", &json!({"memory": {"limit": 64 << 20}}))];
    let _plugin = host.plugin("10", "memory", Script { wants, ..Script::default() });
    host.logs_at_least(&["theirs", "runtime says no"], 1);
    assert_eq!(host.admin(&["explain", "theirs"])["changes"], json!([]));
}

#[test]
fn the_next_daemon_keeps_plain_containers_and_notices_exits() {
    let mut host = shared_root("node");
    plain_run(&host, "gone");
    plain_run(&host, "stays");
    host.start_daemon();
    host.kill_daemon();
    plain(&host, &["delete", "gone"]);
    plain_run(&host, "new");
    host.start_daemon();
    wait_until("the records are right", || ids(&host) == ["new", "stays"]);
    let received = host.plugin("10", "env", Script::default());
    let mut known = received.lock().unwrap().clone();
    known.sort();
    assert_eq!(known, ["Synchronize new", "Synchronize stays"]);
}

#[test]
fn a_reload_of_the_scope_synchronizes_plugins_again() {
    let mut host = shared_root("handler");
    plain_run(&host, "theirs");
    host.start_daemon();
    succeeds(&host.create("ours"));
    assert_eq!(ids(&host), ["ours"]);
    for (scope, wanted) in [("node", &["ours", "theirs"][..]), ("handler", &["ours"][..])] {
        let _plugin = host.plugin("10", "env", Script::default());
        configure(&host, scope);
        succeeds(&host.call(&["nri", "reload"]));
        wait_until("the records follow", || ids(&host) == wanted);
        wait_until("the plugin is disconnected", || {
            let plugins = host.admin(&["plugins"]);
            plugins.as_array().unwrap().iter().all(|row| row["state"] != "synchronized")
        });
        let received = host.plugin("10", "env", Script::default());
        let mut known = received.lock().unwrap().clone();
        known.sort();
        let wanted: Vec<String> = wanted.iter().map(|id| format!("Synchronize {id}")).collect();
        assert_eq!(known, wanted);
    }
}

#[test]
fn a_daemon_with_a_narrower_scope_drops_foreign_containers() {
    let mut host = shared_root("node");
    plain_run(&host, "theirs");
    host.start_daemon();
    assert_eq!(ids(&host), ["theirs"]);
    host.kill_daemon();
    configure(&host, "handler");
    host.start_daemon();
    assert_eq!(host.admin(&["pods"]), json!([]));
}

#[test]
fn check_counts_the_containers_that_plugins_do_not_see() {
    let mut host = shared_root("handler");
    plain_run(&host, "theirs");
    plain_run(&host, "ended");
    plain(&host, &["kill", "ended"]);
    host.start_daemon();
    succeeds(&host.create("ours"));
    let row = |host: &TestHost| {
        let rows: Value =
            serde_json::from_slice(&host.call(&["nri", "check", "--output", "json"]).stdout)
                .unwrap();
        let row = rows.as_array().unwrap().iter().find(|row| row["check"] == "whole node").cloned();
        row.map(|row| row["detail"].as_str().unwrap_or_default().to_owned())
    };
    let wanted = "plugins do not see 1 container that the plain runtime made";
    assert_eq!(row(&host).as_deref(), Some(wanted));
    configure(&host, "node");
    succeeds(&host.call(&["nri", "reload"]));
    wait_until("it is seen", || ids(&host) == ["ours", "theirs"]);
    assert_eq!(row(&host), None);
}

/// Adds entries to a state directory that are not containers.
fn put_oddities(host: &TestHost) {
    let state = |id: &str| {
        std::fs::create_dir_all(host.path("root").join(id)).unwrap();
        format!("root/{id}/state.json")
    };
    host.write(&state("malformed"), "{\"init_process_pid\": ");
    host.write(&state("array"), "[1, 2]");
    host.write(
        &state("nobody"),
        "{\"init_process_pid\": 4194304, \"config\": {\"labels\": [\"bundle=/b\"]}}",
    );
    host.write(&state("no-bundle"), &format!("{{\"init_process_pid\": {}}}", std::process::id()));
    let gone = format!(
        "{{\"init_process_pid\": {}, \"config\": {{\"labels\": [\"bundle=/no/such\"]}}}}",
        std::process::id()
    );
    host.write(&state("lost-bundle"), &gone);
    host.write("root/file", "no folder");
    std::fs::create_dir_all(host.path("root/empty")).unwrap();
    std::os::unix::fs::symlink("nowhere", host.path("root/dangling")).unwrap();
    let fifo = host.path(&state("fifo"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = host.path("root/fifo/status");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn other_entries_of_the_root_directory_are_skipped() {
    for is_before in [true, false] {
        let mut host = shared_root("node");
        if is_before {
            put_oddities(&host);
            plain_run(&host, "theirs");
        }
        host.start_daemon();
        let received = host.plugin("10", "env", Script::default());
        if !is_before {
            put_oddities(&host);
            plain_run(&host, "theirs");
        }
        wait_until("it is known", || !received.lock().unwrap().is_empty());
        succeeds(&host.create("ours"));
        assert_eq!(ids(&host), ["ours", "theirs"]);
    }
}

#[test]
fn a_restart_under_the_same_id_is_a_new_container() {
    let mut host = shared_root("node");
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    let mut lives = life("theirs");
    lives.remove(1);
    plain_run(&host, "theirs");
    wait_until("it is announced", || {
        test_support::has_received(&received, "PostStartContainer theirs")
    });
    for round in 2..5 {
        // The new folder exists before the daemon processes the end of the old one.
        let daemon = Pid::from_raw(host.daemon_pid());
        kill(daemon, Signal::SIGSTOP).unwrap();
        plain(&host, &["kill", "theirs"]);
        plain(&host, &["delete", "theirs"]);
        plain_run(&host, "theirs");
        kill(daemon, Signal::SIGCONT).unwrap();
        let starts = || {
            let received = received.lock().unwrap();
            received.iter().filter(|line| *line == "PostStartContainer theirs").count()
        };
        wait_until("the new one is announced", || starts() == round);
        assert_eq!(host.admin(&["explain", "theirs"])["state"], json!("running"));
        let wanted = lives.len() * (round - 1) + 4;
        assert_eq!(received.lock().unwrap().len(), wanted, "{:?}", received.lock().unwrap());
    }
}

#[test]
fn a_restart_without_a_daemon_is_a_new_container() {
    let mut host = shared_root("node");
    plain_run(&host, "theirs");
    host.start_daemon();
    host.kill_daemon();
    plain(&host, &["kill", "theirs"]);
    plain(&host, &["delete", "theirs"]);
    plain_run(&host, "theirs");
    host.start_daemon();
    wait_until("the new one is on record", || {
        host.admin(&["explain", "theirs"])["state"] == json!("running")
    });
}

/// Installs a runtime that stores each document of `update`, and refuses one with a limit of 32
/// MiB.
fn refuse_32_mib(host: &TestHost) {
    let runtime = host.read("fake/runc");
    let update = "update) cat >\"$dir/got\"; cat \"$dir/got\" >>\"$dir/updates\"; echo >>\"$dir/updates\"\n  \
                  if grep -q 33554432 \"$dir/got\"; then echo 'runtime says no' >&2; exit 1; fi ;;\nold-update)";
    assert!(runtime.contains("\nupdate)"));
    host.put_program("fake/runc", &runtime.replace("\nupdate)", &format!("\n{update}")));
}

fn updates(host: &TestHost) -> Vec<Value> {
    let text = std::fs::read_to_string(host.path("fake/updates")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_refused_update_restores_only_plugins_values() {
    let mut host = shared_root("node");
    refuse_32_mib(&host);
    plain_run(&host, "theirs");
    host.start_daemon();
    let memory = |limit: u64| json!({"memory": {"limit": limit, "swap": limit}});
    let script = |limit: u64| {
        let wants = vec![update_of("theirs", &json!({"memory": {"limit": limit}}))];
        Script { wants, ..Script::default() }
    };
    let refused = host.plugin("10", "memory", script(32 << 20));
    host.logs_at_least(&["theirs", "runtime says no", "may still be in effect"], 1);
    assert_eq!(updates(&host), [memory(32 << 20)], "nothing was known to be put back");
    drop(refused);
    let _first = host.plugin("10", "memory", script(64 << 20));
    wait_until("it is applied", || updates(&host).len() == 2);
    wait_until("it is on record", || {
        host.admin(&["explain", "theirs"])["changes"].to_string().contains("memory.limit")
    });
    let _second = host.plugin("10", "memory", script(32 << 20));
    wait_until("the refused one is undone", || updates(&host).len() == 4);
    assert_eq!(updates(&host)[1..], [memory(64 << 20), memory(32 << 20), memory(64 << 20)]);
}

fn events(host: &TestHost) -> Vec<String> {
    let output = host.call(&["nri", "events", "-o", "json"]);
    succeeds(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kinds = lines.map(|event| event["kind"].as_str().unwrap_or_default().to_owned());
    let of_plugins = ["connected", "disconnected"];
    kinds.filter(|kind| !of_plugins.contains(&kind.as_str())).collect()
}

#[test]
fn foreign_containers_have_all_their_events() {
    let mut host = shared_root("node");
    host.start_daemon();
    plain_create(&host, "theirs");
    wait_until("it is on record", || ids(&host) == ["theirs"]);
    plain(&host, &["start", "theirs"]);
    wait_until("its start is seen", || events(&host).contains(&"started".to_owned()));
    plain(&host, &["kill", "theirs"]);
    wait_until("its exit is seen", || events(&host).contains(&"exited".to_owned()));
    plain(&host, &["delete", "theirs"]);
    wait_until("its end is seen", || events(&host).contains(&"pod_removed".to_owned()));
    let wanted =
        ["pod_running", "created", "started", "exited", "removed", "pod_stopped", "pod_removed"];
    assert_eq!(events(&host), wanted);
}

#[test]
fn a_narrowed_scope_reports_no_living_container_as_removed() {
    let mut host = shared_root("node");
    plain_run(&host, "theirs");
    host.start_daemon();
    assert_eq!(ids(&host), ["theirs"]);
    configure(&host, "handler");
    succeeds(&host.call(&["nri", "reload"]));
    wait_until("it is left out", || ids(&host).is_empty());
    assert_eq!(events(&host), Vec::<String>::new());
}

#[test]
fn a_container_that_ends_at_once_leaves_no_record() {
    let mut host = shared_root("node");
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    for round in 0..10 {
        let id = format!("brief{round}");
        plain_run(&host, &id);
        if round < 2 {
            let announced = format!("PostCreateContainer {id}");
            wait_until("it is announced", || test_support::has_received(&received, &announced));
        }
        plain(&host, &["kill", &id]);
        plain(&host, &["delete", &id]);
    }
    plain_run(&host, "last");
    wait_until("the last one is known", || {
        test_support::has_received(&received, "PostStartContainer last")
    });
    wait_until("only that one is left", || ids(&host) == ["last"]);
    let received = received.lock().unwrap().clone();
    let count = |event: &str| {
        received.iter().filter(|line| line.starts_with(&format!("{event} brief"))).count()
    };
    assert!(count("PostCreateContainer") >= 2, "{received:?}");
    assert_eq!(count("PostCreateContainer"), count("RemoveContainer"), "{received:?}");
}

#[test]
fn containers_among_thousands_of_folders_are_found() {
    let mut host = shared_root("node");
    for number in 0..3000 {
        std::fs::create_dir_all(host.path(&format!("root/folder{number}"))).unwrap();
    }
    plain_run(&host, "theirs");
    host.start_daemon();
    assert_eq!(ids(&host), ["theirs"]);
    for number in 3000..5000 {
        std::fs::create_dir(host.path(&format!("root/folder{number}"))).unwrap();
    }
    succeeds(&host.create("ours"));
    plain_run(&host, "new");
    wait_until("the new one is known", || ids(&host) == ["new", "ours", "theirs"]);
}
