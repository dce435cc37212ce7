// SPDX-License-Identifier: Apache-2.0
//! The adaptation of nri-runc against that of NRI v0.12.5 in Go: the same request, plugins of the
//! same program, in turns. Skipped, with the reason, if the Go side was not built.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nri_runc::plugin::api;
use protobuf::Message;

use super::memory::Memory;
use super::plugin::Plugins;
use super::report::Ratio;

const PLUGINS: usize = 10;
const ROUNDS: usize = 30;
/// Creations in a round.
const EVENTS: u32 = 50;
const GO: &str = "the Go adaptation v0.12.5";

/// One side: a process that receives commands line by line.
pub(crate) struct Side {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
    plugins: Plugins,
}

impl Side {
    /// Starts a side with `plugins` plugins, each of which sets this number of variables and works
    /// for this time.
    pub(crate) fn start(
        command: Command,
        dir: &Path,
        name: &str,
        (count, variables, works): (usize, usize, Duration),
    ) -> Self {
        let mut side = Self::alone(command, dir, name, "request");
        let socket = dir.join(format!("{name}.sock"));
        side.plugins = Plugins::setting(&socket, count, works, variables);
        assert_eq!(side.ask(&format!("plugins {count}")), "ok");
        side
    }

    /// Starts a side without plugins, with the request in the file of this name.
    fn alone(mut command: Command, dir: &Path, name: &str, request: &str) -> Self {
        let socket = dir.join(format!("{name}.sock"));
        let _of_an_earlier_one = std::fs::remove_file(&socket);
        command.arg(&socket).arg(dir.join(request));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (say, hear) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        Self { child, say, hear: BufReader::new(hear), plugins: Plugins::default() }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.say, "{line}").unwrap();
        let mut answer = String::new();
        self.hear.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    /// Returns the wall and processor time of one creation, in microseconds.
    pub(crate) fn run(&mut self, events: u32, at: usize) -> (f64, f64) {
        let answer = self.ask(&format!("run {events} {at}"));
        let mut numbers = answer.split(' ').map(|n| n.parse::<f64>().unwrap() / 1000.0);
        let mut next = || numbers.next().unwrap() / f64::from(events);
        (next(), next())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Writes the request to create a container that is like one of Kubernetes (9 KiB).
pub(crate) fn write_request(dir: &Path) {
    let map = |count: usize, what: &str| {
        (0..count)
            .map(|n| (format!("example.org/{what}-{n}"), format!("value {n} of {what}")))
            .collect()
    };
    let mount = |n: usize| api::Mount {
        destination: format!("/var/lib/app/volume-{n}"),
        type_: "bind".to_owned(),
        source: format!("/var/lib/kubelet/pods/6f2c/volumes/kubernetes.io~configmap/v{n}"),
        options: ["rbind", "rprivate", "ro", "nosuid", "nodev"].map(str::to_owned).to_vec(),
        ..api::Mount::default()
    };
    let container = api::Container {
        id: "c".repeat(64),
        pod_sandbox_id: "d".repeat(64),
        name: "app".to_owned(),
        labels: map(8, "label"),
        annotations: map(6, "annotation"),
        args: ["/usr/bin/app", "--config", "/etc/app"].map(str::to_owned).to_vec(),
        env: (0..25).map(|n| format!("SERVICE_{n}_PORT=tcp://10.96.0.{n}:443")).collect(),
        mounts: (0..30).map(mount).collect(),
        ..api::Container::default()
    };
    let pod = api::PodSandbox {
        id: "d".repeat(64),
        name: "app-0".to_owned(),
        namespace: "default".to_owned(),
        uid: "6f2c".to_owned(),
        labels: map(8, "label"),
        annotations: map(12, "annotation"),
        ..api::PodSandbox::default()
    };
    let request = api::CreateContainerRequest {
        pod: Some(pod).into(),
        container: Some(container).into(),
        ..api::CreateContainerRequest::default()
    };
    nri_runc::testing::files::replace(&dir.join("request"), &request.write_to_bytes().unwrap())
        .unwrap();
}

/// Writes the request of a container with few mounts and variables, as most of 10,000 containers
/// have.
pub(crate) fn write_small_request(dir: &Path) {
    write_request(dir);
    let bytes = std::fs::read(dir.join("request")).unwrap();
    let mut request = api::CreateContainerRequest::parse_from_bytes(&bytes).unwrap();
    let container = request.container.mut_or_insert_default();
    container.mounts.truncate(5);
    container.env.truncate(5);
    nri_runc::testing::files::replace(&dir.join("small"), &request.write_to_bytes().unwrap())
        .unwrap();
}

/// Returns the duration of one plugin's synchronization with `count` containers, in milliseconds.
pub(crate) fn synchronized(command: Command, dir: &Path, name: &str, count: usize) -> f64 {
    let mut side = Side::alone(command, dir, &format!("{name}-sync"), "small");
    assert_eq!(side.ask(&format!("state {count}")), "ok");
    side.plugins = Plugins::start(&dir.join(format!("{name}-sync.sock")), 1, Duration::ZERO);
    assert_eq!(side.ask("plugins 1"), "ok");
    side.ask("synchronized").parse::<f64>().unwrap() / 1e6
}

pub(crate) fn ours() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("broker");
    command
}

/// The ratios, and the memory of the Go side after its load.
pub(crate) fn measure(go: &Path, dir: &Path) -> (Vec<Ratio>, Memory) {
    write_request(dir);
    let theirs = || Command::new(go);
    let ten = |works| (PLUGINS, 1, works);
    let (mut wall, mut cpu, mut parallel) = (Vec::new(), Vec::new(), Vec::new());
    let memory = {
        let mut here = Side::start(ours(), dir, "ours", ten(Duration::ZERO));
        let mut there = Side::start(theirs(), dir, "theirs", ten(Duration::ZERO));
        here.run(EVENTS, 1);
        there.run(EVENTS, 1);
        for _ in 0..ROUNDS {
            let (our_wall, our_cpu) = here.run(EVENTS, 1);
            let (their_wall, their_cpu) = there.run(EVENTS, 1);
            wall.push((our_wall, their_wall));
            cpu.push((our_cpu, their_cpu));
        }
        Memory::of(there.child.id())
    };
    {
        let works = Duration::from_millis(1);
        let mut here = Side::start(ours(), dir, "ours-slow", ten(works));
        let mut there = Side::start(theirs(), dir, "theirs-slow", ten(works));
        for _ in 0..5 {
            let per_second = |wall: f64| 1e6 / wall;
            let ours = per_second(here.run(640, 64).0);
            parallel.push((ours, per_second(there.run(64, 64).0)));
        }
    }
    let ratio =
        |name, what, rises, unit, rounds| Ratio { name, what, baseline: GO, rises, unit, rounds };
    let ratios = vec![
        ratio("chain10", "one creation through 10 plugins", false, "us", wall),
        ratio("chain10_cpu", "its processor time, plugins not counted", false, "us", cpu),
        ratio(
            "events_parallel",
            "creations a second, 64 at once, 10 plugins that work 1 ms each",
            true,
            "/s",
            parallel,
        ),
    ];
    (ratios, memory)
}
