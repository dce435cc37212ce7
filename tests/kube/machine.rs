// SPDX-License-Identifier: Apache-2.0
//! The machine that `scripts/kube.sh` builds from namespaces, and its programs. Without it nothing
//! here runs, because every file is at its usual path: `/etc/containerd`, `/run`, `/var/lib`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{skip, tools};

/// Time limit of every wait on a busy machine. kubelet removes dead containers and pods about once
/// a minute, and their end is sent then.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time for a program to exit by itself.
const END_WAIT: Duration = Duration::from_secs(10);
/// The folder of a node's own programs.
pub(super) const PROGRAMS: &str = "/usr/local/bin";
/// The folder in which the DaemonSet of the chart puts nri-runc.
const FROM_IMAGE: &str = "/opt/nri-runc/bin";

pub(super) struct Machine {
    work: PathBuf,
}

impl Machine {
    /// The machine of this process; `None` after printing why the test is skipped.
    pub(super) fn own() -> Option<Self> {
        let Some(work) = std::env::var_os("NRI_RUNC_KUBE").map(PathBuf::from) else {
            skip::machine_lacks("a Kubernetes of one node (make kube builds and runs it)");
            return None;
        };
        let marked = std::fs::read_to_string("/run/nri-runc-kube").unwrap_or_default();
        assert_eq!(Path::new(marked.trim()), work, "only scripts/kube.sh sets NRI_RUNC_KUBE");
        let machine = Self { work };
        machine.link_programs()?;
        std::fs::create_dir_all(machine.log("").parent().unwrap()).unwrap();
        Some(machine)
    }

    /// The programs as an administrator would have installed them.
    fn link_programs(&self) -> Option<()> {
        let engine = tools::newer("containerd-2.4.2")?;
        let runc = tools::newer("runc-1.5.2")?;
        let kube = tools::kube()?;
        let busybox = tools::find(&["busybox"])?;
        for (dir, names) in [
            (&engine, &["containerd", "containerd-shim-runc-v2", "ctr"][..]),
            (&runc, &["runc"]),
            (&busybox, &["busybox"]),
            (&kube, &["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]),
            (&kube, &["kubelet", "kubectl"]),
        ] {
            for name in names {
                let link = Path::new(PROGRAMS).join(name);
                let _of_the_machine_itself = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(dir.join(name), link).unwrap();
            }
        }
        Some(())
    }

    /// The cgroup of all processes that kubelet starts.
    pub(super) fn cgroup(&self) -> String {
        self.work.file_name().unwrap().to_string_lossy().into_owned()
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.work.join("logs").join(format!("{name}.log"))
    }

    /// The end of a program's log.
    pub(super) fn log_tail(&self, name: &str) -> String {
        let log = std::fs::read(self.log(name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        format!("{name}:\n{}", lines[lines.len().saturating_sub(8)..].join("\n"))
    }

    pub(super) fn start(&self, name: &'static str, words: &[&str]) -> Process {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log(name));
        let log = log.unwrap();
        let mut command = command(name);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Process { child: command.spawn().unwrap() }
    }

    /// Runs a program to its end.
    #[track_caller]
    pub(super) fn run(&self, program: &str, words: &[&str]) -> String {
        let output = command(program).args(words).stdin(Stdio::null()).output().unwrap();
        succeeded(program, words, &output)
    }
}

/// Returns the standard output of a program, which must have succeeded.
#[track_caller]
fn succeeded(program: &str, words: &[&str], output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {printed}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program of this machine, by name or path, without the environment of the tests.
pub(super) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", "/var/lib/kubernetes"); // kubectl keeps a cache there
    command.env("PATH", format!("{PROGRAMS}:{FROM_IMAGE}:/usr/sbin:/usr/bin:/sbin:/bin"));
    command
}

/// Writes a file of the machine, with its folder.
pub(super) fn write(path: &str, text: &str, mode: u32) {
    test_support::program::put_with(path.as_ref(), text, mode);
}

/// Waits until `look` finds something.
#[track_caller]
pub(super) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_up_to(PATIENCE, what, look)
}

#[track_caller]
pub(super) fn wait_up_to<T>(most: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + most;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {} s in vain until {what}", most.as_secs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A long-running program; it ends with the cluster.
pub(super) struct Process {
    child: Child,
}

impl Process {
    /// Stops it by SIGTERM, and by SIGKILL if it does not exit.
    pub(super) fn stop(&mut self) {
        self.stop_within(END_WAIT);
    }

    /// Stops it like [`Self::stop`], but waits `wait` for its exit.
    pub(super) fn stop_within(&mut self, wait: Duration) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _gone = kill(pid, Signal::SIGTERM);
        let deadline = Instant::now() + wait;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _if_it_would_not = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
