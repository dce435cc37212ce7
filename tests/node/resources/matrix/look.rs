// SPDX-License-Identifier: Apache-2.0
//! Reads the actual values of a running container: its cgroup's files, `/proc`, and its view
//! inside.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Ok, or the value that was found instead.
pub(super) type Look = Result<(), String>;

/// The cgroup version that has the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    V1,
    V2,
}

impl Layout {
    /// The version on this machine.
    pub(super) fn here() -> Option<Self> {
        let is_there = |file: &str| Path::new("/sys/fs/cgroup").join(file).exists();
        match () {
            () if is_there("memory/cgroup.procs") => Some(Self::V1),
            () if is_there("cgroup.controllers") => Some(Self::V2),
            () => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

/// The output of a program, both streams.
pub(super) fn output(program: &Path, words: &[&str]) -> String {
    match Command::new(program).args(words).output() {
        Ok(output) => {
            let printed = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&printed).into_owned()
        }
        Err(error) => format!("{}: {error}", program.display()),
    }
}

/// A container.
pub(super) struct Running {
    pub(super) pid: i32,
    pub(super) runtime: PathBuf,
    /// The host's folder.
    pub(super) dir: PathBuf,
}

impl Running {
    /// A file of its process.
    pub(super) fn proc(&self, file: &str) -> String {
        let bytes = std::fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    /// The target of a link of its process.
    pub(super) fn link(&self, file: &str) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/{file}", self.pid)).unwrap_or_default()
    }

    /// Its cgroup in the hierarchy of a controller.
    pub(super) fn cgroup(&self, controller: &str) -> String {
        let all = self.proc("cgroup");
        let mut found = all.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == controller).then(|| path.to_owned())
        });
        found.next().unwrap_or_default()
    }

    /// A file of its cgroup; on v2 the controller is empty.
    pub(super) fn file(&self, controller: &str, file: &str) -> String {
        let path = format!("/sys/fs/cgroup/{controller}{}/{file}", self.cgroup(controller));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| format!("{file}: {error}"));
        text.trim_end().to_owned()
    }

    /// The output of a script in a later process, both streams.
    pub(super) fn inside(&self, script: &str) -> String {
        let root = self.dir.join("root").display().to_string();
        let words = ["--root", &root, "exec", "c1", "/bin/sh", "-c", script];
        output(&self.runtime, &words).trim_end().to_owned()
    }

    /// The runtime's state of it.
    pub(super) fn state(&self) -> String {
        let root = self.dir.join("root").display().to_string();
        // crun 1.28 escapes slashes.
        output(&self.runtime, &["--root", &root, "state", "c1"]).replace("\\/", "/")
    }

    /// A field of `/proc/PID/stat`, by its number in proc(5).
    pub(super) fn stat(&self, number: usize) -> String {
        let stat = self.proc("stat");
        let after = stat.rsplit_once(") ").map(|(_, after)| after).unwrap_or_default();
        after.split(' ').nth(number - 3).unwrap_or_default().to_owned()
    }
}

/// Checks that the value equals `wanted`.
pub(super) fn is(seen: impl AsRef<str>, wanted: &str) -> Look {
    let seen = seen.as_ref();
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?}, not {wanted:?}")) }
}

/// Checks that the text contains every `wanted`.
pub(super) fn has(seen: impl AsRef<str>, wanted: &[&str]) -> Look {
    let seen = seen.as_ref();
    match wanted.iter().find(|wanted| !seen.contains(*wanted)) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing:?} in {seen:?}")),
    }
}
