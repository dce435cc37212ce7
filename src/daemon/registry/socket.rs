// SPDX-License-Identifier: Apache-2.0
//! Keeps the state of the plugin socket: whether this daemon or another process listens on it, and since when.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::answers::{Listener, ListeningState, SocketState};
use crate::plugin::socket::{NoPlugins, SocketFile};

/// The plugin socket: this daemon's listener, or why it has none, and since when.
#[derive(Debug, Default)]
pub(crate) struct PluginSocket {
    /// The socket file that this daemon made.
    pub(crate) file: Cell<Option<SocketFile>>,
    /// The descriptor of the listener, while the daemon accepts plugins.
    pub(crate) listener: Cell<Option<RawFd>>,
    pub(crate) problem: RefCell<Option<NoPlugins>>,
    pub(crate) since: Cell<i64>,
    /// Whether the daemon has been in charge of plugins at any time since its start, even if none could connect.
    pub(crate) was_open: Cell<bool>,
    pub(crate) accepting: RefCell<Option<JoinHandle<()>>>,
    /// The task that watches the path.
    pub(crate) keeping: RefCell<Option<JoinHandle<()>>>,
}

/// The plugin socket, saved for the next program.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedSocket {
    /// The listener, if plugins can connect.
    pub(crate) descriptor: Option<RawFd>,
    pub(crate) file: Option<SocketFile>,
    pub(crate) since: i64,
    pub(crate) was_open: bool,
}

impl PluginSocket {
    /// Returns the socket's state for the next program.
    pub(crate) fn save(&self) -> SavedSocket {
        let file = self.file.get();
        SavedSocket {
            descriptor: file.and(self.listener.get()),
            file,
            since: self.since.get(),
            was_open: self.was_open.get(),
        }
    }

    /// Whether another process, normally the engine, has served NRI plugins ever since this daemon
    /// started; a wrapper then only executes the runtime. False once the daemon has been in charge of plugins: if it
    /// loses the path later, connected plugins stay in use and required ones stay required.
    pub(crate) fn is_bystander(&self) -> bool {
        !self.was_open.get() && matches!(*self.problem.borrow(), Some(NoPlugins::Taken(_)))
    }

    /// Returns `open`, or the reason why plugins cannot connect, in one line.
    pub(crate) fn line(&self) -> String {
        self.problem.borrow().as_ref().map_or_else(|| "open".to_owned(), ToString::to_string)
    }

    /// Returns the state as the answer to `status` has it.
    pub(crate) fn state(&self, path: &Path) -> SocketState {
        let problem = self.problem.borrow();
        let (state, listener) = match problem.as_ref() {
            None => (ListeningState::Open, None),
            Some(NoPlugins::SwitchedOff) => (ListeningState::Off, None),
            Some(NoPlugins::Taken(listener)) if self.was_open.get() => {
                (ListeningState::Lost, Some(listener))
            }
            Some(NoPlugins::Taken(listener)) => (ListeningState::Taken, Some(listener)),
            Some(NoPlugins::Failed(_)) => (ListeningState::Failed, None),
        };
        SocketState {
            state,
            path: path.to_owned(),
            since: self.since.get(),
            listener: listener.map(|listener| Listener {
                pid: listener.pid,
                name: listener.name.clone(),
                engine: listener.engine.map(str::to_owned),
            }),
        }
    }

    /// Removes the socket file of this daemon, if it is still at this path.
    pub(crate) fn remove(&self, path: &Path) {
        if let Some(file) = self.file.get() {
            file.remove(path);
        }
    }
}
