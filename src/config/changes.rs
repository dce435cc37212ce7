// SPDX-License-Identifier: Apache-2.0
//! Finds the keys that differ between two readings of the configuration files, and the step that
//! makes each new value take effect. Nothing here reads a file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::keys::{Effect, KEYS, Key};
use super::reader::settings;

/// A key whose value differs between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedKey {
    /// As it is written, dotted.
    pub key: String,
    /// Its value in TOML, or its default; none where it has neither.
    pub before: Option<String>,
    pub after: Option<String>,
    /// The step that makes the new value take effect.
    pub effect: Effect,
}

impl ChangedKey {
    /// As `reload --json` shows it.
    pub(crate) fn to_json(&self) -> Value {
        let Self { key, before, after, effect } = self;
        json!({"key": key, "before": before, "after": after, "applied_by": effect.name()})
    }
}

/// The keys whose values differ, in order. A key that is set to its default has not changed.
pub(crate) fn changes(
    before: &[(PathBuf, String)],
    after: &[(PathBuf, String)],
) -> Vec<ChangedKey> {
    let (before, after) = (settings(before), settings(after));
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter_map(|key| {
        let known = known(key);
        let value = |value: Option<&String>| value.cloned().or_else(|| default(known?));
        let (before, after) = (value(before.get(key)), value(after.get(key)));
        let effect = known.map_or(Effect::Reload, |known| known.effect);
        (before != after).then(|| ChangedKey { key: key.clone(), before, after, effect })
    });
    changed.collect()
}

fn known(dotted: &str) -> Option<&'static Key> {
    let exact = KEYS.iter().find(|key| key.path == dotted);
    // A name chosen by the operator may have dots in it.
    exact.or_else(|| {
        KEYS.iter().find(|key| {
            let around = key.path.split_once('*');
            around.is_some_and(|(start, end)| dotted.starts_with(start) && dotted.ends_with(end))
        })
    })
}

/// The default, in the form of [`settings`]. A key of one plugin may have another default, by
/// `[plugin."*"]`.
fn default(key: &Key) -> Option<String> {
    if key.default.is_empty() || key.path.contains('*') {
        return None;
    }
    let text = format!("{} = {}", key.path, key.default);
    settings(&[(PathBuf::new(), text)]).remove(key.path)
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
    fn each_change_says_what_applies_it() {
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

    #[test]
    fn rules_are_one_key() {
        let rules = "[[rule]]\nname = \"a\"\ndeny = [\"Env\"]\n[[rule]]\nname = \"b\"\n";
        let changed = changes(&files(""), &files(rules));
        let [rule] = &changed[..] else { panic!("{changed:?}") };
        assert_eq!((rule.key.as_str(), rule.effect), ("rule", Effect::Reload));
        assert_eq!(changes(&files(rules), &files(&format!("# same\n{rules}"))), []);
    }

    /// A value that differs from the default, for each key that only a start applies.
    #[test]
    fn what_needs_a_restart_stays_as_it_was_and_everything_else_is_taken() {
        let (running, mut seen) = (Config::default(), 0);
        for key in KEYS.iter().filter(|key| !key.path.contains('*') && key.path != "runtime") {
            let values = ["\"/other\"", "[\"/other\"]", "true", "false", "7", "[7]", "\"7s\""];
            let more = ["\"0640\"", "\"fail\"", "\"file\"", "\"warn\"", "\"json\"", "\"[::1]:7\""];
            let more = more.iter().chain(&["\"1Gi\"", "\"all\""]);
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
