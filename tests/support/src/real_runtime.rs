// SPDX-License-Identifier: Apache-2.0
//! A real runtime (runc, crun) with everything that its containers need: a busybox root file
//! system, documents, separate cgroups. On drop, its containers and their cgroups are removed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::tools;

/// The runtime, and the folder of the root file system.
pub struct RealRuntime {
    dir: PathBuf,
    runc: PathBuf,
}

impl RealRuntime {
    /// Prepares it in `dir`, where `root` will be the runtime's state directory; `None` after
    /// printing why the test is skipped.
    pub fn new(dir: &Path) -> Option<Self> {
        Self::with(dir, "runc")
    }

    /// Prepares another runtime.
    pub fn with(dir: &Path, runtime: &str) -> Option<Self> {
        let tools = tools::find(&["busybox", runtime])?;
        let rootfs = dir.join("rootfs");
        for folder in ["bin", "proc", "dev", "tmp"] {
            std::fs::create_dir_all(rootfs.join(folder)).unwrap();
        }
        crate::program::copy(&tools.join("busybox"), &rootfs.join("bin/busybox"));
        for applet in ["sh", "sleep", "cat", "true", "env"] {
            let link = rootfs.join("bin").join(applet);
            std::os::unix::fs::symlink("busybox", link).unwrap();
        }
        let runc = if runtime == "crun" { tools::crun(dir)? } else { tools.join(runtime) };
        Some(Self { dir: dir.to_owned(), runc })
    }

    /// Uses another program as the runtime from now on.
    pub fn becomes(&mut self, program: &Path) {
        program.clone_into(&mut self.runc);
    }

    /// The real runtime.
    pub fn runc(&self) -> &Path {
        &self.runc
    }

    /// A container's cgroup, as in the document.
    pub fn cgroup(&self, id: &str) -> String {
        format!("{}/{id}", self.cgroups())
    }

    fn cgroups(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default();
        format!("/nri-runc-test-{}", name.to_string_lossy())
    }

    /// The document of a container with busybox that runs `args`.
    pub fn document(&self, id: &str, args: &[&str]) -> Value {
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "args": args,
                "env": ["PATH=/bin", "A=1"],
            },
            "root": {"path": self.dir.join("rootfs"), "readonly": true},
            "hostname": "real",
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "cgroupsPath": self.cgroup(id),
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
                ],
            },
        })
    }
}

fn delete(runc: &Path, root: &Path, id: &std::ffi::OsStr) {
    let mut command = Command::new(runc);
    command.arg("--root").arg(root).args(["delete", "--force"]).arg(id);
    let _gone = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

impl Drop for RealRuntime {
    fn drop(&mut self) {
        let root = self.dir.join("root");
        for entry in std::fs::read_dir(&root).into_iter().flatten().flatten() {
            delete(&self.runc, &root, &entry.file_name());
        }
        let cgroups = self.cgroups();
        remove_cgroup(Path::new(&format!("/sys/fs/cgroup{cgroups}")));
        for controller in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(Path::new(&format!("{}{cgroups}", controller.path().display())));
        }
    }
}

fn remove_cgroup(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _gone = std::fs::remove_dir(dir);
}
