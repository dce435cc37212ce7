// SPDX-License-Identifier: Apache-2.0
//! Owners of fields: the table that reveals conflicts between two plugins.
//!
//! A field, or a key of a compound field, is free until a plugin claims it; a second claim is a conflict,
//! even by the same plugin. Clearing removes a field's owner, and then only the plugin that cleared it last
//! may claim it; but a removed variable, mount or device of the engine, which no plugin had set, is free for
//! every plugin. Hooks and device rules accumulate and never conflict. Values are not examined. Reference:
//! the owner tables of NRI's `pkg/api` and the result collector of `pkg/adaptation`.

use std::collections::BTreeMap;
use std::fmt;

use crate::fields::NriField;
use crate::quoted;
use nri_api as api;

/// The owners of all fields set in a container, and in others by updates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    containers: BTreeMap<String, ContainerOwners>,
    /// The owners that claims since [`Owners::begin`] replaced; `None` before it, and after `commit` or
    /// `roll_back`.
    journal: Option<Vec<Before>>,
}

/// The owner of a field, or of a device rule, before one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Before {
    Slot((NriField, Option<String>), Option<Owner>),
    Rule(String, Option<String>),
}

/// The owners of one container's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerOwners {
    /// The key is `None` for simple fields.
    slots: BTreeMap<(NriField, Option<String>), Owner>,
    /// The plugins that requested each cgroup device rule, by the rule's text. NRI has no field for these
    /// rules, and they never conflict; they are recorded so that `explain` can name the plugin that granted
    /// access to a device.
    device_rules: BTreeMap<String, String>,
}

/// The owner of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Set by this plugin; for hooks by several, separated by commas.
    Set(String),
    /// Removed by this plugin; another can set it only after removing it too.
    Cleared(String),
    /// Removed by this plugin only from the original container: any plugin may set it again. NRI:
    /// the reference then has no owner, so the plugin cannot be named.
    Removed(String),
}

impl Owner {
    /// Returns the plugin (or plugins, for hooks) that owns the field.
    pub fn plugin(&self) -> &str {
        match self {
            Self::Set(plugin) | Self::Cleared(plugin) | Self::Removed(plugin) => plugin,
        }
    }
}

/// `10-foo`, or `-10-foo` for a removal: the form that NRI sends to validators.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(plugin) => f.write_str(plugin),
            Self::Cleared(plugin) | Self::Removed(plugin) => write!(f, "-{plugin}"),
        }
    }
}

/// Two claims to one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The field that both set.
    pub field: NriField,
    /// The key within a compound field.
    pub key: Option<String>,
    /// The container.
    pub container: String,
    /// The later plugin, which is refused.
    pub new: String,
    /// The plugin that owns the field; equal to `new` if a plugin set the field twice in one reply.
    pub old: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, key, container, new, old } = self;
        let (new, old, container) = (quoted(new), quoted(old), quoted(container));
        let thing = match key {
            Some(key) => format!("{field} {}", quoted(key)),
            None => field.to_string(),
        };
        let thing = thing.trim_end();
        if new == old {
            write!(f, "plugin \"{new}\" set {thing} twice in container {container}")
        } else {
            write!(
                f,
                "plugins \"{new}\" and \"{old}\" both tried to set {thing} of container {container}"
            )
        }
    }
}

impl std::error::Error for Conflict {}

impl Owners {
    /// Claims `field` (for compound fields its `key`) of a container for `plugin`.
    pub fn claim(
        &mut self,
        container: &str,
        field: NriField,
        key: Option<&str>,
        plugin: &str,
    ) -> Result<(), Conflict> {
        let is_revocable = self.journal.is_some();
        let slots = &mut self.of_mut(container).slots;
        let slot = (field, key.map(str::to_owned));
        match slots.get(&slot) {
            Some(Owner::Cleared(by)) if by == plugin => {}
            None | Some(Owner::Removed(_)) => {}
            Some(Owner::Set(old) | Owner::Cleared(old)) => {
                let (old, new) = (old.clone(), plugin.to_owned());
                return Err(Conflict {
                    field,
                    key: slot.1,
                    container: container.to_owned(),
                    new,
                    old,
                });
            }
        }
        let journaled = is_revocable.then(|| slot.clone());
        let before = slots.insert(slot, Owner::Set(plugin.to_owned()));
        if let (Some(journal), Some(slot)) = (&mut self.journal, journaled) {
            journal.push(Before::Slot(slot, before));
        }
        Ok(())
    }

    /// Removes the owner of a field; only `plugin` may claim it then, until another plugin clears it.
    pub fn clear(&mut self, container: &str, field: NriField, key: Option<&str>, plugin: &str) {
        let slot = (field, key.map(str::to_owned));
        self.of_mut(container).slots.insert(slot, Owner::Cleared(plugin.to_owned()));
    }

    /// Records that `plugin` removed a field that no plugin had set or cleared.
    pub(crate) fn note_removal(
        &mut self,
        container: &str,
        field: NriField,
        key: &str,
        plugin: &str,
    ) {
        let slot = (field, Some(key.to_owned()));
        let slots = &mut self.of_mut(container).slots;
        slots.entry(slot).or_insert_with(|| Owner::Removed(plugin.to_owned()));
    }

    /// Adds `plugin` to the owners of a field that cannot conflict.
    pub(crate) fn accumulate(&mut self, container: &str, field: NriField, plugin: &str) {
        let slots = &mut self.of_mut(container).slots;
        let owner = match slots.get(&(field, None)) {
            Some(Owner::Set(before)) => format!("{before},{plugin}"),
            Some(Owner::Cleared(_) | Owner::Removed(_)) | None => plugin.to_owned(),
        };
        slots.insert((field, None), Owner::Set(owner));
    }

    /// Records that `plugin` requested a cgroup device rule.
    pub(crate) fn note_device_rule(&mut self, container: &str, rule: String, plugin: &str) {
        if self.journal.is_some() {
            let before = self.of_mut(container).device_rules.get(&rule).cloned();
            let journal = self.journal.as_mut();
            journal.into_iter().for_each(|j| j.push(Before::Rule(rule.clone(), before.clone())));
        }
        let rules = &mut self.of_mut(container).device_rules;
        rules
            .entry(rule)
            .and_modify(|owner| {
                if !owner.split(',').any(|one| one == plugin) {
                    owner.push(',');
                    owner.push_str(plugin);
                }
            })
            .or_insert_with(|| plugin.to_owned());
    }

    /// Returns the owner of this field of a container, if it has one.
    pub fn owner(&self, container: &str, field: NriField, key: Option<&str>) -> Option<&Owner> {
        let slot = (field, key.map(str::to_owned));
        self.containers.get(container)?.slots.get(&slot)
    }

    /// Returns the fields that this plugin has set or removed, by container, once for each key.
    pub(crate) fn held_by<'o>(
        &'o self,
        plugin: &'o str,
    ) -> impl Iterator<Item = (&'o str, NriField)> {
        let is_its = move |owner: &str| owner.split(',').any(|one| one == plugin);
        self.containers.iter().flat_map(move |(id, ContainerOwners { slots, device_rules })| {
            let slots = slots.iter().filter(move |(_, owner)| is_its(owner.plugin()));
            let rules = device_rules.values().filter(move |owner| is_its(owner));
            let fields = slots.map(|((field, _), _)| *field);
            fields.chain(rules.map(|_| NriField::Devices)).map(|field| (id.as_str(), field))
        })
    }

    /// Makes later claims revocable by [`Owners::roll_back`]. The cost of a rollback depends on the
    /// number of these claims, not on the container.
    pub(crate) fn begin(&mut self) {
        self.journal = Some(Vec::new());
    }

    /// Keeps the claims since [`Owners::begin`].
    pub(crate) fn commit(&mut self) {
        self.journal = None;
    }

    /// Reverts the claims in this container since [`Owners::begin`].
    pub(crate) fn roll_back(&mut self, container: &str) {
        let journal = self.journal.take().unwrap_or_default();
        let owned = self.of_mut(container);
        for before in journal.into_iter().rev() {
            match before {
                Before::Slot(slot, Some(owner)) => drop(owned.slots.insert(slot, owner)),
                Before::Slot(slot, None) => drop(owned.slots.remove(&slot)),
                Before::Rule(rule, Some(owner)) => drop(owned.device_rules.insert(rule, owner)),
                Before::Rule(rule, None) => drop(owned.device_rules.remove(&rule)),
            }
        }
        if *owned == ContainerOwners::default() {
            self.containers.remove(container);
        }
    }

    /// Converts the owners to the form that validators receive.
    pub(crate) fn to_api(&self) -> api::OwningPlugins {
        let owners = self.containers.iter().map(|(id, owned)| (id.clone(), owned.to_api()));
        api::OwningPlugins { owners: owners.collect(), ..Default::default() }
    }

    /// Returns the owners of a container's fields, as operators see them: `Env[PATH]` with `10-foo`.
    pub fn to_flat(&self, container: &str) -> BTreeMap<String, String> {
        let Some(ContainerOwners { slots, device_rules }) = self.containers.get(container) else {
            return BTreeMap::new();
        };
        let named = slots
            .iter()
            .map(|((field, key), owner)| (flat_name(*field, key.as_deref()), owner.to_string()));
        let rules = device_rules.iter().map(|(rule, owner)| (rule_name(rule), owner.clone()));
        named.chain(rules).collect()
    }

    /// Returns the plugin that set or removed a field, by the field's name in [`Owners::to_flat`].
    pub(crate) fn plugin_of(&self, container: &str, name: &str) -> Option<String> {
        let ContainerOwners { slots, device_rules } = self.containers.get(container)?;
        let owner =
            slots.iter().find(|((field, key), _)| flat_name(*field, key.as_deref()) == name);
        let rule = || device_rules.iter().find(|(rule, _)| rule_name(rule) == name);
        let plugin = owner.map(|(_, owner)| owner.plugin().to_owned());
        plugin.or_else(|| rule().map(|(_, plugin)| plugin.clone()))
    }

    fn of_mut(&mut self, container: &str) -> &mut ContainerOwners {
        self.containers.entry(container.to_owned()).or_default()
    }
}

pub(crate) fn flat_name(field: NriField, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{field}[{key}]"),
        None => field.to_string(),
    }
}

pub(crate) fn rule_name(rule: &str) -> String {
    format!("DeviceRules[{rule}]")
}

impl ContainerOwners {
    fn to_api(&self) -> api::FieldOwners {
        let mut owners = api::FieldOwners::new();
        for ((field, key), owner) in &self.slots {
            match key {
                None => {
                    owners.simple.insert(field.number(), owner.to_string());
                }
                Some(key) => {
                    let compound = owners.compound.entry(field.number()).or_default();
                    compound.owners.insert(key.clone(), owner.to_string());
                }
            }
        }
        owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: &str = "c0";

    fn claimed(field: NriField, key: Option<&str>) -> Owners {
        let mut owners = Owners::default();
        owners.claim(C, field, key, "00-bar").unwrap();
        owners
    }

    #[test]
    fn a_second_claim_is_refused_in_one_line_naming_both_plugins() {
        let mut owners = claimed(NriField::Env, Some("KEY"));
        let conflict = owners.claim(C, NriField::Env, Some("KEY"), "10-foo").unwrap_err();
        assert_eq!(
            conflict.to_string(),
            r#"plugins "10-foo" and "00-bar" both tried to set Env KEY of container c0"#
        );
        assert_eq!(owners, claimed(NriField::Env, Some("KEY")));
    }

    #[test]
    fn a_conflict_over_a_simple_field_has_no_stray_blank() {
        let mut owners = claimed(NriField::CPUShares, None);
        let conflict = owners.claim(C, NriField::CPUShares, None, "10-foo").unwrap_err();
        assert_eq!(
            conflict.to_string(),
            r#"plugins "10-foo" and "00-bar" both tried to set CPUShares of container c0"#
        );
    }

    #[test]
    fn a_plugin_that_sets_a_value_twice_conflicts_with_itself() {
        let mut owners = claimed(NriField::Mounts, Some("/d"));
        let conflict = owners.claim(C, NriField::Mounts, Some("/d"), "00-bar").unwrap_err();
        assert_eq!(conflict.to_string(), r#"plugin "00-bar" set Mounts /d twice in container c0"#);
    }

    #[test]
    fn foreign_text_in_a_conflict_cannot_break_the_line() {
        let key = "a\nb\u{1b}[2J";
        let mut owners = claimed(NriField::Annotations, Some(key));
        let line =
            owners.claim(C, NriField::Annotations, Some(key), "10-foo").unwrap_err().to_string();
        assert!(!line.contains(char::is_control) && line.contains("a b\\u{1b}[2J"), "{line}");
    }

    #[test]
    fn each_container_field_and_key_has_a_separate_owner() {
        let mut owners = claimed(NriField::Env, Some("A"));
        owners.claim(C, NriField::Env, Some("B"), "10-foo").unwrap();
        owners.claim(C, NriField::Annotations, Some("A"), "10-foo").unwrap();
        owners.claim("c1", NriField::Env, Some("A"), "10-foo").unwrap();
        let whose = |container| owners.owner(container, NriField::Env, Some("A"));
        assert_ne!(whose("c0"), whose("c1"));
    }

    #[test]
    fn only_the_plugin_that_cleared_a_field_may_claim_it() {
        let mut owners = claimed(NriField::Env, Some("A"));
        owners.clear(C, NriField::Env, Some("A"), "10-foo");
        let conflict = owners.claim(C, NriField::Env, Some("A"), "20-baz").unwrap_err();
        assert_eq!((conflict.new.as_str(), conflict.old.as_str()), ("20-baz", "10-foo"));
        assert!(owners.claim(C, NriField::Env, Some("A"), "00-bar").is_err());
        owners.claim(C, NriField::Env, Some("A"), "10-foo").unwrap();
        assert_eq!(owners.to_flat(C)["Env[A]"], "10-foo");
    }

    #[test]
    fn the_last_plugin_that_cleared_a_field_may_claim_it() {
        let mut owners = Owners::default();
        owners.clear(C, NriField::Sysctl, Some("a"), "10-foo");
        owners.clear(C, NriField::Sysctl, Some("a"), "20-baz");
        owners.claim(C, NriField::Sysctl, Some("a"), "20-baz").unwrap();
    }

    #[test]
    fn hooks_keep_all_their_owners() {
        let mut owners = Owners::default();
        for plugin in ["00-a", "10-b", "20-c"] {
            owners.accumulate(C, NriField::OciHooks, plugin);
        }
        assert_eq!(owners.to_flat(C)["OciHooks"], "00-a,10-b,20-c");
        assert_eq!(owners.to_api().owners[C].simple[&3], "00-a,10-b,20-c");
    }

    #[test]
    fn validators_receive_all_owners_by_field_number() {
        let mut owners = claimed(NriField::Env, Some("A"));
        owners.claim(C, NriField::Args, None, "00-bar").unwrap();
        owners.clear(C, NriField::Sysctl, Some("k"), "10-foo");
        let api = owners.to_api();
        let of = &api.owners[C];
        assert_eq!(of.simple.len(), 1);
        assert_eq!(of.simple[&7], "00-bar");
        assert_eq!(of.compound[&6].owners["A"], "00-bar");
        assert_eq!(of.compound[&34].owners["k"], "-10-foo");
    }

    #[test]
    fn the_flat_list_of_owners_has_keys_in_brackets() {
        let mut owners = claimed(NriField::Env, Some("PATH"));
        owners.claim(C, NriField::CPUShares, None, "10-foo").unwrap();
        owners.claim("c1", NriField::CPUQuota, None, "10-foo").unwrap();
        owners.note_device_rule(C, "allow c 1:3 rwm".to_owned(), "10-foo");
        owners.note_device_rule(C, "allow c 1:3 rwm".to_owned(), "20-baz");
        let flat: Vec<(String, String)> = owners.to_flat(C).into_iter().collect();
        let flat: Vec<(&str, &str)> = flat.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            flat,
            [
                ("CPUShares", "10-foo"),
                ("DeviceRules[allow c 1:3 rwm]", "10-foo,20-baz"),
                ("Env[PATH]", "00-bar")
            ]
        );
        assert!(owners.to_flat("c2").is_empty());
    }
}
