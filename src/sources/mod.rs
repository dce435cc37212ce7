// SPDX-License-Identifier: Apache-2.0
//! Fetches the host's data for `engine`: the engine's files, containerd's records, and a running
//! container's addresses (`addresses.rs`). Each round of fetching has one short time limit for all
//! its sources; a missing, slow or invalid source is treated as absent. This module decides nothing
//! about a container, never queries containerd's tasks (`task_exits.rs` only follows its events),
//! and runs in the wrapper only if it would otherwise refuse a container.

mod addresses;
mod device_paths;
mod docker_api;
mod handlers;
mod hpack;
mod pod_resources;
mod processes;
mod records;
pub(crate) mod registered;
mod task_exits;
mod unary;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine::{
    self, CallerInfo, DetectedEngine, Dockerd, Document, Facts, FetchedFacts, Seen, StoreQuery,
    StoreRecord, Wanted,
};
use crate::files;
use crate::host::Host;
use crate::presence::IfThere;

pub(crate) use addresses::{addresses, addresses_of_each};
pub(crate) use device_paths::{DEV, device_paths};
pub(crate) use docker_api::docker_runtimes;
pub use docker_api::runtimes_of_docker;
pub(crate) use handlers::{LoadedHandlers, handlers};
pub(crate) use pod_resources::{KubeletPod, allocations, try_kubelet};
pub(crate) use processes::{Process, callers, dockers, processes};
pub(crate) use task_exits::{TaskExit, follow_task_exits};

/// Time limit of one round of fetching, for all its sources together.
const FETCH_LIMIT: Duration = Duration::from_millis(500);

/// Back-off after a slow containerd or disk.
const SLOW_SOURCE_PAUSE: Duration = Duration::from_secs(10);

type FetchedFiles = BTreeMap<String, Vec<u8>>;

/// Fetches the data, and pauses a source that was slow.
#[derive(Debug, Default)]
pub struct Sources {
    rests_until: Cell<Option<Instant>>,
    /// For each engine, the last slow read and the time before which no other read starts.
    slow: RefCell<BTreeMap<&'static str, (Instant, JoinHandle<FetchedFiles>)>>,
}

impl Sources {
    /// Returns a container's facts from the call, the document and the host: the engine that
    /// called, the engine's data, and defaults for the rest.
    pub async fn facts(
        &self,
        host: &Host,
        call: &CallerInfo<'_>,
        document: &Document<'_>,
    ) -> Facts {
        let engine = engine::detect(call, document);
        let wanted = engine::wanted(&engine, call, document);
        let name = engine.name();
        let mut found = self.fetch(host, name, wanted).await;
        self.complete(host, &engine, call, document, &mut found).await;
        for _round in 0..engine::ROUNDS {
            let mut more = engine::wanted_more(&engine, Seen { call, document, found: &found });
            more.files.retain(|file| !found.files.contains_key(file));
            if more == Wanted::default() {
                break;
            }
            let known = found.files.len();
            found.files.extend(self.fetch(host, name, more).await.files);
            if found.files.len() == known {
                break;
            }
        }
        let mut facts = engine::facts(engine, Seen { call, document, found: &found });
        let instead = engine::wanted_instead(&facts, document);
        if instead != Wanted::default() {
            engine::fill_in(&mut facts, document, &self.fetch(host, name, instead).await);
        }
        facts
    }

    /// Fetches the files whose location only the engine's process shows, if the container's record
    /// was not found (Docker).
    pub async fn complete(
        &self,
        host: &Host,
        engine: &DetectedEngine,
        call: &CallerInfo<'_>,
        document: &Document<'_>,
        found: &mut FetchedFacts,
    ) {
        if !engine::is_dockers_record_missing(engine, Seen { call, document, found }) {
            return;
        }
        let deadline = Instant::now() + FETCH_LIMIT;
        let place = host.clone();
        let look = move || processes::docker_files(&place);
        found.dockers = Dockerd::all(&self.on_a_thread("dockerd", deadline, look).await);
        let wanted = engine::wanted_of_dockers(call, &found.dockers);
        found.files.extend(self.read_files(host, engine.name(), wanted.files, deadline).await);
    }

    /// Fetches as much as possible in time: files are read while the store (another process)
    /// prepares its response.
    pub async fn fetch(&self, host: &Host, engine: &'static str, wanted: Wanted) -> FetchedFacts {
        let deadline = Instant::now() + FETCH_LIMIT;
        let Wanted { files, store } = wanted;
        let mut found = FetchedFacts::default();
        match store {
            Some(query) => {
                let files = async {
                    // Yields first, so that the request is sent before files are read.
                    tokio::task::yield_now().await;
                    self.read_files(host, engine, files, deadline).await
                };
                let records;
                (records, found.files) =
                    tokio::join!(self.ask_store(host, &query, deadline), files);
                match records {
                    Ok((records, refusal)) => {
                        (found.records, found.store_problem) = (records, refusal);
                    }
                    Err(problem) => found.store_problem = Some(problem),
                }
            }
            None => found.files = self.read_files(host, engine, files, deadline).await,
        }
        found
    }

    /// Returns the records, and why others were refused; fails with the reason why there are none.
    async fn ask_store(
        &self,
        host: &Host,
        query: &StoreQuery,
        deadline: Instant,
    ) -> Result<(BTreeMap<String, StoreRecord>, Option<String>), String> {
        if self.rests_until.get().is_some_and(|until| Instant::now() < until) {
            return Err(too_slow(query));
        }
        match tokio::time::timeout_at(deadline, records::get(host, query)).await {
            Ok(Ok((records, refusal))) => {
                Ok((records, refusal.map(|why| format!("{}: {why}", query.socket))))
            }
            Ok(Err(error)) => Err(format!("{}: {error}", query.socket)),
            Err(_) => {
                self.rests_until.set(Some(Instant::now() + SLOW_SOURCE_PAUSE));
                Err(too_slow(query))
            }
        }
    }

    async fn read_files(
        &self,
        host: &Host,
        engine: &'static str,
        files: Vec<String>,
        deadline: Instant,
    ) -> FetchedFiles {
        let (quick, slow): (Vec<_>, Vec<_>) = files.into_iter().partition(|path| is_quick(path));
        let mut found = read_all(host, quick);
        if !slow.is_empty() {
            let host = host.clone();
            let read = move || read_all(&host, slow);
            found.extend(self.on_a_thread(engine, deadline, read).await);
        }
        found
    }

    /// Reads in a thread; returns nothing if that takes too long, or if such reads are paused.
    async fn on_a_thread(
        &self,
        what: &'static str,
        deadline: Instant,
        read: impl FnOnce() -> FetchedFiles + Send + 'static,
    ) -> FetchedFiles {
        if self.disk_rests(what) {
            return FetchedFiles::new();
        }
        let mut reading = tokio::task::spawn_blocking(read);
        match tokio::time::timeout_at(deadline, &mut reading).await {
            Ok(files) => files.unwrap_or_default(),
            Err(_) => {
                self.slow.borrow_mut().insert(what, (Instant::now() + SLOW_SOURCE_PAUSE, reading));
                FetchedFiles::new()
            }
        }
    }

    /// Whether reads of this engine's disk are paused. A read that hangs keeps its thread, and no
    /// other is started beside it.
    fn disk_rests(&self, engine: &str) -> bool {
        let slow = self.slow.borrow();
        let last = slow.get(engine);
        last.is_some_and(|(until, reading)| Instant::now() < *until || !reading.is_finished())
    }
}

fn too_slow(query: &StoreQuery) -> String {
    format!("{}: no answer within {} ms", query.socket, FETCH_LIMIT.as_millis())
}

/// Whether a file is in a run directory or of a cgroup, and so in memory. Other files may be on a
/// disk that hangs, and users may mount anything in their run directories.
pub(crate) fn is_quick(path: &str) -> bool {
    if path.split('/').any(|part| part == "..") {
        return false;
    }
    let is_users = ["/run/user/", "/var/run/user/"].iter().any(|dir| path.starts_with(dir));
    !is_users && ["/run/", "/var/run/", "/sys/fs/cgroup/"].iter().any(|dir| path.starts_with(dir))
}

fn read_all(host: &Host, paths: Vec<String>) -> FetchedFiles {
    let all = paths.into_iter();
    all.filter_map(|path| read(&host.path(&path)).map(|bytes| (path, bytes))).collect()
}

/// Reads a regular file; a link of its name is not followed.
fn read(path: &Path) -> Option<Vec<u8>> {
    let dir = files::open_dir(path.parent()?).or_absent()?;
    files::read_at(&dir, path.file_name()?.to_str()?).or_absent().map(|original| original.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(host: &Host, wanted: Wanted) -> FetchedFacts {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Sources::default().fetch(host, "plain", wanted))
    }

    /// Fetches again until `count` files are read, because a busy machine may need longer than the
    /// limit of one fetch.
    fn until_read(fetch: impl Fn() -> FetchedFacts, count: usize) -> FetchedFacts {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let found = fetch();
            if found.files.len() >= count || Instant::now() > end {
                return found;
            }
        }
    }

    #[test]
    fn only_files_of_run_directories_are_read_directly() {
        assert!(is_quick("/run/containers/x") && is_quick("/sys/fs/cgroup/pods/x"));
        assert!(
            !is_quick("/var/lib/x") && !is_quick("/run/user/7/x") && !is_quick("/run/../srv/x")
        );
    }

    #[test]
    fn existing_files_are_read_and_others_are_absent() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("srv/fifo")).unwrap();
        files::replace(&temp.path().join("srv/a"), b"1").unwrap();
        std::os::unix::fs::symlink("a", temp.path().join("srv/link")).unwrap();
        let host = Host::new(&temp.path().display().to_string(), "");
        let files = ["/srv/a", "/srv/b", "/srv/link", "/srv/fifo", "/run/none/x"];
        let wanted = Wanted { files: files.map(ToOwned::to_owned).into(), store: None };
        let found = until_read(|| fetch(&host, wanted.clone()), 1);
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["/srv/a"]);
    }

    fn query(host_root: &Path) -> (Host, Wanted) {
        let host = Host::new(&host_root.display().to_string(), "");
        let (socket, namespace) = ("/c.sock".to_owned(), "k8s.io".to_owned());
        let ids = vec!["a".to_owned()];
        let store = Some(StoreQuery { socket, namespace, ids, with_images: false });
        (host, Wanted { files: Vec::new(), store })
    }

    #[test]
    fn a_missing_store_is_an_error_without_a_delay() {
        let temp = tempfile::tempdir().unwrap();
        let (host, wanted) = query(temp.path());
        let why = fetch(&host, wanted).store_problem.unwrap();
        assert!(why.starts_with("/c.sock: ") && !why.contains("no answer within"), "{why}");
    }

    #[test]
    fn facts_from_files_are_known_while_the_store_hangs() {
        let temp = tempfile::tempdir().unwrap();
        let (host, mut wanted) = query(temp.path());
        let _accepts_and_says_nothing =
            std::os::unix::net::UnixListener::bind(temp.path().join("c.sock")).unwrap();
        for (dir, file) in [("run", "quick"), ("srv", "slow")] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
            files::replace(&temp.path().join(dir).join(file), b"1").unwrap();
            wanted.files.push(format!("/{dir}/{file}"));
        }
        let found = until_read(|| fetch(&host, wanted.clone()), 2);
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["/run/quick", "/srv/slow"]);
        assert!(found.store_problem.is_some());
    }

    #[test]
    fn a_store_that_hangs_is_waited_for_once_until_the_deadline() {
        let temp = tempfile::tempdir().unwrap();
        let (host, wanted) = query(temp.path());
        let silent = std::os::unix::net::UnixListener::bind(temp.path().join("c.sock")).unwrap();
        silent.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sources = Sources::default();
        let began = Instant::now();
        for _container in 0..3 {
            let found = runtime.block_on(sources.fetch(&host, "plain", wanted.clone()));
            assert!(found.store_problem.is_some_and(|why| why.contains("500 ms")));
            // The pause may be shorter than this test, so the test sets its end.
            let until = sources.rests_until.get().unwrap();
            sources.rests_until.set(Some(until + Duration::from_secs(600)));
        }
        assert!(began.elapsed() >= FETCH_LIMIT);
        let connections = std::iter::from_fn(|| silent.accept().ok());
        assert_eq!(connections.count(), 1, "the others did not ask");
    }

    #[test]
    fn a_hanging_disk_delays_each_engine_by_one_deadline() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["run", "srv"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
            files::replace(&temp.path().join(dir).join("a"), b"1").unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        let files = vec!["/run/a".to_owned(), "/srv/a".to_owned()];
        let wanted = Wanted { files, store: None };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        // While the only thread is busy, every read on it hangs.
        let (release, hanging) = std::sync::mpsc::channel::<()>();
        let disk = runtime.spawn_blocking(move || hanging.recv());
        let sources = Sources::default();
        // Each hanging read extends the pause; this returns the pause's end.
        let rest_after = |engine: &'static str| {
            let found = runtime.block_on(sources.fetch(&host, engine, wanted.clone()));
            assert_eq!(found.files.keys().collect::<Vec<_>>(), ["/run/a"]);
            sources.slow.borrow().get(engine).map(|(until, _)| *until)
        };
        let began = Instant::now();
        let first = rest_after("podman");
        assert!(first.is_some() && began.elapsed() >= FETCH_LIMIT);
        assert_eq!([rest_after("podman"), rest_after("podman")], [first; 2]);
        assert!(rest_after("docker") > first, "another engine's files may be elsewhere");
        // The pause has ended, but the read still hangs.
        let over = Instant::now();
        sources.slow.borrow_mut().values_mut().for_each(|(until, _)| *until = over);
        assert_eq!(rest_after("podman"), Some(over));
        drop(release);
        let _released = runtime.block_on(disk);
        runtime.block_on(async {
            while sources.slow.borrow().values().any(|(_, reading)| !reading.is_finished()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let again = || runtime.block_on(sources.fetch(&host, "podman", wanted.clone()));
        assert_eq!(until_read(again, 2).files.len(), 2);
    }
}
