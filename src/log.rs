// SPDX-License-Identifier: Apache-2.0
//! The daemon's log (decision D9): the journal or syslog if there is one, else a file of limited size in
//! the run directory; stderr in the foreground. A log that cannot be written never fails a request.

use std::io::{self, Write};
use std::mem::take;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

use crate::config::Config;
use crate::text::printable;

/// A log file is set aside at this size; at most two are kept.
const FILE_LIMIT: u64 = 4 << 20;

/// The events of a level that is logged.
type Filtered = Layered<reload::Layer<LevelFilter, Registry>, Registry>;

/// What becomes of them.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// How a log that has started is changed.
struct RunningLog {
    is_foreground: bool,
    level: reload::Handle<LevelFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

static RUNNING: OnceLock<RunningLog> = OnceLock::new();

/// How a person reads the log.
static SHOWN_BY: Mutex<String> = Mutex::new(String::new());

/// Starts logging according to the configuration. `foreground`: `auto` means stderr.
pub(crate) fn start(config: &Config, foreground: bool) {
    let (filter, level) = reload::Layer::new(level(config));
    let (lines, handle) = reload::Layer::new(lines(config, foreground));
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // The first subscriber stays installed: tests run several daemons in one process.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let running = RunningLog { is_foreground: foreground, level, lines: handle };
        let _first = RUNNING.set(running);
    }
}

/// Applies another configuration from now on; whether that could be done.
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
    if let Ok(mut shown_by) = SHOWN_BY.lock() {
        *shown_by = target.shown_by();
    }
    let is_bare = matches!(target, LogTarget::Socket { .. });
    let is_json = config.log_format == "json";
    let writer = LogWriter { target: Mutex::new(target), is_json };
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false);
    match (is_json, is_bare) {
        (true, _) => Box::new(lines.json().with_writer(writer)),
        (false, true) => Box::new(lines.without_time().with_writer(writer)),
        (false, false) => Box::new(lines.with_writer(writer)),
    }
}

/// How a person reads what this process logs: mostly a command.
pub(crate) fn shown_by() -> String {
    SHOWN_BY.lock().map(|shown_by| shown_by.clone()).unwrap_or_default()
}

fn target(config: &Config, foreground: bool) -> LogTarget {
    let journal = || socket("/run/systemd/journal/socket", true);
    let syslog = || socket("/dev/log", false);
    let file = || LogTarget::File { path: config.run_dir.join("daemon.log"), written: None };
    match config.log_target.as_str() {
        "stderr" => LogTarget::Stderr,
        "file" => file(),
        "journal" => journal().unwrap_or_else(file),
        "syslog" => syslog().unwrap_or_else(file),
        _ if foreground => LogTarget::Stderr,
        _ => journal().or_else(syslog).unwrap_or_else(file),
    }
}

fn socket(path: &str, is_journal: bool) -> Option<LogTarget> {
    if !Path::new(path).exists() {
        return None;
    }
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(path).ok()?;
    Some(LogTarget::Socket { socket, is_journal })
}

/// The facility `daemon` of syslog(3), as it is added to a severity.
const DAEMON: u8 = 3 << 3;

/// The severity of syslog(3), which is the journal's PRIORITY.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

enum LogTarget {
    Stderr,
    Socket { socket: UnixDatagram, is_journal: bool },
    File { path: PathBuf, written: Option<u64> },
}

impl LogTarget {
    fn shown_by(&self) -> String {
        match self {
            Self::Stderr => "the standard error of the daemon".to_owned(),
            Self::Socket { is_journal: true, .. } => "journalctl -t nri-runc".to_owned(),
            Self::Socket { is_journal: false, .. } => "the lines of nri-runc in syslog".to_owned(),
            Self::File { path, .. } => format!("tail -n 50 {}", path.display()),
        }
    }

    fn put(&mut self, level: Level, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(line),
            Self::Socket { socket, is_journal } => {
                let text = String::from_utf8_lossy(line);
                let text = text.trim_end();
                let severity = severity(level);
                let datagram = if *is_journal {
                    format!("SYSLOG_IDENTIFIER=nri-runc\nPRIORITY={severity}\nMESSAGE={text}\n")
                } else {
                    format!("<{}>nri-runc[{}]: {text}", DAEMON + severity, std::process::id())
                };
                socket.send(datagram.as_bytes()).map(|_| ())
            }
            Self::File { path, written } => {
                let size = written.unwrap_or_else(|| path.metadata().map_or(0, |meta| meta.len()));
                if size > FILE_LIMIT {
                    std::fs::rename(&*path, path.with_extension("log.old"))?;
                }
                use std::os::unix::fs::OpenOptionsExt;
                let mut options = std::fs::OpenOptions::new();
                options.append(true).create(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
                options.open(&*path)?.write_all(line)?;
                let length = u64::try_from(line.len()).unwrap_or(0);
                *written = Some(if size > FILE_LIMIT { length } else { size + length });
                Ok(())
            }
        }
    }
}

struct LogWriter {
    target: Mutex<LogTarget>,
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

/// Names and error texts of tenants are part of it: they must not write a second line, and nothing
/// that a terminal acts on.
fn one_line(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut line = printable(text.strip_suffix('\n').unwrap_or(&text)).into_bytes();
    line.push(b'\n');
    line
}

/// One event, handed over whole when it is complete.
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
        // JSON has escapes of its own, and is for programs.
        let line = if self.writer.is_json { take(&mut self.bytes) } else { one_line(&self.bytes) };
        if let Ok(mut target) = self.writer.target.lock() {
            let _nowhere_to_say_it = target.put(self.level, &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_file_is_set_aside_at_its_limit() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("daemon.log");
        let mut target = LogTarget::File { path: path.clone(), written: Some(FILE_LIMIT + 1) };
        crate::files::replace(&path, b"old\n").unwrap();
        target.put(Level::INFO, b"new\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new\n");
        assert_eq!(std::fs::read(temp.path().join("daemon.log.old")).unwrap(), b"old\n");
    }

    #[test]
    fn a_line_of_text_is_one_line_and_json_is_left_alone() {
        for (is_json, wanted) in
            [(false, "a\\n\\u{1b}[2J\\u{202e}b\n"), (true, "a\n\u{1b}[2J\u{202e}b\n")]
        {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("daemon.log");
            let target = Mutex::new(LogTarget::File { path: path.clone(), written: None });
            let writer = LogWriter { target, is_json };
            let mut line = writer.make_writer();
            line.write_all("a\n\u{1b}[2J\u{202e}b\n".as_bytes()).unwrap();
            drop(line);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
        }
    }

    #[test]
    fn the_journal_and_syslog_are_told_how_serious_a_line_is() {
        for (is_journal, level, wanted) in [
            (true, Level::ERROR, "\nPRIORITY=3\n"),
            (true, Level::WARN, "\nPRIORITY=4\n"),
            (true, Level::INFO, "\nPRIORITY=6\n"),
            (false, Level::WARN, "<28>nri-runc["),
            (false, Level::DEBUG, "<31>nri-runc["),
        ] {
            let (socket, peer) = UnixDatagram::pair().unwrap();
            LogTarget::Socket { socket, is_journal }.put(level, b"x\n").unwrap();
            let mut datagram = [0; 200];
            let length = peer.recv(&mut datagram).unwrap();
            let datagram = String::from_utf8_lossy(&datagram[..length]);
            assert!(datagram.contains(wanted), "{datagram:?} lacks {wanted:?}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_to_nobody() {
        let target = LogTarget::File { path: PathBuf::from("/nowhere/daemon.log"), written: None };
        let writer = LogWriter { target: Mutex::new(target), is_json: false };
        let mut line = writer.make_writer();
        assert!(line.write_all(b"x\n").is_ok());
    }
}
