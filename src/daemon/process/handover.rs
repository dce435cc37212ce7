// SPDX-License-Identifier: Apache-2.0
//! Passes the daemon's state to the program that replaces it in the same process: a memory file
//! whose header reveals truncated or foreign content, and the numbers of descriptors that stay open
//! across execve(2). It does not interpret the state.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::daemon::process::sockets::number_from_service_manager;
use crate::error::{Context, Error, Result};
use crate::fnv::fnv128;
use crate::limits;
use crate::presence::{self, IfThere};

/// The version of the state's format. It changes only when a program that knows the old format would
/// misread the new one: new members need no new version.
pub(crate) const STATE_VERSION: u32 = 1;

/// The versions that this program can continue from.
pub(crate) const STATE_VERSIONS: [u32; 1] = [STATE_VERSION];

/// The first bytes of a state.
const MAGIC: &[u8; 16] = b"nri-runc reexec\n";

/// Length of the header in bytes: [`MAGIC`], the version, and the document's length and hash.
const HEAD: usize = MAGIC.len() + 4 + 8 + 16;

/// Writes a state of this version into a memory file.
///
/// # Errors
/// Fails when the kernel lacks memory for the state, or the state is longer than [`limits::HANDOVER`].
pub(crate) fn write_state(version: u32, document: &[u8]) -> Result<OwnedFd> {
    let doing = || "keeping the state for the next program";
    if u64::try_from(document.len()).unwrap_or(u64::MAX) > limits::HANDOVER {
        let (length, most) = (document.len(), limits::HANDOVER);
        return Err(Error::new(format!("the state has {length} bytes, more than {most}"))
            .hint("nri-runc nri restart"));
    }
    let fd = memfd_create(c"nri-runc-state", MFdFlags::MFD_CLOEXEC).doing(doing)?;
    let mut file = std::fs::File::from(fd);
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&version.to_le_bytes());
    head.extend_from_slice(&u64::try_from(document.len()).unwrap_or(u64::MAX).to_le_bytes());
    head.extend_from_slice(&fnv128(document).to_le_bytes());
    file.write_all(&head).and_then(|()| file.write_all(document)).doing(doing)?;
    Ok(file.into())
}

/// Reads the state that the previous program left in descriptor `number`, and closes that descriptor.
///
/// # Errors
/// Fails when the descriptor is not open, or does not have a complete and undamaged state of a known version.
pub(crate) fn read_state(number: RawFd) -> Result<Vec<u8>> {
    let mut file = std::fs::File::from(own(number)?);
    let doing = || "reading the previous program's state";
    file.rewind().doing(doing)?;
    let mut bytes = Vec::new();
    let limit = limits::HANDOVER + u64::try_from(HEAD).unwrap_or(0);
    file.take(limit).read_to_end(&mut bytes).doing(doing)?;
    document(&bytes).map_err(Error::new)
}

fn document(bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not the state of a daemon")?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or("it is truncated")?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or("it is truncated")?;
    let (hash, document) = rest.split_first_chunk::<16>().ok_or("it is truncated")?;
    let version = u32::from_le_bytes(*version);
    if !STATE_VERSIONS.contains(&version) {
        return Err(format!("its format version is {version}, which this program does not know"));
    }
    if u64::try_from(document.len()).ok() != Some(u64::from_le_bytes(*length)) {
        return Err("it is truncated".to_owned());
    }
    if fnv128(document) != u128::from_le_bytes(*hash) {
        return Err("it is damaged".to_owned());
    }
    Ok(document.to_vec())
}

/// Takes over a descriptor by number and makes it close-on-exec.
///
/// # Errors
/// Fails when it is not open.
#[expect(unsafe_code, reason = "a descriptor passed by number")]
pub(crate) fn own(number: RawFd) -> Result<OwnedFd> {
    set_passed_on(number, false).doing(|| format!("taking over descriptor {number}"))?;
    // SAFETY: the descriptor is open, and the previous program left it to this caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Descriptors that stay open for the next program; a drop makes them close-on-exec again, because
/// the program was not executed.
#[derive(Debug)]
pub(crate) struct PassedOn(Vec<RawFd>);

impl PassedOn {
    /// Keeps these descriptors open across execve(2).
    ///
    /// # Errors
    /// Fails when a descriptor is not open.
    pub(crate) fn new(numbers: Vec<RawFd>) -> Result<Self> {
        let passed_on = Self(numbers);
        for number in &passed_on.0 {
            set_passed_on(*number, true).doing(|| format!("passing on descriptor {number}"))?;
        }
        Ok(passed_on)
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        for number in &self.0 {
            let _it_was_closed = set_passed_on(*number, false);
        }
    }
}

#[expect(unsafe_code, reason = "descriptors by number")]
fn set_passed_on(number: RawFd, is_passed_on: bool) -> std::io::Result<()> {
    let flags = if is_passed_on { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: a plain system call on a number; it fails where no such descriptor is open.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, flags) };
    Ok(Errno::result(result).map(|_| ())?)
}

/// Closes every descriptor except the first three and the service manager's socket. The state that
/// lists the others is unusable, and their peers (plugins, wrappers) must not wait forever.
#[expect(unsafe_code, reason = "closing descriptors by number")]
pub(crate) fn close_inherited() {
    let kept = number_from_service_manager();
    let open = presence::entries(Path::new("/proc/self/fd")).or_absent().unwrap_or_default();
    let open = open.into_iter();
    let numbers: Vec<RawFd> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && Some(*number) != kept) {
        // SAFETY: this program has just begun and owns no descriptor yet.
        let _was_the_folder_itself = unsafe { libc::close(number) };
    }
}

/// Returns the number under which a descriptor is passed on.
pub(crate) fn number(descriptor: &impl AsRawFd) -> RawFd {
    descriptor.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: u32, document: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = std::fs::File::from(write_state(version, document).unwrap());
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_handover_state_is_read_completely_or_not_at_all() {
        let state = written(STATE_VERSION, b"{\"a\": 1}");
        assert_eq!(document(&state), Ok(b"{\"a\": 1}".to_vec()));
        for length in 0..state.len() {
            assert!(document(&state[..length]).is_err(), "{length}");
        }
        for at in 0..state.len() {
            let mut other = state.clone();
            other[at] ^= 1;
            assert!(document(&other).is_err(), "{at}");
        }
        assert!(document(&[&state[..], b" "].concat()).is_err());
    }

    #[test]
    fn a_handover_state_of_an_unknown_version_is_refused() {
        for version in [0, STATE_VERSION + 1, u32::MAX] {
            let why = document(&written(version, b"{}")).unwrap_err();
            assert!(why.contains(&format!("its format version is {version}")), "{why}");
        }
    }

    #[test]
    fn descriptors_of_a_failed_handover_are_reclaimed() {
        let (one, _other) = nix::unistd::pipe().unwrap();
        let flags = || nix::fcntl::fcntl(&one, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        drop(PassedOn::new(vec![number(&one)]).unwrap());
        assert_eq!(flags(), libc::FD_CLOEXEC);
        let passed_on = PassedOn::new(vec![number(&one)]).unwrap();
        assert_eq!(flags(), 0);
        drop(passed_on);
        assert!(PassedOn::new(vec![number(&one), 900_000]).is_err());
        assert_eq!(flags(), libc::FD_CLOEXEC);
    }
}
