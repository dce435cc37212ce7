// SPDX-License-Identifier: Apache-2.0
//! What the operator lets a plugin set.
//!
//! `[plugin.NAME] allow` and `deny` name fields; without either a plugin may set everything, as
//! in the reference. `deny` wins over `allow`. Nothing here reads a configuration.

use std::collections::BTreeSet;

use super::fields::NriField;
use crate::error::{Error, Result, quoted};

/// The fields that one plugin may set. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// If present, nothing but these.
    pub allow: Option<BTreeSet<NriField>>,
    /// Never these.
    pub deny: BTreeSet<NriField>,
}

impl Rights {
    /// Reads two lists of field names; an unknown name is an error, since a typing mistake in
    /// `deny` must not open what was meant to be closed.
    pub fn from_names<S: AsRef<str>>(allow: Option<&[S]>, deny: &[S]) -> Result<Self> {
        Ok(Self { allow: allow.map(fields).transpose()?, deny: fields(deny)? })
    }

    /// Whether the plugin may set `field`.
    pub fn permit(&self, field: NriField) -> bool {
        !self.deny.contains(&field) && self.allow.as_ref().is_none_or(|only| only.contains(&field))
    }
}

fn fields<S: AsRef<str>>(names: &[S]) -> Result<BTreeSet<NriField>> {
    let field = |name: &S| {
        let name = name.as_ref();
        NriField::from_name(name).ok_or_else(|| {
            Error::new(format!("{:?} is not a field that plugins can set", quoted(name)))
                .hint("names are those of NRI, like Env, Mounts or OciHooks")
        })
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
