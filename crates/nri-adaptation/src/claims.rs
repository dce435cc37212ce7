// SPDX-License-Identifier: Apache-2.0
//! Claims fields of a container for a plugin, if the plugin may set them and no other plugin owns them.
//!
//! Every setter claims a field here before it changes the field, so that no field is set without a recorded owner, or
//! against the operator's `allow`, `deny` and rules. When all replies are merged, `Creation::check_owned` compares the
//! owners with them again. Values are not examined.

use std::collections::BTreeSet;

use crate::bounds::TooMany;
use crate::fields::{FieldSet, NriField};
use crate::owners::{Conflict, Owner, Owners};
use crate::quoted;
use crate::rights::{Forbidden, Rights, RuleNote};

/// The reason why a plugin's reply was refused. A refused reply is not applied at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Another plugin owns the field, or the reply sets it twice.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The plugin updated the container being created, which it may only adjust.
    #[error(
        "plugin \"{}\" asked update of \"{}\" during creation",
        quoted(plugin),
        quoted(container)
    )]
    UpdateOfSubject {
        /// The requesting plugin.
        plugin: String,
        /// The container being created.
        container: String,
    },
    /// The plugin evicted the container being created.
    #[error(
        "plugin \"{}\" asked eviction of \"{}\" during creation",
        quoted(plugin),
        quoted(container)
    )]
    EvictionOfSubject {
        /// The requesting plugin.
        plugin: String,
        /// The container being created.
        container: String,
    },
    /// The plugin's `allow` or `deny` forbids the change.
    #[error(
        "plugin \"{0}\" may not set {field} of container {1} \
         (see allow and deny for this plugin in the configuration)",
        quoted(plugin),
        quoted(container)
    )]
    NotAllowed {
        /// The requesting plugin.
        plugin: String,
        /// The field that the plugin may not set.
        field: NriField,
        /// The container.
        container: String,
    },
    /// A rule of the operator forbids the change.
    #[error("{0}")]
    AgainstRule(RuleNote),
    /// The reply has more entries than any plugin needs.
    #[error("plugin \"{}\" answered with {what}", quoted(plugin))]
    TooMany {
        /// The plugin that answered.
        plugin: String,
        /// The list or map with too many entries, or all of them together.
        what: TooMany,
    },
    /// The command line would be replaced by an empty one.
    #[error(
        "plugin \"{}\" set Args of container {} to an empty command",
        quoted(plugin),
        quoted(container)
    )]
    EmptyArgs {
        /// The requesting plugin.
        plugin: String,
        /// The container.
        container: String,
    },
}

/// The claims of one plugin in one container.
pub(crate) struct FieldClaims<'a> {
    pub(crate) plugin: &'a str,
    pub(crate) rights: &'a Rights,
    pub(crate) container: &'a str,
    pub(crate) owners: &'a mut Owners,
    /// Changes that are made although a rule in audit mode would refuse them.
    pub(crate) noted: &'a mut BTreeSet<RuleNote>,
}

impl FieldClaims<'_> {
    /// Claims a simple field.
    pub(crate) fn claim(&mut self, field: NriField) -> Result<(), MergeError> {
        self.permit(field)?;
        Ok(self.owners.claim(self.container, field, None, self.plugin)?)
    }

    /// Claims, in this order, the simple fields that are marked as present.
    pub(crate) fn claim_present<const N: usize>(
        &mut self,
        fields: [(bool, NriField); N],
    ) -> Result<(), MergeError> {
        let mut present = fields.into_iter().filter(|(present, _)| *present);
        present.try_for_each(|(_, field)| self.claim(field))
    }

    /// Claims one key of a compound field.
    pub(crate) fn claim_key(&mut self, field: NriField, key: &str) -> Result<(), MergeError> {
        self.permit(field)?;
        Ok(self.owners.claim(self.container, field, Some(key), self.plugin)?)
    }

    /// Removes a field's owner, so that this plugin may claim the field.
    pub(crate) fn clear(&mut self, field: NriField, key: Option<&str>) -> Result<(), MergeError> {
        self.permit(field)?;
        self.owners.clear(self.container, field, key, self.plugin);
        Ok(())
    }

    /// Adds the plugin to the owners of a field that cannot conflict.
    pub(crate) fn accumulate(&mut self, field: NriField) -> Result<(), MergeError> {
        self.permit(field)?;
        self.owners.accumulate(self.container, field, self.plugin);
        Ok(())
    }

    /// Records a cgroup device rule; a plugin that may not add devices may not grant access to them
    /// either.
    pub(crate) fn device_rule(&mut self, rule: String) -> Result<(), MergeError> {
        self.permit(NriField::Devices)?;
        self.owners.note_device_rule(self.container, rule, self.plugin);
        Ok(())
    }

    /// Records the removal of a value of the original container; other plugins may still set it.
    pub(crate) fn note_removal(&mut self, field: NriField, key: &str) -> Result<(), MergeError> {
        self.permit(field)?;
        self.owners.note_removal(self.container, field, key, self.plugin);
        Ok(())
    }

    /// Whether a plugin has set this key, or has cleared it so that others may not set it.
    pub(crate) fn is_owned(&self, field: NriField, key: &str) -> bool {
        let owner = self.owners.owner(self.container, field, Some(key));
        matches!(owner, Some(Owner::Set(_) | Owner::Cleared(_)))
    }

    fn permit(&mut self, field: NriField) -> Result<(), MergeError> {
        check(self.rights, self.plugin, self.container, field, self.noted)
    }
}

/// Refuses a field that the plugin's `allow` and `deny`, or a rule, forbid in this container; records in
/// `noted` one that an audit rule would refuse.
pub(crate) fn check(
    rights: &Rights,
    plugin: &str,
    container: &str,
    field: NriField,
    noted: &mut BTreeSet<RuleNote>,
) -> Result<(), MergeError> {
    if !rights.permit(field) {
        let (plugin, container) = (plugin.to_owned(), container.to_owned());
        return Err(MergeError::NotAllowed { plugin, field, container });
    }
    permit_by_rules(rights, plugin, container, Forbidden::Field(field), noted)
}

/// Refuses a request that a rule does not permit, and records one that an audit rule would refuse.
pub(crate) fn permit_by_rules(
    rights: &Rights,
    plugin: &str,
    container: &str,
    what: Forbidden,
    noted: &mut BTreeSet<RuleNote>,
) -> Result<(), MergeError> {
    let wanted = match what {
        Forbidden::Field(field) => FieldSet::of(field),
        Forbidden::Eviction | Forbidden::Knowledge => FieldSet::EVICTION,
    };
    let note = |rule: &str| RuleNote {
        plugin: plugin.to_owned(),
        container: container.to_owned(),
        what,
        rule: rule.to_owned(),
    };
    let (refusing, noting) = rights.objections(container, wanted);
    if let Some(ruling) = refusing {
        return Err(MergeError::AgainstRule(note(&ruling.rule)));
    }
    noted.extend(noting.map(|ruling| note(&ruling.rule)));
    Ok(())
}
