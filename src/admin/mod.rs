// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri VERB`, the operator's commands. Exit codes: 0 done, 1 failed (one line on stderr
//! names the cause and the remedy), 2 usage. `--json` prints one document; without it, a table.
//! Logs never go to stdout.

mod audit;
mod check;
mod dry;
mod explain;
mod install;
mod node;
mod policy;
mod record;
mod reload;
mod resident;
mod show;
mod switch;
mod top;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::config::{self, Config, Loaded};
use crate::daemon;
use crate::error::{Context, Error, Result};
use crate::text::{counted, printable, printable_page};
use crate::wrapper;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// NRI plugins for every container engine.
#[derive(Debug, Parser)]
#[command(name = "nri-runc nri", bin_name = "nri-runc nri", no_binary_name = true, version)]
struct Arguments {
    /// Use this configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: AdminVerb,
}

#[derive(Debug, Subcommand)]
enum AdminVerb {
    /// Run the daemon in the foreground (systemd: Type=notify).
    Daemon {
        /// Descriptor on which the starting wrapper waits.
        #[arg(long, hide = true)]
        ready_fd: Option<i32>,
        /// Descriptor of the state that the program before has left.
        #[arg(long, hide = true)]
        state_fd: Option<i32>,
        /// That program was started by a wrapper.
        #[arg(long, hide = true)]
        in_background: bool,
        /// Print the forms of such a state that this program knows.
        #[arg(long, hide = true)]
        probe_state: bool,
    },
    /// Show daemon status and recent failures.
    Status,
    /// Print metrics in Prometheus' text format (OpenMetrics).
    Metrics,
    /// Show what the daemon does now (live on a terminal).
    Top(top::Top),
    /// List plugins.
    Plugins {
        /// Show the output of a launched plugin.
        #[arg(long, value_name = "NAME")]
        logs: Option<String>,
        #[command(flatten)]
        table: TableOptions,
    },
    /// List pods and containers.
    Pods {
        #[command(flatten)]
        table: TableOptions,
    },
    /// Show what plugins changed in a container or pod.
    Explain {
        /// ID, ID prefix, name, NAMESPACE/NAME or NAMESPACE/POD[/NAME].
        id: String,
        /// Show environment variable values.
        #[arg(long)]
        show_env: bool,
        #[command(flatten)]
        table: TableOptions,
    },
    /// Search the audit log: who changed what, and what was refused.
    Audit(audit::Audit),
    /// Show which rules decide what plugins may do.
    Policy(policy::Policy),
    /// Check configuration, runtime, plugins and engines.
    Check,
    /// Show how plugins would change a bundle (needs no daemon).
    Adjust(dry::Adjust),
    /// Send scripted requests to plugins, or record such a script.
    Replay(dry::Replay),
    /// Register nri-runc with an engine.
    Install(install::Install),
    /// Unregister nri-runc from an engine; its files are restored.
    Uninstall(install::Uninstall),
    /// Keep nri-runc on a Kubernetes node (run by the pod of a DaemonSet).
    Node(Box<node::NodeOptions>),
    /// Run as an OCI hook (container state on standard input).
    Hook {
        /// Hook stage: prestart, createRuntime, poststart or poststop.
        stage: String,
    },
    /// Apply a changed configuration to the running daemon.
    Reload {
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Replace the running daemon's program; plugins stay connected.
    Reexec,
    /// Stop the daemon once requests in flight have completed.
    Stop,
    /// Restart the daemon once requests in flight have completed.
    Restart,
    /// Disable plugins: commands go straight to the runtime.
    ///
    /// Stays in effect until `enable` or the next reboot: it is a file in the run
    /// directory, which is normally on a tmpfs. To keep plugins disabled across
    /// reboots, set nri.disable = true in the configuration.
    #[command(verbatim_doc_comment)]
    Disable,
    /// Enable plugins again.
    Enable,
}

/// How a table is printed.
#[derive(Debug, Args)]
struct TableOptions {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<TableFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    Wide,
    Json,
}

impl TableOptions {
    fn is_wide(&self) -> bool {
        self.output == Some(TableFormat::Wide)
    }

    /// Whether JSON is wanted, by either option.
    fn is_json(&self, arguments: &Arguments) -> bool {
        arguments.json || self.output == Some(TableFormat::Json)
    }
}

/// The verbs with their options and help, for man pages and completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs an admin verb.
pub fn run(argv: &[OsString]) -> u8 {
    let arguments = match Arguments::try_parse_from(argv.iter().skip(2)) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error, argv),
    };
    match carry_out(&arguments) {
        Ok(code) => code,
        Err(error) => {
            let line = format!("nri-runc: {error}\n");
            let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
            FAILED
        }
    }
}

/// Help, the version, or what is wrong with the command line, which may repeat a hostile file name.
fn usage(error: &clap::Error, argv: &[OsString]) -> u8 {
    let escaped = argv.iter().skip(2).map(|word| printable(&word.to_string_lossy()));
    let error_of_escaped = Arguments::try_parse_from(escaped).err();
    let error_of_escaped = error_of_escaped.filter(|other| other.kind() == error.kind());
    let page = error_of_escaped.as_ref().unwrap_or(error).render().to_string();
    let page = printable_page(&page);
    if error.use_stderr() {
        let _nobody_reads = std::io::stderr().write_all(page.as_bytes());
        return USAGE;
    }
    print(page.as_bytes()).unwrap_or(FAILED)
}

fn carry_out(arguments: &Arguments) -> Result<u8> {
    if let AdminVerb::Daemon { probe_state: true, .. } = arguments.verb {
        return print_json(&daemon::abilities());
    }
    let loaded = match &arguments.config {
        Some(file) => config::load(Some(file)),
        None => config::load_for_this_process(),
    };
    let config = &loaded.config;
    needs_root(&arguments.verb, config)?;
    refuse_missing_file(arguments, &loaded)?;
    match &arguments.verb {
        AdminVerb::Daemon { ready_fd, state_fd, in_background, probe_state: _ } => {
            let (ready_fd, state_fd) = (*ready_fd, *state_fd);
            let start = daemon::Start { ready_fd, state_fd, in_background: *in_background };
            daemon::run(loaded, &start)?;
            Ok(DONE)
        }
        AdminVerb::Status => {
            tell(arguments, &ask(config, &json!({"verb": "status"}))?, show::status)
        }
        AdminVerb::Metrics => {
            tell(arguments, &ask(config, &json!({"verb": "metrics"}))?, show::metrics)
        }
        AdminVerb::Top(options) => top::top(config, options, arguments.json),
        AdminVerb::Plugins { logs: Some(name), table } => {
            plugin_output(arguments, table, config, name)
        }
        AdminVerb::Plugins { logs: None, table } => plugins(arguments, table, config),
        AdminVerb::Pods { table } => pods(arguments, table, config),
        AdminVerb::Explain { .. } => explain(arguments, config),
        AdminVerb::Policy(asked) => tell(arguments, &policy::policy(&loaded, asked)?, policy::page),
        AdminVerb::Adjust(adjust) if arguments.json && adjust.wants_no_json() => {
            let line = "--json cannot be used with --output diff or --output spec";
            let error = Arguments::command().error(ErrorKind::ArgumentConflict, line);
            Ok(usage(&error, &[]))
        }
        AdminVerb::Adjust(adjust) => print(&dry::adjust(loaded, adjust, arguments.json)?),
        AdminVerb::Replay(replay) => dry::replay(loaded, replay).map(|()| DONE),
        AdminVerb::Audit(audit) => audit::audit(config, audit, arguments.json),
        AdminVerb::Check => check(arguments, &loaded),
        AdminVerb::Install(how) => tell(arguments, &install::install(how, &loaded)?, install::show),
        AdminVerb::Uninstall(how) => {
            tell(arguments, &install::uninstall(how, config, arguments.json)?, install::show)
        }
        AdminVerb::Node(options) => node::node(options),
        AdminVerb::Hook { stage } => wrapper::hook(config, stage).map(|()| DONE),
        AdminVerb::Reload { dry_run } => {
            tell(arguments, &reload::reload(config, *dry_run)?, reload::show)
        }
        AdminVerb::Reexec => tell(arguments, &resident::reexec(config)?, resident::show_reexecuted),
        AdminVerb::Stop => tell(arguments, &resident::stop(config)?, resident::show_stopped),
        AdminVerb::Restart => {
            tell(arguments, &resident::restart(&loaded)?, resident::show_restarted)
        }
        AdminVerb::Disable => tell(arguments, &switch::switch(config, true)?, switch::show),
        AdminVerb::Enable => tell(arguments, &switch::switch(config, false)?, switch::show),
    }
}

/// A configuration file that was named and cannot be read: an answer about another daemon, or a
/// kill switch in another run directory, is worse than none. `check` shows it as a finding; the
/// daemon and hooks refuse containers for it.
fn refuse_missing_file(arguments: &Arguments, loaded: &Loaded) -> Result<()> {
    let goes_on = match &arguments.verb {
        AdminVerb::Daemon { .. } | AdminVerb::Hook { .. } | AdminVerb::Check => true,
        AdminVerb::Status
        | AdminVerb::Metrics
        | AdminVerb::Top(_)
        | AdminVerb::Plugins { .. }
        | AdminVerb::Pods { .. }
        | AdminVerb::Explain { .. }
        | AdminVerb::Audit(_)
        | AdminVerb::Policy(_)
        | AdminVerb::Adjust(_)
        | AdminVerb::Replay(_)
        | AdminVerb::Install(_)
        | AdminVerb::Uninstall(_)
        | AdminVerb::Node(_)
        | AdminVerb::Reload { .. }
        | AdminVerb::Reexec
        | AdminVerb::Stop
        | AdminVerb::Restart
        | AdminVerb::Disable
        | AdminVerb::Enable => false,
    };
    let Some(why) = loaded.unreadable.as_ref().filter(|_| !goes_on) else { return Ok(()) };
    let by = match &arguments.config {
        Some(_) => "--config".to_owned(),
        None => format!("{} or a file beside the executable", config::FILE_VARIABLE),
    };
    Err(Error::new(format!("cannot read the configuration {why}"))
        .hint(format!("{by} names this file")))
}

/// What the daemon and the engines keep is root's: without it every other line would be a guess.
fn needs_root(verb: &AdminVerb, config: &Config) -> Result<()> {
    let user = nix::unistd::geteuid();
    let owner = std::fs::metadata(&config.run_dir).map(|dir| dir.uid());
    let is_enough = match verb {
        // They touch nothing of the node, or decide for themselves.
        AdminVerb::Adjust(_) | AdminVerb::Hook { .. } | AdminVerb::Node(_) => true,
        AdminVerb::Policy(asked) if !asked.needs_daemon() => true,
        AdminVerb::Replay(replay) => !replay.records(),
        AdminVerb::Install(install) => install.is_elsewhere(),
        AdminVerb::Uninstall(uninstall) => uninstall.is_elsewhere(),
        AdminVerb::Daemon { .. }
        | AdminVerb::Status
        | AdminVerb::Metrics
        | AdminVerb::Top(_)
        | AdminVerb::Plugins { .. }
        | AdminVerb::Pods { .. }
        | AdminVerb::Explain { .. }
        | AdminVerb::Audit(_)
        | AdminVerb::Policy(_)
        | AdminVerb::Check
        | AdminVerb::Reload { .. }
        | AdminVerb::Reexec
        | AdminVerb::Stop
        | AdminVerb::Restart
        | AdminVerb::Disable
        | AdminVerb::Enable => owner.is_ok_and(|owner| owner == user.as_raw()),
    };
    if user.is_root() || is_enough {
        return Ok(());
    }
    Err(Error::new("this command must be run as root").hint("use sudo"))
}

fn ask(config: &Config, question: &Value) -> Result<Value> {
    let answer = wrapper::admin(config, &question.to_string())?;
    serde_json::from_str(&answer).map_err(|error| Error::new(error.to_string()))
}

fn plugins(arguments: &Arguments, table: &TableOptions, config: &Config) -> Result<u8> {
    let document = ask(config, &json!({"verb": "plugins"}))?;
    if table.is_json(arguments) {
        return print_json(&document);
    }
    let status = ask(config, &json!({"verb": "status"}))?;
    let page = show::plugins(&document, table.is_wide());
    print_page(&(page + &show::missing_plugins(&status) + &show::plugin_socket(&status)))
}

/// The last words of a launched plugin.
fn plugin_output(
    arguments: &Arguments,
    table: &TableOptions,
    config: &Config,
    name: &str,
) -> Result<u8> {
    let document = ask(config, &json!({"verb": "plugin_output", "plugin": name}))?;
    if table.is_json(arguments) {
        return print_json(&document);
    }
    print_page(&show::plugin_output(&document))
}

fn pods(arguments: &Arguments, table: &TableOptions, config: &Config) -> Result<u8> {
    let document = ask(config, &json!({"verb": "pods"}))?;
    if table.is_json(arguments) {
        return print_json(&document);
    }
    print_page(&show::pods(&document, table.is_wide()))
}

/// Several that are meant are listed, and that is a failure: nothing was explained.
fn explain(arguments: &Arguments, config: &Config) -> Result<u8> {
    let AdminVerb::Explain { id, show_env, table } = &arguments.verb else { return Ok(USAGE) };
    let mut document = ask(config, &json!({"verb": "explain", "id": id}))?;
    if !show_env {
        show::redact(&mut document);
    }
    if table.is_json(arguments) {
        print_json(&document)?;
    } else {
        print_page(&explain::page(&document, table.is_wide()))?;
    }
    match document["error"].as_str() {
        Some(error) => Err(Error::new(error).hint("name one by its id, or NAMESPACE/POD/NAME")),
        None => Ok(DONE),
    }
}

fn tell(arguments: &Arguments, document: &Value, show: fn(&Value) -> String) -> Result<u8> {
    if arguments.json { print_json(document) } else { print_page(&show(document)) }
}

fn print_json(document: &Value) -> Result<u8> {
    print(format!("{document}\n").as_bytes())
}

fn print_page(page: &str) -> Result<u8> {
    let end = if page.ends_with('\n') { "" } else { "\n" };
    print(printable_page(&format!("{page}{end}")).as_bytes())
}

/// Writes and flushes: our entry point is not that of the standard library, which would flush at exit,
/// and a document need not end with a line feed.
fn print(bytes: &[u8]) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).doing(|| "writing the answer")?;
    Ok(DONE)
}

fn check(arguments: &Arguments, loaded: &Loaded) -> Result<u8> {
    let findings = check::all(loaded);
    let wrong = findings.iter().filter(|finding| finding["ok"] != true).count();
    tell(arguments, &Value::Array(findings), show::check)?;
    if wrong == 0 {
        return Ok(DONE);
    }
    Err(Error::new(format!("{} failed", counted(wrong, "check"))).hint("each names its fix"))
}
