// SPDX-License-Identifier: Apache-2.0
//! Handles `exec` in a container whose process plugins changed: the engine's document of the new
//! process gets the same values, as `spec/patch/later.rs` defines (D36). `later.rs` decides whether
//! the daemon is involved; the daemon's response has the plugins' changes to this one process.
//!
//! This module runs only for calls that involve the daemon, or whose container has a mark. The
//! engine's file is never written: the runtime reads an edited copy in memory, through a descriptor
//! that it inherits. An invalid document is passed on unchanged, and the runtime reports it. If this
//! process lacks a resource (a descriptor, memory), the command fails.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use crate::argv::{self, ProcessFlag};
use crate::error::{Context, Error, Result};
use crate::limits::DOCUMENT;
use crate::mark::Mark;
use crate::presence;
use crate::runtime;
use crate::spec::patch::patch_later_process;

use super::invocation::Invocation;
use super::later::ExecInterest;

/// Lowest descriptor number for the copy of the process document: `--preserve-fds` and socket
/// activation pass the numbers right after standard error to the new process.
const FIRST_DESCRIPTOR: i32 = 200;

/// The content of a process document.
enum ProcessDocument {
    /// From a file, which the runtime can read again.
    File(Vec<u8>),
    /// From a pipe or the like, which can be read only once.
    Stream(Vec<u8>),
}

impl Invocation<'_> {
    /// Asks the daemon if required, edits a copy of the document, then becomes the runtime.
    pub(super) fn exec_later_process(
        &mut self,
        interest: ExecInterest,
        mark: Option<&Mark>,
    ) -> Result<Infallible> {
        let flag = argv::process_file(self.call);
        let document = flag.map(ProcessDocument::read).transpose()?.flatten();
        let values = mark.map(|mark| mark.values.as_slice()).unwrap_or_default();
        let patch = |document: &ProcessDocument| patch_later_process(document.bytes(), values).ok();
        let mut patched = document.as_ref().and_then(patch).flatten();
        if interest != ExecInterest::Nothing {
            let bytes = document.as_ref().map(ProcessDocument::bytes);
            let shown = patched.as_deref().or(bytes);
            let proceed = self.report_process(interest, bytes, shown, mark)?;
            if let Some(argv) = proceed.argv {
                return runtime::replace_process(&self.runtime, &argv);
            }
            patched = proceed.stdin.or(patched);
        }
        let (Some(flag), Some(document)) = (flag, document) else { return self.exec_unchanged() };
        let copy = match (&patched, &document) {
            (Some(bytes), _) | (None, ProcessDocument::Stream(bytes)) => bytes,
            // The runtime must read the same bytes that the rules and plugins received.
            (None, ProcessDocument::File(bytes)) if interest.waits() => bytes,
            (None, ProcessDocument::File(_)) => return self.exec_unchanged(),
        };
        let copy = presence::insist(|| keep_open(copy))?;
        let name = OsString::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let argv = argv::with_process_file(self.argv, flag, &name);
        runtime::replace_process(&self.runtime, &argv)
    }
}

impl ProcessDocument {
    /// Reads the document; `None` if the runtime cannot read it either, or it is a file that is too long.
    fn read(flag: &ProcessFlag) -> Result<Option<Self>> {
        let doing = || "reading the process document";
        // A FIFO without a writer blocks here, as it would block the runtime.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let opened =
            presence::insist(|| open(flag.value.as_os_str(), flags, Mode::empty()).doing(doing));
        let file = match opened {
            Err(error) if error.is_shortage() => return Err(error),
            Err(_the_runtime_reports_it) => return Ok(None),
            Ok(file) => File::from(file),
        };
        let meta = file.metadata().doing(doing)?;
        let mut bytes = Vec::new();
        if meta.is_file() {
            file.take(DOCUMENT + 1).read_to_end(&mut bytes).doing(doing)?;
            let is_whole = u64::try_from(bytes.len()).is_ok_and(|length| length <= DOCUMENT);
            return Ok(is_whole.then_some(Self::File(bytes)));
        }
        if meta.is_dir() {
            return Ok(None);
        }
        // The runtime cannot read these bytes again, so all of them must be kept.
        let _up_to_an_error = file.take(DOCUMENT + 1).read_to_end(&mut bytes);
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT {
            let why = format!("the process document has more than {DOCUMENT} bytes");
            return Err(Error::new(why));
        }
        Ok(Some(Self::Stream(bytes)))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::File(bytes) | Self::Stream(bytes) => bytes,
        }
    }
}

/// Creates an anonymous file with `bytes` that stays open across exec.
fn keep_open(bytes: &[u8]) -> Result<OwnedFd> {
    let doing = || "keeping the process document in memory";
    let low = memfd_create(c"nri-runc-process", MFdFlags::empty()).doing(doing)?;
    let copy = match fcntl(&low, FcntlArg::F_DUPFD(FIRST_DESCRIPTOR)) {
        Ok(number) => own(number),
        // RLIMIT_NOFILE permits no descriptor of the higher number.
        Err(_) => low,
    };
    let mut file = File::from(copy);
    file.write_all(bytes).doing(doing)?;
    file.seek(SeekFrom::Start(0)).doing(doing)?;
    Ok(OwnedFd::from(file))
}

#[expect(unsafe_code, reason = "fcntl gives the new descriptor as a number")]
fn own(number: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a document of this length that comes through a pipe.
    fn read_from_pipe(length: u64) -> Result<Option<ProcessDocument>> {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let value = format!("/proc/self/fd/{}", reader.as_raw_fd()).into();
        let writes = std::thread::spawn(move || {
            let bytes = vec![b' '; usize::try_from(length).unwrap()];
            // The reader may stop before it has read everything.
            let _cut_short = writer.write_all(&bytes);
        });
        let document = ProcessDocument::read(&ProcessFlag { value, word: 0 });
        drop(reader);
        writes.join().unwrap();
        document
    }

    #[test]
    fn a_process_document_from_a_pipe_has_a_bound() {
        let document = read_from_pipe(DOCUMENT).unwrap().unwrap();
        assert_eq!(u64::try_from(document.bytes().len()), Ok(DOCUMENT));
        let why = read_from_pipe(DOCUMENT + 1).err().unwrap();
        assert!(why.to_string().contains("has more than 16777216 bytes"), "{why}");
    }
}
