// SPDX-License-Identifier: Apache-2.0
//! Output that a person at a terminal sees and a script does not: colours, and a progress line.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::adjustments::sets;
use test_support::{TestHost, started, succeeds, wait_until};

use super::terminal::{Terminal, ends};

const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";

/// Verbs with coloured pages, and a failure.
const COLOURED: [&[&str]; 6] =
    [&["pods"], &["plugins"], &["check"], &["help"], &["explain", "nobody"], &["statsu"]];

/// The page without the progress line, which a busy machine shows.
fn without_progress(page: &str) -> String {
    page.replace("\r\u{1b}[K", "")
}

#[test]
fn a_terminal_shows_colours() {
    let host = started("");
    let _plugin = host.plugin("10", "a", sets("A", "1"));
    succeeds(&host.create("c1"));
    let mut terminal = Terminal::new(120, 30);
    for (words, wanted) in [
        (&["pods"][..], format!("{GREEN}ready\u{1b}[0m")),
        (&["plugins"], format!("{GREEN}synchronized\u{1b}[0m")),
        (&["check"], format!("{GREEN}ok \u{1b}[0m")),
        (&["explain", "nobody"], format!("{RED}nri-runc:\u{1b}[0m no container")),
        (&["statsu"], format!("{RED}error:\u{1b}[0m")),
        (&["help"], "\u{1b}[1mCommands:\u{1b}[0m".to_owned()),
    ] {
        for env in [&[][..], &[("NO_COLOR", "")]] {
            let (_, page) = terminal.page(&host, words, env);
            assert!(page.contains(&wanted), "{words:?}: {page:?}");
        }
    }
    let (bundle, file) = (host.path("bundle"), host.path("adjust.json"));
    host.write("adjust.json", "{\"annotations\": {\"a\": \"b\"}}");
    let words = ["adjust", "--bundle", bundle.to_str().unwrap(), "--apply", file.to_str().unwrap()];
    let (code, page) = terminal.page(&host, &words, &[]);
    assert_eq!(code, Some(0), "{page}");
    assert!(page.contains(&format!("{GREEN}+")) && page.contains("\u{1b}[1m+++ "), "{page:?}");
}

#[test]
fn no_color_dumb_terminals_and_pipes_get_no_colour() {
    let host = started("");
    let _plugin = host.plugin("10", "a", sets("A", "1"));
    succeeds(&host.create("c1"));
    let mut terminal = Terminal::new(120, 30);
    for words in COLOURED {
        for env in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
            let (_, page) = terminal.page(&host, words, &env);
            let page = without_progress(&page);
            assert!(!page.is_empty() && !page.contains('\u{1b}'), "{words:?} {env:?}: {page:?}");
        }
        let output = host.call(&[&["nri"][..], words].concat());
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{words:?}");
    }
}

#[test]
fn a_hostile_name_writes_no_escape_sequence_to_a_terminal() {
    let host = started("");
    let mut terminal = Terminal::new(120, 30);
    let hostile = "x\u{1b}[2J\u{9b}31m";
    for words in
        [&["explain", hostile][..], &[hostile], &["pods", hostile], &["pods", "-o", hostile]]
    {
        let (_, page) = terminal.page(&host, words, &[]);
        let kept = without_progress(&page).replace("\u{1b}[31m", "").replace("\u{1b}[32m", "");
        let kept = kept.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert!(!kept.contains(['\u{1b}', '\u{9b}']), "{words:?}: {page:?}");
        assert!(page.contains("\\u{1b}[2J"), "{words:?}: {page:?}");
    }
}

/// Stops the daemon's process; it continues when this is dropped.
struct Frozen(Pid);

impl Frozen {
    fn daemon_of(host: &TestHost) -> Self {
        let pid = Pid::from_raw(host.daemon_pid());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _gone = kill(self.0, Signal::SIGCONT);
    }
}

#[test]
fn a_terminal_shows_a_waiting_line_and_clears_it() {
    let host = started("");
    let mut terminal = Terminal::new(60, 30);
    for (words, wanted) in
        [(&["status"][..], "waiting for the daemon ("), (&["check"], "checking the daemon (")]
    {
        terminal.seen.clear();
        let frozen = Frozen::daemon_of(&host);
        let mut verb = terminal.run(&host, words, &[]);
        wait_until("the line is shown", || terminal.shown().contains(wanted));
        assert!(!terminal.seen.contains("running for"), "{:?}", terminal.seen);
        drop(frozen);
        ends(&mut verb);
        let page = terminal.shown().to_owned();
        let (before, after) = page.rsplit_once("\r\u{1b}[K").unwrap();
        assert!(before.contains(wanted) && !after.contains(" ..."), "{page:?}");
        let is_answer = after.starts_with("version:") || after.contains("CHECK");
        assert!(is_answer, "the answer follows at the beginning of a line: {page:?}");
    }
}

#[test]
fn a_file_or_a_quick_command_gets_no_waiting_line() {
    let host = started("");
    let mut terminal = Terminal::new(60, 30);
    let (code, page) = terminal.page(&host, &["status"], &[]);
    assert!(code == Some(0) && !page.contains("(0s)"), "{page:?}");
    let frozen = Frozen::daemon_of(&host);
    let mut options = std::fs::OpenOptions::new();
    let out = options.append(true).create(true).open(host.path("out")).unwrap();
    let mut verb = host.spawn_kept(&["nri", "status"], Some(out.into()), "err");
    std::thread::sleep(std::time::Duration::from_millis(1700));
    drop(frozen);
    assert_eq!(ends(&mut verb), Some(0));
    assert!(host.read("out").starts_with("version:") && host.read("err").is_empty());
}

#[test]
fn the_daemon_answers_once_restart_has_returned() {
    let host = TestHost::default();
    let mut terminal = Terminal::new(60, 30);
    let (code, page) = terminal.page(&host, &["restart"], &[]);
    assert_eq!(code, Some(0), "{page}");
    let frozen =
        Pid::from_raw(i32::try_from(host.admin(&["status"])["pid"].as_i64().unwrap()).unwrap());
    kill(frozen, Signal::SIGSTOP).unwrap();
    terminal.seen.clear();
    let mut verb = terminal.run(&host, &["stop"], &[]);
    wait_until("the line is shown", || terminal.shown().contains("stopping the daemon"));
    kill(frozen, Signal::SIGCONT).unwrap();
    assert_eq!(ends(&mut verb), Some(0), "{:?}", terminal.seen);
    let (code, page) = terminal.page(&host, &["restart"], &[]);
    assert_eq!(code, Some(0), "{page}");
    assert!(host.admin(&["status"])["pid"].is_u64());
}
