// SPDX-License-Identifier: Apache-2.0
//! The progress of a plugin's connection, and its open requests, which determine readiness.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::context::RuntimeHandle;

/// The progress of a plugin's current connection.
#[derive(Debug, Clone, Default)]
pub(crate) enum Phase {
    #[default]
    Disconnected,
    Registered,
    Synchronized(RuntimeHandle),
}

/// The state that the consecutive connections of one plugin share.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) phase: watch::Sender<Phase>,
    /// Whether the plugin must end.
    pub(crate) ending: watch::Sender<bool>,
    deadlines: Mutex<Deadlines>,
    /// Whether the plugin subscribed to events that the runtime may not support, and the runtime
    /// has not yet accepted them by sending Synchronize.
    pub(crate) in_doubt: AtomicBool,
}

#[derive(Debug, Default)]
struct Deadlines {
    next: u64,
    /// Deadlines of the open requests, by a number assigned here.
    open: HashMap<u64, Option<Instant>>,
    /// Whether the last answer came too late.
    was_late: bool,
}

impl Deadlines {
    fn is_over(deadline: Instant) -> bool {
        // ttRPC drops a handler at its own deadline, which is a little earlier than this one.
        deadline <= Instant::now() + Duration::from_millis(1)
    }
}

impl Progress {
    fn deadlines(&self) -> MutexGuard<'_, Deadlines> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request as open until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>, deadline: Option<Instant>) -> OpenRequest {
        let mut deadlines = self.deadlines();
        deadlines.next += 1;
        let number = deadlines.next;
        deadlines.open.insert(number, deadline);
        OpenRequest { progress: Arc::clone(self), number }
    }

    /// Whether the plugin is synchronized and responsive: the last request was answered in time,
    /// and no open one is past its deadline.
    pub(crate) fn is_ready(&self) -> bool {
        let is_synchronized = matches!(*self.phase.borrow(), Phase::Synchronized(_));
        let deadlines = self.deadlines();
        let is_late = deadlines.was_late
            || deadlines.open.values().flatten().any(|deadline| Deadlines::is_over(*deadline));
        is_synchronized && !is_late
    }

    /// Returns the runtime of the current connection, once the plugin is synchronized.
    pub(crate) fn runtime(&self) -> Option<RuntimeHandle> {
        match &*self.phase.borrow() {
            Phase::Synchronized(runtime) => Some(runtime.clone()),
            Phase::Disconnected | Phase::Registered => None,
        }
    }
}

pub(crate) async fn until<T>(watched: &watch::Sender<T>, is_wanted: impl FnMut(&T) -> bool) {
    let mut changes = watched.subscribe();
    // Waiting cannot fail, because the borrowed sender outlives it.
    let _value = changes.wait_for(is_wanted).await;
}

#[derive(Debug)]
pub(crate) struct OpenRequest {
    progress: Arc<Progress>,
    number: u64,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut deadlines = self.progress.deadlines();
        let deadline = deadlines.open.remove(&self.number).flatten();
        deadlines.was_late = deadline.is_some_and(Deadlines::is_over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_overdue_request_ends_readiness_until_a_timely_one() {
        let progress = Arc::new(Progress::default());
        assert!(!progress.is_ready(), "it is not connected");
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let (runtime, _connection) = RuntimeHandle::split(ours).unwrap();
        progress.phase.send_replace(Phase::Synchronized(runtime));
        let far = Instant::now() + Duration::from_secs(3600);
        let in_time = progress.begin(Some(far));
        assert!(progress.is_ready());
        let overdue = progress.begin(Some(Instant::now()));
        assert!(!progress.is_ready(), "one is open beyond its deadline");
        drop(in_time);
        assert!(!progress.is_ready());
        drop(overdue);
        assert!(!progress.is_ready(), "the last one was answered too late");
        drop(progress.begin(None));
        assert!(progress.is_ready());
    }
}
