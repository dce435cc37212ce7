// SPDX-License-Identifier: Apache-2.0
//! System calls on files that an engine has put wherever its operator keeps them: the file system may be a
//! file server's, which may never answer. These calls run outside of the daemon's loop and are waited
//! for a bounded time; one that does not return holds up one thread for each folder.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::Daemon;
use crate::daemon::runtime::exit_status::ExitFile;
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::watch::folders::{self, WatchedFolder};
use crate::error::{Error, Result, quoted};
use crate::files::{self, Original};
use crate::limits;
use crate::presence;
use crate::state::Container;

/// How long a file system may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// How long it may take to answer for a container's exit code: plugins wait for StopContainer.
const EXIT_FILE_WAIT: Duration = Duration::from_secs(1);

/// The folders whose file system has not answered a call yet, by path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unanswered(Rc<RefCell<HashSet<String>>>);

impl Daemon {
    /// Runs `work` on files below `folder` outside of the loop.
    ///
    /// # Errors
    /// Fails as `work` does, and when the file system does not answer, now or since an earlier call.
    pub(crate) async fn off_loop<T: Send + 'static>(
        &self,
        folder: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.unanswered.run(ANSWER_WAIT, folder, work).await
    }

    /// Looks at a path of an engine: whether it exists, or is a folder.
    ///
    /// # Errors
    /// Fails when that cannot be known.
    pub(crate) async fn look(
        &self,
        path: &Path,
        look: fn(&Path) -> std::io::Result<bool>,
    ) -> Result<bool> {
        let (folder, path) = (path.parent().unwrap_or(path), path.to_owned());
        self.off_loop(&folder.to_string_lossy(), move || Ok(look(&path)?)).await
    }

    /// Whether it is known that nothing has this path of an engine, not even a link.
    pub(crate) async fn is_absent(&self, path: &Path) -> bool {
        self.look(path, |path| Ok(presence::is_absent(path))).await.unwrap_or(false)
    }

    /// Watches a folder of an engine; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the kernel refuses the watch, or the file system does not answer.
    pub(crate) async fn watch_folder(&self, folder: &Path) -> Result<Option<WatchedFolder>> {
        let new = self.watches.folders.begin().map_err(std::io::Error::from)?;
        let (events, path) = (new.events(), folder.to_owned());
        let add = move || Ok(folders::add_watch(&events, &path).map_err(std::io::Error::from)?);
        let added = self.off_loop(&folder.to_string_lossy(), add).await?;
        Ok(added.map(|number| new.listen(number)))
    }

    /// The names of the files in a folder of an engine; none if it does not exist.
    ///
    /// # Errors
    /// Fails when they cannot all be known.
    pub(crate) async fn names_in(&self, folder: &Path) -> Result<Vec<OsString>> {
        let path = folder.to_owned();
        let list = move || {
            let entries = presence::entries(&path)?;
            Ok(entries.iter().map(std::fs::DirEntry::file_name).collect())
        };
        self.off_loop(&folder.to_string_lossy(), list).await
    }

    /// The exit code that the engine wrote for this very process, if any.
    ///
    /// # Errors
    /// Fails when that cannot be known.
    pub(crate) async fn written_exit_code(&self, record: &Container) -> Result<Option<i32>> {
        let Some(file) = ExitFile::of(&self.host, record) else { return Ok(None) };
        let path = file.path().to_string_lossy().into_owned();
        self.unanswered.run(EXIT_FILE_WAIT, &path, move || Ok(file.read()?)).await
    }

    /// Reads the document of a bundle that no wrapper has opened.
    ///
    /// # Errors
    /// Fails when it cannot be read, or the file system does not answer.
    pub(crate) async fn read_document(&self, bundle: &Path, name: &str) -> Result<Original> {
        let (folder, name) = (bundle.to_owned(), name.to_owned());
        let read = move || files::read_at(&files::open_dir(&folder)?, &name);
        self.off_loop(&bundle.to_string_lossy(), read).await
    }

    /// Reads the init process from the PID file of a call, if it differs from `before` the call.
    ///
    /// # Errors
    /// Fails when that cannot be known.
    pub(crate) async fn pid_in_file(
        &self,
        file: &Path,
        before: Option<Stamp>,
    ) -> Result<Option<u32>> {
        let (folder, file) = (file.parent().unwrap_or(file), file.to_owned());
        let read = move || Ok(state_dir::pid_in_file(&file, before)?);
        self.off_loop(&folder.to_string_lossy(), read).await
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
        let is_full = |hanging: &HashSet<String>| {
            hanging.len() >= limits::OFF_LOOP || hanging.contains(folder)
        };
        if is_full(&self.0.borrow()) {
            return Err(no_answer());
        }
        // A daemon that starts asks one after the other: together they hold it up for less than a minute.
        let others = u32::try_from(self.0.borrow().len()).unwrap_or(u32::MAX);
        let wait = wait / others.saturating_add(1);
        let mut working = tokio::task::spawn_blocking(work);
        if let Ok(done) = tokio::time::timeout(wait, &mut working).await {
            return done.map_err(|_panicked| Error::new("a system call could not be made"))?;
        }
        let (unanswered, folder) = (Rc::clone(&self.0), folder.to_owned());
        unanswered.borrow_mut().insert(folder.clone());
        tokio::task::spawn_local(async move {
            let _at_last = working.await;
            unanswered.borrow_mut().remove(&folder);
        });
        Err(no_answer())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_call_that_does_not_return_holds_up_its_own_folder_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (unanswered, wait) = (Unanswered::default(), Duration::from_millis(50));
            let (answer, answers) = mpsc::channel::<()>();
            let hung = unanswered.run(wait, "/a", move || Ok(answers.recv().is_ok())).await;
            assert!(hung.unwrap_err().to_string().contains("file system of /a does not answer"));
            // It is not asked again, and another one is.
            let again =
                unanswered.run(wait, "/a", || -> Result<()> { panic!("it was asked") }).await;
            assert!(again.is_err());
            let minute = Duration::from_secs(60);
            assert_eq!(unanswered.run(minute, "/b", || Ok(7)).await.unwrap(), 7);
            unanswered
                .0
                .borrow_mut()
                .extend((1..limits::OFF_LOOP).map(|number| number.to_string()));
            assert!(unanswered.run(minute, "/b", || Ok(7)).await.is_err(), "no thread is left");
            unanswered.0.borrow_mut().retain(|folder| folder == "/a");
            answer.send(()).unwrap();
            while !unanswered.0.borrow().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let why = Error::new("it is missing");
            let failed = unanswered.run(minute, "/a", move || -> Result<()> { Err(why) }).await;
            assert_eq!(failed.unwrap_err().to_string(), "it is missing");
        });
    }
}
