// SPDX-License-Identifier: Apache-2.0
//! Puts the program and the configuration on the node, and makes the node's running daemon use both by a
//! re-execution or a reload, so that plugins stay connected. Refuses to replace a file that `node` did not write.

use std::path::Path;

use super::log;
use super::record::NodeRecord;
use crate::admin::install::NodeEngine;
use crate::answers::AdminRequest;
use crate::config::{self, Config, Loaded};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::limits;
use crate::wrapper;

/// Path on the node for the configuration of `--node-config`.
pub(super) const CONFIGURATION: &str = "/etc/nri-runc/config.d/40-node.toml";

/// Puts this program on the node; returns whether the file changed.
pub(super) fn put_program(on: &NodeEngine, record: &mut NodeRecord) -> Result<bool> {
    let bytes = files::read(Path::new("/proc/self/exe"), limits::PROGRAM_FILE)
        .doing(|| "reading this program")?;
    put(on, record, on.program(), &bytes, |path| on.put_program(path, &bytes))
}

/// Puts the configuration on the node, or, without `file`, removes that of an earlier pod; returns whether
/// anything changed. Fails if the configuration is invalid, and then changes nothing.
pub(super) fn put_configuration(
    on: &NodeEngine,
    record: &mut NodeRecord,
    file: Option<&Path>,
) -> Result<bool> {
    let Some(file) = file else {
        let was_there = record.paths().iter().any(|path| path == CONFIGURATION);
        return Ok(was_there && record.remove(on, CONFIGURATION)?);
    };
    let loaded = config::load(Some(file));
    if let Some(problem) = loaded.problems.first() {
        return Err(Error::new(format!("the configuration has an error: {}", problem.text))
            .hint("nothing was installed on the node; fix the file that --node-config names"));
    }
    let (_, text) = loaded.files.first().cloned().unwrap_or_default();
    put(on, record, CONFIGURATION, text.as_bytes(), |path| on.put_text(path, Some(&text), false))
}

/// Puts a file in place unless it is already there; refuses to replace a file that `node` did not
/// put there.
fn put(
    on: &NodeEngine,
    record: &mut NodeRecord,
    path: &str,
    bytes: &[u8],
    write: impl FnOnce(&str) -> Result<()>,
) -> Result<bool> {
    let there = on.read(path)?;
    if there.as_deref() == Some(bytes) {
        return Ok(false);
    }
    if let Some(there) = &there
        && !record.knows(path, there)
    {
        return Err(Error::new(format!("{path} exists on the node, but node did not install it"))
            .hint("remove or rename it, or choose another path with --binary"));
    }
    record.begin(on, path, bytes)?;
    write(path)?;
    log(&format!("wrote {path}"));
    Ok(true)
}

/// Loads the configuration of the node whose root is mounted at `folder`; its run directory is a
/// path below `folder`.
pub(super) fn node_configuration(folder: &Path) -> Result<Loaded> {
    let mut loaded = config::load_below(folder);
    if let Some(why) = &loaded.config.protection_error {
        return Err(Error::new(format!("the node's configuration has an error: {why}"))
            .hint("fix it: nri-runc refuses containers until then"));
    }
    let run_dir = loaded.config.run_dir.clone();
    loaded.config.run_dir = folder.join(run_dir.strip_prefix("/").unwrap_or(&run_dir));
    Ok(loaded)
}

/// Makes a running daemon use the new files. A failure is only logged, and the daemon goes on as before; if the
/// new program's protocol is newer, the next container makes it re-execute.
pub(super) fn refresh_daemon(config: &Config, program: bool, configuration: bool) {
    if !(program || configuration) || !wrapper::is_listening(config) {
        return;
    }
    // A re-executed daemon reads the configuration again too.
    let (request, done) = match program {
        true => (AdminRequest::Reexec, "the daemon runs the new program; plugins stayed connected"),
        false => (AdminRequest::Reload { dry_run: false }, "the daemon has read its configuration"),
    };
    match wrapper::admin(config, &request) {
        Ok(_document) => log(done),
        Err(error) => log(&format!("the daemon goes on as before: {error}")),
    }
}
