// SPDX-License-Identifier: Apache-2.0
//! The plugins of a dry run: they connect or are launched, are synchronized, receive requests, and
//! disconnect. A [`DryRunObserver`] provides the state for Synchronize, answers plugins' requests
//! for updates, and is called for each registration, synchronization and disconnection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nri_adaptation::{DefaultValidator, unknown_fields};
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::accept;
use crate::chain::{Cause, ChainedPlugin, Member, Members, PluginFailure, RuleScope};
use crate::config::{Config, PromiseSection};
use crate::engine::Allocations;
use crate::error::{Error, Result, quoted};
use crate::inject::{Injected, Injections};
use crate::plugin::api::extension::{ALL_EXTENSION_EVENTS, ExtensionEvent};
use crate::plugin::socket::{self, NoPlugins};
use crate::plugin::{
    self, Event, Launched, Outcome, Plugin, PluginFile, PluginIdentity, ProcessLog, Settings,
    Upcalls, api,
};
use crate::rules::{Fit, PromiseFacts, RuledPod, Rules, fit_promise};

use super::line::ScriptState;

/// Time limit for a plugin's connection to end after it is disconnected.
const DISCONNECT_WAIT: Duration = Duration::from_secs(10);

/// A value that an observer provides now or later, or the reason why it cannot.
pub(super) type Later<T> = oneshot::Receiver<std::result::Result<T, String>>;

/// Returns a value that an observer provides now.
pub(super) fn now<T>(value: T) -> Later<T> {
    let (sender, receiver) = oneshot::channel();
    let _taken = sender.send(Ok(value));
    receiver
}

/// Observes a dry run, and answers requests of plugins.
pub(super) trait DryRunObserver {
    fn registered(&self, _plugin: &str) {}
    /// Returns the state with which a new plugin is synchronized; an error disconnects it.
    fn snapshot(&self, plugin: &str) -> Later<ScriptState>;
    /// Called when a plugin is synchronized; `updates` is its reply to Synchronize.
    fn synchronized(&self, _plugin: &str, _updates: &[api::ContainerUpdate]) {}
    fn gone(&self, _plugin: &str, _reason: &str) {}
    fn update(
        &self,
        plugin: &str,
        request: api::UpdateContainersRequest,
    ) -> Later<api::UpdateContainersResponse>;
}

/// The plugins of a dry run.
pub(super) struct DryRun {
    settings: Settings,
    config: Config,
    rules: Rules,
    injections: Injections,
    /// The engine of the pods, if known, and whether a tenant may have written the pods' identity.
    origin: (String, bool),
    observer: Rc<dyn DryRunObserver>,
    members: Members<DryMember>,
    /// Notified when a plugin was synchronized or disconnected.
    changed: Notify,
    upcalls: mpsc::UnboundedSender<PendingUpcall>,
}

struct DryMember {
    chained: Rc<ChainedPlugin>,
    has_answered_synchronize: Cell<bool>,
}

impl Member for DryMember {
    fn chained(&self) -> &Rc<ChainedPlugin> {
        &self.chained
    }

    fn is_synchronized(&self) -> bool {
        self.has_answered_synchronize.get() && !self.connection().is_gone()
    }
}

/// An UpdateContainers request, passed from ttRPC's tasks to the dry run's.
struct PendingUpcall {
    plugin: String,
    request: api::UpdateContainersRequest,
    reply: oneshot::Sender<std::result::Result<api::UpdateContainersResponse, String>>,
}

impl DryRun {
    /// Creates a dry run without plugins.
    pub(super) fn new(
        config: Config,
        settings: Settings,
        origin: (String, bool),
        observer: Rc<dyn DryRunObserver>,
    ) -> Rc<Self> {
        let (upcalls, mut incoming) = mpsc::unbounded_channel::<PendingUpcall>();
        let observing = Rc::clone(&observer);
        tokio::task::spawn_local(async move {
            while let Some(PendingUpcall { plugin, request, reply }) = incoming.recv().await {
                let answer = observing.update(&plugin, request);
                tokio::task::spawn_local(async move {
                    let answer = answer.await.unwrap_or_else(|_ended| Err(ENDED.to_owned()));
                    let _plugin_is_gone = reply.send(answer);
                });
            }
        });
        Rc::new(Self {
            settings,
            rules: Rules::of(&config),
            injections: Injections::new(&config),
            origin,
            config,
            observer,
            members: Members::default(),
            changed: Notify::new(),
            upcalls,
        })
    }

    /// Opens the plugin socket, launches the pre-installed plugins, and returns once each of these
    /// is synchronized or has failed.
    ///
    /// # Errors
    /// Fails when the plugin socket cannot be opened, unless the configuration switches it off.
    pub(super) async fn open(self: &Rc<Self>) -> Result<()> {
        match socket::for_plugins(&self.config) {
            Ok(socket::Bound { listener, .. }) => {
                listener.set_nonblocking(true)?;
                let listener = UnixListener::from_std(listener)?;
                tokio::task::spawn_local(serve_all(Rc::clone(self), listener));
            }
            Err(NoPlugins::SwitchedOff) => {}
            Err(why) => {
                let path = self.config.socket_path.display();
                let what = format!("plugins cannot connect to {path}: {why}");
                return Err(Error::new(what).hint("choose another path with --socket"));
            }
        }
        let (files, unusable) =
            plugin::discover(&self.config.plugin_path, &self.config.plugin_config_path);
        for problem in unusable {
            tracing::warn!("{problem}");
        }
        let launches = files.into_iter().map(|file| launch(Rc::clone(self), file));
        futures_util::future::join_all(launches).await;
        Ok(())
    }

    pub(super) fn builtin(&self) -> &DefaultValidator {
        &self.config.default_validator
    }

    /// Returns the synchronized plugins, in the order of the chain.
    pub(super) fn registered(&self) -> Vec<Rc<ChainedPlugin>> {
        self.members.synchronized()
    }

    /// Returns the synchronized plugins that receive this pod's events.
    pub(super) fn registered_for(&self, pod: &RuledPod) -> Vec<Rc<ChainedPlugin>> {
        let mut members = self.registered();
        members.retain(|member| self.rules.hidden_by(member.id(), pod).is_none());
        members
    }

    /// Returns the plugins of [`Self::registered_for`] that are subscribed to `event`.
    pub(super) fn subscribers(&self, event: Event, pod: &RuledPod) -> Vec<Rc<ChainedPlugin>> {
        let mut members = self.registered_for(pod);
        members.retain(|member| member.plugin.is_subscribed(event));
        members
    }

    /// Returns the plugins of [`Self::registered_for`] that subscribed to an event of the
    /// extension.
    pub(super) fn extended(&self, event: ExtensionEvent, pod: &RuledPod) -> Vec<Rc<ChainedPlugin>> {
        let mut members = self.registered_for(pod);
        members.retain(|member| member.plugin.takes(event));
        members
    }

    /// Returns a pod as rules match it.
    pub(super) fn ruled_pod(&self, pod: Option<&api::PodSandbox>) -> RuledPod {
        let (engine, is_doubtful) = &self.origin;
        let pod = pod.map(|pod| RuledPod::of(pod, engine, *is_doubtful));
        pod.unwrap_or_default()
    }

    /// Returns the injections for a container of this pod. Injections in audit mode, and failed
    /// injections that may be left out, only cause a warning.
    ///
    /// # Errors
    /// Fails if an injection cannot be carried out and is configured to refuse the container then.
    pub(super) fn injections(
        &self,
        pod: &RuledPod,
        container: &api::Container,
    ) -> std::result::Result<Vec<Injected>, PluginFailure> {
        let mut chosen = Vec::new();
        let image = container.image.as_ref().map(|image| image.name.as_str());
        for (injection, doubt) in self.injections.for_container(&self.rules, pod, image) {
            let prepared = match doubt {
                Some(doubt) => Err(doubt),
                None => injection.prepare().map_err(|error| error.why()),
            };
            let id = &injection.id;
            match prepared {
                Ok(_) if injection.is_audit() => tracing::warn!("{id} is in audit mode"),
                Ok(injected) => chosen.push(injected),
                Err(why) if injection.section.refuses() => {
                    let text = format!("{id} cannot be injected: {}", quoted(&why));
                    return Err(PluginFailure::new(id, Cause::Refused, text));
                }
                Err(why) => tracing::warn!("{id} is left out: {}", quoted(&why)),
            }
        }
        Ok(chosen)
    }

    /// Refuses a container of this pod, except in an exempt namespace, if the plugin of a promise about
    /// it is not synchronized, or a rule hides the pod from the plugin. A promise in audit mode only
    /// causes a warning.
    ///
    /// # Errors
    /// Fails with the promise and its plugin.
    pub(super) fn require_promised(
        &self,
        ruled: &RuledPod,
        pod: &api::PodSandbox,
        container: &api::Container,
    ) -> std::result::Result<(), PluginFailure> {
        if ruled.is_in(&self.config.exempt_namespaces) {
            return Ok(());
        }
        let facts = promise_facts(ruled, pod, container);
        let here = self.registered_for(ruled);
        for section in &self.config.promises {
            let (fit, why) = fit_promise(section, &facts);
            let PromiseSection { name, plugin, .. } = section;
            if fit == Fit::No || here.iter().any(|member| member.is_named(plugin)) {
                continue;
            }
            let (name, why) = (quoted(name), quoted(&why.to_string()));
            let text = format!(
                "the promise \"{name}\" ({why}) needs the plugin {plugin}, which is not connected"
            );
            match section.refuses() {
                true => return Err(PluginFailure::new(plugin, Cause::Refused, text)),
                false => tracing::warn!("{text}: it is in audit mode"),
            }
        }
        Ok(())
    }

    /// Returns the rules for a request about this container and its pod. The pods of other
    /// containers are unknown.
    pub(super) fn scope<'a>(&'a self, id: &'a str, pod: &'a RuledPod) -> RuleScope<'a> {
        RuleScope { rules: &self.rules, subject: Some((id, pod)), pods: &() }
    }

    /// Waits until the plugins in `synchronized` are synchronized and those in `gone` have
    /// disconnected. After `timeout` it fails and names the remaining ones.
    pub(super) async fn wait(
        &self,
        synchronized: &[String],
        gone: &[String],
        timeout: Duration,
    ) -> std::result::Result<(), String> {
        let mut missed = Vec::new();
        let is_so = || {
            missed = vec![
                ("synchronized", self.absent(synchronized)),
                ("gone", self.still_connected(gone)),
            ];
            missed.retain(|(_, names)| !names.is_empty());
            missed.is_empty()
        };
        if self.wait_until(timeout, is_so).await {
            return Ok(());
        }
        let what =
            missed.iter().map(|(what, names)| format!("not {what} in time: {}", names.join(", ")));
        Err(what.collect::<Vec<_>>().join("; "))
    }

    /// Waits until `is_so` returns true; returns false after `timeout`.
    async fn wait_until(&self, timeout: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let changed = self.changed.notified();
            if is_so() {
                return true;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    /// Whether plugins can connect; if not, only launched plugins are used.
    pub(super) fn accepts_connections(&self) -> bool {
        !self.config.disable_connections
    }

    /// Returns the plugins among `names` that are not synchronized. If `names` is empty and no
    /// plugin is synchronized, returns "any plugin".
    pub(super) fn missing(&self, names: &[String]) -> Vec<String> {
        match names {
            [] if self.registered().is_empty() => vec!["any plugin".to_owned()],
            names => self.absent(names),
        }
    }

    /// Waits until no plugin is [missing](Self::missing); returns false if one is after `timeout`.
    pub(super) async fn wait_until_present(&self, names: &[String], timeout: Duration) -> bool {
        self.wait_until(timeout, || self.missing(names).is_empty()).await
    }

    fn absent(&self, names: &[String]) -> Vec<String> {
        let here = self.registered();
        let is_absent = |name: &&String| !here.iter().any(|member| member.is_named(name));
        names.iter().filter(is_absent).cloned().collect()
    }

    /// Returns the named plugins that are connected, or whose disconnection has not been reported.
    fn still_connected(&self, names: &[String]) -> Vec<String> {
        let members = self.members.borrow();
        let here: Vec<&str> = members.iter().map(|member| member.chained.id()).collect();
        names.iter().filter(|name| here.contains(&name.as_str())).cloned().collect()
    }

    /// Closes a plugin's connection, and returns once the disconnection has been reported, or after
    /// [`DISCONNECT_WAIT`] with an error.
    pub(super) async fn disconnect(&self, name: &str) -> std::result::Result<(), String> {
        let found =
            self.members.borrow().iter().find(|member| member.chained.id() == name).cloned();
        let Some(member) = found else {
            return Err(format!("{} is not connected", quoted(name)));
        };
        member.connection().disconnect("the script disconnected it");
        self.wait(&[], &[name.to_owned()], DISCONNECT_WAIT).await
    }

    /// Shuts every plugin down, and removes the socket.
    pub(super) async fn close(&self) {
        let members = self.members.borrow().clone();
        let ends = members.iter().map(|member| member.connection().shutdown("it was shut down"));
        futures_util::future::join_all(ends).await;
        if !self.config.disable_connections {
            let _gone = std::fs::remove_file(&self.config.socket_path);
        }
    }

    fn upcalls(&self) -> Arc<dyn Upcalls> {
        Arc::new(UpcallSender(self.upcalls.clone()))
    }

    fn add_member(&self, plugin: Plugin, launched: bool) -> Option<Rc<DryMember>> {
        let id = plugin.id().to_owned();
        let taken = self.members.borrow().iter().any(|member| {
            let chained = &member.chained;
            chained.id() == id && !chained.plugin.is_gone() && !chained.has_strikes()
        });
        if taken {
            plugin.disconnect("one of the same name is connected already");
            tracing::warn!("{id} is connected already: the newcomer was refused");
            return None;
        }
        let settings = self.config.plugin(plugin.index(), plugin.name());
        let chained = Rc::new(ChainedPlugin::new(plugin, launched, &settings));
        Some(self.members.insert(DryMember { chained, has_answered_synchronize: Cell::new(false) }))
    }

    async fn synchronize(&self, member: &DryMember) -> std::result::Result<(), String> {
        let DryMember { chained, has_answered_synchronize } = member;
        let id = chained.id();
        let snapshot = tokio::select! {
            snapshot = self.observer.snapshot(id) => snapshot,
            reason = chained.plugin.closed() => return Err(reason),
        };
        let snapshot = snapshot.unwrap_or_else(|_ended| Err(ENDED.to_owned()))?;
        match chained.plugin.synchronize(&snapshot.pods, &snapshot.containers).await {
            Outcome::Answered(answer) => {
                chained.report_unknown(&unknown_fields(&answer, "SynchronizeResponse"));
                has_answered_synchronize.set(true);
                self.observer.synchronized(id, &answer.update);
                self.changed.notify_waiters();
                Ok(())
            }
            Outcome::Refused(why) | Outcome::Unimplemented(why) => {
                Err(format!("it refused Synchronize: {}", quoted(&why)))
            }
            Outcome::TimedOut => Err("it did not answer Synchronize in time".to_owned()),
            Outcome::Gone(why) => Err(why),
            Outcome::NotConnected | Outcome::Busy(_) => Err("it closed the connection".to_owned()),
        }
    }

    /// Removes a plugin, reports the disconnection, then wakes the waiting tasks.
    fn remove(&self, member: &Rc<DryMember>, reason: &str) {
        self.members.remove(member);
        self.observer.gone(member.chained.id(), reason);
        self.changed.notify_waiters();
    }
}

/// Returns the facts that promises match, from a container's NRI messages alone. Kubelet and the
/// host's device nodes are not used, because the dry run may be on another machine.
pub(super) fn promise_facts<'s>(
    ruled: &'s RuledPod,
    pod: &'s api::PodSandbox,
    container: &'s api::Container,
) -> PromiseFacts<'s> {
    let container = Some(container);
    PromiseFacts { container, ..PromiseFacts::new(ruled, pod, &Allocations::None) }
}

const ENDED: &str = "the dry run has ended";

async fn serve_all(dry_run: Rc<DryRun>, listener: UnixListener) {
    loop {
        let (stream, _) = accept::next(async || listener.accept().await, |_error| ()).await;
        let dry_run = Rc::clone(&dry_run);
        tokio::task::spawn_local(async move {
            let handshaken =
                plugin::handshake(stream, None, &dry_run.settings, dry_run.upcalls()).await;
            match handshaken {
                Ok(plugin) => {
                    if let Some(member) = join(&dry_run, plugin, false).await {
                        watch_connection(&dry_run, &member).await;
                    }
                }
                Err(error) => tracing::info!("a plugin connection ended: {error}"),
            }
        });
    }
}

async fn launch(dry_run: Rc<DryRun>, file: PluginFile) {
    let id = format!("{}-{}", file.index, file.name);
    let log = ProcessLog::new(&id);
    match Launched::start(&file, &dry_run.settings, dry_run.upcalls(), &log).await {
        Ok(plugin) => {
            if let Some(member) = join(&dry_run, plugin, true).await {
                tokio::task::spawn_local(async move { watch_connection(&dry_run, &member).await });
            }
        }
        Err(error) => tracing::warn!("{id} could not be started: {error}"),
    }
}

/// Adds a registered plugin and synchronizes it; removes it if that fails.
async fn join(dry_run: &Rc<DryRun>, plugin: Plugin, launched: bool) -> Option<Rc<DryMember>> {
    let member = dry_run.add_member(plugin, launched)?;
    dry_run.observer.registered(member.chained.id());
    match dry_run.synchronize(&member).await {
        Ok(()) => Some(member),
        Err(why) => {
            member.connection().disconnect(&why);
            dry_run.remove(&member, &why);
            None
        }
    }
}

async fn watch_connection(dry_run: &Rc<DryRun>, member: &Rc<DryMember>) {
    let reason = member.connection().closed().await;
    dry_run.remove(member, &reason);
}

struct UpcallSender(mpsc::UnboundedSender<PendingUpcall>);

#[async_trait::async_trait]
impl Upcalls for UpcallSender {
    fn extension_events(&self) -> u32 {
        ALL_EXTENSION_EVENTS.into_iter().fold(0, |bits, event| bits | event.bit())
    }

    async fn update_containers(
        &self,
        plugin: &PluginIdentity,
        request: api::UpdateContainersRequest,
    ) -> std::result::Result<api::UpdateContainersResponse, String> {
        let (reply, answer) = oneshot::channel();
        let order = PendingUpcall { plugin: plugin.to_string(), request, reply };
        self.0.send(order).map_err(|_gone| ENDED.to_owned())?;
        answer.await.unwrap_or_else(|_gone| Err(ENDED.to_owned()))
    }
}
