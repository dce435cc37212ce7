// SPDX-License-Identifier: Apache-2.0
//! The verbs of `nri-runc nri` as a man page lists them, from the table that prints `--help`.

use clap::{Arg, Command};
use roff::{Inline, Roff, bold, italic, roman};

use super::markdown::argument;

/// Appends the common options, and a section for each verb.
pub(super) fn append(roff: &mut Roff, nri: &Command) {
    roff.control("SH", ["OPTIONS"]);
    for option in options(nri) {
        append_argument(roff, option);
    }
    roff.control("SH", ["COMMANDS"]);
    append_verbs(roff, nri);
}

fn append_verbs(roff: &mut Roff, command: &Command) {
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    for verb in verbs.filter(|verb| !verb.is_hide_set()) {
        if verb.has_subcommands() {
            append_verbs(roff, verb);
            continue;
        }
        roff.control("SS", [argument(&usage(verb)).as_str()]);
        let about = about(verb);
        roff.text(spans(&sentence(&about)));
        append_details(roff, verb, &about);
        append_own_arguments(roff, verb);
    }
}

fn usage(verb: &Command) -> String {
    let usage = verb.clone().render_usage().to_string();
    usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn about(verb: &Command) -> String {
    verb.get_about().map(ToString::to_string).unwrap_or_default()
}

fn append_own_arguments(roff: &mut Roff, verb: &Command) {
    for argument in verb.get_positionals().filter(|argument| !argument.is_hide_set()) {
        append_argument(roff, argument);
    }
    for option in options(verb).filter(|option| !option.is_global_set()) {
        append_argument(roff, option);
    }
}

/// The name of the page of a verb.
pub(super) fn page_name(verb: &Command) -> String {
    format!("nri-runc-nri-{}", verb.get_name())
}

/// Appends the page of one verb, with its subcommands.
pub(super) fn append_page(roff: &mut Roff, verb: &Command) {
    let about = about(verb);
    roff.control("SH", ["NAME"]);
    let short = about.trim_end_matches('.').replace('`', "");
    roff.text([roman(format!("{} - {short}", page_name(verb)))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold(usage(verb))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text(spans(&sentence(&about)));
    append_details(roff, verb, &about);
    if verb.has_subcommands() {
        roff.control("SH", ["COMMANDS"]);
        append_verbs(roff, verb);
    }
    roff.control("SH", ["OPTIONS"]);
    append_own_arguments(roff, verb);
    for option in options(verb).filter(|option| option.is_global_set()) {
        append_argument(roff, option);
    }
    roff.control("SH", ["EXIT STATUS"]);
    let codes = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
    for (code, meaning) in codes.lines().filter_map(|line| line.trim().split_once("  ")) {
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text(spans(&sentence(meaning)));
    }
    roff.control("SH", ["EXAMPLES"]);
    let (_, example) = codes.split_once("Example:\n").unwrap_or_default();
    super::markdown::append(roff, &format!("```\n{}\n```\n", example.trim()));
    roff.control("SH", ["SEE ALSO"]);
    super::markdown::append(
        roff,
        "**nri-runc**(8), **nri-runc-config**(5), **nri-runc-plugins**(7)\n",
    );
}

/// Appends the text of `--help` after the first sentence.
fn append_details(roff: &mut Roff, verb: &Command, about: &str) {
    let long = verb.get_long_about().map(ToString::to_string).unwrap_or_default();
    let details = long.strip_prefix(about).unwrap_or(&long).trim_start_matches('.').trim();
    for paragraph in details.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        roff.control("PP", []);
        let words = paragraph.split_whitespace().collect::<Vec<_>>();
        roff.text(spans(&words.join(" ")));
    }
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let clap_own = |option: &&Arg| ["help", "version"].contains(&option.get_id().as_str());
    let named = command.get_arguments().filter(|argument| !argument.is_positional());
    named.filter(|option| !option.is_hide_set()).filter(move |option| !clap_own(option))
}

fn append_argument(roff: &mut Roff, argument: &Arg) {
    roff.control("TP", []);
    roff.text(term(argument));
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = sentence(&help.map(ToString::to_string).unwrap_or_default());
    let values = if argument.get_action().takes_values() {
        argument.get_possible_values()
    } else {
        Vec::new()
    };
    let values: Vec<&str> =
        values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect();
    if !values.is_empty() {
        text.push_str(&format!(" One of: {}.", values.join(", ")));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        text.push_str(&format!(" Default: {}.", defaults.join(", ")));
    }
    roff.text(spans(&text));
}

/// `-o, --output FORMAT`, in the form of a man page.
fn term(argument: &Arg) -> Vec<Inline> {
    let short = argument.get_short().map(|letter| format!("-{letter}"));
    let long = argument.get_long().map(|name| format!("--{name}"));
    let mut words: Vec<Inline> = Vec::new();
    for name in short.into_iter().chain(long) {
        if !words.is_empty() {
            words.push(roman(", "));
        }
        words.push(bold(name));
    }
    if !argument.get_action().takes_values() {
        return words;
    }
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    let is_optional = argument.get_num_args().is_some_and(|range| range.min_values() == 0);
    if argument.is_positional() {
        return vec![italic(value)];
    }
    let sign = if argument.is_require_equals_set() { "=" } else { " " };
    let (open, close) = if is_optional { ("[", "]") } else { ("", "") };
    words.extend([roman(format!("{open}{sign}")), italic(value), roman(close)]);
    words
}

fn sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() || text.ends_with('.') { text } else { text + "." }
}

/// Returns the text with the words between backticks in bold.
fn spans(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    let words = parts.map(|(index, part)| if index % 2 == 1 { bold(part) } else { roman(part) });
    words.collect()
}
