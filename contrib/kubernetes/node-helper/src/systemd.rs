// SPDX-License-Identifier: Apache-2.0
//! systemd over D-Bus: by its private socket, which needs no bus daemon, or by the system bus. A job
//! counts as done when systemd reports its end, not when it accepts it. No request is made about a unit
//! that does not exist.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::socket::UnixAddr;
use rustbus::connection::{Error as BusError, Timeout};
use rustbus::message_builder::MarshalledMessage;
use rustbus::wire::ObjectPath;
use rustbus::wire::unmarshal::traits::Variant;
use rustbus::{DuplexConn, MessageBuilder, MessageType, RpcConn};

use crate::{Failure, Result};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
/// A bus forwards only the requested signals.
const ENDED_JOBS: &str =
    "type='signal',interface='org.freedesktop.systemd1.Manager',member='JobRemoved'";

/// Time limit until systemd has accepted the connection.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Time limit of a query. While systemd reloads its units it responds to nothing, and a query at that
/// time may stay without a response.
const QUESTION_WAIT: Duration = Duration::from_secs(15);
/// Time limit of a call that changes something; a reload of all units is one.
const CALL_WAIT: Duration = Duration::from_secs(90);
/// Time limit of a job: an engine that stops and starts.
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
    let mut systemd = Systemd::connect(socket)?;
    match method {
        None => systemd.manager("Reload", |_call| Ok(())).map(|_reply| ()),
        Some(_) if units.is_empty() => Err(Failure::new("systemd: no unit is named")),
        Some(method) => {
            let unit = match systemd.choose(units) {
                Err(_) if systemd.is_silent => {
                    systemd = Systemd::connect(socket)?;
                    systemd.choose(units)
                }
                unit => unit,
            }?;
            systemd.run_job(method, &unit)
        }
    }
}

/// A connection to systemd.
struct Systemd {
    connection: RpcConn,
    /// Whether a call stayed without a response.
    is_silent: bool,
}

/// The outcome of writing a call's arguments.
type Written = std::result::Result<(), rustbus::wire::errors::MarshalError>;

impl Systemd {
    /// Connects in a separate thread, because neither connecting nor authenticating has a time limit.
    fn connect(socket: &Path) -> Result<Self> {
        let at = socket.display().to_string();
        let failed = |why: &str| Failure::new(format!("systemd at {at}: {why}"));
        let address = UnixAddr::new(socket).map_err(|errno| failed(errno.desc()))?;
        let (sender, connected) = channel();
        std::thread::spawn(move || {
            let _nobody_waits = sender.send(DuplexConn::connect_to_bus(address, false));
        });
        let mut connection = match connected.recv_timeout(CONNECT_WAIT) {
            Ok(connection) => connection.map_err(|error| failed(&text_of(&error)))?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let seconds = CONNECT_WAIT.as_secs();
                let text = format!("systemd at {at} did not answer within {seconds} s");
                return Err(Failure::new(text));
            }
        };
        let is_bus = at.ends_with("bus_socket");
        if is_bus {
            let wait = Timeout::Duration(CONNECT_WAIT);
            connection.send_hello(wait).map_err(|error| failed(&text_of(&error)))?;
        }
        let mut systemd = Self { connection: RpcConn::new(connection), is_silent: false };
        if is_bus {
            let call = MessageBuilder::new().call("AddMatch").at(BUS).on(BUS_PATH);
            let call = call.with_interface(BUS).build();
            systemd.call("AddMatch", call, |call| call.body.push_param(ENDED_JOBS))?;
        }
        Ok(systemd)
    }

    /// Calls a method; an error response is a failure with its text.
    fn call(
        &mut self,
        method: &str,
        call: MarshalledMessage,
        arguments: impl FnOnce(&mut MarshalledMessage) -> Written,
    ) -> Result<MarshalledMessage> {
        let reply = self.answer(method, call, arguments)?;
        match reply.typ {
            MessageType::Error => Err(failure(method, &said(&reply))),
            MessageType::Reply | MessageType::Signal | MessageType::Call | MessageType::Invalid => {
                Ok(reply)
            }
        }
    }

    fn answer(
        &mut self,
        method: &str,
        mut call: MarshalledMessage,
        arguments: impl FnOnce(&mut MarshalledMessage) -> Written,
    ) -> Result<MarshalledMessage> {
        arguments(&mut call).map_err(|error| failure(method, &format!("{error:?}")))?;
        let sent = self.connection.send_message(&mut call).and_then(|sending| {
            sending.write_all().map_err(rustbus::connection::ll_conn::force_finish_on_error)
        });
        let serial = sent.map_err(|error| failure(method, &text_of(&error)))?;
        let wait = wait_for(method);
        let reply = self.connection.wait_response(serial, Timeout::Duration(wait));
        self.is_silent = matches!(reply, Err(BusError::TimedOut));
        match reply {
            Ok(reply) => Ok(reply),
            Err(BusError::TimedOut) => {
                Err(failure(method, &format!("no answer within {} s", wait.as_secs())))
            }
            Err(error) => Err(failure(method, &text_of(&error))),
        }
    }

    /// Calls a method of systemd itself.
    fn manager(
        &mut self,
        method: &str,
        arguments: impl FnOnce(&mut MarshalledMessage) -> Written,
    ) -> Result<MarshalledMessage> {
        self.call(method, to_manager(method), arguments)
    }

    /// The first active unit; without one, the first failed one, because it may start now.
    fn choose(&mut self, units: &[&str]) -> Result<String> {
        let states = units.iter().map(|unit| {
            let unit = service(unit);
            self.state(&unit).map(|state| (unit, state))
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
            let all = all.collect::<Vec<_>>().join(", ");
            Failure::new(format!("systemd: no unit is active: {all}"))
        })
    }

    /// `active`, `failed`, …; `not loaded` if systemd does not know the unit.
    fn state(&mut self, unit: &str) -> Result<String> {
        let found =
            self.answer("GetUnit", to_manager("GetUnit"), |call| call.body.push_param(unit))?;
        if found.dynheader.error_name.as_deref() == Some(NO_SUCH_UNIT) {
            return Ok("not loaded".to_owned());
        }
        if found.typ == MessageType::Error {
            return Err(failure("GetUnit", &said(&found)));
        }
        let path = path_in("GetUnit", &found)?;
        let get = MessageBuilder::new().call("Get").with_interface(PROPERTIES);
        let get = get.on(path).at(SERVICE).build();
        let reply =
            self.call("ActiveState", get, |call| call.body.push_param2(UNIT, "ActiveState"))?;
        let value = reply.body.parser().get::<Variant<'_, '_>>();
        let state = value.and_then(|value| value.get::<&str>().map(str::to_owned));
        state.map_err(|error| failure("ActiveState", &format!("{error:?}")))
    }

    /// Starts the job, and waits until systemd reports its end. The connection keeps a signal that
    /// arrives before the response.
    fn run_job(&mut self, method: &str, unit: &str) -> Result<()> {
        // On the private socket every connection receives the signals of jobs; on the bus, only
        // subscribers do.
        let _not_needed_there = self.manager("Subscribe", |_call| Ok(()));
        let deadline = Instant::now() + JOB_WAIT;
        let reply = self.manager(method, |call| call.body.push_param2(unit, "replace"))?;
        let job = path_in(method, &reply)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let signal = self.connection.wait_signal(Timeout::Duration(left));
            let signal = signal.map_err(|error| not_ended(unit, &error))?;
            match result_of(&job, &signal).as_deref() {
                None => {}
                Some("done") => return Ok(()),
                Some(result) => {
                    let text = format!("systemd: the job of {unit} ended with \"{result}\"");
                    return Err(Failure::new(text));
                }
            }
        }
    }
}

/// The reason why a job's end is unknown.
fn not_ended(unit: &str, error: &BusError) -> Failure {
    let seconds = JOB_WAIT.as_secs();
    Failure::new(if matches!(error, BusError::TimedOut) {
        format!("systemd: the job of {unit} did not end within {seconds} s")
    } else if matches!(error, BusError::ConnectionClosed) {
        format!("systemd closed the connection before the job of {unit} ended")
    } else {
        format!("systemd: waiting for the job of {unit}: {}", text_of(error))
    })
}

fn wait_for(method: &str) -> Duration {
    match method {
        "Reload" | "RestartUnit" | "ReloadUnit" => CALL_WAIT,
        _ => QUESTION_WAIT,
    }
}

fn to_manager(method: &str) -> MarshalledMessage {
    let call = MessageBuilder::new().call(method).with_interface(MANAGER);
    call.on(MANAGER_PATH).at(SERVICE).build()
}

fn failure(method: &str, why: &str) -> Failure {
    Failure::new(format!("systemd: {method}: {why}"))
}

/// The kernel's text if the error is the kernel's, else the library's.
fn text_of(error: &BusError) -> String {
    if let BusError::IoError(error) = error {
        return error.to_string();
    }
    if let BusError::NixError(errno) = error {
        return errno.desc().to_owned();
    }
    error.to_string()
}

/// The text of an error.
fn said(error: &MarshalledMessage) -> String {
    let text = error.body.parser().get::<&str>().map(str::to_owned).unwrap_or_default();
    if text.is_empty() { error.dynheader.error_name.clone().unwrap_or_default() } else { text }
}

/// The path in the response.
fn path_in(method: &str, reply: &MarshalledMessage) -> Result<String> {
    let path = reply.body.parser().get::<ObjectPath<&str>>();
    let path = path.map(|path| AsRef::<str>::as_ref(&path).to_owned());
    path.map_err(|error| failure(method, &format!("{error:?}")))
}

/// The result of this job, if the signal reports its end.
fn result_of(job: &str, signal: &MarshalledMessage) -> Option<String> {
    let header = &signal.dynheader;
    let is_ended = header.interface.as_deref() == Some(MANAGER)
        && header.member.as_deref() == Some("JobRemoved");
    if !is_ended {
        return None;
    }
    let (_, path, _, result) =
        signal.body.parser().get4::<u32, ObjectPath<&str>, &str, &str>().ok()?;
    (AsRef::<str>::as_ref(&path) == job).then(|| result.to_owned())
}

fn service(name: &str) -> String {
    let has_kind = UNIT_KINDS.iter().any(|kind| name.ends_with(kind));
    if has_kind { name.to_owned() } else { format!("{name}.service") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_name_without_a_suffix_is_a_service() {
        assert_eq!(service("k3s"), "k3s.service");
        assert_eq!(
            service("snap.microk8s.daemon-containerd"),
            "snap.microk8s.daemon-containerd.service"
        );
        assert_eq!(service("docker.socket"), "docker.socket");
    }
}
