// SPDX-License-Identifier: Apache-2.0
//! Handles a container's life between the verbs: the outcome of a verb (`settle.rs`), its changes
//! of state (`state.rs`), its exit, its removal, and the rollback of a creation that failed.
//!
//! This module never refuses: it handles events that have already happened, and passes on a plugin's
//! refusal of StartContainer (`notify.rs`). It imports `bundle`, `shared`, `pods`, `resources`, `runtime` and `watch`.

mod behind;
pub(crate) mod carry_over;
pub(crate) mod exit;
pub(crate) mod late_start;
pub(crate) mod notify;
pub(crate) mod refusal;
pub(crate) mod removal;
pub(crate) mod rollback;
pub(crate) mod settle;
pub(crate) mod state;
pub(crate) mod stop;
mod task_exits;
pub(crate) mod until_removed;
pub(crate) mod update_outcome;
