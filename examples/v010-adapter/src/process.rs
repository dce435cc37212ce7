// SPDX-License-Identifier: Apache-2.0
//! A plugin of NRI v0.1 as a process: it is started, receives the request, answers and ends, or is killed.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;

/// The longest answer, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// How much of an unreadable answer an error quotes, in characters.
const QUOTED: usize = 200;

/// Calls the plugin `name` in the folder `bin`, with this time limit; returns its result.
pub(crate) fn call(
    bin: &Path,
    name: &str,
    request: Vec<u8>,
    limit: Duration,
) -> Result<Value, String> {
    if Path::new(name).file_name().is_none_or(|file| file != name) {
        return Err("its name is not that of a file".to_owned());
    }
    let program = bin.join(name);
    let child =
        start(&program).map_err(|error| format!("starting {}: {error}", program.display()))?;
    let (status, output) = finish(child, request, limit)?;
    result(status, &output)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the adapter starts programs, each with a time limit"
)]
fn start(program: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.arg("invoke").env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Writes the request and reads the answer, each on a thread, because a plugin may do neither.
fn finish(
    mut child: Child,
    request: Vec<u8>,
    limit: Duration,
) -> Result<(ExitStatus, Vec<u8>), String> {
    let id = Pid::from_raw(i32::try_from(child.id()).map_err(|error| error.to_string())?);
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("it has no pipes".to_owned());
    };
    // A plugin may end without reading its request.
    std::thread::spawn(move || stdin.write_all(&request));
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(read(stdout, id)));
    let answer = receiver
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())));
    if answer.is_err() {
        // Kills the process and all that it started. It was not reaped, so the ID is still its own.
        let _may_have_ended = killpg(id, Signal::SIGKILL);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok((status, answer?))
}

/// Reads the whole answer, until the process has ended; does not reap the process.
fn read(stdout: ChildStdout, id: Pid) -> Result<Vec<u8>, String> {
    let mut output = Vec::new();
    let longest = u64::try_from(LONGEST_ANSWER).unwrap_or(u64::MAX);
    stdout.take(longest + 1).read_to_end(&mut output).map_err(|error| error.to_string())?;
    if output.len() > LONGEST_ANSWER {
        return Err(format!("its answer exceeds {LONGEST_ANSWER} bytes"));
    }
    let ended = waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    ended.map_err(|error| error.to_string())?;
    Ok(output)
}

/// A failed plugin has its message in `message` or, since NRI v0.2's adapter, in `error`.
fn result(status: ExitStatus, output: &[u8]) -> Result<Value, String> {
    let parsed = serde_json::from_slice::<Value>(output).ok().filter(Value::is_object);
    let text = |member: &str| {
        let text = parsed.as_ref()?[member].as_str()?;
        Some(text.chars().take(QUOTED).collect::<String>()).filter(|text| !text.is_empty())
    };
    let said = text("error").or_else(|| text("message").filter(|_| !status.success()));
    match (said, &parsed) {
        (Some(said), _) => Err(said),
        (None, Some(_)) if status.success() => Ok(parsed.unwrap_or_default()),
        _ => {
            let quoted: String = String::from_utf8_lossy(output).chars().take(QUOTED).collect();
            Err(format!("{status}, and its answer is not a result: {quoted:?}"))
        }
    }
}
