// SPDX-License-Identifier: Apache-2.0
//! `docs/errors.md` and the source hold the same error messages: what is added to one is missed in
//! the other. Messages are compared with `…` in place of what is filled in.

use std::collections::BTreeSet;

use super::super::{is_generated, sources};
use super::{Page, pages};

/// Files in which each sentence is an error, whatever function makes one of it.
const WHOLE: [&str; 15] = [
    "crates/nri-adaptation/src/bounds.rs",
    "crates/nri-adaptation/src/claims.rs",
    "crates/nri-adaptation/src/owners.rs",
    "crates/nri-adaptation/src/validator.rs",
    "src/chain/validate.rs",
    "src/config/fields.rs",
    "src/daemon/process/detach.rs",
    "src/resolve/blockio.rs",
    "src/resolve/cdi.rs",
    "src/resolve/honoured.rs",
    "src/resolve/node.rs",
    "src/resolve/rdt.rs",
    "src/spec/patch/",
    "src/wrapper/connection.rs",
    "src/plugin/discover.rs",
];

/// Where errors of the program are.
const ERRORS: [&str; 5] = [
    "src",
    "crates/nri-adaptation/src",
    "crates/nri-api/src",
    "crates/nri-transport/src",
    "crates/oci-document/src",
];

/// Sentences of those files that are no errors of their own: what was being done, next steps,
/// warnings, reasons of a lint.
const NO_ERRORS: [&str; 13] = [
    "at line",
    "reaching the daemon at …",
    "the process that starts it lacks CAP_SYS_RESOURCE to raise it; see docs/install.md",
    "it lacks CAP_SYS_NICE to reset it; see docs/install.md",
    "let a service manager start it; see docs/install.md",
    "the I/O scheduling class",
    "the names are NRI's and say what they are",
    "block I/O: no device matches …",
    "block I/O: … is not a disk and was left out",
    "… was skipped: …",
    "shared or a slave",
    "a slave or shared",
    "in a shared group",
];

/// The rest of a string literal, up to its end; None for one without.
fn literal(text: &str) -> Option<(String, &str)> {
    let mut message = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((message, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                '\n' => {
                    let rest = chars.as_str().trim_start();
                    let (more, after) = literal(rest)?;
                    return Some((message + &more, after));
                }
                'n' => message.push(' '),
                other => message.push(other),
            },
            other => message.push(other),
        }
    }
    None
}

/// All string literals, each with what stands before it in its source.
fn literals(code: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once('"') {
        let is_char = before.ends_with('\'') || before.ends_with("'\\");
        match literal(after).filter(|_| !is_char) {
            Some((message, next)) => {
                found.push((before.trim_end(), message));
                rest = next;
            }
            None => rest = after,
        }
    }
    found
}

/// The message with `…` in place of each `{…}`.
fn normal(message: &str) -> String {
    let mut parts = message.split('{');
    let mut normal = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        normal.push('…');
        normal.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    normal
}

/// The text without its comments and its unit tests. No string of the sources has `//` and a blank
/// before it.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| {
        line.split_once("//").map_or(line, |(code, comment)| {
            if code.is_empty() || code.ends_with(' ') || comment.starts_with('/') {
                code
            } else {
                line
            }
        })
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The first literal of the arguments that begin here, if there is one before they end.
fn first_argument(text: &str) -> Option<String> {
    let mut depth = 1_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return None,
            ')' => depth -= 1,
            '"' => return literal(&text[at + 1..]).map(|(message, _)| message),
            _ => {}
        }
    }
    None
}

/// Whether it says something by itself: `{}: {}` does not.
fn is_sentence(message: &str) -> bool {
    message.matches(' ').count() >= 3 && message.chars().any(char::is_alphabetic)
}

/// All error messages of the source.
fn in_source() -> BTreeSet<String> {
    let mut messages = BTreeSet::new();
    for (name, text) in ERRORS.into_iter().flat_map(sources) {
        let is_test = name.contains("/tests") || name.ends_with("_tests.rs");
        if is_generated(&text) || is_test || name == "src/error.rs" || name == "src/testing.rs" {
            continue;
        }
        let code = code(&text);
        for begin in ["Error::new(", "#[error("] {
            messages.extend(code.split(begin).skip(1).filter_map(first_argument));
        }
        if WHOLE.iter().any(|whole| name.starts_with(whole)) {
            let found = literals(&code).into_iter();
            let found =
                found.filter(|(before, it)| is_sentence(it) && !before.ends_with("reason ="));
            messages.extend(found.map(|(_, message)| message));
        }
    }
    let messages = messages.iter().map(|message| normal(message).trim().to_owned());
    messages.filter(|it| it.chars().any(char::is_alphabetic) && !is_left_out(it)).collect()
}

fn is_left_out(message: &str) -> bool {
    NO_ERRORS.contains(&message)
}

/// The code spans in the first cells of the page's tables.
fn on_the_page(page: &Page) -> BTreeSet<String> {
    let mut messages = BTreeSet::new();
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| "));
    for row in rows.filter(|row| row.starts_with('`')) {
        let mut rest = row.split(" | ").next().unwrap_or_default();
        while let Some(start) = rest.find('`') {
            let ticks = rest[start..].chars().take_while(|c| *c == '`').count();
            let fence = &rest[start..start + ticks];
            let Some((message, after)) = rest[start + ticks..].split_once(fence) else { break };
            messages.insert(message.trim().to_owned());
            rest = after;
        }
    }
    messages
}

#[test]
fn each_error_message_is_on_the_page_of_errors() {
    let (source, page) = (in_source(), on_the_page(&Page::read("docs/errors.md")));
    assert!(source.len() > 250, "{} messages were found", source.len());
    let missing: Vec<&String> = source.difference(&page).collect();
    assert!(
        missing.is_empty(),
        "docs/errors.md lacks these messages; add a row with cause and next step: {missing:#?}"
    );
}

#[test]
fn each_message_on_the_page_of_errors_is_in_the_source() {
    let mut all = String::new();
    for (_, text) in ERRORS.into_iter().flat_map(sources) {
        for (_, message) in literals(&code(&text)) {
            all.push_str(&normal(&message));
            all.push('\n');
        }
    }
    let page = on_the_page(&Page::read("docs/errors.md"));
    let gone: Vec<&String> =
        page.iter().filter(|message| !all.contains(message.as_str())).collect();
    assert!(gone.is_empty(), "docs/errors.md has messages that nothing prints: {gone:#?}");
}

/// Whether the parts of a message, between what is filled in, stand in the line in their order.
fn is_in(message: &str, line: &str) -> bool {
    let mut rest = line;
    message.split('…').all(|part| {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
        true
    })
}

#[test]
fn a_refusal_that_a_page_shows_is_one_of_the_program() {
    let messages = on_the_page(&Page::read("docs/errors.md"));
    let is_shown = |line: &str| messages.iter().any(|it| is_sentence(it) && is_in(it, line));
    let mut count = 0;
    for page in pages() {
        for line in page.blocks().iter().flat_map(|(_, lines)| lines) {
            if let Some((_, refusal)) = line.split_once("nri-runc: cannot ") {
                assert!(is_shown(refusal), "{}: nothing prints: {line}", page.name);
                count += 1;
            }
        }
    }
    assert!(count >= 3, "{count} refusals were found");
    assert!(!is_shown("create 4f1c0a: 10-cpus and 20-numa both set linux.resources.cpu.cpus"));
}

#[test]
fn a_message_is_read_from_any_form_of_its_source() {
    let argument = first_argument("format!(\"{} is \\\"odd\\\": \\\n     {why:?}\"), x)").unwrap();
    assert_eq!(normal(&argument), "… is \"odd\": …");
    assert_eq!(first_argument("error.to_string()), \"other\""), None);
    assert_eq!(
        code("let a = 1; // \"no\"\nlet b = \"file://x\";\n#[cfg(test)]\nmod tests {\n\"t\""),
        "let a = 1; \nlet b = \"file://x\";"
    );
    let page = Page { name: String::new(), text: "| `a …`, ``b `c` d`` | e |\n".to_owned() };
    assert_eq!(on_the_page(&page), ["a …", "b `c` d"].map(ToOwned::to_owned).into());
}
