// SPDX-License-Identifier: Apache-2.0
//! Finds blocking calls of a thread in strace's list: transfers on descriptors of sockets, pipes, FIFOs and
//! devices without `O_NONBLOCK`, files opened without it, calls that only wait, and every call on a file
//! that does not belong to the daemon, the operator or the kernel: another process chooses its path, and
//! its file server may never respond.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Calls that wait at a descriptor for another process.
const TRANSFERS: [&str; 25] = [
    "accept",
    "accept4",
    "connect",
    "copy_file_range",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "send",
    "sendfile",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "splice",
    "tee",
    "write",
    "writev",
];

/// Calls that have two descriptors.
const BETWEEN_TWO: [&str; 4] = ["copy_file_range", "sendfile", "splice", "tee"];

/// Calls that look up a file by one path.
const BY_PATH: [&str; 34] = [
    "access",
    "bind",
    "chdir",
    "chmod",
    "chown",
    "connect",
    "creat",
    "faccessat",
    "faccessat2",
    "fchmodat",
    "fchownat",
    "getxattr",
    "inotify_add_watch",
    "lgetxattr",
    "lstat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "name_to_handle_at",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "readlink",
    "readlinkat",
    "rmdir",
    "stat",
    "statfs",
    "statx",
    "truncate",
    "unlink",
    "unlinkat",
    "utimensat",
];

/// Calls with two paths; the first of a symbolic link is only text.
const BY_TWO_PATHS: [&str; 7] =
    ["link", "linkat", "rename", "renameat", "renameat2", "symlink", "symlinkat"];

/// Calls on an open file, besides transfers. Closing it also asks the file's server.
const ON_FILES: [&str; 12] = [
    "close",
    "fallocate",
    "fchmod",
    "fchown",
    "fdatasync",
    "fgetxattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getdents64",
];

/// Files of the kernel, of every program of this machine, and in memory: they depend on no disk. Users may
/// mount file systems below `/run/user`.
const OF_THE_MACHINE: [&str; 9] =
    ["/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/usr", "/var/lib/nri-runc", "/var/run"];

/// The program of this process and its standard error, which its service manager chose.
const OF_ITSELF: [&str; 2] = ["/proc/self/exe", "/proc/self/fd/2"];
const OF_USERS: &str = "/run/user";

/// The files that the daemon may use in its loop.
#[derive(Default)]
pub(super) struct Known {
    pub(super) own: Vec<PathBuf>,
    /// The folder that it uses as the machine's root, if it is another one.
    pub(super) root: PathBuf,
    /// The operator's folder of plugin configurations: files of their names, and the targets of links
    /// there.
    pub(super) settings: PathBuf,
    /// Whether it is starting and looks for other daemons among root's processes; these belong to the
    /// operator.
    pub(super) looks_for_daemons: bool,
}

/// A call of one thread.
pub(super) struct Call {
    thread: i32,
    name: String,
    words: String,
    returned: Option<i32>,
}

/// The descriptors of a process, and whether each is `O_NONBLOCK`.
pub(super) fn descriptors(pid: i32) -> BTreeMap<i32, bool> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let flags = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(line.trim(), 8).ok()
    };
    let found = folder.flatten().filter_map(|entry| {
        let flags = flags(&std::fs::read_to_string(entry.path()).ok()?)?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, flags & nix::libc::O_NONBLOCK != 0))
    });
    found.collect()
}

/// The calls in the trace, without those of processes other than `pid`: its children have separate
/// descriptors.
pub(super) fn calls(log: &str, pid: i32) -> Vec<Call> {
    let mut threads = BTreeSet::from([pid]);
    let mut begun: BTreeMap<i32, String> = BTreeMap::new();
    let mut found = Vec::new();
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Ok(thread) = thread.parse::<i32>() else { continue };
        let rest = rest.trim_start();
        let whole = match (rest.strip_suffix(" <unfinished ...>"), rest.split_once(" resumed>")) {
            (Some(beginning), _) => {
                begun.insert(thread, beginning.to_owned());
                continue;
            }
            (None, Some((_, end))) if rest.starts_with("<... ") => {
                begun.remove(&thread).unwrap_or_default() + end
            }
            (None, _) => rest.to_owned(),
        };
        let Some(call) = parse(thread, &whole) else { continue };
        if call.words.contains("CLONE_THREAD") {
            threads.extend(call.returned);
        }
        // A thread from before the trace belongs to a pool.
        let is_childs = !threads.contains(&thread)
            && !Path::new(&format!("/proc/{pid}/task/{thread}")).exists();
        if !is_childs {
            found.push(call);
        }
    }
    found
}

fn parse(thread: i32, line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (words, after) = rest.rsplit_once(" = ")?;
    let words = words.trim_end().strip_suffix(')')?;
    let returned = after.split(['<', ' ']).next()?.parse().ok();
    Some(Call { thread, name: name.to_owned(), words: words.to_owned(), returned })
}

/// The calls of the loop's thread that could wait for another process.
pub(super) fn blocking(
    calls: &[Call],
    pid: i32,
    descriptors: &mut BTreeMap<i32, bool>,
    known: &Known,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut starts = Starts::default();
    for call in calls {
        let waits = || may_wait(call, descriptors) && !starts.is_answer(call);
        if call.thread == pid && (waits() || is_on_anothers_file(call, known)) {
            found.push(format!("{}({})", call.name, call.words));
        }
        follow(call, descriptors);
        if call.thread == pid {
            starts.follow(call);
        }
    }
    found
}

/// The pipes on which started processes report a failed exec: each is the last that its thread made before
/// the fork.
#[derive(Default)]
struct Starts {
    last: Vec<String>,
    of_exec: BTreeSet<String>,
}

impl Starts {
    fn follow(&mut self, call: &Call) {
        match call.name.as_str() {
            "pipe" | "pipe2" | "socketpair" => {
                let ends = descriptors_in(&call.words).into_iter();
                self.last = ends.map(|(_, behind)| behind.to_owned()).collect();
            }
            "fork" | "vfork" | "clone" | "clone3" if !call.words.contains("CLONE_THREAD") => {
                self.of_exec.extend(std::mem::take(&mut self.last));
            }
            _ => {}
        }
    }

    /// Whether it reads a report of eight bytes, or the end after a success.
    fn is_answer(&self, call: &Call) -> bool {
        matches!(call.name.as_str(), "read" | "recvfrom")
            && (call.words.ends_with(", 8") || call.words.contains(", 8, 0, NULL"))
            && self.of_exec.contains(behind(&call.words))
    }
}

/// Records the effect of a call on descriptors and their flags.
fn follow(call: &Call, descriptors: &mut BTreeMap<i32, bool>) {
    let has = |word: &str| call.words.contains(word);
    let Some(returned) = call.returned.filter(|returned| *returned >= 0) else { return };
    let first = number(&call.words);
    match call.name.as_str() {
        "socket" | "accept4" => drop(descriptors.insert(returned, has("SOCK_NONBLOCK"))),
        "accept" => drop(descriptors.insert(returned, false)),
        "open" | "openat" | "openat2" => drop(descriptors.insert(returned, has("O_NONBLOCK"))),
        "pipe2" | "socketpair" => {
            for word in call.words.split(['[', ',', ' ']) {
                if let Some(end) = number(word).filter(|_| word.contains('<')) {
                    descriptors.insert(end, has("NONBLOCK"));
                }
            }
        }
        "fcntl" if has("F_SETFL") => {
            first.map(|number| descriptors.insert(number, has("O_NONBLOCK")));
        }
        "fcntl" if has("F_DUPFD") => {
            let copied = first.and_then(|number| descriptors.get(&number)).copied();
            descriptors.insert(returned, copied.unwrap_or_default());
        }
        "dup" | "dup2" | "dup3" => {
            let copied = first.and_then(|number| descriptors.get(&number)).copied();
            descriptors.insert(returned, copied.unwrap_or_default());
        }
        "ioctl" if has("FIONBIO") => {
            first.map(|number| descriptors.insert(number, has("[1]")));
        }
        "close" => {
            first.map(|number| descriptors.remove(&number));
        }
        _ => {}
    }
}

/// The descriptor at the beginning of a call's arguments.
fn number(words: &str) -> Option<i32> {
    words.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The object behind the descriptor at the beginning of a call's arguments, as strace prints it.
fn behind(words: &str) -> &str {
    let rest = words.split_once('<').map(|(_, rest)| rest).unwrap_or_default();
    rest.split(['>', ',']).next().unwrap_or_default()
}

/// The descriptors in a call's arguments, and the object behind each.
fn descriptors_in(words: &str) -> Vec<(i32, &str)> {
    let starts = words.match_indices('<').map(|(at, _)| at);
    let found = starts.filter_map(|at| {
        let digits = words[..at].rsplit(|c: char| !c.is_ascii_digit()).next()?;
        Some((digits.parse().ok()?, behind(&words[at..])))
    });
    found.collect()
}

fn may_wait(call: &Call, descriptors: &BTreeMap<i32, bool>) -> bool {
    let has = |word: &str| call.words.contains(word);
    match call.name.as_str() {
        "nanosleep" | "clock_nanosleep" | "pause" | "rt_sigsuspend" => true,
        "poll" => !call.words.ends_with(", 0"),
        "ppoll" | "pselect6" => !has("{tv_sec=0, tv_nsec=0}"),
        "select" => true,
        "wait4" | "waitid" => !has("WNOHANG"),
        "flock" => !has("LOCK_NB") && !has("LOCK_UN"),
        "fcntl" => has("SETLKW"),
        "open" | "openat" | "openat2" | "creat" => may_wait_to_open(call),
        name if TRANSFERS.contains(&name) => {
            let waits = |(number, behind): &(i32, &str)| {
                is_anothers(behind) && descriptors.get(number) != Some(&true)
            };
            let ends = if BETWEEN_TWO.contains(&name) { 2 } else { 1 };
            descriptors_in(&call.words).iter().take(ends).any(waits) && !has("MSG_DONTWAIT")
        }
        _ => false,
    }
}

/// Whether it is a call on an unknown file.
fn is_on_anothers_file(call: &Call, known: &Known) -> bool {
    let name = call.name.as_str();
    let has = |word: &str| call.words.contains(word);
    if has("AT_STATX_DONT_SYNC") {
        return false; // The kernel's cached attributes.
    }
    if ON_FILES.contains(&name) || TRANSFERS.contains(&name) {
        let ends = if BETWEEN_TWO.contains(&name) { 2 } else { 1 };
        let mut files = descriptors_in(&call.words).into_iter().take(ends);
        // Closing a folder does not wait for its server.
        let is_quiet = |path: &str| name == "close" && !Path::new(path).is_file();
        if files.any(|(_, path)| is_anothers_path(path, known, true) && !is_quiet(path)) {
            return true;
        }
    }
    let mut paths = paths_in(&call.words);
    if BY_TWO_PATHS.contains(&name) {
        paths.drain(..paths.len().min(usize::from(name.starts_with("symlink"))));
        return paths.iter().any(|path| is_anothers_path(path, known, false));
    }
    // The kernel alone resolves a link of a process itself.
    let follows = !(has("NOFOLLOW") || name.starts_with("readlink") || name == "lstat");
    let first = paths.first().filter(|_| BY_PATH.contains(&name));
    first.is_some_and(|path| is_anothers_path(path, known, follows))
}

fn is_anothers_path(path: &str, known: &Known, follows: bool) -> bool {
    let inside = Path::new(path).strip_prefix(&known.root).ok();
    let path = inside.map_or_else(|| path.into(), |inside| Path::new("/").join(inside));
    let is_near = |own: &Path| path.starts_with(own) || own.starts_with(&path);
    let extension = path.extension().unwrap_or_default();
    let is_setting = path.parent() == Some(&known.settings)
        && ["conf", "target"].iter().any(|of_settings| extension == *of_settings);
    let is_known = || {
        is_setting
            || known.own.iter().any(|own| is_near(own))
            || OF_THE_MACHINE.iter().any(|own| is_near(Path::new(own)))
    };
    let is_own = OF_ITSELF.iter().any(|own| path == Path::new(own));
    let is_in_memory = path.to_string_lossy().starts_with("/memfd:");
    let leads_out =
        leads_out_of_proc(&path.to_string_lossy(), follows) && !is_own && !known.looks_for_daemons;
    path.has_root() && !is_in_memory && (leads_out || path.starts_with(OF_USERS) || !is_known())
}

/// The quoted arguments of a call, each relative to the folder of the preceding descriptor.
fn paths_in(words: &str) -> Vec<String> {
    let parts: Vec<&str> = words.split('"').collect();
    let quoted = parts.chunks(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    let path = |(before, word): (&str, &str)| {
        let folder = before.rsplit_once('<').map(|(_, rest)| rest).unwrap_or_default();
        let folder = folder.split('>').next().unwrap_or_default();
        if word.is_empty() {
            folder.to_owned()
        } else {
            Path::new(folder).join(word).display().to_string()
        }
    };
    quoted.map(path).collect()
}

/// Whether another process decides when a transfer there ends.
fn is_anothers(behind: &str) -> bool {
    if behind.starts_with("socket:") || behind.starts_with("pipe:") || behind.contains("[socket") {
        return true;
    }
    let kind = std::fs::metadata(behind).map(|meta| meta.file_type());
    behind != "/dev/null"
        && kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_socket())
}

/// Whether an open may wait for a peer, as for a FIFO or a device; never for the kernel's own files.
fn may_wait_to_open(call: &Call) -> bool {
    let has = |word: &str| call.words.contains(word);
    let path = call.words.split('"').nth(1).unwrap_or_default();
    // A debug build has libraries.
    let kernels = ["/dev/null", "/proc/", "/sys/", "/lib/", "/usr/lib/", "/etc/ld.so.cache"];
    let is_kernels =
        kernels.iter().any(|own| path.starts_with(own)) && !leads_out_of_proc(path, true);
    let is_made = has("O_CREAT") && has("O_EXCL");
    !(is_kernels || is_made || ["O_NONBLOCK", "O_DIRECTORY", "O_PATH"].into_iter().any(has))
}

/// Whether it goes through a link of a process to a file of any kind; `follows`: also as the last part.
fn leads_out_of_proc(path: &str, follows: bool) -> bool {
    let parts: Vec<&str> =
        path.strip_prefix("/proc/").unwrap_or_default().split('/').skip(1).collect();
    let followed = parts.len().saturating_sub(usize::from(!follows));
    let is_link = |(at, part): (usize, &&str)| match *part {
        "cwd" | "exe" | "root" => at < followed,
        // A folder of links to files.
        "fd" | "map_files" => at + 1 < followed,
        _ => false,
    };
    parts.iter().enumerate().any(is_link)
}

fn with_own(path: &str) -> Known {
    Known {
        own: vec![path.into()],
        root: "/host".into(),
        settings: "/set".into(),
        looks_for_daemons: false,
    }
}

#[test]
fn only_calls_that_could_wait_for_another_process_are_found() {
    let log = "7 socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0) = 5<socket:[1]>\n\
        7 connect(5<socket:[1]>, {sa_family=AF_UNIX}, 110 <unfinished ...>\n\
        8 clock_nanosleep(CLOCK_MONOTONIC, 0, {tv_sec=1}, NULL) = 0\n\
        7 <... connect resumed>) = 0\n\
        7 sendto(5<socket:[1]>, \"x = y\", 5, MSG_DONTWAIT, NULL, 0) = 5\n\
        7 ioctl(5<socket:[1]>, FIONBIO, [1]) = 0\n\
        7 read(5<socket:[1]>, 0x7f, 16) = -1 EAGAIN (Resource temporarily unavailable)\n\
        7 close(5<socket:[1]>) = 0\n\
        7 openat(AT_FDCWD</>, \"/a\", O_RDONLY|O_CLOEXEC) = 5</a>\n\
        7 openat(AT_FDCWD</>, \"/a\", O_RDONLY|O_NONBLOCK) = 6</a>\n\
        7 poll([{fd=5</a>, events=0}], 1, 0) = 0 (Timeout)\n\
        7 poll([{fd=5</a>, events=0}], 1, 20) = 0 (Timeout)\n\
        7 epoll_wait(3<anon_inode:[eventpoll]>, [], 1024, -1) = 0\n\
        7 pipe2([9<pipe:[4]>, 10<pipe:[4]>], O_CLOEXEC) = 0\n\
        7 write(10<pipe:[4]>, \"x\", 1) = 1\n\
        7 openat(AT_FDCWD</>, \"/proc/9/status\", O_RDONLY) = 11</proc/9/status>\n\
        7 openat(AT_FDCWD</>, \"/proc/9/root/a\", O_RDONLY) = 11</a>\n\
        7 sendfile(11</a>, 9<pipe:[4]>, NULL, 8) = 8\n\
        7 pread64(9<pipe:[4]>, \"x\", 1, 0) = 1\n\
        7 read(9<pipe:[4]>, \"\", 8) = 0\n\
        7 pipe2([12<pipe:[5]>, 13<pipe:[5]>], O_CLOEXEC) = 0\n\
        7 clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f) = 14\n\
        7 read(12<pipe:[5]>, \"\", 8) = 0\n\
        7 wait4(9, 0x7f, WNOHANG, NULL) = 0\n\
        7 wait4(9, 0x7f, 0, NULL) = 9\n";
    let found = blocking(&calls(log, 7), 7, &mut BTreeMap::new(), &with_own("/a"));
    let names: Vec<_> = found.iter().map(|call| call.split('(').next().unwrap()).collect();
    let wanted =
        ["connect", "openat", "poll", "write", "openat", "sendfile", "pread64", "read", "wait4"];
    assert_eq!(names, wanted, "{found:?}");
}

#[test]
fn calls_on_foreign_files_are_found_but_not_on_known_ones() {
    let others = "statx(AT_FDCWD</>, \"/b/c\", 0, STATX_ALL, {stx_mask=0}) = 0\n\
        newfstatat(5</b>, \"c\", {st_mode=0}, AT_SYMLINK_NOFOLLOW) = 0\n\
        newfstatat(5</b/c>, \"\", {st_mode=0}, AT_EMPTY_PATH) = 0\n\
        readlink(\"/b/c\", \"/own/c\", 64) = 6\n\
        access(\"/set/a\", F_OK) = 0\n\
        access(\"/proc/9/root/own\", F_OK) = 0\n\
        stat(\"/proc/9/exe\", {st_mode=0}) = 0\n\
        openat(AT_FDCWD</>, \"/b\", O_RDONLY|O_NONBLOCK) = 6</b>\n\
        openat(AT_FDCWD</>, \"/host/b\", O_RDONLY|O_PATH) = 6</b>\n\
        openat(AT_FDCWD</>, \"/proc/9/fd/3\", O_RDONLY|O_NONBLOCK) = 6</own>\n\
        getdents64(6</b>, 0x7f, 32768) = 0\n\
        read(6</b/c>, \"\", 8) = 0\n\
        statfs(\"/run/user/7/b\", {f_type=0}) = 0\n\
        rename(\"/own/c\", \"/b/c\") = 0\n\
        inotify_add_watch(7<anon_inode:inotify>, \"/b\", IN_CREATE) = 1\n\
        connect(8<socket:[1]>, {sa_family=AF_UNIX, sun_path=\"/b/c\"}, 110) = 0\n";
    let known = "statx(5</own/b>, \"c\", 0, STATX_ALL, {stx_mask=0}) = 0\n\
        statx(5</b>, \"\", AT_STATX_DONT_SYNC|AT_EMPTY_PATH, STATX_INO, {stx_mask=0}) = 0\n\
        lstat(\"/host/run/b\", {st_mode=0}) = 0\n\
        readlink(\"/proc/9/exe\", \"/b/c\", 64) = 4\n\
        openat(AT_FDCWD</>, \"/proc/9/fd\", O_RDONLY|O_DIRECTORY) = 6</proc/9/fd>\n\
        openat(AT_FDCWD</>, \"/proc/9/exe\", O_PATH|O_NOFOLLOW) = 6</proc/9/exe>\n\
        symlink(\"/b/c\", \"/own/c\") = 0\n\
        statx(AT_FDCWD</>, \"/set/a.conf\", 0, STATX_ALL, {stx_mask=0}) = 0\n\
        close(6</b>) = 0\n\
        getdents64(6</own>, 0x7f, 32768) = 0\n";
    let found = |log: &str| {
        let log: String = log.lines().map(|line| format!("7 {line}\n")).collect();
        blocking(&calls(&log, 7), 7, &mut BTreeMap::from([(8, true)]), &with_own("/own"))
    };
    assert_eq!(found(others).len(), others.lines().count(), "{:#?}", found(others));
    assert_eq!(found(known), [""; 0]);
}
