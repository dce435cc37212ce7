// SPDX-License-Identifier: Apache-2.0
//! runc's command line, read by a table: verb, id, bundle, log and what else we must know,
//! without losing or changing a byte. It never fails: what cannot be understood is passed
//! through, and the real runtime says what is wrong with it.
//!
//! runc, crun and youki differ; where they do, runc's reading wins (`-x=v` is a value `v`), and
//! what only crun or youki accept (bundled shorts, abbreviations, attached values) is understood
//! too, since to runc it is an error that it reports by itself.

mod flags;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use flags::{Flag, Meaning};

/// The verbs that are told apart; everything else is `Other` and passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `create`.
    Create,
    /// `run`.
    Run,
    /// `restore`.
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
    /// Our own reserved verb, only as the very first word.
    Nri,
    /// Any other word.
    Other,
    /// No verb at all.
    None,
}

impl Verb {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Restore => "restore",
            Self::Start => "start",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Exec => "exec",
            Self::State => "state",
            Self::Nri => "nri",
            Self::Other => "other",
            Self::None => "none",
        }
    }

    fn of(word: &OsStr) -> Self {
        match word.as_bytes() {
            b"create" => Self::Create,
            b"run" => Self::Run,
            b"restore" => Self::Restore,
            b"start" => Self::Start,
            b"update" => Self::Update,
            b"delete" => Self::Delete,
            b"kill" => Self::Kill,
            b"pause" => Self::Pause,
            b"resume" => Self::Resume,
            b"exec" => Self::Exec,
            b"state" => Self::State,
            _ => Self::Other,
        }
    }

    fn flags(self, word: &OsStr) -> &'static [Flag] {
        match self {
            Self::Create | Self::Run => flags::CREATE,
            Self::Restore => flags::RESTORE,
            Self::Update => flags::UPDATE,
            Self::Delete => flags::DELETE,
            Self::Kill => flags::KILL,
            Self::Exec => flags::EXEC,
            Self::Start | Self::State | Self::Pause | Self::Resume => flags::NONE,
            Self::Other if word.as_bytes().starts_with(b"checkpoint") => flags::RESTORE,
            Self::Other | Self::Nri | Self::None => flags::OTHER,
        }
    }
}

/// `--resources` of `update`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// A file, or `-` for standard input.
    pub value: OsString,
    /// The words of argv that it occupies.
    pub range: Range<usize>,
}

/// One of `update`'s flags that `--resources` can express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceFlag {
    /// Canonical long name.
    pub name: &'static str,
    /// Its value.
    pub value: OsString,
    /// The words of argv that it occupies.
    pub range: Range<usize>,
}

/// A command line, understood as far as it concerns us.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "these are the runtime's own switches")]
pub struct Call {
    /// The verb.
    pub verb: Verb,
    /// Where it stands.
    pub verb_index: Option<usize>,
    /// The container's id: the first word after the verb that is no flag.
    pub id: Option<OsString>,
    /// `--root`.
    pub root: Option<OsString>,
    /// `--log`.
    pub log: Option<OsString>,
    /// `--log-format`.
    pub log_format: Option<OsString>,
    /// `--systemd-cgroup`.
    pub systemd_cgroup: bool,
    /// `--bundle`.
    pub bundle: Option<OsString>,
    /// crun's alternative to the bundle's config.json.
    pub config: Option<OsString>,
    /// `--pid-file`.
    pub pid_file: Option<OsString>,
    /// `--resources`.
    pub resources: Option<Resources>,
    /// `--force`.
    pub force: bool,
    /// `--detach`.
    pub detach: bool,
    /// `--all`.
    pub all: bool,
    /// Only help or a version will be printed: nothing happens to a container.
    pub is_inert: bool,
    /// `update`'s single resources.
    pub resource_flags: Vec<ResourceFlag>,
}

impl Call {
    fn new() -> Self {
        Self {
            verb: Verb::None,
            verb_index: None,
            id: None,
            root: None,
            log: None,
            log_format: None,
            systemd_cgroup: false,
            bundle: None,
            config: None,
            pid_file: None,
            resources: None,
            force: false,
            detach: false,
            all: false,
            is_inert: false,
            resource_flags: Vec::new(),
        }
    }

    fn take(&mut self, flag: &'static Flag, value: &OsStr, range: Range<usize>) {
        let value = value.to_owned();
        // A repeated flag: the last one wins, as in runc.
        match flag.meaning {
            Meaning::Skip => {}
            Meaning::Root => self.root = Some(value),
            Meaning::Log => self.log = Some(value),
            Meaning::LogFormat => self.log_format = Some(value),
            Meaning::SystemdCgroup => self.systemd_cgroup = is_true(&value),
            Meaning::Inert => self.is_inert |= is_true(&value),
            Meaning::Bundle => self.bundle = Some(value),
            Meaning::Config => self.config = Some(value),
            Meaning::PidFile => self.pid_file = Some(value),
            Meaning::Resources => self.resources = Some(Resources { value, range }),
            Meaning::Force => self.force = is_true(&value),
            Meaning::Detach => self.detach = is_true(&value),
            Meaning::All => self.all = is_true(&value),
            Meaning::Resource => {
                self.resource_flags.push(ResourceFlag { name: flag.long, value, range });
            }
        }
    }
}

/// A switch is on when it is there, but for `--switch=false` (which runc accepts).
fn is_true(value: &OsStr) -> bool {
    !matches!(value.as_bytes(), b"false" | b"0" | b"f" | b"F" | b"FALSE" | b"False")
}

/// What a word is.
enum Word<'w> {
    Plain,
    /// `--`
    End,
    /// A known flag, with its value if the word holds it.
    Known(&'static Flag, Option<&'w OsStr>),
    /// Several switches in one word, as crun and youki take them.
    Bundle(Vec<&'static Flag>),
    Unknown {
        has_value: bool,
    },
}

/// Understands a command line (argv[0] included).
pub fn read(argv: &[OsString]) -> Call {
    let mut call = Call::new();
    if argv.get(1).is_some_and(|word| word == "nri") {
        call.verb = Verb::Nri;
        call.verb_index = Some(1);
        return call;
    }
    let Some(index) = read_globals(argv, &mut call) else { return call };
    call.verb = Verb::of(&argv[index]);
    call.verb_index = Some(index);
    read_verb(argv, index, &mut call);
    if call.id.as_deref().is_some_and(|id| id == "help" || id == "h") {
        // runc 1.6 prints the verb's help; older ones look for a container of that name.
        call.is_inert = true;
    }
    call
}

/// Reads the global flags; returns where the verb stands.
fn read_globals(argv: &[OsString], call: &mut Call) -> Option<usize> {
    let mut index = 1;
    let mut after_unknown = false;
    while index < argv.len() {
        match classify(&argv[index], &[flags::GLOBAL]) {
            Word::Plain => {
                // An unknown flag without `=` may have taken this word as its value.
                let next_is_verb = argv.get(index + 1).is_some_and(|word| is_verb(word));
                if after_unknown && !is_verb(&argv[index]) && next_is_verb {
                    return Some(index + 1);
                }
                return Some(index);
            }
            Word::End => return (index + 1 < argv.len()).then_some(index + 1),
            Word::Unknown { has_value } => after_unknown = !has_value,
            word @ (Word::Known(..) | Word::Bundle(_)) => {
                after_unknown = false;
                index = take_word(argv, index, word, call);
            }
        }
        index += 1;
    }
    None
}

fn is_verb(word: &OsStr) -> bool {
    Verb::of(word) != Verb::Other
        || word.to_str().is_some_and(|word| flags::OTHER_VERBS.contains(&word))
}

/// Reads what follows the verb.
fn read_verb(argv: &[OsString], verb_index: usize, call: &mut Call) {
    let own = call.verb.flags(&argv[verb_index]);
    // What follows the id of these belongs to somebody else.
    let ends_at_id = matches!(call.verb, Verb::Exec | Verb::Kill | Verb::Other);
    let mut index = verb_index + 1;
    let mut only_words = false;
    while index < argv.len() {
        let word = if only_words {
            Word::Plain
        } else {
            classify(&argv[index], &[own, flags::LATE_GLOBAL])
        };
        match word {
            Word::Plain => {
                if call.id.is_none() {
                    call.id = Some(argv[index].clone());
                }
                if ends_at_id {
                    return;
                }
            }
            Word::End => only_words = true,
            Word::Unknown { .. } => {}
            word @ (Word::Known(..) | Word::Bundle(_)) => {
                index = take_word(argv, index, word, call);
            }
        }
        index += 1;
    }
}

/// Takes a flag with its value, which may be the next word; returns the last word it occupies.
fn take_word(argv: &[OsString], index: usize, word: Word<'_>, call: &mut Call) -> usize {
    match word {
        Word::Known(flag, Some(value)) => {
            call.take(flag, value, index..index + 1);
            index
        }
        Word::Known(flag, None) if flag.takes_value => {
            let Some(value) = argv.get(index + 1) else { return index };
            call.take(flag, value, index..index + 2);
            index + 1
        }
        Word::Known(flag, None) => {
            call.take(flag, OsStr::new("true"), index..index + 1);
            index
        }
        Word::Bundle(switches) => {
            for flag in switches {
                call.take(flag, OsStr::new("true"), index..index + 1);
            }
            index
        }
        Word::Plain | Word::End | Word::Unknown { .. } => index,
    }
}

fn classify<'w>(word: &'w OsStr, tables: &[&'static [Flag]]) -> Word<'w> {
    let bytes = word.as_bytes();
    if bytes == b"--" {
        return Word::End;
    }
    if bytes.len() < 2 || bytes[0] != b'-' {
        return Word::Plain;
    }
    let is_long = bytes[1] == b'-';
    let body = if is_long { &bytes[2..] } else { &bytes[1..] };
    let at = body.iter().position(|byte| *byte == b'=');
    let (name, value) = match at {
        Some(at) => (&body[..at], Some(OsStr::from_bytes(&body[at + 1..]))),
        None => (body, None),
    };
    let unknown = Word::Unknown { has_value: value.is_some() };
    // runc takes long names behind one dash as well, and single letters behind two.
    if let Some(flag) = find(tables, |flag| is_named(flag, name)) {
        return Word::Known(flag, value);
    }
    if is_long {
        abbreviated(name, value, tables).unwrap_or(unknown)
    } else {
        short(body, tables).unwrap_or(unknown)
    }
}

fn is_named(flag: &Flag, name: &[u8]) -> bool {
    flag.long.as_bytes() == name || (name.len() == 1 && flag.short == Some(name[0]))
}

fn find(tables: &[&'static [Flag]], is: impl Fn(&Flag) -> bool) -> Option<&'static Flag> {
    tables.iter().flat_map(|table| table.iter()).find(|flag| is(flag))
}

/// crun accepts the beginning of a long name where only one flag begins so.
fn abbreviated<'w>(
    name: &[u8],
    value: Option<&'w OsStr>,
    tables: &[&'static [Flag]],
) -> Option<Word<'w>> {
    if name.is_empty() {
        return None;
    }
    let mut found: Option<&'static Flag> = None;
    for flag in tables.iter().flat_map(|table| table.iter()) {
        if flag.long.as_bytes().starts_with(name) {
            if found.is_some_and(|other| other.long != flag.long) {
                return None;
            }
            found = Some(found.unwrap_or(flag));
        }
    }
    found.map(|flag| Word::Known(flag, value))
}

/// `-fr` (two switches) and `-bDIR` (an attached value), as crun and youki take them.
fn short<'w>(body: &'w [u8], tables: &[&'static [Flag]]) -> Option<Word<'w>> {
    let letter = |byte: u8| find(tables, |flag| flag.short == Some(byte));
    let first = letter(*body.first()?)?;
    if first.takes_value {
        return Some(Word::Known(first, Some(OsStr::from_bytes(&body[1..]))));
    }
    let switches: Option<Vec<_>> =
        body.iter().map(|byte| letter(*byte).filter(|flag| !flag.takes_value)).collect();
    switches.map(Word::Bundle)
}

/// The command line of an `update` whose resources come through standard input instead of flags
/// or a file: these words go, `--resources -` comes right after the verb, the rest stays.
pub fn for_update_by_stdin(argv: &[OsString], call: &Call) -> Vec<OsString> {
    let Some(verb_index) = call.verb_index else { return argv.to_vec() };
    let gone = |index: usize| {
        call.resources.as_ref().is_some_and(|resources| resources.range.contains(&index))
            || call.resource_flags.iter().any(|flag| flag.range.contains(&index))
    };
    let mut words = Vec::with_capacity(argv.len() + 2);
    for (index, word) in argv.iter().enumerate() {
        if !gone(index) {
            words.push(word.clone());
        }
        if index == verb_index {
            words.push(OsString::from("--resources"));
            words.push(OsString::from("-"));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn call(line: &str) -> Call {
        read(&words(line))
    }

    #[test]
    fn flags_and_resources_of_an_update_become_standard_input() {
        let line = "x --root /r update --memory 5 --l3-cache-schema L3:0=f -r f c1 --cpu-share=7";
        let argv = for_update_by_stdin(&words(line), &call(line));
        assert_eq!(argv, words("x --root /r update --resources - --l3-cache-schema L3:0=f c1"));
    }

    #[test]
    fn the_reserved_verb_counts_only_as_the_first_word() {
        assert_eq!(call("x nri status").verb, Verb::Nri);
        for line in
            ["x --root /r nri", "x state nri", "x create -b nri nri", "x --log nri create c"]
        {
            assert_ne!(call(line).verb, Verb::Nri, "{line}");
        }
    }

    #[test]
    fn a_missing_value_at_the_end_is_no_value() {
        let call = call("x create c --bundle");
        assert_eq!((call.bundle, call.id), (None, Some("c".into())));
    }

    #[test]
    fn nothing_at_all_is_no_verb() {
        for argv in [vec![], words("x"), words("x --root"), words("x --")] {
            assert_eq!(read(&argv).verb, Verb::None);
        }
    }
}
