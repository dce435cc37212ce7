// SPDX-License-Identifier: Apache-2.0
//! The conditions under which `mod.rs` passes a command straight to the real runtime, without any
//! connection or write, except that a create removes a stale mark. For `exec` and `kill`, `later.rs`
//! and `marked.rs` decide first. `refuse_rootless` refuses a container instead.

use std::path::Path;

use crate::argv::{self, CommandLine, Verb};
use crate::config::{self, Config, RootlessPolicy, rootless};
use crate::error::{Error, Result};
use crate::presence::IfThere;
use crate::runtime::RuntimeKind;

/// Whether the command causes NRI events: a create, start, update or delete that acts on a container.
pub(super) fn involves_plugins(call: &CommandLine) -> bool {
    let ours =
        call.verb.creates() || matches!(call.verb, Verb::Start | Verb::Update | Verb::Delete);
    ours && acts_on_container(call)
}

/// Whether the command has an ID and does more than print its help.
pub(super) fn acts_on_container(call: &CommandLine) -> bool {
    // For the IDs `help` and `h`, runc 1.6 prints help, and every other runtime creates a container
    // of that name. Plugins are asked for them, or a container could evade the plugins by its name.
    let is_help_by_name = call.id.as_deref().is_some_and(|id| id == "help" || id == "h");
    call.id.is_some() && (is_help_by_name || !call.is_inert)
}

/// Whether the runtime will surely refuse this ID, so that no plugin has to be asked: no runtime
/// accepts it, or runc does not. Another runtime, even if a link calls it runc, may accept more.
pub(super) fn will_refuse_id(runtime: &Path, call: &CommandLine) -> bool {
    let Some(id) = call.id.as_deref() else { return false };
    let is_runc = || {
        let real = std::fs::canonicalize(runtime).or_absent().unwrap_or_default();
        let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        RuntimeKind::named(name) == RuntimeKind::Runc
    };
    argv::is_never_an_id(id) || (!argv::is_id_of_runc(id) && is_runc())
}

/// Whether every command passes through: because the configuration or the command `disable`
/// disables plugins, or because this process is not the host's root and its user has no daemon
/// (D7).
pub(super) fn is_switched_off(config: &Config) -> bool {
    config.is_disabled() || (!config.is_of_user() && config::is_unprivileged())
}

/// Refuses a container of an unprivileged user, if the policy of root's daemon says so (decision
/// D58).
///
/// # Errors
/// Fails if the policy file says so, or exists and cannot be read.
pub(super) fn refuse_rootless(config: &Config) -> Result<()> {
    if !config::is_unprivileged() {
        return Ok(());
    }
    match rootless::read(&config.rootless_marker())? {
        RootlessPolicy::Pass => Ok(()),
        RootlessPolicy::Refuse => Err(Error::new(
            "on_rootless refuses containers of unprivileged users on this node, since plugins do not receive them",
        )
        .hint("nothing was changed or started; use root's engine, or ask the administrator")),
    }
}
