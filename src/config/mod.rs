// SPDX-License-Identifier: Apache-2.0
//! Loads the configuration. The table in `keys.rs` names each key with its default, its meaning and its
//! parser; `docs/config.md` is generated from it.
//!
//! A broken file must never change which runtime is used (decision D7): if a file is not valid TOML, or
//! names runtimes in a wrong way, the last valid snapshot in the run directory applies, else the
//! defaults. `check` reports unknown keys; they never fail a container.

mod changes;
mod duration;
pub(crate) mod fields;
mod keys;
mod mistakes;
mod plain;
mod plugins;
mod protection;
mod reader;
mod rules;
mod settings;
mod size;
mod spelling;

use std::path::{Path, PathBuf};

pub(crate) use changes::{ChangedKey, changes};
pub(crate) use duration::{parse as parse_duration, show as show_duration};
pub(crate) use keys::Effect;
pub use keys::markdown;
pub use plugins::PluginSettings;
pub(crate) use protection::Protection;
pub(crate) use rules::{EVERY_FIELD, EVICTION, RuleMode, RuleSection};
pub use settings::OnFailure;
pub(crate) use settings::{
    AuditTarget, Config, DaemonPolicy, Evict, MetricsListener, PluginOrigin, Problem, Validator,
};

/// The main configuration file.
pub(crate) const DEFAULT_FILE: &str = "/etc/nri-runc/config.toml";
/// More files, read after the main one in name order.
pub(crate) const DEFAULT_DROP_INS: &str = "/etc/nri-runc/config.d";
/// Names one file that is read alone; for tests and for running beside an installed copy.
pub(crate) const FILE_VARIABLE: &str = "NRI_RUNC_CONFIG";
/// The daemon's copy of the configuration it could read last, in the run directory.
pub(crate) const SNAPSHOT: &str = "config.good.toml";

/// What [`load`] found.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The settings to go by.
    pub config: Config,
    /// What was wrong with the files, if anything.
    pub problems: Vec<Problem>,
    /// The files that were read, in order, with their text.
    pub files: Vec<(PathBuf, String)>,
    /// The file that was named to be read alone, absolute.
    pub only: Option<PathBuf>,
    /// Why the file that was named could not be read.
    pub unreadable: Option<String>,
}

impl Loaded {
    /// The first error with which a reload changes nothing.
    pub(crate) fn stops_reload(&self) -> Option<&Problem> {
        self.problems.iter().find(|problem| problem.stops_reload)
    }

    /// Whether a file could not be used, so that the last good snapshot or the defaults hold.
    pub fn is_broken(&self) -> bool {
        self.problems.iter().any(|problem| problem.is_fatal)
    }
}

/// Reads the configuration: `only` (of `--config` or the environment) alone, else the default
/// files. Never fails: a broken file leaves the last good snapshot, or the defaults, with
/// `Config::protection_error` set.
pub fn load(only: Option<&Path>) -> Loaded {
    let only = only.map(|only| std::path::absolute(only).unwrap_or_else(|_| only.to_owned()));
    read_all(candidates(only.as_deref(), Path::new("/")), only)
}

/// The configuration of a host whose root is the folder `root` of this one.
pub(crate) fn load_below(root: &Path) -> Loaded {
    read_all(candidates(None, root), None)
}

fn read_all(paths: Vec<PathBuf>, only: Option<PathBuf>) -> Loaded {
    let mut loaded = Loaded { only: only.clone(), ..Loaded::default() };
    for path in paths {
        match read_text(&path) {
            Ok(text) => loaded.files.push((path, text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && only.is_none() => {}
            Err(error) => {
                let text = format!("{}: {}", path.display(), crate::error::in_our_words(&error));
                loaded.unreadable = only.is_some().then(|| text.clone());
                loaded.problems.push(Problem::fatal(text));
            }
        }
    }
    let mut config = Config::default();
    for (path, text) in &loaded.files {
        reader::apply(&mut config, &path.display().to_string(), text, &mut loaded.problems);
    }
    loaded.config = if loaded.is_broken() { last_good(&loaded.files) } else { config };
    let protecting = loaded.problems.iter().find(|problem| problem.protects);
    loaded.config.protection_error = protecting.map(|problem| problem.text.clone());
    loaded
}

/// What is wrong with the text of a configuration file, one line each.
pub fn problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    reader::apply(&mut Config::default(), "file", text, &mut problems);
    problems.into_iter().map(|problem| problem.text).collect()
}

/// The configuration of this process: the file that the environment names, else the one beside
/// the executable, else the default ones.
pub(crate) fn load_for_this_process() -> Loaded {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    load(named.or_else(beside_the_executable).as_deref())
}

/// `EXECUTABLE.toml`, where the executable is the file itself, whatever link it was called by:
/// conmon and containerd's shim hand over no environment that could name a file.
fn beside_the_executable() -> Option<PathBuf> {
    let mut file = std::fs::read_link("/proc/self/exe").ok()?.into_os_string();
    file.push(".toml");
    let file = PathBuf::from(file);
    std::fs::symlink_metadata(&file).is_ok().then_some(file)
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let bytes = crate::files::read_small(path)?;
    String::from_utf8(bytes)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

/// The file that is read alone, or the default ones below `root`.
fn candidates(only: Option<&Path>, root: &Path) -> Vec<PathBuf> {
    if let Some(only) = only {
        return vec![only.to_owned()];
    }
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let mut paths = vec![below(DEFAULT_FILE)];
    if let Ok(entries) = std::fs::read_dir(below(DEFAULT_DROP_INS)) {
        let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        more.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        more.sort();
        paths.extend(more);
    }
    paths
}

/// The snapshot in the run directory that even a broken file still names on a line of its own,
/// else the defaults.
fn last_good(files: &[(PathBuf, String)]) -> Config {
    let mut config = Config::default();
    for (_, text) in files {
        for line in text.lines().take_while(|line| !line.trim_start().starts_with('[')) {
            let value = line.trim().strip_prefix("run_dir").map(str::trim_start);
            if let Some(value) = value.and_then(|rest| rest.strip_prefix('=')) {
                config.run_dir = PathBuf::from(value.trim().trim_matches(['"', '\'']));
            }
        }
    }
    let snapshot = config.run_dir.join(SNAPSHOT);
    match std::fs::read_to_string(&snapshot) {
        Ok(text) => {
            let mut ignored = Vec::new();
            for part in text.split(SNAPSHOT_SEPARATOR) {
                reader::apply(&mut config, SNAPSHOT, part, &mut ignored);
            }
        }
        Err(_none) if files.iter().any(|(_, text)| text.contains("[[rule")) => {
            rules::close(&mut config);
        }
        Err(_none) => {}
    }
    config
}

/// Stands between the files that make up a snapshot; a TOML comment.
const SNAPSHOT_SEPARATOR: &str = "#---- next file ----#\n";

/// The text that the daemon keeps as the last good configuration.
pub(crate) fn snapshot_text(files: &[(PathBuf, String)]) -> String {
    let parts: Vec<String> = files.iter().map(|(_, text)| format!("{text}\n")).collect();
    parts.join(SNAPSHOT_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config.toml");
        crate::files::replace(&path, text.as_bytes()).unwrap();
        (temp, path)
    }

    #[test]
    fn the_documented_example_is_understood() {
        let (_temp, path) = file(
            "runtime = [\"/usr/bin/runc\"]\non_daemon_failure = \"fail\"\n[runtime.nri-crun]\n\
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
        assert!(!loaded.is_broken());
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
        assert!(loaded.is_broken());
        assert_eq!(loaded.config.runtime, ["/bin/special"]);
    }

    #[test]
    fn a_runtime_of_a_wrong_type_leaves_the_last_good_one_and_no_default() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = format!("run_dir = \"{}\"\n", temp.path().display());
        let good = format!("{run_dir}runtime = [\"/bin/special\"]\n");
        crate::files::replace(&temp.path().join(SNAPSHOT), good.as_bytes()).unwrap();
        for wrong in ["runtime = 5\n", "[runtime.nri-crun]\npath = 1\n"] {
            let (_keep, path) = file(&format!("{run_dir}{wrong}"));
            let loaded = load(Some(&path));
            assert!(loaded.is_broken(), "{wrong}");
            assert_eq!(loaded.config.runtime, ["/bin/special"]);
        }
        let (_keep, path) = file(&format!("{run_dir}autostart = 1\n"));
        let loaded = load(Some(&path));
        assert!(!loaded.is_broken(), "no other key sends a verb elsewhere");
        assert_eq!(loaded.config.protection_error, None, "and this one protects nothing");
    }

    #[test]
    fn a_broken_file_without_snapshot_leaves_the_defaults() {
        let (_temp, path) = file("run_dir = \"/nowhere/x\"\n= = =\n");
        let loaded = load(Some(&path));
        assert!(loaded.is_broken());
        assert_eq!(loaded.config.runtime, Config::default().runtime);
        assert!(loaded.config.protection_error.is_some_and(|error| error.contains(":2:")));
    }

    #[test]
    fn one_runtime_may_be_given_as_one_string_and_no_other_list_may() {
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
    fn a_mistake_in_what_protects_is_remembered_with_its_place() {
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
    fn a_named_file_that_is_missing_is_a_problem() {
        let loaded = load(Some(Path::new("/nowhere/config.toml")));
        assert!(loaded.is_broken() && loaded.config.protection_error.is_some());
        assert!(loaded.unreadable.is_some_and(|why| why.contains("/nowhere/config.toml: it is")));
    }
}
