// SPDX-License-Identifier: Apache-2.0
//! systemd over D-Bus: its private socket, which needs no bus daemon, or the system bus. A job counts
//! as done when systemd says so, not when it accepts it. Nothing is asked of a unit that is not there.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use zbus::blocking::connection::Builder;
use zbus::blocking::{Connection, MessageIterator};
use zbus::zvariant::{OwnedObjectPath, OwnedValue};

use crate::{Failure, Result};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// How long systemd may take until it has accepted the connection.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long one call may take; a reload of all units is one.
const CALL_WAIT: Duration = Duration::from_secs(90);
/// How long a job may take: an engine that stops and starts.
const JOB_WAIT: Duration = Duration::from_secs(180);

/// The endings of systemd's units: a name without one of them is a service, as for systemctl.
const UNIT_KINDS: [&str; 11] = [
    ".service",
    ".socket",
    ".target",
    ".device",
    ".mount",
    ".automount",
    ".swap",
    ".path",
    ".timer",
    ".slice",
    ".scope",
];

/// A job that has ended: its path and its result.
type EndedJob = (OwnedObjectPath, String);

/// Does `verb` with the first of these units that is active, and waits until it is done.
///
/// # Errors
/// Fails when systemd cannot be reached, has none of the units, or the job does not end well.
pub(crate) fn run(socket: &Path, verb: &str, units: &[&str]) -> Result<()> {
    let method = match verb {
        "daemon-reload" => None,
        "restart" => Some("RestartUnit"),
        "reload" => Some("ReloadUnit"),
        other => return Err(Failure::new(format!("systemd: {other} is no verb of this program"))),
    };
    let connection = connect(socket)?;
    match method {
        None => call(&connection, "Reload", &()).map(|_reply| ()),
        Some(_) if units.is_empty() => Err(Failure::new("systemd: no unit is named")),
        Some(method) => {
            let unit = choose(&connection, units)?;
            run_job(&connection, method, &unit)
        }
    }
}

/// In a thread of its own: neither connecting nor authenticating is bounded by itself.
fn connect(socket: &Path) -> Result<Connection> {
    let at = socket.display().to_string();
    let is_bus = at.ends_with("bus_socket");
    let address = format!("unix:path={}", escaped(&at));
    let (sender, connected) = channel();
    std::thread::spawn(move || {
        let builder = Builder::address(address.as_str()).map(|builder| {
            let builder = builder.method_timeout(CALL_WAIT);
            if is_bus { builder } else { builder.p2p() }
        });
        let _nobody_waits = sender.send(builder.and_then(Builder::build));
    });
    match connected.recv_timeout(CONNECT_WAIT) {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(Failure::new(format!("systemd at {at}: {error}"))),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let seconds = CONNECT_WAIT.as_secs();
            Err(Failure::new(format!("systemd at {at} did not answer within {seconds} s")))
        }
    }
}

/// As a value of a D-Bus address.
fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_/.\\*".contains(&byte);
    let bytes = path.bytes().map(|byte| match byte {
        plain if is_plain(plain) => char::from(plain).to_string(),
        other => format!("%{other:02x}"),
    });
    bytes.collect()
}

fn call<B>(connection: &Connection, method: &str, body: &B) -> Result<zbus::Message>
where
    B: zbus::export::serde::Serialize + zbus::zvariant::DynamicType,
{
    let reply = connection.call_method(Some(SERVICE), MANAGER_PATH, Some(MANAGER), method, body);
    reply.map_err(|error| failure(method, &error))
}

fn failure(method: &str, error: &zbus::Error) -> Failure {
    Failure::new(format!("systemd: {method}: {}", text_of(error)))
}

/// What systemd itself says, where it does.
fn text_of(error: &zbus::Error) -> String {
    if let zbus::Error::MethodError(_, Some(text), _) = error {
        return text.clone();
    }
    error.to_string()
}

fn service(name: &str) -> String {
    let has_kind = UNIT_KINDS.iter().any(|kind| name.ends_with(kind));
    if has_kind { name.to_owned() } else { format!("{name}.service") }
}

/// The first that is active; without one, the first that failed: it may start now.
fn choose(connection: &Connection, units: &[&str]) -> Result<String> {
    let states = units.iter().map(|unit| {
        let unit = service(unit);
        state(connection, &unit).map(|state| (unit, state))
    });
    let states: Vec<(String, String)> = states.collect::<Result<_>>()?;
    let is = |wanted: &'static [&str]| {
        states.iter().find(move |(_, state)| wanted.contains(&state.as_str()))
    };
    let found = is(&["active", "reloading", "refreshing"])
        .or_else(|| is(&["activating", "deactivating"]))
        .or_else(|| is(&["failed"]));
    found.map(|(unit, _)| unit.clone()).ok_or_else(|| {
        let all = states.iter().map(|(unit, state)| format!("{unit} is {state}"));
        Failure::new(format!("systemd: no unit is active: {}", all.collect::<Vec<_>>().join(", ")))
    })
}

/// `active`, `failed`, …; `not loaded` where systemd does not know the unit.
fn state(connection: &Connection, unit: &str) -> Result<String> {
    let (path, manager) = (MANAGER_PATH, Some(MANAGER));
    let found = connection.call_method(Some(SERVICE), path, manager, "GetUnit", &(unit,));
    let found = match found {
        Err(zbus::Error::MethodError(name, _, _)) if name.as_str() == NO_SUCH_UNIT => {
            return Ok("not loaded".to_owned());
        }
        found => found.map_err(|error| failure("GetUnit", &error))?,
    };
    let asked = || {
        let path: OwnedObjectPath = found.body().deserialize()?;
        let properties = Some("org.freedesktop.DBus.Properties");
        let body = (UNIT, "ActiveState");
        let reply = connection.call_method(Some(SERVICE), path, properties, "Get", &body)?;
        let value: OwnedValue = reply.body().deserialize()?;
        Ok(String::try_from(value)?)
    };
    asked().map_err(|error: zbus::Error| failure("ActiveState", &error))
}

/// Listens first: a job may have ended before its path is known here.
fn run_job(connection: &Connection, method: &str, unit: &str) -> Result<()> {
    let ended = ended_jobs(connection);
    // On the private socket every connection hears of jobs; on the bus, those that subscribed.
    let _not_needed_there = call(connection, "Subscribe", &());
    let deadline = Instant::now() + JOB_WAIT;
    let reply = call(connection, method, &(unit, "replace"))?;
    let job: OwnedObjectPath = reply
        .body()
        .deserialize()
        .map_err(|error| Failure::new(format!("systemd: {method} {unit}: {error}")))?;
    loop {
        match ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((path, _)) if path != job => {}
            Ok((_, result)) if result == "done" => return Ok(()),
            Ok((_, result)) => {
                let text = format!("systemd: the job of {unit} ended with \"{result}\"");
                return Err(Failure::new(text));
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = JOB_WAIT.as_secs();
                let text = format!("systemd: the job of {unit} did not end within {seconds} s");
                return Err(Failure::new(text));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let text = format!("systemd closed the connection before the job of {unit} ended");
                return Err(Failure::new(text));
            }
        }
    }
}

fn ended_jobs(connection: &Connection) -> Receiver<EndedJob> {
    let (sender, ended) = channel();
    let messages = MessageIterator::from(connection);
    std::thread::spawn(move || {
        for message in messages.map_while(zbus::Result::ok) {
            let header = message.header();
            let is_ended = header.interface().is_some_and(|name| name == MANAGER)
                && header.member().is_some_and(|name| name == "JobRemoved");
            if !is_ended {
                continue;
            }
            let body: zbus::Result<(u32, OwnedObjectPath, String, String)> =
                message.body().deserialize();
            let Ok((_, job, _, result)) = body else { continue };
            if sender.send((job, result)).is_err() {
                return;
            }
        }
    });
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_kind_is_a_service() {
        assert_eq!(service("k3s"), "k3s.service");
        assert_eq!(
            service("snap.microk8s.daemon-containerd"),
            "snap.microk8s.daemon-containerd.service"
        );
        assert_eq!(service("docker.socket"), "docker.socket");
    }

    #[test]
    fn a_path_is_no_more_than_one_value_of_an_address() {
        assert_eq!(escaped("/run/systemd/private"), "/run/systemd/private");
        assert_eq!(escaped("/a,b;c d%"), "/a%2cb%3bc%20d%25");
    }
}
