// SPDX-License-Identifier: Apache-2.0
//! Encodes and decodes the messages between wrapper and daemon over `RUN_DIR/daemon.sock`.
//!
//! A message is a frame: `u32` little-endian length of what follows, one byte kind, then fields
//! (`tagged.rs`). The first field of a request is the protocol version. Arguments are bytes, not
//! text: they need not be UTF-8. This module also reads whole frames from a blocking socket; the
//! daemon has its own asynchronous reader.

mod notes;

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::FRAME;
use crate::named::{Named, named};
use crate::tagged::{self, fields};

pub(crate) use notes::{
    BYPASSED_DIR, Bypassed, DROPPED_NOTES, NoteBytes, REFUSED_DIR, Refused, WrapperNote,
};

/// Version of this protocol.
pub const PROTOCOL: u32 = 1;

/// Number of versions by which a wrapper's protocol may be older than the daemon's.
const UNDERSTOOD: u32 = 2;

/// Whether a daemon that speaks `own` understands a wrapper that speaks `theirs`. A newer wrapper's
/// request may contain more than the daemon knows, so the daemon refuses it: the wrapper then makes
/// the daemon execute the newer program, and repeats the request. Admin verbs, and the response to
/// a refused version, have the same form in every version.
pub(crate) fn is_understood(own: u32, theirs: u32) -> bool {
    theirs <= own && own - theirs <= UNDERSTOOD
}

/// Content of `Config::execs_file` if only the audit log needs each `exec`.
pub(crate) const EXECS_FOR_AUDIT: &[u8] = b"audit\n";
/// Content of `Config::execs_file` if exec rules apply: a wrapper asks the daemon.
pub(crate) const EXECS_FOR_RULES: &[u8] = b"rules\n";
/// Content of `Config::execs_file` if plugins handle execs: a wrapper also sends the document.
pub(crate) const EXECS_FOR_PLUGINS: &[u8] = b"plugins\n";
/// Content of `Config::execs_file` if an `exec` is refused when no plugin can be asked about it.
pub(crate) const EXECS_PROTECTED: &[u8] = b"plugins protect\n";

/// The engine's variables that the wrapper sends to the daemon; it sends no other variable.
pub(crate) const ENGINE_VARIABLES: [&str; 9] = [
    "GRPC_ADDRESS",
    "NAMESPACE",
    "TTRPC_ADDRESS",
    "CRI_O_EXTERNAL",
    "XDG_RUNTIME_DIR",
    "USER",
    "NRI_RUNC_HANDLER",
    "TRACEPARENT",
    "TRACESTATE",
];

/// A request of a wrapper or an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrapperRequest {
    /// Protocol version of the sender.
    pub protocol: u32,
    /// Program version of the sender, for messages.
    pub version: String,
    /// The argv; of an `exec`, see [`Self::later`].
    pub argv: Vec<OsString>,
    /// Working directory.
    pub cwd: OsString,
    /// The pid of the sender's parent.
    pub parent_pid: u32,
    /// The sender's own pid.
    pub pid: u32,
    /// The real runtime that will be executed.
    pub runtime: OsString,
    /// The [`ENGINE_VARIABLES`] that are set.
    pub variables: Vec<(String, OsString)>,
    /// Name of the document in the attached directory, normally `config.json`.
    pub document: String,
    /// The meaning of each attached descriptor, in order.
    pub descriptors: Vec<Attached>,
    /// An admin verb and its arguments, as JSON; empty for runtime verbs.
    pub admin: String,
    /// Set if an OCI hook sends the request: argv and processes are those of the runtime that
    /// called it. No message follows the response.
    pub hook: Option<Hook>,
    /// The process that an `exec` starts; argv then ends with the container's ID, unless plugins
    /// receive the process.
    pub later: Option<LaterProcess>,
}

/// A process that `exec` is about to start in a container, as the engine requests it. Unreadable
/// members are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterProcess {
    /// The process's arguments, the program first; arguments beyond a limit are omitted.
    pub args: Option<Vec<String>>,
    /// The user's ID, as a decimal number.
    pub uid: Option<String>,
    /// The group's ID, as a decimal number.
    pub gid: Option<String>,
    /// The user's name, if the document has one.
    pub username: Option<String>,
    /// Whether the engine gives it a terminal.
    pub terminal: Option<bool>,
    /// The names of the processes that requested the exec: the wrapper's parent first, then its
    /// ancestors, at most up to the engine's shim.
    pub caller: Vec<String>,
    /// The login user of the wrapper's session.
    pub login_uid: Option<u32>,
    /// Whether the wrapper waits for a verdict.
    pub waits: bool,
    /// The process's document for plugins, as the runtime would read it. Absent if the `exec` has
    /// none, or an unreadable or too long one.
    #[serde(skip)]
    pub document: Option<Vec<u8>>,
}

/// A call by an OCI hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// The stage of the hook.
    pub stage: Stage,
    /// The container's init process, 0 when it does not run.
    pub init: u32,
}

named! {
    /// The hooks that run on the host's side, by their names in config.json.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Stage {
        /// The container is being created; for runtimes older than `createRuntime`.
        Prestart = 1 => "prestart",
        /// The container is being created.
        CreateRuntime = 2 => "createRuntime",
        /// The container was created, or its process was started; runtimes differ.
        Poststart = 3 => "poststart",
        /// The runtime has deleted the container.
        Poststop = 4 => "poststop",
    }
}

impl Stage {
    /// Whether a failing hook prevents the container's creation.
    pub fn may_refuse(self) -> bool {
        matches!(self, Self::Prestart | Self::CreateRuntime)
    }
}

/// The meaning of a descriptor that comes with a [`WrapperRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// The directory of the document, opened as a reference.
    Bundle = 1,
    /// The pidfd of the wrapper, or of the runtime that called a hook.
    Process = 2,
    /// The resources of an `update`: standard input, or the file.
    Resources = 3,
}

/// The daemon's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonResponse {
    /// The daemon is still working on the request.
    Heartbeat,
    /// The command may continue.
    Proceed(Proceed),
    /// The command must fail with this line.
    Refuse(String),
    /// The daemon speaks another protocol version.
    Incompatible {
        /// The daemon's protocol version.
        protocol: u32,
        /// The daemon's program version.
        version: String,
    },
    /// The response to an admin verb, as JSON, or the last part of a long one.
    Admin(String),
    /// A part of a long response to an admin verb; another part follows.
    AdminPart(String),
    /// The daemon is about to exit and has not acted on the request; the wrapper must ask the next
    /// daemon.
    Ending,
    /// The daemon could not read the request, for this reason, and has not acted on it.
    Unable(String),
}

/// Instructions to follow before executing the real runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proceed {
    /// The name of the file that is to replace the document beside it.
    pub document: Option<String>,
    /// The argv to execute instead of the original one.
    pub argv: Option<Vec<OsString>>,
    /// The new content of standard input, or of an `exec`'s process document.
    pub stdin: Option<Vec<u8>>,
}

/// A one-way message of the wrapper after [`Proceed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Everything is in place, and the real runtime is executed next.
    Exec,
    /// The runtime could not be executed; everything was restored.
    ExecFailed(String),
}

const KIND_QUESTION: u8 = 1;
const KIND_EXEC: u8 = 2;
const KIND_EXEC_FAILED: u8 = 3;
/// The kind of a hook's request: a daemon that does not know this kind refuses the request.
const KIND_HOOK: u8 = 4;
/// The kind of an `exec` request: a daemon that does not know this kind refuses the request.
const KIND_LATER: u8 = 5;
const KIND_HEARTBEAT: u8 = 16;
const KIND_PROCEED: u8 = 17;
const KIND_REFUSE: u8 = 18;
const KIND_INCOMPATIBLE: u8 = 19;
const KIND_ADMIN: u8 = 20;
const KIND_ENDING: u8 = 21;
const KIND_ADMIN_PART: u8 = 22;
const KIND_UNABLE: u8 = 23;

const TAG_PROTOCOL: u8 = 1;
const TAG_VERSION: u8 = 2;
const TAG_WORD: u8 = 3;
const TAG_CWD: u8 = 4;
const TAG_PARENT: u8 = 5;
const TAG_PID: u8 = 6;
const TAG_RUNTIME: u8 = 7;
const TAG_VARIABLE: u8 = 8;
const TAG_DOCUMENT: u8 = 9;
const TAG_DESCRIPTOR: u8 = 10;
const TAG_ADMIN: u8 = 11;
const TAG_STDIN: u8 = 12;
const TAG_TEXT: u8 = 13;
const TAG_STAGE: u8 = 14;
const TAG_INIT: u8 = 15;
const TAG_LATER: u8 = 16;
const TAG_LATER_DOCUMENT: u8 = 17;

struct Frame(Vec<u8>);

impl Frame {
    fn new(kind: u8) -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&[0, 0, 0, 0, kind]);
        Self(bytes)
    }

    fn field(mut self, tag: u8, value: &[u8]) -> Self {
        tagged::put(&mut self.0, tag, value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

fn number(value: &[u8]) -> u32 {
    value.try_into().map_or(0, u32::from_le_bytes)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn words(value: &[u8]) -> OsString {
    OsString::from_vec(value.to_vec())
}

impl WrapperRequest {
    /// Encodes the request as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match (&self.hook, &self.later) {
            (Some(_), _) => KIND_HOOK,
            (None, Some(_)) => KIND_LATER,
            (None, None) => KIND_QUESTION,
        };
        let mut frame = Frame::new(kind)
            .field(TAG_PROTOCOL, &self.protocol.to_le_bytes())
            .field(TAG_VERSION, self.version.as_bytes());
        for word in &self.argv {
            frame = frame.field(TAG_WORD, word.as_bytes());
        }
        frame = frame
            .field(TAG_CWD, self.cwd.as_bytes())
            .field(TAG_PARENT, &self.parent_pid.to_le_bytes())
            .field(TAG_PID, &self.pid.to_le_bytes())
            .field(TAG_RUNTIME, self.runtime.as_bytes());
        for (name, value) in &self.variables {
            let pair = [name.as_bytes(), b"=", value.as_bytes()].concat();
            frame = frame.field(TAG_VARIABLE, &pair);
        }
        frame = frame.field(TAG_DOCUMENT, self.document.as_bytes());
        for descriptor in &self.descriptors {
            frame = frame.field(TAG_DESCRIPTOR, &[*descriptor as u8]);
        }
        if !self.admin.is_empty() {
            frame = frame.field(TAG_ADMIN, self.admin.as_bytes());
        }
        if let Some(Hook { stage, init }) = self.hook {
            frame = frame.field(TAG_STAGE, &[stage as u8]).field(TAG_INIT, &init.to_le_bytes());
        }
        if let Some(later) = &self.later {
            let json = serde_json::to_vec(later).unwrap_or_default();
            frame = frame.field(TAG_LATER, &json);
            if let Some(document) = &later.document {
                frame = frame.field(TAG_LATER_DOCUMENT, document);
            }
        }
        frame.finish()
    }

    /// Decodes a request from a frame (kind and fields, without the length).
    ///
    /// # Errors
    /// Fails on another kind of frame, truncated fields, an unknown hook stage, or an `exec` without its process.
    pub fn decode(frame: &[u8]) -> Result<Self> {
        let (kind, body) = match frame.split_first() {
            Some((kind @ (&KIND_QUESTION | &KIND_HOOK | &KIND_LATER), body)) => (*kind, body),
            _ => return Err(Error::new("this is not a request from nri-runc")),
        };
        let mut question = Self::default();
        let (mut stage, mut init, mut document) = (None, 0, None);
        for field in fields(body) {
            let (tag, value) = field?;
            match tag {
                TAG_PROTOCOL => question.protocol = number(value),
                TAG_VERSION => question.version = text(value),
                TAG_WORD => question.argv.push(words(value)),
                TAG_CWD => question.cwd = words(value),
                TAG_PARENT => question.parent_pid = number(value),
                TAG_PID => question.pid = number(value),
                TAG_RUNTIME => question.runtime = words(value),
                TAG_VARIABLE => question.variables.extend(pair(value)),
                TAG_DOCUMENT => question.document = text(value),
                TAG_DESCRIPTOR => question.descriptors.extend(attached(value)),
                TAG_ADMIN => question.admin = text(value),
                TAG_STAGE => stage = Stage::ALL.iter().copied().find(|s| value == [*s as u8]),
                TAG_INIT => init = number(value),
                TAG_LATER => question.later = serde_json::from_slice(value).ok(),
                TAG_LATER_DOCUMENT => document = Some(value.to_vec()),
                _ => {} // A field of a newer wrapper, which this version does not know.
            }
        }
        if kind == KIND_HOOK {
            let stage = stage.ok_or_else(|| Error::new("the hook has an unknown stage"))?;
            question.hook = Some(Hook { stage, init });
        }
        match &mut question.later {
            Some(later) => later.document = document,
            None if kind == KIND_LATER => {
                return Err(Error::new("the exec request has no process"));
            }
            None => {}
        }
        Ok(question)
    }
}

fn pair(value: &[u8]) -> Option<(String, OsString)> {
    let at = value.iter().position(|byte| *byte == b'=')?;
    Some((text(&value[..at]), words(&value[at + 1..])))
}

fn attached(value: &[u8]) -> Option<Attached> {
    use Attached::{Bundle, Process, Resources};
    [Bundle, Process, Resources].into_iter().find(|what| value == [*what as u8])
}

impl DaemonResponse {
    /// Encodes the response as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let text = |kind, text: &str| Frame::new(kind).field(TAG_TEXT, text.as_bytes()).finish();
        match self {
            Self::Heartbeat => Frame::new(KIND_HEARTBEAT).finish(),
            Self::Ending => Frame::new(KIND_ENDING).finish(),
            Self::Proceed(proceed) => proceed.encode(),
            Self::Refuse(line) => text(KIND_REFUSE, line),
            Self::Incompatible { protocol, version } => Frame::new(KIND_INCOMPATIBLE)
                .field(TAG_PROTOCOL, &protocol.to_le_bytes())
                .field(TAG_VERSION, version.as_bytes())
                .finish(),
            Self::Unable(line) => text(KIND_UNABLE, line),
            Self::Admin(json) => text(KIND_ADMIN, json),
            Self::AdminPart(json) => text(KIND_ADMIN_PART, json),
        }
    }

    /// Decodes a response from a frame.
    ///
    /// # Errors
    /// Fails on an unknown kind of frame and on truncated fields.
    pub fn decode(frame: &[u8]) -> Result<Self> {
        let Some((kind, body)) = frame.split_first() else {
            return Err(Error::new("an empty frame"));
        };
        let (mut line, mut protocol, mut version) = (String::new(), 0, String::new());
        let mut proceed = Proceed::default();
        for field in fields(body) {
            let (tag, value) = field?;
            match tag {
                TAG_TEXT => line = text(value),
                TAG_PROTOCOL => protocol = number(value),
                TAG_VERSION => version = text(value),
                TAG_DOCUMENT => proceed.document = Some(text(value)),
                TAG_WORD => proceed.argv.get_or_insert_default().push(words(value)),
                TAG_STDIN => proceed.stdin = Some(value.to_vec()),
                _ => {}
            }
        }
        match *kind {
            KIND_HEARTBEAT => Ok(Self::Heartbeat),
            KIND_ENDING => Ok(Self::Ending),
            KIND_PROCEED => Ok(Self::Proceed(proceed)),
            KIND_REFUSE => Ok(Self::Refuse(line)),
            KIND_INCOMPATIBLE => Ok(Self::Incompatible { protocol, version }),
            KIND_ADMIN => Ok(Self::Admin(line)),
            KIND_ADMIN_PART => Ok(Self::AdminPart(line)),
            KIND_UNABLE => Ok(Self::Unable(line)),
            other => Err(Error::new(format!("a response of unknown kind {other}"))),
        }
    }
}

impl Proceed {
    fn encode(&self) -> Vec<u8> {
        let mut frame = Frame::new(KIND_PROCEED);
        if let Some(document) = &self.document {
            frame = frame.field(TAG_DOCUMENT, document.as_bytes());
        }
        for word in self.argv.iter().flatten() {
            frame = frame.field(TAG_WORD, word.as_bytes());
        }
        if let Some(stdin) = &self.stdin {
            frame = frame.field(TAG_STDIN, stdin);
        }
        frame.finish()
    }
}

impl Notice {
    /// Encodes the notice as a frame.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Exec => Frame::new(KIND_EXEC).finish(),
            Self::ExecFailed(why) => {
                Frame::new(KIND_EXEC_FAILED).field(TAG_TEXT, why.as_bytes()).finish()
            }
        }
    }

    /// Decodes a notice from a frame.
    ///
    /// # Errors
    /// Fails on another kind of frame.
    pub fn decode(frame: &[u8]) -> Result<Self> {
        let Some((kind, body)) = frame.split_first() else {
            return Err(Error::new("an empty frame"));
        };
        match *kind {
            KIND_EXEC => Ok(Self::Exec),
            KIND_EXEC_FAILED => {
                let why = fields(body).flatten().find(|(tag, _)| *tag == TAG_TEXT);
                Ok(Self::ExecFailed(why.map(|(_, value)| text(value)).unwrap_or_default()))
            }
            other => Err(Error::new(format!("a notice of unknown kind {other}"))),
        }
    }
}

/// Reads one frame from a blocking stream.
///
/// # Errors
/// Fails at the end of the stream, on a time-out, and on a frame that is empty or over [`FRAME`].
pub fn read_frame(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0_u8; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length == 0 || length > FRAME {
        return Err(Error::new(format!(
            "a response has {length} bytes, but must have 1 to {FRAME}"
        )));
    }
    let mut frame = vec![0_u8; usize::try_from(length).unwrap_or(0)];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn question() -> WrapperRequest {
        WrapperRequest {
            protocol: PROTOCOL,
            version: "1.2.3".into(),
            argv: vec!["nri-runc".into(), OsString::from_vec(vec![0xff, 0xfe]), "".into()],
            cwd: "/b".into(),
            parent_pid: 7,
            pid: 8,
            runtime: "/usr/bin/runc".into(),
            variables: vec![("NAMESPACE".into(), "k8s.io".into())],
            document: "config.json".into(),
            descriptors: vec![Attached::Bundle, Attached::Process],
            admin: String::new(),
            hook: None,
            later: None,
        }
    }

    #[test]
    fn an_exec_request_survives_the_wire_with_its_kind() {
        let process = LaterProcess {
            args: Some(vec!["sh".into(), "\u{fffd}\n".into()]),
            uid: Some("0".into()),
            terminal: Some(true),
            caller: vec!["conmon".into()],
            login_uid: Some(1000),
            document: Some(b"{}".to_vec()),
            ..LaterProcess::default()
        };
        let said = WrapperRequest { later: Some(process), ..question() };
        let frame = said.encode();
        assert_eq!(frame[4], KIND_LATER);
        assert_eq!(WrapperRequest::decode(&frame[4..]).unwrap(), said);
        for body in [&b"{"[..], b""] {
            let frame = Frame::new(KIND_LATER).field(TAG_LATER, body).finish();
            let error = WrapperRequest::decode(&frame[4..]).unwrap_err().to_string();
            assert!(error.contains("has no process"), "{error}");
        }
    }

    #[test]
    fn a_request_survives_the_wire_with_odd_arguments() {
        let frame = question().encode();
        assert_eq!(WrapperRequest::decode(&frame[4..]).unwrap(), question());
    }

    #[test]
    fn a_hook_request_survives_the_wire_with_its_kind() {
        for stage in Stage::ALL.iter().copied() {
            let said = WrapperRequest { hook: Some(Hook { stage, init: 77 }), ..question() };
            let frame = said.encode();
            assert_eq!(frame[4], KIND_HOOK);
            assert_eq!(WrapperRequest::decode(&frame[4..]).unwrap(), said);
        }
    }

    #[test]
    fn a_hook_of_an_unknown_stage_is_refused() {
        let frame = Frame::new(KIND_HOOK).field(TAG_STAGE, &[9]).finish();
        assert!(WrapperRequest::decode(&frame[4..]).unwrap_err().to_string().contains("stage"));
    }

    #[test]
    fn responses_and_notices_are_decoded_as_encoded() {
        let proceed = Proceed {
            document: Some(".x".into()),
            argv: Some(vec!["a".into()]),
            stdin: Some(b"{}".to_vec()),
        };
        for answer in [
            DaemonResponse::Heartbeat,
            DaemonResponse::Proceed(proceed),
            DaemonResponse::Proceed(Proceed::default()),
            DaemonResponse::Refuse("no".into()),
            DaemonResponse::Incompatible { protocol: 9, version: "v".into() },
            DaemonResponse::Admin("{}".into()),
            DaemonResponse::AdminPart("[1,".into()),
            DaemonResponse::Unable("why".into()),
        ] {
            assert_eq!(DaemonResponse::decode(&answer.encode()[4..]).unwrap(), answer);
        }
        for notice in [Notice::Exec, Notice::ExecFailed("why".into())] {
            assert_eq!(Notice::decode(&notice.encode()[4..]).unwrap(), notice);
        }
    }

    #[test]
    fn an_unknown_field_is_skipped() {
        let mut frame = question().encode();
        frame.extend_from_slice(&[200, 1, 0, 0, 0, 42]);
        assert_eq!(WrapperRequest::decode(&frame[4..]).unwrap(), question());
    }

    #[test]
    fn a_truncated_frame_is_an_error() {
        let frame = question().encode();
        assert!(WrapperRequest::decode(&frame[4..frame.len() - 1]).is_err());
        assert!(read_frame(&mut &frame[..10]).is_err());
    }

    #[test]
    fn an_oversized_frame_is_refused_before_it_is_read() {
        let error = read_frame(&mut &u32::MAX.to_le_bytes()[..]).unwrap_err().to_string();
        assert!(error.contains("must have 1 to"), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(WrapperRequest::decode(&bytes));
            drop(DaemonResponse::decode(&bytes));
            drop(Notice::decode(&bytes));
        }
    }
}
