// SPDX-License-Identifier: Apache-2.0
//! Each socket, pipe and file that the daemon reads or writes has a peer that never reads, never writes,
//! writes one byte a second, or sends as much as is permitted. No clock is used: a trace shows that the
//! thread of the daemon's loop makes no call that could block on an object of another process (D53), and
//! an operator's request is answered between any two events. The slowest answer is printed. `SLOW=all`
//! (`make soak`) runs all cases; `SLOW=SEED`, or the day, selects a sample; a word selects the cases
//! with that word in their name.

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

/// Number of cases in `make test`.
const SAMPLE: usize = 4;

/// Time for an answer after which the daemon is considered blocked.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// A peer and its behaviour, in words, and a daemon with this peer.
type Row = (&'static str, fn(PathBuf) -> Option<Place>);

fn cases() -> Vec<Row> {
    let (by_files, by_peers) = ([files::CASES, server::CASES], [plugins::CASES, readers::CASES]);
    let by_others = [runtime::CASES, engine::CASES];
    [&[listeners::CASES][..], &by_files, &by_peers, &by_others].concat().concat()
}

/// A traced daemon, and its peers.
struct Place {
    host: TestHost,
    pid: i32,
    descriptors: BTreeMap<i32, bool>,
    tracer: Option<Attached>,
    longest: Duration,
    beats: usize,
    /// Objects that must stay open.
    kept: Vec<Box<dyn Any>>,
    known: trace::Known,
}

/// The files of a host that its operator or service manager chooses, and the runtime's state below
/// `root` (`docs/threat-model.md` has the reason).
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

    /// A traced daemon that may not respond yet.
    fn traced(host: TestHost, pid: i32, tracer: Attached) -> Self {
        let mut own: Vec<PathBuf> = OWN.iter().map(|name| host.path(name)).collect();
        // The plugin socket before its rename.
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

    /// Sends an operator's request, which must be answered now; returns the answer.
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

    /// Runs the lifecycle of a container, while an operator's requests are answered.
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

    /// Checks that operators are answered during a slow operation.
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

    /// Ends the trace; returns the blocking calls of the loop's thread, and the number of its calls.
    fn end(&mut self) -> (Vec<String>, usize) {
        let log = self.tracer.take().unwrap().detach();
        let calls = trace::calls(&log, self.pid);
        (trace::blocking(&calls, self.pid, &mut self.descriptors, &self.known), calls.len())
    }

    /// Writes a file of this host, and creates its folder.
    fn put(&self, name: &str, text: &str) {
        put(&self.host, name, text);
    }
}

fn put(host: &TestHost, name: &str, text: &str) {
    std::fs::create_dir_all(host.path(name).parent().unwrap()).unwrap();
    host.write(name, text);
}

/// Sends a request as `status` does, without reading any configuration.
fn status(host: &TestHost) -> Option<Value> {
    serde_json::from_str(&ask(host, "{\"verb\":\"status\"}")?.ok()?).ok()
}

/// The answer to an operator's request, or the reason of a refusal.
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

/// All cases, or a sample: another one every day, the same for the same seed.
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
    // Cases at equal distances are of different kinds, because similar ones are adjacent in the
    // list.
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
        // In a separate thread, because a case may need a mount namespace.
        if std::thread::spawn(move || judge(name, run(strace))).join().is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "SLOW='NAME' repeats one: {failed:#?}");
}
