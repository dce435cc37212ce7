// SPDX-License-Identifier: Apache-2.0
//! Docker for the suite of all engines.

use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};

use super::engine::{Docker, IMAGE};
use crate::suite::client::{self, Client};
use crate::suite::{Call, Printed, Tested, Wanted};

impl Tested for Docker {
    const NAME: &'static str = "docker";
    const VARIABLE: (&'static str, &'static str) = ("FROM", "image");
    const CONFIG: &'static str = "config.toml";
    const DEVICE: [&'static str; 3] = ["devices", "/dev/full", "/dev/full"];

    fn with_nri_runc() -> Option<Self> {
        Self::new()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.path(name)
    }

    fn admin(&self, words: &[&str]) -> Value {
        self.host.admin(words)
    }

    fn kill_daemon(&mut self) {
        self.host.kill_daemon();
    }

    fn start_daemon(&mut self) {
        self.host.start_daemon();
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        test_support::wait_until(what, is_so);
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
        self.output_of(&[&["rm", "--force"], names].concat());
    }

    fn no_container_is_left(&self) {
        test_support::wait_until("no pod is known", || self.host.admin(&["pods"]) == json!([]));
        Self::no_container_is_left(self);
    }
}

impl Client for Docker {
    const IMAGE: &'static str = IMAGE;
    const SCOPE: &'static str = "docker";
    const RECORDS_REQUESTS: bool = true;
    const DEVICE_OPTION: &'static str = "--device=/dev/full:/dev/mine";

    fn call(&self, words: &[&str]) -> Output {
        Self::call(self, words)
    }

    fn parent(&self) -> String {
        self.cgroup()
    }

    fn annotations(&self, id: &str) -> Value {
        self.document(id)["annotations"].take()
    }

    fn run_words(&self) -> Vec<String> {
        ["run", "--detach", "--runtime=nri-runc"].map(str::to_owned).to_vec()
    }
}
