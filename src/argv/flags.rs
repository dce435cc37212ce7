// SPDX-License-Identifier: Apache-2.0
//! The flags of runc 1.1 to 1.6, crun and youki, verb by verb: name, short letter, whether a
//! value follows, and what we want to know of it. Flags that only one of them has are here too:
//! a flag that is not known cannot be told from one that takes a value.

/// What a flag's value is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing, but it must be stepped over.
    Skip,
    Root,
    Log,
    LogFormat,
    SystemdCgroup,
    /// Help or version: nothing else will happen.
    Inert,
    Bundle,
    Config,
    PidFile,
    Resources,
    Force,
    Detach,
    All,
    /// A resource of `update` that `--resources` can express.
    Resource,
}

/// One flag.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) long: &'static str,
    pub(super) short: Option<u8>,
    pub(super) takes_value: bool,
    pub(super) meaning: Meaning,
}

const fn value(long: &'static str, meaning: Meaning) -> Flag {
    Flag { long, short: None, takes_value: true, meaning }
}

const fn switch(long: &'static str, meaning: Meaning) -> Flag {
    Flag { long, short: None, takes_value: false, meaning }
}

impl Flag {
    const fn short(mut self, letter: u8) -> Self {
        self.short = Some(letter);
        self
    }
}

use Meaning::{
    All, Bundle, Config, Detach, Force, Inert, Log, LogFormat, PidFile, Resource, Resources, Root,
    Skip, SystemdCgroup,
};

/// Before the verb.
pub(super) static GLOBAL: &[Flag] = &[
    switch("debug", Skip),
    value("log", Log).short(b'l'),
    value("log-format", LogFormat),
    value("log-level", Skip),
    value("root", Root).short(b'r'),
    value("criu", Skip),
    switch("systemd-cgroup", SystemdCgroup).short(b's'),
    value("cgroup-manager", Skip),
    value("rootless", Skip),
    switch("systemd-log", Skip),
    switch("version", Inert).short(b'v'),
    switch("help", Inert).short(b'h'),
];

/// Global flags that runc 1.6 also takes after the verb.
pub(super) static LATE_GLOBAL: &[Flag] = &[
    switch("debug", Skip),
    value("log", Log),
    value("log-format", LogFormat),
    value("log-level", Skip),
    value("root", Root),
    value("rootless", Skip),
    switch("systemd-cgroup", SystemdCgroup),
    switch("help", Inert).short(b'h'),
];

/// `create`, and what `run` shares with it.
pub(super) static CREATE: &[Flag] = &[
    value("bundle", Bundle).short(b'b'),
    value("config", Config).short(b'f'),
    value("console-socket", Skip).short(b'c'),
    value("pidfd-socket", Skip),
    value("pid-file", PidFile).short(b'p'),
    switch("no-pivot", Skip),
    switch("no-new-keyring", Skip),
    switch("no-subreaper", Skip),
    value("preserve-fds", Skip),
    switch("detach", Detach).short(b'd'),
    switch("keep", Skip),
];

pub(super) static RESTORE: &[Flag] = &[
    value("bundle", Bundle).short(b'b'),
    value("console-socket", Skip),
    value("pid-file", PidFile),
    value("image-path", Skip),
    value("work-path", Skip),
    value("parent-path", Skip),
    value("empty-ns", Skip),
    value("manage-cgroups-mode", Skip),
    value("lsm-profile", Skip),
    value("lsm-mount-context", Skip),
    // Declared without argument in crun, yet its code takes the next word.
    value("network-lock", Skip),
    value("page-server", Skip),
    value("status-fd", Skip),
    switch("tcp-established", Skip),
    switch("tcp-close", Skip),
    switch("tcp-skip-in-flight", Skip),
    switch("link-remap", Skip),
    switch("ext-unix-sk", Skip),
    switch("shell-job", Skip),
    switch("file-locks", Skip),
    switch("auto-dedup", Skip),
    switch("lazy-pages", Skip),
    switch("leave-running", Skip),
    switch("pre-dump", Skip),
    switch("no-subreaper", Skip),
    switch("no-pivot", Skip),
    switch("detach", Detach).short(b'd'),
];

pub(super) static KILL: &[Flag] =
    &[switch("all", All).short(b'a'), switch("regex", Skip).short(b'r')];

pub(super) static DELETE: &[Flag] =
    &[switch("force", Force).short(b'f'), switch("regex", Skip).short(b'r')];

pub(super) static EXEC: &[Flag] = &[
    value("console-socket", Skip),
    value("pidfd-socket", Skip),
    value("cwd", Skip),
    value("env", Skip).short(b'e'),
    value("user", Skip).short(b'u'),
    value("additional-gids", Skip).short(b'g'),
    value("process", Skip).short(b'p'),
    value("pid-file", PidFile),
    value("process-label", Skip),
    value("apparmor", Skip),
    value("cap", Skip).short(b'c'),
    value("preserve-fds", Skip),
    value("cgroup", Skip),
    switch("tty", Skip).short(b't'),
    switch("detach", Detach).short(b'd'),
    switch("no-new-privs", Skip),
    switch("ignore-paused", Skip),
    switch("no-subreaper", Skip),
];

pub(super) static UPDATE: &[Flag] = &[
    value("resources", Resources).short(b'r'),
    value("blkio-weight", Resource),
    value("cpu-period", Resource),
    value("cpu-quota", Resource),
    value("cpu-burst", Resource),
    value("cpu-share", Resource),
    value("cpu-rt-period", Resource),
    value("cpu-rt-runtime", Resource),
    value("cpuset-cpus", Resource),
    value("cpuset-mems", Resource),
    value("kernel-memory", Resource),
    value("kernel-memory-tcp", Resource),
    value("memory", Resource),
    value("cpu-idle", Resource),
    value("memory-reservation", Resource),
    value("memory-swap", Resource),
    value("pids-limit", Resource),
    // No resource of the request: runc takes these by flag only, even beside --resources.
    value("l3-cache-schema", Skip),
    value("mem-bw-schema", Skip),
];

/// `ps`, `list`, `events`, `spec`: nothing in them concerns us.
pub(super) static OTHER: &[Flag] = &[
    value("format", Skip).short(b'f'),
    value("interval", Skip),
    switch("stats", Skip),
    switch("quiet", Skip).short(b'q'),
    value("bundle", Skip).short(b'b'),
    switch("rootless", Skip),
];

/// No flag of its own.
pub(super) static NONE: &[Flag] = &[];

/// Verbs that we do not treat, so that a word after an unknown flag can be told for a verb.
pub(super) static OTHER_VERBS: [&str; 15] = [
    "checkpoint",
    "checkpointt",
    "completion",
    "events",
    "features",
    "help",
    "h",
    "info",
    "init",
    "list",
    "mounts",
    "ps",
    "spec",
    "version",
    "nri",
];
