// SPDX-License-Identifier: Apache-2.0
//! Reports connections that became no plugin, and plugins that come and go: in the log, the audit log,
//! `status` and metrics, so that a flood of them costs a bounded number of lines. It refuses nothing.

use std::rc::Rc;

use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::audit::AuditAction;
use crate::clock::now;
use crate::daemon::registry::peer::NotAdmitted;
use crate::daemon::shared::Daemon;
use crate::daemon::shared::refused::ConnectionLine;
use crate::log::{Room, WINDOW};
use crate::plugin::Plugin;

/// How operators see refusals of one kind as one failure, whichever names were tried.
const REFUSED: &str = "connections were refused under the names of plugins";

/// Reports a registered plugin that may not be the one that it says it is.
pub(super) fn report_refused(
    daemon: &Rc<Daemon>,
    plugin: &Plugin,
    (why, reason): &(NotAdmitted, String),
) {
    let id = plugin.id();
    let kind = match why {
        NotAdmitted::User => ConnectionLine::User,
        NotAdmitted::Origin => ConnectionLine::Origin,
        NotAdmitted::File => ConnectionLine::File,
    };
    let line = format!("{id} was refused: {reason}");
    daemon.report.count_failure(&line, REFUSED, "", now());
    // One that connects again and again has one line.
    if daemon.registry.roster.note_refused(plugin, reason) {
        report(daemon, kind, &id, (&line, reason));
    } else {
        daemon.report.metrics.plugins().count_refused_connection();
        daemon.report.connections.count(kind, &line);
    }
}

/// Reports a connection that became no plugin; `id` is what it called itself, if it did. The audit log
/// has the reason beside the name.
pub(super) fn report(
    daemon: &Rc<Daemon>,
    kind: ConnectionLine,
    id: &str,
    (line, reason): (&str, &str),
) {
    let metrics = daemon.report.metrics.plugins();
    if kind == ConnectionLine::Unsynchronized {
        metrics.count_unsynchronized(id);
    } else if kind != ConnectionLine::Contested {
        // That one is counted as a takeover.
        metrics.count_refused_connection();
    }
    if has_line(daemon, kind, line) {
        log_refusal(daemon, kind, id, (line, reason));
    }
}

fn log_refusal(daemon: &Daemon, kind: ConnectionLine, id: &str, (line, reason): (&str, &str)) {
    match kind {
        ConnectionLine::Origin | ConnectionLine::File => error!(plugin = id, "{line}"),
        ConnectionLine::Unsynchronized => daemon.report.note_failure(line, id),
        ConnectionLine::Contested => {} // The takeover has logged it.
        ConnectionLine::Unfinished => info!("{line}"),
        ConnectionLine::Unaccepted
        | ConnectionLine::User
        | ConnectionLine::Full
        | ConnectionLine::Crowded
        | ConnectionLine::Connected
        | ConnectionLine::Disconnected => warn!("{line}"),
    }
    if kind != ConnectionLine::Unfinished {
        daemon.audit_plugin(AuditAction::Rejected, id, reason);
    }
}

/// Reports a plugin that was synchronized, or one that disconnected.
pub(super) fn report_plugin(
    daemon: &Rc<Daemon>,
    kind: ConnectionLine,
    (id, is_launched): (&str, bool),
    (line, reason): (&str, &str),
) {
    let is_new = kind == ConnectionLine::Connected;
    let action = if is_new { AuditAction::Connected } else { AuditAction::Disconnected };
    // The daemon itself starts launched ones, with pauses; those that are configured are few.
    let is_known = is_launched || daemon.config().names_plugin(id);
    if is_known || has_line(daemon, kind, line) {
        info!(plugin = id, "{line}");
        daemon.audit_plugin(action, id, reason);
    }
}

/// Whether this one has a line. The first one that has none sees to the line that counts them.
fn has_line(daemon: &Rc<Daemon>, kind: ConnectionLine, line: &str) -> bool {
    match daemon.report.connections.room(kind, line, Instant::now()) {
        Room::Line => true,
        Room::HeldBack { is_first: false } => false,
        Room::HeldBack { is_first: true } => {
            let daemon = Rc::clone(daemon);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(WINDOW).await;
                let Some(line) = daemon.report.connections.take_held_back(kind) else { return };
                match kind {
                    ConnectionLine::Connected => {
                        info!("{line}");
                        daemon.audit_plugin(AuditAction::Connected, "", &line);
                    }
                    ConnectionLine::Disconnected => {
                        info!("{line}");
                        daemon.audit_plugin(AuditAction::Disconnected, "", &line);
                    }
                    ConnectionLine::Contested => {
                        warn!("{line}");
                        daemon.audit_plugin(AuditAction::Rejected, "", &line);
                    }
                    ConnectionLine::Unaccepted
                    | ConnectionLine::User
                    | ConnectionLine::Origin
                    | ConnectionLine::File
                    | ConnectionLine::Full
                    | ConnectionLine::Unfinished
                    | ConnectionLine::Crowded
                    | ConnectionLine::Unsynchronized => {
                        log_refusal(&daemon, kind, "", (&line, &line));
                    }
                }
            });
            false
        }
    }
}
