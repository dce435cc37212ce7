// SPDX-License-Identifier: Apache-2.0
//! One NRI plugin: its bytes (`mux`), its handshake and calls (`session`), starting it
//! (`launch`), and what its silence means (`policy`). It knows neither bundles nor engines.

/// The generated messages and services.
pub mod api;
mod caller;
mod calls;
mod event;
mod identity;
mod inflow;
/// Messages as JSON.
pub mod json;
mod launch;
mod line;
pub mod mux;
mod notify;
mod outgoing;
mod policy;
mod session;
mod snapshot;
/// The socket that plugins connect to.
pub mod socket;
pub mod stub;
mod turns;

pub use event::{ALL_EVENTS, Event};
pub use identity::Identity;
pub use launch::{Launched, PluginFile, Unusable, discover};
pub use policy::Policy;
pub use session::{Outcome, Plugin, SessionError, Settings, Upcalls, handshake};
pub use snapshot::{Encoded, Snapshot};
pub use turns::{too_busy, until};
