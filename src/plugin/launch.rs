// SPDX-License-Identifier: Apache-2.0
//! Starts a pre-installed plugin and waits until it has registered, as NRI's own implementation
//! does.
//!
//! If a plugin does not register, the error has its process's exit and last output line. The caller
//! decides when to start the plugin again.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::error::{Error, Result};

use super::child::PluginProcess;
use super::discover::PluginFile;
use super::process::ProcessLog;
use super::session::{Plugin, Settings, handshake};
use nri_transport::Upcalls;

/// Time limit for a plugin that failed to register to exit, so that the error can report the exit.
const POSTMORTEM_WAIT: Duration = Duration::from_millis(500);

/// A pre-installed plugin that is being started.
#[derive(Debug)]
pub(crate) struct Launched;

impl Launched {
    /// Starts the plugin and performs the handshake. Must be called on the main thread: the plugin
    /// is killed when the thread that started it ends. `log` receives its output and its exit.
    ///
    /// # Errors
    /// Fails when the plugin cannot be executed, or its handshake fails; its process is then ended.
    pub(crate) async fn start(
        file: &PluginFile,
        settings: &Settings,
        upcalls: Arc<dyn Upcalls>,
        log: &Arc<ProcessLog>,
    ) -> Result<Plugin> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = PluginProcess::spawn(file, theirs.into(), log)?;
        let who = (file.index.clone(), file.name.clone(), file.config.clone());
        let stream = UnixStream::from_std(ours)?;
        let handshaken = handshake(stream, Some(who), settings, upcalls).await;
        let mut plugin = match handshaken {
            Ok(plugin) => plugin,
            Err(error) => return Err(postmortem(child, log, &error.to_string()).await),
        };
        plugin.set_process(child);
        Ok(plugin)
    }
}

/// Returns the reason why a plugin did not register, with its process's exit and last output.
async fn postmortem(child: PluginProcess, log: &Arc<ProcessLog>, why: &str) -> Error {
    child.wait_for_exit(POSTMORTEM_WAIT).await;
    let is_over = child.has_exited();
    drop(child);
    log.is_over(POSTMORTEM_WAIT).await;
    let mut line = why.to_owned();
    if let Some(exit) = log.exit().filter(|_| is_over) {
        line = format!("{line}; {exit}");
    }
    if let Some(words) = log.last_words().last() {
        line = format!("{line}; its last line: {words}");
    }
    Error::new(crate::error::quoted(&line))
}
