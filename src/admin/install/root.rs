// SPDX-License-Identifier: Apache-2.0
//! The root below which `install` reads and writes: this host, or the directory that `--root`
//! names. In that directory, the kernel resolves every path as if the directory were `/` (openat2,
//! RESOLVE_IN_ROOT), so a symbolic link or a `..` in an image never reaches a file of the host.
//! With `--user`, the root is this host, with a user's files in place of root's.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{OFlags, ResolveFlags};
use serde_json::Value;

use super::edit;
use crate::config;
use crate::error::{Error, Result};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::sources::registered::FOLDER;

/// Maximum attempts of a lookup that concurrent renames disturb (EAGAIN of openat2).
const LOOKUP_ATTEMPTS: usize = 32;

/// The error for `--user` with an engine other than Podman, or for root.
pub(super) const NOT_A_USERS: &str = "--user is for the Podman of an unprivileged user";

/// The root for all paths of `install`.
#[derive(Debug)]
pub(super) struct Root {
    host: Host,
    /// The directory's descriptor, if no path may lead out of the directory.
    inside: Option<OwnedFd>,
    /// The folders of the user's configurations and data, if the engine is the user's.
    user: Option<(String, String)>,
}

impl Root {
    /// Returns this host as the root.
    pub(super) fn of_host(host: Host) -> Self {
        Self { host, inside: None, user: None }
    }

    /// Returns this host as the root, for an unprivileged user's engine.
    ///
    /// # Errors
    /// Fails for the host's root, and if the environment (`HOME`, `XDG_CONFIG_HOME`,
    /// `XDG_DATA_HOME`) does not name both folders.
    pub(super) fn of_user(host: Host) -> Result<Self> {
        let Some((config, data)) = config::user_homes() else {
            return Err(Error::new(NOT_A_USERS).hint("run it as that user, with HOME set"));
        };
        let user = Some((config.display().to_string(), data.display().to_string()));
        Ok(Self { host, inside: None, user })
    }

    /// Returns the folders of the user's configurations and data, if the engine is the user's.
    pub(super) fn user(&self) -> Option<(&str, &str)> {
        self.user.as_ref().map(|(config, data)| (config.as_str(), data.as_str()))
    }

    /// Returns the option that selects this root, for commands in messages: ` --root DIR`, ` --user`, or
    /// nothing for this host.
    pub(super) fn option(&self) -> String {
        match &self.user {
            Some(_) => " --user".to_owned(),
            None if self.is_confined() => {
                let folder: PathBuf = self.host.path("/").components().collect();
                format!(" --root {}", folder.display())
            }
            None => String::new(),
        }
    }

    /// Returns the folder of the undo records.
    pub(super) fn records(&self) -> String {
        self.user()
            .map_or_else(|| FOLDER.to_owned(), |(config, _)| format!("{config}/nri-runc/engines"))
    }

    /// Opens a directory out of which no path leads.
    ///
    /// # Errors
    /// Fails when the directory cannot be opened, or the kernel cannot confine lookups to it.
    pub(super) fn confined(folder: &Path) -> Result<Self> {
        let dir = files::open_dir(folder)?;
        let host = Host::new(&folder.to_string_lossy(), "");
        let root = Self { host, inside: Some(dir), user: None };
        match root.open("/", OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Ok(_) => Ok(root),
            Err(error) => Err(Error::from(error)
                .doing(format!(
                    "--root {}: openat2, which keeps symbolic links inside of it",
                    folder.display()
                ))
                .hint(
                    "nothing was changed; --root requires Linux 5.6 and a sandbox that allows \
                     openat2; otherwise run install inside of the root with chroot",
                )),
        }
    }

    /// Whether the kernel confines lookups to the directory of `--root`.
    pub(super) fn is_confined(&self) -> bool {
        self.inside.is_some()
    }

    /// Returns the path below the root.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        self.host.path(path)
    }

    /// Returns the path relative to the root; the path may already begin with the root.
    fn relative(&self, path: &str) -> PathBuf {
        let path = self.host.path(path);
        let below = path.strip_prefix(self.host.path("/")).unwrap_or(&path);
        if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() }
    }

    fn open(&self, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC;
        let Some(dir) = &self.inside else {
            return Ok(openat(AT_FDCWD, &self.host.path(path), flags, Mode::empty())?);
        };
        let path = self.relative(path);
        let flags = OFlags::from_bits_retain(flags.bits().cast_unsigned());
        let (mode, resolve) = (rustix::fs::Mode::empty(), ResolveFlags::IN_ROOT);
        let mut tries =
            (0..LOOKUP_ATTEMPTS).map(|_| rustix::fs::openat2(dir, &path, flags, mode, resolve));
        let opened = tries.find(|opened| !matches!(opened, Err(rustix::io::Errno::AGAIN)));
        opened.unwrap_or(Err(rustix::io::Errno::AGAIN)).map_err(io::Error::from)
    }

    /// Opens a directory with O_PATH.
    pub(super) fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        self.open(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// Opens the directory of a file; returns it with the file's name.
    pub(super) fn parent<'p>(&self, path: &'p str) -> io::Result<(OwnedFd, &'p str)> {
        let (folder, name) = split(path)?;
        Ok((self.folder(folder)?, name))
    }

    /// Reads a regular file, following links, up to [`limits::INSTALL_FILE`]; `None` if it is
    /// missing.
    pub(super) fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        // O_NONBLOCK: opening a FIFO in an image must not block.
        let fd = match self.open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if kind(&fd) != Some(SFlag::S_IFREG) {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        File::from(fd).take(limits::INSTALL_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limits::INSTALL_FILE {
            return Err(ErrorKind::FileTooLarge.into());
        }
        Ok(Some(bytes))
    }

    /// Reads a text file; empty if it cannot be read or is not UTF-8.
    pub(super) fn text(&self, path: &str) -> String {
        let bytes = self.read(path).ok().flatten().unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Reads a JSON file; null if it cannot be read or is invalid.
    pub(super) fn json(&self, path: &str) -> Value {
        let bytes = self.read(path).ok().flatten().unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Returns the string at `keys` in the last of these TOML files that sets it.
    pub(super) fn last_setting(&self, files: &[String], keys: &[&str]) -> Option<String> {
        files.iter().rev().find_map(|path| {
            let document = edit::parse(path, &self.text(path)).ok()?;
            edit::text_at(document.as_table(), keys).map(str::to_owned)
        })
    }

    /// Returns the sorted paths of a directory's entries; none if it cannot be listed.
    pub(super) fn entries(&self, folder: &str) -> Vec<String> {
        let opened = self.open(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let listed = opened.ok().and_then(|fd| rustix::fs::Dir::new(fd).ok());
        let names = listed.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let names = names.filter(|name| name != "." && name != "..");
        let folder = folder.trim_end_matches('/');
        let mut paths: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
        paths.sort();
        paths
    }

    /// Whether the path exists, following links.
    pub(super) fn has(&self, path: &str) -> bool {
        self.open(path, OFlag::O_PATH).is_ok()
    }

    /// Whether the kernel reports that the path does not exist; after any other error it may exist.
    pub(super) fn is_absent(&self, path: &str) -> bool {
        let opened = self.open(path, OFlag::O_PATH);
        opened.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// Whether the path is a regular file, following links.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.open(path, OFlag::O_PATH).is_ok_and(|fd| kind(&fd) == Some(SFlag::S_IFREG))
    }

    /// Whether the path is an executable file, following links.
    pub(super) fn has_program(&self, path: &str) -> bool {
        let opened = self.open(path, OFlag::O_PATH).ok();
        let stat = opened.and_then(|fd| fstat(&fd).ok());
        stat.is_some_and(|stat| {
            SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG
                && stat.st_mode & 0o111 != 0
        })
    }

    /// Opens a directory; creates it and missing parents with mode 0755.
    pub(super) fn make_folder(&self, path: &str) -> io::Result<OwnedFd> {
        match self.folder(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let (above, name) = split(path)?;
        let dir = self.make_folder(above)?;
        match mkdirat(&dir, name, Mode::from_bits_truncate(0o755)) {
            // Another process has created it, or it is a dangling link; opening it shows which.
            Ok(()) | Err(Errno::EEXIST) => self.folder(path),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes an empty directory.
    pub(super) fn remove_folder(&self, path: &str) {
        if let Ok((dir, name)) = self.parent(path) {
            let _in_use = unlinkat(&dir, name, UnlinkatFlags::RemoveDir);
        }
    }

    /// Returns a path to connect to the socket, valid while the descriptor is open.
    pub(super) fn socket(&self, path: &str) -> io::Result<(PathBuf, Option<OwnedFd>)> {
        if self.inside.is_none() {
            return Ok((self.host.path(path), None));
        }
        // The descriptor's link in /proc leads to the socket itself.
        let socket = self.open(path, OFlag::O_PATH)?;
        let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
        Ok((PathBuf::from(link), Some(socket)))
    }

    /// Returns the host whose processes are inspected; for a directory of `--root`, this host.
    pub(super) fn processes(&self) -> Host {
        if self.inside.is_some() { Host::default() } else { self.host.clone() }
    }
}

fn kind(fd: &OwnedFd) -> Option<SFlag> {
    let mode = fstat(fd).ok()?.st_mode;
    Some(SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Splits a path into its directory and the name in it.
pub(super) fn split(path: &str) -> io::Result<(&str, &str)> {
    let parts = path.trim_end_matches('/').rsplit_once('/');
    match parts.filter(|(_, name)| !["", ".", ".."].contains(name)) {
        Some(("", name)) => Ok(("/", name)),
        Some(parts) => Ok(parts),
        None => Err(io::Error::other("the path has no usable file name")),
    }
}
