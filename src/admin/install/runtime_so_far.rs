// SPDX-License-Identifier: Apache-2.0
//! The current runtime of an engine's containers, and the runtime that nri-runc would start.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::plan::Registration;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::runtime;

/// Returns a note if nri-runc may start another runtime than `theirs`, the engine's default
/// runtime (a path or a name). `is_here`: the engine's files are this host's.
///
/// # Errors
/// Fails when nri-runc would find no runtime in the environment of the running engine although
/// `theirs` exists: containers would not start until a setting names it.
pub(super) fn note(
    theirs: &str,
    engine: Engine,
    registration: &Registration,
    config: &Config,
    is_here: bool,
) -> Result<Option<String>> {
    let binary = OsString::from(&registration.binary);
    let called_as = Path::new(&binary).file_name().and_then(std::ffi::OsStr::to_str);
    // For an instance, the operator chose the runtime.
    let is_instance = called_as.is_some_and(|name| config.instances.contains_key(name));
    if is_instance || runtime::is_ourselves(theirs) {
        return Ok(None);
    }
    let host = config.host();
    let main = registration.main.as_deref();
    let path = is_here.then(|| (engine.row().search_path)(main, &host)).flatten();
    let ours = path.map(|path| runtime::resolve_in(config, Some(&binary), &path));
    let can_be_set = config.protection_error.is_none() && runtime::is_usable(theirs);
    compare(theirs, ours, can_be_set, config)
}

/// Compares the two runtimes. `ours` is the runtime that nri-runc finds, `None` if unknown.
/// `can_be_set`: the operator could set `theirs`.
fn compare(
    theirs: &str,
    ours: Option<Result<PathBuf>>,
    can_be_set: bool,
    config: &Config,
) -> Result<Option<String>> {
    let setting = || format!("set runtime = \"{theirs}\" in {}", config.usual_file());
    let is_same = match ours {
        Some(Ok(ours)) => is_same(theirs, &ours),
        Some(Err(error)) if can_be_set => {
            return Err(Error::new(error.why())
                .hint(format!("the engine uses {theirs}: {}, then install again", setting())));
        }
        Some(Err(_)) | None => theirs == "runc" || theirs.ends_with("/runc"),
    };
    Ok((!is_same).then(|| {
        format!("the default runtime so far is {theirs}: to keep using it, {}", setting())
    }))
}

/// Whether the engine's runtime is the same file under the same name, or, if `theirs` has no path, has the same
/// name. The name matters, because crun chooses its mode by it.
fn is_same(theirs: &str, ours: &Path) -> bool {
    let is_called_alike = ours.file_name() == Path::new(theirs).file_name();
    if !theirs.contains('/') || !is_called_alike {
        return is_called_alike;
    }
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(Path::new(theirs)) == real(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_different_runtime_is_noted_with_the_setting_that_keeps_it() {
        let found = |path: &str| Some(Ok(PathBuf::from(path)));
        for (theirs, ours) in [
            ("/opt/own/runc", found("/usr/bin/runc")),
            ("/usr/libexec/crio/crun", found("/usr/bin/runc")),
            ("crun", found("/usr/bin/runc")),
            ("crun", None),
            ("/usr/bin/crun", None),
            ("/usr/bin/krun", found("/usr/bin/crun")),
        ] {
            let note = compare(theirs, ours, true, &Config::default()).unwrap().unwrap();
            assert!(note.contains(&format!("set runtime = \"{theirs}\" in /etc")), "{note}");
        }
    }

    #[test]
    fn an_unchanged_runtime_needs_no_note() {
        let found = |path: &str| Some(Ok(PathBuf::from(path)));
        for (theirs, ours) in [
            ("/opt/own/runc", found("/opt/own/runc")),
            ("runc", found("/usr/sbin/runc")),
            ("crun", found("/usr/bin/crun")),
            ("runc", None),
            ("/usr/bin/runc", None),
            ("runc", Some(Err(Error::new("nothing was found")))),
        ] {
            assert_eq!(compare(theirs, ours, false, &Config::default()).unwrap(), None, "{theirs}");
        }
    }

    #[test]
    fn without_a_runtime_the_error_names_the_engines_runtime() {
        let nothing = Some(Err(Error::new("no real runtime was found").hint("another hint")));
        let refusal =
            compare("/opt/own/runc", nothing, true, &Config::default()).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "no real runtime was found (the engine uses /opt/own/runc: set runtime = \
             \"/opt/own/runc\" in /etc/nri-runc/config.toml, then install again)"
        );
    }
}
