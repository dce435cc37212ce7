// SPDX-License-Identifier: Apache-2.0
//! Records the requests to plugins about pods and containers (except Synchronize, validations and update results), and
//! the results of creations: one JSON line each, in the form that `replay` reads. A recording whose reader is too slow
//! is ended, so a recording never delays a container. Without a reader, nothing is recorded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use protobuf::MessageDyn;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::chain::Notification;
use crate::plugin::json::show;
use crate::plugin::{Event, api};

use crate::clock::now;
use crate::limits;

use super::Registry;
use super::connected::ConnectedPlugin;

#[derive(Default)]
pub(crate) struct Recorders {
    listeners: RefCell<Vec<Listener>>,
    /// The number of the last recorded request, counted over all recordings.
    count: Cell<u64>,
}

impl Recorders {
    /// Starts a recording of the requests from now on, until its receiver is dropped or too slow.
    pub(crate) fn listen(&self) -> Recording {
        let (sender, lines) = channel(limits::RECORDING_BACKLOG);
        let queued = Rc::new(Cell::new(0));
        self.listeners.borrow_mut().push(Listener { sender, queued: Rc::clone(&queued) });
        Recording { lines, queued }
    }

    fn is_on(&self) -> bool {
        !self.listeners.borrow().is_empty()
    }

    /// Records an event, also one to which no plugin is subscribed. `verbs/update.rs` records UpdateContainer.
    pub(crate) fn record_notification(&self, notification: &Notification) {
        if !self.is_on() || notification.event == Event::UpdateContainer {
            return;
        }
        let Notification { event, pod, container, root: _, resources, origin, is_first: _ } =
            notification;
        let (pod, container) = (Some(pod.clone()), container.as_deref().cloned());
        if let Some((overhead, resources)) = resources {
            let request = api::UpdatePodSandboxRequest {
                pod: pod.into(),
                overhead_linux_resources: overhead.clone().into(),
                linux_resources: resources.clone().into(),
                ..api::UpdatePodSandboxRequest::default()
            };
            return self.record_request(event.name(), &request, Some(origin));
        }
        // The request of every other event begins with the same two members.
        let request = api::StateChangeEvent {
            pod: pod.into(),
            container: container.into(),
            ..api::StateChangeEvent::default()
        };
        self.record_request(event.name(), &request, Some(origin));
    }

    /// Records a whole request. `origin`: the pod's engine, and whether a tenant may have written its identity.
    pub(crate) fn record_request(
        &self,
        method: &str,
        request: &dyn MessageDyn,
        origin: Option<&(String, bool)>,
    ) {
        if !self.is_on() {
            return;
        }
        self.count.set(self.count.get() + 1);
        let (id, request) = (self.count.get(), show(request));
        let mut line = json!({"id": id, "at": now(), "call": method, "request": request});
        if let Some((engine, is_doubtful)) = origin {
            line["engine"] = engine.as_str().into();
            line["proven"] = (!is_doubtful).into();
        }
        self.send(&line);
    }

    /// Returns the number of the request that was recorded last; `None` while nothing is recorded.
    pub(crate) fn last(&self) -> Option<u64> {
        self.is_on().then(|| self.count.get())
    }

    /// Records the result of a creation and its reasons (decision D62).
    pub(crate) fn record_decision(&self, request: u64, mut decision: Value) {
        decision["decision"] = request.into();
        decision["at"] = now().into();
        self.send(&decision);
    }

    fn send(&self, line: &Value) {
        let line: Rc<str> = format!("{line}\n").into();
        self.listeners.borrow_mut().retain(|listener| listener.queue(&line));
    }
}

impl Registry {
    /// Whether a plugin (synchronized or not) is subscribed to this event, or requests are recorded.
    pub(crate) fn has_readers(&self, event: Event) -> bool {
        let reads = |plugin: &Rc<ConnectedPlugin>| plugin.connection().is_subscribed(event);
        self.recorders.is_on() || self.connected.borrow().iter().any(reads)
    }
}

/// The lines of one recording, for its reader.
pub(crate) struct Recording {
    lines: Receiver<Rc<str>>,
    /// The total bytes of the queued lines.
    queued: Rc<Cell<usize>>,
}

impl Recording {
    /// Returns the next line; `None` once the recording has ended and all lines are read.
    pub(crate) async fn next(&mut self) -> Option<Rc<str>> {
        let line = self.lines.recv().await?;
        self.queued.set(self.queued.get().saturating_sub(line.len()));
        Some(line)
    }

    /// Ends the recording; `next` still returns the queued lines.
    pub(crate) fn end(&mut self) {
        self.lines.close();
    }
}

/// The sending end of a recording.
struct Listener {
    sender: Sender<Rc<str>>,
    queued: Rc<Cell<usize>>,
}

impl Listener {
    /// Queues a line; returns whether there was space and a reader. An empty queue takes a line of any length.
    fn queue(&self, line: &Rc<str>) -> bool {
        let waiting = self.queued.get();
        let bytes = waiting + line.len();
        let has_room = waiting == 0 || bytes <= limits::RECORDING_BACKLOG_BYTES;
        let is_queued = has_room && self.sender.try_send(Rc::clone(line)).is_ok();
        self.queued.set(if is_queued { bytes } else { waiting });
        is_queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: usize) -> Rc<str> {
        "x".repeat(bytes).into()
    }

    #[tokio::test]
    async fn an_unread_recording_ends_at_its_limit_of_bytes() {
        let half = limits::RECORDING_BACKLOG_BYTES / 2;
        for (second, is_taken) in [(half, true), (half + 1, false)] {
            let recorders = Recorders::default();
            let mut recording = recorders.listen();
            let queue = |bytes| recorders.listeners.borrow()[0].queue(&line(bytes));
            assert!(queue(half), "it has room");
            assert_eq!(queue(second), is_taken, "{second}");
            // Each line that was read frees its space.
            while recording.queued.get() > 0 {
                assert!(recording.next().await.is_some());
            }
            assert!(queue(4 * half), "one line is queued however long");
            assert!(!queue(1));
        }
    }

    #[tokio::test]
    async fn a_recording_stops_at_its_line_limit_and_keeps_its_lines() {
        let recorders = Recorders::default();
        let mut recording = recorders.listen();
        for _ in 0..=limits::RECORDING_BACKLOG {
            recorders.send(&json!(1));
        }
        assert!(!recorders.is_on());
        let mut count = 0;
        while let Some(line) = recording.next().await {
            assert_eq!(&*line, "1\n");
            count += 1;
        }
        assert_eq!(count, limits::RECORDING_BACKLOG);
    }
}
