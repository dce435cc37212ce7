// SPDX-License-Identifier: Apache-2.0
//! Implements `nri-runc nri hook STAGE`, an OCI hook: it reads the state from standard input, finds the command line of
//! the runtime that called it, and sends the daemon the request that the wrapper would have sent.
//!
//! This module changes nothing itself, and every wait is bounded. Reference: oci-hooks(5), and the
//! OCI runtime specification's `hooks` and `state`.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;

use crate::argv::{self, CommandLine};
use crate::config::{Config, DaemonPolicy};
use crate::error::{Context, Error, Result, quoted};
use crate::files;
use crate::host::Host;
use crate::limits::HOOK_STATE;
use crate::link::{self, Attached, DaemonResponse, Hook, Stage, WrapperRequest};
use crate::named::Named;
use crate::procfs;

use super::invocation::BundleDocument;
use super::{admin_request, bypass, connection, pass_through, protection, refusal, request};

/// Time limit for the runtime to write the state to standard input and to close it.
const STATE_WAIT: Duration = Duration::from_secs(5);

/// Time limit of a hook that can refuse: as long as a create.
const REFUSABLE_STAGE_CAP: Duration = Duration::from_secs(90);

/// Time limit of a stage that only reports: as long as a delete.
const REPORTING_STAGE_CAP: Duration = Duration::from_secs(4);

/// Maximum number of ancestors examined for the runtime's command line: crun runs hooks in a child.
const GENERATIONS: usize = 4;

/// The state that the runtime writes to standard input.
#[derive(Debug, Deserialize)]
struct OciState {
    id: String,
    #[serde(default)]
    pid: i64,
    #[serde(default)]
    bundle: PathBuf,
}

/// The runtime process that called the hook.
#[derive(Debug)]
struct CallingRuntime {
    pid: u32,
    parent: u32,
    /// The process's arguments, starting with the runtime's name.
    words: Vec<OsString>,
    cwd: PathBuf,
    program: PathBuf,
}

/// Reports a runtime's action to the daemon. A failure before the container exists fails its
/// creation; later stages do not fail if the daemon is unavailable.
///
/// # Errors
/// Fails on invalid input, on a refusal, and without a daemon if the policy requires it.
pub(crate) fn hook(config: &Config, stage: &str) -> Result<()> {
    let stage = stage_of(stage)?;
    let state = read_state().doing(|| format!("hook {}", stage.name()))?;
    let doing = || match stage {
        Stage::Prestart | Stage::CreateRuntime => format!("cannot create {}", state.id),
        Stage::Poststart | Stage::Poststop => format!("{} of {}", stage.name(), state.id),
    };
    if pass_through::is_switched_off(config) {
        let refused = stage.may_refuse().then(|| pass_through::refuse_rootless(config));
        return refused.unwrap_or(Ok(())).doing(doing);
    }
    notify_daemon(config, stage, &state).doing(doing)
}

fn stage_of(word: &str) -> Result<Stage> {
    Stage::named(word).ok_or_else(|| {
        let names = Stage::names().collect::<Vec<_>>().join(", ");
        Error::new(format!("unknown hook stage {}: must be one of: {names}", quoted(word)))
            .hint("nri-runc handles only hooks that run in the host's namespaces")
    })
}

fn notify_daemon(config: &Config, stage: Stage, state: &OciState) -> Result<()> {
    let host = Host::default();
    let caller = CallingRuntime::find(&host)?;
    let words = words_for(&caller, stage, state);
    let call = argv::read(&words);
    let process = procfs::open(caller.pid).doing(|| "opening a descriptor of the runtime")?;
    let process = process.ok_or_else(|| Error::new("the calling runtime has exited"))?;
    let mut descriptors: Vec<(Attached, &OwnedFd)> = vec![(Attached::Process, &process)];
    let document = if stage.may_refuse() { Some(document(&call, &caller, state)?) } else { None };
    if let Some((dir, _)) = &document {
        descriptors.push((Attached::Bundle, dir));
    }
    let question = WrapperRequest {
        protocol: request::link_protocol(config),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: words,
        cwd: caller.cwd.clone().into_os_string(),
        parent_pid: caller.parent,
        pid: caller.pid,
        runtime: caller.program.clone().into_os_string(),
        // The variables are read from the runtime's process, because hooks get a reduced environment.
        variables: procfs::variables(&host, caller.pid, &link::ENGINE_VARIABLES)
            .doing(|| "reading the environment of the runtime")?,
        document: document.as_ref().map(|(_, name)| name.clone()).unwrap_or_default(),
        descriptors: descriptors.iter().map(|(what, _)| *what).collect(),
        admin: String::new(),
        hook: Some(Hook { stage, init: u32::try_from(state.pid).unwrap_or(0) }),
        later: None,
    };
    let fds: Vec<RawFd> = descriptors.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    let why = match converse(config, stage, &question, &fds) {
        Ok(DaemonResponse::Proceed(_)) => return Ok(()),
        Ok(DaemonResponse::Refuse(line)) if stage.may_refuse() => return Err(Error::new(line)),
        Ok(DaemonResponse::Incompatible { protocol, version }) => format!(
            "the daemon (version {version}) speaks protocol {protocol}, but this nri-runc speaks {}",
            question.protocol
        ),
        Ok(
            DaemonResponse::Heartbeat
            | DaemonResponse::Refuse(_)
            | DaemonResponse::Admin(_)
            | DaemonResponse::AdminPart(_)
            | DaemonResponse::Ending
            | DaemonResponse::Unable(_),
        ) => "the daemon sent an unexpected response".to_owned(),
        Err(error) => error.to_string(),
    };
    let document = document.map(|(dir, name)| BundleDocument { dir, name });
    without_a_daemon(config, stage, &call, &question, document.as_ref(), why)
}

/// Applies the policy for an unavailable daemon; stages that report past events never fail.
fn without_a_daemon(
    config: &Config,
    stage: Stage,
    call: &CommandLine,
    question: &WrapperRequest,
    document: Option<&BundleDocument>,
    why: String,
) -> Result<()> {
    if !stage.may_refuse() {
        return Ok(());
    }
    if config.on_daemon_failure == DaemonPolicy::Fail {
        let error = Error::new(why).hint("on_daemon_failure is \"fail\"; see: nri-runc nri check");
        refusal::write_record(config, call, question, None, &error);
        return Err(error);
    }
    protection::refuse_unless_exempt(config, call, question, document, &why)?;
    bypass::write_record(config, call, Path::new(&question.runtime), question, &why, None);
    Ok(())
}

fn converse(
    config: &Config,
    stage: Stage,
    question: &WrapperRequest,
    fds: &[RawFd],
) -> Result<DaemonResponse> {
    let cap = if stage.may_refuse() { REFUSABLE_STAGE_CAP } else { REPORTING_STAGE_CAP };
    let deadline = Instant::now() + cap;
    let mut has_asked = false;
    loop {
        let stream = request::reach(config, deadline)?;
        connection::send_whole(&stream, &question.encode(), fds)?;
        let answer = connection::receive(&stream, config, deadline, request::READ_AHEAD)?;
        if let DaemonResponse::Incompatible { protocol, .. } = answer
            && protocol < question.protocol
            && !std::mem::replace(&mut has_asked, true)
        {
            admin_request::replace_daemon(config, protocol, deadline)?;
            continue;
        }
        if answer != DaemonResponse::Ending {
            return Ok(answer);
        }
        // A repeated request reaches the next daemon.
        std::thread::sleep(request::RECONNECT_PAUSE);
    }
}

/// Reads the state, within limits, to its end: if a part stayed unread, the runtime would receive SIGPIPE.
fn read_state() -> Result<OciState> {
    let bytes = read_standard_input()?;
    let state: OciState = serde_json::from_slice(&bytes).map_err(|error| {
        let why = format!("standard input is not the state of a container: {error}");
        Error::new(quoted(&why))
            .hint("an OCI runtime calls this, writes the state as JSON and closes standard input")
    })?;
    let is_name = |id: &str| {
        !id.is_empty() && id != "." && id != ".." && id.len() <= 1024 && !id.contains(['/', '\0'])
    };
    if !is_name(&state.id) {
        let id = quoted(&state.id);
        return Err(Error::new(format!("the state has an invalid container id: {id:?}")));
    }
    Ok(state)
}

fn read_standard_input() -> Result<Vec<u8>> {
    let deadline = Instant::now() + STATE_WAIT;
    let input = std::io::stdin();
    let (mut bytes, mut part) = (Vec::new(), vec![0_u8; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let ready = match poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            ready => ready?,
        };
        if ready == 0 {
            return Err(Error::new("standard input did not end within 5 s")
                .hint("an OCI runtime calls this, with the state as JSON on standard input"));
        }
        let count = nix::unistd::read(input.as_fd(), &mut part).doing(|| "standard input")?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(part.get(..count).unwrap_or_default());
        if bytes.len() > HOOK_STATE {
            return Err(Error::new(format!("the state is larger than {HOOK_STATE} bytes")));
        }
    }
}

impl CallingRuntime {
    /// Finds the runtime: this process's parent, or an ancestor of it with the same command line.
    fn find(host: &Host) -> Result<Self> {
        let mut pid = nix::unistd::getppid().as_raw().cast_unsigned();
        let doing = || "finding the calling runtime";
        let words = procfs::command_line(host, pid).doing(doing)?;
        for _older in 0..GENERATIONS {
            match procfs::parent_of(host, pid).doing(doing)? {
                Some(parent)
                    if parent > 1 && procfs::command_line(host, parent).doing(doing)? == words =>
                {
                    pid = parent;
                }
                Some(_) | None => break,
            }
        }
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}"));
        let program = link("exe").doing(doing)?;
        Ok(Self {
            pid,
            parent: procfs::parent_of(host, pid).doing(doing)?.unwrap_or(0),
            cwd: link("cwd").doing(doing)?,
            program,
            words: words.into_iter().map(OsString::from_vec).collect(),
        })
    }
}

/// Returns the runtime's command line; or an equivalent one for this stage, if it is another
/// program's command line or is about several containers.
fn words_for(caller: &CallingRuntime, stage: Stage, state: &OciState) -> Vec<OsString> {
    let is_this = |call: &CommandLine| {
        let is_our_verb = call.verb.creates()
            || matches!(call.verb, argv::Verb::Start | argv::Verb::Delete | argv::Verb::Kill);
        is_our_verb && call.id.as_deref().is_some_and(|id| id == state.id.as_str())
    };
    // A script's command line starts with its interpreter.
    for skipped in 0..caller.words.len().min(3) {
        let words = caller.words.get(skipped..).unwrap_or_default();
        if is_this(&argv::read(words)) {
            return words.to_vec();
        }
    }
    let mut words = vec![caller.words.first().cloned().unwrap_or_default()];
    let said = argv::read(&caller.words);
    // Podman itself runs this stage's hooks, and Podman's `--root` is the directory of its images.
    let is_runtimes = stage != Stage::Poststop || said.verb == argv::Verb::Delete;
    if let Some(root) = said.root.filter(|_| is_runtimes) {
        words.extend(["--root".into(), root]);
    }
    if stage == Stage::Poststop {
        words.push("delete".into());
    } else {
        words.extend(["create".into(), "--bundle".into(), state.bundle.clone().into_os_string()]);
    }
    words.push(state.id.clone().into());
    words
}

/// Opens the directory of the document that the runtime read; returns it with the document's name.
fn document(
    call: &CommandLine,
    caller: &CallingRuntime,
    state: &OciState,
) -> Result<(OwnedFd, String)> {
    if !state.bundle.is_absolute() {
        let bundle = quoted(&state.bundle.to_string_lossy());
        return Err(Error::new(format!("the state's bundle is not an absolute path: {bundle:?}")));
    }
    if state.pid <= 0 || u32::try_from(state.pid).is_err() {
        return Err(Error::new(format!("the state has an invalid pid: {}", state.pid)));
    }
    let file = call.config.as_ref().map(|file| caller.cwd.join(file));
    let file = file.unwrap_or_else(|| state.bundle.join("config.json"));
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("config.json").to_owned();
    let dir = file.parent().unwrap_or(&state.bundle);
    let dir = files::open_dir(dir).doing(|| "the state's bundle")?;
    if files::inode_at(&dir, &name)?.is_none() {
        return Err(Error::new(format!("{} is missing", file.display())));
    }
    Ok((dir, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(words: &[&str]) -> CallingRuntime {
        CallingRuntime {
            pid: 2,
            parent: 1,
            words: words.iter().map(Into::into).collect(),
            cwd: "/".into(),
            program: "/usr/sbin/runc".into(),
        }
    }

    fn words(of: &[&str], stage: Stage) -> String {
        let state = OciState { id: "c1".to_owned(), pid: 7, bundle: "/b".into() };
        let words = words_for(&caller(of), stage, &state);
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_runtimes_command_line_is_used_if_it_names_the_container() {
        let created = ["runc", "--root", "/r", "create", "--bundle", "/x", "c1"];
        assert_eq!(words(&created, Stage::CreateRuntime), created.join(" "));
        let script = [&["/bin/sh", "/opt/runc"], &created[1..]].concat();
        assert_eq!(words(&script, Stage::CreateRuntime), script[1..].join(" "));
        assert_eq!(words(&["runc", "delete", "c1"], Stage::Poststop), "runc delete c1");
    }

    #[test]
    fn other_arguments_are_replaced_by_those_of_the_stage() {
        let stranger = words(&["conmon", "-c", "c1"], Stage::Prestart);
        assert_eq!(stranger, "conmon create --bundle /b c1");
        let other = words(&["crun", "--root", "/r", "delete", "--regex", "c.*"], Stage::Poststop);
        assert_eq!(other, "crun --root /r delete c1");
        assert_eq!(words(&[], Stage::Poststop), " delete c1");
        for podman in [&["container", "cleanup", "c1"][..], &["run", "--rm", "image"]] {
            let podman = [&["podman", "--root", "/images"], podman].concat();
            assert_eq!(words(&podman, Stage::Poststop), "podman delete c1");
        }
    }

    #[test]
    fn stages_inside_the_container_and_unknown_ones_are_refused() {
        for word in ["createContainer", "startContainer", "", "poststop "] {
            assert!(
                stage_of(word).unwrap_err().to_string().contains("unknown hook stage"),
                "{word}"
            );
        }
        assert_eq!(stage_of("poststop").unwrap(), Stage::Poststop);
    }
}
