// SPDX-License-Identifier: Apache-2.0
//! A terminal on which verbs run, and their output on it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use test_support::{TestHost, wait_until};

/// A terminal and the program on it.
pub(super) struct Terminal {
    pub(super) master: File,
    slave: OwnedFd,
    pub(super) seen: String,
}

impl Terminal {
    pub(super) fn new(columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let mut options = File::options();
        let slave = options.read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        rustix::io::ioctl_fionbio(&master, true).unwrap();
        Self { master: File::from(master), slave: slave.into(), seen: String::new() }
    }

    pub(super) fn run_top(&self, host: &TestHost, words: &[&str]) -> Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        host.spawn_on(&[&["nri", "top"], words].concat(), end(), end())
    }

    /// A verb, with its standard error on the terminal too.
    pub(super) fn run(&self, host: &TestHost, words: &[&str], env: &[(&str, &str)]) -> Child {
        host.spawn_at(&[&["nri"][..], words].concat(), &self.slave, env)
    }

    /// The output of a verb until it exits, and its exit code.
    pub(super) fn page(
        &mut self,
        host: &TestHost,
        words: &[&str],
        env: &[(&str, &str)],
    ) -> (Option<i32>, String) {
        self.seen.clear();
        let mut child = self.run(host, words, env);
        let mut ended = None;
        // A terminal buffers only a few thousand characters.
        wait_until("it has ended", || {
            self.shown();
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        (ended.and_then(|status| status.code()), self.shown().to_owned())
    }

    /// The whole output so far.
    pub(super) fn shown(&mut self) -> &str {
        let mut bytes = [0; 65536];
        while let Ok(read @ 1..) = self.master.read(&mut bytes) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        &self.seen
    }

    pub(super) fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }
}

pub(super) fn ends(child: &mut Child) -> Option<i32> {
    let mut code = None;
    wait_until("it has ended", || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    code.and_then(|status| status.code())
}

pub(super) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}
