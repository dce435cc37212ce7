// SPDX-License-Identifier: Apache-2.0
//! Leftovers of a stopped engine: monitors of containers, mounts, cgroups. It ends and removes only
//! objects with the test's private folder or its cgroup in their name.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Folders that engines and libcni create whatever their configuration.
const ENGINE_FOLDERS: [&str; 4] =
    ["/run/containerd", "/run/docker", "/opt/containerd", "/var/lib/cni"];

/// The number of engines in this test program, and the folders that were absent before its first.
static ENGINES: Mutex<(usize, Option<Vec<&str>>)> = Mutex::new((0, None));

/// Held by each engine of a test program. The last one to be dropped removes the folders that the
/// machine did not have.
pub struct EngineFolders(());

impl EngineFolders {
    pub fn hold() -> Self {
        let mut engines = ENGINES.lock().unwrap();
        // Only the first engine records the folders: later ones may find a folder that a shim of an
        // earlier engine created, which belongs to the tests.
        engines.1.get_or_insert_with(|| {
            let absent = ENGINE_FOLDERS.into_iter().filter(|folder| !Path::new(folder).exists());
            absent.collect()
        });
        engines.0 += 1;
        Self(())
    }
}

impl Drop for EngineFolders {
    fn drop(&mut self) {
        let Ok(mut engines) = ENGINES.lock() else { return };
        engines.0 -= 1;
        if engines.0 == 0 {
            engines.1.iter().flatten().for_each(|folder| remove(Path::new(folder)));
        }
    }
}

/// Removes the leftovers of an engine with all its state below `dir` and its containers below
/// `cgroup`.
pub fn clear(dir: &str, cgroup: &str) {
    for _monitor_then_what_it_watched in 0..2 {
        for pid in processes(dir, cgroup) {
            for socket in shim_sockets(pid) {
                let _gone = std::fs::remove_file(socket);
            }
            let pid = nix::unistd::Pid::from_raw(pid);
            let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    for line in mounts.lines().rev() {
        let point = line.split(' ').nth(4).filter(|point| point.starts_with(dir));
        if let Some(point) = point {
            let _gone = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
    let name = cgroup.trim_start_matches('/');
    remove(&Path::new("/sys/fs/cgroup").join(name));
    for controller in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        remove(&controller.path().join(name));
    }
}

/// The socket of this shim of containerd, outside of its folder; a killed shim leaves it behind.
pub fn shim_sockets(pid: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let its: Vec<PathBuf> = links.collect();
    let all = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let sockets = all.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().skip(6);
        let (inode, path) = (columns.next()?, columns.next()?);
        let is_its = its.contains(&PathBuf::from(format!("socket:[{inode}]")));
        (is_its && path.starts_with("/run/containerd/s/")).then(|| PathBuf::from(path))
    });
    sockets.collect()
}

/// The processes whose command line names the folder or that are in the cgroup.
pub fn processes(dir: &str, cgroup: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let is_left = |pid: &i32| {
        let has = |name: &str, what: &str| {
            let text = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(what)
        };
        *pid != own && (has("cmdline", dir) || has("cgroup", cgroup))
    };
    pids.filter(is_left).collect()
}

/// Removes a folder that contains only folders and sockets, which a killed monitor leaves.
fn remove(dir: &Path) {
    use std::os::unix::fs::FileTypeExt;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let _gone = std::fs::remove_file(entry.path());
        }
    }
    let _gone = std::fs::remove_dir(dir);
}

/// The cgroups below this one, in every hierarchy.
pub fn cgroups(cgroup: &str) -> Vec<PathBuf> {
    let tops = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let tops = tops.map(|top| top.path()).chain([Path::new("/sys/fs/cgroup").to_owned()]);
    let parents = tops.map(|top| top.join(cgroup.trim_start_matches('/')));
    let below = parents.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    below.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
