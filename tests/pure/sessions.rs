// SPDX-License-Identifier: Apache-2.0
//! One plugin connection, with both sides real: handshake, calls, time-outs, and invalid peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nri_api::identity::PluginIdentity;
use nri_plugin::Stub;
use nri_runc::plugin::{Event, api};
use nri_runc::testing::plugin::{Outcome, Plugin, SessionError, Settings, handshake};
use nri_transport::Upcalls;
use test_support::NoUpdates;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use ttrpc::r#async::TtrpcContext;

/// A plugin whose misbehaviour the test sets.
#[derive(Default)]
struct Odd {
    events: i32,
    hangs: bool,
    refuses: bool,
    big_answer: usize,
}

#[async_trait]
impl api::Plugin for Odd {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        Ok(api::ConfigureResponse { events: self.events, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        Ok(api::SynchronizeResponse { more: request.more, ..Default::default() })
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        request: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        if self.hangs {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        if self.refuses {
            let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, "not here".to_owned());
            return Err(ttrpc::Error::RpcStatus(status));
        }
        let value = request.container.name.clone() + &"x".repeat(self.big_answer);
        let env = api::KeyValue { key: "NAME".to_owned(), value, ..Default::default() };
        let adjust = api::ContainerAdjustment { env: vec![env], ..Default::default() };
        Ok(api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() })
    }
}

fn settings() -> Settings {
    Settings {
        registration_timeout: Duration::from_secs(3),
        // A response may take long on a busy machine.
        request_timeout: Duration::from_secs(60),
        runtime_name: "test".to_owned(),
        runtime_version: "v1".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    }
}

async fn connect(
    index: &str,
    name: &str,
    odd: Odd,
) -> (Result<Plugin, SessionError>, Option<Stub>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let settings = match odd.hangs {
        true => Settings { request_timeout: Duration::from_secs(3), ..settings() },
        false => settings(),
    };
    let registered = Stub::register(theirs, index, name, Arc::new(odd));
    let (shaken, stub) =
        tokio::join!(handshake(ours, None, &settings, Arc::new(NoUpdates)), registered);
    (shaken, stub.ok())
}

/// Answers no update before the test permits it; counts the pending ones.
struct Slow {
    in_hand: AtomicUsize,
    most: AtomicUsize,
    leave: Semaphore,
}

#[async_trait]
impl Upcalls for Slow {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        let now = self.in_hand.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.leave.acquire().await.unwrap().forget();
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
        Ok(api::UpdateContainersResponse::new())
    }
}

async fn connected(odd: Odd) -> (Plugin, Stub) {
    let (plugin, stub) = connect("10", "odd", odd).await;
    (plugin.unwrap(), stub.unwrap())
}

fn container(name: &str) -> api::CreateContainerRequest {
    let container = api::Container { name: name.to_owned(), ..Default::default() };
    api::CreateContainerRequest { container: Some(container).into(), ..Default::default() }
}

#[tokio::test]
async fn a_plugin_registers_is_synchronized_and_answers() {
    let (plugin, _stub) = connected(Odd { events: 8, ..Odd::default() }).await;
    assert_eq!((plugin.id(), plugin.nri_version()), ("10-odd", "v0.12.5"));
    assert!(plugin.is_subscribed(Event::CreateContainer));
    assert!(!plugin.is_subscribed(Event::StopContainer));
    assert!(matches!(plugin.synchronize(&[], &[]).await, Outcome::Answered(_)));
    let Outcome::Answered(answer) = plugin.create_container(&container("web")).await else {
        panic!("no answer")
    };
    assert_eq!(answer.adjust.env[0].value, "web");
}

#[tokio::test]
async fn no_event_bits_mean_all_events() {
    let (plugin, _stub) = connected(Odd::default()).await;
    assert!(plugin.is_subscribed(Event::ValidateContainerAdjustment));
}

#[tokio::test]
async fn large_messages_pass_in_both_directions() {
    for size in [4000, 4096, 5000, 1 << 20] {
        let (plugin, _stub) = connected(Odd { big_answer: size, ..Odd::default() }).await;
        let name = "n".repeat(size);
        let Outcome::Answered(answer) = plugin.create_container(&container(&name)).await else {
            panic!("no answer at {size}")
        };
        assert_eq!(answer.adjust.env[0].value.len(), 2 * size);
    }
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_and_the_plugin_stays() {
    let (plugin, _stub) = connected(Odd::default()).await;
    let outcome = plugin.create_container(&container(&"n".repeat(5 << 20))).await;
    assert!(matches!(outcome, Outcome::Refused(why) if why.contains("too many")));
    assert!(matches!(plugin.create_container(&container("a")).await, Outcome::Answered(_)));
}

#[tokio::test]
async fn an_unanswered_request_times_out_and_the_connection_stays() {
    let (plugin, _stub) = connected(Odd { hangs: true, ..Odd::default() }).await;
    assert!(matches!(plugin.create_container(&container("a")).await, Outcome::TimedOut));
    assert!(!plugin.is_gone());
}

#[tokio::test]
async fn a_refusal_has_the_plugins_message() {
    let (plugin, _stub) = connected(Odd { refuses: true, ..Odd::default() }).await;
    let outcome = plugin.create_container(&container("a")).await;
    assert!(matches!(outcome, Outcome::Refused(why) if why == "not here"));
}

#[tokio::test]
async fn a_plugin_that_disconnects_in_a_call_is_gone() {
    let (plugin, stub) = connected(Odd { hangs: true, ..Odd::default() }).await;
    let leave = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stub.close();
    };
    let request = container("a");
    let (outcome, ()) = tokio::join!(plugin.create_container(&request), leave);
    assert!(matches!(outcome, Outcome::Gone(_)));
}

#[tokio::test]
async fn invalid_identities_and_unknown_events_end_the_connection() {
    let (shaken, stub) = connect("1", "odd", Odd::default()).await;
    assert!(shaken.is_err() && stub.is_none());
    let (shaken, _stub) = connect("10", "odd", Odd { events: 1 << 20, ..Odd::default() }).await;
    assert!(matches!(shaken.unwrap_err(), SessionError::Events(_, bits) if bits == 1 << 20));
}

#[tokio::test]
async fn updates_before_the_plugin_is_synchronized_are_refused() {
    let (plugin, stub) = connected(Odd::default()).await;
    let request = api::UpdateContainersRequest::new();
    let error = stub.update_containers(&request).await.unwrap_err().to_string();
    assert!(error.contains("not synchronized"), "{error}");
    assert!(matches!(plugin.synchronize(&[], &[]).await, Outcome::Answered(_)));
    let error = stub.update_containers(&request).await.unwrap_err().to_string();
    assert!(error.contains("no updates for 10-odd"), "{error}");
}

#[tokio::test]
async fn a_flooding_plugin_waits_but_still_responds_and_loses_nothing() {
    const FLOOD: usize = 3000;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let slow = Slow { in_hand: 0.into(), most: 0.into(), leave: Semaphore::new(0) };
    let slow = Arc::new(slow);
    let upcalls: Arc<dyn Upcalls> = Arc::clone(&slow) as _;
    let registered = Stub::register(theirs, "10", "odd", Arc::new(Odd::default()));
    let settings = settings();
    let (plugin, stub) = tokio::join!(handshake(ours, None, &settings, upcalls), registered);
    let (plugin, stub) = (plugin.unwrap(), stub.unwrap());
    assert!(matches!(plugin.synchronize(&[], &[]).await, Outcome::Answered(_)));
    let asks = (0..FLOOD).map(|_| {
        let runtime = stub.runtime();
        let request = api::UpdateContainersRequest::new();
        tokio::spawn(async move { runtime.update_containers(&request).await })
    });
    let asks: Vec<_> = asks.collect();
    while slow.in_hand.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // After all of its requests.
    let outcome = plugin.create_container(&container("web")).await;
    assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
    assert!(slow.most.load(Ordering::SeqCst) <= 32, "{:?}", slow.most);
    slow.leave.add_permits(FLOOD);
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
    assert!(slow.most.load(Ordering::SeqCst) <= 32, "{:?}", slow.most);
}

#[tokio::test]
async fn a_silent_or_garbled_connection_is_ended() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let shaken = handshake(ours, None, &settings(), Arc::new(NoUpdates)).await;
    assert_eq!(shaken.unwrap_err(), SessionError::NotRegistered);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3], &[0, 0]] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(garbage).await.unwrap();
        drop(theirs);
        assert!(handshake(ours, None, &settings(), Arc::new(NoUpdates)).await.is_err());
    }
}
