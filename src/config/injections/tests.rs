// SPDX-License-Identifier: Apache-2.0
//! Tests of written injections, and of mistakes in them.

use super::*;
use crate::config::settings::Problem;

/// The only mistake in a section with these lines after the header.
fn mistake(lines: &str) -> Problem {
    let (config, mut problems) = Config::read(&format!("[[inject]]\n{lines}\n"));
    assert_eq!(config.injections, [], "{lines}");
    assert_eq!(problems.len(), 1, "{lines}: {problems:?}");
    problems.remove(0)
}

#[test]
fn every_key_is_read_and_becomes_a_part_of_a_document() {
    let (config, problems) = Config::read(
        "[[inject]]\nname = \"all\"\nnamespaces = [\"a\"]\nlabels = { b = \"c\" }\n\
         engines = [\"docker\"]\nhandlers = [\"\"]\nimages = [\"*/x\"]\nindex = \"07\"\n\
         mode = \"audit\"\nwhen = \"always\"\non_failure = \"refuse\"\n\
         env = { A = \"1\" }\nannotations = { k = \"v\" }\nsysctl = { \"net.x\" = \"1\" }\n\
         rlimits = { nofile = { soft = 1, hard = \"unlimited\" } }\n\
         mounts = [{ destination = \"/d\", options = [\"ro\"] }]\n\
         cdi = [\"a.b/c=0\"]\nseccomp = \"/p.json\"\noom_score_adj = -5\n\
         resources = { cpu = { shares = 5 }, unified = { \"memory.high\" = \"1\" } }\n\
         [inject.hooks]\npoststop = [{ path = \"/h\", timeout = 3 }]\n\
         [[inject.devices]]\npath = \"/dev/x\"\ntype = \"c\"\nmajor = 1\n",
    );
    assert_eq!(problems, []);
    let [section] = &config.injections[..] else { panic!("{:?}", config.injections) };
    assert_eq!((section.owner().as_str(), section.index.as_str()), ("inject:all", "07"));
    assert!(section.is_always && !section.refuses(), "audit mode refuses nothing");
    assert_eq!((section.mode, section.on_failure), (RuleMode::Audit, OnFailure::Refuse));
    assert_eq!(
        (&section.cdi[..], &section.images[..]),
        (&["a.b/c=0".to_owned()][..], &["*/x".to_owned()][..])
    );
    assert_eq!(section.seccomp, Some(PathBuf::from("/p.json")));
    let wanted = json!({
        "annotations": {"k": "v"},
        "process": {
            "env": ["A=1"],
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": u64::MAX}],
            "oomScoreAdj": -5,
        },
        "mounts": [{"destination": "/d", "options": ["ro"]}],
        "hooks": {"poststop": [{"path": "/h", "timeout": 3}]},
        "linux": {
            "sysctl": {"net.x": "1"},
            "devices": [{"path": "/dev/x", "type": "c", "major": 1}],
            "resources": {"cpu": {"shares": 5}, "unified": {"memory.high": "1"}},
        },
    });
    assert_eq!(section.document, wanted);
}

const AUTHOR: &str = "pod and image authors write what selects here";

/// Lines of a section, and the mistake in them.
const MISTAKES: &[(&str, &str)] = &[
    ("", "f:1:1: the injection sets nothing"),
    ("env = { A = 1 }", "f:2:13: inject.env.A: expected a string in quotes"),
    ("env = [\"A=1\"]", "f:2:7: inject.env: expected a table, { KEY = VALUE }"),
    ("env = { -A = \"1\" }", "f:2:9: inject.env: the key \"-A\" would remove it"),
    ("env = { \"\" = \"1\" }", "f:2:9: inject.env: the key \"\" is empty"),
    ("env = { \"A=B\" = \"1\" }", "f:2:9: inject.env: the key \"A=B\" has a ="),
    ("nev = { A = \"1\" }", "f:2:1: unknown key inject.nev (did you mean env?)"),
    ("index = \"7\"\nenv = { A = \"1\" }", "f:2:9: inject.index: expected two digits"),
    ("name = \"a,b\"\nenv = { A = \"1\" }", "f:2:8: inject.name: expected a name without"),
    ("when = \"never\"\nenv = { A = \"1\" }", "f:2:8: inject.when: must be one of: absent"),
    ("mode = \"dry\"\nenv = { A = \"1\" }", "f:2:8: inject.mode: must be one of"),
    ("namespaces = \"a\"\nenv = { A = \"1\" }", "f:2:14: inject.namespaces: expected a list"),
    ("engines = [\"crio\"]\nenv = { A = \"1\" }", "f:2:11: inject.engines: \"crio\" is not"),
    (
        "rlimits = { nofiles = { soft = 1, hard = 1 } }",
        "f:2:13: inject.rlimits: the key \"nofiles\" is not",
    ),
    ("rlimits = { nofile = { soft = 1 } }", "f:2:22: inject.rlimits.nofile: hard is missing"),
    (
        "rlimits = { nofile = { soft = -1, hard = 1 } }",
        "f:2:31: inject.rlimits.nofile.soft: expected an",
    ),
    ("mounts = [{ destinaton = \"/d\" }]", "f:2:13: unknown key inject.mounts.destinaton"),
    (
        "mounts = [{ destination = \"d\" }]",
        "f:2:27: inject.mounts.destination: expected an absolute",
    ),
    ("mounts = [{ destination = \"-/d\" }]", "f:2:27: inject.mounts.destination: expected an"),
    ("mounts = { destination = \"/d\" }", "f:2:10: inject.mounts: expected a list"),
    ("devices = [{ type = \"c\" }]", "f:2:12: inject.devices: path is missing"),
    ("devices = [{ path = \"/x\", type = \"c\", fileMode = 4096 }]", "from 0 to 511"),
    ("resources = { blockIO = { weight = 1 } }", "f:2:15: unknown key inject.resources.blockIO"),
    ("resources = { cpu = { shares = \"1\" } }", "f:2:32: inject.resources.cpu.shares: expected"),
    ("oom_score_adj = 2000", "f:2:17: inject.oom_score_adj: expected an integer from -1000"),
    (
        "when = \"always\"\nseccomp = \"p.json\"",
        "f:3:11: inject.seccomp: expected an absolute path",
    ),
    ("when = \"always\"\nhooks = { prestrt = [] }", "f:3:11: unknown key inject.hooks.prestrt"),
    ("cdi = [\"a/b=c\"]", "f:2:1: inject.cdi: it has no absence"),
    ("seccomp = \"/p\"", "f:2:1: inject.seccomp: it has no absence"),
    ("hooks = { poststop = [] }", "f:2:1: inject.hooks: it has no absence"),
    ("labels = [\"a=b\"]\noom_score_adj = 1", AUTHOR),
    ("labels = [\"!a=b\"]\noom_score_adj = 1", AUTHOR),
    ("images = [\"x\"]\nnamespaces = [\"*\"]\nsysctl = { a = \"1\" }", AUTHOR),
    ("images = [\"x\"]\nnamespaces = [\"*\", \"!a\"]\nsysctl = { a = \"1\" }", AUTHOR),
    ("images = [\"x\"]\nnamespaces = [\"?*\"]\nsysctl = { a = \"1\" }", AUTHOR),
    (
        "labels = [\"a=b\"]\nannotations = { \"run.oci.handler\" = \"1\" }",
        "f:3:1: inject.annotations: a runtime",
    ),
    (
        "labels = [\"a=b\"]\nannotations = { \"cdi.k8s.io/x\" = \"1\" }",
        "f:3:1: inject.annotations: a runtime",
    ),
];

#[test]
fn each_mistake_names_its_place_and_drops_its_section() {
    for (lines, wanted) in MISTAKES.iter().copied() {
        let problem = mistake(lines);
        assert!(problem.text.contains(wanted), "{}: {lines}", problem.text);
        assert_eq!(problem.consequence, Consequence::KeepsLast, "{lines}");
    }
}

#[test]
fn labels_of_a_pod_may_select_harmless_injections() {
    for lines in [
        "labels = [\"a=b\"]\nenv = { A = \"1\" }\nannotations = { \"corp/x\" = \"1\" }\n",
        "images = [\"x\"]\nnamespaces = [\"dev-*\"]\noom_score_adj = 1\n",
        "labels = [\"a=b\"]\nengines = [\"docker\"]\noom_score_adj = 1\n",
    ] {
        let (config, problems) = Config::read(&format!("[[inject]]\n{lines}"));
        assert_eq!((config.injections.len(), problems), (1, Vec::new()), "{lines}");
    }
}

#[test]
fn only_mistakes_in_refusing_sections_refuse_creates() {
    use Consequence::{KeepsLast, RefusesCreates};
    let wrong = "nev = { A = \"1\" }\n";
    for (text, wanted) in [
        (format!("[[inject]]\n{wrong}"), KeepsLast),
        (format!("[[inject]]\non_failure = \"skip\"\n{wrong}"), KeepsLast),
        (format!("[[inject]]\non_failure = \"refuse\"\n{wrong}"), RefusesCreates),
        (format!("[[inject]]\non_failur = \"refuse\"\n{wrong}"), RefusesCreates),
        (format!("[[inject]]\non_failure = \"refus\"\n{wrong}"), RefusesCreates),
        (format!("[[inject]]\nmode = \"audit\"\non_failure = \"refuse\"\n{wrong}"), KeepsLast),
        ("[[injct]]\nenv = { A = \"1\" }\n".to_owned(), KeepsLast),
        ("[[injections]]\non_failure = \"refuse\"\n".to_owned(), RefusesCreates),
        ("[inject]\nname = \"a\"\n".to_owned(), KeepsLast),
        ("[inject]\n".to_owned(), KeepsLast),
        ("[inject]\non_failure = \"refuse\"\n".to_owned(), RefusesCreates),
        ("inject = [{ name = \"a\" }]\n".to_owned(), KeepsLast),
        ("inject = [{ on_failure = \"refuse\" }]\n".to_owned(), RefusesCreates),
        ("[[rulez]]\n".to_owned(), RefusesCreates),
    ] {
        let (config, problems) = Config::read(&text);
        let worst = problems.iter().map(|problem| problem.consequence).max();
        assert_eq!((worst, config.injections.len()), (Some(wanted), 0), "{text}");
        assert!(problems.iter().all(|problem| problem.text.starts_with("f:")), "{problems:?}");
    }
}

#[test]
fn section_names_are_unique_and_default_to_their_place() {
    let (config, problems) = Config::read(
        "[[inject]]\nname = \"a\"\nenv = { A = \"1\" }\n\
         [[inject]]\nenv = { A = \"2\" }\n\
         [[inject]]\nname = \"a\"\nenv = { A = \"3\" }\n",
    );
    let names: Vec<&str> = config.injections.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a", "f:4"]);
    assert_eq!(problems[0].text, "f:6:1: another injection has the name \"a\"");
}

#[test]
fn only_an_injection_that_refuses_containers_protects() {
    let section = |more: &str| format!("[[inject]]\nname = \"a\"\nenv = {{ A = \"1\" }}\n{more}");
    for (more, protects) in [
        ("", false),
        ("on_failure = \"skip\"\n", false),
        ("on_failure = \"refuse\"\n", true),
        ("on_failure = \"refuse\"\nmode = \"audit\"\n", false),
    ] {
        let (config, problems) = Config::read(&section(more));
        assert_eq!((problems, config.protections().is_empty()), (Vec::new(), !protects), "{more}");
    }
}
