// SPDX-License-Identifier: Apache-2.0
//! The stub's guarantees to a plugin, over a real connection: its events, a snapshot in one piece,
//! calls of its own from inside a handler, the text of its refusals, old runtimes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nri_api::identity::PluginIdentity;
use nri_plugin::{Context, Handler, Stub, async_trait};
use nri_runc::plugin::{ALL_EVENTS, Event, api};
use nri_runc::testing::plugin::{Outcome, Plugin, SessionError, Settings, handshake};
use nri_transport::Upcalls;
use protobuf::MessageDyn;
use tokio::net::UnixStream;
use ttrpc::r#async::transport::{Listener, Socket};
use ttrpc::r#async::{Client, Server, TtrpcContext};

/// A plugin that records its events, and acts as its configuration says.
struct Scribe {
    events: Vec<Event>,
    requests: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Handler for Scribe {
    fn events(&self) -> &[Event] {
        &self.events
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        Some(api::FailurePolicy { fail_request: true, ..Default::default() })
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        let text = message.to_string();
        let name = if text.contains("web") { "web" } else { "" };
        self.requests.lock().unwrap().push(format!("{method} {name}"));
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        match request.config.as_str() {
            "bad" => Err("no such setting: bad".into()),
            _ => Ok(()),
        }
    }

    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<api::PodSandbox>,
        containers: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        self.requests.lock().unwrap().push(format!("{} {}", pods.len(), containers.len()));
        Ok(vec![api::ContainerUpdate::new()])
    }

    async fn create_container(
        &self,
        context: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        match request.container.name.as_str() {
            "refuse" => Err("not today".into()),
            "update" => {
                let answer = context.runtime().update_containers(&Default::default()).await?;
                let name = answer.failed[0].container_id.clone();
                let env = vec![("FAILED", &name).into()];
                Ok(api::ContainerAdjustment { env, ..Default::default() }.into())
            }
            _ => Ok(Default::default()),
        }
    }

    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> nri_plugin::Result<()> {
        if request.container.name == "refuse" { Err("not signed".into()) } else { Ok(()) }
    }
}

/// A runtime that can apply no update.
struct Unable;

#[async_trait]
impl Upcalls for Unable {
    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        let failed =
            api::ContainerUpdate { container_id: format!("for {plugin}"), ..Default::default() };
        Ok(api::UpdateContainersResponse { failed: vec![failed], ..Default::default() })
    }
}

type EventLines = Arc<Mutex<Vec<String>>>;

fn settings() -> Settings {
    Settings {
        registration_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(60),
        runtime_name: "test".to_owned(),
        runtime_version: "v1".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    }
}

async fn connect(
    events: &[Event],
    config: &str,
) -> (Result<Plugin, SessionError>, Stub, EventLines) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let settings = settings();
    let requests = EventLines::default();
    let scribe = Scribe { events: events.to_vec(), requests: Arc::clone(&requests) };
    let (shaken, stub) = tokio::join!(
        handshake(ours, None, &settings, Arc::new(Unable)),
        Stub::serve(theirs, "10-scribe", config, Arc::new(scribe)),
    );
    (shaken, stub.unwrap(), requests)
}

async fn connected() -> (Plugin, Stub, EventLines) {
    let (plugin, stub, requests) = connect(&ALL_EVENTS, "good").await;
    let plugin = plugin.unwrap();
    assert!(matches!(plugin.synchronize(&[], &[]).await, Outcome::Answered(_)));
    requests.lock().unwrap().clear();
    (plugin, stub, requests)
}

fn named(name: &str) -> api::Container {
    api::Container { name: name.to_owned(), ..Default::default() }
}

fn asked(name: &str) -> api::CreateContainerRequest {
    api::CreateContainerRequest { container: Some(named(name)).into(), ..Default::default() }
}

#[tokio::test]
async fn a_plugin_receives_only_the_events_that_it_names() {
    let (plugin, _stub, _) = connect(&[Event::CreateContainer, Event::StopContainer], "").await;
    let plugin = plugin.unwrap();
    let requests = ALL_EVENTS.into_iter().filter(|event| plugin.is_subscribed(*event));
    assert_eq!(requests.collect::<Vec<_>>(), [Event::CreateContainer, Event::StopContainer]);
}

#[tokio::test]
async fn every_event_reaches_its_own_method() {
    let (plugin, _stub, requests) = connected().await;
    let notices = ALL_EVENTS.into_iter().filter(|e| *e != Event::ValidateContainerAdjustment);
    for event in notices.clone() {
        let outcome = plugin.notify(event, &api::PodSandbox::new(), Some(&named("web"))).await;
        assert!(matches!(outcome, Outcome::Answered(())), "{event:?}");
    }
    let received = notices.map(|event| event.name().to_owned()).collect::<Vec<_>>();
    let requests: Vec<_> = requests.lock().unwrap().iter().map(|h| h.replace(" web", "")).collect();
    assert_eq!(requests.iter().map(|h| h.trim()).collect::<Vec<_>>(), received);
}

#[tokio::test]
async fn a_plugin_without_events_is_refused() {
    let (plugin, _stub, _) = connect(&[], "").await;
    let why = plugin.unwrap_err().to_string();
    assert!(why.contains("10-scribe") && why.contains("no event"), "{why}");
}

#[tokio::test]
async fn a_refused_configuration_has_the_plugins_message() {
    let (plugin, _stub, _) = connect(&ALL_EVENTS, "bad").await;
    let why = plugin.unwrap_err().to_string();
    assert_eq!(why, "10-scribe could not be configured: no such setting: bad");
}

#[tokio::test]
async fn a_snapshot_in_parts_arrives_in_one_piece() {
    let (plugin, _stub, requests) = connect(&ALL_EVENTS, "good").await;
    let large = api::PodSandbox { name: "x".repeat(1 << 20), ..Default::default() };
    let pods = vec![large; 9];
    let Outcome::Answered(answer) = plugin.unwrap().synchronize(&pods, &[named("web")]).await
    else {
        panic!("no answer")
    };
    assert_eq!(answer.update.len(), 1);
    assert_eq!(*requests.lock().unwrap(), ["Configure ", "Synchronize web", "9 1"]);
}

#[tokio::test]
async fn a_handler_may_call_the_runtime_before_it_answers() {
    let (plugin, stub, _) = connected().await;
    let Outcome::Answered(answer) = plugin.create_container(&asked("update")).await else {
        panic!("no answer")
    };
    assert_eq!(answer.adjust.env[0].value, "for 10-scribe");
    let unasked = stub.runtime().update_containers(&Default::default()).await.unwrap();
    assert_eq!(unasked.failed.len(), 1);
}

#[tokio::test]
async fn a_handlers_error_is_the_refusal_and_the_plugin_stays() {
    let (plugin, _stub, _) = connected().await;
    let outcome = plugin.create_container(&asked("refuse")).await;
    assert!(matches!(outcome, Outcome::Refused(why) if why == "not today"));
    assert!(matches!(plugin.create_container(&asked("web")).await, Outcome::Answered(_)));
}

#[tokio::test]
async fn an_error_of_a_validator_is_a_rejection_with_its_reason() {
    let (plugin, _stub, _) = connected().await;
    for (name, wanted) in [("refuse", (true, "not signed")), ("web", (false, ""))] {
        let container = Some(named(name)).into();
        let request = api::ValidateContainerAdjustmentRequest { container, ..Default::default() };
        let Outcome::Answered(verdict) = plugin.validate(&request).await else {
            panic!("no answer")
        };
        assert_eq!((verdict.reject, verdict.reason.as_str()), wanted);
    }
}

/// An old runtime: it accepts every registration, and the test makes its calls.
struct Old;

#[async_trait]
impl api::Runtime for Old {
    async fn register_plugin(
        &self,
        _: &TtrpcContext,
        _: api::RegisterPluginRequest,
    ) -> ttrpc::Result<api::Empty> {
        Ok(api::Empty::new())
    }
}

/// A stub that is registered with an old runtime; the server lives as long as it is kept.
async fn with_an_old_runtime() -> (api::PluginClient, Server, Stub, EventLines) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (_trunk, plugin, runtime) = nri_transport::split(ours).unwrap();
    let once = futures_util::stream::once(std::future::ready(Ok(runtime)));
    let mut server = Server::new()
        .register_service(api::create_runtime(Arc::new(Old)))
        .add_listener(Listener::new(once));
    server.start().await.unwrap();
    let requests = EventLines::default();
    let scribe = Scribe { events: ALL_EVENTS.to_vec(), requests: Arc::clone(&requests) };
    let stub = Stub::serve(theirs, "10-scribe", "", Arc::new(scribe)).await.unwrap();
    (api::PluginClient::new(Client::new(Socket::new(plugin))), server, stub, requests)
}

fn context() -> ttrpc::context::Context {
    ttrpc::context::with_duration(Duration::from_secs(60))
}

#[tokio::test]
async fn statechange_of_an_old_runtime_calls_the_new_methods() {
    let (client, _server, _stub, requests) = with_an_old_runtime().await;
    let change = |number| api::StateChangeEvent {
        event: protobuf::EnumOrUnknown::from_i32(number),
        container: Some(named("web")).into(),
        ..Default::default()
    };
    for number in [1, 2, 3, 5, 6, 7, 9, 11, 13] {
        client.state_change(context(), &change(number)).await.unwrap();
    }
    let wanted = [
        "RunPodSandbox ",
        "StopPodSandbox ",
        "RemovePodSandbox ",
        "PostCreateContainer web",
        "StartContainer web",
        "PostStartContainer web",
        "PostUpdateContainer web",
        "RemoveContainer web",
        "PostUpdatePodSandbox ",
    ];
    assert_eq!(*requests.lock().unwrap(), wanted);
    for number in [0, 4, 8, 10, 12, 14, 15, -1] {
        let refused = client.state_change(context(), &change(number)).await;
        assert!(refused.is_err(), "a StateChange of {number} means nothing");
    }
    assert_eq!(requests.lock().unwrap().len(), wanted.len());
}

#[tokio::test]
async fn the_reply_to_configure_declares_the_failure_policy() {
    let (client, _server, _stub, _) = with_an_old_runtime().await;
    let answer = client.configure(context(), &Default::default()).await.unwrap();
    assert!(answer.failure_policy.fail_request && !answer.failure_policy.keep_connected);
    assert_eq!(answer.events, 0x7ff, "a runtime without a version has no later events");
    let today = api::ConfigureRequest { NRI_version: "v0.12.5".to_owned(), ..Default::default() };
    assert_eq!(client.configure(context(), &today).await.unwrap().events, 0x3fff);
}

#[tokio::test]
async fn shutdown_ends_the_connection_even_if_the_runtime_does_not() {
    let (client, _server, stub, requests) = with_an_old_runtime().await;
    client.shutdown(context(), &api::Empty::new()).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), stub.closed());
    assert_eq!(ended.await.unwrap(), "the runtime shut the plugin down");
    assert_eq!(*requests.lock().unwrap(), ["Shutdown "]);
}

#[tokio::test]
async fn a_program_waits_for_its_runtime_and_may_reconnect() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("nri.sock");
    let plugin = |reconnect| {
        let scribe = Scribe { events: ALL_EVENTS.to_vec(), requests: EventLines::default() };
        nri_plugin::Plugin::new("33-other", scribe).unwrap().socket(&socket).reconnect(reconnect)
    };
    let why = plugin(false).run().await.unwrap_err().to_string();
    assert!(why.contains("nri.sock: No such file"), "{why}");
    let _running = tokio::spawn(plugin(true).run());
    tokio::time::sleep(Duration::from_millis(150)).await;
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    for _connection in 0..2 {
        let accepted = tokio::time::timeout(Duration::from_secs(60), listener.accept()).await;
        let (stream, _) = accepted.unwrap().unwrap();
        let plugin = handshake(stream, None, &settings(), Arc::new(Unable)).await.unwrap();
        assert_eq!(plugin.id(), "33-other");
        plugin.disconnect("the test says so");
    }
}

#[tokio::test]
async fn a_plugin_that_refuses_its_configuration_does_not_retry() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("nri.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let scribe = Scribe { events: ALL_EVENTS.to_vec(), requests: EventLines::default() };
    let runtime = async {
        let (stream, _) = listener.accept().await.unwrap();
        handshake(stream, None, &settings(), Arc::new(Unable)).await
    };
    let plugin = nri_plugin::Plugin::new("10-scribe", scribe).unwrap();
    let (ended, shaken) = tokio::join!(plugin.socket(&socket).config("bad").run(), runtime);
    assert_eq!(ended.unwrap_err().to_string(), "no such setting: bad");
    assert!(shaken.is_err());
}
