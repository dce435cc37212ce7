// SPDX-License-Identifier: Apache-2.0
//! Parses the command line of a runtime with tables of flags.
//!
//! [`read`] finds the verb, the ID and the few flags that the wrapper acts on. It never fails:
//! words that it cannot parse reach the runtime unchanged, and the runtime reports the error. Words
//! are never corrected or reordered; only [`for_update_by_stdin`], [`with_process_file`] and
//! [`with_later_process`] build another command line.
//!
//! One parser handles three grammars. Where they differ, runc's is tried first:
//!
//! * `-bundle B` is a long name (runc), not `-b undle` (crun, youki); `-b=B` is `B` (runc, youki),
//!   not `=B` (crun). Only words that runc does not accept are tried as crun's and youki's bundled
//!   letters (`-fr`, `-bB`) and crun's shortened names (`--bund`).
//! * Flags are recognized at any position, also after the ID (runc, youki; crun refuses them
//!   there), and runc 1.6 takes global flags after the verb. The flags of `exec` and `kill` end at
//!   the first plain word, as in runc 1.6; up to 1.5, runc read `kill ID --all 9` as a kill of the
//!   container `9`.
//! * A flag given twice: the last wins (runc, crun; youki refuses most).
//! * The IDs `help` and `h` request help, as in runc 1.6, for any runtime. Up to runc 1.5 and in
//!   crun they are IDs: such a call is inert here, but the wrapper still involves plugins.
//! * A boolean flag may have a value, `--force=false` (only runc; the others refuse it).
//!
//! A command line that can be parsed is treated as a real call even if a runtime would refuse it:
//! asking plugins needlessly is harmless. A call is inert only if no runtime would act on it,
//! except for those two IDs.
//!
//! An unlisted flag is assumed to take no value, unless there is one plain word too many: then the
//! next word was its value. So an unknown flag of a future runtime cannot hide the verb or the ID.
//!
//! Reference: urfave/cli v1 and v3 over Go's `flag` (runc), glibc argp (crun), clap (youki).

mod flags;
mod walk;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use flags::{Flag, FlagMeaning};
use walk::{CommandPart, walk_globals, walk_verb};

/// The verbs whose command lines the wrapper reads; all others are `Other` and pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verb {
    /// `create`.
    Create,
    /// `run`: creates and starts.
    Run,
    /// `restore`: a create from a checkpoint.
    Restore,
    /// `start`.
    Start,
    /// `update`.
    Update,
    /// `delete`.
    Delete,
    /// `kill`.
    Kill,
    /// `pause`.
    Pause,
    /// `resume`.
    Resume,
    /// `exec`.
    Exec,
    /// `state`.
    State,
    /// nri-runc's own verb; recognized only as the first word, so that no container or flag is
    /// taken for it.
    Nri,
    /// Any other verb, known or not.
    Other,
    /// No verb.
    #[default]
    None,
}

impl Verb {
    /// Returns the verb as written, `other` for [`Verb::Other`] and `none` for [`Verb::None`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Nri => "nri",
            Self::Other => "other",
            Self::None => "none",
            Self::Create
            | Self::Run
            | Self::Restore
            | Self::Start
            | Self::Update
            | Self::Delete
            | Self::Kill
            | Self::Pause
            | Self::Resume
            | Self::Exec
            | Self::State => {
                flags::VERBS.iter().find(|(_, v)| *v == self).map_or("other", |(name, _)| name)
            }
        }
    }

    /// Returns the verb that this word names; `Other` for every other word.
    pub fn from_word(word: &OsStr) -> Self {
        flags::VERBS.iter().find(|(name, _)| word == *name).map_or(Self::Other, |(_, verb)| *verb)
    }

    /// Whether the verb creates a container.
    pub fn creates(self) -> bool {
        self == Self::Create || self.creates_and_starts()
    }

    /// Whether the verb creates and starts a container.
    pub fn creates_and_starts(self) -> bool {
        self == Self::Run || self == Self::Restore
    }

    /// Whether flags end at the first plain word: the rest is a command or a signal.
    fn ends_at_first_word(self) -> bool {
        self == Self::Exec || self == Self::Kill
    }

    fn is_read(self) -> bool {
        !matches!(self, Self::Nri | Self::Other | Self::None)
    }
}

/// A parsed command line. Paths are as written: relative, empty and non-UTF-8 ones included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// The verb.
    pub verb: Verb,
    /// The verb's index in argv.
    pub verb_index: Option<usize>,
    /// The container's ID. Also `None` if the word is a pattern (crun's `--regex`).
    pub id: Option<OsString>,
    /// The ID's index in argv; the words after it are an `exec`'s command.
    pub id_index: Option<usize>,
    /// Whether an unlisted flag precedes the ID, so that the word may be that flag's value. An
    /// `exec` ends at its first plain word, so its container, flags and command may then be wrong.
    pub id_may_be_value: bool,
    /// `--root`.
    pub root: Option<OsString>,
    /// `--log`; crun's may begin with `file:`, `journald:` or `syslog:`.
    pub log: Option<OsString>,
    /// `--log-format`.
    pub log_format: Option<OsString>,
    /// `--systemd-cgroup`, or crun's `--cgroup-manager systemd`.
    pub systemd_cgroup: bool,
    /// `--bundle`; absent and empty both mean the current directory.
    pub bundle: Option<OsString>,
    /// crun's `--config` of create and run: the file it reads instead of `config.json`.
    pub config: Option<OsString>,
    /// `--pid-file`.
    pub pid_file: Option<OsString>,
    /// `--process` of exec.
    pub process: Option<ProcessFlag>,
    /// `--tty` of exec.
    pub tty: bool,
    /// `--user` of exec, as written.
    pub user: Option<OsString>,
    /// `--cwd` of exec.
    pub cwd: Option<OsString>,
    /// Each `--env` of exec, in order.
    pub env: Vec<OsString>,
    /// The signal of kill, as written.
    pub signal: Option<OsString>,
    /// `--resources` of update.
    pub resources: Option<ResourcesFlag>,
    /// `--force` of delete.
    pub force: bool,
    /// `--detach` of run, restore and exec.
    pub detach: bool,
    /// `--all` of kill.
    pub all: bool,
    /// Whether the runtime will only print help, a version or a usage error, and touch no
    /// container; for the IDs `help` and `h`, only runc 1.6 does so.
    pub is_inert: bool,
    /// The resources of update that separate flags give, in order. [`for_update_by_stdin`] removes
    /// them along with `--resources`; runc ignores them if `--resources` is given.
    pub resource_flags: Vec<ResourceFlag>,
}

/// The last `--process` of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFlag {
    /// A file with the document of a process.
    pub value: OsString,
    /// The index of the argv word that ends with the value: the flag itself or the next word.
    pub word: usize,
}

/// The last `--resources` of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcesFlag {
    /// A file, or `-` for standard input.
    pub value: OsString,
    /// The argv words of the flag: one or two.
    pub range: Range<usize>,
}

/// One resource given as a separate flag, such as `--memory 5`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceFlag {
    /// The long name without dashes, in full.
    pub name: &'static str,
    /// The value as written.
    pub value: OsString,
    /// The argv words of the flag: one or two.
    pub range: Range<usize>,
}

/// Whether no runtime can create a container of this ID, because as a path below the runtime's root
/// it names the root itself or a parent directory.
pub(crate) fn is_never_an_id(id: &OsStr) -> bool {
    id.is_empty() || id == "." || id == ".."
}

/// Whether runc accepts this ID: letters, digits and these signs only; versions before 1.2 also
/// accept the comma.
pub(crate) fn is_id_of_runc(id: &OsStr) -> bool {
    let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || b"_+-.,".contains(byte);
    !is_never_an_id(id) && id.as_encoded_bytes().iter().all(is_usual)
}

/// Parses a command line; `argv` includes `argv[0]`.
pub fn read(argv: &[OsString]) -> CommandLine {
    if argv.get(1).is_some_and(|word| word == "nri") {
        return CommandLine { verb: Verb::Nri, verb_index: Some(1), ..CommandLine::default() };
    }
    let mut reading = CommandLineReader::default();
    let verb_index = walk_globals(argv, &mut |part| reading.take(part));
    reading.call.verb_index = verb_index;
    let word = verb_index.and_then(|at| argv.get(at));
    reading.call.verb = word.map_or(Verb::None, |word| Verb::from_word(word));
    if let Some(at) = verb_index {
        walk_verb(argv, at, reading.call.verb, &mut |part| reading.take(part));
    }
    reading.finish(word.is_some_and(|word| asks_for_help(word)))
}

/// Returns the command line with which the runtime reads all resources from standard input:
/// `--resources` and the flags of single resources are removed, `--resources=-` is inserted right
/// after the verb, and all other words stay.
///
/// `--resources=-` is one word, because runc 1.1 moves flags to the front, before a lone `-`: for
/// `--resources - --l3-cache-schema X ID` it would read the file `--l3-cache-schema`.
pub fn for_update_by_stdin(argv: &[OsString], call: &CommandLine) -> Vec<OsString> {
    let Some(verb_index) = call.verb_index else { return argv.to_vec() };
    let mut gone: Vec<Range<usize>> = Vec::new();
    walk_verb(argv, verb_index, call.verb, &mut |part| {
        if let CommandPart::Flag { flag, words, .. } = part
            && matches!(flag.means, FlagMeaning::ResourcesFlag | FlagMeaning::Resource)
        {
            gone.push(words);
        }
    });
    let mut words = Vec::with_capacity(argv.len() + 1);
    for (index, word) in argv.iter().enumerate() {
        if !gone.iter().any(|range| range.contains(&index)) {
            words.push(word.clone());
        }
        if index == verb_index {
            words.push(OsString::from("--resources=-"));
        }
    }
    words
}

/// Returns the effective `--process` of an `exec`: runc ignores an empty one.
pub(crate) fn process_file(call: &CommandLine) -> Option<&ProcessFlag> {
    call.process.as_ref().filter(|flag| !flag.value.is_empty())
}

/// Returns the `exec` with its process document read from `file`; all other words and the flag's
/// spelling stay.
pub(crate) fn with_process_file(
    argv: &[OsString],
    flag: &ProcessFlag,
    file: &OsStr,
) -> Vec<OsString> {
    let mut words = argv.to_vec();
    if let Some(word) = words.get_mut(flag.word) {
        let kept = word.len().saturating_sub(flag.value.len());
        let mut spelt = word.as_bytes().get(..kept).unwrap_or_default().to_vec();
        spelt.extend_from_slice(file.as_bytes());
        *word = OsString::from_vec(spelt);
    }
    words
}

/// Returns the command line of an `exec` that has no process document, with `flags` added, which
/// override earlier ones, and with `args`, if given, in place of the process's arguments.
pub(crate) fn with_later_process(
    argv: &[OsString],
    call: &CommandLine,
    flags: &[String],
    args: Option<&[String]>,
) -> Vec<OsString> {
    let Some(at) = call.id_index else { return argv.to_vec() };
    // After `--` no word is a flag.
    let is_end = |at: &usize| argv.get(*at).is_some_and(|word| word == "--");
    let end = at.checked_sub(1).filter(is_end).unwrap_or(at);
    let (before, rest) = argv.split_at(end.min(argv.len()));
    let mut words = before.to_vec();
    words.extend(flags.iter().map(OsString::from));
    match args {
        Some(args) => {
            words.extend(rest.iter().take(at + 1 - end).cloned());
            words.extend(args.iter().map(OsString::from));
        }
        None => words.extend_from_slice(rest),
    }
    words
}

/// The signals with which engines stop an infrastructure container, by number and name.
const ENDING_SIGNALS: [(u8, &str); 4] = [(2, "INT"), (3, "QUIT"), (9, "KILL"), (15, "TERM")];

/// Returns the number of a `kill`'s signal, if the signal is one that should end the process. If
/// the command line has no signal, runc and crun send SIGTERM.
pub(crate) fn ending_signal(call: &CommandLine) -> Option<u8> {
    let Some(signal) = &call.signal else { return Some(15) };
    let signal = signal.to_str()?.to_ascii_uppercase();
    let name = signal.strip_prefix("SIG").unwrap_or(&signal);
    let is_meant = |(number, known): &&(u8, &str)| name == *known || name.parse() == Ok(*number);
    ENDING_SIGNALS.iter().find(is_meant).map(|(number, _)| *number)
}

fn asks_for_help(word: &OsStr) -> bool {
    word == "help" || word == "h"
}

/// Collects the meaning of each word.
#[derive(Default)]
struct CommandLineReader {
    call: CommandLine,
    asks_for_help: bool,
    by_pattern: bool,
    is_starved: bool,
}

impl CommandLineReader {
    fn take(&mut self, part: CommandPart<'_>) {
        match part {
            CommandPart::Flag { flag, value, words } => self.take_flag(flag, value, words),
            CommandPart::Word { word, at, may_be_value } => {
                if self.call.id.is_none() || self.call.id_may_be_value {
                    self.call.id = Some(word.to_owned());
                    self.call.id_index = Some(at);
                    self.call.id_may_be_value = may_be_value;
                }
            }
            CommandPart::Signal { word } => self.call.signal = Some(word.to_owned()),
            CommandPart::Starved => self.is_starved = true,
        }
    }

    fn take_flag(&mut self, flag: &'static Flag, value: Option<&OsStr>, words: Range<usize>) {
        let call = &mut self.call;
        let text = || value.map(OsStr::to_owned);
        let is_on = || !value.is_some_and(is_false);
        match flag.means {
            FlagMeaning::Root => call.root = text(),
            FlagMeaning::Log => call.log = text(),
            FlagMeaning::LogFormat => call.log_format = text(),
            FlagMeaning::SystemdCgroup => call.systemd_cgroup = is_on(),
            FlagMeaning::CgroupManager => {
                call.systemd_cgroup = value.is_some_and(|value| value == "systemd");
            }
            FlagMeaning::Bundle => call.bundle = text(),
            FlagMeaning::Config => call.config = text(),
            FlagMeaning::PidFile => call.pid_file = text(),
            FlagMeaning::ResourcesFlag => {
                call.resources = text().map(|value| ResourcesFlag { value, range: words });
            }
            FlagMeaning::Process => {
                call.process = text().map(|value| ProcessFlag { value, word: words.end - 1 });
            }
            FlagMeaning::Tty => call.tty = is_on(),
            FlagMeaning::User => call.user = text(),
            FlagMeaning::Cwd => call.cwd = text(),
            FlagMeaning::Env => call.env.extend(text()),
            FlagMeaning::Resource => call.resource_flags.push(ResourceFlag {
                name: flag.name,
                value: text().unwrap_or_default(),
                range: words,
            }),
            FlagMeaning::Force => call.force = is_on(),
            FlagMeaning::Detach => call.detach = is_on(),
            FlagMeaning::All => call.all = is_on(),
            FlagMeaning::Regex => self.by_pattern = is_on(),
            FlagMeaning::Help => self.asks_for_help = is_on(),
            FlagMeaning::Passed => {}
        }
    }

    fn finish(self, verb_asks_for_help: bool) -> CommandLine {
        let Self { mut call, asks_for_help: by_flag, by_pattern, is_starved, .. } = self;
        let by_id = call.id.as_deref().is_some_and(asks_for_help);
        let lacks_id = call.verb.is_read() && call.id.is_none();
        let lacks_verb = call.verb == Verb::None;
        call.is_inert =
            by_flag || verb_asks_for_help || by_id || lacks_id || lacks_verb || is_starved;
        if by_pattern {
            call.id = None;
        }
        call
    }
}

/// Whether Go parses this value as false; a value that is neither true nor false is an error there.
fn is_false(value: &OsStr) -> bool {
    matches!(value.as_bytes(), b"0" | b"f" | b"F" | b"false" | b"False" | b"FALSE")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn call(line: &str) -> CommandLine {
        read(&words(line))
    }

    #[test]
    fn resource_flags_of_an_update_are_replaced_by_stdin() {
        let line = "x --root /r update --memory 5 --l3-cache-schema L3:0=f -r f c1 --cpu-share=7";
        let argv = for_update_by_stdin(&words(line), &call(line));
        assert_eq!(argv, words("x --root /r update --resources=- --l3-cache-schema L3:0=f c1"));
    }

    #[test]
    fn every_resources_flag_is_removed() {
        let line = "x update -r a --resources=b -rc c1 -r d";
        let argv = for_update_by_stdin(&words(line), &call(line));
        assert_eq!(argv, words("x update --resources=- c1"));
    }

    #[test]
    fn the_last_process_file_is_replaced_and_its_flag_kept() {
        for (line, wanted) in [
            ("x --root /r exec -d --process /tmp/p c1", "x --root /r exec -d --process /m c1"),
            ("x exec --process=/tmp/p=q c1", "x exec --process=/m c1"),
            ("x exec -process /tmp/p c1", "x exec -process /m c1"),
            ("x exec -p /tmp/p c1", "x exec -p /m c1"),
            ("x exec -p=/tmp/p c1", "x exec -p=/m c1"),
            ("x exec -dtp/tmp/p c1", "x exec -dtp/m c1"),
            ("x exec -tdp /tmp/p c1", "x exec -tdp /m c1"),
            ("x exec --process a -p b c1 --process c", "x exec --process a -p /m c1 --process c"),
            ("x exec --process - c1", "x exec --process /m c1"),
        ] {
            let flag = call(line).process.unwrap();
            let argv = with_process_file(&words(line), &flag, OsStr::new("/m"));
            assert_eq!(argv, words(wanted), "{line}");
        }
        for line in ["x exec c1 --process /tmp/p", "x exec -e process=p c1", "x state -p /f c1"] {
            assert_eq!(call(line).process, None, "{line}");
        }
    }

    #[test]
    fn flags_for_an_exec_are_appended_and_its_arguments_replaced() {
        let flags = ["--env=A=1".to_owned(), "--cwd=/".to_owned()];
        let args = ["env".to_owned(), "-i".to_owned()];
        for (line, wanted) in [
            ("x exec -e A=2 c1 sh -c y", "x exec -e A=2 --env=A=1 --cwd=/ c1 env -i"),
            ("x exec -t -- c1 sh", "x exec -t --env=A=1 --cwd=/ -- c1 env -i"),
        ] {
            let words = with_later_process(&words(line), &call(line), &flags, Some(&args));
            assert_eq!(words.join(OsStr::new(" ")), wanted);
        }
        let line = "x exec --env A=2 -eB=3 --cwd /w c1 sh --env C=4";
        let parsed = call(line);
        assert_eq!((parsed.env.len(), parsed.cwd.as_deref()), (2, Some(OsStr::new("/w"))));
        assert_eq!(with_later_process(&words(line), &parsed, &[], None), words(line));
        assert_eq!(
            with_later_process(&words("x exec"), &call("x exec"), &flags, None),
            words("x exec")
        );
    }

    #[test]
    fn signals_that_end_a_process_are_known_by_number_and_name() {
        for (line, wanted) in [
            ("x kill c1", Some(15)),
            ("x kill c1 9", Some(9)),
            ("x kill --all c1 9", Some(9)),
            ("x kill -a c1 KILL", Some(9)),
            ("x kill c1 SIGTERM", Some(15)),
            ("x kill c1 sigint", Some(2)),
            ("x kill c1 3", Some(3)),
            ("x kill c1 HUP", None),
            ("x kill c1 0", None),
            ("x kill c1 -9", None),
            ("x kill c1 137", None),
            ("x kill -- c1 TERM", Some(15)),
        ] {
            assert_eq!(ending_signal(&call(line)), wanted, "{line}");
        }
    }

    #[test]
    fn nri_is_a_verb_only_as_the_first_word() {
        assert_eq!(call("x nri status").verb, Verb::Nri);
        for line in ["x --root /r nri", "x state nri", "x create -b nri nri", "x -- nri"] {
            assert_ne!(call(line).verb, Verb::Nri, "{line}");
        }
    }

    #[test]
    fn an_empty_command_line_has_no_verb() {
        for argv in [vec![], words("x"), words("x --root"), words("x --"), words("x --debug")] {
            let call = read(&argv);
            assert_eq!((call.verb, call.verb_index, call.is_inert), (Verb::None, None, true));
        }
    }

    #[test]
    fn a_flag_set_to_false_is_off_and_its_last_value_counts() {
        assert!(!call("x delete --force=false c1").force);
        assert!(!call("x delete --force --force=0 c1").force);
        assert!(call("x delete --force=false -f c1").force);
        assert!(!call("x create --help=false c1").is_inert);
    }
}
