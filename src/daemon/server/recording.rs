// SPDX-License-Identifier: Apache-2.0
//! Serves `nri-runc nri replay --record`: sends the state first, then every request, until the reader closes its end
//! or is too slow.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::clock::now;
use crate::daemon::registry::recording::Recording;
use crate::daemon::server::frames;
use crate::daemon::shared::{Daemon, events, messages};
use crate::error::Result;
use crate::limits;
use crate::link::DaemonResponse;
use crate::plugin::json::show;

pub(crate) async fn serve(daemon: &Rc<Daemon>, stream: &mut UnixStream) -> Result<()> {
    // State and recording begin in one step, so that no event in between is missing or sent twice.
    let (pods, containers) = events::snapshot(&daemon.records.read());
    let plugins: Vec<String> =
        daemon.registry.synchronized().iter().map(|chained| chained.id().to_owned()).collect();
    let mut lines = daemon.registry.recorders.listen();
    frames::send(stream, &DaemonResponse::Admin("{}".to_owned())).await?;
    let mut state = StateLine { plugins: Some(plugins), ..StateLine::default() };
    for pod in pods {
        if let Some(line) = state.add(|parts| &mut parts.pods, &show(&pod)) {
            stream.write_all(line.as_bytes()).await?;
        }
    }
    // The records are one snapshot, so other tasks may run while it is sent.
    for container in containers {
        let message = messages::container_as_it_is(&container, daemon.is_paused(&container));
        match state.add(|parts| &mut parts.containers, &show(&message)) {
            Some(line) => stream.write_all(line.as_bytes()).await?,
            None => tokio::task::yield_now().await,
        }
    }
    stream.write_all(state.line().as_bytes()).await?;
    let (mut reader, mut writer) = stream.split();
    let mut nothing = [0_u8; 1];
    loop {
        tokio::select! {
            line = lines.next() => match line {
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

/// Sends the remaining lines. A recording command that ends closes its sending side first, and still
/// reads the lines that are queued.
async fn send_rest(
    writer: &mut (impl AsyncWrite + Unpin),
    mut lines: Recording,
) -> std::io::Result<()> {
    lines.end();
    while let Some(line) = lines.next().await {
        match writer.write_all(line.as_bytes()).await {
            // A killed command has closed both sides.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

/// One line of the state; a long state is split into several lines, which the reader joins.
#[derive(Debug, Serialize)]
struct StateLine {
    at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugins: Option<Vec<String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    adds: bool,
    state: Parts,
    #[serde(skip)]
    bytes: usize,
}

#[derive(Debug, Default, Serialize)]
struct Parts {
    pods: Vec<Box<RawValue>>,
    containers: Vec<Box<RawValue>>,
}

impl Default for StateLine {
    fn default() -> Self {
        Self { at: now(), plugins: None, adds: false, state: Parts::default(), bytes: 0 }
    }
}

impl StateLine {
    /// Adds an element to one of the line's lists. If it does not fit, returns the full line and begins a new one.
    fn add(
        &mut self,
        list: impl FnOnce(&mut Parts) -> &mut Vec<Box<RawValue>>,
        message: &impl Serialize,
    ) -> Option<String> {
        let shown = to_raw_value(message).ok()?;
        let (bytes, length) = (self.bytes, shown.get().len());
        let is_full = bytes > 0 && bytes + length > limits::RECORDED_STATE;
        let full =
            is_full.then(|| std::mem::replace(self, Self { adds: true, ..Self::default() }).line());
        self.bytes += length;
        list(&mut self.state).push(shown);
        full
    }

    fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_long_state_is_split_into_lines_that_extend_the_first() {
        let mut state = StateLine { plugins: Some(vec!["10-a".to_owned()]), ..Default::default() };
        let long = json!({"id": "p".repeat(limits::RECORDED_STATE / 4)});
        let mut lines = Vec::new();
        lines.extend((0..3).filter_map(|_| state.add(|parts| &mut parts.pods, &long)));
        lines.extend((0..2).filter_map(|_| state.add(|parts| &mut parts.containers, &long)));
        lines.push(state.line());
        let longest = lines.iter().map(String::len).max().unwrap();
        assert!(longest < limits::RECORDED_STATE + 200, "{longest}");
        let lines: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let counts = |line: &Value| {
            let count = |what: &str| line["state"][what].as_array().unwrap().len();
            (count("pods"), count("containers"))
        };
        assert_eq!(lines.iter().map(counts).collect::<Vec<_>>(), [(3, 0), (0, 2)]);
        assert_eq!((&lines[0]["plugins"], &lines[0]["adds"]), (&json!(["10-a"]), &Value::Null));
        assert_eq!((&lines[1]["plugins"], &lines[1]["adds"]), (&Value::Null, &json!(true)));
    }

    #[test]
    fn an_overlong_container_gets_its_own_state_line() {
        let mut state = StateLine::default();
        let long = json!({"id": "p".repeat(limits::RECORDED_STATE * 2)});
        assert_eq!(state.add(|parts| &mut parts.containers, &long), None);
        let first = state.add(|parts| &mut parts.containers, &json!({"id": "c2"})).unwrap();
        assert!(first.len() > limits::RECORDED_STATE * 2);
        assert!(state.line().contains("\"adds\":true"));
        assert!(StateLine::default().line().contains(r#""state":{"pods":[]"#));
    }
}
