// SPDX-License-Identifier: Apache-2.0
//! Properties of mutated configurations: all processes that read one get the same settings, and a
//! refused reload changes nothing.

use std::path::Path;
use std::rc::Rc;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// The lines of a valid configuration, after the line that sets `run_dir`.
const VALID: [&str; 26] = [
    "runtime = [\"/bin/special\"]",
    "on_daemon_failure = \"fail\"",
    "exempt_namespaces = [\"ops\"]",
    "[nri]",
    "socket_mode = \"0660\"",
    "allowed_uids = [0, 7]",
    "[nri.default_validator]",
    "enable = true",
    "[instance.nri-crun]",
    "path = \"/bin/crun\"",
    "[plugin.policy]",
    "required = true",
    "deny = [\"Env\"]",
    "[plugin.\"*\"]",
    "strikes = 3",
    "[log]",
    "level = \"warn\"",
    "[[rule]]",
    "engines = [\"cri-o\"]",
    "hide = true",
    "[[exec_rule]]",
    "terminal = true",
    "commands = [\"/bin/*\"]",
    "[[require]]",
    "cdi = [\"a.com/b=*\"]",
    "plugin = \"gpu\"",
];

/// Lines to insert: mistakes of operators, spellings of earlier versions, and a few valid lines.
const SLIPS: [&str; 37] = [
    "[[rules]]",
    "[[exec_rules]]",
    "[[exec_rule]]",
    "[[require]]",
    "[[requires]]",
    "[[plugins]]",
    "[[audit]]",
    "[[foo]]",
    "[rules]",
    "[foo]",
    "[plugins.a]",
    "[runtime.nri-crun]",
    "[[runtime]]",
    "[instance]",
    "[instances.x]",
    "[[nri]]",
    "[log.foo]",
    "x = 1",
    "foo.x = 1",
    "runtime = 5",
    "runtme = \"crun\"",
    "pth = \"/x\"",
    "requird = true",
    "required = \"true\"",
    "level = \"loud\"",
    "levle = \"info\"",
    "engines = [\"crio\"]",
    "deny = []",
    "[[inject]]",
    "[[injects]]",
    "[inject]",
    "env = { A = \"1\" }",
    "on_failure = \"refuse\"",
    "= =",
    "\"",
    "# comment",
    "rule = [{ hide = true }]",
];

#[derive(Debug, Clone)]
enum Mutation {
    Byte(Index, char),
    Remove(Index),
    Repeat(Index, Index),
    Insert(Index, &'static str),
    Replace(Index, &'static str),
    Letter(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    prop_oneof![
        1 => (at(), select("[]=\"'# .\nax1\u{e4}".chars().collect::<Vec<_>>()))
            .prop_map(|(at, c)| Mutation::Byte(at, c)),
        1 => at().prop_map(Mutation::Remove),
        1 => (at(), at()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
        3 => (at(), select(&SLIPS[..])).prop_map(|(at, slip)| Mutation::Insert(at, slip)),
        2 => (at(), select(&SLIPS[..])).prop_map(|(at, slip)| Mutation::Replace(at, slip)),
        2 => (at(), at()).prop_map(|(line, letter)| Mutation::Letter(line, letter)),
    ]
}

fn mutate(lines: &mut Vec<String>, mutation: &Mutation) {
    if lines.is_empty() {
        return;
    }
    let count = lines.len();
    match mutation {
        Mutation::Byte(at, c) => {
            let line = &mut lines[at.index(count)];
            let mut chars: Vec<char> = line.chars().collect();
            chars.insert(at.index(chars.len() + 1), *c);
            *line = chars.into_iter().collect();
        }
        Mutation::Remove(at) => drop(lines.remove(at.index(count))),
        Mutation::Repeat(from, to) => {
            let line = lines[from.index(count)].clone();
            lines.insert(to.index(count + 1), line);
        }
        Mutation::Insert(at, slip) => lines.insert(at.index(count + 1), (*slip).to_owned()),
        Mutation::Replace(at, slip) => lines[at.index(count)] = (*slip).to_owned(),
        Mutation::Letter(line, letter) => {
            let mut chars: Vec<char> = lines[line.index(count)].chars().collect();
            if !chars.is_empty() {
                chars.remove(letter.index(chars.len()));
            }
            lines[line.index(count)] = chars.into_iter().collect();
        }
    }
}

/// A folder that has the configuration file and is the run directory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("config.toml")
    }

    /// Writes these lines to the configuration file, and loads it as a process does.
    fn load(&self, lines: &[String]) -> Loaded {
        let text = self.text(lines);
        crate::files::replace(&self.file(), text.as_bytes()).unwrap();
        load(Some(&self.file()))
    }

    fn text(&self, lines: &[String]) -> String {
        format!("run_dir = \"{}\" # x\n{}\n", self.0.path().display(), lines.join("\n"))
    }

    fn keep(&self, loaded: &Loaded) {
        let text = snapshot_text(loaded.in_force());
        crate::files::replace(&self.0.path().join(SNAPSHOT), text.as_bytes()).unwrap();
    }

    /// Parses these lines with the TOML parser alone.
    fn parse(&self, lines: &[String]) -> (Config, Vec<Problem>) {
        let (mut config, mut problems) = (Config::default(), Vec::new());
        let file = self.file().display().to_string();
        reader::parse(&mut config, &file, &self.text(lines), &mut problems);
        (config, problems)
    }
}

fn without_error(config: &Config) -> Config {
    Config { protection_error: None, ..config.clone() }
}

fn without_rules(config: &Config) -> Config {
    let (rules, section_names) = Default::default();
    Config { rules, section_names, ..config.clone() }
}

fn valid() -> Vec<String> {
    VALID.map(str::to_owned).to_vec()
}

thread_local! {
    /// One per thread: the folders are removed when the thread's test ends.
    static PLACES: Rc<(Place, Loaded, [Place; 2])> = {
        let place = Place::new();
        let good = place.load(&valid());
        place.keep(&good);
        Rc::new((place, good, [Place::new(), Place::new()]))
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_reader_agrees_on_a_mutated_configuration(
        mutations in proptest::collection::vec(mutation(), 1..4)
    ) {
        let mut lines = valid();
        mutations.iter().for_each(|mutation| mutate(&mut lines, mutation));
        let places = PLACES.with(Rc::clone);
        let (place, good, [fresh, apart]) = &*places;
        let (parsed, problems) = place.parse(&lines);
        let worst = problems.iter().map(|problem| problem.consequence).max();
        let is_refused = worst >= Some(Consequence::KeepsLast);
        let refuses_creates = worst >= Some(Consequence::RefusesCreates);

        // While a daemon runs, reload, `check` and wrapper all use the result of `load`.
        let loaded = place.load(&lines);
        prop_assert_eq!(&loaded.problems, &problems);
        prop_assert_eq!(loaded.refusal().is_some(), is_refused);
        prop_assert_eq!(loaded.config.protection_error.is_some(), refuses_creates);
        let in_force = if is_refused { &good.config } else { &parsed };
        prop_assert_eq!(&without_error(&loaded.config), in_force);
        prop_assert_eq!(&*loaded.for_next_program().config, in_force);

        // In this run directory no daemon has stored a valid configuration, so a start has the same
        // errors, and the settings follow from the files alone.
        let started = fresh.load(&lines);
        let consequences = |problems: &[Problem]| -> Vec<Consequence> {
            problems.iter().map(|problem| problem.consequence).collect()
        };
        prop_assert_eq!(consequences(&started.problems), consequences(&problems));
        prop_assert_eq!(started.config.protection_error.is_some(), refuses_creates);
        prop_assert_eq!(!started.config.protections().is_empty(), {
            let protects = |config: &Config| !config.protections().is_empty();
            refuses_creates || protects(&parsed)
        });
        if worst < Some(Consequence::UsesNoFile) {
            let mut wanted = parsed;
            wanted.run_dir = fresh.0.path().to_owned();
            // Rules without a name are named by their position.
            for (rule, other) in wanted.rules.iter_mut().zip(&started.config.rules) {
                rule.name.clone_from(&other.name);
            }
            for (rule, other) in wanted.exec_rules.iter_mut().zip(&started.config.exec_rules) {
                rule.name.clone_from(&other.name);
            }
            for (promise, other) in wanted.promises.iter_mut().zip(&started.config.promises) {
                promise.name.clone_from(&other.name);
            }
            for (one, other) in wanted.injections.iter_mut().zip(&started.config.injections) {
                one.name.clone_from(&other.name);
            }
            prop_assert_eq!(without_error(&started.config), wanted);
        }
        // A wrapper ignores only the rules that a daemon has read.
        if !is_refused {
            apart.keep(&apart.load(&lines));
        }
        let (all, wrappers) = (apart.load(&lines), load_named(Some(&apart.file()), true));
        prop_assert_eq!(&wrappers.problems, &all.problems);
        prop_assert_eq!(without_rules(&wrappers.config), without_rules(&all.config));
        for problem in &problems {
            let file = format!("{}:", place.file().display());
            let at = problem.text.strip_prefix(&file).unwrap_or_default();
            let numbers = at.splitn(3, ':').take(2).filter(|n| n.parse::<u32>().is_ok()).count();
            prop_assert_eq!(numbers, 2, "{}", problem.text);
        }
    }
}

#[test]
fn a_valid_file_has_no_problem_and_protecting_mistakes_refuse() {
    let place = Place::new();
    assert_eq!(place.load(&valid()).problems, []);
    assert_eq!(place.file().parent(), Some(Path::new(place.0.path())));
    let protects = |slip: &&&str| {
        slip.starts_with('[') && !slip.contains("inject") && **slip != "[[exec_rule]]"
    };
    for slip in SLIPS.iter().filter(protects).filter(|slip| **slip != "[instance]") {
        let mut lines = valid();
        lines.push((*slip).to_owned());
        let error = place.load(&lines).config.protection_error;
        assert!(error.is_some(), "{slip}");
    }
}

#[test]
fn a_wrapper_reads_rules_only_until_a_daemon_has_read_them() {
    let place = Place::new();
    let loaded = place.load(&valid());
    let wrapper = || load_named(Some(&place.file()), true).config;
    assert_eq!(wrapper(), loaded.config);
    place.keep(&loaded);
    assert_eq!((wrapper().rules.len(), loaded.config.rules.len()), (0, 1));
    assert_eq!(without_rules(&wrapper()), without_rules(&loaded.config));
    // A line of a multi-line string in a rule may look like a section.
    let lines = [
        "[[rule]]",
        "namespaces = [\"\"\"",
        "[log]",
        "level = \"debug\"",
        "[[rule]]",
        "x = \"\"\"]",
    ];
    let loaded = place.load(&[valid(), lines.map(str::to_owned).to_vec()].concat());
    assert_eq!((loaded.problems.len(), loaded.config.rules.len()), (0, 2));
    place.keep(&loaded);
    assert_eq!(wrapper(), loaded.config);
    // The files differ from those that the daemon has read.
    let changed = [valid(), vec!["# x".to_owned()]].concat();
    assert_eq!(place.load(&changed).config, wrapper());
    assert_eq!(wrapper().rules.len(), 1);
}
