// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: logs every request that it receives, as one line of JSON.
//!
//! ```text
//! cargo run -p event-logger | jq .event             # by hand: to stdout, or installed:
//! cp target/debug/event-logger /opt/nri/plugins/99-event-logger
//! echo 'file = /var/log/nri-events.json' >/etc/nri/conf.d/99-event-logger.conf
//! ```
//!
//! A line has `event`, `pod` (namespace/name) and `container` (name and pid) if the request has
//! them, and the whole `request` in protobuf's JSON mapping:
//!
//! ```json
//! {"event":"StartContainer","pod":"shop/web","container":"nginx","pid":4711,"request":{…}}
//! ```
//!
//! It changes nothing, and a line that cannot be written affects no container. A plugin with the
//! index 99 sees containers with the changes of all others.

use std::io::Write;
use std::sync::Mutex;

use nri_plugin::{ALL_EVENTS, Context, Event, Handler, api, async_trait};
use protobuf::MessageDyn;
use protobuf_json_mapping::print_to_string;
use serde_json::{Map, Value, json};

#[derive(Default)]
struct EventLogger {
    /// The output; `None` before the configuration is known.
    to: Mutex<Option<Box<dyn Write + Send>>>,
}

/// The file named by `file = PATH`, or stdout for a plugin that has one.
fn open(config: &str) -> nri_plugin::Result<Box<dyn Write + Send>> {
    let line = config.trim();
    if line.is_empty() {
        return match std::env::var_os("NRI_PLUGIN_SOCKET") {
            Some(_) => Err("a launched plugin has no stdout: give it `file = PATH`".into()),
            None => Ok(Box::new(std::io::stdout())),
        };
    }
    let path = match line.split_once('=').map(|(key, path)| (key.trim(), path.trim())) {
        Some(("file", path)) if !path.contains('\n') => path,
        _ => return Err(format!("its configuration is not `file = PATH`: {line:?}").into()),
    };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    Ok(Box::new(file.map_err(|error| format!("opening {path}: {error}"))?))
}

fn line(method: &str, message: &dyn MessageDyn) -> Option<String> {
    let request: Value = serde_json::from_str(&print_to_string(message).ok()?).ok()?;
    let mut line = Map::new();
    line.insert("event".to_owned(), json!(method));
    let (pod, container) = (&request["pod"], &request["container"]);
    if let Some(name) = pod["name"].as_str() {
        let namespace = pod["namespace"].as_str();
        let full = namespace.map_or(name.to_owned(), |namespace| format!("{namespace}/{name}"));
        line.insert("pod".to_owned(), json!(full));
    }
    for (key, value) in [("container", &container["name"]), ("pid", &container["pid"])] {
        if !value.is_null() {
            line.insert(key.to_owned(), value.clone());
        }
    }
    line.insert("request".to_owned(), request);
    Some(Value::from(line).to_string())
}

impl EventLogger {
    fn write(&self, method: &str, message: &dyn MessageDyn) {
        let (Some(line), Ok(mut to)) = (line(method, message), self.to.lock()) else { return };
        if let Some(to) = to.as_mut() {
            // One write, so that lines of several processes do not mix in one file.
            let _best_effort = to.write_all(format!("{line}\n").as_bytes());
            let _best_effort = to.flush();
        }
    }
}

#[async_trait]
impl Handler for EventLogger {
    /// All but the last, validation: a logger must not be able to refuse.
    fn events(&self) -> &[Event] {
        let [others @ .., _validation] = &ALL_EVENTS;
        others
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let to = open(&request.config)?;
        if let Ok(mut slot) = self.to.lock() {
            *slot = Some(to);
        }
        self.write("Configure", &request);
        Ok(())
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        // The output is not known before Configure.
        if method != "Configure" {
            self.write(method, message);
        }
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("99-event-logger", EventLogger::default())
}
