// SPDX-License-Identifier: Apache-2.0
//! Walks a command line with the tables of `flags.rs` and emits each flag and word.
//!
//! It finds the ends of flags' values, but ignores their meaning. `mod.rs` describes the grammars.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use super::Verb;
use super::flags::{self, Flag, GLOBAL, GLOBAL_ENDS, VERB_ENDS};

/// One part of a command line.
pub(super) enum CommandPart<'a> {
    /// A flag of a table; `value` is the next word, or the text after `=` or after a letter.
    Flag { flag: &'static Flag, value: Option<&'a OsStr>, words: Range<usize> },
    /// A plain word of the verb. `may_be_value`: an unlisted flag precedes it.
    Word { word: &'a OsStr, at: usize, may_be_value: bool },
    /// The word after the container's ID, `kill`'s signal.
    Signal { word: &'a OsStr },
    /// The last word is a flag whose value is missing.
    Starved,
}

/// Walks the words before the verb; returns the verb's index.
///
/// The first plain word is the verb. A plain word after an unlisted flag may be that flag's value:
/// unless it is a known verb, it is skipped if the next plain word is a known verb or follows `--`.
pub(super) fn walk_globals<'a>(
    argv: &'a [OsString],
    sink: &mut dyn FnMut(CommandPart<'a>),
) -> Option<usize> {
    let tables = Tables { own: GLOBAL, ends: GLOBAL_ENDS, outer: &[] };
    let mut at = 1;
    let mut after_unknown = false;
    let mut passed_over = None;
    while let Some(word) = argv.get(at) {
        let mut is_unknown_without_value = false;
        match tables.step(argv, at, sink) {
            Step::Word if is_known_verb(word) => return Some(at),
            Step::Word if after_unknown => {
                passed_over = passed_over.or(Some(at));
                at += 1;
            }
            Step::Word => return passed_over.or(Some(at)),
            Step::End => return (at + 1 < argv.len()).then_some(at + 1).or(passed_over),
            Step::Flags { words } => at += words,
            Step::Unknown { has_value } => {
                is_unknown_without_value = !has_value;
                at += 1;
            }
        }
        after_unknown = is_unknown_without_value;
    }
    passed_over
}

fn is_known_verb(word: &OsStr) -> bool {
    Verb::from_word(word) != Verb::Other || flags::OTHER_VERBS.iter().any(|name| word == *name)
}

/// Walks the words after the verb; ignores those of a verb that passes through.
pub(super) fn walk_verb<'a>(
    argv: &'a [OsString],
    verb_index: usize,
    verb: Verb,
    sink: &mut dyn FnMut(CommandPart<'a>),
) {
    if !verb.is_read() {
        return;
    }
    let tables = Tables { own: flags::of_verb(verb), ends: VERB_ENDS, outer: GLOBAL };
    let mut at = verb_index + 1;
    let mut may_be_value = false;
    let mut has_ended = false;
    while let Some(word) = argv.get(at) {
        let step = if has_ended { Step::Word } else { tables.step(argv, at, sink) };
        let mut next_may_be_value = false;
        match step {
            Step::Word => {
                sink(CommandPart::Word { word, at, may_be_value });
                if verb.ends_at_first_word() {
                    let next = argv.get(at + 1).filter(|_| verb == Verb::Kill);
                    next.into_iter().for_each(|word| sink(CommandPart::Signal { word }));
                    return;
                }
                at += 1;
            }
            Step::End => {
                has_ended = true;
                at += 1;
            }
            Step::Flags { words } => at += words,
            Step::Unknown { has_value } => {
                next_may_be_value = !has_value;
                at += 1;
            }
        }
        may_be_value = next_may_be_value;
    }
}

/// The kind of a word of a command line.
enum Step {
    /// Not a flag.
    Word,
    /// `--`.
    End,
    /// Listed flags, with the number of words that they and their values take.
    Flags { words: usize },
    /// An unlisted flag.
    Unknown { has_value: bool },
}

/// The flags that are valid at one position.
struct Tables {
    own: &'static [Flag],
    ends: &'static [Flag],
    /// Global flags that may follow the verb, only by their full long names.
    outer: &'static [Flag],
}

impl Tables {
    fn step<'a>(
        &self,
        argv: &'a [OsString],
        at: usize,
        sink: &mut dyn FnMut(CommandPart<'a>),
    ) -> Step {
        let Some(word) = argv.get(at).map(|word| word.as_bytes()) else { return Step::Word };
        let (dashes, body) = match word {
            [b'-'] => return Step::Word,
            [b'-', b'-'] => return Step::End,
            [b'-', b'-', body @ ..] => (2, body),
            [b'-', body @ ..] => (1, body),
            _ => return Step::Word,
        };
        let cut = body.iter().position(|byte| *byte == b'=');
        let (name, value) = match cut.and_then(|cut| body.split_at_checked(cut)) {
            Some((name, rest)) => (name, rest.get(1..).map(OsStr::from_bytes)),
            None => (body, None),
        };
        let found = self
            .exact(name, dashes)
            .or_else(|| if dashes == 2 { self.shortened(name) } else { None });
        if let Some(flag) = found {
            return Step::Flags { words: emit(argv, at, flag, value, sink) };
        }
        if dashes == 1 && self.are_letters(body) {
            return Step::Flags { words: self.emit_letters(argv, at, body, sink) };
        }
        Step::Unknown { has_value: value.is_some() }
    }

    fn own_and_ends(&self) -> impl Iterator<Item = &'static Flag> + use<> {
        self.own.iter().chain(self.ends)
    }

    /// Finds a flag by its full name or letter. Go's `flag` accepts both with one dash or two.
    fn exact(&self, name: &[u8], dashes: usize) -> Option<&'static Flag> {
        if let [letter] = name {
            return self.letter(*letter);
        }
        let fits =
            |flag: &&Flag| flag.name.as_bytes() == name && (dashes == 2 || flag.known_by.runc());
        self.own_and_ends().find(fits).or_else(|| self.outer.iter().find(fits))
    }

    fn letter(&self, letter: u8) -> Option<&'static Flag> {
        self.own_and_ends().find(|flag| flag.letters.as_bytes().contains(&letter))
    }

    /// Finds the crun flag with this abbreviation, if there is only one.
    fn shortened(&self, name: &[u8]) -> Option<&'static Flag> {
        let mut fitting = self
            .own_and_ends()
            .filter(|flag| flag.known_by.crun() && flag.name.as_bytes().starts_with(name));
        let first = fitting.next();
        if name.is_empty() || fitting.next().is_some() { None } else { first }
    }

    /// Whether every letter is a flag, up to a letter whose flag takes a value.
    fn are_letters(&self, body: &[u8]) -> bool {
        for byte in body {
            match self.letter(*byte) {
                Some(flag) if flag.takes_word => return true,
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    fn emit_letters<'a>(
        &self,
        argv: &'a [OsString],
        at: usize,
        body: &'a [u8],
        sink: &mut dyn FnMut(CommandPart<'a>),
    ) -> usize {
        let mut rest = body;
        while let [letter, tail @ ..] = rest {
            let Some(flag) = self.letter(*letter) else { break };
            if flag.takes_word {
                let value = (!tail.is_empty()).then(|| OsStr::from_bytes(tail));
                return emit(argv, at, flag, value, sink);
            }
            emit(argv, at, flag, None, sink);
            rest = tail;
        }
        1
    }
}

/// Emits a flag with its value; returns the number of its words.
fn emit<'a>(
    argv: &'a [OsString],
    at: usize,
    flag: &'static Flag,
    value: Option<&'a OsStr>,
    sink: &mut dyn FnMut(CommandPart<'a>),
) -> usize {
    if value.is_some() || !flag.takes_word {
        sink(CommandPart::Flag { flag, value, words: at..at + 1 });
        return 1;
    }
    match argv.get(at + 1) {
        Some(word) => {
            sink(CommandPart::Flag { flag, value: Some(word), words: at..at + 2 });
            2
        }
        None => {
            sink(CommandPart::Starved);
            1
        }
    }
}
