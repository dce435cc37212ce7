// SPDX-License-Identifier: Apache-2.0
//! A framework for plugins of the Node Resource Interface (NRI).
//!
//! A container runtime (containerd, CRI-O, or any engine with nri-runc) asks plugins about each
//! container before creating it. A plugin implements [`Handler`], or [`BlockingHandler`] without
//! async, lists its events, and ends `main` with [`main`]:
//!
//! ```no_run
//! use nri_plugin::{Adjustment, Context, Event, Handler, Result, api, async_trait};
//!
//! struct Greeter;
//!
//! #[async_trait]
//! impl Handler for Greeter {
//!     fn events(&self) -> &[Event] {
//!         &[Event::CreateContainer]
//!     }
//!
//!     async fn create_container(
//!         &self,
//!         _: &Context,
//!         request: api::CreateContainerRequest,
//!     ) -> Result<api::CreateContainerResponse> {
//!         let greeting = format!("hello {}", request.container.name);
//!         Ok(Adjustment::new().env("GREETING", &greeting).into())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     nri_plugin::main("10-greeter", Greeter)
//! }
//! ```
//!
//! The runtime can launch this program, which then inherits its socket as a descriptor. If it is
//! started from a shell, it connects to the runtime's socket; with `--reconnect` it reconnects with
//! increasing pauses, and is synchronized again.
//!
//! * [`Plugin`] does the same without a command line, over a socket, a descriptor or a stream.
//!   [`PluginHandle`] waits until the plugin is ready, answers readiness probes, updates containers
//!   unprompted, and ends the plugin.
//! * [`Context`] comes with each request: the time that remains for the answer, and the runtime.
//! * [`Adjustment`], [`Update`] and [`Updates`] build answers. A misuse does not compile: an update
//!   without a container or without a value, an environment variable for a container that exists
//!   already.
//! * [`Cache`] contains the pods and containers of the node, and follows the events.
//! * [`ExtensionEvent`]: events in addition to NRI's, which nri-runc sends: about processes that
//!   `exec` starts, and the results of updates. [`Handler::extension_events`] subscribes to them.
//! * [`annotation`] finds the annotation of a pod that applies to a container.
//! * Feature `harness`: a runtime for tests, in the process of the test.
//! * Feature `program`, on by default: [`main`].
//!
//! Everything runs on tokio and logs with `tracing`. The crate depends on no particular
//! container runtime.

mod annotations;
mod answers;
mod cache;
mod context;
mod extension;
mod handler;
#[cfg(feature = "harness")]
pub mod harness;
mod launched;
mod plugin;
#[cfg(feature = "program")]
mod program;
mod progress;
mod resources;
mod service;
mod stub;
mod subscription;

pub use async_trait::async_trait;
pub use nri_api as api;
pub use nri_api::event::{ALL_EVENTS, Event};
pub use nri_api::extension::ExtensionEvent;

pub use annotations::annotation;
pub use answers::{Adjustment, Device, Mount, Updates, UpdatesWithEvictions};
pub use cache::Cache;
pub use context::{Context, RuntimeHandle};
pub use handler::{Blocking, BlockingHandler, Handler};
pub use plugin::{DEFAULT_SOCKET, Plugin, PluginHandle};
#[cfg(feature = "program")]
pub use program::main;
pub use resources::{Resources, Update, UpdateTarget};
pub use stub::Stub;

/// Any error of a plugin; operators read its text.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;
/// The result of a handler.
pub type Result<T> = std::result::Result<T, HandlerError>;

/// Returns the peer's error message, without ttRPC's envelope.
fn status_message(error: ttrpc::Error) -> String {
    if let ttrpc::Error::RpcStatus(status) = error {
        return status.message().to_owned();
    }
    error.to_string()
}
