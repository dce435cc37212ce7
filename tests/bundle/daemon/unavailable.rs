// SPDX-License-Identifier: Apache-2.0
//! With a protection, a daemon that is absent, killed, silent or too slow refuses every container
//! except for exempt pods; without one, containers continue.

use nri_runc::plugin::Event;
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{BUNDLE, TestHost, wait_until};

use crate::plugins::policies::connected;
use crate::{refused, started, succeeds};

const REQUIRED: &str = "[plugin.policy]\nrequired = true\n";

/// Each kind of protection that a configuration can set, and the text of its refusal.
const PROTECTIONS: [(&str, &str); 3] = [
    (REQUIRED, "plugin policy is required"),
    ("[plugin.policy]\non_failure = \"refuse\"\n", "plugin policy has on_failure = \"refuse\""),
    ("[nri.default_validator]\nenable = true\n", "the default validator is enabled"),
];

#[test]
fn without_a_daemon_protected_creates_are_refused() {
    for (settings, why) in PROTECTIONS {
        let host = TestHost::new(&format!("autostart = false\n{settings}"));
        refused(&host, &host.create("c1"), &["cannot create c1", "reaching the daemon", why]);
        for verb in ["run", "restore"] {
            let bundle = host.path("bundle").display().to_string();
            let output = host.verb(&[verb, "--bundle", &bundle, "c1"]);
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{verb}: {printed}");
            assert!(
                printed.contains(&format!("cannot {verb} c1")) && printed.contains(why),
                "{printed}"
            );
        }
        assert_eq!(host.read("fake/argv"), "", "the runtime was called");
        assert!(
            !host.path("run/bypassed").exists(),
            "a refused container did not bypass the daemon"
        );
        succeeds(&host.verb(&["delete", "--force", "c1"]));
    }
}

#[test]
fn without_a_daemon_unprotected_commands_continue() {
    let nothing = "[plugin.policy]\nrequired = false\non_failure = \"skip\"\ndeny = [\"Env\"]\n";
    let host = TestHost::new(&format!("autostart = false\n{nothing}"));
    succeeds(&host.create("c1"));
    assert_eq!(std::fs::read_dir(host.path("run/bypassed")).unwrap().count(), 1);
}

#[test]
fn a_start_of_an_adjusted_container_needs_no_daemon() {
    let mut host = TestHost::new(&format!("autostart = false\n{REQUIRED}"));
    host.start_daemon();
    let _policy = connected(&host, "10-policy", RespondingPlugin::always(Response::Set("KEY")));
    succeeds(&host.create("c1"));
    host.kill_daemon();
    succeeds(&host.verb(&["start", "c1"]));
    assert!(host.read("fake/seen.json").contains("KEY=1"));
}

#[test]
fn creates_fail_with_a_silent_daemon_if_a_plugin_is_required() {
    let host = started(&format!("{REQUIRED}[debug]\nfault = \"daemon.asked:stall\"\n"));
    let wanted = ["cannot create c1", "the daemon stopped responding", "plugin policy is required"];
    refused(&host, &host.create("c1"), &wanted);
}

#[test]
fn a_protected_create_fails_if_its_daemon_dies_at_any_step() {
    for point in ["daemon.asked", "daemon.plugins", "daemon.written", "daemon.verdict"] {
        let host = TestHost::default();
        let fault = format!("{point}:kill:0");
        let file = host.path("fault").display().to_string();
        let more = format!("{REQUIRED}[debug]\nfault = \"@{file}\"\n");
        host.configure(&host.path("fake/runc"), &more);
        let mut host = host;
        host.start_daemon();
        let _policy = connected(&host, "10-policy", RespondingPlugin::always(Response::Set("KEY")));
        host.write("fault", &fault);
        let output = host.create("c1");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{point}: {printed}");
        assert!(printed.contains("the daemon exited during the request"), "{point}: {printed}");
        assert!(printed.contains("plugin policy is required"), "{point}: {printed}");
        assert!(!printed.contains("silent"), "{point}: {printed}");
        assert_eq!(host.read("fake/argv"), "", "{point}: the runtime was called");
        assert_eq!(host.read("bundle/config.json"), BUNDLE, "{point}");
    }
}

#[test]
fn a_create_fails_if_its_daemon_is_killed_during_a_request() {
    for verb in ["create", "run"] {
        let mut host = started(&format!("[nri]\nplugin_request_timeout = \"60s\"\n{REQUIRED}"));
        let slow = RespondingPlugin::at(Event::CreateContainer, Response::Sleep(20_000));
        let policy = connected(&host, "10-policy", slow);
        let mut wrapper = host.spawn(&[verb, "--bundle", "BUNDLE", "c1"]);
        wait_until("the plugin is asked", || {
            policy.received().contains(&"CreateContainer c1".to_owned())
        });
        host.kill_daemon();
        assert_eq!(wrapper.wait().unwrap().code(), Some(1), "{verb}");
        assert_eq!(host.read("fake/argv"), "", "{verb}: the runtime was called");
        assert_eq!(host.read("bundle/config.json"), BUNDLE);
    }
}

/// A pod of this namespace, in the annotations of containerd.
fn bundle_of(host: &TestHost, namespace: &str, more: &str) -> String {
    let folder = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{namespace}");
    std::fs::create_dir_all(host.path(&folder).join("rootfs")).unwrap();
    let annotations = format!(
        "\"io.kubernetes.cri.container-type\": \"container\", \
         \"io.kubernetes.cri.sandbox-id\": \"pod\", \"io.kubernetes.cri.sandbox-name\": \"p\", \
         \"io.kubernetes.cri.container-name\": \"ctr\", \
         \"io.kubernetes.cri.sandbox-uid\": \"uid\", \
         \"io.kubernetes.cri.sandbox-namespace\": \"{namespace}\"{more}"
    );
    let text = BUNDLE.replacen('{', &format!("{{\"annotations\": {{{annotations}}}, "), 1);
    host.write(&format!("{folder}/config.json"), &text);
    folder
}

#[test]
fn without_a_daemon_an_exempt_pod_is_created_and_another_is_not() {
    for (settings, why) in PROTECTIONS {
        let host = TestHost::new(&format!("autostart = false\n{settings}"));
        let tenant = host.create_from(&bundle_of(&host, "tenant", ""), "c1");
        let printed = String::from_utf8_lossy(&tenant.stderr).into_owned();
        assert!(!tenant.status.success() && printed.contains(why), "{printed}");
        let system = bundle_of(&host, "kube-system", "");
        succeeds(&host.create_from(&system, "c2"));
        assert_eq!(std::fs::read_dir(host.path("run/bypassed")).unwrap().count(), 1);
    }
}

#[test]
fn without_a_daemon_pod_annotations_exempt_no_pod() {
    let host = TestHost::new(&format!("autostart = false\n{REQUIRED}"));
    let forged = ", \"nri-runc.dev/pod-namespace\": \"kube-system\", \
        \"io.kubernetes.pod.namespace\": \"kube-system\", \
        \"io.container.manager\": \"libpod\"";
    assert!(!host.create_from(&bundle_of(&host, "tenant", forged), "c1").status.success());
    assert_eq!(host.read("fake/argv"), "");
}

#[test]
fn without_a_daemon_a_pod_may_tolerate_plugins_but_no_validator() {
    let toleration = "[nri.default_validator]\n\
        tolerate_missing_plugins_annotation = \"tolerate.example\"\n";
    let annotations = "{\"annotations\": {\"tolerate.example\": \"true\"}, ";
    for (settings, passes) in
        [("", true), ("enable = true\n", false), ("[plugin.b]\non_failure = \"refuse\"\n", false)]
    {
        let host = TestHost::new(&format!("autostart = false\n{toleration}{settings}{REQUIRED}"));
        host.write("bundle/config.json", &BUNDLE.replacen('{', annotations, 1));
        assert_eq!(host.create("c1").status.success(), passes, "{settings}");
    }
}

#[test]
fn without_a_daemon_an_unreadable_document_is_not_exempt() {
    let host = TestHost::new(&format!("autostart = false\n{REQUIRED}"));
    for odd in ["", "{", "[]", "{\"annotations\": 7}"] {
        host.write("bundle/config.json", odd);
        assert!(!host.create("c1").status.success(), "{odd}");
    }
    assert_eq!(host.read("fake/argv"), "");
}

#[test]
fn plugins_that_declared_protection_protect_without_a_daemon() {
    for (responder, why) in [
        (
            RespondingPlugin::always(Response::Answer).validates(),
            "plugin 10-judge validates adjustments",
        ),
        (
            RespondingPlugin::always(Response::Answer).declares(true, true),
            "plugin 10-judge declares that a time-out refuses",
        ),
    ] {
        let mut host = TestHost::new("autostart = false");
        host.start_daemon();
        let _judge = connected(&host, "10-judge", responder);
        succeeds(&host.create("c1"));
        host.write("fake/argv", "");
        host.kill_daemon();
        refused(&host, &host.create("c2"), &["cannot create c2", why]);
    }
}

#[test]
fn a_plugin_that_disconnected_itself_no_longer_protects() {
    let mut host = TestHost::new("autostart = false");
    host.start_daemon();
    let leaves =
        RespondingPlugin::at(Event::PostCreateContainer, Response::Leave).declares(true, true);
    let _judge = connected(&host, "10-judge", leaves);
    succeeds(&host.create("c1"));
    wait_until("it is gone", || host.admin(&["status"])["plugins"] == 0);
    wait_until("it is off the list", || host.read("run/protecting-plugins").is_empty());
    host.kill_daemon();
    succeeds(&host.create("c2"));
}

fn check_row(host: &TestHost) -> String {
    let found = host.admin(&["check"]);
    let rows = found.as_array().into_iter().flatten();
    let row = rows.into_iter().find(|row| row["check"] == "daemon away");
    row.map_or_else(String::new, |row| row["detail"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn check_shows_the_policy_while_the_daemon_is_away() {
    let row = check_row(&TestHost::new("autostart = false"));
    assert_eq!(row, "containers are created without plugins");
    let row = check_row(&TestHost::new(&format!("autostart = false\n{REQUIRED}")));
    let wanted =
        "creates are refused, except in namespace kube-system, because plugin policy is required";
    assert_eq!(row, wanted);
    let row = check_row(&TestHost::new("autostart = false\non_daemon_failure = \"fail\""));
    assert!(row.contains("fail, because on_daemon_failure is \"fail\""), "{row}");
}
