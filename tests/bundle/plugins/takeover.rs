// SPDX-License-Identifier: Apache-2.0
//! A plugin connects with the identity of a connected one: it replaces the old one once it is synchronized,
//! no container is created without the plugin, and a failing newcomer changes nothing. `takeover_fights.rs`
//! tests repeated takeovers.

use std::process::Output;
use std::sync::{Arc, Mutex, OnceLock};

use nri_plugin::{Adjustment, Context, RuntimeHandle};
use nri_runc::plugin::{Event, api};
use serde_json::{Value, json};
use test_support::adjustments::update_of;
use test_support::{BUNDLE, Script, TestHost, acts_at_every_event, started, wait_until};
use tokio::sync::Semaphore;

use super::policies::connect;
use crate::succeeds;

/// The behaviour of a candidate in the method that its test selects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    /// Waits until the test releases it.
    Waits,
    Refuses,
    Leaves,
    Hangs,
}

/// One of several processes of a plugin; it sets `FROM` to its name.
pub(super) struct Candidate {
    name: &'static str,
    does: Vec<(&'static str, Does)>,
    wants: Vec<api::ContainerUpdate>,
    received: Mutex<Vec<String>>,
    may_go_on: Semaphore,
    runtime: OnceLock<RuntimeHandle>,
}

const EVENTS: [Event; 8] = [
    Event::RunPodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::UpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::RemovePodSandbox,
];

/// The events that it records, and in which it acts.
const RECORDED: [Event; 4] = [
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::RemoveContainer,
];

impl Candidate {
    pub(super) fn with(name: &'static str, does: &[(&'static str, Does)]) -> Self {
        Self {
            name,
            does: does.to_vec(),
            wants: Vec::new(),
            received: Mutex::default(),
            may_go_on: Semaphore::new(0),
            runtime: OnceLock::new(),
        }
    }

    /// Connects it as `10-foo`, without waiting for the result.
    pub(super) fn connect(self, host: &TestHost) -> Arc<Self> {
        self.connect_as(host, "10-foo")
    }

    pub(super) fn connect_as(self, host: &TestHost, id: &str) -> Arc<Self> {
        let shared = Arc::new(self);
        connect(host, id, Arc::<Self>::clone(&shared));
        shared
    }

    pub(super) fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    pub(super) fn count(&self, line: &str) -> usize {
        self.received().iter().filter(|received| *received == line).count()
    }

    /// Closes its connection.
    pub(super) fn leave(&self) {
        self.runtime.get().unwrap().close();
    }

    /// The received events of a container, in order.
    pub(super) fn received_of(&self, id: &str) -> Vec<String> {
        let received = self.received();
        let events = received.iter().filter_map(|line| line.strip_suffix(&format!(" {id}")));
        events.map(str::to_owned).collect()
    }

    pub(super) fn wait_for_event(&self, line: &str) {
        wait_until(&format!("{} receives {line}", self.name), || self.count(line) > 0);
    }

    async fn act(
        &self,
        _: &Context,
        event: Event,
        name: &str,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        if RECORDED.contains(&event) {
            self.play(event.name(), name).await?;
        }
        Ok(Adjustment::new().env("FROM", self.name).into())
    }

    async fn play(&self, method: &'static str, subject: &str) -> nri_plugin::Result<()> {
        self.received.lock().unwrap().push(format!("{method} {subject}").trim_end().to_owned());
        let does = self.does.iter().find(|(at, _)| *at == method).map(|(_, does)| does);
        let Some(does) = does else { return Ok(()) };
        match does {
            Does::Waits => self.may_go_on.acquire().await.map_err(|_closed| "closed")?.forget(),
            Does::Refuses => return Err("not today".into()),
            Does::Leaves => {
                self.leave();
                std::future::pending::<()>().await;
            }
            Does::Hangs => std::future::pending().await,
        }
        Ok(())
    }
}

acts_at_every_event! { Candidate {
    fn events(&self) -> &[Event] {
        &EVENTS
    }

    async fn configure(
        &self,
        context: &Context,
        _: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let _once = self.runtime.set(context.runtime().clone());
        self.play("Configure", "").await
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        for container in &containers {
            self.received.lock().unwrap().push(format!("Synchronized {}", container.name));
        }
        self.play("Synchronize", "").await?;
        Ok(self.wants.clone())
    }

    async fn shutdown(&self) {
        self.received.lock().unwrap().push("Shutdown".to_owned());
    }

} }

/// A candidate that succeeds.
pub(super) fn works(name: &'static str) -> Candidate {
    Candidate::with(name, &[])
}

/// The states of the connections of `10-foo`, in order.
pub(super) fn states(host: &TestHost) -> Vec<String> {
    let plugins = host.admin(&["plugins"]);
    let rows = plugins.as_array().into_iter().flatten().filter(|row| row["name"] == "foo");
    rows.map(|row| row["state"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Connects the first candidate and waits until it is synchronized.
pub(super) fn first(host: &TestHost, candidate: Candidate) -> Arc<Candidate> {
    let first = candidate.connect(host);
    wait_until("the first one takes part", || states(host) == ["synchronized"]);
    first
}

/// Creates a container with a separate bundle. Other calls of the test may run meanwhile, so the output
/// does not go to the shared files.
pub(super) fn create(host: &TestHost, id: &str) -> Output {
    let bundle = format!("bundle-{id}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), BUNDLE);
    let text = |name: &str| host.path(name).display().to_string();
    let (root, bundle, err) = (text("root"), text(&bundle), format!("err-{id}"));
    let words = ["--root", &root, "create", "--bundle", &bundle, id];
    let status = host.spawn_kept(&words, None, &err).wait().unwrap();
    Output { status, stdout: Vec::new(), stderr: host.read(&err).into_bytes() }
}

/// The process of the plugin that adjusted a container; empty if none did.
pub(super) fn adjusted_by(host: &TestHost, id: &str) -> String {
    let seen: Value = serde_json::from_str(&host.read(&format!("fake/seen-{id}.json"))).unwrap();
    let env = seen["process"]["env"].as_array().unwrap().iter().filter_map(Value::as_str);
    env.filter_map(|pair| pair.strip_prefix("FROM=")).collect::<Vec<_>>().join(",")
}

/// Creates a container, and checks that the process `by` adjusts it.
#[track_caller]
pub(super) fn creates(host: &TestHost, id: &str, by: &str) {
    succeeds(&create(host, id));
    assert_eq!(adjusted_by(host, id), by, "{id}");
}

/// Creates a container that `old` adjusts, and waits for its last event, because a plugin that connects
/// later does not receive that event, and one that is being synchronized has it in its queue. The state
/// `created` is shown before that event is sent.
fn creates_settled(host: &TestHost, old: &Candidate, id: &str) {
    creates(host, id, "old");
    old.wait_for_event(&format!("PostCreateContainer {id}"));
}

fn takeovers(host: &TestHost, result: &str) -> usize {
    let page = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    let row = format!("nri_runc_plugin_takeovers_total{{plugin=\"10-foo\",result=\"{result}\"}} ");
    let count = page.lines().find_map(|line| line.strip_prefix(&row));
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_synchronized_new_process_replaces_the_old_one() {
    let host = started("");
    let old = first(&host, works("old"));
    creates_settled(&host, &old, "c1");
    let new = Candidate::with("new", &[("Synchronize", Does::Waits)]).connect(&host);
    new.wait_for_event("Synchronize");
    assert_eq!(states(&host), ["synchronized", "synchronizing"]);
    let row = host.admin(&["plugins"])[1].clone();
    assert_eq!(row["replaces"], row["pid"], "both are of this process: {row}");
    assert_eq!(host.admin(&["status"])["plugins"], 1, "the two are one plugin");
    creates(&host, "c2", "old");
    assert!(old.count("Shutdown") == 0 && new.count("CreateContainer c2") == 0);
    new.may_go_on.add_permits(1);
    old.wait_for_event("Shutdown");
    wait_until("the old one is gone", || states(&host) == ["synchronized"]);
    creates(&host, "c3", "new");
    new.wait_for_event("PostCreateContainer c2");
    assert_eq!(new.received_of("c1"), ["Synchronized"], "told once");
    assert_eq!(new.received_of("c2"), ["CreateContainer", "PostCreateContainer"], "told once");
    assert_eq!(old.count("CreateContainer c3"), 0, "{:?}", old.received());
    assert_eq!((takeovers(&host, "completed"), takeovers(&host, "failed")), (1, 0));
    host.logs(&["10-foo: process", "took over from process"], 1);
    wait_until("its end is logged", || {
        host.logged(&["10-foo disconnected: process", "took over from it"]) == 1
    });
}

#[test]
fn requests_in_progress_end_with_the_old_process() {
    let host = started("");
    let old = first(&host, Candidate::with("old", &[("CreateContainer", Does::Waits)]));
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| creates(&host, "c1", "old"));
        old.wait_for_event("CreateContainer c1");
        let new = works("new").connect(&host);
        wait_until("the newcomer has the place", || takeovers(&host, "completed") == 1);
        creates(&host, "c2", "new");
        assert_eq!(old.count("Shutdown"), 0, "it still has a request to answer");
        assert_eq!(old.count("CreateContainer c2"), 0);
        old.may_go_on.add_permits(1);
        under_way.join().unwrap();
        old.wait_for_event("Shutdown");
        new.wait_for_event("PostCreateContainer c1");
        assert_eq!(new.received_of("c1"), ["Synchronized", "PostCreateContainer"], "told once");
        assert_eq!(old.count("PostCreateContainer c1"), 0);
    });
}

/// The time limit of a request: a hanging plugin is awaited that long, and a working one must finish within
/// it on a busy machine.
fn time_out(does: Does) -> &'static str {
    match does {
        Does::Hangs => "[nri]\nplugin_request_timeout = \"5s\"\n",
        Does::Leaves | Does::Refuses | Does::Waits => "",
    }
}

/// The time-out of requests for a plugin whose Synchronize the test holds: only its other requests
/// end early.
fn time_out_with_held_synchronize(does: Does) -> String {
    let time_out = time_out(does);
    match time_out {
        "" => String::new(),
        short => format!("{short}[plugin.foo]\nsync_timeout = \"60s\"\n"),
    }
}

#[test]
fn a_newcomer_that_fails_changes_nothing() {
    for (at, does) in [
        ("Configure", Does::Refuses),
        ("Configure", Does::Leaves),
        ("Configure", Does::Hangs),
        ("Synchronize", Does::Refuses),
        ("Synchronize", Does::Leaves),
        ("Synchronize", Does::Hangs),
    ] {
        let host = started(time_out(does));
        let old = first(&host, works("old"));
        creates_settled(&host, &old, "c1");
        let new = Candidate::with("new", &[(at, does)]).connect(&host);
        new.wait_for_event(at);
        nothing_has_changed(&host, &old, at);
    }
}

/// Checks that the newcomer is disconnected, and that the old one keeps its place.
#[track_caller]
fn nothing_has_changed(host: &TestHost, old: &Candidate, what: &str) {
    wait_until("the newcomer is gone", || states(host) == ["synchronized"]);
    creates(host, "c9", "old");
    old.wait_for_event("PostCreateContainer c9");
    assert_eq!(old.count("Shutdown"), 0, "{what}");
    assert_eq!(old.received_of("c9"), ["CreateContainer", "PostCreateContainer"], "{what}");
    assert_eq!(host.read("fake/update.json"), "", "{what}: its updates were carried out");
    assert_eq!(takeovers(host, "completed"), 0, "{what}");
    let owners = host.admin(&["explain", "c1"])["owners"].clone();
    assert_eq!(owners["Env[FROM]"], "10-foo", "{owners}");
}

/// Connects a newcomer, creates `c2` while its Synchronize is held, and then releases it: the
/// newcomer receives the creation as a missed event. `wants` are the updates in its response to
/// Synchronize.
fn late(
    host: &TestHost,
    old: &Candidate,
    does: &[(&'static str, Does)],
    wants: Vec<api::ContainerUpdate>,
) -> Arc<Candidate> {
    let does = [&[("Synchronize", Does::Waits)], does].concat();
    let late = Candidate { wants, ..Candidate::with("new", &does) }.connect(host);
    late.wait_for_event("Synchronize");
    creates_settled(host, old, "c2");
    late.may_go_on.add_permits(1);
    late
}

#[test]
fn a_new_process_that_fails_at_a_missed_event_changes_nothing() {
    for does in [Does::Leaves, Does::Hangs] {
        let host = started(&time_out_with_held_synchronize(does));
        let old = first(&host, works("old"));
        creates_settled(&host, &old, "c1");
        let update = update_of("c1", &json!({"cpu": {"shares": 77}}));
        let new = late(&host, &old, &[("PostCreateContainer", does)], vec![update]);
        new.wait_for_event("PostCreateContainer c2");
        nothing_has_changed(&host, &old, "an event");
        assert_eq!(takeovers(&host, "failed"), 1);
        let why = ["10-foo could not be synchronized", "keeps its place"];
        host.logs(&why, 1);
    }
}

#[test]
fn updates_of_the_new_process_are_made_after_the_takeover() {
    let host = started("");
    let old = first(&host, works("old"));
    creates_settled(&host, &old, "c1");
    crate::updates::settled(&host);
    let update = update_of("c1", &json!({"cpu": {"shares": 77}}));
    let new = late(&host, &old, &[("PostCreateContainer", Does::Waits)], vec![update]);
    new.wait_for_event("PostCreateContainer c2");
    assert_eq!(host.read("fake/update.json"), "", "it has no say yet");
    new.may_go_on.add_permits(1);
    old.wait_for_event("Shutdown");
    let owner = || host.admin(&["explain", "c1"])["owners"]["CPUShares"].clone();
    wait_until("its update is carried out", || owner() == "10-foo");
}

#[test]
fn a_create_waits_for_the_new_process_if_the_old_one_dies() {
    for held in ["Configure", "Synchronize"] {
        let host = started("");
        let old = first(&host, works("old"));
        let new = Candidate::with("new", &[(held, Does::Waits)]).connect(&host);
        new.wait_for_event(held);
        old.leave();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| creates(&host, "c1", "new"));
            wait_until("it waits", || host.logged(&["requests wait up to", "10-foo"]) == 1);
            new.may_go_on.add_permits(1);
            waits.join().unwrap();
        });
        assert_eq!(new.received_of("c1")[0], "CreateContainer", "asked, and told once");
    }
}

#[test]
fn a_create_waits_no_longer_once_the_newcomer_has_failed_too() {
    let host = started("[nri]\nplugin_registration_timeout = \"10m\"\n");
    let old = first(&host, works("old"));
    let new = Candidate::with("new", &[("Synchronize", Does::Waits)]).connect(&host);
    new.wait_for_event("Synchronize");
    old.leave();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| creates(&host, "c1", ""));
        wait_until("it waits", || host.logged(&["requests wait up to", "10-foo"]) == 1);
        new.leave();
        // The create succeeds only if its caller is still waiting at this point.
        waits.join().unwrap();
    });
    host.logs(&["requests continue after"], 1);
}

#[test]
fn an_update_requested_before_the_takeover_is_refused_in_time() {
    let host = started("");
    let old = first(&host, works("old"));
    creates_settled(&host, &old, "c1");
    crate::updates::settled(&host);
    let request = api::UpdateContainersRequest {
        update: vec![update_of("c1", &json!({"cpu": {"shares": 77}}))],
        ..Default::default()
    };
    let at = Some("PostCreateContainer".to_owned());
    // The plugin is held in Synchronize, and then sends an update from inside an event.
    let received = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&received);
    let hold = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let held = Arc::clone(&hold);
    let on_request = move |event: &str, _: &dyn protobuf::MessageDyn| {
        requests.lock().unwrap().push(event.to_owned());
        if event == "Synchronize" {
            let (is_free, freed) = &*held;
            let _free = freed.wait_while(is_free.lock().unwrap(), |is_free| !*is_free).unwrap();
        }
    };
    let script = Script {
        inside: Some(request),
        at,
        on_request: Some(Arc::new(on_request)),
        ..Script::default()
    };
    let socket = host.path("nri.sock");
    let new = test_support::scripted_plugin::connect(socket, "10", "foo", script);
    wait_until("it is synchronized", || {
        received.lock().unwrap().contains(&"Synchronize".to_owned())
    });
    creates_settled(&host, &old, "c2");
    *hold.0.lock().unwrap() = true;
    hold.1.notify_all();
    old.wait_for_event("Shutdown");
    let printed = new.lock().unwrap().iter().find(|line| line.starts_with("inside")).cloned();
    assert!(printed.unwrap().contains("is not synchronized yet"), "{:?}", new.lock().unwrap());
    assert_eq!(host.read("fake/update.json"), "");
}

#[test]
fn an_unresponsive_process_stays_until_its_successor_is_ready() {
    let settings = "[nri]\nplugin_request_timeout = \"2s\"\n[plugin.foo]\nstrikes = 0\n";
    let host = started(settings);
    let hangs = [("CreateContainer", Does::Hangs), ("PostCreateContainer", Does::Hangs)];
    let has_struck = |times: u64| {
        let plugins = host.admin(&["plugins"]);
        plugins[0]["timeouts"].as_u64() >= Some(times)
    };
    let old = first(&host, Candidate::with("old", &hangs));
    creates(&host, "c1", "");
    wait_until("it was silent twice", || has_struck(2));
    // Such takeovers are never contested, however many there are.
    for round in 0..5 {
        let new = Candidate::with("new", &hangs).connect(&host);
        new.wait_for_event("Synchronize");
        wait_until("it has the place", || takeovers(&host, "completed") == round + 1);
        creates(&host, &format!("n{round}"), "");
        wait_until("it was silent twice", || has_struck(2));
    }
    wait_until("the first one is gone", || old.count("Shutdown") == 1);
    let _last = works("last").connect(&host);
    wait_until("it has the place", || takeovers(&host, "completed") == 6);
    creates(&host, "c2", "last");
}

#[test]
fn a_required_plugin_stays_available_during_a_takeover() {
    let host = started("[plugin.foo]\nrequired = true\n");
    let old = first(&host, works("old"));
    let new = Candidate::with("new", &[("Synchronize", Does::Waits)]).connect(&host);
    new.wait_for_event("Synchronize");
    let is_connected = || host.admin(&["status"])["required"][0]["connected"] == true;
    assert!(is_connected());
    creates_settled(&host, &old, "c1");
    new.may_go_on.add_permits(1);
    old.wait_for_event("Shutdown");
    assert!(is_connected());
    creates(&host, "c2", "new");
    // The new process is treated as if it had answered for the pod that the old one answered for.
    succeeds(&host.verb(&["start", "c1"]));
    new.wait_for_event("StartContainer c1");
}

#[test]
fn the_new_process_keeps_the_order_among_equal_indexes() {
    let host = started("");
    let _first = first(&host, works("old"));
    let second = host.plugin("10", "second", Script::default());
    let _new = works("new").connect(&host);
    wait_until("it has the place", || takeovers(&host, "completed") == 1);
    let plugins = host.admin(&["plugins"]);
    let names: Vec<&str> =
        plugins.as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["foo", "second"]);
    creates(&host, "c1", "new");
    assert!(second.lock().unwrap().contains(&"CreateContainer c1".to_owned()));
}

#[test]
fn a_takeover_keeps_the_plugins_values_and_ownership() {
    let host = started("");
    let pins = test_support::adjustments::pins("0");
    let _old = host.plugin("10", "foo", pins);
    succeeds(&create(&host, "c1"));
    crate::updates::settled(&host);
    let _new = works("new").connect(&host);
    wait_until("it has the place", || takeovers(&host, "completed") == 1);
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    succeeds(&host.call_with(&words, r#"{"cpu":{"shares":2048,"cpus":""}}"#));
    let got: Value = serde_json::from_str(&host.read("fake/update.json")).unwrap();
    assert_eq!(got["cpu"]["cpus"], "0", "{got}");
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUSetCPUs"], "10-foo", "{explained}");
}

#[test]
fn a_stopping_daemon_shuts_down_both_processes() {
    let host = started("");
    let old = first(&host, Candidate::with("old", &[("CreateContainer", Does::Waits)]));
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| create(&host, "c1"));
        old.wait_for_event("CreateContainer c1");
        let new = works("new").connect(&host);
        wait_until("the newcomer has the place", || takeovers(&host, "completed") == 1);
        let pid = nix::unistd::Pid::from_raw(host.daemon_pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        old.may_go_on.add_permits(1);
        succeeds(&under_way.join().unwrap());
        old.wait_for_event("Shutdown");
        new.wait_for_event("Shutdown");
    });
}
