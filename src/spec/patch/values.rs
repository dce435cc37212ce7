// SPDX-License-Identifier: Apache-2.0
//! Refuses values that must not reach a runtime: they would lead out of the container, mean something else
//! to the runtime, or make the kernel fail with an error that does not name the plugin.
//!
//! Each function describes the mistake for the operator. Nothing is corrected here. Reference: OCI
//! `config-linux.md`; kernel `cgroup-v2.rst`; cpuset(7), sysctl(8).

/// The largest major number of a device: the kernel keeps twelve bits of it.
const LAST_MAJOR: i64 = 0xfff;
/// The largest minor number of a device: the kernel keeps twenty bits of it.
const LAST_MINOR: i64 = 0xf_ffff;

/// The permission bits of a mode. A file type in the mode is dropped, because some runtimes would
/// combine it with the device's type into another device.
pub(super) const PERMISSIONS: u32 = 0o7777;

/// The sysctls below `kernel` that belong to an IPC namespace: System V message queues, semaphores, shared memory.
const IPC_SYSCTLS: [&str; 12] = [
    "auto_msgmni",
    "msg_next_id",
    "msgmax",
    "msgmnb",
    "msgmni",
    "sem",
    "sem_next_id",
    "shm_next_id",
    "shm_rmid_forced",
    "shmall",
    "shmmax",
    "shmmni",
];

/// Checks a path that is passed to the kernel unchanged.
pub(super) fn check_path(path: &str) -> Result<(), &'static str> {
    match path {
        _ if path.contains('\0') => Err("its path contains NUL"),
        _ if !path.starts_with('/') => Err("its path is not absolute"),
        _ => Ok(()),
    }
}

/// Checks a path at which the runtime creates a file: it must not lead out of the root file system.
pub(super) fn check_place(path: &str) -> Result<(), &'static str> {
    check_path(path)?;
    if climbs(path) { Err("its path leads above the container's root") } else { Ok(()) }
}

/// Checks the numbers of a device. A negative number would be a wildcard in the device's rule, and
/// grant access to all devices of its kind.
pub(super) fn check_device_numbers(major: i64, minor: i64) -> Result<(), String> {
    if (0..=LAST_MAJOR).contains(&major) && (0..=LAST_MINOR).contains(&minor) {
        Ok(())
    } else {
        Err(format!("no device has the numbers {major}:{minor}"))
    }
}

/// Checks the container's cgroup path; `engine` is the engine's path.
pub(super) fn check_cgroups_path(path: &str, engine: Option<&str>) -> Result<(), &'static str> {
    if path.chars().any(char::is_control) {
        return Err("it contains a control character");
    }
    let is_systemds = engine.and_then(systemd_parts).is_some();
    match systemd_parts(path) {
        // For the cgroupfs driver a colon has no special meaning.
        Some([slice, ..]) if !is_systemds && !slice.is_empty() && !slice.ends_with(".slice") => {}
        Some([slice, prefix, name]) => {
            let is_slice = slice.is_empty() || slice.ends_with(".slice");
            let has_slash = [slice, prefix, name].iter().any(|part| part.contains('/'));
            if !is_slice || name.is_empty() || has_slash {
                return Err("it is not SLICE:PREFIX:NAME, such as system.slice:nri:c1");
            }
            return Ok(());
        }
        None if is_systemds => {
            return Err(
                "the engine uses the systemd cgroup driver, which requires SLICE:PREFIX:NAME",
            );
        }
        None => {}
    }
    if climbs(path) {
        return Err("it leads upwards");
    }
    if path.split('/').all(|part| matches!(part, "" | ".")) {
        return Err("it is the host's root cgroup");
    }
    Ok(())
}

fn systemd_parts(path: &str) -> Option<[&str; 3]> {
    let mut parts = path.split(':');
    let three = [parts.next()?, parts.next()?, parts.next()?];
    (parts.next().is_none() && !path.starts_with('/')).then_some(three)
}

/// Returns the namespace that a sysctl belongs to. A sysctl without a namespace would be set for
/// the host, and not every runtime checks that.
pub(super) fn namespace_of_sysctl(key: &str) -> Result<&'static str, &'static str> {
    let first = key.find(['.', '/']).and_then(|at| key.get(at..=at)).unwrap_or(".");
    let parts: Vec<&str> = key.split(first).collect();
    let is_odd = |part: &&str| {
        matches!(*part, "" | "." | "..")
            || part.contains("..")
            || part.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    if parts.iter().any(is_odd) {
        return Err("it is not a sysctl name");
    }
    match parts.as_slice() {
        ["net", _, ..] => Ok("network"),
        ["fs", "mqueue", _, ..] => Ok("ipc"),
        ["kernel", name] if IPC_SYSCTLS.contains(name) => Ok("ipc"),
        ["kernel", "domainname" | "hostname"] => Ok("uts"),
        ["kernel", "ns_last_pid"] => Ok("pid"),
        ["user", _] => Ok("user"),
        _ => Err("it is not namespaced and would apply to the whole host"),
    }
}

/// Whether a kernel may have a host setting of this name. If it has none, the runtime fails and
/// nothing changes.
pub(super) fn may_be_a_sysctl_of_the_host(key: &str) -> bool {
    const TREES: [&str; 12] = [
        "abi", "bus", "crypto", "debug", "dev", "fs", "kernel", "net", "sunrpc", "user", "vm",
        "xen",
    ];
    let first = key.split(['.', '/']).next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    TREES.contains(&first) || first.is_empty() || key.contains("..") || !key.chars().all(is_plain)
}

/// Whether the text is a list of numbers and ascending ranges, separated by commas. Numbers above
/// any kernel's are refused too, because runtimes build a bit mask of that length.
pub(super) fn is_id_list(list: &str) -> bool {
    let number = |text: &str| -> Option<u16> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
    };
    list.split(',').all(|part| match part.split_once('-') {
        Some((first, last)) => {
            matches!((number(first), number(last)), (Some(first), Some(last)) if first <= last)
        }
        None => number(part).is_some(),
    })
}

/// Whether the text is a cpuset; the kernel and runtimes accept blanks, a final newline and extra commas.
pub(super) fn is_cpuset(list: &str) -> bool {
    let mut parts = list.split(',').map(str::trim_ascii).filter(|part| !part.is_empty()).peekable();
    parts.peek().is_some() && parts.all(is_id_list)
}

/// Whether the text is a page size as in the kernel's file names: `64KB`, `2MB`, `1GB`.
pub(super) fn is_page_size(size: &str) -> bool {
    let number = ["KB", "MB", "GB"].iter().find_map(|unit| size.strip_suffix(unit));
    number.is_some_and(|number| {
        !number.is_empty() && number.len() <= 6 && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Whether the key is a controller's file name. youki appends it to a path unchecked, and
/// `cgroup.*` files move and kill processes.
pub(super) fn is_unified_key(key: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let Some((controller, rest)) = key.split_once('.') else { return false };
    controller != "cgroup"
        && !controller.is_empty()
        && controller.chars().all(|c| is_word(c) && !c.is_ascii_uppercase())
        && rest.split('.').all(|part| !part.is_empty() && part.chars().all(is_word))
}

fn climbs(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}
