// SPDX-License-Identifier: Apache-2.0
//! The signals that end the daemon, or have it read its configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Context, Result};

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// Fails when they cannot be waited for.
pub(crate) async fn until_told_to_end() -> Result<()> {
    let doing = || "waiting for signals";
    let mut terminate = signal(SignalKind::terminate()).doing(doing)?;
    let mut interrupt = signal(SignalKind::interrupt()).doing(doing)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The stream of hangup signals. Taken at the start, as a hangup must never end the daemon.
///
/// # Errors
/// Fails when they cannot be waited for.
pub(crate) fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).doing(|| "waiting for signals")
}
