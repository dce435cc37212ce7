// SPDX-License-Identifier: Apache-2.0
//! Loads the configuration. The table in `keys.rs` has each key with its default, meaning and
//! parser; `docs/config.md` is generated from it.
//!
//! Every process reads the files only through this module: a wrapper, the daemon at its start and
//! at a reload, `check`. If the files have an error that makes a reload fail, all of them use the
//! last valid configuration in the run directory, if there is one that they may read. So these
//! processes agree, and an invalid file never replaces a runtime that is in force (decisions D7, D64).

mod advice;
#[cfg(test)]
mod agreement_tests;
mod changes;
mod duration;
mod exec_rules;
mod fields;
mod injections;
mod keys;
mod lists;
mod mistakes;
mod places;
mod plain;
mod plugins;
mod promises;
mod protection;
mod reader;
pub(crate) mod rootless;
mod rules;
mod selectors;
mod settings;
mod shape;
mod size;
mod snapshot;
mod spelling;
mod tables;
mod user;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub(crate) use changes::{ChangedKey, changes, effective};
pub(crate) use duration::{parse as parse_duration, show as show_duration};
pub(crate) use exec_rules::ExecRuleSection;
pub(crate) use injections::InjectionSection;
pub(crate) use keys::Effect;
pub use keys::markdown;
pub use plugins::PluginSettings;
pub(crate) use plugins::bare_name;
pub(crate) use promises::PromiseSection;
pub(crate) use protection::Protection;
pub(crate) use rules::{EVERY_FIELD, EVICTION, INJECTIONS, RuleMode, RuleSection};
pub(crate) use selectors::{PodSelectors, excluded};
pub use settings::OnFailure;
pub(crate) use settings::{
    AuditTarget, Config, Consequence, DaemonPolicy, Displace, Evict, ExecArgs, MetricsListener,
    PluginOrigin, Problem, RootlessPolicy, SILENCE, Scope,
};
pub(crate) use snapshot::text as snapshot_text;
pub(crate) use user::{is_in_user_namespace, is_unprivileged, user_homes};

use crate::error::{Error, Result};
use crate::limits;
use crate::presence;

use snapshot::Snapshot;

/// The main configuration file.
pub(crate) const DEFAULT_FILE: &str = "/etc/nri-runc/config.toml";
/// The folder of further files, read after the main one in name order.
pub(crate) const DEFAULT_DROP_INS: &str = "/etc/nri-runc/config.d";
/// The variable that names the only file to read; for tests, and for running beside an installed
/// copy.
pub(crate) const FILE_VARIABLE: &str = "NRI_RUNC_CONFIG";
/// The daemon's copy of its last valid configuration, in the run directory.
pub(crate) const SNAPSHOT: &str = "config.good.toml";

/// Configuration files with their text, in reading order.
pub(crate) type Files = Vec<(PathBuf, String)>;

/// The result of [`load`].
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The settings to use. They are on the heap, because a wrapper moves them often and should use
    /// few pages of memory.
    pub config: Box<Config>,
    /// The errors in the files.
    pub problems: Vec<Problem>,
    /// The files that were read, in order, with their text.
    pub files: Files,
    /// The files from which `config` was read, if they are not the ones on disk: the last valid
    /// configuration.
    last_good: Option<Files>,
    /// Files in the drop-in directory that are not named `*.toml`, without hidden ones.
    unread: Vec<PathBuf>,
    /// The only file to read, if one was named; absolute.
    pub only: Option<PathBuf>,
    /// The defaults of a user's daemon, if the files are those of a user's daemon.
    user: Option<Box<Config>>,
    /// For a user's daemon, the paths of root's configuration.
    paths_of_root: Vec<PathBuf>,
    /// The reason why the named file could not be read.
    pub unreadable: Option<String>,
    /// Whether a file that could be read has an error because of which none of its values is used.
    is_unreliable: bool,
    /// Why the settings in force are unknown; [`Loaded::config`] may then name another runtime than
    /// they do.
    unknown: Option<Error>,
}

/// Metadata of a file or folder, by which a change is found without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileStamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    /// The inode's change time (ctime).
    pub(crate) changed: SystemTime,
}

impl FileStamp {
    fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        let nanos = u32::try_from(meta.ctime_nsec()).unwrap_or_default();
        let since = Duration::new(u64::try_from(meta.ctime()).unwrap_or_default(), nanos);
        Ok(Self {
            place: (meta.dev(), meta.ino()),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: SystemTime::UNIX_EPOCH + since,
        })
    }
}

impl Loaded {
    /// Returns the first error that makes a reload fail. A process that can read the last valid
    /// configuration does not use files with this error.
    pub(crate) fn refusal(&self) -> Option<&Problem> {
        self.problems.iter().find(|problem| problem.consequence >= Consequence::KeepsLast)
    }

    /// Returns the metadata of every path from which these settings were read; `None` for one
    /// that cannot be examined. While all are unchanged, the files need not be read again.
    pub(crate) fn stamps(&self) -> Vec<Option<FileStamp>> {
        self.paths().iter().map(|path| FileStamp::of(path).ok()).collect()
    }

    /// Returns the files that were read, the default paths (even if absent) unless a file was named,
    /// and for a user's daemon the paths of root's configuration.
    fn paths(&self) -> Vec<PathBuf> {
        let fixed = [DEFAULT_FILE, DEFAULT_DROP_INS].map(PathBuf::from).into_iter();
        let fixed = fixed.filter(|_| self.only.is_none());
        let files = self.files.iter().map(|(path, _)| path.clone());
        self.paths_of_root.iter().cloned().chain(fixed).chain(files).collect()
    }

    /// Returns, for a user's daemon, root's runtimes in the form of a file; else nothing.
    pub(crate) fn of_root(&self) -> Files {
        let user = self.user.iter();
        user.map(|user| (PathBuf::from(DEFAULT_FILE), user::runtimes(user))).collect()
    }

    /// Returns the files from which [`Loaded::config`] was read.
    pub(crate) fn in_force(&self) -> &Files {
        self.last_good.as_ref().unwrap_or(&self.files)
    }

    /// Whether the settings are those of the last valid configuration.
    pub(crate) fn is_last_good(&self) -> bool {
        self.last_good.is_some()
    }

    /// Returns lines about the errors in the files, and the advice.
    pub fn warnings(&self) -> Vec<String> {
        let problems = self.problems.iter().map(|problem| problem.text.clone());
        let mut warnings = limits::listed(problems, "error", "in the configuration");
        warnings.extend(self.advice());
        warnings
    }

    /// Returns warnings about probable mistakes that are not errors, one line each.
    pub(crate) fn advice(&self) -> Vec<String> {
        let unread = self
            .unread
            .iter()
            .map(|path| format!("{} is not read: its name does not end in .toml", path.display()));
        let mut advice = limits::listed(unread, "file", "without .toml at the end of the name");
        advice.extend(advice::unreached(&self.config.rules));
        advice.extend(advice::bare_denials(&self.config.exec_rules));
        advice.extend(advice::idle_reapply(&self.config));
        advice
    }

    /// Returns `FILE:LINE:COLUMN` of the key with this path, where the files set it last.
    pub(crate) fn place_of(&self, path: &[&str]) -> Option<String> {
        reader::place_of(&self.files, path)
    }

    /// Adds an error that the files alone do not show; chooses the settings again, unless an earlier
    /// error makes a reload fail already.
    pub(crate) fn add_problem(&mut self, problem: Problem) {
        let was_refused = self.refusal().is_some();
        self.problems.push(problem);
        if !was_refused {
            let read = std::mem::take(&mut self.config);
            self.settle(read);
        }
    }

    /// Returns the settings for a daemon that continues as another program: if the files have
    /// become invalid, its last valid configuration stays in force, and the errors do not make
    /// creates fail.
    pub(crate) fn for_next_program(mut self) -> Self {
        if self.is_last_good() {
            self.config.protection_error = None;
        }
        self
    }

    /// Returns the settings without the rules, if the daemon has stored these files as valid and the
    /// plain reader can read them. Only the daemon needs the rules, and a node may have thousands.
    fn without_rules(&self) -> Option<Box<Config>> {
        let has_rules = self.files.iter().any(|(_, text)| text.contains("[[rule]]"));
        if !has_rules || !self.problems.is_empty() || self.user.is_some() {
            return None;
        }
        let mut config = self.base();
        let mut files = self.files.iter();
        let are_plain = files.all(|(path, text)| {
            let file = path.display().to_string();
            plain::apply_without(Some("rule"), &mut config, &file, text)
        });
        (are_plain && snapshot::is_of(&config.run_dir, &self.files)).then_some(config)
    }

    /// Returns the settings before any file is read.
    fn base(&self) -> Box<Config> {
        self.user.clone().unwrap_or_default()
    }

    /// Reads one file's text. A file that the operator did not name may be absent.
    fn read_file(&mut self, path: PathBuf) {
        match read_text(&path) {
            Ok(text) => self.files.push((path, text)),
            Err(error) if error.kind() == ErrorKind::NotFound && self.only.is_none() => {}
            Err(error) => {
                let text = self.add_unreadable(&path, &error);
                if error.raw_os_error().is_some_and(presence::is_shortage) {
                    self.unknown = Some(Error::new(text.clone()));
                }
                self.unreadable = self.only.is_some().then_some(text);
            }
        }
    }

    fn add_unreadable(&mut self, path: &Path, error: &std::io::Error) -> String {
        let text = format!("{}: {}", path.display(), crate::error::in_our_words(error));
        self.problems.push(Problem { text: text.clone(), consequence: Consequence::UsesNoFile });
        text
    }

    /// Chooses the settings according to the errors; `read` has the values that could be read from the files.
    fn settle(&mut self, mut read: Box<Config>) {
        if let Some(user) = &self.user {
            user::fix(&mut read, &user.run_dir);
        }
        let worst = self.problems.iter().map(|problem| problem.consequence).max();
        self.config = match worst {
            None | Some(Consequence::Ignored) => read,
            Some(
                worst @ (Consequence::KeepsLast
                | Consequence::RefusesCreates
                | Consequence::UsesNoFile),
            ) => {
                let mut run_dir = read.run_dir.clone();
                if worst == Consequence::UsesNoFile && self.user.is_none() {
                    run_dir = run_dir_of(&self.files, &run_dir);
                }
                let kept = snapshot::read(&run_dir, self.base()).unwrap_or_else(|unknown| {
                    // Users cannot read the run directory of root's daemon. For them the valid part
                    // of the files applies, or the defaults if a file is unreadable. If an error may
                    // be about the runtime, the settings are unknown.
                    let is_hidden = unknown.is_permission_denied() && is_unprivileged();
                    if !is_hidden || self.user.is_some() || self.is_unreliable {
                        self.unknown = Some(unknown);
                    }
                    None
                });
                match kept {
                    Some(Snapshot { config, files }) => {
                        self.last_good = Some(files);
                        self.unknown = None;
                        config
                    }
                    None if worst == Consequence::UsesNoFile => {
                        let mut config = self.base();
                        config.run_dir = run_dir;
                        defaults(&self.files, config)
                    }
                    None => read,
                }
            }
        };
        let refuses = |problem: &&Problem| problem.consequence >= Consequence::RefusesCreates;
        let first = self.problems.iter().find(refuses);
        self.config.protection_error = first.map(|problem| problem.text.clone());
    }
}

/// Reads the configuration: the file `only`, else the default files. Never fails: if the files have
/// an error that makes a reload fail, returns the last valid configuration; without one, the valid
/// part of the files, or the defaults if no value of the files may be used.
/// `Config::protection_error` is set if an error makes creates fail.
pub fn load(only: Option<&Path>) -> Loaded {
    load_named(only, false)
}

/// Like [`load`]; with `leaves_out_rules`, omits rules that a daemon has already read.
fn load_named(only: Option<&Path>, leaves_out_rules: bool) -> Loaded {
    let only = only.map(|only| std::path::absolute(only).unwrap_or_else(|_| only.to_owned()));
    read_all(only, Path::new("/"), leaves_out_rules)
}

/// Returns the configuration of a host whose root is the folder `root` of this one.
pub(crate) fn load_below(root: &Path) -> Loaded {
    read_all(None, root, false)
}

fn read_all(only: Option<PathBuf>, root: &Path, leaves_out_rules: bool) -> Loaded {
    let mut loaded = Loaded { only: only.clone(), ..Loaded::default() };
    if only.is_some() && only == user::path() {
        loaded.user = user::run_dir().map(|run_dir| {
            let node = load_of_node();
            loaded.paths_of_root = node.paths();
            loaded.unknown = node.unknown;
            Box::new(user::defaults(&run_dir, &node.config))
        });
    }
    let folder = root.join(DEFAULT_DROP_INS.trim_start_matches('/'));
    let paths = match &only {
        Some(only) => vec![only.clone()],
        None => {
            let further = drop_ins(&folder).unwrap_or_else(|error| {
                // The folder may contain a protecting file.
                loaded.add_unreadable(&folder, &error);
                Vec::new()
            });
            let (read, unread) = further.into_iter().partition(|path| has_toml_name(path));
            loaded.unread = unread;
            [vec![root.join(DEFAULT_FILE.trim_start_matches('/'))], read].concat()
        }
    };
    paths.into_iter().for_each(|path| loaded.read_file(path));
    let unread = loaded.problems.len();
    let left_out = if leaves_out_rules { loaded.without_rules() } else { None };
    let config = left_out.unwrap_or_else(|| {
        let mut config = loaded.base();
        for (path, text) in &loaded.files {
            reader::apply(&mut config, &path.display().to_string(), text, &mut loaded.problems);
        }
        config
    });
    // The errors of unreadable files come first; such a file names no runtime for this user.
    let mut in_files = loaded.problems.iter().skip(unread);
    loaded.is_unreliable = in_files.any(|problem| problem.consequence == Consequence::UsesNoFile);
    loaded.settle(config);
    if loaded.unreadable.is_some() {
        // Without its file, this configuration has the paths of the node's daemon, so it must not
        // start a daemon.
        loaded.config.autostart = false;
    }
    loaded
}

/// Returns the errors in a configuration file's text, one line each.
pub fn problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    reader::apply(&mut Config::default(), "file", text, &mut problems);
    problems.into_iter().map(|problem| problem.text).collect()
}

/// Returns the configuration of this process: from the file named in the environment, else the one
/// beside the executable, else the default ones.
pub(crate) fn load_for_this_process() -> Loaded {
    load(file_of_this_process().as_deref())
}

fn file_of_this_process() -> Option<PathBuf> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    named.or_else(beside_the_executable)
}

/// Returns the configuration of root's daemon: the file beside the executable, unless that is this user's own file,
/// else the default files. `NRI_RUNC_CONFIG` is not read.
fn load_of_node() -> Loaded {
    load(beside_the_executable().filter(|file| Some(file) != user::path().as_ref()).as_deref())
}

/// Returns the configuration for an operator's command. For an unprivileged user with a configuration
/// file or a daemon's run directory, it is that of the user's daemon, unless the environment names a file.
pub(crate) fn load_for_operator() -> Loaded {
    let is_named = std::env::var_os(FILE_VARIABLE).is_some_and(|name| !name.is_empty());
    let has_daemon = || user::made_run_dir().and_then(|_| user::path());
    match user::file().or_else(has_daemon).filter(|_| !is_named) {
        Some(file) => load(Some(&file)),
        None => load_for_this_process(),
    }
}

/// Returns the settings of this user's own daemon, from the copy in its run directory, because a
/// wrapper in a user namespace may not know where the user's files are. `None` if there is no
/// such copy. `node` is the configuration of root's daemon.
///
/// # Errors
/// Fails when the copy cannot be read.
pub(crate) fn of_own_daemon(node: &Config) -> Result<Option<Box<Config>>> {
    let Some(run_dir) = user::made_run_dir() else { return Ok(None) };
    let before = || Box::new(user::defaults(&run_dir, node));
    let kept = presence::insist(|| snapshot::read(&run_dir, before()))?;
    Ok(kept.map(|Snapshot { mut config, .. }| {
        user::fix(&mut config, &run_dir);
        config
    }))
}

/// Like [`load_for_this_process`], for a process that becomes the configured runtime and needs no
/// rules.
///
/// # Errors
/// Fails if the settings in force are unknown.
pub(crate) fn insist_for_this_process() -> Result<Loaded> {
    presence::insist(|| {
        let mut loaded = load_named(file_of_this_process().as_deref(), true);
        loaded.unknown.take().map_or(Ok(loaded), Err)
    })
}

/// Returns `EXECUTABLE.toml` beside the executable file itself, not a link, if it exists: conmon and
/// containerd's shim pass no environment that could name a file.
fn beside_the_executable() -> Option<PathBuf> {
    let program = std::fs::read_link("/proc/self/exe").ok()?.into_os_string().into_vec();
    // The kernel appends this to the path of a file that no longer exists, for instance because an
    // upgrade replaced it while a daemon ran.
    let path = program.strip_suffix(b" (deleted)").unwrap_or(&program);
    let file = PathBuf::from(OsString::from_vec([path, b".toml"].concat()));
    std::fs::symlink_metadata(&file).is_ok().then_some(file)
}

fn read_text(path: &Path) -> std::io::Result<String> {
    crate::files::read_text(path, limits::SETTINGS_FILE)
}

/// Lists the folder of further files in name order, without hidden files not named `*.toml`.
fn drop_ins(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        if has_toml_name(&entry.path()) || !entry.file_name().as_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn has_toml_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Returns the run directory that the files name, even if they are not valid TOML; else `read`.
fn run_dir_of(files: &Files, read: &Path) -> PathBuf {
    let mut run_dir = read.to_owned();
    for (_, text) in files {
        if let Ok(document) = text.parse::<toml_edit::DocumentMut>() {
            let named =
                document.get("run_dir").and_then(toml_edit::Item::as_str).map(PathBuf::from);
            run_dir = named.filter(|named| named.is_absolute()).unwrap_or(run_dir);
            continue;
        }
        for line in text.lines().take_while(|line| !line.trim_start().starts_with('[')) {
            let value = line.trim().strip_prefix("run_dir").map(str::trim_start);
            if let Some(value) = value.and_then(|rest| rest.strip_prefix('=')) {
                run_dir = PathBuf::from(unquoted(value.trim()));
            }
        }
    }
    run_dir
}

/// Returns the quoted text at the start of `value`, even if its closing quote is missing; without an
/// opening quote, `value`.
fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            return rest.split(quote).next().unwrap_or(rest);
        }
    }
    value
}

/// Returns the defaults, for files none of whose values may be used. If the files have rules, exec
/// rules or promises, nothing is permitted that one of these could forbid.
fn defaults(files: &Files, mut config: Box<Config>) -> Box<Config> {
    for list in lists::LISTS {
        let header = format!("[[{}", list.name);
        if files.iter().any(|(_, text)| text.contains(&header)) {
            (list.close)(&mut config);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config.toml");
        crate::files::replace(&path, text.as_bytes()).unwrap();
        (temp, path)
    }

    #[test]
    fn a_typical_configuration_has_no_problem() {
        let (_temp, path) = file(
            "runtime = [\"/usr/bin/runc\"]\non_daemon_failure = \"fail\"\n[instance.nri-crun]\n\
             path = \"/usr/bin/crun\"\n[nri]\nplugin_request_timeout = \"1m30s\"\n\
             [plugin.balloons]\non_failure = \"refuse\"\nstrikes = 3\n",
        );
        let loaded = load(Some(&path));
        assert_eq!(loaded.problems, []);
        assert_eq!(loaded.config.runtime, ["/usr/bin/runc"]);
        assert_eq!(loaded.config.instances["nri-crun"], "/usr/bin/crun");
        assert_eq!(loaded.config.request_timeout, Duration::from_secs(90));
        assert_eq!(loaded.config.plugin("10", "balloons").on_failure, Some(OnFailure::Refuse));
    }

    #[test]
    fn a_section_of_the_full_plugin_id_wins_over_its_name() {
        let (_temp, path) = file("[plugin.a]\nstrikes = 1\n[plugin.10-a]\nstrikes = 2\n");
        let config = load(Some(&path)).config;
        assert_eq!(config.plugin("10", "a").strikes, Some(2));
        assert_eq!(config.plugin("20", "a").strikes, Some(1));
    }

    #[test]
    fn an_unknown_key_names_file_line_and_the_nearest_key() {
        let (_temp, path) = file("autostart = true\n[nri]\nsocket_pat = \"/x\"\n");
        let loaded = load(Some(&path));
        assert!(loaded.refusal().is_none());
        let text = &loaded.problems[0].text;
        assert!(text.contains("config.toml:3") && text.contains("nri.socket_path"), "{text}");
    }

    #[test]
    fn a_wrong_type_is_a_problem_with_its_line() {
        let (_temp, path) = file("autostart = \"yes\"\n");
        let text = load(Some(&path)).problems[0].text.clone();
        assert!(text.contains(":1") && text.contains("autostart"), "{text}");
    }

    #[test]
    fn a_broken_file_falls_back_to_the_last_good_snapshot() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path().display().to_string();
        let good = format!("run_dir = \"{run_dir}\"\nruntime = [\"/bin/special\"]\n");
        crate::files::replace(&temp.path().join(SNAPSHOT), good.as_bytes()).unwrap();
        let (_keep, path) = file(&format!("run_dir = \"{run_dir}\"\nruntime = [\n[[[\n"));
        let loaded = load(Some(&path));
        assert!(loaded.refusal().is_some());
        assert_eq!(loaded.config.runtime, ["/bin/special"]);
    }

    #[test]
    fn a_runtime_of_a_wrong_type_keeps_the_last_valid_one() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = format!("run_dir = \"{}\"\n", temp.path().display());
        let good = format!("{run_dir}runtime = [\"/bin/special\"]\n");
        crate::files::replace(&temp.path().join(SNAPSHOT), good.as_bytes()).unwrap();
        for wrong in ["runtime = 5\n", "[instance.nri-crun]\npath = 1\n"] {
            let (_keep, path) = file(&format!("{run_dir}{wrong}"));
            let loaded = load(Some(&path));
            assert!(loaded.refusal().is_some(), "{wrong}");
            assert_eq!(loaded.config.runtime, ["/bin/special"]);
        }
        let (_keep, path) = file(&format!("{run_dir}autostart = 1\n"));
        let loaded = load(Some(&path));
        assert_eq!(loaded.problems[0].consequence, Consequence::KeepsLast);
        assert_eq!(loaded.config.protection_error, None, "this one protects nothing");
    }

    #[test]
    fn a_comment_after_run_dir_in_a_broken_file_is_ignored() {
        for line in ["run_dir = \"/srv/x\" # disk", "run_dir = '/srv/x' # \"", "run_dir=\"/srv/x"] {
            let files = vec![(PathBuf::from("/a"), format!("{line}\n= =\n"))];
            assert_eq!(run_dir_of(&files, Path::new("/run/a")), Path::new("/srv/x"), "{line}");
        }
        let valid = "x = '''\nrun_dir = \"/srv/x\"\n'''\n".to_owned();
        let files = vec![(PathBuf::from("/a"), valid)];
        assert_eq!(run_dir_of(&files, Path::new("/run/a")), Path::new("/run/a"));
    }

    #[test]
    fn a_broken_file_without_snapshot_leaves_the_defaults() {
        let (_temp, path) = file("run_dir = \"/nowhere/x\"\n= = =\n");
        let loaded = load(Some(&path));
        assert!(loaded.refusal().is_some());
        assert_eq!(loaded.config.runtime, Config::default().runtime);
        assert!(loaded.config.protection_error.is_some_and(|error| error.contains(":2:")));
    }

    #[test]
    fn only_runtime_may_be_a_string_instead_of_a_list() {
        let (_temp, path) = file("runtime = \"crun\"\n");
        let loaded = load(Some(&path));
        assert_eq!((loaded.problems.len(), loaded.config.runtime), (0, vec!["crun".to_owned()]));
        for list in keys::KEYS.iter().filter(|key| key.default.starts_with('[')) {
            let (_temp, path) = file(&format!("{} = \"x\"\n", list.path.replace('*', "a")));
            let is_runtime = list.path == "runtime";
            assert_eq!(load(Some(&path)).problems.is_empty(), is_runtime, "{}", list.path);
        }
    }

    #[test]
    fn a_mistake_in_a_protecting_key_is_a_protection_error() {
        let (_temp, path) = file("exempt_namespaces = [\"ops\"]\n[plugin.a]\ndeny = \"Env\"\n");
        let config = load(Some(&path)).config;
        assert_eq!(config.exempt_namespaces, ["ops"], "what can be read holds");
        let wanted = format!("{}:3:8: plugin.a.deny: expected a list", path.display());
        let error = config.protection_error.unwrap_or_default();
        assert!(error.starts_with(&wanted), "{error}");
        let (_temp, path) = file("exempt_namespaces = \"ops\"\n");
        let config = load(Some(&path)).config;
        assert!(config.protection_error.is_some());
        assert_eq!(config.exempt_namespaces, ["kube-system"]);
    }

    #[test]
    fn a_file_without_the_suffix_toml_is_reported_and_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("etc/nri-runc/config.d");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["10-a.toml", "20-b.toml.bak", "30-c", ".hidden"] {
            crate::files::replace(&folder.join(name), b"autostart = false\n").unwrap();
        }
        let loaded = load_below(temp.path());
        assert_eq!((loaded.problems.len(), loaded.files.len()), (0, 1));
        let lines = ["20-b.toml.bak", "30-c"].map(|name| {
            format!("{} is not read: its name does not end in .toml", folder.join(name).display())
        });
        assert_eq!(loaded.advice(), lines);
    }

    #[test]
    fn an_unreadable_folder_of_files_refuses_creates() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("etc/nri-runc")).unwrap();
        crate::files::replace(&temp.path().join("etc/nri-runc/config.d"), b"").unwrap();
        let loaded = load_below(temp.path());
        let error = loaded.config.protection_error.unwrap_or_default();
        assert!(error.contains("config.d: a path component is not a folder"), "{error}");
    }

    #[test]
    fn an_irregular_file_refuses_creates_without_blocking() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("etc/nri-runc/config.d");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("10-a.toml");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = load_below(temp.path()).config.protection_error.unwrap_or_default();
        assert!(error.ends_with("10-a.toml: it is not a regular file"), "{error}");
        crate::files::replace(&file, &vec![b' '; limits::SETTINGS_FILE + 1]).unwrap();
        let error = load_below(temp.path()).config.protection_error.unwrap_or_default();
        assert!(error.ends_with("10-a.toml: it has more than 4194304 bytes"), "{error}");
        std::fs::remove_file(&file).unwrap();
        crate::files::replace(&temp.path().join("shared"), b"autostart = false\n").unwrap();
        std::os::unix::fs::symlink(temp.path().join("shared"), &file).unwrap();
        let loaded = load_below(temp.path());
        assert_eq!((loaded.problems.len(), loaded.config.autostart), (0, false));
    }

    #[test]
    fn a_refused_reload_keeps_the_last_valid_configuration() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = format!("run_dir = \"{}\"\n", temp.path().display());
        let good = format!("{run_dir}runtime = [\"/bin/special\"]\n[nri]\nallowed_uids = [7]\n");
        let files = vec![(PathBuf::from("/x"), good)];
        crate::files::replace(&temp.path().join(SNAPSHOT), snapshot_text(&files).as_bytes())
            .unwrap();
        for (wrong, refuses) in [
            ("[log]\nformat = \"xml\"\n", false),
            ("[[rules]]\nhide = true\n", true),
            ("[foo]\nx = 1\n", true),
            ("[plugin.a]\nrequird = true\n", true),
            ("= =\n", true),
        ] {
            let text = format!("{run_dir}runtime = [\"/bin/other\"]\nautostart = false\n{wrong}");
            let (_keep, path) = file(&text);
            let loaded = load(Some(&path));
            assert_eq!(loaded.config.runtime, ["/bin/special"], "{wrong}");
            assert!(loaded.config.autostart && loaded.config.allowed_uids == [7], "{wrong}");
            assert_eq!(loaded.config.protection_error.is_some(), refuses, "{wrong}");
            assert_eq!(loaded.in_force(), &files, "{wrong}");
            assert_eq!(loaded.for_next_program().config.protection_error, None, "{wrong}");
        }
    }

    #[test]
    fn a_named_file_that_is_missing_starts_no_daemon() {
        let loaded = load(Some(Path::new("/nowhere/config.toml")));
        assert!(loaded.refusal().is_some() && loaded.config.protection_error.is_some());
        assert!(!loaded.config.autostart);
        assert!(loaded.unreadable.is_some_and(|why| why.contains("/nowhere/config.toml: it is")));
    }
}
