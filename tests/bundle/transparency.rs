// SPDX-License-Identifier: Apache-2.0
//! Without plugins the engine cannot distinguish nri-runc from the real runtime: the whole corpus
//! of command lines, run directly and through nri-runc, comparing everything that a process
//! inherits. Nothing is contacted, written or started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nri_runc::testing::argv::{self, Verb};
use test_support::corpus;
use test_support::example::example;

struct Place {
    temp: tempfile::TempDir,
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    record: Vec<u8>,
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Place {
    fn new(more: &str) -> Self {
        let place = Self { temp: tempfile::tempdir().unwrap() };
        test_support::program::copy(&example("recording_runtime"), &place.path("runtime"));
        std::fs::create_dir(place.path("cwd")).unwrap();
        let dir = place.temp.path().display();
        let text = format!(
            "runtime = [\"{dir}/runtime\"]\nrun_dir = \"{dir}/run\"\nautostart = false\n[nri]\nsocket_path = \"{dir}/nri.sock\"\n{more}"
        );
        nri_runc::testing::files::replace(&place.path("config.toml"), text.as_bytes()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Runs `program` with the words of a case, under unusual but legal conditions.
    fn run(&self, program: &Path, words: &[OsString]) -> Seen {
        let _stale = std::fs::remove_file(self.path("runtime.record"));
        let input = std::fs::OpenOptions::new()
            .write(true)
            .read(true)
            .create(true)
            .truncate(true)
            .open(self.path("input"))
            .unwrap();
        let output = command(program)
            .args(words)
            .current_dir(self.path("cwd"))
            .env("NRI_RUNC_CONFIG", self.path("config.toml"))
            .env("NOTIFY_SOCKET", "/nowhere")
            .env("ODD", "a=b=c")
            .stdin(input)
            .stdout(
                std::fs::File::options()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(self.path("out"))
                    .unwrap(),
            )
            .stderr(
                std::fs::File::options()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(self.path("err"))
                    .unwrap(),
            )
            .status()
            .unwrap();
        Seen {
            record: std::fs::read(self.path("runtime.record")).unwrap_or_default(),
            code: output.code(),
            stdout: std::fs::read(self.path("out")).unwrap(),
            stderr: std::fs::read(self.path("err")).unwrap(),
        }
    }
}

/// A blocked and an ignored signal, and an inherited descriptor: all must reach the runtime.
#[expect(unsafe_code, reason = "conditions set between fork and exec")]
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    // SAFETY: the closure runs in the forked child and only makes system calls.
    unsafe { command.pre_exec(odd_conditions) };
    command.stdin(Stdio::null());
    command
}

#[expect(unsafe_code, reason = "changing a signal's disposition, and dup2 onto a fixed number")]
fn odd_conditions() -> std::io::Result<()> {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    set.thread_block()?;
    // SAFETY: a plain system call on numbers.
    let copied = unsafe { nix::libc::dup2(0, 9) };
    nix::errno::Errno::result(copied).map(|_| ()).map_err(Into::into)
}

fn is_ours(words: &[OsString]) -> bool {
    let call = argv::read(words);
    let ours =
        call.verb.creates() || matches!(call.verb, Verb::Start | Verb::Update | Verb::Delete);
    let is_help_by_name = call.id.as_deref().is_some_and(|id| id == "help" || id == "h");
    ours && call.id.is_some() && (is_help_by_name || !call.is_inert)
}

#[track_caller]
fn is_transparent(place: &Place, case: &corpus::Case) {
    let words = case.argv.get(1..).unwrap_or_default();
    let direct = place.run(&place.path("runtime"), words);
    let through = place.run(Path::new(env!("CARGO_BIN_EXE_nri-runc")), words);
    assert!(!direct.record.is_empty(), "the runtime did not run");
    assert_eq!(direct.code, Some(7));
    assert!(
        direct == through,
        "{}:{} differs\ndirect  {}\nthrough {}",
        case.file,
        case.line,
        String::from_utf8_lossy(&direct.record),
        String::from_utf8_lossy(&through.record)
    );
}

#[test]
fn verbs_without_events_reach_the_runtime_byte_for_byte() {
    let place = Place::new("");
    let cases = corpus::load();
    let mut compared = 0;
    for case in cases.iter().filter(|case| !is_ours(&case.argv)) {
        if argv::read(&case.argv).verb != Verb::Nri {
            is_transparent(&place, case);
            compared += 1;
        }
    }
    assert!(compared >= 100, "only {compared} cases were compared");
    assert!(!place.path("run").exists(), "a run directory was made");
}

#[test]
fn while_disabled_every_verb_goes_to_the_runtime() {
    let place = Place::new("disable = true\n");
    let cases = corpus::load();
    let ours = cases.iter().filter(|case| is_ours(&case.argv));
    let compared = ours.map(|case| is_transparent(&place, case)).count();
    assert!(compared >= 50, "only {compared} cases were compared");
    assert!(!place.path("run").exists(), "a run directory was made");
}

#[test]
fn without_a_runtime_there_is_one_clear_line() {
    let place = Place::new("");
    std::fs::remove_file(place.path("runtime")).unwrap();
    let seen = place.run(Path::new(env!("CARGO_BIN_EXE_nri-runc")), &["state".into(), "c".into()]);
    let line = String::from_utf8_lossy(&seen.stderr).into_owned();
    assert_eq!((seen.code, line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.contains("no real runtime was found"), "{line}");
}

#[test]
fn a_broken_configuration_does_not_stop_a_state_verb() {
    let place = Place::new("");
    // The daemon keeps the last good configuration here; the broken file still names the place.
    let good = std::fs::read(place.path("config.toml")).unwrap();
    std::fs::create_dir(place.path("run")).unwrap();
    nri_runc::testing::files::replace(&place.path("run/config.good.toml"), &good).unwrap();
    let broken = format!("run_dir = \"{}\"\n[[[", place.path("run").display());
    nri_runc::testing::files::replace(&place.path("config.toml"), broken.as_bytes()).unwrap();
    let words: Vec<OsString> = vec!["state".into(), "c".into()];
    let through = place.run(Path::new(env!("CARGO_BIN_EXE_nri-runc")), &words);
    assert_eq!((through.code, through.stdout.as_slice()), (Some(7), &b"out\n"[..]));
}
