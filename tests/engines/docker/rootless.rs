// SPDX-License-Identifier: Apache-2.0
//! Rootless Docker: a user without privileges runs Docker in the namespaces of rootlesskit, and the
//! daemon of nri-runc outside of them. Everything is on a private host: a mount namespace with a
//! separate `/etc` and `/run`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{is_synchronized, life, scripted_plugin, skip, tools, wait_until};

use super::engine::{IMAGE, reason, text};

/// A user with a name in `/etc/passwd`, which newuidmap needs.
const USER: &str = "65534";

/// The runtime directory of the user's login session.
const RUNTIME_DIR: &str = "/run/user/65534";

/// Sets up the namespace and holds it as long as its standard input is open. `$1` is the test's
/// folder.
const HOLD: &str = r#"
set -e
mount --bind "$1/etc" /etc
mount -t tmpfs tmpfs /run
mkdir /run/user
install -d -m 700 -o "$2" -g "$2" "/run/user/$2"
chown -R "$2:$2" "$1/home"
touch "$1/held"
exec cat
"#;

/// Does what Docker's `dockerd-rootless.sh` does, with the host's network, because no program here
/// creates another one.
const DOCKERD: &str = r#"exec rootlesskit --state-dir="$XDG_RUNTIME_DIR/dockerd-rootless" --net=host \
    --copy-up=/etc --copy-up=/run --propagation=rslave \
    sh -c 'rm -f /run/docker /run/containerd /run/xtables.lock; exec dockerd --rootless'
"#;

/// The user's `daemon.json`, and the line of docs/rootless.md in it.
const SETTINGS: &str = r#"{
  LINE
  "storage-driver": "vfs", "bridge": "none", "iptables": false, "ip6tables": false, "userland-proxy": false
}
"#;
const DAEMON_JSON: &str = "home/.config/docker/daemon.json";
const LINE: &str = r#""runtimes": {"nri-runc": {"path": "PROGRAM"}},"#;

struct RootlessDocker {
    temp: tempfile::TempDir,
    tools: PathBuf,
    program: &'static str,
    holder: Child,
    dockerd: Option<Child>,
}

impl RootlessDocker {
    /// Starts the user's daemon and the user's Docker. `None` after printing why the test is
    /// skipped.
    fn new() -> Option<Self> {
        let programs =
            ["busybox", "containerd", "docker", "dockerd", "newgidmap", "newuidmap", "runc"];
        let (tools, _) = (tools::find(&programs)?, tools::find_built(&["rootlesskit"])?);
        let temp = tempfile::tempdir().unwrap();
        let program = env!("CARGO_BIN_EXE_nri-runc");
        lay_out(temp.path(), &tools);
        let mut hold = Command::new("unshare");
        hold.args(["--mount", "--propagation", "private", "sh", "-c", HOLD, "sh"]);
        hold.arg(temp.path()).arg(USER).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = hold.spawn().unwrap();
        let mut docker = Self { temp, tools, program, holder, dockerd: None };
        wait_until("the namespace is held", || {
            docker.path("held").exists() || docker.holder.try_wait().unwrap().is_some()
        });
        for words in [&[program, "nri", "--help"][..], &["rootlesskit", "true"]] {
            let printed = docker.call(words);
            if !printed.status.success() {
                skip::machine_lacks(&format!(
                    "{words:?} does not run as a user: {}",
                    text(&printed)
                ));
                return None;
            }
        }
        docker.start_daemon();
        docker.dockerd = Some(docker.spawn(&["sh", "-c", DOCKERD], "dockerd.log"));
        wait_until("Docker answers", || {
            let ended = docker.dockerd.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "rootlesskit has ended: {}", docker.log());
            // Docker 28.5.2 fails at `docker version` with the host's network.
            docker.docker(&["ps"]).status.success()
        });
        docker.import_image();
        docker.register();
        Some(docker)
    }

    /// Adds the runtime to the user's settings, and reloads them as Docker's unit does.
    fn register(&self) {
        let line = LINE.replace("PROGRAM", self.program);
        // Overwrites the file in place, because the user owns it.
        std::fs::write(self.path(DAEMON_JSON), SETTINGS.replace("LINE", &line)).unwrap();
        let rootlesskit = i32::try_from(self.dockerd.as_ref().unwrap().id()).unwrap();
        super::engine::signal(rootlesskit, nix::sys::signal::Signal::SIGHUP);
        wait_until("Docker has the runtime", || {
            self.output_of(&["info", "--format", "{{json .Runtimes}}"]).contains(self.program)
        });
    }

    fn import_image(&self) {
        let bin = self.path("image/bin");
        std::fs::create_dir_all(&bin).unwrap();
        test_support::program::copy(&self.tools.join("busybox"), &bin.join("busybox"));
        for applet in ["env", "sleep"] {
            std::os::unix::fs::symlink("busybox", bin.join(applet)).unwrap();
        }
        let (image, tar) = (self.path("image"), self.path("image.tar"));
        let mut pack = Command::new(self.tools.join("busybox"));
        assert!(
            pack.arg("tar")
                .arg("-C")
                .arg(image)
                .arg("-cf")
                .arg(&tar)
                .arg(".")
                .status()
                .unwrap()
                .success()
        );
        self.output_of(&["import", tar.to_str().unwrap(), IMAGE]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// A command that runs a program as the user, on that host.
    fn as_user(&self, words: &[&str]) -> Command {
        let mut command = self.inside();
        command.args(["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "env", "-i"]);
        command.arg(format!("HOME={}", self.path("home").display()));
        command.arg(format!("XDG_RUNTIME_DIR={RUNTIME_DIR}"));
        command.arg(format!("DOCKER_HOST=unix://{RUNTIME_DIR}/docker.sock"));
        command.arg(format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", self.tools.display()));
        command.args(words).stdin(Stdio::null());
        command
    }

    fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("--");
        command
    }

    fn call(&self, words: &[&str]) -> Output {
        self.as_user(words).output().unwrap()
    }

    /// Starts a program as the user, beside the test.
    fn spawn(&self, words: &[&str], log: &str) -> Child {
        let log = std::fs::File::create(self.path(log)).unwrap();
        let mut command = self.as_user(words);
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    fn docker(&self, words: &[&str]) -> Output {
        self.call(&[&["docker"], words].concat())
    }

    /// Runs docker successfully; returns its output.
    #[track_caller]
    fn output_of(&self, words: &[&str]) -> String {
        let output = self.docker(words);
        assert!(output.status.success(), "{words:?}: {}\n{}", text(&output), self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn runs(&self, name: &str) -> Output {
        let run = ["run", "--detach", "--runtime", "nri-runc", "--network", "none", "--name", name];
        self.docker(&[&run[..], &[IMAGE, "/bin/sleep", "1000"]].concat())
    }

    fn nri(&self, words: &[&str]) -> Output {
        self.call(&[&[self.program, "nri"], words].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.nri(&[&["--json"], words].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn start_daemon(&self) {
        let script = format!("setsid {} nri daemon >\"$HOME/daemon.log\" 2>&1 &", self.program);
        self.call(&["sh", "-c", &script]);
        wait_until("the user's daemon answers", || self.nri(&["status"]).status.success());
    }

    fn plugin(&self) -> super::EventLines {
        let received =
            scripted_plugin::connect(self.path("home/nri.sock"), "10", "a", sets("OWN", "1"));
        wait_until("the plugin is synchronized", || {
            is_synchronized(&self.json(&["plugins"]), "10-a")
        });
        received
    }

    fn log(&self) -> String {
        ["dockerd.log", "home/daemon.log"].map(|log| self.read(log)).join("\n")
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// Fills the folders that become `/etc` and the user's home.
fn lay_out(dir: &Path, tools: &Path) {
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&dir.join(name), text.as_bytes()).unwrap();
        set_mode(&dir.join(name), 0o644);
    };
    for file in ["passwd", "group", "hosts", "ld.so.cache"] {
        let text = std::fs::read(Path::new("/etc").join(file)).unwrap_or_default();
        std::fs::create_dir_all(dir.join("etc")).unwrap();
        std::fs::write(dir.join("etc").join(file), text).unwrap();
        set_mode(&dir.join("etc").join(file), 0o644);
    }
    for file in ["etc/subuid", "etc/subgid"] {
        write(file, &format!("{USER}:200000:65536\n"));
    }
    write(DAEMON_JSON, &SETTINGS.replace("LINE", ""));
    let (home, runtime) = (dir.join("home"), tools.join("runc"));
    write(
        "home/.config/nri-runc/config.toml",
        &format!(
            "runtime = {:?}\ndebug.silence = \"60s\"\n[nri]\nallowed_uids = [0, {USER}]\nsocket_path = {:?}\n",
            runtime,
            home.join("nri.sock"),
        ),
    );
    set_mode(dir, 0o755);
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap();
}

impl Drop for RootlessDocker {
    fn drop(&mut self) {
        let ids =
            String::from_utf8_lossy(&self.docker(&["ps", "--all", "--quiet"]).stdout).into_owned();
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            let _gone = self.docker(&[&["rm", "--force"][..], &ids].concat());
        }
        if let Some(dockerd) = &mut self.dockerd {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(dockerd.id()).unwrap_or(i32::MAX));
            let _ended = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _reaped = dockerd.wait();
        }
        let _ended = self.nri(&["stop"]);
        let _ended = self.holder.kill();
        let _reaped = self.holder.wait();
    }
}

#[test]
fn plugins_of_a_user_change_containers_of_rootless_docker() {
    let Some(docker) = RootlessDocker::new() else { return };
    let received = docker.plugin();
    let run = docker.runs("web");
    assert!(run.status.success(), "{}\n{}", text(&run), docker.log());
    let environment = docker.output_of(&["exec", "web", "/bin/env"]);
    assert!(environment.contains("OWN=1"), "{environment}");
    // The bundle is at a path of Docker's mount namespace: the daemon does not need it.
    let restarted = docker.nri(&["restart"]);
    assert!(restarted.status.success(), "{}", text(&restarted));
    assert_eq!(docker.json(&["pods"])[0]["containers"][0]["state"], "running");
    let again = docker.plugin();
    docker.output_of(&["stop", "--time", "0", "web"]);
    docker.output_of(&["start", "web"]);
    let environment = docker.output_of(&["exec", "web", "/bin/env"]);
    assert!(environment.contains("OWN=1"), "{environment}");
    docker.output_of(&["rm", "--force", "web"]);
    wait_until("the container is gone", || docker.json(&["pods"]) == json!([]));
    let received =
        [received, again].map(|received| std::mem::take(&mut *received.lock().unwrap())).concat();
    let mut wanted = [life("web"), life("web")].concat();
    wanted.insert(5, "Synchronize web".to_owned());
    assert_eq!(received, wanted);
    let checked = docker.json(&["check"]);
    let row =
        |name: &str| checked.as_array().unwrap().iter().find(|row| row["check"] == name).cloned();
    assert_eq!(row("daemon").unwrap()["ok"], true, "{checked}");
}

#[test]
fn the_policy_of_root_refuses_containers_of_rootless_docker() {
    let Some(docker) = RootlessDocker::new() else { return };
    let received = docker.plugin();
    // Root's daemon starts later than the user's Docker, whose /run then lacks its file.
    let config = docker.path("root.toml");
    let lines = format!(
        "runtime = {:?}\non_rootless = \"refuse\"\n[nri]\nsocket_path = {:?}\n",
        docker.tools.join("runc"),
        docker.path("nri.sock")
    );
    std::fs::write(&config, lines).unwrap();
    let mut of_root = docker.inside();
    of_root.args([docker.program, "nri", "--config"]).arg(&config).arg("daemon");
    let mut of_root = of_root.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut policy = docker.as_user(&["cat", "/run/nri-runc.rootless"]);
    wait_until("root's policy is there", || policy.output().unwrap().stdout == b"refuse\n");
    let printed = reason(&docker.runs("web"));
    of_root.kill().unwrap();
    of_root.wait().unwrap();
    assert!(printed.contains("on_rootless refuses containers of unprivileged users"), "{printed}");
    assert_eq!(*received.lock().unwrap(), [""; 0]);
}
