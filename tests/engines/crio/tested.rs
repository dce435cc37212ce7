// SPDX-License-Identifier: Apache-2.0
//! CRI-O for the suite of all engines.

use std::path::PathBuf;

use serde_json::Value;

use super::host::{CrioHost, SOCKET};
use super::messages::Device;
use super::{HANDLER, registered};
use crate::suite::pods::{CriPods, runtime};
use crate::suite::{Call, Printed, Tested, Wanted};

pub(crate) struct Pods {
    pods: CriPods,
    host: CrioHost,
}

impl Tested for Pods {
    const NAME: &'static str = "crio";
    const VARIABLE: (&'static str, &'static str) = ("FROM", "pod");
    const DEVICE: [&'static str; 3] = ["devices", "/dev/full", "/dev/full"];

    fn with_nri_runc() -> Option<Self> {
        let runtime = runtime();
        let (host, _) = runtime.block_on(registered())?;
        host.start_daemon();
        let pods = CriPods::new(runtime, host.seen(SOCKET), host.cgroup(), HANDLER);
        Some(Self { pods, host })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.path(name)
    }

    fn socket(&self) -> PathBuf {
        self.host.seen("/run/nri/nri.sock")
    }

    fn admin(&self, words: &[&str]) -> Value {
        self.host.nri(words).unwrap_or_default()
    }

    fn kill_daemon(&mut self) {
        self.host.kill_daemon();
    }

    fn start_daemon(&mut self) {
        self.host.start_daemon();
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.host.wait_until(what, is_so);
    }

    /// The device has another name in the container.
    fn run(&self, wanted: &Wanted<'_>) -> Result<String, String> {
        let device = || Device {
            container_path: "/dev/mine".to_owned(),
            host_path: Self::DEVICE[2].to_owned(),
            permissions: "rw".to_owned(),
        };
        self.pods.run(wanted, |app| app.devices.extend(wanted.has_device.then(device)))
    }

    fn exec(&self, name: &str, call: &Call<'_>) -> Printed {
        self.pods.exec(name, call)
    }

    fn end(&self, name: &str, kills: bool) -> String {
        self.pods.end(name, kills)
    }

    fn remove(&self, names: &[&str]) {
        for name in names {
            self.pods.remove(name);
        }
    }
}
