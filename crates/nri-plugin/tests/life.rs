// SPDX-License-Identifier: Apache-2.0
//! The life of a plugin with the harness's runtime: restarts, conflicts, time-outs, readiness, its
//! end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test writes its files and starts a program")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nri_plugin::harness::{Runtime, bundle, container, pod};
use nri_plugin::{
    Adjustment, Blocking, BlockingHandler, Cache, Context, Event, ExtensionEvent, Handler, Plugin,
    Resources, Result, Update, Updates, api, async_trait,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A handler that sets one variable once the test permits it, and records its cache and the
/// remaining time.
#[derive(Default)]
struct Setter {
    value: &'static str,
    held: Option<Hold>,
    cache: Cache,
    synchronized: AtomicUsize,
    remaining: std::sync::Mutex<Option<Duration>>,
    ended: AtomicUsize,
}

/// A handler that waits for the test.
#[derive(Default)]
struct Hold {
    has_begun: Notify,
    may_answer: Notify,
}

#[async_trait]
impl Handler for Setter {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer, Event::UpdateContainer, Event::StopContainer]
    }

    fn cache(&self) -> Option<&Cache> {
        Some(&self.cache)
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        self.synchronized.fetch_add(1, Ordering::Relaxed);
        let updates = containers.iter().map(|one| Update::of(&one.id).unified("memory.low", "1"));
        Ok(updates.collect::<Updates>().into())
    }

    async fn create_container(
        &self,
        context: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        *self.remaining.lock().unwrap() = context.remaining();
        if let Some(held) = &self.held {
            held.has_begun.notify_one();
            held.may_answer.notified().await;
        }
        if request.container.name == "forbidden" {
            return Err("the name is not allowed".into());
        }
        Ok(Adjustment::new().env("SET", self.value).into())
    }

    async fn update_container(
        &self,
        _: &Context,
        request: api::UpdateContainerRequest,
    ) -> Result<api::UpdateContainerResponse> {
        Ok(Updates::from(Update::of(&request.container.id).cpus("1")).into())
    }

    async fn shutdown(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn quick(value: &'static str) -> Arc<Setter> {
    Arc::new(Setter { value, ..Default::default() })
}

/// Returns a handler that does not answer until the test permits it.
fn held(value: &'static str) -> Arc<Setter> {
    Arc::new(Setter { value, held: Some(Hold::default()), ..Default::default() })
}

/// A time limit that answers never reach, even on a busy machine.
const ANSWERED: Duration = Duration::from_secs(60);
/// A time limit that passes while a held handler waits.
const UNANSWERED: Duration = Duration::from_millis(300);

async fn with_a_pod() -> Runtime {
    let mut runtime = Runtime::new().unwrap();
    runtime.set_request_timeout(ANSWERED);
    runtime.run_pod(pod("p")).await.unwrap();
    runtime
}

/// Waits for a condition, at most a minute, because the machine may be busy.
async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_plugin_reconnects_after_each_restart_and_is_synchronized() {
    let mut runtime = with_a_pod().await;
    let plugin = quick("1");
    runtime.add("10-setter", Arc::clone(&plugin)).await.unwrap();
    runtime.create(container("c", "p")).await.unwrap();
    for restart in 1..=3 {
        runtime.restart().await.unwrap();
        assert_eq!(runtime.plugins(), ["10-setter"]);
        assert_eq!(plugin.synchronized.load(Ordering::Relaxed), 1 + restart);
        assert_eq!(plugin.cache.containers_of("p")[0].env, ["SET=1"]);
    }
    let updated = runtime.container("c").unwrap();
    assert_eq!(
        updated.linux.resources.unified["memory.low"], "1",
        "the answer to Synchronize is applied"
    );
    runtime.remove_pod("p").await.unwrap();
    assert!(plugin.cache.pods().is_empty() && plugin.cache.containers().is_empty());
}

#[tokio::test]
async fn two_plugins_that_set_one_field_conflict() {
    let mut runtime = with_a_pod().await;
    runtime.add("20-second", quick("2")).await.unwrap();
    runtime.add("10-first", quick("1")).await.unwrap();
    let why = runtime.create(container("c", "p")).await.unwrap_err().to_string();
    assert!(why.contains("20-second") && why.contains("10-first"), "{why}");
    assert!(runtime.container("c").is_none());
}

#[tokio::test]
async fn a_refusal_is_the_error_of_the_request() {
    let mut runtime = with_a_pod().await;
    runtime.add("10-setter", quick("1")).await.unwrap();
    let why = runtime.create(container("forbidden", "p")).await.unwrap_err().to_string();
    assert_eq!(why, "10-setter: the name is not allowed");
    let why = runtime.create(container("c", "q")).await.unwrap_err().to_string();
    assert_eq!(why, "there is no pod q");
    assert!(runtime.stop("c").await.is_err() && runtime.remove("c").await.is_err());
}

#[tokio::test]
async fn a_late_plugin_is_disconnected_and_reconnects() {
    let mut runtime = with_a_pod().await;
    let plugin = held("1");
    runtime.add("10-slow", Arc::clone(&plugin)).await.unwrap();
    runtime.set_request_timeout(UNANSWERED);
    let why = runtime.create(container("c", "p")).await.unwrap_err().to_string();
    assert!(why.contains("10-slow: CreateContainer was not answered"), "{why}");
    let remaining = plugin.remaining.lock().unwrap().unwrap();
    assert!(remaining <= UNANSWERED, "{remaining:?}");
    assert!(runtime.plugins().is_empty());
    runtime.set_request_timeout(ANSWERED);
    assert_eq!(runtime.accept().await.unwrap(), "10-slow");
}

#[tokio::test]
async fn unprompted_updates_return_the_failed_ones() {
    let mut runtime = with_a_pod().await;
    let plugin = Plugin::new("10-setter", quick("1")).unwrap();
    let handle = plugin.handle();
    let early = handle.update(Update::of("c").pids_limit(5)).await.unwrap_err().to_string();
    assert!(early.contains("not connected"), "{early}");
    runtime.start(plugin).await.unwrap();
    for id in ["c", "d"] {
        runtime.create(container(id, "p")).await.unwrap();
    }
    runtime.fail_updates_of("d");
    handle.ready().await;
    let updates =
        Updates::from(Update::of("c").pids_limit(5)).update(Update::of("d").pids_limit(6));
    let failed = handle.update(updates).await.unwrap();
    assert_eq!(failed.iter().map(|update| &*update.container_id).collect::<Vec<_>>(), ["d"]);
    assert_eq!(runtime.requests()[0].update.len(), 2);
    let pids = |id| runtime.container(id).unwrap().linux.resources.pids.limit;
    assert_eq!((pids("c"), pids("d")), (5, 0), "only the update that did not fail is applied");
}

async fn probe(address: std::net::SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn readiness_follows_connection_and_overdue_requests() {
    let mut runtime = with_a_pod().await;
    let plugin = Plugin::new("10-slow", held("1")).unwrap();
    let handle = plugin.handle();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = handle.clone();
    tokio::spawn(async move { served.serve_readiness(listener).await });
    assert_eq!(probe(address).await, "HTTP/1.1 503 Service Unavailable");
    runtime.start(plugin).await.unwrap();
    handle.ready().await;
    assert_eq!(probe(address).await, "HTTP/1.1 200 OK");
    // The plugin does not answer this request in time.
    runtime.set_request_timeout(UNANSWERED);
    assert!(runtime.create(container("c", "p")).await.is_err());
    wait_until("the plugin is not ready", || !handle.is_ready()).await;
    assert_eq!(probe(address).await, "HTTP/1.1 503 Service Unavailable");
}

#[tokio::test]
async fn a_plugin_that_shuts_down_answers_and_does_not_reconnect() {
    let mut runtime = with_a_pod().await;
    let plugin = held("1");
    let running = Plugin::new("10-setter", Arc::clone(&plugin)).unwrap().socket(runtime.socket());
    let handle = running.handle();
    let running = tokio::spawn(running.run());
    runtime.accept().await.unwrap();
    let hold = plugin.held.as_ref().unwrap();
    let ended_while_asked = async {
        hold.has_begun.notified().await;
        handle.shut_down();
        wait_until("it ends", || !handle.is_ready()).await;
        assert_eq!(plugin.ended.load(Ordering::Relaxed), 0, "a request is open");
        hold.may_answer.notify_one();
    };
    let (created, ()) = tokio::join!(runtime.create(container("c", "p")), ended_while_asked);
    assert_eq!(created.unwrap().adjust.env[0].value, "1");
    // The plugin's task has returned, so the plugin does not reconnect.
    running.await.unwrap().unwrap();
    assert_eq!(plugin.ended.load(Ordering::Relaxed), 1);
    wait_until("its connection is gone", || runtime.plugins().is_empty()).await;
}

#[tokio::test]
async fn an_engine_update_gets_the_values_of_the_plugin() {
    let mut runtime = with_a_pod().await;
    runtime.add("10-setter", quick("1")).await.unwrap();
    runtime.create(container("c", "p")).await.unwrap();
    let updated = runtime.update("c", Resources::new().cpu_shares(7).into()).await.unwrap();
    assert_eq!(updated.updates[0].linux.resources.cpu.cpus, "1");
    let cpu = &runtime.container("c").unwrap().linux.resources.cpu;
    assert_eq!((cpu.shares.value, cpu.cpus.as_str()), (7, "1"));
    assert!(runtime.update("d", Resources::new().into()).await.is_err());
}

/// A handler that refuses its configuration, or panics at the first container.
struct Broken;

impl BlockingHandler for Broken {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    fn configure(&self, _: &Context, request: api::ConfigureRequest) -> Result<()> {
        if request.config == "bad" { Err("no such setting: bad".into()) } else { Ok(()) }
    }

    fn create_container(
        &self,
        _: &Context,
        _: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        std::panic::resume_unwind(Box::new("a fault of the plugin"))
    }
}

#[tokio::test]
async fn a_plugin_that_refuses_its_configuration_ends() {
    let mut runtime = Runtime::new().unwrap();
    let plugin = Plugin::blocking("10-broken", Broken).unwrap().config("bad");
    let plugin = plugin.socket(runtime.socket());
    let (ended, accepted) = tokio::join!(plugin.run(), runtime.accept());
    assert_eq!(ended.unwrap_err().to_string(), "no such setting: bad");
    assert!(accepted.unwrap_err().to_string().contains("no such setting: bad"));
}

#[tokio::test]
async fn a_handler_that_panics_refuses_and_stays_connected() {
    let mut runtime = with_a_pod().await;
    runtime.add("10-broken", Blocking::new(Broken)).await.unwrap();
    for _ in 0..2 {
        let why = runtime.create(container("c", "p")).await.unwrap_err().to_string();
        assert_eq!(why, "10-broken: the plugin's handler panicked");
    }
    assert_eq!(runtime.plugins(), ["10-broken"]);
}

/// Returns the example, built from the current sources: `cargo test --test life` builds none.
fn greeter() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let this = std::env::current_exe().unwrap();
        let (folder, target) = (this.ancestors().nth(2).unwrap(), this.ancestors().nth(3).unwrap());
        let profile = folder.file_name().unwrap().to_str().unwrap();
        // The folder of cargo's profile `dev` is named `debug`.
        let profile = if profile == "debug" { "dev" } else { profile };
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--example", "greeter", "--profile", profile]);
        cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let output = cargo.arg("--target-dir").arg(target).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.join("examples/greeter")
    })
}

/// Runs the example as a runtime launches a plugin: with its socket as descriptor 3, and only NRI's variables
/// in its environment.
fn launch(socket: std::os::unix::net::UnixStream, number: &str) -> std::process::Child {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "exec \"$0\" 3<&0 </dev/null"]).arg(greeter());
    command.env_clear().env("NRI_PLUGIN_SOCKET", number).env("NRI_PLUGIN_NAME", "greeter");
    command.stdin(std::os::fd::OwnedFd::from(socket)).stderr(std::process::Stdio::piped());
    command.spawn().unwrap()
}

#[tokio::test]
async fn a_launched_plugin_uses_the_descriptor_it_inherits() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut child = launch(theirs, "3");
    let mut runtime = with_a_pod().await;
    let ours = tokio::net::UnixStream::from_std(ours).unwrap();
    let id = runtime.attach(ours, "07", "file", "hi").await.unwrap();
    assert_eq!(id, "07-file", "the identity is that of its file");
    let created = runtime.create(container("c", "p")).await.unwrap();
    assert_eq!(created.adjust.env[0].value, "hi c");
    drop(runtime);
    // Waits on a thread, because the loop must close the connection meanwhile.
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap();
    assert!(ended.unwrap().success(), "it ends with its connection");
}

#[tokio::test]
async fn a_descriptor_that_is_not_a_socket_is_refused() {
    for (number, wanted) in [("9", "names 9, which is not a socket"), ("x", "is not a descriptor")]
    {
        let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let output = launch(theirs, number).wait_with_output().unwrap();
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && why.contains(wanted), "{why}");
    }
}

#[tokio::test]
async fn serving_a_closed_stream_returns_an_error() {
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let plugin = Plugin::new("10-setter", quick("1")).unwrap();
    drop(ours);
    let ended = tokio::time::timeout(ANSWERED, plugin.serve(theirs)).await;
    assert!(ended.unwrap().is_err(), "it could not register");
}

#[tokio::test]
async fn a_test_container_can_be_read_from_a_bundle() {
    let temp = tempfile::tempdir().unwrap();
    let config = r#"{"process": {"args": ["sleep", "9"], "env": ["A=1"]}, "annotations": {"k": "v"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"resources": {"memory": {"limit": 4096}, "cpu": {"shares": 5}}}}"#;
    std::fs::write(temp.path().join("config.json"), config).unwrap();
    let mut runtime = with_a_pod().await;
    runtime.add("10-setter", quick("1")).await.unwrap();
    let created = runtime.create(bundle("c", "p", temp.path()).unwrap()).await.unwrap();
    assert_eq!(created.container.env, ["A=1", "SET=1"]);
    assert_eq!((created.container.args.len(), &*created.container.annotations["k"]), (2, "v"));
    assert_eq!(created.container.linux.resources.memory.limit.value, 4096);
    std::fs::write(temp.path().join("config.json"), "[]").unwrap();
    let why = bundle("c", "p", temp.path()).unwrap_err().to_string();
    assert!(why.ends_with("config.json: it is not an object"), "{why}");
}

#[tokio::test]
async fn a_recording_is_replayed_as_a_test_case() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("recording.jsonl");
    let recording = r#"{"state": {"pods": [{"id": "p"}], "containers": []}}
{"id": 1, "call": "CreateContainer", "request": {"pod": {"id": "p"}, "container": {"id": "c", "name": "web"}}}
{"id": 2, "call": "CreateContainer", "request": {"pod": {"id": "p"}, "container": {"id": "d", "name": "forbidden"}}}
{"id": 3, "call": "StopContainer", "request": {"pod": {"id": "p"}, "container": {"id": "c"}}}
"#;
    std::fs::write(&path, recording).unwrap();
    let mut runtime = Runtime::new().unwrap();
    runtime.add("10-setter", quick("1")).await.unwrap();
    let answers = runtime.replay(&path).await.unwrap();
    assert_eq!(answers[0].adjust.as_ref().unwrap().env[0].value, "1");
    let error = answers[1].error.as_deref();
    assert_eq!((answers[1].line, error), (3, Some("10-setter: the name is not allowed")));
    assert!(answers[2].event == Event::StopContainer && answers[2].error.is_none());
    for (text, wanted) in [("{\"call\": \"Nothing\"}", "no request \"Nothing\""), ("{", ":1: ")] {
        std::fs::write(&path, text).unwrap();
        let why = runtime.replay(&path).await.unwrap_err().to_string();
        assert!(why.contains(wanted), "{why}");
    }
}

/// A handler that subscribes to an event of the extension, and records whether the runtime delivers
/// it.
#[derive(Default)]
struct Extended {
    delivered: OnceLock<bool>,
}

#[async_trait]
impl Handler for Extended {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    fn extension_events(&self) -> &[ExtensionEvent] {
        &[ExtensionEvent::EXEC_CONTAINER]
    }

    async fn create_container(
        &self,
        context: &Context,
        _: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        let delivers = context.runtime().delivers(ExtensionEvent::EXEC_CONTAINER);
        let _first = self.delivered.set(delivers);
        Ok(Adjustment::new().env("SET", "1").into())
    }
}

#[tokio::test]
async fn a_plugin_continues_with_a_runtime_without_the_extension() {
    let mut runtime = Runtime::new().unwrap();
    let plugin = Arc::new(Extended::default());
    runtime.add("10-extended", Arc::clone(&plugin)).await.unwrap();
    runtime.run_pod(pod("p")).await.unwrap();
    let created = runtime.create(container("c", "p")).await.unwrap();
    assert_eq!((created.adjust.env.len(), plugin.delivered.get()), (1, Some(&false)));
}
