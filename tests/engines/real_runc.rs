// SPDX-License-Identifier: Apache-2.0
//! The real runc, directly and through nri-runc, on the same containers: for verbs that do not
//! concern nri-runc every byte that an engine sees must be equal, also if they fail. Nothing is
//! contacted, written or started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use test_support::Started;
use test_support::real_runtime::RealRuntime;

/// Calls that succeed. Several in one line run one after the other, on the results of the earlier
/// ones. `@` is a private folder; containers: `live` runs, `made` was created, `dead` has ended.
/// The working directory is `@/scratch`, empty before each line.
const FINE: &[&[&[&str]]] = &[
    &[&[]],
    &[&["--version"]],
    &[&["-v"]],
    &[&["--help"]],
    &[&["help"]],
    &[&["h", "state"]],
    &[&["help", "create"]],
    &[&["state", "--help"]],
    &[&["create", "--help"]],
    &[&["run", "-h"]],
    &[&["update", "--help", "live"]],
    &[&["features"]],
    &[&["state", "live"]],
    &[&["state", "made"]],
    &[&["state", "dead"]],
    &[&["list"]],
    &[&["list", "-q"]],
    &[&["list", "--format", "json"]],
    &[&["ps", "live"]],
    &[&["ps", "--format", "json", "live"]],
    &[&["events", "--stats", "live"]],
    &[&["spec"]],
    &[&["spec", "--rootless", "--bundle", "@/scratch"]],
    &[&["exec", "live", "true"]],
    &[&["exec", "live", "cat"]],
    &[&["exec", "--env", "B=2", "--cwd", "/proc", "live", "sh", "-c", "pwd; env; echo $0 >&2"]],
    &[&["kill", "live", "CONT"]],
    &[&["kill", "--all", "live", "SIGCONT"]],
    &[&["pause", "live"], &["state", "live"], &["resume", "live"], &["state", "live"]],
];

/// Calls that fail, at least the last of each line.
const FAILING: &[&[&[&str]]] = &[
    &[&["no-such-verb"]],
    &[&["--no-such-flag"]],
    &[&["--no-such-flag", "state", "live"]],
    &[&["state", "--no-such-flag", "live"]],
    &[&["state"]],
    &[&["state", "live", "made"]],
    &[&["state", "no-such-id"]],
    &[&["state", ""]],
    &[&["state", "../live"]],
    &[&["--root", "/dev/null/x", "state", "live"]],
    &[&["--root"]],
    &[&["list", "--format", "xml"]],
    &[&["ps", "no-such-id"]],
    &[&["ps", "--format", "xml", "live"]],
    &[&["events", "--stats", "no-such-id"]],
    &[&["events", "--interval", "0s", "live"]],
    &[&["events", "--stats", "dead"]],
    &[&["spec"], &["spec"]],
    &[&["spec", "--bundle", "@/no-such-folder"]],
    &[&["exec", "live"]],
    &[&["exec", "live", "sh", "-c", "echo out; echo err >&2; exit 7"]],
    &[&["exec", "live", "no-such-program"]],
    &[&["exec", "--process", "@/no-such-file", "live"]],
    &[&["exec", "dead", "true"]],
    &[&["exec", "no-such-id", "true"]],
    &[&["kill"]],
    &[&["kill", "live", "NO-SUCH-SIGNAL"]],
    &[&["kill", "dead", "KILL"]],
    &[&["kill", "no-such-id", "9"]],
    &[&["pause", "live"], &["exec", "live", "true"], &["resume", "live"], &["resume", "live"]],
    &[&["pause", "dead"]],
    &[&["resume", "made"]],
    &[&["checkpoint", "no-such-id"]],
    &[&["--criu", "/no-such-criu", "checkpoint", "--image-path", "@/scratch", "live"]],
    &[&["create"]],
    &[&["run"]],
    &[&["start"]],
    &[&["update"]],
    &[&["delete"]],
    &[&["restore"]],
    &[&["create", "--bundle", "@/no-such-folder", "fresh"]],
    &[&["run", "--bundle", "@/no-such-folder", "fresh"]],
    &[&["create", "fresh"]],
    &[&["run", "--detach", "fresh"]],
];

/// The ways in which an engine requests the runtime's log.
const LOGS: [&[&str]; 3] = [&[], &["--log", "@/log"], &["--log", "@/log", "--log-format", "json"]];

/// Everything that an engine sees of one call.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    call: Vec<String>,
    code: Option<i32>,
    stdout: String,
    stderr: String,
    log: String,
    scratch: BTreeMap<PathBuf, Vec<u8>>,
}

struct Place {
    real: RealRuntime,
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Option<Self> {
        let temp = tempfile::tempdir().unwrap();
        let place = Self { real: RealRuntime::new(temp.path())?, temp };
        let dir = place.temp.path().display();
        let text = format!(
            "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\n[nri]\nsocket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n",
            place.real.runc().display()
        );
        place.write("config.toml", &text);
        place.write("input", "from standard input\n");
        for (id, args) in
            [("live", ["sleep", "1000"]), ("made", ["sleep", "1000"]), ("dead", ["sleep", "0"])]
        {
            std::fs::create_dir(place.path(id)).unwrap();
            let document = place.real.document(id, &args);
            place.write(&format!("{id}/config.json"), &document.to_string());
            place.direct(&["create", "--bundle", &format!("@/{id}"), id]);
        }
        place.direct(&["start", "live"]);
        place.direct(&["start", "dead"]);
        place.until("a container has ended", || {
            place.direct(&["state", "dead"]).stdout.contains("stopped")
        });
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        nri_runc::testing::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline, "waited too long until {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes a call of the real runc, which must succeed.
    fn direct(&self, words: &[&str]) -> Seen {
        let seen = self.run(self.real.runc(), &[], words);
        assert_eq!(seen.code, Some(0), "{seen:?}");
        seen
    }

    /// Output goes through files, because a container may keep a pipe open.
    fn run(&self, program: &Path, log: &[&str], words: &[&str]) -> Seen {
        let _gone = std::fs::remove_file(self.path("log"));
        let mut options = std::fs::OpenOptions::new();
        let output = options.write(true).create(true).truncate(true);
        let root = ["--root", "@/root"];
        // Words that begin with a global flag or are none keep their place; `root` comes first.
        let words = log.iter().chain(root.iter()).chain(words);
        let dir = self.temp.path().display().to_string();
        let call: Vec<String> = words.map(|word| word.replace('@', &dir)).collect();
        let scratch = self.path("scratch");
        std::fs::create_dir_all(&scratch).unwrap();
        let status = command(program)
            .args(&call)
            .current_dir(&scratch)
            .env("NRI_RUNC_CONFIG", self.path("config.toml"))
            .stdin(std::fs::File::open(self.path("input")).unwrap())
            .stdout(output.open(self.path("stdout")).unwrap())
            .stderr(output.open(self.path("stderr")).unwrap())
            .status()
            .unwrap();
        let files = std::fs::read_dir(&scratch).unwrap().flatten().map(|entry| entry.path());
        Seen {
            code: status.code(),
            stdout: normal(&call, &self.read("stdout")),
            stderr: normal(&call, &self.read("stderr")),
            log: normal(&call, &self.read("log")),
            scratch: files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect(),
            call,
        }
    }

    /// Runs one line of the tables.
    fn line(&self, program: &Path, log: &[&str], calls: &[&[&str]]) -> Vec<Seen> {
        let _empty = std::fs::remove_dir_all(self.path("scratch"));
        calls.iter().map(|words| self.run(program, log, words)).collect()
    }

    /// Whether an nri-runc process runs beside the containers: a daemon has this test's
    /// configuration in its environment.
    fn has_daemon(&self) -> bool {
        let mark = self.path("config.toml").display().to_string();
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
            words.contains("daemon") && String::from_utf8_lossy(&read("environ")).contains(&mark)
        })
    }
}

/// Removes the differences between two calls of the same program: the time of a log entry, and the
/// counters of a running container.
fn normal(call: &[String], text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let mut line = line.to_owned();
        for (start, end) in [("time=\"", "\""), ("\"time\":\"", "\"")] {
            if let Some(at) = line.find(start).map(|at| at + start.len())
                && let Some(length) = line[at..].find(end)
            {
                line.replace_range(at..at + length, "TIME");
            }
        }
        if call.iter().any(|word| word == "events") && line.starts_with("{\"type\":\"stats\"") {
            line =
                line.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn command(program: &Path) -> Command {
    Command::new(program)
}

fn ours() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_nri-runc"))
}

#[test]
fn an_engine_cannot_distinguish_nri_runc_from_runc() {
    let Some(place) = Place::new() else { return };
    let (mut fine, mut failing) = (0, 0);
    for calls in FINE.iter().chain(FAILING) {
        for log in LOGS {
            let direct = place.line(place.real.runc(), log, calls);
            let through = place.line(ours(), log, calls);
            for (direct, through) in direct.iter().zip(&through) {
                assert_eq!(direct, through);
            }
            let codes: Vec<Option<i32>> = direct.iter().map(|seen| seen.code).collect();
            let has_succeeded = codes.iter().all(|code| *code == Some(0));
            assert_eq!(has_succeeded, FINE.contains(calls), "{calls:?} {codes:?}");
        }
        if FINE.contains(calls) { fine += 1 } else { failing += 1 }
    }
    assert!(fine >= 15 && failing >= 15, "{fine} {failing}");
    assert!(!place.path("run").exists(), "a run directory was made");
    assert!(!place.path("nri.sock").exists(), "a socket was made");
    assert!(!place.has_daemon(), "a daemon was started");
}

/// Calls of verbs that concern nri-runc, which the runtime itself refuses.
const REFUSED_BY_RUNC: &[&[&[&str]]] = &[
    &[&["start", "no-such-id"]],
    &[&["start", "live"]],
    &[&["start", "dead"]],
    &[&["delete", "no-such-id"]],
    &[&["delete", "live"]],
    &[&["update", "--memory", "1000000000", "no-such-id"]],
    &[&["update", "--memory", "much", "live"]],
    &[&["update", "--resources", "@/no-such-file", "live"]],
    &[&["create", "--bundle", "@/live", "live"]],
    &[&["create", "--bundle", "@/odd", "no/id"]],
    &[&["create", "--bundle", "@/odd", "--no-such-flag", "fresh"]],
    &[&["create", "--bundle", "@/odd", "--preserve-fds", "many", "fresh"]],
    &[&["create", "--bundle", "@/odd", "fresh", "and-another"]],
    &[&["create", "--bundle", "@/odd", "--console-socket", "@/input", "fresh"]],
    &[&["run", "--bundle", "@/live", "live"]],
    &[&["run", "--bundle", "@/odd", "fresh"]],
];

fn start_daemon(place: &Place) -> Started {
    let mut command = command(ours());
    command.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", place.path("config.toml"));
    let daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    place.until("the daemon listens", || place.path("run/daemon.sock").exists());
    Started(daemon)
}

#[test]
fn commands_without_events_send_the_daemon_no_request() {
    let Some(place) = Place::new() else { return };
    let _daemon = start_daemon(&place);
    assert!(place.has_daemon());
    for calls in FINE.iter().chain(FAILING) {
        place.line(ours(), &[], calls);
    }
    let status = command(ours())
        .args(["nri", "--json", "status"])
        .env("NRI_RUNC_CONFIG", place.path("config.toml"))
        .output()
        .unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["requests"], serde_json::json!({}));
    assert_eq!(status["containers"], 0);
}

#[test]
fn a_refusal_by_runc_has_runcs_message() {
    let Some(place) = Place::new() else { return };
    let _daemon = start_daemon(&place);
    std::fs::create_dir(place.path("odd")).unwrap();
    let odd = place.real.document("fresh", &["no-such-program"]);
    place.write("odd/config.json", &odd.to_string());
    for calls in REFUSED_BY_RUNC {
        for log in LOGS {
            let direct = place.line(place.real.runc(), log, calls);
            let through = place.line(ours(), log, calls);
            assert_ne!(direct[0].code, Some(0), "{direct:?}");
            assert_eq!(direct, through);
        }
    }
    // None of them has changed a container.
    for (id, status) in [("live", "running"), ("made", "created"), ("dead", "stopped")] {
        assert!(place.direct(&["state", id]).stdout.contains(status), "{id}");
    }
}

#[test]
fn only_times_and_counters_are_normalized_before_comparison() {
    let text = "time=\"2026-01-01T00:00:00Z\" level=error msg=\"no 5\"";
    assert_eq!(normal(&[], text), "time=\"TIME\" level=error msg=\"no 5\"");
    let json = "{\"level\":\"error\",\"msg\":\"no 5\",\"time\":\"2026\"}";
    assert_eq!(normal(&[], json), "{\"level\":\"error\",\"msg\":\"no 5\",\"time\":\"TIME\"}");
    let stats = "{\"type\":\"stats\",\"id\":\"live\",\"data\":{\"cpu\":12}}";
    assert_eq!(normal(&["state".to_owned()], stats), stats);
    assert!(!normal(&["events".to_owned()], stats).contains("12"));
}
