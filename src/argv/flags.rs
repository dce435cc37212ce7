// SPDX-License-Identifier: Apache-2.0
//! The flags of runc, crun and youki: which of them take a value, and which the wrapper reads.
//!
//! Tables only; `walk.rs` applies them. A flag is listed if the wrapper needs it, or to show
//! whether the word after it is its value rather than the verb or the container's ID. Reference:
//! the `--help` of runc 1.1 to 1.6, crun 1.8 to 1.29 and youki 0.7, by verb.

use super::Verb;

/// One flag of a verb, or a global one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flag {
    /// The long name without dashes.
    pub(super) name: &'static str,
    /// The flag's one-letter forms.
    pub(super) letters: &'static str,
    /// Whether the flag needs a value, which may be the next word.
    pub(super) takes_word: bool,
    /// The flag's meaning for the wrapper.
    pub(super) means: FlagMeaning,
    /// The runtimes that know this long name, which decides how `-name` and abbreviations are read.
    pub(super) known_by: KnownBy,
}

/// The runtimes that know a long name. Only runc reads `-name` as `--name`; only crun accepts an
/// abbreviation such as `--na`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownBy {
    /// runc and crun, whether or not youki does.
    All,
    Runc,
    Crun,
    Youki,
}

impl KnownBy {
    pub(super) fn runc(self) -> bool {
        matches!(self, Self::All | Self::Runc)
    }

    pub(super) fn crun(self) -> bool {
        matches!(self, Self::All | Self::Crun)
    }
}

/// The meaning of a flag to the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagMeaning {
    Root,
    Log,
    LogFormat,
    SystemdCgroup,
    /// crun's alternative to `--systemd-cgroup`.
    CgroupManager,
    Bundle,
    Config,
    PidFile,
    /// The file with the process document of an `exec`.
    Process,
    /// Whether the process of an `exec` has a terminal.
    Tty,
    User,
    Cwd,
    Env,
    ResourcesFlag,
    /// One resource of `update`, which `--resources` may also contain.
    Resource,
    Force,
    Detach,
    All,
    /// The ID is a pattern, not the ID of one container.
    Regex,
    /// Makes the runtime only print something.
    Help,
    /// Not used by nri-runc; listed to show whether it takes a value.
    Passed,
}

const fn word(
    name: &'static str,
    letters: &'static str,
    means: FlagMeaning,
    known_by: KnownBy,
) -> Flag {
    Flag { name, letters, takes_word: true, means, known_by }
}

const fn lone(
    name: &'static str,
    letters: &'static str,
    means: FlagMeaning,
    known_by: KnownBy,
) -> Flag {
    Flag { name, letters, takes_word: false, means, known_by }
}

/// Flags before the verb; runc 1.6 also accepts the long names after it.
pub(super) const GLOBAL: &[Flag] = &[
    word("root", "r", FlagMeaning::Root, KnownBy::All),
    word("log", "l", FlagMeaning::Log, KnownBy::All),
    word("log-format", "", FlagMeaning::LogFormat, KnownBy::All),
    word("log-level", "", FlagMeaning::Passed, KnownBy::Crun),
    lone("systemd-cgroup", "s", FlagMeaning::SystemdCgroup, KnownBy::All),
    word("cgroup-manager", "", FlagMeaning::CgroupManager, KnownBy::Crun),
    lone("debug", "", FlagMeaning::Passed, KnownBy::All),
    // crun knows this flag too and takes the next word as its value, but reads `--ro` as `--root`,
    // so the flag is not `KnownBy::All`.
    word("rootless", "", FlagMeaning::Passed, KnownBy::Runc),
    // runc 1.4 removed `--criu`; containerd up to 1.6 can be configured to send it.
    word("criu", "", FlagMeaning::Passed, KnownBy::Runc),
    lone("systemd-log", "", FlagMeaning::Passed, KnownBy::Youki),
];

/// Flags before the verb with which the runtime only prints its help or version.
pub(super) const GLOBAL_ENDS: &[Flag] = &[
    lone("help", "h?", FlagMeaning::Help, KnownBy::All),
    lone("usage", "", FlagMeaning::Help, KnownBy::Crun),
    lone("version", "vV", FlagMeaning::Help, KnownBy::All),
];

/// Flags after the verb with which the runtime only prints help; none accepts `--version` there.
pub(super) const VERB_ENDS: &[Flag] = &[
    lone("help", "h?", FlagMeaning::Help, KnownBy::All),
    lone("usage", "", FlagMeaning::Help, KnownBy::Crun),
];

const CREATE: &[Flag] = &[
    word("bundle", "b", FlagMeaning::Bundle, KnownBy::All),
    word("config", "f", FlagMeaning::Config, KnownBy::Crun),
    word("pid-file", "p", FlagMeaning::PidFile, KnownBy::All),
    word("console-socket", "c", FlagMeaning::Passed, KnownBy::All),
    word("pidfd-socket", "", FlagMeaning::Passed, KnownBy::Runc),
    word("preserve-fds", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-pivot", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-new-keyring", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-subreaper", "", FlagMeaning::Passed, KnownBy::Crun),
];

const RUN: &[Flag] = &[
    word("bundle", "b", FlagMeaning::Bundle, KnownBy::All),
    word("config", "f", FlagMeaning::Config, KnownBy::Crun),
    lone("detach", "d", FlagMeaning::Detach, KnownBy::All),
    word("pid-file", "p", FlagMeaning::PidFile, KnownBy::All),
    word("console-socket", "c", FlagMeaning::Passed, KnownBy::All),
    word("pidfd-socket", "", FlagMeaning::Passed, KnownBy::Runc),
    word("preserve-fds", "", FlagMeaning::Passed, KnownBy::All),
    lone("keep", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-pivot", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-new-keyring", "", FlagMeaning::Passed, KnownBy::All),
    lone("no-subreaper", "", FlagMeaning::Passed, KnownBy::All),
];

const RESTORE: &[Flag] = &[
    word("bundle", "b", FlagMeaning::Bundle, KnownBy::All),
    lone("detach", "d", FlagMeaning::Detach, KnownBy::All),
    word("pid-file", "", FlagMeaning::PidFile, KnownBy::All),
    word("console-socket", "", FlagMeaning::Passed, KnownBy::All),
    word("image-path", "", FlagMeaning::Passed, KnownBy::All),
    word("work-path", "", FlagMeaning::Passed, KnownBy::All),
    word("manage-cgroups-mode", "", FlagMeaning::Passed, KnownBy::All),
    word("empty-ns", "", FlagMeaning::Passed, KnownBy::Runc),
    word("lsm-profile", "", FlagMeaning::Passed, KnownBy::All),
    word("lsm-mount-context", "", FlagMeaning::Passed, KnownBy::All),
    // crun declares the flag without a value, but consumes the next word.
    word("network-lock", "", FlagMeaning::Passed, KnownBy::Crun),
    lone("no-subreaper", "", FlagMeaning::Passed, KnownBy::Runc),
    lone("no-pivot", "", FlagMeaning::Passed, KnownBy::Runc),
    lone("tcp-established", "", FlagMeaning::Passed, KnownBy::All),
    lone("tcp-close", "", FlagMeaning::Passed, KnownBy::Crun),
    lone("ext-unix-sk", "", FlagMeaning::Passed, KnownBy::All),
    lone("shell-job", "", FlagMeaning::Passed, KnownBy::All),
    lone("file-locks", "", FlagMeaning::Passed, KnownBy::All),
    lone("auto-dedup", "", FlagMeaning::Passed, KnownBy::Runc),
    lone("lazy-pages", "", FlagMeaning::Passed, KnownBy::Runc),
];

const UPDATE: &[Flag] = &[
    word("resources", "r", FlagMeaning::ResourcesFlag, KnownBy::All),
    word("blkio-weight", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-period", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-quota", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-burst", "", FlagMeaning::Resource, KnownBy::Runc),
    word("cpu-share", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-rt-period", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-rt-runtime", "", FlagMeaning::Resource, KnownBy::All),
    word("cpu-idle", "", FlagMeaning::Resource, KnownBy::Runc),
    word("cpuset-cpus", "", FlagMeaning::Resource, KnownBy::All),
    word("cpuset-mems", "", FlagMeaning::Resource, KnownBy::All),
    word("kernel-memory", "", FlagMeaning::Resource, KnownBy::All),
    word("kernel-memory-tcp", "", FlagMeaning::Resource, KnownBy::All),
    word("memory", "", FlagMeaning::Resource, KnownBy::All),
    word("memory-reservation", "", FlagMeaning::Resource, KnownBy::All),
    word("memory-swap", "", FlagMeaning::Resource, KnownBy::All),
    word("pids-limit", "", FlagMeaning::Resource, KnownBy::All),
    // No runtime reads these values from `--resources`, so they stay flags.
    word("l3-cache-schema", "", FlagMeaning::Passed, KnownBy::All),
    word("mem-bw-schema", "", FlagMeaning::Passed, KnownBy::All),
];

const DELETE: &[Flag] = &[
    lone("force", "f", FlagMeaning::Force, KnownBy::All),
    lone("regex", "r", FlagMeaning::Regex, KnownBy::Crun),
];

const KILL: &[Flag] = &[
    lone("all", "a", FlagMeaning::All, KnownBy::All),
    lone("regex", "r", FlagMeaning::Regex, KnownBy::Crun),
];

const EXEC: &[Flag] = &[
    lone("detach", "d", FlagMeaning::Detach, KnownBy::All),
    word("pid-file", "", FlagMeaning::PidFile, KnownBy::All),
    word("process", "p", FlagMeaning::Process, KnownBy::All),
    word("console-socket", "", FlagMeaning::Passed, KnownBy::All),
    word("pidfd-socket", "", FlagMeaning::Passed, KnownBy::Runc),
    word("cwd", "", FlagMeaning::Cwd, KnownBy::All),
    word("env", "e", FlagMeaning::Env, KnownBy::All),
    word("user", "u", FlagMeaning::User, KnownBy::All),
    word("additional-gids", "g", FlagMeaning::Passed, KnownBy::Runc),
    word("process-label", "", FlagMeaning::Passed, KnownBy::All),
    word("apparmor", "", FlagMeaning::Passed, KnownBy::All),
    word("cap", "c", FlagMeaning::Passed, KnownBy::All),
    word("preserve-fds", "", FlagMeaning::Passed, KnownBy::All),
    word("cgroup", "", FlagMeaning::Passed, KnownBy::All),
    // crun accepts a value only as `--tty=VALUE`, which needs no entry here.
    lone("tty", "t", FlagMeaning::Tty, KnownBy::All),
    lone("no-new-privs", "", FlagMeaning::Passed, KnownBy::All),
    lone("ignore-paused", "", FlagMeaning::Passed, KnownBy::Runc),
    lone("no-subreaper", "", FlagMeaning::Passed, KnownBy::Runc),
];

/// Returns the verb's own flags.
pub(super) fn of_verb(verb: Verb) -> &'static [Flag] {
    match verb {
        Verb::Create => CREATE,
        Verb::Run => RUN,
        Verb::Restore => RESTORE,
        Verb::Update => UPDATE,
        Verb::Delete => DELETE,
        Verb::Kill => KILL,
        Verb::Exec => EXEC,
        Verb::Start | Verb::State | Verb::Pause | Verb::Resume => &[],
        Verb::Nri | Verb::Other | Verb::None => &[],
    }
}

/// The verbs whose command lines the wrapper reads, by name.
pub(super) const VERBS: &[(&str, Verb)] = &[
    ("create", Verb::Create),
    ("run", Verb::Run),
    ("restore", Verb::Restore),
    ("start", Verb::Start),
    ("update", Verb::Update),
    ("delete", Verb::Delete),
    ("kill", Verb::Kill),
    ("pause", Verb::Pause),
    ("resume", Verb::Resume),
    ("exec", Verb::Exec),
    ("state", Verb::State),
];

/// The runtimes' other verbs, so that these words are recognized as verbs.
pub(super) const OTHER_VERBS: &[&str] = &[
    "checkpoint",
    "checkpointt", // youki spells it like this.
    "completion",
    "events",
    "features",
    "h",
    "help",
    "info",
    "init",
    "list",
    "mounts",
    "ps",
    "spec",
];
