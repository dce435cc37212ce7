// SPDX-License-Identifier: Apache-2.0
//! The fields that the operator permits a plugin to set.
//!
//! `[plugin.NAME] allow` and `deny` name fields; without either a plugin may set everything, as in
//! the reference. `deny` overrides `allow`. Rules restrict fields in single containers (D44): the
//! plugin's section and the rule must both permit a field. Nothing here reads a configuration or
//! selects a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::claims::{self, MergeError};
use crate::fields::{FieldSet, NriField};
use crate::quoted;

/// The fields that one plugin may set; all of them by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// If present, the only fields that the plugin may set.
    pub allow: Option<BTreeSet<NriField>>,
    /// The fields that the plugin may not set.
    pub deny: BTreeSet<NriField>,
    /// Decisions of rules about single containers, by container ID.
    pub ruled: BTreeMap<String, RuleDecision>,
}

/// The decision of one rule about a plugin and a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The rule's name.
    pub rule: String,
    /// The fields that the rule permits, and whether it permits evictions.
    pub permits: FieldSet,
    /// Whether the rule hides pods (`hide`); it then permits nothing. [`RuleDecision::is_hidden`] says whether this pod
    /// is hidden: in audit mode it is not.
    pub hides: bool,
    /// Whether the plugin's change is made and recorded although the rule does not permit it.
    pub is_audit: bool,
}

/// The decision of all rules about a plugin and a pod, or a container of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleDecision {
    /// The rules that apply, in order: usually none or one. While the pod's facts are uncertain, every rule that may
    /// match, up to the first certain match. In an unprivileged user's daemon, the rule about root's fields comes
    /// first.
    pub rulings: Vec<Arc<Ruling>>,
    /// Whether the pod or container is hidden from the plugin.
    pub is_hidden: bool,
}

impl RuleDecision {
    /// Returns the rule that hides the pod or container from the plugin.
    pub fn hidden_by(&self) -> Option<&Ruling> {
        self.rulings.iter().find(|ruling| ruling.hides).filter(|_| self.is_hidden).map(Arc::as_ref)
    }
}

/// A request of a plugin that a rule does not permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forbidden {
    /// To set a field.
    Field(NriField),
    /// To evict a container.
    Eviction,
    /// To receive anything about a container.
    Knowledge,
}

/// A request that a rule did not permit, or in audit mode would not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleNote {
    /// The requesting plugin.
    pub plugin: String,
    /// The container.
    pub container: String,
    /// The request.
    pub what: Forbidden,
    /// The rule's name.
    pub rule: String,
}

impl RuleNote {
    /// Returns the name of the requested field as `allow` and `deny` spell it, `Eviction`, or `*`
    /// for [`Forbidden::Knowledge`].
    pub fn field(&self) -> &'static str {
        match self.what {
            Forbidden::Field(field) => field.name(),
            Forbidden::Eviction => "Eviction",
            Forbidden::Knowledge => "*",
        }
    }
}

impl fmt::Display for RuleNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugin, container, what, rule } = self;
        let (plugin, container, rule) = (quoted(plugin), quoted(container), quoted(rule));
        match what {
            Forbidden::Field(field) => write!(
                f,
                "plugin \"{plugin}\" may not set {field} of container {container} (rule \"{rule}\")"
            ),
            Forbidden::Eviction => {
                write!(
                    f,
                    "plugin \"{plugin}\" may not evict container {container} (rule \"{rule}\")"
                )
            }
            Forbidden::Knowledge => {
                write!(
                    f,
                    "plugin \"{plugin}\" may not know of container {container} (rule \"{rule}\")"
                )
            }
        }
    }
}

impl Rights {
    /// Parses two lists of field names. An unknown name is an error, because a mistyped name in
    /// `deny` must not permit the field.
    ///
    /// # Errors
    /// Fails at the first name that is not one of NRI's fields.
    pub fn from_names<S: AsRef<str>>(
        allow: Option<&[S]>,
        deny: &[S],
    ) -> Result<Self, UnknownField> {
        let (allow, deny) = (allow.map(fields).transpose()?, fields(deny)?);
        Ok(Self { allow, deny, ruled: BTreeMap::new() })
    }

    /// Returns the rule that hides this container from the plugin.
    pub fn hidden_by(&self, container: &str) -> Option<&Ruling> {
        self.ruled.get(container)?.hidden_by()
    }

    /// Returns the rules that do not permit `wanted`: the first enforced one, and all in audit mode.
    pub(crate) fn objections(
        &self,
        container: &str,
        wanted: FieldSet,
    ) -> (Option<&Ruling>, impl Iterator<Item = &Ruling>) {
        let decision = self.ruled.get(container);
        let against = move || {
            let rulings = decision.into_iter().flat_map(|decision| &decision.rulings);
            rulings.map(Arc::as_ref).filter(move |ruling| !ruling.permits.has(wanted))
        };
        (against().find(|ruling| !ruling.is_audit), against().filter(|ruling| ruling.is_audit))
    }

    /// Checks that a plugin may set a field of a container, for a change that is not in an adjustment.
    /// Returns what a rule in audit mode would refuse.
    ///
    /// # Errors
    /// Fails if the operator does not permit the field.
    pub fn permit_in(
        &self,
        plugin: &str,
        container: &str,
        field: NriField,
    ) -> Result<BTreeSet<RuleNote>, MergeError> {
        let mut noted = BTreeSet::new();
        claims::check(self, plugin, container, field, &mut noted)?;
        Ok(noted)
    }

    /// Whether `allow` and `deny` permit the plugin to set `field`. A rule may still forbid it.
    pub fn permit(&self, field: NriField) -> bool {
        !self.deny.contains(&field) && self.allow.as_ref().is_none_or(|only| only.contains(&field))
    }
}

/// A name in the operator's settings that is not one of NRI's fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is not a field that plugins can set", quoted(name))]
pub struct UnknownField {
    /// The name as it was written.
    pub name: String,
}

fn fields<S: AsRef<str>>(names: &[S]) -> Result<BTreeSet<NriField>, UnknownField> {
    let field = |name: &S| {
        let name = name.as_ref();
        NriField::from_name(name).ok_or_else(|| UnknownField { name: name.to_owned() })
    };
    names.iter().map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &[&str] = &[];

    #[test]
    fn without_lists_everything_is_permitted() {
        let rights = Rights::from_names(None, NONE).unwrap();
        assert!(NriField::ALL.into_iter().all(|field| rights.permit(field)));
    }

    #[test]
    fn deny_wins_over_allow_and_an_empty_allow_permits_nothing() {
        let rights = Rights::from_names(Some(&["Env", "Mounts"]), &["Mounts"]).unwrap();
        let permitted: Vec<NriField> =
            NriField::ALL.into_iter().filter(|f| rights.permit(*f)).collect();
        assert_eq!(permitted, [NriField::Env]);
        let rights = Rights::from_names(Some(NONE), NONE).unwrap();
        assert!(!NriField::ALL.into_iter().any(|field| rights.permit(field)));
    }

    #[test]
    fn a_mistyped_field_is_an_error_that_names_it() {
        let error = Rights::from_names(None, &["OCIHooks"]).unwrap_err().to_string();
        assert!(error.contains("\"OCIHooks\""), "{error}");
    }
}
