// SPDX-License-Identifier: Apache-2.0
//! The audit log in the journal: the line is the message, and its filterable members are fields.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::entry::AuditEntry;
use crate::journal::{SOCKET, push_field};

/// The identifier of the lines for `journalctl -t`.
pub(crate) const IDENTIFIER: &str = "nri-runc-audit";

/// Time limit for sending a line to a journal that does not read its socket.
const SEND_WAIT: Duration = Duration::from_secs(2);

/// The journal's priority of every line: informational.
const PRIORITY: u8 = 6;

/// The socket to the journal, connected with the first line.
#[derive(Debug, Default)]
pub(super) struct Journal(Option<UnixDatagram>);

impl Journal {
    /// Sends a message that [`datagram`] formatted.
    ///
    /// # Errors
    /// Fails when the journal is missing or does not read.
    pub(super) fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let socket = match self.0.take() {
            Some(socket) => socket,
            None => connect()?,
        };
        socket.send(datagram)?;
        self.0 = Some(socket);
        Ok(())
    }
}

fn connect() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SOCKET)?;
    socket.set_write_timeout(Some(SEND_WAIT))?;
    Ok(socket)
}

/// Formats a message of the journal's native protocol: NAME=VALUE lines.
pub(super) fn datagram(entry: &AuditEntry, line: &str) -> String {
    let mut datagram =
        format!("SYSLOG_IDENTIFIER={IDENTIFIER}\nPRIORITY={PRIORITY}\nMESSAGE={line}\n");
    let subject = &entry.subject;
    for (name, value) in [
        ("NRI_ACTION", entry.action.name()),
        ("NRI_PLUGIN", &entry.plugin),
        ("NRI_FIELD", &entry.field),
        ("NRI_RULE", &entry.rule),
        ("NRI_NAMESPACE", &subject.namespace),
        ("NRI_POD", &subject.pod),
        ("NRI_CONTAINER", &subject.container),
        ("NRI_CONTAINER_ID", &subject.container_id),
    ] {
        push_field(&mut datagram, name, value);
    }
    datagram
}

#[cfg(test)]
mod tests {
    use super::super::AuditAction;
    use super::*;

    #[test]
    fn names_chosen_by_tenants_add_no_journal_field() {
        let mut entry = AuditEntry::new(AuditAction::Applied).by("10-a\nPRIORITY=0");
        entry.subject.pod = format!("web\nMESSAGE=forged\n{}", "x".repeat(100_000));
        let datagram = datagram(&entry, "{}");
        assert_eq!(datagram.matches("\nMESSAGE=").count(), 1, "{datagram}");
        assert_eq!(datagram.matches("\nPRIORITY=").count(), 1, "{datagram}");
        assert!(datagram.contains("\nNRI_POD=web\\nMESSAGE=forged"), "{datagram}");
        assert!(datagram.len() < 3000 && !datagram.contains("NRI_RULE"));
    }
}
