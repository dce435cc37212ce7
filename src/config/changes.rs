// SPDX-License-Identifier: Apache-2.0
//! Finds the keys and the sections of lists that differ between two readings of the configuration
//! files, and the step that makes each new value take effect; lists the configuration in force.
//! Nothing here reads a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Loaded;
use super::keys::{Effect, KEYS, Key};
use super::lists::LISTS;
use super::reader::{WrittenSection, place_of, settings};
use crate::error::quoted;

/// A key whose value differs between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ChangedKey {
    /// The dotted name of the key; for a section of a list, `LIST "NAME"`.
    pub key: String,
    /// The key's name; for a section, what changed: `rule "no env": deny changed`.
    pub line: String,
    /// The value before the change, in TOML, or the default; null if there is neither.
    pub before: Option<String>,
    /// The value after the change, likewise.
    pub after: Option<String>,
    /// The step that makes the new value take effect.
    #[serde(rename = "applied_by")]
    pub effect: Effect,
}

/// Returns the keys whose values differ, in order, then the sections that differ, and the lists
/// whose order changed. An absent key has its default.
pub(crate) fn changes(
    before: &[(PathBuf, String)],
    after: &[(PathBuf, String)],
) -> Vec<ChangedKey> {
    let (before, after) = (settings(before), settings(after));
    let sections = changed_sections(&before.sections, &after.sections);
    let (before, after) = (before.keys, after.keys);
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter_map(|key| {
        let known = known(key);
        let value = |value: Option<&String>| value.cloned().or_else(|| default(known?));
        let (before, after) = (value(before.get(key)), value(after.get(key)));
        let effect = known.map_or(Effect::Reload, |known| known.effect);
        let (key, line) = (key.clone(), key.clone());
        (before != after).then_some(ChangedKey { key, line, before, after, effect })
    });
    changed.chain(sections).collect()
}

/// Returns the files in force, each key that is set or has a default, with its value in TOML and its
/// origin (a position in a file, or the default), and the sections of the lists.
pub(crate) fn effective(loaded: &Loaded) -> Value {
    let files = loaded.in_force();
    let written = settings(files);
    let defaults = KEYS.iter().filter(|key| !written.keys.contains_key(key.path));
    let defaults = defaults.filter_map(|key| {
        let value = default(key)?;
        Some(json!({"key": key.path, "value": value, "origin": "default"}))
    });
    let keys = written.keys.iter().map(|(key, value)| {
        let path: Vec<&str> = key.split('.').collect();
        json!({"key": key, "value": value, "origin": place_of(files, &path)})
    });
    let keys: Value = keys.chain(defaults).collect();
    let sections = written.sections.iter();
    let sections = sections.map(|s| json!({"list": s.list, "name": s.name, "keys": s.keys}));
    let read: Vec<&PathBuf> = files.iter().map(|(path, _)| path).collect();
    json!({"files": read, "keys": keys, "sections": sections.collect::<Value>()})
}

/// Returns the removed, new and changed sections, and the lists whose order changed.
fn changed_sections(before: &[WrittenSection], after: &[WrittenSection]) -> Vec<ChangedKey> {
    let (old, new) = (by_id(before), by_id(after));
    let gone = before.iter().filter(|section| !new.contains_key(&id(section)));
    let gone = gone.map(|section| change(section, Some(section), None, "removed"));
    let others = after.iter().filter_map(|section| {
        let Some(was) = old.get(&id(section)) else {
            return Some(change(section, None, Some(section), "new"));
        };
        let names: BTreeSet<&String> = was.keys.keys().chain(section.keys.keys()).collect();
        let other = names.into_iter().filter(|name| was.keys.get(*name) != section.keys.get(*name));
        let other: Vec<&str> = other.map(String::as_str).collect();
        let what = format!("{} changed", other.join(" and "));
        (!other.is_empty()).then(|| change(section, Some(was), Some(section), &what))
    });
    let orders = LISTS.iter().filter_map(|list| {
        let order = |all: &[WrittenSection], other: &BTreeMap<_, _>| {
            let kept =
                all.iter().filter(|one| one.list == list.name && other.contains_key(&id(one)));
            kept.map(|one| (one.id.clone(), format!("{:?}", one.name)))
                .unzip::<_, _, Vec<_>, Vec<_>>()
        };
        let ((before, old), (after, new)) = (order(before, &new), order(after, &old));
        let (key, line) = (list.name.to_owned(), format!("{}: order changed", list.name));
        let (old, new) = (Some(old.join(", ")), Some(new.join(", ")));
        let effect = Effect::Reload;
        (before != after).then_some(ChangedKey { key, line, before: old, after: new, effect })
    });
    gone.chain(others).chain(orders).collect()
}

fn id(section: &WrittenSection) -> (&str, &str) {
    (&section.list, &section.id)
}

fn by_id(sections: &[WrittenSection]) -> BTreeMap<(&str, &str), &WrittenSection> {
    sections.iter().map(|section| (id(section), section)).collect()
}

fn change(
    section: &WrittenSection,
    before: Option<&WrittenSection>,
    after: Option<&WrittenSection>,
    what: &str,
) -> ChangedKey {
    let key = format!("{} \"{}\"", section.list, quoted(&section.name));
    let text = |section: Option<&WrittenSection>| section.map(WrittenSection::text);
    let (line, effect) = (format!("{key}: {what}"), Effect::Reload);
    ChangedKey { key, line, before: text(before), after: text(after), effect }
}

fn known(dotted: &str) -> Option<&'static Key> {
    let exact = KEYS.iter().find(|key| key.path == dotted);
    // A name that an operator chose may contain dots.
    exact.or_else(|| {
        KEYS.iter().find(|key| {
            let around = key.path.split_once('*');
            around.is_some_and(|(start, end)| dotted.starts_with(start) && dotted.ends_with(end))
        })
    })
}

/// Returns the default, spelled as by [`settings`]; `None` without one, and for a key with `*`,
/// because `[plugin."*"]` may change the default of a plugin.
fn default(key: &Key) -> Option<String> {
    if key.default.is_empty() || key.path.contains('*') {
        return None;
    }
    let text = format!("{} = {}", key.path, key.default);
    settings(&[(PathBuf::new(), text)]).keys.remove(key.path)
}

#[cfg(test)]
mod tests {
    use super::super::reader::apply;
    use super::super::settings::Config;
    use super::*;

    fn files(text: &str) -> Vec<(PathBuf, String)> {
        vec![(PathBuf::from("f"), text.to_owned())]
    }

    fn changed(before: &str, after: &str) -> Vec<String> {
        let name = |changed: ChangedKey| {
            let value = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let (before, after) = (value(changed.before), value(changed.after));
            format!("{} {before} {after} {}", changed.key, changed.effect.name())
        };
        changes(&files(before), &files(after)).into_iter().map(name).collect()
    }

    #[test]
    fn each_key_in_force_has_its_origin() {
        let text = "run_dir = \"/x\"\n[log]\nlevel = \"debug\"\n[[rule]]\nname = \"r\"\n";
        let loaded = Loaded { files: files(text), ..Loaded::default() };
        let effective = effective(&loaded);
        let key = |name: &str| {
            let mut keys = effective["keys"].as_array().unwrap().iter();
            keys.find(|key| key["key"] == name).cloned().unwrap()
        };
        let level = json!({"key": "log.level", "value": "\"debug\"", "origin": "f:3:1"});
        assert_eq!(key("log.level"), level);
        assert_eq!(key("log.format")["origin"], "default");
        assert_eq!(effective["sections"][0]["name"], "r");
        assert!(effective["keys"].as_array().unwrap().iter().all(|key| !key["value"].is_null()));
    }

    #[test]
    fn only_keys_with_another_value_have_changed() {
        let before = "autostart = true\n[log]\nlevel = \"info\"\n[plugin.a]\nstrikes = 1\n";
        let after = "# now\nlog.level = 'debug'\nautostart=true\n[nri]\ndisable = false\n";
        assert_eq!(
            changed(before, after),
            ["log.level \"info\" \"debug\" reload", "plugin.a.strikes 1 - reload"]
        );
        assert_eq!(changed("", "log.level = \"info\"\nnri.allowed_uids = [0]\n"), [""; 0]);
    }

    #[test]
    fn each_change_names_the_step_that_applies_it() {
        let after = "run_dir = \"/x\"\nautostart = false\n[instance.nri-crun]\npath = \"/c\"\n\
                     [plugin.\"10-a.b\"]\ndeny = [\"Env\"]\n[nri]\nsocket_gid = 7\n";
        assert_eq!(
            changed("", after),
            [
                "autostart true false call",
                "instance.nri-crun.path - \"/c\" call",
                "nri.socket_gid - 7 reload",
                "plugin.10-a.b.deny - [\"Env\"] reload",
                "run_dir \"/run/nri-runc\" \"/x\" restart",
            ]
        );
    }

    /// Returns the changes between the sections of these files.
    fn lines(before: &[&str], after: &[&str]) -> Vec<String> {
        let files = |texts: &[&str]| -> Vec<(PathBuf, String)> {
            let files = texts.iter().zip('a'..);
            files.map(|(text, name)| (name.to_string().into(), (*text).to_owned())).collect()
        };
        changes(&files(before), &files(after)).into_iter().map(|changed| changed.line).collect()
    }

    const RULES: &str = "[[rule]]\nname = \"no env\"\ndeny = [\"Env\"]\n[[rule]]\nhide = true\n";
    const INJECTION: &str = "[[inject]]\nname = \"CA\"\nenv = { A = \"b\" }\n";

    #[test]
    fn each_section_is_named_with_its_change() {
        let other = "[[rule]]\nname = \"no env\"\ndeny = [\"Mounts\"]\nmode = \"audit\"\n\
                     [[rule]]\nplugins = [\"a\"]\n[[exec_rule]]\nname = \"x\"\n";
        assert_eq!(
            lines(&[RULES, INJECTION], &[other]),
            [
                "rule \"a:4\": removed",
                "inject \"CA\": removed",
                "rule \"no env\": deny and mode changed",
                "rule \"a:5\": new",
                "exec_rule \"x\": new",
            ]
        );
        let other = INJECTION.replace("\"b\"", "\"c\"");
        assert_eq!(lines(&[INJECTION, RULES], &[&other, RULES]), ["inject \"CA\": env.A changed"]);
        let changed = changes(&files(INJECTION), &files(&other));
        assert_eq!(changed[0].before.as_deref(), Some("{env.A = \"b\", name = \"CA\"}"));
        assert_eq!((changed[0].key.as_str(), changed[0].effect), ("inject \"CA\"", Effect::Reload));
    }

    #[test]
    fn a_moved_section_is_unchanged_unless_the_order_changes() {
        let shifted = format!("# more\n\n{RULES}");
        assert_eq!(lines(&[RULES, INJECTION], &[&shifted, INJECTION]), [""; 0]);
        assert_eq!(lines(&[RULES, INJECTION], &[INJECTION, RULES]), [""; 0], "another list");
        let (first, second) = RULES.split_at(RULES.rfind("[[").unwrap());
        assert_eq!(lines(&[first, second], &[second, first]), ["rule: order changed"]);
        let between = format!("{first}[[rule]]\nname = \"new\"\n{second}");
        assert_eq!(lines(&[RULES], &[&between]), ["rule \"new\": new"]);
    }

    /// For each key, sets a value that differs from the default. Only keys that need a restart keep
    /// the running value.
    #[test]
    fn a_reload_applies_all_values_that_need_no_restart() {
        let (running, mut seen) = (Config::default(), 0);
        // `runtime` accepts several of the values below, `nri.run_pod_after` only its default.
        let others = ["runtime", "nri.run_pod_after"];
        let is_plain = |key: &&Key| !key.path.contains('*') && !others.contains(&key.path);
        for key in KEYS.iter().filter(is_plain) {
            let values = ["\"/other\"", "[\"/other\"]", "true", "false", "7", "[7]", "\"7s\""];
            let more = ["\"0640\"", "\"fail\"", "\"file\"", "\"warn\"", "\"json\"", "\"[::1]:7\""];
            let more = more.iter().chain(&[
                "\"1Gi\"",
                "\"all\"",
                "\"refuse\"",
                "[\"MemLimit\"]",
                "\"node\"",
            ]);
            let mut found = values.iter().chain(more).filter_map(|value| {
                let (mut config, mut problems) = (Config::default(), Vec::new());
                apply(&mut config, "f", &format!("{} = {value}\n", key.path), &mut problems);
                (problems.is_empty() && config != running).then_some(config)
            });
            let wanted = found.next().unwrap_or_else(|| panic!("no value for {}", key.path));
            let mut kept = wanted.clone();
            let needs_restart = kept.keep_started(&running);
            assert_eq!(needs_restart, key.effect == Effect::Restart, "{}", key.path);
            assert_eq!(kept == running, needs_restart, "{}", key.path);
            seen += usize::from(needs_restart);
        }
        assert!(seen >= 5);
    }
}
