// SPDX-License-Identifier: Apache-2.0
//! containerd for the suite of all engines: pods through its CRI, terminals and plugins through ctr.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::cri::generated::CdiDevice;
use test_support::{Started, tools};

use super::ctr::{ctr, image};
use super::host::{self, Engine};
use crate::suite::pods::{CriPods, runtime};
use crate::suite::{Call, Printed, Tested, Wanted, plugin_paths};

pub(crate) struct Pods {
    daemon: Option<Started>,
    pods: CriPods,
    engine: Engine,
    /// The folder of ctr.
    programs: PathBuf,
}

impl Pods {
    fn of(engine: Engine, programs: &Path) -> Self {
        let (socket, cgroup) = (engine.path("containerd.sock"), engine.cgroup().to_owned());
        let (daemon, programs) = (Some(engine.start_daemon()), programs.to_owned());
        Self { daemon, pods: CriPods::new(runtime(), socket, cgroup, ""), engine, programs }
    }
}

impl Drop for Pods {
    /// Ends a daemon that a wrapper has started.
    fn drop(&mut self) {
        if let Some(pid) = self.admin(&["status"])["pid"].as_i64().filter(|pid| *pid > 1) {
            let _gone = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
        }
    }
}

impl Tested for Pods {
    const NAME: &'static str = "containerd";
    const VARIABLE: (&'static str, &'static str) = ("FROM", "pod");
    const CONFIG: &'static str = "nri-runc.toml";
    const DEVICE: [&'static str; 3] = ["cdi", "example.org/card=*", "example.org/card=one"];

    fn with_nri_runc() -> Option<Self> {
        let tools = host::tools()?;
        Some(Self::of(Engine::start(&tools), &tools))
    }

    fn with_device() -> Option<Self> {
        let (tools, containerd) = (host::tools()?, tools::newer("containerd-2.4.2")?);
        let (engine, _) = Engine::of_nri((&tools, &containerd), false, |own| own);
        Some(Self::of(engine, &containerd))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.engine.path(name)
    }

    fn admin(&self, words: &[&str]) -> Value {
        self.engine.admin(words)
    }

    fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    fn start_daemon(&mut self) {
        self.daemon = Some(self.engine.start_daemon());
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.engine.wait_until(what, is_so);
    }

    fn run(&self, wanted: &Wanted<'_>) -> Result<String, String> {
        self.pods.run(wanted, |app| {
            if wanted.has_device {
                app.cdi_devices = vec![CdiDevice { name: Self::DEVICE[2].to_owned() }];
            }
        })
    }

    /// On a terminal by `ctr tasks exec`.
    fn exec(&self, name: &str, call: &Call<'_>) -> Printed {
        if !call.has_terminal {
            return self.pods.exec(name, call);
        }
        let quoted: Vec<String> = call.words.iter().map(|word| format!("'{word}'")).collect();
        let ctr = format!(
            "{}/ctr --address {} --namespace k8s.io tasks exec --tty --exec-id t1 {} {}",
            self.programs.display(),
            self.path("containerd.sock").display(),
            self.pods.id(name),
            quoted.join(" ")
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &ctr, "/dev/null"]).stdin(Stdio::null());
        let output = script.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        Printed { code: output.status.code(), text }
    }

    /// By `ctr run`, without a pod.
    fn run_plugin(&self, name: &str, id: &str) {
        let [program, folder, dir, socket] = &plugin_paths(self);
        let cgroup = format!("/{}/{name}", self.engine.cgroup());
        let mounts = ["/usr", "/lib", "/lib64", folder, dir]
            .map(|path| format!("--mount=type=bind,src={path},dst={path},options=rbind:ro"));
        let us = env!("CARGO_BIN_EXE_nri-runc");
        let mut words = vec!["run", "--detach", "--snapshotter", "native", "--runc-binary", us];
        words.extend(["--cgroup", &cgroup]);
        words.extend(mounts.iter().map(String::as_str));
        let (image, _digest) = image(&self.engine);
        words.extend([&image, name, program, "--id", id, "--socket", socket]);
        ctr(&self.engine, &words);
    }

    fn end(&self, name: &str, kills: bool) -> String {
        self.pods.end(name, kills)
    }

    fn remove(&self, names: &[&str]) {
        for name in names.iter().filter(|name| !self.pods.remove(name)) {
            let task = |words: &[&str]| {
                let output = self.engine.containerd.ctr_in("lab", &[&["task"], words].concat());
                output.is_ok_and(|output| output.status.success())
            };
            // A refused plugin may have exited.
            task(&["kill", "--signal", "SIGKILL", name]);
            self.wait_until("its task can be deleted", || task(&["delete", name]));
            ctr(&self.engine, &["containers", "delete", name]);
        }
    }
}
