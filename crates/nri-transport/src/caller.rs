// SPDX-License-Identifier: Apache-2.0
//! Calls of a plugin's services: sends a request as one ttRPC message, and finds its response by
//! the number of the call.
//!
//! The ttrpc crate's client has a task for each direction and copies the request at each step; this
//! one encodes a request directly into frames, and wakes the caller with the received frame. It
//! does not limit the wait: the caller does, and abandons a call by dropping it. Reference: the
//! ttRPC protocol, unary calls only.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protobuf::rt::WireType;
use protobuf::{CodedOutputStream, Message};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use ttrpc::Code;

use crate::copies::CallCopies;
use crate::frame::{
    BEFORE, PLUGIN_CONNECTION, REQUEST, RESPONSE, TTRPC_HEADER, TTRPC_LIMIT, TYPE, into_frames,
    message_length, message_number,
};
use crate::mux::{Reading, SavedTrunk};
use crate::outgoing::Outgoing;
use crate::unread::Blob;
use nri_api as api;

/// The name of NRI's plugin service.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const EXTENSION_SERVICE: &str = "nri.extension.v1alpha1.PluginExtension";
/// Bytes reserved for service, method and other fields around the request.
const ENVELOPE: usize = 200;
/// Bytes that a metadata pair needs in addition to its key and value.
const PAIR: usize = 16;
/// Bytes of a response above which another thread decodes it.
const LARGE: usize = 256 << 10;
const NO_NUMBER_LEFT: &str = "all numbers for calls of this connection are used up";

/// A request to a plugin's services.
pub trait PluginRequest {
    /// The service that has the method.
    const SERVICE: &str = PLUGIN_SERVICE;
    /// The method's name.
    const METHOD: &str;
    /// The type of the response.
    type Answer: Message;

    /// Returns the encoded size in bytes.
    fn size(&self) -> u64;
    /// Writes the message, after [`Self::size`] was called.
    fn write(&self, to: &mut CodedOutputStream<'_>) -> protobuf::Result<()>;

    /// Returns the pod and container that the request is about; `None` if it names no single pod.
    fn subject(&self) -> Option<RequestSubject<'_>> {
        None
    }
}

/// The pod and container that a request is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestSubject<'a> {
    /// The ID of the pod.
    pub pod: &'a str,
    /// The ID of the container; empty if the request is about the pod.
    pub container: &'a str,
}

/// Pairs sent along with a request's message, for instance its trace.
pub type Metadata = [(&'static str, String)];

macro_rules! subject {
    ($request:ident) => {
        None
    };
    ($request:ident $pod:ident) => {
        Some(RequestSubject { pod: &$request.$pod.id, container: "" })
    };
    ($request:ident $pod:ident $container:ident) => {
        Some(RequestSubject { pod: &$request.$pod.id, container: &$request.$container.id })
    };
}

macro_rules! requests {
    ($service:ident $($of:ident)::+ {
        $($method:literal $request:ident $answer:ident $($about:ident)*;)*
    }) => {
        requests!(@each $service ($($of)::+) $([$method $request $answer $($about)*])*);
    };
    (@each $service:ident $of:tt $($row:tt)*) => {
        $(requests!(@one $service $of $row);)*
    };
    (@one $service:ident ($($of:ident)::+) [$method:literal $request:ident $answer:ident $($about:ident)*]) => {
        impl PluginRequest for $($of)::+::$request {
            const SERVICE: &str = $service;
            const METHOD: &str = $method;
            type Answer = $($of)::+::$answer;

            fn size(&self) -> u64 {
                self.compute_size()
            }

            fn write(&self, to: &mut CodedOutputStream<'_>) -> protobuf::Result<()> {
                self.write_to_with_cached_sizes(to)
            }

            fn subject(&self) -> Option<RequestSubject<'_>> {
                subject!(self $($about)*)
            }
        }
    };
}

requests! { PLUGIN_SERVICE api {
    "Configure" ConfigureRequest ConfigureResponse;
    "Synchronize" SynchronizeRequest SynchronizeResponse;
    "Shutdown" Empty Empty;
    "RunPodSandbox" RunPodSandboxRequest RunPodSandboxResponse pod;
    "UpdatePodSandbox" UpdatePodSandboxRequest UpdatePodSandboxResponse pod;
    "PostUpdatePodSandbox" PostUpdatePodSandboxRequest PostUpdatePodSandboxResponse pod;
    "StopPodSandbox" StopPodSandboxRequest StopPodSandboxResponse pod;
    "RemovePodSandbox" RemovePodSandboxRequest RemovePodSandboxResponse pod;
    "CreateContainer" CreateContainerRequest CreateContainerResponse pod container;
    "PostCreateContainer" PostCreateContainerRequest PostCreateContainerResponse pod container;
    "StartContainer" StartContainerRequest StartContainerResponse pod container;
    "PostStartContainer" PostStartContainerRequest PostStartContainerResponse pod container;
    "UpdateContainer" UpdateContainerRequest UpdateContainerResponse pod container;
    "PostUpdateContainer" PostUpdateContainerRequest PostUpdateContainerResponse pod container;
    "StopContainer" StopContainerRequest StopContainerResponse pod container;
    "RemoveContainer" RemoveContainerRequest RemoveContainerResponse pod container;
    "StateChange" StateChangeEvent Empty pod container;
    "ValidateContainerAdjustment"
        ValidateContainerAdjustmentRequest ValidateContainerAdjustmentResponse pod container;
} }

requests! { EXTENSION_SERVICE api::extension {
    "ExecContainer" ExecContainerRequest ExecContainerResponse pod container;
    "ValidateExec" ValidateExecRequest ValidateExecResponse pod container;
    "PostExec" PostExecRequest PostExecResponse pod container;
    "UpdateResults" UpdateResultsRequest UpdateResultsResponse;
} }

/// The reason why a call has no response.
#[derive(Debug, PartialEq)]
pub enum Unanswered {
    /// The request has this many bytes, and was not sent.
    TooLarge(u64),
    /// The plugin answered with this status.
    Status(ttrpc::Status),
    /// The response is invalid or too long; the reason.
    Unreadable(String),
    /// The request was not sent, or no response came before the connection ended.
    Closed,
}

/// The response to a call: a message, header included, or the reason for its absence.
type ReplyBytes = Result<Vec<u8>, Unanswered>;

/// The waiting callers, by the number of their call.
#[derive(Debug, Clone, Default)]
struct PendingCalls(Arc<Mutex<HashMap<u32, oneshot::Sender<ReplyBytes>>>>);

impl PendingCalls {
    fn expect(&self, number: u32) -> oneshot::Receiver<ReplyBytes> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(number, sender);
        receiver
    }

    /// Passes a response to its caller; a late one and one that was not requested are dropped.
    fn answer(&self, number: u32, reply: ReplyBytes) {
        let sender = self.lock().remove(&number);
        let _nobody_waits = sender.map(|sender| sender.send(reply));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<ReplyBytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the plugin over one connection.
#[derive(Debug)]
pub struct PluginCaller {
    outgoing: Arc<Outgoing>,
    waiting: PendingCalls,
    /// The number of the next call; `None` once all numbers are used up.
    next: Mutex<Option<u32>>,
    answers: Arc<Mutex<Answers>>,
    reading: Reading,
}

/// The state of a connection's calls, saved between two calls.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedAnswers {
    next: Option<u32>,
    /// The beginning of a late response.
    bytes: Blob,
    surplus: usize,
}

impl Default for SavedAnswers {
    fn default() -> Self {
        // Numbers of calls are odd.
        Self { next: Some(1), bytes: Blob::default(), surplus: 0 }
    }
}

/// A call with a waiting caller; dropping it abandons the call.
struct PendingCall<'a> {
    waiting: &'a PendingCalls,
    number: u32,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.number);
    }
}

impl PluginCaller {
    pub(crate) fn new(
        outgoing: Arc<Outgoing>,
        reading: Reading,
        saved: SavedAnswers,
    ) -> (Arc<Mutex<Answers>>, Self) {
        let SavedAnswers { next, bytes, surplus } = saved;
        let waiting = PendingCalls::default();
        let answers = Answers { waiting: waiting.clone(), bytes: bytes.0, surplus };
        let answers = Arc::new(Mutex::new(answers));
        let next = Mutex::new(next);
        let caller = Self { outgoing, waiting, next, answers: Arc::clone(&answers), reading };
        (answers, caller)
    }

    /// Whether no call awaits its response, and the plugin awaits none.
    pub fn is_idle(&self) -> bool {
        self.waiting.lock().is_empty() && self.open_requests() == 0
    }

    /// Returns the number of the plugin's requests that are read and not answered.
    pub fn open_requests(&self) -> usize {
        self.reading.requests.count()
    }

    /// Stops reading the plugin's requests, or resumes. They are still read while a call awaits its
    /// response, which may come after them.
    pub fn pause_requests(&self, is_paused: bool) {
        self.reading.pause.set(is_paused);
    }

    /// Saves the connections for a program that replaces this one; `received` is the number of
    /// response frames received.
    pub fn save(&self, received: usize) -> SavedTrunk {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        SavedTrunk {
            unread: self.reading.unread.save(),
            beginning: self.reading.requests.save(),
            unsent: self.outgoing.save(),
            answers: SavedAnswers {
                next: *self.next.lock().unwrap_or_else(PoisonError::into_inner),
                bytes: Blob(answers.bytes.clone()),
                surplus: answers.surplus,
            },
            heard: received,
        }
    }

    /// Returns the number of the stream's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.outgoing.number()
    }

    /// Sends a request and waits for the response; `timeout` is sent as its deadline.
    ///
    /// # Errors
    /// Fails when the request is too large, the plugin refuses it, the response is invalid or too
    /// long, or no response can arrive.
    pub async fn call<R: PluginRequest>(
        &self,
        request: &R,
        timeout: Duration,
        metadata: &Metadata,
    ) -> Result<R::Answer, Unanswered> {
        self.call_with_copies(request, timeout, metadata, &mut CallCopies::default()).await
    }

    /// Like [`Self::call`], with copies of both messages; the request's copy is available even
    /// without a response.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_with_copies<R: PluginRequest>(
        &self,
        request: &R,
        timeout: Duration,
        metadata: &Metadata,
        copies: &mut CallCopies,
    ) -> Result<R::Answer, Unanswered> {
        while self.outgoing.is_full() {
            Outgoing::wait_for_space().await;
        }
        let (_forgotten_with_this, reply) = self.send(request, timeout, metadata, copies)?;
        let bytes = reply.await.map_err(|_closed| Unanswered::Closed)??;
        copies.take_answer(bytes.get(TTRPC_HEADER..).unwrap_or_default());
        let length = bytes.len();
        let read = move || read_answer(bytes.get(TTRPC_HEADER..).unwrap_or_default());
        if length <= LARGE {
            return read();
        }
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|panicked| Err(Unanswered::Unreadable(panicked.to_string())))
    }

    /// Assigns the next number to a request and sends it, under one lock, because a server refuses
    /// a number that is not above all earlier ones.
    fn send<R: PluginRequest>(
        &self,
        request: &R,
        timeout: Duration,
        metadata: &Metadata,
        copies: &mut CallCopies,
    ) -> Result<(PendingCall<'_>, oneshot::Receiver<ReplyBytes>), Unanswered> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = *next else {
            self.outgoing.close(NO_NUMBER_LEFT);
            return Err(Unanswered::Closed);
        };
        let bytes = message(number, request, timeout, metadata, copies)?;
        *next = number.checked_add(2);
        let reply = self.waiting.expect(number);
        self.reading.pause.wake();
        let call = PendingCall { waiting: &self.waiting, number };
        self.outgoing.send(bytes).map_err(|_closed| Unanswered::Closed)?;
        Ok((call, reply))
    }
}

/// Encodes a request in frames.
fn message<R: PluginRequest>(
    number: u32,
    request: &R,
    timeout: Duration,
    metadata: &Metadata,
    copies: &mut CallCopies,
) -> Result<Vec<u8>, Unanswered> {
    let size = request.size();
    let room = usize::try_from(size).unwrap_or(usize::MAX);
    if room > TTRPC_LIMIT - ENVELOPE {
        return Err(Unanswered::TooLarge(size));
    }
    // Metadata is omitted as a whole if it does not fit.
    let extra: usize = metadata.iter().map(|(key, value)| PAIR + key.len() + value.len()).sum();
    let has_room = room + extra <= TTRPC_LIMIT - ENVELOPE;
    let metadata = if has_room { metadata } else { &[] };
    const START: usize = BEFORE + TTRPC_HEADER;
    let around = START + ENVELOPE + extra;
    let mut bytes = Vec::with_capacity(around + room);
    bytes.resize(START, 0);
    let written = envelope(&mut bytes, request, room, timeout);
    let written = written.and_then(|()| write_metadata(&mut bytes, metadata));
    // Encoding fails only if a message is larger than its measured size.
    written.map_err(|_error| Unanswered::TooLarge(size))?;
    copies.take_request(bytes.get(START..).unwrap_or_default());
    let length = u32::try_from(bytes.len() - START).unwrap_or(u32::MAX);
    let header = &mut bytes[BEFORE..START];
    header[..4].copy_from_slice(&length.to_be_bytes());
    header[4..8].copy_from_slice(&number.to_be_bytes());
    header[TYPE] = REQUEST;
    into_frames(PLUGIN_CONNECTION, &mut bytes);
    Ok(bytes)
}

/// Writes the bytes of a `ttrpc::Request`, without copying the request into it.
fn envelope<R: PluginRequest>(
    bytes: &mut Vec<u8>,
    request: &R,
    size: usize,
    timeout: Duration,
) -> protobuf::Result<()> {
    let mut to = CodedOutputStream::vec(bytes);
    to.write_string(1, R::SERVICE)?;
    to.write_string(2, R::METHOD)?;
    to.write_tag(3, WireType::LengthDelimited)?;
    to.write_raw_varint32(u32::try_from(size).unwrap_or(u32::MAX))?;
    request.write(&mut to)?;
    to.write_int64(4, i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX))?;
    to.flush()
}

fn write_metadata(bytes: &mut Vec<u8>, metadata: &Metadata) -> protobuf::Result<()> {
    let mut to = CodedOutputStream::vec(bytes);
    for (key, value) in metadata {
        let (key, value) = ((*key).to_owned(), value.clone());
        let pair = ttrpc::proto::KeyValue { key, value, ..Default::default() };
        to.write_tag(5, WireType::LengthDelimited)?;
        to.write_raw_varint64(pair.compute_size())?;
        pair.write_to_with_cached_sizes(&mut to)?;
    }
    to.flush()
}

fn read_answer<A: Message>(bytes: &[u8]) -> Result<A, Unanswered> {
    let unreadable = |error: protobuf::Error| Unanswered::Unreadable(error.to_string());
    let response = ttrpc::Response::parse_from_bytes(bytes).map_err(unreadable)?;
    match response.status.into_option() {
        Some(status) if status.code != Code::OK.into() => Err(Unanswered::Status(status)),
        Some(_) | None => A::parse_from_bytes(&response.payload).map_err(unreadable),
    }
}

/// Passes each response to its waiting caller.
#[derive(Debug)]
pub(crate) struct Answers {
    waiting: PendingCalls,
    /// The beginning of a message.
    bytes: Vec<u8>,
    /// Remaining bytes of a message to skip: it is too large, or not a response.
    surplus: usize,
}

impl Answers {
    /// Processes one frame; a response may span many, and a frame may contain many.
    pub(crate) fn take(&mut self, payload: Vec<u8>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() {
            bytes = payload;
        } else {
            bytes.extend_from_slice(&payload);
        }
        let taken = self.take_messages(&mut bytes);
        // Moves the rest once for all messages, because a frame may contain very many small ones.
        self.bytes = if taken > 0 { bytes.split_off(taken) } else { bytes };
    }

    /// Whether a call waits for its response.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Ends the calls without a response: the connection has received its last frame.
    pub(crate) fn end(&self) {
        self.waiting.lock().clear();
    }

    /// Passes on the complete messages; returns how many bytes of `bytes` are processed.
    fn take_messages(&mut self, bytes: &mut Vec<u8>) -> usize {
        let mut taken = 0;
        loop {
            let surplus = self.surplus.min(bytes.len() - taken);
            self.surplus -= surplus;
            taken += surplus;
            let rest = &bytes[taken..];
            let Some(length) = message_length(rest) else { return taken };
            let number = message_number(rest);
            if length > TTRPC_HEADER + TTRPC_LIMIT {
                self.surplus = length;
                self.refuse(number, format!("it has {length} bytes, too many for the protocol"));
            } else if rest.len() < length {
                return taken;
            } else if rest[TYPE] != RESPONSE {
                self.surplus = length;
                self.refuse(number, "it is not a response".to_owned());
            } else if length == bytes.len() {
                // Usually the message is all that was received, and need not be copied.
                self.waiting.answer(number, Ok(std::mem::take(bytes)));
                return 0;
            } else {
                self.waiting.answer(number, Ok(rest[..length].to_vec()));
                taken += length;
            }
        }
    }

    /// Ends a call with the reason for the missing response.
    fn refuse(&self, number: u32, why: String) {
        self.waiting.answer(number, Err(Unanswered::Unreadable(why)));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::*;
    use crate::frame::{FRAME_HEADER, FRAME_LIMIT};
    use crate::mux::split_to_call;

    /// Returns receivers for these calls, and the [`Answers`] that serve them.
    fn waiting_for(numbers: &[u32]) -> (Vec<oneshot::Receiver<ReplyBytes>>, Answers) {
        let waiting = PendingCalls::default();
        let receivers = numbers.iter().map(|number| waiting.expect(*number)).collect();
        (receivers, Answers { waiting, bytes: Vec::new(), surplus: 0 })
    }

    fn came(number: u32, kind: u8, length: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&[kind, 0]);
        bytes.resize(TTRPC_HEADER + length, 7);
        bytes
    }

    fn why(receiver: &mut oneshot::Receiver<ReplyBytes>) -> String {
        match receiver.try_recv().unwrap() {
            Err(Unanswered::Unreadable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn responses_match_their_calls_in_any_chunks_and_order() {
        let stream = [came(3, RESPONSE, 9), came(5, RESPONSE, 0), came(1, RESPONSE, 20)].concat();
        for size in [1, 7, 10, 11, 19, 25, 100] {
            let (mut calls, mut answers) = waiting_for(&[1, 3, 5]);
            stream.chunks(size).for_each(|piece| answers.take(piece.to_vec()));
            let got: Vec<_> = calls.iter_mut().map(|call| call.try_recv().unwrap()).collect();
            assert_eq!(got, [(1, 20), (3, 9), (5, 0)].map(|(n, l)| Ok(came(n, RESPONSE, l))));
            assert!(answers.bytes.is_empty());
        }
    }

    #[test]
    fn a_response_without_a_request_is_ignored() {
        let (mut calls, mut answers) = waiting_for(&[1]);
        answers.take([came(2, RESPONSE, 3), came(u32::MAX, RESPONSE, 3)].concat());
        answers.take([came(1, RESPONSE, 3), came(1, RESPONSE, 4)].concat());
        assert_eq!(calls[0].try_recv().unwrap(), Ok(came(1, RESPONSE, 3)));
    }

    #[test]
    fn an_answer_over_the_limit_is_skipped_and_never_kept() {
        let (mut calls, mut answers) = waiting_for(&[1, 3]);
        let long = came(1, RESPONSE, TTRPC_LIMIT + 1);
        for piece in [&long[..], &came(3, RESPONSE, 2)].concat().chunks(100_000) {
            answers.take(piece.to_vec());
            assert!(answers.bytes.len() <= 100_000);
        }
        assert!(why(&mut calls[0]).contains("too many"));
        assert_eq!(calls[1].try_recv().unwrap(), Ok(came(3, RESPONSE, 2)));
    }

    #[test]
    fn a_frame_full_of_minimal_messages_is_not_copied_repeatedly() {
        let (mut calls, mut answers) = waiting_for(&[1, 3]);
        let count = FRAME_LIMIT / TTRPC_HEADER - 2;
        for kind in [RESPONSE, REQUEST] {
            let many = came(99, kind, 0).repeat(count);
            // Copying the rest for each message would copy hundreds of gigabytes.
            answers.take([many, came(1, RESPONSE, 2), came(3, RESPONSE, 2)].concat());
            assert!(answers.bytes.is_empty());
        }
        let got: Vec<_> = calls.iter_mut().map(|call| call.try_recv().unwrap()).collect();
        assert_eq!(got, [1, 3].map(|number| Ok(came(number, RESPONSE, 2))));
    }

    #[test]
    fn an_invalid_answer_fails_only_its_call() {
        let (mut calls, mut answers) = waiting_for(&[1, 3]);
        answers.take([came(1, REQUEST, 5), came(3, RESPONSE, 2)].concat());
        assert!(why(&mut calls[0]).contains("not a response"));
        assert!(calls[1].try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_requests_bytes_equal_those_of_the_generated_types() {
        let pod = api::PodSandbox { id: "p".repeat(5000), ..Default::default() };
        let request = api::RunPodSandboxRequest { pod: Some(pod).into(), ..Default::default() };
        let bytes = message(7, &request, Duration::from_millis(2), &[], &mut CallCopies::default())
            .unwrap();
        let (first, rest) = bytes.split_at(FRAME_HEADER + 4096);
        assert_eq!(first[..FRAME_HEADER], [0, 0, 0, 1, 0, 0, 0x10, 0]);
        let message = [&first[FRAME_HEADER..], &rest[FRAME_HEADER..]].concat();
        assert_eq!(message_length(&message), Some(message.len()));
        assert_eq!(message[4..TTRPC_HEADER], [0, 0, 0, 7, REQUEST, 0]);
        let envelope = ttrpc::Request {
            service: PLUGIN_SERVICE.to_owned(),
            method: "RunPodSandbox".to_owned(),
            payload: request.write_to_bytes().unwrap(),
            timeout_nano: 2_000_000,
            ..Default::default()
        };
        assert_eq!(message[TTRPC_HEADER..], envelope.write_to_bytes().unwrap());
    }

    #[test]
    fn a_request_carries_its_metadata_if_there_is_room() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let request = api::RunPodSandboxRequest::default();
        for state in ["vendor=1", &*"x".repeat(512)] {
            let metadata = [("traceparent", parent.to_owned()), ("tracestate", state.to_owned())];
            let pod_room = "p".repeat(TTRPC_LIMIT - ENVELOPE - 50);
            let pod = api::PodSandbox { id: pod_room, ..Default::default() };
            let large = api::RunPodSandboxRequest { pod: Some(pod).into(), ..Default::default() };
            let sent =
                message(7, &large, Duration::from_millis(2), &metadata, &mut CallCopies::default())
                    .unwrap();
            let alone =
                message(7, &large, Duration::from_millis(2), &[], &mut CallCopies::default())
                    .unwrap();
            assert!(sent == alone);
            let bytes = message(
                7,
                &request,
                Duration::from_millis(2),
                &metadata,
                &mut CallCopies::default(),
            )
            .unwrap();
            let envelope =
                ttrpc::Request::parse_from_bytes(&bytes[FRAME_HEADER + TTRPC_HEADER..]).unwrap();
            let pairs: Vec<_> =
                envelope.metadata.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
            assert_eq!(pairs, [("traceparent", parent), ("tracestate", state)]);
        }
    }

    #[test]
    fn an_unknown_error_status_is_not_a_response() {
        for (code, is_answer) in [(0, true), (2, false), (99, false)] {
            let code = protobuf::EnumOrUnknown::from_i32(code);
            let status = ttrpc::Status { code, ..Default::default() };
            let response = ttrpc::Response { status: Some(status).into(), ..Default::default() };
            let read = read_answer::<api::Empty>(&response.write_to_bytes().unwrap());
            assert_eq!(read.is_ok(), is_answer, "{code:?}");
        }
        assert!(read_answer::<api::Empty>(&[]).is_ok(), "no status is no refusal");
        assert!(matches!(read_answer::<api::Empty>(&[1]), Err(Unanswered::Unreadable(_))));
    }

    #[tokio::test]
    async fn an_abandoned_call_is_forgotten() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (_trunk, caller, _runtime) = split_to_call(ours).unwrap();
        let (request, patience) = (api::Empty::new(), Duration::from_millis(10));
        assert!(timeout(patience, caller.call(&request, patience, &[])).await.is_err());
        assert!(caller.waiting.lock().is_empty());
    }

    /// Returns the numbers of the messages sent to `theirs`, in order, until the end.
    async fn numbers_sent(mut theirs: UnixStream) -> Vec<u32> {
        let (mut stream, mut messages, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        theirs.read_to_end(&mut stream).await.unwrap();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            // A frame's length is at the offset of a message's number.
            let length = FRAME_HEADER + usize::try_from(message_number(rest)).unwrap();
            messages.extend_from_slice(&rest[FRAME_HEADER..length]);
            rest = &rest[length..];
        }
        let mut rest = &messages[..];
        while let Some(length) = message_length(rest) {
            numbers.push(message_number(rest));
            rest = &rest[length..];
        }
        numbers
    }

    #[tokio::test]
    async fn a_call_that_overtakes_a_waiting_one_has_a_lower_number() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, runtime) = split_to_call(ours).unwrap();
        let config = "c".repeat(TTRPC_LIMIT - 1000);
        let large = api::ConfigureRequest { config, ..Default::default() };
        let (small, patience) = (api::Empty::new(), Duration::from_secs(1));
        while !caller.outgoing.is_full() {
            assert!(timeout(Duration::ZERO, caller.call(&large, patience, &[])).await.is_err());
        }
        let mut waits = Box::pin(caller.call(&small, patience, &[]));
        assert!(timeout(Duration::ZERO, &mut waits).await.is_err());
        let numbers = tokio::spawn(numbers_sent(theirs));
        while caller.outgoing.waiting_bytes() > 0 {
            Outgoing::wait_for_space().await;
        }
        let mut overtakes = Box::pin(caller.call(&small, patience, &[]));
        assert!(timeout(Duration::ZERO, &mut overtakes).await.is_err());
        while caller.waiting.lock().len() < 2 {
            assert!(timeout(Duration::from_millis(10), &mut waits).await.is_err());
        }
        while caller.outgoing.waiting_bytes() > 0 {
            Outgoing::wait_for_space().await;
        }
        trunk.close("over");
        drop((waits, overtakes));
        drop((caller, runtime));
        let numbers = numbers.await.unwrap();
        assert!(numbers.len() >= 4 && numbers.is_sorted(), "{numbers:?}");
        assert!(numbers.iter().all(|number| number % 2 == 1), "{numbers:?}");
    }

    #[tokio::test]
    async fn a_connection_without_free_numbers_ends_with_a_reason() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, _runtime) = split_to_call(ours).unwrap();
        *caller.next.lock().unwrap() = Some(u32::MAX);
        let (request, patience) = (api::Empty::new(), Duration::from_millis(10));
        assert!(timeout(patience, caller.call(&request, patience, &[])).await.is_err());
        assert!(!trunk.is_closed(), "the last number is good");
        let answer = timeout(Duration::from_secs(10), caller.call(&request, patience, &[])).await;
        assert_eq!(answer.unwrap(), Err(Unanswered::Closed));
        assert_eq!(trunk.closed_because().as_deref(), Some(NO_NUMBER_LEFT));
    }

    #[tokio::test]
    async fn an_unread_connection_has_bounded_memory_and_ends_its_calls() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, _runtime) = split_to_call(ours).unwrap();
        let config = "c".repeat(TTRPC_LIMIT - 1000);
        let request = api::ConfigureRequest { config, ..Default::default() };
        let patience = Duration::from_millis(50);
        for _ in 0..6 {
            assert!(timeout(patience, caller.call(&request, patience, &[])).await.is_err());
        }
        let waiting = caller.outgoing.waiting_bytes();
        assert!(2 * TTRPC_LIMIT < waiting && waiting < 3 * FRAME_LIMIT, "{waiting}");
        drop(theirs);
        trunk.closed().await;
        let answer = timeout(Duration::from_secs(10), caller.call(&request, patience, &[])).await;
        assert_eq!(answer.unwrap(), Err(Unanswered::Closed));
    }
}
