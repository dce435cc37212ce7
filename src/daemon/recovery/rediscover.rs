// SPDX-License-Identifier: Apache-2.0
//! Finds, in the runtimes' state directories, containers without a record: the run directory was wiped (then the
//! plugins' changes and the engine's original of a patched document are lost), or wrappers wrote no notes.
//!
//! Containers made without nri-runc look the same, but their later verbs never reach the daemon. So, except for
//! `node_scope.rs`, a container is recorded only if its engine names nri-runc as its runtime, or the operator assigns
//! its state directory to nri-runc (`runtime_roots`). A starting daemon searches only if no daemon of this boot has
//! stamped the run directory yet, or `enabled.rs` asks. No plugin is asked and no container changed.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tracing::{debug, info, warn};

use crate::config::Config;
use crate::engine::{Role, is_conmon};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::link::{ENGINE_VARIABLES, PROTOCOL, WrapperRequest};
use crate::presence::{self, IfThere};
use crate::runtime::{self, RuntimeKind};
use crate::sources::registered;
use crate::state::{Container, ContainerKey, Lifecycle, Skipped};

use crate::daemon::lifecycle::state;
use crate::daemon::pods::life;
use crate::daemon::request::describe::{Description, describe};
use crate::daemon::request::record::new_record;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::runtime::state_dir::{self, RuntimeState};
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::pidfd;

/// The containers that a search looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Containers whose engine calls nri-runc.
    Ours,
    /// Living containers that the plain runtime made (D65).
    Plain,
}

/// The outcome of checking a container's folder in a state directory.
pub(super) enum Look {
    Found(Box<RediscoveredContainer>),
    /// The runtime has not written its state yet.
    NotYet,
    /// The folder is not a container's, or not of a container that the search looks for.
    NotMeant,
}

/// The state directories that engines and administrators give to runtimes; `*` matches within one path component.
const ROOTS: [&str; 6] = [
    "/run/containerd/runc/*",
    "/var/run/docker/runtime-*/*",
    "/run/docker/runtime-*/*",
    "/run/runc",
    "/run/crun",
    "/run/youki",
];

pub(super) struct RediscoveredContainer {
    pub(super) description: Description,
    pub(super) record: Container,
}

impl RediscoveredContainer {
    /// Returns the container's root and ID.
    pub(super) fn key(&self) -> &ContainerKey {
        &self.record.key
    }

    pub(super) fn has_exited(&self) -> bool {
        self.record.state == Lifecycle::Stopped
    }

    /// Records the container and its pod; returns whether that succeeded.
    pub(super) fn record(self, daemon: &Daemon) -> bool {
        let id = self.record.key.id.clone();
        let recorded = put(daemon, self);
        let recorded =
            recorded.inspect_err(|error| warn!("{id} was found, but cannot be recorded: {error}"));
        recorded.is_ok()
    }
}

/// The note in the record of a container whose earlier record was lost with the run directory.
const LOST: &str = "recovered from the runtime's state after the run directory was deleted: earlier plugin \
                    changes are unknown";

/// Searches for containers, if this boot has not stamped the run directory yet; runs before any plugin registers.
pub(crate) async fn rediscover(daemon: &Rc<Daemon>) {
    if daemon.records.read().is_stamped() {
        return;
    }
    let (all, mut is_all) = find(daemon, LOST, true).await;
    for mut found in all {
        found.record.is_found = true;
        is_all &= found.record(daemon);
    }
    // Without a stamp, the next daemon searches again.
    if is_all {
        log_failure("stamping the run directory", daemon.records.stamp());
    }
}

/// Finds containers without a record, infrastructure containers first, because they have all data for a pod's record.
/// Also returns false if another search may find more, because something was unreadable for a temporary reason. `why`
/// is the note in each record; `is_first`: failures are warnings, else debug lines.
pub(super) async fn find(
    daemon: &Rc<Daemon>,
    why: &str,
    is_first: bool,
) -> (Vec<RediscoveredContainer>, bool) {
    let log = |line: String| if is_first { warn!("{line}") } else { debug!("{line}") };
    let (mut all, mut is_all) = (Vec::new(), true);
    let candidates = presence::insist_on_loop(|| candidates(daemon)).await;
    let candidates = candidates.unwrap_or_else(|error| {
        log(format!("containers without a record cannot be recovered now: {error}"));
        is_all = false;
        Vec::new()
    });
    for (key, is_ours) in candidates {
        match look_at(daemon, &key, (Wanted::Ours, is_ours), why).await {
            Ok(Look::Found(found)) => all.push(*found),
            Ok(Look::NotYet | Look::NotMeant) => {}
            Err(error) => {
                log(format!("{} in {} cannot be recovered: {error}", key.id, key.root));
                is_all &= !error.may_pass();
            }
        }
    }
    sort(&mut all);
    (all, is_all)
}

/// Puts infrastructure containers first: they have all data for a pod's record.
pub(super) fn sort(all: &mut [RediscoveredContainer]) {
    all.sort_by_key(|found| {
        (found.description.role != Role::Sandbox, found.record.process.created_at)
    });
}

fn put(
    daemon: &Daemon,
    RediscoveredContainer { description, mut record }: RediscoveredContainer,
) -> Result<()> {
    record.incarnation = daemon.records.next_incarnation();
    life::adopt(daemon, &description, &record)?;
    info!("found {}, which had no record: {}", record.key.id, record.state.name());
    daemon.records.put(record)
}

/// Returns each container in the runtimes' state directories that is not on record, and whether the
/// operator assigned its directory to nri-runc.
///
/// # Errors
/// Fails when the list may be incomplete.
fn candidates(daemon: &Daemon) -> Result<Vec<(ContainerKey, bool)>> {
    let mut found = Vec::new();
    for folder in list(&roots(&daemon.config())?, usize::MAX)? {
        if !is_known(daemon, &folder.key.id, folder.file)? {
            found.push((folder.key, folder.is_ours));
        }
    }
    Ok(found)
}

/// A state directory of runtimes, and whether the operator assigned it to nri-runc.
pub(super) struct RuntimeRoot {
    pub(super) path: PathBuf,
    is_ours: bool,
}

/// A folder of a state directory, which may be a container's.
pub(super) struct ContainerFolder {
    pub(super) key: ContainerKey,
    is_ours: bool,
    /// Device and inode: a directory may have several paths.
    file: (u64, u64),
}

/// Returns the runtimes' state directories; some may not exist. The calls may hang if they are on a file server.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(super) fn roots(config: &Config) -> Result<Vec<RuntimeRoot>> {
    let host = config.host();
    let ours = config.runtime_roots.iter().map(|root| (root.display().to_string(), true));
    let (mut all, mut once) = (Vec::new(), HashSet::new());
    for (pattern, is_ours) in ours.chain(usual(config).into_iter().map(|root| (root, false))) {
        let mut paths = spelled_out(&host.path(pattern))?;
        paths.retain(|path| once.insert(file_of(path)));
        all.extend(paths.into_iter().map(|path| RuntimeRoot { path, is_ours }));
    }
    Ok(all)
}

/// Identifies a folder, which may have several paths (if /var/run is a link): by device and inode, else by its path.
fn file_of(path: &Path) -> (u64, u64, PathBuf) {
    let of = |found: std::fs::Metadata| (found.dev(), found.ino(), PathBuf::new());
    std::fs::metadata(path).map_or_else(|_| (0, 0, path.to_owned()), of)
}

/// Returns the folders in which state directories appear: for a namespace of containerd, or for Docker.
pub(super) fn above_roots(config: &Config) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for pattern in usual(config) {
        if let Some((above, _)) = pattern.rsplit_once("/*") {
            all.extend(spelled_out(&config.host().path(above))?);
        }
    }
    Ok(all)
}

fn usual(config: &Config) -> Vec<String> {
    match &config.seams.runtime_roots {
        Some(roots) => roots.iter().map(|root| root.display().to_string()).collect(),
        None if config.is_of_user() => {
            let above = config.run_dir.parent().unwrap_or(&config.run_dir).display();
            ["runc", "crun", "youki"].map(|name| format!("{above}/{name}")).to_vec()
        }
        None => ROOTS.map(str::to_owned).to_vec(),
    }
}

/// Returns each folder in the state directories once, up to `limit` folders. The calls may hang if
/// they are on a file server.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(super) fn list(roots: &[RuntimeRoot], limit: usize) -> Result<Vec<ContainerFolder>> {
    let (mut all, mut once) = (Vec::new(), HashSet::new());
    for RuntimeRoot { path, is_ours } in roots {
        for id in names(path)? {
            if all.len() >= limit {
                return Ok(all);
            }
            let folder = folder(path, id)?;
            let folder = folder.filter(|folder| once.insert(folder.file));
            all.extend(folder.map(|folder| ContainerFolder { is_ours: *is_ours, ..folder }));
        }
    }
    Ok(all)
}

/// Returns the folder of this ID, if it exists.
///
/// # Errors
/// Fails when it cannot be examined.
pub(super) fn folder(root: &Path, id: String) -> Result<Option<ContainerFolder>> {
    let key = ContainerKey { root: root.display().to_string(), id };
    let meta = std::fs::symlink_metadata(root.join(&key.id)).if_there()?;
    let meta = meta.filter(std::fs::Metadata::is_dir);
    Ok(meta.map(|meta| ContainerFolder { key, is_ours: false, file: (meta.dev(), meta.ino()) }))
}

/// Whether the process that the runtime recorded is alive; false if it cannot be examined.
pub(super) fn lives(host: &Host, key: &ContainerKey) -> bool {
    let state = RuntimeState::read(&state_dir::folder(host, key)).or_absent().flatten();
    let process = state
        .and_then(|state| pidfd::open_same(host, state.pid?, state.start).or_absent().flatten());
    process.is_some_and(|process| !pidfd::has_ended(&process))
}

/// Whether a container on record has this folder.
///
/// # Errors
/// Fails when the folders cannot be compared.
pub(super) fn is_on_record(daemon: &Daemon, folder: &ContainerFolder) -> Result<bool> {
    is_known(daemon, &folder.key.id, folder.file)
}

/// Whether the container in this folder has a record, even one with another path of the same root.
fn is_known(daemon: &Daemon, id: &str, file: (u64, u64)) -> Result<bool> {
    let store = daemon.records.read();
    for known in store.of_id(id) {
        let folder = std::fs::metadata(state_dir::folder(&daemon.host, &known.key)).if_there()?;
        if folder.is_some_and(|meta| (meta.dev(), meta.ino()) == file) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = presence::entries(folder)?;
    let mut names: Vec<String> =
        entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Returns the paths that match a path with at most one `*` in each name; names after the last `*` may not exist.
fn spelled_out(pattern: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = vec![PathBuf::from("/")];
    for part in pattern.components().skip(1) {
        let part = part.as_os_str().to_string_lossy();
        paths = match part.split_once('*') {
            None => paths.into_iter().map(|path| path.join(&*part)).collect(),
            Some((start, end)) => {
                let is_meant = |name: &String| {
                    let rest = name.strip_prefix(start);
                    rest.is_some_and(|rest| rest.ends_with(end))
                };
                let mut fit = Vec::new();
                for path in paths {
                    let names = names(&path)?.into_iter().filter(is_meant);
                    fit.extend(names.map(|name| path.join(name)));
                }
                fit
            }
        };
    }
    Ok(paths)
}

/// Checks a container's folder. `is_ours`: the operator assigned its state directory to nri-runc.
/// `why`: the note in the container's record.
///
/// # Errors
/// Fails when the container's state is unknown, or it cannot be described.
pub(super) async fn look_at(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    (wanted, is_ours): (Wanted, bool),
    why: &str,
) -> Result<Look> {
    let folder = state_dir::folder(&daemon.host, key);
    let read = move || Ok(RuntimeState::read(&folder)?);
    let Some(left) = daemon.off_loop(&key.root, read).await? else { return Ok(Look::NotYet) };
    let Some(bundle) = left.bundle.clone() else { return Ok(Look::NotYet) };
    let mut init = None;
    if let Some(pid) = left.pid {
        let process = pidfd::open_same(&daemon.host, pid, left.start)?;
        init = process.filter(|process| !pidfd::has_ended(process)).map(|_lives| pid);
    }
    if init.is_none() && (wanted == Wanted::Plain || !left.is_of_this_boot(&daemon.host)) {
        // No plugin has received a container of the plain runtime that has exited. A state directory
        // on a disk survives a reboot, and then shows a container that no longer exists.
        return Ok(if left.pid.is_none() { Look::NotYet } else { Look::NotMeant });
    }
    let parent = init.map(|pid| crate::procfs::parent_of(&daemon.host, pid)).transpose()?.flatten();
    let is_of_host = |pid: &u32| *pid > 1 && crate::procfs::is_of_this_host(&daemon.host, *pid);
    let parent = parent.filter(is_of_host);
    let words = parent.map(|pid| crate::procfs::command_line(&daemon.host, pid)).transpose()?;
    let words = words.unwrap_or_default();
    let is_ours = is_ours && wanted == Wanted::Ours;
    if !is_ours {
        // The bundle and the programs that the command line names may be on a file server.
        let (host, words, place) = (daemon.host.clone(), words.clone(), bundle.clone());
        let look = move || calls_us(&host, &words, &place);
        if daemon.off_loop(&bundle, look).await? != (wanted == Wanted::Ours) {
            return Ok(Look::NotMeant);
        }
    }
    let key = ContainerKey {
        root: root_in(&words, key).unwrap_or_else(|| key.root.clone()),
        ..key.clone()
    };
    let call = call(daemon, &key, (&left, &bundle), parent)?;
    let document = daemon.read_document(&daemon.host.path(&bundle), "config.json").await;
    let document = document.doing(|| bundle.clone())?;
    if wanted == Wanted::Plain {
        let (host, bytes) = (daemon.host.clone(), document.bytes.clone());
        let look = move || Ok(calls_our_hook(&host, &bytes));
        if daemon.off_loop(&bundle, look).await? {
            return Ok(Look::NotMeant);
        }
    }
    let description = describe(daemon, &call, &document.bytes).await?;
    let mut record = new_record(&daemon.records, &call, &description);
    record.pending.in_flight = None;
    record.by_plain_runtime = wanted == Wanted::Plain;
    record.outcome.skipped.push(Skipped { plugin: String::new(), reason: why.to_owned() });
    record.process.created_at = state_dir::time_of_ticks(&daemon.host, left.start);
    match left.init() {
        Some(init) => state::set_found(&daemon.host, &mut record, init)?,
        None => record.state = Lifecycle::Stopped,
    }
    Ok(Look::Found(Box::new(RediscoveredContainer { description, record })))
}

/// Whether a hook of this document reports the container to the daemon.
fn calls_our_hook(host: &Host, document: &[u8]) -> bool {
    let document: serde_json::Value = serde_json::from_slice(document).unwrap_or_default();
    let stages = document["hooks"].as_object().into_iter().flat_map(|stages| stages.values());
    let hooks = stages.filter_map(serde_json::Value::as_array).flatten();
    hooks.filter_map(|hook| hook["path"].as_str()).any(|path| is_us(host, path))
}

/// Returns the call that would have created the container.
fn call(
    daemon: &Daemon,
    key: &ContainerKey,
    (left, bundle): (&RuntimeState, &str),
    parent: Option<u32>,
) -> Result<VerbRequest> {
    let mut argv = vec!["nri-runc".to_owned(), "--root".to_owned(), key.root.clone()];
    if left.systemd {
        argv.push("--systemd-cgroup".to_owned());
    }
    argv.extend(["create", "--bundle", bundle, &key.id].map(ToOwned::to_owned));
    let question = WrapperRequest {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: argv.into_iter().map(OsString::from).collect(),
        cwd: OsString::from("/"),
        parent_pid: parent.unwrap_or_default(),
        runtime: runtime_of(&daemon.config(), left)?.into_os_string(),
        variables: parent.map(|pid| variables(&daemon.host, pid)).transpose()?.unwrap_or_default(),
        document: "config.json".to_owned(),
        ..WrapperRequest::default()
    };
    let call = VerbRequest::new(ReceivedQuestion::alone(question)).filter(|call| call.key == *key);
    call.ok_or_else(|| Error::new("its ID cannot be passed on a command line"))
}

/// Returns a runtime of the kind that wrote the state: the first that `[instance]` or `runtime` names by path, else the
/// default runtime, else the one on the PATH; if none of them is of this kind, the default runtime.
fn runtime_of(config: &Config, left: &RuntimeState) -> Result<PathBuf> {
    let named = config.instances.values().chain(&config.runtime);
    let named = named.filter(|path| path.starts_with('/')).map(PathBuf::from);
    let usual = runtime::resolve_as_engines(config, None);
    let of_kind = || {
        let runtime = vec![left.runtime.name().to_owned()];
        let alone = Config { runtime, instances: Default::default(), ..Config::clone(config) };
        runtime::resolve(&alone, None).ok()
    };
    let mut all =
        named.chain(usual.as_ref().ok().cloned()).chain(std::iter::once_with(of_kind).flatten());
    // A program that cannot be examined may exist.
    let is_meant = |path: &PathBuf| {
        RuntimeKind::of_program(path) == left.runtime && presence::exists(path).unwrap_or(true)
    };
    all.find(is_meant).map_or(usual, Ok)
}

/// Returns the engine's variables, from the environment of its monitor.
fn variables(host: &Host, pid: u32) -> Result<Vec<(String, OsString)>> {
    Ok(crate::procfs::variables(host, pid, &ENGINE_VARIABLES)?)
}

/// Whether the container's engine calls nri-runc for it. conmon has the program on its command
/// line; containerd's shim writes the program to the bundle, or empty text for its default.
fn calls_us(host: &Host, parent: &[Vec<u8>], bundle: &str) -> Result<bool> {
    if let Some(program) = monitored(parent, &["-r", "--runtime"]) {
        return Ok(is_us(host, &program));
    }
    if !bundle.contains("/io.containerd.runtime.v2.task/") {
        return Ok(false);
    }
    let bundle = host.path(bundle);
    let mut noted = files::read_text(&bundle.join("runtime"), limits::CONTAINER_FILE).if_there()?;
    if noted.is_none()
        && let Some(bytes) =
            files::read(&bundle.join("options.json"), limits::CONTAINER_FILE).if_there()?
    {
        let options: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let name = ["binary_name", "BinaryName"].iter().find_map(|key| options[*key].as_str());
        noted = name.map(ToOwned::to_owned);
    }
    let program = noted.map(|name| name.trim().to_owned());
    Ok(program.is_some_and(|name| is_us(host, if name.is_empty() { "runc" } else { &name })))
}

/// Returns the argument after the first of these flags on conmon's command line.
fn monitored(parent: &[Vec<u8>], flags: &[&str]) -> Option<String> {
    let mut words = parent.iter().map(|word| String::from_utf8_lossy(word));
    words.next().filter(|_| is_conmon(parent))?;
    words.find(|word| flags.contains(&word.as_ref()))?;
    words.next().map(std::borrow::Cow::into_owned)
}

/// Returns the state directory as spelled on conmon's command line, if it is the same directory.
fn root_in(parent: &[Vec<u8>], key: &ContainerKey) -> Option<String> {
    let words = parent.iter().map(|word| String::from_utf8_lossy(word));
    let roots = words.filter_map(|word| word.strip_prefix("--root=").map(ToOwned::to_owned));
    let file =
        |path: &str| std::fs::metadata(path).or_absent().map(|meta| (meta.dev(), meta.ino()));
    let same = file(&key.root)?;
    roots.map(|root| root.trim_end_matches('/').to_owned()).find(|root| file(root) == Some(same))
}

fn is_us(host: &Host, program: &str) -> bool {
    runtime::is_ourselves(program)
        || registered::programs(host).iter().any(|binary| binary == program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_star_matches_within_one_path_element() {
        let temp = tempfile::tempdir().unwrap();
        for folder in ["runtime-a/moby", "runtime-b/moby", "other/moby"] {
            std::fs::create_dir_all(temp.path().join(folder)).unwrap();
        }
        let found = spelled_out(&temp.path().join("runtime-*/*")).unwrap();
        let wanted = ["runtime-a/moby", "runtime-b/moby"].map(|name| temp.path().join(name));
        assert_eq!(found, wanted);
        assert!(spelled_out(&temp.path().join("nothing/*")).unwrap().is_empty());
        assert_eq!(spelled_out(temp.path()).unwrap(), [temp.path()]);
    }

    #[test]
    fn conmons_arguments_name_the_program_it_calls() {
        let host = Host::default();
        let own = std::env::current_exe().unwrap().display().to_string();
        let line = |program: &str| words(&format!("/usr/bin/conmon -c x -r {program} -b /b"));
        let calls_us = |words: &[Vec<u8>], bundle: &str| calls_us(&host, words, bundle).unwrap();
        assert!(calls_us(&line(&own), "/b"));
        assert!(!calls_us(&line("/usr/sbin/runc"), "/b"));
        assert!(!calls_us(&words(&format!("sh -r {own}")), "/b"), "anybody has words");
        assert!(!calls_us(&words("conmon -r"), "/b"));
        assert!(calls_us(&words(&format!("crio-conmon -c x -r {own}")), "/b"));
        assert!(!calls_us(&words(&format!("conmonrs -r {own}")), "/b"), "a server's words");
    }

    #[test]
    fn the_bundle_shows_which_program_containerd_called() {
        let temp = tempfile::tempdir().unwrap();
        let host = Host::default();
        let bundle = temp.path().join("io.containerd.runtime.v2.task/k8s.io/c");
        std::fs::create_dir_all(&bundle).unwrap();
        let path = bundle.display().to_string();
        let calls_us = |bundle: &str| calls_us(&host, &[], bundle).unwrap();
        assert!(!calls_us(&path), "nothing is noted");
        let own = std::env::current_exe().unwrap().display().to_string();
        let options = serde_json::json!({"BinaryName": own}).to_string();
        files::replace(&bundle.join("options.json"), options.as_bytes()).unwrap();
        assert!(calls_us(&path));
        files::replace(&bundle.join("runtime"), b"/usr/sbin/runc").unwrap();
        assert!(!calls_us(&path), "what was called wins");
        files::replace(&bundle.join("runtime"), own.as_bytes()).unwrap();
        assert!(calls_us(&path));
        assert!(!calls_us(&temp.path().display().to_string()), "no engine's bundle");
    }

    #[test]
    fn a_program_that_install_recorded_is_nri_runc_at_any_path() {
        let temp = tempfile::tempdir().unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        assert!(!is_us(&host, "/opt/old/nri-runc"));
        std::fs::create_dir_all(host.path(registered::FOLDER)).unwrap();
        let ledger = host.path(registered::FOLDER).join("crio.json");
        files::replace(&ledger, b"{\"binary\": \"/opt/old/nri-runc\"}").unwrap();
        files::replace(&host.path(registered::FOLDER).join("odd.json"), b"{").unwrap();
        assert!(is_us(&host, "/opt/old/nri-runc"));
        assert!(!is_us(&host, "/usr/sbin/runc"));
    }

    #[test]
    fn the_runtime_root_is_spelled_as_in_conmons_arguments() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&root, temp.path().join("link")).unwrap();
        let key = ContainerKey { root: root.display().to_string(), id: "c".to_owned() };
        let link = temp.path().join("link").display().to_string();
        let line = words(&format!("conmon --runtime-arg --root={link}/ -c c"));
        assert_eq!(root_in(&line, &key), Some(link));
        assert_eq!(root_in(&words("conmon --runtime-arg --root=/elsewhere"), &key), None);
        assert_eq!(root_in(&[], &key), None);
    }
}
