// SPDX-License-Identifier: Apache-2.0
//! The socket that plugins connect to (decisions D11, D12).
//!
//! It never unlinks a socket that somebody listens on: containerd and CRI-O use the same default
//! path for plugins, and would lose theirs without a word.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::config::Config;
use crate::error::{Context, Result};

/// Why there is no socket for plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlugins {
    /// `disable_connections`.
    SwitchedOff,
    /// Somebody else listens there, most likely the engine's own NRI.
    Taken,
    /// It could not be made.
    Failed(String),
}

impl std::fmt::Display for NoPlugins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("nri.disable_connections is set"),
            Self::Taken => f.write_str(
                "somebody listens on nri.socket_path, most likely the engine's own NRI: disable one of them",
            ),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The socket for plugins, or why there is none.
///
/// # Errors
/// Says why plugins cannot connect.
pub fn for_plugins(config: &Config) -> std::result::Result<UnixListener, NoPlugins> {
    if config.disable_connections {
        return Err(NoPlugins::SwitchedOff);
    }
    let path = &config.socket_path;
    if UnixStream::connect(path).is_ok() {
        return Err(NoPlugins::Taken);
    }
    let made = path.parent().map_or(Ok(()), |parent| {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)
    });
    if let Err(error) = made {
        let why = crate::error::in_our_words(&error);
        return Err(NoPlugins::Failed(format!("making the folder of {}: {why}", path.display())));
    }
    let _stale = std::fs::remove_file(path);
    bind(path, config.socket_mode, config.socket_gid)
        .map_err(|error| NoPlugins::Failed(error.to_string()))
}

/// Listens on `path` with this mode and group from the first moment on.
///
/// # Errors
/// Fails when the folder refuses.
pub fn bind(path: &Path, mode: u32, gid: Option<u32>) -> Result<UnixListener> {
    let doing = || format!("listening on {}", path.display());
    // Bound under another name and then renamed: nobody can connect before the mode is right.
    let temporary = path.with_extension(format!("new.{}", std::process::id()));
    let _stale = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary).doing(doing)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode)).doing(doing)?;
    if gid.is_some() {
        chown(&temporary, None, gid).doing(doing)?;
    }
    std::fs::rename(&temporary, path).doing(doing)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        Config { socket_path: dir.join("nri/nri.sock"), ..Config::default() }
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        drop(for_plugins(&config).unwrap());
        assert!(for_plugins(&config).is_ok());
    }

    #[test]
    fn a_socket_that_somebody_listens_on_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let _other = for_plugins(&config).unwrap();
        assert_eq!(for_plugins(&config).unwrap_err(), NoPlugins::Taken);
        assert!(UnixStream::connect(&config.socket_path).is_ok());
    }

    #[test]
    fn the_plugin_socket_has_the_mode_that_was_asked_for() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { socket_mode: 0o660, ..config(temp.path()) };
        let _listener = for_plugins(&config).unwrap();
        let mode = std::fs::metadata(&config.socket_path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }
}
