// SPDX-License-Identifier: Apache-2.0
//! Defines the reasons why a container was not updated.

use std::fmt;
use std::time::Duration;

use crate::cgroup::{Unfit, WriteError};

pub(crate) type Result<T, E = UpdateError> = std::result::Result<T, E>;

/// The reason why a container was not updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UpdateError {
    /// No container has this ID.
    Unknown,
    /// The container is its pod's infrastructure container.
    Sandbox,
    /// The container's process has exited.
    Gone,
    /// The container's creation failed.
    NotCreated,
    /// The container is being started; an update waits until the start has ended.
    Starting,
    /// Another update of the container takes too long.
    Busy,
    /// This many updates in a row failed, so none is tried for this long.
    Paused(u32, Duration),
    /// The values cannot be set.
    Refused(Refusal),
    /// The values cannot be set while the container is frozen.
    Frozen(String),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("this container is unknown"),
            Self::Sandbox => f.write_str("it is its pod's infrastructure container"),
            Self::Gone => f.write_str("it has ended"),
            Self::NotCreated => f.write_str("it was not created"),
            Self::Starting => f.write_str("it is being started"),
            Self::Busy => f.write_str("another update of this container takes too long"),
            Self::Paused(failures, left) => write!(
                f,
                "it failed {failures} times in a row and is not tried for {} ms",
                left.as_millis()
            ),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Frozen(why) => write!(f, "{why}, while it is frozen"),
        }
    }
}

/// The field of an update that cannot be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RefusedField {
    /// The path of the field below `linux.resources`.
    Path(String),
    /// NRI's name of the field, if it sets a class.
    Class(&'static str),
}

/// The reason why values cannot be set, and the field if it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) field: Option<RefusedField>,
    why: String,
}

impl Refusal {
    /// Appends text to the reason.
    pub(super) fn and(self, more: &str) -> Self {
        Self { why: format!("{}{more}", self.why), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(RefusedField::Path(path)) => write!(f, "{path}: ")?,
            Some(RefusedField::Class(name)) => write!(f, "{name}: ")?,
            None => {}
        }
        f.write_str(&self.why)
    }
}

impl UpdateError {
    /// Creates a refusal of the whole update.
    pub(crate) fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(Refusal { field: None, why: why.to_string() })
    }

    /// Creates a refusal of one field.
    pub(crate) fn refused_field(field: RefusedField, why: impl Into<String>) -> Self {
        Self::Refused(Refusal { field: Some(field), why: why.into() })
    }
}

impl From<WriteError> for UpdateError {
    fn from(failed: WriteError) -> Self {
        Self::refused_field(RefusedField::Path(failed.field), failed.why)
    }
}

impl From<Unfit> for UpdateError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Refused { field, why } => Self::refused_field(RefusedField::Path(field), why),
            Unfit::NotDirect(_) => Self::refused(unfit),
        }
    }
}
