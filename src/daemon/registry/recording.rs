// SPDX-License-Identifier: Apache-2.0
//! Recordings: every request to plugins as it is sent, one JSON line each, in the form that
//! `replay` reads. A recording that cannot keep up is ended; it never delays a container. Without a
//! client that asks for one, nothing is recorded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use protobuf::MessageDyn;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::chain::Notification;
use crate::plugin::json::show;
use crate::plugin::{Event, api};

use crate::clock::now;

/// Requests that may be queued for the reader of a recording.
const BACKLOG: usize = 1024;

/// All recordings.
#[derive(Default)]
pub(crate) struct Recorders {
    listeners: RefCell<Vec<Sender<Rc<str>>>>,
    /// Numbers the requests of all recordings.
    count: Cell<u64>,
}

impl Recorders {
    /// A new recording: every request from now on, until its receiver is dropped.
    pub(crate) fn listen(&self) -> Receiver<Rc<str>> {
        let (sender, lines) = channel(BACKLOG);
        self.listeners.borrow_mut().push(sender);
        lines
    }

    /// Whether anything is recorded.
    fn is_on(&self) -> bool {
        !self.listeners.borrow().is_empty()
    }

    /// Records an event, unless its request has more than pod and container.
    pub(crate) fn notification(&self, notification: &Notification) {
        if !self.is_on() || notification.event == Event::UpdateContainer {
            return;
        }
        let Notification { event, pod, container, root: _, resources, origin: _ } = notification;
        let (pod, container) = (Some(pod.clone()), container.clone());
        if let Some((overhead, resources)) = resources {
            let request = api::UpdatePodSandboxRequest {
                pod: pod.into(),
                overhead_linux_resources: overhead.clone().into(),
                linux_resources: resources.clone().into(),
                ..api::UpdatePodSandboxRequest::default()
            };
            return self.request(*event, &request);
        }
        // Its two members are also the first two of every other request.
        let request = api::StateChangeEvent {
            pod: pod.into(),
            container: container.into(),
            ..api::StateChangeEvent::default()
        };
        self.request(*event, &request);
    }

    /// Records a whole request.
    pub(crate) fn request(&self, event: Event, request: &dyn MessageDyn) {
        if !self.is_on() {
            return;
        }
        self.count.set(self.count.get() + 1);
        let (id, request) = (self.count.get(), show(request));
        self.send(&json!({"id": id, "at": now(), "call": event.name(), "request": request}));
    }

    fn send(&self, line: &Value) {
        let line: Rc<str> = format!("{line}\n").into();
        self.listeners.borrow_mut().retain(|listener| listener.try_send(Rc::clone(&line)).is_ok());
    }
}
