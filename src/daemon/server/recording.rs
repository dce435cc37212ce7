// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri record`: the state first, then every request, until the reader closes its end.

use std::rc::Rc;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::Receiver;

use crate::clock::now;
use crate::daemon::server::frames;
use crate::daemon::shared::{Daemon, events};
use crate::error::Result;
use crate::link::DaemonResponse;
use crate::plugin::json::show_list;

/// Sends the state, then every request, until the reader closes its end.
pub(crate) async fn serve(daemon: &Rc<Daemon>, stream: &mut UnixStream) -> Result<()> {
    // State and recording begin in one step: between them no event is missing, and none is there
    // twice.
    let (pods, containers) =
        events::snapshot(&daemon.records.read(), |record| daemon.is_paused(record));
    let plugins: Vec<String> =
        daemon.registry.synchronized().iter().map(|chained| chained.id()).collect();
    let mut lines = daemon.registry.recorders.listen();
    frames::send(stream, &DaemonResponse::Admin("{}".to_owned())).await?;
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

/// Sends the rest: a recorder that ends closes its side first, and receives the lines until then.
async fn send_rest(
    writer: &mut (impl AsyncWrite + Unpin),
    mut lines: Receiver<Rc<str>>,
) -> std::io::Result<()> {
    lines.close();
    while let Ok(line) = lines.try_recv() {
        match writer.write_all(line.as_bytes()).await {
            // A recorder that was killed has closed both sides.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
