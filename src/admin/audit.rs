// SPDX-License-Identifier: Apache-2.0
//! `audit`: searches the audit log, in its files or in the journal. It needs no daemon. It prints
//! each line as it is found (with `--pod` or `--container`: see [`Page`]); with `--follow` it then
//! prints new lines.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::audit::{
    AuditAction, AuditFilter, AuditSubject, AuditTail, IDENTIFIER, LoggedLine, open_files, search,
    since,
};
use crate::config::{AuditTarget, Config};
use crate::error::{Context, Error, Result};
use crate::named::Named;
use crate::text::{counted, first_of, printable, short_id};

use super::exit::DONE;
use super::output::{Format, PageOutput, complain};
use super::show::{or_dash, screen, shortened};
use super::watch::{has_reader, wait_for_lines, whole_lines};
use super::{progress, yaml};

/// Interval of checks of a followed file for new lines.
const INTERVAL: Duration = Duration::from_millis(250);

/// The arguments of `audit`.
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(flatten)]
    subject: SubjectFilter,
    /// Only these actions, such as refused,would_refuse.
    #[arg(
        long,
        value_name = "ACTION",
        value_delimiter = ',',
        value_parser = actions(),
        hide_possible_values = true
    )]
    action: Vec<String>,
    /// Only newer than an age (2h, 7d) or a UTC time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<String>,
    /// Then print new lines as they are written, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    pub(super) output: PageOutput,
}

/// Selects the lines about a pod, a container or a plugin.
#[derive(Debug, Clone, Args)]
pub(super) struct SubjectFilter {
    /// Only this pod: NAMESPACE/NAME, name, ID or ID prefix.
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only this container: name, ID or ID prefix.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// Only this plugin: NAME or NN-NAME.
    #[arg(long, value_name = "PLUGIN")]
    plugin: Option<String>,
}

impl SubjectFilter {
    /// Converts the arguments to a filter of lines.
    pub(super) fn filter(&self) -> AuditFilter {
        let Self { pod, container, plugin } = self.clone();
        AuditFilter { pod, container, plugin, ..AuditFilter::default() }
    }
}

/// Prints the matching lines.
///
/// # Errors
/// Fails if the audit log is off (with older files: only if `--follow` is given), if it cannot be read, if the
/// output cannot be written, or if an ID prefix matches several IDs.
pub(super) fn audit(config: &Config, wanted: &Audit, format: Format) -> Result<u8> {
    let filter = filter(wanted);
    let mut page = Page::new(format, &filter, wanted.follow);
    let unreadable = match config.audit_target {
        Some(AuditTarget::Journal) if wanted.follow => return follow_journal(&filter, &mut page),
        Some(AuditTarget::File) if wanted.follow => {
            return follow_files(&config.audit_path, &filter, &mut page);
        }
        Some(AuditTarget::Journal) => search_journal(&filter, &mut page)?,
        Some(AuditTarget::File) => search_files(&config.audit_path, &filter, &mut page)?,
        None => {
            let files = open_files(&config.audit_path)?;
            if files.is_empty() || wanted.follow {
                return Err(Error::new("the audit log is off")
                    .hint("set audit.target to \"file\" or \"journal\" in the configuration"));
            }
            // The files of a log that is off now may still exist.
            search_files(&config.audit_path, &filter, &mut page)?
        }
    };
    page.end()?;
    complain_of(unreadable);
    Ok(DONE)
}

fn complain_of(unreadable: u64) {
    if unreadable > 0 {
        let lines = counted(usize::try_from(unreadable).unwrap_or(usize::MAX), "line");
        complain(&format!("{lines} of the audit log could not be read"));
    }
}

fn actions() -> PossibleValuesParser {
    PossibleValuesParser::new(AuditAction::names())
}

/// Converts `--since` to the form in which times are compared.
fn time(text: &str) -> std::result::Result<String, String> {
    since(text, SystemTime::now()).ok_or_else(|| {
        "not an age such as 90s, 2h or 7d, or a UTC time such as 2026-11-22T10:15".to_owned()
    })
}

fn filter(wanted: &Audit) -> AuditFilter {
    let Audit { subject, action, since, follow: _, output: _ } = wanted;
    AuditFilter { actions: action.clone(), since: since.clone(), ..subject.filter() }
}

fn search_files(path: &Path, filter: &AuditFilter, page: &mut Page) -> Result<u64> {
    let mut unreadable = 0;
    for file in open_files(path)? {
        unreadable += page.add_all(BufReader::new(file), filter)?;
    }
    Ok(unreadable)
}

/// Prints the lines of the log, then new ones, until a signal ends the process or standard output
/// is closed.
fn follow_files(path: &Path, filter: &AuditFilter, page: &mut Page) -> Result<u8> {
    let mut tail = AuditTail::open(path)?;
    loop {
        let lines = tail.read()?;
        if lines.is_empty() {
            page.write_held()?;
            if !has_reader(INTERVAL)? {
                return Ok(DONE);
            }
        }
        if tail.take_gap() {
            complain("lines may be missing: the log was rotated faster than it was read");
        }
        complain_of(page.add_all(lines.as_slice(), filter)?);
    }
}

/// Prints the lines of the journal, then new ones, until a signal ends the process or standard
/// output is closed.
fn follow_journal(filter: &AuditFilter, page: &mut Page) -> Result<u8> {
    let mut journal = journalctl(&["--follow", "--lines=all"])?;
    let followed = follow_output(&mut journal, filter, page);
    // Without this, journalctl would run until it next writes to the closed pipe.
    let _ended_by_itself = journal.kill();
    let status = journal.wait().doing(|| "reading the journal")?;
    if followed? { Err(journal_failed(status)) } else { Ok(DONE) }
}

/// Prints the journal's lines; returns whether journalctl exited by itself.
fn follow_output(journal: &mut Child, filter: &AuditFilter, page: &mut Page) -> Result<bool> {
    let mut output = journal.stdout.take().ok_or_else(|| Error::new("journalctl has no output"))?;
    page.write_held()?;
    let mut unfinished = Vec::new();
    loop {
        if !wait_for_lines(&output)? {
            return Ok(false);
        }
        let mut bytes = [0; 1 << 16];
        let count = output.read(&mut bytes).doing(|| "reading the journal")?;
        if count == 0 {
            return Ok(true);
        }
        let lines = whole_lines(&mut unfinished, &bytes[..count]);
        complain_of(page.add_all(lines.as_slice(), filter)?);
    }
}

fn search_journal(filter: &AuditFilter, page: &mut Page) -> Result<u64> {
    let mut journal = journalctl(&[])?;
    let output = journal.stdout.take().ok_or_else(|| Error::new("journalctl has no output"))?;
    let unreadable = page.add_all(BufReader::new(output), filter)?;
    let status = journal.wait().doing(|| "reading the journal")?;
    if !status.success() {
        return Err(journal_failed(status));
    }
    Ok(unreadable)
}

fn journal_failed(status: ExitStatus) -> Error {
    Error::new(format!("journalctl failed ({status})"))
        .hint(format!("try it: journalctl -t {IDENTIFIER}"))
}

/// Starts journalctl for the lines of this process's user, whom journald records as the sender: no other user
/// can forge such a line.
#[expect(clippy::disallowed_methods, reason = "the journal is read by its own program")]
fn journalctl(more: &[&str]) -> Result<Child> {
    let user = format!("_UID={}", nix::unistd::geteuid());
    let identifier = format!("SYSLOG_IDENTIFIER={IDENTIFIER}");
    let words = ["--quiet", "--no-pager", "--output=cat", &user, &identifier];
    let mut command = std::process::Command::new("journalctl");
    command.args(words).args(more).stdin(Stdio::null()).stdout(Stdio::piped());
    let started = command.spawn().doing(|| "starting journalctl to read the audit log");
    started.map_err(|error| error.hint("install it, or set audit.target = \"file\""))
}

/// The output. Lines are written as they are found; with `--pod` or `--container` they are held
/// until the search ends, because the command fails without output if an ID prefix matches several
/// IDs. A followed journal does not show where the search ends, so its lines are not held.
struct Page {
    format: Format,
    is_endless: bool,
    count: usize,
    out: std::io::BufWriter<std::io::Stdout>,
    held: Option<Vec<u8>>,
    prefixes: Prefixes,
}

impl Page {
    fn new(format: Format, filter: &AuditFilter, is_endless: bool) -> Self {
        let held = (filter.pod.is_some() || filter.container.is_some()).then(Vec::new);
        let out = std::io::BufWriter::new(std::io::stdout());
        Self { format, is_endless, count: 0, out, held, prefixes: Prefixes::default() }
    }

    /// Adds the lines that the filter admits; returns the number of lines that cannot be parsed.
    fn add_all(&mut self, lines: impl BufRead, filter: &AuditFilter) -> Result<u64> {
        search(lines, filter, |text, line| self.add(text, line, filter))
    }

    fn add(&mut self, text: &str, line: &LoggedLine, filter: &AuditFilter) -> Result<()> {
        self.prefixes.add(filter, &line.subject);
        let is_live = self.is_endless && self.held.is_none();
        if is_live {
            self.prefixes.require_one()?;
        }
        let is_first = self.count == 0;
        let before = if is_first { "[" } else { ",\n" };
        self.count += 1;
        // Parses the whole line, because the output also has members that only other versions
        // define.
        let whole = || serde_json::from_str::<Value>(text).unwrap_or_default();
        let row = match self.format {
            Format::Json if self.is_endless => format!("{text}\n"),
            Format::Json => format!("{before}{text}"),
            Format::Yaml if self.is_endless => format!("---\n{}", yaml::yaml(&whole())),
            Format::Yaml => yaml::yaml(&Value::Array(vec![whole()])),
            Format::Page | Format::Wide | Format::Name | Format::Junit => {
                let heading = if is_first { heading() + "\n" } else { String::new() };
                format!("{heading}{}\n", shown(line, fits_columns(self.format)))
            }
        };
        self.write(row.as_bytes())?;
        if is_live { self.flush() } else { Ok(()) }
    }

    /// Writes the held lines; later ones are written at once.
    fn write_held(&mut self) -> Result<()> {
        self.prefixes.require_one()?;
        let held = self.held.take().unwrap_or_default();
        self.write(&held)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().doing(|| "writing the answer")
    }

    fn write(&mut self, row: &[u8]) -> Result<()> {
        match &mut self.held {
            Some(held) => {
                held.extend_from_slice(row);
                Ok(())
            }
            None => {
                progress::clear();
                self.out.write_all(row).doing(|| "writing the answer")
            }
        }
    }

    /// Ends the output, even if it is empty.
    fn end(mut self) -> Result<()> {
        self.write_held()?;
        let end = match (self.format, self.count) {
            (Format::Json | Format::Yaml, 0) => "[]\n",
            (Format::Json, _) => "]\n",
            (Format::Page | Format::Wide | Format::Name | Format::Junit, 0) => "no entries\n",
            (_, _) => "",
        };
        self.write(end.as_bytes())?;
        self.flush()
    }
}

/// The IDs of pods and of containers that only an ID prefix of the filter matched.
#[derive(Default)]
struct Prefixes {
    pods: BTreeSet<String>,
    containers: BTreeSet<String>,
}

impl Prefixes {
    fn add(&mut self, filter: &AuditFilter, line: &AuditSubject) {
        self.pods.extend(filter.pod_by_prefix(line).cloned());
        self.containers.extend(filter.container_by_prefix(line).cloned());
    }

    fn require_one(&self) -> Result<()> {
        for (kind, ids) in [("pods", &self.pods), ("containers", &self.containers)] {
            if ids.len() > 1 {
                let ids: Vec<&str> = ids.iter().map(|id| short_id(id)).collect();
                return Err(Error::new(format!(
                    "the ID prefix is ambiguous: {} {kind} match: {}",
                    ids.len(),
                    first_of(&ids)
                ))
                .hint("give more of the ID, or a name"));
            }
        }
        Ok(())
    }
}

/// Titles, and widths in characters, of a line's first columns. The widths are fixed, because each line is
/// printed when it is found: a longer word shifts the rest of its line, or is shortened.
const COLUMNS: [(&str, usize); 4] = [("TIME", 20), ("ACTION", 12), ("PLUGIN", 16), ("ABOUT", 24)];

/// Whether words are shortened to their columns: on a terminal, unless the page is wide.
pub(super) fn fits_columns(format: Format) -> bool {
    format == Format::Page && screen().is_some()
}

fn heading() -> String {
    columns(COLUMNS.map(|(title, _)| title.to_owned()), false) + "  DETAIL"
}

/// Joins the first columns of a line.
pub(super) fn columns(words: [String; 4], fits: bool) -> String {
    let cells = words.iter().zip(COLUMNS).map(|(word, (_, width))| {
        let word = if fits { shortened(word, width) } else { word.clone() };
        format!("{word:<width$}")
    });
    cells.collect::<Vec<_>>().join("  ")
}

/// Formats a line for people; `detail` is the part that depends on its action.
pub(super) fn row(line: &LoggedLine, detail: String, fits: bool) -> String {
    let LoggedLine { time, action, plugin, event, field, rule, reason, .. } = line;
    let [action, plugin, event, field, rule, reason] =
        [action, plugin, event, field, rule, reason].map(|word| printable(word));
    let dash_if_empty = |word: String| if word.is_empty() { "-".to_owned() } else { word };
    let time = printable(time).chars().take(19).collect::<String>() + "Z";
    let first =
        columns([time, action, dash_if_empty(plugin), dash_if_empty(about(&line.subject))], fits);
    let rule = if rule.is_empty() { rule } else { format!("rule {rule}") };
    let mut words = vec![first, event, field, detail, rule, reason];
    words.retain(|word| !word.is_empty());
    words.join("  ").trim_end().to_owned()
}

fn shown(line: &LoggedLine, fits: bool) -> String {
    let detail = match line.action.as_str() {
        "applied" => format!("{} -> {}", value(&line.from), value(&line.to)),
        "exec" => process(line),
        _ => String::new(),
    };
    row(line, detail, fits)
}

/// Formats the process of an `exec`: its arguments, result, user, terminal and callers.
fn process(line: &LoggedLine) -> String {
    let list = |words: &[String], between| {
        words.iter().map(|word| printable(word)).collect::<Vec<_>>().join(between)
    };
    let code = line.exit_code.map(|code| format!(" {code}")).unwrap_or_default();
    let terminal = if line.terminal == Some(true) { "  terminal" } else { "" };
    let args = if line.args.is_empty() { "" } else { &(list(&line.args, " ") + "  ") };
    let [result, user] = [&line.result, &line.user].map(|word| or_dash(word.as_ref()));
    format!("{args}{result}{code}  user {user}{terminal}  by {}", list(&line.caller, " < "))
}

/// Formats `NAMESPACE/POD/CONTAINER`, with an ID in place of a missing name, without missing parts.
fn about(subject: &AuditSubject) -> String {
    let AuditSubject { namespace, pod, pod_id, container, container_id, .. } = subject;
    let name_or_id =
        |name: &str, id| short_id(&printable(if name.is_empty() { id } else { name })).to_owned();
    let mut parts =
        vec![printable(namespace), name_or_id(pod, pod_id), name_or_id(container, container_id)];
    parts.retain(|part| !part.is_empty());
    // A container without a pod is recorded as its own pod.
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

    fn shown(line: &Value, fits: bool) -> String {
        super::shown(&serde_json::from_value(line.clone()).unwrap(), fits)
    }

    fn words(line: &Value) -> String {
        shown(line, false).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_are_aligned_with_their_titles() {
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "would_refuse",
            "plugin": "10-a", "pod": "web", "container": "c", "reason": "no"});
        let (heading, shown) = (heading(), shown(&line, false));
        for (title, word) in [("ACTION", "would_refuse"), ("PLUGIN", "10-a"), ("ABOUT", "web/c")] {
            assert_eq!(heading.find(title), shown.find(word), "{heading}\n{shown}");
        }
        assert_eq!(heading.find("DETAIL"), shown.find("no"), "{heading}\n{shown}");
    }

    #[test]
    fn long_names_fit_their_columns_on_a_screen_but_not_in_a_pipe() {
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "refused",
            "plugin": "10-a-plugin-with-a-long-name", "namespace": "kube-system",
            "pod": "coredns-5d78c9869d-x2xk9", "container": "coredns", "reason": "no"});
        let fits = shown(&line, true);
        assert_eq!(heading().find("DETAIL"), fits.find("no"), "{fits}");
        assert!(fits.contains("kube-syste...xk9/coredns"), "{fits}");
        let whole = shown(&line, false);
        let wanted =
            "10-a-plugin-with-a-long-name  kube-system/coredns-5d78c9869d-x2xk9/coredns  no";
        assert!(whole.ends_with(wanted), "{whole}");
    }

    #[test]
    fn an_entry_is_one_line_with_the_known_values() {
        let mut line = json!({"time": "2026-11-22T10:36:48.123456789Z", "action": "applied",
            "event": "CreateContainer", "plugin": "10-a", "field": "process.env[A]",
            "from": null, "to": "(hidden)", "namespace": "shop", "pod": "web", "container": "c"});
        assert_eq!(
            shown(&line, false),
            "2026-11-22T10:36:48Z  applied       10-a              shop/web/c                CreateContainer  process.env[A]  - -> (hidden)"
        );
        line["pod"] = json!("web\n2026 forged\u{1b}[2J");
        assert!(!shown(&line, false).contains(['\n', '\u{1b}']));
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "connected", "plugin": "10-a",
            "reason": "process 7"});
        assert_eq!(words(&line), "2026-11-22T10:36:48Z connected 10-a - process 7");
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "exec", "event": "exec",
            "args": ["sh", "a\n"], "result": "exited", "exit_code": 3, "user": "0:0",
            "terminal": true, "caller": ["conmon", "x\u{1b}"], "container": "c"});
        let shown_exec = words(&line);
        let wanted = "exec - c exec sh a\\n exited 3 user 0:0 terminal by conmon < x";
        assert!(shown_exec.contains(wanted) && !shown_exec.contains('\u{1b}'), "{shown_exec}");
        let line = json!({"time": "2026-11-22T10:36:48Z", "action": "refused", "rule": "prod",
            "pod": "c1", "container": "c1", "reason": "no"});
        assert_eq!(words(&line), "2026-11-22T10:36:48Z refused - c1 rule prod no");
    }
}
