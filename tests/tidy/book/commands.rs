// SPDX-License-Identifier: Apache-2.0
//! `docs/commands.md` is generated from the table that prints the help, and each command line of the
//! documentation is valid by this table.

use std::fmt::Write as _;

use clap::error::ErrorKind;
use clap::{Arg, Command};
use nri_runc::testing::{admin, config};

use super::super::root;
use super::{Page, pages};

const INTRODUCTION: &str = "\
# Commands

<!-- written from the table that prints the help; `UPDATE_GOLDEN=1 cargo test --test tidy the_page_of_commands` renews it -->

The operator's commands are `nri-runc nri VERB`. All other commands are the real runtime's, and `nri-runc --help` prints its help.

Commands need root, unless a verb says otherwise below. Their codes: [Exit codes](exit-codes.md).
";

/// Verbs that need no root, and their purpose.
const WITHOUT_ROOT: [(&str, &str); 4] = [
    ("adjust", "No root is needed."),
    ("replay", "Only `--record` needs root."),
    ("policy test", "With `--bundle` no root is needed."),
    ("install", "With `--root DIR`, what may be written there is enough."),
];

fn text(styled: Option<&clap::builder::StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

/// Text in the form of a table's cell.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn is_shown(argument: &&Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

/// Appends one row of a verb's table.
fn row(argument: &Arg, page: &mut String) {
    let takes_value = argument.get_action().takes_values();
    let names = argument.get_value_names().filter(|_| takes_value).unwrap_or_default();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let mut name = String::new();
    match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => write!(name, "-{short}, --{long}").unwrap(),
        (None, Some(long)) => write!(name, "--{long}").unwrap(),
        _ => {}
    }
    let names = names.join(" ");
    let is_optional = argument.get_num_args().is_some_and(|number| number.min_values() == 0);
    match (names.as_str(), name.is_empty()) {
        ("", _) => {}
        (value, true) => name.push_str(value),
        (value, false) if is_optional => write!(name, "[={value}]").unwrap(),
        (value, false) => write!(name, " {value}").unwrap(),
    }
    let mut meaning = text(argument.get_long_help().or(argument.get_help()));
    let values = argument.get_possible_values();
    let values: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
    if takes_value && !values.is_empty() {
        write!(meaning, ": `{}`", values.join("`, `")).unwrap();
    }
    let defaults: Vec<_> = argument.get_default_values().iter().collect();
    if let (true, [default]) = (takes_value, defaults.as_slice()) {
        write!(meaning, " (default `{}`)", default.to_string_lossy()).unwrap();
    }
    writeln!(page, "| `{name}` | {} |", cell(&meaning)).unwrap();
}

/// Appends the section of a verb, or of its subcommands.
fn section(verb: &Command, name: &str, page: &mut String) {
    let mut own = verb.get_subcommands().filter(|own| own.get_name() != "help").peekable();
    if own.peek().is_some() {
        own.for_each(|own| section(own, &format!("{name} {}", own.get_name()), page));
        return;
    }
    let about = text(verb.get_long_about().or(verb.get_about()));
    write!(page, "\n## {name}\n\n").unwrap();
    for paragraph in about.split("\n\n") {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let stop = if paragraph.ends_with('.') { "" } else { "." };
        write!(page, "{paragraph}{stop}\n\n").unwrap();
    }
    if let Some((_, words)) = WITHOUT_ROOT.iter().find(|(verb, _)| *verb == name) {
        write!(page, "{words}\n\n").unwrap();
    }
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>();
    write!(page, "```text\n{}\n```\n", usage.join(" ")).unwrap();
    let arguments: Vec<&Arg> =
        verb.get_arguments().filter(is_shown).filter(|own| !own.is_global_set()).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | meaning |\n|---|---|\n");
        arguments.iter().for_each(|argument| row(argument, page));
    }
}

fn markdown() -> String {
    let mut nri = admin::command();
    nri.build();
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## For every command\n\n| argument | meaning |\n|---|---|\n");
    nri.get_arguments().filter(is_shown).for_each(|argument| row(argument, &mut page));
    let verbs = nri.get_subcommands().filter(|verb| !verb.is_hide_set() && !verb.has_subcommands());
    let without: Vec<String> = verbs
        .filter(|verb| !verb.get_arguments().filter(is_shown).any(|own| own.get_id() == "output"))
        .map(|verb| format!("`{}`", verb.get_name()))
        // The page of metrics becomes a JSON document.
        .filter(|name| !["`help`", "`metrics`"].contains(&name.as_str()))
        .collect();
    writeln!(page, "\n`--json` changes nothing for {}.", without.join(", ")).unwrap();
    for verb in nri.get_subcommands().filter(|verb| verb.get_name() != "help") {
        if !verb.is_hide_set() {
            section(verb, verb.get_name(), &mut page);
        }
    }
    page
}

#[test]
fn the_page_of_commands_matches_the_help() {
    let path = root().join("docs/commands.md");
    let wanted = markdown();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        nri_runc::testing::files::replace(&path, wanted.as_bytes()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == wanted, "docs/commands.md is stale: UPDATE_GOLDEN=1 cargo test --test tidy");
}

/// The operator's commands in one line of a page: their words after `nri`.
fn command_lines(line: &str) -> Vec<Vec<String>> {
    let ends = |word: &str| {
        ["|", "||", "&&", "&", ";"].contains(&word) || word.starts_with(['>', '<', '#', '('])
    };
    let mut commands = Vec::new();
    for rest in line.split("nri-runc nri ").skip(1) {
        let words = rest.split_whitespace().take_while(|word| !ends(word));
        let words = words.map(|word| word.trim_matches(['\'', '"']).to_owned());
        commands.push(words.collect());
    }
    commands
}

/// The command lines in the blocks of a page.
fn in_blocks(page: &Page) -> Vec<Vec<String>> {
    let blocks = page.blocks().into_iter();
    let shown = blocks.filter(|(language, _)| ["", "sh", "console"].contains(language));
    let texts = shown.map(|(_, lines)| lines.join("\n").replace("\\\n", " "));
    texts.flat_map(|text| text.lines().flat_map(command_lines).collect::<Vec<_>>()).collect()
}

/// The command lines between backticks in its prose.
fn in_prose(page: &Page) -> Vec<Vec<String>> {
    let prose = page.prose();
    let spans = prose.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "));
    let commands = spans.filter(|span| span.starts_with("nri-runc nri "));
    commands.flat_map(|span| command_lines(&span)).collect()
}

/// Whether it shows the syntax of a command and is not one: `[--json]`, `VERB`, `…`.
fn is_pattern(words: &[String]) -> bool {
    let is_placeholder = |word: &str| word.chars().all(|c| c.is_ascii_uppercase());
    words.first().is_none_or(|word| is_placeholder(word))
        || words.iter().any(|word| word.starts_with('[') || word.contains('…'))
}

/// The reason why the command line is invalid, if it is. In prose a command may be named without its
/// required arguments.
fn refusal(mut words: Vec<String>, is_prose: bool) -> Option<String> {
    for word in &mut words {
        if word == "ENGINE" {
            "containerd".clone_into(word);
        }
    }
    let error = admin::command().try_get_matches_from(&words).err()?;
    let is_named_only = is_prose && error.kind() == ErrorKind::MissingRequiredArgument;
    let is_wrong = error.use_stderr() && !is_named_only;
    is_wrong.then(|| format!("nri-runc nri {}\n{error}", words.join(" ")))
}

#[test]
fn each_command_of_the_documentation_is_accepted() {
    let mut count = 0;
    for page in pages() {
        let blocks = in_blocks(&page).into_iter().map(|words| (words, false));
        let prose = in_prose(&page).into_iter().map(|words| (words, true));
        for (words, is_prose) in blocks.chain(prose).filter(|(words, _)| !is_pattern(words)) {
            let refusal = refusal(words, is_prose);
            assert_eq!(refusal, None, "{}", page.name);
            count += 1;
        }
    }
    assert!(count > 150, "{count} commands were found");
}

#[test]
fn an_invalid_command_is_found() {
    let text = "a `nri-runc nri\nchekc` and\n```sh\nnri-runc nri explain \\\n --y x | z\n```\n";
    let page = Page { name: String::new(), text: text.to_owned() };
    assert_eq!(in_blocks(&page), [["explain", "--y", "x"].map(ToOwned::to_owned).to_vec()]);
    assert_eq!(in_prose(&page), [vec!["chekc".to_owned()]]);
    for words in in_blocks(&page).into_iter().chain(in_prose(&page)) {
        assert!(!is_pattern(&words) && refusal(words, true).is_some());
    }
    let bare = || vec!["explain".to_owned()];
    assert!(refusal(bare(), false).is_some() && refusal(bare(), true).is_none());
}

#[test]
fn each_configuration_of_the_documentation_is_valid() {
    let mut count = 0;
    for page in pages() {
        for (language, lines) in page.blocks() {
            if language != "toml" {
                continue;
            }
            // Any TOML parser can read it.
            let parsed = toml_edit::Document::parse(lines.join("\n"));
            assert!(parsed.is_ok(), "{}: {:?}", page.name, parsed.err());
            if lines.iter().any(|line| line.contains("io.containerd")) {
                continue;
            }
            let problems = config::problems(&lines.join("\n"));
            assert_eq!(problems, Vec::<String>::new(), "{}", page.name);
            count += 1;
        }
    }
    assert!(count > 5, "{count} blocks were found");
}

#[test]
fn each_packaged_or_fixture_configuration_is_valid_toml() {
    let mut files = vec![root().join("contrib/package/config.toml")];
    let folders = std::fs::read_dir(root().join("fixtures/bundles")).unwrap();
    files.extend(folders.map(|folder| folder.unwrap().path().join("nri-runc.toml")));
    files.retain(|file| file.exists());
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(toml_edit::Document::parse(text.as_str()).is_ok(), "{}", file.display());
    }
    assert!(files.len() > 30, "{} files were found", files.len());
}
