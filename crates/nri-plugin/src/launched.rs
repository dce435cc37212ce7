// SPDX-License-Identifier: Apache-2.0
//! The socket of a plugin that its runtime launched: a descriptor named in the environment.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;

use crate::Result;

/// Returns the socket that this process inherited, whose descriptor number is in
/// `NRI_PLUGIN_SOCKET`; `None` without that variable. Call it before the process opens anything:
/// later, a wrong number may be that of an unrelated socket.
pub(crate) fn inherited() -> Result<Option<UnixStream>> {
    let Some(number) = std::env::var_os("NRI_PLUGIN_SOCKET") else { return Ok(None) };
    let number = number.to_str().and_then(|number| number.parse::<i32>().ok());
    let number =
        number.filter(|number| *number > 2).ok_or("NRI_PLUGIN_SOCKET is not a descriptor")?;
    let is_socket = std::fs::metadata(format!("/proc/self/fd/{number}"))
        .is_ok_and(|meta| meta.file_type().is_socket());
    if !is_socket {
        return Err(format!("NRI_PLUGIN_SOCKET names {number}, which is not a socket").into());
    }
    let stream = UnixStream::from(adopt(number));
    stream.set_nonblocking(true)?;
    // Programs that the plugin starts must not keep its connection open.
    rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::CLOEXEC)?;
    Ok(Some(stream))
}

#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the caller saw that the descriptor is open, and the runtime that launched this
    // process opened it for the plugin alone.
    unsafe { OwnedFd::from_raw_fd(number) }
}
