// SPDX-License-Identifier: Apache-2.0
//! Containers from create to delete: unusual documents and lifecycles, and the events that plugins
//! receive.

mod adjusted_messages;
mod edited_documents;
mod exit_reasons;
mod missing_engine_files;
mod node_scope;
mod odd_documents;
mod restore;
mod run;
mod shared_bundles;
mod unusual_lifecycles;
