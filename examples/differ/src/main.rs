// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: prints what changed in a pod or container since the last event about it.
//!
//! ```text
//! cargo run -p differ                                          # by hand: to stdout, or installed:
//! cp target/debug/differ /opt/nri/plugins/99-differ
//! echo 'file = /var/log/nri-changes.log' >/etc/nri/conf.d/99-differ.conf
//! ```
//!
//! A line for each change: the event, the pod or container, the field and both values.
//!
//! ```text
//! CreateContainer shop/web/nginx: seen for the first time
//! StartContainer shop/web/nginx: pid: - -> 4711
//! UpdateContainer shop/web/nginx: linux.resources.cpu.shares.value: "512" -> "300"
//! UpdateContainer shop/web/nginx: wants memory.limit.value: "67108864"
//! ```
//!
//! It prints only the names of environment variables. It changes nothing. With the index 99 it sees containers
//! with the changes of all other plugins; two instances, with 00 and 99, show the changes in between.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::sync::Mutex;

use nri_plugin::{ALL_EVENTS, Context, Event, Handler, api, async_trait};
use protobuf::MessageDyn;
use protobuf_json_mapping::print_to_string;
use serde_json::Value;

/// A pod or container as a list of fields with their values.
type Fields = BTreeMap<String, String>;

#[derive(Default)]
struct Seen {
    /// The output; `None` before the configuration is known.
    to: Option<Box<dyn Write + Send>>,
    /// The last known fields, by name and ID: a pod and its container may have the same ID.
    known: BTreeMap<(String, String), Fields>,
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
    let path = line.strip_prefix("file").and_then(|rest| rest.trim_start().strip_prefix('='));
    let path = path.map(str::trim).filter(|path| !path.is_empty() && !path.contains('\n'));
    let path = path.ok_or_else(|| format!("its configuration is not `file = PATH`: {line:?}"))?;
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    Ok(Box::new(file.map_err(|error| format!("opening {path}: {error}"))?))
}

/// Adds the fields below `value` under their paths.
fn flatten(path: &str, value: &Value, fields: &mut Fields) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| flatten(&below(key), value, fields));
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let name = item.as_str().and_then(|word| word.split_once('='));
                match name.filter(|_| path == "env") {
                    Some((name, _)) => {
                        fields.insert(format!("env[{name}]"), "set".to_owned());
                    }
                    None => flatten(&format!("{path}[{at}]"), item, fields),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            fields.insert(path.to_owned(), value.to_string());
        }
    }
}

/// A line for each field that differs.
fn differences(before: &Fields, now: &Fields) -> Vec<String> {
    let mut keys: Vec<&String> = before.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    let none = "-".to_owned();
    let pairs = keys.into_iter().map(|key| (key, before.get(key), now.get(key)));
    let differing = pairs.filter(|(_, before, now)| before != now);
    let line = |(key, before, now): (&String, Option<&String>, Option<&String>)| {
        format!("{key}: {} -> {}", before.unwrap_or(&none), now.unwrap_or(&none))
    };
    differing.map(line).collect()
}

impl Seen {
    /// Compares the object of an event with its last known fields.
    fn look(&mut self, event: &str, name: &str, value: &Value) {
        let Some(id) = value["id"].as_str() else { return };
        let mut now = Fields::new();
        flatten("", value, &mut now);
        let known = self.known.entry((name.to_owned(), id.to_owned()));
        let lines = match known {
            Entry::Vacant(slot) => {
                slot.insert(now);
                vec!["seen for the first time".to_owned()]
            }
            Entry::Occupied(mut slot) => {
                let lines = differences(slot.get(), &now);
                slot.insert(now);
                lines
            }
        };
        for line in lines {
            self.write(&format!("{event} {name}: {line}"));
        }
    }

    fn write(&mut self, line: &str) {
        if let Some(to) = self.to.as_mut() {
            let _best_effort = to.write_all(format!("{line}\n").as_bytes());
            let _best_effort = to.flush();
        }
    }

    fn event(&mut self, event: &str, request: &Value) {
        let pod = &request["pod"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_pod = format!("{}/{}", text(&pod["namespace"]), text(&pod["name"]));
        let container = &request["container"];
        let of_container = format!("{of_pod}/{}", text(&container["name"]));
        self.look(event, &of_pod, pod);
        self.look(event, &of_container, container);
        let mut wanted = Fields::new();
        for key in ["linuxResources", "linux_resources"] {
            flatten("", &request[key], &mut wanted);
        }
        for (field, value) in wanted.iter().filter(|(field, _)| !field.is_empty()) {
            self.write(&format!("{event} {of_container}: wants {field}: {value}"));
        }
        let (gone, name) = match event {
            "RemoveContainer" => (container, of_container),
            "RemovePodSandbox" => (pod, of_pod),
            _ => return,
        };
        self.write(&format!("{event} {name}: removed"));
        self.known.remove(&(name, text(&gone["id"])));
    }

    /// Records the pods and containers that exist when the plugin connects.
    fn synchronize(&mut self, request: &Value) {
        let list = |key: &str| request[key].as_array().cloned().unwrap_or_default();
        let pods = list("pods");
        let of_pod = |id: &Value| {
            let pod = pods.iter().find(|pod| pod["id"] == *id).unwrap_or(&Value::Null);
            let text = |key: &str| pod[key].as_str().unwrap_or_default();
            format!("{}/{}", text("namespace"), text("name"))
        };
        for pod in &pods {
            self.look("Synchronize", &of_pod(&pod["id"]), pod);
        }
        for container in list("containers") {
            let pod = container.get("podSandboxId").or_else(|| container.get("pod_sandbox_id"));
            let name = container["name"].as_str().unwrap_or_default();
            let name = format!("{}/{name}", of_pod(pod.unwrap_or(&Value::Null)));
            self.look("Synchronize", &name, &container);
        }
    }
}

#[derive(Default)]
struct Differ {
    seen: Mutex<Seen>,
}

#[async_trait]
impl Handler for Differ {
    /// All but the last, validation: an observing plugin must not be able to refuse.
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
        if let Ok(mut seen) = self.seen.lock() {
            seen.to = Some(to);
        }
        Ok(())
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        let request = print_to_string(message).ok();
        let request = request.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let (Some(request), Ok(mut seen)) = (request, self.seen.lock()) else { return };
        match method {
            "Configure" => {}
            "Synchronize" => seen.synchronize(&request),
            event => seen.event(event, &request),
        }
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("99-differ", Differ::default())
}
