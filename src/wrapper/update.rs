// SPDX-License-Identifier: Apache-2.0
//! Handles `update`: the engine sends the resources that it knows, and the values that plugins own must stay.
//!
//! Standard input is read in full, or the file is opened, before the daemon is asked. The real
//! runtime then reads the same input, or the daemon's version of it on standard input (D21).

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use crate::error::{Context, Error, Result};
use crate::host::Point;
use crate::limits::RESOURCES;
use crate::link::Attached;
use crate::presence::{self, IfThere};

use super::invocation::Invocation;
use super::request::DaemonVerdict;

impl Invocation<'_> {
    /// Lets the daemon overlay the plugins' values on the request, then becomes the runtime.
    pub(super) fn update(&self) -> Result<Infallible> {
        let Some(input) = self.input()? else { return self.exec_unchanged() };
        let attached: Vec<(Attached, &OwnedFd)> =
            input.fd().map(|fd| (Attached::Resources, fd)).into_iter().collect();
        let asked = self.ask("", &attached)?;
        let (proceed, mut session) = match asked {
            DaemonVerdict::Proceed(proceed, session) => (proceed, session),
            DaemonVerdict::Away(why) => {
                input.rewind()?;
                return self.bypass_update(&why, input.bytes());
            }
        };
        self.host.point(Point::WrapperVerdict)?;
        match &proceed.stdin {
            Some(bytes) => become_stdin(&memory(bytes)?)?,
            None => input.rewind()?,
        }
        if let Err(gone) = session.notify_exec() {
            // No daemon records the overlaid values, so the runtime reads the engine's own input.
            input.rewind()?;
            return self.bypass_update(&gone.to_string(), input.bytes());
        }
        let error = self.exec(&proceed);
        session.notify_exec_failed(&error);
        Err(error)
    }

    /// Reads the input of `--resources`; `None` if its file cannot be opened, which the runtime reports.
    fn input(&self) -> Result<Option<UpdateInput>> {
        let Some(resources) = &self.call.resources else {
            return Ok(Some(UpdateInput::Flags));
        };
        if resources.value == OsStr::new("-") {
            return read_stdin().map(Some);
        }
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let opened = presence::insist(|| {
            open(resources.value.as_os_str(), flags, Mode::empty())
                .doing(|| "reading the resources")
        });
        match opened {
            // Otherwise the runtime would apply the request without the plugins' values.
            Err(error) if error.is_shortage() => Err(error),
            opened => Ok(opened.or_absent().map(UpdateInput::File)),
        }
    }
}

/// The source of the requested resources.
enum UpdateInput {
    /// Only flags on the command line.
    Flags,
    /// A file, which the runtime can read again.
    File(OwnedFd),
    /// Standard input, read in full.
    Stdin(OwnedFd),
}

impl UpdateInput {
    fn fd(&self) -> Option<&OwnedFd> {
        match self {
            Self::Flags => None,
            Self::File(fd) | Self::Stdin(fd) => Some(fd),
        }
    }

    /// Returns the requested resources, if there are any and they can be read, for the note that the
    /// next daemon reads.
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut file = File::from(self.fd()?.try_clone().or_absent()?);
        let mut bytes = Vec::new();
        // The runtime's descriptor shares the file's position.
        file.seek(SeekFrom::Start(0)).or_absent()?;
        Read::by_ref(&mut file).take(RESOURCES).read_to_end(&mut bytes).or_absent()?;
        file.seek(SeekFrom::Start(0)).or_absent()?;
        Some(bytes)
    }

    /// Restores standard input, from its beginning, if it was read.
    fn rewind(&self) -> Result<()> {
        match self {
            Self::Flags | Self::File(_) => Ok(()),
            Self::Stdin(fd) => become_stdin(fd),
        }
    }
}

fn read_stdin() -> Result<UpdateInput> {
    let mut bytes = Vec::new();
    let taken = std::io::stdin().lock().take(RESOURCES + 1).read_to_end(&mut bytes);
    taken.doing(|| "reading the resources from standard input")?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > RESOURCES {
        return Err(Error::new(format!("standard input has more than {RESOURCES} bytes")));
    }
    memory(&bytes).map(UpdateInput::Stdin)
}

/// Creates an anonymous file with `bytes`; unlike a pipe, it takes any size without a reader.
fn memory(bytes: &[u8]) -> Result<OwnedFd> {
    let fd = memfd_create(c"nri-runc-resources", MFdFlags::MFD_CLOEXEC)
        .doing(|| "keeping the resources in memory")?;
    let mut file = File::from(fd);
    file.write_all(bytes).doing(|| "keeping the resources in memory")?;
    Ok(OwnedFd::from(file))
}

fn become_stdin(fd: &OwnedFd) -> Result<()> {
    let mut file = File::from(fd.try_clone()?);
    file.seek(SeekFrom::Start(0))?;
    nix::unistd::dup2_stdin(fd).doing(|| "passing on the resources")
}
