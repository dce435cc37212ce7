// SPDX-License-Identifier: Apache-2.0
//! Keeps the configuration files and the program with which this daemon started. At a reload, it reads the files again
//! and reports the differences; `daemon/reload.rs` decides which of them take effect.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crate::answers::{ConfigurationInForce, Program, ProgramFile};
use crate::config::{self, ChangedKey, Config, Effect, FileStamp, Files, Loaded};
use crate::daemon::process::handover::STATE_VERSION;
use crate::presence::IfThere;
use crate::runtime;

/// A file read within this time after its modification may change again with the same timestamp:
/// file system clocks are coarse.
const SETTLED: Duration = Duration::from_secs(2);

/// The files and the program of this daemon.
pub(crate) struct StartedWith {
    at_start: Files,
    /// The files as applied at the start or by the last reload.
    in_force: RefCell<Files>,
    /// For a user's daemon, the runtimes that root's configuration named at the start or last reload.
    of_root: RefCell<Files>,
    only: Option<PathBuf>,
    /// The files as last read, with their state at that time.
    known: RefCell<Option<KnownFiles>>,
    program: Program,
    state_version: u32,
    is_supervised: bool,
}

struct KnownFiles {
    loaded: Rc<Loaded>,
    stamps: Vec<Option<FileStamp>>,
}

impl StartedWith {
    pub(crate) fn new(loaded: &Loaded) -> Self {
        Self {
            at_start: loaded.in_force().clone(),
            in_force: RefCell::new(loaded.in_force().clone()),
            of_root: RefCell::new(loaded.of_root()),
            only: loaded.only.clone(),
            known: RefCell::default(),
            program: program(),
            state_version: loaded.config.seams.state_version.unwrap_or(STATE_VERSION),
            is_supervised: std::env::var_os("NOTIFY_SOCKET").is_some(),
        }
    }

    /// Returns the version of the state that the next program receives (`handover.rs`).
    pub(crate) fn state_version(&self) -> u32 {
        self.state_version
    }

    /// Returns the only configuration file to read, if one was named.
    pub(crate) fn only(&self) -> Option<&Path> {
        self.only.as_deref()
    }

    /// Reads the files again.
    pub(crate) fn read(&self) -> Loaded {
        runtime::verify(config::load(self.only.as_deref()))
    }

    /// Returns the current files, for frequent checks: opens them only if they may have changed
    /// since the last time, or have an error.
    pub(crate) fn present(&self) -> Rc<Loaded> {
        let mut known = self.known.borrow_mut();
        if let Some(known) = known.as_ref().filter(|known| known.loaded.stamps() == known.stamps) {
            return Rc::clone(&known.loaded);
        }
        let begun = SystemTime::now();
        let loaded = Rc::new(self.read());
        let stamps = loaded.stamps();
        let is_settled = |stamp: &FileStamp| stamp.changed + SETTLED <= begun;
        let is_final = loaded.refusal().is_none() && stamps.iter().flatten().all(is_settled);
        *known = is_final.then(|| KnownFiles { loaded: Rc::clone(&loaded), stamps });
        loaded
    }

    /// Returns the keys in `loaded` whose values are not in force.
    pub(crate) fn changes(&self, loaded: &Loaded) -> Vec<ChangedKey> {
        let needs_restart = |changed: &ChangedKey| changed.effect == Effect::Restart;
        let before = [&self.of_root.borrow()[..], &self.in_force.borrow()].concat();
        let mut changed =
            config::changes(&before, &[loaded.of_root(), loaded.files.clone()].concat());
        changed.retain(|changed| !needs_restart(changed));
        if loaded.config.is_of_user() {
            // A user's wrappers read what the user's daemon last read, not the files.
            for changed in changed.iter_mut().filter(|changed| changed.effect == Effect::Call) {
                changed.effect = Effect::Reload;
            }
        }
        let since_start = config::changes(&self.at_start, &loaded.files);
        changed.extend(since_start.into_iter().filter(needs_restart));
        changed
    }

    /// Records that these files are in force, except for values that need a restart.
    pub(crate) fn put_in_force(&self, loaded: &Loaded) {
        self.in_force.borrow_mut().clone_from(&loaded.files);
        *self.of_root.borrow_mut() = loaded.of_root();
    }

    /// Returns the command that restarts this daemon.
    pub(crate) fn how_to_restart(&self) -> &'static str {
        match (self.is_supervised, config::is_unprivileged()) {
            (false, _) => "nri-runc nri restart",
            (true, false) => "systemctl restart nri-runc",
            (true, true) => "systemctl --user restart nri-runc",
        }
    }

    /// Returns the configuration as `status` shows it, with the keys that the files have changed.
    pub(crate) fn in_force(&self, config: &Config) -> ConfigurationInForce {
        let loaded = self.present();
        let mut changed = match loaded.refusal() {
            Some(_) => Vec::new(),
            None => self.changes(&loaded),
        };
        // Each call of a wrapper of root reads these keys from the files, so they are always in force.
        changed.retain(|changed| changed.effect != Effect::Call);
        let restarts = changed.iter().filter(|changed| changed.effect == Effect::Restart);
        ConfigurationInForce {
            file: self.only.clone(),
            files: self.in_force.borrow().iter().map(|(path, _)| path.clone()).collect(),
            protection_error: config.protection_error.clone(),
            restart_needed: Some(restarts.map(|changed| changed.key.clone()).collect()),
            changed: changed.iter().map(|changed| changed.key.clone()).collect(),
            log_level: config.log_level.clone(),
        }
    }

    /// Returns the file that this process executes, with its state at the start.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the supervisor that restarts this process when it ends, if there is one.
    pub(crate) fn supervisor(&self) -> Option<&'static str> {
        self.is_supervised.then_some("systemd")
    }
}

fn program() -> Program {
    let path = std::fs::read_link("/proc/self/exe").or_absent().unwrap_or_default();
    let file = match std::fs::metadata("/proc/self/exe") {
        Ok(file) => Some(ProgramFile::of(&file)),
        Err(_unreadable) => None,
    };
    Program { path, file }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_may_have_changed_are_read_again() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config.toml");
        let write = |text: &str| crate::files::replace(&path, text.as_bytes()).unwrap();
        write("autostart = false\n");
        let started_with = StartedWith::new(&config::load(Some(&path)));
        let first = started_with.present();
        assert!(!Rc::ptr_eq(&first, &started_with.present()), "it may change within one tick");
        std::thread::sleep(SETTLED);
        let settled = started_with.present();
        assert!(Rc::ptr_eq(&settled, &started_with.present()), "it is not read again");
        write("disable = true\n");
        assert_eq!(started_with.present().files[0].1, "disable = true\n");
        std::fs::remove_file(&path).unwrap();
        assert!(!started_with.present().problems.is_empty());
    }
}
