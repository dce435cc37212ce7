// SPDX-License-Identifier: Apache-2.0
//! `nri node` on a node that is a folder: this process serves Docker's API, with the content of the file when the
//! helper, a script, last restarted the engine. The steps, their order, and that they happen once; what is undone,
//! when, and what never is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{Started, wait_until};

use super::{Place, Tree, tree};

/// Time for a line of `node` on a busy machine.
const LINE_WAIT: Duration = Duration::from_secs(120);
const PROGRAM: &str = "opt/nri-runc/bin/nri-runc";
const DOCKERS: &str = "etc/docker/daemon.json";

/// Records its calls; `fails` makes systemd fail, `terminates` makes it signal, `daemonset` is the answer to GET.
const HELPER: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$1" in
systemd)
    # As kubelet does when its request went with the engine, which takes its time.
    if [ -e "$here/terminates" ]; then
        kill -TERM $PPID
        (sleep 1; rm -f "$here/loaded") >/dev/null 2>&1 &
        exit 0
    fi
    [ ! -e "$here/fails" ] || { echo "nri-runc-node-helper: systemd says no" >&2; exit 1; }
    rm -f "$here/loaded"
    [ ! -e "$here/root/etc/docker/daemon.json" ] || cp "$here/root/etc/docker/daemon.json" "$here/loaded" ;;
api)
    case "$2" in
    PATCH) cat >>"$here/calls"; echo >>"$here/calls" ;;
    GET) [ -e "$here/daemonset" ] || exit 4; cat "$here/daemonset" ;;
    esac ;;
esac
"#;

/// The program under test without debug sections, because it is copied and compared many times.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_nri-runc"));
        let small = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-runc-stripped");
        let mut strip = std::process::Command::new("strip");
        let stripped = strip.arg("-o").arg(&small).arg(built).status();
        if stripped.is_ok_and(|status| status.success()) { small } else { built.to_owned() }
    })
}

/// A node with Docker, and the helper beside it.
pub(super) struct DockerNode {
    place: Place,
}

impl DockerNode {
    pub(super) fn new() -> Self {
        let place = Place::new();
        let node = Self { place };
        let root = node.root();
        for folder in ["etc/docker", "run", "proc/7", "opt", "var/lib"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let line = "dockerd\0-H\0unix:///run/docker.sock\0";
        node.write("root/proc/7/cmdline", line);
        node.write("root/etc/docker/daemon.json", "{\n  \"debug\": true\n}\n");
        test_support::program::put(&node.path("helper"), HELPER.as_bytes());
        answer_info(&root.join("run/docker.sock"), node.path("loaded"));
        node
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.root().join(name)
    }

    pub(super) fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
    }

    /// The text files of the node.
    fn tree(&self) -> Tree {
        let program = self.root().join(PROGRAM);
        let moved = self.path("program");
        let is_there = std::fs::rename(&program, &moved).is_ok();
        let _socket = std::fs::rename(self.root().join("run/docker.sock"), self.path("socket"));
        let mut tree = tree(&self.root());
        std::fs::rename(self.path("socket"), self.root().join("run/docker.sock")).unwrap();
        if is_there {
            std::fs::rename(&moved, &program).unwrap();
            tree.insert(PROGRAM.to_owned(), (0o755, None));
        }
        tree
    }

    /// The helper's calls since the last check.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _none = std::fs::remove_file(self.path("calls"));
        let root = self.root().display().to_string();
        text.lines().map(|line| line.replace(&root, "")).collect()
    }

    pub(super) fn command(&self, words: &str) -> std::process::Command {
        let mut command = std::process::Command::new(program());
        command.args(["nri", "node", "docker", "--take-over-nri", "--root"]).arg(self.root());
        command.arg("--helper").arg(self.path("helper")).args(["--node-name", "one"]);
        command.args(words.split_whitespace());
        command
    }

    fn once(&self, words: &str) -> Output {
        self.command(words).arg("--once").output().unwrap()
    }

    pub(super) fn start(&self, words: &str) -> Running {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Started(command.spawn().unwrap());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _nobody_waits = sender.send(line);
            }
        });
        Running { child, lines, seen: Vec::new() }
    }
}

/// `node` as a pod runs it.
pub(super) struct Running {
    pub(super) child: Started,
    lines: Receiver<String>,
    pub(super) seen: Vec<String>,
}

impl Running {
    #[track_caller]
    pub(super) fn prints(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LINE_WAIT);
            assert!(line.is_ok(), "it never said {what:?}, but {:#?}", self.seen);
            let line = line.unwrap();
            self.seen.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }

    fn signal(&self) {
        self.child.signal(Signal::SIGTERM);
    }

    /// Waits for the end after a signal; returns the exit code.
    #[track_caller]
    pub(super) fn ends(&mut self) -> Option<i32> {
        self.signal();
        while let Ok(line) = self.lines.recv_timeout(LINE_WAIT) {
            self.seen.push(line);
        }
        self.child.wait().unwrap().code()
    }
}

/// Serves Docker's `/info`: the runtimes of the file that it has loaded.
fn answer_info(socket: &Path, loaded: PathBuf) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _whole = stream.read(&mut request);
            let text = std::fs::read_to_string(&loaded).unwrap_or_default();
            let file: Value = serde_json::from_str(&text).unwrap_or_default();
            let mut runtimes = file["runtimes"].as_object().cloned().unwrap_or_default();
            runtimes.insert("runc".to_owned(), Value::Null);
            let body = serde_json::json!({"Runtimes": runtimes}).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _gone = stream.write_all(answer.as_bytes());
        }
    });
}

/// The response to a probe.
fn ask(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const RELOAD: &str = "systemd /run/systemd/private reload docker";
const PATCH: &str = "api PATCH /api/v1/nodes/one";
const LABEL: &str = r#"{"metadata":{"labels":{"nri-runc.dev/ready":"true"}}}"#;
const NO_LABEL: &str = r#"{"metadata":{"labels":{"nri-runc.dev/ready":null}}}"#;

#[test]
fn a_node_is_set_up_once_without_a_needless_restart() {
    let node = DockerNode::new();
    let output = node.once("");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(node.calls(), [RELOAD, PATCH, LABEL], "the label comes last");
    let ours = std::fs::read(program()).unwrap();
    assert!(std::fs::read(node.root().join(PROGRAM)).unwrap() == ours, "it is this program");
    let mode = std::fs::metadata(node.root().join(PROGRAM)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    let docker = std::fs::read_to_string(node.root().join(DOCKERS)).unwrap();
    assert!(docker.contains("/opt/nri-runc/bin/nri-runc"), "{docker}");
    let before = node.tree();
    assert!(node.once("").status.success());
    assert_eq!(node.calls(), [PATCH, LABEL], "nothing changed, so nothing is restarted");
    assert_eq!(node.tree(), before);
    // Meanwhile the engine was restarted with another file.
    std::fs::remove_file(node.path("loaded")).unwrap();
    assert!(node.once("").status.success());
    assert_eq!(node.calls().len(), 3, "it is restarted where it does not have the handler");
}

#[test]
fn a_failed_restart_is_retried_and_its_command_printed() {
    let node = DockerNode::new();
    node.write("fails", "");
    let output = node.once("");
    assert_eq!(output.status.code(), Some(1));
    let printed = stderr(&output);
    assert!(
        printed.contains("systemd says no (on this node: systemctl reload docker)"),
        "{printed}"
    );
    assert_eq!(node.calls(), [RELOAD], "no label");
    std::fs::remove_file(node.path("fails")).unwrap();
    assert!(node.once("--unit docker-one --unit docker-two").status.success());
    let calls = node.calls();
    assert!(calls[0].ends_with("docker-one docker-two"), "the files are as they were: {calls:?}");
    assert_eq!(calls[1..], [PATCH, LABEL]);
}

#[test]
fn node_no_restart_fails_until_the_operator_restarts_the_engine() {
    let node = DockerNode::new();
    let output = node.once("--no-restart");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("on this node: systemctl"), "{}", stderr(&output));
    assert!(node.calls().is_empty());
    test_support::program::copy(&node.root().join(DOCKERS), &node.path("loaded"));
    let output = node.once("--no-restart");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(node.calls(), [PATCH, LABEL]);
}

#[test]
fn foreign_files_stay_and_a_mistake_changes_nothing() {
    let node = DockerNode::new();
    node.write("wrong.toml", "on_daemon_failure = \"sometimes\"\n");
    let before = node.tree();
    let wrong = format!("--node-config {}", node.path("wrong.toml").display());
    let output = node.once(&wrong);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("must be one of"), "{}", stderr(&output));
    assert_eq!(node.tree(), before);
    node.write(&format!("root/{PROGRAM}"), "#!/bin/sh\n");
    let output = node.once("");
    assert!(stderr(&output).contains("but node did not install it"), "{}", stderr(&output));
    let there = std::fs::read_to_string(node.root().join(PROGRAM)).unwrap();
    assert_eq!((there.as_str(), node.calls().len()), ("#!/bin/sh\n", 0));
}

#[test]
fn the_node_configuration_follows_its_option() {
    let node = DockerNode::new();
    node.write("one.toml", "[log]\nlevel = \"debug\"\n");
    let words = format!("--node-config {}", node.path("one.toml").display());
    let put = node.root().join("etc/nri-runc/config.d/40-node.toml");
    assert!(node.once(&words).status.success());
    assert_eq!(std::fs::read_to_string(&put).unwrap(), "[log]\nlevel = \"debug\"\n");
    node.calls();
    node.write("one.toml", "[log]\nlevel = \"info\"\n");
    assert!(node.once(&words).status.success());
    assert_eq!(std::fs::read_to_string(&put).unwrap(), "[log]\nlevel = \"info\"\n");
    assert_eq!(node.calls(), [PATCH, LABEL], "the engine reads none of it");
    assert!(node.once("").status.success());
    assert!(!put.exists());
}

#[test]
fn sigterm_removes_everything_and_restores_the_node() {
    let node = DockerNode::new();
    let before = node.tree();
    let mut running = node.start("--uninstall-on-exit");
    running.prints("ready: nri-runc with Docker");
    assert_ne!(node.tree(), before);
    node.calls();
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert_eq!(node.tree(), before, "byte for byte, folders too");
    let calls = node.calls();
    assert_eq!(calls[..2], [PATCH, NO_LABEL], "no pod comes from here on");
    assert_eq!(calls[2..], ["systemd /run/systemd/private restart docker"]);
}

#[test]
fn a_repeated_sigterm_during_a_restart_leaves_no_half_state() {
    let node = DockerNode::new();
    let before = node.tree();
    let mut running = node.start("--uninstall-on-exit");
    running.prints("ready: nri-runc with Docker");
    node.write("terminates", "");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert_eq!(node.tree(), before);
}

#[test]
fn a_deleted_daemonset_uninstalls_and_a_replaced_pod_does_not() {
    let node = DockerNode::new();
    let before = node.tree();
    let words = "--uninstall-on-exit --daemonset kube-system/nri-runc";
    node.write("daemonset", "{\"metadata\": {\"name\": \"nri-runc\"}}");
    let mut running = node.start(words);
    running.prints("ready");
    let installed = node.tree();
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert_eq!(node.tree(), installed, "{:#?}", running.seen);
    let mut running = node.start("");
    running.prints("ready");
    assert_eq!(running.ends(), Some(0));
    assert_eq!(node.tree(), installed, "without the option it stays too");
    let mut running = node.start(words);
    running.prints("ready");
    node.write("daemonset", "{\"metadata\": {\"deletionTimestamp\": \"2026-01-01T00:00:00Z\"}}");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert_eq!(node.tree(), before);
}

#[test]
fn nothing_is_removed_while_a_container_needs_it() {
    let node = DockerNode::new();
    let mut running = node.start("--uninstall-on-exit --removal-wait 1s");
    running.prints("ready");
    let installed = node.tree();
    node.calls();
    let users = "root/var/lib/docker/containers/c0ffee";
    node.write(&format!("{users}/hostconfig.json"), "{\"Runtime\": \"nri-runc\"}");
    let with_user = node.tree();
    assert_eq!(running.ends(), Some(1), "{:#?}", running.seen);
    assert!(running.seen.iter().any(|line| line.contains("still uses")), "{:#?}", running.seen);
    assert_eq!(node.tree(), with_user);
    assert_eq!(node.calls(), [PATCH, NO_LABEL, PATCH, LABEL], "pods may come again");
    // `node` waits for the last container.
    let mut running = node.start("--uninstall-on-exit --removal-wait 60s");
    running.prints("ready");
    running.signal();
    running.prints("waiting: ");
    std::fs::remove_dir_all(node.root().join("var/lib/docker")).unwrap();
    running.prints("the node is as it was");
    assert!(!node.root().join(PROGRAM).exists() && installed.contains_key(PROGRAM));
}

#[test]
fn an_engine_that_cannot_be_restarted_keeps_its_program() {
    let node = DockerNode::new();
    let mut running = node.start("--uninstall-on-exit");
    running.prints("ready");
    node.write("fails", "");
    assert_eq!(running.ends(), Some(1), "{:#?}", running.seen);
    assert!(node.root().join(PROGRAM).exists());
    let last = running.seen.last().unwrap();
    assert!(last.contains("on this node: systemctl restart docker"), "{last}");
    // The next attempt completes the removal.
    std::fs::remove_file(node.path("fails")).unwrap();
    let mut running = node.start("--uninstall-on-exit");
    running.prints("ready");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert!(!node.root().join(PROGRAM).exists());
}

#[test]
fn edited_files_on_the_node_are_kept() {
    let node = DockerNode::new();
    node.write("one.toml", "[log]\nlevel = \"debug\"\n");
    let words = format!("--uninstall-on-exit --node-config {}", node.path("one.toml").display());
    let mut running = node.start(&words);
    running.prints("ready");
    let put = "root/etc/nri-runc/config.d/40-node.toml";
    node.write(put, "# mine\n");
    assert_eq!(running.ends(), Some(0));
    let kept = running.seen.iter().any(|line| line.contains("kept (locally modified): /etc"));
    assert!(kept, "{:#?}", running.seen);
    assert_eq!(std::fs::read_to_string(node.path(put)).unwrap(), "# mine\n");
}

#[test]
fn probes_distinguish_a_ready_node() {
    let node = DockerNode::new();
    node.write("fails", "");
    let mut running = node.start("--listen 127.0.0.1:0");
    let line = running.prints("probes are answered at ");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    running.prints("systemd says no");
    let unready = ask(&address, "/readyz");
    assert!(
        unready.starts_with("HTTP/1.1 503") && unready.contains("systemd says no"),
        "{unready}"
    );
    assert!(ask(&address, "/healthz").starts_with("HTTP/1.1 200"));
    drop(running);
    std::fs::remove_file(node.path("fails")).unwrap();
    let mut running = node.start("--listen 127.0.0.1:0");
    let line = running.prints("probes are answered at ");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    running.prints("ready: ");
    // The line is printed a moment before.
    wait_until("it is ready", || ask(&address, "/readyz").starts_with("HTTP/1.1 200"));
}

/// Connections of clients that never finish their request.
const SLOW: usize = 200;
/// The descriptors that they may use, for sixteen connections, and the memory: without a limit of the header each would
/// take 300 KiB.
const MOST_DESCRIPTORS: usize = 17;
const MOST_KIB: u64 = 20 << 10;

#[test]
fn probes_are_answered_despite_slow_clients() {
    let node = DockerNode::new();
    node.write("fails", "");
    let mut running = node.start("--listen 127.0.0.1:0");
    let line = running.prints("probes are answered at ");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    running.prints("systemd says no");
    let proc = PathBuf::from(format!("/proc/{}", running.child.id()));
    let count = |what: &str| std::fs::read_dir(proc.join(what)).unwrap().count();
    let pid = running.child.id();
    let peak = || test_support::in_status(pid, "VmHWM");
    let (descriptors, threads, before) = (count("fd"), count("task"), peak());
    let head = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(300 << 10));
    // A header that is too long is answered, an incomplete one is awaited.
    let slow = |number: usize| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let length = if number.is_multiple_of(2) { head.len() } else { 30 };
        let _as_much_as_it_takes = stream.write(&head.as_bytes()[..length]);
        stream
    };
    let clients: Vec<TcpStream> = (0..SLOW).map(slow).collect();
    assert!(ask(&address, "/healthz").starts_with("HTTP/1.1 200"));
    wait_until("few are open", || count("fd") <= descriptors + MOST_DESCRIPTORS);
    // Each connection ends by itself after a while: the newest has not, so the others were closed to make room.
    let newest = clients.last().unwrap().read(&mut [0; 1]).unwrap_err();
    assert_eq!(newest.kind(), std::io::ErrorKind::WouldBlock, "the newest is served");
    assert_eq!(count("task"), threads);
    assert!(peak() < before + MOST_KIB, "{} KiB, {before} KiB before", peak());
}

#[test]
fn the_manifests_listen_at_the_pods_own_address() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/kubernetes");
    let (mut folders, mut listens) = (vec![folder], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for line in text.lines().filter(|line| line.trim().starts_with("- --listen=")) {
                assert!(line.contains("$(POD_IP)"), "{}: {line}", entry.path().display());
                listens += 1;
            }
        }
    }
    assert_eq!(listens, 8, "the chart, the base, and the overlays with arguments of their own");
}

#[test]
fn an_address_without_a_port_is_refused() {
    let node = DockerNode::new();
    for wrong in ["10.0.0.7", "fd00::7", ":9748"] {
        let output = node.once(&format!("--listen {wrong}"));
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert!(stderr(&output).contains("expected ADDRESS:PORT"), "{}", stderr(&output));
    }
}

#[test]
fn a_running_daemon_reexecs_and_ends_at_the_uninstall() {
    let node = DockerNode::new();
    let run_dir = node.root().join("run/nri-runc");
    let config = format!(
        "run_dir = \"{0}\"\n[nri]\nsocket_path = \"{0}/nri.sock\"\nplugin_path = \"{0}/none\"\n",
        run_dir.display()
    );
    node.write("daemon.toml", &config);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nri-runc"));
    command.args(["nri", "--config"]).arg(node.path("daemon.toml")).arg("daemon");
    let mut daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let socket = run_dir.join("daemon.sock");
    wait_until("the daemon listens", || socket.exists());
    let mut running = node.start("--uninstall-on-exit");
    running.prints("the daemon runs the new program");
    running.prints("ready");
    assert!(matches!(daemon.try_wait(), Ok(None)), "it is the same process");
    let code = running.ends();
    let ended = daemon.try_wait();
    let _if_it_did_not = daemon.kill();
    let _reaped = daemon.wait();
    assert_eq!(code, Some(0), "{:#?}", running.seen);
    assert!(matches!(ended, Ok(Some(_))), "{:#?}", running.seen);
    let left = std::fs::read_dir(&run_dir).map_or(0, Iterator::count);
    assert_eq!(left, 0, "its records and sockets are gone");
}
