// SPDX-License-Identifier: Apache-2.0
//! Handles one NRI plugin: its handshake and calls (`session`), its start (`launch`), and missing replies (`policy`).
//! `nri-transport` handles the bytes. This module does not use bundles or engines.

mod calls;
mod child;
mod discover;
mod extension;
mod handover;
mod latency;
mod launch;
mod meter;
mod notify;
pub(crate) mod outcome;
mod policy;
mod process;
mod send;
pub(crate) mod session;
pub(crate) mod snapshot;
/// The socket that plugins connect to.
pub(crate) mod socket;
mod turns;

pub(crate) use calls::EncodedCreation;
/// The messages and services of NRI.
pub use nri_api as api;
pub use nri_api::event::{ALL_EVENTS, Event};
pub(crate) use nri_api::identity::PluginIdentity;
pub(crate) use nri_api::json;
pub(crate) use nri_transport::{CallCopies, Upcalls};

pub(crate) use discover::{PluginFile, Unusable, UnusableKind, discover, identities};
pub(crate) use handover::SavedPlugin;
pub use latency::{AnswerTimes, Quantiles};
pub(crate) use launch::Launched;
pub use meter::{CallMeter, CallSample};
pub use nri_transport::RequestSubject;
pub(crate) use outcome::Outcome;
pub(crate) use policy::Policy;
pub(crate) use process::ProcessLog;
pub(crate) use session::{NRI_VERSION, Plugin, Settings, SyncProgress, handshake};
pub(crate) use snapshot::{Encoded, EncodedSnapshot};
pub(crate) use turns::{busy_plugins, caller_deadline, with_caller_deadline};
