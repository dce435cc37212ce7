// SPDX-License-Identifier: Apache-2.0
//! Recordings: every request of the runtime side as plugins are sent it, one JSON line each, in
//! the form that `replay` reads. A recording that cannot keep up is ended; it never holds up a
//! container. Nothing is recorded unless somebody asked for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use protobuf::MessageDyn;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::chain::Told;
use crate::error::Result;
use crate::link::Answer;
use crate::plugin::json::{show, show_list};
use crate::plugin::{Event, api};

use crate::daemon::node::{Node, now};
use crate::daemon::server::frames;

/// Requests that a reader may be behind.
const BACKLOG: usize = 1024;

/// Everybody who records.
#[derive(Default)]
pub(crate) struct Recorders {
    listeners: RefCell<Vec<Sender<Rc<str>>>>,
    /// Numbers the requests of all recordings.
    count: Cell<u64>,
}

impl Recorders {
    fn listen(&self) -> Receiver<Rc<str>> {
        let (sender, lines) = channel(BACKLOG);
        self.listeners.borrow_mut().push(sender);
        lines
    }

    /// Whether anybody listens.
    pub(crate) fn is_on(&self) -> bool {
        !self.listeners.borrow().is_empty()
    }

    /// An event; not those that carry more than pod and container.
    pub(crate) fn told(&self, told: &Told) {
        if !self.is_on() || told.event == Event::UpdateContainer {
            return;
        }
        let Told { event, pod, container, root: _, resources } = told;
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
        // Its two members are the first two of every other request.
        let request = api::StateChangeEvent {
            pod: pod.into(),
            container: container.into(),
            ..api::StateChangeEvent::default()
        };
        self.request(*event, &request);
    }

    /// A whole request.
    pub(crate) fn request(&self, event: Event, request: &dyn MessageDyn) {
        if !self.is_on() {
            return;
        }
        self.count.set(self.count.get() + 1);
        let (id, request) = (self.count.get(), show(request));
        self.say(&json!({"id": id, "at": now(), "call": event.name(), "request": request}));
    }

    fn say(&self, line: &Value) {
        let line: Rc<str> = format!("{line}\n").into();
        self.listeners.borrow_mut().retain(|listener| listener.try_send(Rc::clone(&line)).is_ok());
    }
}

/// Sends the state, then every request, until the reader closes its end.
pub(crate) async fn serve(node: &Rc<Node>, stream: &mut UnixStream) -> Result<()> {
    // State and ear in one step: nothing is missing between them, and nothing twice.
    let (pods, containers) = node.snapshot();
    let plugins: Vec<String> = node.relay.seats().iter().map(|seat| seat.id()).collect();
    let mut lines = node.relay.recorders.listen();
    frames::say(stream, &Answer::Admin("{}".to_owned())).await?;
    let state = json!({"pods": show_list(&pods), "containers": show_list(&containers)});
    let state = json!({"at": now(), "plugins": plugins, "state": state});
    drop((pods, containers));
    let (mut reader, mut writer) = stream.split();
    let mut nothing = [0_u8; 1];
    writer.write_all(format!("{state}\n").as_bytes()).await?;
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => writer.write_all(line.as_bytes()).await?,
                None => break,
            },
            _closed = reader.read(&mut nothing) => {
                return Ok(send_rest(&mut writer, lines).await?);
            }
        }
    }
    let line = json!({"error": "the recording could not keep up and was ended"});
    Ok(writer.write_all(format!("{line}\n").as_bytes()).await?)
}

/// A recorder that ends closes its side first: it gets what was told until then.
async fn send_rest(
    writer: &mut (impl AsyncWrite + Unpin),
    mut lines: Receiver<Rc<str>>,
) -> std::io::Result<()> {
    lines.close();
    while let Ok(line) = lines.try_recv() {
        match writer.write_all(line.as_bytes()).await {
            // One that was killed has closed both sides.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
