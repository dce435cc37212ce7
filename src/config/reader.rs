// SPDX-License-Identifier: Apache-2.0
//! Reads one configuration file with the TOML parser and the table of keys: its values, and its
//! errors with line and column. Only invalid TOML stops it before the end of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml_edit::{ArrayOfTables, Document, Item, TableLike, Value};

use super::keys::{KEYS, hint_of_key};
use super::places::Places;
use super::settings::{Config, Consequence, Problem};
use super::{Files, exec_rules, injections, lists, mistakes, plain};
use crate::error::quoted;

/// Applies the settings of the TOML `text` of `file`; adds its errors to `problems`.
pub(super) fn apply(config: &mut Config, file: &str, text: &str, problems: &mut Vec<Problem>) {
    // If the plain reader gives up, the parser applies the settings a second time, so the sections
    // that the plain reader added to lists are removed first.
    let known = (config.rules.len(), config.exec_rules.len(), config.promises.len());
    if !plain::apply(config, file, text) {
        for rule in config.rules.drain(known.0..) {
            config.section_names.forget("rule", rule.name);
        }
        for rule in config.exec_rules.drain(known.1..) {
            config.section_names.forget("exec_rule", rule.name);
        }
        for promise in config.promises.drain(known.2..) {
            config.section_names.forget("require", promise.name);
        }
        parse(config, file, text, problems);
    }
}

/// Like [`apply`], with the TOML parser only.
pub(super) fn parse(config: &mut Config, file: &str, text: &str, problems: &mut Vec<Problem>) {
    match Document::parse(text) {
        Ok(document) => {
            let mut reader = Reader { config, file, text, places: Places::new(text), problems };
            reader.table(document.as_table(), &mut Vec::new());
        }
        Err(error) => {
            // `runtime = […]` together with `[runtime.NAME]` is invalid TOML, and the parser's
            // message would not help.
            let old = old_instance(text).map(|(at, name)| (at, in_new_spelling(name)));
            let at = error.span().map_or(0, |span| span.start);
            let (at, what) = old.unwrap_or_else(|| (at, error.message().to_owned()));
            let (line, column) = Places::new(text).at(at);
            let text = format!("{file}:{line}:{column}: {}", quoted(&what));
            problems.push(Problem { text, consequence: Consequence::UsesNoFile });
        }
    }
}

/// Returns the offset and name of the first header `[runtime.NAME]`, as earlier versions spelled
/// `[instance.NAME]`.
fn old_instance(text: &str) -> Option<(usize, &str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let header = line.trim_start();
        let name = header.strip_prefix("[runtime.").and_then(|rest| rest.split(']').next());
        if let Some(name) = name {
            return Some((at + line.len() - header.len(), name));
        }
        at += line.len();
    }
    None
}

fn in_new_spelling(name: &str) -> String {
    format!("the section [runtime.{name}] was renamed: write [instance.{name}]")
}

struct Reader<'a> {
    config: &'a mut Config,
    file: &'a str,
    text: &'a str,
    places: Places<'a>,
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
                Item::ArrayOfTables(tables) => {
                    self.list(tables, item.span().map_or(at, |span| span.start), above);
                }
            }
            above.pop();
        }
    }

    fn list(&mut self, tables: &ArrayOfTables, at: usize, path: &[String]) {
        let dotted = path.join(".");
        let Some(list) = lists::named(&dotted) else {
            let near = lists::nearest_list(&dotted);
            let what = format!("unknown list of tables [[{dotted}]]{}", lists::hint_of(&dotted));
            let consequence = match near == "inject" && injections::is_meant(&dotted) {
                true => tables.iter().map(|table| injections::consequence(table)).max(),
                false => None,
            };
            let unknown = || mistakes::of_unknown_table(&dotted);
            self.close_if_meant(path, at);
            return self.problem(at, &what, consequence.unwrap_or_else(unknown));
        };
        let line = |at| format!("{}:{}", self.file, self.places.at(at).0);
        for mistake in (list.read)(self.config, tables, &line) {
            self.problem(mistake.at, &mistake.what, mistake.consequence);
        }
    }

    /// Reads a table. An empty table sets nothing, but its name may be a mistake.
    fn inner(&mut self, inner: &dyn TableLike, at: usize, above: &mut Vec<String>) {
        if *above == ["runtime"] {
            let (name, _) = inner.iter().next().unwrap_or(("NAME", &Item::None));
            let (at, name) = old_instance(self.text).unwrap_or((at, name));
            return self.problem(at, &in_new_spelling(name), Consequence::UsesNoFile);
        }
        if inner.is_empty() && !is_section(above) {
            let dotted = above.join(".");
            let what = format!("unknown section [{dotted}]");
            self.close_if_meant(above, at);
            let consequence = match injections::is_meant(&above[0]) {
                true => Consequence::KeepsLast,
                false => mistakes::of_unknown_table(&dotted),
            };
            self.problem(at, &what, consequence);
        }
        self.table(inner, above);
    }

    fn value(&mut self, path: &[String], value: &Value, at: usize, item: &Item) {
        let Some((key, name)) = KEYS.iter().find_map(|key| Some((key, key.name_in(path)?))) else {
            return self.unknown_key(path, value, at);
        };
        if let Err(wrong) = (key.set)(self.config, name, value) {
            let at = item.span().map_or(at, |span| span.start);
            let dotted = path.join(".");
            let consequence = mistakes::of_value(key, &dotted);
            self.problem(at, &format!("{dotted}: {wrong}"), consequence);
        }
    }

    fn unknown_key(&mut self, path: &[String], value: &Value, at: usize) {
        self.close_if_meant(path, at);
        let dotted = path.join(".");
        let list = path.first().map(String::as_str).and_then(list_meant);
        let hint = list.map(|list| format!(" (did you mean [[{}]]?)", list.name));
        let hint = hint.unwrap_or_else(|| hint_of_key(&dotted));
        let is_in_section =
            path.split_last().is_some_and(|(_, above)| above.is_empty() || is_section(above));
        let is_injection = list.is_some_and(|list| list.name == "inject");
        let consequence = match is_in_section {
            _ if is_injection => injections::consequence_of_value(path, value),
            true => mistakes::of_unknown_key(&dotted),
            false => mistakes::of_unknown_table(&dotted),
        };
        self.problem(at, &format!("unknown key {dotted}{hint}"), consequence);
    }

    /// If the unknown name may be a misspelled `exec_rule`, adds an exec rule that refuses all processes.
    fn close_if_meant(&mut self, path: &[String], at: usize) {
        let place = format!("{}:{}", self.file, self.places.at(at).0);
        let word = path.first().map(String::as_str).unwrap_or_default();
        exec_rules::close_if_meant(self.config, word, &place);
    }

    fn problem(&mut self, at: usize, what: &str, consequence: Consequence) {
        let (line, column) = self.places.at(at);
        let text = format!("{}:{line}:{column}: {}", self.file, quoted(what));
        self.problems.push(Problem { text, consequence });
    }
}

/// Returns the list of tables that a word names; only `inject` may be misspelled.
fn list_meant(word: &str) -> Option<&'static lists::TableList> {
    let list = lists::named(lists::nearest_list(word))?;
    (list.name == word || list.name == "inject" && injections::is_meant(word)).then_some(list)
}

/// Whether a table at this path may contain keys.
pub(super) fn is_section(path: &[String]) -> bool {
    KEYS.iter().any(|key| {
        let mut parts = key.path.split('.');
        path.iter().all(|word| parts.next().is_some_and(|part| part == "*" || part == word))
            && parts.next().is_some()
    })
}

/// Returns `FILE:LINE:COLUMN` of the key with this path, in the last of these files that has it.
pub(super) fn place_of(files: &Files, path: &[&str]) -> Option<String> {
    files.iter().rev().find_map(|(file, text)| {
        let document = Document::parse(text.as_str()).ok()?;
        let mut table: &dyn TableLike = document.as_table();
        let (last, above) = path.split_last()?;
        for name in above {
            table = table.get(name)?.as_table_like()?;
        }
        let at = table.get_key_value(last)?.0.span()?.start;
        let (line, column) = Places::new(text).at(at);
        Some(format!("{}:{line}:{column}", file.display()))
    })
}

/// The settings in files.
#[derive(Default)]
pub(super) struct WrittenSettings {
    /// The dotted keys, each with its last value in a uniform spelling.
    pub(super) keys: BTreeMap<String, String>,
    /// The sections of lists, in file order.
    pub(super) sections: Vec<WrittenSection>,
}

/// A section of a list such as `[[rule]]`.
pub(super) struct WrittenSection {
    pub(super) list: String,
    /// The section's name, else `FILE:LINE`.
    pub(super) name: String,
    /// The text by which the section is found in another reading: its name, else all its settings.
    pub(super) id: String,
    pub(super) keys: BTreeMap<String, String>,
}

impl WrittenSection {
    /// Returns all settings of the section as one text.
    pub(super) fn text(&self) -> String {
        text_of(&self.keys)
    }
}

fn text_of(keys: &BTreeMap<String, String>) -> String {
    let keys = keys.iter().map(|(key, value)| format!("{key} = {value}"));
    format!("{{{}}}", keys.collect::<Vec<_>>().join(", "))
}

/// Returns the settings of those files that are valid TOML.
pub(super) fn settings(files: &[(PathBuf, String)]) -> WrittenSettings {
    let mut all = WrittenSettings::default();
    for (file, text) in files {
        let Ok(document) = Document::parse(text.as_str()) else { continue };
        let places = Places::new(text);
        for (list, item) in document.as_table() {
            let Some(tables) = item.as_array_of_tables() else {
                collect_item(item, list.to_owned(), &mut all.keys);
                continue;
            };
            let sections = tables.iter().map(|table| {
                let mut keys = BTreeMap::new();
                collect(table, "", &mut keys);
                let name = table.get("name").and_then(Item::as_str).map(str::to_owned);
                let id = name.clone().unwrap_or_else(|| text_of(&keys));
                let line = || places.at(table.span().map_or(0, |span| span.start)).0;
                let name = name.unwrap_or_else(|| format!("{}:{}", file.display(), line()));
                WrittenSection { list: list.to_owned(), name, id, keys }
            });
            all.sections.extend(sections);
        }
    }
    all
}

fn collect(table: &dyn TableLike, above: &str, into: &mut BTreeMap<String, String>) {
    for (name, item) in table.iter() {
        let name = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        collect_item(item, name, into);
    }
}

fn collect_item(item: &Item, name: String, into: &mut BTreeMap<String, String>) {
    match item {
        Item::Value(Value::InlineTable(inner)) => collect(inner, &name, into),
        Item::Value(value) => drop(into.insert(name, written(value))),
        Item::Table(inner) => collect(inner, &name, into),
        Item::ArrayOfTables(list) => {
            let tables = list.iter().map(|table| {
                let mut keys = BTreeMap::new();
                collect(table, "", &mut keys);
                text_of(&keys)
            });
            into.insert(name, format!("[{}]", tables.collect::<Vec<_>>().join(", ")));
        }
        Item::None => {}
    }
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
impl Config {
    /// Reads a text as the file `f`; returns the configuration and its mistakes.
    pub(crate) fn read(text: &str) -> (Self, Vec<Problem>) {
        let (mut config, mut problems) = (Self::default(), Vec::new());
        apply(&mut config, "f", text, &mut problems);
        (config, problems)
    }

    /// Reads a text that has no mistake.
    #[track_caller]
    pub(crate) fn of_text(text: &str) -> Self {
        let (config, problems) = Self::read(text);
        assert_eq!(problems, [], "{text}");
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<Problem> {
        Config::read(text).1
    }

    #[test]
    fn every_mistake_names_its_place_and_has_its_consequence() {
        use Consequence::{Ignored, KeepsLast, RefusesCreates, UsesNoFile};
        for (text, wanted, consequence) in [
            ("[plugin.a]\ndeny = \"Env\"\n", "2:8: plugin.a.deny: expected a list", RefusesCreates),
            (
                "[plugin.a]\n  Deny = [\"Env\"]\n",
                "2:3: unknown key plugin.a.Deny (did you mean plugin.*.deny?)",
                RefusesCreates,
            ),
            ("[plugin.a]\nrequired = \"true\"\n", "2:12: plugin.a.required: ex", RefusesCreates),
            (
                "[plugin.a]\nrequird = true\n",
                "2:1: unknown key plugin.a.requird (did you mean plugin.*.required?)",
                RefusesCreates,
            ),
            ("[plugin.a]\ndeny = [\"Enw\"]\n", "2:8: plugin.a.deny: \"Enw\" is n", RefusesCreates),
            ("[plugin.\"*\"]\nrequired = true\n", "2:12: plugin.*.required: ", RefusesCreates),
            ("plugin = { a = { deny = 1 } }\n", "1:25: plugin.a.deny", RefusesCreates),
            ("[Plugin.a]\n", "1:9: unknown section [Plugin.a]", RefusesCreates),
            ("[[plugin]]\na = 1\n", "1:1: unknown list of tables [[plugin]]", RefusesCreates),
            ("[[rules]]\nhide = true\n", "1:1: unknown list of tables [[rules]]", RefusesCreates),
            ("[[foo]]\n", "1:1: unknown list of tables [[foo]]", RefusesCreates),
            ("[rules]\nhide = true\n", "2:1: unknown key rules.hide", RefusesCreates),
            ("[foo]\n", "1:2: unknown section [foo]", RefusesCreates),
            ("foo.x = 1\n", "1:5: unknown key foo.x", RefusesCreates),
            ("[log.foo]\nx = 1\n", "2:1: unknown key log.foo.x", RefusesCreates),
            ("foo = 1\n", "1:1: unknown key foo", Ignored),
            ("[nri]\nsocket_pat = \"/x\"\n", "2:1: unknown key nri.socket_pat", Ignored),
            ("[nri]\nsocket_path = \"x\"\n", "2:15: nri.socket_path: expected an", KeepsLast),
            ("a = 1\nb = = 2\n", "2:5: ", UsesNoFile),
            ("# ä\nä = 1\n", "2:", UsesNoFile),
            ("on_daemon_failure = 1\n", "1:21: on_daemon_failure: must be", UsesNoFile),
            ("runtime = 5\n", "1:11: runtime: expected a list", UsesNoFile),
            ("runtme = \"crun\"\n", "1:1: unknown key runtme (did you mean runt", UsesNoFile),
            ("[instance.x]\npath = 5\n", "2:8: instance.x.path: expected", UsesNoFile),
            ("[instance.x]\npth = \"/x\"\n", "2:1: unknown key instance.x.pth", UsesNoFile),
            ("[instances.x]\npath = \"/\"\n", "2:1: unknown key instances.x.path", UsesNoFile),
            ("[instance.x.y]\n", "1:13: unknown section [instance.x.y]", UsesNoFile),
        ] {
            let problems = problems(text);
            let [problem] = &problems[..] else { panic!("{text}: {problems:?}") };
            assert!(problem.text.starts_with(&format!("f:{wanted}")), "{text}: {}", problem.text);
            assert_eq!(problem.consequence, consequence, "{text}");
        }
    }

    #[test]
    fn the_former_name_of_a_section_is_refused_with_the_new_name() {
        for (text, place) in [
            ("[runtime.nri-crun]\npath = \"/usr/bin/crun\"\n", "1:1"),
            ("runtime = [\"runc\"]\n  [runtime.nri-crun] # x\npath = \"/usr/bin/crun\"\n", "2:3"),
            ("runtime.nri-crun.path = \"/usr/bin/crun\"\n", "1:1"),
            ("runtime = { nri-crun = { path = \"/usr/bin/crun\" } }\n", "1:1"),
            ("[runtime]\nnri-crun.path = \"/usr/bin/crun\"\n", "1:2"),
        ] {
            let problems = problems(text);
            let [problem] = &problems[..] else { panic!("{text}: {problems:?}") };
            let wanted = format!(
                "f:{place}: the section [runtime.nri-crun] was renamed: write \
                 [instance.nri-crun]"
            );
            assert_eq!(problem.text, wanted, "{text}");
            assert_eq!(problem.consequence, Consequence::UsesNoFile, "{text}");
        }
    }

    #[test]
    fn an_empty_known_section_is_not_a_mistake() {
        assert_eq!(problems("[plugin.a]\n[nri]\n[instance.nri-crun]\n[plugin.\"*\"]\n"), []);
    }

    #[test]
    fn a_value_is_read_equally_in_each_spelling_of_its_key() {
        let files = |text: &str| vec![(PathBuf::from("f"), text.to_owned())];
        let one =
            settings(&files("nri.wait_for = ['a',\n 'b'] # x\n[instance.x]\npath = '/y'\n")).keys;
        let other = settings(&files("[nri]\nwait_for=[\"a\",\"b\"]\n[instance.x]\npath=\"/y\"\n"));
        let other = other.keys;
        assert_eq!(one, other);
        assert_eq!(one["instance.x.path"], "\"/y\"");
    }
}
