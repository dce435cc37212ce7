// SPDX-License-Identifier: Apache-2.0
//! A file system that stands in for resctrl on processors without it: mounted by FUSE, with groups,
//! schemata and refusals like the kernel's. Runtimes check resctrl's file system type, so a copy of
//! one is made that checks for FUSE's.

mod fuse;
mod kernel;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

use crate::{program, skip};

pub use kernel::{Command, Kernel};

/// The path at which runtimes expect it.
const PLACE: &str = "/sys/fs/resctrl";

/// Interval at which the server checks whether the test is over, in milliseconds.
const LOOK: u8 = 50;

/// A mounted file system; it is unmounted on drop.
pub struct Resctrl {
    at: PathBuf,
    kernel: Arc<Mutex<Kernel>>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Resctrl {
    /// Mounts it in place of the kernel's, in a mount namespace of this thread and its children;
    /// `None` after printing why a test is skipped.
    pub fn in_its_place(class_ids: usize) -> Option<Self> {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
            return None;
        }
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        if !Path::new(PLACE).exists() {
            // No directory can be created there, so the cgroups move to a place that has one.
            let dir = tempfile::tempdir().unwrap();
            mount(Some("fs"), dir.path(), Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
            for name in ["cgroup", "resctrl"] {
                std::fs::create_dir(dir.path().join(name)).unwrap();
            }
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            let cgroups = dir.path().join("cgroup");
            mount(Some("/sys/fs/cgroup"), &cgroups, nothing, bind, nothing).unwrap();
            mount(Some(dir.path()), "/sys/fs", nothing, bind, nothing).unwrap();
            umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
        }
        Self::at(Path::new(PLACE), class_ids)
    }

    /// Mounts it at `path`; `None` after printing why a test is skipped.
    pub fn at(path: &Path, class_ids: usize) -> Option<Self> {
        let mounted = (|| {
            let device = File::options().read(true).write(true).open("/dev/fuse")?;
            let fd = device.as_raw_fd();
            let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
            mount(Some("resctrl"), path, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
            Ok::<File, std::io::Error>(device)
        })();
        let no_fuse = |error| {
            skip::machine_lacks(&format!("no FUSE file system can be mounted here: {error}"));
        };
        let device = mounted.map_err(no_fuse).ok()?;
        let kernel = Arc::new(Mutex::new(Kernel::new(class_ids)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_server, over) = (Arc::clone(&kernel), Arc::clone(&is_over));
        let server = std::thread::spawn(move || serve(&device, &of_server, &over));
        Some(Self { at: path.to_owned(), kernel, is_over, server: Some(server) })
    }

    /// The state behind the files.
    pub fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Resctrl {
    fn drop(&mut self) {
        let _or_with_its_namespace = umount2(&self.at, MntFlags::MNT_DETACH);
        self.is_over.store(true, Ordering::SeqCst);
        let _panicked = self.server.take().map(JoinHandle::join);
    }
}

/// Serves until the test is over; a waiting process then gets an error.
fn serve(device: &File, kernel: &Mutex<Kernel>, is_over: &AtomicBool) {
    let mut server = fuse::Server::new();
    while !is_over.load(Ordering::SeqCst) {
        let mut waiting = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let is_asked = poll(&mut waiting, PollTimeout::from(LOOK)).is_ok_and(|ready| ready > 0);
        if is_asked && server.serve(device, &mut *kernel.lock().unwrap()).is_err() {
            return;
        }
    }
}

/// Copies a runtime and replaces the file system type of resctrl in its check by FUSE's: the only
/// difference. `None` if the number is not in it exactly once.
pub fn runtime_for_it(runtime: &Path, copy: &Path) -> Option<()> {
    let (resctrl, fuse) = (0x0765_5821_u32.to_le_bytes(), 0x6573_5546_u32.to_le_bytes());
    let mut bytes = std::fs::read(runtime).unwrap();
    let is_it = |at: &usize| bytes[*at..*at + 4] == resctrl;
    let found: Vec<usize> = (0..bytes.len() - 3).filter(is_it).collect();
    let [at] = found[..] else { return None };
    bytes[at..at + 4].copy_from_slice(&fuse);
    program::put(copy, bytes);
    Some(())
}
