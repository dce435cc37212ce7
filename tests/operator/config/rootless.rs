// SPDX-License-Identifier: Apache-2.0
//! Containers of users without privileges and of user namespaces: plugins are not asked, so root's
//! daemon writes a policy file for their wrappers, which applies without the daemon too.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use test_support::{TestHost, fails, skip, started, succeeds, wait_until};

use super::finding;

/// Calls as the root of a user namespace, as rootless engines do, and as a plain user.
const NAMESPACE: &[&str] = &["unshare", "--user", "--map-root-user"];
const USER: &[&str] =
    &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"];

const MARKER: &str = "run.rootless";

fn call(host: &TestHost, by: &[&str], words: &[&str]) -> Output {
    let by: Vec<String> = by.iter().map(|&word| word.to_owned()).collect();
    let (root, bundle) = (host.path("root"), host.path("bundle"));
    let (root, bundle) = (root.display().to_string(), bundle.display().to_string());
    let words: Vec<&str> = words
        .iter()
        .map(|&word| match word {
            "BUNDLE" => bundle.as_str(),
            "ROOT" => root.as_str(),
            word => word,
        })
        .collect();
    host.call_by(&by, &words, "")
}

fn create(host: &TestHost, by: &[&str], id: &str) -> Output {
    call(host, by, &["--root", "ROOT", "create", "--bundle", "BUNDLE", id])
}

/// Whether user namespaces can be created here; prints a line if not.
fn has_namespaces() -> bool {
    let tried = std::process::Command::new(NAMESPACE[0]).args(&NAMESPACE[1..]).arg("true").status();
    let is_so = tried.is_ok_and(|status| status.success());
    if !is_so {
        skip::machine_lacks("user namespaces");
    }
    is_so
}

/// Lets every user reach the program and this host's files except for the run directory.
fn open_to_users(host: &TestHost) {
    host.share_program();
    std::fs::create_dir_all(host.path("root")).unwrap();
    for name in ["", "config.toml", "fake", "fake/runc", "bundle", "bundle/config.json", "root"] {
        std::fs::set_permissions(host.path(name), std::fs::Permissions::from_mode(0o775)).unwrap();
    }
}

const REFUSED: [&str; 3] =
    ["cannot create c1", "on_rootless refuses", "plugins do not receive them"];

#[test]
fn a_user_namespace_passes_or_is_refused_by_policy() {
    if !has_namespaces() {
        return;
    }
    for (config, is_refused) in [
        ("", false),
        ("[plugin.guard]\nrequired = true\n", true),
        ("[nri.default_validator]\nenable = true\n", true),
        ("on_rootless = \"refuse\"\n", true),
        ("on_rootless = \"pass\"\n[plugin.guard]\nrequired = true\n", false),
        ("on_rootless = \"refuse\"\n[nri]\ndisable = true\n", false),
    ] {
        let host = started(config);
        let wanted = if is_refused { "refuse\n" } else { "pass\n" };
        assert_eq!(host.read(MARKER), wanted, "{config}");
        let mode = std::fs::metadata(host.path(MARKER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let output = create(&host, NAMESPACE, "c1");
        if is_refused {
            fails(&output, &REFUSED);
            assert!(!host.path("fake/seen.json").exists(), "the runtime was asked: {config}");
        } else {
            succeeds(&output);
        }
        assert_eq!(finding(&host, "rootless")["ok"], true, "{config}");
    }
}

#[test]
fn a_policy_outlives_its_daemon_and_changes_with_a_reload() {
    let mut host = started("on_rootless = \"refuse\"\n");
    host.kill_daemon();
    assert_eq!(host.read(MARKER), "refuse\n", "it is kept without the daemon");
    if has_namespaces() {
        fails(&create(&host, NAMESPACE, "c1"), &REFUSED);
    }
    host.start_daemon();
    host.configure(&host.path("fake/runc"), "on_rootless = \"pass\"\n");
    assert!(host.call(&["nri", "reload"]).status.success());
    assert_eq!(host.read(MARKER), "pass\n");
    // An invalid value changes nothing.
    host.configure(&host.path("fake/runc"), "on_rootless = \"deny\"\n");
    let refused = host.call(&["nri", "reload"]);
    assert!(!refused.status.success());
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(line.contains("on_rootless: must be one of: pass, refuse"), "{line}");
    assert_eq!(host.read(MARKER), "pass\n");
    // If no daemon has read a valid value, creates are refused, for users too.
    host.kill_daemon();
    std::fs::remove_dir_all(host.path("run")).unwrap();
    host.start_daemon();
    assert_eq!(host.read(MARKER), "refuse\n");
}

#[test]
fn disable_lets_users_pass_and_a_lost_policy_is_written_again() {
    let host = started("on_rootless = \"refuse\"\n");
    let is = |text: &'static str| wait_until(text, || host.read(MARKER) == text);
    assert!(host.call(&["nri", "disable"]).status.success());
    is("pass\n");
    assert!(host.call(&["nri", "enable"]).status.success());
    is("refuse\n");
    std::fs::remove_file(host.path(MARKER)).unwrap();
    is("refuse\n");
    host.write(MARKER, "nonsense\n");
    is("refuse\n");
}

#[test]
fn a_plain_user_is_refused_before_the_runtime_is_called() {
    let host = started("[plugin.guard]\nrequired = true\n");
    open_to_users(&host);
    if !call(&host, USER, &["nri", "--help"]).status.success() {
        return skip::machine_lacks("setpriv, or root");
    }
    fails(&create(&host, USER, "c1"), &REFUSED);
    fails(
        &call(&host, USER, &["--root", "ROOT", "run", "--bundle", "BUNDLE", "c1"]),
        &["cannot run c1", "on_rootless refuses"],
    );
    // Commands that create nothing reach the runtime.
    for words in [&["--root", "ROOT", "state", "c1"][..], &["--root", "ROOT", "delete", "c1"]] {
        let line = call(&host, USER, words).stderr;
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains("on_rootless"), "{words:?}: {line}");
    }
    // A hook that may refuse does so.
    let state = format!(
        "{{\"ociVersion\": \"1.0.2\", \"id\": \"c1\", \"pid\": 1, \"bundle\": \"{}\"}}",
        host.path("bundle").display()
    );
    let by: Vec<String> = USER.iter().map(|&word| word.to_owned()).collect();
    fails(&host.call_by(&by, &["nri", "hook", "createRuntime"], &state), &REFUSED);
    succeeds(&host.call_by(&by, &["nri", "hook", "poststop"], &state));
    assert!(!Path::new(&host.path("fake/seen.json")).exists());
}

#[test]
fn a_policy_that_cannot_be_read_refuses_and_check_names_it() {
    let mut host = started("");
    host.kill_daemon();
    assert_eq!(finding(&host, "rootless")["warning"], serde_json::Value::Null);
    host.write(MARKER, "perhaps\n");
    let found = finding(&host, "rootless");
    assert_eq!((&found["ok"], &found["warning"]), (&true.into(), &true.into()), "{found}");
    assert!(found["detail"].as_str().unwrap().contains("must contain pass or refuse"), "{found}");
    if has_namespaces() {
        let words = ["cannot create c1", MARKER, "must contain pass or refuse"];
        fails(&create(&host, NAMESPACE, "c1"), &words);
    }
    // Without a policy file, on a node whose daemon has not started yet, they pass, and `check`
    // reports it.
    std::fs::remove_file(host.path(MARKER)).unwrap();
    host.configure(&host.path("fake/runc"), "on_rootless = \"refuse\"\n");
    let found = finding(&host, "rootless");
    assert_eq!(found["warning"], true, "{found}");
    assert!(found["detail"].as_str().unwrap().contains("apply pass"), "{found}");
    if has_namespaces() {
        succeeds(&create(&host, NAMESPACE, "c1"));
    }
}
