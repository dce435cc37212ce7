// SPDX-License-Identifier: Apache-2.0
//! Pre-installed plugins with the built binary: their environment, their restarts, and changes of
//! their folder and configuration.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::example::example;
use test_support::{BUNDLE, TestHost, wait_until};

use crate::succeeds;

/// A host with the sample plugin as `10-greeter`, which writes its input to the file `saw`.
fn host(more: &str) -> TestHost {
    let host = TestHost::new(more);
    std::fs::create_dir(host.path("plugins")).unwrap();
    symlink(example("demo_plugin"), host.path("plugins/10-greeter")).unwrap();
    configure(&host, "saw");
    host
}

pub(super) fn configure(host: &TestHost, saw: &str) {
    let text = format!("data=/etc\nsaw={}\n", host.path(saw).display());
    host.write("10-greeter.conf", &text);
}

fn script(host: &TestHost, name: &str, text: &str) {
    host.put_program(name, &format!("#!/bin/sh\n{text}\n"));
}

pub(super) fn row(host: &TestHost, name: &str) -> Option<Value> {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    rows.find(|plugin| plugin["name"] == name && plugin["state"] == "synchronized").cloned()
}

/// The PID of a synchronized plugin, once it differs from `old`.
pub(super) fn process(host: &TestHost, name: &str, old: i32) -> i32 {
    let mut pid = old;
    wait_until("the plugin is synchronized", || {
        let found = row(host, name).and_then(|row| row["pid"].as_i64());
        pid = found.map_or(old, |pid| i32::try_from(pid).unwrap());
        pid != old
    });
    pid
}

pub(super) fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_pre_installed_plugin_is_configured_and_takes_part() {
    let mut host = host("");
    host.start_daemon();
    process(&host, "greeter", 0);
    succeeds(&host.create("c1"));
    let seen = host.read("fake/seen.json");
    assert!(seen.contains("\"GREETING=hello-from-a-plugin\""), "{seen}");
    assert!(seen.contains("\"source\":\"/etc\""), "its configuration reached it: {seen}");
    assert_eq!(row(&host, "greeter").unwrap()["launched"], true);
    assert_eq!(host.admin(&["explain", "c1"])["owners"]["Env[GREETING]"], "10-greeter");
    wait_until("the create is reported", || host.read("saw").contains("PostCreateContainer"));
    let saw = host.read("saw");
    let events: Vec<&str> = saw.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let wanted =
        ["Configure", "Synchronize", "RunPodSandbox", "CreateContainer", "PostCreateContainer"];
    assert_eq!(events, wanted);
}

/// The plugin writes into a pipe whose buffer holds only the first line.
#[test]
fn a_slowly_synchronized_plugin_is_named_before_requests_wait() {
    use std::io::Write;

    let mut host = host("[plugin.greeter]\nsync_timeout = \"120s\"\n");
    nix::unistd::mkfifo(&host.path("saw"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut pipe =
        std::fs::OpenOptions::new().read(true).write(true).open(host.path("saw")).unwrap();
    pipe.write_all(&[b'.'; 15 * 4096]).unwrap();
    pipe.write_all(&[b'.'; 4096 - 90]).unwrap();
    host.start_daemon();
    wait_until("it is being synchronized", || {
        host.admin(&["plugins"]).to_string().contains("\"synchronizing\":{")
    });
    let output = host.call(&["nri", "reexec"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && printed.contains("10-greeter is still being"), "{printed}");
    assert!(host.logged(&["took longer than"]) == 0, "nothing was held");
    succeeds(&host.create("c1"));
    // Without a reader the plugin would wait for ever and outlive its daemon.
    let pid = i32::try_from(host.admin(&["plugins"])[0]["pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn a_launched_plugin_gets_its_socket_and_three_variables_only() {
    let mut host = host("");
    host.start_daemon();
    let pid = process(&host, "greeter", 0);
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let mut words: Vec<&str> = environment.trim_end_matches('\0').split('\0').collect();
    words.sort_unstable();
    let wanted = ["NRI_PLUGIN_IDX=10", "NRI_PLUGIN_NAME=greeter", "NRI_PLUGIN_SOCKET=3"];
    assert_eq!(words, wanted);
    let link = |fd: &str| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
    assert_eq!(link("0"), Path::new("/dev/null"));
    for fd in ["1", "2"] {
        assert!(link(fd).display().to_string().starts_with("pipe:"), "what it prints is read");
    }
    assert!(link("3").display().to_string().starts_with("socket:"));
    // The plugin's own descriptors belong to its event loop; none is a file of the daemon.
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        assert!(!target.starts_with(host.path("")), "{}", target.display());
    }
}

/// Whether a process watches this folder with inotify.
fn is_watched(pid: i32, folder: &Path) -> bool {
    let wanted = format!(" ino:{:x} ", std::fs::metadata(folder).unwrap().ino());
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let texts = entries.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default());
    texts.filter(|text| text.contains("inotify wd:")).any(|text| text.contains(&wanted))
}

#[test]
fn a_missing_plugin_folder_is_noticed_when_it_appears() {
    let mut host = TestHost::default();
    configure(&host, "saw");
    let text = host.read("config.toml").replace("/plugins\"", "/a/b/plugins\"");
    host.write("config.toml", &text);
    std::fs::create_dir(host.path("a")).unwrap();
    host.start_daemon();
    let pid = host.daemon_pid();
    wait_until("the nearest folder is watched", || is_watched(pid, &host.path("a")));
    std::fs::create_dir(host.path("a/b")).unwrap();
    wait_until("now this one is", || is_watched(pid, &host.path("a/b")));
    let plugin = example("demo_plugin"); // The sample may have to be built, which takes longer than the test waits.
    let begun = Instant::now();
    std::fs::create_dir(host.path("a/b/plugins")).unwrap();
    symlink(plugin, host.path("a/b/plugins/10-greeter")).unwrap();
    process(&host, "greeter", 0);
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(10),
        "{took:?}: only the next check without an event saw it"
    );
    // The folder is removed with its plugin, and is watched for again.
    std::fs::remove_file(host.path("a/b/plugins/10-greeter")).unwrap();
    std::fs::remove_dir(host.path("a/b/plugins")).unwrap();
    wait_until("its plugin has ended", || row(&host, "greeter").is_none());
    wait_until("it is watched for", || is_watched(pid, &host.path("a/b")));
}

#[test]
fn a_file_that_is_not_a_plugin_is_reported_once() {
    let mut host = host("");
    script(&host, "plugins/badly-named", "exit 0");
    host.write("plugins/11-not-executable", "");
    script(&host, "plugins/12-spoilt", "exit 0");
    nri_runc::testing::files::replace(&host.path("spoilt.conf"), b"\xff\xfe").unwrap();
    symlink("/nowhere", host.path("plugins/13-lost")).unwrap();
    host.start_daemon();
    process(&host, "greeter", 0);
    // Two further checks of the folder, of which the first changes it.
    symlink(example("demo_plugin"), host.path("plugins/20-late")).unwrap();
    process(&host, "late", 0);
    for (name, why) in [
        ("badly-named", "must be 2 digits"),
        ("11-not-executable", "it is not executable"),
        ("12-spoilt", "spoilt.conf"),
        ("13-lost", "it is missing"),
    ] {
        let name = format!("plugins/{name} was skipped");
        host.logs(&[&name, why], 1);
    }
    let found = host.admin(&["check"]);
    let bad = found.as_array().unwrap().iter().filter(|finding| finding["ok"] == false);
    assert!(bad.count() >= 4, "{found}");
}

#[test]
fn a_plugin_that_dies_is_restarted_with_growing_pauses() {
    let mut host = host("");
    host.start_daemon();
    let mut pid = process(&host, "greeter", 0);
    for pause in [1.0, 2.0] {
        let begun = Instant::now();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let next = process(&host, "greeter", pid);
        let took = begun.elapsed().as_secs_f32();
        assert!(took > pause - 0.1, "{took} instead of {pause}");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was not reaped");
        pid = next;
    }
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("GREETING"));
}

#[test]
fn a_plugin_that_never_registers_is_ended_with_all_it_started() {
    let mut host = TestHost::new("[nri]\nplugin_registration_timeout = \"300ms\"\n");
    std::fs::create_dir(host.path("plugins")).unwrap();
    let pids = host.path("pids").display().to_string();
    script(&host, "plugins/20-mute", &format!("/bin/sleep 300 &\necho $! $$ >>{pids}\nwait"));
    script(&host, "plugins/21-short", "exit 3");
    host.start_daemon();
    wait_until("they were given up", || {
        host.logged(&["20-mute could not be started", "did not register in time"]) >= 1
            && host.logged(&["21-short could not be started"]) >= 2
    });
    let first = host.read("pids").lines().next().unwrap().to_owned();
    for pid in first.split(' ') {
        let pid = pid.parse().unwrap();
        wait_until("its processes are gone", || !is_running(pid));
    }
    host.logs(&["restarting 21-short in 1 s"], 1);
    host.logs(&["restarting 21-short in 2 s"], 1);
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
}

#[test]
fn launched_plugins_end_with_the_daemon_after_any_signal() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut host = host("");
        host.start_daemon();
        let pid = process(&host, "greeter", 0);
        kill(Pid::from_raw(host.daemon_pid()), signal).unwrap();
        wait_until("the plugin is gone", || !is_running(pid));
        wait_until("the daemon is", || !is_running(host.daemon_pid()));
        assert_eq!(host.logged(&["restarting "]), 0);
    }
}

#[test]
fn a_new_plugin_file_is_started_and_a_removed_one_ended() {
    let mut host = TestHost::default();
    host.start_daemon();
    std::fs::create_dir(host.path("plugins")).unwrap();
    configure(&host, "saw");
    symlink(example("demo_plugin"), host.path("plugins/10-greeter")).unwrap();
    let pid = process(&host, "greeter", 0);
    std::fs::remove_file(host.path("plugins/10-greeter")).unwrap();
    wait_until("the plugin has left", || host.admin(&["status"])["plugins"] == 0);
    wait_until("its process is gone", || !is_running(pid));
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
}

#[test]
fn a_changed_configuration_starts_a_replacement_plugin() {
    let mut host = host("");
    host.start_daemon();
    let pid = process(&host, "greeter", 0);
    configure(&host, "saw-anew");
    wait_until("the change is seen", || host.logged(&["10-greeter", "has changed"]) == 1);
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("GREETING"), "it went past the plugin");
    process(&host, "greeter", pid);
    wait_until("the old process is gone", || !is_running(pid));
    succeeds(&host.create("c2"));
    assert!(host.read("saw-anew").contains("CreateContainer"));
    // An unreadable configuration is reported, and the plugin stays unchanged.
    let pid = process(&host, "greeter", 0);
    nri_runc::testing::files::replace(&host.path("10-greeter.conf"), b"\xff\xfe").unwrap();
    wait_until("it is said", || host.logged(&["10-greeter was skipped", "10-greeter.conf"]) == 1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(process(&host, "greeter", 0), pid);
}

/// The row of a plugin in any state.
fn any_row(host: &TestHost, name: &str) -> Value {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    rows.find(|plugin| plugin["name"] == name).cloned().unwrap_or_default()
}

/// A daemon with three launched plugins: one works, one fails at each start, one is killed.
fn with_failing_plugins() -> TestHost {
    let mut host = host("");
    let says = "echo opening /dev/x\nprintf '\\033[2Jno such device\\n' >&2\nexit 3";
    script(&host, "plugins/21-short", says);
    script(&host, "plugins/22-killed", "kill -9 $$");
    host.start_daemon();
    process(&host, "greeter", 0);
    wait_until("it failed twice", || any_row(&host, "short")["restarts"].as_u64() >= Some(1));
    host
}

/// The result of a check that falls between two runs of the failing plugin.
fn between_its_lives<T>(host: &TestHost, look: impl Fn() -> T) -> T {
    wait_until("it shows between its lives", || any_row(host, "short")["state"] == "gone");
    look()
}

#[test]
fn a_failing_plugins_output_and_exit_are_logged() {
    let host = with_failing_plugins();
    for line in ["21-short: opening /dev/x", "21-short: \\u{1b}[2Jno such device"] {
        host.logs_at_least(&[line], 1);
    }
    host.logs_at_least(&["21-short: its process has ended: exit status 3"], 1);
    let received = ["21-short could not be started", "exit status 3", "no such device"];
    host.logs_at_least(&received, 1);
}

#[test]
fn a_failing_launched_plugin_shows_its_exit_and_output() {
    let host = with_failing_plugins();
    let row = between_its_lives(&host, || any_row(&host, "short"));
    assert_eq!((&row["launched"], &row["exit_status"]), (&true.into(), &"exit status 3".into()));
    assert_eq!(row["last_words"].as_array().unwrap().len(), 2, "{row}");
    assert_eq!(any_row(&host, "killed")["exit_status"], "signal 9 (SIGKILL)");
    assert_eq!(row_of_greeter(&host)["exit_status"], Value::Null, "one that works shows no exit");
    let page = between_its_lives(&host, || host.call(&["nri", "plugins"]).stdout);
    let page = String::from_utf8(page).unwrap();
    let is_reported = |line: &str| line.starts_with("21-short: exit status 3; its last line:");
    assert!(page.lines().any(is_reported), "{page}");
}

#[test]
fn a_failing_launched_plugin_is_one_failure_with_a_count() {
    let host = with_failing_plugins();
    let failures = host.admin(&["status"])["failures"].clone();
    let mut short = failures.as_array().unwrap().iter().filter(|row| row["plugin"] == "21-short");
    assert!(short.next().unwrap()["count"].as_u64() >= Some(2), "{failures}");
    assert!(short.next().is_none(), "the same failure is one row: {failures}");
}

#[test]
fn a_launched_plugin_that_keeps_failing_is_a_warning_of_check() {
    let host = with_failing_plugins();
    let found = between_its_lives(&host, || host.admin(&["check"]));
    let mut warnings = found.as_array().unwrap().iter().filter(|row| row["warning"] == true);
    let is_named = warnings.any(|row| {
        let detail = row["detail"].as_str().unwrap_or_default();
        row["check"] == "pre-installed plugins"
            && detail.starts_with("21-short is not running: could not be started: ")
            && detail.contains("; exit status 3; its last line: ")
    });
    assert!(is_named, "{found}");
}

#[test]
fn a_failing_plugins_row_is_removed_with_its_file() {
    let host = with_failing_plugins();
    std::fs::remove_file(host.path("plugins/21-short")).unwrap();
    wait_until("its row is gone", || any_row(&host, "short").is_null());
}

fn row_of_greeter(host: &TestHost) -> Value {
    row(host, "greeter").unwrap()
}

#[test]
fn a_plugin_that_prints_endlessly_costs_a_bounded_log() {
    let mut host = host("");
    script(&host, "plugins/20-loud", "exec yes this is a line of a plugin that is never quiet");
    let begun = Instant::now();
    host.start_daemon();
    process(&host, "greeter", 0);
    std::thread::sleep(Duration::from_secs(2));
    succeeds(&host.create("c1"));
    assert_eq!(host.admin(&["status"])["bypassed"], 0, "the daemon answered in time");
    let logged = host.logged(&["20-loud: this is a line"]);
    // The daemon logs at most 200 lines in ten seconds.
    let most = 200 * (usize::try_from(begun.elapsed().as_secs()).unwrap() / 10 + 2);
    assert!((1..=most).contains(&logged), "{logged} lines, not {most}");
}

fn output(host: &TestHost, words: &[&str]) -> (Option<i32>, String) {
    let output = host.call(&[&["nri", "plugins"], words].concat());
    let page = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(page).unwrap())
}

#[test]
fn a_launched_plugins_output_is_shown_over_two_runs() {
    let mut host = TestHost::default();
    std::fs::create_dir(host.path("plugins")).unwrap();
    let says = "echo to-stdout $$; echo 'to-stderr \u{1b}[2J' >&2; exit 3";
    script(&host, "plugins/10-talks", says);
    host.start_daemon();
    wait_until("it ran twice", || {
        let (_, page) = output(&host, &["--logs", "talks"]);
        page.matches("(10-talks: exit status 3)").count() == 2
    });
    let (code, page) = output(&host, &["--logs", "10-talks"]);
    assert_eq!(code, Some(0), "{page}");
    assert_eq!(page.matches("Z  to-stdout ").count(), 2, "{page}");
    assert_eq!(page.matches("Z  to-stderr ").count(), 2, "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
    let json = host.admin(&["plugins", "--logs", "talks"]);
    assert_eq!(
        (&json["name"], &json["runs"][0]["exit_status"]),
        (&"talks".into(), &"exit status 3".into())
    );
    assert!(json["runs"][0]["lines"][0]["at"].as_i64() > Some(0), "{json}");
    host.logs_at_least(&["10-talks: to-stderr"], 2);
}

#[test]
fn only_launched_plugins_have_output_even_with_equal_names() {
    let mut host = TestHost::default();
    std::fs::create_dir(host.path("plugins")).unwrap();
    for index in ["10", "20"] {
        script(&host, &format!("plugins/{index}-twin"), &format!("echo I am {index}; exit 3"));
    }
    host.start_daemon();
    let _plugin = host.plugin("30", "outside", test_support::Script::default());
    for (name, wanted) in [
        ("outside", "outside was not launched by nri-runc"),
        ("30-outside", "30-outside was not launched by nri-runc"),
        ("nobody", "no plugin nobody was launched"),
        ("twin", "\"twin\" is ambiguous: 2 plugins match: 10-twin, 20-twin"),
        ("tw", "\"tw\" is ambiguous: 2 plugins match: 10-twin, 20-twin"),
        ("", "no plugin  was launched"),
    ] {
        let (code, page) = output(&host, &["--logs", name]);
        assert_eq!(code, Some(1), "{page}");
        assert!(page.contains(wanted) && page.lines().count() == 1, "{page}");
    }
    wait_until("one of them has spoken", || {
        ["20-twin", "20"].iter().all(|name| output(&host, &["--logs", name]).1.contains("I am 20"))
    });
}
