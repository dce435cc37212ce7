// SPDX-License-Identifier: Apache-2.0
//! Sends messages to the service manager that runs the daemon, as sd_notify(3) does: ready, reloading, alive. Without a
//! service manager nothing is sent. A service manager that does not read its socket delays nothing (D53): the message
//! is sent later, unless a newer one replaces it.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::warn;

/// Interval at which a failed message is retried.
const RETRY: Duration = Duration::from_millis(100);

/// The watchdog's message; the next one makes up for a missed one.
const ALIVE: &str = "WATCHDOG=1\n";

thread_local! {
    /// The last unsent message: only the newest state matters.
    static UNSENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notified when a message waits to be sent again.
static AGAIN: Notify = Notify::const_new();

/// Reports that the daemon is ready, also after a reload.
pub(crate) fn report_ready() {
    report("READY=1\n");
}

/// Reports that the daemon is reloading its configuration or re-executing: meanwhile it is not
/// ready, but its process continues.
pub(crate) fn report_reloading() {
    report(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", crate::clock::monotonic() / 1000));
}

/// Notifies the watchdog of the service manager, if there is one, that the event loop runs, and
/// repeats failed reports. Never ends.
pub(crate) async fn keep_informed() {
    let beats = async {
        let Some(limit) = watchdog() else { return std::future::pending().await };
        loop {
            report(ALIVE);
            tokio::time::sleep(limit / 2).await;
        }
    };
    let again = async {
        loop {
            AGAIN.notified().await;
            tokio::time::sleep(RETRY).await;
            if let Some(message) = UNSENT.take() {
                report(&message);
            }
        }
    };
    tokio::join!(beats, again);
}

/// Returns the watchdog's interval, if the watchdog is meant for this process.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = number("WATCHDOG_USEC").filter(|limit| *limit > 0 && is_meant)?;
    Some(Duration::from_micros(limit))
}

fn report(message: &str) {
    let name: Option<OsString> = std::env::var_os("NOTIFY_SOCKET");
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        report_to(&name, message);
    }
}

fn report_to(name: &OsStr, message: &str) {
    match send(name, message) {
        Ok(()) if message == ALIVE => {}
        // An older state in the queue must not follow a newer one.
        Ok(()) => UNSENT.set(None),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            if message != ALIVE {
                UNSENT.set(Some(message.to_owned()));
                AGAIN.notify_one();
            }
        }
        Err(error) => {
            warn!("could not notify the service manager: {}", crate::error::in_our_words(&error));
        }
    }
}

/// Sends to the socket `name`; a leading `@` means an abstract socket.
fn send(name: &OsStr, message: &str) -> std::io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address).map(|_sent| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_is_notified_wherever_it_listens() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("notify");
        let word = format!("nri-runc-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&word).unwrap();
        for (name, listener) in [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{word}").into(), UnixDatagram::bind_addr(&hidden).unwrap()),
        ] {
            send(&name, "READY=1\n").unwrap();
            let mut message = [0; 16];
            let length = listener.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1\n", "{}", name.display());
        }
        assert!(send(OsStr::new("@nobody-listens-here"), "READY=1\n").is_err());
    }

    #[test]
    fn a_service_manager_that_does_not_read_delays_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("notify");
        let _full = UnixDatagram::bind(&path).unwrap();
        let refused = (0..100_000).find_map(|_| send(path.as_os_str(), "READY=1\n").err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    }

    #[test]
    fn a_new_state_replaces_an_unsent_one_and_a_heartbeat_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        while send(path.as_os_str(), ALIVE).is_ok() {}
        report_to(path.as_os_str(), "RELOADING=1\n");
        assert_eq!(UNSENT.take().as_deref(), Some("RELOADING=1\n"));
        report_to(path.as_os_str(), "RELOADING=1\n");
        listener.set_nonblocking(true).unwrap();
        while listener.recv(&mut [0; 64]).is_ok() {}
        report_to(path.as_os_str(), ALIVE);
        assert!(UNSENT.with_borrow(Option::is_some), "a heartbeat is no state");
        report_to(path.as_os_str(), "READY=1\n");
        assert_eq!(UNSENT.take(), None);
    }
}
