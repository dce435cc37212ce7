// SPDX-License-Identifier: Apache-2.0
//! Added time and memory against bare runc, the adaptation against the one in Go, and the waits of an engine's user
//! against the engine's own NRI, measured in the same run, in turns.
//!
//! `make bench` calls it with the release binary and the real runc. It reports ratios and never fails because of
//! one, because the machine may be busy.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a measuring program that stops at the first surprise"
)]

mod beyond;
mod broker;
mod busy;
mod ceiling;
mod chain;
mod cri;
mod growth;
mod known;
mod memory;
mod mover;
mod plugin;
mod report;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

use memory::Memory;
use plugin::Plugins;
use report::Ratio;

/// The allocator of the measured program, which `broker` replaces.
#[global_allocator]
static ALLOCATOR: nri_runc::Allocator = nri_runc::Allocator::new();

const ROUNDS: usize = 60;

/// A private host with a bundle of thirty mounts, as engines write them.
struct Place {
    temp: tempfile::TempDir,
    binary: PathBuf,
    runc: PathBuf,
    daemon: Option<Child>,
}

impl Place {
    fn new(binary: PathBuf, tools: &Path) -> Self {
        let temp = tempfile::tempdir_in(base()).unwrap();
        let place = Self { temp, binary, runc: tools.join("runc"), daemon: None };
        let bin = place.path("bundle/rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        test_support::program::copy(&tools.join("busybox"), &bin.join("sleep"));
        // runc itself needs /proc inside.
        let proc = json!({"destination": "/proc", "type": "proc", "source": "proc"});
        let mounts: Vec<Value> = (0..30)
            .map(|n| json!({"destination": format!("/m{n}"), "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=4k"]}))
            .chain([proc])
            .collect();
        let bundle = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sleep", "1000"], "env": ["PATH=/bin"]},
            "root": {"path": "rootfs"}, "mounts": mounts,
            "linux": {"cgroupsPath": "/nri-runc-bench/c", "namespaces": [{"type": "mount"}, {"type": "pid"}]}
        });
        place.write("bundle/config.json", &bundle.to_string());
        place.configure(&place.runc);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        nri_runc::testing::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    fn configure(&self, runtime: &Path) {
        let dir = self.temp.path().display();
        self.write("config.toml", &format!(
            "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\nautostart = false\n[nri]\nsocket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/none\"\n",
            runtime.display()
        ));
    }

    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env("NRI_RUNC_CONFIG", self.path("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.args(["--root".as_ref(), self.path("root").as_os_str()]).args(words);
        command
    }

    /// Wall time in milliseconds.
    fn timed(&self, program: &Path, words: &[&str]) -> f64 {
        wall(self.command(program, words))
    }

    /// Wall and processor time in milliseconds, including the daemon's work, even after the verb.
    fn timed_with_daemon(&self, program: &Path, words: &[&str]) -> (f64, f64) {
        let before = self.daemon_spent();
        let begun = Instant::now();
        let usage = run(&mut self.command(program, words));
        let wall = begun.elapsed().as_secs_f64() * 1e3;
        assert!(usage.succeeded, "{} {words:?} failed", program.display());
        std::thread::sleep(Duration::from_millis(5));
        (wall, usage.cpu + self.daemon_spent() - before)
    }

    fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Child::id)
    }

    /// Processor time of all its threads, in milliseconds.
    fn daemon_spent(&self) -> f64 {
        let pid = Pid::from_raw(i32::try_from(self.daemon_pid()).unwrap());
        let spent = clock_gettime(clock_getcpuclockid(pid).unwrap()).unwrap();
        Duration::from(spent).as_secs_f64() * 1e3
    }

    /// Processor time of its first thread, which runs the loop, in milliseconds.
    fn loop_spent(&self) -> f64 {
        let text =
            std::fs::read_to_string(format!("/proc/{}/schedstat", self.daemon_pid())).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
    }

    fn start_daemon(&mut self) {
        let mut command = Command::new(&self.binary);
        command.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", self.path("config.toml"));
        self.daemon = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        for socket in ["run/daemon.sock", "nri.sock"] {
            while UnixStream::connect(self.path(socket)).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn stop_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Waits until `count` plugins are synchronized.
    fn await_plugins(&self, count: usize) {
        let is_there = |row: &Value| row["state"] == "synchronized";
        loop {
            let mut command = self.admin(&["nri", "plugins", "--json"]);
            let rows: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
            if rows
                .as_array()
                .is_some_and(|rows| rows.iter().filter(|r| is_there(r)).count() == count)
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn admin(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).env("NRI_RUNC_CONFIG", self.path("config.toml"));
        command
    }

    /// Compares wrapped and bare calls, in turns: wall time, and processor time, which depends less on the machine's
    /// load. Writing the bundle is not measured.
    fn create(&self, names: [&'static str; 2], what: &'static str) -> [Ratio; 2] {
        let bundle = self.path("bundle").display().to_string();
        let words = ["create", "--bundle", &bundle, "c"];
        self.in_pairs(names, [what, "runc create"], &words, |program| {
            self.timed(program, &["delete", "--force", "c"]);
        })
    }

    /// A verb wrapped and bare, in turns, with the following steps of each.
    fn in_pairs(
        &self,
        names: [&'static str; 2],
        [what, baseline]: [&'static str; 2],
        words: &[&str],
        after: impl Fn(&Path),
    ) -> [Ratio; 2] {
        let (mut wall, mut cpu) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mut pair = [(0.0, 0.0); 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let program = if which == 0 { &self.runc } else { &self.binary };
                pair[which] = self.timed_with_daemon(program, words);
                after(program);
            }
            wall.push((pair[1].0, pair[0].0));
            cpu.push((pair[1].1, pair[0].1));
        }
        let spent = "the same, processor time of wrapper, runtime and daemon";
        [time(names[0], what, baseline, wall), time(names[1], spent, baseline, cpu)]
    }

    /// A verb without events, against the runtime alone and against a program that only executes it.
    fn passthrough(&self, floor: Option<&Path>) -> Vec<Ratio> {
        let bundle = self.path("bundle").display().to_string();
        self.timed(&self.runc, &["create", "--bundle", &bundle, "c"]);
        let wrapper = || self.command(&self.binary, &["state", "c"]);
        let bare = || self.command(&self.runc, &["state", "c"]);
        let what = "`state` passed through, wall time";
        let mut ratios = vec![time("passthrough", what, "runc state", in_turns(wrapper, bare))];
        if let Some(floor) = floor {
            let least = || {
                let mut command = Command::new(floor);
                command.arg(&self.runc).args(bare().get_args());
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                command
            };
            let baseline = "a static C program that is execve alone";
            ratios.push(time("passthrough_floor", what, baseline, in_turns(wrapper, least)));
        }
        self.timed(&self.runc, &["delete", "--force", "c"]);
        ratios
    }
}

/// Wall times of two commands, in turns.
fn in_turns(ours: impl Fn() -> Command, theirs: impl Fn() -> Command) -> Vec<(f64, f64)> {
    let round = |round| {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            pair[which] = wall(if which == 0 { theirs() } else { ours() });
        }
        (pair[1], pair[0])
    };
    (0..ROUNDS * 3).map(round).collect()
}

/// Wall time in milliseconds.
fn wall(mut command: Command) -> f64 {
    let begun = Instant::now();
    assert!(run(&mut command).succeeded, "{command:?} failed");
    begun.elapsed().as_secs_f64() * 1e3
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ended = daemon.kill();
            let _reaped = daemon.wait();
        }
    }
}

/// The resource usage of a process.
struct Usage {
    succeeded: bool,
    /// Processor time in milliseconds, of its children too.
    cpu: f64,
}

#[expect(
    unsafe_code,
    clippy::zombie_processes,
    reason = "wait4 is the one call that tells what a single child has used"
)]
fn run(command: &mut Command) -> Usage {
    let child = command.spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value.
    let mut usage: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals; the child is ours and was not waited for.
    unsafe { nix::libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let millis = |time: nix::libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    let cpu = millis(usage.ru_utime) + millis(usage.ru_stime);
    Usage { succeeded: status == 0, cpu }
}

fn time(
    name: &'static str,
    what: &'static str,
    baseline: &'static str,
    rounds: Vec<(f64, f64)>,
) -> Ratio {
    Ratio { name, what, baseline, rises: false, unit: "ms", rounds }
}

/// Resident memory, which also depends on the page cache, and private pages, which are compared with the limit.
fn memory(
    names: [&'static str; 2],
    what: [&'static str; 2],
    baseline: &'static str,
    ours: Memory,
    theirs: Memory,
) -> [Ratio; 2] {
    let ratio = |at: usize, ours, theirs| Ratio {
        name: names[at],
        what: what[at],
        baseline,
        rises: false,
        unit: "KiB",
        rounds: vec![(ours, theirs)],
    };
    [ratio(0, ours.resident, theirs.resident), ratio(1, ours.private, theirs.private)]
}

/// Returns a folder in memory below /run, where engines keep bundles. If /run is not in memory, as in containers, a
/// separate file system is mounted there, which scripts/bench.sh removes.
fn base() -> &'static Path {
    let (run, own) = (Path::new("/run"), Path::new("/run/nri-runc-bench"));
    let is_memory = |path: &Path| {
        let found = nix::sys::statfs::statfs(path);
        found.is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC)
    };
    if is_memory(run) {
        return run;
    }
    std::fs::create_dir_all(own).unwrap();
    let none: Option<&str> = None;
    if !is_memory(own) {
        nix::mount::mount(Some("tmpfs"), own, Some("tmpfs"), nix::mount::MsFlags::empty(), none)
            .unwrap();
    }
    own
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("plugin") => plugin::main(&words[2..]),
        Some("exec-plugin") => plugin::exec_main(&words[2..]),
        Some("policy") => cri::plugin::main(&words[2..]),
        Some("broker") => broker::main(&words[2..]),
        _ => measure(),
    }
}

/// Whether this part is measured: all are, unless `NRI_RUNC_BENCH` names some.
fn is_wanted(part: &str) -> bool {
    let names = std::env::var("NRI_RUNC_BENCH").unwrap_or_default();
    names.is_empty() || names.split(',').any(|name| name == part)
}

fn verbs(place: &Place) -> Vec<Ratio> {
    let floor = std::env::var_os("NRI_RUNC_FLOOR").map(PathBuf::from);
    let mut ratios = place.passthrough(floor.as_deref());
    let names = ["create_no_plugin", "create_no_plugin_cpu"];
    ratios.extend(place.create(names, "`create`, daemon without plugins, wall time"));
    {
        let _one = Plugins::start(&place.path("nri.sock"), 1, Duration::ZERO);
        place.await_plugins(1);
        let what = "`create`, one plugin sets a variable and an annotation, wall time";
        let names = ["create_one_plugin", "create_one_plugin_cpu"];
        ratios.extend(place.create(names, what));
    }
    let names = ["wrapper_rss", "wrapper_private"];
    let what = ["resident memory of `create` before exec", "the same, private pages"];
    let theirs = place.at_exit(&place.runc, &["--version"]);
    ratios.extend(memory(names, what, "runc --version at its end", place.before_exec(), theirs));
    ratios
}

/// The same create with one plugin and a hundred rules, of which only the last matches the pod.
fn rules(place: &mut Place) -> [Ratio; 2] {
    let mut ruled = String::new();
    for number in 0..99 {
        ruled.push_str(&format!(
            "[[rule]]\nname = \"r{number}\"\nnamespaces = [\"tenant-{number}-*\"]\nlabels = \
             [\"app=web*\"]\nplugins = [\"1*\", \"0*\"]\ndeny = [\"OciHooks\", \"Mounts\"]\n"
        ));
    }
    ruled.push_str("[[rule]]\nname = \"last\"\ndeny = [\"OciHooks\"]\n");
    beyond::with(place, &ruled, |place| {
        let _one = beyond::one(place);
        let what = "`create`, one plugin and a hundred rules, wall time";
        place.create(["create_hundred_rules", "create_hundred_rules_cpu"], what)
    })
}

/// The cost of a hundred rules in a create with one plugin, if both were measured.
fn rules_alone(ratios: &[Ratio]) -> Option<Ratio> {
    let of = |name: &str| ratios.iter().find(|ratio| ratio.name == name);
    let (many, none) = (of("create_hundred_rules_cpu")?, of("create_one_plugin_cpu")?);
    let rounds = many.each().zip(none.each()).collect();
    let what = "processor time of a create with a hundred rules, each over runc's";
    let ratio = time("rules_over_one_plugin_cpu", what, "without rules", rounds);
    Some(Ratio { unit: "", ..ratio })
}

fn measure() {
    let (Some(binary), Some(tools)) =
        (std::env::var_os("NRI_RUNC_BINARY"), std::env::var_os("NRI_RUNC_TOOLS"))
    else {
        println!("skipped: run it by `make bench`, which sets NRI_RUNC_BINARY and NRI_RUNC_TOOLS");
        return;
    };
    let go = std::env::var_os("NRI_RUNC_GO_ADAPTATION");
    let binary = PathBuf::from(binary);
    if std::env::var_os("NRI_RUNC_GROWTH").is_some() {
        let go = go.as_deref().map(Path::new);
        return growth::measure(&binary, Path::new(&tools), go, is_wanted);
    }
    let mut place = Place::new(binary.clone(), Path::new(&tools));
    place.start_daemon();
    let mut ratios = Vec::new();
    if is_wanted("verbs") {
        ratios.extend(verbs(&place));
    }
    if is_wanted("rules") {
        ratios.extend(rules(&mut place));
    }
    if is_wanted("beyond") {
        ratios.extend(beyond::measure(&mut place));
    }
    if is_wanted("update_other") {
        ratios.push(known::update_other(&place));
    }
    if is_wanted("create_during_updates") {
        ratios.extend(busy::during_updates(&place));
    }
    if is_wanted("known") {
        ratios.extend(known::beside_many(&binary, Path::new(&tools)));
    }
    if let Some(go) = go.filter(|_| is_wanted("go")) {
        ratios.push(known::synchronize(Path::new(&go), place.temp.path()));
        let _ten = Plugins::start(&place.path("nri.sock"), 10, Duration::ZERO);
        place.await_plugins(10);
        let daemon = Memory::of(place.daemon_pid());
        let (chain, theirs) = chain::measure(Path::new(&go), place.temp.path());
        ratios.extend(chain);
        let names = ["daemon_rss", "daemon_private"];
        let what = ["resident memory after load, 10 plugins", "the same, private pages"];
        ratios.extend(memory(names, what, "the Go adaptation v0.12.5", daemon, theirs));
    }
    drop(place);
    if is_wanted("cri") {
        match cri::measure(&binary, Path::new(&tools)) {
            Ok(more) => ratios.extend(more),
            Err(why) => println!("skipped: {}: {why}", cri::NAMES.join(", ")),
        }
    }
    ratios.extend(rules_alone(&ratios));
    report::print_results(&ratios, &base().display().to_string());
}
