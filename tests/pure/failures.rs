// SPDX-License-Identifier: Apache-2.0
//! Plugins that refuse, stop responding, die, hang or request too much, over real connections: the
//! effect on the request, on other plugins, and on themselves, under each policy. The table in
//! `docs/compatibility.md` names these tests. `tests/bundle` tests the effect on a container.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nri_adaptation::{Creation, DefaultValidator, Merged};
use nri_api::identity::PluginIdentity;
use nri_plugin::Stub;
use nri_runc::plugin::{Event, api};
use nri_runc::testing::chain::{
    self, Cause, ChainError, ChainedPlugin, Notification, Participants, RuleScope,
};
use nri_runc::testing::config::{OnFailure, PluginSettings};
use nri_runc::testing::plugin::{Settings, handshake};
use nri_transport::Upcalls;
use test_support::responding_plugin::{RespondingPlugin, Response, SharedPlugin};
use tokio::net::UnixStream;

/// For plugins that must miss it; all others get enough for a busy machine.
const TIMEOUT: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(30);

/// Receives every update, and applies none.
struct FailingUpdates;

#[async_trait::async_trait]
impl Upcalls for FailingUpdates {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        Ok(api::UpdateContainersResponse { failed: request.update, ..Default::default() })
    }
}

/// A connected plugin, with its own side.
struct ConnectedPlugin {
    chained: Rc<ChainedPlugin>,
    responder: SharedPlugin,
    stub: Stub,
}

async fn connected_as(
    id: &str,
    responder: RespondingPlugin,
    settings: &PluginSettings,
) -> ConnectedPlugin {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let handshaken = Settings {
        registration_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(10),
        runtime_name: "test".to_owned(),
        runtime_version: "v1".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    };
    let responder = Arc::new(responder);
    let own = Arc::clone(&responder);
    let (plugin, stub) = tokio::join!(
        handshake(ours, None, &handshaken, Arc::new(FailingUpdates)),
        Stub::serve(theirs, id, "", own)
    );
    let plugin = plugin.unwrap();
    plugin.synchronize(&[], &[]).await;
    let timeout = settings.request_timeout.or(Some(TIMEOUT));
    let settings = PluginSettings { request_timeout: timeout, ..settings.clone() };
    let chained = Rc::new(ChainedPlugin::new(plugin, false, &settings));
    ConnectedPlugin { chained, responder, stub: stub.unwrap() }
}

/// A plugin that may miss the time-out.
async fn connected(responder: RespondingPlugin) -> ConnectedPlugin {
    connected_as("10-odd", responder, &PluginSettings::default()).await
}

/// A plugin that never misses it.
async fn patient(id: &str, responder: RespondingPlugin) -> ConnectedPlugin {
    let request_timeout = Some(PATIENCE);
    connected_as(id, responder, &PluginSettings { request_timeout, ..Default::default() }).await
}

/// The misbehaving plugin of a policy, and a healthy one after it.
async fn pair(policy: &Policy, responder: RespondingPlugin) -> (ConnectedPlugin, ConnectedPlugin) {
    (
        policy.connected(responder).await,
        patient("20-next", RespondingPlugin::always(Response::Answer)).await,
    )
}

/// Every policy with every request that can fail.
fn cases() -> impl Iterator<Item = (&'static Policy, Event)> {
    POLICIES.iter().flat_map(|policy| ASKED.map(|event| (policy, event)))
}

/// Waits for a condition, at most a minute, because the machine may be busy.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn named(name: &str) -> api::Container {
    api::Container { id: name.to_owned(), name: name.to_owned(), ..Default::default() }
}

async fn create_at(plugins: &[&ConnectedPlugin], name: &str) -> Result<Merged, ChainError> {
    let seats: Vec<Rc<ChainedPlugin>> =
        plugins.iter().map(|connected| Rc::clone(&connected.chained)).collect();
    let builtin = DefaultValidator::default();
    let table = Participants {
        subscribers: &seats,
        registered: &seats,
        builtin: &builtin,
        scope: RuleScope::none(),
        injections: &[],
    };
    chain::create(&table, Creation::new(api::PodSandbox::new(), named(name)), &()).await
}

/// Sends one request of each kind that may fail; returns the cause if it does.
async fn ask(event: Event, plugins: &[&ConnectedPlugin]) -> Option<Cause> {
    let audience: Vec<Rc<ChainedPlugin>> =
        plugins.iter().map(|connected| Rc::clone(&connected.chained)).collect();
    let stopped = if event == Event::CreateContainer {
        create_at(plugins, "web").await.err()
    } else if event == Event::UpdateContainer {
        let container = Some(named("web")).into();
        let request = api::UpdateContainerRequest { container, ..Default::default() };
        chain::update(&audience, request, RuleScope::none(), &()).await.err()
    } else {
        chain::notify_until_refused(&audience, &notification(event), &()).await.err()
    };
    stopped.map(|stopped| stopped.failure.cause)
}

fn notification(event: Event) -> Notification {
    Notification::new(event, api::PodSandbox::new(), Some(named("web").into()))
}

/// The requests that a failure can fail.
const ASKED: [Event; 4] =
    [Event::CreateContainer, Event::UpdateContainer, Event::StartContainer, Event::RunPodSandbox];

struct Policy {
    what: &'static str,
    declared: Option<(bool, bool)>,
    on_failure: Option<OnFailure>,
    strikes: Option<u32>,
    refuses: bool,
    keeps: bool,
}

/// Each half undeclared, declared by the plugin, set by the operator, and set against it.
static POLICIES: [Policy; 8] = {
    let none = Policy {
        what: "nobody says anything",
        declared: None,
        on_failure: None,
        strikes: None,
        refuses: false,
        keeps: false,
    };
    const fn declared(what: &'static str, fail: bool, keep: bool) -> Policy {
        Policy {
            what,
            declared: Some((fail, keep)),
            on_failure: None,
            strikes: None,
            refuses: fail,
            keeps: keep,
        }
    }
    [
        none,
        declared("the plugin declares neither", false, false),
        declared("the plugin declares fail_request", true, false),
        declared("the plugin declares keep_connected", false, true),
        declared("the plugin declares both", true, true),
        Policy {
            what: "the operator wants refusals and patience",
            on_failure: Some(OnFailure::Refuse),
            strikes: Some(0),
            refuses: true,
            keeps: true,
            ..declared("", false, false)
        },
        Policy {
            what: "the operator overrides both",
            on_failure: Some(OnFailure::Skip),
            strikes: Some(1),
            refuses: false,
            keeps: false,
            ..declared("", true, true)
        },
        Policy {
            what: "the operator overrides one",
            on_failure: Some(OnFailure::Skip),
            refuses: false,
            ..declared("", true, true)
        },
    ]
};

impl Policy {
    async fn connected(&self, responder: RespondingPlugin) -> ConnectedPlugin {
        let responder = match self.declared {
            Some((fail, keep)) => responder.declares(fail, keep),
            None => responder,
        };
        let (on_failure, strikes) = (self.on_failure, self.strikes);
        let settings = PluginSettings { on_failure, strikes, ..Default::default() };
        connected_as("10-odd", responder, &settings).await
    }
}

#[tokio::test]
async fn a_time_out_has_the_consequences_that_the_policy_names() {
    let play = |(policy, event): (&'static Policy, Event)| async move {
        let (odd, next) = pair(policy, RespondingPlugin::at(event, Response::Hang)).await;
        let cause = ask(event, &[&odd, &next]).await;
        let wanted = policy.refuses.then_some(Cause::Timeout);
        assert_eq!(cause, wanted, "{}: {event:?}", policy.what);
        assert_eq!(!odd.chained.plugin.is_gone(), policy.keeps, "{}: {event:?}", policy.what);
        assert_eq!(
            next.responder.received().is_empty(),
            policy.refuses,
            "{}: {event:?}",
            policy.what
        );
    };
    join_all(cases().map(play)).await;
}

#[tokio::test]
async fn a_plugin_that_dies_in_a_call_is_skipped_or_refuses_by_policy() {
    for (policy, event) in cases() {
        let (odd, next) = pair(policy, RespondingPlugin::at(event, Response::Leave)).await;
        let cause = ask(event, &[&odd, &next]).await;
        let wanted = policy.refuses.then_some(Cause::Gone);
        assert_eq!(cause, wanted, "{}: {event:?}", policy.what);
        assert_eq!(
            next.responder.received().is_empty(),
            policy.refuses,
            "{}: {event:?}",
            policy.what
        );
        // It stays disconnected under any policy.
        assert_eq!(ask(event, &[&odd, &next]).await, None, "{}: {event:?}", policy.what);
    }
}

#[tokio::test]
async fn a_refusal_fails_the_request_and_keeps_the_plugin() {
    for (policy, event) in cases() {
        let (odd, next) = pair(policy, RespondingPlugin::at(event, Response::Refuse("no"))).await;
        assert_eq!(ask(event, &[&odd, &next]).await, Some(Cause::Refused), "{event:?}");
        assert!(!odd.chained.plugin.is_gone() && !odd.chained.has_strikes(), "{}", policy.what);
        assert_eq!(next.responder.received(), [""; 0], "{event:?}");
    }
}

#[tokio::test]
async fn a_conflict_fails_the_create_and_keeps_both_plugins() {
    let settings = PluginSettings { on_failure: Some(OnFailure::Skip), ..Default::default() };
    let one =
        connected_as("10-one", RespondingPlugin::always(Response::Set("SAME")), &settings).await;
    let two =
        connected_as("20-two", RespondingPlugin::always(Response::Set("SAME")), &settings).await;
    let stopped = create_at(&[&one, &two], "web").await.unwrap_err();
    assert_eq!((stopped.failure.cause, stopped.asked), (Cause::Conflict, 2));
    for word in ["10-one", "20-two", "SAME"] {
        assert!(stopped.failure.text.contains(word), "{}", stopped.failure.text);
    }
    assert!(!one.chained.plugin.is_gone() && !two.chained.plugin.is_gone());
}

#[tokio::test]
async fn an_event_reaches_every_plugin_although_one_fails() {
    let happened = [
        Event::PostCreateContainer,
        Event::PostStartContainer,
        Event::PostUpdateContainer,
        Event::StopContainer,
        Event::RemoveContainer,
        Event::StopPodSandbox,
        Event::RemovePodSandbox,
    ];
    let acts = [
        (Response::Refuse("no"), Cause::Refused),
        (Response::Hang, Cause::Timeout),
        (Response::Leave, Cause::Gone),
    ];
    let play = |event: Event, act: Response, cause: Cause| async move {
        let odd = connected(RespondingPlugin::at(event, act).declares(true, false)).await;
        let next = patient("20-next", RespondingPlugin::always(Response::Answer)).await;
        let audience = [Rc::clone(&odd.chained), Rc::clone(&next.chained)];
        let failures = if event == Event::StopContainer {
            let container = Some(named("web")).into();
            let request = api::StopContainerRequest { container, ..Default::default() };
            chain::stop(&audience, &request, RuleScope::none()).await.1
        } else {
            chain::notify_all(&audience, &notification(event)).await
        };
        let causes: Vec<Cause> = failures.iter().map(|failure| failure.cause).collect();
        assert_eq!(causes, [cause], "{event:?}");
        assert_eq!(next.responder.received().len(), 1, "{event:?}");
    };
    let cases = happened.into_iter().flat_map(|event| acts.map(|(act, cause)| (event, act, cause)));
    join_all(cases.map(|(event, act, cause)| play(event, act, cause))).await;
}

#[tokio::test]
async fn a_plugin_disconnected_before_its_turn_counts_as_absent() {
    let odd = connected(RespondingPlugin::always(Response::Set("ODD")).declares(true, true)).await;
    let next = patient("20-next", RespondingPlugin::always(Response::Set("NEXT"))).await;
    odd.stub.close();
    odd.chained.plugin.closed().await;
    let merged = create_at(&[&odd, &next], "web").await.unwrap();
    let keys: Vec<&str> = merged.adjust.env.iter().map(|env| env.key.as_str()).collect();
    assert_eq!(keys, ["NEXT"]);
    assert_eq!(odd.chained.counts().requests, 0);
}

#[tokio::test]
async fn only_consecutive_strikes_count_and_an_answer_clears_them() {
    let settings = PluginSettings { strikes: Some(2), ..Default::default() };
    let slow =
        |_: Event, name: &str| if name == "slow" { Response::Hang } else { Response::Answer };
    let odd = connected_as("10-odd", RespondingPlugin::new(slow), &settings).await;
    for (name, strikes, gone) in
        [("slow", true, false), ("web", false, false), ("slow", true, false), ("slow", true, true)]
    {
        create_at(&[&odd], name).await.unwrap();
        assert_eq!(
            (odd.chained.has_strikes(), odd.chained.plugin.is_gone()),
            (strikes, gone),
            "{name}"
        );
    }
    assert_eq!((odd.chained.counts().requests, odd.chained.counts().timeouts), (4, 3));
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_no_strike() {
    let odd = connected(RespondingPlugin::always(Response::Refuse("no"))).await;
    for _round in 0..5 {
        create_at(&[&odd], "web").await.unwrap_err();
    }
    assert!(!odd.chained.plugin.is_gone() && odd.chained.counts().timeouts == 0);
}

#[tokio::test]
async fn a_hanging_but_connected_plugin_is_skipped_until_it_responds() {
    // The plugin's first three responses come late, and all at once.
    let late = move |_: Event, name: &str| match name {
        "slow" => Response::WaitAndSet("KEY"),
        _ => Response::Answer,
    };
    let odd = connected(RespondingPlugin::new(late).declares(false, true)).await;
    for _strike in 0..3 {
        create_at(&[&odd], "slow").await.unwrap();
    }
    let before = Instant::now();
    for _round in 0..40 {
        create_at(&[&odd], "web").await.unwrap();
    }
    assert!(before.elapsed() < 40 * TIMEOUT, "each was waited for: {:?}", before.elapsed());
    assert_eq!(odd.responder.received().len(), 3, "it was asked");
    assert_eq!(odd.chained.counts().timeouts, 3);
    odd.responder.may_answer.add_permits(3);
    until("it is asked again", async || {
        create_at(&[&odd], "web").await.unwrap();
        odd.responder.received().len() > 3
    })
    .await;
    assert_eq!(odd.responder.received().last().unwrap(), "CreateContainer web");
    assert!(!odd.chained.has_strikes());
}

#[tokio::test]
async fn a_protecting_plugin_refuses_at_once_after_three_time_outs() {
    let odd = connected(RespondingPlugin::always(Response::Hang).declares(true, true)).await;
    for _round in 0..5 {
        assert_eq!(create_at(&[&odd], "web").await.unwrap_err().failure.cause, Cause::Timeout);
    }
    assert_eq!((odd.chained.counts().timeouts, odd.responder.received().len()), (3, 3));
}

#[tokio::test]
async fn requests_queued_for_a_hanging_plugin_share_three_time_outs() {
    let odd = connected(RespondingPlugin::always(Response::Hang).declares(false, true)).await;
    let next = patient("20-next", RespondingPlugin::always(Response::Answer)).await;
    let plugins = [&odd, &next];
    let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let begun = Instant::now();
    let made = join_all(names.iter().map(|name| create_at(&plugins, name))).await;
    let took = begun.elapsed();
    assert!(made.iter().all(Result::is_ok));
    assert!(took >= 3 * TIMEOUT && took < 40 * TIMEOUT, "{took:?}");
    assert_eq!(next.responder.received().len(), 40, "the others were asked about each");
}

#[tokio::test]
async fn requests_queued_for_a_dropped_plugin_continue_without_it() {
    let odd = connected(RespondingPlugin::always(Response::Hang)).await;
    let next = patient("20-next", RespondingPlugin::always(Response::Answer)).await;
    let plugins = [&odd, &next];
    let begun = Instant::now();
    let made = join_all((0..40).map(|_| create_at(&plugins, "web"))).await;
    assert!(made.iter().all(Result::is_ok));
    assert!(begun.elapsed() < 40 * TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!((odd.responder.received().len(), next.responder.received().len()), (1, 40));
}

#[tokio::test]
async fn a_validator_that_refuses_hangs_or_dies_fails_the_create() {
    let acts = [
        (Response::Refuse("not signed"), Cause::Refused, "not signed"),
        (Response::Hang, Cause::Timeout, "did not answer"),
        (Response::Leave, Cause::Gone, "disconnected"),
    ];
    let play = |policy: &'static Policy, act, cause, word| async move {
        let judge = RespondingPlugin::at(Event::ValidateContainerAdjustment, act).validates();
        let judge = policy.connected(judge).await;
        let failure = create_at(&[&judge], "web").await.unwrap_err().failure;
        assert_eq!(failure.cause, cause, "{}: {failure}", policy.what);
        assert!(failure.text.contains("validator 10-odd") && failure.text.contains(word));
    };
    let cases = POLICIES.iter().flat_map(|policy| acts.map(|act| (policy, act)));
    join_all(cases.map(|(policy, (act, cause, word))| play(policy, act, cause, word))).await;
}

#[tokio::test]
async fn a_validator_that_was_silent_as_a_plugin_fails_the_create_too() {
    for act in [Response::Hang, Response::Leave] {
        let judge = connected(RespondingPlugin::at(Event::CreateContainer, act).validates()).await;
        let failure = create_at(&[&judge], "web").await.unwrap_err().failure;
        assert!(failure.text.contains("validator 10-odd"), "{failure}");
    }
}

#[tokio::test]
async fn all_validators_run_at_once_and_every_refusal_is_named() {
    let slow = |act| RespondingPlugin::at(Event::ValidateContainerAdjustment, act).validates();
    let mut plugins = Vec::new();
    for index in 10..18 {
        let act =
            if index % 4 == 0 { Response::Refuse("no") } else { Response::WaitAndSet("none") };
        plugins.push(patient(&format!("{index}-judge"), slow(act)).await);
    }
    let plugins: Vec<&ConnectedPlugin> = plugins.iter().collect();
    let all_asked = async {
        let are_asked =
            async || plugins.iter().all(|connected| connected.responder.received().len() == 2);
        until("all are asked at once", are_asked).await;
        plugins.iter().for_each(|connected| connected.responder.may_answer.add_permits(1));
    };
    let (made, ()) = tokio::join!(create_at(&plugins, "web"), all_asked);
    let failure = made.unwrap_err().failure;
    assert!(failure.text.contains("12-judge") && failure.text.contains("16-judge"), "{failure}");
}

#[tokio::test]
async fn a_plugins_own_time_out_overrides_the_default() {
    let slow = patient("10-slow", RespondingPlugin::always(Response::Sleep(1000))).await;
    create_at(&[&slow], "web").await.unwrap();
    assert_eq!(slow.chained.counts().timeouts, 0);
    let strict = Some(Duration::from_millis(50));
    let settings = PluginSettings { request_timeout: strict, ..Default::default() };
    let slow = connected_as("10-slow", RespondingPlugin::always(Response::Hang), &settings).await;
    create_at(&[&slow], "web").await.unwrap();
    assert_eq!(slow.chained.counts().timeouts, 1);
}

#[tokio::test]
async fn a_plugin_gets_one_request_at_a_time_unless_configured() {
    for (concurrency, most) in [(0, 1), (1, 1), (4, 4)] {
        let request_timeout = Some(PATIENCE);
        let settings = PluginSettings { concurrency, request_timeout, ..Default::default() };
        let slow = connected_as(
            "10-slow",
            RespondingPlugin::always(Response::WaitAndSet("KEY")),
            &settings,
        )
        .await;
        let plugins = [&slow];
        let answers = async {
            until("it is asked", async || slow.responder.received().len() == most).await;
            slow.responder.may_answer.add_permits(12);
        };
        let creates = join_all((0..12).map(|_| create_at(&plugins, "web")));
        let (made, ()) = tokio::join!(creates, answers);
        assert!(made.iter().all(Result::is_ok));
        assert_eq!(slow.responder.most_at_once(), most, "concurrency = {concurrency}");
    }
}

#[tokio::test]
async fn requests_reach_every_plugin_in_their_order() {
    let one = patient("10-one", RespondingPlugin::always(Response::Sleep(5))).await;
    let two = patient("20-two", RespondingPlugin::always(Response::Answer)).await;
    let plugins = [&one, &two];
    let names: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    join_all(names.iter().map(|name| create_at(&plugins, name))).await;
    let wanted: Vec<String> = names.iter().map(|name| format!("CreateContainer {name}")).collect();
    assert_eq!(one.responder.received(), wanted);
    assert_eq!(two.responder.received(), wanted);
}

#[tokio::test]
async fn a_busy_plugin_does_not_delay_other_plugins() {
    let one = patient("10-one", RespondingPlugin::always(Response::WaitAndSet("ONE"))).await;
    let two = patient("20-two", RespondingPlugin::always(Response::WaitAndSet("TWO"))).await;
    let plugins = [&one, &two];
    one.responder.may_answer.add_permits(1);
    let overlap = async {
        let asked = || (one.responder.received().len(), two.responder.received().len());
        until("each has one in hand", async || asked() == (2, 1)).await;
        plugins.iter().for_each(|connected| connected.responder.may_answer.add_permits(10));
    };
    let creates = join_all((0..10).map(|_| create_at(&plugins, "web")));
    let (made, ()) = tokio::join!(creates, overlap);
    assert!(made.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_denied_field_is_refused_and_named() {
    for (allow, deny, is_refused) in [
        (&["Mounts"][..], &[][..], true),
        (&["Env"], &[], false),
        (&[], &["Env"], true),
        (&["Env"], &["Env"], true),
        (&[], &["Mounts"], false),
    ] {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let settings =
            PluginSettings { allow: list(allow), deny: list(deny), ..Default::default() };
        let odd =
            connected_as("10-odd", RespondingPlugin::always(Response::Set("KEY")), &settings).await;
        let made = create_at(&[&odd], "web").await;
        assert_eq!(made.is_err(), is_refused, "allow {allow:?}, deny {deny:?}");
        if let Err(stopped) = made {
            let text = &stopped.failure.text;
            assert_eq!(stopped.failure.cause, Cause::Refused, "{text}");
            assert!(text.contains("10-odd") && text.contains("Env"), "{text}");
        }
        assert!(!odd.chained.plugin.is_gone());
    }
}

#[tokio::test]
async fn a_mistyped_right_refuses_instead_of_permitting_all() {
    let settings = PluginSettings { deny: vec!["Enw".to_owned()], ..Default::default() };
    let odd = connected_as("10-odd", RespondingPlugin::always(Response::Answer), &settings).await;
    let failure = create_at(&[&odd], "web").await.unwrap_err().failure;
    assert!(failure.text.contains("Enw") && failure.text.contains("10-odd"), "{failure}");
    assert_eq!(odd.responder.received(), [""; 0], "it is not even asked");
}

#[tokio::test]
async fn a_plugin_may_call_back_from_inside_every_handler() {
    let odd = connected(RespondingPlugin::always(Response::CallBack)).await;
    for event in ASKED {
        assert_eq!(ask(event, &[&odd]).await, None, "{event:?}");
    }
    assert_eq!((odd.chained.counts().timeouts, odd.chained.counts().requests), (0, 4));
}

#[tokio::test]
async fn shutdown_is_sent_after_the_request_in_progress() {
    let slow = patient("10-slow", RespondingPlugin::always(Response::WaitAndSet("KEY"))).await;
    let plugins = [&slow];
    let asked = || until("it is asked", async || !slow.responder.received().is_empty());
    let leave = async {
        asked().await;
        slow.chained.plugin.shutdown("it was shut down").await;
    };
    let answer = async {
        asked().await;
        // Time in which it could wrongly send Shutdown.
        tokio::time::sleep(Duration::from_millis(50)).await;
        slow.responder.may_answer.add_permits(1);
    };
    let (made, (), ()) = tokio::join!(create_at(&plugins, "web"), leave, answer);
    assert!(made.is_ok() && slow.chained.plugin.is_gone());
    assert_eq!(slow.responder.received(), ["CreateContainer web", "Shutdown"]);
}
