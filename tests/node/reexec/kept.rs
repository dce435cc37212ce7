// SPDX-License-Identifier: Apache-2.0
//! State that survives a re-execution: connections, launched plugins and their output, partly
//! received frames, requests in flight, watched processes, sockets.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{
    Script, TestHost, connect, example, has_received, is_synchronized, life, succeeds, wait_until,
};

use super::proxy::Proxy;
use super::{Installed, install, install_script};

fn state(host: &TestHost, id: &str) -> String {
    let pods = host.admin(&["pods"]);
    let pods = pods.as_array().into_iter().flatten();
    let all = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
    let mut found = all.filter(|container| container["id"] == id);
    found.next().map_or(String::new(), |one| one["state"].as_str().unwrap().to_owned())
}

#[test]
fn an_event_reader_continues_in_the_next_program_without_a_gap() {
    let installed = Installed::new("");
    let host = &installed.host;
    let out = std::fs::File::create_new(host.path("followed")).unwrap();
    let words = ["nri", "events", "--follow", "-o", "json"];
    let mut follower = host.spawn_kept(&words, Some(out.into()), "follower.err");
    let kinds = || {
        let text = host.read("followed");
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|event| event["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    succeeds(&host.create("c1"));
    wait_until("the creation is printed", || kinds().contains(&"created".to_owned()));
    install(host, b"second");
    installed.reexecuted();
    succeeds(&host.verb(&["start", "c1"]));
    install(host, b"third");
    installed.reexecuted();
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("its end is printed", || kinds().contains(&"exited".to_owned()));
    assert_eq!(kinds(), ["pod_running", "created", "started", "exited"]);
    let before = host.read("followed");
    let cursor = before.split('"').nth(3).unwrap();
    let rest = host.call(&["nri", "events", "-o", "json", "--since", cursor]);
    let rest = String::from_utf8(rest.stdout).unwrap();
    assert!(before.ends_with(&rest) && rest.lines().count() == 3, "{rest}");
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn a_plugin_receives_all_events_from_three_programs() {
    let installed = Installed::new("");
    let host = &installed.host;
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let connected_at = host.admin(&["plugins"])[0]["connected_at"].clone();
    assert!(connected_at.as_i64() > Some(0), "{connected_at}");
    succeeds(&host.create("c1"));
    wait_until("it is created", || state(host, "c1") == "created");
    install(host, b"second");
    let printed = installed.reexecuted();
    assert_eq!(
        (&printed["plugins"], &printed["reexecuted"]),
        (&json!(1), &json!(true)),
        "{printed}"
    );
    succeeds(&host.verb(&["start", "c1"]));
    wait_until("it runs", || state(host, "c1") == "running");
    install(host, b"third");
    installed.reexecuted();
    assert!(host.admin(&["status"])["program"]["size"].as_u64().unwrap() > 0);
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("it has ended", || state(host, "c1") == "stopped");
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("its pod is over", || has_received(&received, "RemovePodSandbox c1"));
    assert_eq!(*received.lock().unwrap(), life("c1"));
    let row = host.admin(&["plugins"])[0].clone();
    assert_eq!((&row["requests"], &row["state"]), (&json!(9), &json!("synchronized")), "{row}");
    assert_eq!(row["connected_at"], connected_at, "the connection is the same");
    let check = host.admin(&["check"]);
    assert!(!check.to_string().contains("older than its executable"), "{check}");
}

#[test]
fn wrappers_and_operators_wait_for_a_slow_next_program() {
    let installed = Installed::new("");
    let host = &installed.host;
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let real = env!("CARGO_BIN_EXE_nri-runc");
    let slow = format!("case \"$*\" in *--state-fd*) sleep 5 ;; esac\nexec {real} \"$@\"");
    install_script(host, &slow);
    std::thread::scope(|scope| {
        let reexec = scope.spawn(|| installed.reexecuted());
        let under_way = host.path("run/reexec");
        wait_until("it is executed", || under_way.exists());
        succeeds(&host.create("c1"));
        assert!(reexec.join().unwrap()["held_ms"].as_u64().unwrap() > 4000);
        assert!(!under_way.exists());
    });
    assert!(host.read("fake/seen.json").contains("HELLO=there"), "the plugin was asked");
    assert!(has_received(&received, "CreateContainer c1"));
    assert_eq!(host.admin(&["status"])["bypassed"], 0);
    // A file that an earlier program left delays no caller of a daemon that is killed.
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    host.write("run/reexec", &Duration::from(now).as_nanos().to_string());
    kill(Pid::from_raw(i32::try_from(installed.pid()).unwrap()), Signal::SIGKILL).unwrap();
    succeeds(&host.create("c2"));
}

#[test]
fn sigusr2_re_executes_and_notifies_the_service_manager() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    let receive = || {
        let mut message = [0; 200];
        let length = listener.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let installed = Installed::with_environment("", &[("NOTIFY_SOCKET", &socket)]);
    assert_eq!(receive(), "READY=1\n");
    let received = installed.host.plugin("10", "env", sets("HELLO", "there"));
    kill(Pid::from_raw(i32::try_from(installed.pid()).unwrap()), Signal::SIGUSR2).unwrap();
    let reloading = receive();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(receive(), "READY=1\n");
    succeeds(&installed.host.create("c1"));
    assert!(has_received(&received, "CreateContainer c1"));
    assert_eq!(installed.host.admin(&["status"])["supervisor"], "systemd");
}

#[test]
fn a_launched_plugin_keeps_its_process_its_output_and_its_file() {
    let installed = Installed::new("");
    let host = &installed.host;
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    symlink(example("demo_plugin"), host.path("plugins/10-greeter")).unwrap();
    let row = || host.admin(&["plugins"])[0].clone();
    wait_until("it is started", || is_synchronized(&host.admin(&["plugins"]), "10-greeter"));
    let before = row();
    installed.reexecuted();
    installed.reexecuted();
    assert_eq!((&row()["pid"], &row()["restarts"]), (&before["pid"], &json!(0)));
    assert_eq!(row()["launched"], true);
    succeeds(&host.create("c1"));
    assert!(row()["requests"].as_u64() > before["requests"].as_u64());
    // The next program notices the exit of this plugin and restarts it.
    let pid = i32::try_from(before["pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    wait_until("it is started again", || row()["restarts"] == 1 && row()["pid"] != before["pid"]);
    assert_eq!(row()["exit_status"], "signal 9 (SIGKILL)");
    installed.reexecuted();
    std::fs::remove_file(host.path("plugins/10-greeter")).unwrap();
    wait_until("it is ended", || row()["state"] != "synchronized");
}

#[test]
fn a_partial_plugin_request_is_answered_by_the_next_program() {
    let installed = Installed::new("");
    let host = &installed.host;
    let proxy = Proxy::new(host.path("proxy.sock"), &host.path("nri.sock"));
    let (sender, asks) = tokio::sync::mpsc::unbounded_channel();
    let asks = Some(Arc::new(tokio::sync::Mutex::new(asks)));
    let script = Script { asks, ..sets("HELLO", "there") };
    let received = connect(proxy.socket.clone(), "10", "asks", script);
    wait_until("it is synchronized", || is_synchronized(&host.admin(&["plugins"]), "10-asks"));
    // In a frame's header, in a message's header, and in the message.
    for bytes in [3, 8, 13, 18, 40] {
        proxy.hold_after(bytes);
        let (answer, answered) = mpsc::channel();
        let update = api::ContainerUpdate { container_id: "nobody".into(), ..Default::default() };
        let request = api::UpdateContainersRequest { update: vec![update], ..Default::default() };
        sender.send((request, answer)).unwrap();
        wait_until("it is sent in part", || proxy.held() > 0);
        std::thread::sleep(Duration::from_millis(50));
        installed.reexecuted();
        proxy.release();
        let printed = answered.recv_timeout(Duration::from_secs(120)).unwrap();
        assert!(
            printed.is_ok() || printed.as_ref().is_err_and(|why| why.contains("nobody")),
            "{printed:?}"
        );
    }
    succeeds(&host.create("c1"));
    assert!(has_received(&received, "CreateContainer c1"));
}

#[test]
fn a_create_in_progress_is_finished_before_a_reexec() {
    let installed = Installed::new("");
    let host = &installed.host;
    let slow = Arc::new(|event: &str, _: &dyn protobuf::MessageDyn| {
        if event == "CreateContainer" {
            std::thread::sleep(Duration::from_millis(1500));
        }
    });
    let received =
        host.plugin("10", "slow", Script { on_request: Some(slow), ..sets("HELLO", "there") });
    std::thread::scope(|scope| {
        let mut create = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
        wait_until("it is asked", || has_received(&received, "CreateContainer c1"));
        let reexec = scope.spawn(|| installed.reexecuted());
        std::thread::sleep(Duration::from_millis(200));
        // This request is held, and reaches the next program.
        std::fs::create_dir_all(host.path("other/rootfs")).unwrap();
        host.write("other/config.json", test_support::BUNDLE);
        let other = host.path("other").display().to_string();
        let mut second = host.spawn(&["create", "--bundle", &other, "c2"]);
        assert!(create.wait().unwrap().success() && second.wait().unwrap().success());
        reexec.join().unwrap();
    });
    for id in ["c1", "c2"] {
        wait_until("it is created", || state(host, id) == "created");
        let line = format!("PostCreateContainer {id}");
        wait_until("the event is received", || has_received(&received, &line));
        for event in ["RunPodSandbox", "CreateContainer", "PostCreateContainer"] {
            let line = format!("{event} {id}");
            assert_eq!(
                received.lock().unwrap().iter().filter(|received| **received == line).count(),
                1
            );
        }
    }
    assert_eq!(host.admin(&["status"])["bypassed"], 0);
}

#[test]
fn metrics_count_a_re_execution_and_stay_on_their_socket() {
    let installed = Installed::new("");
    let host = &installed.host;
    let at = host.path("metrics.sock");
    let more = format!("[metrics]\nlisten = \"unix:{}\"\n", at.display());
    host.configure(&host.path("fake/runc"), &more);
    succeeds(&host.call(&["nri", "reload"]));
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&at).unwrap());
    installed.reexecuted();
    let now = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&at).unwrap());
    assert_eq!(now, inode, "the same socket");
    let mut stream = UnixStream::connect(&at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("nri_runc_reexecs_total{outcome=\"done\"} 1"), "{page}");
    let pause = page.lines().find_map(|line| line.strip_prefix("nri_runc_reexec_pause_seconds "));
    let pause: f64 = pause.unwrap().parse().unwrap();
    assert!(pause > 0.0, "{page}");
}

#[test]
fn the_plugin_socket_stays_and_accepts_new_plugins() {
    let installed = Installed::new("");
    let host = &installed.host;
    let before = host.admin(&["status"])["plugin_socket_state"]["since"].clone();
    installed.reexecuted();
    assert_eq!(host.admin(&["status"])["plugin_socket_state"]["since"], before);
    let received = host.plugin("10", "late", sets("HELLO", "there"));
    installed.reexecuted();
    succeeds(&host.create("c1"));
    assert!(has_received(&received, "CreateContainer c1"));
    assert!(host.read("bundle/config.json").contains("HELLO=there"));
}

#[test]
fn a_foreground_run_survives_a_reexec_and_its_end_is_sent() {
    let installed = Installed::new("");
    let host = &installed.host;
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let bundle = host.path("bundle").display().to_string();
    let mut run = host.spawn(&["restore", "--bundle", &bundle, "c1"]);
    wait_until("it runs", || state(host, "c1") == "running");
    installed.reexecuted();
    assert_eq!(state(host, "c1"), "running");
    succeeds(&host.verb(&["kill", "c1", "9"]));
    run.wait().unwrap();
    wait_until("its end is received", || has_received(&received, "RemovePodSandbox c1"));
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn rights_and_policies_still_apply_after_a_reexec() {
    let installed = Installed::new("[plugin.env]\ndeny = [\"Env\"]\non_failure = \"refuse\"\n");
    let host = &installed.host;
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    installed.reexecuted();
    let output = host.create("c1");
    assert!(!output.status.success(), "its right is denied");
    let policy: Value = host.admin(&["plugins"])[0]["failure_policy"].clone();
    assert_eq!(policy["on_failure"], "refuse");
}

#[test]
fn a_reexec_disconnects_a_plugin_that_may_no_longer_connect() {
    for (more, kept) in [
        ("[plugin.env]\nfrom = [\"exe:/nowhere\"]\n", "synchronized"),
        ("[nri]\nallowed_uids = [65534]\n", "gone"),
    ] {
        let installed = Installed::new("");
        let host = &installed.host;
        let _env = host.plugin("10", "env", sets("HELLO", "there"));
        let _other = host.plugin("20", "other", Script::default());
        host.configure(&host.path("fake/runc"), more);
        assert!(is_synchronized(&host.admin(&["plugins"]), "10-env"), "nothing was reloaded");
        installed.reexecuted();
        host.logs(&["10-env is disconnected by the new configuration"], 1);
        let state = |name: &str| {
            let plugins = host.admin(&["plugins"]);
            let mut rows = plugins.as_array().into_iter().flatten();
            rows.find(|row| row["name"] == name).map(|row| row["state"].clone())
        };
        wait_until("it is gone", || state("env") == Some("gone".into()));
        wait_until("the other is as it should", || state("other") == Some(kept.into()));
        succeeds(&host.create("c1"));
        assert!(!host.read("bundle/config.json").contains("HELLO=there"));
    }
}
