// SPDX-License-Identifier: Apache-2.0
//! A runtime for tests, in the process of the test: no engine, no container, no root.
//!
//! It listens on a socket in a private folder, registers plugins like a runtime, asks them in index
//! order, and merges their answers by nri-runc's rules. A conflict, a refusal or a time-out fails
//! the request. A restart closes every connection, and accepts the plugins that reconnect.
//!
//! ```
//! use nri_plugin::harness::{Runtime, container, pod};
//! use nri_plugin::{Adjustment, BlockingHandler, Blocking, Context, Event, Result, api};
//!
//! struct Greeter;
//!
//! impl BlockingHandler for Greeter {
//!     fn events(&self) -> &[Event] {
//!         &[Event::CreateContainer]
//!     }
//!
//!     fn create_container(
//!         &self,
//!         _: &Context,
//!         request: api::CreateContainerRequest,
//!     ) -> Result<api::CreateContainerResponse> {
//!         Ok(Adjustment::new().env("GREETING", &request.pod.name).into())
//!     }
//! }
//!
//! # async fn test() -> Result<()> {
//! let mut runtime = Runtime::new()?;
//! runtime.add("10-greeter", Blocking::new(Greeter)).await?;
//! runtime.run_pod(pod("web")).await?;
//! let created = runtime.create(container("nginx", "web")).await?;
//! assert_eq!(created.adjust.env[0].value, "web");
//! assert_eq!(created.owners.to_flat("nginx")["Env[GREETING]"], "10-greeter");
//!
//! runtime.restart().await?;
//! assert_eq!(runtime.plugins(), ["10-greeter"], "it reconnected and was synchronized");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test()).unwrap();
//! ```

mod bundle;
mod connected;
mod recording;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nri_adaptation::{Creation, Merged, Rights, Updated, Updates};
use nri_api as api;
use nri_api::event::Event;
use tokio::net::{UnixListener, UnixStream};

use crate::handler::Handler;
use crate::plugin::{Plugin, PluginHandle};
use crate::{HandlerError, Result};
use connected::{Connected, Shared};

pub use bundle::bundle;
pub use recording::Answered;

/// Time limit for a plugin to connect, and again for it to register.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a plugin's answer, unless the test sets another. A runtime's default is 2 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a pod called `name`, which is also its ID.
#[must_use]
pub fn pod(name: &str) -> api::PodSandbox {
    api::PodSandbox {
        id: name.to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        namespace: "default".to_owned(),
        ..Default::default()
    }
}

/// Returns a container called `name`, which is also its ID, of the pod with the ID `pod`.
#[must_use]
pub fn container(name: &str, pod: &str) -> api::Container {
    api::Container {
        id: name.to_owned(),
        name: name.to_owned(),
        pod_sandbox_id: pod.to_owned(),
        ..Default::default()
    }
}

/// A runtime with its pods, containers and plugins.
#[derive(Debug)]
pub struct Runtime {
    folder: PathBuf,
    listener: UnixListener,
    timeout: Duration,
    plugins: Vec<Connected>,
    pods: BTreeMap<String, api::PodSandbox>,
    shared: Arc<Mutex<Shared>>,
}

impl Runtime {
    /// Listens on a socket in a new private folder.
    ///
    /// # Errors
    /// Fails when the folder or the socket cannot be made.
    pub fn new() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("nri-harness-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let listener = UnixListener::bind(folder.join("nri.sock"))?;
        Ok(Self {
            folder,
            listener,
            timeout: REQUEST_TIMEOUT,
            plugins: Vec::new(),
            pods: BTreeMap::new(),
            shared: Arc::default(),
        })
    }

    /// Returns the socket's path, for plugins that are separate programs.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nri.sock")
    }

    /// Sets the time limit for a plugin's answers. A slower plugin is disconnected.
    pub fn set_request_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Runs a plugin in this process, and waits until it is synchronized.
    ///
    /// # Errors
    /// Fails when the identity is not valid, or the plugin refuses to be configured or
    /// synchronized, or is too slow.
    pub async fn add(&mut self, id: &str, handler: impl Handler) -> Result<PluginHandle> {
        let plugin = Plugin::new(id, handler)?.socket(self.socket());
        self.start(plugin).await
    }

    /// Like [`add`](Self::add), for a plugin with the test's settings and this runtime's socket.
    ///
    /// # Errors
    /// Fails as [`add`](Self::add) does.
    pub async fn start(&mut self, plugin: Plugin) -> Result<PluginHandle> {
        let plugin = plugin.socket(self.socket());
        let handle = plugin.handle();
        tokio::spawn(plugin.run());
        self.accept().await?;
        Ok(handle)
    }

    /// Waits for a plugin to connect, and registers, configures and synchronizes it; returns its
    /// identity.
    ///
    /// # Errors
    /// Fails when no plugin connects within half a minute, or the plugin does not register within
    /// another, refuses to be configured or synchronized, or is too slow.
    pub async fn accept(&mut self) -> Result<String> {
        let accepted = tokio::time::timeout(CONNECT_TIMEOUT, self.listener.accept()).await;
        let (stream, _address) = accepted.map_err(|_elapsed| "no plugin connected")??;
        self.register(stream, None).await
    }

    /// Registers, configures and synchronizes a plugin that the test has launched with the other
    /// end of this stream, with its index, name and configuration; returns its identity.
    /// [`restart`](Self::restart) does not launch the plugin again, and so fails if it was
    /// connected.
    ///
    /// # Errors
    /// Fails when the plugin does not register within half a minute, or refuses to start.
    pub async fn attach(
        &mut self,
        stream: UnixStream,
        index: &str,
        name: &str,
        config: &str,
    ) -> Result<String> {
        let launched = [index, name, config].map(str::to_owned);
        self.register(stream, Some(launched)).await
    }

    async fn register(
        &mut self,
        stream: UnixStream,
        launched: Option<[String; 3]>,
    ) -> Result<String> {
        let pods = self.pods.values().cloned().collect();
        let snapshot = (pods, self.shared().containers.values().cloned().collect());
        let shared = Arc::clone(&self.shared);
        let connected = Connected::new(stream, launched, self.timeout, snapshot, shared).await;
        let (plugin, updates) = connected?;
        self.plugins.retain(|other| other.id() != plugin.id());
        let id = plugin.id().to_owned();
        self.plugins.push(plugin);
        self.plugins.sort_by(|one, other| one.id().cmp(other.id()));
        self.shared().apply(&updates);
        Ok(id)
    }

    /// Returns the identities of the connected plugins, in the order in which they are asked.
    #[must_use]
    pub fn plugins(&self) -> Vec<&str> {
        let connected = self.plugins.iter().filter(|plugin| !plugin.is_gone());
        connected.map(Connected::id).collect()
    }

    /// Closes every connection like a restart, and waits until as many plugins are connected and
    /// synchronized again. Keeps pods and containers.
    ///
    /// # Errors
    /// Fails when a plugin does not reconnect.
    pub async fn restart(&mut self) -> Result<()> {
        let before = self.plugins().len();
        for plugin in self.plugins.drain(..) {
            plugin.close("the runtime restarts");
        }
        for _plugin in 0..before {
            self.accept().await?;
        }
        Ok(())
    }

    /// Returns the unprompted updates and evictions that plugins have sent. The harness applies the
    /// updates, and evicts nothing.
    #[must_use]
    pub fn requests(&self) -> Vec<api::UpdateContainersRequest> {
        self.shared().requests.clone()
    }

    /// From now on unprompted updates of this container are reported as failed and not applied.
    pub fn fail_updates_of(&mut self, container: &str) {
        self.shared().failing.insert(container.to_owned());
    }

    /// Returns the current state of a container.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<api::Container> {
        self.shared().containers.get(id).cloned()
    }

    /// Starts a pod: RunPodSandbox.
    ///
    /// # Errors
    /// Fails when a plugin refuses the pod or does not answer.
    pub async fn run_pod(&mut self, pod: api::PodSandbox) -> Result<()> {
        let request =
            api::RunPodSandboxRequest { pod: Some(pod.clone()).into(), ..Default::default() };
        self.notify(Event::RunPodSandbox, &request).await?;
        self.pods.insert(pod.id.clone(), pod);
        Ok(())
    }

    /// Resizes a pod: UpdatePodSandbox, PostUpdatePodSandbox.
    ///
    /// # Errors
    /// Fails when the pod does not exist, or a plugin refuses or does not answer.
    pub async fn resize_pod(&mut self, id: &str, resources: api::LinuxResources) -> Result<()> {
        let pod = Some(self.pods.get(id).ok_or_else(|| format!("there is no pod {id}"))?.clone());
        let request = api::UpdatePodSandboxRequest {
            pod: pod.clone().into(),
            linux_resources: Some(resources).into(),
            ..Default::default()
        };
        self.notify(Event::UpdatePodSandbox, &request).await?;
        let request = api::PostUpdatePodSandboxRequest { pod: pod.into(), ..Default::default() };
        self.notify(Event::PostUpdatePodSandbox, &request).await
    }

    /// Stops a pod and removes it, with its containers.
    ///
    /// # Errors
    /// Fails when the pod does not exist, or a plugin returns an error or does not answer.
    pub async fn remove_pod(&mut self, id: &str) -> Result<()> {
        let pod = self.pods.get(id).ok_or_else(|| format!("there is no pod {id}"))?.clone();
        let is_member = |container: &&api::Container| container.pod_sandbox_id == id;
        let members =
            self.shared().containers.values().filter(is_member).cloned().collect::<Vec<_>>();
        for member in members {
            self.stop(&member.id).await?;
            self.remove(&member.id).await?;
        }
        let pod = Some(pod);
        let request = api::StopPodSandboxRequest { pod: pod.clone().into(), ..Default::default() };
        self.notify(Event::StopPodSandbox, &request).await?;
        let request = api::RemovePodSandboxRequest { pod: pod.into(), ..Default::default() };
        self.notify(Event::RemovePodSandbox, &request).await?;
        self.pods.remove(id);
        Ok(())
    }

    /// Creates a container in a running pod: CreateContainer, ValidateContainerAdjustment,
    /// PostCreateContainer.
    ///
    /// # Errors
    /// Fails when the pod does not exist, a plugin refuses the container or does not answer, or two
    /// plugins set the same field.
    pub async fn create(&mut self, container: api::Container) -> Result<Merged> {
        let pod = self.pods.get(&container.pod_sandbox_id).cloned();
        let pod = pod.ok_or_else(|| format!("there is no pod {}", container.pod_sandbox_id))?;
        let merged = self.ask_to_create(pod.clone(), container).await?;
        let container = merged.container.clone();
        self.shared().containers.insert(container.id.clone(), container.clone());
        let (pod, container) = (Some(pod).into(), Some(container).into());
        let request = api::PostCreateContainerRequest { pod, container, ..Default::default() };
        self.notify(Event::PostCreateContainer, &request).await?;
        Ok(merged)
    }

    async fn ask_to_create(
        &mut self,
        pod: api::PodSandbox,
        container: api::Container,
    ) -> Result<Merged> {
        let mut creation = Creation::new(pod, container);
        for plugin in self.subscribed(Event::CreateContainer) {
            let answer = plugin.call(creation.request(), self.timeout).await?;
            creation = creation.answer(plugin.id(), &Rights::default(), answer)?;
        }
        let instances = self.plugins.iter().map(Connected::instance).collect();
        let request = creation.validation_request(instances);
        for plugin in self.subscribed(Event::ValidateContainerAdjustment) {
            let verdict = plugin.call(&request, self.timeout).await?;
            if verdict.reject {
                return Err(
                    format!("{} refused the container: {}", plugin.id(), verdict.reason).into()
                );
            }
        }
        let merged = creation.finish();
        self.shared().apply(&merged.updates);
        Ok(merged)
    }

    /// Starts a container: StartContainer, PostStartContainer.
    ///
    /// # Errors
    /// Fails when the container does not exist, or a plugin refuses the start or does not answer.
    pub async fn start_container(&mut self, id: &str) -> Result<()> {
        let (pod, container) = self.subject(id)?;
        let (pod, container) = (Some(pod).into(), Some(container).into());
        let request = api::StartContainerRequest { pod, container, ..Default::default() };
        self.notify(Event::StartContainer, &request).await?;
        let (pod, container) = (request.pod, request.container);
        let request = api::PostStartContainerRequest { pod, container, ..Default::default() };
        self.notify(Event::PostStartContainer, &request).await
    }

    /// Updates the resources of a container as an engine does: UpdateContainer,
    /// PostUpdateContainer.
    ///
    /// # Errors
    /// Fails when the container does not exist, a plugin refuses or does not answer, or two plugins
    /// set the same field.
    pub async fn update(&mut self, id: &str, resources: api::LinuxResources) -> Result<Updated> {
        let (pod, container) = self.subject(id)?;
        let (pod, container) = (Some(pod), Some(container));
        let request = api::UpdateContainerRequest {
            pod: pod.clone().into(),
            container: container.clone().into(),
            linux_resources: Some(resources).into(),
            ..Default::default()
        };
        let updated = self.ask_to_update(request).await?;
        let (pod, container) = (pod.into(), self.container(id).into());
        let request = api::PostUpdateContainerRequest { pod, container, ..Default::default() };
        self.notify(Event::PostUpdateContainer, &request).await?;
        Ok(updated)
    }

    async fn ask_to_update(&mut self, request: api::UpdateContainerRequest) -> Result<Updated> {
        let asked = engine_update(&request);
        let mut updates = Updates::for_update(request);
        for plugin in self.subscribed(Event::UpdateContainer) {
            let request = updates.request().ok_or("an update without a request")?.clone();
            let answer = plugin.call(&request, self.timeout).await?;
            updates.answer_update(plugin.id(), &Rights::default(), answer)?;
        }
        let updated = updates.finish();
        self.shared().apply(&[asked]);
        self.shared().apply(&updated.updates);
        Ok(updated)
    }

    /// Stops a container: StopContainer. Returns the updates in the plugins' answers.
    ///
    /// # Errors
    /// Fails when the container does not exist, or a plugin returns an error or does not answer.
    pub async fn stop(&mut self, id: &str) -> Result<Vec<api::ContainerUpdate>> {
        let (pod, container) = self.subject(id)?;
        let (pod, container) = (Some(pod).into(), Some(container).into());
        self.ask_at_stop(api::StopContainerRequest { pod, container, ..Default::default() }).await
    }

    async fn ask_at_stop(
        &mut self,
        request: api::StopContainerRequest,
    ) -> Result<Vec<api::ContainerUpdate>> {
        let mut updates = Updates::for_stop();
        for plugin in self.subscribed(Event::StopContainer) {
            let answer = plugin.call(&request, self.timeout).await?;
            updates.answer_stop(plugin.id(), &Rights::default(), answer)?;
        }
        let updates = updates.finish().updates;
        self.shared().apply(&updates);
        Ok(updates)
    }

    /// Removes a container: RemoveContainer.
    ///
    /// # Errors
    /// Fails when the container does not exist, or a plugin returns an error or does not answer.
    pub async fn remove(&mut self, id: &str) -> Result<()> {
        let (pod, container) = self.subject(id)?;
        let (pod, container) = (Some(pod).into(), Some(container).into());
        let request = api::RemoveContainerRequest { pod, container, ..Default::default() };
        self.notify(Event::RemoveContainer, &request).await?;
        self.shared().containers.remove(id);
        Ok(())
    }

    /// Sends the requests of a recording (`nri-runc nri replay --record`) to the plugins, and
    /// returns their answers.
    ///
    /// # Errors
    /// Fails when the file cannot be read, and at an invalid line.
    pub async fn replay(&mut self, recording: &Path) -> Result<Vec<Answered>> {
        recording::replay(self, recording).await
    }

    fn subject(&self, id: &str) -> Result<(api::PodSandbox, api::Container)> {
        let container = self.container(id).ok_or_else(|| format!("there is no container {id}"))?;
        let pod = self.pods.get(&container.pod_sandbox_id).cloned();
        Ok((pod.unwrap_or_default(), container))
    }

    fn subscribed(&self, event: Event) -> impl Iterator<Item = &Connected> {
        self.plugins.iter().filter(move |plugin| plugin.is_subscribed(event))
    }

    async fn notify<R: nri_transport::PluginRequest>(
        &self,
        event: Event,
        request: &R,
    ) -> Result<()> {
        for plugin in self.subscribed(event) {
            plugin.call(request, self.timeout).await?;
        }
        Ok(())
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        for plugin in &self.plugins {
            plugin.close("the runtime ended");
        }
        let _gone_already = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the values that the engine sets, as an update.
fn engine_update(request: &api::UpdateContainerRequest) -> api::ContainerUpdate {
    let resources = request.linux_resources.clone();
    let linux = api::LinuxContainerUpdate { resources, ..Default::default() };
    let container_id = request.container.id.clone();
    api::ContainerUpdate { container_id, linux: Some(linux).into(), ..Default::default() }
}

/// Puts the plugin's identity before its error.
fn refused(plugin: &str, why: impl std::fmt::Display) -> HandlerError {
    format!("{plugin}: {why}").into()
}
