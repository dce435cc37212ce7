// SPDX-License-Identifier: Apache-2.0
//! The signals that end the daemon.

use tokio::signal::unix::{SignalKind, signal};

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
