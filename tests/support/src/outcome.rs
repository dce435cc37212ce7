// SPDX-License-Identifier: Apache-2.0
//! The result of a call of the program, a process that ends with its test, and its resource usage.

use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{TestHost, example};

/// Checks that the call succeeded; otherwise its standard error is shown.
#[track_caller]
pub fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Checks that the call failed with one line that has all these words.
#[track_caller]
pub fn fails(output: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.lines().count() == 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

/// A process that is killed when its test ends.
pub struct Started(pub Child);

impl Started {
    /// A plugin as a separate process, `10-name`, which reconnects whenever it is disconnected.
    pub fn plugin(host: &TestHost, id: &str) -> Self {
        Self::plugin_under(host, &[], id)
    }

    /// Starts the plugin by another program, whose words come first.
    pub fn plugin_under(host: &TestHost, wrapped: &[&str], id: &str) -> Self {
        let program = example("event_logger").display().to_string();
        let socket = host.path("nri.sock").display().to_string();
        let own = [program.as_str(), "--reconnect", "--id", id, "--socket", &socket];
        let words = [wrapped, &own].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), signal).unwrap();
    }
}

impl std::ops::Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A number in the `status` of a process, such as the kilobytes in `VmHWM`.
pub fn in_status(pid: impl std::fmt::Display, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap()
}
