// SPDX-License-Identifier: Apache-2.0
//! Reads files, and replaces them in one step; follows links only where documented.
//!
//! Everything below a directory that another user owns is opened relative to a directory descriptor,
//! never by path, and only [`read_through_link_at`] follows a link there (CVE-2024-45310). Files are
//! never truncated in place, because an engine, a hook or nri-runc may be reading them.
//!
//! Files are read only if they are regular, up to a limit (D54), and without blocking (D53).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, linkat, unlinkat};

use crate::error::{Context, Error, Result};
use crate::fnv::fnv128;
use crate::limits::{self, DOCUMENT};
use crate::presence::IfThere;

/// Creates a private directory (0700), or checks the existing one: others cannot write to it (D11).
///
/// # Errors
/// Fails when it cannot be made, is a link, belongs to another user or is writable by others.
pub(crate) fn make_private_dir(path: &Path) -> Result<()> {
    if let Ok(there) = std::fs::symlink_metadata(path) {
        return refuse_shared_dir(path, &there);
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.doing(|| format!("making {}", path.display()))?;
    refuse_shared_dir(path, &std::fs::symlink_metadata(path)?)
}

/// Refuses a directory of another user, or one that others can write to, with a hint for the fix.
///
/// # Errors
/// Fails when it is a link or a file, belongs to another user or is writable by others.
pub(crate) fn refuse_shared_dir(path: &Path, there: &std::fs::Metadata) -> Result<()> {
    let (shown, own) = (path.display(), nix::unistd::geteuid().as_raw());
    let mode = there.mode() & 0o7777;
    if !there.is_dir() {
        let what = if there.is_symlink() { "symbolic link" } else { "file" };
        let error = Error::new(format!("{shown} is a {what}, not a folder"));
        return Err(error.hint(format!("rm {shown}")));
    }
    if there.uid() != own {
        let error = Error::new(format!("{shown} belongs to user {}", there.uid()));
        return Err(error.hint(format!("chown {own} {shown}")));
    }
    if mode & 0o022 != 0 {
        let error = Error::new(format!("{shown} is writable by others (mode {mode:04o})"));
        return Err(error.hint(format!("chmod 700 {shown}")));
    }
    Ok(())
}

/// Opens a directory as a reference (O_PATH), which needs no permission to list it.
///
/// # Errors
/// Fails when `path` is missing or not a directory.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, path, flags, Mode::empty()).doing(|| format!("opening {}", path.display()))
}

/// A regular file's bytes and the attributes that a replacement must keep.
#[derive(Debug, Default)]
pub struct Original {
    /// The whole content.
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Time of the last change of the content: Unix time in nanoseconds.
    pub modified: i64,
    /// Whether the name is a symbolic link to the file.
    pub is_link: bool,
    /// SELinux label, if the file system has one.
    label: Option<Vec<u8>>,
}

impl Original {
    /// Returns the attributes of a new file of this process's user, with this mode.
    pub fn new_with_mode(mode: u32) -> Self {
        let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Self { mode, owner, ..Self::default() }
    }
}

/// Reads the regular file `name` in `dir`, at most [`DOCUMENT`] bytes, following no link.
///
/// # Errors
/// Fails when it is missing, a link, not a regular file, too large or unreadable.
pub(crate) fn read_at(dir: impl AsFd, name: &str) -> Result<Original> {
    read_with(dir, name, OFlag::O_NOFOLLOW)
}

/// Reads like [`read_at`], but follows a link, as a runtime would; the caller must not replace a link.
///
/// # Errors
/// Fails when it, or its target, is missing, not a regular file, too large or unreadable.
pub(crate) fn read_through_link_at(dir: impl AsFd, name: &str) -> Result<Original> {
    if !is_link_at(&dir, name) {
        return read_at(dir, name);
    }
    Ok(Original { is_link: true, ..read_with(dir, name, OFlag::empty())? })
}

/// Whether `name` in `dir` is a symbolic link.
pub(crate) fn is_link_at(dir: impl AsFd, name: &str) -> bool {
    let stat = nix::sys::stat::fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFLNK)
}

fn read_with(dir: impl AsFd, name: &str, follow: OFlag) -> Result<Original> {
    let doing = || format!("reading {name}");
    let opened = opened(&dir, name, follow).doing(doing)?;
    let RegularFile(file, stat) = &opened;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > DOCUMENT {
        return Err(Error::new(format!("{name} has {size} bytes, at most {DOCUMENT} are read")));
    }
    let label = label_of(file);
    let bytes =
        read_whole(&opened, usize::try_from(DOCUMENT).unwrap_or(usize::MAX)).doing(doing)?;
    let (mode, owner) = (stat.st_mode & 0o7777, (stat.st_uid, stat.st_gid));
    let modified = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
    Ok(Original { bytes, mode, owner, inode: stat.st_ino, modified, is_link: false, label })
}

fn label_of(fd: impl AsFd) -> Option<Vec<u8>> {
    let mut label = vec![0_u8; 256];
    let length = rustix::fs::fgetxattr(fd, "security.selinux", &mut label).ok()?;
    label.truncate(length);
    Some(label)
}

/// Writes the new file `name` in `dir` with mode, owner and label of `like`; returns its inode. A
/// partly written file is removed.
///
/// # Errors
/// Fails when the name is taken, or the file system refuses.
pub(crate) fn create_at(dir: impl AsFd, name: &str, bytes: &[u8], like: &Original) -> Result<u64> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(&dir, name, flags, Mode::from_bits_truncate(0o600))
        .doing(|| format!("creating {name}"))?;
    let written = fill(fd, bytes, like);
    if written.is_err() {
        remove_at(&dir, name);
    }
    written.doing(|| format!("writing {name}"))
}

fn fill(fd: OwnedFd, bytes: &[u8], like: &Original) -> Result<u64> {
    let stat = fstat(&fd)?;
    if (stat.st_uid, stat.st_gid) != like.owner {
        let (uid, gid) = like.owner;
        fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    fchmod(&fd, Mode::from_bits_truncate(like.mode))?;
    if let Some(label) = &like.label {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&fd, "security.selinux", label, flags)
            .map_err(|errno| Error::from(Errno::from_raw(errno.raw_os_error())))?;
    }
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    Ok(stat.st_ino)
}

/// Removes `name` from `dir`, if possible.
pub(crate) fn remove_at(dir: impl AsFd, name: &str) {
    let _or_it_stays = try_remove_at(dir, name);
}

/// Removes `name` from `dir`; a missing file is fine.
///
/// # Errors
/// Fails when the file stays.
pub(crate) fn try_remove_at(dir: impl AsFd, name: &str) -> Result<()> {
    let removed = unlinkat(dir, name, UnlinkatFlags::NoRemoveDir);
    removed.doing(|| format!("removing {name}")).if_there().map(drop)
}

/// Returns the current inode of `name` in `dir`, if it exists.
///
/// # Errors
/// Fails when the directory cannot be searched.
pub(crate) fn inode_at(dir: impl AsFd, name: &str) -> Result<Option<u64>> {
    let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
    let stat = nix::sys::stat::fstatat(dir, name, flags).doing(|| format!("looking at {name}"));
    Ok(stat.if_there()?.map(|stat| stat.st_ino))
}

/// Identifies content by its length and 128-bit FNV-1a hash. The result is stored on disk, so its
/// form never changes. It detects accidents, not attacks: a user who can write the document can
/// write the original too.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    format!("{}:{:032x}", bytes.len(), fnv128(bytes))
}

/// Returns the path of a descriptor's directory, as the kernel reports it.
pub(crate) fn path_of(dir: &OwnedFd) -> Option<String> {
    use std::os::fd::AsRawFd;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    path.into_os_string().into_string().ok().filter(|path| path.starts_with('/'))
}

/// Exchanges the files `new` and `name` of `dir`, in one step unless the file system cannot (decision
/// D1). A second exchange reverts the first.
///
/// # Errors
/// Fails when the file system refuses; `name` is unchanged then.
pub(crate) fn exchange_at(dir: impl AsFd, new: &str, name: &str) -> Result<()> {
    // rustix, because nix has renameat2 for glibc only.
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    match rustix::fs::renameat_with(&dir, new, &dir, name, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => rename_in_turn(&dir, new, name),
        Err(errno) => Err(Error::from(Errno::from_raw(errno.raw_os_error()))),
    }
    .doing(|| format!("replacing {name}"))
}

/// Exchanges the files on file systems without RENAME_EXCHANGE. Meanwhile the original file `name`
/// also has a third name.
fn rename_in_turn(dir: impl AsFd, new: &str, name: &str) -> Result<()> {
    let kept = kept_name(new);
    remove_at(&dir, &kept);
    if linkat(&dir, name, &dir, kept.as_str(), AtFlags::empty()).is_err() {
        let original = read_at(&dir, name)?;
        create_at(&dir, &kept, &original.bytes, &original)?;
    }
    if let Err(errno) = renameat(&dir, new, &dir, name) {
        remove_at(&dir, &kept);
        return Err(errno.into());
    }
    renameat(&dir, kept.as_str(), &dir, new).inspect_err(|_| {
        let _put_back = renameat(&dir, kept.as_str(), &dir, name);
    })?;
    Ok(())
}

/// Returns the third name in [`rename_in_turn`]; a killed process may leave a file of this name.
pub(crate) fn kept_name(new: &str) -> String {
    format!("{new}.kept")
}

/// Writes the file `name` (mode 0600) in `dir`, a directory that other users cannot write to.
/// Readers may see an incomplete file. A former file of that name is removed without being opened.
///
/// # Errors
/// Fails when the directory is gone, full or read-only.
pub(crate) fn write_at(dir: impl AsFd, name: &str, bytes: &[u8]) -> Result<()> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let create = || openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let created = match create() {
        Err(Errno::EEXIST) => try_remove_at(&dir, name).and_then(|()| Ok(create()?)),
        created => created.map_err(Error::from),
    };
    let fd = created.doing(|| format!("creating {name}"))?;
    File::from(fd).write_all(bytes).doing(|| format!("writing {name}"))
}

/// Replaces or creates the file `name` in `dir` in one step, otherwise like [`write_at`]. A file
/// has one temporary name, so only one process may write in `dir`.
///
/// # Errors
/// Fails when the directory is gone, full or read-only; the old file is intact then.
pub(crate) fn replace_at(dir: impl AsFd, name: &str, bytes: &[u8]) -> Result<()> {
    let temporary = format!(".{name}.new");
    let renamed = write_at(&dir, &temporary, bytes).and_then(|()| {
        renameat(&dir, temporary.as_str(), &dir, name).doing(|| format!("writing {name}"))
    });
    if renamed.is_err() {
        remove_at(&dir, &temporary);
    }
    renamed
}

/// Opens a file to read it. Any user may have created the file (D53), so the call never blocks, and
/// fails unless the file is regular. The kernel's own files are regular.
fn opened<P: nix::NixPath + ?Sized>(
    dir: impl AsFd,
    path: &P,
    follow: OFlag,
) -> io::Result<RegularFile> {
    // O_NONBLOCK: a FIFO may have no writer. O_NOCTTY: a terminal must not become this process's.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | follow;
    regular_of(openat(dir, path, flags, Mode::empty()))
}

fn regular_of(opened: nix::Result<OwnedFd>) -> io::Result<RegularFile> {
    match opened {
        // A socket, or a device without a driver.
        Err(Errno::ENXIO) => Err(not_regular()),
        fd => looked_at(fd?),
    }
}

/// A regular file, and its attributes when it was opened.
struct RegularFile(File, FileStat);

fn looked_at(fd: OwnedFd) -> io::Result<RegularFile> {
    let found = fstat(&fd)?;
    match found.st_mode & nix::libc::S_IFMT {
        nix::libc::S_IFREG => Ok(RegularFile(File::from(fd), found)),
        nix::libc::S_IFDIR => Err(Errno::EISDIR.into()),
        _ => Err(not_regular()),
    }
}

/// Returns the descriptor's file if it is regular; any other may block its reader.
///
/// # Errors
/// Fails when it is a folder, a FIFO, a socket or a device.
pub(crate) fn regular(fd: OwnedFd) -> io::Result<File> {
    looked_at(fd).map(|RegularFile(file, _)| file)
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

/// Opens the regular file at `path` to read it. Links are followed, because operators use them in
/// `/etc` and the kernel in its file systems.
///
/// # Errors
/// Fails when it is missing, unreadable or not a regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    opened(AT_FDCWD, path, OFlag::empty()).map(|RegularFile(file, _)| file)
}

/// Opens a file in a private directory to read it; links are refused there.
///
/// # Errors
/// As [`open_regular`], and when it is a link.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    opened(AT_FDCWD, path, OFlag::O_NOFOLLOW).map(|RegularFile(file, _)| file)
}

/// Opens a private lock file; creates it with mode 0600 if it is missing.
///
/// # Errors
/// Fails when it cannot be made, is a link or not a regular file.
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    regular_of(openat(AT_FDCWD, path, flags | OFlag::O_CLOEXEC, mode))
        .map(|RegularFile(file, _)| file)
}

/// Reads the regular file at `path`, following links, up to `limit` bytes.
///
/// # Errors
/// As [`open_regular`], and when it is larger.
pub(crate) fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_whole(&opened(AT_FDCWD, path, OFlag::empty())?, limit)
}

/// Reads a text like [`read`].
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub(crate) fn read_text(path: &Path, limit: usize) -> io::Result<String> {
    text(read(path, limit)?)
}

/// Reads a text of the kernel: `/proc`, `/sys`, cgroups.
///
/// # Errors
/// As [`read_text`].
pub(crate) fn read_kernel(path: &Path) -> io::Result<String> {
    read_text(path, limits::KERNEL_FILE)
}

/// Reads a file of `/proc` or of a cgroup with three system calls. It must be one that the kernel
/// returns in one read: of lists such as `cgroup.procs` a read may return one page.
///
/// # Errors
/// Fails when it cannot be opened or read, or is not shorter than the buffer.
pub(crate) fn read_at_once<'b>(path: &Path, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let length = nix::unistd::read(openat(AT_FDCWD, path, flags, Mode::empty())?, buffer)?;
    let is_whole = length < buffer.len();
    buffer.get(..length).filter(|_| is_whole).ok_or(io::ErrorKind::FileTooLarge.into())
}

/// Reads a file in a private directory; a link is refused.
///
/// # Errors
/// As [`open_own`], and when it is larger.
pub(crate) fn read_own(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_whole(&opened(AT_FDCWD, path, OFlag::O_NOFOLLOW)?, limit)
}

/// Reads the count in a file of the run directory; 1 if malformed, `None` if it cannot be read.
pub(crate) fn read_count(path: &Path) -> Option<usize> {
    let text = read_own_text(path, limits::LINE).or_absent()?;
    Some(text.trim().parse().unwrap_or(1))
}

/// Reads a text like [`read_own`].
///
/// # Errors
/// As [`read_own`], and when it is not UTF-8.
pub(crate) fn read_own_text(path: &Path, limit: usize) -> io::Result<String> {
    text(read_own(path, limit)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(bytes).map_err(no_text)
}

/// Reads with as few system calls as possible. std would ask for the size again, which the kernel's
/// own files do not report, and would start with a small buffer.
fn read_whole(RegularFile(file, stat): &RegularFile, limit: usize) -> io::Result<Vec<u8>> {
    let size = usize::try_from(stat.st_size).unwrap_or_default();
    // One byte more than the size, so that an unchanged file needs no second read. Files of the
    // kernel report no size, and most have less than half a kilobyte.
    let first = if size == 0 { 512 } else { size.min(limit) + 1 };
    let mut bytes = Vec::with_capacity(first);
    loop {
        let have = bytes.len();
        if have > limit {
            let why = format!("it has more than {limit} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let more = if bytes.capacity() > have { 0 } else { have.clamp(1024, 256 << 10) };
        bytes.resize(bytes.capacity() + more, 0);
        match nix::unistd::read(file, &mut bytes[have..]) {
            Err(Errno::EINTR) => bytes.truncate(have),
            Err(errno) => return Err(errno.into()),
            Ok(read) => {
                let is_whole = read == 0 || have == 0 && read == size;
                bytes.truncate(have + read);
                if is_whole && bytes.len() <= limit {
                    return Ok(bytes);
                }
            }
        }
    }
}

/// Replaces or creates the file at `path` in one step, mode 0600; for private directories.
///
/// # Errors
/// Fails when the directory is missing, full or read-only; the old file is intact then.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with_mode(path, bytes, 0o600)
}

/// Like [`replace`], with another mode.
///
/// # Errors
/// Like [`replace`].
pub(crate) fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let doing = || format!("writing {}", path.display());
    let parent = path.parent().unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(Error::new("the path has no usable file name")).doing(doing);
    };
    let dir = open_dir(parent)?;
    let like = Original::new_with_mode(mode);
    let temporary = format!(".{name}.{}", std::process::id());
    remove_at(&dir, &temporary);
    create_at(&dir, &temporary, bytes, &like).doing(doing)?;
    let renamed = renameat(&dir, temporary.as_str(), &dir, name).doing(doing);
    if renamed.is_err() {
        remove_at(&dir, &temporary);
    }
    renamed
}

/// Tests whether a file of 4 KiB can be written to a directory; leaves no file there.
///
/// # Errors
/// Fails when it is missing, full or read-only.
pub(crate) fn try_write(dir: &Path) -> Result<()> {
    let path = dir.join(format!(".try.{}", std::process::id()));
    let _leftover = std::fs::remove_file(&path);
    let written = replace(&path, &[b' '; 4096]);
    let _gone = std::fs::remove_file(&path);
    written
        .map_err(|error| Error::new(error.cause()).doing(format!("writing to {}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_regular_files_are_read_and_nothing_blocks() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        replace(&path("file"), b"text").unwrap();
        nix::unistd::mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "fifo", "folder", "socket"] {
            symlink(name, path(&format!("to-{name}"))).unwrap();
        }
        symlink("/dev/zero", path("to-device")).unwrap();
        for name in ["file", "to-file"] {
            assert_eq!(read_text(&path(name), 4).unwrap(), "text");
        }
        assert_eq!(read_own(&path("file"), 4).unwrap(), b"text");
        let folder = "it is a folder (EISDIR)";
        for (name, why) in
            [("fifo", "not a regular"), ("socket", "not a regular"), ("folder", folder)]
        {
            for name in [name.to_owned(), format!("to-{name}")] {
                let error = crate::error::in_our_words(&read(&path(&name), 4).unwrap_err());
                assert!(error.contains(why), "{name}: {error}");
            }
            assert!(open_own(&path(name)).is_err() && open_lock(&path(name)).is_err(), "{name}");
        }
        assert!(read(&path("to-device"), 4).is_err());
        for name in ["to-file", "to-fifo", "to-device"] {
            let error = read_own(&path(name), 4).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(nix::libc::ELOOP), "{name}");
            assert!(open_lock(&path(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn files_are_read_up_to_a_limit_and_kernel_files_whole() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        for (length, is_read) in [(9_999, true), (10_000, true), (10_001, false)] {
            replace(&path, &vec![b'x'; length]).unwrap();
            let found = read(&path, 10_000);
            assert_eq!(found.as_ref().is_ok_and(|bytes| bytes.len() == length), is_read);
            let kind = found.err().map(|error| error.kind());
            assert_eq!(kind, (!is_read).then_some(io::ErrorKind::FileTooLarge));
        }
        replace(&path, b"\xff").unwrap();
        assert!(read_text(&path, 10).is_err());
        let mounts = read_kernel(Path::new("/proc/self/mountinfo")).unwrap();
        assert!(mounts.ends_with('\n') && read_kernel(Path::new("/proc/self/none")).is_err());
    }

    #[test]
    fn an_existing_file_with_a_new_files_name_is_never_opened() {
        let (temp, dir) = place();
        let path = temp.path().join(".a.new");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        replace_at(&dir, "a", b"1").unwrap();
        symlink("/nowhere/file", &path).unwrap();
        replace_at(&dir, "a", b"2").unwrap();
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"2");
        std::fs::create_dir(&path).unwrap();
        assert!(replace_at(&dir, "a", b"3").is_err());
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"2");
    }

    fn place() -> (tempfile::TempDir, OwnedFd) {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        (temp, dir)
    }

    fn write(path: &Path, bytes: &[u8]) {
        replace(path, bytes).unwrap();
    }

    #[test]
    fn a_copy_keeps_mode_and_owner() {
        let (temp, dir) = place();
        write(&temp.path().join("config.json"), b"{}");
        let path = temp.path().join("config.json");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let original = read_at(&dir, "config.json").unwrap();
        create_at(&dir, "new", b"{ }", &original).unwrap();
        let meta = std::fs::metadata(temp.path().join("new")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o644, original.owner.0));
    }

    #[test]
    fn an_exchange_keeps_both_contents() {
        let (temp, dir) = place();
        write(&temp.path().join("a"), b"old");
        write(&temp.path().join("b"), b"new");
        // Runs once with the kernel's exchange, and once without it.
        for exchange in [
            |dir: &OwnedFd| exchange_at(dir, "b", "a"),
            |dir: &OwnedFd| rename_in_turn(dir, "b", "a"),
        ] {
            for (a, b) in [("new", "old"), ("old", "new")] {
                write(&temp.path().join("b.kept"), b"left by a kill");
                exchange(&dir).unwrap();
                let read = |name| std::fs::read_to_string(temp.path().join(name)).unwrap();
                assert_eq!((read("a").as_str(), read("b").as_str()), (a, b));
            }
        }
        assert!(inode_at(&dir, "b.kept").unwrap().is_none(), "nothing else is left");
    }

    #[test]
    fn an_exchange_that_is_refused_changes_nothing() {
        let (temp, dir) = place();
        write(&temp.path().join("a"), b"old");
        assert!(exchange_at(&dir, "missing", "a").is_err());
        assert!(rename_in_turn(&dir, "missing", "a").is_err());
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let (temp, _dir) = place();
        let path = temp.path().join("x/run");
        make_private_dir(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        make_private_dir(&path).unwrap();
        symlink(&path, temp.path().join("link")).unwrap();
        assert!(make_private_dir(&temp.path().join("link")).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o770)).unwrap();
        let error = make_private_dir(&path).unwrap_err().to_string();
        assert!(error.contains("is writable by others"), "{error}");
    }

    #[test]
    fn a_link_is_not_followed() {
        let (temp, dir) = place();
        symlink("/etc/passwd", temp.path().join("config.json")).unwrap();
        let error = read_at(&dir, "config.json").unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_fifo_does_not_hang_the_reader() {
        let (temp, dir) = place();
        nix::unistd::mkfifo(&temp.path().join("config.json"), Mode::S_IRWXU).unwrap();
        assert!(
            read_at(&dir, "config.json").unwrap_err().to_string().contains("not a regular file")
        );
    }

    #[test]
    fn a_fingerprint_is_the_length_and_the_fnv_1a_hash() {
        assert_eq!(fingerprint(b""), "0:6c62272e07bb014262b821756295c58d");
        assert_eq!(fingerprint(b"a"), "1:d228cb696f1a8caf78912b704e4a8964");
        assert_ne!(fingerprint(b"{}"), fingerprint(b"{} "));
    }

    #[test]
    fn a_taken_name_is_not_overwritten() {
        let (temp, dir) = place();
        write(&temp.path().join("a"), b"old");
        let original = read_at(&dir, "a").unwrap();
        assert!(create_at(&dir, "a", b"new", &original).is_err());
        assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"old");
    }

    #[test]
    fn a_replacement_in_our_own_folder_leaves_no_other_file() {
        let (temp, dir) = place();
        write(&temp.path().join(".a.new"), b"left by a kill, and longer");
        for bytes in [&b"one"[..], b"", b"three"] {
            replace_at(&dir, "a", bytes).unwrap();
            assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), bytes);
        }
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_are_read_whole_whatever_their_size() {
        let (temp, _dir) = place();
        let path = temp.path().join("a");
        for length in [0_usize, 1, 4095, 4096, 4097, 70_000] {
            write(&path, &vec![b'x'; length]);
            assert_eq!(read(&path, 70_000).unwrap().len(), length);
        }
        let own = read(Path::new("/proc/self/stat"), 70_000).unwrap();
        assert!(own.starts_with(std::process::id().to_string().as_bytes()));
        assert!(read(Path::new("/nowhere"), 1).is_err());
    }

    #[test]
    fn a_missing_folder_has_its_own_message() {
        let error = replace(Path::new("/nowhere/at/all"), b"").unwrap_err().to_string();
        assert!(error.contains("it is missing"), "{error}");
    }
}
