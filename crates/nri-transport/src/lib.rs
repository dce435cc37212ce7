// SPDX-License-Identifier: Apache-2.0
//! The connection between a container runtime and a plugin of the Node Resource Interface (NRI),
//! for both sides.
//!
//! One stream carries two ttRPC connections: over the first the runtime calls the plugin, over the
//! second the plugin calls the runtime. This crate splits the stream, limits what the peer may
//! send, makes calls, and registers plugins. It handles neither events nor containers;
//! `nri-plugin`, built on it, is for writing plugins.
//!
//! * [`split`] returns both connections as byte streams for ttRPC's clients and servers, for the
//!   plugin's side.
//! * [`split_to_call`] returns a [`PluginCaller`] instead of the first, for the runtime's side. It encodes
//!   each request directly into frames, and [saves](PluginCaller::save) a connection between two calls for
//!   the program that this process executes next.
//! * [`serve_runtime`] and [`register`] are the two sides of the registration.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use tokio::net::UnixStream;
//! use nri_transport::{NoUpcalls, client, register, serve_runtime, split, split_to_call};
//!
//! # async fn both() -> Result<(), Box<dyn std::error::Error>> {
//! let (ours, theirs) = UnixStream::pair()?;
//! // The runtime waits for a plugin.
//! let (trunk, _caller, connection) = split_to_call(ours)?;
//! let mut server = serve_runtime(&trunk, connection, None, Arc::new(NoUpcalls)).await?;
//! // The plugin registers.
//! let (_trunk, _plugin, connection) = split(theirs)?;
//! register(&client(connection), "10", "greeter", Duration::from_secs(5)).await?;
//! let identity = server.registered(&trunk, Duration::from_secs(5)).await?;
//! assert_eq!(identity.to_string(), "10-greeter");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(both()).unwrap();
//! ```
//!
//! The example `handshake` does the same over a socket, and configures the plugin. Everything runs
//! on tokio. Reference: `pkg/net/multiplex` of NRI and the protocol of ttRPC, unary calls only.

mod backpressure;
mod caller;
mod copies;
mod frame;
mod handshake;
mod mux;
mod outgoing;
mod stream;
mod unread;

pub use caller::{
    Metadata, PLUGIN_SERVICE, PluginCaller, PluginRequest, RequestSubject, Unanswered,
};
pub use copies::CallCopies;
pub use frame::{TTRPC_LIMIT, Trunk};
pub use handshake::{
    NRI_VERSION, NoUpcalls, NotRegistered, RuntimeServer, Upcalls, client, clients, register,
    resume_runtime, serve_plugin, serve_runtime,
};
pub use mux::{CLOSED, Connection, SavedTrunk, continue_to_call, split, split_to_call};
pub use unread::{Blob, OpenRequests};

/// Returns why a stream ended, for a log: the system's text in lower case, without its number.
fn end_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}
