// SPDX-License-Identifier: Apache-2.0
//! Keeps the identities that belong to files in `plugin_path` (D55). While the file `NN-name` exists, only the process
//! that the daemon started from it may be that plugin; if the bare name is required, only launched processes satisfy
//! the requirement. `[plugin.NAME] displace = "any"` lets other processes have the identity.
//!
//! "No such file" and "unknown" are different results: if the folder becomes unreadable, known
//! identities stay known, and until it was read once, any identity may belong to a file.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use crate::chain::ChainedPlugin;
use crate::config::{Config, Displace, bare_name};
use crate::plugin;
use crate::rules::RuledPod;

use super::Registry;

/// The identities that belong to files.
#[derive(Debug, Default)]
pub(crate) struct PreInstalled(RefCell<Known>);

#[derive(Debug, Default)]
struct Known {
    folder: PathBuf,
    /// The names of the files in the folder that have the form `NN-name`; `None` until the folder was read.
    files: Option<BTreeSet<String>>,
    /// The identities that only their file's process may use; `None` while the files are unknown.
    owned: Option<BTreeSet<String>>,
}

impl PreInstalled {
    /// Reads the folder of this configuration.
    ///
    /// # Errors
    /// Fails when the folder is unreadable. Identities that were read from it earlier stay known.
    pub(crate) fn look(&self, config: &Config) -> io::Result<()> {
        let found = plugin::identities(&config.plugin_path);
        let mut known = self.0.borrow_mut();
        if known.folder != config.plugin_path {
            *known = Known { folder: config.plugin_path.clone(), ..Known::default() };
        }
        let outcome = found.map(|found| known.files = Some(found));
        let is_owned = |id: &&String| {
            let (index, name) = id.split_once('-').unwrap_or_default();
            config.plugin(index, name).displace == Displace::Never
        };
        known.owned =
            known.files.as_ref().map(|files| files.iter().filter(is_owned).cloned().collect());
        outcome
    }

    /// Whether only its file's process may be `NN-name`; true for every name while the files are unknown.
    pub(crate) fn owns(&self, id: &str) -> bool {
        self.0.borrow().owned.as_ref().is_none_or(|owned| owned.contains(id))
    }

    /// Whether the requirement `name` (or `NN-name`) refers to the plugin `id`. A bare name that files have
    /// refers only to the plugins of these files.
    pub(crate) fn is_meant(&self, name: &str, id: &str) -> bool {
        let is_a_files_name = || {
            let known = self.0.borrow();
            known.owned.as_ref().is_some_and(|owned| owned.iter().any(|id| bare_name(id) == name))
        };
        // A requirement of the form `NN-name` includes the index, although a bare name may have this
        // form too.
        let is_bare = bare_name(name) == name;
        id == name || is_bare && bare_name(id) == name && (self.owns(id) || !is_a_files_name())
    }
}

impl Registry {
    /// Whether a plugin that satisfies the requirement `name` (or `NN-name`) is synchronized.
    pub(crate) fn is_present(&self, name: &str) -> bool {
        self.synchronized().iter().any(|chained| self.counts_as(chained, name))
    }

    /// Like [`is_present`](Self::is_present), but no rule may hide this pod from the plugin.
    pub(crate) fn is_present_for(&self, name: &str, pod: &RuledPod) -> bool {
        self.synchronized().iter().any(|chained| {
            self.counts_as(chained, name) && self.rules().hidden_by(chained.id(), pod).is_none()
        })
    }

    /// Returns a synchronized plugin of this name (or `NN-name`) that does not satisfy the requirement because the name
    /// belongs, or may belong, to a file.
    pub(crate) fn stand_in(&self, name: &str) -> Option<String> {
        let connected = self.synchronized();
        let has_name = |chained: &&std::rc::Rc<ChainedPlugin>| {
            chained.is_named(name) && !self.counts_as(chained, name)
        };
        connected.iter().find(has_name).map(|chained| chained.id().to_owned())
    }

    fn counts_as(&self, chained: &ChainedPlugin, name: &str) -> bool {
        let id = chained.id();
        self.pre_installed.is_meant(name, id) && (chained.launched || !self.pre_installed.owns(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &std::path::Path) -> Config {
        Config { plugin_path: folder.to_owned(), ..Config::default() }
    }

    fn known(files: &[&str]) -> (tempfile::TempDir, PreInstalled) {
        let temp = tempfile::tempdir().unwrap();
        for file in files {
            crate::files::replace(&temp.path().join(file), b"").unwrap();
        }
        let known = PreInstalled::default();
        known.look(&config(temp.path())).unwrap();
        (temp, known)
    }

    #[test]
    fn a_required_pre_installed_name_is_met_only_by_its_files() {
        let (_temp, known) = known(&["10-policy", "20-policy"]);
        assert!(known.owns("10-policy") && !known.owns("11-policy") && !known.owns("10-other"));
        for (name, id, is_meant) in [
            ("policy", "10-policy", true),
            ("policy", "20-policy", true),
            ("policy", "11-policy", false),
            ("11-policy", "11-policy", true),
            ("10-policy", "11-policy", false),
            ("other", "11-other", true),
            ("other", "10-policy", false),
        ] {
            assert_eq!(known.is_meant(name, id), is_meant, "{name} {id}");
        }
    }

    #[test]
    fn a_displaceable_name_may_be_used_by_any_process() {
        let (temp, known) = known(&["10-policy"]);
        let mut given = config(temp.path());
        given.plugins.entry("policy".to_owned()).or_default().displace = Some(Displace::Any);
        known.look(&given).unwrap();
        assert!(!known.owns("10-policy") && known.is_meant("policy", "11-policy"));
        known.look(&config(temp.path())).unwrap();
        assert!(known.owns("10-policy") && !known.is_meant("policy", "11-policy"));
    }

    #[test]
    fn while_the_plugin_folder_is_unreadable_names_stay_reserved() {
        let never = PreInstalled::default();
        assert!(never.owns("10-a") && never.is_meant("a", "10-a"), "nothing is known yet");
        let (temp, known) = known(&["10-a"]);
        let folder = temp.path().join("loop");
        std::os::unix::fs::symlink(&folder, &folder).unwrap();
        assert!(known.look(&config(&folder)).is_err());
        assert!(known.owns("20-b"), "another folder, of which nothing is known");
        let files = temp.path().join("files");
        std::fs::create_dir(&files).unwrap();
        crate::files::replace(&files.join("10-a"), b"").unwrap();
        known.look(&config(&files)).unwrap();
        std::fs::rename(&files, temp.path().join("away")).unwrap();
        std::os::unix::fs::symlink(&files, &files).unwrap();
        assert!(known.look(&config(&files)).is_err());
        assert!(known.owns("10-a") && !known.owns("20-b"), "what was known counts on");
        std::fs::remove_file(&files).unwrap();
        known.look(&config(&files)).unwrap();
        assert!(!known.owns("10-a"), "there is none");
    }

    #[test]
    fn a_full_identity_does_not_match_another_plugins_bare_name() {
        let (_temp, known) = known(&["10-policy"]);
        assert!(known.is_meant("10-policy", "10-policy"));
        assert!(!known.is_meant("10-policy", "20-10-policy"));
        assert!(known.is_meant("20-10-policy", "20-10-policy"));
    }
}
