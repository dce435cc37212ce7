// SPDX-License-Identifier: Apache-2.0
//! Rootless Podman: a user without privileges runs the daemon and registers nri-runc with the user's
//! Podman, and a plugin of that daemon changes the user's containers. Root's files stay unchanged.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use test_support::adjustments::sets;
use test_support::podman::{IMAGE, PodmanHost};
use test_support::{is_synchronized, life, scripted_plugin, skip};

use super::Told;

/// A user with a name in `/etc/passwd`, which Podman needs.
const USER: &str = "65534";

struct RootlessHost {
    host: PodmanHost,
    variables: [String; 2],
}

impl RootlessHost {
    /// `None` after printing why the test is skipped.
    fn new() -> Option<Self> {
        let host = PodmanHost::new("")?;
        let (home, run) = (host.path("home").display().to_string(), "/run/user-of-test");
        let runtime = host.tool("runc").display().to_string();
        host.write("home/.config/nri-runc/config.toml", &format!(
            "runtime = [{runtime:?}]\ndebug.silence = \"60s\"\n[nri]\nallowed_uids = [0, {USER}]\nsocket_path = \"{home}/nri.sock\"\n"
        ));
        let own = "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n";
        host.write("home/.config/containers/containers.conf", own);
        host.write("home/.config/containers/storage.conf", "[storage]\ndriver = \"vfs\"\n");
        let script = "chmod -R a+rX /etc && chmod a+rx ${2%/*} && chown -R $1:$1 $2 && install -d -m 700 -o $1 -g $1 $3";
        let made = host.call(Path::new("sh"), &["-c", script, "sh", USER, &home, run]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let variables = [format!("HOME={home}"), format!("XDG_RUNTIME_DIR={run}")];
        let host = Self { host, variables };
        let tar = host.host.path("rootfs.tar").display().to_string();
        let command = "CMD [\"/bin/sleep\",\"1000\"]";
        for words in [
            &["import", "--quiet", "--change", command, &tar, IMAGE][..],
            &["--runtime", "runc", "run", "--rm", "--network", "none", IMAGE, "true"],
        ] {
            let said = host.podman(words);
            if !said.status.success() {
                let why = String::from_utf8_lossy(&said.stderr).into_owned();
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
        self.host.call(Path::new("setpriv"), &words)
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{words:?}: {said}\n{}",
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

    fn plugin(&self) -> Told {
        let socket = self.host.path("home/nri.sock");
        let received = scripted_plugin::connect(socket, "10", "a", sets("OWN", "1"));
        self.host.wait_until("the plugin is synchronized", || {
            is_synchronized(&self.json(&["plugins"]), "10-a")
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
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("1 container still uses"), "{said}");
    user.good("podman", &["rm", "--force", "--time", "0", "web"]);
    // conmon exits a moment later.
    user.host.wait_until("nothing uses the registration", || {
        user.nri(&["uninstall", "podman", "--user"]).status.success()
    });
    assert_eq!(list(), before);
    assert_eq!(user.good("podman", &runtime).trim(), "runc");
}
