// SPDX-License-Identifier: Apache-2.0
//! Tips for a user who types the words of another tool: `ps` and `inspect` of crictl and docker,
//! `start` of systemctl, `--format`. clap itself suggests verbs and flags of similar spelling.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::text::printable;

/// Verbs of other tools, and their equivalents here.
const VERBS: [(&str, &str); 50] = [
    ("collect", "sysdump"),
    ("completions", "completion bash"),
    ("config", "check"),
    ("container", "pods"),
    ("containers", "pods"),
    ("daemon-reexec", "reexec"),
    ("daemon-reload", "reload"),
    ("debug", "check"),
    ("describe", "explain ID"),
    ("diff", "explain ID"),
    ("doctor", "check"),
    ("down", "stop"),
    ("dry-run", "adjust --bundle DIR"),
    ("dump", "sysdump"),
    ("get", "pods"),
    ("history", "audit"),
    ("info", "status"),
    ("inspect", "explain ID"),
    ("inspectp", "explain ID"),
    ("is-active", "status"),
    ("journal", "status"),
    ("kill", "stop"),
    ("list", "pods"),
    ("log", "plugins --logs NAME"),
    ("logs", "plugins --logs NAME"),
    ("ls", "pods"),
    ("monitor", "top"),
    ("off", "disable"),
    ("on", "enable"),
    ("ps", "pods"),
    ("record", "replay --record FILE"),
    ("register", "install ENGINE"),
    ("remove", "uninstall ENGINE"),
    ("report", "sysdump"),
    ("rm", "uninstall ENGINE"),
    ("rules", "policy test"),
    ("run", "adjust --bundle DIR"),
    ("setup", "install ENGINE"),
    ("show", "status"),
    ("simulate", "adjust --bundle DIR"),
    ("start", "restart"),
    ("stats", "top"),
    ("support", "sysdump"),
    ("unregister", "uninstall ENGINE"),
    ("up", "restart"),
    ("update", "reexec"),
    ("upgrade", "reexec"),
    ("validate", "check"),
    ("version", "--version"),
    ("watch", "pods --watch"),
];

/// Flags of other tools, each with advice for this command line.
const FLAGS: [(&str, &str); 19] = [
    ("--all", "all are listed unless a filter is given"),
    ("--all-namespaces", "all are listed unless --namespace is given"),
    ("--filter", "pods has --namespace, --label, --engine and --state"),
    ("--follow", "lists have --watch"),
    ("--format", "lists have -o wide, json, yaml or name"),
    ("--no-color", "set NO_COLOR=1"),
    ("--no-pager", "there is no pager"),
    ("--no-trunc", "-o wide shows whole IDs"),
    ("--quiet", "lists have -o name"),
    ("--selector", "pods has --label"),
    ("--tail", "to see the end of a long list: | tail"),
    ("--verbose", "-o wide shows more; the log level is log.level in the configuration"),
    ("--yaml", "-o yaml"),
    ("--yes", "no command asks for confirmation"),
    ("-A", "all are listed unless --namespace is given"),
    ("-a", "all are listed unless a filter is given"),
    ("-f", "lists have --watch"),
    ("-q", "lists have -o name"),
    ("-y", "no command asks for confirmation"),
];

/// Adds a tip to the error about an unknown command or flag, if a similar tool has that command or flag.
pub(super) fn add_tip(error: &mut clap::Error) {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        Some(_) | None => String::new(),
    };
    let find = |table: &[(&str, &'static str)], word: &str| {
        table.iter().find(|(other, _)| *other == word).map(|(_, here)| *here)
    };
    let tip = if error.kind() == ErrorKind::InvalidSubcommand {
        let word = word(ContextKind::InvalidSubcommand);
        find(&VERBS, &word)
            .map(|here| format!("for '{}' use: nri-runc nri {here}", printable(&word)))
    } else if error.kind() == ErrorKind::UnknownArgument {
        let word = word(ContextKind::InvalidArg);
        let flag = word.split('=').next().unwrap_or_default();
        find(&FLAGS, flag).map(|here| format!("'{}': {here}", printable(flag)))
    } else {
        None
    };
    if let Some(tip) = tip {
        // clap's suggestion of similar spelling would contradict the tip.
        for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tip_names_a_verb_or_flag_and_replaces_no_real_verb() {
        let command = super::super::command();
        let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        for (other, here) in VERBS {
            let first = here.split(' ').next().unwrap_or_default();
            assert!(verbs.contains(&first) || first.starts_with("--"), "{other}: {here}");
            assert!(!verbs.contains(&other), "{other} is a verb");
        }
        assert!(VERBS.is_sorted() && FLAGS.is_sorted());
    }

    #[test]
    fn the_tips_name_flags_that_exist() {
        let command = super::super::command();
        let flags: Vec<String> = command
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
            .filter_map(|flag| flag.get_long().map(|long| format!("--{long}")))
            .collect();
        let texts = VERBS.iter().chain(&FLAGS).map(|(_, here)| *here);
        for word in texts.flat_map(|here| here.split([' ', ','])) {
            let is_known = word == "--version" || flags.iter().any(|flag| flag == word);
            assert!(!word.starts_with("--") || is_known, "{word}");
        }
    }
}
