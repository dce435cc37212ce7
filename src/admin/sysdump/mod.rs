// SPDX-License-Identifier: Apache-2.0
//! `sysdump`: one archive for a support case, with the daemon alive or dead. `collect` reads, `redact` takes
//! secrets out, `archive` writes. It changes nothing on the node but the files that it was asked for.

mod archive;
mod collect;
mod redact;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};

use super::output::{Format, PlainOutput, tell};
use super::{exit::DONE, paint, progress, show::text};
use crate::config::Loaded;
use crate::error::Result;
use crate::text::{counted, rfc3339};

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

/// Writes the archive, and prints where it is.
pub(super) fn sysdump(loaded: &Loaded, wanted: &Sysdump, format: Format) -> Result<u8> {
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
    let document = json!({
        "file": file.as_deref().map(absolute),
        "plain": wanted.plain.as_deref().map(absolute),
        "missing": parts.missing,
    });
    tell(format, &document, page, paint::plain)?;
    Ok(DONE)
}

/// A name with host and time, of characters that every file system and mail takes.
fn name(now: SystemTime) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.to_string_lossy().chars().filter(is_plain).take(64).collect();
    let time = rfc3339(now).replace([':', '-'], "");
    format!("nri-runc-sysdump-{host}-{time}")
}

fn page(document: &Value) -> String {
    let mut page = String::new();
    for place in ["file", "plain"].iter().filter(|place| !document[**place].is_null()) {
        page.push_str(&format!("wrote {}\n", text(&document[*place])));
    }
    let missing = document["missing"].as_array().map_or(0, Vec::len);
    if missing > 0 {
        let missing = counted(missing, "part");
        page.push_str(&format!("{missing} could not be had in full: errors.txt has the reasons\n"));
    }
    page + "secrets are hidden; look through it before you send it (--plain DIR)"
}
