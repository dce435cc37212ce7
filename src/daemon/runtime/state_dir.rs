// SPDX-License-Identifier: Apache-2.0
//! Reads the real runtime's state directory, which shows the outcome of its verbs (decision D2): the wrapper becomes
//! the runtime and never sees its exit code. runc and youki keep `ROOT/ID/state.json`, crun keeps `ROOT/ID/status`;
//! runc and crun keep `exec.fifo` there from create until start. This module only reads; a file that cannot be
//! read is an error, never an absence.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::{self, IfThere};
use crate::procfs;
use crate::runtime::RuntimeKind;
use crate::state::ContainerKey;

/// Clock ticks per second in `/proc`.
const TICKS: u64 = 100;

/// The length in bytes of a beginning of runc's state that has the container's ID and its init process. The rest may
/// be hundreds of kilobytes long.
const BEGINNING: usize = 2 << 10;

/// The files in which runtimes keep a container's state.
const STATE_FILES: [&str; 2] = ["state.json", "status"];

/// Returns the folder in which the runtime keeps the container's state.
pub(crate) fn folder(host: &Host, key: &ContainerKey) -> PathBuf {
    host.path(&key.root).join(&key.id)
}

/// Whether the runtime has a state directory for the container.
///
/// # Errors
/// Fails when the state directory cannot be examined.
pub(crate) fn exists(host: &Host, key: &ContainerKey) -> io::Result<bool> {
    presence::is_dir(&folder(host, key))
}

/// Whether the container's `exec.fifo` exists: runc or crun has created the container and not started it yet.
///
/// # Errors
/// Fails when the state directory cannot be examined.
pub(crate) fn waits_for_start(host: &Host, key: &ContainerKey) -> io::Result<bool> {
    presence::exists(&folder(host, key).join("exec.fifo"))
}

/// Returns the PID of the init process from the PID file of a call, if the file has changed since
/// `before`, its stamp at the call. The engine chooses the file's location, so the read may block.
///
/// # Errors
/// Fails when the file cannot be read.
pub(crate) fn pid_in_file(path: &Path, before: Option<Stamp>) -> io::Result<Option<u32>> {
    if stamp(path)?.is_none_or(|now| Some(now) == before) {
        return Ok(None);
    }
    let text = files::read_text(path, limits::CONTAINER_FILE).if_there()?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// The init process of a container, as its runtime reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundInit {
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot; `None` if only the PID is known. The runtime reads it where the
    /// daemon does (proc_pid_stat(5)), in the host's time namespace.
    pub(crate) start: Option<u64>,
}

impl FoundInit {
    /// A process of which only the PID is known.
    pub(crate) fn of_pid(pid: u32) -> Self {
        Self { pid, start: None }
    }

    /// Returns when the process started: as its runtime recorded, else as the kernel reports now.
    ///
    /// # Errors
    /// Fails when the kernel's report cannot be read.
    pub(crate) fn started(self, host: &Host) -> io::Result<Option<u64>> {
        match self.start {
            None => procfs::start_time(host, self.pid),
            known => Ok(known),
        }
    }
}

/// Returns the init process from the runtime's state.
///
/// # Errors
/// Fails when the state cannot be read.
pub(crate) fn init(host: &Host, key: &ContainerKey) -> io::Result<Option<FoundInit>> {
    let folder = folder(host, key);
    if let Some(found) = init_at_the_beginning(&beginning(&folder.join(STATE_FILES[0]))?) {
        return Ok(Some(found));
    }
    Ok(RuntimeState::read(&folder)?.and_then(|state| state.init()))
}

/// Returns the beginning of a file; empty if there is none.
fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(BEGINNING);
    if let Some(file) = files::open_own(path).if_there()? {
        file.take(u64::try_from(BEGINNING).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Returns the init process that runc's state names before its long members; `None` if the text, which may be cut
/// off anywhere, does not have it completely.
fn init_at_the_beginning(text: &[u8]) -> Option<FoundInit> {
    // A number at the end may be cut off.
    let end = text.iter().rposition(|byte| matches!(byte, b',' | b'}'))?;
    let mut found = (None, None);
    // Fails at what follows the two members, or where the text is cut off.
    let _rest = Beginning(&mut found)
        .deserialize(&mut serde_json::Deserializer::from_slice(text.get(..=end)?));
    let (pid, start) = found;
    let start = start.filter(|start| *start > 0)?;
    Some(FoundInit { pid: pid.filter(|pid| *pid > 0)?, start: Some(start) })
}

/// Reads the first members of runc's state: PID and start of the init process.
struct Beginning<'f>(&'f mut (Option<u32>, Option<u64>));

impl<'de> DeserializeSeed<'de> for Beginning<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Beginning<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a container's state")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self((pid, start)) = self;
        while pid.is_none() || start.is_none() {
            match members.next_key::<String>()?.as_deref() {
                Some("init_process_pid") => *pid = Some(members.next_value()?),
                Some("init_process_start") => *start = Some(members.next_value()?),
                Some(_) => drop(members.next_value::<IgnoredAny>()?),
                None => break,
            }
        }
        Ok(())
    }
}

/// A container's cgroups, as its runtime recorded them.
#[derive(Debug, Default)]
pub(crate) struct RecordedCgroups {
    /// By controller; only runc's state lists them. crun's names one path, which is also that of the container's
    /// process.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// Whether systemd manages them.
    pub(crate) by_systemd: bool,
}

/// Returns the container's cgroups from the runtime's state; `None` without a state.
///
/// # Errors
/// Fails when the state is unreadable.
pub(crate) fn cgroups(host: &Host, key: &ContainerKey) -> io::Result<Option<RecordedCgroups>> {
    let state = RuntimeState::read(&folder(host, key))?;
    Ok(state.map(|state| RecordedCgroups { paths: state.cgroups, by_systemd: state.systemd }))
}

/// The state of one container, as its runtime wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuntimeState {
    /// The runtime that wrote the state.
    pub(crate) runtime: RuntimeKind,
    /// The bundle directory, if the state names it.
    pub(crate) bundle: Option<String>,
    /// The PID of the init process, if the state names it.
    pub(crate) pid: Option<u32>,
    /// When the init process started, in clock ticks since boot.
    pub(crate) start: Option<u64>,
    /// The cgroups by controller; empty unless runc wrote the state.
    pub(crate) cgroups: BTreeMap<String, PathBuf>,
    /// Whether systemd manages the cgroups.
    pub(crate) systemd: bool,
    /// When the file was written, in seconds of Unix time.
    written: i64,
}

/// Members of runc's `state.json`, crun's `status` and youki's `state.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StateFile<C: Default> {
    // runc
    init_process_pid: Value,
    init_process_start: Value,
    cgroup_paths: Value,
    config: C,
    // crun and youki
    pid: Value,
    bundle: Value,
    // crun
    #[serde(rename = "process-start-time")]
    process_start_time: Value,
    #[serde(rename = "systemd-cgroup")]
    systemd_cgroup: Value,
}

/// runc's `config`: it has hundreds of members, of which only two are used.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RuncConfig<C: Default> {
    labels: Value,
    cgroups: C,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RuncCgroups {
    systemd: Value,
}

/// A member that is treated as absent if it cannot be parsed, so that it does not hide the others.
#[derive(Default)]
struct Lenient<T>(T);

impl<'de, T: Default + DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(serde_json::from_value(value).unwrap_or_default()))
    }
}

type Exact = StateFile<RuncConfig<RuncCgroups>>;

/// Parses the file in one pass; if a member has an unexpected form, parses member by member.
fn parse(bytes: &[u8]) -> Option<Exact> {
    if let Ok(file) = serde_json::from_slice(bytes) {
        return Some(file);
    }
    let file: StateFile<Lenient<RuncConfig<Lenient<RuncCgroups>>>> =
        serde_json::from_slice(bytes).ok()?;
    let Lenient(RuncConfig { labels, cgroups: Lenient(cgroups) }) = file.config;
    Some(StateFile {
        config: RuncConfig { labels, cgroups },
        init_process_pid: file.init_process_pid,
        init_process_start: file.init_process_start,
        cgroup_paths: file.cgroup_paths,
        pid: file.pid,
        bundle: file.bundle,
        process_start_time: file.process_start_time,
        systemd_cgroup: file.systemd_cgroup,
    })
}

impl RuntimeState {
    /// Reads the state in a container's state directory; `None` if the file is missing or cannot be parsed.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<Self>> {
        for name in STATE_FILES {
            let path = folder.join(name);
            let Some(written) = stamp(&path)? else { continue };
            let bytes = files::read_own(&path, limits::CONTAINER_FILE).if_there()?;
            let Some(bytes) = bytes else { continue };
            if let Some(file) = parse(&bytes) {
                return Ok(Some(Self::from_file(name, file, written.1)));
            }
        }
        Ok(None)
    }

    fn from_file(name: &str, file: Exact, written: i64) -> Self {
        let labels = file.config.labels.as_array().into_iter().flatten();
        let label = labels.filter_map(Value::as_str).find_map(|l| l.strip_prefix("bundle="));
        let bundle = label.or_else(|| file.bundle.as_str());
        let runtime = match name {
            "status" => RuntimeKind::Crun,
            _ if label.is_some() => RuntimeKind::Runc,
            _ => RuntimeKind::Youki,
        };
        let number = |value: &Value| value.as_u64().filter(|number| *number > 0);
        let pid = number(&file.init_process_pid).or_else(|| number(&file.pid));
        Self {
            runtime,
            bundle: bundle.filter(|bundle| bundle.starts_with('/')).map(str::to_owned),
            pid: pid.and_then(|pid| u32::try_from(pid).ok()),
            start: number(&file.init_process_start).or_else(|| number(&file.process_start_time)),
            cgroups: serde_json::from_value(file.cgroup_paths).unwrap_or_default(),
            systemd: file.systemd_cgroup == true || file.config.cgroups.systemd == true,
            written,
        }
    }

    /// Returns the init process, if the state names it.
    pub(crate) fn init(&self) -> Option<FoundInit> {
        Some(FoundInit { pid: self.pid?, start: self.start })
    }

    /// Whether the file was written in this boot; true if the time of the boot is unknown.
    pub(crate) fn is_of_this_boot(&self, host: &Host) -> bool {
        booted(host).is_none_or(|booted| self.written >= booted)
    }
}

/// Converts clock ticks since boot to Unix time in nanoseconds; `None` if a value is unknown.
pub(crate) fn time_of_ticks(host: &Host, ticks: Option<u64>) -> Option<i64> {
    let since = i64::try_from(ticks? / TICKS).ok()?;
    Some((booted(host)? + since).saturating_mul(1_000_000_000))
}

/// Returns when this machine was booted, in seconds of Unix time.
fn booted(host: &Host) -> Option<i64> {
    let stat = files::read_kernel(&host.path("/proc/stat")).or_absent()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// Distinguishes a file from a later one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u64, pub(crate) i64, pub(crate) i64);

/// Returns the stamp of a file, if it exists.
///
/// # Errors
/// Fails when the file cannot be examined.
pub(crate) fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    let meta = std::fs::metadata(path).if_there()?;
    Ok(meta.map(|meta| Stamp(meta.ino(), meta.mtime(), meta.mtime_nsec())))
}

/// Returns the stamp of a call's PID file, if the call names one.
///
/// # Errors
/// Fails when the file cannot be examined.
pub(crate) fn pid_file_stamp(path: Option<&Path>) -> io::Result<Option<Stamp>> {
    Ok(path.map(stamp).transpose()?.flatten())
}

/// Returns the stamp of the runtime's state file: runc's `update` replaces it, crun's does not.
///
/// # Errors
/// Fails when the file cannot be examined.
pub(crate) fn state_stamp(host: &Host, key: &ContainerKey) -> io::Result<Option<Stamp>> {
    let folder = folder(host, key);
    for name in STATE_FILES {
        if let Some(found) = stamp(&folder.join(name))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, ContainerKey) {
        let temp = tempfile::tempdir().unwrap();
        let key = ContainerKey { root: temp.path().display().to_string(), id: "c".to_owned() };
        std::fs::create_dir(temp.path().join("c")).unwrap();
        for (name, text) in files {
            files::replace(&temp.path().join(name), text.as_bytes()).unwrap();
        }
        (temp, key)
    }

    #[test]
    fn a_fresh_pid_file_counts_and_a_stale_one_does_not() {
        let (temp, key) = place(&[("pid", "41"), ("c/state.json", "{\"init_process_pid\":42}")]);
        let file = temp.path().join("pid");
        assert_eq!(pid_in_file(&file, None).unwrap(), Some(41));
        assert_eq!(pid_in_file(&file, stamp(&file).unwrap()).unwrap(), None);
        assert!(pid_in_file(&temp.path().join("c"), None).is_err(), "it is a folder");
        assert_eq!(pid_in_file(&temp.path().join("none"), None).unwrap(), None);
        assert_eq!(init(&Host::default(), &key).unwrap(), Some(FoundInit::of_pid(42)));
    }

    #[test]
    fn crun_and_youki_states_are_understood() {
        let (_a, crun) = place(&[("c/status", "{\"pid\":7}")]);
        let (_b, youki) = place(&[("c/state.json", "{\"pid\":8}")]);
        for (key, pid) in [(crun, 7), (youki, 8)] {
            assert_eq!(init(&Host::default(), &key).unwrap(), Some(FoundInit::of_pid(pid)));
        }
    }

    #[test]
    fn invalid_and_stopped_states_have_no_process() {
        let (_a, garbage) = place(&[("c/state.json", "{{{")]);
        let (_b, stopped) = place(&[("c/status", "{\"pid\":0}")]);
        for key in [garbage, stopped] {
            assert_eq!(init(&Host::default(), &key).unwrap(), None);
        }
    }

    #[test]
    fn a_state_that_cannot_be_read_is_not_the_absence_of_one() {
        let (temp, key) = place(&[]);
        let host = Host::default();
        assert_eq!(init(&host, &key).unwrap(), None);
        assert!(exists(&host, &key).unwrap() && !waits_for_start(&host, &key).unwrap());
        // Links to themselves, which the kernel refuses to resolve.
        let odd =
            |name: &str| std::os::unix::fs::symlink(temp.path().join(name), temp.path().join(name));
        for name in ["c/state.json", "c/exec.fifo", "pid", "d"] {
            odd(name).unwrap();
        }
        assert!(init(&host, &key).is_err() && cgroups(&host, &key).is_err());
        assert!(state_stamp(&host, &key).is_err());
        assert!(waits_for_start(&host, &key).is_err());
        assert!(pid_in_file(&temp.path().join("pid"), None).is_err());
        assert!(exists(&host, &ContainerKey { id: "d".to_owned(), ..key }).is_err());
    }

    #[test]
    fn runcs_init_process_is_read_from_the_beginning_of_its_state() {
        let begins = r#"{"id":"c","init_process_pid":42,"init_process_start":900,"created":"x""#;
        let long = "x".repeat(2 * BEGINNING);
        for (rest, wanted) in [
            // Only the beginning is parsed.
            (format!(r#","config":{{"a":"{long}"#), Some((42, Some(900)))),
            ("}".to_owned(), Some((42, Some(900)))),
        ] {
            let (_temp, key) = place(&[("c/state.json", &format!("{begins}{rest}"))]);
            let found = init(&Host::default(), &key).unwrap();
            assert_eq!(found.map(|init| (init.pid, init.start)), wanted);
        }
        for (text, wanted) in [
            (format!(r#"{{"config":"{long}","init_process_pid":42}}"#), Some((42, None))),
            (
                format!(r#"{{"init_process_pid":42,"init_process_start":0,"x":"{long}"}}"#),
                Some((42, None)),
            ),
            (r#"{"init_process_pid":0,"init_process_start":900}"#.to_owned(), None),
            (r#"{"init_process_pid":-1,"init_process_start":900}"#.to_owned(), None),
            (r#"{"init_process_pid":"42","init_process_start":900}"#.to_owned(), None),
            (format!(r#"{{"init_process_pid":42,"x":"{long}"#), None),
            (r#"{"init_process_pid":42,"init_process_start":9"#.to_owned(), None),
            (r#"{"init_process_start":900,"init_process_pid":4"#.to_owned(), None),
        ] {
            let (_temp, key) = place(&[("c/state.json", &text)]);
            let found = init(&Host::default(), &key).unwrap();
            assert_eq!(found.map(|init| (init.pid, init.start)), wanted, "{text:.80}");
        }
    }

    #[test]
    fn a_recorded_start_takes_precedence_over_the_kernels() {
        let (host, own) = (Host::default(), std::process::id());
        let real = procfs::start_time(&host, own).unwrap();
        assert_eq!(FoundInit { pid: own, start: Some(7) }.started(&host).unwrap(), Some(7));
        assert_eq!(FoundInit::of_pid(own).started(&host).unwrap(), real);
        assert_eq!(FoundInit::of_pid(u32::MAX >> 2).started(&host).unwrap(), None);
    }

    fn understood(name: &str, state: &Value) -> RuntimeState {
        let temp = tempfile::tempdir().unwrap();
        files::replace(&temp.path().join(name), state.to_string().as_bytes()).unwrap();
        RuntimeState::read(temp.path()).unwrap().unwrap()
    }

    #[test]
    fn each_runtimes_state_is_understood() {
        let runc = json!({"id": "c", "init_process_pid": 7, "init_process_start": 900,
            "config": {"labels": ["a=b", "bundle=/b/c"], "cgroups": {"Systemd": true}},
            "cgroup_paths": {"cpu": "/sys/fs/cgroup/cpu/c"}});
        let runc = understood("state.json", &runc);
        assert_eq!(
            (runc.runtime, runc.bundle.as_deref(), runc.systemd),
            (RuntimeKind::Runc, Some("/b/c"), true)
        );
        assert_eq!((runc.pid, runc.start), (Some(7), Some(900)));
        assert_eq!(runc.cgroups["cpu"], Path::new("/sys/fs/cgroup/cpu/c"));
        let crun = json!({"pid": 8, "process-start-time": 901, "bundle": "/b/d",
            "systemd-cgroup": false});
        let crun = understood("status", &crun);
        assert_eq!(
            (crun.runtime, crun.bundle.as_deref(), crun.systemd),
            (RuntimeKind::Crun, Some("/b/d"), false)
        );
        assert_eq!((crun.pid, crun.start), (Some(8), Some(901)));
        let youki = json!({"id": "c", "status": "running", "pid": 9, "bundle": "/b/e"});
        let youki = understood("state.json", &youki);
        assert_eq!((youki.runtime, youki.pid, youki.start), (RuntimeKind::Youki, Some(9), None));
    }

    #[test]
    fn a_container_without_a_process_still_exists() {
        let ended = json!({"pid": 0, "bundle": "/b"});
        let ended = understood("status", &ended);
        assert_eq!((ended.pid, ended.bundle.as_deref()), (None, Some("/b")));
    }

    #[test]
    fn members_of_a_wrong_type_do_not_hide_the_others() {
        let odd = json!({"init_process_pid": 7, "pid": "x", "bundle": 3,
            "config": {"labels": 1, "cgroups": {"Systemd": "yes"}}});
        let odd = understood("state.json", &odd);
        for member in ["config", "cgroup_paths"] {
            let state = json!({"init_process_pid": 7, member: "odd"});
            assert_eq!(understood("state.json", &state).pid, Some(7), "{member}");
        }
        assert_eq!((odd.pid, odd.bundle, odd.systemd), (Some(7), None, false));
    }

    #[test]
    fn a_relative_bundle_or_invalid_state_counts_as_missing() {
        assert_eq!(understood("state.json", &json!({"bundle": "b"})).bundle, None);
        for text in ["{{", "\"x\"", "7"] {
            let (temp, _key) = place(&[("c/state.json", text)]);
            assert_eq!(RuntimeState::read(&temp.path().join("c")).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn a_state_from_before_the_boot_is_recognized_by_its_time() {
        let host = Host::default();
        let booted = booted(&host).unwrap();
        let state = |written| RuntimeState::from_file("status", StateFile::default(), written);
        assert!(state(booted + 1).is_of_this_boot(&host));
        assert!(!state(booted - 1).is_of_this_boot(&host));
        assert_eq!(time_of_ticks(&host, Some(300)), Some((booted + 3) * 1_000_000_000));
        assert_eq!(time_of_ticks(&host, None), None);
    }
}
