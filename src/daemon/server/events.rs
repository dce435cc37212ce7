// SPDX-License-Identifier: Apache-2.0
//! Serves `nri-runc nri events`: the stored events, or a stream of them until the reader closes its
//! end. A slow reader delays only its own connection.

use std::rc::Rc;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::answers::EventsBegin;
use crate::daemon::server::frames;
use crate::error::{Error, Result};
use crate::limits;
use crate::link::DaemonResponse;
use crate::stream::{EventReader, EventStream, Since};

/// Returns the events from the position `since` on, as one document.
///
/// # Errors
/// Fails on an invalid cursor.
pub(super) fn read(stream: &Rc<EventStream>, since: &str) -> Result<Vec<Box<RawValue>>> {
    let mut reader = stream.reader(&place(since)?);
    let parts = std::iter::from_fn(|| Some(reader.take()).filter(|text| !text.is_empty()));
    let text: String = parts.collect();
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Sends the cursor at which the reader starts, then each later event as a line, until the reader closes its end.
pub(super) async fn follow(
    events: &Rc<EventStream>,
    stream: &mut UnixStream,
    since: &str,
) -> Result<()> {
    let mut events = match follower(events, since) {
        Ok(events) => events,
        Err(error) => {
            let refusal = DaemonResponse::Refuse(error.to_string());
            return frames::send(stream, &refusal).await;
        }
    };
    let present = json!(EventsBegin { cursor: events.cursor() }).to_string();
    frames::send(stream, &DaemonResponse::Admin(present)).await?;
    let (mut reader, mut writer) = stream.split();
    let mut nothing = [0_u8; 1];
    let write = async {
        loop {
            let lines = events.next().await;
            writer.write_all(lines.as_bytes()).await?;
            // A reader that reads as fast as events happen must not block other tasks.
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = write => ended,
        _closed = reader.read(&mut nothing) => Ok(()),
    }
}

fn place(since: &str) -> Result<Since> {
    Since::parse(since).ok_or_else(|| {
        Error::new("this is not the cursor of an event").hint("use 0 for the oldest event")
    })
}

fn follower(stream: &Rc<EventStream>, since: &str) -> Result<EventReader> {
    stream.follower(&place(since)?).ok_or_else(|| {
        let most = limits::EVENT_READERS;
        Error::new(format!("{most} programs already read events, the maximum"))
            .hint("end one of them")
    })
}
