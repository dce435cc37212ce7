// SPDX-License-Identifier: Apache-2.0
//! No test depends on the speed of the machine: it waits for a state, not for a time. A test that is too
//! slow on a busy machine mostly has a time-out of its own plugins, or a bound on a measured time.

use regex::Regex;

use super::{code, sources};

/// A time-out of less than two seconds, in a configuration or in settings.
const SHORT: &str = r#"_timeout(?: = \\"|: Duration::from_)(?:\d+ms|[01]s|millis|secs\([01]\))"#;

/// Files with short time-outs that no working plugin has to meet.
const MAY_BE_MISSED: &[&str] = &[
    // The plugins work near their time-out, and may miss it.
    "tests/bundle/load/crowd.rs",
    // Nothing registers within it.
    "tests/bundle/daemon/hostile_peers.rs",
    "tests/bundle/plugins/launched.rs",
    "tests/bundle/plugins/first_create.rs",
    "tests/node/slow/files.rs",
    "tests/operator/check/plugins.rs",
    "tests/operator/dry/adjust.rs",
    "tests/operator/dry/script.rs",
    // The value is only parsed, and no plugin runs.
    "src/config/plugins.rs",
    // A plugin that misses it is followed by the next one.
    "tests/node/lives/resized.rs",
];

/// A test that fails if something takes forty seconds, or a time-out of the program.
const HURRIED: &str = r"assert!\(.*\b(?:elapsed\(\)|took\b|waited\b|best\b).* < (?:(?:\d+ \* )?Duration::from_(?:millis|secs\([1-3]?\d\))|[A-Z][A-Z_]+\b)";

/// Files with a line of this form that passes on a busy machine too.
const NOT_HURRIED: &[&str] = &[
    // The limit there is minutes.
    "tests/bundle/load/crowd.rs",
    // These tests repeat until one of many attempts was quick.
    "tests/bundle/execs/audited.rs",
    "tests/node/lives/scale.rs",
];

/// The modules of these sources that are tests in separate files, by path without `.rs`.
fn test_modules(code: &[(String, String)]) -> Vec<String> {
    let declared = Regex::new(r"#\[cfg\(test\)\]\s+mod (\w+);").unwrap();
    let modules = code.iter().flat_map(|(name, text)| {
        let (folder, _) = name.rsplit_once('/').unwrap_or_default();
        let found = declared.captures_iter(text);
        found.map(|found| format!("{folder}/{}", &found[1])).collect::<Vec<_>>()
    });
    modules.collect()
}

/// All tests: whole files, or the tests in a file of the program or of a crate.
fn tests() -> impl Iterator<Item = (String, String)> {
    let code: Vec<_> = code().collect();
    let modules = test_modules(&code);
    let code = code.into_iter().filter_map(move |(name, text)| {
        let is_of = |module: &String| {
            let rest = name.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        if name.contains("/tests/") || modules.iter().any(is_of) {
            return Some((name, text));
        }
        let (_, tests) = text.split_once("\nmod tests {")?;
        Some((name, tests.to_owned()))
    });
    sources("tests").into_iter().filter(|(name, _)| !name.ends_with("/pace.rs")).chain(code)
}

/// The tests with a line that has `pattern`, outside of `listed`.
fn found(pattern: &str, listed: &[&str]) -> Vec<String> {
    let pattern = Regex::new(pattern).unwrap();
    let tests = tests().filter(|(name, _)| !listed.contains(&&**name));
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
    let found = found(HURRIED, NOT_HURRIED);
    assert!(found.is_empty(), "a busy machine takes longer: {found:#?}");
}

#[test]
fn only_the_tests_in_source_files_are_read() {
    let all: Vec<(String, String)> = tests().collect();
    let text = |name: &str| all.iter().find(|(other, _)| other == name).map(|(_, text)| &**text);
    for whole in ["src/metrics/mixin_tests.rs", "src/cgroup/gaps_tests.rs", "tests/tidy/limits.rs"]
    {
        assert!(text(whole).is_some_and(|text| text.starts_with("// SPDX")), "{whole}");
    }
    let part = text("src/limits.rs").unwrap();
    assert!(part.contains("#[test]") && !part.contains("pub(crate) const"));
    assert!(text("src/error.rs").is_none_or(|text| !text.starts_with("// SPDX")));
}

#[test]
fn code_that_depends_on_speed_is_recognized() {
    let matches = |pattern: &str, line: &str| Regex::new(pattern).unwrap().is_match(line);
    for (is_short, line) in [
        (true, r#"started("[nri]\nplugin_request_timeout = \"900ms\"\n")"#),
        (true, "request_timeout: Duration::from_millis(300),"),
        (false, r#"started("[nri]\nplugin_request_timeout = \"3s\"\n")"#),
        (false, "request_timeout: Duration::from_secs(10),"),
    ] {
        assert_eq!(matches(SHORT, line), is_short, "{line}");
    }
    for (is_hurried, line) in [
        (true, "assert!(begun.elapsed() < Duration::from_millis(900));"),
        (true, r#"assert!(took > LEAST && took < Duration::from_secs(20), "{took:?}");"#),
        (true, "assert!(waited(&codes, &here).await < EXIT_CODE_WAIT);"),
        (false, "assert!(begun.elapsed() < Duration::from_secs(300));"),
        (false, "assert!(took >= Duration::from_millis(800));"),
    ] {
        assert_eq!(matches(HURRIED, line), is_hurried, "{line}");
    }
}
