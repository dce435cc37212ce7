// SPDX-License-Identifier: Apache-2.0
//! The flags of runc, crun and youki: which words take a word along, and which ones we read.
//!
//! Tables only; `mod.rs` walks them. A flag stands here either because the wrapper wants its
//! value or because its value must not be mistaken for the verb or the container's id.
//! Reference: the `--help` of runc 1.1 to 1.6, crun 1.8 to 1.29 and youki 0.7, by verb.

use super::Verb;

/// One flag as one verb, or the global part, knows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flag {
    /// The long name without dashes.
    pub(super) name: &'static str,
    /// The letters it can be given by.
    pub(super) letters: &'static str,
    /// Whether it needs a value, which may be the next word.
    pub(super) takes_word: bool,
    /// What the wrapper makes of it.
    pub(super) means: Means,
    /// Whose long name this is: decides about `-name` and about abbreviations.
    pub(super) of: Of,
}

/// Who knows a long name. Only runc reads `-name` as `--name`, only crun reads `--na` so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// runc and crun; youki as well unless its own table says no.
    All,
    Runc,
    Crun,
    Youki,
}

impl Of {
    pub(super) fn runc(self) -> bool {
        matches!(self, Self::All | Self::Runc)
    }

    pub(super) fn crun(self) -> bool {
        matches!(self, Self::All | Self::Crun)
    }
}

/// What a flag means to the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    Root,
    Log,
    LogFormat,
    SystemdCgroup,
    /// crun's other way to say `--systemd-cgroup`.
    CgroupManager,
    Bundle,
    Config,
    PidFile,
    Resources,
    /// One resource of `update`, which `--resources` can carry as well.
    Resource,
    Force,
    Detach,
    All,
    /// The id is a pattern and names no container.
    Regex,
    /// The runtime prints something and does nothing else.
    Help,
    /// Nothing to us; it stands here for the word it takes or does not take.
    Passed,
}

const fn word(name: &'static str, letters: &'static str, means: Means, of: Of) -> Flag {
    Flag { name, letters, takes_word: true, means, of }
}

const fn lone(name: &'static str, letters: &'static str, means: Means, of: Of) -> Flag {
    Flag { name, letters, takes_word: false, means, of }
}

/// Before the verb; runc 1.6 takes the long names after it, too.
pub(super) const GLOBAL: &[Flag] = &[
    word("root", "r", Means::Root, Of::All),
    word("log", "l", Means::Log, Of::All),
    word("log-format", "", Means::LogFormat, Of::All),
    word("log-level", "", Means::Passed, Of::Crun),
    lone("systemd-cgroup", "s", Means::SystemdCgroup, Of::All),
    word("cgroup-manager", "", Means::CgroupManager, Of::Crun),
    lone("debug", "", Means::Passed, Of::All),
    // crun takes a word along here as well. Not `Of::All`, for it reads `--ro` as `--root`.
    word("rootless", "", Means::Passed, Of::Runc),
    // Gone in runc 1.4; containerd up to 1.6 can be told to send it.
    word("criu", "", Means::Passed, Of::Runc),
    lone("systemd-log", "", Means::Passed, Of::Youki),
];

/// What ends a call before its verb is looked at.
pub(super) const GLOBAL_ENDS: &[Flag] = &[
    lone("help", "h?", Means::Help, Of::All),
    lone("usage", "", Means::Help, Of::Crun),
    lone("version", "vV", Means::Help, Of::All),
];

/// The same after the verb, where no runtime has `--version`.
pub(super) const VERB_ENDS: &[Flag] =
    &[lone("help", "h?", Means::Help, Of::All), lone("usage", "", Means::Help, Of::Crun)];

const CREATE: &[Flag] = &[
    word("bundle", "b", Means::Bundle, Of::All),
    word("config", "f", Means::Config, Of::Crun),
    word("pid-file", "p", Means::PidFile, Of::All),
    word("console-socket", "c", Means::Passed, Of::All),
    word("pidfd-socket", "", Means::Passed, Of::Runc),
    word("preserve-fds", "", Means::Passed, Of::All),
    lone("no-pivot", "", Means::Passed, Of::All),
    lone("no-new-keyring", "", Means::Passed, Of::All),
    lone("no-subreaper", "", Means::Passed, Of::Crun),
];

const RUN: &[Flag] = &[
    word("bundle", "b", Means::Bundle, Of::All),
    word("config", "f", Means::Config, Of::Crun),
    lone("detach", "d", Means::Detach, Of::All),
    word("pid-file", "p", Means::PidFile, Of::All),
    word("console-socket", "c", Means::Passed, Of::All),
    word("pidfd-socket", "", Means::Passed, Of::Runc),
    word("preserve-fds", "", Means::Passed, Of::All),
    lone("keep", "", Means::Passed, Of::All),
    lone("no-pivot", "", Means::Passed, Of::All),
    lone("no-new-keyring", "", Means::Passed, Of::All),
    lone("no-subreaper", "", Means::Passed, Of::All),
];

const RESTORE: &[Flag] = &[
    word("bundle", "b", Means::Bundle, Of::All),
    lone("detach", "d", Means::Detach, Of::All),
    word("pid-file", "", Means::PidFile, Of::All),
    word("console-socket", "", Means::Passed, Of::All),
    word("image-path", "", Means::Passed, Of::All),
    word("work-path", "", Means::Passed, Of::All),
    word("manage-cgroups-mode", "", Means::Passed, Of::All),
    word("empty-ns", "", Means::Passed, Of::Runc),
    word("lsm-profile", "", Means::Passed, Of::All),
    word("lsm-mount-context", "", Means::Passed, Of::All),
    // crun declares it without a value and then takes the next word all the same.
    word("network-lock", "", Means::Passed, Of::Crun),
    lone("no-subreaper", "", Means::Passed, Of::Runc),
    lone("no-pivot", "", Means::Passed, Of::Runc),
    lone("tcp-established", "", Means::Passed, Of::All),
    lone("tcp-close", "", Means::Passed, Of::Crun),
    lone("ext-unix-sk", "", Means::Passed, Of::All),
    lone("shell-job", "", Means::Passed, Of::All),
    lone("file-locks", "", Means::Passed, Of::All),
    lone("auto-dedup", "", Means::Passed, Of::Runc),
    lone("lazy-pages", "", Means::Passed, Of::Runc),
];

const UPDATE: &[Flag] = &[
    word("resources", "r", Means::Resources, Of::All),
    word("blkio-weight", "", Means::Resource, Of::All),
    word("cpu-period", "", Means::Resource, Of::All),
    word("cpu-quota", "", Means::Resource, Of::All),
    word("cpu-burst", "", Means::Resource, Of::Runc),
    word("cpu-share", "", Means::Resource, Of::All),
    word("cpu-rt-period", "", Means::Resource, Of::All),
    word("cpu-rt-runtime", "", Means::Resource, Of::All),
    word("cpu-idle", "", Means::Resource, Of::Runc),
    word("cpuset-cpus", "", Means::Resource, Of::All),
    word("cpuset-mems", "", Means::Resource, Of::All),
    word("kernel-memory", "", Means::Resource, Of::All),
    word("kernel-memory-tcp", "", Means::Resource, Of::All),
    word("memory", "", Means::Resource, Of::All),
    word("memory-reservation", "", Means::Resource, Of::All),
    word("memory-swap", "", Means::Resource, Of::All),
    word("pids-limit", "", Means::Resource, Of::All),
    // Not part of the resources that `--resources` carries in any runtime: they stay flags.
    word("l3-cache-schema", "", Means::Passed, Of::All),
    word("mem-bw-schema", "", Means::Passed, Of::All),
];

const DELETE: &[Flag] =
    &[lone("force", "f", Means::Force, Of::All), lone("regex", "r", Means::Regex, Of::Crun)];

const KILL: &[Flag] =
    &[lone("all", "a", Means::All, Of::All), lone("regex", "r", Means::Regex, Of::Crun)];

const EXEC: &[Flag] = &[
    lone("detach", "d", Means::Detach, Of::All),
    word("pid-file", "", Means::PidFile, Of::All),
    word("process", "p", Means::Passed, Of::All),
    word("console-socket", "", Means::Passed, Of::All),
    word("pidfd-socket", "", Means::Passed, Of::Runc),
    word("cwd", "", Means::Passed, Of::All),
    word("env", "e", Means::Passed, Of::All),
    word("user", "u", Means::Passed, Of::All),
    word("additional-gids", "g", Means::Passed, Of::Runc),
    word("process-label", "", Means::Passed, Of::All),
    word("apparmor", "", Means::Passed, Of::All),
    word("cap", "c", Means::Passed, Of::All),
    word("preserve-fds", "", Means::Passed, Of::All),
    word("cgroup", "", Means::Passed, Of::All),
    // crun takes a value only as `--tty=VALUE`, which no flag needs a place in this table for.
    lone("tty", "t", Means::Passed, Of::All),
    lone("no-new-privs", "", Means::Passed, Of::All),
    lone("ignore-paused", "", Means::Passed, Of::Runc),
    lone("no-subreaper", "", Means::Passed, Of::Runc),
];

/// The verb's own flags.
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

/// The verbs whose calls the wrapper reads, by name.
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

/// The verbs that the runtimes have besides: known, so that a word is seen to be a verb.
pub(super) const OTHER_VERBS: &[&str] = &[
    "checkpoint",
    "checkpointt", // youki's spelling
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
