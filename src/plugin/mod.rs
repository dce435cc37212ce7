// SPDX-License-Identifier: Apache-2.0
//! One NRI plugin: its bytes (`mux`), its handshake and calls (`session`), starting it
//! (`launch`), and what a missing reply means (`policy`). It knows neither bundles nor engines.

/// The generated messages and services.
pub mod api;
mod backpressure;
mod caller;
mod calls;
mod child;
mod discover;
mod event;
mod frame;
mod identity;
/// Messages as JSON.
pub mod json;
mod launch;
pub mod mux;
mod notify;
mod outcome;
mod outgoing;
mod policy;
mod process;
mod session;
mod snapshot;
/// The socket that plugins connect to.
pub mod socket;
mod stream;
pub mod stub;
mod turns;

pub use discover::{PluginFile, Unusable, discover};
pub use event::{ALL_EVENTS, Event};
pub use identity::PluginIdentity;
pub use launch::Launched;
pub use outcome::Outcome;
pub use policy::Policy;
pub use process::ProcessLog;
pub use session::{Plugin, SessionError, Settings, Upcalls, handshake};
pub use snapshot::{Encoded, EncodedSnapshot};
pub use turns::{busy_plugins, with_caller_deadline};
