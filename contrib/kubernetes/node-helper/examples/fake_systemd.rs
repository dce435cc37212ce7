// SPDX-License-Identifier: Apache-2.0
//! A systemd for tests: its private socket, the parts of its interface that the helper uses, and a
//! program that performs the operations of its units. It serves until it is killed.
//!
//! ```text
//! fake_systemd SOCKET PROGRAM UNIT=STATE...
//! ```
//!
//! `PROGRAM restart|reload UNIT` performs a job; its exit code is the job's result (0 `done`, 1
//! `failed`, 2 `timeout`, and with 3 the job never ends). `PROGRAM daemon-reload` is systemd's own
//! reload.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use zbus::object_server::SignalEmitter;
use zbus::zvariant::{ObjectPath, OwnedObjectPath};
use zbus::{DBusError, connection, interface};

const MANAGER_PATH: &str = "/org/freedesktop/systemd1";

#[derive(Debug, DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum SystemdError {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchUnit(String),
    JobTypeNotApplicable(String),
}

/// A unit, by its name without `.service`.
#[derive(Debug, Clone)]
struct Unit {
    name: String,
    state: String,
}

impl Unit {
    fn parse(word: &str) -> Option<Self> {
        let (name, state) = word.split_once('=')?;
        Some(Self { name: format!("{name}.service"), state: state.to_owned() })
    }

    fn path(&self) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let name: String = self.name.chars().map(plain).collect();
        format!("{MANAGER_PATH}/unit/{name}")
    }
}

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn active_state(&self) -> &str {
        &self.state
    }
}

#[derive(Debug, Clone)]
struct Manager {
    program: PathBuf,
    units: Vec<Unit>,
}

static NEXT_JOB: AtomicU32 = AtomicU32::new(1);

impl Manager {
    fn unit(&self, name: &str) -> Result<&Unit, SystemdError> {
        let found = self.units.iter().find(|unit| unit.name == name && unit.state != "absent");
        found.ok_or_else(|| SystemdError::NoSuchUnit(format!("Unit {name} not loaded.")))
    }

    async fn exit_code(&self, words: &[&str]) -> i32 {
        let status = tokio::process::Command::new(&self.program).args(words).status().await;
        status.ok().and_then(|status| status.code()).unwrap_or(1)
    }

    /// Begins a job; at its end every connection receives a signal.
    fn begin(
        &self,
        verb: &'static str,
        unit: &str,
        emitter: &SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, SystemdError> {
        let unit = self.unit(unit)?.name.clone();
        let id = NEXT_JOB.fetch_add(1, Ordering::Relaxed);
        let job = OwnedObjectPath::try_from(format!("{MANAGER_PATH}/job/{id}"));
        let job = job.map_err(|error| SystemdError::ZBus(error.into()))?;
        let (manager, emitter, path) = (self.clone(), emitter.to_owned(), job.clone());
        tokio::spawn(async move {
            // The job of another client ends first.
            let other =
                ObjectPath::from_static_str_unchecked("/org/freedesktop/systemd1/job/999999");
            let _gone =
                Self::job_removed(&emitter, 999_999, other, "other.service", "failed").await;
            let result = match manager.exit_code(&[verb, &unit]).await {
                0 => "done",
                2 => "timeout",
                3 => return,
                _ => "failed",
            };
            let _gone = Self::job_removed(&emitter, id, path.as_ref(), &unit, result).await;
        });
        Ok(job)
    }
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn get_unit(&self, name: &str) -> Result<OwnedObjectPath, SystemdError> {
        let path = OwnedObjectPath::try_from(self.unit(name)?.path());
        path.map_err(|error| SystemdError::ZBus(error.into()))
    }

    fn restart_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, SystemdError> {
        if mode != "replace" {
            return Err(SystemdError::JobTypeNotApplicable(format!("mode {mode}")));
        }
        self.begin("restart", name, &emitter)
    }

    fn reload_unit(
        &self,
        name: &str,
        _mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, SystemdError> {
        if self.unit(name)?.name.starts_with("containerd") {
            let text = format!("Job type reload is not applicable for unit {name}.");
            return Err(SystemdError::JobTypeNotApplicable(text));
        }
        self.begin("reload", name, &emitter)
    }

    async fn reload(&self) -> Result<(), SystemdError> {
        match self.exit_code(&["daemon-reload"]).await {
            0 => Ok(()),
            _ => Err(SystemdError::ZBus(zbus::Error::Failure("reloading failed".to_owned()))),
        }
    }

    fn subscribe(&self) {}

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

async fn serve(stream: tokio::net::UnixStream, manager: Manager) -> zbus::Result<()> {
    let mut builder = connection::Builder::unix_stream(stream)
        .server(zbus::Guid::generate())?
        .p2p()
        .serve_at(MANAGER_PATH, manager.clone())?;
    for unit in manager.units {
        builder = builder.serve_at(unit.path(), unit)?;
    }
    let connection = builder.build().await?;
    connection.closed().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [socket, program, units @ ..] = words.as_slice() else {
        return Err("usage: fake_systemd SOCKET PROGRAM UNIT=STATE...".into());
    };
    let units = units.iter().map(|unit| unit.to_str().and_then(Unit::parse));
    let units: Option<Vec<Unit>> = units.collect();
    let manager = Manager { program: program.into(), units: units.ok_or("a unit is UNIT=STATE")? };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let _of_an_earlier_one = std::fs::remove_file(socket);
        let listener = tokio::net::UnixListener::bind(socket)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let manager = manager.clone();
            tokio::spawn(async move {
                if let Err(error) = serve(stream, manager).await {
                    eprintln!("fake_systemd: {error}");
                }
            });
        }
    })
}
