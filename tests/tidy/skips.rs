// SPDX-License-Identifier: Apache-2.0
//! A skipped test is visible: in the list at the end of `make test`, and under CI as a failure if the
//! setup should have installed what it lacks. Tests of this file run their program again, in which they
//! skip themselves. Also: `make test` runs all of its parts, and finds leftovers of tests.

use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{program, skip};

/// The variable that makes a test skip itself; its value is the reason.
const WHY: &str = "SKIPPED_FOR";

/// Runs a single test of this program, as the harness does.
fn command(test: &str, ci: Option<&str>, list: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("skips::{test}")]).env(WHY, "no such\n\ttool ");
    command.env_remove("CI").env_remove("NRI_RUNC_FRESH");
    command.envs(ci.map(|ci| ("CI", ci))).env("NRI_RUNC_SKIPS", list);
    command
}

/// The list that a skipped test wrote, and whether it passed.
fn listed(test: &str, ci: Option<&str>) -> (String, Output) {
    let temp = tempfile::tempdir().unwrap();
    let list = temp.path().join("list");
    let output = command(test, ci, &list).output().unwrap();
    (std::fs::read_to_string(list).unwrap_or_default(), output)
}

#[test]
fn a_skip_for_the_machine_is_listed_even_under_ci() {
    if let Ok(why) = std::env::var(WHY) {
        return skip::machine_lacks(&why);
    }
    let test = "a_skip_for_the_machine_is_listed_even_under_ci";
    for ci in [None, Some("true")] {
        let (list, output) = listed(test, ci);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(list, format!("tidy::skips::{test}\tno such tool\n"));
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(!shown.contains("no such"), "the harness hides it: {shown}");
    }
}

#[test]
fn a_skip_for_a_tool_is_listed_and_fails_under_ci() {
    if let Ok(why) = std::env::var(WHY) {
        return skip::setup_lacks(&why);
    }
    let test = "a_skip_for_a_tool_is_listed_and_fails_under_ci";
    let (list, output) = listed(test, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(list, format!("tidy::skips::{test}\tno such tool\n"));
    let (list, output) = listed(test, Some("true"));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), list.as_str()), (Some(101), ""), "{shown}");
    assert!(shown.contains("required under CI: no such\n\ttool"), "{shown}");
}

#[test]
fn a_skip_for_go_fails_under_ci_except_on_a_fresh_machine() {
    if let Ok(why) = std::env::var(WHY) {
        return skip::go_lacks(&why);
    }
    let test = "a_skip_for_go_fails_under_ci_except_on_a_fresh_machine";
    assert!(listed(test, None).1.status.success());
    assert_eq!(listed(test, Some("true")).1.status.code(), Some(101));
    let temp = tempfile::tempdir().unwrap();
    let mut fresh = command(test, Some("true"), &temp.path().join("list"));
    assert!(fresh.env("NRI_RUNC_FRESH", "yes").output().unwrap().status.success());
}

/// The output of `scripts/skips.sh` after a command, in a separate folder.
fn after(command: &str) -> (String, Option<i32>) {
    let temp = tempfile::tempdir().unwrap();
    let mut script = Command::new("sh");
    script.arg(program::project().join("scripts/skips.sh")).args(["test", "sh", "-c", command]);
    let output = script.current_dir(temp.path()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn the_list_at_the_end_has_each_reason_once_with_its_tests() {
    let skips = "printf 'b::two\\tno Go\\na::one\\tno disk\\na::one\\tno disk\\na::two\\tno Go\\n' \
                 >>\"$NRI_RUNC_SKIPS\"";
    let wanted = "skipped 2: no Go\n  a::two b::two\nskipped 1: no disk\n  a::one\n";
    assert_eq!(after(skips), (wanted.to_owned(), Some(0)));
}

#[test]
fn a_run_without_skips_ends_with_that_line() {
    assert_eq!(after("true"), ("nothing was skipped\n".to_owned(), Some(0)));
}

#[test]
fn a_failed_run_keeps_its_exit_code_and_lists_its_skips() {
    let fails = "printf 'a::one\\tno disk\\n' >>\"$NRI_RUNC_SKIPS\"; exit 7";
    assert_eq!(after(fails), ("skipped 1: no disk\n  a::one\n".to_owned(), Some(7)));
}

/// Runs `scripts/test.sh` in a separate folder, with a `cargo` that fails for arguments with this word; returns the
/// output.
fn make_test(fails_for: &str) -> (String, Option<i32>) {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    for folder in ["scripts", "bin", "target/debug/examples"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    for example in ["adjustment", "handshake", "every_event"] {
        let says = format!("#!/bin/sh\necho {example}\n");
        program::put(&path("target/debug/examples").join(example), says.as_bytes());
    }
    for script in ["test.sh", "left.sh", "skips.sh", "again.sh", "matrix.sh"] {
        let from = program::project().join("scripts").join(script);
        program::copy(&from, &path("scripts").join(script));
    }
    let cargo = format!("#!/bin/sh\necho cargo $*\ncase $* in *{fails_for}*) exit 101 ;; esac\n");
    program::put(&path("bin/cargo"), cargo.as_bytes());
    program::put(&path("bin/make"), b"#!/bin/sh\necho make $*\n");
    let programs = format!("{}:/usr/bin:/bin", path("bin").display());
    let mut script = Command::new("sh");
    script.arg(path("scripts/test.sh")).env("PATH", programs).env("LEFT_IN", path("bin"));
    script.env_remove("CARGO_TARGET_DIR");
    let output = script.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn a_failure_stops_no_part_of_make_test_and_fails_it() {
    for (fails_for, code) in [("nothing", 0), ("--tests", 1), ("--doc", 1)] {
        let (printed, status) = make_test(fails_for);
        for part in ["make", "--no-fail-fast --tests", "every_event", "--doc"] {
            assert!(printed.contains(part), "{fails_for}, {part}: {printed}");
        }
        assert_eq!(status, Some(code), "{fails_for}: {printed}");
        let last = printed.lines().last().unwrap();
        let wanted = match fails_for {
            "--tests" => {
                "failed:  (): no test is named: cargo test --locked --no-fail-fast --tests"
            }
            "--doc" => "  cargo test --locked --doc",
            _ => "cargo test --locked --doc",
        };
        assert!(last.starts_with(wanted), "{printed}");
    }
}

/// The output of `scripts/again.sh` for a run in which these tests fail, with a `cargo` that lets one of
/// this name fail again.
fn again(failing: &[&str], fails_again: &str) -> (String, Option<i32>) {
    let temp = tempfile::tempdir().unwrap();
    let names: String = failing.iter().map(|name| format!("    {name}\n")).collect();
    let panics: String = failing
        .iter()
        .map(|name| {
            format!("thread '{name}' (7) panicked at tests/node/a.rs:1:1:\nwords of {name}\n")
        })
        .collect();
    let run = format!(
        "failures:\n\n{panics}---- of their words\n    no_name\n\nfailures:\n{names}\n\
         error: test failed, to rerun pass `--test node`\n"
    );
    program::put(
        &temp.path().join("run"),
        format!("#!/bin/sh\ncat <<'END'\n{run}END\nexit 101\n").as_bytes(),
    );
    let cargo = format!("#!/bin/sh\necho cargo $*\ncase $* in *{fails_again}) exit 101 ;; esac\n");
    program::put(&temp.path().join("cargo"), cargo.as_bytes());
    let mut script = Command::new("sh");
    script.arg(program::project().join("scripts/again.sh")).arg(temp.path().join("run"));
    script.env("PATH", format!("{}:/usr/bin:/bin", temp.path().display()));
    let output = script.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn a_test_that_passes_alone_is_named_unstable() {
    let (printed, status) = again(&["state::a", "b"], "nothing");
    assert_eq!(printed.matches("cargo test --locked --test node -- --exact state::a\n").count(), 3);
    assert_eq!(printed.matches("-- --exact b\n").count(), 3, "{printed}");
    assert!(printed.contains("unstable: state::a (--test node) failed, see above"), "{printed}");
    assert_eq!(status, Some(0));
    let (printed, status) = again(&["a", "b"], "--exact b");
    assert!(!printed.contains("unstable") && status == Some(101), "{printed}");
    let wanted = "failed: a (--test node): words of a\nfailed: b (--test node): words of b\n";
    assert!(printed.ends_with(wanted), "{printed}");
    // Too many, or none by name: a program that was killed.
    let six = ["a", "b", "c", "d", "e", "f"];
    for (failing, wanted) in [(&six[..], "f (--test node): words of f"), (&[], " (--test node): ")]
    {
        let (printed, status) = again(failing, "nothing");
        assert!(!printed.contains("cargo test --locked") && status == Some(101), "{printed}");
        assert!(printed.ends_with(&format!("failed: {wanted}\n")), "{printed}");
    }
}

/// The output of `scripts/left.sh` after a command that is run in the folder that it checks.
fn left_by(command: &str, ci: Option<&str>) -> (String, Option<i32>) {
    let temp = tempfile::tempdir().unwrap();
    let mut script = Command::new("sh");
    script.arg(program::project().join("scripts/left.sh")).args(["sh", "-c", command]);
    script.current_dir(temp.path()).env("LEFT_IN", ".").env("PAUSE", "0.2").env_remove("CI");
    script.env("LEFT_OF", "sleep 41.5 ");
    let output = script.envs(ci.map(|ci| ("CI", ci))).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn a_file_that_a_test_leaves_is_listed_and_fails_under_ci() {
    let wanted = "left on this machine, by a test unless another program did it:\n./socket\n";
    assert_eq!(left_by("touch socket", None), (wanted.to_owned(), Some(0)));
    assert_eq!(left_by("touch socket", Some("true")), (wanted.to_owned(), Some(1)));
    assert_eq!(left_by("touch socket; rm socket", Some("true")), (String::new(), Some(0)));
    let (printed, status) = left_by("sleep 41.$((2+3)) >/dev/null 2>&1 & exit 0", Some("true"));
    let (pid, words) =
        printed.strip_prefix("still there, process ").unwrap().split_once(": ").unwrap();
    assert_eq!((words, status), ("sleep 41.5 \n", Some(0)));
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    let (printed, _) = left_by("mkdir \"sleep 41.$((2+3)) a\"", None);
    assert!(printed.ends_with("still there, folder sleep 41.5 a\n"), "{printed}");
    let late = "touch socket; (sleep 0.5; rm socket) >/dev/null 2>&1 &";
    assert_eq!(left_by(late, Some("true")), (String::new(), Some(0)));
    assert_eq!(left_by("exit 7", Some("true")), (String::new(), Some(7)));
}

/// `scripts/static.sh` recognizes a program with fault points by a sentence that no other program has.
#[test]
fn a_program_with_fault_points_is_not_packaged() {
    let script = program::project().join("scripts/static.sh");
    let is_taken = |file: &Path| {
        let lines = format!(
            "fail() {{ exit 3; }}\n. {}\nno_build_for_tests {}",
            script.display(),
            file.display()
        );
        Command::new("sh").args(["-c", &lines]).status().unwrap().code()
    };
    assert_eq!(
        is_taken(Path::new(env!("CARGO_BIN_EXE_nri-runc"))),
        Some(3),
        "the program of the tests"
    );
    // A file that is in every program.
    assert_eq!(is_taken(&program::project().join("src/messages.txt")), Some(0));
}
