// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri VERB`, the operator's commands. `exit` has their exit codes, `output` the formats
//! of their answers. A failure prints one line on standard error, with cause and fix. Logs never go
//! to standard output.

mod audit;
mod check;
mod compared;
mod drift;
mod dry;
mod events;
mod examples;
pub(crate) mod exit;
mod explain;
mod forget;
mod install;
mod node;
mod output;
mod paint;
mod plugins;
mod pods;
mod policy;
mod progress;
mod record;
mod reload;
mod resident;
#[cfg(test)]
mod schemas;
mod show;
mod signals;
mod status;
mod succession;
mod suggest;
mod switch;
mod sysdump;
mod systemd;
mod top;
mod watch;
mod yaml;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::de::DeserializeOwned;

use crate::answers::{AdminRequest, MetricsText, Status};
use crate::config::{self, Config, Loaded};
use crate::daemon;
use crate::error::{Error, Result};
use crate::runtime;
use crate::text::{counted, printable, printable_page};
use crate::wrapper;

use exit::{DONE, FAILED, USAGE};
use output::{Answer, Format, PlainOutput, complain, print, print_json, tell};

/// NRI plugins for every container engine.
#[derive(Debug, Parser)]
#[command(name = "nri-runc nri", bin_name = "nri-runc nri", no_binary_name = true, version)]
struct Arguments {
    /// Use this configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON (as -o json).
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: AdminVerb,
}

#[derive(Debug, Subcommand)]
enum AdminVerb {
    /// Run the daemon in the foreground (systemd: Type=notify).
    Daemon(DaemonOptions),
    /// Show daemon status and recent failures.
    Status(PlainOutput),
    /// Print metrics in Prometheus' text format (OpenMetrics).
    Metrics,
    /// Show the daemon's current activity (live on a terminal).
    Top(top::Top),
    /// List plugins.
    Plugins(plugins::Plugins),
    /// List pods and containers.
    Pods(pods::Pods),
    /// Show what plugins changed in a container or pod.
    Explain(explain::Explain),
    /// Search the audit log: who changed what, and what was refused.
    Audit(audit::Audit),
    /// Print events of pods, containers and plugins, for programs.
    Events(events::Events),
    /// Show which rules decide what plugins may do.
    Policy(policy::Policy),
    /// Show plugin-owned values that something else changed.
    Drift(drift::Drift),
    /// Check configuration, runtime, plugins and engines.
    Check(PlainOutput),
    /// Write an archive for support, without secrets (needs no daemon).
    Sysdump(sysdump::Sysdump),
    /// Show how plugins would change a bundle (needs no daemon).
    Adjust(dry::Adjust),
    /// Send scripted requests to plugins, or record such a script.
    Replay(dry::Replay),
    /// Register nri-runc with an engine.
    #[command(override_usage = "nri-runc nri install [OPTIONS] <ENGINE | --distribution NAME>")]
    Install(install::Install),
    /// Unregister nri-runc from an engine; its files are restored.
    #[command(override_usage = "nri-runc nri uninstall [OPTIONS] <ENGINE | --distribution NAME>")]
    Uninstall(install::Uninstall),
    /// Keep nri-runc on a Kubernetes node (run by the pod of a DaemonSet).
    Node(Box<node::NodeOptions>),
    /// Run as an OCI hook (container state on standard input).
    Hook {
        /// Hook stage: prestart, createRuntime, poststart or poststop.
        stage: String,
    },
    /// Apply a changed configuration to the running daemon.
    Reload(reload::Reload),
    /// Replace the running daemon's program; plugins stay connected.
    Reexec(PlainOutput),
    /// Stop the daemon once requests in flight have completed.
    Stop(PlainOutput),
    /// Restart the daemon once requests in flight have completed.
    Restart(PlainOutput),
    /// Disable plugins (commands go straight to the runtime)
    ///
    /// It stays in effect until `enable` or the next reboot: it is a file in the run
    /// directory, which is normally on a tmpfs. To keep plugins disabled across
    /// reboots, set nri.disable = true in the configuration.
    #[command(verbatim_doc_comment)]
    Disable(PlainOutput),
    /// Enable plugins again.
    Enable(PlainOutput),
    /// Remove the record of a container or pod that no engine has
    ///
    /// Plugins are notified of the removal. The command fails while the container's
    /// process runs and, without --force, while the runtime still has the container
    /// or the engine still has the pod.
    #[command(verbatim_doc_comment)]
    Forget(forget::Forget),
    /// Print shell completions for these commands.
    Completion {
        /// Shell to complete in, such as bash.
        #[arg(hide_possible_values = true)]
        shell: clap_complete::Shell,
    },
}

/// `daemon`.
#[derive(Debug, Args)]
struct DaemonOptions {
    /// Descriptor on which the starting wrapper waits.
    #[arg(long, hide = true)]
    ready_fd: Option<i32>,
    /// Descriptor of the state that the previous program left.
    #[arg(long, hide = true)]
    state_fd: Option<i32>,
    /// The previous program was started by a wrapper.
    #[arg(long, hide = true)]
    in_background: bool,
    /// Print the versions of that state that this program can read.
    #[arg(long, hide = true)]
    probe_state: bool,
    /// Only try whether a daemon could start (run by `check`).
    #[arg(long, hide = true)]
    trial: bool,
}

/// The function that runs a verb, and the verb's properties.
struct Row<'a> {
    /// The value of the verb's `--output`; `Format::Page` for `adjust` with `diff` or `spec`.
    output: Option<Format>,
    /// The line shown to an operator while the verb waits; `None` for no line, for instance because
    /// the verb shows a screen or a stream.
    wait: Option<&'static str>,
    /// Whether only root, or a user for whom [`check_user`] makes an exception, may call the verb.
    is_roots: bool,
    /// Whether the verb fails if the named configuration file is unreadable: it could otherwise ask
    /// another daemon, or disable plugins in another run directory. `check` and `sysdump` report
    /// the file instead; the daemon and hooks refuse containers.
    needs_file: bool,
    /// Whether the verb is about the node's engines and hooks, so that it never uses the configuration of
    /// the calling user's own daemon.
    is_of_node: bool,
    run: Box<dyn FnOnce(Loaded, Format) -> Result<u8> + 'a>,
}

fn row<'a>(
    output: Option<Format>,
    wait: impl Into<Option<&'static str>>,
    run: impl FnOnce(Loaded, Format) -> Result<u8> + 'a,
) -> Row<'a> {
    let (wait, run) = (wait.into(), Box::new(run));
    Row { output, wait, is_roots: true, needs_file: true, is_of_node: false, run }
}

/// Returns the row of a verb that prints one answer.
fn tells<'a, A: Answer>(
    output: Option<Format>,
    wait: &'static str,
    answer: impl FnOnce(&Loaded) -> Result<A> + 'a,
) -> Row<'a> {
    row(output, wait, |on, to| tell(to, &answer(&on)?))
}

/// Returns the row of a verb that needs only its arguments and the configuration.
fn asks<'a, A>(
    output: Option<Format>,
    wait: impl Into<Option<&'static str>>,
    arguments: &'a A,
    run: fn(&Config, &A, Format) -> Result<u8>,
) -> Row<'a> {
    row(output, wait, move |on, to| run(&on.config, arguments, to))
}

impl Row<'_> {
    fn roots_if(self, is_roots: bool) -> Self {
        Self { is_roots, ..self }
    }

    fn without_file(self) -> Self {
        Self { needs_file: false, ..self }
    }

    fn of_node_if(self, is_of_node: bool) -> Self {
        Self { is_of_node, ..self }
    }
}

fn row_of(verb: &AdminVerb) -> Row<'_> {
    use AdminVerb as V;
    let (daemon, stops) = ("waiting for the daemon", "stopping the daemon");
    match verb {
        V::Daemon(with) => row(None, None, |on, _| run_daemon(on, with)).without_file(),
        V::Status(of) => tells(of.output, daemon, |on| ask_status(&on.config)),
        V::Metrics => tells(None, daemon, |on| ask_metrics(&on.config)),
        V::Top(of) => asks(of.output.output, None, of, top::top),
        V::Plugins(of) => asks(of.output.output, daemon, of, plugins::plugins),
        V::Pods(of) => asks(of.output.output, daemon, of, pods::pods),
        V::Explain(of) => asks(of.output.output, daemon, of, explain::explain),
        V::Audit(of) => asks(of.output.output, "searching the audit log", of, audit::audit),
        V::Events(of) => asks(of.output.output, None, of, events::events),
        V::Policy(of) => row(of.output(), daemon, |on, to| policy::policy(&on, of, to))
            .roots_if(of.needs_daemon()),
        V::Drift(of) => asks(of.output.output, "reading cgroups", of, drift::drift),
        V::Check(of) => row(of.output, "checking", |on, to| check(&on, to)).without_file(),
        V::Sysdump(of) => {
            tells(of.output.output, "collecting", |on| sysdump::sysdump(on, of)).without_file()
        }
        V::Adjust(of) => {
            row(of.other_output(), None, |on, to| dry::adjust(on, of, to)).roots_if(false)
        }
        V::Replay(of) => row(None, None, |on, _| dry::replay(on, of)).roots_if(of.records()),
        V::Install(of) => {
            tells(of.common.output.output, "registering", |on| install::install(of, on))
                .roots_if(of.named.needs_root(&of.common))
                .of_node_if(!of.named.user)
        }
        V::Uninstall(of) => row(of.common.output.output, "unregistering", |on, to| {
            tell(to, &install::uninstall(of, &on.config, !to.is_page())?)
        })
        .roots_if(of.named.needs_root(&of.common))
        .of_node_if(!of.named.user),
        V::Node(of) => row(None, None, |_, _| node::node(of)).roots_if(false).of_node_if(true),
        V::Hook { stage } => {
            row(None, None, |on, _| wrapper::hook(&on.config, stage).map(|()| DONE))
                .roots_if(false)
                .without_file()
                .of_node_if(true)
        }
        V::Reload(of) => {
            tells(of.output.output, "reloading the configuration", |on| reload::reload(on, of))
        }
        V::Reexec(of) => tells(of.output, "waiting for requests in flight", resident::reexec),
        V::Stop(of) => tells(of.output, stops, resident::stop),
        V::Restart(of) => tells(of.output, stops, resident::restart),
        V::Forget(of) => asks(of.output.output, daemon, of, forget::forget),
        V::Disable(of) => tells(of.output, daemon, |on| switch::switch(&on.config, true)),
        V::Enable(of) => tells(of.output, daemon, |on| switch::switch(&on.config, false)),
        V::Completion { shell } => {
            row(None, None, |_, _| print(completion(*shell).as_bytes())).roots_if(false)
        }
    }
}

/// Returns the verbs with options, help and exit codes.
pub fn command() -> clap::Command {
    Arguments::command().after_help(exit::help()).mut_subcommands(|verb| {
        let verb = if verb.get_name() == "node" { without_output(verb) } else { verb };
        let codes = exit::help_of(verb.get_name());
        let example = examples::help_of(verb.get_name());
        let end = |verb: &clap::Command| format!("{codes}{}{example}", examples::values_of(verb));
        let help = end(&verb);
        verb.after_help(help).mut_subcommands(|below| {
            let help = end(&below);
            below.after_help(help)
        })
    })
}

/// Returns the complete command line, `nri-runc nri VERB`.
pub fn command_of_program() -> clap::Command {
    let verbs = command().name("nri").bin_name(Resettable::<String>::Reset);
    // `help` and `--help` are the runtime's.
    let runtime = clap::Command::new("nri-runc").disable_help_flag(true);
    runtime.disable_help_subcommand(true).subcommand(verbs)
}

/// Returns the completions for a shell.
pub fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command_of_program(), "nri-runc", &mut script);
    // For bash, clap_complete 4.6.11 spells the hyphen of the program's name in two ways, so that
    // nothing after the first word would be completed.
    String::from_utf8_lossy(&script).replace("nri__subcmd__runc", "nri__runc")
}

/// Hides those options of `install` in the help of `node` that do not apply to `node`.
fn without_output(node: clap::Command) -> clap::Command {
    node.mut_arg("dry_run", |arg| arg.hide(true)).mut_arg("output", |arg| arg.hide(true))
}

fn parse(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<Arguments> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Runs the admin verb on this command line; returns the exit code.
pub fn run(argv: &[OsString]) -> u8 {
    let asked = parse(argv.iter().skip(2));
    let asked = asked.and_then(|arguments| Ok((format(&arguments)?, arguments)));
    let (format, arguments) = match asked {
        Ok(asked) => asked,
        Err(error) => return usage(error, argv),
    };
    let code = carry_out(&arguments, format);
    progress::clear();
    code.unwrap_or_else(|error| {
        complain(&error.to_string());
        FAILED
    })
}

/// Returns the format of the answer. Fails for `--json` with another format, and for `junit` without a
/// comparison.
fn format(arguments: &Arguments) -> clap::error::Result<Format> {
    let conflict = |line| Err(Arguments::command().error(ErrorKind::ArgumentConflict, line));
    if let AdminVerb::Policy(policy) = &arguments.verb
        && policy.wants_no_report()
    {
        return conflict("--output junit cannot be used with --bundle or --pod".to_owned());
    }
    match (arguments.json, row_of(&arguments.verb).output) {
        (true, None | Some(Format::Json)) => Ok(Format::Json),
        (true, Some(other)) => {
            let other = if other == Format::Page { "diff or spec" } else { other.name() };
            conflict(format!("--json cannot be used with --output {other}"))
        }
        (false, format) => Ok(format.unwrap_or_default()),
    }
}

/// Prints help, the version or a command line error, escaped: the error may contain a hostile file name.
fn usage(error: clap::Error, argv: &[OsString]) -> u8 {
    let escaped = argv.iter().skip(2).map(|word| printable(&word.to_string_lossy()));
    let error_of_escaped = parse(escaped).err();
    let error_of_escaped = error_of_escaped.filter(|other| other.kind() == error.kind());
    let mut error = error_of_escaped.unwrap_or(error);
    suggest::add_tip(&mut error);
    let page = printable_page(&error.render().to_string());
    if error.use_stderr() {
        let page = paint::for_stderr(&page, paint::help);
        let _nobody_reads = std::io::stderr().write_all(page.as_bytes());
        return USAGE;
    }
    print(paint::for_stdout(&page, paint::help).as_bytes()).unwrap_or(FAILED)
}

fn carry_out(arguments: &Arguments, format: Format) -> Result<u8> {
    if let AdminVerb::Daemon(DaemonOptions { probe_state: true, .. }) = arguments.verb {
        return print_json(&daemon::abilities());
    }
    let row = row_of(&arguments.verb);
    let loaded = runtime::verify(match &arguments.config {
        Some(file) => config::load(Some(file)),
        None if row.is_of_node => config::load_for_this_process(),
        None => config::load_for_operator(),
    });
    check_user(row.is_roots, &loaded.config)?;
    if let Some(why) = loaded.unreadable.as_ref().filter(|_| row.needs_file) {
        let by = match &arguments.config {
            Some(_) => "--config".to_owned(),
            None => format!("{} or a file beside the executable", config::FILE_VARIABLE),
        };
        return Err(Error::new(format!("cannot read the configuration {why}"))
            .hint(format!("{by} names this file")));
    }
    row.wait.into_iter().for_each(progress::begin);
    (row.run)(loaded, format)
}

fn run_daemon(loaded: Loaded, options: &DaemonOptions) -> Result<u8> {
    let DaemonOptions { ready_fd, state_fd, in_background, probe_state: _, trial } = *options;
    let start = daemon::Start { ready_fd, state_fd, in_background, is_trial: trial };
    daemon::run(loaded, &start).map(|()| DONE)
}

/// Refuses a verb that needs root, unless the caller is root, owns the run directory, or has a
/// daemon of its own.
fn check_user(is_roots: bool, config: &Config) -> Result<()> {
    let user = nix::unistd::geteuid();
    let is_owner = || std::fs::metadata(&config.run_dir).is_ok_and(|d| d.uid() == user.as_raw());
    if !is_roots || user.is_root() || config.is_of_user() || is_owner() {
        return Ok(());
    }
    Err(Error::new("this command must be run as root").hint("use sudo"))
}

/// Asks the daemon.
///
/// # Errors
/// Fails if no daemon runs, if it refuses or does not answer in time, and if its answer has the form of
/// another version.
fn ask<T: DeserializeOwned>(config: &Config, request: &AdminRequest) -> Result<T> {
    serde_json::from_str(&wrapper::admin(config, request)?).map_err(|error| {
        let error = Error::new(format!("the daemon's answer cannot be read: {error}"));
        error.hint("the running daemon has another version: nri-runc nri reexec")
    })
}

fn ask_status(config: &Config) -> Result<Status> {
    ask(config, &AdminRequest::Status)
}

fn ask_metrics(config: &Config) -> Result<MetricsText> {
    ask(config, &AdminRequest::Metrics)
}

fn check(loaded: &Loaded, format: Format) -> Result<u8> {
    let findings = check::all(loaded);
    let wrong = findings.iter().filter(|finding| !finding.ok).count();
    tell(format, &findings)?;
    if wrong == 0 {
        return Ok(DONE);
    }
    Err(Error::new(format!("{} failed", counted(wrong, "check"))).hint("each names its fix"))
}
