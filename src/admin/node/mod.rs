// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri node`: the process of a DaemonSet's pod. It puts nri-runc on the node whose root
//! is mounted at `--root`, registers it, restarts the engine if needed, verifies and labels the
//! node, reports missing plugins and refusals to the cluster, and serves probes. On SIGTERM the
//! node stays as it is, or with `--uninstall-on-exit` is restored once no container needs nri-runc.
//!
//! The setup restarts the engine only if the registration changed, if an earlier setup ended before
//! it had confirmed its restart, or if the engine does not have the handler. Once the node is ready,
//! only the removal restarts the engine. `node` never removes a file that was edited after `node` wrote it.

mod cluster;
mod conditions;
mod health;
mod helper;
mod pod_events;
mod program;
mod record;
mod removal;
mod setup;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::cluster::{ClusterReporter, ReportOptions};
use self::health::Health;
use self::helper::{DaemonSetState, Helper};
use self::removal::take_back;
use self::setup::NodeSetup;
use self::signals::EndSignals;
use super::install::Install;
use super::{DONE, FAILED, print};
use crate::config;
use crate::error::{Error, Result};
use crate::messages;
use crate::text::printable;

/// Pause before another attempt after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Interval at which the engine is checked for the handler.
const CHECK_PAUSE: Duration = Duration::from_secs(30);

/// `node`.
#[derive(Debug, Args)]
pub(super) struct NodeOptions {
    #[command(flatten)]
    install: Install,
    /// Configuration for the node, written to /etc/nri-runc/config.d.
    #[arg(long, value_name = "FILE")]
    node_config: Option<PathBuf>,
    /// Unit that runs the engine (repeatable: the active one is used).
    #[arg(long, value_name = "UNIT")]
    unit: Vec<String>,
    /// Never restart the engine: print the command and wait.
    #[arg(long)]
    no_restart: bool,
    /// This node's name in Kubernetes; without it, no label is set.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Label of a node that is ready.
    #[arg(long, value_name = "KEY=VALUE", default_value = "nri-runc.dev/ready=true")]
    label: String,
    #[command(flatten)]
    report: ReportOptions,
    /// Serve /healthz and /readyz at this address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = health::address)]
    listen: Option<SocketAddr>,
    /// Undo everything on SIGTERM, once no container uses nri-runc.
    #[arg(long)]
    uninstall_on_exit: bool,
    /// ... but only if this DaemonSet is being deleted.
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "uninstall_on_exit")]
    daemonset: Option<String>,
    /// How long SIGTERM waits for containers that use nri-runc.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    removal_wait: String,
    /// Program that talks to systemd and to Kubernetes.
    #[arg(long, value_name = "PATH", default_value = "/nri-runc-node-helper")]
    helper: PathBuf,
    /// Exit once the node is ready.
    #[arg(long)]
    once: bool,
}

#[derive(Debug)]
struct NodeLabel {
    node: String,
    key: String,
    value: String,
}

/// Prints one line to the pod's log.
fn log(line: &str) {
    let _nobody_reads =
        print(format!("nri-runc: {}\n", messages::with_code(&printable(line))).as_bytes());
}

/// Sets the node up, with retries, and keeps it so until a signal; then, with `--uninstall-on-exit`,
/// undoes the setup unless only this pod is replaced. With `--once`, sets the node up without retries.
///
/// # Errors
/// Fails on invalid options, or when the probes cannot be served; with `--once`, when a step fails.
pub(super) fn node(options: &NodeOptions) -> Result<u8> {
    let signals = EndSignals::block()?;
    let removal_wait = config::parse_duration(&options.removal_wait)
        .ok_or_else(|| Error::new("--removal-wait requires a duration, such as 90s or 5m"))?;
    let label = label_of(options)?;
    let health = Health::serve(options.listen)?;
    let daemonset = options.daemonset.as_deref();
    let setup = NodeSetup::new(options, label)?;
    // If reading the DaemonSet is forbidden even now, a refusal at exit does not show that it was deleted.
    let may_ask = daemonset.is_none_or(|name| {
        let state = setup.helper().daemonset(name);
        if let DaemonSetState::Unknown(why) = &state {
            log(&format!("cannot read the DaemonSet {name}: {why}"));
        }
        matches!(state, DaemonSetState::Present | DaemonSetState::BeingDeleted)
    });
    if options.once {
        return setup.put_in_place(&signals).map(|()| DONE);
    }
    let node = options.node_name.as_deref();
    let folder = setup.on.folder();
    let reporter = ClusterReporter::start(&options.report, node, setup.helper(), &folder)?;
    keep_in_place(&setup, &health, &signals);
    health.not_ready("stopping");
    if let Some(reporter) = reporter {
        reporter.end();
    }
    if !options.uninstall_on_exit || !is_being_removed(setup.helper(), daemonset, may_ask) {
        log("stopped; nri-runc stays on this node");
        return Ok(DONE);
    }
    match take_back(&setup, &signals, removal_wait) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            log(&format!("not removed: {error}"));
            Ok(FAILED)
        }
    }
}

/// Sets the node up, with retries, and watches it until a signal.
fn keep_in_place(setup: &NodeSetup, health: &Health, signals: &EndSignals) {
    let mut was = String::new();
    while !signals.came() {
        let state = setup.put_in_place(signals);
        if signals.came() {
            return;
        }
        match state {
            Ok(()) => {
                health.ready();
                was.clear();
                watch(setup, health, signals);
            }
            Err(error) => {
                let line = error.to_string();
                health.not_ready(&line);
                if line != was {
                    log(&line);
                }
                was = line;
                signals.wait(RETRY_PAUSE);
            }
        }
    }
}

/// Checks at intervals whether the engine still has the handler. If not, removes the node's label, so that no
/// pod that needs the handler is scheduled here. Does not restart the engine, because another program has
/// edited the engine's files.
fn watch(setup: &NodeSetup, health: &Health, signals: &EndSignals) {
    let mut is_lost = false;
    while !signals.wait(CHECK_PAUSE) {
        let lost = setup.lost();
        if lost.is_some() == is_lost {
            continue;
        }
        is_lost = lost.is_some();
        match lost {
            Some(line) => {
                log(&line);
                health.not_ready(&line);
                setup.set_label(false);
            }
            None => {
                log("ready again");
                setup.set_label(true);
                health.ready();
            }
        }
    }
}

/// Whether SIGTERM means that nri-runc is removed from the node: not if the DaemonSet only replaces
/// this pod, nor if the DaemonSet's state is unknown.
fn is_being_removed(helper: &Helper, daemonset: Option<&str>, may_ask: bool) -> bool {
    let Some(name) = daemonset else { return true };
    match helper.daemonset(name) {
        DaemonSetState::BeingDeleted => true,
        DaemonSetState::Present => false,
        DaemonSetState::Forbidden => {
            // The permission is deleted along with the DaemonSet.
            may_ask
        }
        DaemonSetState::Unknown(why) => {
            log(&format!("cannot read the DaemonSet {name}: {why}"));
            false
        }
    }
}

fn label_of(options: &NodeOptions) -> Result<Option<NodeLabel>> {
    let Some(node) = options.node_name.clone().filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let Some((key, value)) = options.label.split_once('=').filter(|(key, _)| !key.is_empty())
    else {
        return Err(Error::new(format!("--label {} is not KEY=VALUE", options.label)));
    };
    Ok(Some(NodeLabel { node, key: key.to_owned(), value: value.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(script: &str) -> (tempfile::TempDir, Helper) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("helper");
        crate::files::replace(&path, format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        (temp, Helper::new(path, PathBuf::from("/none")))
    }

    #[test]
    fn only_a_deleted_daemonset_uninstalls() {
        let of = |script: &str, may_ask| {
            let (_temp, helper) = helper(script);
            is_being_removed(&helper, Some("kube-system/nri-runc"), may_ask)
        };
        assert!(!of("echo '{\"metadata\":{}}'", true), "a rollout replaces the pod");
        assert!(of("echo '{\"metadata\":{\"deletionTimestamp\":\"2026-01-01T00:00:00Z\"}}'", true));
        assert!(of("exit 4", true), "it is gone");
        assert!(of("exit 3", true), "the right to ask went first");
        assert!(!of("exit 3", false), "the right to ask was never there");
        assert!(!of("exit 1", true), "the API server does not answer");
        assert!(!of("echo no JSON", true));
        let (_temp, other) = helper("exit 1");
        assert!(is_being_removed(&other, None, true), "without a name each SIGTERM is the end");
    }
}
