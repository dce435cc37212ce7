// SPDX-License-Identifier: Apache-2.0
//! A create that a plugin refuses: the engine prints why, and everything is undone.

use serde_json::json;
use test_support::{LIFE, Script, has_received};

use super::client::Client;
use super::{Tested, Wanted};

pub(super) fn a_refused_create_names_the_plugin_and_leaves_nothing<E: Tested>() {
    let Some(mut host) = E::with_nri_runc() else { return };
    let guard = Script { refuses: Some("image is not signed"), ..Script::default() };
    let received = host.plugin("90-guard", guard);
    let message = host.run(&Wanted::default()).unwrap_err();
    for word in ["nri-runc: cannot create", "90-guard", "image is not signed"] {
        assert!(message.contains(word), "{word} is not in: {message}");
    }
    host.wait_until("the undoing is reported", || has_received(&received, "RemoveContainer web"));
    host.wait_until("it is forgotten", || {
        let pods = host.admin(&["pods"]);
        pods.as_array().is_some_and(|pods| pods.iter().all(|pod| pod["containers"] == json!([])))
    });
    host.remove(&["web"]);
    host.no_container_is_left();
    let undone = [&LIFE[..2], &LIFE[5..]].concat();
    let undone: Vec<String> = undone.iter().map(|event| format!("{event} web")).collect();
    host.wait_until("the end is reported", || received.lock().unwrap().len() >= undone.len());
    assert_eq!(*received.lock().unwrap(), undone);

    // Without the plugin the next container works, for which the wrapper starts a daemon.
    host.kill_daemon();
    host.run(&Wanted::default()).unwrap();
    assert!(host.admin(&["status"])["pid"].is_u64(), "no daemon runs");
    host.remove(&["web"]);
}

pub(super) fn a_refused_container_stays_created_and_is_refused_again<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let guard = Script { refuses: Some("image is not signed"), ..Script::default() };
    let _received = host.plugin("90-guard", guard);
    let mut words = host.run_words();
    words.extend(["--name=web", E::IMAGE, "/bin/true"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = host.call(&words);
    let printed = String::from_utf8_lossy(&output.stderr);
    let wanted = ["nri-runc: cannot create", "90-guard", "image is not signed"];
    let has_all = |line: &str| wanted.iter().all(|word| line.contains(word));
    assert!(printed.lines().any(has_all), "{printed}");
    // Docker's code for a failed create; a program that is missing in the image has another one.
    assert!(output.status.code() == Some(125) || E::NAME != "docker", "{printed}");
    let status = host.inspect("web")["State"]["Status"].take();
    assert_eq!(status.as_str().unwrap().to_lowercase(), "created");
    let again = host.call(&["start", "web"]);
    let again = String::from_utf8_lossy(&again.stderr);
    assert!(again.contains("90-guard"), "{again}");
    host.good(&["rm", "web"]);
    assert_eq!(host.good(&["ps", "--all", "--quiet"]), "");
    // Another runtime accepts it.
    let plain = words.iter().map(|word| word.replace("nri-runc", "runc")).collect::<Vec<_>>();
    host.good(&plain.iter().map(String::as_str).collect::<Vec<_>>());
    host.good(&["rm", "--force", "web"]);
    host.no_container_is_left();
}
