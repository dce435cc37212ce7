// SPDX-License-Identifier: Apache-2.0
//! The queue of lines and the thread that writes them. The daemon's loop only queues lines: it
//! never waits for a disk or for the journal.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{error, info};

use crate::config::{AuditTarget, Config};
use crate::error::in_our_words;
use crate::limits;

use super::entry::{AuditAction, AuditEntry};
use super::file::RotatedFile;
use super::journal::{self, Journal};
use super::line;

/// Interval at which the thread tries to report lost lines.
const RETRY: Duration = Duration::from_secs(5);

/// The daemon's handle of the audit log; without a target it drops entries.
#[derive(Debug, Default)]
pub(crate) struct AuditLog {
    queue: RefCell<Option<Queue>>,
    counts: Arc<AuditCounts>,
}

/// The counts of written and lost lines, and the current failure.
#[derive(Debug, Default)]
pub(crate) struct AuditCounts {
    written: AtomicU64,
    lost: AtomicU64,
    /// Lost lines that are not yet reported.
    untold: AtomicU64,
    queued_bytes: AtomicUsize,
    failure: Mutex<Option<String>>,
    /// Why the log cannot be written now.
    failing: Mutex<Option<String>>,
}

impl AuditCounts {
    /// Returns the number of written lines.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Returns the number of lost lines.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Returns the reason why the log cannot be written now, if any.
    pub(crate) fn failing(&self) -> Option<String> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_failing(&self, why: Option<String>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn note_lost(&self) {
        self.lost.fetch_add(1, Relaxed);
        self.untold.fetch_add(1, Relaxed);
    }
}

/// The queue to the thread. When it is dropped, the thread writes the queued lines and exits.
#[derive(Debug)]
struct Queue {
    orders: SyncSender<Order>,
    settings: Settings,
}

#[derive(Debug)]
enum Order {
    Write(Vec<u8>, Share),
    /// Asks for a response once all lines queued before it are written.
    Flush(oneshot::Sender<()>),
}

/// Which share of a log file a line may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    /// The share of lines about connections.
    Connections,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    target: AuditTarget,
    path: std::path::PathBuf,
    max_size: u64,
    max_files: u32,
}

impl AuditLog {
    /// Opens or closes the log as configured; if its settings are unchanged it stays open.
    pub(crate) fn apply(&self, config: &Config) {
        let settings = config.audit_target.map(|target| Settings {
            target,
            path: config.audit_path.clone(),
            max_size: config.audit_max_size,
            max_files: config.audit_max_files,
        });
        let mut queue = self.queue.borrow_mut();
        if queue.as_ref().map(|queue| &queue.settings) == settings.as_ref() {
            return;
        }
        // The old thread finishes its lines, perhaps at the same time as the new one writes; both
        // append whole lines.
        *queue = settings.and_then(|settings| start(settings, &self.counts));
    }

    /// Whether the log has a target.
    pub(crate) fn is_on(&self) -> bool {
        self.queue.borrow().is_some()
    }

    /// Returns the counts of written and lost lines.
    pub(crate) fn counts(&self) -> &AuditCounts {
        &self.counts
    }

    /// Queues an entry; counts its line as lost if the queue is full.
    pub(crate) fn record(&self, mut entry: AuditEntry) {
        let queue = self.queue.borrow();
        let Some(queue) = queue.as_ref() else { return };
        let share = match entry.action.is_about_connections() {
            true => Share::Connections,
            false => Share::All,
        };
        let bytes = queue.settings.message(&mut entry);
        let length = bytes.len();
        let queued = self.counts.queued_bytes.fetch_add(length, Relaxed);
        let is_queued = queued <= limits::AUDIT_QUEUE_BYTES
            && queue.orders.try_send(Order::Write(bytes, share)).is_ok();
        if !is_queued {
            self.counts.queued_bytes.fetch_sub(length, Relaxed);
            self.counts.note_lost();
        }
    }

    /// Waits until all queued lines are written, at most for `limit`; not if the queue is full.
    pub(crate) async fn flush(&self, limit: Duration) {
        let (done, written) = oneshot::channel();
        let sent = match self.queue.borrow().as_ref() {
            Some(queue) => queue.orders.try_send(Order::Flush(done)),
            None => return,
        };
        match sent {
            Ok(()) => drop(tokio::time::timeout(limit, written).await),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Takes the failure that `status` does not show yet, if any. A failure is recorded each time
    /// writing begins to fail.
    pub(crate) fn new_failure(&self) -> Option<String> {
        self.counts.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Settings {
    fn message(&self, entry: &mut AuditEntry) -> Vec<u8> {
        let mut line = line::of(entry);
        match self.target {
            AuditTarget::File => {
                line.push('\n');
                line.into_bytes()
            }
            AuditTarget::Journal => journal::datagram(entry, &line).into_bytes(),
        }
    }

    fn place(&self) -> String {
        match self.target {
            AuditTarget::File => self.path.display().to_string(),
            AuditTarget::Journal => "the journal".to_owned(),
        }
    }
}

fn start(settings: Settings, counts: &Arc<AuditCounts>) -> Option<Queue> {
    let (orders, receiver) = sync_channel(limits::AUDIT_QUEUE);
    let writer = Writer {
        sink: match settings.target {
            AuditTarget::File => {
                let Settings { path, max_size, max_files, .. } = &settings;
                Sink::File(RotatedFile::new(path, *max_size, *max_files))
            }
            AuditTarget::Journal => Sink::Journal(Journal::default()),
        },
        settings: settings.clone(),
        counts: Arc::clone(counts),
        is_failing: false,
        beyond_share: 0,
    };
    let thread = std::thread::Builder::new().name("audit".to_owned());
    match thread.spawn(move || writer.run(&receiver)) {
        Ok(_runs_until_the_queue_is_dropped) => Some(Queue { orders, settings }),
        Err(error) => {
            counts.fail(&format!("the audit log cannot be written: {}", in_our_words(&error)));
            None
        }
    }
}

impl AuditCounts {
    fn fail(&self, what: &str) {
        error!("{what}");
        self.set_failing(Some(what.to_owned()));
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
    }
}

#[derive(Debug)]
enum Sink {
    File(RotatedFile),
    Journal(Journal),
}

impl Sink {
    /// Writes a line; returns false if it is about a connection and was dropped.
    fn write(&mut self, bytes: &[u8], share: Share) -> io::Result<bool> {
        match (self, share) {
            (Self::File(file), Share::Connections) => file.append_about_connection(bytes),
            (Self::File(file), Share::All) => file.append(bytes).map(|()| true),
            // The journal has its own limit of lines, so connections need no share.
            (Self::Journal(journal), _) => journal.send(bytes).map(|()| true),
        }
    }
}

#[derive(Debug)]
struct Writer {
    sink: Sink,
    settings: Settings,
    counts: Arc<AuditCounts>,
    is_failing: bool,
    /// Dropped lines about connections that are not yet reported.
    beyond_share: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Yes,
    No,
    /// Not written: see [`RotatedFile::append_about_connection`].
    BeyondShare,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(RETRY) {
                Ok(Order::Write(bytes, share)) => {
                    self.counts.queued_bytes.fetch_sub(bytes.len(), Relaxed);
                    self.report_lost();
                    match self.write(&bytes, share) {
                        Written::Yes => self.note_written(share),
                        Written::No => self.counts.note_lost(),
                        Written::BeyondShare => {
                            self.counts.lost.fetch_add(1, Relaxed);
                            self.beyond_share += 1;
                        }
                    }
                }
                Ok(Order::Flush(done)) => {
                    self.report_lost();
                    let _nobody_waits = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.report_lost(),
                Err(RecvTimeoutError::Disconnected) => return self.report_lost(),
            }
        }
    }

    /// Writes a line with the number of lines that were lost before it.
    fn report_lost(&mut self) {
        let lost = self.counts.untold.swap(0, Relaxed);
        if lost == 0 {
            return;
        }
        let reason = format!("{lost} lines could not be written");
        let bytes = self.settings.message(&mut AuditEntry::new(AuditAction::Lost).because(&reason));
        if self.write(&bytes, Share::All) == Written::Yes {
            self.counts.written.fetch_add(1, Relaxed);
        } else {
            self.counts.untold.fetch_add(lost, Relaxed);
        }
    }

    /// Writes a line; logs the first failure, and the first success after it.
    fn write(&mut self, bytes: &[u8], share: Share) -> Written {
        match self.sink.write(bytes, share) {
            Ok(false) => Written::BeyondShare,
            Ok(true) => {
                if std::mem::take(&mut self.is_failing) {
                    info!("the audit log is written again");
                    self.counts.set_failing(None);
                }
                Written::Yes
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let (place, why) = (self.settings.place(), in_our_words(&error));
                    self.counts.fail(&format!(
                        "the audit log cannot be written to {place}: {why}; lost lines are counted"
                    ));
                }
                Written::No
            }
        }
    }

    /// Counts a written line. If lines about connections were dropped before, and this one fits
    /// again, reports how many were dropped.
    fn note_written(&mut self, share: Share) {
        self.counts.written.fetch_add(1, Relaxed);
        if share == Share::All || self.beyond_share == 0 {
            return;
        }
        let count = std::mem::take(&mut self.beyond_share);
        let reason = format!(
            "{count} lines about connections were dropped: they may use only a quarter of the file and never rotate it"
        );
        let bytes = self.settings.message(&mut AuditEntry::new(AuditAction::Lost).because(&reason));
        if self.write(&bytes, Share::All) == Written::Yes {
            self.counts.written.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &std::path::Path) -> Config {
        Config {
            audit_target: Some(AuditTarget::File),
            audit_path: path.to_owned(),
            ..Config::default()
        }
    }

    fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn entry(reason: &str) -> AuditEntry {
        AuditEntry::new(AuditAction::Skipped).because(reason)
    }

    const FLUSH: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn audit_entries_are_written_if_and_only_if_a_target_is_set() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let log = AuditLog::default();
        log.apply(&Config::default());
        log.record(entry("off"));
        log.flush(FLUSH).await;
        assert!(!log.is_on() && !path.exists());
        log.apply(&config(&path));
        (0..300).for_each(|number| log.record(entry(&number.to_string())));
        log.flush(FLUSH).await;
        let reasons: Vec<_> = lines(&path).iter().map(|line| line["reason"].clone()).collect();
        assert_eq!(reasons, (0..300).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!((log.counts().written(), log.counts().lost()), (300, 0));
        log.apply(&Config::default());
        assert!(!log.is_on(), "a reload may close it");
    }

    #[tokio::test]
    async fn a_failing_disk_is_reported_once_and_its_gap_is_a_line() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        std::fs::create_dir(&path).unwrap(); // A folder at the path refuses writes like a full disk, even to root.
        let log = AuditLog::default();
        log.apply(&config(&path));
        (0..7).for_each(|_| log.record(entry("lost")));
        log.flush(FLUSH).await;
        let failure = log.new_failure().unwrap();
        assert!(failure.contains(&path.display().to_string()), "{failure}");
        assert_eq!(log.new_failure(), None, "once");
        std::fs::remove_dir(&path).unwrap();
        log.record(entry("kept"));
        log.flush(FLUSH).await;
        let lines = lines(&path);
        assert_eq!(lines[0]["action"], "lost");
        assert_eq!(lines[0]["reason"], "7 lines could not be written");
        assert_eq!((lines[1]["reason"].as_str(), lines.len()), (Some("kept"), 2));
        assert_eq!((log.counts().written(), log.counts().lost()), (2, 7));
    }

    #[tokio::test]
    async fn a_flood_of_refused_connections_loses_no_other_lines() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        let log = AuditLog::default();
        log.apply(&Config { audit_max_size: 40_000, audit_max_files: 1, ..config(&path) });
        let refused = || AuditEntry::new(AuditAction::Rejected).because("it may not connect");
        log.record(entry("first"));
        for _round in 0..50 {
            (0..100).for_each(|_| log.record(refused()));
            log.flush(FLUSH).await;
        }
        log.record(entry("last"));
        log.flush(FLUSH).await;
        let of = |action: &str| lines(&path).iter().filter(|line| line["action"] == action).count();
        assert_eq!(of("skipped"), 2, "the first is still there");
        assert!(of("rejected") > 10 && of("rejected") < 200, "{}", of("rejected"));
        assert_eq!(log.counts().lost(), 5000 - of("rejected") as u64);
        assert!(std::fs::metadata(&path).unwrap().len() < 11_000);
    }

    #[tokio::test]
    async fn a_writer_that_hangs_costs_bounded_memory_and_no_wait() {
        let (orders, receiver) = sync_channel(limits::AUDIT_QUEUE);
        let settings = Settings {
            target: AuditTarget::File,
            path: "/nowhere".into(),
            max_size: 1,
            max_files: 1,
        };
        let log = AuditLog::default();
        *log.queue.borrow_mut() = Some(Queue { orders, settings });
        // No thread takes from the queue.
        (0..limits::AUDIT_QUEUE + 10).for_each(|_| log.record(entry("x")));
        assert_eq!(log.counts().lost(), 10);
        log.flush(Duration::from_millis(10)).await;
        drop(receiver);
        let (orders, _receiver) = sync_channel(limits::AUDIT_QUEUE);
        log.queue.borrow_mut().as_mut().unwrap().orders = orders;
        log.counts.queued_bytes.store(0, Relaxed);
        let long = "\u{1b}".repeat(2000);
        (0..limits::AUDIT_QUEUE).for_each(|_| log.record(entry(&long).of_field(&long)));
        assert!(log.counts().lost() > 1000, "{}", log.counts().lost());
        assert!(
            log.counts.queued_bytes.load(Relaxed) < limits::AUDIT_QUEUE_BYTES + limits::AUDIT_LINE
        );
    }
}
