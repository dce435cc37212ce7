// SPDX-License-Identifier: Apache-2.0
//! The audit log as a file of the daemon's user (0600) with a bounded size: at its limit it is
//! renamed to `NAME.1`, the former `NAME.1` to `NAME.2` and so on, and the oldest is removed. A
//! partial write is cut off. Lines about connections may use only a share of each file, so that a
//! flood of them causes no rotation.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::presence::IfThere;

/// Divisor: lines about connections may use `max_size / SHARE` bytes of a file.
const SHARE: u64 = 4;

/// The files of the log, and the one that is open.
#[derive(Debug)]
pub(super) struct RotatedFile {
    path: PathBuf,
    max_size: u64,
    max_files: u32,
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    inode: (u64, u64),
    size: u64,
    /// Bytes that lines about connections have used of their share.
    about_connections: u64,
}

impl RotatedFile {
    pub(super) fn new(path: &Path, max_size: u64, max_files: u32) -> Self {
        Self { path: path.to_owned(), max_size, max_files: max_files.max(1), open: None }
    }

    /// Appends a line, which ends with a line feed; rotates the files first if it does not fit.
    ///
    /// # Errors
    /// Fails when opening, rotating or writing fails; a partial line is cut off.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let size = self.opened()?.size;
        if size > 0 && size.saturating_add(length) > self.max_size {
            self.open = None;
            rotate(&self.path, self.max_files)?;
        }
        let open = self.opened()?;
        if let Err(error) = open.file.write_all(line) {
            // A partial line would corrupt the next one too.
            let _best_effort = open.file.set_len(open.size);
            return Err(error);
        }
        open.size += length;
        Ok(())
    }

    /// Appends a line about a connection; returns false if such lines have used their share of the
    /// file, or the line would need a rotation.
    ///
    /// # Errors
    /// Fails as `append` does.
    pub(super) fn append_about_connection(&mut self, line: &[u8]) -> io::Result<bool> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let max_size = self.max_size;
        let open = self.opened()?;
        let share = open.about_connections.saturating_add(length);
        if share > max_size / SHARE || open.size.saturating_add(length) > max_size {
            return Ok(false);
        }
        self.append(line)?;
        self.opened()?.about_connections = share;
        Ok(true)
    }

    /// Returns the open file if it still has the log's name, else opens or creates one: an operator
    /// may have renamed the open file.
    fn opened(&mut self) -> io::Result<&mut OpenFile> {
        let there = std::fs::symlink_metadata(&self.path).or_absent();
        let inode = there.map(|there| (there.dev(), there.ino()));
        let open = match self.open.take().filter(|open| Some(open.inode) == inode) {
            Some(open) => open,
            None => {
                let mut open = open(&self.path)?;
                // A quarter of the existing bytes is treated as used, so that a restart does not
                // grant a second share.
                let left = self.max_size.saturating_sub(open.size) / SHARE;
                open.about_connections = (self.max_size / SHARE).saturating_sub(left);
                open
            }
        };
        Ok(self.open.insert(open))
    }
}

fn open(path: &Path) -> io::Result<OpenFile> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = OpenOptions::new();
    // O_NONBLOCK: a FIFO of this name must not block the thread.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    options.read(true).append(true).create(true).mode(0o600).custom_flags(flags);
    let mut file = options.open(path)?;
    let there = file.metadata()?;
    if !there.is_file() || there.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("it is not a regular file of this user"));
    }
    if there.mode() & 0o077 != 0 {
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
    }
    let mut size = there.len();
    if size > 0 && !ends_a_line(&mut file)? {
        // A crash cut off the last line.
        file.write_all(b"\n")?;
        size += 1;
    }
    Ok(OpenFile { file, inode: (there.dev(), there.ino()), size, about_connections: 0 })
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Renames `NAME` to `NAME.1` and so on; the oldest is removed.
fn rotate(path: &Path, max_files: u32) -> io::Result<()> {
    if max_files == 1 {
        return std::fs::remove_file(path);
    }
    for number in (0..max_files - 1).rev() {
        match std::fs::rename(rotated(path, number), rotated(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Returns the name of the file after `number` rotations; 0 is the current one.
pub(super) fn rotated(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn the_size_of_all_files_is_bounded_and_the_newest_lines_stay() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("new/audit.log");
        let mut log = RotatedFile::new(&path, 30, 3);
        (0..50).for_each(|number| log.append(format!("line {number:02} ab\n").as_bytes()).unwrap());
        assert_eq!(text(&path), "line 48 ab\nline 49 ab\n");
        assert_eq!(text(&rotated(&path, 1)), "line 46 ab\nline 47 ab\n");
        assert_eq!(text(&rotated(&path, 2)), "line 44 ab\nline 45 ab\n");
        assert!(!rotated(&path, 3).exists());
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn lines_about_connections_displace_no_other_lines() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 400, 2);
        log.append(b"applied\n").unwrap();
        let written = (0..10_000).filter(|_| log.append_about_connection(b"refused 8\n").unwrap());
        assert_eq!(written.count(), 10, "a quarter");
        for number in 0..29 {
            log.append(format!("{number:09}\n").as_bytes()).unwrap();
        }
        assert!(!rotated(&path, 1).exists() && text(&path).starts_with("applied\n"));
        assert!(!log.append_about_connection(&[b'x'; 50]).unwrap(), "it sets no file aside");
        log.append(&[b'y'; 50]).unwrap();
        assert!(text(&rotated(&path, 1)).starts_with("applied\n"));
        assert!(log.append_about_connection(b"refused 9\n").unwrap(), "the next file has a share");
    }

    #[test]
    fn a_full_single_file_is_replaced_and_not_rotated() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 5, 1);
        log.append(b"longer than five\n").unwrap();
        log.append(b"next\n").unwrap();
        assert_eq!(text(&path), "next\n");
        assert!(!rotated(&path, 1).exists());
    }

    #[test]
    fn a_moved_file_is_recreated_and_a_readable_one_made_private() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 1000, 2);
        log.append(b"one\n").unwrap();
        std::fs::rename(&path, temp.path().join("moved")).unwrap();
        log.append(b"two\n").unwrap();
        assert_eq!(text(&path), "two\n");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        drop(log);
        RotatedFile::new(&path, 1000, 2).append(b"three\n").unwrap();
        assert_eq!(
            (text(&path).as_str(), path.metadata().unwrap().mode() & 0o777),
            ("two\nthree\n", 0o600)
        );
    }

    #[test]
    fn a_line_truncated_by_a_crash_does_not_corrupt_the_next() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        crate::files::replace(&path, b"whole\nhal").unwrap();
        RotatedFile::new(&path, 1000, 2).append(b"next\n").unwrap();
        assert_eq!(text(&path), "whole\nhal\nnext\n");
    }

    #[test]
    fn a_link_fifo_or_folder_in_place_of_the_log_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::os::unix::fs::symlink(at("elsewhere"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for name in ["link", "fifo", "folder"] {
            let refused = RotatedFile::new(&at(name), 1000, 2).append(b"x\n");
            assert!(refused.is_err(), "{name}");
        }
        assert!(!at("elsewhere").exists());
    }

    #[test]
    fn a_full_disk_leaves_only_whole_lines() {
        // /dev/full is not a regular file, and a limit of this process would affect all other
        // tests.
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let mut log = RotatedFile::new(&path, 1000, 2);
        log.append(b"one\n").unwrap();
        // A file opened read-only refuses the line.
        let read_only = File::open(&path).unwrap();
        let open = log.open.as_mut().unwrap();
        let writable = std::mem::replace(&mut open.file, read_only);
        assert!(log.append(b"two\n").is_err());
        log.open.as_mut().unwrap().file = writable;
        log.append(b"three\n").unwrap();
        assert_eq!(text(&path), "one\nthree\n");
    }
}
