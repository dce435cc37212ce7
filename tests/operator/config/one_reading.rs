// SPDX-License-Identifier: Apache-2.0
//! `reload`, `reload --dry-run` with and without a daemon, `check`, a start of the daemon and a create
//! reach the same verdict on a file; while a daemon with a valid file lives, no verdict refuses a
//! create.

use test_support::adjustments::sets;
use test_support::wait_until;

use super::{fails, finding, started, succeeds};

/// The effect of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The file is used.
    Used,
    /// A reload is refused; a start uses the last valid file.
    Kept,
    /// A reload is refused; a start refuses creates.
    Refuses,
}

const FILES: [(&str, Verdict, &str); 16] = [
    ("[[rules]]\nhide = true\n", Verdict::Refuses, "config.toml:9:1: unknown list of tables"),
    ("[[plugins]]\n", Verdict::Refuses, "config.toml:9:1: unknown list of tables [[plugins]]"),
    ("[[audit]]\n", Verdict::Refuses, "config.toml:9:1: unknown list of tables [[audit]]"),
    ("[[foo]]\n", Verdict::Refuses, "config.toml:9:1: unknown list of tables [[foo]]"),
    ("[rules]\nhide = true\n", Verdict::Refuses, "config.toml:10:1: unknown key rules.hide"),
    ("[foo]\n", Verdict::Refuses, "config.toml:9:2: unknown section [foo]"),
    ("[[rule]]\nengines = [\"crio\"]\n", Verdict::Refuses, "did you mean cri-o?"),
    (
        "[runtime.nri-crun]\npath = \"/x\"\n",
        Verdict::Refuses,
        "config.toml:9:1: the section [runtime.nri-crun] was renamed: write \
         [instance.nri-crun]",
    ),
    ("[plugin.a]\nrequird = true\n", Verdict::Refuses, "config.toml:10:1: unknown key"),
    (
        "[plugin.a]\ndisplace = \"some\"\n",
        Verdict::Refuses,
        "config.toml:10:12: plugin.a.displace: must be one of: never, any",
    ),
    ("[plugin.a]\ndisplace = \"any\"\n", Verdict::Used, ""),
    ("[plugin.a\n", Verdict::Refuses, "config.toml:9:"),
    ("[log]\nformat = \"xml\"\n", Verdict::Kept, "config.toml:10:10: log.format"),
    (
        "[instance.nri-crun]\npath = \"/nowhere/crun\"\n",
        Verdict::Kept,
        "config.toml:10:1: instance.nri-crun.path: no real runtime was found: /nowhere/crun is",
    ),
    ("[eviction]\nper_minute = 3\n", Verdict::Used, ""),
    ("[eviction]\ngraze = \"1s\"\n", Verdict::Used, ""),
];

/// Checks the verdict of a command that exits with 1 if it refuses the file.
#[track_caller]
fn agrees(output: &std::process::Output, verdict: Verdict, at: &str) {
    match verdict {
        Verdict::Used => succeeds(output),
        Verdict::Kept | Verdict::Refuses => fails(output, &[at]),
    }
}

#[test]
fn every_reader_agrees_on_a_configuration_file() {
    let mut host = started("");
    for (index, (more, verdict, at)) in FILES.into_iter().enumerate() {
        host.configure(&host.path("fake/runc"), more);
        agrees(&host.call(&["nri", "reload", "--dry-run"]), verdict, at);
        agrees(&host.call(&["nri", "reload"]), verdict, at);
        let found = finding(&host, "configuration");
        let detail = found["detail"].as_str().unwrap();
        assert!(
            verdict == Verdict::Used || (found["ok"] == false && detail.contains(at)),
            "{found}"
        );
        assert_eq!(
            detail.contains("the next daemon refuses"),
            verdict == Verdict::Refuses,
            "{found}"
        );
        // The daemon lives and has read a valid file.
        succeeds(&host.create(&format!("lives-{index}")));
        host.kill_daemon();
        let logged =
            |host: &test_support::TestHost| host.logged(&["creates are refused until", at]);
        let before = logged(&host);
        agrees(&host.call(&["nri", "reload", "--dry-run"]), verdict, at);
        agrees(&host.call(&["nri", "reload"]), verdict, at);
        host.start_daemon();
        let created = host.create(&format!("starts-{index}"));
        match verdict {
            Verdict::Used | Verdict::Kept => succeeds(&created),
            Verdict::Refuses => fails(&created, &["configuration has an error", at]),
        }
        assert_eq!(logged(&host) > before, verdict == Verdict::Refuses, "{more}");
        host.kill_daemon();
        host.configure(&host.path("fake/runc"), "");
        host.start_daemon();
    }
}

#[test]
fn a_reload_with_a_missing_runtime_keeps_the_previous_one() {
    let mut host = started("");
    let right = host.read("config.toml");
    let (_, rest) = right.split_once('\n').unwrap();
    host.write("config.toml", &format!("runtime = \"nope\"\n{rest}"));
    let at = "config.toml:1:1: runtime: no real runtime was found: nope is not installed";
    fails(&host.call(&["nri", "reload", "--dry-run"]), &[at]);
    fails(&host.call(&["nri", "reload"]), &[at, "the previous one stays in force"]);
    let found = finding(&host, "configuration");
    assert!(found["ok"] == false && found["detail"].as_str().unwrap().contains(at), "{found}");
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    fails(&host.call(&["nri", "restart"]), &[at]);
    host.kill_daemon();
    fails(&host.call(&["nri", "reload", "--dry-run"]), &[at]);
    host.start_daemon();
    succeeds(&host.create("c2"));
}

#[test]
fn a_broken_file_on_disk_changes_nothing_for_a_create() {
    let host = started("[nri.default_validator]\nenable = true\n");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    for (index, more) in [
        // Without the error each of these would let containers pass, or set nothing.
        "[nri]\ndisable = true\n[plugin.a]\nrequird = true\n",
        "[nri]\ndisable = true\n[[rules]]\n",
        "[nri]\ndisable = true\n[log]\nformat = \"xml\"\n",
        "[plugin.a\n",
    ]
    .into_iter()
    .enumerate()
    {
        host.configure(&host.path("fake/runc"), more);
        let id = format!("c{index}");
        succeeds(&host.create(&id));
        assert!(host.read("fake/seen.json").contains("HELLO=there"), "{more}");
        succeeds(&host.verb(&["delete", "--force", &id]));
    }
}

#[test]
fn a_reload_and_check_name_probable_mistakes() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    let more = "[plugin.env]\nstrikes = 2\n[plugin.ghost]\nstrikes = 2\n[[rule]]\nname = \"all\"\n\
                deny = [\"Mounts\"]\n[[rule]]\nname = \"late\"\nengines = [\"cri-o\"]\nhide = true\n\
                [[rule]]\nname = \"injected\"\nplugins = [\"inject:ca\"]\ndeny = [\"Env\"]\n";
    host.configure(&host.path("fake/runc"), more);
    let lines = [
        "the rule \"late\" never decides: the earlier rule \"all\" matches all that it matches",
        "the section [plugin.ghost] names the plugin ghost, which is neither connected nor",
    ];
    let findings = host.admin(&["check"]);
    for words in [&["nri", "reload", "--dry-run"][..], &["nri", "reload"]] {
        let output = host.call(words);
        succeeds(&output);
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in lines {
            assert!(page.contains(&format!("warning: {line}")), "{page}");
            let rows = findings.as_array().unwrap().iter();
            let is_it = |row: &&serde_json::Value| row["detail"].to_string().contains(&line[..40]);
            let row = rows.into_iter().find(|row| {
                is_it(row) || row["detail"].as_str().is_some_and(|detail| detail.contains(line))
            });
            assert_eq!(row.map(|row| row["warning"] == true), Some(true), "{findings}");
        }
        assert!(!page.contains("[plugin.env]"), "{page}");
        assert!(
            !page.contains("\"injected\" never"),
            "rules about plugins decide about none: {page}"
        );
    }
}

#[test]
fn status_shows_what_wrappers_use_before_a_reload() {
    let host = started("");
    host.configure(&host.path("fake/runc"), "[nri]\ndisable = true\n");
    assert_eq!(host.admin(&["status"])["disabled"], true);
    host.configure(&host.path("fake/runc"), "[nri]\ndisable = true\n[[foo]]\n");
    assert_eq!(host.admin(&["status"])["disabled"], false);
}

#[test]
fn a_reexec_needs_and_keeps_a_valid_configuration() {
    let host = started("");
    let before = host.admin(&["status"])["pid"].clone();
    host.configure(&host.path("fake/runc"), "[[rules]]\nhide = true\n");
    fails(&host.call(&["nri", "reexec"]), &["unknown list of tables", "fix it first"]);
    host.configure(&host.path("fake/runc"), "");
    succeeds(&host.call(&["nri", "reexec"]));
    host.configure(&host.path("fake/runc"), "[[rules]]\nhide = true\n");
    wait_until("it answers", || host.admin(&["status"])["pid"] == before);
    succeeds(&host.create("c1"));
}
