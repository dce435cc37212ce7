// SPDX-License-Identifier: Apache-2.0
//! No test depends on how fast the machine is: it waits for a state, not for a time. What takes a test too
//! long on a busy machine is mostly a time-out of its own plugins, or a bound on what it measured.

use regex::Regex;

use super::sources;

/// A time-out of less than two seconds, in a configuration or in settings.
const SHORT: &str = r#"_timeout(?: = \\"|: Duration::from_)(?:\d+ms|[01]s|millis|secs\([01]\))"#;

/// Files with such time-outs, which nothing that works has to keep.
const MAY_BE_MISSED: &[&str] = &[
    // Plugins at the edge of their time-out, whatever they manage.
    "tests/bundle/crowd.rs",
    // Nothing registers within it.
    "tests/bundle/faults.rs",
    "tests/bundle/launched.rs",
    "tests/bundle/waited.rs",
    "tests/node/slow/files.rs",
    "tests/operator/check/plugins.rs",
    "tests/operator/dry/adjust.rs",
    "tests/operator/dry/script.rs",
    // A plugin that misses it is followed by the next one.
    "tests/node/lives/resized.rs",
];

/// A test that fails where something took less than forty seconds.
const HURRIED: &str = r"assert!\(.*\b(?:elapsed\(\)|took\b|best\b).* < (?:\d+ \* )?Duration::from_(?:millis|secs\([1-3]?\d\))";

/// Files that measure until one of many attempts was quick.
const ONE_IS_QUICK: &[&str] = &["tests/bundle/execs/audited.rs"];

/// The tests with a line that has `pattern`, outside of `listed`.
fn found(pattern: &str, listed: &[&str]) -> Vec<String> {
    let pattern = Regex::new(pattern).unwrap();
    let tests = ["tests", "crates"].into_iter().flat_map(sources);
    let tests = tests.filter(|(name, _)| name.contains("tests/") && !name.ends_with("/pace.rs"));
    let tests = tests.filter(|(name, _)| !listed.contains(&&**name));
    let lines = tests.flat_map(|(name, text)| {
        let lines = text.lines().filter(|line| pattern.is_match(line));
        lines.map(|line| format!("{name}: {}", line.trim())).collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn no_plugin_that_works_has_a_short_time_out_in_a_test() {
    let found = found(SHORT, MAY_BE_MISSED);
    assert!(found.is_empty(), "test_support::SILENT is long enough: {found:#?}");
}

#[test]
fn no_test_fails_because_something_took_some_seconds() {
    let found = found(HURRIED, ONE_IS_QUICK);
    assert!(found.is_empty(), "a busy machine takes longer: {found:#?}");
}

#[test]
fn what_depends_on_speed_is_recognized() {
    let matches = |pattern: &str, line: &str| Regex::new(pattern).unwrap().is_match(line);
    for (is_short, line) in [
        (true, r#"started("---plugin_request_timeout = \"900ms\"\n")"#),
        (true, "request_timeout: Duration::from_millis(300),"),
        (false, r#"started("---plugin_request_timeout = \"3s\"\n")"#),
        (false, "request_timeout: Duration::from_secs(10),"),
    ] {
        assert_eq!(matches(SHORT, line), is_short, "{line}");
    }
    for (is_hurried, line) in [
        (true, "assert!(begun.elapsed() < Duration::from_millis(900));"),
        (true, r#"assert!(took > LEAST && took < Duration::from_secs(20), "{took:?}");"#),
        (false, "assert!(begun.elapsed() < Duration::from_secs(300));"),
        (false, "assert!(took >= Duration::from_millis(800));"),
    ] {
        assert_eq!(matches(HURRIED, line), is_hurried, "{line}");
    }
}
