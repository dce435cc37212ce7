// SPDX-License-Identifier: Apache-2.0
//! Creates while the daemon is busy with an unrelated plugin: one that is slow at its Synchronize,
//! and one that requests more than can be done. `make bench` measures the cost; these tests show
//! which requests wait for which.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nri_plugin::{Context, Handler, Result, RuntimeHandle, Stub, async_trait};
use nri_runc::plugin::{Event, api};
use test_support::play::{on_a_thread, play_registered};
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{BUSY, TestHost, acts_at_every_event, in_status, wait_until};
use tokio::sync::Semaphore;

use super::super::reexec::Installed;
use super::scale::{put_on_record, sleeper, with_a_record};

/// Answers no part of Synchronize before the test permits it; then it receives everything.
struct Thinker {
    received: Mutex<Vec<String>>,
    is_asked: AtomicUsize,
    may_answer: Semaphore,
}

const HEARS: [Event; 2] = [Event::PostCreateContainer, Event::RemoveContainer];

impl Thinker {
    async fn act(
        &self,
        _: &Context,
        event: Event,
        name: &str,
    ) -> Result<api::CreateContainerResponse> {
        self.received.lock().unwrap().push(format!("{} {name}", event.name()));
        Ok(api::CreateContainerResponse::new())
    }
}

acts_at_every_event! { Thinker {
    fn events(&self) -> &[Event] {
        &HEARS
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        self.is_asked.store(containers.len(), Ordering::SeqCst);
        self.may_answer.acquire().await.map_err(|_closed| "closed")?.forget();
        Ok(Vec::new())
    }

} }

/// Runs a plugin in a separate thread for the whole test.
fn plays(host: &TestHost, id: &str, handler: Arc<dyn Handler>) -> RuntimeHandle {
    play_registered(host.path("nri.sock"), id, handler)
}

fn lives(host: &TestHost, id: &str) {
    assert!(host.create(id).status.success(), "{}", host.read("stderr"));
    assert!(host.verb(&["start", id]).status.success());
    assert!(host.verb(&["delete", "--force", id]).status.success());
    wait_until("it is removed", || host.admin(&["explain", id])["state"] == "removed");
}

fn state(host: &TestHost, name: &str) -> String {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    let row = rows.find(|row| row["name"] == name);
    row.and_then(|row| row["state"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn a_slow_new_plugin_delays_no_create_and_receives_it_later() {
    let mut host = with_a_record(BUSY);
    let one = sleeper();
    put_on_record(&host, &[one.id(); 300]);
    host.start_daemon();
    let thinker = Thinker {
        received: Mutex::default(),
        is_asked: AtomicUsize::new(0),
        may_answer: Semaphore::new(0),
    };
    let thinker = Arc::new(thinker);
    let _runtime = plays(&host, "10-thinker", Arc::clone(&thinker) as _);
    wait_until("it is reported of all that there are", || {
        thinker.is_asked.load(Ordering::SeqCst) >= 300
    });
    for round in 0..3 {
        lives(&host, &format!("n{round}"));
    }
    assert_eq!(state(&host, "thinker"), "synchronizing", "all that happened before it answered");
    assert_eq!(*thinker.received.lock().unwrap(), Vec::<String>::new());
    thinker.may_answer.add_permits(1);
    wait_until("it is synchronized", || state(&host, "thinker") == "synchronized");
    let life =
        |round| [format!("PostCreateContainer n{round}"), format!("RemoveContainer n{round}")];
    let wanted: Vec<String> = (0..3).flat_map(life).collect();
    assert_eq!(*thinker.received.lock().unwrap(), wanted, "each once and in order");
}

/// Subscribes to no relevant event; only sends requests.
fn flooder() -> Arc<RespondingPlugin> {
    Arc::new(RespondingPlugin::always(Response::Answer))
}

/// Sends a hundred requests at once, each for an unknown container, until it is stopped.
#[derive(Default)]
struct Flood {
    answered: AtomicUsize,
    is_over: AtomicBool,
}

impl Flood {
    fn begin(self: &Arc<Self>, asks: RuntimeHandle) -> JoinHandle<()> {
        let flood = Arc::clone(self);
        on_a_thread(async move || {
            let ask = |_number| tokio::spawn(Arc::clone(&flood).ask(asks.clone()));
            let asked: Vec<_> = (0..100).map(ask).collect();
            for ask in asked {
                ask.await.unwrap();
            }
        })
    }

    async fn ask(self: Arc<Self>, asks: RuntimeHandle) {
        while !self.is_over.load(Ordering::SeqCst) {
            let number = self.answered.fetch_add(1, Ordering::SeqCst);
            let container_id = format!("nobody-{number}");
            let update = api::ContainerUpdate { container_id, ..Default::default() };
            let request =
                api::UpdateContainersRequest { update: vec![update], ..Default::default() };
            assert_eq!(asks.update_containers(&request).await.unwrap().failed.len(), 1);
        }
    }
}

#[test]
fn a_flood_of_updates_delays_no_create_and_memory_is_bounded() {
    let mut host = with_a_record(BUSY);
    host.start_daemon();
    let asks = plays(&host, "10-flooder", flooder());
    wait_until("it is synchronized", || state(&host, "flooder") == "synchronized");
    let flood = Arc::new(Flood::default());
    let thread = flood.begin(asks);
    let answered = || flood.answered.load(Ordering::SeqCst);
    wait_until("it floods", || answered() > 1000);
    lives(&host, "warm");
    let before = in_status(host.daemon_pid(), "VmRSS");
    let begun = answered();
    // The flood does not end first: the creates succeed beside it, and the daemon was asked.
    for round in 0..3 {
        lives(&host, &format!("beside{round}"));
    }
    for thousand in 1..=10 {
        wait_until("much was asked for", || answered() > begun + 1000 * thousand);
    }
    let more = in_status(host.daemon_pid(), "VmRSS").saturating_sub(before);
    flood.is_over.store(true, Ordering::SeqCst);
    thread.join().unwrap();
    assert!(more < 4 << 10, "{more} KB more after {} updates", answered() - begun);
}

#[test]
fn a_flood_of_updates_does_not_prevent_a_reexec() {
    let installed = Installed::new(BUSY);
    let host = &installed.host;
    let asks = plays(host, "10-flooder", flooder());
    wait_until("it is synchronized", || state(host, "flooder") == "synchronized");
    let flood = Arc::new(Flood::default());
    let thread = flood.begin(asks);
    let answered = || flood.answered.load(Ordering::SeqCst);
    for _program in 0..3 {
        let begun = answered();
        wait_until("it floods", || answered() > begun + 1000);
        installed.reexecuted();
    }
    // Each request was answered, by one of the two programs.
    let begun = answered();
    wait_until("it goes on", || answered() > begun + 1000);
    flood.is_over.store(true, Ordering::SeqCst);
    thread.join().unwrap();
    lives(host, "after");
}

/// Registers, answers Configure, and never answers Synchronize.
struct Staller;

#[async_trait]
impl Handler for Staller {
    fn events(&self) -> &[Event] {
        &HEARS
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        std::future::pending().await
    }
}

/// Connects repeatedly as a plugin that disconnects before it is synchronized.
fn stalls(socket: PathBuf, id: String, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    on_a_thread(async move || {
        while !is_over.load(Ordering::SeqCst) {
            let Ok(stream) = tokio::net::UnixStream::connect(&socket).await else { continue };
            if let Ok(stub) = Stub::serve(stream, &id, "", Arc::new(Staller)).await {
                let _left = tokio::time::timeout(Duration::from_millis(1200), stub.closed()).await;
            }
        }
    })
}

#[test]
fn never_synchronized_plugins_do_not_prevent_a_reexec() {
    let installed = Installed::new("");
    let host = &installed.host;
    let is_over = Arc::new(AtomicBool::new(false));
    let connect =
        |number| stalls(host.path("nri.sock"), format!("{number}-staller"), Arc::clone(&is_over));
    let threads: Vec<_> = (10..18).map(connect).collect();
    wait_until("they connect", || state(host, "staller") == "synchronizing");
    let over = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        installed.reexecuted();
        installed.reexecuted();
    }));
    is_over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    over.unwrap();
    lives(host, "after");
}

#[test]
fn a_plugins_long_request_delays_no_create_during_a_reexec() {
    let installed = Installed::new(BUSY);
    let host = &installed.host;
    let asks = plays(host, "10-flooder", flooder());
    wait_until("it is synchronized", || state(host, "flooder") == "synchronized");
    assert!(host.create("c1").status.success());
    let update = api::ContainerUpdate { container_id: "c1".into(), ..Default::default() };
    let request = api::UpdateContainersRequest { update: vec![update; 3000], ..Default::default() };
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(asks.update_containers(&request)).unwrap();
            is_answered.store(true, Ordering::SeqCst);
        });
        let mut reexec = host.spawn(&["nri", "reexec"]);
        lives(host, "beside");
        assert!(!is_answered.load(Ordering::SeqCst), "the request is longer than a life");
        assert!(reexec.wait().unwrap().success());
        wait_until("it is answered", || is_answered.load(Ordering::SeqCst));
    });
}
