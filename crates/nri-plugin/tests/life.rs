// SPDX-License-Identifier: Apache-2.0
//! The life of a plugin against the runtime of the harness: restarts, conflicts, time-outs, readiness, its end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test writes its files and starts a program")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nri_plugin::harness::{Runtime, bundle, container, pod};
use nri_plugin::{
    Adjustment, Blocking, BlockingHandler, Cache, Context, Event, Handler, Plugin, Resources,
    Result, Update, Updates, api, async_trait,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Sets one variable, after a pause; keeps a cache, and the time that remained.
#[derive(Default)]
struct Setter {
    value: &'static str,
    pause: Duration,
    cache: Cache,
    synchronized: AtomicUsize,
    remaining: std::sync::Mutex<Option<Duration>>,
    ended: AtomicUsize,
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
        tokio::time::sleep(self.pause).await;
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

fn setter(value: &'static str, pause: Duration) -> Arc<Setter> {
    Arc::new(Setter { value, pause, ..Default::default() })
}

fn quick(value: &'static str) -> Arc<Setter> {
    setter(value, Duration::ZERO)
}

async fn with_a_pod() -> Runtime {
    let mut runtime = Runtime::new().unwrap();
    runtime.run_pod(pod("p")).await.unwrap();
    runtime
}

#[tokio::test]
async fn a_plugin_returns_after_each_restart_and_knows_all() {
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
    let low = &runtime.container("c").unwrap().linux.resources.unified["memory.low"];
    assert_eq!(low, "1", "the answer to Synchronize is applied");
    runtime.remove_pod("p").await.unwrap();
    assert!(plugin.cache.pods().is_empty() && plugin.cache.containers().is_empty());
}

#[tokio::test]
async fn two_plugins_that_set_one_field_are_a_conflict() {
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
async fn a_plugin_that_is_late_is_disconnected_and_returns() {
    let mut runtime = with_a_pod().await;
    runtime.set_request_timeout(Duration::from_millis(300));
    let plugin = setter("1", Duration::from_secs(2));
    runtime.add("10-slow", Arc::clone(&plugin)).await.unwrap();
    let why = runtime.create(container("c", "p")).await.unwrap_err().to_string();
    assert!(why.contains("10-slow: CreateContainer was not answered"), "{why}");
    let remaining = plugin.remaining.lock().unwrap().unwrap();
    assert!(remaining <= Duration::from_millis(300), "{remaining:?}");
    assert!(runtime.plugins().is_empty());
    assert_eq!(runtime.accept().await.unwrap(), "10-slow");
}

#[tokio::test]
async fn unasked_updates_return_those_that_failed() {
    let mut runtime = with_a_pod().await;
    let plugin = Plugin::new("10-setter", quick("1")).unwrap();
    let handle = plugin.handle();
    let early = handle.update(Update::of("c").pids_limit(5)).await.unwrap_err().to_string();
    assert!(early.contains("not connected"), "{early}");
    runtime.start(plugin).await.unwrap();
    runtime.fail_updates_of("d");
    handle.ready().await;
    let updates =
        Updates::from(Update::of("c").pids_limit(5)).update(Update::of("d").pids_limit(6));
    let failed = handle.update(updates).await.unwrap();
    assert_eq!(failed.iter().map(|update| &*update.container_id).collect::<Vec<_>>(), ["d"]);
    assert_eq!(runtime.requests()[0].update.len(), 2);
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
    let plugin = Plugin::new("10-slow", setter("1", Duration::from_millis(600))).unwrap();
    let handle = plugin.handle();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = handle.clone();
    tokio::spawn(async move { served.serve_readiness(listener).await });
    assert_eq!(probe(address).await, "HTTP/1.1 503 Service Unavailable");
    runtime.set_request_timeout(Duration::from_millis(200));
    runtime.start(plugin).await.unwrap();
    handle.ready().await;
    assert_eq!(probe(address).await, "HTTP/1.1 200 OK");
    // The request is not answered in time: the plugin is connected, and does not answer.
    let late = runtime.create(container("c", "p")).await;
    assert!(late.is_err() && !handle.is_ready());
    assert_eq!(probe(address).await, "HTTP/1.1 503 Service Unavailable");
}

#[tokio::test]
async fn a_plugin_that_ends_answers_first_and_stays_away() {
    let mut runtime = with_a_pod().await;
    let plugin = setter("1", Duration::from_millis(300));
    let handle = runtime.add("10-setter", Arc::clone(&plugin)).await.unwrap();
    let ending = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        handle.shut_down();
        handle
    });
    let created = runtime.create(container("c", "p")).await.unwrap();
    assert_eq!(created.adjust.env[0].value, "1");
    let handle = ending.await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(runtime.plugins().is_empty() && !handle.is_ready());
    assert_eq!(plugin.ended.load(Ordering::Relaxed), 1);
    let returned = tokio::time::timeout(Duration::from_secs(1), runtime.accept()).await;
    assert!(returned.is_err(), "it does not reconnect");
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

/// Refuses its configuration, or panics at the first container.
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

/// Runs the example as a runtime launches a plugin: its socket is descriptor 3, and nothing else is inherited.
fn launch(socket: std::os::unix::net::UnixStream, number: &str) -> std::process::Child {
    let program = std::env::current_exe().unwrap();
    let program = program.ancestors().nth(2).unwrap().join("examples/greeter");
    assert!(program.exists(), "cargo build -p nri-plugin --examples makes {}", program.display());
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "exec \"$0\" 3<&0 </dev/null"]).arg(program);
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
    // On a thread: the loop has to close the connection meanwhile.
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap();
    assert!(ended.unwrap().success(), "it ends with its connection");
}

#[tokio::test]
async fn a_descriptor_that_is_no_socket_is_refused() {
    for (number, wanted) in [("9", "names 9, which is not a socket"), ("x", "is not a descriptor")]
    {
        let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let output = launch(theirs, number).wait_with_output().unwrap();
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && why.contains(wanted), "{why}");
    }
}

#[tokio::test]
async fn a_stream_that_is_given_is_served_until_it_ends() {
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let plugin = Plugin::new("10-setter", quick("1")).unwrap();
    drop(ours);
    let ended = tokio::time::timeout(Duration::from_secs(10), plugin.serve(theirs)).await;
    assert!(ended.unwrap().is_err(), "it could not register");
}

#[tokio::test]
async fn a_bundle_is_the_container_of_a_test() {
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
async fn a_recording_of_a_node_is_a_test_case() {
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
