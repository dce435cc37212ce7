// SPDX-License-Identifier: Apache-2.0
//! The command lines of `fixtures/argv` are read as the runtimes read them.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure argv::every_command_line` writes the results into the
//! files: review each line of the difference, because it states what a runtime does. runc.txt was
//! compared with runc 1.1.5 and 1.6.0-rc.1, crun.txt with crun 1.8.1 (all but `restore`).

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nri_runc::testing::argv::{self, CommandLine, ProcessFlag, ResourcesFlag, Verb};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use test_support::corpus;

#[test]
fn every_recorded_command_line_is_read_as_its_runtime_does() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        corpus::files().iter().for_each(|path| rewrite(path));
    }
    let mut wrong = String::new();
    for case in corpus::load() {
        let call = argv::read(&case.argv);
        let got = output_of(&call);
        if got != case.want {
            let (file, line, want) = (&case.file, case.line, &case.want);
            let _infallible = writeln!(wrong, "{file}:{line}\n  want {want}\n  got  {got}");
        }
        let by_stdin =
            (call.verb == Verb::Update).then(|| argv::for_update_by_stdin(&case.argv, &call));
        if by_stdin != case.by_stdin {
            let _infallible = writeln!(wrong, "{}:{} by stdin: {by_stdin:?}", case.file, case.line);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn the_corpus_has_every_verb_and_every_group() {
    let cases = corpus::load();
    assert!(cases.len() >= 200, "{} cases", cases.len());
    for file in ["crun.txt", "engines.txt", "hostile.txt", "runc.txt", "youki.txt"] {
        assert!(cases.iter().any(|case| case.file == file), "{file}");
    }
    for verb in ["create", "run", "restore", "start", "update", "delete", "kill", "pause", "resume"]
        .into_iter()
        .chain(["exec", "state", "nri", "other", "none"])
    {
        let want = format!("verb={verb}");
        assert!(cases.iter().any(|case| case.want.split(' ').next() == Some(&want)), "{verb}");
    }
}

/// A call in the corpus's words; absent facts are left out.
fn output_of(call: &CommandLine) -> String {
    let mut text = format!("verb={}", call.verb.name());
    let mut say = |key: &str, value: &OsStr| {
        let _infallible = write!(text, " {key}={}", quoted(value));
    };
    if let Some(at) = call.verb_index {
        say("at", OsStr::new(&at.to_string()));
    }
    let values = [
        ("id", &call.id),
        ("root", &call.root),
        ("log", &call.log),
        ("log-format", &call.log_format),
        ("bundle", &call.bundle),
        ("config", &call.config),
        ("pid-file", &call.pid_file),
        ("signal", &call.signal),
    ];
    for (key, value) in values {
        if let Some(value) = value {
            say(key, value);
        }
    }
    if let Some(ProcessFlag { value, word }) = &call.process {
        say(&format!("process@{word}"), value);
    }
    if let Some(ResourcesFlag { value, range }) = &call.resources {
        say(&format!("resources@{}..{}", range.start, range.end), value);
    }
    for flag in &call.resource_flags {
        let (name, range) = (flag.name, &flag.range);
        say(&format!("{name}@{}..{}", range.start, range.end), &flag.value);
    }
    let switches = [
        ("systemd-cgroup", call.systemd_cgroup),
        ("force", call.force),
        ("detach", call.detach),
        ("all", call.all),
        ("inert", call.is_inert),
    ];
    for (key, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
        text.push(' ');
        text.push_str(key);
    }
    text
}

/// A word as the corpus writes it.
fn quoted(word: &OsStr) -> String {
    let mut text = String::new();
    for byte in word.as_bytes() {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => text.push(char::from(*byte)),
            byte => {
                let _infallible = write!(text, "\\x{byte:02x}");
            }
        }
    }
    let needs_quotes = text.is_empty() || text.contains(' ') || text.contains("=>");
    if needs_quotes { format!("\"{text}\"") } else { text }
}

fn rewrite(path: &Path) {
    let mut text = String::new();
    for line in std::fs::read_to_string(path).expect("a corpus file").lines() {
        if corpus::by_stdin(line).is_some() {
            continue;
        }
        if corpus::is_comment(line) {
            let _infallible = writeln!(text, "{line}");
            continue;
        }
        let (left, _) = corpus::halves(line);
        let words = corpus::words(left);
        let call = argv::read(&words);
        let _infallible = writeln!(text, "{} => {}", left, output_of(&call));
        if call.verb == Verb::Update {
            let by_stdin = argv::for_update_by_stdin(&words, &call);
            let line: Vec<String> = by_stdin.iter().map(|word| quoted(word)).collect();
            let _infallible = writeln!(text, "    by stdin: {}", line.join(" "));
        }
    }
    nri_runc::testing::files::replace(path, text.as_bytes()).expect("the corpus can be written");
}

/// Words that are likely to matter, and arbitrary bytes.
fn word() -> impl Strategy<Value = OsString> {
    let known = prop::sample::select(vec![
        "create",
        "run",
        "restore",
        "update",
        "delete",
        "kill",
        "exec",
        "state",
        "nri",
        "help",
        "-",
        "--",
        "---",
        "-=",
        "--=",
        "=",
        "",
        "-b",
        "-fr",
        "-dbX",
        "-r",
        "-r=x",
        "-rx",
        "--root",
        "--log=/l",
        "--bundle",
        "-bundle=/b",
        "--resources",
        "--resources=-",
        "--memory",
        "-h",
        "--memory=5",
        "--pids-limit",
        "-1",
        "--l3-cache-schema",
        "--mem-bw-schema=x",
        "--unknown",
        "--unknown=1",
        "--network-lock",
        "--force=false",
        "--he",
        "c1",
        "--systemd-cgroup",
    ])
    .prop_map(OsString::from);
    let bytes = prop::collection::vec(any::<u8>(), 0..6).prop_map(OsString::from_vec);
    let dashed = prop::collection::vec(any::<u8>(), 0..6).prop_map(|mut bytes| {
        bytes.insert(0, b'-');
        OsString::from_vec(bytes)
    });
    prop_oneof![8 => known, 1 => bytes, 1 => dashed]
}

fn command_line() -> impl Strategy<Value = Vec<OsString>> {
    prop::collection::vec(word(), 0..12)
}

/// An update with only known flags, so that each word's place is certain.
fn update() -> impl Strategy<Value = (Vec<OsString>, Vec<OsString>)> {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let gone = prop::sample::select(vec![
        words(&["--resources", "/f"]),
        words(&["--resources=-"]),
        words(&["-r", "-"]),
        words(&["-rx"]),
        words(&["--memory", "--"]),
        words(&["--cpu-quota", "-1"]),
        words(&["-pids-limit=7"]),
        words(&["--memory-s", "c2"]),
    ])
    .prop_map(|words| (words, false));
    let kept = prop::sample::select(vec![
        words(&["--l3-cache-schema", "--memory"]),
        words(&["--mem-bw-schema=MB:0=20"]),
        words(&["--root", "--resources"]),
        words(&["--unknown=--memory"]),
        words(&["c1"]),
    ])
    .prop_map(|words| (words, true));
    prop::collection::vec(prop_oneof![gone, kept], 0..8).prop_map(move |groups| {
        let mut before = words(&["nri-runc", "--root", "update", "update"]);
        let mut after = words(&["nri-runc", "--root", "update", "update", "--resources=-"]);
        for (group, is_kept) in groups {
            if is_kept {
                after.extend(group.iter().cloned());
            }
            before.extend(group);
        }
        (before, after)
    })
}

proptest! {
    #[test]
    fn any_arguments_are_read_within_their_bounds(argv in command_line()) {
        let call = argv::read(&argv);
        prop_assert_eq!(call.verb == Verb::None, call.verb_index.is_none());
        prop_assert!(call.verb_index.is_none_or(|at| at >= 1 && at < argv.len()));
        let ranges = call.resource_flags.iter().map(|flag| &flag.range);
        for range in ranges.chain(call.resources.iter().map(|resources| &resources.range)) {
            prop_assert!(range.end <= argv.len() && (1..=2).contains(&range.len()));
            prop_assert!(call.verb_index.is_some_and(|at| at < range.start));
        }
        if let Some(id) = &call.id {
            prop_assert!(argv.contains(id));
        }
    }

    #[test]
    fn no_argument_of_an_execs_command_is_parsed(
        noise in command_line(),
    ) {
        let plain: Vec<OsString> = ["x", "--root", "/r", "exec", "c1"].map(OsString::from).into();
        let noisy: Vec<OsString> = plain.iter().cloned().chain(noise).collect();
        prop_assert_eq!(argv::read(&plain), argv::read(&noisy));
    }

    #[test]
    fn an_update_by_stdin_loses_its_resources_and_nothing_else((before, after) in update()) {
        let call = argv::read(&before);
        prop_assert_eq!(argv::for_update_by_stdin(&before, &call), after);
    }

    #[test]
    fn arguments_keep_their_order_in_an_update_by_stdin(argv in command_line()) {
        let call = argv::read(&argv);
        let mut made = argv::for_update_by_stdin(&argv, &call);
        if let Some(at) = call.verb_index {
            prop_assert_eq!(made.remove(at + 1), "--resources=-");
            prop_assert_eq!(&made[..=at], &argv[..=at]);
        }
        let mut left = argv.iter();
        prop_assert!(made.iter().all(|word| left.any(|other| other == word)));
        let again = argv::read(&made);
        prop_assert_eq!(again.resources, None);
        prop_assert_eq!(again.resource_flags, vec![]);
    }
}

#[test]
fn an_empty_argument_is_not_read_as_an_absent_one() {
    let call = argv::read(&corpus::words("nri-runc create --bundle \"\" c1"));
    assert_eq!(output_of(&call), "verb=create at=1 id=c1 bundle=\"\"");
}
