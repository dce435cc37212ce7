// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri VERB`: what operators ask and switch. Exit codes: 0 done, 1 failed (one line on
//! stderr says what and what to do), 2 usage. `--json` prints one document; without it, a table.
//! Logs never go to stdout.

mod check;
mod dry;
mod install;
mod record;
mod resident;
mod show;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};

use crate::config::{self, Config, Loaded};
use crate::daemon;
use crate::error::{Context, Error, Result};
use crate::files;
use crate::text::{printable, printable_page};
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
    },
    /// Show the state of the daemon and its last failures.
    Status,
    /// List plugins.
    Plugins,
    /// List pods and containers.
    Pods,
    /// Show what plugins changed in a container.
    Explain {
        /// Id, prefix of one, or pod-namespace/pod-name/container-name; without a namespace (Docker,
        /// Podman, plain bundles) also the container's name alone.
        id: String,
        /// Show the values of environment variables.
        #[arg(long)]
        show_env: bool,
    },
    /// Check configuration, runtime, plugins and engines.
    Check,
    /// Show how plugins would change a bundle (needs no daemon).
    Adjust(dry::Adjust),
    /// Send plugins the requests in a script, or record one.
    Replay(dry::Replay),
    /// Register nri-runc with an engine.
    Install(install::Install),
    /// Undo `install`, byte for byte.
    Uninstall(install::Uninstall),
    /// Entry point of the OCI hooks (state on standard input).
    Hook {
        /// prestart, createRuntime, poststart or poststop.
        stage: String,
    },
    /// End the daemon after the requests in flight.
    Stop,
    /// End the daemon after the requests in flight, and start it with the same configuration.
    Restart,
    /// Switch plugins off: every command goes straight to the runtime.
    Disable,
    /// Switch plugins on again.
    Enable,
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
    let page = error_of_escaped.as_ref().unwrap_or(error).render().to_string();
    let page = printable_page(&page);
    if error.use_stderr() {
        let _nobody_reads = std::io::stderr().write_all(page.as_bytes());
        return USAGE;
    }
    print(page.as_bytes()).unwrap_or(FAILED)
}

fn carry_out(arguments: &Arguments) -> Result<u8> {
    let loaded = match &arguments.config {
        Some(file) => config::load(Some(file)),
        None => config::load_for_this_process(),
    };
    let config = &loaded.config;
    refuse_missing_file(arguments, &loaded)?;
    match &arguments.verb {
        AdminVerb::Daemon { ready_fd } => {
            daemon::run(loaded, &daemon::Start { ready_fd: *ready_fd })?;
            Ok(DONE)
        }
        AdminVerb::Status => asked(arguments, config, &json!({"verb": "status"}), show::status),
        AdminVerb::Plugins => plugins(arguments, config),
        AdminVerb::Pods => asked(arguments, config, &json!({"verb": "pods"}), show::pods),
        AdminVerb::Explain { id, show_env } => {
            let question = json!({"verb": "explain", "id": id});
            let show_env = *show_env;
            let mut document = ask(config, &question)?;
            if !show_env {
                show::redact(&mut document);
            }
            tell(arguments, &document, show::explain)
        }
        AdminVerb::Adjust(adjust) => {
            let shown = dry::adjust(loaded, adjust)?;
            print(&shown)
        }
        AdminVerb::Replay(replay) => dry::replay(loaded, replay).map(|()| DONE),
        AdminVerb::Check => check(arguments, &loaded),
        AdminVerb::Install(how) => tell(arguments, &install::install(how, config)?, install::show),
        AdminVerb::Uninstall(how) => {
            tell(arguments, &install::uninstall(how, config)?, install::show)
        }
        AdminVerb::Hook { stage } => wrapper::hook(config, stage).map(|()| DONE),
        AdminVerb::Stop => tell(arguments, &resident::stop(config)?, resident::show_stopped),
        AdminVerb::Restart => {
            tell(arguments, &resident::restart(&loaded)?, resident::show_restarted)
        }
        AdminVerb::Disable => switch(arguments, config, true),
        AdminVerb::Enable => switch(arguments, config, false),
    }
}

/// A configuration file that was named and cannot be read: an answer about another daemon, or a
/// kill switch in another run directory, is worse than none. `check` shows it as a finding; the
/// daemon and hooks refuse containers for it.
fn refuse_missing_file(arguments: &Arguments, loaded: &Loaded) -> Result<()> {
    let goes_on = match &arguments.verb {
        AdminVerb::Daemon { .. } | AdminVerb::Hook { .. } | AdminVerb::Check => true,
        AdminVerb::Status
        | AdminVerb::Plugins
        | AdminVerb::Pods
        | AdminVerb::Explain { .. }
        | AdminVerb::Adjust(_)
        | AdminVerb::Replay(_)
        | AdminVerb::Install(_)
        | AdminVerb::Uninstall(_)
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
    Err(Error::new(format!("the configuration {why}")).hint(format!("it was named by {by}")))
}

fn ask(config: &Config, question: &Value) -> Result<Value> {
    let answer = wrapper::admin(config, &question.to_string());
    let answer = answer.map_err(|error| {
        error.hint("the daemon starts with the first container, or by: nri-runc nri daemon")
    })?;
    serde_json::from_str(&answer).map_err(|error| Error::new(error.to_string()))
}

fn asked(
    arguments: &Arguments,
    config: &Config,
    question: &Value,
    show: fn(&Value) -> String,
) -> Result<u8> {
    let document = ask(config, question)?;
    tell(arguments, &document, show)
}

/// The table, and below it one line where plugins cannot connect.
fn plugins(arguments: &Arguments, config: &Config) -> Result<u8> {
    asked(arguments, config, &json!({"verb": "plugins"}), show::plugins)?;
    if !arguments.json {
        let status = ask(config, &json!({"verb": "status"}))?;
        print(show::plugin_socket(&status).as_bytes())?;
    }
    Ok(DONE)
}

fn tell(arguments: &Arguments, document: &Value, show: fn(&Value) -> String) -> Result<u8> {
    let mut text =
        if arguments.json { document.to_string() } else { printable_page(&show(document)) };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    print(text.as_bytes())
}

/// Nobody empties standard output behind us: our entry point is not that of the standard library,
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
    Err(Error::new(format!("{wrong} of these checks failed")).hint("each says what to do"))
}

fn switch(arguments: &Arguments, config: &Config, off: bool) -> Result<u8> {
    let file = config.disabled_file();
    if off {
        files::make_private_dir(&config.run_dir)?;
        files::replace(&file, b"")?;
    } else {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).doing(|| format!("removing {}", file.display()));
            }
            Ok(()) | Err(_) => {}
        }
    }
    tell(arguments, &json!({"disabled": off}), |document| {
        let off = document["disabled"] == true;
        let line = if off { "disabled: every verb is passed through" } else { "enabled" };
        line.to_owned()
    })
}
