// SPDX-License-Identifier: Apache-2.0
//! The command lines of the verbs that ask plugins without a node. Unlike the others they insist
//! on a configuration that can be read: there is no container to be lost.

use std::path::PathBuf;

use clap::Args;

use crate::config::{Config, Loaded};
use crate::daemon::NRI_VERSION;
use crate::dry;
use crate::error::{Error, Result};
use crate::plugin::Settings;

/// `replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// Listen for plugins here, in place of nri.socket_path.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What plugins are told the runtime is.
    #[arg(long, value_name = "NAME")]
    runtime_name: Option<String>,
    /// What plugins are told the runtime's version is.
    #[arg(long, value_name = "VERSION")]
    runtime_version: Option<String>,
    /// What plugins are told the NRI version is.
    #[arg(long, value_name = "VERSION")]
    nri_version: Option<String>,
    /// Ask for the state before a newcomer is synchronized.
    #[arg(long)]
    ask_sync: bool,
    /// Ask for the answer to a plugin's UpdateContainers.
    #[arg(long)]
    ask_updates: bool,
    /// The script, one request a line; standard input without it or with "-".
    file: Option<PathBuf>,
}

/// Runs a script.
pub(super) fn replay(loaded: Loaded, arguments: &Replay) -> Result<()> {
    let Replay { socket, ask_sync, ask_updates, file, .. } = arguments;
    let config = usable(loaded, socket.as_ref())?;
    let given = |value: &Option<String>, default: String| value.clone().unwrap_or(default);
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let settings = Settings {
        registration_timeout: config.registration_timeout,
        request_timeout: config.request_timeout,
        runtime_name: given(&arguments.runtime_name, config.runtime_name.clone()),
        runtime_version: given(&arguments.runtime_version, version),
        nri_version: given(&arguments.nri_version, NRI_VERSION.to_owned()),
    };
    let log = Config { log_target: "stderr".to_owned(), ..config.clone() };
    crate::log::start(&log, true);
    let (ask_sync, ask_updates) = (*ask_sync, *ask_updates);
    dry::replay(config, dry::ReplayOptions { file: file.clone(), settings, ask_sync, ask_updates })
}

/// The configuration, if it is whole, with the socket of the command line.
fn usable(loaded: Loaded, socket: Option<&PathBuf>) -> Result<Config> {
    if let Some(problem) = loaded.problems.first() {
        return Err(Error::new(problem.text.clone()).hint("see: nri-runc nri check"));
    }
    let mut config = loaded.config;
    if let Some(socket) = socket {
        config.socket_path.clone_from(socket);
        config.disable_connections = false;
    }
    Ok(config)
}
