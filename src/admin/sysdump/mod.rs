// SPDX-License-Identifier: Apache-2.0
//! `sysdump`: one archive for a support case, whether or not the daemon runs. `collect` reads,
//! `redact` hides secrets, `archive` writes.

mod archive;
mod collect;
mod redact;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;

use super::output::{Answer, Format, PlainOutput};
use super::progress;
use crate::config::Loaded;
use crate::error::Result;
use crate::text::{counted, printable, rfc3339};

/// `sysdump`.
#[derive(Debug, Args)]
pub(super) struct Sysdump {
    /// Archive to write (default: nri-runc-sysdump-HOST-TIME.tar.gz here).
    file: Option<PathBuf>,
    /// Write the files into this new directory instead.
    #[arg(long, value_name = "DIR")]
    plain: Option<PathBuf>,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// The paths of the written archive, and the parts that it lacks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Written {
    file: Option<PathBuf>,
    plain: Option<PathBuf>,
    missing: Vec<String>,
}

/// Writes the archive, or with `--plain` the files, or both.
pub(super) fn sysdump(loaded: &Loaded, wanted: &Sysdump) -> Result<Written> {
    let now = SystemTime::now();
    let parts = collect::collect(loaded);
    let name = name(now);
    progress::step("writing");
    if let Some(dir) = &wanted.plain {
        archive::write_plain(dir, &parts.files)?;
    }
    let file = match (&wanted.file, &wanted.plain) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(PathBuf::from(format!("{name}.tar.gz"))),
    };
    if let Some(file) = &file {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        archive::write(file, &name, seconds, &parts.files)?;
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (file, plain) = (file.as_deref().map(absolute), wanted.plain.as_deref().map(absolute));
    Ok(Written { file, plain, missing: parts.missing })
}

/// Returns the archive's name: host and time, in characters that file systems and mail programs accept.
fn name(now: SystemTime) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.to_string_lossy().chars().filter(is_plain).take(64).collect();
    let time = rfc3339(now).replace([':', '-'], "");
    format!("nri-runc-sysdump-{host}-{time}")
}

impl Answer for Written {
    fn page(&self, _: Format) -> String {
        let places = self.file.iter().chain(&self.plain);
        let places = places.map(|place| format!("wrote {}\n", printable(&place.to_string_lossy())));
        let mut page: String = places.collect();
        if !self.missing.is_empty() {
            let missing = counted(self.missing.len(), "part");
            page.push_str(&format!(
                "{missing} could not be read completely: errors.txt has the reasons\n"
            ));
        }
        page + "secrets are hidden; look through it before you send it (--plain DIR)"
    }
}
