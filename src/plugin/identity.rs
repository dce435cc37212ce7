// SPDX-License-Identifier: Apache-2.0
//! The identity of a plugin: index and name, and which of them are valid. Whether another plugin
//! has the same one is not checked here.

use std::fmt;

/// Index, name and NRI version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginIdentity {
    /// Two digits.
    pub index: String,
    /// Its name.
    pub name: String,
    /// Version of its NRI library, empty before v0.12.
    pub nri_version: String,
}

impl fmt::Display for PluginIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

impl PluginIdentity {
    /// Checks a claimed identity.
    ///
    /// # Errors
    /// Fails on an index that is no two digits, and on a name with other characters than
    /// letters, digits, `_`, `.`, `+`, `-`.
    pub fn checked(index: &str, name: &str, nri_version: &str) -> Result<Self, String> {
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("invalid plugin index {index:?}, must be 2 digits"));
        }
        if name.is_empty() {
            return Err("invalid plugin name: name is empty".to_owned());
        }
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        if let Some(odd) = name.chars().find(|c| !is_fine(*c)) {
            return Err(format!(
                "invalid plugin name {name:?}: contains invalid character {odd:?}"
            ));
        }
        let (index, name) = (index.to_owned(), name.to_owned());
        Ok(Self { index, name, nri_version: nri_version.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_shown_as_index_and_name() {
        let identity = PluginIdentity::checked("05", "my.plugin_2+x", "v0.12.5").unwrap();
        assert_eq!(identity.to_string(), "05-my.plugin_2+x");
    }

    #[test]
    fn odd_identities_are_refused() {
        for (index, name) in [("1", "a"), ("100", "a"), ("1a", "a"), ("10", ""), ("10", "a b")] {
            assert!(PluginIdentity::checked(index, name, "").is_err(), "{index}-{name}");
        }
    }
}
