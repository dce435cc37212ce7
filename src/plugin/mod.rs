// SPDX-License-Identifier: Apache-2.0
//! One NRI plugin: its bytes (`mux`), its handshake and calls (`session`), starting it
//! (`launch`), and what its silence means (`policy`). It knows neither bundles nor engines.

/// The generated messages and services.
pub mod api;
mod event;
mod launch;
pub mod mux;
mod policy;
mod session;
pub mod stub;

pub use event::{ALL_EVENTS, Event};
pub use launch::{Launched, PluginFile, discover};
pub use policy::Policy;
pub use session::{Identity, Outcome, Plugin, SessionError, Settings, Upcalls, handshake};
