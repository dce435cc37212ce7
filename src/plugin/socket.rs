// SPDX-License-Identifier: Apache-2.0
//! The socket that plugins connect to (decisions D11, D12).
//!
//! It never unlinks a socket that somebody else listens on, neither when it comes nor when it
//! goes: containerd and CRI-O use the same default path for plugins, and would lose theirs
//! without a word.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::config::Config;
use crate::error::{Context, Result, in_our_words};

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

/// A socket of ours.
#[derive(Debug)]
pub struct Bound {
    /// Where others connect.
    pub listener: UnixListener,
    /// Its file.
    pub file: SocketFile,
}

/// Which file a socket has: whoever comes later and takes its name has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketFile {
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }

    /// Whether `path` still means this one.
    pub fn is_at(self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|now| now == self)
    }

    /// Removes the file, if `path` still means this one.
    pub fn remove(self, path: &Path) {
        if self.is_at(path) {
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// The socket for plugins, or why there is none.
///
/// # Errors
/// Says why plugins cannot connect.
pub fn for_plugins(config: &Config) -> std::result::Result<Bound, NoPlugins> {
    if config.disable_connections {
        return Err(NoPlugins::SwitchedOff);
    }
    let path = &config.socket_path;
    look(path)?;
    let made = path.parent().map_or(Ok(()), |parent| {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)
    });
    if let Err(error) = made {
        let why = in_our_words(&error);
        return Err(NoPlugins::Failed(format!("making the folder of {}: {why}", path.display())));
    }
    bind(path, config.socket_mode, config.socket_gid)
        .map_err(|error| NoPlugins::Failed(error.to_string()))
}

/// Whether the name is free: nothing is there, or a socket that nobody listens on any more.
/// Whatever else is found there is somebody's.
fn look(path: &Path) -> std::result::Result<(), NoPlugins> {
    let failed = |why: &str| Err(NoPlugins::Failed(format!("{}: {why}", path.display())));
    match dial(path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
        Err(Errno::ECONNREFUSED) => {
            // Said of plain files as well.
            let meta = std::fs::metadata(path);
            if meta.is_ok_and(|meta| meta.file_type().is_socket()) {
                return Ok(());
            }
            failed("it is there and no socket")
        }
        // Its queue is full, or it is of another type.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(NoPlugins::Taken),
        Err(errno) => failed(&in_our_words(&errno.into())),
    }
}

/// Connects without waiting for a place in the queue.
fn dial(path: &Path) -> std::result::Result<(), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)
}

/// Listens on `path` with this mode and group from the first moment on.
///
/// # Errors
/// Fails when the folder refuses.
pub fn bind(path: &Path, mode: u32, gid: Option<u32>) -> Result<Bound> {
    let doing = || format!("listening on {}", path.display());
    // Bound under another name and then renamed: nobody can connect before the mode is right.
    let temporary = path.with_extension(format!("new.{}", std::process::id()));
    let _stale = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary).doing(doing)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode)).doing(doing)?;
    if gid.is_some() {
        chown(&temporary, None, gid).doing(doing)?;
    }
    let file = SocketFile::of(&temporary).doing(doing)?;
    std::fs::rename(&temporary, path).doing(doing)?;
    Ok(Bound { listener, file })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

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
    fn a_socket_whose_queue_is_full_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let other = for_plugins(&config).unwrap();
        nix::sys::socket::listen(&other.listener, nix::sys::socket::Backlog::new(0).unwrap())
            .unwrap();
        let _waiting = UnixStream::connect(&config.socket_path).unwrap();
        assert_eq!(for_plugins(&config).unwrap_err(), NoPlugins::Taken);
        let other = SocketFile::of(&config.socket_path).unwrap() == other.file;
        assert!(other, "it was replaced");
    }

    #[test]
    fn what_is_no_stream_socket_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        std::fs::create_dir(temp.path().join("nri")).unwrap();
        crate::files::replace(&config.socket_path, b"text").unwrap();
        assert!(matches!(for_plugins(&config), Err(NoPlugins::Failed(_))));
        assert_eq!(std::fs::read(&config.socket_path).unwrap(), b"text");
        std::fs::remove_file(&config.socket_path).unwrap();
        let _datagram = std::os::unix::net::UnixDatagram::bind(&config.socket_path).unwrap();
        assert_eq!(for_plugins(&config).unwrap_err(), NoPlugins::Taken);
    }

    #[test]
    fn only_our_own_socket_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let ours = for_plugins(&config).unwrap();
        std::fs::remove_file(&config.socket_path).unwrap();
        let _theirs = UnixListener::bind(&config.socket_path).unwrap();
        ours.file.remove(&config.socket_path);
        assert!(UnixStream::connect(&config.socket_path).is_ok(), "it was another's");
        SocketFile::of(&config.socket_path).unwrap().remove(&config.socket_path);
        assert!(!config.socket_path.exists());
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
