// SPDX-License-Identifier: Apache-2.0
//! Rootless Podman: a user without privileges runs the daemon and registers nri-runc with the user's
//! Podman, and a plugin of that daemon changes the user's containers. Root's files stay unchanged.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use nri_plugin::{Adjustment, Resources, Update};
use serde_json::Value;
use test_support::adjustments::sets;
use test_support::podman::{IMAGE, PodmanHost};
use test_support::{Script, cgroup, is_synchronized, life, scripted_plugin, skip, wait_until};

use super::{EventLines, bytes, resources};

/// A user with a name in `/etc/passwd`, which Podman needs.
const USER: &str = "65534";

struct RootlessHost {
    host: PodmanHost,
    variables: [String; 2],
    cgroup: Option<DelegatedCgroup>,
}

/// A cgroup that systemd delegates to the user, as it delegates that of `user@UID.service`, of which the user
/// enables these controllers for containers.
struct DelegatedCgroup {
    unit: String,
    path: String,
}

/// The first process leaves the cgroup's root, which can have either processes or controllers.
const UNIT: &str = r#"[Unit]
DefaultDependencies=no
[Service]
Slice=SLICE
User=USER
Delegate=CONTROLLERS
StandardOutput=null
ExecStart=/bin/sh -c 'cd /sys/fs/cgroup/PATH && mkdir tools && echo $$$$ >tools/cgroup.procs && for name in CONTROLLERS; do echo +$$name >cgroup.subtree_control; done && exec sleep 100000'
"#;

impl DelegatedCgroup {
    /// Starts the unit; `None` after printing why the test is skipped.
    fn new(name: &str, controllers: &str) -> Option<Self> {
        if !cgroup::has_systemd() {
            skip::machine_lacks("no systemd with cgroup v2 (make vm-engines has it)");
            return None;
        }
        let slice = cgroup::of_engine(name);
        let unit = slice.replace(".slice", ".service");
        let path = format!("{slice}/{unit}");
        let text = UNIT.replace("SLICE", &slice).replace("PATH", &path);
        let text = text.replace("USER", USER).replace("CONTROLLERS", controllers);
        std::fs::write(Path::new("/run/systemd/system").join(&unit), text).unwrap();
        let delegated = Self { unit, path };
        delegated.systemctl(&["daemon-reload"]);
        delegated.systemctl(&["start", &delegated.unit]);
        wait_until("the controllers are enabled", || {
            let enabled = delegated.read("cgroup.subtree_control");
            controllers.split(' ').all(|name| enabled.split_whitespace().any(|word| word == name))
        });
        Some(delegated)
    }

    fn read(&self, file: &str) -> String {
        let path = Path::new("/sys/fs/cgroup").join(&self.path).join(file);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[track_caller]
    fn systemctl(&self, words: &[&str]) {
        let output = Command::new("systemctl").args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for DelegatedCgroup {
    fn drop(&mut self) {
        let _stopped = Command::new("systemctl").args(["stop", &self.unit]).output();
        let _gone = std::fs::remove_file(Path::new("/run/systemd/system").join(&self.unit));
    }
}

impl RootlessHost {
    /// `None` after printing why the test is skipped.
    fn new() -> Option<Self> {
        Self::on(PodmanHost::new("")?, None)
    }

    /// Prepares the host, with a cgroup for the user that has these controllers.
    fn with_cgroup(controllers: &str) -> Option<Self> {
        let host = PodmanHost::new("")?;
        let folder: PathBuf = host.path("");
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cgroup = DelegatedCgroup::new(&name, controllers)?;
        Self::on(host, Some(cgroup))
    }

    fn on(host: PodmanHost, cgroup: Option<DelegatedCgroup>) -> Option<Self> {
        let (home, run) = (host.path("home").display().to_string(), "/run/user-of-test");
        let runtime = host.tool("runc").display().to_string();
        host.write("home/.config/nri-runc/config.toml", &format!(
            "runtime = [{runtime:?}]\ndebug.silence = \"60s\"\n[nri]\nplugin_request_timeout = \"10s\"\nallowed_uids = [0, {USER}]\nsocket_path = \"{home}/nri.sock\"\n"
        ));
        let own = "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n";
        host.write("home/.config/containers/containers.conf", own);
        host.write("home/.config/containers/storage.conf", "[storage]\ndriver = \"vfs\"\n");
        let script = "chmod -R a+rX /etc && chmod a+rx ${2%/*} && chown -R $1:$1 $2 && install -d -m 700 -o $1 -g $1 $3";
        let made = host.call(Path::new("sh"), &["-c", script, "sh", USER, &home, run]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let variables = [format!("HOME={home}"), format!("XDG_RUNTIME_DIR={run}")];
        let host = Self { host, variables, cgroup };
        let tar = host.host.path("rootfs.tar").display().to_string();
        let command = "CMD [\"/bin/sleep\",\"1000\"]";
        let parent = host.parent();
        let parent = parent.as_ref().map(|parent| ["--cgroup-parent", parent]);
        let run = ["--runtime", "runc", "run", "--rm", "--network", "none"];
        for words in [
            &["import", "--quiet", "--change", command, &tar, IMAGE][..],
            &[&run[..], parent.as_ref().map_or(&[], |words| &words[..]), &[IMAGE, "true"]].concat(),
        ] {
            let printed = host.podman(words);
            if !printed.status.success() {
                let why = String::from_utf8_lossy(&printed.stderr).into_owned();
                skip::machine_lacks(&format!("rootless Podman does not run here: {why}"));
                return None;
            }
        }
        Some(host)
    }

    /// Calls a program as the user.
    fn call(&self, program: &Path, words: &[&str]) -> Output {
        let program = program.display().to_string();
        let user = ["--reuid", USER, "--regid", USER, "--clear-groups", "env"];
        let variables = self.variables.each_ref().map(String::as_str);
        let words = [&user[..], &variables, &[program.as_str()], words].concat();
        let Some(cgroup) = &self.cgroup else {
            return self.host.call(Path::new("setpriv"), &words);
        };
        // A process of the user's session.
        let script = "echo $$ >\"$0\" && exec setpriv \"$@\"";
        let procs = format!("/sys/fs/cgroup/{}/tools/cgroup.procs", cgroup.path);
        self.host.call(Path::new("sh"), &[&["-c", script, &procs], &words[..]].concat())
    }

    /// The cgroup above containers.
    fn parent(&self) -> Option<String> {
        self.cgroup.as_ref().map(|cgroup| format!("/{}/pods", cgroup.path))
    }

    /// Starts a container through nri-runc below that cgroup.
    fn run(&self, name: &str) -> Output {
        let parent = self.parent().unwrap();
        let run = ["--runtime", "nri-runc", "run", "--detach", "--network", "none"];
        self.podman(&[&run[..], &["--cgroup-parent", &parent, "--name", name, IMAGE]].concat())
    }

    /// The limits of memory and pids in the container's cgroup.
    fn limits(&self, id: &str) -> [String; 2] {
        let parent = self.parent().unwrap();
        [("memory", "memory.limit_in_bytes"), ("pids", "pids.max")]
            .map(|file| cgroup::read(parent.trim_start_matches('/'), ("libpod", id), file))
    }

    fn podman(&self, words: &[&str]) -> Output {
        self.call(&self.host.tool("podman"), words)
    }

    /// Runs the user's Podman, or `nri-runc nri …`, successfully; returns its output.
    #[track_caller]
    fn good(&self, program: &str, words: &[&str]) -> String {
        let output = match program {
            "podman" => self.podman(words),
            _ => self.nri(words),
        };
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{words:?}: {printed}\n{}",
            self.host.read("home/daemon.log")
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn nri(&self, words: &[&str]) -> Output {
        self.call(&self.host.program(), &[&["nri"], words].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.nri(&[&["--json"], words].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn start_daemon(&self) {
        let script = "setsid \"$1\" nri daemon >\"$HOME/daemon.log\" 2>&1 &";
        let program = self.host.program().display().to_string();
        self.call(Path::new("sh"), &["-c", script, "sh", &program]);
        self.host
            .wait_until("the user's daemon answers", || self.nri(&["status"]).status.success());
    }

    fn plugin(&self) -> EventLines {
        self.connect("10-a", sets("OWN", "1"))
    }

    fn connect(&self, plugin: &str, script: impl Into<Script>) -> EventLines {
        let socket = self.host.path("home/nri.sock");
        let (index, name) = plugin.split_once('-').unwrap();
        let received = scripted_plugin::connect(socket, index, name, script);
        self.host.wait_until("the plugin is synchronized", || {
            is_synchronized(&self.json(&["plugins"]), plugin)
        });
        received
    }

    /// The state of the only container that the user's daemon knows.
    fn state(&self) -> Value {
        self.json(&["pods"])[0]["containers"][0]["state"].clone()
    }
}

impl Drop for RootlessHost {
    fn drop(&mut self) {
        let _gone = self.podman(&["rm", "--all", "--force", "--time", "0"]);
        // The process that holds the user's namespace.
        let _ended = self.podman(&["system", "migrate"]);
        let _ended = self.nri(&["stop"]);
    }
}

#[test]
fn plugins_of_a_user_change_the_users_containers() {
    let Some(user) = RootlessHost::new() else { return };
    user.good("nri", &["install", "podman", "--user"]);
    user.start_daemon();
    let received = user.plugin();
    let run = ["--runtime", "nri-runc", "run", "--detach", "--name", "web", "--network", "none"];
    user.good("podman", &[&run[..], &[IMAGE]].concat());
    let environment = user.good("podman", &["exec", "web", "env"]);
    assert!(environment.contains("OWN=1"), "{environment}");
    // Podman names no state directory, so the daemon must know where a user's is.
    user.good("nri", &["restart"]);
    assert_eq!(user.state(), "running", "{}", user.json(&["pods"]));
    let again = user.plugin();
    user.good("podman", &["rm", "--force", "--time", "0", "web"]);
    user.host.wait_until("the container is gone", || user.json(&["pods"]) == serde_json::json!([]));
    let received =
        [received, again].map(|received| std::mem::take(&mut *received.lock().unwrap())).concat();
    let mut wanted = life("web");
    wanted.insert(5, "Synchronize web".to_owned());
    assert_eq!(received, wanted);
    for of_root in ["run/daemon.sock", "run.rootless", "nri.sock"] {
        assert!(!user.host.path(of_root).exists(), "the user's daemon made {of_root} of root's");
    }
}

#[test]
fn a_users_registration_is_undone_byte_for_byte() {
    let Some(user) = RootlessHost::new() else { return };
    let list = || {
        let script = "cd \"$HOME/.config\" && find . | sort && find . -type f | sort | xargs cat";
        let listed = user.call(Path::new("sh"), &["-c", script]);
        String::from_utf8(listed.stdout).unwrap()
    };
    let before = list();
    user.good("nri", &["install", "podman", "--user", "--default"]);
    user.start_daemon();
    let runtime = ["info", "--format", "{{.Host.OCIRuntime.Name}}"];
    assert_eq!(user.good("podman", &runtime).trim(), "nri-runc");
    let checked = user.json(&["check"]).to_string();
    assert!(checked.contains("as nri-runc (the default runtime)"), "{checked}");
    user.good("podman", &["run", "--detach", "--name", "web", "--network", "none", IMAGE]);
    let refused = user.nri(&["uninstall", "podman", "--user"]);
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("1 container still uses"), "{printed}");
    user.good("podman", &["rm", "--force", "--time", "0", "web"]);
    // conmon exits a moment later.
    user.host.wait_until("nothing uses the registration", || {
        user.nri(&["uninstall", "podman", "--user"]).status.success()
    });
    assert_eq!(list(), before);
    assert_eq!(user.good("podman", &runtime).trim(), "runc");
}

#[test]
fn a_users_plugin_sets_what_systemd_delegates() {
    let Some(user) = RootlessHost::with_cgroup("memory pids") else { return };
    user.good("nri", &["install", "podman", "--user"]);
    user.start_daemon();
    let next = Arc::default();
    let script = Script { next: Some(Arc::clone(&next)), ..Script::default() };
    let _plugin = user.connect("10-limits", script);
    let set = |wanted: Resources| {
        *next.lock().unwrap() = Script::from(Adjustment::new().resources(wanted)).adjust;
    };
    set(resources(32, 0, 77));
    let run = user.run("web");
    let printed = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{printed}\n{}", user.host.read("home/daemon.log"));
    let id = String::from_utf8(run.stdout).unwrap().trim().to_owned();
    assert_eq!(user.limits(&id), [bytes(32), "77".to_owned()]);
    user.good("podman", &["update", "--memory", "48m", "web"]);
    assert_eq!(user.limits(&id), [bytes(48), "77".to_owned()]);
    let wants = vec![Update::of(&id).resources(resources(40, 0, 55)).into()];
    let _plugin = user.connect("20-late", Script { wants, ..Script::default() });
    user.host.wait_until("the daemon has carried it out", || {
        user.limits(&id) == [bytes(40), "55".to_owned()]
    });
    for (field, wanted) in [
        ("CPUShares", Resources::new().cpu_shares(300)),
        ("CPUQuota", Resources::new().cpu_quota(50_000, 100_000)),
        ("CPUSetCPUs", Resources::new().cpus("0")),
    ] {
        set(wanted);
        let run = user.run("other");
        let printed = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success(), "{field}");
        assert!(printed.contains("10-limits") && printed.contains(field), "{field}: {printed}");
        user.good("podman", &["rm", "--force", "--ignore", "other"]);
    }
}
