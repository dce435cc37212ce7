// SPDX-License-Identifier: Apache-2.0
//! The daemon's log (decision D9). By default it is the journal or syslog if there is one, else a
//! file of limited size in the run directory; in the foreground it is stderr, unless stderr is the
//! journal. `log.target` selects one of them. The journal receives each line's priority and subject
//! as fields. A log that cannot be written never fails or delays a request (`output.rs`).

mod few;
mod output;

use std::fmt;
use std::io::{self, Write};
use std::mem::take;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::{Context, Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::Config;
use crate::host::Host;
use crate::journal;
use crate::limits;
use crate::messages;
use crate::text::printable;

use output::{LogTarget, Output};

pub(crate) use few::{LineLimit, Room, WINDOW, count_held_back};
pub(crate) use output::lost;

/// Interval of attempts to write queued lines.
const RETRY: Duration = Duration::from_millis(100);

type Filtered = Layered<reload::Layer<LevelFilter, Registry>, Registry>;

/// The layer that formats the lines.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// Handles to change a running log.
struct RunningLog {
    is_foreground: bool,
    level: reload::Handle<LevelFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

static RUNNING: OnceLock<RunningLog> = OnceLock::new();

static OUTPUT: Mutex<Option<Arc<Mutex<Output>>>> = Mutex::new(None);

/// Notified when lines wait in the output for a reader.
static WAITING: Notify = Notify::const_new();

/// Starts logging according to the configuration; to stderr only in the foreground.
pub(crate) fn start(config: &Config, foreground: bool) {
    let (filter, level) = reload::Layer::new(level(config));
    let (lines, handle) = reload::Layer::new(lines(config, foreground));
    let subscriber =
        tracing_subscriber::registry().with(filter).with(lines).with(few::FewOfEachPlace);
    // The first subscriber stays installed, because tests run several daemons in one process.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let running = RunningLog { is_foreground: foreground, level, lines: handle };
        let _first = RUNNING.set(running);
    }
}

/// Applies another configuration; returns whether that succeeded.
pub(crate) fn change(from: &Config, to: &Config) -> bool {
    let Some(running) = RUNNING.get() else { return false };
    let output = |config: &Config| (config.log_target.clone(), config.log_format.clone());
    let is_same = output(from) == output(to);
    let is_written = is_same || running.lines.reload(lines(to, running.is_foreground)).is_ok();
    running.level.reload(level(to)).is_ok() && is_written
}

fn level(config: &Config) -> LevelFilter {
    config.log_level.parse().unwrap_or(LevelFilter::INFO)
}

fn lines(config: &Config, foreground: bool) -> Lines {
    let target = target(config, foreground);
    let is_json = config.log_format == "json";
    let is_journal = matches!(target, LogTarget::Socket { is_journal: true, .. });
    let is_bare = matches!(target, LogTarget::Socket { .. });
    let output = Arc::new(Mutex::new(Output::new(target)));
    *OUTPUT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&output));
    if is_journal && !is_json {
        return Box::new(Journal { output });
    }
    let writer = LogWriter { output, is_json };
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false);
    if is_json {
        return Box::new(lines.json().with_writer(writer));
    }
    // The fields repeat parts of the message; they are for the journal and for programs.
    let message_alone = debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{value:?}"),
        _ => Ok(()),
    });
    let lines = lines.fmt_fields(message_alone).with_writer(writer);
    if is_bare { Box::new(lines.without_time()) } else { Box::new(lines) }
}

fn current() -> Option<Arc<Mutex<Output>>> {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn locked(output: &Mutex<Output>) -> std::sync::MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the command or place that shows this process's log.
pub(crate) fn shown_by() -> String {
    current().map(|output| locked(&output).target.shown_by()).unwrap_or_default()
}

/// Returns why no line of the log can be written now; `None` if lines can be written.
pub(crate) fn failure() -> Option<String> {
    current().and_then(|output| locked(&output).failure())
}

/// Writes a line to the output, or to its queue.
fn put(output: &Mutex<Output>, line: Vec<u8>) {
    if locked(output).put(line) {
        WAITING.notify_one();
    }
}

/// Retries queued lines until their reader accepts them. Never ends.
pub(crate) async fn deliver_waiting() {
    loop {
        WAITING.notified().await;
        while current().is_some_and(|output| locked(&output).flush()) {
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn target(config: &Config, foreground: bool) -> LogTarget {
    let journal = || LogTarget::socket(journal::SOCKET, true);
    let syslog = || LogTarget::socket("/dev/log", false);
    let file = || LogTarget::File { path: config.run_dir.join("daemon.log"), written: None };
    match config.log_target.as_str() {
        "stderr" if foreground => LogTarget::stderr(),
        // A daemon that a wrapper started has the file of `last_words.rs` as standard error, which
        // is not for the log.
        "stderr" => file(),
        "file" => file(),
        "journal" => journal().unwrap_or_else(file),
        "syslog" => syslog().unwrap_or_else(file),
        _ if foreground && !is_stderr_the_journal() => LogTarget::stderr(),
        _ => journal().or_else(syslog).unwrap_or_else(file),
    }
}

/// Whether standard error leads to the journal, as systemd reports in JOURNAL_STREAM. A line
/// written there would have the same priority as all others.
fn is_stderr_the_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|stderr| told == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// Logs a warning of a process without a log (a wrapper that cannot write to its run directory), to
/// the journal or else to syslog. Without either, or if it does not read, the warning is lost.
pub(crate) fn warn_system(host: &Host, line: &str) {
    let socket =
        |path: &str, is_journal| LogTarget::socket(&host.path(path).to_string_lossy(), is_journal);
    if let Some(target) = socket(journal::SOCKET, true).or_else(|| socket("/dev/log", false)) {
        let line = in_form_of(&target, Level::WARN, printable(line).into_bytes());
        Output::new(target).put(line);
    }
}

/// The facility `daemon` of syslog(3), to be added to a severity.
const DAEMON: u8 = 3 << 3;

/// Returns the severity of syslog(3), which is the journal's PRIORITY.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn in_form_of(target: &LogTarget, level: Level, line: Vec<u8>) -> Vec<u8> {
    let LogTarget::Socket { is_journal, .. } = target else { return line };
    let text = String::from_utf8_lossy(&line);
    let text: String = text.trim_end().chars().take(limits::LOG_LINE).collect();
    let severity = severity(level);
    let datagram = if *is_journal {
        format!("SYSLOG_IDENTIFIER=nri-runc\nPRIORITY={severity}\nMESSAGE={text}\n")
    } else {
        format!("<{}>nri-runc[{}]: {text}", DAEMON + severity, std::process::id())
    };
    datagram.into_bytes()
}

/// The layer that sends events with their fields to the journal.
#[derive(Debug)]
struct Journal {
    output: Arc<Mutex<Output>>,
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = JournalEntry::default();
        event.record(&mut entry);
        let datagram = entry.datagram(*event.metadata().level());
        put(&self.output, datagram.into_bytes());
    }
}

/// An event in the journal's native protocol: lines NAME=VALUE. Unprintable characters are escaped,
/// so that no value can add another line.
#[derive(Debug, Default)]
struct JournalEntry {
    message: String,
    fields: String,
}

impl JournalEntry {
    fn datagram(&self, level: Level) -> String {
        let Self { message, fields } = self;
        let message = with_code(level, message);
        let (severity, pid) = (severity(level), std::process::id());
        format!(
            "SYSLOG_IDENTIFIER=nri-runc\nSYSLOG_PID={pid}\nPRIORITY={severity}\nMESSAGE={message}\n{fields}"
        )
    }

    fn add(&mut self, name: &str, value: &str) {
        if name == "message" {
            self.message = printable(&value.chars().take(limits::LOG_LINE).collect::<String>());
        } else {
            let name = format!("NRI_{}", name.to_ascii_uppercase());
            journal::push_field(&mut self.fields, &name, value);
        }
    }
}

impl Visit for JournalEntry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

struct LogWriter {
    output: Arc<Mutex<Output>>,
    is_json: bool,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine { writer: self, level: Level::INFO, bytes: Vec::new() }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        LogLine { writer: self, level: *event.level(), bytes: Vec::new() }
    }
}

/// Adds the message's code, except to debug lines.
fn with_code(level: Level, message: &str) -> String {
    if level <= Level::INFO { messages::with_code(message) } else { message.to_owned() }
}

/// Cuts a line, adds its code, and escapes it, so that tenants' names and errors in it cannot add a
/// second line or control a terminal.
fn one_line(level: Level, bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let text = limits::cut(text.strip_suffix('\n').unwrap_or(&text), limits::LINE);
    let text = printable(&text);
    // The time and the level come before the message.
    let level_word = format!("{level} ");
    let at = text.find(&level_word).map_or(0, |at| at + level_word.len());
    let mut line = text[..at].to_owned();
    line.push_str(&with_code(level, &text[at..]));
    line.push('\n');
    line.into_bytes()
}

/// Adds the code to the message of a JSON line; the JSON writer escapes it.
fn json_line(level: Level, bytes: Vec<u8>) -> Vec<u8> {
    let Ok(mut line) = serde_json::from_slice::<serde_json::Value>(&bytes) else { return bytes };
    let message = line.get_mut("fields").and_then(|fields| fields.get_mut("message"));
    let Some(serde_json::Value::String(message)) = message else { return bytes };
    *message = with_code(level, message);
    format!("{line}\n").into_bytes()
}

/// One event, written as a whole when it is complete.
struct LogLine<'a> {
    writer: &'a LogWriter,
    level: Level,
    bytes: Vec<u8>,
}

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        let line = match self.writer.is_json {
            true => json_line(self.level, take(&mut self.bytes)),
            false => one_line(self.level, &self.bytes),
        };
        let line = in_form_of(&locked(&self.writer.output).target, self.level, line);
        put(&self.writer.output, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    fn to_file(path: PathBuf) -> Arc<Mutex<Output>> {
        Arc::new(Mutex::new(Output::new(LogTarget::File { path, written: None })))
    }

    fn to_socket(is_journal: bool) -> (LogTarget, UnixDatagram) {
        let (socket, peer) = UnixDatagram::pair().unwrap();
        (LogTarget::Socket { path: PathBuf::new(), socket: Some(socket), is_journal }, peer)
    }

    #[test]
    fn text_is_kept_on_one_line_and_json_is_unchanged() {
        for (is_json, wanted) in
            [(false, "a\\n\\u{1b}[2J\\u{202e}b\n"), (true, "a\n\u{1b}[2J\u{202e}b\n")]
        {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("daemon.log");
            let writer = LogWriter { output: to_file(path.clone()), is_json };
            let mut line = writer.make_writer();
            line.write_all("a\n\u{1b}[2J\u{202e}b\n".as_bytes()).unwrap();
            drop(line);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
        }
    }

    #[test]
    fn a_line_has_the_code_of_its_message_in_each_form() {
        let coded = messages::with_code("an empty frame");
        assert!(coded.contains(" [NR"), "{coded}");
        let text = one_line(Level::WARN, b"2026-11-25T18:00:00Z  WARN an empty frame\n");
        assert_eq!(
            String::from_utf8(text).unwrap(),
            format!("2026-11-25T18:00:00Z  WARN {coded}\n")
        );
        let json = r#"{"level":"WARN","fields":{"message":"an empty frame","plugin":"a"}}"#;
        let line = String::from_utf8(json_line(Level::WARN, json.as_bytes().to_vec())).unwrap();
        assert_eq!(line, json.replace("an empty frame", &coded) + "\n");
        let entry = JournalEntry { message: "an empty frame".to_owned(), fields: String::new() };
        assert!(entry.datagram(Level::ERROR).contains(&format!("MESSAGE={coded}\n")));
    }

    #[test]
    fn debug_lines_and_unknown_messages_have_no_code() {
        assert_eq!(
            one_line(Level::INFO, b" INFO 10-a is synchronized"),
            b" INFO 10-a is synchronized\n"
        );
        assert_eq!(one_line(Level::DEBUG, b"DEBUG an empty frame"), b"DEBUG an empty frame\n");
        for odd in ["an empty frame", "{}", r#"{"fields":{"message":1}}"#] {
            assert_eq!(json_line(Level::WARN, odd.as_bytes().to_vec()), odd.as_bytes());
        }
    }

    #[test]
    fn the_journal_and_syslog_get_the_severity_of_a_line() {
        for (is_journal, level, wanted) in [
            (true, Level::ERROR, "\nPRIORITY=3\n"),
            (true, Level::WARN, "\nPRIORITY=4\n"),
            (true, Level::INFO, "\nPRIORITY=6\n"),
            (false, Level::WARN, "<28>nri-runc["),
            (false, Level::DEBUG, "<31>nri-runc["),
        ] {
            let (target, peer) = to_socket(is_journal);
            let line = in_form_of(&target, level, b"x\n".to_vec());
            assert!(!Output::new(target).put(line));
            let mut datagram = [0; 200];
            let length = peer.recv(&mut datagram).unwrap();
            let datagram = String::from_utf8_lossy(&datagram[..length]);
            assert!(datagram.contains(wanted), "{datagram:?} lacks {wanted:?}");
        }
    }

    #[test]
    fn the_journal_gets_the_fields_of_a_line_and_no_injected_field() {
        let (target, peer) = to_socket(true);
        let layer = Journal { output: Arc::new(Mutex::new(Output::new(target))) };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let (plugin, container_id) = ("10-a\nPRIORITY=0", "c1");
            tracing::error!(plugin, container_id, pod = "", "create c1: no\nMESSAGE=forged\u{1b}");
        });
        let mut datagram = [0; 1000];
        let length = peer.recv(&mut datagram).unwrap();
        let datagram = String::from_utf8_lossy(&datagram[..length]).into_owned();
        let lines: Vec<&str> = datagram.lines().collect();
        assert!(lines.contains(&"MESSAGE=create c1: no\\nMESSAGE=forged\\u{1b}"), "{datagram}");
        assert!(lines.contains(&"NRI_PLUGIN=10-a\\nPRIORITY=0"), "{datagram}");
        assert!(lines.contains(&"NRI_CONTAINER_ID=c1") && lines.contains(&"PRIORITY=3"));
        assert_eq!((lines.len(), datagram.contains("NRI_POD")), (6, false), "{datagram}");
    }

    #[test]
    fn a_line_fits_a_datagram_however_long_it_is() {
        let mut entry = JournalEntry::default();
        entry.add("message", &"\u{1b}".repeat(1 << 20));
        entry.add("plugin", &"x".repeat(1 << 20));
        assert!(entry.datagram(Level::INFO).len() < 128 << 10);
    }

    #[test]
    fn an_unwritable_log_is_not_an_error() {
        let output = to_file(PathBuf::from("/nowhere/daemon.log"));
        let writer = LogWriter { output, is_json: false };
        let mut line = writer.make_writer();
        assert!(line.write_all(b"x\n").is_ok());
    }
}
