// SPDX-License-Identifier: Apache-2.0
//! The identity of a plugin: its index and its name, with checks of both. Whether another plugin
//! has the same identity is not checked here.

use std::fmt;

use crate::text::cut;

/// Maximum length of a plugin's name, in bytes. The name is used as a file name, a metrics label
/// and a table column.
pub const PLUGIN_NAME: usize = 64;
/// Maximum length of the NRI version that a plugin states, in bytes; the rest is cut.
const NRI_VERSION: usize = 64;

/// Index, name and NRI version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginIdentity {
    /// Two digits.
    pub index: String,
    /// The plugin's name.
    pub name: String,
    /// Version of the plugin's NRI library, empty before v0.12.
    pub nri_version: String,
}

impl fmt::Display for PluginIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

impl PluginIdentity {
    /// Checks a claimed identity. A name may have the characters that NRI's own adaptation permits
    /// (v0.12.5), `+` among them, so that a plugin that registers with containerd or CRI-O also
    /// registers here. None of these characters has a special meaning in a path, a metrics label, a
    /// pattern or a terminal.
    ///
    /// # Errors
    /// Fails on an index that is not two digits, and on a name that is empty, too long, or has
    /// other characters than letters, digits, `_`, `.`, `+`, `-`.
    pub fn checked(index: &str, name: &str, nri_version: &str) -> Result<Self, String> {
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            let index = cut(index, PLUGIN_NAME);
            return Err(format!("invalid plugin index {index:?}, must be 2 digits"));
        }
        if name.is_empty() {
            return Err("invalid plugin name: name is empty".to_owned());
        }
        if name.len() > PLUGIN_NAME {
            let (name, most) = (cut(name, PLUGIN_NAME), PLUGIN_NAME);
            return Err(format!("invalid plugin name {name:?}: longer than {most} bytes"));
        }
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        if let Some(odd) = name.chars().find(|c| !is_fine(*c)) {
            return Err(format!(
                "invalid plugin name {name:?}: contains invalid character {odd:?}"
            ));
        }
        Ok(Self::launched(index, name, nri_version))
    }

    /// Returns the identity of a launched plugin, without a check: the runtime took index and name
    /// from the plugin's file name.
    #[must_use]
    pub fn launched(index: &str, name: &str, nri_version: &str) -> Self {
        let nri_version = cut(nri_version, NRI_VERSION).into_owned();
        Self { index: index.to_owned(), name: name.to_owned(), nri_version }
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
    fn a_name_has_the_characters_that_nri_permits_and_no_others() {
        let all = (0..=char::from(255).into()).filter_map(char::from_u32);
        let fine = all.filter(|c| PluginIdentity::checked("10", &format!("a{c}"), "").is_ok());
        let wanted: String = ['+', '-', '.']
            .into_iter()
            .chain('0'..='9')
            .chain('A'..='Z')
            .chain(['_'])
            .chain('a'..='z')
            .collect();
        assert_eq!(fine.collect::<String>(), wanted);
    }

    #[test]
    fn an_overlong_identity_is_not_stored_or_quoted() {
        let long = "1".repeat(1 << 20);
        for refused in [("10", long.as_str()), (long.as_str(), "a")] {
            let why = PluginIdentity::checked(refused.0, refused.1, "").unwrap_err();
            assert!(why.len() < 200 && why.contains("(1048576 bytes)"), "{why}");
        }
        let identity = PluginIdentity::checked("10", "a", &long).unwrap();
        assert!(identity.nri_version.len() < 100);
    }

    #[test]
    fn invalid_identities_are_refused() {
        let long = "a".repeat(PLUGIN_NAME + 1);
        assert!(PluginIdentity::checked("10", &long[1..], "").is_ok());
        for (index, name) in [
            ("10", long.as_str()),
            ("1", "a"),
            ("100", "a"),
            ("1a", "a"),
            ("10", ""),
            ("10", "a b"),
        ] {
            assert!(PluginIdentity::checked(index, name, "").is_err(), "{index}-{name}");
        }
    }
}
