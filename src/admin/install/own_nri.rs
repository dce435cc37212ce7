// SPDX-License-Identifier: Apache-2.0
//! The engines' own NRI: whether an engine serves plugins on nri-runc's socket, according to its
//! files, its program and the listening process; and the operator's decision about that (decision
//! D46). It writes nothing, and runs no program except CRI-O, for its version.

use std::path::Path;

use super::engine::Engine;
use super::ledger::Ledger;
use super::nri_decision::{BESIDE_SOCKET, NriDecision, NriSetting};
use super::plan::{EngineFile, Plan, Registration, Texts};
use super::root::Root;
use super::{Install, edit, engine_files, restart, running};
use crate::config::{DEFAULT_DROP_INS, Loaded};
use crate::error::{Error, Result};
use crate::named::Named;
use crate::plugin::socket::SocketListener;
use crate::runtime::features;

/// Directory of nri-runc's pre-installed plugins if the engine's own NRI stays on, because the engine then
/// launches the plugins in the default directory.
const BESIDE_PLUGINS: &str = "/opt/nri-runc/plugins";

/// containerd's Go module path since 2.0, the first version with NRI on by default. Every containerd program
/// contains its module path, in the names of functions.
const CONTAINERD_2: &[u8] = b"github.com/containerd/containerd/v2/";

/// The first version of CRI-O with NRI on by default.
const CRIO_WITH_NRI: (u32, u32, u32) = (1, 30, 0);

/// An engine whose own NRI may be on.
#[derive(Debug)]
pub(super) struct NriCandidate {
    pub(super) engine: Engine,
    /// The engine's main file, unless it is the usual one.
    main: Option<String>,
    /// Whether the engine's program has NRI on by default; `None` if unknown.
    is_on_by_default: Option<bool>,
    /// The engine's process, if it listens on the plugin socket.
    listener: Option<SocketListener>,
}

impl NriCandidate {
    /// Whether the engine, run with these files, serves plugins on `socket`.
    pub(super) fn serves(&self, socket: &str, texts: &Texts) -> Result<bool> {
        let Some(setting) = self.setting(texts)? else { return Ok(false) };
        let by_program = || self.is_on_by_default.unwrap_or(setting.is_on_by_form);
        let is_on = setting.is_on.unwrap_or_else(|| self.listener.is_some() || by_program());
        Ok(is_on && is_same_place(&setting.socket, socket))
    }

    /// Whether neither the engine's files nor its program show whether it serves plugins on `socket`.
    fn is_unknown(&self, socket: &str, texts: &Texts) -> bool {
        let says_nothing = |setting: NriSetting| {
            setting.is_on.is_none()
                && !setting.is_on_by_form
                && is_same_place(&setting.socket, socket)
        };
        self.is_on_by_default.is_none()
            && self.is_on_since().is_some()
            && self.setting(texts).ok().flatten().is_some_and(says_nothing)
    }

    /// Whether the engine's process listens on the plugin socket.
    pub(super) fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Returns the command that makes the engine reload its files.
    pub(super) fn restart_command(&self, root: &Root) -> String {
        restart::again(self.engine, self.main.as_deref(), true, root)
    }

    fn setting(&self, texts: &Texts) -> Result<Option<NriSetting>> {
        let nri = self.engine.row().nri.as_ref();
        nri.map(|nri| (nri.setting)(self.main.as_deref(), texts)).transpose()
    }

    /// Returns the first version of the engine with NRI on by default.
    fn is_on_since(&self) -> Option<&'static str> {
        Some(self.engine.row().nri.as_ref()?.default?.0)
    }

    /// Returns the engine's name, with its process if known.
    pub(super) fn title(&self) -> String {
        let listener = self.listener.as_ref().map(ToString::to_string);
        listener.unwrap_or_else(|| self.engine.row().title.to_owned())
    }

    fn switch_off(&self, texts: &Texts, plan: &mut Plan) -> Result<()> {
        let main = self.main.as_deref();
        if let Some(main) = main.filter(|main| running::is_written_by_docker(main)) {
            return Err(Error::new(format!("dockerd rewrites {main} at each start")).hint(
                "install with --beside, or let dockerd use a containerd of your own (--containerd)",
            ));
        }
        if let Some(nri) = &self.engine.row().nri {
            (nri.plan_off)(main, texts, plan)?;
        }
        plan.restarts.push(self.engine);
        Ok(())
    }
}

/// Whether two paths name the same file, given that `/var/run` is a link to `/run` on hosts with engines.
fn is_same_place(one: &str, other: &str) -> bool {
    let plain = |path: &str| path.strip_prefix("/var").unwrap_or(path).to_owned();
    one == other || (one.contains("/run/") && plain(one) == plain(other))
}

/// Lists the engines that may serve NRI: the engine to register with, the engine on which it runs,
/// and the engine that listens on the socket.
pub(super) fn candidates(
    engine: Engine,
    main: Option<&str>,
    root: &Root,
    listener: Option<&SocketListener>,
) -> Vec<NriCandidate> {
    let host = root.processes();
    let mut all = vec![(engine, main.map(str::to_owned))];
    if let Some(below) = engine.row().runs_on.filter(|its| its.row().program(root).is_some()) {
        let main = running::unusual_file(below, &host);
        all.push((below, main.filter(|_| !root.is_confined())));
    }
    let listens = listener.and_then(|its| Some((its, Engine::named(its.engine_to_install()?)?)));
    if let Some((its, engine)) = listens {
        let main = its.pid.and_then(|pid| running::file_of(engine, pid, &host));
        if !all.iter().any(|(other, its)| *other == engine && (*its == main || main.is_none())) {
            all.push((engine, main));
        }
    }
    let candidates = all.into_iter().map(|(engine, main)| NriCandidate {
        engine,
        is_on_by_default: is_on_by_default(engine, main.as_deref(), root),
        listener: listens.filter(|(_, other)| *other == engine).map(|(its, _)| its.clone()),
        main,
    });
    candidates.collect()
}

/// Whether the engine's program has NRI on if no file sets it; `None` if unknown.
fn is_on_by_default(engine: Engine, main: Option<&str>, root: &Root) -> Option<bool> {
    let row = engine.row();
    let runs = running::program(engine, main, &root.processes()).filter(|_| !root.is_confined());
    let program = runs.or_else(|| row.program(root).map(str::to_owned))?;
    (row.nri.as_ref()?.default?.1)(&program, root)
}

/// Whether this program is a containerd with NRI on by default.
pub(super) fn is_containerd_2(program: &str, root: &Root) -> Option<bool> {
    Some(contains(&root.read(program).ok().flatten()?, CONTAINERD_2))
}

/// Whether CRI-O has NRI on by default; true if its version is unknown. Runs CRI-O only at a packaged path, and
/// never a program below `--root`.
pub(super) fn is_crio_1_30(packaged: Option<&str>, root: &Root) -> bool {
    let path = packaged.filter(|_| !root.is_confined()).map(Path::new);
    let version = path.and_then(|path| features::version(&root.path(path)));
    version.is_none_or(|version| version >= CRIO_WITH_NRI)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    // Tests only every `wanted.len()`-th byte, because each occurrence covers one of them.
    let mut places = (0..bytes.len()).step_by(wanted.len());
    places.any(|at| {
        let here = wanted.iter().enumerate().filter(|(_, byte)| bytes.get(at) == Some(byte));
        let mut begins = here.filter_map(|(offset, _)| bytes.get(at.checked_sub(offset)?..));
        begins.any(|from| from.starts_with(wanted))
    })
}

/// Reads all files of the candidates, and nri-runc's drop-ins.
pub(super) fn read_all(root: &Root, candidates: &[NriCandidate]) -> Result<Texts> {
    let mut texts = Texts::new();
    for candidate in candidates {
        texts.extend(engine_files::read_all(root, candidate.engine, candidate.main.as_deref())?);
    }
    let ours = EngineFile::Folder(DEFAULT_DROP_INS.to_owned(), ".toml".to_owned());
    for path in engine_files::paths(root, &ours) {
        if let Some(text) = engine_files::read(root, &path)? {
            texts.insert(path, text);
        }
    }
    Ok(texts)
}

/// Plans all files of a registration: the engine's files, and the decision about NRI.
pub(super) fn plan(
    engine: Engine,
    registration: &Registration,
    candidates: &[NriCandidate],
    texts: &Texts,
) -> Result<Plan> {
    let mut plan = (engine.row().plan)(registration, texts)?;
    match &registration.nri {
        NriDecision::Open => {}
        NriDecision::TakeOver => {
            let is_own =
                |its: &&NriCandidate| its.engine == engine && its.main == registration.main;
            for other in candidates.iter().filter(|candidate| !is_own(candidate)) {
                if other.serves(&registration.socket, texts)? {
                    other.switch_off(texts, &mut plan)?;
                }
            }
        }
        NriDecision::Beside(socket) => plan_beside(engine, socket, candidates, texts, &mut plan)?,
    }
    if registration.shows_node {
        plan_scope(engine, texts, &mut plan)?;
    }
    Ok(plan)
}

/// The part of a path that identifies `install`'s drop-ins that set `nri.scope`.
const SCOPE: &str = "/40-scope-";

/// Whether this is the path of a drop-in of `install` that sets `nri.scope`.
pub(super) fn is_scope(path: &str) -> bool {
    path.contains(SCOPE)
}

/// Plans the drop-in that makes plugins receive the containers of the whole node (D65), as with the
/// engine's own NRI. Plans nothing if another drop-in sets the scope.
fn plan_scope(engine: Engine, texts: &Texts, plan: &mut Plan) -> Result<()> {
    let others =
        texts.iter().filter(|(path, _)| path.starts_with(DEFAULT_DROP_INS) && !is_scope(path));
    for (path, text) in others {
        if sets_scope(path, text)? {
            return Ok(());
        }
    }
    let name = engine.name();
    let text = format!(
        "# Written by `nri-runc nri install {name}`, removed by `nri-runc nri uninstall {name}`.\n\
         [nri]\nscope = \"node\"\n"
    );
    plan.own_file(texts, &format!("{DEFAULT_DROP_INS}{SCOPE}{name}.toml"), text)?;
    plan.notes.push(
        "plugins see the containers of the whole node (nri.scope = \"node\"); a running daemon shows \
         them after: nri-runc nri reload"
            .to_owned(),
    );
    Ok(())
}

fn sets_scope(path: &str, text: &str) -> Result<bool> {
    Ok(edit::at(edit::parse(path, text)?.as_table(), &["nri", "scope"]).is_some())
}

/// Whether `install` may add a drop-in that sets `nri.scope`: with `--root`, or if the daemon reads
/// drop-ins and the operator has not set the scope.
pub(super) fn may_set_scope(install: &Install, loaded: &Loaded) -> Result<bool> {
    if install.common.root.is_some() {
        return Ok(true);
    }
    for (path, text) in loaded.files.iter().filter(|_| loaded.refusal().is_none()) {
        let path = path.display().to_string();
        if !is_scope(&path) && sets_scope(&path, text)? {
            return Ok(false);
        }
    }
    Ok(loaded.only.is_none())
}

/// Plans the drop-in that sets another socket and plugin directory for nri-runc.
fn plan_beside(
    engine: Engine,
    socket: &str,
    candidates: &[NriCandidate],
    texts: &Texts,
    plan: &mut Plan,
) -> Result<()> {
    for candidate in candidates {
        if candidate.serves(socket, texts)? {
            let what = format!("{} serves NRI itself on {socket}", candidate.title());
            return Err(Error::new(what).hint("give --beside another path"));
        }
    }
    let path = format!("{DEFAULT_DROP_INS}/50-beside-{}.toml", engine.name());
    for (later, text) in texts.iter().filter(|(other, _)| {
        other.starts_with(DEFAULT_DROP_INS) && **other > path && !other.contains("/50-beside-")
    }) {
        let document = edit::parse(later, text)?;
        if edit::at(document.as_table(), &["nri", "socket_path"]).is_some() {
            return Err(Error::new(format!(
                "{later} is read after {path} and overrides its nri.socket_path"
            ))
            .hint("change it there, and install without --beside"));
        }
    }
    let text = format!(
        "# Written by `nri-runc nri install {} --beside`, removed by `nri-runc nri uninstall {}`.\n\
         [nri]\nsocket_path = {}\nplugin_path = \"{BESIDE_PLUGINS}\"\n",
        engine.name(),
        engine.name(),
        edit::string(socket)
    );
    plan.own_file(texts, &path, text)
}

/// Returns the decision in the options of `install`; without one, that of the earlier registration `old`.
pub(super) fn decision(
    install: &Install,
    loaded: &Loaded,
    old: Option<&Ledger>,
) -> Result<NriDecision> {
    let decision = NriDecision::of(install.take_over_nri, install.beside.as_deref())?;
    let is_beside = matches!(decision, NriDecision::Beside(_));
    if let Some(only) = loaded.only.as_ref().filter(|_| is_beside && install.common.root.is_none())
    {
        return Err(Error::new(format!(
            "--beside writes to {DEFAULT_DROP_INS}, which is not read when {} is the configuration file",
            only.display()
        ))
        .hint("set nri.socket_path and nri.plugin_path in that file"));
    }
    match old {
        Some(old) if decision == NriDecision::Open => Ok(old.nri.clone()),
        Some(_) | None => Ok(decision),
    }
}

/// Refuses to register while an engine serves plugins and the operator has not decided about it.
pub(super) fn require_decision(
    engine: Engine,
    registration: &Registration,
    candidates: &[NriCandidate],
    now: &Texts,
) -> Result<()> {
    if registration.nri != NriDecision::Open {
        return Ok(());
    }
    for candidate in candidates {
        if candidate.serves(&registration.socket, now)? {
            return Err(undecided(engine, candidate, &registration.socket));
        }
    }
    Ok(())
}

fn undecided(engine: Engine, owner: &NriCandidate, socket: &str) -> Error {
    Error::new(format!(
        "{} serves NRI itself on {socket}: plugins would connect to it, and nri-runc would create every \
         container without plugins",
        owner.title()
    ))
    .hint(format!(
        "nothing was changed; add --take-over-nri, which switches the NRI of {} off, or --beside, \
         which gives nri-runc a plugin socket of its own, {BESIDE_SOCKET}; `nri-runc nri uninstall {}` \
         undoes either",
        owner.engine.row().title,
        engine.name()
    ))
}

/// Returns notes about the decision on NRI; without a decision, about engines that may serve NRI themselves.
pub(super) fn notes(
    registration: &Registration,
    candidates: &[NriCandidate],
    texts: &Texts,
) -> Vec<String> {
    match &registration.nri {
        NriDecision::Open => {
            let socket = registration.socket.as_str();
            let unknown = candidates.iter().filter(|its| its.is_unknown(socket, texts));
            let first = unknown.filter_map(NriCandidate::is_on_since);
            let note = |first| {
                format!(
                    "{first} and later serves NRI itself: there, add --take-over-nri or --beside"
                )
            };
            first.map(note).collect()
        }
        NriDecision::TakeOver => {
            let serving = candidates.iter().filter(|candidate| candidate.listener.is_some());
            let note = |candidate: &NriCandidate| {
                format!("{} serves plugins until it is restarted", candidate.title())
            };
            serving.map(note).collect()
        }
        NriDecision::Beside(socket) => vec![format!(
            "nri-runc serves plugins on {socket} and launches those in {BESIDE_PLUGINS}; a running \
             daemon does so after: nri-runc nri restart"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_module_path_is_found_at_any_offset_of_a_program() {
        let begin = CONTAINERD_2.len();
        for before in [0, 1, begin - 1, begin, begin + 1, 1000] {
            let mut program = vec![b'g'; before];
            program.extend(CONTAINERD_2);
            assert!(contains(&program, CONTAINERD_2), "{before}");
            program.pop();
            assert!(!contains(&program, CONTAINERD_2), "{before}");
        }
        assert!(!contains(b"", CONTAINERD_2));
        assert!(!contains(b"github.com/containerd/containerd/cmd", CONTAINERD_2));
    }

    #[test]
    fn var_run_and_run_are_the_same_socket_folder() {
        assert!(is_same_place("/run/nri/nri.sock", "/var/run/nri/nri.sock"));
        assert!(is_same_place("/srv/nri.sock", "/srv/nri.sock"));
        assert!(!is_same_place("/run/nri/nri.sock", "/run/nri/other.sock"));
        assert!(!is_same_place("/var/lib/nri.sock", "/lib/nri.sock"));
    }
}
