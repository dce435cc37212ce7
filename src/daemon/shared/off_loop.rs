// SPDX-License-Identifier: Apache-2.0
//! Runs system calls on an engine's files off the daemon's event loop: the files may be on a file
//! server, which may never respond. The wait is bounded. A call that does not return keeps a
//! thread, so each folder may use only a few threads.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Daemon;
use crate::daemon::runtime::exit_status::{ExitFile, ExitRecord};
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::watch::folders::{self, WatchedFolder};
use crate::error::{Error, Result, quoted};
use crate::files::{self, Original};
use crate::limits;
use crate::presence;
use crate::sources;
use crate::state::Container;

/// Longest wait for a call on a file system.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Longest wait for reading a container's exit code: StopContainer waits for it.
const EXIT_FILE_WAIT: Duration = Duration::from_secs(1);

/// The running calls, by folder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unanswered(Rc<Calls>);

#[derive(Debug, Default)]
struct Calls {
    folders: RefCell<HashMap<String, CallsOfFolder>>,
    returned: Notify,
}

#[derive(Debug, Default)]
struct CallsOfFolder {
    /// Calls that hold a thread.
    running: usize,
    /// The running calls that have timed out.
    hanging: usize,
}

impl Daemon {
    /// Runs `work` on files below `folder`, off the loop.
    ///
    /// # Errors
    /// Fails as `work` does, or if the file system does not respond, an earlier call for `folder` still hangs, or no
    /// thread is free in time.
    pub(crate) async fn off_loop<T: Send + 'static>(
        &self,
        folder: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.unanswered.run(ANSWER_WAIT, folder, work).await
    }

    /// Runs `work` on files in `folder` that are not links: on the loop if the folder is in memory, as
    /// most engines' bundles are, to save two thread switches; else off the loop.
    ///
    /// # Errors
    /// As [`off_loop`](Self::off_loop).
    pub(crate) async fn in_folder<T: Send + 'static>(
        &self,
        folder: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if sources::is_quick(folder) { work() } else { self.off_loop(folder, work).await }
    }

    /// Checks a path of an engine with `look`, for instance whether it exists.
    ///
    /// # Errors
    /// Fails when the path cannot be examined.
    pub(crate) async fn look(
        &self,
        path: &Path,
        look: fn(&Path) -> std::io::Result<bool>,
    ) -> Result<bool> {
        let (folder, path) = (path.parent().unwrap_or(path), path.to_owned());
        self.off_loop(&folder.to_string_lossy(), move || Ok(look(&path)?)).await
    }

    /// Whether this path of an engine is known to be absent, even as a link.
    pub(crate) async fn is_absent(&self, path: &Path) -> bool {
        self.look(path, |path| Ok(presence::is_absent(path))).await.unwrap_or(false)
    }

    /// Watches a folder of an engine; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the kernel refuses the watch, or the file system does not respond.
    pub(crate) async fn watch_folder(&self, folder: &Path) -> Result<Option<WatchedFolder>> {
        let new = self.watches.folders.begin().map_err(std::io::Error::from)?;
        let (events, path) = (new.events(), folder.to_owned());
        let add = move || Ok(folders::add_watch(&events, &path).map_err(std::io::Error::from)?);
        let added = self.off_loop(&folder.to_string_lossy(), add).await?;
        Ok(added.map(|number| new.listen(number)))
    }

    /// Returns the names of the files in a folder of an engine; none if the folder does not exist.
    ///
    /// # Errors
    /// Fails when the list may be incomplete.
    pub(crate) async fn names_in(&self, folder: &Path) -> Result<Vec<OsString>> {
        let path = folder.to_owned();
        let list = move || {
            let entries = presence::entries(&path)?;
            Ok(entries.iter().map(std::fs::DirEntry::file_name).collect())
        };
        self.off_loop(&folder.to_string_lossy(), list).await
    }

    /// Returns the exit code that the engine wrote for the container's process, if any.
    ///
    /// # Errors
    /// Fails when the engine's file cannot be read.
    pub(crate) async fn written_exit_code(&self, record: &Container) -> Result<Option<i32>> {
        let Some(file) = ExitFile::of(&self.host, record) else { return Ok(None) };
        let path = file.path().to_string_lossy().into_owned();
        self.unanswered.run(EXIT_FILE_WAIT, &path, move || Ok(file.read()?)).await
    }

    /// Returns the exit code in the engine's own record of the container, if there is one.
    ///
    /// # Errors
    /// Fails when that record cannot be read.
    pub(crate) async fn recorded_exit_code(&self, record: &Container) -> Result<Option<i32>> {
        let Some(record) = ExitRecord::of(&self.host, record) else { return Ok(None) };
        let folder = record.folder().to_string_lossy().into_owned();
        self.unanswered.run(EXIT_FILE_WAIT, &folder, move || Ok(record.read()?)).await
    }

    /// Reads the document of a bundle that no wrapper has opened.
    ///
    /// # Errors
    /// Fails when the document is unreadable, or the file system does not respond.
    pub(crate) async fn read_document(&self, bundle: &Path, name: &str) -> Result<Original> {
        let (folder, name) = (bundle.to_owned(), name.to_owned());
        let read = move || files::read_at(&files::open_dir(&folder)?, &name);
        self.off_loop(&bundle.to_string_lossy(), read).await
    }

    /// Reads the PID of the init process from the PID file of a call, if the file has changed since
    /// `before`, its stamp at the call.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) async fn pid_in_file(
        &self,
        file: &Path,
        before: Option<Stamp>,
    ) -> Result<Option<u32>> {
        let (folder, file) = (file.parent().unwrap_or(file), file.to_owned());
        let read = move || Ok(state_dir::pid_in_file(&file, before)?);
        self.in_folder(&folder.to_string_lossy(), read).await
    }
}

impl Unanswered {
    async fn run<T: Send + 'static>(
        &self,
        wait: Duration,
        folder: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let no_answer =
            || Error::new(format!("the file system of {} does not answer", quoted(folder)));
        // A starting daemon makes these calls one after the other. Each hanging folder shortens the
        // wait for the next, so that even `limits::OFF_LOOP` of them delay the start by less than a minute.
        let others = u32::try_from(self.0.hanging_folders()).unwrap_or(u32::MAX);
        let until = Instant::now() + wait / others.saturating_add(1);
        self.0.begin(folder, until).await.ok_or_else(no_answer)?;
        let (answer, answered) = oneshot::channel();
        let is_given_up = Rc::new(Cell::new(false));
        let (calls, name, gives_up) =
            (Rc::clone(&self.0), folder.to_owned(), Rc::clone(&is_given_up));
        // Waits in a separate task, because a call keeps its thread even if its caller is gone.
        tokio::task::spawn_local(async move {
            let done = tokio::task::spawn_blocking(work).await;
            calls.end(&name, gives_up.get());
            let _caller_is_gone = answer.send(done);
        });
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok(Ok(done))) => done,
            Ok(_panicked) => Err(Error::new("the thread for a system call failed")),
            Err(_late) => {
                is_given_up.set(true);
                self.0.give_up(folder);
                Err(no_answer())
            }
        }
    }
}

#[cfg(test)]
impl Daemon {
    /// Makes this folder look as if a call for it never returned.
    pub(crate) fn hang(&self, folder: &str) {
        let calls = CallsOfFolder { running: 1, hanging: 1 };
        self.unanswered.0.folders.borrow_mut().insert(folder.to_owned(), calls);
    }
}

impl Calls {
    fn hanging_folders(&self) -> usize {
        self.folders.borrow().values().filter(|calls| calls.hanging > 0).count()
    }

    /// Counts a call as soon as a thread is free for it; `None` if none is free in time, or an
    /// earlier call for this folder hangs.
    async fn begin(&self, folder: &str, until: Instant) -> Option<()> {
        loop {
            let returned = self.returned.notified();
            if self.try_begin(folder)? {
                return Some(());
            }
            tokio::time::timeout_at(until, returned).await.ok()?;
        }
    }

    /// Counts a call if a thread is free (else false); `None` if an earlier call for this folder hangs.
    fn try_begin(&self, folder: &str) -> Option<bool> {
        let mut folders = self.folders.borrow_mut();
        let running: usize = folders.values().map(|calls| calls.running).sum();
        let of_folder = folders.get(folder).map(|calls| (calls.running, calls.hanging));
        let (own, hanging) = of_folder.unwrap_or_default();
        if hanging > 0 {
            return None;
        }
        let is_free = running < limits::OFF_LOOP && own < limits::OFF_LOOP_IN_FOLDER;
        if is_free {
            folders.entry(folder.to_owned()).or_default().running += 1;
        }
        Some(is_free)
    }

    fn give_up(&self, folder: &str) {
        if let Some(calls) = self.folders.borrow_mut().get_mut(folder) {
            calls.hanging += 1;
        }
    }

    fn end(&self, folder: &str, is_given_up: bool) {
        let mut folders = self.folders.borrow_mut();
        if let Some(calls) = folders.get_mut(folder) {
            calls.running = calls.running.saturating_sub(1);
            calls.hanging = calls.hanging.saturating_sub(usize::from(is_given_up));
            if calls.running == 0 {
                folders.remove(folder);
            }
        }
        self.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn in_a_loop(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    /// Returns a call for this folder that returns once the sender is dropped.
    fn hung(calls: &Unanswered, folder: &str) -> (mpsc::Sender<()>, JoinHandle<Result<bool>>) {
        let (answer, answers) = mpsc::channel::<()>();
        let (calls, folder) = (calls.clone(), folder.to_owned());
        let call =
            async move { calls.run(SHORT, &folder, move || Ok(answers.recv().is_ok())).await };
        (answer, tokio::task::spawn_local(call))
    }

    #[test]
    fn a_hanging_call_delays_only_its_own_folder() {
        in_a_loop(async {
            let calls = Unanswered::default();
            let (answer, call) = hung(&calls, "/a");
            let error = call.await.unwrap().unwrap_err().to_string();
            assert!(error.contains("file system of /a does not answer"), "{error}");
            let again = calls.run(LONG, "/a", || -> Result<()> { panic!("it was asked") }).await;
            assert!(again.is_err(), "it is not asked again");
            assert_eq!(calls.run(LONG, "/b", || Ok(7)).await.unwrap(), 7);
            drop(answer);
            while calls.0.hanging_folders() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let why = Error::new("it is missing");
            let failed = calls.run(LONG, "/a", move || -> Result<()> { Err(why) }).await;
            assert_eq!(failed.unwrap_err().to_string(), "it is missing");
            assert!(calls.0.folders.borrow().is_empty());
        });
    }

    #[test]
    fn a_folder_hangs_until_each_of_its_calls_has_returned() {
        in_a_loop(async {
            let calls = Unanswered::default();
            let [(first, one), (second, other)] = [hung(&calls, "/a"), hung(&calls, "/a")];
            assert!(one.await.unwrap().is_err() && other.await.unwrap().is_err());
            drop(first);
            while calls.0.folders.borrow()["/a"].running > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(calls.run(LONG, "/a", || Ok(7)).await.is_err(), "the second still hangs");
            drop(second);
            while calls.0.hanging_folders() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(calls.run(LONG, "/a", || Ok(7)).await.unwrap(), 7);
        });
    }

    #[test]
    fn calls_that_begin_together_hold_a_bounded_number_of_threads() {
        in_a_loop(async {
            let calls = Unanswered::default();
            let folders = (0..limits::OFF_LOOP).map(|number| format!("/{number}"));
            let twice = folders.flat_map(|folder| [folder.clone(), folder]);
            let hanging: Vec<_> = twice.map(|folder| hung(&calls, &folder)).collect();
            for _turn in 0..3 {
                tokio::task::yield_now().await;
            }
            let running: usize = calls.0.folders.borrow().values().map(|one| one.running).sum();
            assert_eq!(running, limits::OFF_LOOP);
            let (answers, hanging): (Vec<_>, Vec<_>) = hanging.into_iter().unzip();
            for call in hanging {
                assert!(call.await.unwrap().is_err());
            }
            assert!(calls.run(SHORT, "/other", || Ok(7)).await.is_err(), "no thread is left");
            drop(answers);
            while !calls.0.folders.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(calls.run(LONG, "/other", || Ok(7)).await.unwrap(), 7, "threads are free");
        });
    }

    #[test]
    fn a_folder_takes_no_more_threads_than_its_share() {
        in_a_loop(async {
            let calls = Unanswered::default();
            let many = (0..limits::OFF_LOOP).map(|_| hung(&calls, "/a")).collect::<Vec<_>>();
            for _turn in 0..3 {
                tokio::task::yield_now().await;
            }
            assert_eq!(calls.0.folders.borrow()["/a"].running, limits::OFF_LOOP_IN_FOLDER);
            assert_eq!(calls.run(LONG, "/b", || Ok(7)).await.unwrap(), 7);
            let (answers, many): (Vec<_>, Vec<_>) = many.into_iter().unzip();
            for call in many {
                assert!(call.await.unwrap().is_err());
            }
            drop(answers);
        });
    }
}
