// SPDX-License-Identifier: Apache-2.0
//! Keeps events for other programs (`nri-runc nri events`) in a bounded ring of JSON lines. Each
//! line has a cursor from which a reader can continue, even after the daemon's re-execution.
//!
//! The ring is the queue of every reader: a slow reader costs no memory, delays no request, and
//! receives a line of kind `lost` in place of the events that it missed. This module does not read
//! records.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::audit::{AuditSubject, ascii};
use crate::clock::now;
use crate::limits;
use crate::named::named;
use crate::packed::PackedLines;
use crate::text::rfc3339_nanos;

named! {
    /// The kinds of events, in the order of `docs/events.md`; other programs depend on the names.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum EventKind {
        PodRunning => "pod_running",
        PodStopped => "pod_stopped",
        PodRemoved => "pod_removed",
        PodUpdated => "pod_updated",
        Created => "created",
        Started => "started",
        /// `exec` started a process in a container.
        Exec => "exec",
        Updated => "updated",
        Exited => "exited",
        Removed => "removed",
        Refused => "refused",
        Evicted => "evicted",
        Connected => "connected",
        Disconnected => "disconnected",
        /// A value that a plugin or an injection owns is no longer in force.
        Drift => "drift",
        /// Events are missing here.
        Lost => "lost",
    }
}

/// One event; members that do not apply to its kind are empty. Its line has them in this order.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodeEvent {
    /// Unix time in nanoseconds.
    #[serde(skip)]
    pub(crate) at: i64,
    pub(crate) kind: EventKind,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) pod_id: String,
    /// Kubernetes' UID of the pod.
    pub(crate) pod_uid: String,
    pub(crate) container: String,
    pub(crate) container_id: String,
    /// `NN-name`; several are separated by commas.
    pub(crate) plugin: String,
    pub(crate) reason: String,
    /// The refused request: NRI's event, or the command of the runtime.
    pub(crate) event: String,
    pub(crate) rule: String,
    /// NRI's name of the field, or its path in config.json.
    pub(crate) field: String,
    pub(crate) engine: String,
    /// The pod's labels, if the pod is on record.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The exit code in `exited` and `removed`; null if unknown.
    pub(crate) exit_code: Option<Option<i32>>,
}

impl NodeEvent {
    /// Creates an event of the current time without details.
    pub(crate) fn new(kind: EventKind) -> Self {
        Self {
            at: now(),
            kind,
            namespace: String::new(),
            pod: String::new(),
            pod_id: String::new(),
            pod_uid: String::new(),
            container: String::new(),
            container_id: String::new(),
            plugin: String::new(),
            reason: String::new(),
            event: String::new(),
            rule: String::new(),
            field: String::new(),
            engine: String::new(),
            labels: None,
            exit_code: None,
        }
    }

    /// Sets the plugin.
    #[must_use]
    pub(crate) fn by(self, plugin: &str) -> Self {
        Self { plugin: plugin.to_owned(), ..self }
    }

    /// Sets the pod and the container.
    #[must_use]
    pub(crate) fn about(self, subject: AuditSubject) -> Self {
        let AuditSubject { engine, namespace, pod, pod_id, container, container_id } = subject;
        Self { engine, namespace, pod, pod_id, container, container_id, ..self }
    }

    /// Formats the line, with its line feed. Tenants and plugins choose some of its texts: long
    /// ones are cut, and labels that are too long become null.
    fn line(mut self, cursor: &str, lost: Option<Option<u64>>) -> String {
        let Self { namespace, pod, pod_id, pod_uid, container, container_id, .. } = &mut self;
        let cut = |text: &mut String| {
            if let Cow::Owned(shorter) = limits::cut(text, limits::AUDIT_TEXT) {
                *text = shorter;
            }
        };
        [namespace, pod, pod_id, pod_uid, container, container_id].into_iter().for_each(cut);
        let Self { plugin, reason, event, rule, field, engine, .. } = &mut self;
        [plugin, reason, event, rule, field, engine].into_iter().for_each(cut);
        let length = |(key, value): (&String, &String)| key.len() + value.len();
        self.labels = self
            .labels
            .filter(|labels| labels.iter().map(length).sum::<usize>() <= limits::EVENT_LABELS);
        let time = rfc3339_nanos(self.at).unwrap_or_default();
        let line = EventLine { cursor, time, event: &self, lost };
        ascii(serde_json::to_string(&line).unwrap_or_default()) + "\n"
    }
}

/// The line of an event.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EventLine<'a> {
    /// For `--since`.
    cursor: &'a str,
    /// RFC 3339.
    time: String,
    #[serde(flatten)]
    event: &'a NodeEvent,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// The number of missing events in `lost`; null if unknown.
    lost: Option<Option<u64>>,
}

/// The position at which a reader starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Since {
    /// At the oldest event that is kept.
    Oldest,
    /// At the next event.
    Now,
    /// After the event with this number of this stream.
    Cursor { stream: String, number: u64 },
}

impl Since {
    /// Parses a cursor, `0` or `now`; `None` for another text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "0" => Some(Self::Oldest),
            "now" => Some(Self::Now),
            cursor => {
                let (stream, number) = cursor.split_once('-')?;
                let is_stream = stream.bytes().all(|byte| byte.is_ascii_hexdigit());
                let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
                let number = number.parse().ok().filter(|_| is_number && is_stream)?;
                (!stream.is_empty()).then(|| Self::Cursor { stream: stream.to_owned(), number })
            }
        }
    }
}

/// The latest events.
#[derive(Debug)]
pub(crate) struct EventRing {
    /// The name of this stream: each daemon starts a new one, except after a re-execution.
    stream: String,
    /// The number of the oldest line.
    first: u64,
    /// Older lines.
    packed: VecDeque<PackedLines>,
    /// The number of lines at the front of `packed` that count as dropped.
    dropped: usize,
    /// The newest lines.
    lines: VecDeque<Box<str>>,
    /// The length of all lines that are not dropped.
    bytes: usize,
}

/// The latest events, saved for the next program of this process.
#[derive(Serialize, Deserialize)]
struct SavedRing {
    stream: String,
    first: u64,
    lines: Vec<Box<str>>,
    /// Not read. Programs built before it had a default drop the stream if it is missing, so it stays while state
    /// version 1 is written.
    #[serde(default)]
    bytes: usize,
}

impl Default for EventRing {
    fn default() -> Self {
        let stream = format!("{:x}", now());
        Self::starting(stream, 1)
    }
}

impl EventRing {
    fn starting(stream: String, first: u64) -> Self {
        let (packed, lines) = (VecDeque::new(), VecDeque::new());
        Self { stream, first, packed, dropped: 0, lines, bytes: 0 }
    }

    fn len(&self) -> usize {
        let packed: usize = self.packed.iter().map(|packed| packed.lengths.len()).sum();
        packed + self.lines.len() - self.dropped
    }

    /// Returns the number of the next event.
    fn next(&self) -> u64 {
        self.first + u64::try_from(self.len()).unwrap_or(u64::MAX)
    }

    fn cursor(&self, number: u64) -> String {
        format!("{}-{number}", self.stream)
    }

    fn push(&mut self, event: NodeEvent) {
        self.push_line(event.line(&self.cursor(self.next()), None).into());
    }

    fn push_line(&mut self, line: Box<str>) {
        self.bytes += line.len();
        self.lines.push_back(line);
        if self.lines.len() == 2 * limits::EVENTS_TOGETHER {
            self.packed.push_back(PackedLines::of(self.lines.drain(..limits::EVENTS_TOGETHER)));
        }
        while self.len() > limits::EVENTS || self.bytes > limits::EVENTS_BYTES {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let length = match self.packed.front() {
            Some(packed) => packed.lengths.get(self.dropped).copied(),
            None => self.lines.pop_front().map(|line| line.len()),
        };
        self.bytes -= length.unwrap_or_default();
        self.first += 1;
        let Some(packed) = self.packed.front() else { return };
        self.dropped += 1;
        if self.dropped == packed.lengths.len() {
            self.packed.pop_front();
            self.dropped = 0;
        }
    }

    /// Calls `take` with each line, starting at line `number`, until `take` returns false.
    fn read(&self, number: u64, mut take: impl FnMut(&str) -> bool) {
        let skipped = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        let mut skipped = skipped.saturating_add(self.dropped);
        for packed in &self.packed {
            let count = packed.lengths.len();
            if skipped < count && !packed.text().split_inclusive('\n').skip(skipped).all(&mut take)
            {
                return;
            }
            skipped = skipped.saturating_sub(count);
        }
        self.lines.iter().skip(skipped).all(|line| take(line));
    }

    fn save(&self) -> SavedRing {
        let mut lines = Vec::new();
        self.read(self.first, |line| {
            lines.push(line.into());
            true
        });
        SavedRing { stream: self.stream.clone(), first: self.first, lines, bytes: self.bytes }
    }

    fn resume(saved: SavedRing) -> Self {
        let mut ring = Self::starting(saved.stream, saved.first);
        saved.lines.into_iter().for_each(|line| ring.push_line(line));
        ring
    }

    /// Returns the line about events that a reader missed; their number is unknown if they are
    /// another daemon's.
    fn lost_line(&self, count: Option<u64>) -> String {
        let said = match count {
            Some(_) => "they were dropped before they were read",
            None => "the daemon was restarted",
        };
        let lost = NodeEvent { reason: said.to_owned(), ..NodeEvent::new(EventKind::Lost) };
        lost.line(&self.cursor(self.first - 1), Some(count))
    }
}

/// The event stream and its readers.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    ring: RefCell<EventRing>,
    come: Notify,
    followers: Cell<usize>,
    /// Events that readers missed.
    lost: Cell<u64>,
}

impl EventStream {
    /// Adds an event; readers receive it when they reach it.
    pub(crate) fn push(&self, event: NodeEvent) {
        self.ring.borrow_mut().push(event);
        self.come.notify_waiters();
    }

    /// Serializes the stream for the next program of this process.
    pub(crate) fn save(&self) -> Value {
        json!(self.ring.borrow().save())
    }

    /// Continues the previous program's stream; changes nothing if the saved form cannot be read.
    pub(crate) fn resume(&self, saved: Value) {
        if let Ok(saved) = serde_json::from_value(saved) {
            self.ring.replace(EventRing::resume(saved));
        }
    }

    /// Returns the number of events that readers missed because they read slowly or came late.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Creates a reader that follows new events; `None` at the limit of such readers.
    pub(crate) fn follower(self: &Rc<Self>, since: &Since) -> Option<EventReader> {
        if self.followers.get() >= limits::EVENT_READERS {
            return None;
        }
        self.followers.set(self.followers.get() + 1);
        let mut reader = self.reader(since);
        reader.is_follower = true;
        Some(reader)
    }

    /// Creates a reader for a single read, which does not count against the limit of followers.
    pub(crate) fn reader(self: &Rc<Self>, since: &Since) -> EventReader {
        let ring = self.ring.borrow();
        let (next, is_other) = match since {
            Since::Oldest => (ring.first, false),
            Since::Now => (ring.next(), false),
            Since::Cursor { stream, number } if *stream == ring.stream && *number < ring.next() => {
                (number + 1, false)
            }
            Since::Cursor { .. } => (ring.first, true),
        };
        drop(ring);
        EventReader { stream: Rc::clone(self), next, is_other, is_follower: false }
    }
}

/// A reader's place in the stream.
#[derive(Debug)]
pub(crate) struct EventReader {
    stream: Rc<EventStream>,
    /// The number of the next event.
    next: u64,
    /// Whether the reader's cursor is none of this stream's, so that events may be missing.
    is_other: bool,
    is_follower: bool,
}

impl EventReader {
    /// Returns the cursor after which the reader continues: that of the last event before its
    /// position.
    pub(crate) fn cursor(&self) -> String {
        self.stream.ring.borrow().cursor(self.next - 1)
    }

    /// Returns the next lines, about [`limits::EVENT_BATCH`] bytes at most; empty without a new
    /// event.
    pub(crate) fn take(&mut self) -> String {
        let ring = self.stream.ring.borrow();
        let mut text = String::new();
        if std::mem::take(&mut self.is_other) {
            text.push_str(&ring.lost_line(None));
        }
        let missed = ring.first.saturating_sub(self.next);
        if missed > 0 {
            self.stream.lost.set(self.stream.lost.get() + missed);
            text.push_str(&ring.lost_line(Some(missed)));
            self.next = ring.first;
        }
        ring.read(self.next, |line| {
            text.push_str(line);
            self.next += 1;
            text.len() < limits::EVENT_BATCH
        });
        text
    }

    /// Waits for the next lines.
    pub(crate) async fn next(&mut self) -> String {
        loop {
            // Registered before the check, so that no event in between is missed.
            let stream = Rc::clone(&self.stream);
            let come = stream.come.notified();
            let text = self.take();
            if !text.is_empty() {
                return text;
            }
            come.await;
        }
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        if self.is_follower {
            self.stream.followers.set(self.stream.followers.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Named;

    fn started(id: &str) -> NodeEvent {
        NodeEvent { container_id: id.to_owned(), ..NodeEvent::new(EventKind::Started) }
    }

    fn lines(text: &str) -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn cursor(line: &Value) -> Since {
        Since::parse(line["cursor"].as_str().unwrap()).unwrap()
    }

    fn all(reader: &mut EventReader) -> Vec<Value> {
        let parts = std::iter::from_fn(|| Some(reader.take()).filter(|text| !text.is_empty()));
        lines(&parts.collect::<String>())
    }

    #[test]
    fn a_reader_resumes_after_its_cursor_and_misses_nothing() {
        let stream = Rc::new(EventStream::default());
        (0..3).for_each(|number| stream.push(started(&number.to_string())));
        let read = all(&mut stream.reader(&Since::Oldest));
        assert_eq!(read.len(), 3);
        assert_eq!((&read[1]["kind"], &read[1]["container_id"]), (&json!("started"), &json!("1")));
        let rest = all(&mut stream.reader(&cursor(&read[0])));
        assert_eq!(rest, read[1..]);
        let mut last = stream.reader(&cursor(&read[2]));
        assert_eq!(last.take(), "");
        let mut fresh = stream.reader(&Since::Now);
        stream.push(started("3"));
        assert_eq!(all(&mut last), all(&mut fresh));
    }

    #[test]
    fn a_readers_initial_cursor_misses_no_event() {
        let stream = Rc::new(EventStream::default());
        for since in [Since::Oldest, Since::Now] {
            let place = stream.reader(&since).cursor();
            let place = Since::parse(&place).unwrap();
            stream.push(started("missed"));
            assert_eq!(all(&mut stream.reader(&place)).len(), 1, "{since:?}");
            let other = Rc::new(EventStream::default());
            other.ring.borrow_mut().stream = "1a".to_owned();
            assert_eq!(all(&mut other.reader(&place))[0]["kind"], "lost");
        }
    }

    #[test]
    fn an_overflowed_ring_reports_the_count_of_lost_events() {
        let stream = Rc::new(EventStream::default());
        stream.push(started("first"));
        let first = all(&mut stream.reader(&Since::Oldest)).remove(0);
        let mut slow = stream.reader(&Since::Oldest);
        (0..limits::EVENTS + 2).for_each(|number| stream.push(started(&number.to_string())));
        let rest = all(&mut stream.reader(&cursor(&first)));
        assert_eq!((&rest[0]["kind"], &rest[0]["lost"]), (&json!("lost"), &json!(2)));
        assert_eq!(rest[1]["container_id"], "2");
        assert_eq!(rest.len(), limits::EVENTS + 1);
        let read = all(&mut slow);
        assert_eq!((&read[0]["kind"], &read[0]["lost"]), (&json!("lost"), &json!(3)));
        // The cursor of a `lost` line leads to the oldest event.
        let again = all(&mut stream.reader(&cursor(&read[0])));
        assert_eq!(again, read[1..]);
        assert_eq!(all(&mut slow), [Value::Null; 0]);
        assert_eq!(stream.lost(), 5);
        assert_eq!(all(&mut stream.reader(&Since::Oldest))[0]["kind"], "started");
    }

    #[test]
    fn a_cursor_of_another_daemon_yields_a_marker_and_all_events() {
        let (before, stream) = (Rc::new(EventStream::default()), Rc::new(EventStream::default()));
        before.ring.borrow_mut().stream = "1a".to_owned();
        before.push(started("old"));
        let old = all(&mut before.reader(&Since::Oldest)).remove(0);
        stream.push(started("new"));
        let read = all(&mut stream.reader(&cursor(&old)));
        assert_eq!((&read[0]["kind"], &read[0]["lost"]), (&json!("lost"), &Value::Null));
        assert_eq!(read[1]["container_id"], "new");
        // A number that this daemon has not reached yet is treated as another daemon's cursor.
        let future = Since::Cursor { stream: stream.ring.borrow().stream.clone(), number: 7 };
        assert_eq!(all(&mut stream.reader(&future))[0]["kind"], "lost");
    }

    #[test]
    fn the_next_program_continues_the_stream() {
        let (before, after) = (Rc::new(EventStream::default()), Rc::new(EventStream::default()));
        (0..limits::EVENTS + 5).for_each(|number| before.push(started(&number.to_string())));
        let read = all(&mut before.reader(&Since::Oldest));
        after.resume(before.save());
        after.push(started("after"));
        let rest = all(&mut after.reader(&cursor(&read[limits::EVENTS - 2])));
        assert_eq!(rest[0], read[limits::EVENTS - 1]);
        assert_eq!((rest.len(), &rest[1]["container_id"]), (2, &json!("after")));
        let mut without = before.save();
        without.as_object_mut().unwrap().remove("bytes");
        let newer = Rc::new(EventStream::default());
        newer.resume(without);
        assert!(all(&mut newer.reader(&Since::Oldest)) == all(&mut before.reader(&Since::Oldest)));
        // A form that cannot be read changes nothing.
        after.resume(json!({"stream": 5}));
        assert_eq!(all(&mut after.reader(&cursor(&rest[0]))).len(), 1);
    }

    #[test]
    fn long_tenant_texts_are_cut_and_displace_few_events() {
        let stream = Rc::new(EventStream::default());
        for unit in ["x", "\u{1b}", "🦀"] {
            let long = unit.repeat(1 << 20);
            let mut event = started(&long);
            event.labels = Some([("app".to_owned(), long.clone())].into());
            (event.reason, event.pod) = (long.clone(), long);
            stream.push(event);
        }
        let text = stream.reader(&Since::Oldest).take();
        assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "it is ASCII");
        let read = lines(&text);
        assert_eq!((read.len(), &read[0]["labels"]), (3, &Value::Null));
        assert!(text.len() < 3 * 12 * 6 * (limits::AUDIT_TEXT + 20), "{}", text.len());
        for _ in 0..1000 {
            let reason = "\u{1b}".repeat(limits::AUDIT_TEXT);
            stream.push(NodeEvent { reason, ..started("c") });
        }
        let ring = stream.ring.borrow();
        assert!(ring.bytes <= limits::EVENTS_BYTES && ring.len() < 1003);
        assert_eq!(ring.bytes, ring.save().lines.iter().map(|line| line.len()).sum::<usize>());
    }

    #[test]
    fn readers_are_limited_and_each_end_frees_a_place() {
        let stream = Rc::new(EventStream::default());
        let mut readers: Vec<EventReader> =
            std::iter::from_fn(|| stream.follower(&Since::Now)).collect();
        assert_eq!(readers.len(), limits::EVENT_READERS);
        drop(stream.reader(&Since::Oldest));
        assert!(stream.follower(&Since::Now).is_none(), "one that reads once has no place");
        readers.pop();
        assert!(stream.follower(&Since::Oldest).is_some());
    }

    #[test]
    fn an_invalid_cursor_is_refused() {
        for text in ["", "1", "-", "a-", "-1", "a-b", "x-1", "a-1-2", "a-+1", "a--1", "5m"] {
            assert_eq!(Since::parse(text), None, "{text}");
        }
        assert_eq!(Since::parse("0"), Some(Since::Oldest));
    }

    #[test]
    fn each_kind_has_a_unique_name() {
        let mut names = EventKind::names().collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EventKind::ALL.len());
    }

    #[tokio::test]
    async fn a_waiting_reader_wakes_with_the_next_event() {
        let stream = Rc::new(EventStream::default());
        let mut reader = stream.reader(&Since::Now);
        let (read, ()) = tokio::join!(reader.next(), async {
            tokio::task::yield_now().await;
            stream.push(started("c"));
        });
        assert_eq!(lines(&read)[0]["container_id"], "c");
    }
}
