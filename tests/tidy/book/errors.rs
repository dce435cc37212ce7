// SPDX-License-Identifier: Apache-2.0
//! The source, the table of codes (`src/messages.txt`) and `docs/errors.md` have the same error messages: an
//! addition to one must be made in the others. Messages are compared with `…` in place of values.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use nri_runc::testing::messages::{self, Message};

use super::super::{is_generated, sources};
use super::{Page, pages};

/// Files in which each sentence is an error message, whichever function receives it.
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

/// Files in which admin verbs make error lines in other forms: the daemon's responses to them, and their own
/// errors.
const ANSWERS: [(&str, &str); 5] = [
    ("src/daemon/server/", "Err(format!("),
    ("src/daemon/server/", "let error = format!("),
    ("src/daemon/registry/roster.rs", "Err(format!("),
    ("src/admin/", "Err(format!("),
    ("src/admin/", "complain("),
];

/// Files with the errors of the program.
const ERRORS: [&str; 5] = [
    "src",
    "crates/nri-adaptation/src",
    "crates/nri-api/src",
    "crates/nri-transport/src",
    "crates/oci-document/src",
];

/// Sentences of those files that are no separate errors: operations in progress, next steps, warnings, parts of
/// other messages, states, reasons of a lint.
const NO_ERRORS: [&str; 31] = [
    "nothing in this bundle would change",
    "…; waiting for it",
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
    "memory policy flag …",
    "option … of bind mounts",
    "; … is broken: …",
    "has not taken its place",
    "it has no record of it",
    "it has no record of them",
    "it matches every pod",
    "no engine among the parents, in the bundle's path or in the annotations",
    "no engine among the parents, none in the bundle's path",
    "Podman's database does not show this container",
    "rules no longer hide pods from it: it is to be synchronized with them",
    "the runtime did not create it",
    "plugin-owned values were written again after that update",
    "values that the engine set by an update without the daemon are not known",
    "… more changes were applied and are not listed",
    "… does not take …: ……",
];

/// The rest of a string literal, up to its end; `None` for one without.
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

/// All string literals, each with the source before it.
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

/// The text without its comments and its unit tests. No string of the sources has `//` and a blank before it.
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

/// Whether it has a meaning by itself: `{}: {}` has not.
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
        for begin in ["let why = ", "let reason = "] {
            let statements = code.split(begin).skip(1).filter_map(|rest| rest.split(';').next());
            messages.extend(statements.filter_map(first_argument).filter(|it| is_sentence(it)));
        }
        for (folder, begin) in ANSWERS {
            let is_there = name.starts_with(folder);
            let found = code.split(begin).skip(1).filter(|_| is_there).filter_map(first_argument);
            messages.extend(found.filter(|it| is_sentence(it)));
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

/// The rows of the page: anchor, code and message of each.
fn on_the_page(page: &Page) -> Vec<(String, String, String)> {
    let row = |line: &str| {
        let (anchor, rest) = line.strip_prefix("| <a id=\"")?.split_once("\" href=\"#")?;
        let (link, rest) = rest.split_once("\">")?;
        let (code, rest) = rest.split_once("</a> | ")?;
        let fence = if rest.starts_with("``") { "``" } else { "`" };
        let (message, rest) = rest.strip_prefix(fence)?.split_once(fence)?;
        let is_whole = anchor == link && rest.starts_with(" | ");
        is_whole.then(|| (anchor.to_owned(), code.to_owned(), message.to_owned()))
    };
    page.text.lines().filter_map(row).collect()
}

/// The codes that the page lists as retired.
fn retired_on_the_page(page: &Page) -> BTreeSet<String> {
    let section = page.text.split("## Retired codes").nth(1).unwrap_or_default();
    let words = section.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| word.starts_with("NR")).map(ToOwned::to_owned).collect()
}

/// The text between values, without a path before the message.
fn parts(message: &str) -> Vec<&str> {
    message.strip_prefix("…: ").unwrap_or(message).trim_end_matches('…').split('…').collect()
}

/// Whether this format of the source can print a message of the table, even with values filled in already.
fn is_made_by(message: &str, format: &str) -> bool {
    let mut rest = message;
    let parts = parts(format);
    parts.iter().all(|part| {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
        true
    })
}

/// Maximum nesting of messages.
const DEEPEST: usize = 2;

/// The texts that the source can print.
struct Printed {
    /// Formats, each as the parts between values.
    formats: Vec<Vec<String>>,
    /// All literals.
    all: String,
    /// The results so far, by message and depth.
    known: RefCell<BTreeMap<(String, usize), bool>>,
}

impl Printed {
    fn new(literals: &BTreeSet<String>, source: &BTreeSet<String>) -> Self {
        let sentences: Vec<&String> = literals.iter().filter(|it| it.contains(' ')).collect();
        let open = sentences.iter().copied().filter(|it| is_sentence(it)).chain(source);
        let open = open.filter(|it| it.contains('…'));
        let parts = |format: &String| format.split('…').map(ToOwned::to_owned).collect();
        let formats: BTreeSet<Vec<String>> = open.map(parts).collect();
        let all = sentences.iter().map(|it| it.as_str()).collect::<Vec<_>>().join("\n");
        Self { formats: formats.into_iter().collect(), all, known: RefCell::default() }
    }

    /// Whether formats of the source print this message: one of them, or one within another.
    fn has(&self, message: &str, within: usize) -> bool {
        let key = (message.to_owned(), within);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let has = self.all.contains(message.trim_matches(['…', ' ']))
            || (within < DEEPEST
                && self.formats.iter().any(|parts| {
                    let rest = message.strip_prefix(parts[0].as_str());
                    rest.is_some_and(|rest| self.is_filled(rest, &parts[1..], within))
                }));
        self.known.borrow_mut().insert(key, has);
        has
    }

    /// Whether the text is the rest of a format: in place of each `…` a value or a shorter message.
    fn is_filled(&self, text: &str, parts: &[String], within: usize) -> bool {
        let Some((part, more)) = parts.split_first() else { return text.is_empty() };
        let mut ends: Vec<usize> = text.match_indices(part.as_str()).map(|(at, _)| at).collect();
        if more.is_empty() {
            ends.retain(|at| at + part.len() == text.len());
        } else if part.is_empty() {
            ends = Vec::new(); // Two values side by side: too loose.
        }
        ends.iter().any(|at| {
            let (hole, rest) = (&text[..*at], &text[at + part.len()..]);
            // A value, such as a name.
            let is_value = !hole.is_empty() && !hole.contains(' ');
            self.is_filled(rest, more, within)
                && (is_value || (!hole.is_empty() && self.has(hole, within + 1)))
        })
    }
}

/// All differences between the source, the table and the page.
fn differences(
    source: &BTreeSet<String>,
    literals: &BTreeSet<String>,
    table: &[Message],
    page: &Page,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let codes = table.iter().enumerate().map(|(at, message)| (at, message.code));
    for (at, code) in codes {
        let wanted = format!("NR{:03}", at + 1);
        wrong
            .extend((code != wanted).then(|| format!("the table has {code} in place of {wanted}")));
    }
    let (retired, known): (Vec<&Message>, Vec<&Message>) =
        table.iter().partition(|message| message.is_retired);
    for format in source {
        let has = known.iter().any(|message| is_made_by(message.text, format));
        wrong.extend((!has).then(|| format!("the table has no code for: {format}")));
    }
    let printed = Printed::new(literals, source);
    for message in &known {
        let is_system = message.text.ends_with(')') && message.text.contains(" (E");
        let text = message.text.split(" (E").next().unwrap_or_default();
        let is_there = printed.has(if is_system { text } else { message.text }, 0);
        wrong.extend(
            (!is_there).then(|| format!("nothing prints: {} {}", message.code, message.text)),
        );
    }
    let rows = on_the_page(page);
    let mut by_code = BTreeMap::new();
    for (anchor, code, message) in &rows {
        let is_its_own = anchor.to_uppercase() == *code;
        wrong.extend((!is_its_own).then(|| format!("the page has {code} at #{anchor}")));
        let is_second = by_code.insert(code.as_str(), message.as_str()).is_some();
        wrong.extend(is_second.then(|| format!("the page has {code} twice")));
    }
    let wanted: BTreeMap<&str, &str> = known.iter().map(|row| (row.code, row.text)).collect();
    for (code, text) in &wanted {
        let is_there = by_code.get(code) == Some(text);
        wrong.extend((!is_there).then(|| format!("the page lacks: {code} {text}")));
    }
    let unknown = by_code.keys().filter(|code| !wanted.contains_key(*code));
    wrong.extend(unknown.map(|code| format!("the table lacks {code}, which the page has")));
    let retired: BTreeSet<String> = retired.iter().map(|row| row.code.to_owned()).collect();
    let listed = retired_on_the_page(page);
    wrong
        .extend((retired != listed).then(|| format!("retired: {retired:?}, the page: {listed:?}")));
    wrong
}

/// All string literals of the source, as formats.
fn all_literals() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, text) in ERRORS.into_iter().flat_map(sources) {
        if name != "src/messages.rs" {
            all.extend(literals(&code(&text)).into_iter().map(|(_, message)| normal(&message)));
        }
    }
    all
}

#[test]
fn the_program_the_table_of_codes_and_the_page_agree() {
    let source = in_source();
    assert!(source.len() > 250, "{} messages were found", source.len());
    let table: Vec<Message> = messages::table().collect();
    let wrong = differences(&source, &all_literals(), &table, &Page::read("docs/errors.md"));
    assert!(
        wrong.is_empty(),
        "a new message needs a line at the end of src/messages.txt and a row with cause and next step in \
         docs/errors.md: {wrong:#?}"
    );
}

/// The last code could be removed with its row and be reused: this number only grows.
#[test]
fn the_number_of_error_codes_never_decreases() {
    assert!(
        messages::table().count() >= 502,
        "a row of src/messages.txt was removed: retire its code"
    );
}

#[test]
fn a_difference_between_table_program_and_page_is_found() {
    let formats = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect::<BTreeSet<String>>();
    let row = |code, text| Message { code, text, wraps: false, is_retired: false };
    let table = [row("NR001", "a … is odd: it is even"), row("NR002", "a lamp is dark")];
    let retired = Message { is_retired: true, ..row("NR003", "gone") };
    let source = formats(&["a … is odd: …", "a lamp is dark"]);
    let literals = formats(&["a … is odd: …", "a lamp is dark", "it is even"]);
    let line = |code: &str, text: &str| {
        let anchor = code.to_lowercase();
        format!("| <a id=\"{anchor}\" href=\"#{anchor}\">{code}</a> | `{text}` | why | what |\n")
    };
    let text = line("NR001", "a … is odd: it is even") + &line("NR002", "a lamp is dark");
    let whole = format!("{text}## Retired codes\n\nNR003: gone\n");
    let all = [table[0], table[1], retired];
    let find = |source: &[&str], literals: &[&str], table: &[Message], page: &str| {
        let page = Page { name: String::new(), text: page.to_owned() };
        differences(&formats(source), &formats(literals), table, &page)
    };
    let (source, literals): (Vec<&str>, Vec<&str>) = (
        source.iter().map(String::as_str).collect(),
        literals.iter().map(String::as_str).collect(),
    );
    assert_eq!(find(&source, &literals, &all, &whole), [""; 0]);
    let more = [source.clone(), vec!["a new message"]].concat();
    assert_eq!(find(&more, &literals, &all, &whole), ["the table has no code for: a new message"]);
    assert_eq!(
        find(&source, &literals[..2], &all, &whole),
        ["nothing prints: NR001 a … is odd: it is even"]
    );
    let twice = [table[0], row("NR001", "a lamp is dark"), retired];
    assert!(!find(&source, &literals, &twice, &whole).is_empty(), "a code is given twice");
    let hole = [table[0], Message { code: "NR003", ..table[1] }];
    assert!(!find(&source, &literals, &hole, &text).is_empty(), "a row was removed");
    let again = [table[0], table[1], row("NR003", "a lamp is dark")];
    assert!(!find(&source, &literals, &again, &whole).is_empty(), "a retired code is given again");
    for broken in [
        whole.replace("a lamp is dark", "a lamp is lit"),
        whole.replace("NR002</a>", "NR009</a>"),
        whole.replace("id=\"nr002\"", "id=\"nr001\""),
        whole.replace("NR003: gone", "none"),
        format!("{}{whole}", line("NR001", "a … is odd: it is even")),
        format!("{}{whole}", line("NR004", "an invented message")),
    ] {
        assert!(!find(&source, &literals, &all, &broken).is_empty(), "{broken}");
    }
}

/// Whether the parts of a message, between values, occur in the line in their order.
fn is_in(message: &str, line: &str) -> bool {
    let mut rest = line;
    message.split('…').all(|part| {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
        true
    })
}

#[test]
fn a_refusal_that_a_page_shows_has_its_message_and_code() {
    let is_shown =
        |line: &str| messages::table().any(|it| is_sentence(it.text) && is_in(it.text, line));
    let mut count = 0;
    for page in pages() {
        for line in page.blocks().iter().flat_map(|(_, lines)| lines) {
            let Some((_, refusal)) = line.split_once("nri-runc: cannot ") else { continue };
            assert!(is_shown(refusal), "{}: nothing prints: {line}", page.name);
            count += 1;
            if refusal.ends_with('…') {
                continue; // The page omits the end.
            }
            let (text, code) = line.rsplit_once(" [").unwrap_or((line, ""));
            let wanted = messages::code_of(text).unwrap_or_default();
            assert_eq!(code.trim_end_matches(']'), wanted, "{}: {line}", page.name);
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
    let text =
        "| <a id=\"nr1\" href=\"#nr1\">NR1</a> | ``b `c` d`` | e |\n| `a` | no row |\n".to_owned();
    let page = Page { name: String::new(), text };
    let wanted = ("nr1".to_owned(), "NR1".to_owned(), "b `c` d".to_owned());
    assert_eq!(on_the_page(&page), [wanted]);
}
