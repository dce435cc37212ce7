// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri reexec`: state that survives, programs that cannot replace the daemon's, unusable
//! states, and SIGKILL at each point.

mod earlier;
mod failing;
mod installed;
mod kept;
mod protocol;
mod proxy;

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use test_support::{Started, TestHost, wait_until};

/// A daemon whose program is a separate file, which tests replace.
pub(crate) struct Installed {
    daemon: Started,
    pub(crate) host: TestHost,
}

impl Installed {
    pub(crate) fn new(more: &str) -> Self {
        Self::with_environment(more, &[])
    }

    pub(crate) fn with_environment(more: &str, variables: &[(&str, &Path)]) -> Self {
        let host = TestHost::new(more);
        install(&host, b"");
        Self::started(host, variables)
    }

    /// A daemon of this program instead of the one under test.
    pub(crate) fn of(program: &Path, more: &str) -> Self {
        let host = TestHost::new(more);
        put(&host, &std::fs::read(program).unwrap());
        Self::started(host, &[])
    }

    fn started(host: TestHost, variables: &[(&str, &Path)]) -> Self {
        let daemon = start(&host, variables);
        let installed = Self { daemon, host };
        wait_until("it answers", || installed.pid() == u64::from(installed.daemon.id()));
        installed
    }

    pub(crate) fn pid(&self) -> u64 {
        self.host.admin(&["status"])["pid"].as_u64().unwrap_or_default()
    }

    pub(crate) fn reexec(&self) -> Output {
        self.host.call(&["nri", "reexec"])
    }

    /// Re-executes successfully; returns the answer.
    #[track_caller]
    pub(crate) fn reexecuted(&self) -> Value {
        let output = self.host.call(&["nri", "--json", "reexec"]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}\n{}", self.host.read("daemon.err"));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["pid"], self.daemon.id(), "{document}");
        document
    }

    /// Reaps the started process; returns false while it runs.
    pub(crate) fn reap(&mut self) -> bool {
        self.daemon.try_wait().unwrap().is_some()
    }

    /// Starts the daemon again, from the same file.
    pub(crate) fn start_again(&mut self) {
        wait_until("it has ended", || self.reap());
        install(&self.host, b"");
        self.daemon = start(&self.host, &[]);
        wait_until("it answers", || self.pid() == u64::from(self.daemon.id()));
    }
}

fn program(host: &TestHost) -> PathBuf {
    host.path("installed")
}

/// Installs the program under test with additional bytes.
pub(crate) fn install(host: &TestHost, more: &[u8]) {
    let built = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
    put(host, &[&built, more].concat());
}

/// Installs a script instead of the program.
pub(crate) fn install_script(host: &TestHost, text: &str) {
    put(host, format!("#!/bin/sh\n{text}\n").as_bytes());
}

pub(crate) fn put(host: &TestHost, bytes: &[u8]) {
    test_support::program::put(&program(host), bytes);
}

fn start(host: &TestHost, variables: &[(&str, &Path)]) -> Started {
    let mut options = std::fs::OpenOptions::new();
    let log = options.append(true).create(true).open(host.path("daemon.err")).unwrap();
    let mut command = std::process::Command::new(program(host));
    command.env("NRI_RUNC_CONFIG", host.path("config.toml")).args(["nri", "daemon"]);
    command.envs(variables.iter().map(|(name, path)| (*name, *path)));
    let null = std::process::Stdio::null;
    Started(command.stdin(null()).stdout(null()).stderr(log).spawn().unwrap())
}
