// SPDX-License-Identifier: Apache-2.0
//! The daemon of a user without privileges: only wrappers of that user, also in the user's namespaces,
//! reach it, and the policy of root's daemon takes precedence.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use nix::unistd::{Gid, Uid, chown};
use serde_json::{Value, json};
use test_support::adjustments::{adjusts, sets};
use test_support::{
    Script, Started, TestHost, connect, fails, is_synchronized, skip, started, succeeds,
};
use test_support::{has_received, wait_until};

const USER: u32 = 65534;

/// Arguments of `setpriv` for the root of a user namespace that the user has created.
const NAMESPACE: &[&str] = &["unshare", "--user", "--map-root-user"];

/// The configuration of the user's daemon; the runtime comes from root's configuration.
const USERS_FILE: &str = "user/config/nri-runc/config.toml";

/// A node on which root's daemon runs, and a user with a daemon.
struct UserHost {
    _daemon: Started,
    node: TestHost,
}

impl UserHost {
    /// `node` has lines of root's configuration. Returns `None` after printing why the test is skipped.
    fn new(node: &str) -> Option<Self> {
        let node = started(node);
        let program = node.share_program();
        Self::of_program(node, &program)
    }

    /// Like [`Self::new`], with `program` as the user's daemon; the caller has called `share_program`.
    fn of_program(node: TestHost, program: &Path) -> Option<Self> {
        for folder in ["user/run", "user/config/nri-runc", "root"] {
            std::fs::create_dir_all(node.path(folder)).unwrap();
        }
        let lines = format!("[nri]\nallowed_uids = [0, {USER}]\n");
        node.write(USERS_FILE, &lines);
        mode(&node.path(""), 0o755);
        mode(&node.path("config.toml"), 0o644);
        for folder in ["user", "root", "fake", "bundle"] {
            give(&node.path(folder), USER);
        }
        mode(&node.path("user/run"), 0o700);
        let words = words(&node, USER, &[]);
        let run = |more: &[&str]| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(program).args(more);
            // systemd sets this variable too; no process listens on the path.
            command.env("NOTIFY_SOCKET", node.path("user/run/notify"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.env_remove("NRI_RUNC_CONFIG").spawn().unwrap()
        };
        if !run(&["nri", "--help"]).wait().unwrap().success() {
            skip::machine_lacks("setpriv, or root");
            return None;
        }
        let host = Self { _daemon: Started(run(&["nri", "daemon"])), node };
        wait_until("the user's daemon answers", || host.admin(&["status"]).status.success());
        Some(host)
    }

    /// Runs an admin verb as the user, without naming a configuration.
    fn admin(&self, words: &[&str]) -> Output {
        let by = self::words(&self.node, USER, &["-u", "NRI_RUNC_CONFIG"]);
        self.node.call_by(&by, &[&["nri"], words].concat(), "")
    }

    /// Checks that `status` and `check` name these keys as changed since the user's daemon read
    /// them.
    #[track_caller]
    fn shows_changed(&self, keys: &str) {
        for verb in ["status", "check"] {
            let printed = String::from_utf8(self.admin(&[verb]).stdout).unwrap();
            let line = printed.lines().find_map(|line| line.split_once("changed: "));
            let shown = line.and_then(|(_, keys)| keys.split_whitespace().next());
            assert_eq!(shown.unwrap_or_default(), keys, "{printed}");
        }
    }

    fn plugin(&self, script: Script) -> Arc<Mutex<Vec<String>>> {
        let received = connect(self.node.path("user/run/nri-runc/nri.sock"), "10", "a", script);
        wait_until("the plugin is synchronized", || {
            let plugins = self.admin(&["plugins", "--json"]).stdout;
            is_synchronized(&serde_json::from_slice(&plugins).unwrap_or_default(), "10-a")
        });
        received
    }

    /// Creates a container as `uid`, with an environment that names the user's folder.
    fn create(&self, uid: u32, by: &[&str], id: &str) -> Output {
        let _none_before = std::fs::remove_file(self.node.path("fake/seen.json"));
        let by = words(&self.node, uid, by);
        let (root, bundle) = (self.node.path("root"), self.node.path("bundle"));
        let (root, bundle) = (root.display().to_string(), bundle.display().to_string());
        self.node.call_by(&by, &["--root", &root, "create", "--bundle", &bundle, id], "")
    }

    /// Whether the runtime was called with the plugin's variable.
    #[track_caller]
    fn is_adjusted(&self) -> bool {
        let seen: Value = serde_json::from_str(&self.node.read("fake/seen.json")).unwrap();
        seen["process"]["env"].as_array().unwrap().contains(&"OWN=1".into())
    }
}

fn words(node: &TestHost, uid: u32, more: &[&str]) -> Vec<String> {
    let uid = uid.to_string();
    let user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", "--no-new-privs"];
    let folders = [
        format!("XDG_RUNTIME_DIR={}", node.path("user/run").display()),
        format!("XDG_CONFIG_HOME={}", node.path("user/config").display()),
    ];
    let (options, program): (Vec<&str>, Vec<&str>) = match more.first() {
        Some(first) if first.starts_with('-') => (more.to_vec(), Vec::new()),
        _ => (Vec::new(), more.to_vec()),
    };
    let words = user.into_iter().chain(["env"]).chain(options).map(ToOwned::to_owned);
    words.chain(folders).chain(program.into_iter().map(ToOwned::to_owned)).collect()
}

/// Gives a folder and its content to a user.
fn give(path: &Path, uid: u32) {
    chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid))).unwrap();
    if path.is_dir() {
        let entries: Vec<PathBuf> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.iter().for_each(|entry| give(entry, uid));
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether the user can create user namespaces here; prints a line if not.
fn has_namespaces(host: &UserHost) -> bool {
    let words = words(&host.node, USER, NAMESPACE);
    let is_so = Command::new(&words[0]).args(&words[1..]).arg("true").status().unwrap().success();
    if !is_so {
        skip::machine_lacks("user namespaces");
    }
    is_so
}

#[test]
fn a_user_reaches_its_own_daemon_from_any_of_its_namespaces() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    succeeds(&host.create(USER, &[], "c1"));
    assert!(host.is_adjusted() && has_received(&received, "CreateContainer c1"), "{received:?}");
    if has_namespaces(&host) {
        succeeds(&host.create(USER, NAMESPACE, "c2"));
        assert!(
            host.is_adjusted() && has_received(&received, "CreateContainer c2"),
            "{received:?}"
        );
    }
    let status = host.node.admin(&["status"]);
    assert_eq!(status["containers"], 0, "root's daemon has none of them: {status}");
    let checked = String::from_utf8(host.admin(&["check"]).stdout).unwrap();
    assert!(
        checked.contains("no daemon of root has set a policy for containers of this user"),
        "{checked}"
    );
    assert!(!checked.contains("allowed_uids lets user 65534"), "{checked}");
}

/// Every field that needs root: its name, and the members of a response's `linux` that set it.
fn fields_of_root() -> [(&'static str, Value); 9] {
    [
        ("BlockioClass", json!({"resources": {"blockioClass": {"value": "gold"}}})),
        ("RdtClass", json!({"resources": {"rdtClass": {"value": "gold"}}})),
        (
            "HugepageLimits",
            json!({"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}}),
        ),
        ("CPURealtimeRuntime", json!({"resources": {"cpu": {"realtimeRuntime": {"value": 1}}}})),
        ("CPURealtimePeriod", json!({"resources": {"cpu": {"realtimePeriod": {"value": 1}}}})),
        ("RdtClosID", json!({"rdt": {"closId": {"value": "gold"}}})),
        ("RdtSchemata", json!({"rdt": {"schemata": {"value": ["L3:0=f"]}}})),
        ("RdtEnableMonitoring", json!({"rdt": {"enableMonitoring": {"value": true}}})),
        ("LinuxNetDevices", json!({"netDevices": {"eth0": {"name": "eth9"}}})),
    ]
}

#[test]
fn each_field_that_needs_root_is_refused_by_its_name() {
    let Some(host) = UserHost::new("") else { return };
    let next = Arc::default();
    let _plugin = host.plugin(Script { next: Some(Arc::clone(&next)), ..Script::default() });
    for (name, linux) in fields_of_root() {
        *next.lock().unwrap() = adjusts(&json!({ "linux": linux })).adjust;
        let wanted = ["cannot create c1", name, "needs root, and the daemon is a user's"];
        fails(&host.create(USER, &[], "c1"), &wanted);
        assert!(!host.node.path("fake/seen.json").exists(), "the runtime was called: {name}");
    }
}

#[test]
fn no_environment_variable_leads_root_to_a_users_daemon() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    // root ignores the variable, whether the user or root owns the folder.
    for owner in [USER, 0] {
        give(&host.node.path("user/run"), owner);
        succeeds(&host.create(0, &[], "c1"));
        assert!(
            !host.is_adjusted() && !has_received(&received, "CreateContainer c1"),
            "{received:?}"
        );
        let by = words(&host.node, 0, &[]);
        let status = host.node.call_by(&by, &["nri", "status", "--json"], "");
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["run_dir"], host.node.path("run").display().to_string(), "{status}");
        succeeds(&host.node.call_by(
            &by,
            &["--root", &host.node.path("root").display().to_string(), "delete", "c1"],
            "",
        ));
    }
}

#[test]
fn the_policy_of_root_applies_before_a_users_daemon_is_asked() {
    let Some(host) = UserHost::new("on_rootless = \"refuse\"\n") else { return };
    let received = host.plugin(sets("OWN", "1"));
    fails(&host.create(USER, &[], "c1"), &["cannot create c1", "on_rootless refuses"]);
    assert!(!host.node.path("fake/seen.json").exists(), "the runtime was called");
    assert!(!has_received(&received, "CreateContainer c1"), "{received:?}");
}

#[test]
fn a_user_runs_containers_unless_roots_runtime_is_unknown() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    let root = host.node.path("root").display().to_string();
    let lines = host.node.read("config.toml");
    let user_has = format!("runtime = [{:?}]\n", host.node.path("fake/runc"));
    host.node.write(USERS_FILE, &(user_has + &host.node.read(USERS_FILE)));
    give(&host.node.path(USERS_FILE), USER);
    succeeds(&host.admin(&["reload"]));
    let delete = || {
        let by = words(&host.node, USER, &[]);
        host.node.call_by(&by, &["--root", &root, "delete", "c1"], "")
    };
    // Users can read neither the last valid file of root's daemon nor its run directory.
    let (wrong, broken) = (format!("on_rootless = 7\n{lines}"), format!("{lines}unknown = [\n"));
    for (text, readable_by) in [(&wrong, 0o644), (&wrong, 0o600), (&broken, 0o600)] {
        host.node.write("config.toml", text);
        mode(&host.node.path("config.toml"), readable_by);
        received.lock().unwrap().clear();
        succeeds(&host.create(USER, &[], "c1"));
        assert!(
            host.is_adjusted() && has_received(&received, "CreateContainer c1"),
            "{received:?}"
        );
        succeeds(&delete());
    }
    mode(&host.node.path("config.toml"), 0o644);
    fails(&delete(), &["config.good.toml", "access was denied"]);
}

#[test]
fn a_users_daemon_survives_the_loss_of_its_configuration() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    std::fs::remove_file(host.node.path(USERS_FILE)).unwrap();
    let file = host.node.path(USERS_FILE).display().to_string();
    for verb in ["reload", "status", "reexec"] {
        fails(&host.admin(&[verb]), &[&file, "it is missing"]);
    }
    let checked = String::from_utf8(host.admin(&["check"]).stdout).unwrap();
    assert!(checked.contains(&file) && checked.contains("it is missing"), "{checked}");
    succeeds(&host.create(USER, &[], "c1"));
    assert!(host.is_adjusted() && has_received(&received, "CreateContainer c1"), "{received:?}");
}

/// Writes root's configuration beside the program.
fn write_beside(node: &TestHost, runtime: &str) {
    node.write("bin/nri-runc.toml", &format!("runtime = {runtime:?}\n"));
    mode(&node.path("bin/nri-runc.toml"), 0o644);
}

#[test]
fn a_users_daemon_shows_a_changed_runtime_until_it_reloads() {
    let node = started("");
    let program = node.path("bin/nri-runc");
    let upgrade = || test_support::program::copy(test_support::program::nri_runc(), &program);
    upgrade();
    node.share_program();
    write_beside(&node, "/bin/true");
    let Some(host) = UserHost::of_program(node, &program) else { return };
    host.shows_changed("");
    for runtime in ["/bin/cat", "/bin/true"] {
        write_beside(&host.node, runtime);
        host.shows_changed("runtime");
        succeeds(&host.admin(&["reload"]));
        host.shows_changed("");
        // From now on the kernel shows the running program's file as deleted.
        upgrade();
    }
    // The user's own runtime comes first; wrappers read it from the daemon, not from the file.
    let own = format!("runtime = \"/bin/cat\"\n{}", host.node.read(USERS_FILE));
    host.node.write(USERS_FILE, &own);
    give(&host.node.path(USERS_FILE), USER);
    host.shows_changed("runtime");
    succeeds(&host.admin(&["reload"]));
    write_beside(&host.node, "/bin/ls");
    host.shows_changed("");
}

#[test]
fn a_users_hint_names_the_users_service_manager() {
    let Some(host) = UserHost::new("") else { return };
    for (verb, command) in [
        ("stop", "systemctl --user stop nri-runc.socket nri-runc.service"),
        ("restart", "systemctl --user restart nri-runc"),
    ] {
        fails(&host.admin(&[verb]), &["systemd runs the daemon", command]);
    }
}

#[test]
fn another_user_does_not_reach_the_daemon_of_a_user() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    for folder in ["root", "fake", "bundle"] {
        give(&host.node.path(folder), USER - 1);
    }
    mode(&host.node.path("user/run"), 0o755);
    mode(&host.node.path("user/run/nri-runc"), 0o755);
    succeeds(&host.create(USER - 1, &[], "c1"));
    assert!(!host.is_adjusted() && !has_received(&received, "CreateContainer c1"), "{received:?}");
    if has_namespaces(&host) {
        // No user is mapped there, so all files seem to belong to the process's user.
        for folder in ["root", "fake", "bundle"] {
            give(&host.node.path(folder), USER);
        }
        succeeds(&host.create(USER, &["unshare", "--user"], "c2"));
        assert!(
            !host.is_adjusted() && !has_received(&received, "CreateContainer c2"),
            "{received:?}"
        );
    }
}

#[test]
fn a_folder_that_another_user_can_create_is_not_used() {
    let Some(host) = UserHost::new("") else { return };
    let received = host.plugin(sets("OWN", "1"));
    let run = host.node.path("user/run");
    mode(&run, 0o777);
    succeeds(&host.create(USER, &[], "c1"));
    assert!(!host.is_adjusted());
    mode(&run, 0o700);
    chown(&run, Some(Uid::from_raw(0)), None).unwrap();
    mode(&run, 0o755);
    succeeds(&host.create(USER, &[], "c2"));
    assert!(!host.is_adjusted());
    assert!(
        !has_received(&received, "CreateContainer c1")
            && !has_received(&received, "CreateContainer c2")
    );
}
