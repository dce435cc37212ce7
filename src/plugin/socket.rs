// SPDX-License-Identifier: Apache-2.0
//! Creates the socket that plugins connect to (decisions D11, D12).
//!
//! A socket on which another process listens is never unlinked: containerd and CRI-O use the same
//! default path for plugins, and their plugins would silently stop connecting.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{Context, Result, in_our_words};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;
use crate::procfs::ENGINES;

/// Why there is no plugin socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoPlugins {
    /// `disable_connections`.
    SwitchedOff,
    /// Another process listens there, most likely an engine with its own NRI.
    Taken(SocketListener),
    /// The socket could not be created.
    Failed(String),
}

impl NoPlugins {
    /// Describes why there is no plugin socket at `path`.
    pub(crate) fn of(&self, path: &Path) -> String {
        match self {
            Self::Taken(listener) => format!("{listener} listens on {}", path.display()),
            Self::SwitchedOff | Self::Failed(_) => self.to_string(),
        }
    }

    /// Returns the operator's next step.
    pub(crate) fn remedy(&self, path: &Path) -> String {
        match self {
            Self::Taken(listener) => listener.remedy(),
            Self::SwitchedOff => "remove it from the configuration".to_owned(),
            Self::Failed(_) => {
                format!("remove {}, or set another nri.socket_path", path.display())
            }
        }
    }
}

impl std::fmt::Display for NoPlugins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("nri.disable_connections is set"),
            Self::Taken(listener) => {
                write!(f, "{listener} listens on nri.socket_path: {}", listener.remedy())
            }
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The process that listens on a socket, as far as the kernel shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SocketListener {
    /// The listener's PID, if known; unknown for a process of another PID namespace.
    pub pid: Option<i32>,
    /// The name of the listener's program.
    pub name: String,
    /// The engine of this program.
    pub engine: Option<&'static str>,
}

impl std::fmt::Display for SocketListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, self.name.as_str()) {
            (None, _) => f.write_str("another process"),
            (Some(pid), "") => write!(f, "process {pid}"),
            (Some(pid), name) => match self.engine.filter(|engine| *engine != name) {
                Some(engine) => write!(f, "{name} (process {pid}, {engine})"),
                None => write!(f, "{name} (process {pid})"),
            },
        }
    }
}

impl SocketListener {
    /// Returns the engine's name for `install`.
    pub(crate) fn engine_to_install(&self) -> Option<&'static str> {
        self.engine.and_then(name_for_install)
    }

    /// Returns the operator's next step.
    pub(crate) fn remedy(&self) -> String {
        match self.engine_to_install() {
            Some(engine) => format!(
                "to serve its plugins: nri-runc nri install {engine} --take-over-nri, or with --beside, \
                 then restart the engine"
            ),
            None => "free the socket, or set another nri.socket_path".to_owned(),
        }
    }

    fn peer_of(stream: &OwnedFd, host: &Host) -> Self {
        let pid = getsockopt(stream, PeerCredentials).map(|peer| peer.pid());
        let Some(pid) = pid.ok().filter(|pid| *pid > 0) else { return Self::default() };
        let name = files::read(&host.path(format!("/proc/{pid}/comm")), limits::KERNEL_FILE)
            .unwrap_or_default();
        let name = crate::error::quoted(&String::from_utf8_lossy(&name));
        let engine = ENGINES.iter().find(|(program, _)| name.starts_with(program));
        Self {
            pid: Some(pid),
            engine: engine.and_then(|(_, nri)| *nri).map(|(title, _)| title),
            name,
        }
    }
}

/// Returns the name for `install` of the engine with this title.
pub(crate) fn name_for_install(title: &str) -> Option<&'static str> {
    let mut named = ENGINES.iter().filter_map(|(_, nri)| *nri);
    named.find(|(engine, _)| *engine == title).map(|(_, name)| name)
}

/// Returns the process that listens on `path` now, if any. Connects to it, but sends nothing.
pub(crate) fn listener_at(path: &Path, host: &Host) -> Option<SocketListener> {
    match dial(path) {
        Ok(stream) => Some(SocketListener::peer_of(&stream, host)),
        // The listener's queue is full, or its socket has another type.
        Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Some(SocketListener::default()),
        Err(_) => None,
    }
}

/// Whether the kernel lists a listening socket with this path in the network namespace of a process. Used
/// for an engine's socket, because each connection would add a line to the engine's log.
pub(crate) fn is_listed(path: &Path, pid: i32, host: &Host) -> bool {
    let table = files::read(&host.path(format!("/proc/{pid}/net/unix")), limits::KERNEL_FILE)
        .unwrap_or_default();
    let wanted = canonical(path);
    String::from_utf8_lossy(&table).lines().any(|line| {
        // The columns are Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
        let mut columns = line.split_ascii_whitespace();
        let flags = columns.nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        let bound = columns.nth(3).map(Path::new);
        flags.is_some_and(|flags| flags & 0x1_0000 != 0)
            && bound.is_some_and(|bound| bound.is_absolute() && canonical(bound) == wanted)
    })
}

/// Returns the path with the links of its folder resolved: `/var/run` is `/run`.
fn canonical(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize().or_absent());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// A socket that this process listens on.
#[derive(Debug)]
pub(crate) struct Bound {
    /// The listening socket.
    pub listener: UnixListener,
    /// The socket's file.
    pub file: SocketFile,
}

/// The identity of a socket's file: a later socket of the same name has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketFile {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Returns the file at `path` now.
    ///
    /// # Errors
    /// Fails when there is no file.
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }

    /// Whether `path` still leads to this file.
    ///
    /// # Errors
    /// Fails when the path cannot be examined.
    pub(crate) fn is_at(self, path: &Path) -> std::io::Result<bool> {
        Ok(Self::of(path).if_there()? == Some(self))
    }

    /// Removes the file, if `path` still leads to it.
    pub(crate) fn remove(self, path: &Path) {
        if matches!(self.is_at(path), Ok(true)) {
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// Creates the socket for plugins.
///
/// # Errors
/// Fails with the reason why plugins cannot connect.
pub(crate) fn for_plugins(config: &Config) -> std::result::Result<Bound, NoPlugins> {
    if config.disable_connections {
        return Err(NoPlugins::SwitchedOff);
    }
    let path = &config.socket_path;
    let host = config.host();
    let stale = unused(path, &host)?;
    let made = path.parent().map_or(Ok(()), |parent| {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        close_to_others(parent, config)
    });
    if let Err(error) = made {
        let why = in_our_words(&error);
        return Err(NoPlugins::Failed(format!("making the folder of {}: {why}", path.display())));
    }
    let failed = |error: crate::error::Error| NoPlugins::Failed(error.to_string());
    let (bound, temporary) =
        bind_beside(path, config.socket_mode, config.socket_gid).map_err(failed)?;
    let placed = put_in_place(&temporary, path, stale);
    let _not_placed = std::fs::remove_file(&temporary);
    match placed.doing(|| format!("listening on {}", path.display())).map_err(failed)? {
        true => Ok(bound),
        // Another process created one first.
        false => Err(NoPlugins::Taken(listener_at(path, &host).unwrap_or_default())),
    }
}

/// Removes other users' access to a folder that exists only for this socket: for a pod that mounts it
/// before the daemon runs, kubelet creates it readable by all users. Other folders are unchanged.
fn close_to_others(folder: &Path, config: &Config) -> std::io::Result<()> {
    let there = std::fs::metadata(folder)?;
    let is_open = there.permissions().mode() & 0o077 != 0;
    let is_ours = there.uid() == nix::unistd::geteuid().as_raw();
    let is_for_root = config.socket_mode & 0o077 == 0 && folder.ends_with("nri");
    if is_open && is_ours && is_for_root && std::fs::read_dir(folder)?.next().is_none() {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Returns why a daemon could not open the plugin socket because of what is at `path`; `None` if it could.
pub(crate) fn obstacle(path: &Path, host: &Host) -> Option<NoPlugins> {
    unused(path, host).err()
}

/// Returns the stale socket at `path`, on which no process listens, if there is one. Any other file
/// is left alone, because it belongs to another process.
fn unused(path: &Path, host: &Host) -> std::result::Result<Option<SocketFile>, NoPlugins> {
    let failed = |why: &str| Err(NoPlugins::Failed(format!("{}: {why}", path.display())));
    let before = SocketFile::of(path).or_absent();
    match dial(path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(Errno::ECONNREFUSED) => {
            // The kernel also returns this for plain files.
            let meta = std::fs::metadata(path);
            if meta.is_ok_and(|meta| meta.file_type().is_socket()) {
                return Ok(before);
            }
            failed("it exists and is not a socket")
        }
        Ok(stream) => Err(NoPlugins::Taken(SocketListener::peer_of(&stream, host))),
        Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(NoPlugins::Taken(SocketListener::default())),
        Err(errno) => failed(&in_our_words(&errno.into())),
    }
}

/// Connects without waiting for space in the queue.
fn dial(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// Renames the socket to its path, replacing `stale` or nothing; false if another process has changed what is there,
/// which stays.
fn put_in_place(temporary: &Path, path: &Path, stale: Option<SocketFile>) -> std::io::Result<bool> {
    use rustix::io::Errno;
    let rename = |flags| renameat_with(CWD, temporary, CWD, path, flags);
    let flags = if stale.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    match rename(flags) {
        Ok(()) => match stale.map_or(Ok(true), |stale| stale.is_at(temporary)) {
            Ok(true) => Ok(true),
            // The other socket's owner is unknown, so it is moved back.
            is_ours => rename(RenameFlags::EXCHANGE).map_err(Into::into).and(is_ours),
        },
        Err(Errno::EXIST | Errno::NOENT) => Ok(false),
        // The file system does not support these flags.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(temporary, path).map(|()| true),
        Err(errno) => Err(errno.into()),
    }
}

/// Listens on `path` with this mode and group from the beginning, replacing any file there.
///
/// # Errors
/// Fails when the file cannot be created.
pub(crate) fn bind(path: &Path, mode: u32, gid: Option<u32>) -> Result<Bound> {
    let (bound, temporary) = bind_beside(path, mode, gid)?;
    std::fs::rename(&temporary, path).doing(|| format!("listening on {}", path.display()))?;
    Ok(bound)
}

/// Gives the socket at `path` this mode and group; without `gid`, this process's group.
///
/// # Errors
/// Fails when they cannot be changed.
pub(crate) fn set_access(path: &Path, mode: u32, gid: Option<u32>) -> Result<()> {
    let doing = || format!("changing the access to {}", path.display());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).doing(doing)?;
    let gid = gid.unwrap_or_else(|| nix::unistd::getegid().as_raw());
    chown(path, None, Some(gid)).doing(doing)
}

/// Listens under another name, so that no process can connect before the mode is set.
fn bind_beside(path: &Path, mode: u32, gid: Option<u32>) -> Result<(Bound, PathBuf)> {
    let doing = || format!("listening on {}", path.display());
    let temporary = path.with_extension(format!("new.{}", std::process::id()));
    let _stale = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary).doing(doing)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode)).doing(doing)?;
    if gid.is_some() {
        chown(&temporary, None, gid).doing(doing)?;
    }
    let file = SocketFile::of(&temporary).doing(doing)?;
    Ok((Bound { listener, file }, temporary))
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
    fn a_socket_with_a_listener_is_not_removed() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let _other = for_plugins(&config).unwrap();
        let refused = for_plugins(&config).unwrap_err();
        let NoPlugins::Taken(listener) = &refused else { panic!("{refused:?}") };
        assert_eq!(listener.pid, i32::try_from(std::process::id()).ok());
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())));
        assert!(UnixStream::connect(&config.socket_path).is_ok());
    }

    #[test]
    fn a_socket_created_between_check_and_rename_stays() {
        let temp = tempfile::tempdir().unwrap();
        let (path, ours) = (temp.path().join("nri.sock"), temp.path().join("ours"));
        let _ours = UnixListener::bind(&ours).unwrap();
        // Meanwhile an engine listens at the path, which was empty or had a stale socket.
        drop(UnixListener::bind(temp.path().join("stale")).unwrap());
        let stale = SocketFile::of(&temp.path().join("stale")).unwrap();
        let _engine = UnixListener::bind(&path).unwrap();
        let theirs = SocketFile::of(&path).unwrap();
        for stale in [None, Some(stale)] {
            assert!(!put_in_place(&ours, &path, stale).unwrap());
            assert!(theirs.is_at(&path).unwrap() && ours.exists(), "{stale:?}");
        }
        assert!(put_in_place(&ours, &path, Some(theirs)).unwrap());
    }

    #[test]
    fn a_listening_socket_is_found_through_symbolic_links() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(temp.path(), temp.path().join("link")).unwrap();
        let path = temp.path().join("nri.sock");
        let pid = i32::try_from(std::process::id()).unwrap();
        let listener = UnixListener::bind(temp.path().join("link/nri.sock")).unwrap();
        assert!(is_listed(&path, pid, &Host::default()));
        assert!(!is_listed(&temp.path().join("other"), pid, &Host::default()));
        drop(listener);
        assert!(!is_listed(&path, pid, &Host::default()), "only its file is left");
    }

    #[test]
    fn a_listener_is_shown_with_its_engine_unless_named_like_it() {
        let named =
            |name: &str, engine| SocketListener { pid: Some(7), name: name.to_owned(), engine };
        for (listener, wanted) in [
            (named("crio", Some("CRI-O")), "crio (process 7, CRI-O)"),
            (named("containerd", Some("containerd")), "containerd (process 7)"),
            (named("", None), "process 7"),
            (SocketListener::default(), "another process"),
        ] {
            assert_eq!(listener.to_string(), wanted);
        }
    }

    #[test]
    fn a_socket_with_a_full_queue_is_not_removed() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        let other = for_plugins(&config).unwrap();
        nix::sys::socket::listen(&other.listener, nix::sys::socket::Backlog::new(0).unwrap())
            .unwrap();
        let _waiting = UnixStream::connect(&config.socket_path).unwrap();
        assert!(matches!(for_plugins(&config), Err(NoPlugins::Taken(_))));
        let other = SocketFile::of(&config.socket_path).unwrap() == other.file;
        assert!(other, "it was replaced");
    }

    #[test]
    fn a_file_that_is_not_a_stream_socket_is_not_removed() {
        let temp = tempfile::tempdir().unwrap();
        let config = config(temp.path());
        std::fs::create_dir(temp.path().join("nri")).unwrap();
        files::replace(&config.socket_path, b"text").unwrap();
        assert!(matches!(for_plugins(&config), Err(NoPlugins::Failed(_))));
        assert_eq!(std::fs::read(&config.socket_path).unwrap(), b"text");
        std::fs::remove_file(&config.socket_path).unwrap();
        let _datagram = std::os::unix::net::UnixDatagram::bind(&config.socket_path).unwrap();
        assert!(matches!(for_plugins(&config), Err(NoPlugins::Taken(_))));
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
    fn only_root_can_use_the_plugin_sockets_folder() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let temp = tempfile::tempdir().unwrap();
        let config =
            Config { socket_path: temp.path().join("a/nri/nri.sock"), ..config(temp.path()) };
        let folder = config.socket_path.parent().unwrap();
        drop(for_plugins(&config).unwrap());
        assert_eq!((mode(folder), mode(&temp.path().join("a"))), (0o700, 0o700));
        // The folder as kubelet makes it.
        std::fs::remove_dir_all(folder).unwrap();
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        drop(for_plugins(&config).unwrap());
        assert_eq!(mode(folder), 0o700);
    }

    #[test]
    fn a_folder_that_others_use_or_may_use_stays_as_it_is() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let widened = |name: &str, socket_mode, has_file| {
            let temp = tempfile::tempdir().unwrap();
            let folder = temp.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
            if has_file {
                files::replace(&folder.join("other"), b"").unwrap();
            }
            let path = folder.join("nri.sock");
            let config = Config { socket_path: path, socket_mode, ..Config::default() };
            drop(for_plugins(&config).unwrap());
            mode(&folder)
        };
        assert_eq!(widened("nri", 0o600, true), 0o755, "another socket may be there");
        assert_eq!(widened("run", 0o600, false), 0o755, "not the socket's alone");
        assert_eq!(widened("nri", 0o660, false), 0o755, "the group may enter");
    }

    #[test]
    fn the_plugin_socket_has_the_configured_mode() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { socket_mode: 0o660, ..config(temp.path()) };
        let _listener = for_plugins(&config).unwrap();
        let mode = std::fs::metadata(&config.socket_path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }
}
