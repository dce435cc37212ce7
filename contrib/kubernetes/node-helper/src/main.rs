// SPDX-License-Identifier: Apache-2.0
//! The helper of `nri-runc nri node` in the pod of a DaemonSet: D-Bus to systemd, HTTPS to the API server.
//! Each call does one thing and ends; every wait is bounded. It makes no decisions, and stores nothing.
//!
//! ```text
//! nri-runc-node-helper systemd SOCKET restart|reload|daemon-reload UNIT...
//! nri-runc-node-helper api GET|PATCH|STRATEGIC|POST|DELETE PATH [SECONDS]    (the body on stdin)
//! nri-runc-node-helper remove NAMESPACE/DAEMONSET RUNTIMECLASS LABEL SECONDS
//! ```
//!
//! Exit codes: 0 done, 1 failed, 2 usage, 3 the API server forbids it, 4 there is no such object, 5 the object
//! changed meanwhile or is there already, 6 the request is not valid.

mod api;
mod removal;
mod systemd;

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: nri-runc-node-helper systemd SOCKET restart|reload|daemon-reload UNIT...\n\
                     \x20      nri-runc-node-helper api GET|PATCH|STRATEGIC|POST|DELETE PATH [SECONDS]\n\
                     \x20      nri-runc-node-helper remove NAMESPACE/DAEMONSET RUNTIMECLASS LABEL SECONDS\n";

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    /// The exit code if the API server forbids the request.
    pub(crate) const FORBIDDEN: u8 = 3;
    /// ... if there is no such object.
    pub(crate) const NOT_FOUND: u8 = 4;
    /// ... if the object changed meanwhile, or already exists.
    pub(crate) const CONFLICT: u8 = 5;
    /// ... if the request itself is invalid.
    pub(crate) const INVALID: u8 = 6;
    const FAILED: u8 = 1;
    const USAGE: u8 = 2;

    /// A failure with exit code 1.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { code: Self::FAILED, text: text.into() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    match words.ok_or_else(usage).and_then(|words| run(&words)) {
        Ok(answer) => {
            let written = std::io::stdout().write_all(answer.as_bytes());
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => {
            say(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints one line on stderr, even if a server's text has several; the usage has its own lines.
fn say(failure: &Failure) {
    let text = if failure.code == Failure::USAGE {
        failure.text.clone()
    } else {
        let plain = failure.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let plain: String = plain.chars().filter(|letter| !letter.is_control()).collect();
        format!("nri-runc-node-helper: {plain}\n")
    };
    let _nobody_reads = std::io::stderr().write_all(text.as_bytes());
}

/// Does what the command line says; returns the text for standard output.
fn run(words: &[&str]) -> Result<String> {
    match words {
        ["systemd", socket, verb, units @ ..] => {
            systemd::run(Path::new(socket), verb, units).map(|()| String::new())
        }
        ["api", method, path, within @ ..] if within.len() <= 1 => {
            let within = match within.first().map(|seconds| seconds.parse()) {
                None => api::REQUEST_WAIT,
                Some(seconds) => Duration::from_secs(seconds.map_err(|_error| usage())?),
            };
            let mut body = String::new();
            if api::body_type(method).is_some() {
                let read = std::io::stdin().read_to_string(&mut body);
                read.map_err(|error| Failure::new(format!("reading stdin: {error}")))?;
            }
            api::ApiServer::of_pod(within)?.request(method, path, &body)
        }
        ["remove", daemonset, class, label, seconds] => {
            let within = seconds.parse().map_err(|_error| usage())?;
            let (namespace, name) = daemonset.split_once('/').ok_or_else(usage)?;
            let installed = removal::Installed { namespace, name, class, label };
            let server = api::ApiServer::of_pod(api::REQUEST_WAIT)?;
            removal::remove(&server, &installed, Duration::from_secs(within))
                .map(|()| String::new())
        }
        _ => Err(usage()),
    }
}

fn usage() -> Failure {
    Failure { code: Failure::USAGE, text: USAGE.to_owned() }
}
