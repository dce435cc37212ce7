// SPDX-License-Identifier: Apache-2.0
//! Lists as operators of crictl, docker and kubectl expect them: filters, formats, `--watch`, prefixes
//! of IDs, hints for words of other tools, and the exit codes of the table.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};

use nri_plugin::Adjustment;
use nri_runc::testing::admin::{EXIT_CODES, EXIT_CODES_OF_VERBS};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, SILENT, Script, TestHost, started, succeeds, wait_until};

use super::terminal::{ends, signal};

/// Creates a container `app` in a pod with the label `app`.
fn create_in(host: &TestHost, namespace: &str, pod: &str, id: &str) {
    let keys = json!({"nri-runc.dev/pod-namespace": namespace, "nri-runc.dev/pod-name": pod,
        "nri-runc.dev/pod-id": format!("pod-of-{id}"), "nri-runc.dev/container-name": "app",
        "nri-runc.dev/label/app": pod});
    let document = BUNDLE.replacen('{', &format!("{{\"annotations\": {keys},"), 1);
    let bundle = format!("bundle-{id}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), &document);
    succeeds(&host.create_from(&bundle, id));
}

/// Two pods of `shop` and one of `stage`.
fn with_three_pods() -> TestHost {
    let host = started("");
    create_in(&host, "shop", "web", "c1");
    create_in(&host, "shop", "db", "c2");
    create_in(&host, "stage", "web", "d1");
    host
}

/// Returns standard output, standard error and exit code.
fn call(host: &TestHost, words: &[&str]) -> (String, String, Option<i32>) {
    let output = host.call(&[&["nri"][..], words].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn page(host: &TestHost, words: &[&str]) -> String {
    let (page, line, code) = call(host, words);
    assert_eq!((code, line.as_str()), (Some(0), ""), "{words:?}");
    page
}

#[test]
fn pods_are_filtered_in_every_format() {
    let host = with_three_pods();
    let names = |words: &[&str]| {
        let page = page(&host, &[&["pods", "-o", "name"], words].concat());
        page.lines().map(ToOwned::to_owned).collect::<BTreeSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names(&[]), set(&["shop/web", "shop/db", "stage/web"]));
    assert_eq!(names(&["--namespace", "shop"]), set(&["shop/web", "shop/db"]));
    assert_eq!(names(&["-n", "s*", "--label", "app=web"]), set(&["shop/web", "stage/web"]));
    assert_eq!(
        names(&["--engine", "plain", "--state", "ready", "-l", "app!=web"]),
        set(&["shop/db"])
    );
    assert_eq!(names(&["--engine", "podman"]), set(&[]));
    // A state that the list shows for a container is accepted too.
    assert_eq!(names(&["--state", "creating"]), set(&[]));
    succeeds(&host.verb(&["start", "d1"]));
    wait_until("it runs", || names(&["--state", "running"]) == set(&["stage/web"]));
    let (_, line, code) = call(&host, &["pods", "--state", "gone"]);
    assert!(code == Some(2) && line.contains("running") && line.contains("ready"), "{line}");
    let json = host.admin(&["pods", "-n", "stage"]);
    assert_eq!(
        (json.as_array().map(Vec::len), &json[0]["labels"]["app"]),
        (Some(1), &json!("web"))
    );
    let table = page(&host, &["pods", "-n", "stage"]);
    assert_eq!(table.lines().count(), 3, "heading, pod, container: {table}");
    assert!(!page(&host, &["pods", "-n", "nowhere"]).contains("plain"));
}

#[test]
fn names_printed_by_pods_are_accepted_by_explain() {
    let host = with_three_pods();
    succeeds(&host.create("alone"));
    for name in page(&host, &["pods", "-o", "name"]).lines() {
        let explained = host.admin(&["explain", name]);
        assert!(explained["id"].is_string(), "{name}: {explained}");
    }
    let _plugin = host.plugin("10", "a", Script::default());
    assert_eq!(page(&host, &["plugins", "-o", "name"]), "10-a\n");
}

#[test]
fn pods_have_ages_and_the_newest_comes_first() {
    let host = with_three_pods();
    let table = page(&host, &["pods"]);
    let pods: Vec<&str> = table.lines().filter(|row| !row.starts_with("  ")).skip(1).collect();
    assert!(pods[0].starts_with("stage/web ") && pods[2].starts_with("shop/web "), "{table}");
    assert!(
        pods.iter().all(|row| row.split_whitespace().nth(2).unwrap().ends_with('s')),
        "{table}"
    );
    let row = &host.admin(&["pods"])[0];
    assert!(row["created_at"].as_i64() > Some(0) && row["created_time"].is_string(), "{row}");
    assert!(page(&host, &["pods", "-o", "wide"]).contains("app=web"));
}

/// The document that a YAML parser reads.
fn read(node: &Yaml<'_>) -> Value {
    match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(is_so)) => json!(is_so),
        Yaml::Value(Scalar::Integer(number)) => json!(number),
        Yaml::Value(Scalar::FloatingPoint(number)) => json!(number.into_inner()),
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Sequence(items) => items.iter().map(read).collect(),
        Yaml::Mapping(members) => {
            let members = members.iter();
            let members =
                members.map(|(key, value)| (key.as_str().unwrap().to_owned(), read(value)));
            Value::Object(members.collect())
        }
        Yaml::Representation(..) | Yaml::Tagged(..) | Yaml::Alias(_) | Yaml::BadValue => {
            json!({"no document": format!("{node:?}")})
        }
    }
}

#[test]
fn yaml_and_json_print_the_same_document() {
    let host = with_three_pods();
    let _plugin = host.plugin("10", "a", sets("A", "1"));
    succeeds(&host.create("e1"));
    for words in [
        &["pods"][..],
        &["explain", "e1"],
        &["policy", "test", "--pod", "shop/web"],
        &["disable"],
        &["enable"],
        &["reload", "--dry-run"],
        &["uninstall", "docker", "--root", "/nowhere"],
    ] {
        let json = host.call(&[&["nri"][..], words, &["-o", "json"]].concat());
        let yaml = host.call(&[&["nri"][..], words, &["-o", "yaml"]].concat());
        assert_eq!((yaml.status, &yaml.stderr), (json.status, &json.stderr), "{words:?}");
        let (json, yaml) =
            [json, yaml].map(|output| String::from_utf8(output.stdout).unwrap()).into();
        let documents = Yaml::load_from_str(&yaml).unwrap();
        let yaml: Vec<Value> = documents.iter().map(read).collect();
        let json: Vec<Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(yaml, json, "{words:?}");
    }
    for words in [&["status"][..], &["plugins"], &["top", "--interval", "100ms"], &["check"]] {
        let (yaml, _, _) = call(&host, &[words, &["-o", "yaml"]].concat());
        let documents = Yaml::load_from_str(&yaml).unwrap();
        assert_eq!(documents.len(), 1, "{words:?}: {yaml}");
    }
}

#[test]
fn unsupported_or_repeated_formats_are_usage_errors() {
    let host = TestHost::default();
    for words in [
        &["--json", "pods", "-o", "yaml"][..],
        &["pods", "-o", "wide", "--json"],
        &["pods", "-o", "table"],
        &["status", "-o", "wide"],
        &["explain", "c1", "-o", "name"],
        &["plugins", "--watch", "--logs", "a"],
        &["pods", "--label", "=x"],
        &["pods", "--engine", "dokcer"],
    ] {
        let (page, line, code) = call(&host, words);
        assert_eq!((code, page.as_str()), (Some(2), ""), "{words:?}: {line}");
        assert!(line.starts_with("error: "), "{line}");
    }
}

#[test]
fn an_ambiguous_prefix_is_an_error_that_lists_the_matches() {
    let host = with_three_pods();
    for (words, wanted) in [
        (
            &["explain", "c"][..],
            "\"c\" is ambiguous: 2 containers match: shop/db/app (c2), shop/web/app (c1)",
        ),
        (
            &["explain", "pod-of-c"],
            "\"pod-of-c\" is ambiguous: 2 pods match: shop/web (pod-of-c1), shop/db (pod-of-c2)",
        ),
        (
            &["policy", "test", "--pod", "pod-of-c"],
            "2 pods match: shop/web (pod-of-c1), shop/db (pod-of-c2)",
        ),
        (
            &["policy", "test", "--pod", "web"],
            "2 pods match: shop/web (pod-of-c1), stage/web (pod-of-d1)",
        ),
        (&["explain", "web"], "2 pods match: shop/web (pod-of-c1), stage/web (pod-of-d1)"),
    ] {
        let (_, line, code) = call(&host, words);
        assert_eq!((code, line.lines().count()), (Some(1), 1), "{words:?}: {line}");
        assert!(line.contains(wanted), "{line}");
    }
    assert_eq!(host.admin(&["policy", "test", "--pod", "pod-of-d"])["pod"]["name"], "web");
    assert_eq!(host.admin(&["explain", "d"])["id"], "d1");
    let (_, line, code) = call(&host, &["policy", "test", "--pod", ""]);
    assert_eq!(code, Some(1), "nothing is the beginning of everything: {line}");
}

/// A name takes precedence over the beginning of another pod's ID.
#[test]
fn explain_and_policy_test_mean_the_same_pod_by_a_name() {
    let host = started("");
    create_in(&host, "shop", "pod-of-c2", "c1");
    create_in(&host, "shop", "db", "c22");
    for words in [&["policy", "test", "--pod"][..], &["explain"]] {
        for (wanted, id) in
            [("pod-of-c2", "pod-of-c1"), ("db", "pod-of-c22"), ("pod-of-c22", "pod-of-c22")]
        {
            let answer = host.admin(&[words, &[wanted]].concat());
            let pod = if answer["pod"].is_object() { &answer["pod"] } else { &answer };
            assert_eq!(pod["id"], id, "{words:?} {wanted}");
        }
    }
}

#[test]
fn an_audit_line_is_found_by_an_unambiguous_prefix() {
    let mut host = TestHost::default();
    let path = host.path("log/audit.log");
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    let _plugin = host.plugin("10", "a", sets("TOKEN", "1"));
    for id in ["c1", "c2", "d1"] {
        create_in(&host, "shop", id, id);
    }
    wait_until("the lines are written", || {
        host.admin(&["audit", "--container", "d1"]) != json!([])
    });
    for option in ["--pod", "--container"] {
        let prefix =
            |end: &str| if option == "--pod" { format!("pod-of-{end}") } else { end.to_owned() };
        let found = host.admin(&["audit", option, &prefix("d")]);
        assert_eq!(found[0]["container_id"], "d1", "{found}");
        let (page, line, code) = call(&host, &["audit", option, &prefix("c")]);
        assert_eq!((code, page.as_str()), (Some(1), ""), "{line}");
        let names = format!("{}, {}", prefix("c1"), prefix("c2"));
        assert!(line.contains("ambiguous") && line.contains(&names), "{line}");
    }
    assert_eq!(page(&host, &["audit", "--pod", "nobody"]), "no entries\n");
    let yaml = page(&host, &["audit", "--container", "d1", "-o", "yaml"]);
    assert!(yaml.starts_with("- version: 1\n"), "{yaml}");
}

/// Starts a verb that keeps running; its output is in the files `watched` and `watched.err`.
fn spawn(host: &TestHost, words: &[&str]) -> Child {
    let file =
        std::fs::OpenOptions::new().append(true).create(true).open(host.path("watched")).unwrap();
    host.spawn_kept(&[&["nri"][..], words].concat(), Some(Stdio::from(file)), "watched.err")
}

#[test]
fn a_watch_lists_and_then_prints_changes_across_a_restart() {
    let mut host = with_three_pods();
    let mut watch = spawn(&host, &["pods", "--watch", "--namespace", "shop"]);
    let has = |host: &TestHost, words: &[&str]| {
        let page = host.read("watched");
        page.lines().any(|row| words.iter().all(|word| row.contains(word)))
    };
    wait_until("the list is there", || has(&host, &["shop/db/app", "created"]));
    create_in(&host, "shop", "new", "c3");
    wait_until("a new pod is printed", || has(&host, &["shop/new ", "ready"]));
    create_in(&host, "stage", "other", "d2");
    host.kill_daemon();
    wait_until("the daemon is missed", || host.read("watched.err").contains("is not running"));
    host.start_daemon();
    succeeds(&host.verb(&["delete", "--force", "c3"]));
    wait_until("the end is printed", || has(&host, &["shop/new ", "removed"]));
    let page = host.read("watched");
    assert_eq!(page.matches("shop/web/app").count(), 1, "what stays is printed once: {page}");
    assert!(
        page.starts_with("NAME ") && !page.contains("stage/") && !page.contains('\u{1b}'),
        "{page}"
    );
    assert_eq!(host.read("watched.err").lines().count(), 1);
    signal(&watch, nix::sys::signal::Signal::SIGTERM);
    wait_until("it has ended", || watch.try_wait().unwrap().is_some());
}

#[test]
fn a_watch_in_json_prints_a_document_per_line() {
    let host = started(SILENT);
    let mut watch = spawn(&host, &["plugins", "-w", "-o", "json"]);
    let states = || -> Vec<String> {
        let page = host.read("watched");
        let rows = page.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| format!("{} {}", row["name"], row["state"]).replace('"', "")).collect()
    };
    let received = host.plugin("10", "a", Script { hangs: true, ..Script::default() });
    wait_until("it is there", || states().contains(&"a synchronized".to_owned()));
    drop(received);
    succeeds(&host.create("c1"));
    wait_until("it is gone", || states().contains(&"a gone".to_owned()));
    signal(&watch, nix::sys::signal::Signal::SIGTERM);
    wait_until("it has ended", || watch.try_wait().unwrap().is_some());
}

#[test]
fn a_watch_ends_with_its_reader_and_needs_a_daemon() {
    let host = started("");
    let (reader, writer) = std::io::pipe().unwrap();
    let words = ["nri", "pods", "-w"];
    let mut watch = host.spawn_kept(&words, Some(Stdio::from(writer)), "watched.err");
    drop(reader);
    let code = ends(&mut watch);
    assert!(code.is_none() || code == Some(0), "{code:?}: {}", host.read("watched.err"));
    let (page, line, code) = call(&TestHost::default(), &["pods", "--watch"]);
    assert_eq!((code, page.as_str(), line.lines().count()), (Some(1), "", 1), "{line}");
}

#[test]
fn misspelt_commands_and_those_of_other_tools_get_a_hint() {
    let host = TestHost::default();
    for (words, tip) in [
        (&["statsu"][..], "a similar subcommand exists: 'status'"),
        (&["ps"], "for 'ps' use: nri-runc nri pods"),
        (&["inspect", "c1"], "for 'inspect' use: nri-runc nri explain ID"),
        (&["start"], "for 'start' use: nri-runc nri restart"),
        (&["pods", "--namspace", "x"], "a similar argument exists: '--namespace'"),
        (&["pods", "--format", "json"], "'--format': lists have -o wide, json, yaml or name"),
        (&["pods", "--format=json"], "'--format': lists have -o"),
        (&["pods", "-q"], "'-q': lists have -o name"),
        (&["pods", "-o", "jsno"], "a similar value exists: 'json'"),
        (&["install", "dokcer"], "a similar value exists: 'docker'"),
    ] {
        let (page, line, code) = call(&host, words);
        assert_eq!((code, page.as_str()), (Some(2), ""), "{words:?}");
        assert_eq!(line.matches("tip:").count(), 1, "{line}");
        assert!(line.contains(tip) && line.contains("try '--help'"), "{words:?}: {line}");
    }
    let (_, line, code) = call(&host, &["qwertyuiop"]);
    assert!(code == Some(2) && !line.contains("tip: a similar"), "{line}");
}

/// Starts a container with a limit that the fake runtime does not apply.
fn start_drifting(host: &TestHost) -> impl Sized {
    let limits = host.plugin("10", "limits", Adjustment::new().rlimit("RLIMIT_NOFILE", 123, 321));
    succeeds(&host.create("drifts"));
    succeeds(&host.verb(&["start", "drifts"]));
    limits
}

/// The paths of a pod's manifest, and of a configuration that decides otherwise about it or not.
pub(super) fn manifest_and_configuration(host: &TestHost, decides_otherwise: bool) -> [String; 2] {
    let pod = "kind: Pod\nmetadata: { name: p }\nspec: { containers: [{ name: c, image: i }] }\n";
    host.write("pod.yaml", pod);
    let inject = "[[inject]]\nname = \"n\"\nnamespaces = [\"default\"]\nenv = { A = \"b\" }\n";
    let more = if decides_otherwise { inject } else { "" };
    host.write("new.toml", &(host.read("config.toml") + more));
    ["pod.yaml", "new.toml"].map(|name| host.path(name).display().to_string())
}

/// Runs one command line for each row of the table except `daemon`. Returns its exit code and output.
fn exits(host: &TestHost, away: &TestHost, verb: &str, code: u8) -> (Option<i32>, String) {
    let (bundle, root) =
        (host.path("bundle").display().to_string(), host.path("").display().to_string());
    let printed = std::cell::RefCell::new(String::new());
    let code_of = |host: &TestHost, words: &[&str]| {
        let (page, line, code) = call(host, words);
        *printed.borrow_mut() += &format!("{words:?}: {page}{line}");
        code
    };
    let code = match (verb, code) {
        ("adjust", 1) => {
            code_of(host, &["adjust", "--bundle", &bundle, "--apply", &format!("{root}/none")])
        }
        ("audit", 0) => code_of(host, &["audit", "--pod", "nobody"]),
        ("audit", 1) => code_of(away, &["audit"]),
        ("check", 0) => code_of(host, &["check"]),
        ("check", 1) => code_of(&TestHost::new("unknown_key = 1\n"), &["check"]),
        ("daemon", 1) => code_of(host, &["daemon"]),
        ("disable", 0) => code_of(away, &["disable"]).and(code_of(away, &["disable"])),
        ("drift", 0) => code_of(host, &["drift"]),
        ("drift", 1) => code_of(away, &["drift"]),
        ("drift", 3) => {
            let _limits = start_drifting(host);
            wait_until("it runs", || code_of(host, &["drift"]) == Some(3));
            code_of(host, &["drift", "drifts"])
        }
        ("enable", 0) => code_of(&TestHost::new("[nri]\ndisable = true"), &["enable"]),
        ("explain" | "forget", 1) => code_of(host, &[verb, "nobody"]),
        ("install", 0) => {
            let root = root + "/elsewhere";
            let program = format!("{root}/usr/bin/nri-runc");
            std::fs::create_dir_all(format!("{root}/usr/bin")).unwrap();
            test_support::program::copy(test_support::program::nri_runc(), program.as_ref());
            let words = ["install", "docker", "--root", &root, "--binary", "/usr/bin/nri-runc"];
            code_of(away, &words).and(code_of(away, &words))
        }
        ("events", 1) => code_of(away, &["events"]),
        ("policy", code) => {
            let [pod, new] = manifest_and_configuration(away, code == 3);
            code_of(away, &["policy", "test", "-f", &pod, "--compare", &new])
        }
        ("plugins" | "pods" | "events", 0) => code_of(host, &[verb]),
        ("reexec" | "reload" | "stop", 0) => code_of(away, &[verb]),
        ("replay", 0) => away
            .call_with(&["nri", "replay"], "{\"id\":1,\"call\":\"Nonsense\"}\n{\"state\":{}}\n")
            .status
            .code(),
        ("replay", 1) => code_of(away, &["replay", "/nowhere"]),
        ("sysdump", 0) => code_of(away, &["sysdump", &format!("{root}/dump.tar.gz")]),
        ("sysdump", 1) => code_of(away, &["sysdump", &bundle]),
        ("top", 0) => code_of(host, &["top", "-n", "1", "--interval", "100ms"]),
        ("uninstall", 1) => code_of(away, &["uninstall", "docker", "--root", &bundle]),
        _ => None,
    };
    (code, printed.into_inner())
}

#[test]
fn every_row_of_the_table_of_exit_codes_is_true() {
    let mut host = TestHost::default();
    let audit =
        format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n", host.path("audit.log").display());
    host.configure(&host.path("fake/runc"), &audit);
    host.start_daemon();
    let away = TestHost::default();
    // Without a configuration, the log of this machine is searched.
    let path = format!("[audit]\npath = \"{}\"\n", away.path("audit.log").display());
    away.configure(&away.path("fake/runc"), &path);
    for (verb, code, meaning) in EXIT_CODES_OF_VERBS {
        if (verb, code) == ("daemon", 0) {
            let mut daemon = away.spawn_daemon();
            signal(&daemon, nix::sys::signal::Signal::SIGTERM);
            assert_eq!(ends(&mut daemon), Some(0), "{meaning}");
            continue;
        }
        let (exit_code, printed) = exits(&host, &away, verb, code);
        assert_eq!(exit_code, Some(i32::from(code)), "{verb}: {meaning}: {printed}");
    }
    assert_eq!(call(&host, &["status"]).2, Some(i32::from(EXIT_CODES[0].0)));
    assert_eq!(call(&away, &["status"]).2, Some(i32::from(EXIT_CODES[1].0)));
    assert_eq!(call(&host, &["nonsense"]).2, Some(i32::from(EXIT_CODES[2].0)));
    let help = page(&host, &["help"]);
    for (code, meaning) in EXIT_CODES.into_iter().filter(|(code, _)| *code != 3) {
        assert!(help.contains(&format!("  {code}  {meaning}")), "{help}");
    }
    assert!(page(&host, &["help", "check"]).contains("1  at least one check failed"));
}

#[test]
fn explain_lists_plugin_times_of_calls_since_the_last_creation() {
    let host = started("");
    let _first = host.plugin("10", "first", sets("A", "1"));
    let _second = host.plugin("20", "second", sets("B", "1"));
    succeeds(&host.create("c1"));
    let creations = |times: &Value| -> Vec<String> {
        let calls =
            times.as_array().unwrap().iter().filter(|call| call["call"] == "CreateContainer");
        calls.map(|call| call["plugin"].as_str().unwrap().to_owned()).collect()
    };
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(creations(&explained["times"]), ["10-first", "20-second"], "{explained}");
    let page = String::from_utf8(host.call(&["nri", "explain", "c1"]).stdout).unwrap();
    let line =
        page.lines().find(|line| line.starts_with("took: CreateContainer 10-first ")).unwrap();
    assert!(line.contains("ms, 20-second "), "{page}");
    // The ID is used again: requests of the earlier container are ignored.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.create("c1"));
    let again = host.admin(&["explain", "c1"]);
    assert_eq!(creations(&again["times"]), ["10-first", "20-second"], "{again}");
    // No plugin was asked about a container that was never created here.
    let none = host.call(&["nri", "explain", "c2"]);
    let line = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(line.contains("no container or pod matches c2") && line.contains("[NR478]"), "{line}");
}
