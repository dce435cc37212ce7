// SPDX-License-Identifier: Apache-2.0
//! `audit`: searches the audit log, in its files or in the journal. It needs no daemon, and prints
//! each line as soon as it is found.

use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::SystemTime;

use clap::Args;
use serde_json::Value;

use crate::audit::{AuditFilter, IDENTIFIER, open_files, search, since};
use crate::config::{AuditTarget, Config};
use crate::error::{Context, Error, Result};
use crate::text::{counted, printable, short_id};

use super::DONE;

/// What `audit` takes.
#[derive(Debug, Args)]
pub(super) struct Audit {
    /// Only this pod: NAMESPACE/NAME, a name or an id.
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only this container: a name, an id or an id prefix.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// Only this plugin: NAME or NN-NAME.
    #[arg(long, value_name = "PLUGIN")]
    plugin: Option<String>,
    /// Only since an age (2h, 7d) or a UTC time.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<AuditFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AuditFormat {
    Json,
}

/// Prints the lines that match.
///
/// # Errors
/// Fails when there is no audit log, or it cannot be read.
pub(super) fn audit(config: &Config, wanted: &Audit, is_json: bool) -> Result<u8> {
    let filter = filter(wanted)?;
    let mut page = Page::new(is_json || wanted.output == Some(AuditFormat::Json));
    let unreadable = match config.audit_target {
        Some(AuditTarget::Journal) => search_journal(&filter, &mut page)?,
        Some(AuditTarget::File) => search_files(&config.audit_path, &filter, &mut page)?,
        None => {
            let files = open_files(&config.audit_path)?;
            if files.is_empty() {
                return Err(Error::new("no audit log is kept")
                    .hint("set audit.target to \"file\" or \"journal\" in the configuration"));
            }
            // It was kept before.
            search_files(&config.audit_path, &filter, &mut page)?
        }
    };
    page.end()?;
    if unreadable > 0 {
        let lines = counted(usize::try_from(unreadable).unwrap_or(usize::MAX), "line");
        let line = format!("nri-runc: {lines} could not be read\n");
        let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
    }
    Ok(DONE)
}

fn filter(wanted: &Audit) -> Result<AuditFilter> {
    let since = match &wanted.since {
        Some(text) => Some(since(text, SystemTime::now()).ok_or_else(|| {
            Error::new(format!("--since {}: not a time", printable(text)))
                .hint("an age such as 90s, 2h or 7d, or a UTC time such as 2026-11-22T10:15")
        })?),
        None => None,
    };
    let Audit { pod, container, plugin, since: _, output: _ } = wanted;
    Ok(AuditFilter {
        pod: pod.clone(),
        container: container.clone(),
        plugin: plugin.clone(),
        since,
    })
}

fn search_files(path: &Path, filter: &AuditFilter, page: &mut Page) -> Result<u64> {
    let mut unreadable = 0;
    for file in open_files(path)? {
        let found = |text: &str, line: &Value| page.add(text, line);
        unreadable += search(BufReader::new(file), filter, found)?;
    }
    Ok(unreadable)
}

/// The journal keeps who sent a line, and nobody but the daemon's user can send one as that user.
fn search_journal(filter: &AuditFilter, page: &mut Page) -> Result<u64> {
    let mut journal = journalctl()?;
    let output = journal.stdout.take().ok_or_else(|| Error::new("journalctl has no output"))?;
    let unreadable = search(BufReader::new(output), filter, |text, line| page.add(text, line))?;
    let status = journal.wait().doing(|| "reading the journal")?;
    if !status.success() {
        return Err(Error::new(format!("journalctl failed ({status})")));
    }
    Ok(unreadable)
}

#[expect(clippy::disallowed_methods, reason = "the journal is read by its own program")]
fn journalctl() -> Result<Child> {
    let user = format!("_UID={}", nix::unistd::geteuid());
    let identifier = format!("SYSLOG_IDENTIFIER={IDENTIFIER}");
    let words = ["--quiet", "--no-pager", "--output=cat", &user, &identifier];
    let mut command = std::process::Command::new("journalctl");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().doing(|| "starting journalctl to read the audit log")
}

/// The answer, written as it is found.
struct Page {
    is_json: bool,
    count: usize,
    out: std::io::BufWriter<std::io::Stdout>,
}

impl Page {
    fn new(is_json: bool) -> Self {
        Self { is_json, count: 0, out: std::io::BufWriter::new(std::io::stdout()) }
    }

    fn add(&mut self, text: &str, line: &Value) -> Result<()> {
        let before = if self.count == 0 { "[" } else { ",\n" };
        self.count += 1;
        let row = match self.is_json {
            true => format!("{before}{text}"),
            false => format!("{}\n", shown(line)),
        };
        self.out.write_all(row.as_bytes()).doing(|| "writing the answer")
    }

    /// One document, of whatever was found.
    fn end(&mut self) -> Result<()> {
        let end = match (self.is_json, self.count) {
            (true, 0) => "[]\n",
            (true, _) => "]\n",
            (false, 0) => "no entries\n",
            (false, _) => "",
        };
        let written = self.out.write_all(end.as_bytes()).and_then(|()| self.out.flush());
        written.doing(|| "writing the answer")
    }
}

/// A line for people.
fn shown(line: &Value) -> String {
    let of = |member: &str| printable(line[member].as_str().unwrap_or_default());
    let mut words = vec![of("time").chars().take(19).collect::<String>() + "Z", of("action")];
    words.extend([of("plugin"), about(line), of("event"), of("field")]);
    words.retain(|word| !word.is_empty());
    let mut shown = words.join("  ");
    if line["action"] == "applied" {
        shown.push_str(&format!("  {} -> {}", value(&line["from"]), value(&line["to"])));
    }
    for (member, name) in [("rule", "rule "), ("reason", "")] {
        if !line[member].is_null() {
            shown.push_str(&format!("  {name}{}", of(member)));
        }
    }
    shown
}

/// `NAMESPACE/POD/CONTAINER`, as far as there is one.
fn about(line: &Value) -> String {
    let of = |member: &str| printable(line[member].as_str().unwrap_or_default());
    let name_or_id = |name: &str, id: &str| match of(name) {
        none if none.is_empty() => short_id(&of(id)).to_owned(),
        name => short_id(&name).to_owned(),
    };
    let mut parts = vec![of("namespace"), name_or_id("pod", "pod_id")];
    parts.push(name_or_id("container", "container_id"));
    parts.retain(|part| !part.is_empty());
    // A container without a pod is its own.
    parts.dedup();
    parts.join("/")
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            printable(&value.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_is_one_line_with_what_is_known() {
        let mut line = json!({"time": "2026-11-22T10:36:48.123456789Z", "action": "applied",
            "event": "CreateContainer", "plugin": "10-a", "field": "process.env[A]",
            "from": null, "to": "(hidden)", "namespace": "shop", "pod": "web", "container": "c"});
        assert_eq!(
            shown(&line),
            "2026-11-22T10:36:48Z  applied  10-a  shop/web/c  CreateContainer  process.env[A]  - -> (hidden)"
        );
        line["pod"] = json!("web\n2026 forged\u{1b}[2J");
        assert!(!shown(&line).contains(['\n', '\u{1b}']));
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "connected", "plugin": "10-a",
            "reason": "process 7"});
        assert_eq!(shown(&line), "2026-11-22T10:36:48Z  connected  10-a  process 7");
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "refused", "rule": "prod",
            "pod": "c1", "container": "c1", "reason": "no"});
        assert_eq!(shown(&line), "2026-11-22T10:36:48Z  refused  c1  rule prod  no");
    }
}
