// SPDX-License-Identifier: Apache-2.0
//! Accepts the next connection of a listener of any kind.

use std::io;
use std::time::Duration;

/// Pause after a failed accept: while no descriptor is free, every attempt fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Waits for the next connection; each failure is passed to `failed`, and the wait continues.
pub(crate) async fn next<S>(
    mut accept: impl AsyncFnMut() -> io::Result<S>,
    mut failed: impl FnMut(&io::Error),
) -> S {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => failed(&error),
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_accepts_are_reported_and_retried_with_pauses() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = std::time::Instant::now();
        let (mut left, mut failures) = (3, Vec::new());
        let accept = async || {
            left -= 1;
            if left == 0 { Ok("connection") } else { Err(io::Error::from_raw_os_error(24)) }
        };
        let failed = |error: &io::Error| failures.push(error.raw_os_error());
        assert_eq!(runtime.block_on(next(accept, failed)), "connection");
        assert_eq!(failures, [Some(24), Some(24)]);
        assert!(begun.elapsed() >= 2 * ACCEPT_PAUSE, "{:?}", begun.elapsed());
    }
}
