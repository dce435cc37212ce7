// SPDX-License-Identifier: Apache-2.0
//! Defines the state that the daemon hands to the next program. Records are on disk; this is the state that is only in
//! memory: the numbers of descriptors, the plugins' connections, and the pods and containers that each plugin knows.
//! A program skips members that it does not know, and uses defaults for missing ones.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::PluginCounts;
use crate::daemon::reexec::Reexec;
use crate::daemon::registry::Registry;
use crate::daemon::registry::connected::{ConnectedPlugin, Subject};
use crate::daemon::registry::socket::SavedSocket;
use crate::daemon::server::http::SavedMetrics;
use crate::plugin::{PluginFile, SavedPlugin};
use crate::state::ContainerKey;

/// The state that one program leaves for the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedDaemon {
    /// The version of the program that left the state.
    pub(super) version: String,
    /// The run directory, which has the records.
    pub(super) run_dir: PathBuf,
    /// The time from which requests were held, in nanoseconds of the monotonic clock.
    pub(super) held_at: u64,
    pub(super) lock: RawFd,
    pub(super) stand_in: Option<RawFd>,
    pub(super) wrappers: SavedWrapperSocket,
    pub(super) plugin_socket: SavedSocket,
    pub(super) metrics: Option<SavedMetrics>,
    pub(super) plugins: Vec<SavedConnection>,
    /// Pods and containers that plugins know.
    pub(super) subjects: Vec<Subject>,
    pub(super) inits: Vec<SavedInit>,
    /// Connections of operators that wait for the next program.
    #[serde(default)]
    pub(super) callers: Vec<RawFd>,
    /// Remaining time in which plugins that protected execs may return, in milliseconds.
    #[serde(default)]
    pub(super) execs_expected: u64,
    /// The event stream for other programs.
    #[serde(default)]
    pub(super) events: Value,
}

/// The socket for wrappers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedWrapperSocket {
    pub(super) descriptor: RawFd,
    /// Whether the daemon (not the service manager) owns the socket's file.
    pub(super) has_file: bool,
}

/// A registered plugin.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedConnection {
    pub(super) plugin: SavedPlugin,
    pub(super) counts: PluginCounts,
    /// The pods and containers that the plugin knows, as indexes of `subjects`.
    pub(super) known: Vec<u32>,
    /// The file of a launched plugin, and its number of starts.
    pub(super) launched: Option<(PluginFile, u64)>,
}

/// An init process that is watched.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedInit {
    pub(super) key: ContainerKey,
    pub(super) incarnation: u64,
    /// The process's descriptor; `None` if the process has been reaped.
    pub(super) process: Option<RawFd>,
}

impl SavedDaemon {
    /// Returns every descriptor that the state names.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let plugins = self.plugins.iter().flat_map(|saved| {
            let output = saved.plugin.process.as_ref().and_then(|process| process.output);
            [Some(saved.plugin.descriptor), output]
        });
        let inits = self.inits.iter().map(|init| init.process);
        let metrics = self.metrics.as_ref().map(|metrics| metrics.descriptor);
        let few = [self.stand_in, self.plugin_socket.descriptor, metrics];
        let callers = self.callers.iter().copied();
        let more = plugins.chain(inits).chain(few).flatten();
        more.chain([self.lock, self.wrappers.descriptor]).chain(callers).collect()
    }
}

impl Reexec<'_> {
    /// Captures the state; `callers` are connections on which the next program answers.
    pub(super) fn save(&self, callers: Vec<RawFd>, held_at: u64) -> SavedDaemon {
        let daemon = self.daemon;
        let (mut subjects, mut places) = (Vec::new(), HashMap::new());
        let connected = daemon.registry.connected();
        let plugins = connected
            .iter()
            .map(|plugin| save_plugin(&daemon.registry, plugin, &mut subjects, &mut places));
        let inits = daemon.watches.init_watches.all().into_iter();
        let inits =
            inits.map(|(key, incarnation, process)| SavedInit { key, incarnation, process });
        let execs_left = daemon.registry.returning.execs.left();
        SavedDaemon {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run_dir: daemon.config().run_dir.clone(),
            held_at,
            lock: self.run_dir.lock_number(),
            stand_in: daemon.process.stand_in.borrow().as_ref().map(|stand_in| stand_in.number()),
            wrappers: SavedWrapperSocket {
                descriptor: self.run_dir.listener_number(),
                has_file: self.run_dir.has_own_socket(),
            },
            plugin_socket: daemon.registry.socket.save(),
            metrics: self.metrics.borrow().save(),
            plugins: plugins.collect(),
            subjects,
            inits: inits.collect(),
            callers,
            execs_expected: execs_left.as_millis().try_into().unwrap_or(0),
            events: daemon.stream.save(),
        }
    }
}

fn save_plugin(
    registry: &Registry,
    connected: &Rc<ConnectedPlugin>,
    subjects: &mut Vec<Subject>,
    places: &mut HashMap<Subject, u32>,
) -> SavedConnection {
    let known = connected.known().into_iter().map(|subject| {
        *places.entry(subject).or_insert_with_key(|subject| {
            subjects.push(subject.clone());
            u32::try_from(subjects.len() - 1).unwrap_or(u32::MAX)
        })
    });
    let known = known.collect();
    SavedConnection {
        plugin: connected.connection().save(),
        counts: connected.chained.counts(),
        known,
        launched: registry.roster.launched_file(connected.id()),
    }
}
