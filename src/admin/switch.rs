// SPDX-License-Identifier: Apache-2.0
//! `disable` creates a file in the run directory that every wrapper checks, and `enable` removes it. The
//! log names the user who called them, even if no daemon runs.

use std::path::Path;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde::Serialize;
use tracing::warn;

use crate::answers::AdminRequest;
use crate::config::Config;
use crate::error::{Context, Result};
use crate::files;
use crate::wrapper;

use super::output::{Answer, Format};

/// Whether plugins are disabled, and the consequences.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Switched {
    disabled: bool,
    disabled_by_configuration: bool,
    lasts_over_reboot: bool,
    /// The protections that are not enforced.
    bypassed: Vec<String>,
}

/// Disables or enables plugins.
pub(super) fn switch(config: &Config, off: bool) -> Result<Switched> {
    let file = config.disabled_file();
    if off {
        files::make_private_dir(&config.run_dir)?;
        let written = files::replace(&config.was_disabled_file(), b"");
        written
            .and_then(|()| files::replace(&file, b""))
            .map_err(|error| error.hint("or set disable = true in [nri] of the configuration"))?;
    } else {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).doing(|| format!("removing {}", file.display()));
            }
            Ok(()) | Err(_) => {}
        }
    }
    log(config, off);
    Ok(Switched {
        disabled: off,
        disabled_by_configuration: config.disable,
        lasts_over_reboot: off && !is_memory(&config.run_dir),
        bypassed: if off { bypassed(config) } else { Vec::new() },
    })
}

/// Lists the protections that are not enforced while plugins are disabled.
fn bypassed(config: &Config) -> Vec<String> {
    let found = config.protections_without_daemon().into_iter();
    let mut found: Vec<String> = found.map(|protection| protection.what).collect();
    let validator = &config.default_validator;
    let required = validator.required_plugins.iter().filter(|_| validator.enable);
    found
        .extend(required.map(|name| format!("plugin {name} is required by the default validator")));
    found
}

/// Whether a directory is on a tmpfs, which a reboot empties.
fn is_memory(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

/// Logs who disabled or enabled plugins: asks the daemon to log it, or if that fails, writes to its log.
fn log(config: &Config, off: bool) {
    let by = match std::env::var("SUDO_USER") {
        Ok(user) => format!("{user} (process {})", std::process::id()),
        Err(_) => format!("user {} (process {})", nix::unistd::getuid(), std::process::id()),
    };
    let note = AdminRequest::Switched { off, by: by.clone() };
    if wrapper::admin(config, &note).is_ok() {
        return;
    }
    crate::log::start(config, false);
    if off {
        warn!("plugins were disabled by {by}: every command goes straight to the runtime");
    } else {
        warn!("plugins were enabled again by {by}");
    }
}

impl Answer for Switched {
    fn page(&self, _: Format) -> String {
        let until = match (self.disabled, self.lasts_over_reboot) {
            (false, _) if self.disabled_by_configuration => {
                return "still disabled: nri.disable is set in the configuration".to_owned();
            }
            (false, _) => return "enabled: plugins are asked from the next command on".to_owned(),
            (true, true) => "until `nri-runc nri enable`, across reboots",
            (true, false) => {
                "until `nri-runc nri enable` or the next reboot (nri.disable = true persists)"
            }
        };
        let page = format!("disabled {until}: every command goes straight to the runtime");
        match self.bypassed.join("; ") {
            none if none.is_empty() => page,
            list => format!("{page}\nnot enforced while disabled: {list}"),
        }
    }
}
