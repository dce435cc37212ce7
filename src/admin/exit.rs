// SPDX-License-Identifier: Apache-2.0
//! The exit codes of admin verbs, for their help and `docs/exit-codes.md`. Scripts depend on them: rows
//! may be added, but none may be changed.

/// Done.
pub(super) const DONE: u8 = 0;
/// Failed: nothing was done, or only a part, as the line on standard error states.
pub(super) const FAILED: u8 = 1;
/// Wrong command line.
pub(super) const USAGE: u8 = 2;
/// Done, with a finding that a script may need.
pub(super) const FOUND: u8 = 3;

/// The meaning of each code for every verb.
pub const EXIT_CODES: [(u8, &str); 4] = [
    (DONE, "done"),
    (FAILED, "failed: one line on standard error says why and what to do"),
    (USAGE, "wrong command line: nothing was done"),
    (FOUND, "done, and something was found: only for the commands below that list it"),
];

/// Verbs with special meanings of a code: the verb, the code, its meaning.
pub const EXIT_CODES_OF_VERBS: [(&str, u8, &str); 30] = [
    ("adjust", FAILED, "a plugin refused, plugins conflict, or a plugin is missing"),
    ("audit", DONE, "also if no entry matches"),
    ("audit", FAILED, "the audit log is off, or an ID prefix is ambiguous"),
    ("check", DONE, "all checks passed; there may be warnings"),
    ("check", FAILED, "at least one check failed"),
    ("daemon", DONE, "ended by SIGTERM or SIGINT"),
    ("daemon", FAILED, "could not start, also if another daemon runs"),
    ("disable", DONE, "also if plugins are disabled already"),
    ("drift", DONE, "no value differs"),
    ("drift", FAILED, "also if there are values and none could be compared"),
    ("drift", FOUND, "at least one value differs"),
    ("enable", DONE, "also if nri.disable keeps plugins disabled"),
    ("events", DONE, "also if no event matches"),
    ("events", FAILED, "the daemon does not run"),
    ("explain", FAILED, "no container or pod matches, or several do"),
    ("forget", FAILED, "no record or several match, or the container still exists"),
    ("install", DONE, "also if nothing had to change"),
    ("plugins", DONE, "also if no plugin is connected"),
    ("pods", DONE, "also if no pod matches"),
    ("policy", DONE, "with --compare, no decision changes"),
    ("policy", FOUND, "with --compare, a decision changes"),
    ("reexec", DONE, "also if the daemon is not running"),
    ("reload", DONE, "also if nothing changed or the daemon is not running"),
    ("replay", DONE, "also if requests or lines of the script are invalid: the output says which"),
    ("replay", FAILED, "the script cannot be read, or plugins cannot connect"),
    ("stop", DONE, "also if the daemon is not running"),
    ("sysdump", DONE, "also if the daemon is not running: errors.txt says what is missing"),
    ("sysdump", FAILED, "the file or directory exists, or cannot be written"),
    ("top", DONE, "ended by q, Ctrl-C or --count"),
    ("uninstall", FAILED, "not registered, or containers still use it"),
];

/// Renders the end of the help of `nri-runc nri`.
pub(super) fn help() -> String {
    let rows = EXIT_CODES.iter().filter(|(code, _)| *code != FOUND);
    lines("Exit codes:", rows.map(|(code, meaning)| (*code, *meaning)))
}

/// Renders the end of one verb's help: each code with its meanings for this verb, else its general
/// meaning.
pub(super) fn help_of(verb: &str) -> String {
    let rows = EXIT_CODES.into_iter().flat_map(|(code, meaning)| {
        let own = EXIT_CODES_OF_VERBS.iter().filter(|row| (row.0, row.1) == (verb, code));
        let mut meanings: Vec<&str> = own.map(|row| row.2).collect();
        if meanings.is_empty() && code != FOUND {
            meanings.push(meaning);
        }
        meanings.into_iter().map(move |meaning| (code, meaning))
    });
    lines("Exit codes:", rows)
}

fn lines<'m>(title: &str, rows: impl Iterator<Item = (u8, &'m str)>) -> String {
    let rows: Vec<String> = rows.map(|(code, meaning)| format!("  {code}  {meaning}")).collect();
    format!("{title}\n{}", rows.join("\n"))
}

/// Renders `docs/exit-codes.md`.
pub fn exit_codes_page() -> String {
    let row = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let codes = EXIT_CODES.map(|(code, meaning)| row(&[&code.to_string(), meaning])).concat();
    let of_verbs = EXIT_CODES_OF_VERBS
        .map(|(verb, code, meaning)| row(&[&format!("`{verb}`"), &code.to_string(), meaning]))
        .concat();
    format!("{ABOUT}{CODES}{codes}{VERBS}{of_verbs}{OTHERS}")
}

const ABOUT: &str = "\
# Exit codes

<!-- written from the table in src/admin/exit.rs; `UPDATE_GOLDEN=1 cargo test --test tidy` renews it -->

Scripts may rely on these codes: later versions add rows and change none.

";

const CODES: &str = "\
## `nri-runc nri VERB`

| code | meaning |
|---|---|
";

const VERBS: &str = "
Special meanings of codes for single verbs:

| verb | code | meaning |
|---|---|---|
";

const OTHERS: &str = "
A signal ends a verb as it ends other programs, and a shell shows 128 and its number: 130 after Ctrl-C, which is how `--watch` and `--follow` end.
The exceptions are `top` on a terminal, `daemon` and `replay`, which end in order with 0. If standard output is a pipe whose reader
has gone, the code is 141, or 0 if `--watch` or `--follow` finds that out before it prints again.

## As a runtime

Called as a runtime (`nri-runc create …`), nri-runc becomes the real runtime, and the code is the real runtime's. 1 means that
nri-runc, a plugin or a rule refused the command: one line on standard error and in the engine's `--log` file says so, as with runc.
For an `exec` that is refused the code is 255, as it is for one that fails in runc.
A hook (`nri-runc nri hook`) exits with 1 if the container must not be created; see [OCI hooks](hooks.md).
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_rows_are_sorted_and_use_known_codes() {
        assert!(EXIT_CODES_OF_VERBS.is_sorted());
        for (verb, code, meaning) in EXIT_CODES_OF_VERBS {
            assert!(EXIT_CODES.iter().any(|(known, _)| *known == code), "{verb} {code}");
            assert!(meaning.len() < 75, "{verb}: {meaning}");
        }
    }

    #[test]
    fn the_help_of_a_command_lists_its_own_exit_codes_first() {
        let help = help_of("status");
        let all = super::help();
        assert!(all.starts_with(&help), "a verb without rows of its own has those of all");
        assert!(!help.contains("\n  3") && help_of("drift").contains("\n  3  at least one value"));
        let help = help_of("check");
        assert!(help.starts_with("Exit codes:\n  0  all checks passed"), "{help}");
        assert!(help.ends_with("  2  wrong command line: nothing was done"), "{help}");
    }
}
