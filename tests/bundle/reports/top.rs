// SPDX-License-Identifier: Apache-2.0
//! `top`: one page into a pipe, a live screen on a terminal, and a terminal that is restored
//! however it ends.

use std::io::Write;
use std::time::Duration;

use nix::sys::signal::Signal;
use test_support::adjustments::sets;
use test_support::{Script, TestHost, started, succeeds, wait_until};

use super::terminal::{Terminal, ends, signal};

/// Switches to the alternate screen and back.
const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?25h\u{1b}[?1049l";

#[test]
fn a_pipe_gets_one_page_without_escapes() {
    let host = started("");
    let _plugin = host.plugin("10", "a", sets("A", "1"));
    succeeds(&host.create("c1"));
    let output = host.call(&["nri", "top", "--interval", "100ms"]);
    succeeds(&output);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.starts_with("nri-runc ") && !page.contains('\u{1b}'), "{page}");
    let row = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("10-a").contains("synchronized"), "{page}");
    assert!(row("create").ends_with("1          0        0"), "{page}");
    assert!(row("plain/c1").contains("ready"), "{page}");
    let pages = host.call(&["nri", "top", "--interval", "100ms", "-n", "2"]);
    assert_eq!(String::from_utf8(pages.stdout).unwrap().matches("nri-runc ").count(), 2);
    let json = host.admin(&["top", "--interval", "100ms"]);
    assert_eq!(
        (&json["plugins"][0]["plugin"], &json["pods"]["known"]),
        (&"10-a".into(), &1.into())
    );
}

#[test]
fn a_terminal_shows_changes_and_is_restored_afterwards() {
    let host = started("");
    let _plugin = host.plugin("10", "a", sets("A", "1"));
    for by in [Some(Signal::SIGINT), Some(Signal::SIGTERM), Some(Signal::SIGHUP), None] {
        let mut terminal = Terminal::new(100, 30);
        let mut top = terminal.run_top(&host, &["--interval", "100ms"]);
        wait_until("a page is shown", || terminal.shown().contains("10-a"));
        assert!(terminal.shown().starts_with(ENTERED), "{:?}", terminal.seen);
        assert!(!terminal.is_as_before(), "keys are not echoed");
        let id = by.map_or("q", Signal::as_str);
        succeeds(&host.create(id));
        wait_until("the new container is shown", || {
            terminal.shown().contains(&format!("plain/{id}"))
        });
        match by {
            Some(by) => signal(&top, by),
            None => terminal.master.write_all(b"xq").unwrap(),
        }
        assert_eq!(ends(&mut top), Some(0), "{by:?}");
        assert!(terminal.shown().ends_with(LEFT), "{by:?}: {:?}", terminal.seen);
        assert!(terminal.is_as_before(), "{by:?}");
    }
}

#[test]
fn a_stopped_daemon_is_shown_and_its_successor_is_found() {
    let mut host = started("");
    let mut terminal = Terminal::new(100, 30);
    let mut top = terminal.run_top(&host, &["--interval", "100ms"]);
    wait_until("a page is shown", || terminal.shown().contains("no plugins"));
    host.kill_daemon();
    wait_until("its absence is shown", || terminal.shown().contains("the daemon is not running"));
    host.start_daemon();
    let _plugin = host.plugin("10", "late", Script::default());
    wait_until("the next daemon is shown", || terminal.shown().contains("10-late"));
    // If it stopped, the shell would be on top's screen.
    signal(&top, Signal::SIGTSTP);
    std::thread::sleep(Duration::from_millis(200));
    terminal.seen.clear();
    wait_until("it goes on", || terminal.shown().contains("10-late"));
    signal(&top, Signal::SIGINT);
    assert_eq!(ends(&mut top), Some(0));
    assert!(terminal.is_as_before());
}

#[test]
fn a_stopped_terminal_does_not_block_top() {
    let host = started("");
    for by in [Signal::SIGINT, Signal::SIGTERM] {
        let mut terminal = Terminal::new(100, 30);
        let mut top = terminal.run_top(&host, &["--interval", "100ms"]);
        wait_until("a page is shown", || terminal.shown().contains("no plugins"));
        // Ctrl-S, then time for the pending page.
        terminal.master.write_all(b"\x13").unwrap();
        std::thread::sleep(Duration::from_millis(400));
        signal(&top, by);
        assert_eq!(ends(&mut top), Some(0), "{by:?}");
        assert!(terminal.is_as_before(), "{by:?}");
    }
}

#[test]
fn lines_fit_the_terminals_width() {
    let host = started("");
    let mut terminal = Terminal::new(40, 8);
    let mut top = terminal.run_top(&host, &["--interval", "100ms", "-n", "2"]);
    assert_eq!(ends(&mut top), Some(0), "after two pages");
    let shown = terminal.shown().to_owned();
    let pages = shown.split("\u{1b}[H").skip(1);
    for line in pages.flat_map(|page| page.split("\r\n")) {
        let line = line.split('\u{1b}').next().unwrap();
        assert!(line.chars().count() <= 40, "{line:?}");
    }
    let mut wrong = terminal.run_top(&host, &["--interval", "1ms"]);
    assert_eq!(ends(&mut wrong), Some(2), "an interval without sense is a usage error");
}

#[test]
fn without_a_daemon_top_fails_without_changing_the_terminal() {
    let host = TestHost::default();
    let piped = host.call(&["nri", "top"]);
    assert_eq!(piped.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&piped.stderr).contains("the daemon is not running"));
    let mut terminal = Terminal::new(100, 30);
    let mut top = terminal.run_top(&host, &[]);
    assert_eq!(ends(&mut top), Some(1));
    assert!(!terminal.shown().contains('\u{1b}') && terminal.is_as_before());
}
