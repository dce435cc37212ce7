// SPDX-License-Identifier: Apache-2.0
//! The end of each verb's help and man page: an example, and long lists of an argument's values.

use clap::Command;
use clap::builder::PossibleValue;

use super::show::wrapped;

/// Verb and example, as a user types it.
const EXAMPLES: [(&str, &str); 27] = [
    ("adjust", "nri-runc nri adjust --bundle ./bundle --apply change.json"),
    ("audit", "nri-runc nri audit --pod shop/web --since 1h"),
    ("check", "nri-runc nri check"),
    ("completion", "nri-runc nri completion bash"),
    ("daemon", "nri-runc nri daemon --config /etc/nri-runc/config.toml"),
    ("disable", "nri-runc nri disable"),
    ("drift", "nri-runc nri drift shop/web"),
    ("enable", "nri-runc nri enable"),
    ("events", "nri-runc nri events -n shop --kind refused,exited --follow -o json"),
    ("explain", "nri-runc nri explain shop/web/nginx"),
    ("forget", "nri-runc nri forget 4f1c0a"),
    ("hook", "nri-runc nri hook createRuntime"),
    ("install", "nri-runc nri install containerd --take-over-nri --dry-run"),
    ("metrics", "nri-runc nri metrics"),
    ("node", "nri-runc nri node containerd --root /host"),
    ("plugins", "nri-runc nri plugins --logs 10-balloons"),
    ("pods", "nri-runc nri pods -n shop -l app=web"),
    ("policy", "nri-runc nri policy test --pod shop/web --plugin 10-balloons"),
    ("reexec", "nri-runc nri reexec"),
    ("reload", "nri-runc nri reload --dry-run"),
    ("replay", "nri-runc nri replay --record script.jsonl"),
    ("restart", "nri-runc nri restart"),
    ("status", "nri-runc nri status -o json"),
    ("stop", "nri-runc nri stop"),
    ("sysdump", "nri-runc nri sysdump --plain ./sysdump"),
    ("top", "nri-runc nri top --interval 5s"),
    ("uninstall", "nri-runc nri uninstall containerd --dry-run"),
];

/// Renders the example of a verb as the end of its help.
pub(super) fn help_of(verb: &str) -> String {
    let example = EXAMPLES.iter().find(|(of, _)| *of == verb);
    example.map(|(_, line)| format!("\n\nExample:\n  {line}")).unwrap_or_default()
}

/// Lists the values of those arguments whose list is too long for the argument's line.
pub(super) fn values_of(verb: &Command) -> String {
    let hidden = verb.get_arguments().filter(|argument| argument.is_hide_possible_values_set());
    let lines = hidden.map(|argument| {
        let name = match argument.get_long() {
            Some(long) => format!("--{long}"),
            None => argument.get_id().as_str().to_uppercase(),
        };
        let values = argument.get_possible_values();
        let values: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
        wrapped(&format!("  {name}:"), &values.join(", "))
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n\nValues:\n{}", lines.trim_end()) }
}

#[cfg(test)]
mod tests {

    use super::super::{command, parse};
    use super::*;

    #[test]
    fn each_verb_has_an_example_that_the_command_line_accepts() {
        let nri = command();
        let verbs = nri.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name);
        let mut verbs: Vec<&str> = verbs.filter(|verb| *verb != "help").collect();
        verbs.sort_unstable();
        assert_eq!(EXAMPLES.map(|(verb, _)| verb).to_vec(), verbs);
        for (verb, line) in EXAMPLES {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[..3], ["nri-runc", "nri", verb]);
            let read = parse(words[2..].iter().copied());
            assert!(
                read.is_ok(),
                "{line}: {}",
                read.err().map(|why| why.to_string()).unwrap_or_default()
            );
            assert!(line.len() < 78, "{line}");
        }
    }

    /// Returns all verbs, with their subcommands.
    fn all(command: &Command) -> Vec<Command> {
        let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
        verbs.flat_map(|verb| std::iter::once(verb.clone()).chain(all(verb))).collect()
    }

    #[test]
    fn the_help_of_each_verb_has_its_values_codes_and_example() {
        let mut nri = command();
        nri.build();
        for mut verb in all(&nri) {
            let name = verb.get_name().to_owned();
            let help = verb.render_long_help().to_string() + &verb.render_help().to_string();
            assert_eq!(help.matches("Exit codes:\n  0  ").count(), 2, "{name}: {help}");
            assert_eq!(help.matches("Example:\n  nri-runc nri ").count(), 2, "{name}: {help}");
            for argument in verb.get_arguments().filter(|argument| !argument.is_hide_set()) {
                if !argument.get_action().takes_values() {
                    continue;
                }
                let values = argument.get_possible_values();
                let is_named = |value: &str| help.contains(value);
                assert!(
                    values.iter().all(|value| is_named(value.get_name())),
                    "{name}: {argument}"
                );
            }
        }
    }

    #[test]
    fn usage_lists_options_of_which_one_is_required() {
        let usage = |words: &[&str]| {
            let mut command = command();
            command.build();
            let verb = words
                .iter()
                .fold(&mut command, |verb, word| verb.find_subcommand_mut(word).unwrap());
            verb.render_usage().to_string()
        };
        assert!(usage(&["policy", "test"]).contains("<-f FILE | --recording FILE> --compare FILE"));
        for verb in ["install", "uninstall"] {
            assert!(
                usage(&[verb]).contains("<ENGINE | --distribution NAME>"),
                "{}",
                usage(&[verb])
            );
        }
        for wrong in [&["policy", "test"][..], &["install"], &["uninstall"], &["completion"]] {
            assert!(parse(wrong.iter().copied()).is_err(), "{wrong:?}");
        }
    }
}
