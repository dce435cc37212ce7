// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about engines: whether nri-runc is registered, whether the engine's files
//! still match, whether the executable exists, whether the running engine has loaded the handler,
//! and which runtime nri-runc finds; and the next step. It changes nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use super::detect;
use super::engine::Engine;
use super::engine_files;
use super::ledger::Ledger;
use super::listener;
use super::nri_decision::NriDecision;
use super::own_nri::{self, NriCandidate};
use super::plan::Registration;
use super::restart;
use super::root::Root;
use super::running::{self, HandlerState, WantedHandler};
use crate::admin::check::{Finding, finding, warning};
use crate::config::Config;
use crate::error::Result;
use crate::host::Host;
use crate::named::Named;
use crate::runtime;

/// The handler name to look for without an undo record, as after a manual registration.
const USUAL_NAME: &str = "nri-runc";

/// The handler to look for without an undo record.
const USUAL_HANDLER: WantedHandler<'_> =
    WantedHandler { name: USUAL_NAME, binary: None, default: false };

/// The findings of `check` about engines.
#[derive(Debug, Default)]
pub(in crate::admin) struct EngineFindings {
    /// One for each engine that is installed, runs or has a record, and one for each real runtime.
    pub(in crate::admin) findings: Vec<Finding>,
    /// The programs that registered engines call.
    pub(in crate::admin) programs: Vec<PathBuf>,
    /// The command that makes an engine stop serving plugins, if its NRI is switched off but it
    /// still serves them.
    pub(in crate::admin) takes_over: Option<String>,
    /// The next step if all checks pass.
    pub(in crate::admin) next_step: String,
}

struct EngineOnHost {
    engine: Engine,
    ledger: Option<Ledger>,
    handler: HandlerState,
    /// The main file of the registration or of the engine's process, unless it is the default one.
    file: Option<String>,
    /// The engines that may serve plugins themselves.
    nri: Vec<NriCandidate>,
}

impl EngineOnHost {
    /// Returns the main file of the registration; `None` without one, or if no option can name the file.
    fn main(&self) -> Option<&str> {
        self.ledger.as_ref().and_then(|ledger| main_of(self.engine, ledger))
    }

    fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    fn name(&self) -> &str {
        self.ledger.as_ref().map_or(USUAL_NAME, |ledger| ledger.name.as_str())
    }

    /// Whether plugins would connect to an engine, so that `install` asks for a decision.
    fn serves_nri(&self, config: &Config) -> bool {
        let root = root_of(config);
        let texts = own_nri::read_all(&root, &self.nri).unwrap_or_default();
        let socket = config.socket_path.display().to_string();
        self.nri.iter().any(|its| its.serves(&socket, &texts).unwrap_or(false))
    }

    /// Whether containers can select nri-runc.
    fn is_usable(&self) -> bool {
        self.ledger.is_some() || self.handler == HandlerState::Known
    }
}

/// Returns the root of the files that hold the registrations of this configuration's daemon.
fn root_of(config: &Config) -> Root {
    let of_user = config.is_of_user().then(|| Root::of_user(config.host()).ok()).flatten();
    of_user.unwrap_or_else(|| Root::of_host(config.host()))
}

/// Checks every engine; for a user's daemon, only Podman.
pub(in crate::admin) fn check_engines(config: &Config, daemon_pid: Option<i64>) -> EngineFindings {
    let host = config.host();
    let root = root_of(config);
    let mut found = EngineFindings::default();
    let listener = listener::find(&root, config, || daemon_pid);
    let mut all = Vec::new();
    let all_engines = Engine::ALL.iter().copied();
    let is_users = |its: &Engine| its.row().main_of_user.is_some();
    for engine in all_engines.filter(|its| root.user().is_none() || is_users(its)) {
        let ledger = match Ledger::load(&root, engine) {
            Ok(ledger) => ledger,
            Err(error) => {
                let hint = "repair or remove this file";
                let row = finding(&check_name(engine), false, error.to_string(), hint);
                found.findings.push(row);
                continue;
            }
        };
        let row = engine.row();
        let is_installed = row.programs.iter().any(|path| root.has(path))
            || (engine.has_distributions() && !detect::here(&root).is_empty());
        let main = ledger.as_ref().and_then(|ledger| main_of(engine, ledger));
        let wanted = ledger.as_ref().map_or(USUAL_HANDLER, wanted_of);
        let handler = running::query_handler(engine, wanted, main, &root, &host);
        let runs = !matches!(handler, HandlerState::NotRunning | HandlerState::ReadEachTime);
        if ledger.is_some() || is_installed || runs {
            let main = ledger
                .as_ref()
                .map_or_else(|| running::unusual_file(engine, &host), |ledger| ledger.main.clone());
            let nri = own_nri::candidates(engine, main.as_deref(), &root, listener.as_ref());
            all.push(EngineOnHost { engine, ledger, handler, file: main, nri });
        }
    }
    found.findings.extend(all.iter().map(|here| check_registration(here, &root, config)));
    found.findings.extend(check_runtimes(&all, config));
    let ledgers =
        || all.iter().filter_map(|here| here.ledger.as_ref().map(|ledger| (here, ledger)));
    let programs = ledgers().map(|(_, ledger)| PathBuf::from(&ledger.binary));
    found.programs = programs.filter(|program| program.is_file()).collect();
    found.programs.dedup();
    let mut taken_over = ledgers().filter(|(_, ledger)| ledger.nri == NriDecision::TakeOver);
    found.takes_over = taken_over.find_map(|(here, _)| {
        let its = here.nri.iter().find(|its| its.is_listening())?;
        Some(its.restart_command(&root))
    });
    found.next_step = next_step(&all, config);
    found
}

pub(super) fn wanted_of(ledger: &Ledger) -> WantedHandler<'_> {
    let (name, binary) = (ledger.name.as_str(), Some(ledger.binary.as_str()));
    WantedHandler { name, binary, default: ledger.default }
}

/// Returns the main file of a registration; `None` if no option can name the engine's main file.
fn main_of(engine: Engine, ledger: &Ledger) -> Option<&str> {
    let usual = engine.row().main?;
    Some(ledger.main.as_deref().unwrap_or(usual))
}

fn check_name(engine: Engine) -> String {
    format!("registered with {}", engine.name())
}

fn check_registration(here: &EngineOnHost, root: &Root, config: &Config) -> Finding {
    let engine = here.engine;
    let check = check_name(engine);
    let finding = |ok: bool, detail: String, hint: String| finding(&check, ok, detail, &hint);
    let Some(ledger) = &here.ledger else {
        let name = engine.name();
        return match here.handler {
            HandlerState::Known if is_left_over(engine, root, &config.host()) => {
                let detail = format!("no, but the running {name} still has {USUAL_NAME} loaded");
                warning(&check, detail, &restart::again(engine, here.file(), true, root))
            }
            HandlerState::Known => {
                let detail = format!("registered manually; {name} has the runtime {USUAL_NAME}");
                finding(true, detail, String::new())
            }
            HandlerState::Unknown
            | HandlerState::OtherProgram
            | HandlerState::NotDefault
            | HandlerState::NotRunning
            | HandlerState::NoAnswer
            | HandlerState::NotListed
            | HandlerState::ReadEachTime => finding(true, "no".to_owned(), String::new()),
        };
    };
    let reinstall = format!("nri-runc nri install {}{}", engine.name(), root.option());
    if !root.has_file(&ledger.binary) {
        let detail = format!("{} is missing", ledger.binary);
        return finding(false, detail, "reinstall nri-runc at this path".to_owned());
    }
    match is_unchanged(here, ledger, root, config) {
        Ok(true) => {
            let default = if ledger.default { " (the default runtime)" } else { "" };
            let nri = match nri_state(here, ledger, root, config) {
                Ok(line) => line,
                Err((detail, hint)) => return finding(false, detail, hint),
            };
            let found = format!("as {}{default}{nri}", ledger.name);
            let (ok, detail, hint) = loaded(here, &found, root);
            if here.handler == HandlerState::NoAnswer {
                // The handlers that the engine has loaded are unknown.
                return warning(&check, detail, "see whether the engine itself works");
            }
            finding(ok, detail, hint)
        }
        Ok(false) => finding(
            false,
            "the engine's configuration no longer matches the registration".to_owned(),
            reinstall,
        ),
        Err(error) => finding(false, error.to_string(), reinstall),
    }
}

/// Returns whether the engine's state is no fault (it has loaded the handler, does not run, does not
/// answer, lists no handlers, or reads its files for each container), `detail` with that state, and
/// the fix.
fn loaded(here: &EngineOnHost, detail: &str, root: &Root) -> (bool, String, String) {
    let name = here.engine.name();
    let (ok, more) = match here.handler {
        HandlerState::Known => (true, format!("; {name} has loaded it")),
        HandlerState::Unknown => (false, format!("; the running {name} has not loaded it yet")),
        HandlerState::OtherProgram => {
            (false, format!("; the running {name} has another program under this name"))
        }
        HandlerState::NotDefault => {
            (false, format!("; the running {name} has not loaded it as the default runtime yet"))
        }
        HandlerState::NotRunning => (true, format!("; {name} is not running")),
        HandlerState::NoAnswer => (true, format!("; {name} is running but did not respond")),
        HandlerState::NotListed => {
            (true, format!("; {name} is running, and has no API that lists its runtimes"))
        }
        HandlerState::ReadEachTime => (true, String::new()),
    };
    let hint = match ok {
        true => String::new(),
        false => restart::again(here.engine, here.file(), false, root),
    };
    (ok, format!("{detail}{more}"), hint)
}

/// Summarizes the decision about the engine's own NRI, or explains why no plugin connects to
/// nri-runc and how to fix that.
fn nri_state(
    here: &EngineOnHost,
    ledger: &Ledger,
    root: &Root,
    config: &Config,
) -> std::result::Result<String, (String, String)> {
    let title = here.engine.row().title;
    let socket = config.socket_path.display().to_string();
    match &ledger.nri {
        NriDecision::Beside(socket) => Ok(format!(" on {socket}, beside {title}'s own NRI")),
        NriDecision::TakeOver => match here.nri.iter().find(|its| its.is_listening()) {
            None => Ok(", instead of the engine's own NRI".to_owned()),
            Some(its) => Err((
                format!("{} still serves plugins on {socket}", its.title()),
                its.restart_command(root),
            )),
        },
        NriDecision::Open => {
            let texts = own_nri::read_all(root, &here.nri).unwrap_or_default();
            let mut all = here.nri.iter();
            match all.find(|its| its.serves(&socket, &texts).unwrap_or(false)) {
                None => Ok(String::new()),
                Some(its) => Err((
                    format!("{} serves NRI itself on {socket}", its.title()),
                    format!(
                        "nri-runc nri install {} --take-over-nri, or with --beside",
                        here.engine.name()
                    ),
                )),
            }
        }
    }
}

/// Whether a running engine has the handler although neither its files nor its flags name it: the
/// engine was not restarted after `uninstall`.
fn is_left_over(engine: Engine, root: &Root, host: &Host) -> bool {
    let main = running::unusual_file(engine, host);
    let Ok(texts) = engine_files::read_all(root, engine, main.as_deref()) else { return false };
    let is_in_files = texts.values().any(|text| text.contains(USUAL_NAME));
    !is_in_files && !running::may_be_from_flags(engine, USUAL_NAME, host)
}

/// Reports the real runtime that nri-runc finds in each engine's environment: of the registered
/// engines, or if there are none, of all that run.
fn check_runtimes(all: &[EngineOnHost], config: &Config) -> Vec<Finding> {
    let host = config.host();
    let is_any = all.iter().any(EngineOnHost::is_usable);
    let mut found: Vec<(String, String, Vec<&'static str>)> = Vec::new();
    for here in all.iter().filter(|here| !is_any || here.is_usable()) {
        let path = (here.engine.row().search_path)(here.main(), &host);
        let Some(path) = path else { continue };
        let binary = here.ledger.as_ref().map(|ledger| OsString::from(&ledger.binary));
        let resolved = runtime::resolve_in(config, binary.as_ref(), &path);
        let resolved = resolved.and_then(|path| runtime::execute(&path).map(|()| path));
        let (detail, problem) = match resolved {
            Ok(path) => (path.display().to_string(), String::new()),
            Err(error) => {
                let path = path.to_string_lossy();
                (
                    error.to_string(),
                    format!("install runc, or set `runtime`; the engine's PATH is {path}"),
                )
            }
        };
        match found.iter_mut().find(|(known, _, _)| *known == detail) {
            Some((_, _, engines)) => engines.push(here.engine.name()),
            None => found.push((detail, problem, vec![here.engine.name()])),
        }
    }
    let rows = found.into_iter().map(|(detail, problem, engines)| {
        let detail = format!("{detail} (found by {})", engines.join(", "));
        let row = finding("real runtime", problem.is_empty(), detail, &problem);
        Finding { engines, ..row }
    });
    rows.collect()
}

/// Names the next step: registering, starting the engine, or running a container.
fn next_step(all: &[EngineOnHost], config: &Config) -> String {
    let host = &config.host();
    let root = root_of(config);
    let usable: Vec<&EngineOnHost> = all.iter().filter(|here| here.is_usable()).collect();
    if usable.is_empty() {
        let others = all.iter().filter(|here| here.engine.row().has_files());
        let commands = others.map(|here| {
            let file = running::unusual_file(here.engine, host);
            let file = detect::option_for(here.engine, file.as_deref(), &root);
            let decision = if here.serves_nri(config) { " --take-over-nri|--beside" } else { "" };
            let user = root.option();
            format!("nri-runc nri install {}{user}{file}{decision}", here.engine.name())
        });
        let commands: Vec<String> = commands.collect();
        return match commands.join("; or ") {
            none if none.is_empty() => {
                let all = Engine::ALL.iter().filter(|its| its.row().has_files());
                let names: BTreeSet<&str> = all.map(|its| its.name()).collect();
                let names = Vec::from_iter(names).join("|");
                format!("install an engine, then: nri-runc nri install {names}")
            }
            commands => format!("register nri-runc with the engine: {commands}"),
        };
    }
    let stopped: Vec<&EngineOnHost> =
        usable.iter().copied().filter(|here| here.handler == HandlerState::NotRunning).collect();
    if stopped.len() == usable.len() {
        let first = stopped.first();
        let command = first.map(|here| restart::start_command(here.engine, here.file(), &root));
        return format!("start the engine: {}", command.unwrap_or_default());
    }
    let ready = usable.iter().filter(|here| here.handler != HandlerState::NotRunning);
    let uses = ready.filter_map(|here| {
        let ledger = here.ledger.as_ref();
        let (binary, default) = ledger.map_or(("nri-runc", false), |l| (&l.binary, l.default));
        (here.engine.row().usage)(here.file(), here.name(), binary, default).into_iter().next()
    });
    let uses: Vec<String> = uses.collect();
    format!("run a container: {}", uses.join("; or "))
}

fn is_unchanged(
    here: &EngineOnHost,
    ledger: &Ledger,
    root: &Root,
    config: &Config,
) -> Result<bool> {
    let registration = Registration {
        name: ledger.name.clone(),
        binary: ledger.binary.clone(),
        default: ledger.default,
        main: ledger.main.clone(),
        socket: config.socket_path.display().to_string(),
        nri: ledger.nri.clone(),
        shows_node: false, // The operator may have removed the drop-in.
    };
    let now = own_nri::read_all(root, &here.nri)?;
    let plan = own_nri::plan(here.engine, &registration, &here.nri, &now)?;
    Ok(plan.files.iter().all(|(path, text)| now.get(path) == Some(text)))
}
