// SPDX-License-Identifier: Apache-2.0
//! Finds and executes the real runtime.
//!
//! argv[0] selects a runtime of `[instance.NAME]`; otherwise the first candidate of `runtime` is used
//! that is executable, not writable by all users, and not nri-runc. A name is looked up in PATH, then in
//! `STANDARD_PATH`; if no candidate of `runtime` was found there, in CRI-O's folder. A candidate that
//! cannot be examined is an error. The runtime inherits unchanged
//! descriptors, environment, signal mask and dispositions, and working directory. A child is started
//! only for a short answer, such as a runtime's version and features (`features.rs`, `bounded.rs`),
//! and never by the wrapper.

/// Programs that print a response and exit.
pub(crate) mod bounded;
/// The features of a runtime.
pub(crate) mod features;
/// The values that runc accepts without applying them.
pub(crate) mod ignored;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{self, Config, Consequence, Loaded, Problem};
use crate::error::{Error, Result};
use crate::files;
use crate::limits;
use crate::named::named;
use crate::presence::IfThere;
use crate::procfs;

/// Directories to search if PATH has no runtime: engines reduce the environment, and Podman calls
/// `kill` and `delete` without PATH.
const STANDARD_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The directory of CRI-O's packaged runtimes. It is searched last, so that a node on which another
/// runtime was found keeps using that one.
const CRIO_PATH: &str = "/usr/libexec/crio";

named! {
    /// The runtimes whose differences matter here.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RuntimeKind {
        /// runc.
        Runc => "runc",
        /// crun.
        Crun => "crun",
        /// youki.
        Youki => "youki",
        /// Any other runtime.
        Other => "another runtime",
    }
}

impl RuntimeKind {
    /// Returns the kind whose name is in the program's file name, which may also have a version.
    pub fn of_program(runtime: impl AsRef<Path>) -> Self {
        let name = runtime.as_ref().file_name().unwrap_or_default().to_string_lossy();
        let known = [Self::Crun, Self::Youki, Self::Runc];
        known.into_iter().find(|kind| name.contains(kind.name())).unwrap_or(Self::Other)
    }

    /// Returns the kind with exactly this name, which a runtime reports or a program has.
    pub fn named(name: &str) -> Self {
        let known = [Self::Runc, Self::Crun, Self::Youki];
        known.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Other)
    }
}

/// Returns the state directory of `runtime` without `--root`, from the caller's variables. crun always uses
/// `XDG_RUNTIME_DIR`; runc and youki only without privileges (in a user namespace, `USER=root` makes runc act as if it
/// were privileged).
pub(crate) fn default_root(runtime: &Path, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let kind = RuntimeKind::of_program(runtime);
    let is_taken = |_: &OsString| match kind {
        RuntimeKind::Crun => true,
        _ if !config::is_unprivileged() => false,
        RuntimeKind::Youki => true,
        RuntimeKind::Runc | RuntimeKind::Other => {
            !nix::unistd::geteuid().is_root() || variable("USER").is_none_or(|user| user != "root")
        }
    };
    let above = variable("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).filter(is_taken);
    above.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join(default_root_name(kind))
}

fn default_root_name(kind: RuntimeKind) -> &'static str {
    match kind {
        RuntimeKind::Crun => "crun",
        RuntimeKind::Youki => "youki",
        RuntimeKind::Runc | RuntimeKind::Other => "runc",
    }
}

/// Returns the runtime's state directory for a command line, absolute and without `.` and trailing slashes,
/// as engines' files spell it; links are not resolved. `flag` is the value of `--root`; `variable`
/// reads the runtime's environment.
pub(crate) fn root_of(
    flag: Option<&OsStr>,
    runtime: &Path,
    cwd: impl FnOnce() -> PathBuf,
    variable: impl Fn(&str) -> Option<OsString>,
) -> String {
    let root = match flag.map(Path::new) {
        Some(root) if root.is_absolute() => root.to_owned(),
        Some(root) => cwd().join(root),
        None => default_root(runtime, variable),
    };
    let root: PathBuf = root.components().collect();
    root.to_string_lossy().into_owned()
}

/// Returns the real runtime for a process that was called as `called_as` (argv[0]).
///
/// # Errors
/// Fails when none is found (the error names the candidates), or one cannot be examined.
pub(crate) fn resolve(config: &Config, called_as: Option<&OsString>) -> Result<PathBuf> {
    resolve_in(config, called_as, &std::env::var_os("PATH").unwrap_or_default())
}

/// Time limit for a runtime to print its version.
const VERSION_WAIT: Duration = Duration::from_secs(5);

/// Finds the real runtime as [`resolve`] does, and tries to execute it.
///
/// # Errors
/// Fails when none is found, or it does not run on this machine.
pub(crate) fn resolve_and_try(config: &Config, called_as: Option<&OsString>) -> Result<PathBuf> {
    let path = resolve(config, called_as)?;
    execute(&path).map(|()| path)
}

/// The variable that is set while a program is tested as the runtime: a wrapper that finds it set
/// reports that and exits.
const TRIED: &str = "NRI_RUNC_TRIED";

/// Whether this process was executed by a program that nri-runc tests as the runtime.
pub(crate) fn is_tried() -> bool {
    std::env::var_os(TRIED).is_some()
}

/// Returns the error for a runtime that executes nri-runc: commands would never end, or plugins would be
/// asked twice.
pub(crate) fn executes_us() -> Error {
    Error::new("the runtime behind nri-runc executes nri-runc again")
}

/// Tries to execute a runtime, with `--version`. Its version and exit code are ignored.
///
/// # Errors
/// Fails when it cannot be executed, is killed by a signal, does not end, or executes nri-runc.
pub(crate) fn execute(path: &Path) -> Result<()> {
    let tried = Some((TRIED, "1"));
    let said = bounded::run_with(path.as_os_str(), &["--version"], tried, VERSION_WAIT)?;
    if said.stderr.contains(&executes_us().why()) {
        return Err(executes_us().doing(path.display().to_string()));
    }
    match said.status.signal() {
        None => Ok(()),
        Some(_) => Err(Error::new(format!("{} ended with {}", path.display(), said.status))),
    }
}

/// Finds the real runtime for a process whose PATH is `paths`, which is searched first.
///
/// # Errors
/// Fails when none is found (the error names the candidates), or one cannot be examined.
pub(crate) fn resolve_in(
    config: &Config,
    called_as: Option<&OsString>,
    paths: &OsStr,
) -> Result<PathBuf> {
    let ourselves = Ourselves::open();
    let unfit = |candidate: &str, why: Unfit| match why {
        Unfit::Known(why) => Ok(format!("{candidate} {why}")),
        Unfit::Unknown(error) => {
            Err(Error::from(error).doing(format!("looking for the real runtime at {candidate}")))
        }
    };
    let usual = [paths, OsStr::new(STANDARD_PATH)];
    let name = called_as.map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
    if let Some(path) = name.and_then(|name| config.instances.get(name)) {
        return match find(path, &ourselves, &usual) {
            Ok(found) => Ok(found),
            Err(why) => Err(nothing_found(config, &[unfit(path, why)?])),
        };
    }
    let mut tried = Vec::new();
    for candidate in &config.runtime {
        match find(candidate, &ourselves, &usual) {
            Ok(path) => return Ok(path),
            Err(why) => tried.push(unfit(candidate, why)?),
        }
    }
    for name in config.runtime.iter().filter(|candidate| !candidate.contains('/')) {
        match find(name, &ourselves, &[OsStr::new(CRIO_PATH)]) {
            Ok(path) => return Ok(path),
            Err(why) => drop(unfit(name, why)?),
        }
    }
    Err(nothing_found(config, &tried))
}

fn nothing_found(config: &Config, tried: &[String]) -> Error {
    let error = Error::new(format!("no real runtime was found: {}", tried.join(", ")));
    match &config.protection_error {
        // The configuration was unreadable, so the defaults were tried instead.
        Some(why) => error.hint(format!("fix the configuration: {why}")),
        None => error.hint(format!("set runtime in {}", config.usual_file())),
    }
}

/// Returns the configuration to use and the real runtime for a process called as `called_as`: if the files name a
/// missing runtime, the last valid configuration is used.
///
/// # Errors
/// Fails when none is found (the error names the candidates), or one cannot be examined.
pub(crate) fn resolve_loaded(
    loaded: Loaded,
    called_as: Option<&OsString>,
) -> Result<(Box<Config>, PathBuf)> {
    match resolve(&loaded.config, called_as) {
        Ok(runtime) if loaded.config.instances.is_empty() => return Ok((loaded.config, runtime)),
        // The runtime may exist, so no other configuration or runtime is used in its place.
        Err(error) if error.may_pass() => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let loaded = verify(loaded);
    let runtime = resolve(&loaded.config, called_as)?;
    Ok((loaded.config, runtime))
}

/// Adds an error to the configuration if one of its runtimes is missing: no container could be created with it.
pub(crate) fn verify(mut loaded: Loaded) -> Loaded {
    if let Some((path, error)) = missing(&loaded) {
        let place = place_of(&loaded, &path).map_or(String::new(), |place| format!("{place}: "));
        let text = format!("{place}{}: {}", path.join("."), error.why());
        loaded.add_problem(Problem { text, consequence: Consequence::KeepsLast });
    }
    loaded
}

fn place_of(loaded: &Loaded, path: &[String]) -> Option<String> {
    loaded.place_of(&path.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the first key whose runtime is missing.
fn missing(loaded: &Loaded) -> Option<(Vec<String>, Error)> {
    let config = &loaded.config;
    let names = config.instances.keys();
    let mut all: Vec<(Vec<String>, Option<OsString>)> = names
        .map(|name| {
            let path = ["instance", name, "path"].map(str::to_owned);
            (path.to_vec(), Some(OsString::from(name)))
        })
        .collect();
    if config.runtime != Config::default().runtime {
        all.push((vec!["runtime".to_owned()], None));
    }
    // A user cannot fix settings that come from root's configuration.
    all.retain(|(path, _)| !loaded.config.is_of_user() || place_of(loaded, path).is_some());
    all.into_iter().find_map(|(path, called_as)| {
        let error = resolve_as_engines(config, called_as.as_ref()).err()?;
        Some((path, error))
    })
}

/// Finds the real runtime like [`resolve`], and also in the engines' PATHs, which may have a folder
/// of runtimes that other PATHs lack.
///
/// # Errors
/// Fails when none is found (the error names the candidates), or one cannot be examined.
pub(crate) fn resolve_as_engines(config: &Config, called_as: Option<&OsString>) -> Result<PathBuf> {
    resolve(config, called_as).or_else(|_| resolve_in(config, called_as, &paths_of_engines(config)))
}

/// Returns the PATHs of this host's engines, and of their shims and monitors.
fn paths_of_engines(config: &Config) -> OsString {
    let host = config.host();
    let mut paths = Vec::new();
    let processes = std::fs::read_dir(host.path("/proc")).or_absent();
    for entry in processes.into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if !procfs::is_of_this_host(&host, pid) {
            continue;
        }
        let name = files::read(&entry.path().join("comm"), limits::KERNEL_FILE)
            .or_absent()
            .unwrap_or_default();
        if procfs::ENGINES.iter().any(|(engine, _)| name.starts_with(engine.as_bytes())) {
            paths.extend(procfs::variable(&host, pid, "PATH").or_absent().flatten());
        }
    }
    paths.sort();
    paths.dedup();
    paths.join(OsStr::new(":"))
}

enum Unfit {
    Known(&'static str),
    /// The candidate cannot be examined, so it may be the runtime.
    Unknown(std::io::Error),
}

/// Finds one candidate, by path or by name.
fn find(
    candidate: &str,
    ourselves: &Ourselves,
    places: &[&OsStr],
) -> std::result::Result<PathBuf, Unfit> {
    if candidate.contains('/') {
        return usable(Path::new(candidate), ourselves).map(|()| PathBuf::from(candidate));
    }
    let mut reason = "is not installed";
    for place in places {
        for path in which::which_in_all(candidate, Some(place), "/").into_iter().flatten() {
            match usable(&path, ourselves) {
                Ok(()) => return Ok(path),
                Err(Unfit::Known(why)) => reason = why,
                Err(unknown @ Unfit::Unknown(_)) => return Err(unknown),
            }
        }
    }
    Err(Unfit::Known(reason))
}

fn usable(path: &Path, ourselves: &Ourselves) -> std::result::Result<(), Unfit> {
    let meta = std::fs::metadata(path).if_there().map_err(Unfit::Unknown)?;
    let why = match meta {
        None => "is missing",
        Some(meta) if !meta.is_file() || meta.mode() & 0o111 == 0 => "is not an executable file",
        Some(meta) if meta.mode() & 0o002 != 0 => "is writable by all users",
        Some(meta) if ourselves.is(path, &meta) => "is nri-runc itself",
        Some(_) => return Ok(()),
    };
    Err(Unfit::Known(why))
}

/// Whether an absolute path is an executable file that may be a runtime: neither nri-runc nor writable by all users.
pub(crate) fn is_usable(path: &str) -> bool {
    path.starts_with('/') && usable(Path::new(path), &Ourselves::open()).is_ok()
}

/// Whether an engine that calls `program`, by path or by name, calls nri-runc.
pub(crate) fn is_ourselves(program: &str) -> bool {
    let ourselves = Ourselves::open();
    let is = |path: &Path| {
        std::fs::metadata(path).or_absent().is_some_and(|meta| ourselves.is(path, &meta))
    };
    if program.contains('/') {
        return is(Path::new(program));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let places = [paths.as_os_str(), OsStr::new(STANDARD_PATH)];
    let mut all = places
        .into_iter()
        .flat_map(|place| which::which_in_all(program, Some(place), "/").into_iter().flatten());
    all.next().is_some_and(|path| is(&path))
}

/// The metadata of nri-runc's executable: a link to it is the same file, a copy has the same bytes.
struct Ourselves(Option<Metadata>);

impl Ourselves {
    fn open() -> Self {
        // If the metadata is unreadable, nri-runc may be taken for the runtime, and then searches for a
        // runtime itself.
        Self(std::fs::metadata("/proc/self/exe").or_absent())
    }

    fn is(&self, path: &Path, meta: &Metadata) -> bool {
        let Some(own) = &self.0 else { return false };
        if (own.dev(), own.ino()) == (meta.dev(), meta.ino()) {
            return true;
        }
        // Bytes are compared only if the lengths are equal, which is rare for different programs.
        own.len() == meta.len() && has_same_bytes(Path::new("/proc/self/exe"), path)
    }
}

/// Whether both files can be read and have the same content.
pub(crate) fn has_same_bytes(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| files::read(path, limits::PROGRAM_FILE);
    matches!((read(one), read(other)), (Ok(a), Ok(b)) if a == b)
}

/// Executes `runtime` with `argv` and this process's environment. The first argument is replaced by the runtime's
/// unresolved path, because crun selects its handler by argv[0].
///
/// # Errors
/// Returns only when an argument has a NUL byte or `execve` failed; nothing has changed then.
pub(crate) fn replace_process(runtime: &Path, argv: &[OsString]) -> Result<Infallible> {
    let first = CString::new(runtime.as_os_str().as_bytes()).map_err(|_nul| inner_nul())?;
    let mut words = vec![first.clone()];
    for word in argv.iter().skip(1) {
        words.push(CString::new(word.as_bytes()).map_err(|_nul| inner_nul())?);
    }
    // std's Command::exec would reset SIGPIPE and the inherited signal mask.
    match nix::unistd::execv(&first, &words) {
        Ok(never) => Ok(never),
        Err(errno) => Err(Error::from(errno).doing(format!("executing {}", runtime.display()))),
    }
}

fn inner_nul() -> Error {
    Error::new("an argument contains a NUL byte")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn program(dir: &Path, name: &str, mode: u32) -> String {
        let path = dir.join(name);
        files::replace(&path, b"#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }

    fn config(runtime: &[&str]) -> Config {
        let runtime = runtime.iter().map(|name| (*name).to_owned()).collect();
        Config { runtime, ..Config::default() }
    }

    #[test]
    fn the_first_usable_candidate_wins() {
        let temp = tempfile::tempdir().unwrap();
        let good = program(temp.path(), "b", 0o755);
        let found = resolve(&config(&["/nowhere/runc", &good, "/bin/sh"]), None).unwrap();
        assert_eq!(found, Path::new(&good));
    }

    #[test]
    fn an_unreadable_candidate_does_not_select_another() {
        let temp = tempfile::tempdir().unwrap();
        let good = program(temp.path(), "b", 0o755);
        let unknown = temp.path().join("loop").display().to_string();
        symlink("loop", &unknown).unwrap();
        let error = resolve(&config(&[&unknown, &good]), None).unwrap_err().to_string();
        assert!(error.contains(&unknown), "{error}");
    }

    #[test]
    fn the_name_in_argv_0_selects_an_instance() {
        let temp = tempfile::tempdir().unwrap();
        let crun = program(temp.path(), "crun", 0o755);
        let mut config = config(&["/bin/sh"]);
        config.instances.insert("nri-crun".into(), crun.clone());
        let called = OsString::from("/usr/local/bin/nri-crun");
        assert_eq!(resolve(&config, Some(&called)).unwrap(), Path::new(&crun));
        assert_eq!(resolve(&config, None).unwrap(), Path::new("/bin/sh"));
    }

    #[test]
    fn a_runtime_name_is_resolved_in_the_callers_path() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["engine", "shell"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
            program(&temp.path().join(dir), "odd-runc", 0o755);
        }
        let found =
            |dir: &str| resolve_in(&config(&["odd-runc"]), None, temp.path().join(dir).as_os_str());
        assert_eq!(found("engine").unwrap(), temp.path().join("engine/odd-runc"));
        assert_eq!(found("shell").unwrap(), temp.path().join("shell/odd-runc"));
        assert!(found("nowhere").is_err());
    }

    #[test]
    fn an_instance_without_its_runtime_uses_no_other_runtime() {
        let mut config = config(&["/bin/sh"]);
        config.instances.insert("nri-crun".into(), "/nowhere/crun".into());
        let called = OsString::from("nri-crun");
        let error = resolve(&config, Some(&called)).unwrap_err().to_string();
        assert!(error.contains("/nowhere/crun is missing"), "{error}");
    }

    #[test]
    fn a_link_to_or_copy_of_nri_runc_is_refused_as_the_runtime() {
        let temp = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        symlink(&own, temp.path().join("link")).unwrap();
        std::fs::copy(&own, temp.path().join("copy")).unwrap();
        for name in ["link", "copy"] {
            let path = temp.path().join(name).display().to_string();
            let error = resolve(&config(&[&path]), None).unwrap_err().to_string();
            assert!(error.contains("is nri-runc itself"), "{error}");
        }
    }

    #[test]
    fn a_world_writable_program_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let open = program(temp.path(), "runc", 0o777);
        let error = resolve(&config(&[&open]), None).unwrap_err().to_string();
        assert!(error.contains("writable by all users"), "{error}");
    }

    #[test]
    fn default_roots_follow_the_runtime_and_its_environment() {
        let root = |program: &str, xdg: &str| {
            let variable = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| xdg.into());
            default_root(Path::new(program), variable).display().to_string()
        };
        assert_eq!(root("/usr/bin/crun", ""), "/run/crun");
        assert_eq!(root("/usr/bin/crun", "/run/user/0"), "/run/user/0/crun");
        assert_eq!(root("/usr/bin/youki", ""), "/run/youki");
        assert_eq!(root("/usr/bin/kata-runtime", ""), "/run/runc");
        let above = if config::is_unprivileged() { "/run/user/0" } else { "/run" };
        assert_eq!(root("/opt/crun/runc", "/run/user/0"), format!("{above}/runc"));
    }

    #[test]
    fn a_runtime_is_known_by_its_own_name_and_not_by_its_folder() {
        assert_eq!(RuntimeKind::of_program("/opt/crun/runc"), RuntimeKind::Runc);
        for crun in ["crun", "/usr/bin/crun", "/opt/runc/crun-1.8"] {
            assert_eq!(RuntimeKind::of_program(crun), RuntimeKind::Crun, "{crun}");
        }
        assert_eq!(RuntimeKind::of_program("/usr/bin/runsc"), RuntimeKind::Other);
        assert_eq!(
            [RuntimeKind::named("runc"), RuntimeKind::named("runc-1.8")],
            [RuntimeKind::Runc, RuntimeKind::Other]
        );
    }
}
