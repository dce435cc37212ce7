// SPDX-License-Identifier: Apache-2.0
//! Man pages and completions, generated from the tables of the program: the verbs of the command
//! line, the keys of the configuration, the events and fields of plugins. `make manual` names a
//! folder with `NRI_RUNC_MANUAL`; without it, the pages are made and checked, but not written.
//! Nothing here is part of the program.

#![expect(clippy::panic, reason = "a test fails by panicking")]

mod markdown;
mod verbs;

use std::path::{Path, PathBuf};

use clap_complete::Shell;
use roff::Roff;

use super::{release_time, root};

/// One man page: its name, its section, and the template in `contrib/man`.
struct ManPage {
    name: &'static str,
    section: &'static str,
    title: &'static str,
}

const PAGES: [ManPage; 3] = [
    ManPage { name: "nri-runc", section: "8", title: "System Manager's Manual" },
    ManPage { name: "nri-runc-config", section: "5", title: "File Formats Manual" },
    ManPage { name: "nri-runc-plugins", section: "7", title: "Miscellaneous Information Manual" },
];

/// A line of a template that is replaced by a table or a page of the documentation.
const INSERT: &str = "<!-- insert: ";

impl ManPage {
    fn template(&self) -> PathBuf {
        root().join(format!("contrib/man/{}.{}.md", self.name, self.section))
    }

    fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    fn render(&self) -> String {
        let mut roff = begin(self.name, self.section, self.title);
        let template = std::fs::read_to_string(self.template()).unwrap();
        let mut text = String::new();
        for line in template.lines() {
            let Some(what) = line.strip_prefix(INSERT) else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            let what = what.trim_end_matches("-->").trim();
            markdown::append(&mut roff, &std::mem::take(&mut text));
            insert(&mut roff, what);
        }
        markdown::append(&mut roff, &text);
        roff.render()
    }
}

/// The beginning of a page.
fn begin(name: &str, section: &str, title: &str) -> Roff {
    let mut roff = Roff::new();
    let version = format!("nri-runc {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name.to_uppercase().as_str(), section, &date(), &version, title]);
    // The page has commands and paths: no hyphenation, and no stretched lines.
    roff.control("nh", []);
    roff.control("ad", ["l"]);
    roff
}

/// The verbs that have a page.
fn verbs_with_page() -> Vec<clap::Command> {
    let nri = built();
    let own = nri.get_subcommands().filter(|verb| verb.get_name() != "help");
    own.filter(|verb| !verb.is_hide_set()).cloned().collect()
}

/// All pages: file and text.
fn all_pages() -> Vec<(String, String)> {
    let own = PAGES.iter().map(|page| (page.file(), page.render()));
    let of_verbs = verbs_with_page().into_iter().map(|verb| {
        let name = verbs::page_name(&verb);
        let mut roff = begin(&name, "8", PAGES[0].title);
        verbs::append_page(&mut roff, &verb);
        (format!("{name}.8"), roff.render())
    });
    own.chain(of_verbs).collect()
}

/// The list at the end of the main page.
fn see_also() -> String {
    let verbs = verbs_with_page();
    let of_verbs = verbs.iter().map(|verb| format!("**{}**(8)", verbs::page_name(verb)));
    let others = [("nri-runc-config", 5), ("nri-runc-plugins", 7), ("runc", 8), ("oci-hooks", 5)];
    let others = others.map(|(name, section)| format!("**{name}**({section})"));
    of_verbs.chain(others).collect::<Vec<_>>().join(", ") + "\n"
}

fn insert(roff: &mut Roff, what: &str) {
    match what {
        "verbs" => verbs::append(roff, &built()),
        "pages" => markdown::append(roff, &see_also()),
        "configuration" => markdown::append(roff, &nri_runc::testing::config::markdown()),
        "events" => {
            let names = nri_runc::plugin::ALL_EVENTS.iter().map(|event| event.name());
            markdown::append(roff, &listed(names));
        }
        "fields" => {
            let fields = nri_adaptation::NriField::ALL;
            markdown::append(roff, &listed(fields.iter().map(|field| field.name())));
        }
        page if page.starts_with("docs/") => {
            markdown::append(roff, &std::fs::read_to_string(root().join(page)).unwrap());
        }
        other => panic!("a template inserts {other}, which is not known"),
    }
}

fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ") + ".\n"
}

fn date() -> String {
    release_time().split('T').next().unwrap().to_owned()
}

/// The command line, with the names and usages that clap adds when it is used.
fn built() -> clap::Command {
    let mut command = nri_runc::testing::admin::command_of_program();
    command.build();
    command.find_subcommand("nri").unwrap().clone()
}

/// Shells, each with the name of its completion file in a package.
const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "nri-runc.bash"), (Shell::Zsh, "_nri-runc"), (Shell::Fish, "nri-runc.fish")];

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    nri_runc::testing::files::replace(&folder.join(name), text.as_bytes()).unwrap();
}

#[test]
fn manual_pages_and_completions_are_written_on_request() {
    let folder = std::env::var_os("NRI_RUNC_MANUAL").map(PathBuf::from);
    for (file, text) in all_pages() {
        assert!(text.lines().count() > 20, "{file} is nearly empty");
        if let Some(folder) = &folder {
            write(&folder.join("man"), &file, &text);
        }
    }
    for (shell, name) in SHELLS {
        let script = nri_runc::testing::admin::completion(shell);
        if let Some(folder) = &folder {
            write(&folder.join("completions"), name, &script);
        }
    }
}

/// Each verb below `command` with its subcommands, except for clap's `help`.
fn every_verb(command: &clap::Command) -> Vec<clap::Command> {
    let own = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    let visible = own.filter(|verb| !verb.is_hide_set());
    visible.flat_map(|verb| std::iter::once(verb.clone()).chain(every_verb(verb))).collect()
}

#[test]
fn manual_names_every_verb_and_every_option_and_no_hidden_one() {
    let page = PAGES[0].render();
    let verbs = every_verb(&built());
    assert!(verbs.len() > 15, "the verbs were not found");
    for verb in &verbs {
        if verb.has_subcommands() {
            continue;
        }
        let name = markdown::argument(verb.get_bin_name().unwrap_or_default());
        let (_, section) = page.split_once(&format!(".SS \"{name}")).expect(&name);
        let section = section.split(".SS \"").next().unwrap();
        let about = verb.get_about().unwrap().to_string();
        let about = about.split('`').next().unwrap().replace('-', "\\-").replace('\'', "\\*(Aq");
        assert!(page.contains(&about), "{name} is not explained");
        for argument in verb.get_arguments().filter(|argument| argument.get_id() != "help") {
            let Some(long) = argument.get_long() else { continue };
            let place = if argument.is_global_set() { page.as_str() } else { section };
            let is_named = place.contains(&format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-")));
            assert_eq!(is_named, !argument.is_hide_set(), "{name}: --{long}");
        }
    }
}

#[test]
fn manual_has_every_key_every_event_and_every_field() {
    let [_, config, plugins] = PAGES.each_ref().map(ManPage::render);
    let table = nri_runc::testing::config::markdown();
    let keys: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| `")).collect();
    assert!(keys.len() > 60, "the keys were not found");
    for key in keys.iter().filter_map(|line| line.split('`').next()) {
        let key = key.replace('-', "\\-");
        assert!(config.contains(&format!("\\fB{key}")), "{key} is not explained");
    }
    for event in nri_runc::plugin::ALL_EVENTS {
        assert!(plugins.contains(&format!("\\fB{}\\fR", event.name())), "{}", event.name());
    }
    for field in nri_adaptation::NriField::ALL {
        assert!(plugins.contains(&format!("\\fB{}\\fR", field.name())), "{}", field.name());
    }
}

#[test]
fn manual_pages_contain_no_markdown_and_no_accidental_request() {
    const REQUESTS: [&str; 17] = [
        "TH", "SH", "SS", "PP", "TP", "IP", "RS", "RE", "EX", "EE", "nh", "ad", "br", "ie", "el",
        "ds", "sp",
    ];
    for (file, text) in all_pages() {
        for heading in ["\n.SH", "\n.SS"] {
            let first = text.split(heading).skip(1).filter_map(|section| section.lines().nth(1));
            let unneeded = first.filter(|line| line.starts_with(".PP")).count();
            assert_eq!(unneeded, 0, "{file}: .PP after {heading}, of which mandoc warns");
        }
        for line in text.lines() {
            let name = line.strip_prefix('.').map(|rest| rest.split(' ').next().unwrap());
            assert!(name.is_none_or(|name| REQUESTS.contains(&name)), "{file}: {line}");
            let is_plain = !line.contains("](") && !line.contains("| ---") && !line.contains("```");
            assert!(is_plain, "{file}: {line}");
        }
    }
}

#[test]
fn each_command_has_a_man_page_named_in_main_page_and_packages() {
    let main = PAGES[0].render();
    let (_, see_also) = main.split_once("SEE ALSO").unwrap();
    let package = std::fs::read_to_string(root().join("contrib/package/nfpm.yaml")).unwrap();
    let pages = all_pages();
    assert!(pages.len() > 20, "{} pages", pages.len());
    for (file, text) in &pages {
        let (name, section) = file.rsplit_once('.').unwrap();
        let is_main = file == "nri-runc.8";
        let wanted = format!("\\fB{}\\fR({section})", markdown::argument(name));
        assert_eq!(see_also.contains(&wanted), !is_main, "the main page names {wanted}");
        let line = format!("src: man/{file}.gz, dst: /usr/share/man/man{section}/{file}.gz}}");
        assert!(package.contains(&line), "contrib/package/nfpm.yaml has no line with {line}");
        for title in ["NAME", "DESCRIPTION", "SEE ALSO"] {
            assert!(
                text.contains(&format!(".SH \"{title}\""))
                    || text.contains(&format!(".SH {title}")),
                "{file} lacks {title}"
            );
        }
    }
    let packaged = package.matches("src: man/").count();
    assert_eq!(packaged, pages.len(), "contrib/package/nfpm.yaml has a page that is not made");
    for verb in every_verb(&built()) {
        let top = verb
            .get_bin_name()
            .unwrap_or_default()
            .split(' ')
            .nth(2)
            .unwrap_or_default()
            .to_owned();
        let (_, text) =
            pages.iter().find(|(file, _)| *file == format!("nri-runc-nri-{top}.8")).unwrap();
        for long in verb.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let Some(long) = long.get_long().filter(|long| *long != "help") else { continue };
            let wanted = format!("\\fB\\-\\-{}\\fR", long.replace('-', "\\-"));
            assert!(text.contains(&wanted), "the page of {top} lacks --{long}");
        }
        assert!(text.contains("EXIT STATUS") && text.contains("\\fB2\\fR"), "{top}");
        assert!(text.contains(&format!("nri\\-runc nri {top}")), "{top} has no example");
    }
}

/// The programs that check a man page; the file is added.
const LINTS: [&[&str]; 2] = [
    &["mandoc", "-T", "lint", "-W", "warning"],
    &["groff", "-K", "utf8", "-man", "-T", "utf8", "-ww", "-z"],
];

/// The output of a program that checks pages; `None` without the program.
fn lint(words: &[&str], file: &Path) -> Option<String> {
    let output = std::process::Command::new(words[0]).args(&words[1..]).arg(file).output().ok()?;
    let printed = [output.stdout, output.stderr].concat();
    let ended = if output.status.success() { String::new() } else { output.status.to_string() };
    Some(String::from_utf8_lossy(&printed).into_owned() + &ended)
}

#[test]
fn man_pages_are_rendered_without_a_warning() {
    let temp = tempfile::tempdir().unwrap();
    let mut is_checked = false;
    for words in LINTS {
        for (file, text) in all_pages() {
            let path = temp.path().join(&file);
            write(temp.path(), &file, &text);
            let Some(printed) = lint(words, &path) else { break };
            assert_eq!(printed, "", "{} of {file}", words[0]);
            is_checked = true;
        }
    }
    if !is_checked {
        return test_support::skip::machine_lacks("neither mandoc nor groff is installed");
    }
    let wrong = temp.path().join("wrong.8");
    write(temp.path(), "wrong.8", ".TH A 8\n.SH NAME\na\n.nosuchrequest\n");
    let printed: Vec<String> = LINTS.iter().filter_map(|words| lint(words, &wrong)).collect();
    assert!(printed.iter().all(|printed| !printed.is_empty()), "a wrong page passed: {printed:?}");
}

#[test]
fn completions_have_the_verbs_in_every_shell() {
    for (shell, _) in SHELLS {
        let script = nri_runc::testing::admin::completion(shell);
        for verb in every_verb(&built()) {
            assert!(script.contains(verb.get_name()), "{shell}: {}", verb.get_name());
            // clap_complete's script for fish ends at the second level: `policy test` is the third.
            if shell == Shell::Fish && verb.get_name() == "test" {
                continue;
            }
            for long in verb.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let Some(long) = long.get_long() else { continue };
                assert!(script.contains(long), "{shell}: {} --{long}", verb.get_name());
            }
        }
    }
}

/// The completions of bash after these words; the last one is being typed.
fn offered(words: &[&str]) -> Vec<String> {
    let script = format!(
        "{}\nCOMP_WORDS=({}); COMP_CWORD={}\n_nri__runc nri-runc \"${{COMP_WORDS[COMP_CWORD]}}\" \
         \"${{COMP_WORDS[COMP_CWORD-1]}}\" || true\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        nri_runc::testing::admin::completion(Shell::Bash),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn completions_offer_verbs_options_and_engines_in_bash() {
    assert_eq!(offered(&["nri-runc", "nr"]), ["nri"]);
    assert_eq!(offered(&["nri-runc", "nri", "expl"]), ["explain"]);
    assert_eq!(offered(&["nri-runc", "nri", "install", "--take"]), ["--take-over-nri"]);
    assert!(offered(&["nri-runc", "nri", "install", "c"]).contains(&"containerd".to_owned()));
    assert_eq!(offered(&["nri-runc", "nri", "uninstall", "--forc"]), ["--force"]);
}

#[test]
fn completions_offer_nothing_for_an_unknown_verb() {
    assert_eq!(offered(&["nri-runc", "nri", "frobnicat"]), [""]);
    assert_eq!(offered(&["nri-runc", "nri", "install", "kubelet"]), [""], "no engine");
    assert_eq!(offered(&["nri-runc", "--he"]), [""], "the runtime's own");
    assert_eq!(offered(&["nri-runc", "nri", "status", "--force"]), [""], "another verb's");
}
