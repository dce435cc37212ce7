// SPDX-License-Identifier: Apache-2.0
//! Access to the host that tests can redirect or make fail (decision D18).
//!
//! * Host paths: files below `/proc`, `/sys/fs/cgroup`, an engine's state and so on are opened
//!   through [`Host::path`], so that a test can use another tree of files.
//! * Side effects: changes of a disk, a cgroup or another process pass a named [`Point`], where a
//!   test can make them fail or stall, or kill this process. Only builds with the feature
//!   `faults` contain this code; the packaged programs do not.
//!
//! This module decides nothing, and costs one comparison when no fault or root is set.

#[cfg(feature = "faults")]
mod faults;

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::named::{Named, named};

named! {
    /// A side effect, named in `[debug] fault` so that a fault can be inserted right before it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Point {
        /// Wrapper: the request is about to be sent to the daemon.
        WrapperAsk => "wrapper.ask",
        /// Wrapper: the verdict has been received, but no document is in place.
        WrapperVerdict => "wrapper.verdict",
        /// Wrapper: the patched document is in place, but `EXEC` has not been sent.
        WrapperCommitted => "wrapper.committed",
        /// Wrapper: `EXEC` has been sent, but the real runtime does not run yet.
        WrapperExec => "wrapper.exec",
        /// Wrapper: the daemon is unavailable, and a note is about to be written.
        WrapperBypass => "wrapper.bypass",
        /// Wrapper: the note has been written, but the real runtime does not run yet.
        WrapperBypassed => "wrapper.bypassed",
        /// Daemon: it is detached from its starter, but has opened nothing.
        DaemonStart => "daemon.start",
        /// Daemon: a request has been read, but no plugin has been asked.
        DaemonAsked => "daemon.asked",
        /// Daemon: the record of a pod is about to be written.
        DaemonPod => "daemon.pod",
        /// Daemon: a pod is on record as running, but no plugin has been notified.
        DaemonAnnounce => "daemon.announce",
        /// Daemon: the first record of a container is about to be written, or a `start` to be noted.
        DaemonRecord => "daemon.record",
        /// Daemon: the record has been written, and the plugins are about to be asked.
        DaemonPlugins => "daemon.plugins",
        /// Daemon: the plugins have agreed, but their changes are not on record.
        DaemonDecided => "daemon.decided",
        /// Daemon: the changes are on record, and other containers are about to be updated.
        DaemonOthers => "daemon.others",
        /// Daemon: a copy of the engine's document is about to be stored.
        DaemonDocument => "daemon.document",
        /// Daemon: the copy is stored, and the patched document is about to be written.
        DaemonKept => "daemon.kept",
        /// Daemon: the patched document is written, but not on record.
        DaemonWritten => "daemon.written",
        /// Daemon: everything has been written, and the verdict is about to be sent.
        DaemonVerdict => "daemon.verdict",
        /// Daemon: the verdict has been sent, but `EXEC` has not been read.
        DaemonSaid => "daemon.said",
        /// Daemon: `EXEC` has been read, but is not on record.
        DaemonExec => "daemon.exec",
        /// Daemon: the real runtime has ended, and its outcome is about to be recorded.
        DaemonSettle => "daemon.settle",
        /// Daemon: the outcome is on record, but plugins have not been notified.
        DaemonSettled => "daemon.settled",
        /// Daemon: an update has been carried out, and is about to be recorded.
        DaemonUpdated => "daemon.updated",
        /// Daemon: a pod has been resized, and its new limits are about to be recorded.
        DaemonResize => "daemon.resize",
        /// Daemon: the new limits are on record, but plugins have not been notified.
        DaemonResized => "daemon.resized",
        /// Daemon: the runtime has deleted a container that its engine keeps, and this is about to
        /// be recorded.
        DaemonDeleted => "daemon.deleted",
        /// Daemon: the end of a container is about to be recorded.
        DaemonStop => "daemon.stop",
        /// Daemon: the end of a container is on record, but plugins have not been notified.
        DaemonStopped => "daemon.stopped",
        /// Daemon: the engine's document is about to be restored.
        DaemonRestore => "daemon.restore",
        /// Daemon: a container's record is about to be removed.
        DaemonForget => "daemon.forget",
        /// Daemon: a pod without containers is about to be stopped.
        DaemonPodStop => "daemon.pod-stop",
        /// Daemon: a pod's record is about to be removed.
        DaemonPodForget => "daemon.pod-forget",
        /// Daemon: a container's resources are about to be changed for a plugin.
        DaemonCgroup => "daemon.cgroup",
        /// Daemon: a container's resources are changed, but not on record.
        DaemonCgroupDone => "daemon.cgroup-done",
        /// Daemon: the program that may replace the daemon's is about to be queried.
        DaemonReexecProbe => "daemon.reexec-probe",
        /// Daemon: it is idle, and the state for the next program is about to be written.
        DaemonReexecHeld => "daemon.reexec-held",
        /// Daemon: the state for the next program is written.
        DaemonReexecState => "daemon.reexec-state",
        /// Daemon: the next program is about to be executed.
        DaemonReexecExec => "daemon.reexec-exec",
        /// Daemon: it is the next program, and has only read the state.
        DaemonReexecBegun => "daemon.reexec-begun",
        /// Daemon: it has taken over plugins and records, but has accepted no wrapper.
        DaemonReexecTaken => "daemon.reexec-taken",
        /// Daemon: a container is about to be killed for a plugin.
        DaemonEvict => "daemon.evict",
        /// Daemon: a plugin with the identity of a connected one is about to be synchronized.
        DaemonTakeover => "daemon.takeover",
        /// Daemon: the plugin that takes over is synchronized, and the events that it missed meanwhile
        /// are about to be sent.
        DaemonTakeoverEvents => "daemon.takeover-events",
        /// Daemon: the plugin that takes over has caught up, and is about to replace the connected one.
        DaemonTakeoverPlace => "daemon.takeover-place",
        /// Daemon: the old plugin is replaced, but its requests are not answered yet.
        DaemonTakeoverDone => "daemon.takeover-done",
        /// Daemon: the old plugin's requests are answered, and Shutdown is about to be sent.
        DaemonTakeoverShutdown => "daemon.takeover-shutdown",
    }
}

/// Every point, for tests that try all of them.
pub const POINTS: &[Point] = Point::ALL;

/// Host access as configured.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    #[cfg(feature = "faults")]
    faults: faults::Faults,
}

impl Default for Host {
    fn default() -> Self {
        Self::new("", "")
    }
}

impl Host {
    /// Creates host access with `root` before every host path, and a fault such as
    /// `daemon.document:kill` (or `:fail`, `:stall`, `:panic`); both are empty in production.
    /// `@FILE` names a file with one fault, which applies once, after as many passes as it states
    /// (`daemon.pod:kill:1`: one); if the file contains `trace`, each pass is written to `FILE.trace`.
    #[cfg_attr(not(feature = "faults"), expect(unused_variables, reason = "no test"))]
    pub fn new(root: &str, fault: &str) -> Self {
        Self {
            root: if root.is_empty() { PathBuf::from("/") } else { PathBuf::from(root) },
            #[cfg(feature = "faults")]
            faults: faults::Faults::read(fault),
        }
    }

    /// Returns the location of the absolute host path `path`. A path that is already below the
    /// root, such as one of a test's bundle, is unchanged.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if path.starts_with(&self.root) {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Called immediately before the side effect `point`.
    ///
    /// # Errors
    /// Fails only if a test requested a failure here.
    #[cfg(feature = "faults")]
    pub fn point(&self, point: Point) -> Result<()> {
        self.faults.strike(point.name())
    }

    /// Called immediately before the side effect `point`; does nothing except in test builds.
    ///
    /// # Errors
    /// Never fails; test builds can fail here.
    #[cfg(not(feature = "faults"))]
    #[inline]
    pub fn point(&self, _point: Point) -> Result<()> {
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
    #[cfg(feature = "faults")]
    fn a_fault_has_an_effect_only_at_its_point() {
        let host = Host::new("", "daemon.document:fail");
        assert!(host.point(Point::DaemonRecord).is_ok());
        assert!(host.point(Point::DaemonDocument).is_err());
    }

    #[test]
    fn an_unknown_fault_has_no_effect() {
        for point in POINTS {
            assert!(Host::new("", "daemon.document:explode").point(*point).is_ok());
        }
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_fault_from_a_file_triggers_once_at_the_named_pass() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("fault");
        let host = Host::new("", &format!("@{}", file.display()));
        assert!(host.point(Point::DaemonPod).is_ok());
        crate::files::replace(&file, b"daemon.pod:fail:1").unwrap();
        let passings = [Point::DaemonRecord, Point::DaemonPod, Point::DaemonPod, Point::DaemonPod];
        let struck: Vec<bool> = passings.map(|point| host.point(point).is_err()).into();
        assert_eq!(struck, [false, false, true, false]);
    }
}
