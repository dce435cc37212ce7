// SPDX-License-Identifier: Apache-2.0
//! Many concurrent lifecycles from a seed: creates that fail, starts, updates, exits, kills, deletes,
//! killed wrappers, plugins that connect and disconnect, daemons that are killed or stopped; some in
//! pods with infrastructure containers. A model records the result for each container, and is compared
//! with the events of every connection: each event once and in order, and none missing while the
//! connection lasted. Connections take over from others with their identity: no container is created
//! without a plugin that is connected by one of them. A later process has the values of its
//! container's document.
//!
//! `LIVES=COUNT SEED` sets number and seed (`make soak`); `make test` runs a few with the day as seed.

mod busy;
mod pods;
mod reexec;
mod resized;
mod scale;
mod view;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use test_support::{BUNDLE, TestHost, wait_until};
use view::{Fate, Presence, View, check};

/// Number of lifecycles in `make test`.
const SAMPLE: u64 = 60;

/// Number of concurrent lifecycles.
const WORKERS: u64 = 4;

/// Takeovers of one place: one more within a minute would make it contested.
const TAKEOVERS: usize = 3;

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// State that the threads share.
struct Stage {
    host: TestHost,
    views: Mutex<Vec<View>>,
    presences: Mutex<Vec<Presence>>,
    /// Whether resized pods run here, and the connections that receive their events.
    has_pods: bool,
    pod_views: Mutex<Vec<resized::PodView>>,
    fates: Mutex<Vec<Fate>>,
    is_over: AtomicBool,
    begun: Instant,
}

impl Stage {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn start(&self, id: &str, words: &[&str]) -> Child {
        // Each container has separate files, because the host's are for one at a time.
        std::fs::create_dir_all(self.host.path(id)).unwrap();
        self.host.write(&format!("{id}/in"), r#"{"cpu":{"shares":2048}}"#);
        Command::new(env!("CARGO_BIN_EXE_nri-runc"))
            .env("NRI_RUNC_CONFIG", self.host.path("config.toml"))
            .arg("--root")
            .arg(self.host.path("root"))
            .args(words)
            .stdin(std::fs::File::open(self.host.path(&format!("{id}/in"))).unwrap())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.host.path(&format!("{id}/err"))).unwrap())
            .spawn()
            .unwrap()
    }

    fn call(&self, id: &str, words: &[&str]) -> bool {
        self.start(id, words).wait().unwrap().success()
    }

    /// Writes the document, as an engine does before every create; returns the command line.
    fn create_words(&self, id: &str, document: &str) -> Vec<String> {
        // The bundle of a pod's member is in the folder of containerd's CRI plugin.
        let is_cri = document.contains("io.kubernetes.cri.");
        let folder = if is_cri { "io.containerd.runtime.v2.task/k8s.io" } else { "bundles" };
        let bundle = self.host.path(folder).join(id);
        std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
        self.host.write(&format!("{folder}/{id}/config.json"), document);
        ["create", "--bundle", &bundle.display().to_string(), id].map(ToOwned::to_owned).to_vec()
    }

    /// Checks that a later process has the variables that plugins set in its container's document, and
    /// no others.
    fn exec_agrees(&self, id: &str) {
        self.host.write(&format!("{id}/process"), r#"{"args":["id"],"env":["PATH=/bin","A=1"]}"#);
        let process = self.host.path(&format!("{id}/process")).display().to_string();
        assert!(self.call(id, &["exec", "--process", &process, id]), "{id}");
        let plugins = |name: &str| {
            let document: Value = serde_json::from_str(&self.host.read(name)).unwrap();
            let process = document.get("process").unwrap_or(&document);
            let env = process["env"].as_array().unwrap().iter().filter_map(Value::as_str);
            env.filter(|pair| pair.starts_with("FROM_")).map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let (later, first) =
            (plugins(&format!("fake/exec.{id}")), plugins(&format!("fake/seen.{id}")));
        assert_eq!(later, first, "{id}: a later process, and the container's own");
    }

    /// Runs one lifecycle; returns its result.
    fn live(&self, id: &str, dice: &mut Dice) -> Fate {
        let mut fate =
            Fate { id: id.to_owned(), begun: self.now(), is_clear: true, ..Fate::default() };
        let pod = (dice.throw(3) == 0).then(|| pods::begin(self, id));
        let document = pod.as_ref().map_or_else(|| BUNDLE.to_owned(), |pod| pod.document(id));
        let words = self.create_words(id, &document);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match dice.throw(10) {
            // The runtime fails: everything is undone.
            0 => {
                self.host.write(&format!("fake/fail.{id}"), "");
                fate.is_created = self.call(id, &words);
                let _once = std::fs::remove_file(self.host.path(&format!("fake/fail.{id}")));
            }
            // The wrapper is killed, or the runtime that it has executed.
            1 => {
                let mut create = self.start(id, &words);
                std::thread::sleep(Duration::from_millis(dice.throw(30)));
                let _may_be_over = create.kill();
                create.wait().unwrap();
                fate.is_clear = false;
            }
            _ => {
                let begun = self.now();
                fate.is_created = self.call(id, &words);
                if fate.is_created {
                    self.no_plugin_was_missing(id, begun);
                }
            }
        }
        if fate.is_created {
            self.go_on(id, dice, &mut fate);
        }
        wait_until("it is deleted", || self.call(id, &["delete", "--force", id]));
        pod.iter().for_each(|pod| pod.end(self, dice));
        fate
    }

    fn go_on(&self, id: &str, dice: &mut Dice, fate: &mut Fate) {
        if dice.throw(2) == 0 {
            self.exec_agrees(id);
        }
        if dice.throw(8) == 0 {
            return; // Never started.
        }
        fate.is_started = self.call(id, &["start", id]);
        for _update in 0..dice.throw(3) {
            fate.is_clear &= self.call(id, &["update", "--resources", "-", id]);
        }
        if dice.throw(2) == 0 {
            self.exec_agrees(id);
        }
        if dice.throw(3) > 0 {
            let _by_itself = self.call(id, &["kill", id, "9"]);
            std::thread::sleep(Duration::from_millis(dice.throw(20)));
        }
    }

    /// Checks that every plugin that was connected throughout, by any connection, has adjusted the
    /// container.
    fn no_plugin_was_missing(&self, id: &str, begun: Duration) {
        let ended = self.now();
        let seen = self.host.read(&format!("fake/seen.{id}"));
        for presence in self.presences.lock().unwrap().iter() {
            let variable = format!("\"FROM_{}=there\"", presence.name);
            let is_there = presence.spans(begun, ended);
            assert!(!is_there || seen.contains(&variable), "{id} lacks {variable}: {seen}");
        }
    }

    /// Connects a plugin that sets its own variable: two plugins may be connected at once.
    fn connection(&self, name: &str, dice: &mut Dice) -> Arc<Mutex<Vec<String>>> {
        let mut script = test_support::adjustments::sets(&format!("FROM_{name}"), "there");
        // The new connection may be slow at its Synchronize.
        let takes = Duration::from_millis(dice.throw(4) * dice.throw(100));
        script.on_request = Some(Arc::new(move |event: &str, _: &dyn protobuf::MessageDyn| {
            if event == "Synchronize" {
                std::thread::sleep(takes);
            }
        }));
        script.refuses_snapshot = dice.throw(5) == 0;
        let socket = self.host.path("nri.sock");
        test_support::scripted_plugin::connect(socket, "10", name, script)
    }

    fn connect(&self, name: &str) {
        let script = test_support::adjustments::sets(&format!("FROM_{name}"), "there");
        let received =
            test_support::scripted_plugin::connect(self.host.path("nri.sock"), "10", name, script);
        wait_until("the plugin is seated", || self.is_listed_as_synchronized(name));
        let (name, since) = (name.to_owned(), self.now());
        let presence = Presence { name: name.clone(), since, until: None, takeovers: 0 };
        self.presences.lock().unwrap().push(presence);
        self.views.lock().unwrap().push(View { name, since, received, is_cut: false });
    }

    /// Lets another connection take over from one of the connected plugins, or fail to.
    fn take_over(&self, dice: &mut Dice) {
        let name = {
            let mut presences = self.presences.lock().unwrap();
            let is_free = |presence: &&mut Presence| {
                presence.until.is_none() && presence.takeovers < TAKEOVERS
            };
            let mut free: Vec<_> = presences.iter_mut().filter(is_free).collect();
            let Some(last) = u64::try_from(free.len()).unwrap().checked_sub(1) else { return };
            let chosen = &mut free[usize::try_from(dice.throw(last + 1)).unwrap()];
            chosen.takeovers += 1;
            chosen.name.clone()
        };
        let is_old = |view: &&mut View| view.name == name && !view.is_cut;
        let words = [&format!("10-{name}"), "took over from process"];
        let fails = [&format!("10-{name} could not be synchronized"), "keeps its place"];
        let before = (self.host.logged(&words), self.host.logged(&fails));
        let received = self.connection(&name, dice);
        let mut has_taken_over = false;
        wait_until("it has the place, or has failed", || {
            has_taken_over = self.host.logged(&words) > before.0;
            has_taken_over || self.host.logged(&fails) > before.1
        });
        if has_taken_over {
            let since = self.now();
            let mut views = self.views.lock().unwrap();
            views.iter_mut().filter(is_old).for_each(|view| view.is_cut = true);
            views.push(View { name, since, received, is_cut: false });
        }
    }

    /// Ends all connections in the model, because the daemon is about to exit.
    fn cut(&self) {
        let now = self.now();
        let mut presences = self.presences.lock().unwrap();
        presences.iter_mut().for_each(|presence| presence.until = presence.until.or(Some(now)));
        self.views.lock().unwrap().iter_mut().for_each(|view| view.is_cut = true);
        self.pod_views.lock().unwrap().iter_mut().for_each(|view| view.is_cut = true);
    }

    /// Whether the daemon lists the plugin as synchronized.
    fn is_listed_as_synchronized(&self, name: &str) -> bool {
        let plugins = self.host.admin(&["plugins"]);
        let mut plugins = plugins.as_array().into_iter().flatten();
        plugins.any(|plugin| plugin["name"] == name && plugin["state"] == "synchronized")
    }
}

/// The runtime of the kill tests; each container has a list of the steps that fail.
fn runtime() -> String {
    let text = include_str!("../../../fixtures/runtime/killed.sh");
    text.replace("[ ! -e \"$dir/fail\" ]", "[ ! -e \"$dir/fail.$id\" ]")
}

fn stage() -> Stage {
    let host = TestHost::new("autostart = false\n[nri]\nplugin_request_timeout = \"20s\"\n");
    host.put_program("fake/runc", &runtime());
    Stage {
        host,
        views: Mutex::default(),
        presences: Mutex::default(),
        has_pods: false,
        pod_views: Mutex::default(),
        fates: Mutex::default(),
        is_over: AtomicBool::new(false),
        begun: Instant::now(),
    }
}

/// Restarts daemons, which ends every connection; a plugin reconnects immediately.
fn restart_daemons(stage: &Stage, dice: &mut Dice) {
    let mut connections = 0;
    let mut daemon = stage.host.spawn_daemon();
    while !stage.is_over.load(Ordering::SeqCst) {
        let name = format!("p{connections}");
        connections += 1;
        if stage.has_pods {
            stage.connect_to_pods(&name);
        } else {
            stage.connect(&name);
            // One takeover is certain, even if the lifecycles are short.
            stage.take_over(dice);
        }
        let stay = Duration::from_millis(300 + dice.throw(1500));
        let until = Instant::now() + stay;
        while Instant::now() < until && !stage.is_over.load(Ordering::SeqCst) {
            if !stage.has_pods && dice.throw(8) == 0 {
                stage.take_over(dice);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if stage.is_over.load(Ordering::SeqCst) {
            break;
        }
        match dice.throw(3) {
            0 => {} // One more plugin.
            1 => {
                stage.cut();
                daemon.kill().unwrap();
                daemon.wait().unwrap();
                daemon = stage.host.spawn_daemon();
            }
            _ => {
                stage.cut();
                let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon.id()).unwrap());
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
                daemon.wait().unwrap();
                daemon = stage.host.spawn_daemon();
            }
        }
    }
    wait_until("every pod is gone", || stage.host.admin(&["pods"]) == Value::Array(vec![]));
    wait_until("every view is whole", || {
        let views = stage.views.lock().unwrap();
        let pods = stage.pod_views.lock().unwrap();
        views.iter().filter(|view| !view.is_cut).all(View::is_whole)
            && pods.iter().filter(|view| !view.is_cut).all(resized::PodView::is_whole)
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[expect(clippy::print_stderr, reason = "which lives were lived")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn every_view_shows_each_container_event_once_and_in_order() {
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let wanted = std::env::var("LIVES").unwrap_or_default();
    let mut wanted = wanted.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
    let count = wanted.next().unwrap_or(SAMPLE);
    let seed = wanted.next().unwrap_or(today.as_secs() / 86_400);
    say(&format!("LIVES='{count} {seed}'"));
    let stage = Arc::new(stage());
    std::thread::scope(|scope| {
        let restarts = scope.spawn(|| restart_daemons(&stage, &mut Dice(seed)));
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let stage = &stage;
                scope.spawn(move || {
                    let mut dice = Dice(seed ^ (worker + 1) << 32);
                    for life in 0..count / WORKERS {
                        // An ID is used again: engines restart containers under the same one.
                        let name = if life % 2 == 0 { life } else { life % 3 };
                        let id = format!("w{worker}-{name}");
                        let fate = stage.live(&id, &mut dice);
                        stage.fates.lock().unwrap().push(fate);
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        stage.is_over.store(true, Ordering::SeqCst);
        restarts.join().unwrap();
        assert_eq!(failed, 0);
    });
    let (views, fates) = (stage.views.lock().unwrap(), stage.fates.lock().unwrap());
    let requests: usize = views.iter().map(|view| check(view, &fates)).sum();
    let taken = stage.presences.lock().unwrap().iter().map(|presence| presence.takeovers).sum();
    let taken: usize = taken;
    say(&format!(
        "{} lives, {} connections, {taken} of them to take over, {requests} events",
        fates.len(),
        views.len()
    ));
    assert!(requests > 0 && taken > 0);
}
