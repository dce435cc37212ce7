// SPDX-License-Identifier: Apache-2.0
//! The configuration while the daemon runs. A hangup signal (SIGHUP) reads the files again: the
//! daemon applies the log level, and names every other changed key as one that needs a restart. A
//! file with a mistake changes nothing. A daemon that started with a mistake in a protecting key
//! ends once the files are fixed, so that its successor starts with them.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::config::{self, Config, Loaded};
use crate::error::{Context, Result};

/// How often the files are read while a mistake in them refuses creates.
const FIXED_CHECK: Duration = Duration::from_millis(500);

/// The files and the program with which this daemon was started.
pub(crate) struct StartedWith {
    config: Config,
    files: Vec<(PathBuf, String)>,
    only: Option<PathBuf>,
    log_level: RefCell<String>,
    program: Value,
    is_supervised: bool,
}

impl StartedWith {
    pub(crate) fn new(loaded: &Loaded) -> Self {
        Self {
            config: loaded.config.clone(),
            files: loaded.files.clone(),
            only: loaded.only.clone(),
            log_level: RefCell::new(loaded.config.log_level.clone()),
            program: program(),
            is_supervised: std::env::var_os("NOTIFY_SOCKET").is_some(),
        }
    }

    /// Reads the files again at each signal. Never ends.
    pub(crate) async fn reload_at(&self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            self.reload();
        }
        std::future::pending::<()>().await;
    }

    fn reload(&self) {
        let loaded = config::load(self.only.as_deref());
        if let Some(problem) = loaded.problems.first() {
            let text = &problem.text;
            warn!("configuration not reloaded, the previous one stays in force: {text}");
            return;
        }
        let level = Some(loaded.config.log_level.clone());
        let level = level.filter(|level| *self.log_level.borrow() != *level);
        let mut parts = Vec::new();
        if let Some(level) = &level {
            parts.push(format!("log.level is now {level}"));
        }
        let changed = self.changed(&loaded);
        if !changed.is_empty() {
            let how = self.how_to_restart();
            parts.push(format!("restart needed ({how}) for {}", changed.join(", ")));
        }
        if parts.is_empty() {
            parts.push("nothing has changed".to_owned());
        }
        // Logged if either the old or the new level shows this line.
        let is_shown = tracing::enabled!(tracing::Level::INFO);
        let line = format!("configuration read again: {}", parts.join("; "));
        if is_shown {
            info!("{line}");
        }
        if let Some(level) = level {
            self.apply_level(level);
        }
        if !is_shown {
            info!("{line}");
        }
    }

    fn apply_level(&self, level: String) {
        if crate::log::set_level(&level) {
            self.log_level.replace(level);
        } else {
            warn!("log.level could not be changed to {level}");
        }
    }

    /// The keys that need a restart.
    fn changed(&self, loaded: &Loaded) -> Vec<String> {
        let same_level =
            Config { log_level: self.config.log_level.clone(), ..loaded.config.clone() };
        if same_level == self.config {
            return Vec::new();
        }
        let mut changed = config::changed_keys(&self.files, &loaded.files);
        changed.retain(|key| key != "log.level");
        changed
    }

    fn how_to_restart(&self) -> &'static str {
        if self.is_supervised { "systemctl restart nri-runc" } else { "nri-runc nri restart" }
    }

    /// Returns when creates are refused for a mistake that has been fixed, and a wrapper or the
    /// service manager will start the next daemon.
    pub(crate) async fn until_fixed(&self) {
        if self.config.protection_error.is_none() {
            return std::future::pending().await;
        }
        let mut is_logged = false;
        loop {
            tokio::time::sleep(FIXED_CHECK).await;
            let loaded = config::load(self.only.as_deref());
            if loaded.config.protection_error.is_some() {
                is_logged = false;
                continue;
            }
            if self.is_supervised || loaded.config.autostart {
                return info!(
                    "the configuration is valid again: stopping, so that the next daemon loads it"
                );
            }
            if !std::mem::replace(&mut is_logged, true) {
                warn!("the configuration is fixed; restart the daemon to use it");
            }
        }
    }

    /// The configuration as `status` shows it; `check` compares it with the files.
    pub(crate) fn to_json(&self) -> Value {
        let loaded = config::load(self.only.as_deref());
        let problem = loaded.problems.iter().find(|problem| problem.is_fatal || problem.protects);
        let changed = if problem.is_some() { Vec::new() } else { self.changed(&loaded) };
        let files: Vec<&PathBuf> = self.files.iter().map(|(path, _)| path).collect();
        json!({
            "file": self.only,
            "files": files,
            "protection_error": self.config.protection_error,
            "changed": changed,
            "log_level": *self.log_level.borrow(),
        })
    }

    /// The file that this process executes, as it was at the start.
    pub(crate) fn program(&self) -> &Value {
        &self.program
    }

    /// The supervisor that restarts this process when it ends.
    pub(crate) fn supervisor(&self) -> Option<&'static str> {
        self.is_supervised.then_some("systemd")
    }
}

/// The stream of hangup signals. Taken at the start, as a hangup must never end the daemon.
pub(crate) fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).doing(|| "waiting for signals")
}

fn program() -> Value {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    match std::fs::metadata("/proc/self/exe") {
        Ok(meta) => json!({
            "path": path,
            "device": meta.dev(),
            "inode": meta.ino(),
            "size": meta.len(),
            "modified": [meta.mtime(), meta.mtime_nsec()],
        }),
        Err(_unreadable) => json!({"path": path}),
    }
}
