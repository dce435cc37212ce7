// SPDX-License-Identifier: Apache-2.0
//! A private host on which any process can be killed at any point, and the conditions that must hold
//! afterwards.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nri_plugin::{Adjustment, Resources, Update};
use nri_runc::plugin::api;
use serde_json::Value;
use test_support::{BUNDLE, ORDER, Script, TestHost, wait_until};

/// The events of a plugin, one list for each of its connections.
type View = Arc<Mutex<Vec<String>>>;

pub(super) struct World {
    pub(super) host: TestHost,
    views: RefCell<Vec<View>>,
    /// Whether the plugin's response to an update also updates another container.
    others: bool,
}

/// The CPUs that the plugin owns after the creation, and after an update.
pub(super) const PINS: [&str; 2] = ["0", "1"];

pub(super) fn pinned(id: &str, cpus: &str) -> api::ContainerUpdate {
    Update::of(id).cpus(cpus).into()
}

fn script(others: bool) -> Script {
    let adjust = Adjustment::new().env("HELLO", "there").resources(Resources::new().cpus(PINS[0]));
    let mut script = Script { updates: vec![pinned("c1", PINS[1])], ..adjust.into() };
    if others {
        script.updates.push(pinned("other", PINS[1]));
        let evicted = api::ContainerEviction {
            container_id: "evicted".to_owned(),
            reason: "room".to_owned(),
            ..Default::default()
        };
        script.evicts.push(evicted);
    }
    script
}

impl World {
    /// A host with a running daemon and a connected plugin.
    pub(super) fn new(policy: &str, others: bool) -> Self {
        let host = TestHost::default();
        let fault = host.path("fault").display().to_string();
        host.put_program("fake/runc", include_str!("../../../fixtures/runtime/killed.sh"));
        let more = format!(
            "autostart = false\non_daemon_failure = \"{policy}\"\n[nri]\nplugin_request_timeout = \"20s\"\n[debug]\nfault = \"@{fault}\"\n"
        );
        host.configure(&host.path("fake/runc"), &more);
        let mut world = Self { host, views: RefCell::default(), others };
        world.begin();
        world
    }

    /// Starts a daemon and connects the plugin.
    pub(super) fn begin(&mut self) {
        self.host.start_daemon();
        self.host.write("fake/daemon", &self.host.daemon_pid().to_string());
        let view = self.host.plugin("10", "pin", script(self.others));
        self.views.borrow_mut().push(view);
    }

    /// Connects another process of the plugin; returns when it has replaced the old one, or the
    /// daemon is dead.
    fn take_over(&self) -> Output {
        let words = ["10-pin: process", "took over from process"];
        let before = self.host.logged(&words);
        let fault = self.host.path("fault");
        let is_armed = fault.exists();
        let script = script(self.others);
        let view =
            test_support::scripted_plugin::connect(self.host.path("nri.sock"), "10", "pin", script);
        self.views.borrow_mut().push(view);
        wait_until("the newcomer has the place", || {
            self.host.logged(&words) > before || is_armed && !fault.exists()
        });
        Output { status: ExitStatus::from_raw(0), stdout: Vec::new(), stderr: Vec::new() }
    }

    /// Kills the daemon, if it still lives.
    pub(super) fn kill_daemon(&mut self) {
        self.host.kill_daemon();
    }

    /// Writes a separate bundle for a container, and creates it.
    pub(super) fn create(&self, id: &str) -> Output {
        std::fs::create_dir_all(self.host.path(id).join("rootfs")).unwrap();
        if !self.host.path(id).join("config.json").exists() {
            self.host.write(&format!("{id}/config.json"), BUNDLE);
        }
        let bundle = self.host.path(id).display().to_string();
        let pid_file = self.host.path(&format!("{id}.pid")).display().to_string();
        self.host.verb(&["create", "--bundle", &bundle, "--pid-file", &pid_file, id])
    }

    /// An engine's update with values for every field.
    pub(super) fn update(&self, id: &str, shares: u32) -> Output {
        let root = self.host.path("root").display().to_string();
        let request = format!("{{\"cpu\":{{\"shares\":{shares},\"cpus\":\"\"}}}}");
        self.host.call_with(&["--root", &root, "update", "--resources", "-", id], &request)
    }

    pub(super) fn verb(&self, verb: &str, id: &str) -> Output {
        match verb {
            "create" => self.create(id),
            "update" => self.update(id, 2048),
            "kill" => self.host.verb(&["kill", id, "9"]),
            "delete" => self.host.verb(&["delete", "--force", id]),
            super::TAKEOVER => self.take_over(),
            verb => self.host.verb(&[verb, id]),
        }
    }

    #[track_caller]
    pub(super) fn succeeds(&self, verb: &str, id: &str) {
        let output = self.verb(verb, id);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb} {id}: {printed}");
    }

    /// The state of a container in the daemon; empty if it is unknown.
    pub(super) fn state(&self, id: &str) -> String {
        let explained = self.host.admin(&["pods"]);
        let pods = explained.as_array().into_iter().flatten();
        let containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
        let found = containers.filter(|container| container["id"] == id);
        found.map(|container| container["state"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[track_caller]
    pub(super) fn becomes(&self, id: &str, state: &str) {
        wait_until(&format!("{id} is {state}"), || self.state(id) == state);
    }

    /// The CPUs of the last update that the runtime accepted.
    pub(super) fn updated(&self, id: &str) -> Value {
        let text = self.host.read(&format!("fake/update.{id}"));
        serde_json::from_str::<Value>(&text).unwrap_or_default()["cpu"]["cpus"].clone()
    }

    /// Checks that the runtime read either the engine's document or the patched one, complete, and
    /// that the record says which.
    #[track_caller]
    pub(super) fn record_agrees(&self, id: &str, what: &str) {
        let seen = self.host.read(&format!("fake/seen.{id}"));
        let hellos = seen.matches("HELLO=there").count();
        assert!(hellos == 1 || seen == BUNDLE, "{what}: {seen}");
        let owners = self.host.admin(&["explain", id])["owners"].clone();
        assert_eq!(owners["CPUSetCPUs"] == "10-pin", hellos == 1, "{what}: {owners}");
    }

    /// Runs a whole, undisturbed lifecycle.
    #[track_caller]
    pub(super) fn lives(&self, id: &str) {
        self.succeeds("create", id);
        self.becomes(id, "created");
        self.record_agrees(id, "a new life");
        assert!(self.host.read(&format!("fake/seen.{id}")).contains("HELLO=there"));
        self.succeeds("start", id);
        self.becomes(id, "running");
        self.succeeds("update", id);
        wait_until("the update is settled", || !self.is_updating());
        assert!(PINS.contains(&self.updated(id).as_str().unwrap_or_default()));
        self.succeeds("kill", id);
        self.becomes(id, "stopped");
        self.succeeds("delete", id);
    }

    /// Whether an update of any container is still unsettled.
    pub(super) fn is_updating(&self) -> bool {
        let records = std::fs::read_dir(self.host.path("run/state/containers")).unwrap().flatten();
        let mut texts = records.map(|entry| std::fs::read_to_string(entry.path()));
        texts.any(|text| text.is_ok_and(|text| text.contains("\"updating\"")))
    }

    /// Checks the end: no record, no temporary file, every bundle with the engine's document, and
    /// the plugin's last connection received the end of every container that it knew.
    #[track_caller]
    pub(super) fn nothing_is_left(&self, what: &str) {
        wait_until(&format!("no pod is left after {what}"), || {
            self.host.admin(&["pods"]) == Value::Array(vec![])
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.leftovers().is_empty() {
            assert!(Instant::now() < deadline, "{what} left {:?}", self.leftovers());
            std::thread::sleep(Duration::from_millis(10));
        }
        let views = self.views.borrow();
        let last = views.last().unwrap();
        wait_until(&format!("the plugin has heard of it after {what}"), || {
            open_ends(&last.lock().unwrap()).is_empty()
        });
        for view in views.iter() {
            in_order(&view.lock().unwrap(), what);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let mut found = leftovers(&self.host);
        for id in ["c1", "other", "evicted"] {
            let bundle = self.host.path(id);
            if bundle.exists() {
                found.extend(
                    names(&bundle).into_iter().filter(|name| {
                        !name.ends_with("/config.json") && !name.ends_with("/rootfs")
                    }),
                );
                if self.host.read(&format!("{id}/config.json")) != BUNDLE {
                    found.push(format!("{id} is changed"));
                }
            }
        }
        found
    }
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

/// Files that daemon, wrapper or runtime have left in their folders.
pub(super) fn leftovers(host: &TestHost) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["containers", "pods", "pristine", "aside", "marks"] {
        found.extend(names(&host.path("run/state").join(folder)));
    }
    found.extend(names(&host.path("run/bypassed")));
    found.extend(names(&host.path("root")));
    for folder in ["run", "run/state"] {
        let is_hidden = |name: &String| name.rsplit('/').next().is_some_and(|n| n.starts_with('.'));
        found.extend(names(&host.path(folder)).into_iter().filter(is_hidden));
    }
    found
}

/// The events of a pod in their possible order.
const POD: [&str; 3] = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];

/// The containers that a connection received without receiving their end.
pub(super) fn open_ends(view: &[String]) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for (event, name) in view.iter().filter_map(|line| line.split_once(' ')) {
        match event {
            "Synchronize" | "CreateContainer" => open.push(name.to_owned()),
            "RemoveContainer" => open.retain(|other| other != name),
            _ => {}
        }
    }
    open
}

/// Checks that each container's first event is its beginning, that its events come in order and only
/// once, and that it ends before it begins again.
#[track_caller]
pub(super) fn in_order(view: &[String], what: &str) {
    let mut places: std::collections::HashMap<(&str, bool), usize> = Default::default();
    for line in view {
        let Some((event, name)) = line.split_once(' ') else { continue };
        let (place, is_pod) = match ORDER.iter().position(|known| *known == event) {
            Some(place) => (place, false),
            None => match POD.iter().position(|known| *known == event) {
                Some(place) => (place, true),
                None => continue, // Updates come at any time.
            },
        };
        let last = if is_pod { POD.len() } else { ORDER.len() };
        let begins = if is_pod { place == 0 } else { place <= 1 };
        let before = places.get(&(name, is_pod)).copied();
        // A failed start is asked about again.
        let may_repeat = event == "StartContainer";
        let is_right = match before {
            // For pods from before its connection it does not receive the beginning here.
            None => begins || is_pod,
            Some(before) if before + 1 == last => begins,
            Some(before) => (place > before || (place == before && may_repeat)) && !begins,
        };
        assert!(is_right, "{what}: {line} is out of order in {view:?}");
        places.insert((name, is_pod), place);
    }
}
