// SPDX-License-Identifier: Apache-2.0
//! The operator's decision about an engine's own NRI, and that NRI's setting in the engine's files:
//! types that the engines' plans, the ledger and `own_nri.rs` share.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Default plugin socket next to an engine's own NRI.
pub(super) const BESIDE_SOCKET: &str = "/var/run/nri/nri-runc.sock";

/// Maximum bytes of a socket's path, without the terminating NUL (unix(7)).
const LONGEST_SOCKET_PATH: usize = 107;

/// The operator's decision about an engine's own NRI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NriDecision {
    /// Undecided: `install` refuses if an engine serves plugins.
    #[default]
    Open,
    /// The engine's NRI is switched off.
    TakeOver,
    /// The engine's NRI stays on, and nri-runc listens on this socket.
    Beside(String),
}

impl NriDecision {
    /// Reads the options of `install`.
    ///
    /// # Errors
    /// Fails when the path cannot be a socket's path.
    pub(super) fn of(takes_over: bool, beside: Option<&str>) -> Result<Self> {
        let Some(socket) = beside else {
            return Ok(if takes_over { Self::TakeOver } else { Self::Open });
        };
        let is_plain = !socket.chars().any(char::is_control) && !socket.ends_with('/');
        if socket.starts_with('/') && is_plain && socket.len() <= LONGEST_SOCKET_PATH {
            return Ok(Self::Beside(socket.to_owned()));
        }
        Err(Error::new(format!("{socket:?} cannot be the path of a socket")).hint(format!(
            "give the absolute path of a file, of at most {LONGEST_SOCKET_PATH} bytes: --beside={BESIDE_SOCKET}"
        )))
    }
}

/// The setting of an engine's own NRI in its files.
#[derive(Debug)]
pub(super) struct NriSetting {
    /// Whether the engine's NRI is on; `None` if no file sets it.
    pub(super) is_on: Option<bool>,
    /// The path of the socket of the engine's NRI.
    pub(super) socket: String,
    /// Whether every version that reads this form of configuration has NRI on by default.
    pub(super) is_on_by_form: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_socket_path_is_refused() {
        let long = format!("/{}", "x".repeat(LONGEST_SOCKET_PATH));
        for path in ["nri.sock", "", "/run/nri/", "/run/a\nb", long.as_str()] {
            let refused = NriDecision::of(false, Some(path)).unwrap_err().to_string();
            assert!(refused.contains("cannot be the path of a socket"), "{refused}");
        }
        let longest = &long[..LONGEST_SOCKET_PATH];
        assert_eq!(
            NriDecision::of(false, Some(longest)).unwrap(),
            NriDecision::Beside(longest.to_owned())
        );
    }
}
