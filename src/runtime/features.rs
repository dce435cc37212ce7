// SPDX-License-Identifier: Apache-2.0
//! Queries a runtime's features, with its `features` and `--version`, once for each executable.
//!
//! This module never starts a container, and waits at most two seconds. A runtime that does not answer is assumed to
//! have every feature. Reference: OCI runtime-spec `features.md`, `features-linux.md`.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{RuntimeKind, bounded};

/// Time limit for both responses of a runtime.
const ANSWERS_WAIT: Duration = Duration::from_secs(2);

/// The known facts about a runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// `runc`, `crun`, …; empty if it reported none.
    pub name: String,
    /// Major, minor and patch.
    pub version: Option<(u32, u32, u32)>,
    /// The output of `features`, if the runtime has the command.
    pub said: Option<FeaturesDocument>,
}

/// The output of `features`; if a member is absent, the feature is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeaturesDocument {
    pub mount_options: Option<Vec<String>>,
    pub linux: Option<Linux>,
}

/// The Linux part of `features`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    pub namespaces: Option<Vec<String>>,
    pub seccomp: Option<Seccomp>,
    pub intel_rdt: Option<IntelRdt>,
    pub memory_policy: Option<MemoryPolicy>,
    pub mount_extensions: Option<MountExtensions>,
    pub net_devices: Option<Enabled>,
}

/// The seccomp features.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    pub enabled: Option<bool>,
    pub actions: Option<Vec<String>>,
    pub operators: Option<Vec<String>>,
    pub archs: Option<Vec<String>>,
    pub known_flags: Option<Vec<String>>,
    pub supported_flags: Option<Vec<String>>,
}

/// The resctrl features.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct IntelRdt {
    pub enabled: Option<bool>,
    pub schemata: Option<bool>,
    pub monitoring: Option<bool>,
}

/// The memory policies that the runtime knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MemoryPolicy {
    pub modes: Option<Vec<String>>,
    pub flags: Option<Vec<String>>,
}

/// The features of mounts, apart from options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MountExtensions {
    pub idmap: Option<Enabled>,
}

/// Whether a feature is enabled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Enabled {
    pub enabled: Option<bool>,
}

impl Features {
    /// Returns the runtime's kind, which its reported name shows.
    pub fn kind(&self) -> RuntimeKind {
        RuntimeKind::named(&self.name)
    }

    /// Whether this is the runtime `kind` in a version before `(major, minor, patch)`.
    pub fn is_before(&self, kind: RuntimeKind, version: (u32, u32, u32)) -> bool {
        self.kind() == kind && self.version.is_some_and(|own| own < version)
    }

    /// Parses the runtime's output of `--version` and `features`.
    pub fn from_answers(version: &str, features: &str) -> Self {
        let mut words = version.lines().next().unwrap_or_default().split_ascii_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let number = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let version = number.map(|number| {
            let mut parts = number.split('.').map(|part| {
                let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                part.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
            });
            let mut next = || parts.next().unwrap_or(0);
            (next(), next(), next())
        });
        Self { name, version, said: serde_json::from_str(features).ok() }
    }
}

/// The runtime's name and version for messages.
impl std::fmt::Display for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = if self.name.is_empty() { "the runtime" } else { &self.name };
        match self.version {
            Some((major, minor, patch)) => write!(f, "{name} {major}.{minor}.{patch}"),
            None => f.write_str(name),
        }
    }
}

/// The identity of an executable; a later one at the same path is queried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExecutableStamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The runtimes that were queried.
#[derive(Debug, Default)]
pub(crate) struct KnownRuntimes(Mutex<HashMap<PathBuf, (ExecutableStamp, Arc<Features>)>>);

impl KnownRuntimes {
    /// Returns the features of the runtime at `path`. The first query of a runtime blocks the thread.
    pub(crate) fn features(&self, path: &Path) -> Arc<Features> {
        let Ok(meta) = std::fs::metadata(path) else { return Arc::default() };
        let changed = (meta.mtime(), meta.mtime_nsec());
        let stamp = ExecutableStamp { device: meta.dev(), inode: meta.ino(), changed };
        if let Ok(known) = self.0.lock()
            && let Some((there, features)) = known.get(path)
            && *there == stamp
        {
            return Arc::clone(features);
        }
        // A runtime that did not answer in time may do so at the next query.
        let Some(features) = ask(path) else { return Arc::default() };
        let features = Arc::new(features);
        if let Ok(mut known) = self.0.lock() {
            known.insert(path.to_owned(), (stamp, Arc::clone(&features)));
        }
        features
    }
}

/// Queries the runtime at `path`; `None` when it did not answer in time or could not be started.
pub fn ask(path: &Path) -> Option<Features> {
    let deadline = Instant::now() + ANSWERS_WAIT;
    let version = output(path, "--version", deadline)?;
    let features = output(path, "features", deadline)?;
    Some(Features::from_answers(&version, &features))
}

/// Returns the version that a program prints; `None` when it did not answer in time or printed none.
pub(crate) fn version(path: &Path) -> Option<(u32, u32, u32)> {
    let said = output(path, "--version", Instant::now() + ANSWERS_WAIT)?;
    Features::from_answers(&said, "").version
}

fn output(path: &Path, word: &str, deadline: Instant) -> Option<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    bounded::run(path, &[word], left).ok().map(|answer| answer.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("runtime");
        crate::files::replace(&path, format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    const RUNC: &str = r#"echo x >>"$0.calls"; case $1 in --version) echo 'runc version 1.2.3-rc.1
commit: x';; features) echo '{"mountOptions":["ro"],"linux":{"namespaces":["pid"],"seccomp":null}}';; esac"#;

    #[test]
    fn a_runtime_is_queried_once_per_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = program(temp.path(), RUNC);
        let asked = KnownRuntimes::default();
        for _again in 0..3 {
            let features = asked.features(&path);
            assert_eq!(features.to_string(), "runc 1.2.3");
            let said = features.said.clone().unwrap();
            assert_eq!(said.mount_options, Some(vec!["ro".to_owned()]));
            assert_eq!(said.linux.unwrap().seccomp, None);
        }
        let calls = |path: &Path| std::fs::read_to_string(path.with_extension("calls")).unwrap();
        assert_eq!(calls(&path).lines().count(), 2, "--version and features");
        program(temp.path(), &RUNC.replace("1.2.3", "1.4.0"));
        assert_eq!(asked.features(&path).to_string(), "runc 1.4.0");
    }

    #[test]
    fn a_runtime_without_features_still_has_a_version() {
        let temp = tempfile::tempdir().unwrap();
        let path = program(
            temp.path(),
            "case $1 in --version) echo crun version 1.8.1;; *) echo unknown >&2; exit 1;; esac",
        );
        let features = ask(&path).unwrap();
        assert_eq!((features.version, &features.said), (Some((1, 8, 1)), &None));
        assert!(
            features.is_before(RuntimeKind::Crun, (1, 8, 4))
                && !features.is_before(RuntimeKind::Runc, (9, 0, 0))
        );
        assert!(!features.is_before(RuntimeKind::Crun, (1, 8, 1)));
    }

    #[test]
    fn a_hanging_runtime_times_out_with_unknown_features() {
        let temp = tempfile::tempdir().unwrap();
        let path = program(temp.path(), "sleep 600; echo x >\"$0.late\"");
        assert_eq!(*KnownRuntimes::default().features(&path), Features::default());
        assert!(!path.with_extension("late").exists());
    }

    #[test]
    fn an_invalid_answer_counts_as_none() {
        assert_eq!(Features::from_answers("", "[1]").said, None);
        assert_eq!(Features::from_answers("strange", "{").version, None);
        assert_eq!(Features::from_answers("strange", "{").to_string(), "strange");
        assert_eq!(*KnownRuntimes::default().features(Path::new("/nowhere")), Features::default());
    }
}
