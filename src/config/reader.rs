// SPDX-License-Identifier: Apache-2.0
//! Reads one configuration file with the TOML parser and the table of keys: the values that it sets, and
//! its errors, each with line and column. Only invalid TOML stops it before the end of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml_edit::{ArrayOfTables, Document, Item, TableLike, Value};

use super::keys::{KEYS, nearest_key};
use super::settings::{Config, Problem};
use super::{mistakes, plain, rules};
use crate::error::quoted;

/// Takes over what the TOML `text` of `file` sets; what is wrong with it goes to `problems`.
pub(super) fn apply(config: &mut Config, file: &str, text: &str, problems: &mut Vec<Problem>) {
    // What was taken over before it gave up is taken over again, or the file is not used at all.
    let known = config.rules.len();
    if !plain::apply(config, file, text) {
        config.rules.truncate(known);
        parse(config, file, text, problems);
    }
}

/// The same by the TOML parser.
pub(super) fn parse(config: &mut Config, file: &str, text: &str, problems: &mut Vec<Problem>) {
    let parseable = with_instances_apart(text);
    let document = match Document::parse(parseable.as_str()) {
        Ok(document) => document,
        Err(error) => {
            let place = place(&parseable, error.span().map_or(0, |span| span.start));
            let text = format!("{file}:{place}: {}", quoted(error.message()));
            problems.push(Problem::fatal(text));
            return;
        }
    };
    let mut reader = Reader { config, file, text: &parseable, problems };
    reader.table(document.as_table(), &mut Vec::new());
}

/// TOML forbids `runtime = [...]` beside `[runtime.NAME]`, which is how our configuration is
/// documented: the headers get another word of the same meaning, line by line.
fn with_instances_apart(text: &str) -> String {
    let mut parseable = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        match line.trim_start().strip_prefix("[runtime.") {
            Some(rest) => {
                parseable.push_str("[instance.");
                parseable.push_str(rest);
            }
            None => parseable.push_str(line),
        }
    }
    parseable
}

struct Reader<'a> {
    config: &'a mut Config,
    file: &'a str,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn table(&mut self, table: &dyn TableLike, above: &mut Vec<String>) {
        for (name, item) in table.iter() {
            let at = table.get_key_value(name).and_then(|(key, _)| key.span());
            let at = at.map_or(0, |span| span.start);
            above.push(name.to_owned());
            match item {
                Item::None => {}
                Item::Value(Value::InlineTable(inner)) => self.inner(inner, at, above),
                Item::Value(value) => self.value(above, value, at, item),
                Item::Table(inner) => self.inner(inner, at, above),
                Item::ArrayOfTables(tables) if *above == [rules::LIST] => self.rules(tables, above),
                Item::ArrayOfTables(_) => {
                    let what = format!("unknown list of tables [[{}]]", as_written(above));
                    let at = item.span().map_or(at, |span| span.start);
                    self.problem(above, at, &format!("{what} (did you mean [[rule]]?)"));
                    // The only lists of tables that exist protect.
                    self.problems
                        .last_mut()
                        .into_iter()
                        .for_each(|problem| problem.protects = true);
                }
            }
            above.pop();
        }
    }

    fn rules(&mut self, tables: &ArrayOfTables, path: &[String]) {
        let (file, text) = (self.file, self.text);
        let tables = tables.iter().map(|table| {
            let at = table.span().map_or(0, |span| span.start);
            (table as &dyn TableLike, at)
        });
        let line = |at| format!("{file}:{}", place(text, at).split(':').next().unwrap_or_default());
        for mistake in rules::read_list(self.config, tables, line) {
            self.problem(path, mistake.at, &mistake.what);
        }
    }

    /// A table: one without anything in it sets nothing, but its name may be a mistake.
    fn inner(&mut self, inner: &dyn TableLike, at: usize, above: &mut Vec<String>) {
        if inner.is_empty() && !is_section(above) {
            let what = format!("unknown section [{}]", as_written(above));
            self.problem(above, at, &what);
        }
        self.table(inner, above);
    }

    fn value(&mut self, path: &[String], value: &Value, at: usize, item: &Item) {
        let Some((key, name)) = KEYS.iter().find_map(|key| Some((key, key.name_in(path)?))) else {
            let dotted = as_written(path);
            let is_rule = path.first().is_some_and(|word| word == rules::LIST);
            let hint = if is_rule { "[[rule]]" } else { nearest_key(&dotted) };
            return self.problem(path, at, &format!("unknown key {dotted} (did you mean {hint}?)"));
        };
        if let Err(wrong) = (key.set)(self.config, name, value) {
            let at = item.span().map_or(at, |span| span.start);
            self.problem(path, at, &format!("{}: {wrong}", as_written(path)));
            // Its default may be another runtime, or another word on a daemon that is away, than
            // the operator has had so far (D7).
            let is_fatal = ["runtime", "runtime.*.path", "on_daemon_failure"].contains(&key.path);
            if let Some(problem) = self.problems.last_mut() {
                problem.stops_reload = true;
                problem.is_fatal |= is_fatal;
                problem.protects |= is_fatal;
            }
        }
    }

    fn problem(&mut self, path: &[String], at: usize, what: &str) {
        let text = format!("{}:{}: {}", self.file, place(self.text, at), quoted(what));
        let protects = mistakes::is_protecting(&as_written(path));
        self.problems.push(Problem { text, is_fatal: false, protects, stops_reload: protects });
    }
}

/// Whether a table of that name may hold keys.
fn is_section(path: &[String]) -> bool {
    let dotted = as_written(path);
    KEYS.iter().any(|key| {
        let mut parts = key.path.split('.');
        dotted.split('.').all(|word| parts.next().is_some_and(|part| part == "*" || part == word))
            && parts.next().is_some()
    })
}

/// The key as the operator wrote it, dotted.
fn as_written(path: &[String]) -> String {
    let dotted = path.join(".");
    match dotted.strip_prefix("instance.") {
        Some(rest) => format!("runtime.{rest}"),
        None => dotted,
    }
}

/// Line and column of `offset`, both from 1, the column in characters.
fn place(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let mut column = before[start..].chars().count() + 1;
    // The operator wrote a word that is one letter shorter.
    if text[start..].trim_start().starts_with("[instance.") && column > "[instance.".len() {
        column -= 1;
    }
    format!("{line}:{column}")
}

/// The keys that these files set, dotted, each with its last value in one way of writing.
pub(super) fn settings(files: &[(PathBuf, String)]) -> BTreeMap<String, String> {
    fn collect(table: &dyn TableLike, above: &str, into: &mut BTreeMap<String, String>) {
        for (name, item) in table.iter() {
            let name = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            match item {
                Item::Value(Value::InlineTable(inner)) => collect(inner, &name, into),
                Item::Value(value) => {
                    into.insert(name, written(value));
                }
                Item::Table(inner) => collect(inner, &name, into),
                Item::ArrayOfTables(list) => {
                    let tables = list.iter().map(|table| {
                        let mut keys = BTreeMap::new();
                        collect(table, "", &mut keys);
                        let keys = keys.into_iter().map(|(key, value)| format!("{key} = {value}"));
                        format!("{{{}}}", keys.collect::<Vec<_>>().join(", "))
                    });
                    into.insert(name, format!("[{}]", tables.collect::<Vec<_>>().join(", ")));
                }
                Item::None => {}
            }
        }
    }
    let mut all = BTreeMap::new();
    for (_, text) in files {
        if let Ok(document) = Document::parse(with_instances_apart(text)) {
            collect(document.as_table(), "", &mut all);
        }
    }
    let as_written = |(key, value): (String, String)| match key.strip_prefix("instance.") {
        Some(rest) => (format!("runtime.{rest}"), value),
        None => (key, value),
    };
    all.into_iter().map(as_written).collect()
}

fn written(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return format!("{text:?}");
    }
    match value.as_array() {
        Some(list) => format!("[{}]", list.iter().map(written).collect::<Vec<_>>().join(", ")),
        None => value.to_string().trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<Problem> {
        let (mut config, mut problems) = (Config::default(), Vec::new());
        apply(&mut config, "f", text, &mut problems);
        problems
    }

    #[test]
    fn every_mistake_names_its_line_and_column() {
        for (text, wanted, protects) in [
            (
                "[plugin.a]\ndeny = \"Env\"\n",
                "f:2:8: plugin.a.deny: expected a list of strings",
                true,
            ),
            (
                "[plugin.a]\n  Deny = [\"Env\"]\n",
                "f:2:3: unknown key plugin.a.Deny (did you mean plugin.*.deny?)",
                true,
            ),
            ("[plugin.a]\nrequired = \"true\"\n", "f:2:12: plugin.a.required: expected true", true),
            (
                "[plugin.a]\nrequird = true\n",
                "f:2:1: unknown key plugin.a.requird (did you mean plugin.*.required?)",
                true,
            ),
            (
                "[plugin.a]\ndeny = [\"Enw\"]\n",
                "f:2:8: plugin.a.deny: \"Enw\" is not a field",
                true,
            ),
            (
                "[plugin.\"*\"]\nrequired = true\n",
                "f:2:12: plugin.*.required: name the plugin",
                true,
            ),
            ("plugin = { a = { deny = 1 } }\n", "f:1:25: plugin.a.deny", true),
            ("[Plugin.a]\n", "f:1:9: unknown section [Plugin.a]", true),
            ("[[plugin]]\ndeny = [\"Env\"]\n", "f:1:1: unknown list of tables [[plugin]]", true),
            ("[nri]\nsocket_pat = \"/x\"\n", "f:2:1: unknown key nri.socket_pat", false),
            (
                "[nri]\nsocket_path = \"x\"\n",
                "f:2:15: nri.socket_path: expected an absolute",
                false,
            ),
            ("a = 1\nb = = 2\n", "f:2:5: ", true),
            ("# ä\nä = 1\n", "f:2:", true),
            ("[runtime.x.y]\n", "f:1:12: unknown section [runtime.x.y]", false),
        ] {
            let problems = problems(text);
            let [problem] = &problems[..] else { panic!("{text}: {problems:?}") };
            assert!(problem.text.starts_with(wanted), "{text}: {}", problem.text);
            assert_eq!(problem.protects, protects, "{text}");
        }
    }

    #[test]
    fn an_empty_section_that_is_known_is_no_mistake() {
        assert_eq!(problems("[plugin.a]\n[nri]\n[runtime.nri-crun]\n[plugin.\"*\"]\n"), []);
    }

    #[test]
    fn the_value_of_a_key_reads_the_same_however_it_is_written() {
        let files = |text: &str| vec![(PathBuf::from("f"), text.to_owned())];
        let one = settings(&files("nri.wait_for = ['a',\n 'b'] # x\n[runtime.x]\npath = '/y'\n"));
        let other = settings(&files("[nri]\nwait_for=[\"a\",\"b\"]\n[runtime.x]\npath=\"/y\"\n"));
        assert_eq!(one, other);
        assert_eq!(one["runtime.x.path"], "\"/y\"");
    }
}
