// SPDX-License-Identifier: Apache-2.0
//! The error type whose messages users see.
//!
//! An [`Error`] holds the failed action, the cause and the next step. Its line never has the phrases
//! by which engines classify a runtime's output ("no such file or directory", "permission denied",
//! …): Podman and Docker would report such a failure as "command not found" (see
//! `RESERVED_PHRASES`). Modules whose callers branch on the outcome define small enums for it.

use std::fmt;
use std::io;

use crate::limits;
use crate::presence;

/// The result of nri-runc's fallible functions.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Phrases that containerd, CRI-O, Docker and Podman look for in a runtime's error text. nri-runc's
/// messages must not contain any.
pub const RESERVED_PHRASES: [&str; 10] = [
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "operation not permitted",
    "not a directory",
    "is a directory",
    "does not exist",
    "container not running",
    "no such process",
    "process already finished",
];

/// A failure in one line: the attempt, the reason, the next step.
#[derive(Debug, Clone, Default)]
#[expect(clippy::error_impl_error, reason = "it is the one error of the whole program")]
pub struct Error {
    /// The steps that failed, innermost last: `["cannot create 4f1c", "reading /b/config.json"]`.
    doing: Vec<String>,
    cause: String,
    /// The next step for an operator, if there is an obvious one.
    hint: Option<String>,
    /// The plugin, field and rule, for failure lists and the audit log. Boxed to keep results
    /// small.
    origin: Option<Box<Origin>>,
    /// The operating system's error that caused the failure; 0 for none.
    os: i32,
    /// The state of the daemon that the failure of a request shows.
    daemon: DaemonSeen,
}

/// The state of the daemon that the failure of a request shows; callers branch on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DaemonSeen {
    /// The failure does not show it, or no request was made.
    #[default]
    Unknown,
    /// No daemon listens.
    Absent,
    /// The daemon exited during the request.
    Exited,
    /// The daemon accepted the request and then stopped responding, even with heartbeats.
    Silent,
}

/// The plugin, field and rule that caused a failure; empty for none.
#[derive(Debug, Clone, Default)]
struct Origin {
    /// `NN-name`.
    plugin: String,
    field: String,
    rule: String,
}

impl Error {
    /// Creates a failure that has only a cause.
    pub fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), ..Self::default() }
    }

    /// Creates an error about a file that is not the expected JSON. It names the position, never
    /// the text there, because an attacker may have linked the file to one with secrets.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        let what = if error.is_data() { "an unexpected value" } else { "invalid JSON" };
        Self::new(format!("{what} in line {}, column {}", error.line(), error.column()))
    }

    /// Adds the next step; the hint that was added first stays.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if self.hint.is_none() {
            self.hint = Some(hint.into());
        }
        self
    }

    /// Sets what the failure shows about the daemon; the line is unchanged.
    #[must_use]
    pub(crate) fn seen(mut self, daemon: DaemonSeen) -> Self {
        self.daemon = daemon;
        self
    }

    /// Returns what the failure shows about the daemon.
    pub(crate) fn daemon(&self) -> DaemonSeen {
        self.daemon
    }

    /// Names the plugin that caused the failure, for the lists of failures; the line is unchanged.
    #[must_use]
    pub fn by(mut self, plugin: impl Into<String>) -> Self {
        self.origin.get_or_insert_default().plugin = plugin.into();
        self
    }

    /// Names the field that caused the failure, for the audit log; the line is unchanged.
    #[must_use]
    pub fn about(mut self, field: impl Into<String>) -> Self {
        self.origin.get_or_insert_default().field = field.into();
        self
    }

    /// Names the operator's rule that caused the failure, for the audit log; the line is unchanged.
    #[must_use]
    pub fn against(mut self, rule: impl Into<String>) -> Self {
        self.origin.get_or_insert_default().rule = rule.into();
        self
    }

    /// Returns the operator's rule that caused the failure; empty for none.
    pub fn rule(&self) -> &str {
        self.origin.as_ref().map_or("", |origin| &origin.rule)
    }

    /// Returns the field that caused the failure; empty for none.
    pub fn field(&self) -> &str {
        self.origin.as_ref().map_or("", |origin| &origin.field)
    }

    /// Returns the plugin that caused the failure; empty for none.
    pub fn plugin(&self) -> &str {
        self.origin.as_ref().map_or("", |origin| &origin.plugin)
    }

    /// Returns the line without the next step.
    pub fn why(&self) -> String {
        let mut line = String::new();
        for doing in &self.doing {
            line.push_str(doing);
            line.push_str(": ");
        }
        line.push_str(&self.cause);
        one_line(&line)
    }

    /// Whether a call failed because its object, such as a file or process, does not exist.
    pub fn is_absence(&self) -> bool {
        presence::is_absence(self.os)
    }

    /// Whether a call failed because the user has no access (EACCES).
    pub fn is_permission_denied(&self) -> bool {
        self.os == nix::libc::EACCES
    }

    /// Whether a resource such as descriptors or memory was exhausted, or the call was interrupted.
    pub fn is_shortage(&self) -> bool {
        presence::is_shortage(self.os)
    }

    /// Whether a call failed because the other end closed the connection.
    pub fn is_hangup(&self) -> bool {
        matches!(self.os, nix::libc::EPIPE | nix::libc::ECONNRESET)
    }

    /// Whether another attempt may succeed (`presence::may_pass`).
    pub fn may_pass(&self) -> bool {
        presence::may_pass(self.os)
    }

    /// Returns the failure, without the steps that led to it.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// Returns the next step; empty for none.
    pub fn next_step(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    /// Adds the step in which this failure happened.
    #[must_use]
    pub fn doing(mut self, doing: impl Into<String>) -> Self {
        self.doing.insert(0, doing.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why())?;
        match &self.hint {
            Some(hint) => write!(f, " ({})", one_line(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self { os: error.raw_os_error().unwrap_or(0), ..Self::new(in_our_words(&error)) }
    }
}

impl From<nix::errno::Errno> for Error {
    fn from(errno: nix::errno::Errno) -> Self {
        Self::from(io::Error::from(errno))
    }
}

/// Adds context to any result whose error can become an [`Error`].
pub(crate) trait Context<T> {
    /// Adds the step that failed; `doing` is called only on failure.
    fn doing<S: Into<String>>(self, doing: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn doing<S: Into<String>>(self, doing: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.into().doing(doing()))
    }
}

/// Renders an operating system error without the phrases that engines look for.
pub(crate) fn in_our_words(error: &io::Error) -> String {
    use nix::errno::Errno;
    let Some(raw) = error.raw_os_error() else { return quoted(&error.to_string()) };
    let errno = Errno::from_raw(raw);
    let text = if errno == Errno::ENOENT {
        "it is missing"
    } else if errno == Errno::EACCES {
        "access was denied"
    } else if errno == Errno::EPERM {
        "the kernel refused it"
    } else if errno == Errno::ENOTDIR {
        "a path component is not a folder"
    } else if errno == Errno::EISDIR {
        "it is a folder"
    } else if errno == Errno::ESRCH {
        "the process is gone"
    } else if errno == Errno::ELOOP {
        "it is a symbolic link"
    } else {
        return format!("{} ({errno:?})", errno.desc().to_lowercase());
    };
    format!("{text} ({errno:?})")
}

/// Quotes foreign text (a plugin's reason, a parser's error) within one line: line breaks become
/// blanks, terminal controls become escapes, and reserved phrases get underscores for their blanks.
/// A long text is cut.
pub fn quoted(text: &str) -> String {
    without_reserved_phrases(nri_api::text::one_line(text, limits::QUOTED))
}

fn without_reserved_phrases(mut line: String) -> String {
    for phrase in RESERVED_PHRASES {
        let lower = line.to_ascii_lowercase();
        for (at, _) in lower.match_indices(phrase) {
            let broken = line[at..at + phrase.len()].replace(' ', "_");
            line.replace_range(at..at + phrase.len(), &broken);
        }
    }
    line
}

/// Makes a message one line, because texts of other crates in it did not pass through [`quoted`].
fn one_line(text: &str) -> String {
    without_reserved_phrases(nri_api::text::one_line(text, limits::LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_its_context_outermost_first() {
        let error =
            Error::new("bad\nthing").doing("reading /b").doing("cannot create x").hint("fix");
        assert_eq!(error.to_string(), "cannot create x: reading /b: bad thing (fix)");
    }

    #[test]
    fn no_errno_is_rendered_with_a_reserved_phrase() {
        for raw in 1..134 {
            let text = in_our_words(&io::Error::from_raw_os_error(raw)).to_ascii_lowercase();
            for phrase in RESERVED_PHRASES {
                assert!(!text.contains(phrase), "errno {raw}: {text}");
            }
        }
    }

    #[test]
    fn texts_of_the_crates_cannot_be_taken_for_an_engine_phrase() {
        let mut owners = nri_adaptation::Owners::default();
        let mut claim = |plugin| {
            let field = nri_adaptation::NriField::Annotations;
            owners.claim("c0", field, Some("a\nb permission denied"), plugin)
        };
        claim("00-bar").unwrap();
        let error = Error::new(claim("10-foo").unwrap_err().to_string()).hint("Is a Directory");
        let wanted = "plugins \"10-foo\" and \"00-bar\" both tried to set Annotations a b \
                      permission_denied of container c0 (Is_a_Directory)";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn quoted_text_cannot_be_taken_for_an_engine_phrase() {
        let text = quoted("exec: Permission denied,\nno such file or directory");
        for phrase in RESERVED_PHRASES {
            assert!(!text.to_ascii_lowercase().contains(phrase), "{text}");
        }
        assert!(text.contains("exec: Permission_denied"));
    }

    #[test]
    fn a_failure_is_a_line_of_bounded_length_whatever_it_names() {
        let field = "x".repeat(3 << 20);
        let line = Error::new("no").doing(format!("Env[{field}]")).doing("create c1").to_string();
        assert!(line.starts_with("create c1: Env[xxx") && line.len() < 2 * limits::LINE);
        assert!(line.ends_with("… (3145748 bytes)"), "{}", &line[line.len() - 40..]);
    }

    #[test]
    fn repeated_phrases_of_a_long_text_are_all_broken() {
        let text = quoted(&"is a directory ".repeat(100_000));
        assert!(!text.contains("is a directory") && text.starts_with("is_a_directory is_a_"));
        assert!(text.ends_with("… (1500000 bytes)") && text.len() < 2 * limits::QUOTED);
    }
}
