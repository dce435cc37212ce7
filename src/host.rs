// SPDX-License-Identifier: Apache-2.0
//! The two doors to the world that tests can move or break (decision D18).
//!
//! * Host paths: everything we read below `/proc`, `/sys/fs/cgroup`, an engine's state and so on
//!   goes through [`Host::path`], so that a test can lay a tree of files elsewhere.
//! * Side effects: each thing we do to a disk, a cgroup or another process passes a named
//!   [`Point`], where a test can make it fail, stall, or kill us.
//!
//! It never decides anything, and costs one comparison when nothing is set.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// A side effect, named so that a fault can be put right before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Wrapper: the question is about to be sent to the daemon.
    WrapperAsk,
    /// Wrapper: the verdict is here, nothing was put in place.
    WrapperVerdict,
    /// Wrapper: the patched document is in place, `EXEC` was not sent.
    WrapperCommitted,
    /// Wrapper: `EXEC` was sent, the real runtime does not run yet.
    WrapperExec,
    /// Daemon: a request was read, nobody was asked.
    DaemonAsked,
    /// Daemon: the state record of an incoming container is about to be written.
    DaemonRecord,
    /// Daemon: the plugins agreed, the patched document is about to be written.
    DaemonDocument,
    /// Daemon: everything is written, the verdict is about to be sent.
    DaemonVerdict,
    /// Daemon: the real runtime ended, its outcome is about to be recorded.
    DaemonSettle,
    /// Daemon: a container's record is about to be removed.
    DaemonForget,
    /// Daemon: a container's resources are about to be changed for a plugin.
    DaemonCgroup,
    /// Daemon: a container is about to be killed for a plugin.
    DaemonEvict,
}

/// Every point, for tests that enumerate them.
pub const POINTS: [Point; 12] = [
    Point::WrapperAsk,
    Point::WrapperVerdict,
    Point::WrapperCommitted,
    Point::WrapperExec,
    Point::DaemonAsked,
    Point::DaemonRecord,
    Point::DaemonDocument,
    Point::DaemonVerdict,
    Point::DaemonSettle,
    Point::DaemonForget,
    Point::DaemonCgroup,
    Point::DaemonEvict,
];

impl Point {
    /// The point's name in `[debug] fault`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WrapperAsk => "wrapper.ask",
            Self::WrapperVerdict => "wrapper.verdict",
            Self::WrapperCommitted => "wrapper.committed",
            Self::WrapperExec => "wrapper.exec",
            Self::DaemonAsked => "daemon.asked",
            Self::DaemonRecord => "daemon.record",
            Self::DaemonDocument => "daemon.document",
            Self::DaemonVerdict => "daemon.verdict",
            Self::DaemonSettle => "daemon.settle",
            Self::DaemonForget => "daemon.forget",
            Self::DaemonCgroup => "daemon.cgroup",
            Self::DaemonEvict => "daemon.evict",
        }
    }
}

/// What happens at a point that a test has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Fail,
    Stall,
}

/// The doors, as the configuration set them.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    fault: Option<(String, Fault)>,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), fault: None }
    }
}

impl Host {
    /// Doors with `root` in front of every host path and a fault such as `daemon.document:kill`
    /// (or `:fail`, `:stall`); both empty in production.
    pub fn new(root: &str, fault: &str) -> Self {
        let root = if root.is_empty() { PathBuf::from("/") } else { PathBuf::from(root) };
        let fault = fault.split_once(':').and_then(|(name, kind)| {
            let kind = match kind {
                "kill" => Fault::Kill,
                "fail" => Fault::Fail,
                "stall" => Fault::Stall,
                _ => return None,
            };
            Some((name.to_owned(), kind))
        });
        Self { root, fault }
    }

    /// Where the absolute host path `path` is to be found. One that lies below the root already,
    /// as those that are derived from a test's own bundle, is not moved twice.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if path.starts_with(&self.root) {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Called right before the side effect `point`.
    ///
    /// # Errors
    /// Only when a test asked for a failure here.
    pub fn point(&self, point: Point) -> Result<()> {
        let Some((name, fault)) = &self.fault else { return Ok(()) };
        if name != point.name() {
            return Ok(());
        }
        match fault {
            Fault::Fail => return Err(Error::new(format!("fault injected at {name}"))),
            Fault::Stall => std::thread::sleep(Duration::from_secs(600)),
            Fault::Kill => {
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_moves_absolute_paths_below_it() {
        assert_eq!(Host::new("/tmp/x", "").path("/proc/1/stat"), Path::new("/tmp/x/proc/1/stat"));
        assert_eq!(Host::new("/tmp/x", "").path("/tmp/x/run/c"), Path::new("/tmp/x/run/c"));
        assert_eq!(Host::default().path("/proc"), Path::new("/proc"));
    }

    #[test]
    fn a_fault_strikes_only_at_its_point() {
        let host = Host::new("", "daemon.document:fail");
        assert!(host.point(Point::DaemonRecord).is_ok());
        assert!(host.point(Point::DaemonDocument).is_err());
    }

    #[test]
    fn an_unknown_fault_is_no_fault() {
        for point in POINTS {
            assert!(Host::new("", "daemon.document:explode").point(point).is_ok());
        }
    }
}
