// SPDX-License-Identifier: Apache-2.0
//! The command lines of `adjust` and `replay`, which call plugins without a node. Unlike the other
//! verbs, they require a valid configuration: no container depends on them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config::{Config, Loaded, parse_duration};
use crate::daemon::NRI_VERSION;
use crate::dry;
use crate::error::{Error, Result};
use crate::plugin::Settings;

use super::exit::DONE;
use super::output::{Format, complain, print};
use super::paint;

/// `replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// Plugin socket (default: nri.socket_path).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Runtime name to report to plugins.
    #[arg(long, value_name = "NAME")]
    runtime_name: Option<String>,
    /// Runtime version to report to plugins.
    #[arg(long, value_name = "VERSION")]
    runtime_version: Option<String>,
    /// NRI version to report to plugins.
    #[arg(long, value_name = "VERSION")]
    nri_version: Option<String>,
    /// Take Synchronize's state from the script.
    #[arg(long)]
    ask_sync: bool,
    /// Respond to UpdateContainers from the script.
    #[arg(long)]
    ask_updates: bool,
    /// Wait for a recording's plugins.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    wait_timeout: Duration,
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
    /// Bundle directory.
    #[arg(long, value_name = "DIR")]
    bundle: PathBuf,
    /// Container ID (default: bundle directory name).
    #[arg(long)]
    id: Option<String>,
    /// Apply adjustments from a file ("-": standard input) instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "wait"])]
    apply: Option<PathBuf>,
    /// Output format (default: diff; with --json: json).
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<AdjustFormat>,
    /// Write the result to the bundle.
    #[arg(long)]
    write: bool,
    /// Wait until this plugin has connected (repeatable).
    #[arg(long, value_name = "NAME", requires = "socket")]
    wait: Vec<String>,
    /// Plugin socket to listen on (default: none, pre-installed plugins only).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Adjust {
    /// Whether a format other than JSON is requested.
    pub(super) fn other_output(&self) -> Option<Format> {
        self.output.filter(|form| *form != AdjustFormat::Json).map(|_| Format::Page)
    }
}

impl Replay {
    /// Whether it records the running daemon.
    pub(super) fn records(&self) -> bool {
        self.record.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum AdjustFormat {
    /// A unified diff.
    #[default]
    Diff,
    /// The complete config.json.
    Spec,
    /// Adjustment, owners, updates and evictions.
    Json,
}

/// Prints the result of an adjustment of a bundle.
pub(super) fn adjust(loaded: Loaded, arguments: &Adjust, format: Format) -> Result<u8> {
    let Adjust { bundle, id, apply, output, write, wait, socket } = arguments;
    let is_json = format == Format::Json;
    let default = if is_json { AdjustFormat::Json } else { AdjustFormat::default() };
    let mut config = usable(loaded, socket.as_ref())?;
    // A dry run must not take the daemon's socket.
    config.disable_connections = socket.is_none();
    let settings = settings(&config);
    log_to_stderr(&config);
    let output = output.unwrap_or(default);
    let options = dry::AdjustOptions {
        bundle: bundle.clone(),
        id: id.clone(),
        apply: apply.clone(),
        output: match output {
            AdjustFormat::Diff => dry::Output::Diff,
            AdjustFormat::Spec => dry::Output::Spec,
            AdjustFormat::Json => dry::Output::Json,
        },
        write: *write,
        wait: wait.clone(),
        settings,
    };
    let answer = dry::adjust(config, &options)?;
    if output == AdjustFormat::Diff && answer.is_empty() {
        complain("nothing in this bundle would change");
    }
    match (output, std::str::from_utf8(&answer)) {
        (AdjustFormat::Diff, Ok(diff)) => print(paint::for_stdout(diff, paint::diff).as_bytes()),
        (_, _) => print(&answer),
    }
}

/// Returns the values that plugins receive at registration.
fn settings(config: &Config) -> Settings {
    Settings {
        registration_timeout: config.registration_timeout,
        request_timeout: config.request_timeout,
        runtime_name: config.runtime_name.clone(),
        runtime_version: format!("v{}", env!("CARGO_PKG_VERSION")),
        nri_version: NRI_VERSION.to_owned(),
    }
}

fn log_to_stderr(config: &Config) {
    let log = Config { log_target: "stderr".to_owned(), ..config.clone() };
    crate::log::start(&log, true);
}

/// Runs a script.
pub(super) fn replay(loaded: Loaded, arguments: &Replay) -> Result<u8> {
    let Replay { socket, ask_sync, ask_updates, file, record, show_env, wait_timeout, .. } =
        arguments;
    if let Some(file) = record {
        return super::record::record(&loaded.config, file, *show_env).map(|()| DONE);
    }
    let config = usable(loaded, socket.as_ref())?;
    let mut settings = settings(&config);
    for (setting, given) in [
        (&mut settings.runtime_name, &arguments.runtime_name),
        (&mut settings.runtime_version, &arguments.runtime_version),
        (&mut settings.nri_version, &arguments.nri_version),
    ] {
        if let Some(given) = given {
            setting.clone_from(given);
        }
    }
    log_to_stderr(&config);
    let options = dry::ReplayOptions {
        file: file.clone(),
        settings,
        ask_sync: *ask_sync,
        ask_updates: *ask_updates,
        wait_timeout: *wait_timeout,
    };
    dry::replay(config, options).map(|()| DONE)
}

/// Parses a duration of the command line, written as in the configuration.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration, such as 30s or 500ms".to_owned())
}

/// Returns the configuration if it is valid, with the socket of the command line.
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
