// SPDX-License-Identifier: Apache-2.0
//! The page of `status`: the daemon's state and its failures.

use std::fmt::Write as _;

use crate::answers::Status;
use crate::messages;
use crate::text::{printable, span};

use super::output::{Answer, Format};
use super::paint;
use super::resident;
use super::show::ago;

impl Answer for Status {
    const PAINTER: fn(&str) -> String = paint::trouble;

    fn page(&self, _: Format) -> String {
        page(self)
    }
}

fn page(status: &Status) -> String {
    let mut page = String::new();
    let version =
        format!("{} (NRI {})", printable(&status.version), printable(&status.nri_version));
    line(&mut page, "version", &version);
    let uptime = span(status.uptime_seconds);
    line(&mut page, "daemon", &format!("running for {uptime} (process {})", status.pid));
    line(&mut page, "switched on", &switched_on(status));
    line(&mut page, "run directory", &printable(&status.run_dir.to_string_lossy()));
    let log = printable(&status.log);
    let log = match &status.log_failure {
        Some(why) => format!("{log} ({})", printable(why)),
        None => log,
    };
    line(&mut page, "log", &log);
    line(&mut page, "plugin socket", &socket_with_path(status));
    line(&mut page, "plugins", &status.plugins.to_string());
    line(&mut page, "pods", &status.pods.to_string());
    line(&mut page, "containers", &status.containers.to_string());
    let counts = status.requests.iter();
    let counts: Vec<_> =
        counts.map(|(verb, count)| format!("{} {count}", printable(verb))).collect();
    let counts = counts.join(", ");
    line(&mut page, "requests", if counts.is_empty() { "none yet" } else { &counts });
    let found = u64::try_from(status.found).unwrap_or(u64::MAX);
    for (title, count, words) in [
        ("bypassed", status.bypassed, "ran without plugins because the daemon was away"),
        ("found", found, "recovered after their records were lost; plugin changes unknown"),
    ] {
        let words = if count == 0 { "none".to_owned() } else { format!("{count} {words}") };
        line(&mut page, title, &words);
    }
    troubles(&mut page, status);
    page
}

fn line(page: &mut String, title: &str, words: &str) {
    let _infallible = writeln!(page, "{:<16}{words}", format!("{title}:"));
}

/// Adds the lines about current and past failures.
fn troubles(page: &mut String, status: &Status) {
    for path in &status.set_aside {
        line(page, "set aside", &printable(&path.to_string_lossy()));
    }
    for name in &status.unwritten {
        line(page, "unwritten", &printable(name));
    }
    if let Some(refused) = &status.records_refused {
        let (count, why) = (refused.count, printable(&refused.why));
        line(page, "unwritten", &format!("records of {count} failed requests: {why}"));
    }
    if let Some((what, how)) = resident::outdated_configuration(status) {
        line(page, "outdated", &format!("the daemon is {} ({how})", printable(&what)));
    }
    for plugin in &status.outdated_plugins {
        let (id, why) = (printable(&plugin.plugin), printable(&plugin.why));
        line(page, "outdated", &format!("{id}: {why}"));
    }
    for plugin in &status.absent_plugins {
        let id = printable(plugin);
        line(
            page,
            "absent",
            &format!("{id} was connected before the daemon started, and has not reconnected"),
        );
    }
    if let Some(why) = status.audit.as_ref().and_then(|audit| audit.failure.as_ref()) {
        line(page, "audit log", &printable(why));
    }
    for missing in &status.missing {
        let (engine, what) = (printable(&missing.engine), printable(&missing.what));
        line(page, "not read", &format!("{engine}: {what}"));
    }
    for failure in &status.failures {
        let times = match failure.count {
            0 | 1 => String::new(),
            count => format!(" ({count} times)"),
        };
        let what = messages::with_code(&printable(&failure.what));
        line(page, "failure", &format!("{} ago: {}{times}", ago(failure.at), what));
    }
}

/// Describes whether plugins can connect, and the path at which the daemon listens: that of its start, even if
/// the configuration now names another.
fn socket_with_path(status: &Status) -> String {
    let state = printable(&status.plugin_socket);
    let path = printable(&status.plugin_socket_state.path.to_string_lossy());
    let until = match status.pass_through {
        true => "; until then containers are created without plugins",
        false => "",
    };
    if path.is_empty() || state.contains(&path) {
        return format!("{state}{until}");
    }
    format!("{state}{until} ({path})")
}

fn switched_on(status: &Status) -> String {
    match &status.disabled_by {
        None => "yes".to_owned(),
        Some(by) => {
            format!("NO, disabled by {}: every command goes straight to the runtime", printable(by))
        }
    }
}
