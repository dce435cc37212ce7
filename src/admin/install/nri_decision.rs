// SPDX-License-Identifier: Apache-2.0
//! What an operator decides about an engine's own NRI, and what the engine's files say of it: the
//! words that the engines' plans, the record of an installation and `own_nri.rs` share.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where nri-runc listens beside an engine's own NRI, unless another path is given.
pub(super) const BESIDE_SOCKET: &str = "/var/run/nri/nri-runc.sock";

/// The longest path of a socket, without the byte that ends it (unix(7)).
const LONGEST_SOCKET_PATH: usize = 107;

/// What becomes of an engine's own NRI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NriDecision {
    /// Nobody decided: `install` refuses where an engine serves plugins.
    #[default]
    Open,
    /// It is switched off.
    TakeOver,
    /// It stays on, and nri-runc listens on this socket.
    Beside(String),
}

impl NriDecision {
    /// What the options of `install` say.
    ///
    /// # Errors
    /// Fails when the path cannot be that of a socket.
    pub(super) fn of(takes_over: bool, beside: Option<&str>) -> Result<Self> {
        let Some(socket) = beside else {
            return Ok(if takes_over { Self::TakeOver } else { Self::Open });
        };
        let is_plain = !socket.chars().any(char::is_control) && !socket.ends_with('/');
        if socket.starts_with('/') && is_plain && socket.len() <= LONGEST_SOCKET_PATH {
            return Ok(Self::Beside(socket.to_owned()));
        }
        Err(Error::new(format!("{socket:?} cannot be the path of a socket")).hint(format!(
            "give an absolute path of at most {LONGEST_SOCKET_PATH} bytes: --beside={BESIDE_SOCKET}"
        )))
    }
}

/// What an engine's files say of its own NRI.
#[derive(Debug)]
pub(super) struct NriSetting {
    /// Whether it is on; `None` where no file says so.
    pub(super) is_on: Option<bool>,
    /// Where it listens.
    pub(super) socket: String,
    /// Whether only versions read these files that have it on by default.
    pub(super) is_on_by_form: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_socket_is_refused() {
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
