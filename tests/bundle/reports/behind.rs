// SPDX-License-Identifier: Apache-2.0
//! A wrapper behind nri-runc that writes `config.json` itself: `explain` distinguishes its changes
//! from those of plugins.

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, Script, TestHost, fails, succeeds, wait_until};

/// A host whose runtime is a wrapper that applies `script` to the document `$f` of a create, and then
/// executes the runtime.
fn behind(script: &str) -> TestHost {
    let mut host = TestHost::default();
    let runtime = host.path("fake/runc").display().to_string();
    let wrapper = format!(
        "#!/bin/sh\nlast=; f=\nfor word; do [ \"$last\" = --bundle ] && f=$word/config.json; \
         last=$word; done\ncase \" $* \" in *' create '*) {script} ;; esac\nexec {runtime} \"$@\"\n"
    );
    host.put_program("behind", &wrapper);
    host.configure(&host.path("behind"), "");
    host.start_daemon();
    host
}

fn explained(host: &TestHost) -> Value {
    wait_until("its creation is settled", || {
        host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    host.admin(&["explain", "c1"])
}

/// A script that rewrites the document with these edits.
fn edits(sed: &str) -> String {
    format!("new=$(sed '{sed}' \"$f\"); printf %s \"$new\" >\"$f\"")
}

#[test]
fn changes_of_a_later_wrapper_are_not_plugins_changes() {
    let sed = "s/HELLO=there\"/HELLO=you\",\"NVIDIA=all\"/; s/\"A=1\",//";
    let host = behind(&edits(sed));
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    let explained = explained(&host);
    let members = json!([
        {"field": "process.env[A]", "change": "removed"},
        {"field": "process.env[HELLO]", "change": "changed"},
        {"field": "process.env[NVIDIA]", "change": "added"},
    ]);
    assert_eq!(explained["changed_behind"], members, "{explained}");
    assert_eq!(explained["changes"].as_array().unwrap().len(), 1, "{explained}");
    assert_eq!(explained["changes"][0]["plugin"], "10-env", "{explained}");
    assert_eq!(explained["owners"], json!({"Env[HELLO]": "10-env"}));
    let page = host.call(&["nri", "explain", "c1"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    let line = "changed by a wrapper after nri-runc: process.env[A] removed,";
    assert!(page.contains(line), "{page}");
}

#[test]
fn a_later_wrapper_that_removes_a_plugins_value_is_shown() {
    let host = behind(&edits("s/,*\"HELLO=there\"//"));
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    let members = json!([{"field": "process.env[HELLO]", "change": "removed"}]);
    assert_eq!(explained(&host)["changed_behind"], members);
    // The later wrapper's change stays in the document after the delete.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("it is removed", || !host.admin(&["pods"]).to_string().contains("\"c1\""));
    assert!(!host.read("bundle/config.json").contains("HELLO"));
}

#[test]
fn a_later_wrapper_that_changes_nothing_is_not_mentioned() {
    for script in ["true", "cp \"$f\" \"$f.new\" && mv \"$f.new\" \"$f\"", "printf '\\n ' >>\"$f\""]
    {
        let host = behind(script);
        let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
        succeeds(&host.create("c1"));
        let explained = explained(&host);
        assert_eq!(explained["changed_behind"], json!([]), "{script}: {explained}");
        let page = host.call(&["nri", "explain", "c1"]);
        assert!(!String::from_utf8_lossy(&page.stdout).contains("behind"), "{script}");
    }
}

#[test]
fn a_document_broken_or_removed_later_is_not_a_change() {
    for script in ["echo '{' >\"$f\"", "rm \"$f\"", "rm \"$f\"; mkdir \"$f\""] {
        // The fake runtime does not read the document again.
        let host = behind(&format!("cp \"$f\" \"$f.kept\"; {script}"));
        let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
        let made = host.create("c1");
        if !made.status.success() {
            fails(&made, &[]);
            continue;
        }
        assert_eq!(explained(&host)["changed_behind"], json!([]), "{script}");
    }
}

#[test]
fn without_a_plugins_change_a_later_wrapper_is_not_checked() {
    let host = behind(&edits("s/\"env\"/\"vne\"/"));
    let _plugin = host.plugin("10", "quiet", Script::default());
    succeeds(&host.create("c1"));
    let explained = explained(&host);
    assert_eq!((&explained["changed_behind"], &explained["changes"]), (&json!([]), &json!([])));
    assert_ne!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn values_of_an_earlier_wrapper_count_as_the_engines() {
    let mut host = TestHost::default();
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let shim = format!(
        "#!/bin/sh\nf={}\n{}\nexec \"$@\"\n",
        host.path("bundle/config.json").display(),
        edits("s/\"A=1\"/\"A=1\",\"DD_TRACE=1\"/")
    );
    host.put_program("shim", &shim);
    let by = [host.path("shim").display().to_string()];
    let bundle = host.path("bundle").display().to_string();
    let root = host.path("root").display().to_string();
    succeeds(&host.call_by(&by, &["--root", &root, "create", "--bundle", &bundle, "c1"], ""));
    let (explained, seen) = (explained(&host), host.read("fake/seen.json"));
    assert!(seen.contains("DD_TRACE=1") && seen.contains("HELLO=there"), "{seen}");
    assert!(received.lock().unwrap().iter().any(|line| line.contains("c1")), "{received:?}");
    assert_eq!(explained["changes"].as_array().unwrap().len(), 1, "{explained}");
    assert_eq!(explained["changed_behind"], json!([]), "{explained}");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the document is as the wrapper wrote it", || {
        let left = host.read("bundle/config.json");
        left.contains("DD_TRACE=1") && !left.contains("HELLO")
    });
}
