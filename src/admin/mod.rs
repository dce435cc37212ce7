// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri VERB`, the operator's commands. `exit` has their exit codes, `output` the forms of
//! their answers. A failure is one line on standard error, with its cause and the remedy. Logs never
//! go to standard output.

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
mod show;
mod signals;
mod status;
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
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answers::Status;
use crate::config::{self, Config, Loaded};
use crate::daemon;
use crate::error::{Error, Result};
use crate::runtime;
use crate::text::{counted, printable, printable_page};
use crate::wrapper;

use exit::{DONE, FAILED, USAGE};
use output::{Format, PageOutput, PlainOutput, complain, print, print_json, tell};

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
        /// Only try whether a daemon could start (run by `check`).
        #[arg(long, hide = true)]
        trial: bool,
    },
    /// Show daemon status and recent failures.
    Status(PlainOutput),
    /// Print metrics in Prometheus' text format (OpenMetrics).
    Metrics,
    /// Show what the daemon does now (live on a terminal).
    Top(top::Top),
    /// List plugins.
    Plugins(plugins::Plugins),
    /// List pods and containers.
    Pods(pods::Pods),
    /// Show what plugins changed in a container or pod.
    Explain {
        /// ID, ID prefix, name, NAMESPACE/NAME or NAMESPACE/POD[/NAME].
        id: String,
        /// Show environment variable values.
        #[arg(long)]
        show_env: bool,
        #[command(flatten)]
        output: PageOutput,
    },
    /// Search the audit log: who changed what, and what was refused.
    Audit(audit::Audit),
    /// Print events of pods, containers and plugins, for programs.
    Events(events::Events),
    /// Show which rules decide what plugins may do.
    Policy(policy::Policy),
    /// Show values that plugins own and that something else changed.
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
    Reload {
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: PlainOutput,
    },
    /// Replace the running daemon's program; plugins stay connected.
    Reexec(PlainOutput),
    /// Stop the daemon once requests in flight have completed.
    Stop(PlainOutput),
    /// Restart the daemon once requests in flight have completed.
    Restart(PlainOutput),
    /// Disable plugins (commands go straight to the runtime)
    ///
    /// Stays in effect until `enable` or the next reboot: it is a file in the run
    /// directory, which is normally on a tmpfs. To keep plugins disabled across
    /// reboots, set nri.disable = true in the configuration.
    #[command(verbatim_doc_comment)]
    Disable(PlainOutput),
    /// Enable plugins again.
    Enable(PlainOutput),
    /// Drop the record of a container or pod that no engine has any more
    ///
    /// Plugins are notified of its removal. Refused while its process runs, and
    /// without --force while the runtime still has it.
    #[command(verbatim_doc_comment)]
    Forget(forget::Forget),
    /// Print a shell's completions of these commands.
    Completion {
        /// Shell to complete in, such as bash.
        #[arg(hide_possible_values = true)]
        shell: clap_complete::Shell,
    },
}

/// The needs of a verb.
struct VerbTraits {
    /// The format that the verb's own option names; the formats of `adjust` are its own.
    output: Option<Format>,
    /// The line that an operator sees while the verb waits. A verb with a screen, a stream or its own
    /// plugins has none.
    wait: Option<&'static str>,
    /// Whether it reads what the daemon and the engines keep.
    is_roots: bool,
}

impl AdminVerb {
    fn traits(&self) -> VerbTraits {
        let daemon = Some("waiting for the daemon");
        let (output, wait, is_roots) = match self {
            Self::Status(plain) | Self::Disable(plain) | Self::Enable(plain) => {
                (plain.output, daemon, true)
            }
            Self::Check(plain) => (plain.output, Some("checking"), true),
            Self::Sysdump(dump) => (dump.output.output, Some("collecting"), true),
            Self::Drift(drift) => (drift.output.output, Some("reading cgroups"), true),
            Self::Reload { output, .. } => {
                (output.output, Some("reloading the configuration"), true)
            }
            Self::Reexec(plain) => (plain.output, Some("waiting for requests in flight"), true),
            Self::Stop(plain) | Self::Restart(plain) => {
                (plain.output, Some("stopping the daemon"), true)
            }
            Self::Forget(forget) => (forget.output.output, daemon, true),
            Self::Plugins(plugins) => (plugins.output.output, daemon, true),
            Self::Pods(pods) => (pods.output.output, daemon, true),
            Self::Explain { output, .. } => (output.output, daemon, true),
            Self::Metrics => (None, daemon, true),
            Self::Audit(audit) => (audit.output.output, Some("searching the audit log"), true),
            Self::Policy(policy) => (policy.output(), daemon, policy.needs_daemon()),
            Self::Install(how) => (how.output(), Some("registering"), how.needs_root()),
            Self::Uninstall(how) => (how.output(), Some("unregistering"), how.needs_root()),
            Self::Top(top) => (top.output.output, None, true),
            Self::Events(events) => (events.output.output, None, true),
            Self::Daemon { .. } => (None, None, true),
            Self::Replay(replay) => (None, None, replay.records()),
            Self::Adjust(adjust) => (adjust.wants_no_json().then_some(Format::Page), None, false),
            Self::Node(_) | Self::Hook { .. } | Self::Completion { .. } => (None, None, false),
        };
        VerbTraits { output, wait, is_roots }
    }
}

/// The verbs with their options and help, the exit codes in it; for man pages and completions too.
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

/// The command line as a user types it: `nri-runc nri VERB`.
pub fn command_of_program() -> clap::Command {
    let verbs = command().name("nri").bin_name(Resettable::<String>::Reset);
    // `help` and `--help` are the runtime's.
    let runtime = clap::Command::new("nri-runc").disable_help_flag(true);
    runtime.disable_help_subcommand(true).subcommand(verbs)
}

/// The completions of a shell, for the program under its name.
pub fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command_of_program(), "nri-runc", &mut script);
    // clap_complete 4.6.11 writes the hyphen of the program's name in two ways for bash: nothing below the
    // first word would be completed.
    String::from_utf8_lossy(&script).replace("nri__subcmd__runc", "nri__runc")
}

/// Hides the options of `install` that do not apply to `node`, which runs until it is stopped.
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

/// Runs an admin verb.
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

/// The form of the answer; `--json` with another one is a contradiction.
fn format(arguments: &Arguments) -> clap::error::Result<Format> {
    if let AdminVerb::Policy(policy) = &arguments.verb
        && policy.wants_no_report()
    {
        let line = "--output junit cannot be used with --bundle or --pod";
        return Err(Arguments::command().error(ErrorKind::ArgumentConflict, line));
    }
    match (arguments.json, arguments.verb.traits().output) {
        (true, None | Some(Format::Json)) => Ok(Format::Json),
        (true, Some(other)) => {
            let other = if other == Format::Page { "diff or spec" } else { other.word() };
            let line = format!("--json cannot be used with --output {other}");
            Err(Arguments::command().error(ErrorKind::ArgumentConflict, line))
        }
        (false, format) => Ok(format.unwrap_or_default()),
    }
}

/// Help, the version, or what is wrong with the command line, which may repeat a hostile file name.
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

/// Reads the configuration that the command is about.
fn load(arguments: &Arguments) -> Loaded {
    if let Some(file) = &arguments.config {
        return config::load(Some(file));
    }
    // Hooks and engines are the node's.
    let verb = &arguments.verb;
    let is_of_node = matches!(verb, AdminVerb::Hook { .. } | AdminVerb::Node(_))
        || matches!(verb, AdminVerb::Install(how) if !how.is_of_user())
        || matches!(verb, AdminVerb::Uninstall(how) if !how.is_of_user());
    if is_of_node { config::load_for_this_process() } else { config::load_for_operator() }
}

fn carry_out(arguments: &Arguments, format: Format) -> Result<u8> {
    if let AdminVerb::Daemon { probe_state: true, .. } = arguments.verb {
        return print_json(&daemon::abilities());
    }
    let loaded = runtime::verify(load(arguments));
    let config = &loaded.config;
    check_user(arguments.verb.traits().is_roots, config)?;
    refuse_missing_file(arguments, &loaded)?;
    arguments.verb.traits().wait.into_iter().for_each(progress::begin);
    let answer = |verb: &str| ask(config, &json!({"verb": verb}));
    match &arguments.verb {
        AdminVerb::Daemon { ready_fd, state_fd, in_background, trial, probe_state: _ } => {
            let (ready_fd, state_fd) = (*ready_fd, *state_fd);
            let (in_background, is_trial) = (*in_background, *trial);
            let start = daemon::Start { ready_fd, state_fd, in_background, is_trial };
            daemon::run(loaded, &start).map(|()| DONE)
        }
        AdminVerb::Status(_) => status::status(config, format),
        AdminVerb::Metrics => tell(format, &answer("metrics")?, show::metrics, paint::plain),
        AdminVerb::Top(options) => top::top(config, options, format),
        AdminVerb::Plugins(wanted) => plugins::plugins(config, wanted, format),
        AdminVerb::Pods(wanted) => pods::pods(config, wanted, format),
        AdminVerb::Explain { id, show_env, .. } => explain(config, id, *show_env, format),
        AdminVerb::Policy(asked) => policy::policy(&loaded, asked, format),
        AdminVerb::Adjust(adjust) => dry::adjust(loaded, adjust, arguments.json),
        AdminVerb::Replay(replay) => dry::replay(loaded, replay).map(|()| DONE),
        AdminVerb::Audit(audit) => audit::audit(config, audit, format),
        AdminVerb::Events(wanted) => events::events(config, wanted, format),
        AdminVerb::Check(_) => check(&loaded, format),
        AdminVerb::Sysdump(wanted) => sysdump::sysdump(&loaded, wanted, format),
        AdminVerb::Drift(wanted) => drift::drift(config, wanted, format),
        AdminVerb::Install(how) => {
            tell(format, &install::install(how, &loaded)?, install::show, paint::diff)
        }
        AdminVerb::Uninstall(how) => {
            let document = install::uninstall(how, config, !format.is_page())?;
            tell(format, &document, install::show, paint::diff)
        }
        AdminVerb::Node(options) => node::node(options),
        AdminVerb::Hook { stage } => wrapper::hook(config, stage).map(|()| DONE),
        AdminVerb::Reload { dry_run, .. } => {
            tell(format, &reload::reload(&loaded, *dry_run)?, reload::show, paint::diff)
        }
        AdminVerb::Reexec(_) => {
            tell(format, &resident::reexec(config)?, resident::show_reexecuted, paint::plain)
        }
        AdminVerb::Stop(_) => {
            tell(format, &resident::stop(&loaded)?, resident::show_stopped, paint::plain)
        }
        AdminVerb::Restart(_) => {
            tell(format, &resident::restart(&loaded)?, resident::show_restarted, paint::plain)
        }
        AdminVerb::Forget(wanted) => forget::forget(config, wanted, format),
        AdminVerb::Disable(_) | AdminVerb::Enable(_) => {
            let is_off = matches!(arguments.verb, AdminVerb::Disable(_));
            tell(format, &switch::switch(config, is_off)?, switch::show, paint::plain)
        }
        AdminVerb::Completion { shell } => print(completion(*shell).as_bytes()),
    }
}

/// A configuration file that was named and cannot be read: an answer about another daemon, or a
/// kill switch in another run directory, is worse than none. `check` shows it as a finding; the
/// daemon and hooks refuse containers for it.
fn refuse_missing_file(arguments: &Arguments, loaded: &Loaded) -> Result<()> {
    let goes_on = matches!(
        arguments.verb,
        AdminVerb::Daemon { .. }
            | AdminVerb::Hook { .. }
            | AdminVerb::Check(_)
            | AdminVerb::Sysdump(_)
    );
    let Some(why) = loaded.unreadable.as_ref().filter(|_| !goes_on) else { return Ok(()) };
    let by = match &arguments.config {
        Some(_) => "--config".to_owned(),
        None => format!("{} or a file beside the executable", config::FILE_VARIABLE),
    };
    Err(Error::new(format!("cannot read the configuration {why}"))
        .hint(format!("{by} names this file")))
}

/// Refuses a verb that needs root to another user, except to the owner of the run directory: reading
/// the state of the daemon and the engines needs root.
fn check_user(is_roots: bool, config: &Config) -> Result<()> {
    let user = nix::unistd::geteuid();
    let is_owner = || std::fs::metadata(&config.run_dir).is_ok_and(|d| d.uid() == user.as_raw());
    if !is_roots || user.is_root() || config.is_of_user || is_owner() {
        return Ok(());
    }
    Err(Error::new("this command must be run as root").hint("use sudo"))
}

fn ask(config: &Config, question: &Value) -> Result<Value> {
    let answer = wrapper::admin(config, &question.to_string())?;
    serde_json::from_str(&answer).map_err(|error| Error::new(error.to_string()))
}

/// Reads an answer of the daemon.
///
/// # Errors
/// Fails where the daemon is of a version whose answer has another form.
fn read<T: DeserializeOwned>(document: &Value) -> Result<T> {
    T::deserialize(document).map_err(|error| {
        let error = Error::new(format!("the daemon's answer cannot be read: {error}"));
        error.hint("the running daemon has another version: nri-runc nri reexec")
    })
}

fn ask_status(config: &Config) -> Result<Status> {
    read(&ask(config, &json!({"verb": "status"}))?)
}

/// Several that are meant are listed, and that is a failure: nothing was explained.
fn explain(config: &Config, id: &str, show_env: bool, format: Format) -> Result<u8> {
    let mut document = ask(config, &json!({"verb": "explain", "id": id}))?;
    if !show_env {
        show::redact(&mut document);
    }
    let page = |document: &Value| explain::page(document, format == Format::Wide);
    tell(format, &document, page, paint::trouble)?;
    match document["error"].as_str() {
        Some(error) => Err(Error::new(error).hint("name one by its id, or NAMESPACE/POD/NAME")),
        None => Ok(DONE),
    }
}

fn check(loaded: &Loaded, format: Format) -> Result<u8> {
    let findings = check::all(loaded);
    let wrong = findings.iter().filter(|finding| finding["ok"] != true).count();
    tell(format, &Value::Array(findings), show::check, paint::check)?;
    if wrong == 0 {
        return Ok(DONE);
    }
    Err(Error::new(format!("{} failed", counted(wrong, "check"))).hint("each names its fix"))
}
