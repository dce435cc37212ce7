// SPDX-License-Identifier: Apache-2.0
//! Plays one case through the built binary on a private host and returns the results. Conditions
//! that hold in every case are checked here, so that accepting a wrong golden file is not enough.

use nri_runc::testing::error::RESERVED_PHRASES;
use serde_json::Value;
use test_support::{TestHost, wait_until};

use super::case::{Case, files_below};
use super::received::ReceivedMessages;

/// The results of a case, file by file of `expected/`.
pub(super) struct CaseResult {
    /// The runtime's document in the bundle, if the runtime was called to create.
    pub(super) config: Option<Vec<u8>>,
    pub(super) events: String,
    pub(super) stderr: Option<String>,
}

impl CaseResult {
    /// The expected content of the files of `expected/`.
    pub(super) fn files(&self) -> [(&'static str, Option<Vec<u8>>); 3] {
        [
            ("config.json", self.config.clone()),
            ("events.jsonl", Some(self.events.clone().into_bytes())),
            ("stderr", self.stderr.clone().map(String::into_bytes)),
        ]
    }
}

/// Plays a case.
pub(super) fn play(case: &Case) -> CaseResult {
    let mut host = TestHost::default();
    let root = host.path("").display().to_string();
    let root = root.trim_end_matches('/');
    // The features of this machine's kernel must not matter.
    let node = if case.settings.contains("[debug]") {
        ""
    } else {
        "\n[debug]\nnode_root = \"DIR/host\"\n"
    };
    let text = format!("{}{node}", case.settings).replace("DIR", root);
    host.configure(&host.path("fake/runc"), &settings(&text));
    let put = |name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(host.path(name).parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&host.path(name), bytes).unwrap();
    };
    let document = format!("{}/config.json", case.call.bundle);
    put(&document, &case.config);
    if let Some(sandbox) = &case.sandbox {
        put(&beside(case, &sandbox_id(&case.config)), sandbox);
    }
    for (name, bytes) in files_below(&case.folder.join("host")) {
        put(&format!("host/{name}"), &bytes);
    }
    for (printed, name) in case.says.iter().zip(["fake/version", "fake/features"]) {
        printed.iter().for_each(|printed| put(name, printed));
    }
    if case.call.runtime_fails {
        put("fake/fail", b"");
    }
    host.start_daemon();
    let seen = ReceivedMessages::default();
    for plugin in &case.plugins {
        let mut script = plugin.script.clone();
        script.on_request = Some(seen.recorder(&format!("{}-{}", plugin.index, plugin.name)));
        let _names_only = host.plugin(&plugin.index, &plugin.name, script);
    }
    let mut stderr = String::new();
    let delete = "delete".to_owned();
    for verb in case.call.verbs.iter().chain([&delete]) {
        stderr.push_str(&call(&host, case, verb));
    }
    wait_until("the pod is gone", || host.admin(&["pods"]) == Value::Array(vec![]));
    let config = std::fs::read(host.path("fake/seen.json")).ok();
    checked(&host, case, config.as_deref(), &document);
    let stderr = stderr.replace(root, "DIR");
    let stderr = (!stderr.is_empty()).then_some(stderr);
    let events = seen.lines().replace(root.trim_end_matches('/'), "DIR");
    CaseResult { config, events, stderr }
}

/// Runs one verb; returns its output.
fn call(host: &TestHost, case: &Case, verb: &str) -> String {
    let id = case.call.id.as_str();
    let output = match verb {
        "create" => host.create_from(&case.call.bundle, id),
        "kill" => host.verb(&["kill", id, "9"]),
        "delete" => host.verb(&["delete", "--force", id]),
        verb => host.verb(&[verb, id]),
    };
    let printed = String::from_utf8(output.stderr).unwrap();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{verb} ended with {code:?}: {printed}");
    let lines = usize::from(code == Some(1));
    assert_eq!(printed.lines().count(), lines, "{verb} ended with {code:?} and said: {printed}");
    for phrase in RESERVED_PHRASES {
        assert!(
            !printed.to_lowercase().contains(phrase),
            "{verb} says what engines look for: {printed}"
        );
    }
    printed
}

/// Checks the conditions that must hold after any response of the plugins.
fn checked(host: &TestHost, case: &Case, config: Option<&[u8]>, document: &str) {
    let after = std::fs::read(host.path(document)).unwrap();
    assert!(after == case.config, "the bundle is not as it was, after its container is gone");
    let entries = std::fs::read_dir(host.path(&case.call.bundle)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name != "config.json" && name != "rootfs").collect();
    assert!(left.is_empty(), "left in the bundle: {left:?}");
    let quiet = |plugin: &super::case::Scripted| {
        plugin.script.adjust == Default::default() && plugin.script.update.is_empty()
    };
    if let Some(config) = config.filter(|_| case.plugins.iter().all(quiet)) {
        assert!(config == case.config, "no plugin adjusted anything, but the document changed");
    }
}

/// Adds a long time-out to a configuration, because well-behaved plugins may be slow on a loaded
/// machine.
fn settings(text: &str) -> String {
    format!("{text}\n[nri]\nplugin_request_timeout = \"20s\"\n")
}

fn sandbox_id(config: &[u8]) -> String {
    let config: Value = serde_json::from_slice(config).unwrap();
    config["annotations"]["io.kubernetes.cri.sandbox-id"].as_str().unwrap().to_owned()
}

fn beside(case: &Case, id: &str) -> String {
    let (tasks, _) = case.call.bundle.rsplit_once('/').unwrap();
    format!("{tasks}/{id}/config.json")
}
