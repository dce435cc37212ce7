// SPDX-License-Identifier: Apache-2.0
//! Who has the plugin socket, and since when.

use std::cell::{Cell, RefCell};
use std::path::Path;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::plugin::socket::{NoPlugins, SocketFile};

/// Who has the plugin socket, and since when.
#[derive(Debug, Default)]
pub(crate) struct PluginSocket {
    /// The file of ours.
    pub(crate) file: Cell<Option<SocketFile>>,
    pub(crate) problem: RefCell<Option<NoPlugins>>,
    pub(crate) since: Cell<i64>,
    /// Plugins could connect to this daemon, if only for a while.
    pub(crate) was_open: Cell<bool>,
    pub(crate) accepting: RefCell<Option<JoinHandle<()>>>,
}

impl PluginSocket {
    /// Whether the plugins have been the engine's own ever since this daemon started: then the
    /// wrapper is nothing but the runtime. A path that is lost later changes nothing for the
    /// containers: the plugins that are connected go on, and required ones stay required.
    pub(crate) fn is_bystander(&self) -> bool {
        !self.was_open.get() && matches!(*self.problem.borrow(), Some(NoPlugins::Taken(_)))
    }

    /// `open`, or why plugins cannot connect, in one line.
    pub(crate) fn line(&self) -> String {
        self.problem.borrow().as_ref().map_or_else(|| "open".to_owned(), ToString::to_string)
    }

    /// The same for scripts.
    pub(crate) fn to_json(&self, path: &Path) -> Value {
        let problem = self.problem.borrow();
        let (state, listener) = match problem.as_ref() {
            None => ("open", None),
            Some(NoPlugins::SwitchedOff) => ("off", None),
            Some(NoPlugins::Taken(listener)) if self.was_open.get() => ("lost", Some(listener)),
            Some(NoPlugins::Taken(listener)) => ("taken", Some(listener)),
            Some(NoPlugins::Failed(_)) => ("failed", None),
        };
        json!({
            "state": state,
            "path": path,
            "since": self.since.get(),
            "listener": listener.map(|listener| {
                json!({"pid": listener.pid, "name": listener.name, "engine": listener.engine})
            }),
        })
    }

    /// Removes the file, if it is still there: the daemon ends.
    pub(crate) fn remove(&self, path: &Path) {
        if let Some(file) = self.file.get() {
            file.remove(path);
        }
    }
}
