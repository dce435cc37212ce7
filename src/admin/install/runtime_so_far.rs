// SPDX-License-Identifier: Apache-2.0
//! The runtime that an engine's containers have used so far, and the one that they would get behind
//! nri-runc.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What to note of `theirs`, a path or a name, where it is not `ours`, the runtime that nri-runc
/// finds in that engine's environment (`None` where that is not known).
///
/// # Errors
/// Fails where nri-runc finds none: no container could be created.
pub(super) fn note(theirs: &str, ours: Option<Result<PathBuf>>) -> Result<Option<String>> {
    let is_same = match ours {
        Some(Ok(ours)) => is_same(theirs, &ours),
        Some(Err(error)) if theirs.starts_with('/') => {
            return Err(Error::new(error.why()).hint(format!(
                "the engine uses {theirs}: {}, then install again",
                setting(theirs)
            )));
        }
        Some(Err(_)) | None => theirs == "runc" || theirs.ends_with("/runc"),
    };
    Ok((!is_same)
        .then(|| format!("containers used {theirs} so far: to keep using it, {}", setting(theirs))))
}

fn setting(runtime: &str) -> String {
    format!("set runtime = \"{runtime}\" in /etc/nri-runc/config.toml")
}

/// Whether the engine's word for its runtime is this program.
fn is_same(theirs: &str, ours: &Path) -> bool {
    if !theirs.contains('/') {
        return ours.file_name().is_some_and(|name| name == theirs);
    }
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(Path::new(theirs)) == real(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_noted_with_the_line_that_keeps_it() {
        let found = |path: &str| Some(Ok(PathBuf::from(path)));
        for (theirs, ours) in [
            ("/opt/own/runc", found("/usr/bin/runc")),
            ("/usr/libexec/crio/crun", found("/usr/bin/runc")),
            ("crun", found("/usr/bin/runc")),
            ("crun", None),
            ("/usr/bin/crun", None),
        ] {
            let note = note(theirs, ours).unwrap().unwrap();
            assert!(note.contains(&format!("set runtime = \"{theirs}\" in /etc")), "{note}");
        }
    }

    #[test]
    fn the_same_program_needs_no_note() {
        let found = |path: &str| Some(Ok(PathBuf::from(path)));
        for (theirs, ours) in [
            ("/opt/own/runc", found("/opt/own/runc")),
            ("runc", found("/usr/sbin/runc")),
            ("crun", found("/usr/bin/crun")),
            ("runc", None),
            ("/usr/bin/runc", None),
            ("runc", Some(Err(Error::new("nothing was found")))),
        ] {
            assert_eq!(note(theirs, ours).unwrap(), None, "{theirs}");
        }
    }

    #[test]
    fn where_no_runtime_is_found_nothing_is_registered() {
        let nothing = Some(Err(Error::new("no real runtime was found").hint("another hint")));
        let refusal = note("/opt/own/runc", nothing).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "no real runtime was found (the engine uses /opt/own/runc: set runtime = \
             \"/opt/own/runc\" in /etc/nri-runc/config.toml, then install again)"
        );
    }
}
