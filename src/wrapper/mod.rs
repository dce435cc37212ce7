// SPDX-License-Identifier: Apache-2.0
//! Handles one command per process: asks the daemon, puts the patched document in place, and becomes the real runtime.
//!
//! The wrapper forks only to start the daemon (decision D6), prints nothing before the real runtime
//! runs, and every successful path ends in `execve`. It runs async code only if no daemon answers and
//! containers are protected (`protection`). A command without NRI events goes straight to the runtime,
//! except an `exec` that the audit log, exec rules or plugins need (`later.rs`), and an `exec` or
//! `kill` of a container with a mark (`marked.rs`).

mod admin_request;
mod bypass;
mod commit;
mod connection;
mod create;
mod exec;
mod failure;
mod hook;
mod invocation;
mod later;
mod launch;
mod marked;
mod notify;
mod pass_through;
mod protection;
mod refusal;
mod request;
mod update;

use std::convert::Infallible;
use std::ffi::OsString;

pub(crate) use admin_request::{admin, admin_stream, has_ended, other_protocol};
pub(crate) use connection::{is_listening, is_silent};
pub(crate) use hook::hook;
pub use later::process_in;
pub(crate) use launch::start_daemon;

use crate::argv::{self, CommandLine, Verb};
use crate::config::{self, Config, Loaded};
use crate::error::{Context, Result};
use crate::runtime;

use invocation::Invocation;
use later::ExecInterest;
use pass_through::{involves_plugins, is_switched_off, will_refuse_id};

/// Exit code of the wrapper's own failures on runtime verbs, as runc's.
const FAILED: u8 = 1;

/// Exit code of the wrapper's own failures on `exec`: runc reserves the small codes for the
/// process.
const EXEC_FAILED: u8 = 255;

/// Runs a runtime verb; returns (with an exit code) only when it failed.
pub fn run(argv: &[OsString]) -> u8 {
    let call = argv::read(argv);
    if call.verb == Verb::None && runtime::is_tried() {
        failure::report(&call, &runtime::executes_us());
        return FAILED;
    }
    let loaded = config::insist_for_this_process();
    match loaded.and_then(|loaded| become_the_runtime(argv, &call, loaded)) {
        Ok(never) => match never {},
        Err(error) => {
            failure::report(&call, &error);
            if call.verb == Verb::Exec { EXEC_FAILED } else { FAILED }
        }
    }
}

/// Returns the settings of the user's own daemon, if this process's user is not the host's root and has
/// one. Fails, before the user's daemon is asked, if the call creates a container and root's policy
/// refuses it, or the policy or these settings are unreadable.
fn own_daemon(config: &Config, call: &CommandLine) -> Result<Option<Box<Config>>> {
    let is_create = call.verb.creates() && involves_plugins(call);
    let own = match config::of_own_daemon(config) {
        Ok(Some(own)) => own,
        Err(error) if is_create => return Err(error).doing(|| invocation::doing(call)),
        // Without readable settings of the user's own daemon, root's runtimes apply.
        Ok(None) | Err(_) => return Ok(None),
    };
    if is_create {
        pass_through::refuse_rootless(config).doing(|| invocation::doing(call))?;
    }
    Ok(Some(own))
}

fn become_the_runtime(argv: &[OsString], call: &CommandLine, loaded: Loaded) -> Result<Infallible> {
    let (config, runtime) = match own_daemon(&loaded.config, call)? {
        Some(own) => runtime::resolve(&own, argv.first()).map(|runtime| (own, runtime))?,
        None => runtime::resolve_loaded(loaded, argv.first())?,
    };
    let config = &config;
    let interest = later::interest(config, call);
    let mark = marked::mark_of(config, call, &runtime, interest);
    let is_concerned = interest != ExecInterest::Nothing || !matches!(mark, Ok(None));
    if is_concerned && !is_switched_off(config) {
        let mut invocation = Invocation::new(argv, call, config, runtime);
        let doing = invocation.doing();
        let executed = mark.and_then(|mark| match call.verb == Verb::Exec {
            true => invocation.exec_later_process(interest, mark.as_ref()),
            false => invocation.kill_sandbox(),
        });
        return executed.doing(|| doing);
    }
    if !involves_plugins(call) || is_switched_off(config) || will_refuse_id(&runtime, call) {
        if call.verb.creates() {
            if involves_plugins(call) {
                pass_through::refuse_rootless(config).doing(|| invocation::doing(call))?;
            }
            marked::remove_stale(config, call, &runtime);
        }
        return runtime::replace_process(&runtime, argv);
    }
    let invocation = Invocation::new(argv, call, config, runtime);
    let executed = match call.verb {
        Verb::Create | Verb::Run | Verb::Restore => invocation.create(),
        Verb::Update => invocation.update(),
        Verb::Start => invocation.notify_daemon(),
        // A `delete` never fails because the daemon cannot be notified.
        Verb::Delete => invocation.notify_daemon().or_else(|_| invocation.exec_unchanged()),
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => {
            invocation.exec_unchanged()
        }
        Verb::Nri | Verb::Other | Verb::None => invocation.exec_unchanged(),
    };
    executed.doing(|| invocation.doing())
}
