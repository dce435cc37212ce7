// SPDX-License-Identifier: Apache-2.0
//! The order of requests to one plugin: a limited number are in progress, the others wait.
//!
//! There are four ranks, each in order of arrival: later events of an existing container go first,
//! then creations, then new pods, then notifications of the extension. So a burst of creations
//! finishes container by container. If requests were sent in order of arrival, the second event of
//! the first container would wait for the first event of the last one, and all would time out
//! together.
//!
//! Two rules limit that. An event never overtakes an older one of the same container, or of its pod. And no request
//! starves: after [`OVERTAKEN`] consecutive turns that overtook the oldest request of a lower rank, that one is next.
//!
//! A creation or new pod is refused ([`Busy`]) as soon as its caller is expected to stop waiting
//! before its turn; the estimate uses the requests before it and the plugin's recent durations.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nri_transport::RequestSubject;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Consecutive turns that may overtake the oldest request of a lower rank.
const OVERTAKEN: u32 = 8;

/// Number of durations kept for the mean, and the number of durations that an estimate needs.
const SAMPLES: usize = 16;
const ENOUGH: usize = 4;

/// The priority of a request; a lower number goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// Any later event of a pod or container, and any request that has no other rank.
    UnderWay = 0,
    /// CreateContainer.
    Creation = 1,
    /// RunPodSandbox.
    NewPod = 2,
    /// A notification of the extension: no container waits for it.
    Notice = 3,
}

const RANKS: usize = 4;

impl Rank {
    /// Returns the rank of a request of this method.
    pub(super) fn of(method: &str) -> Self {
        match method {
            "RunPodSandbox" => Self::NewPod,
            "CreateContainer" => Self::Creation,
            "PostExec" | "UpdateResults" => Self::Notice,
            _ => Self::UnderWay,
        }
    }
}

/// The refusal of a turn that would come too late, because the plugin is too busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy {
    ahead: usize,
    takes: Duration,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ahead, millis) = (self.ahead, self.takes.as_millis());
        write!(
            f,
            "already has {ahead} queued requests of {millis} ms each, which takes longer than a request may wait"
        )
    }
}

/// The turns of one plugin.
#[derive(Debug)]
pub(super) struct Turns(Arc<Mutex<TurnState>>);

#[derive(Debug)]
struct TurnState {
    concurrency: usize,
    in_hand: usize,
    waiting: [VecDeque<WaitingRequest>; RANKS],
    /// For each rank, the number of requests to this plugin that one creation or pod of that rank
    /// still causes.
    weights: [usize; RANKS],
    arrivals: u64,
    overtaken: u32,
    samples: VecDeque<Duration>,
}

#[derive(Debug)]
struct WaitingRequest {
    arrival: u64,
    pod: String,
    container: String,
    is_event: bool,
    until: Option<Instant>,
    grant: oneshot::Sender<Result<Turn, Busy>>,
}

/// A turn, which ends on drop.
#[derive(Debug)]
pub(super) struct Turn {
    state: Option<Arc<Mutex<TurnState>>>,
    begun: Instant,
    /// Whether the turn's duration is a sample for the mean.
    is_event: bool,
}

impl Turns {
    /// Creates turns for this many concurrent requests.
    pub(super) fn new(concurrency: u32) -> Self {
        Self(Arc::new(Mutex::new(TurnState {
            concurrency: usize::try_from(concurrency).unwrap_or(1).max(1),
            in_hand: 0,
            waiting: Default::default(),
            weights: [1; RANKS],
            arrivals: 0,
            overtaken: 0,
            samples: VecDeque::with_capacity(SAMPLES),
        })))
    }

    /// Sets the number of concurrent requests from now on.
    pub(super) fn set_concurrency(&self, concurrency: u32) {
        let mut state = lock(&self.0);
        state.concurrency = usize::try_from(concurrency).unwrap_or(1).max(1);
        state.grant(&self.0);
    }

    /// Sets how many requests a creation and a new pod cause, by these subscriptions of the plugin.
    pub(super) fn weigh(&self, creation: bool, post_creation: bool) {
        let of_creation = 1 + usize::from(post_creation);
        let of_pod = 1 + if creation { of_creation } else { 0 };
        lock(&self.0).weights = [1, of_creation, of_pod, 1];
    }

    /// Waits for a turn; with `until`, fails as soon as the turn is expected to come later. Only a request that is
    /// about no single pod, such as Synchronize, has no subject.
    ///
    /// # Errors
    /// Fails if the requests before it would take too long; the error has their number.
    pub(super) async fn acquire(
        &self,
        rank: Rank,
        subject: Option<RequestSubject<'_>>,
        until: Option<Instant>,
    ) -> Result<Turn, Busy> {
        let is_event = subject.is_some();
        let RequestSubject { pod, container } = subject.unwrap_or_default();
        let granted = {
            let mut state = lock(&self.0);
            if state.in_hand < state.concurrency && state.waiting.iter().all(VecDeque::is_empty) {
                state.in_hand += 1;
                return Ok(Turn::begin(&self.0, is_event));
            }
            let (grant, granted) = oneshot::channel();
            state.arrivals += 1;
            let (pod, container) = (pod.to_owned(), container.to_owned());
            let arrival = state.arrivals;
            let waiting = WaitingRequest { arrival, pod, container, is_event, until, grant };
            state.waiting[rank as usize].push_back(waiting);
            state.reject_late();
            granted
        };
        // Never used: a waiting request is granted or rejected before its sender is dropped.
        let nobody = Busy { ahead: 0, takes: Duration::ZERO };
        granted.await.unwrap_or(Err(nobody))
    }

    /// Whether no request has a turn or waits for one.
    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.0);
        state.in_hand == 0 && state.waiting.iter().all(VecDeque::is_empty)
    }

    /// Acquires every turn, so that the plugin stays idle.
    pub(super) async fn all(&self) -> Vec<Turn> {
        let concurrency = lock(&self.0).concurrency;
        let mut turns = Vec::with_capacity(concurrency);
        while turns.len() < concurrency {
            turns.extend(self.acquire(Rank::NewPod, None, None).await);
        }
        turns
    }
}

impl Turn {
    fn begin(state: &Arc<Mutex<TurnState>>, is_event: bool) -> Self {
        Self { state: Some(Arc::clone(state)), begun: Instant::now(), is_event }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(shared) = self.state.take() else { return };
        let mut state = lock(&shared);
        state.in_hand -= 1;
        if self.is_event {
            state.learn(self.begun.elapsed());
        }
        state.reject_late();
        state.grant(&shared);
    }
}

impl TurnState {
    /// Grants the free turns to the next requests.
    fn grant(&mut self, shared: &Arc<Mutex<Self>>) {
        while self.in_hand < self.concurrency
            && let Some(next) = self.next()
        {
            self.in_hand += 1;
            if let Err(Ok(mut turn)) = next.grant.send(Ok(Turn::begin(shared, next.is_event))) {
                // The request's caller is gone. The state is already locked here, so the turn must
                // not lock it when it is dropped.
                turn.state = None;
                self.in_hand -= 1;
            }
        }
    }

    fn learn(&mut self, took: Duration) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(took);
    }

    /// Returns the mean of the last turns, without the longest quarter: a single slow turn must not make callers fail.
    fn takes(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        sorted.truncate(sorted.len() - sorted.len().div_ceil(4));
        let count = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        sorted.iter().sum::<Duration>().checked_div(count).unwrap_or_default()
    }

    /// Rejects requests whose turn would come too late, and removes those whose caller is gone.
    fn reject_late(&mut self) {
        if self.waiting.iter().all(VecDeque::is_empty) {
            return;
        }
        let now = Instant::now();
        let (mut ahead, takes) = (self.in_hand, self.takes());
        let (concurrency, is_known) = (self.concurrency, self.samples.len() >= ENOUGH);
        for (queue, weight) in self.waiting.iter_mut().zip(self.weights) {
            let (mut kept, all) = (VecDeque::with_capacity(queue.len()), std::mem::take(queue));
            for waiting in all.into_iter().filter(|waiting| !waiting.grant.is_closed()) {
                let rounds = u32::try_from((ahead + 1).div_ceil(concurrency)).unwrap_or(u32::MAX);
                let is_late = |until| now + takes.saturating_mul(rounds) > until;
                if is_known && waiting.until.is_some_and(is_late) {
                    let _caller_is_gone = waiting.grant.send(Err(Busy { ahead, takes }));
                    continue;
                }
                ahead += weight;
                kept.push_back(waiting);
            }
            *queue = kept;
        }
    }

    /// Removes and returns the next request.
    fn next(&mut self) -> Option<WaitingRequest> {
        let rank = self.waiting.iter().position(|queue| !queue.is_empty())?;
        let lower = rank + 1..RANKS;
        let fronts =
            lower.clone().filter_map(|low| Some((self.waiting[low].front()?.arrival, low)));
        let Some((oldest, oldest_rank)) = fronts.min() else {
            self.overtaken = 0;
            return self.waiting[rank].pop_front();
        };
        if self.overtaken >= OVERTAKEN {
            self.overtaken = 0;
            return self.waiting[oldest_rank].pop_front();
        }
        let first = self.waiting[rank].front()?;
        let before = lower.filter(|low| *low != Rank::Notice as usize).filter_map(|low| {
            let at = self.waiting[low].iter().position(|other| first.must_follow(other))?;
            Some((self.waiting[low][at].arrival, low, at))
        });
        if let Some((arrival, low, at)) = before.min() {
            if arrival == oldest {
                self.overtaken = 0;
            }
            return self.waiting[low].remove(at);
        }
        if oldest < first.arrival {
            self.overtaken += 1;
        }
        self.waiting[rank].pop_front()
    }
}

impl WaitingRequest {
    /// Whether `other` is an older request about the same container or its pod, or, if this request is about a pod,
    /// about any of its containers.
    fn must_follow(&self, other: &Self) -> bool {
        let is_about_pod = self.container.is_empty() || other.container.is_empty();
        other.arrival < self.arrival
            && !self.pod.is_empty()
            && other.pod == self.pod
            && (is_about_pod || other.container == self.container)
    }
}

fn lock(state: &Mutex<TurnState>) -> MutexGuard<'_, TurnState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deadline of a creation's caller, and the plugins that the creation skipped because they were busy.
struct CallerDeadline {
    until: Instant,
    busy: RefCell<Vec<(String, Busy)>>,
}

tokio::task_local! {
    static CALLER_DEADLINE: CallerDeadline;
}

/// Runs `work` for a caller that waits until this deadline: a creation or new pod fails as soon as its
/// turn at a plugin is expected to come later.
pub(crate) async fn with_caller_deadline<T>(until: Instant, work: impl Future<Output = T>) -> T {
    CALLER_DEADLINE.scope(CallerDeadline { until, busy: RefCell::default() }, work).await
}

/// Returns the plugins that were too busy to be asked for the current caller.
pub(crate) fn busy_plugins() -> Vec<String> {
    let names = |deadline: &CallerDeadline| {
        deadline.busy.borrow().iter().map(|(plugin, _)| plugin.clone()).collect()
    };
    CALLER_DEADLINE.try_with(names).unwrap_or_default()
}

/// Returns the time at which the current caller stops waiting.
pub(crate) fn caller_deadline() -> Option<Instant> {
    CALLER_DEADLINE.try_with(|deadline| deadline.until).ok()
}

/// Returns the earlier refusal if `plugin` was too busy for this caller: it may have missed the caller's pod.
pub(super) fn was_too_busy(plugin: &str) -> Option<Busy> {
    let found = |deadline: &CallerDeadline| {
        let busy = deadline.busy.borrow();
        busy.iter().find(|(name, _)| name == plugin).map(|(_, busy)| *busy)
    };
    CALLER_DEADLINE.try_with(found).ok().flatten()
}

/// Records that `plugin` is too busy for this caller.
pub(super) fn note_too_busy(plugin: String, busy: Busy) {
    let _no_caller =
        CALLER_DEADLINE.try_with(|deadline| deadline.busy.borrow_mut().push((plugin, busy)));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    /// Waits for a turn in a task, and records `name` when the turn is granted.
    fn wait(
        turns: &Arc<Turns>,
        log: &Log,
        rank: Rank,
        subject: (&'static str, &'static str),
        name: &'static str,
    ) -> tokio::task::JoinHandle<()> {
        let (turns, log) = (Arc::clone(turns), Arc::clone(log));
        tokio::spawn(async move {
            let subject = Some(RequestSubject { pod: subject.0, container: subject.1 });
            let _turn = turns.acquire(rank, subject, None).await.unwrap();
            log.lock().unwrap().push(name);
        })
    }

    /// Returns the order in which requests get their turn if they arrive in the order of `waits`.
    async fn order_of(
        waits: &[(Rank, (&'static str, &'static str), &'static str)],
    ) -> Vec<&'static str> {
        let (turns, log) = (Arc::new(Turns::new(1)), Log::default());
        let first =
            turns.acquire(Rank::Creation, Some(RequestSubject::default()), None).await.unwrap();
        let mut tasks = Vec::new();
        for (rank, subject, name) in waits {
            tasks.push(wait(&turns, &log, *rank, *subject, name));
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        let log = log.lock().unwrap();
        log.clone()
    }

    #[tokio::test]
    async fn lifecycle_events_precede_creations_which_precede_pods() {
        let order = order_of(&[
            (Rank::NewPod, ("p3", ""), "run 3"),
            (Rank::NewPod, ("p4", ""), "run 4"),
            (Rank::Creation, ("p2", "c2"), "create 2"),
            (Rank::UnderWay, ("p1", "c1"), "post 1"),
            (Rank::Creation, ("p5", "c5"), "create 5"),
            (Rank::UnderWay, ("p0", "c0"), "start 0"),
        ]);
        assert_eq!(order.await, ["post 1", "start 0", "create 2", "create 5", "run 3", "run 4"]);
    }

    #[tokio::test]
    async fn an_event_never_overtakes_an_older_one_of_its_container() {
        let order = order_of(&[
            (Rank::Creation, ("p", "a"), "create a"),
            (Rank::Creation, ("p", "b"), "create b"),
            (Rank::UnderWay, ("p", "b"), "stop b"),
            (Rank::UnderWay, ("p", "c"), "post c"),
        ]);
        assert_eq!(order.await, ["create b", "stop b", "post c", "create a"]);
        let order = order_of(&[
            (Rank::NewPod, ("p", ""), "run p"),
            (Rank::NewPod, ("q", ""), "run q"),
            (Rank::Creation, ("q", "a"), "create a"),
            (Rank::UnderWay, ("q", ""), "remove q"),
        ]);
        assert_eq!(order.await, ["run q", "create a", "remove q", "run p"]);
    }

    #[tokio::test]
    async fn no_request_starves_while_others_never_end() {
        let turns = Arc::new(Turns::new(1));
        for rank in [Rank::Creation, Rank::NewPod] {
            let mut turn =
                turns.acquire(Rank::UnderWay, Some(RequestSubject::default()), None).await.unwrap();
            let log = Log::default();
            let waits = wait(&turns, &log, rank, ("p", ""), "it");
            tokio::task::yield_now().await;
            let mut before = 0;
            while log.lock().unwrap().is_empty() {
                // There is always another waiting request of a higher rank.
                let other = Arc::clone(&turns);
                let subject = Some(RequestSubject { pod: "q", container: "c" });
                let next = tokio::spawn(async move {
                    other.acquire(Rank::UnderWay, subject, None).await.unwrap()
                });
                tokio::task::yield_now().await;
                drop(turn);
                turn = next.await.unwrap();
                before += 1;
            }
            assert_eq!(before, OVERTAKEN + 1, "{rank:?}");
            drop(turn);
            waits.await.unwrap();
        }
    }

    /// Makes the plugin take `takes` for each of its first events.
    async fn taught(turns: &Turns, takes: Duration) {
        for _event in 0..ENOUGH {
            let turn =
                turns.acquire(Rank::Creation, Some(RequestSubject::default()), None).await.unwrap();
            lock(&turns.0).learn(takes);
            std::mem::forget(turn);
            lock(&turns.0).in_hand -= 1;
        }
    }

    #[tokio::test]
    async fn a_creation_that_cannot_be_answered_in_time_fails_at_once() {
        let turns = Turns::new(1);
        let takes = Duration::from_secs(200);
        taught(&turns, takes).await;
        turns.weigh(true, true);
        let until = Some(Instant::now() + 45 * takes);
        let _in_hand =
            turns.acquire(Rank::NewPod, Some(RequestSubject::default()), until).await.unwrap();
        let mut waiting = Vec::new();
        let mut refused = None;
        for _pod in 0..60 {
            let mut turn =
                Box::pin(turns.acquire(Rank::NewPod, Some(RequestSubject::default()), until));
            match tokio::time::timeout(Duration::ZERO, &mut turn).await {
                Err(_) => waiting.push(turn),
                Ok(turn) => refused = Some(turn.unwrap_err()),
            }
        }
        // A pod causes three requests. After the running request and 14 pods, the 15th pod gets turn 44, the last whole
        // one.
        assert_eq!(waiting.len(), 15);
        let said = refused.unwrap().to_string();
        assert!(said.contains("queued requests of 200000 ms each"), "{said}");
        // Past events are delivered however long it takes.
        let mut told =
            Box::pin(turns.acquire(Rank::UnderWay, Some(RequestSubject::default()), None));
        assert!(tokio::time::timeout(Duration::ZERO, &mut told).await.is_err());
    }

    #[tokio::test]
    async fn one_slow_request_does_not_raise_the_expected_duration() {
        let turns = Turns::new(1);
        taught(&turns, Duration::from_millis(10)).await;
        lock(&turns.0).learn(Duration::from_secs(20));
        assert_eq!(lock(&turns.0).takes(), Duration::from_millis(10));
        for _event in 0..SAMPLES {
            lock(&turns.0).learn(Duration::from_millis(30));
        }
        assert_eq!(lock(&turns.0).takes(), Duration::from_millis(30), "it has become slower");
    }

    #[tokio::test]
    async fn abandoned_requests_hold_no_turn() {
        let turns = Turns::new(2);
        let first = turns.acquire(Rank::Creation, None, None).await.unwrap();
        let second = turns.acquire(Rank::Creation, None, None).await.unwrap();
        for _caller in 0..5 {
            let gone = turns.acquire(Rank::Creation, None, None);
            assert!(tokio::time::timeout(Duration::from_millis(1), gone).await.is_err());
        }
        let mut granted = Box::pin(turns.acquire(Rank::Creation, None, None));
        assert!(tokio::time::timeout(Duration::ZERO, &mut granted).await.is_err());
        drop(first);
        // The granted turn is never used.
        drop(granted);
        drop(second);
        assert_eq!(turns.all().await.len(), 2);
        assert_eq!(lock(&turns.0).in_hand, 0);
    }

    #[tokio::test]
    async fn a_busy_plugin_is_reported_only_to_its_caller() {
        let busy = Busy { ahead: 3, takes: Duration::from_secs(1) };
        assert!(caller_deadline().is_none() && busy_plugins().is_empty());
        with_caller_deadline(Instant::now(), async {
            note_too_busy("10-a".to_owned(), busy);
            assert_eq!((was_too_busy("10-a"), was_too_busy("10-b")), (Some(busy), None));
            assert_eq!(busy_plugins(), ["10-a"]);
        })
        .await;
        assert!(was_too_busy("10-a").is_none() && busy_plugins().is_empty());
    }
}
