// SPDX-License-Identifier: Apache-2.0
//! Podman for the suite of all engines.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use test_support::podman::{IMAGE, PodmanHost};

use super::installed;
use crate::suite::client::{self, Client};
use crate::suite::{Call, Printed, Tested, Wanted};

/// A device that is a node and a variable.
const CDI: &str = r#"{"cdiVersion": "0.3.0", "kind": "example.org/card", "devices": [{"name": "one",
"containerEdits": {"env": ["CARD=one"], "deviceNodes": [{"path": "/dev/full"}]}}]}"#;

impl Tested for PodmanHost {
    const NAME: &'static str = "podman";
    const VARIABLE: (&'static str, &'static str) = ("FROM_IMAGE", "yes");
    const DEVICE: [&'static str; 3] = ["cdi", "example.org/card=*", "example.org/card=one"];

    fn with_nri_runc() -> Option<Self> {
        installed("")
    }

    fn with_device() -> Option<Self> {
        let host = installed("")?;
        host.write("etc/cdi/card.json", CDI);
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        Self::path(self, name)
    }

    fn admin(&self, words: &[&str]) -> Value {
        Self::admin(self, words)
    }

    fn kill_daemon(&mut self) {
        Self::kill_daemon(self);
    }

    fn start_daemon(&mut self) {
        Self::start_daemon(self);
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        Self::wait_until(self, what, is_so);
    }

    fn run(&self, wanted: &Wanted<'_>) -> Result<String, String> {
        client::run(self, wanted)
    }

    fn exec(&self, name: &str, call: &Call<'_>) -> Printed {
        client::exec(self, name, call)
    }

    fn end(&self, name: &str, kills: bool) -> String {
        client::end(self, name, kills)
    }

    fn remove(&self, names: &[&str]) {
        self.good(&[&["rm", "--force", "--time", "0"], names].concat());
    }
}

impl Client for PodmanHost {
    const IMAGE: &'static str = IMAGE;
    const SCOPE: &'static str = "libpod";
    const RECORDS_REQUESTS: bool = false;
    const DEVICE_OPTION: &'static str = "--device=example.org/card=one";

    fn call(&self, words: &[&str]) -> Output {
        self.podman(words)
    }

    fn parent(&self) -> String {
        self.cgroup()
    }

    fn annotations(&self, id: &str) -> Value {
        let state = self.call(&self.tool("runc"), &["state", id]).stdout;
        serde_json::from_slice::<Value>(&state).unwrap()["annotations"].take()
    }

    fn run_words(&self) -> Vec<String> {
        let cgroup = format!("--cgroup-parent={}", self.cgroup());
        let words = ["--runtime", "nri-runc", "run", "--detach", "--network", "none", &cgroup];
        words.map(str::to_owned).to_vec()
    }
}
