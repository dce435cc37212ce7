// SPDX-License-Identifier: Apache-2.0
//! Finds drift: values owned by plugins and injections that are no longer in force in the kernel, because another
//! process wrote the cgroup files or the init process changed its limits. The daemon checks on an operator's
//! request, and periodically if configured.
//!
//! No plugin is asked, and the containers' files are read off the event loop. A file that cannot be read or compared is
//! reported, but not as a difference. Updates of a container wait only while a difference is confirmed or restored.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use serde_json::Value;
use tracing::warn;

use crate::answers::{DriftAnswer, DriftRow};
use crate::cgroup::{self, Around, Cgroups, Mounts, Write};
use crate::error::{self, in_our_words};
use crate::host::Host;
use crate::limits;
use crate::mark::{self, ProcessValue};
use crate::procfs;
use crate::spec::owned::{self, OwnedMember};
use crate::state::{Container, ContainerKey, Lifecycle};
use crate::stream::{EventKind, NodeEvent};

use crate::daemon::resources::apply::turn_to_write;
use crate::daemon::resources::error::{Result, UpdateError};
use crate::daemon::resources::in_force::{Block, in_force};
use crate::daemon::resources::put_back::PutBacks;
use crate::daemon::resources::route::{InitOf, has_known_cgroups};
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::Daemon;
use crate::daemon::shared::few_lines::FewOf;

/// Containers checked in a row before other tasks get a turn.
const AT_ONCE: usize = 64;

/// A value that is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Drift {
    pub(super) container: ContainerKey,
    /// NRI's name of the field.
    pub(super) field: String,
    pub(super) owner: String,
    pub(super) expected: String,
    pub(super) actual: String,
    /// The file that shows the value.
    pub(super) file: String,
    /// Path of the resource below `linux.resources`; empty for a limit of the init process, which
    /// that process may change itself.
    pub(super) path: String,
    /// Whether exactly one value is expected.
    pub(super) is_certain: bool,
}

impl Drift {
    pub(super) fn is_of_process(&self) -> bool {
        self.path.is_empty()
    }

    fn to_event(&self) -> NodeEvent {
        let difference = format!("{} instead of {}", self.actual, self.expected);
        let event = NodeEvent::new(EventKind::Drift).by(&self.owner);
        NodeEvent { field: self.field.clone(), reason: difference, ..event }
    }

    fn into_row(self) -> DriftRow {
        DriftRow {
            process: self.is_of_process(),
            container_id: self.container.id,
            field: self.field,
            owner: self.owner,
            expected: self.expected,
            actual: self.actual,
            writer: None,
            file: self.file,
        }
    }
}

/// The result of checking one or more containers.
#[derive(Debug, Default)]
pub(crate) struct Drifts {
    pub(super) rows: Vec<Drift>,
    /// Values that could not be compared, one line each.
    unread: Vec<String>,
    /// The number of compared values.
    compared: usize,
    /// Whether the check ended before the last container.
    is_broken_off: bool,
    /// The container's cgroups, if known; `None` in the sum of several results.
    pub(super) place: Option<ResourcePlace>,
}

impl Drifts {
    fn unread(id: &str, why: &str) -> Self {
        Self { unread: vec![format!("{id}: {why}")], ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.unread.extend(other.unread);
        self.compared += other.compared;
    }

    /// Returns the answer to an operator.
    pub(crate) fn into_answer(mut self) -> DriftAnswer {
        let more = self.rows.len().saturating_sub(limits::DRIFTS);
        self.rows.truncate(limits::DRIFTS);
        let what = "could not be compared";
        let mut unread = limits::listed(self.unread.into_iter(), "value", what);
        if more > 0 {
            unread.push(format!("{more} more values differ and are not listed"));
        }
        let drift = self.rows.into_iter().map(Drift::into_row).collect();
        DriftAnswer { drift, unread, compared: self.compared }
    }
}

/// The cgroups of a container, and whether the daemon may write them (D22).
#[derive(Debug, Clone)]
pub(super) struct ResourcePlace {
    pub(super) cgroups: Cgroups,
    pub(super) is_direct: bool,
}

/// Compares the owned values of the given containers, or of all containers, with the kernel's, and restores drifted
/// values that `put_backs` selects.
pub(crate) async fn look(
    daemon: &Rc<Daemon>,
    keys: Option<Vec<ContainerKey>>,
    mut put_backs: Option<&mut PutBacks>,
) -> Drifts {
    let is_whole = keys.is_none();
    let keys = keys.unwrap_or_else(|| {
        let store = daemon.records.read();
        store.containers().filter(|c| is_comparable(c)).map(|c| c.key.clone()).collect()
    });
    let (mut all, mut unanswered) = (Drifts::default(), 0);
    for (number, key) in keys.iter().enumerate() {
        if number % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        match look_at(daemon, key, put_backs.as_deref_mut()).await {
            Ok(found) => all.add(found),
            Err(error) => {
                unanswered += 1;
                all.unread.push(format!("{}: {error}", key.id));
            }
        }
        if unanswered >= limits::DRIFT_UNANSWERED {
            let left = keys.len() - number - 1;
            all.unread.push(format!("{left} more containers were not checked"));
            all.is_broken_off = true;
            break;
        }
    }
    // An incomplete count could clear an alert by mistake.
    if is_whole && !all.is_broken_off {
        let of_processes = all.rows.iter().filter(|drift| drift.is_of_process()).count();
        let counts = (all.rows.len() - of_processes, of_processes);
        daemon.report.drifts.set(Some(counts));
    }
    all
}

/// Checks all containers at the configured interval. Never ends.
pub(crate) async fn look_out(daemon: Rc<Daemon>) {
    let (mut put_backs, mut known) = (PutBacks::default(), HashSet::new());
    loop {
        let every = daemon.config().drift_every;
        tokio::select! {
            () = daemon.watches.drift_reloaded.notified() => continue,
            () = tokio::time::sleep(every.unwrap_or_default()), if every.is_some() => {}
        }
        put_backs.begin(&daemon.config());
        let found = look(&daemon, None, Some(&mut put_backs)).await;
        let is_broken_off = found.is_broken_off;
        let rows: HashSet<Drift> =
            found.rows.into_iter().filter(|drift| !drift.is_of_process()).collect();
        for drift in rows.difference(&known) {
            let Drift { container, field, owner, expected, actual, .. } = drift;
            daemon.emit(container, drift.to_event());
            if daemon.report.few_lines.admit(FewOf::Drift, owner) {
                let id = &container.id;
                warn!("{id}: {field} is {actual}, not {expected} as {owner} set it");
            }
        }
        if is_broken_off {
            known.extend(rows);
        } else {
            known = rows;
        }
    }
}

fn is_comparable(record: &Container) -> bool {
    matches!(record.state, Lifecycle::Created | Lifecycle::Running)
        && !record.is_sandbox
        && !record.resources.owners.is_empty()
        && record.pending.updating.is_none()
}

async fn look_at(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    put_backs: Option<&mut PutBacks>,
) -> error::Result<Drifts> {
    let comparable = || daemon.container(key).filter(|record| is_comparable(record));
    let Some(record) = comparable() else { return Ok(Drifts::default()) };
    let found = compare(daemon, &record).await?;
    if found.rows.is_empty() {
        return Ok(found);
    }
    // An update may have been in progress, so the values are compared again while no other can begin.
    let Ok(_writing) = turn_to_write(&daemon.lanes, key).await else {
        return Ok(Drifts::unread(&key.id, "an update of it is under way"));
    };
    let Some(record) = comparable() else { return Ok(Drifts::default()) };
    let found = compare(daemon, &record).await?;
    // The engine updates a container made without nri-runc directly, so the value may be the engine's.
    if let Some(put_backs) = put_backs.filter(|_| !record.by_plain_runtime) {
        put_backs.put_back(daemon, &record, &found).await;
    }
    Ok(found)
}

/// Compares one container's values.
///
/// # Errors
/// Fails when a file system does not respond.
pub(super) async fn compare(daemon: &Daemon, record: &Container) -> error::Result<Drifts> {
    let comparison = match Comparison::new(daemon, record) {
        Ok(comparison) => comparison,
        Err(UpdateError::Gone) => return Ok(Drifts::default()),
        Err(why) => return Ok(Drifts::unread(&record.key.id, &why.to_string())),
    };
    let finding = comparison.clone();
    let found = daemon.off_loop(&record.key.root, move || Ok(finding.find())).await?;
    let place = match found {
        Ok(place) => place,
        Err(UpdateError::Gone) => return Ok(Drifts::default()),
        Err(why) => return Ok(Drifts::unread(&record.key.id, &why.to_string())),
    };
    let dir = place.as_ref().and_then(|place| place.cgroups.any_dir());
    let dir = dir.map_or_else(|| record.key.root.clone(), |dir| dir.display().to_string());
    daemon.off_loop(&dir, move || Ok(comparison.compare(place))).await
}

/// The values of one container to compare, on a thread beside the event loop.
#[derive(Debug, Clone)]
struct Comparison {
    host: Host,
    key: ContainerKey,
    process: InitOf,
    /// `None` if it is unknown into which cgroups the runtime puts containers.
    mounts: Option<Mounts>,
    ours: Option<Cgroups>,
    by_systemd: bool,
    in_force: Block,
    overlay: Block,
    owners: BTreeMap<String, String>,
    /// Values of the init process.
    values: Vec<ProcessValue>,
}

impl Comparison {
    fn new(daemon: &Daemon, record: &Container) -> Result<Self> {
        let mounts = daemon.caches.cgroup_mounts(&daemon.host).map_err(UpdateError::refused)?;
        let ours = daemon.caches.own_cgroups(&daemon.host, &mounts);
        let ours = ours.map_err(UpdateError::refused)?;
        let values = match &record.outcome.process_values {
            // Before the start, the init process is still the runtime's.
            _ if record.state != Lifecycle::Running => Vec::new(),
            Some(values) => values.clone(),
            None => {
                let changes = record.outcome.changes.iter();
                mark::process_values(changes.map(|c| (c.field.as_str(), &c.before, &c.after)))
            }
        };
        Ok(Self {
            host: daemon.host.clone(),
            key: record.key.clone(),
            process: InitOf::new(record)?,
            mounts: has_known_cgroups(record).then(|| Mounts::clone(&mounts)),
            ours: ours.map(|ours| Cgroups::clone(&ours)),
            by_systemd: record.call.global_flags.iter().any(|flag| flag == "--systemd-cgroup"),
            in_force: in_force(record),
            overlay: record.resources.overlay.clone(),
            owners: record.resources.owners.clone(),
            values,
        })
    }

    /// Finds the container's cgroups; `None` if they are unknown, or the container has none of its own.
    fn find(&self) -> Result<Option<ResourcePlace>> {
        let Some(mounts) = &self.mounts else { return Ok(None) };
        let recorded = state_dir::cgroups(&self.host, &self.key).map_err(|why| refused(&why))?;
        let recorded = recorded.unwrap_or_default();
        let found = Cgroups::find(&self.host, mounts, self.process.pid, &recorded.paths);
        let cgroups = self.process.own_cgroups(&self.host, found, self.ours.as_ref())?;
        Ok(cgroups.map(|cgroups| {
            let is_direct = !recorded.by_systemd && !self.by_systemd && !cgroups.is_scope();
            ResourcePlace { cgroups, is_direct }
        }))
    }

    fn compare(self, place: Option<ResourcePlace>) -> Drifts {
        let mut found = Drifts::default();
        self.compare_resources(place.as_ref().map(|place| &place.cgroups), &mut found);
        self.compare_process(&mut found);
        // Checked last: if the process still exists, the values that were read are its own.
        if self.process.exists(&self.host).is_err() {
            return Drifts::default();
        }
        Drifts { place, ..found }
    }

    fn compare_resources(&self, cgroups: Option<&Cgroups>, found: &mut Drifts) {
        let members = owned::fields(&self.overlay).into_iter();
        let members: Vec<OwnedMember> = members.filter(|member| !member.nri.is_empty()).collect();
        for member in members.iter().take(limits::ENDS) {
            let Some(owner) = owned::owner(member, &self.overlay, &self.owners) else { continue };
            let compared = match cgroups {
                Some(cgroups) => self.compare_member(member, owner, cgroups, found),
                None => Err("its cgroups are unknown, or other containers share them".to_owned()),
            };
            match compared {
                Ok(()) => found.compared += 1,
                Err(why) => found.unread.push(format!("{}: {}: {why}", self.key.id, member.nri)),
            }
        }
        let more = members.len().saturating_sub(limits::ENDS);
        if more > 0 {
            found.unread.push(format!("{}: {more} more values were not compared", self.key.id));
        }
    }

    /// Adds the values of one resource that differ from those in its files.
    fn compare_member(
        &self,
        member: &OwnedMember,
        owner: &str,
        cgroups: &Cgroups,
        found: &mut Drifts,
    ) -> Result<(), String> {
        let one = owned::keep_owned(&self.overlay, |other| other.path == member.path);
        for write in self.plan(&one, cgroups)?.iter().filter(|write| write.field == member.path) {
            let Some(difference) = cgroup::difference(cgroups, write)? else { continue };
            found.rows.push(Drift {
                container: self.key.clone(),
                field: member.nri.clone(),
                owner: owner.to_owned(),
                expected: difference.expected,
                actual: difference.actual,
                file: difference.file.display().to_string(),
                path: member.path.clone(),
                is_certain: difference.is_certain,
            });
        }
        Ok(())
    }

    fn plan(&self, part: &Block, cgroups: &Cgroups) -> Result<Vec<Write>, String> {
        let around = Around { before: &self.in_force, tried: None, after: &self.in_force };
        cgroup::plan(cgroups.layout(), part, around, cgroups).map_err(|unfit| unfit.to_string())
    }

    /// Adds the limits and the OOM adjustment that the init process no longer has.
    fn compare_process(&self, found: &mut Drifts) {
        let pid = self.process.pid;
        for value in self.values.iter().filter(|value| !value.plugin.is_null()) {
            let (field, file, expected, actual) = match (value.rlimit(), value.member()) {
                (Some(kind), _) => {
                    let actual = procfs::resource_limit(&self.host, pid, kind);
                    (format!("Rlimits[{kind}]"), "limits", limit(&value.plugin), actual)
                }
                (None, Some("oomScoreAdj")) => {
                    let actual = procfs::oom_score_adj(&self.host, pid);
                    ("OomScoreAdj".to_owned(), "oom_score_adj", value.plugin.to_string(), actual)
                }
                (None, _) => continue,
            };
            let Some(owner) = self.owners.get(&field) else { continue };
            found.compared += usize::from(actual.is_ok());
            match actual {
                Ok(Some(actual)) if actual != expected => found.rows.push(Drift {
                    container: self.key.clone(),
                    owner: owner.clone(),
                    file: self.host.path(format!("/proc/{pid}/{file}")).display().to_string(),
                    path: String::new(),
                    is_certain: true,
                    field,
                    expected,
                    actual,
                }),
                Ok(_) => {}
                Err(why) => {
                    let why = in_our_words(&why);
                    found.unread.push(format!("{}: {field} cannot be read: {why}", self.key.id));
                }
            }
        }
    }
}

fn refused(why: &std::io::Error) -> UpdateError {
    UpdateError::refused(format!("the runtime's state cannot be read: {}", in_our_words(why)))
}

/// Returns a resource limit of a document as `SOFT:HARD`.
fn limit(value: &Value) -> String {
    let one = |name: &str| match value[name].as_u64() {
        None | Some(u64::MAX) => "unlimited".to_owned(),
        Some(number) => number.to_string(),
    };
    format!("{}:{}", one("soft"), one("hard"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::state::{CompactObject, Store};

    const V1: &str = "31 30 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
    const V2: &str = "31 30 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    /// A host of plain files with one container, whose init process has PID 1.
    struct Place {
        temp: tempfile::TempDir,
        daemon: Rc<Daemon>,
        dir: &'static str,
    }

    impl Place {
        fn new(mountinfo: &str, cgroup: &str, dir: &'static str) -> Self {
            let temp = tempfile::tempdir().unwrap();
            let config = Config {
                run_dir: temp.path().join("run"),
                debug_host_root: temp.path().display().to_string(),
                drift_reapply: vec!["CPUSetCPUs".to_owned()],
                ..Config::default()
            };
            let host = config.host();
            let store = Store::open(&temp.path().join("state"), "boot").unwrap().0;
            let place = Self { daemon: Daemon::new(config, host, store), temp, dir };
            place.file("/proc/self/mountinfo", mountinfo);
            place.file("/proc/1/cgroup", cgroup);
            place.file("/proc/1/limits", "Max open files            7    9   files\n");
            place.file("/proc/1/oom_score_adj", "-5\n");
            let json = json!({
                "schema": 1, "boot_id": "boot", "key": {"root": "/r", "id": "c"}, "incarnation": 1,
                "runtime": "/usr/bin/runc", "global_flags": [], "bundle": "/b",
                "is_sandbox": false, "pod": "p", "name": "c", "state": "running",
                "pid_file": null, "init_pid": 1, "init_start": null, "engine": "plain",
                "evidence": [], "variables": [], "message": "", "engine_resources": {},
                "overlay": {"cpu": {"cpus": "0-1"}},
                "owners": {"CPUSetCPUs": "10-pins", "Rlimits[RLIMIT_NOFILE]": "20-limits",
                    "OomScoreAdj": "20-limits"},
                "patched": null, "refused": [], "skipped": [], "in_flight": null,
                "changes": [
                    {"at": 1, "event": "CreateContainer", "plugin": "20-limits",
                        "field": "process.rlimits[RLIMIT_NOFILE]", "before": null,
                        "after": {"type": "RLIMIT_NOFILE", "soft": 7, "hard": 9}},
                    {"at": 1, "event": "CreateContainer", "plugin": "20-limits",
                        "field": "process.oomScoreAdj", "before": 0, "after": -5},
                ],
            });
            place.daemon.records.put(serde_json::from_value(json).unwrap()).unwrap();
            place
        }

        /// Returns a host with cgroup v1 and one with cgroup v2.
        fn each() -> [Self; 2] {
            let v1 = Self::new(V1, "2:cpuset:/k/c\n", "/sys/fs/cgroup/cpuset/k/c");
            [v1, Self::new(V2, "0::/k/c\n", "/sys/fs/cgroup/k/c")]
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.daemon.host.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            crate::files::replace(&path, text.as_bytes()).unwrap();
        }

        fn cpus(&self, text: &str) {
            self.file(&format!("{}/cpuset.cpus", self.dir), text);
        }

        fn cpus_now(&self) -> String {
            let path = self.daemon.host.path(format!("{}/cpuset.cpus", self.dir));
            std::fs::read_to_string(path).unwrap()
        }

        fn look(&self, put_backs: Option<&mut PutBacks>) -> Value {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let local = tokio::task::LocalSet::new();
            let looking = look(&self.daemon, None, put_backs);
            json!(local.block_on(&runtime.unwrap(), looking).into_answer())
        }
    }

    #[test]
    fn drifted_values_are_reported_with_owner_on_v1_and_v2() {
        for place in Place::each() {
            place.cpus("0,1\n");
            assert_eq!(place.look(None), json!({"drift": [], "unread": [], "compared": 3}));
            place.cpus("0-3\n");
            place.file("/proc/1/limits", "Max open files            5    9   files\n");
            place.file("/proc/1/oom_score_adj", "0\n");
            let answer = place.look(None);
            let rows = answer["drift"].as_array().unwrap().iter().map(|row| {
                let [field, owner, expected, actual, file] =
                    ["field", "owner", "expected", "actual", "file"].map(|key| row[key].as_str());
                assert_eq!((&row["container_id"], &row["writer"]), (&json!("c"), &Value::Null));
                assert!(file.unwrap().starts_with(place.temp.path().to_str().unwrap()));
                (
                    field.unwrap(),
                    owner.unwrap(),
                    expected.unwrap(),
                    actual.unwrap(),
                    &row["process"],
                )
            });
            assert_eq!(
                rows.collect::<Vec<_>>(),
                [
                    ("CPUSetCPUs", "10-pins", "0-1", "0-3", &json!(false)),
                    ("Rlimits[RLIMIT_NOFILE]", "20-limits", "7:9", "5:9", &json!(true)),
                    ("OomScoreAdj", "20-limits", "-5", "0", &json!(true)),
                ]
            );
            assert_eq!(place.daemon.report.drifts.get(), Some((1, 2)));
            assert_eq!(place.cpus_now(), "0-3\n", "a look changes nothing");
        }
    }

    #[test]
    fn an_unreadable_file_is_reported_but_is_not_drift() {
        for place in Place::each() {
            let answer = place.look(None);
            assert_eq!((&answer["drift"], &answer["compared"]), (&json!([]), &json!(2)));
            let line = answer["unread"][0].as_str().unwrap();
            assert!(line.starts_with("c: CPUSetCPUs: ") && line.contains("cpuset.cpus"), "{line}");
        }
    }

    #[test]
    fn a_container_that_ended_or_is_being_updated_has_no_drift() {
        for place in Place::each() {
            place.cpus("0-3\n");
            let key = place.daemon.records.read().containers().next().unwrap().key.clone();
            place.daemon.change(&key, |record| record.process.init_pid = Some(u32::MAX >> 2));
            assert_eq!(place.look(None)["drift"], json!([]));
            place.daemon.change(&key, |record| {
                record.process.init_pid = Some(1);
                record.state = Lifecycle::Stopped;
            });
            assert_eq!(place.look(None)["drift"], json!([]));
        }
    }

    #[test]
    fn a_configured_field_is_restored_until_it_changes_too_often() {
        for place in Place::each() {
            let mut put_backs = PutBacks::default();
            for _again in 0..limits::DRIFT_WRITES_OF_CONTAINER {
                put_backs.begin(&place.daemon.config());
                place.cpus("0-3\n");
                place.look(Some(&mut put_backs));
                assert_eq!(place.cpus_now(), "0-1\n");
            }
            place.cpus("0-3\n");
            place.look(Some(&mut put_backs));
            assert_eq!(place.cpus_now(), "0-3\n", "it was put back too often");
            let record = place.daemon.records.read().containers().next().cloned().unwrap();
            let changes = record.outcome.changes.iter().filter(|change| change.event == "drift");
            let changes: Vec<_> = changes.map(|c| (&*c.plugin, &*c.field)).collect();
            assert_eq!(changes, [("10-pins", "cgroup:cpuset.cpus")], "one line of explain");
        }
    }

    #[test]
    fn fields_are_not_reapplied_if_not_listed_or_while_disabled() {
        for place in Place::each() {
            place.cpus("0-3\n");
            for config in [
                Config { drift_reapply: vec!["MemLimit".to_owned()], ..Config::default() },
                Config {
                    disable: true,
                    drift_reapply: vec!["CPUSetCPUs".to_owned()],
                    ..Config::default()
                },
            ] {
                let mut put_backs = PutBacks::default();
                put_backs.begin(&config);
                assert_eq!(place.look(Some(&mut put_backs))["drift"][0]["actual"], "0-3");
                assert_eq!(place.cpus_now(), "0-3\n");
            }
        }
    }

    #[test]
    fn an_aborted_drift_scan_keeps_the_last_complete_count() {
        let place = Place::new(V2, "0::/k/c\n", "/sys/fs/cgroup/k/c");
        place.cpus("0-3\n");
        assert_eq!(place.look(None)["drift"].as_array().map(Vec::len), Some(1));
        assert_eq!(place.daemon.report.drifts.get(), Some((1, 0)));
        let hanging = place.daemon.records.read().containers().next().cloned().unwrap();
        for number in 0..limits::DRIFT_UNANSWERED {
            let mut record = hanging.clone();
            (record.key.id, record.key.root) = (format!("a{number}"), format!("/hangs/{number}"));
            place.daemon.records.put(record).unwrap();
            place.daemon.hang(&format!("/hangs/{number}"));
        }
        place.cpus("0-1\n");
        let answer = place.look(None);
        assert!(answer["unread"].to_string().contains("were not checked"), "{answer}");
        assert_eq!(place.daemon.report.drifts.get(), Some((1, 0)), "{answer}");
    }

    #[test]
    fn the_runtime_receives_all_resources_with_a_restored_value() {
        let place = Place::new(V2, "0::/k/c.scope\n", "/sys/fs/cgroup/k/c.scope");
        let [runc, got] = ["runc", "got.json"].map(|name| place.temp.path().join(name));
        std::os::unix::fs::symlink("/bin/sh", &runc).unwrap();
        let key = place.daemon.records.read().containers().next().unwrap().key.clone();
        let (engine, owned) = (
            json!({"memory": {"limit": 1 << 20}, "pids": {"limit": 9}}),
            json!({"cpu": {"cpus": "0-1", "mems": "0"}}),
        );
        place.daemon.change(&key, |record| {
            record.call.runtime = runc.display().to_string();
            record.call.global_flags =
                ["-c", &format!("cat > {}", got.display()), "sh"].map(str::to_owned).to_vec();
            record.resources.of_engine = CompactObject::from(engine.as_object().unwrap());
            record.resources.overlay = owned.as_object().cloned().unwrap();
        });
        place.cpus("0-3\n");
        let mut put_backs = PutBacks::default();
        put_backs.begin(&place.daemon.config());
        place.look(Some(&mut put_backs));
        let got: Value = serde_json::from_slice(&std::fs::read(got).unwrap()).unwrap();
        let all = json!({"memory": engine["memory"], "pids": engine["pids"], "cpu": owned["cpu"]});
        assert_eq!(got, all);
    }

    #[test]
    fn a_weight_by_an_unknown_formula_is_reported_not_restored() {
        let place = Place::new(V2, "0::/k/c\n", "/sys/fs/cgroup/k/c");
        let key = place.daemon.records.read().containers().next().unwrap().key.clone();
        place.daemon.change(&key, |record| {
            record.resources.overlay =
                json!({"cpu": {"shares": 1024}}).as_object().cloned().unwrap();
            record.resources.owners = [("CPUShares".to_owned(), "10-pins".to_owned())].into();
        });
        place.file("/sys/fs/cgroup/k/c/cpu.weight", "77\n");
        let mut put_backs = PutBacks::default();
        put_backs
            .begin(&Config { drift_reapply: vec!["CPUShares".to_owned()], ..Config::default() });
        assert_eq!(place.look(Some(&mut put_backs))["drift"][0]["expected"], "100 or 39");
        let path = place.daemon.host.path("/sys/fs/cgroup/k/c/cpu.weight");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "77\n");
    }
}
