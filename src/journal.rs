// SPDX-License-Identifier: Apache-2.0
//! systemd's journal: the path of its socket, and one field in its native protocol, for the
//! daemon's log and the audit log. This module sends nothing.

use crate::limits;
use crate::text::printable;

/// The journal's socket.
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";

/// Appends the line `NAME=VALUE`, unless the value is empty. A long value is cut; unprintable
/// characters are escaped, because a value with a line feed would be two fields.
pub(crate) fn push_field(datagram: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        let value: String = value.chars().take(limits::JOURNAL_FIELD).collect();
        datagram.push_str(&format!("{name}={}\n", printable(&value)));
    }
}
