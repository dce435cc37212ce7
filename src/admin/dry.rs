// SPDX-License-Identifier: Apache-2.0
//! The command lines of `adjust` and `replay`, which call plugins without a node. Except for
//! `replay --record`, they refuse a configuration with any error.

use std::path::PathBuf;

use clap::Args;

use crate::config::{Config, Loaded};
use crate::dry::{self, Output};
use crate::error::{Error, Result};

use super::exit::DONE;
use super::output::{Format, complain, print};
use super::paint;

/// `replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// Plugin socket (default: nri.socket_path).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    options: dry::ReplayOptions,
    /// Record the daemon's requests to a new file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "socket", "ask_sync", "ask_updates", "wait_timeout"])]
    record: Option<PathBuf>,
    /// Record environment variable values.
    #[arg(long, requires = "record")]
    show_env: bool,
    /// Script with one request per line (default or "-": standard input).
    file: Option<PathBuf>,
}

/// `adjust`.
#[derive(Debug, Args)]
pub(super) struct Adjust {
    #[command(flatten)]
    options: dry::AdjustOptions,
    /// Plugin socket to listen on (default: none, pre-installed plugins only).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Adjust {
    /// Returns `Format::Page` if `--output` is `diff` or `spec`, so that `--json` beside it is refused.
    pub(super) fn other_output(&self) -> Option<Format> {
        self.options.output.filter(|form| *form != Output::Json).map(|_| Format::Page)
    }
}

impl Replay {
    /// Whether this `replay` records the daemon's requests instead of running a script.
    pub(super) fn records(&self) -> bool {
        self.record.is_some()
    }
}

/// Prints how plugins would change a bundle.
pub(super) fn adjust(loaded: Loaded, arguments: &Adjust, format: Format) -> Result<u8> {
    let Adjust { options, socket } = arguments;
    let default = if format == Format::Json { Output::Json } else { Output::Diff };
    let mut config = usable(loaded, socket.as_ref())?;
    // A dry run must not use the daemon's socket.
    config.disable_connections = socket.is_none();
    log_to_stderr(&config);
    let output = options.output.unwrap_or(default);
    let answer = dry::adjust(config, options, output)?;
    if output == Output::Diff && answer.is_empty() {
        complain("nothing in this bundle would change");
    }
    match (output, std::str::from_utf8(&answer)) {
        (Output::Diff, Ok(diff)) => print(paint::for_stdout(diff, paint::diff).as_bytes()),
        (_, _) => print(&answer),
    }
}

fn log_to_stderr(config: &Config) {
    let log = Config { log_target: "stderr".to_owned(), ..config.clone() };
    crate::log::start(&log, true);
}

/// Runs a script, or records one from the running daemon.
pub(super) fn replay(loaded: Loaded, arguments: &Replay) -> Result<u8> {
    let Replay { socket, options, record, show_env, file } = arguments;
    if let Some(file) = record {
        return super::record::record(&loaded.config, file, *show_env).map(|()| DONE);
    }
    let config = usable(loaded, socket.as_ref())?;
    log_to_stderr(&config);
    dry::replay(config, options, file.as_deref()).map(|()| DONE)
}

/// Returns the configuration with the socket of the command line; fails if the configuration has an error.
fn usable(loaded: Loaded, socket: Option<&PathBuf>) -> Result<Config> {
    if let Some(problem) = loaded.problems.first() {
        return Err(Error::new(problem.text.clone()).hint("see: nri-runc nri check"));
    }
    let mut config = loaded.config;
    if let Some(socket) = socket {
        config.socket_path.clone_from(socket);
        config.disable_connections = false;
    }
    Ok(*config)
}
