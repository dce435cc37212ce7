// SPDX-License-Identifier: Apache-2.0
//! Reports refused connections, and plugins that connect and disconnect, in the log, the audit log, `status` and
//! metrics. A flood of them causes a bounded number of lines. This module refuses nothing.

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

/// The title of the failure under which operators see all refused names.
const REFUSED: &str = "connections were refused under the names of plugins";

/// Reports a registered plugin that is not allowed to use its claimed identity.
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
    // A repeated connection is reported once.
    if daemon.registry.roster.note_refused(plugin, reason) {
        report(daemon, kind, id, (&line, reason));
    } else {
        daemon.report.metrics.plugins().count_refused_connection();
        daemon.report.connections.count(kind, &line);
    }
}

/// Reports a connection that did not become a plugin; `id` is the identity that it claimed, if any.
/// The audit log has the name and the reason in separate fields.
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
        // A contested connection is counted as a takeover instead.
        metrics.count_refused_connection();
    }
    if admit_line(daemon, kind, line) {
        log_refusal(daemon, kind, id, (line, reason));
    }
}

fn log_refusal(daemon: &Daemon, kind: ConnectionLine, id: &str, (line, reason): (&str, &str)) {
    match kind {
        ConnectionLine::Origin | ConnectionLine::File => error!(plugin = id, "{line}"),
        ConnectionLine::Unsynchronized => daemon.report.note_failure(line, id),
        ConnectionLine::Contested => {} // The takeover has logged this refusal.
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
    // The daemon starts launched plugins itself, with pauses, and configured plugins are few, so
    // each line is logged.
    let is_known = is_launched || daemon.config().names_plugin(id);
    if is_known || admit_line(daemon, kind, line) {
        info!(plugin = id, "{line}");
        daemon.audit_plugin(action, id, reason);
    }
}

/// Counts this event, and returns whether to log it. The first suppressed event schedules a line with the number of
/// the suppressed ones.
fn admit_line(daemon: &Rc<Daemon>, kind: ConnectionLine, line: &str) -> bool {
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
