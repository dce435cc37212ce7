// SPDX-License-Identifier: Apache-2.0
//! Reads plain configuration files without the TOML parser.
//!
//! A wrapper reads the configuration for every command of every container, and the parser alone
//! takes more time and memory than the rest of the wrapper. So this module reads a file that has
//! only `[section]`, `[[rule]]`, `[[exec_rule]]` or `[[require]]`, `key = value` and comments, in
//! which each key is known and occurs once. For any other file it returns `false`, and the parser
//! reads the file and reports its errors. This reader never accepts a file that the parser would
//! refuse, and never reads a value differently (docs/decisions/0007-plain-configuration-files.md).

use std::collections::BTreeSet;

use toml_edit::{Array, Value};

use super::keys::{KEYS, Key};
use super::lists::{self, TableList};
use super::reader::is_section;
use super::settings::{ANY_PLUGIN, Config};

/// Applies the settings of `text`. Returns `false` if the parser must read the text, even if some
/// settings were already applied.
pub(super) fn apply(config: &mut Config, file: &str, text: &str) -> bool {
    apply_without(None, config, file, text)
}

/// Like [`apply`], but ignores the tables of one list, which the caller knows to be valid.
pub(super) fn apply_without(
    list: Option<&str>,
    config: &mut Config,
    file: &str,
    text: &str,
) -> bool {
    read(text, list).is_some_and(|PlainFile { settings, tables }| {
        settings.iter().all(|(key, name, value)| (key.set)(config, name, value).is_ok())
            && tables.iter().all(|table| {
                (table.list.add_plain)(config, &table.settings, &format!("{file}:{}", table.line))
            })
    })
}

/// A key, the name in place of its `*`, and its value.
type Setting = (&'static Key, String, Value);

#[derive(Default)]
struct PlainFile {
    settings: Vec<Setting>,
    tables: Vec<PlainTable>,
}

/// A table of a list, and the line number of its header.
struct PlainTable {
    list: &'static TableList,
    line: usize,
    settings: Vec<(String, Value)>,
}

fn read(text: &str, left_out: Option<&str>) -> Option<PlainFile> {
    // Carriage returns and other control characters are left to the parser.
    let is_odd = |byte: u8| (byte < b' ' && byte != b'\n' && byte != b'\t') || byte == 0x7f;
    // Tables that are left out are not parsed, so a line of a multi-line string could look like a
    // header.
    let is_longer = || ["\"\"\"", "'''"].iter().any(|quotes| text.contains(quotes));
    if text.bytes().any(is_odd) || (left_out.is_some() && is_longer()) {
        return None;
    }
    let PlainFile { mut settings, mut tables } = PlainFile::default();
    let mut sections = BTreeSet::new();
    // The path of the current section, and the index of its first setting: a key may occur once in
    // a section.
    let (mut path, mut first) = (Vec::new(), 0);
    let (mut is_in_table, mut is_left_out) = (false, false);
    for (line, number) in text.split('\n').zip(1..) {
        let line = blank(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix("[[") {
            let (name, rest) = header.split_once("]]")?;
            let list = lists::named(name).filter(|_| is_end(rest))?;
            is_left_out = left_out == Some(name);
            if !is_left_out {
                tables.push(PlainTable { list, line: number, settings: Vec::new() });
            }
            is_in_table = true;
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            is_in_table = false;
            let (name, rest) = header.split_once(']')?;
            path = section(name).filter(|_| is_end(rest) && sections.insert(name))?;
            first = settings.len();
            continue;
        }
        let (key, value) = line.split_once('=')?;
        let key = Some(key.trim_matches([' ', '\t'])).filter(|key| is_bare(key))?;
        if is_in_table && is_left_out {
            continue;
        }
        let key = key.to_owned();
        let (value, _) = value_of(blank(value)).filter(|(_, rest)| is_end(rest))?;
        if let Some(table) = tables.last_mut().filter(|_| is_in_table) {
            table.settings.push((key, value));
            continue;
        }
        path.push(key);
        let named = |known: &'static Key| Some((known, known.name_in(&path)?.to_owned()));
        let (known, name) = KEYS.iter().find_map(named)?;
        path.pop();
        if settings[first..].iter().any(|(other, ..): &Setting| std::ptr::eq(*other, known)) {
            return None;
        }
        settings.push((known, name, value));
    }
    Some(PlainFile { settings, tables })
}

/// Removes leading blanks.
fn blank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

/// Whether only a comment, or nothing, is left of the line.
fn is_end(rest: &str) -> bool {
    matches!(blank(rest).bytes().next(), None | Some(b'#'))
}

fn is_bare(word: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !word.is_empty() && word.bytes().all(is_plain)
}

/// Returns the path of a known section. Only `"*"`, for every plugin, may be in quotes.
fn section(name: &str) -> Option<Vec<String>> {
    let word = |word: &str| match word {
        "\"*\"" => Some(ANY_PLUGIN.to_owned()),
        word => is_bare(word).then(|| word.to_owned()),
    };
    name.split('.').map(word).collect::<Option<Vec<_>>>().filter(|path| is_section(path))
}

/// Parses a value; also returns the text after it.
fn value_of(text: &str) -> Option<(Value, &str)> {
    match text.strip_prefix('[') {
        Some(inner) => list(inner),
        None => single(text),
    }
}

fn list(mut rest: &str) -> Option<(Value, &str)> {
    let mut array = Array::new();
    loop {
        rest = blank(rest);
        if let Some(rest) = rest.strip_prefix(']') {
            return Some((Value::Array(array), rest));
        }
        let (value, after) = single(rest)?;
        array.push(value);
        rest = blank(after);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with(']') => {}
            None => return None,
        }
    }
}

/// Parses a string without escapes, a boolean, or a small number; also returns the text after it.
fn single(text: &str) -> Option<(Value, &str)> {
    for quote in ['"', '\''] {
        let Some(inner) = text.strip_prefix(quote) else { continue };
        let (inside, rest) = inner.split_once(quote)?;
        let is_plain = quote == '\'' || !inside.contains('\\');
        return is_plain.then(|| (Value::from(inside), rest));
    }
    for (word, truth) in [("true", true), ("false", false)] {
        if let Some(rest) = text.strip_prefix(word) {
            return Some((Value::from(truth), rest));
        }
    }
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(end);
    let is_plain = (1..=15).contains(&end) && (end == 1 || !digits.starts_with('0'));
    let number: i64 = digits.parse().ok().filter(|_| is_plain)?;
    Some((Value::from(number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// The configuration as the parser reads it; `None` if it reports an error.
    fn parsed(text: &str) -> Option<Config> {
        let (mut config, mut problems) = (Config::default(), Vec::new());
        super::super::reader::parse(&mut config, "f", text, &mut problems);
        problems.is_empty().then_some(config)
    }

    fn plain(text: &str) -> Option<Config> {
        let mut config = Config::default();
        apply(&mut config, "f", text).then_some(config)
    }

    #[test]
    fn usual_files_are_read_without_the_toml_parser() {
        let text = "# ours\nruntime = [\"/usr/bin/runc\", 'crun',]  # first wins\nautostart = false\n\
                    \n[instance.nri-crun]\npath=\"/usr/bin/crun\"\n[nri]\n\twait_for = [ ]\n\
                    allowed_uids = [0, 1000]\nplugin_request_timeout = \"1m30s\"\n\
                    [nri.default_validator]\nenable = true\n[plugin.10-a]\nstrikes = 3\n\
                    [plugin.\"*\"]\ndeny = [\"OciHooks\"]\n  [[rule]]  # first\n\
                    name = 'a'\nnamespaces = [\"prod-*\"]\ndeny = [\"*\"]\n[log]\nlevel = \"info\"\n\
                    [[rule]]\nlabels=[\"a=b\"]\nhide = true\n[[exec_rule]]\nterminal = true\n\
                    users = [0, \"!7\"]\n[[exec_rule]] # second\ncommands = [\"/bin/*\"]\n\
                    [[require]]\ncdi = [\"a.com/*\"]\nplugin = \"gpu\"\nwait = \"2s\"\n";
        let config = plain(text);
        assert!(config.is_some());
        assert_eq!(config, parsed(text));
    }

    #[test]
    fn unusual_or_invalid_files_are_left_to_the_toml_parser() {
        for text in [
            "autostart = false\nautostart = true\n",
            "[nri]\n[log]\n[nri]\n",
            "[log]\ntarget = \"file\"\n[log.target]\n",
            "runtime = [\"a\"]\n[runtime]\n",
            "[runtime.a]\npath = \"/b\"\n",
            "[instance]\na.path = \"/b\"\n",
            "nri.disable = true\n",
            "run_dir = \"/a\\u0041\"\n",
            "run_dir = \"\"\"/a\"\"\"\n",
            "run_dir = '''/a'''\n",
            "run_dir = \"relative\"\n",
            "run_dir = \"/a\n",
            "run_dir = \"/a\" \"/b\"\n",
            "runtime = [\n\"a\"]\n",
            "runtime = [\"a\" \"b\"]\n",
            "runtime = [,]\n",
            "runtime = [\"a\",,]\n",
            "autostart = truely\n",
            "autostart = tru\n",
            "autostart\n",
            "= true\n",
            "[plugin.a]\nstrikes = 007\n",
            "[plugin.a]\nstrikes = 1_0\n",
            "[plugin.a]\nstrikes = 1.0\n",
            "[plugin.a]\nstrikes = -1\n",
            "[plugin.a]\nstrikes =\n",
            "[plugin.\"a.b\"]\nstrikes = 1\n",
            "[plugin.*]\nstrikes = 1\n",
            "[plugin.'*']\nstrikes = 1\n",
            "[plugin.\"*\"]\nrequired = true\n",
            "[plugin.a]\ndeny = [\"Enw\"]\n",
            "[[nri]]\n",
            "[[exec_rule]] x\n",
            "[[exec_rule]]\nhide = true\n",
            "[[exec_rule]]\n\"terminal\" = true\n",
            "[[require]]\nplugin = \"a\"\n",
            "[[require]]\ncdi = [\"a\"]\nplugin = \"a\"\n",
            "[[rule]] x\n",
            "[[ rule ]]\n",
            "[[rule]\n",
            "[rule]\ndeny = [\"Env\"]\n",
            "[[rule]]\ndeny = [\"Enw\"]\n",
            "[[rule]]\ndeny = [\"Env\"]\ndeny = [\"Env\"]\n",
            "[[rule]]\nstrikes = 1\n",
            "[[rule]]\nlabels = { a = \"b\" }\n",
            "[[rule]]\n[rule.labels]\na = \"b\"\n",
            "[[rule]]\nlabels.a = \"b\"\n",
            "[[rule]]\nhide = true\ndeny = [\"Env\"]\n",
            "[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"\n",
            "[nri\n",
            "[nri] disable = true\n",
            "unknown = 1\n",
            "autostart = true\r\n",
            "# a\u{7f}\n",
        ] {
            assert_eq!(plain(text), None, "{text}");
        }
    }

    const NAMES: [&str; 25] = [
        "runtime",
        "autostart",
        "run_dir",
        "disable",
        "strikes",
        "path",
        "target",
        "wait_for",
        "enable",
        "instance",
        "on_failure",
        "level",
        "allowed_uids",
        "required",
        "deny",
        "name",
        "namespaces",
        "labels",
        "hide",
        "terminal",
        "cdi",
        "plugin",
        "users",
        "mode",
        "nri.disable",
    ];
    const VALUES: [&str; 16] = [
        "true",
        "\"/a\"",
        "[]",
        "[\"a\"]",
        "[\"Env\"]",
        "'/b'",
        "7",
        "[1, 2]",
        "\"skip\"",
        "\"file\"",
        "[\"a=b\"]",
        "[\"a[\"]",
        "\"audit\"",
        "{}",
        "[[",
        "0x1",
    ];
    const HEADERS: [&str; 20] = [
        "[nri]",
        "[log]",
        "[runtime.a]",
        "[instance.a]",
        "[plugin.a]",
        "[plugin.\"*\"]",
        "[plugin.*]",
        "[plugin]",
        "[runtime]",
        "[log.target]",
        "[nri.default_validator]",
        "# x",
        "",
        "[plugin.a.strikes]",
        "[[rule]]",
        "[[exec_rule]]",
        "[[require]]",
        "[[rule]] # x",
        "[rule.labels]",
        "[[rules]]",
    ];

    fn line() -> impl Strategy<Value = String> {
        let (name, value, header) = (select(&NAMES[..]), select(&VALUES[..]), select(&HEADERS[..]));
        let blanks = "[ \t]{0,2}";
        prop_oneof![
            3 => (blanks, name, blanks, value, "[ \t]{0,1}(#[ -~]{0,3})?")
                .prop_map(|(a, name, b, value, end)| format!("{a}{name}{b}={b}{value}{end}")),
            2 => (blanks, header).prop_map(|(a, header)| format!("{a}{header}")),
            1 => "[ -~\t]{0,12}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_plain_reader_agrees_with_the_parser_or_yields_nothing(
            lines in proptest::collection::vec(line(), 0..6)
        ) {
            let text = lines.join("\n");
            if let Some(config) = plain(&text) {
                prop_assert_eq!(Some(config), parsed(&text), "{}", text);
            }
        }
    }
}
