// SPDX-License-Identifier: Apache-2.0
//! Each socket, pipe and file that the daemon reads or writes is given a peer that never reads, never
//! writes, writes one byte a second, or sends as much as is allowed. Without a clock: a trace shows that
//! the thread of the daemon's loop makes no call that could block on something of another process
//! (D53), and an operator's request is answered between any two events. The longest answer is printed.
//! All cases with `SLOW=all` (`make soak`), else a sample by `SLOW=SEED`, or by the day; those with a
//! word in their name with that word.

mod engine;
mod files;
mod listeners;
mod plugins;
mod readers;
mod runtime;
mod server;
mod trace;

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nri_runc::testing::link::{DaemonResponse, PROTOCOL, WrapperRequest, read_frame};
use serde_json::Value;
use test_support::tracer::{self, Attached};
use test_support::{TestHost, skip};

/// How many of the cases `make test` has.
const SAMPLE: usize = 4;

/// How long an answer may take before the daemon counts as stopped.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// A peer and what it does, in words, and a daemon that has met it.
type Row = (&'static str, fn(PathBuf) -> Option<Place>);

fn cases() -> Vec<Row> {
    let (by_files, by_peers) = ([files::CASES, server::CASES], [plugins::CASES, readers::CASES]);
    let by_others = [runtime::CASES, engine::CASES];
    [&[listeners::CASES][..], &by_files, &by_peers, &by_others].concat().concat()
}

/// A daemon whose calls are traced, and its peers.
struct Place {
    host: TestHost,
    pid: i32,
    descriptors: BTreeMap<i32, bool>,
    tracer: Option<Attached>,
    longest: Duration,
    beats: usize,
    /// What must stay open.
    kept: Vec<Box<dyn Any>>,
    known: trace::Known,
}

/// The files of a host that its operator or its service manager chooses, and the runtime's state below
/// `root` (`docs/threat-model.md` says why).
const OWN: [&str; 12] = [
    "run",
    "run.rootless",
    "root",
    "fake",
    "config.toml",
    "nri.sock",
    "metrics.sock",
    "plugins",
    "audit.log",
    "daemon.err",
    "blockio.yaml",
    "rdt.yaml",
];

impl Place {
    /// Traces the daemon that runs on this host.
    fn new(host: TestHost, strace: &std::path::Path) -> Self {
        let pid = i32::try_from(host.admin(&["status"])["pid"].as_i64().unwrap()).unwrap();
        let tracer = Attached::with_descriptors(pid, strace, &host.path("strace"));
        let mut place = Self::traced(host, pid, tracer);
        place.beat();
        place
    }

    /// A daemon that is traced and may not answer yet.
    fn traced(host: TestHost, pid: i32, tracer: Attached) -> Self {
        let mut own: Vec<PathBuf> = OWN.iter().map(|name| host.path(name)).collect();
        // The plugin socket until it has its name.
        own.push(host.path(&format!("nri.new.{pid}")));
        let (root, settings) = (host.path("host"), host.path(""));
        let known = trace::Known { own, root, settings, looks_for_daemons: false };
        Self {
            host,
            known,
            pid,
            descriptors: trace::descriptors(pid),
            tracer: Some(tracer),
            longest: Duration::ZERO,
            beats: 0,
            kept: Vec::new(),
        }
    }

    /// An operator's request, which has to be answered now. Its answer.
    #[track_caller]
    fn beat(&mut self) -> Value {
        let began = Instant::now();
        let answer = status(&self.host).unwrap_or_default();
        assert_eq!(
            answer["pid"],
            self.pid,
            "the daemon stopped answering: {}",
            self.host.read("daemon.err")
        );
        self.longest = self.longest.max(began.elapsed());
        self.beats += 1;
        answer
    }

    /// A container lives from beginning to end, and an operator is answered meanwhile.
    #[track_caller]
    fn lives(&mut self, id: &str) {
        let words: [&[&str]; 4] = [
            &["start", id],
            &["update", "--memory", "1000000", id],
            &["kill", id, "9"],
            &["delete", "--force", id],
        ];
        let output = self.host.create(id);
        assert!(
            output.status.success(),
            "create {id}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.beat();
        for words in words {
            let output = self.host.verb(words);
            assert!(
                output.status.success(),
                "{words:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            self.beat();
        }
    }

    /// Operators are answered while something is done that takes its time.
    #[track_caller]
    fn during<T: Send>(&mut self, work: impl FnOnce(&TestHost) -> T + Send) -> T {
        let (done, is_done) = std::sync::mpsc::channel();
        let host = &self.host;
        let (outcome, beats) = std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let outcome = work(host);
                let _nobody_waits = done.send(());
                outcome
            });
            let mut beats = 0;
            while is_done.recv_timeout(Duration::from_millis(100)).is_err() {
                assert_eq!(status(host).unwrap_or_default()["pid"], self.pid, "no answer");
                beats += 1;
            }
            (working.join().unwrap(), beats)
        });
        self.beats += beats;
        outcome
    }

    /// Ends the trace: the blocking calls of the loop's thread, and how many calls it made.
    fn end(&mut self) -> (Vec<String>, usize) {
        let log = self.tracer.take().unwrap().detach();
        let calls = trace::calls(&log, self.pid);
        (trace::blocking(&calls, self.pid, &mut self.descriptors, &self.known), calls.len())
    }

    /// A file of this host in a folder that is made.
    fn put(&self, name: &str, text: &str) {
        put(&self.host, name, text);
    }
}

fn put(host: &TestHost, name: &str, text: &str) {
    std::fs::create_dir_all(host.path(name).parent().unwrap()).unwrap();
    host.write(name, text);
}

/// Asks the daemon, as `status` does, without reading any configuration.
fn status(host: &TestHost) -> Option<Value> {
    serde_json::from_str(&ask(host, "{\"verb\":\"status\"}")?.ok()?).ok()
}

/// The answer to an operator's request, or why it is refused.
fn ask(host: &TestHost, admin: &str) -> Option<Result<String, String>> {
    let mut stream = UnixStream::connect(host.path("run/daemon.sock")).ok()?;
    stream.set_read_timeout(Some(ANSWER_WAIT)).unwrap();
    stream.set_write_timeout(Some(ANSWER_WAIT)).unwrap();
    stream.write_all(&request(admin)).ok()?;
    loop {
        let answer = DaemonResponse::decode(&read_frame(&mut stream).ok()?).ok()?;
        if let DaemonResponse::Admin(document) = answer {
            return Some(Ok(document));
        } else if let DaemonResponse::Refuse(why) = answer {
            return Some(Err(why));
        } else if answer != DaemonResponse::Heartbeat {
            return None;
        }
    }
}

/// An operator's request as a frame.
fn request(admin: &str) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let admin = admin.to_owned();
    WrapperRequest { protocol: PROTOCOL, version, admin, ..WrapperRequest::default() }.encode()
}

/// All of them, or some: another sample every day, the same for the same seed.
fn chosen(mut cases: Vec<Row>) -> Vec<Row> {
    let wanted = std::env::var("SLOW").unwrap_or_default();
    if wanted == "all" {
        return cases;
    }
    let is_seed = wanted.is_empty() || wanted.bytes().all(|byte| byte.is_ascii_digit());
    if !is_seed {
        cases.retain(|(name, _)| name.contains(&wanted));
        assert!(!cases.is_empty(), "SLOW={wanted}: no case has this in its name");
        return cases;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed: u64 = wanted.parse().unwrap_or(now.as_secs() / 86_400);
    say(&format!("SLOW={seed}"));
    let (count, step) = (cases.len(), cases.len() / SAMPLE);
    let first = usize::try_from(seed).unwrap() % count;
    // Of different kinds: the list has like ones beside each other.
    (0..SAMPLE).filter_map(|number| cases.get((first + number * step) % count).copied()).collect()
}

#[expect(clippy::print_stderr, reason = "which cases were run, and the longest answer")]
fn say(text: &str) {
    eprintln!("{text}");
}

fn judge(name: &str, place: Option<Place>) {
    let Some(mut place) = place else { return };
    place.beat();
    let (blocking, calls) = place.end();
    if calls == 0 {
        return skip::machine_lacks("strace cannot trace here (ptrace is refused)");
    }
    let Place { beats, longest, .. } = &place;
    say(&format!("{name}: {calls} calls, {beats} answers, the longest after {longest:?}"));
    assert!(blocking.is_empty(), "{name}: {blocking:#?}");
}

#[test]
fn no_peer_makes_the_daemons_loop_wait() {
    let Some(strace) = tracer::find() else { return };
    let mut failed = Vec::new();
    for (name, run) in chosen(cases()) {
        let strace = strace.clone();
        // A thread of its own: a case may need a mount namespace.
        if std::thread::spawn(move || judge(name, run(strace))).join().is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "SLOW='NAME' repeats one: {failed:#?}");
}
