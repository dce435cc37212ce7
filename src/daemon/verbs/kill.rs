// SPDX-License-Identifier: Apache-2.0
//! Decides `kill` of a pod's infrastructure container: sends StopPodSandbox before the signal
//! (D37). It never fails because of the daemon, and delays the runtime by a second at most.

use std::rc::Rc;
use std::time::Duration;

use crate::argv;
use crate::daemon::pods::stopping;
use crate::daemon::request::VerbRequest;
use crate::daemon::runtime::exit_status;
use crate::daemon::shared::Daemon;
use crate::host::Host;
use crate::presence::IfThere;
use crate::procfs;
use crate::state::{Container, Lifecycle};

/// Longest wait of a `kill` for its container's turn, and then for plugins; less than the wrapper's wait of a second.
pub(crate) const KILL_WAIT: Duration = Duration::from_millis(900);

/// Time limit of the wait for members' exits that are not reported yet, and the interval of checks.
const EXITS_WAIT: Duration = Duration::from_millis(300);
const EXITS_CHECK: Duration = Duration::from_millis(5);

/// Handles a `kill`, which is never refused.
pub(crate) async fn kill(daemon: &Rc<Daemon>, call: &VerbRequest) {
    let signal = argv::ending_signal(&call.command_line);
    let sandbox = daemon.container(&call.key).filter(|record| record.is_sandbox);
    let (Some(signal), Some(sandbox)) = (signal, sandbox) else { return };
    if !will_end(&daemon.host, &sandbox, signal) {
        return;
    }
    let (daemon, active) = (Rc::clone(daemon), daemon.process.activity.begin());
    let told = tokio::task::spawn_local(async move {
        wait_for_exits(&daemon, &sandbox.pod).await;
        stopping::stop_with_sandbox(&daemon, &sandbox).await;
        drop(active);
    });
    let _finishes_in_the_background = tokio::time::timeout(KILL_WAIT, told).await;
}

/// Whether the signal will end the process: the first process of a PID namespace dies by SIGKILL,
/// and receives other signals only if it handles them.
fn will_end(host: &Host, sandbox: &Container, signal: u8) -> bool {
    const KILL: u8 = 9;
    let Some(pid) = sandbox.process.init_pid else { return false };
    if exit_status::has_exited(host, sandbox) {
        return true; // The process has already exited.
    }
    // If it is uncertain whether the process ends, plugins are notified once it has.
    let dispositions = procfs::dispositions(host, pid).or_absent().flatten();
    signal == KILL
        || dispositions.is_some_and(|process| {
            process.handles(signal) || (!process.is_first && !process.ignores(signal))
        })
}

/// Waits until the exits of members that the engine has already killed are settled and reported.
async fn wait_for_exits(daemon: &Daemon, pod: &str) {
    let deadline = tokio::time::Instant::now() + EXITS_WAIT;
    while has_unreported_exit(daemon, pod) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(EXITS_CHECK).await;
    }
}

fn has_unreported_exit(daemon: &Daemon, pod: &str) -> bool {
    let store = daemon.records.read();
    store.of_pod(pod).filter(|member| !member.is_sandbox).any(|member| {
        let is_alive = matches!(member.state, Lifecycle::Created | Lifecycle::Running);
        is_alive && exit_status::has_exited(&daemon.host, member)
    })
}
