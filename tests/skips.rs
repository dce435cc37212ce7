// SPDX-License-Identifier: Apache-2.0
//! A test that is skipped shows: in the list at the end of `make test`, and under CI as a failure
//! where the setup should have brought what it lacks. Tests of this program run it once more, in
//! which they skip themselves.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use test_support::{program, skip};

/// Set where a test is to skip itself: the reason.
const WHY: &str = "SKIPPED_FOR";

/// Runs a test of this program alone, as the harness does.
#[expect(clippy::disallowed_methods, reason = "the test itself")]
fn run(test: &str, ci: Option<&str>, list: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(WHY, "no such\n\ttool ");
    command.env_remove("CI").envs(ci.map(|ci| ("CI", ci))).env("NRI_RUNC_SKIPS", list);
    command.output().unwrap()
}

/// The list that a skipped test wrote, and whether it passed.
fn listed(test: &str, ci: Option<&str>) -> (String, Output) {
    let temp = tempfile::tempdir().unwrap();
    let list = temp.path().join("list");
    let output = run(test, ci, &list);
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
        assert_eq!(list, format!("skips::{test}\tno such tool\n"));
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(!shown.contains("no such"), "the harness hides it: {shown}");
    }
}

#[test]
fn a_skip_for_a_tool_is_listed_and_under_ci_a_failure_with_the_reason() {
    if let Ok(why) = std::env::var(WHY) {
        return skip::setup_lacks(&why);
    }
    let test = "a_skip_for_a_tool_is_listed_and_under_ci_a_failure_with_the_reason";
    let (list, output) = listed(test, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(list, format!("skips::{test}\tno such tool\n"));
    let (list, output) = listed(test, Some("true"));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), list.as_str()), (Some(101), ""), "{shown}");
    assert!(shown.contains("required under CI: no such\n\ttool"), "{shown}");
}

/// What `scripts/skips.sh` prints after a command, in a folder of its own.
#[expect(clippy::disallowed_methods, reason = "the script under test")]
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
fn where_nothing_was_skipped_the_end_says_so() {
    assert_eq!(after("true"), ("nothing was skipped\n".to_owned(), Some(0)));
}

#[test]
fn tests_that_fail_still_fail_before_the_list() {
    let fails = "printf 'a::one\\tno disk\\n' >>\"$NRI_RUNC_SKIPS\"; exit 7";
    assert_eq!(after(fails), ("skipped 1: no disk\n  a::one\n".to_owned(), Some(7)));
}
