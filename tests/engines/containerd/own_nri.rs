// SPDX-License-Identifier: Apache-2.0
//! containerd 2.4.2 with its default configuration, in which its own NRI is on: a plugin that knows
//! only the usual socket belongs to containerd, to nri-runc after `install --take-over-nri`, and to
//! containerd again after `uninstall`. Each time it adjusts a pod. Side by side, on two sockets,
//! both have plugins that adjust one container.
//!
//! The usual socket is in `/run/nri`, which is a private mount of this test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use test_support::cri::{self, Cri, container};
use test_support::example::example;
use test_support::{Started, skip, tools};

use super::cgroup_file;
use super::host::{self, Engine, Parts};

const SOCKETS: &str = "/run/nri";
/// Number of pods that a plugin may miss while it reconnects.
const ATTEMPTS: u32 = 100;
const CPU: &str = r#"{"cpu": {"shares": 512}}"#;

/// An empty folder for the usual plugin socket, for this thread and its children.
struct SocketFolder {
    is_new: bool,
    /// One test at a time, because removing the folder would remove another test's mount.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl SocketFolder {
    fn mount() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
            return None;
        }
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        let is_new = std::fs::create_dir(SOCKETS).is_ok();
        mount(Some("tmpfs"), SOCKETS, Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
        Some(Self { is_new, _alone: alone })
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _or_with_its_namespace = umount2(SOCKETS, MntFlags::MNT_DETACH);
        if self.is_new {
            let _or_another_needs_it = std::fs::remove_dir(SOCKETS);
        }
    }
}

fn command(program: &Path) -> Command {
    Command::new(program)
}

/// The default configuration that containerd prints, with private folders, without AppArmor, and
/// with the image and the limits of a machine without a registry.
fn default_configuration(containerd: &Path, runc: &Path, dir: &Path) -> String {
    let printed = command(&containerd.join("containerd")).args(["config", "default"]).output();
    let mut text = String::from_utf8(printed.unwrap().stdout).unwrap();
    let own = dir.display().to_string();
    let own = own.trim_end_matches('/');
    for (line, instead) in [
        ("root = '/var/lib/containerd'", format!("root = '{own}/root'")),
        ("state = '/run/containerd'", format!("state = '{own}/state'")),
        ("disabled_plugins = []", "disabled_plugins = ['io.containerd.internal.v1.opt']".into()),
        ("imports = ['/etc/containerd/", format!("imports = ['{own}/")),
        ("'/run/containerd/containerd.sock'", format!("'{own}/containerd.sock'")),
        ("'/run/containerd/containerd.sock.ttrpc'", format!("'{own}/containerd.sock.ttrpc'")),
        ("snapshotter = 'overlayfs'", "snapshotter = 'native'".into()),
        ("sandbox = 'registry.k8s.io/pause:3.10.2'", "sandbox = 'localhost/busybox:1'".into()),
        ("disable_apparmor = false", "disable_apparmor = true".into()),
        ("restrict_oom_score_adj = false", "restrict_oom_score_adj = true".into()),
        ("BinaryName = ''", format!("BinaryName = '{}'", runc.display())),
        ("Root = ''", format!("Root = '{own}/runc'")),
        ("conf_dir = '/etc/cni/net.d'", format!("conf_dir = '{own}/cni'")),
    ] {
        assert!(text.contains(line), "{line} is not in the default:\n{text}");
        text = text.replacen(line, &instead, 1);
    }
    assert!(text.contains("[plugins.'io.containerd.nri.v1.nri']\n    disable = false\n"));
    text
}

/// containerd, and a host with its undo record below a private folder.
struct Node {
    engine: Engine,
    before: String,
}

impl Node {
    /// Starts containerd; nri-runc uses `socket`, or the usual one if that is `None`.
    fn start(containerd: &Path, tools: &Path, runc: &Path, socket: Option<&str>) -> Self {
        let text = |dir: &Path| default_configuration(containerd, runc, dir);
        let parts = Parts { tools, containerd, runc, configuration: Some(&text) };
        let engine = Engine::of(&parts);
        let root = engine.path("host");
        std::fs::create_dir_all(root.join("var")).unwrap();
        let link = |target: &str, name: &str| {
            let _twice_the_same = std::os::unix::fs::symlink(target, root.join(name));
        };
        link("/run", "var/run");
        link("/run", "run");
        link("/proc", "proc");
        for path in [engine.path(""), containerd.to_owned(), env!("CARGO_BIN_EXE_nri-runc").into()]
        {
            let first = path.components().nth(1).unwrap();
            let target = Path::new("/").join(first);
            link(&target.display().to_string(), &first.as_os_str().to_string_lossy());
        }
        // nri-runc uses the usual socket by default.
        let config = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
        let own = format!("socket_path = \"{}\"\n", engine.path("nri.sock").display());
        assert!(config.contains(&own), "{config}");
        let instead = socket.map(|path| format!("socket_path = \"{path}\"\n"));
        let config = config.replace(&own, &instead.unwrap_or_default());
        let write = |name: &str, text: &str| {
            nri_runc::testing::files::replace(&engine.path(name), text.as_bytes()).unwrap();
        };
        write("nri-runc.toml", &config);
        let of_host = format!("[debug]\nhost_root = \"{}\"\n", root.display());
        write("host.toml", &format!("{config}{of_host}"));
        let before = std::fs::read_to_string(engine.path("containerd.toml")).unwrap();
        Self { engine, before }
    }

    /// Runs an admin verb on that host; returns its output, or its error line.
    fn nri(&self, words: &[&str]) -> Result<Value, String> {
        let config = self.engine.path("host.toml").display().to_string();
        let output = self.engine.nri(&[&["--config", config.as_str()], words].concat());
        if output.status.success() || words == ["check"] {
            return Ok(serde_json::from_slice(&output.stdout).unwrap());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn install(&self, more: &[&str]) -> Result<Value, String> {
        let main = self.engine.path("containerd.toml").display().to_string();
        let words = ["install", "containerd", "--engine-config", main.as_str(), "--binary"];
        self.nri(&[&words[..], &[env!("CARGO_BIN_EXE_nri-runc")], more].concat())
    }

    fn is_as_before(&self) -> bool {
        let now = std::fs::read_to_string(self.engine.path("containerd.toml")).unwrap();
        now == self.before
            && !self.engine.path("conf.d").exists()
            && !self.engine.path("host/var/lib").exists()
    }

    fn restart(&mut self) {
        self.engine.containerd.stop();
        self.engine.containerd.run();
    }

    /// A row of `check`.
    fn checked(&self, name: &str) -> (bool, String) {
        let all = self.nri(&["check"]).unwrap();
        let row = all.as_array().unwrap().iter().find(|row| row["check"] == name).unwrap().clone();
        (row["ok"] == true, format!("{} ({})", row["detail"], row["hint"]))
    }

    /// Runs pods with this handler until the plugin has adjusted one, and removes them; returns
    /// nri-runc's explanation of that container.
    async fn adjusted(&self, cri: &mut Cri, name: &str, handler: &str) -> Result<Value, String> {
        let mut attempt = 0;
        loop {
            let mut config = cri::pod(self.engine.cgroup(), &format!("{name}-{attempt}"));
            config.annotations = [("resources.nri-runc.dev".to_owned(), CPU.to_owned())].into();
            let pod = cri::run_pod_with(cri, config.clone(), handler).await;
            let of_app = container("app", &["/bin/sleep", "1000"]);
            let app = cri::create(cri, &pod, config, of_app).await;
            cri::start(cri, &app).await.unwrap();
            let shares = cgroup_file(&self.engine, "cpu", &app, "cpu.shares");
            let explained = self.nri(&["explain", &app]);
            cri::end_pod(cri, &pod).await;
            if shares == "512" {
                return explained;
            }
            let log = || self.engine.log_tail();
            assert_eq!(shares, "1024", "neither the engine nor the plugin said that\n{}", log());
            assert!(attempt < ATTEMPTS, "the plugin adjusted no pod\n{}", log());
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            attempt += 1;
        }
    }
}

/// The sample plugin, which knows only the usual socket and reconnects.
fn plugin(log: &Path) -> Started {
    let mut command = command(&example("resource_defaults"));
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    command.arg("--reconnect").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Started(command.spawn().unwrap())
}

fn parts() -> Option<(PathBuf, PathBuf, PathBuf)> {
    let runc = tools::newer("runc-1.5.2")?.join("runc");
    Some((tools::newer("containerd-2.4.2")?, host::tools()?, runc))
}

/// Checks that a refusal names both options and changes nothing, and that status, check and log
/// name the command.
fn is_refused_until_a_decision(node: &Node) {
    let refusal = node.install(&[]).unwrap_err();
    for words in ["containerd (process ", "serves NRI itself", "--take-over-nri", "--beside"] {
        assert!(refusal.contains(words), "{words} is not in: {refusal}");
    }
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
    assert!(node.is_as_before(), "a refusal changed something");
    let command = "nri-runc nri install containerd --take-over-nri";
    let status = node.engine.admin(&["status"]);
    assert_eq!(status["pass_through"], true);
    assert!(status["plugin_socket"].as_str().unwrap().contains(command), "{status}");
    let (is_well, row) = node.checked("plugin socket");
    assert!(!is_well && row.contains(command) && row.contains("created without plugins"), "{row}");
    let log = std::fs::read_to_string(node.engine.path("run/daemon.log")).unwrap();
    assert_eq!(log.matches(command).count(), 1, "{log}");
}

#[tokio::test]
async fn a_plugin_moves_from_containerds_socket_to_nri_runc_and_back() {
    let Some((containerd, tools, runc)) = parts() else { return };
    let Some(_folder) = SocketFolder::mount() else { return };
    let mut node = Node::start(&containerd, &tools, &runc, None);
    let _plugin = plugin(&node.engine.path("plugin.log"));
    let mut daemon = node.engine.start_daemon();
    let mut cri = node.engine.client().await;
    let shown = node.adjusted(&mut cri, "native", "").await;
    assert!(shown.is_err(), "it was no container of ours: {shown:?}");
    is_refused_until_a_decision(&node);

    let shown = node.install(&["--take-over-nri"]).unwrap();
    assert_eq!(
        (&shown["changed"], &shown["next"]),
        (&true.into(), &"systemctl restart containerd".into())
    );
    assert!(shown["notes"].to_string().contains("serves plugins until it is restarted"), "{shown}");
    assert_eq!(node.install(&[]).unwrap()["changed"], false, "the decision was forgotten");
    let (is_well, row) = node.checked("registered with containerd");
    assert!(!is_well && row.contains("still serves plugins"), "{row}");
    node.restart();
    node.engine.wait_until("the plugin has come over", || {
        node.engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let (is_well, row) = node.checked("registered with containerd");
    assert!(is_well && row.contains("instead of the engine's own NRI"), "{row}");
    let mut cri = node.engine.client().await;
    let shown = node.adjusted(&mut cri, "ours", "nri-runc").await.unwrap();
    assert_eq!(shown["changes"][0]["plugin"], "20-resource-defaults", "{shown}");

    node.engine
        .wait_until("no container needs us", || node.nri(&["uninstall", "containerd"]).is_ok());
    assert!(node.is_as_before(), "uninstall left something");
    node.nri(&["stop"]).unwrap();
    daemon.wait().unwrap();
    node.restart();
    let mut cri = node.engine.client().await;
    let _none_of_ours = node.adjusted(&mut cri, "again", "").await;
}

/// The configuration has the settings that `install --beside` writes into its drop-in.
#[tokio::test]
async fn two_nris_side_by_side_both_adjust_one_container() {
    let Some((containerd, tools, runc)) = parts() else { return };
    let Some(_folder) = SocketFolder::mount() else { return };
    let ours = "/run/nri/nri-runc.sock";
    let mut node = Node::start(&containerd, &tools, &runc, Some(ours));
    assert_eq!(node.install(&[]).unwrap()["changed"], true, "the sockets differ: all is decided");
    node.restart();
    let engine = &node.engine;
    let _daemon = engine.start_daemon();
    let _theirs = plugin(&engine.path("plugin.log"));
    let mut command = command(&example("ulimit_adjuster"));
    command.args(["--socket", ours]).stdin(Stdio::null()).stdout(Stdio::null());
    let _own = Started(command.stderr(Stdio::null()).spawn().unwrap());
    engine.wait_until("our plugin is synchronized", || {
        test_support::is_synchronized(&engine.admin(&["plugins"]), "10-ulimit-adjuster")
    });
    let (is_well, row) = node.checked("registered with containerd");
    assert!(is_well, "{row}");
    let mut cri = engine.client().await;
    let _theirs_is_ready = node.adjusted(&mut cri, "native", "").await;

    let mut config = cri::pod(engine.cgroup(), "both");
    let limits = r#"[{"type": "nofile", "soft": 111, "hard": 222}]"#;
    config.annotations = [("resources.nri-runc.dev", CPU), ("ulimits.noderesource.dev", limits)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let pod = cri::run_pod_with(&mut cri, config.clone(), "nri-runc").await;
    let app = container("app", &["/bin/sleep", "1000"]);
    let app = cri::create(&mut cri, &pod, config, app).await;
    cri::start(&mut cri, &app).await.unwrap();
    assert_eq!(cgroup_file(engine, "cpu", &app, "cpu.shares"), "512", "containerd's plugin");
    let pid = super::pid_of(&mut cri, &app).await;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(files.contains("111") && files.contains("222"), "our plugin: {files}");
    let changes = node.nri(&["explain", &app]).unwrap()["changes"].clone();
    let by: Vec<&Value> = changes.as_array().unwrap().iter().map(|c| &c["plugin"]).collect();
    assert!(!by.is_empty() && by.iter().all(|by| *by == "10-ulimit-adjuster"), "{changes}");
    cri::end_pod(&mut cri, &pod).await;
}
