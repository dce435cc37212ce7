// SPDX-License-Identifier: Apache-2.0
//! The places of this machine's cgroups, for tests that create files beside them or write to them.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

/// Whether cgroup v2 alone is mounted.
pub fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Whether systemd is the first process, as in `make vm-engines`: engines request scopes from it.
pub fn has_systemd() -> bool {
    is_v2() && Path::new("/run/systemd/private").exists()
}

/// The hierarchy of version 2 beside those of version 1, if this machine has both: crun then runs
/// no container.
pub fn v2_beside_v1() -> Option<&'static str> {
    Some("/sys/fs/cgroup/unified").filter(|path| Path::new(path).join("cgroup.procs").exists())
}

/// Unmounts that hierarchy for this thread and the processes that it starts from now on.
pub fn leave_v2_beside_v1() {
    let Some(beside) = v2_beside_v1() else { return };
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .unwrap();
    umount(beside).unwrap();
}

/// Lines of a shell script that give its mount namespace a private `/run`, with the sockets of
/// systemd and its bus at their paths. `$1` is a private folder.
pub const OWN_RUN: &str = r#"
for dir in dbus systemd; do
    [ ! -d "/run/$dir" ] || { mkdir -p "$1/run/$dir" && mount --bind "/run/$dir" "$1/run/$dir"; }
done
mount -t tmpfs tmpfs /run
for dir in dbus systemd; do
    [ ! -d "$1/run/$dir" ] || { mkdir "/run/$dir" && mount --bind "$1/run/$dir" "/run/$dir"; }
done
"#;

/// The cgroup of an engine's pods, for an arbitrary name: a slice if systemd runs.
pub fn of_engine(name: &str) -> String {
    if !has_systemd() {
        return format!("nri-runc-test-{name}");
    }
    // Each hyphen would be a further slice above this one.
    let word: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("nritest{word}.slice")
}

/// A cgroup below that of an engine.
pub fn below(cgroup: &str, name: &str) -> String {
    match cgroup.strip_suffix(".slice") {
        Some(parent) => {
            let word: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
            format!("{parent}.slice/{parent}-{word}.slice")
        }
        None => format!("{cgroup}/{name}"),
    }
}

/// A cgroup as plugins receive it; an engine with systemd omits its slash.
pub fn in_message(cgroup: &str) -> String {
    format!("/{}", cgroup.trim_start_matches('/'))
}

/// The cgroup of a container of Docker or Podman in its document: `prefix` and `id` are the scope's
/// name.
pub fn in_document(parent: &str, (prefix, id): (&str, &str)) -> String {
    match prefix {
        _ if parent.ends_with(".slice") => format!("{parent}:{prefix}:{id}"),
        "libpod" => format!("{parent}/{prefix}-{id}"),
        _ => format!("{parent}/{id}"),
    }
}

/// A file of a container's cgroup by its name on v1, with the text of v1: `prefix` and `id` are the
/// scope's name below `parent`; without systemd only CRI-O's and Podman's cgroups have a prefix.
pub fn read(parent: &str, (prefix, id): (&str, &str), (controller, file): (&str, &str)) -> String {
    let scope = format!("{parent}/{prefix}-{id}.scope");
    let below = match prefix {
        // An engine may have the cgroupfs driver there too.
        _ if Path::new("/sys/fs/cgroup").join(&scope).exists() => scope,
        "crio" | "libpod" => format!("{parent}/{prefix}-{id}"),
        _ => format!("{parent}/{id}"),
    };
    let of = |path: String| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    if !is_v2() {
        return of(format!("/sys/fs/cgroup/{controller}/{below}/{file}"));
    }
    let file = match file {
        "cpu.shares" => "cpu.weight",
        "cpu.cfs_quota_us" => "cpu.max",
        "memory.limit_in_bytes" => "memory.max",
        other => other,
    };
    let text = of(format!("/sys/fs/cgroup/{below}/{file}"));
    if file == "cpu.weight" { shares_of(&text) } else { text }
}

/// The shares of the tests, each with the weight to which runc since 1.3.2 converts it.
const SHARES: [(u64, u64); 8] =
    [(200, 29), (256, 35), (300, 39), (333, 42), (512, 59), (700, 75), (1000, 99), (1024, 100)];

/// The shares of the tests that the runc among the tools converts to this weight.
fn shares_of(weight: &str) -> String {
    let is_older = runc_is_older();
    let made = |(shares, newer): &(u64, u64)| {
        let older = 1 + (shares - 2) * 9999 / 262_142;
        if is_older { older } else { *newer }.to_string() == weight
    };
    let found = SHARES.into_iter().find(|pair| made(pair));
    found.map_or_else(|| format!("weight {weight}"), |(shares, _)| shares.to_string())
}

/// Whether the runc among the tools is Debian's, which has the earlier formula.
fn runc_is_older() -> bool {
    let tools = crate::tools::find(&["runc"]).expect("a container was run");
    let printed = std::process::Command::new(tools.join("runc")).arg("--version").output().unwrap();
    printed.stdout.starts_with(b"runc version 1.1.")
}

/// A configuration that declares the running test program to be kubelet: its writes are a resize.
pub fn test_is_kubelet() -> String {
    let program = std::env::current_exe().unwrap();
    format!("[kubernetes]\nkubelet = [\"{}\"]\n", program.display())
}

/// The mount point of the memory controller, and the file that limits a pod.
pub fn memory_limit() -> (PathBuf, &'static str) {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = text.lines().filter_map(|line| line.split_once(" - "));
    let mounts = mounts.map(|(before, after)| (before.split(' ').nth(4).unwrap(), after));
    let mut mounts: Vec<(&str, &str)> = mounts.collect();
    mounts.retain(|(_, after)| after.starts_with("cgroup"));
    let is_memory = |after: &str| after.split([' ', ',']).any(|word| word == "memory");
    let v1 = mounts.iter().find(|(_, after)| after.starts_with("cgroup ") && is_memory(after));
    match v1 {
        Some((at, _)) => (PathBuf::from(at), "memory.limit_in_bytes"),
        None => (PathBuf::from(mounts[0].0), "memory.max"),
    }
}
