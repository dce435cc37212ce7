// SPDX-License-Identifier: Apache-2.0
//! A plugin from outside of this repository, on the template and the crate `nri-plugin`, with two
//! engines: on the engine's own NRI, and on nri-runc. It adjusts real containers, and reconnects
//! under its identity after each of three restarts. The test without an engine is in this file,
//! those with engines are in the engines' folders.

use std::process::Command;

use test_support::cri::{self, Cri, container};
use test_support::real_runtime::RealRuntime;
use test_support::{Started, TestHost, is_synchronized, succeeds, template, wait_until};

const RESTARTS: usize = 3;

/// An engine, and the server of the plugin: the engine's own NRI or nri-runc.
pub(super) trait Node {
    /// The cgroup of its pods.
    fn cgroup(&self) -> String;

    #[track_caller]
    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool);

    /// Restarts the engine, and the daemon if that serves the plugin.
    async fn restart(&mut self) -> Cri;

    /// Whether the plugin has been synchronized this number of times, and is synchronized.
    fn has_synchronized(&self, times: usize) -> bool;
}

/// The number of times that an engine's own NRI logged that the plugin is synchronized.
pub(super) fn logged(log: &str) -> usize {
    let is_it =
        |line: &&str| line.contains(template::ID) && line.contains("connected and synchronized");
    log.lines().filter(is_it).count()
}

/// A pod and its container.
struct Greeted {
    pod: String,
    app: String,
}

/// Runs a pod whose annotation is its name.
async fn run(node: &impl Node, cri: &mut Cri, name: &str, handler: &str) -> Greeted {
    let mut config = cri::pod(&node.cgroup(), name);
    config.annotations.insert(template::KEY.to_owned(), name.to_owned());
    let pod = cri::run_pod_with(cri, config.clone(), handler).await;
    let app = cri::create(cri, &pod, config, container("app", &["/bin/sleep", "1000"])).await;
    cri::start(cri, &app).await.unwrap();
    Greeted { pod, app }
}

/// Waits until its process has the pod's name as its greeting.
async fn check_greeting(node: &impl Node, cri: &mut Cri, greeted: &Greeted, name: &str) {
    let pid = cri::info(cri, &greeted.app).await["pid"].as_u64().unwrap();
    let environ = || std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    node.wait_until("the program runs", || environ().contains("FROM=pod"));
    let environ = environ();
    let greeting = environ.split('\0').find_map(|pair| pair.strip_prefix("GREETING="));
    assert_eq!(greeting, Some(name));
}

async fn end(cri: &mut Cri, greeted: Greeted) {
    cri::end_container(cri, &greeted.app).await;
    cri::end_pod(cri, &greeted.pod).await;
}

/// Checks that the plugin adjusts a container after each restart, and is one process throughout.
pub(super) async fn adjusts_through_restarts(
    node: &mut impl Node,
    cri: &mut Cri,
    handler: &str,
    plugin: &mut Started,
) {
    node.wait_until("the plugin is synchronized", || node.has_synchronized(1));
    let kept = run(node, cri, "kept", handler).await;
    check_greeting(node, cri, &kept, "kept").await;
    for restart in 1..=RESTARTS {
        *cri = node.restart().await;
        node.wait_until("the plugin has returned", || node.has_synchronized(1 + restart));
        let name = format!("after-{restart}");
        let next = run(node, cri, &name, handler).await;
        check_greeting(node, cri, &next, &name).await;
        check_greeting(node, cri, &kept, "kept").await;
        end(cri, next).await;
    }
    end(cri, kept).await;
    assert!(plugin.0.try_wait().unwrap().is_none(), "the plugin has ended");
}

#[test]
fn the_template_adjusts_a_bundle_through_restarts_of_the_daemon() {
    let Some(program) = template::plugin() else { return };
    let mut host = TestHost::default();
    let Some(real) = RealRuntime::new(&host.path("")) else { return };
    host.configure(real.runc(), "");
    host.start_daemon();
    let log = host.path("plugin.log");
    let mut plugin = template::start(Command::new(program), &host.path("nri.sock"), &log);
    for life in 0..=RESTARTS {
        if life > 0 {
            host.kill_daemon();
            host.start_daemon();
        }
        wait_until("the plugin is synchronized", || {
            template::registrations(&log) == 1 + life
                && is_synchronized(&host.admin(&["plugins"]), template::ID)
        });
        let (id, refused) = (format!("c{life}"), format!("r{life}"));
        let mut config = real.document(&id, &["env"]);
        config["annotations"] = serde_json::json!({ (template::KEY): id });
        host.write("bundle/config.json", &config.to_string());
        succeeds(&host.create(&id));
        succeeds(&host.verb(&["start", &id]));
        wait_until("the container has printed its variables", || {
            host.read("stdout").contains(&format!("GREETING={id}\n"))
        });
        config["annotations"] = serde_json::json!({ (template::KEY): "" });
        host.write("bundle/config.json", &config.to_string());
        let created = host.create(&refused);
        test_support::fails(&created, &["10-trial", "greeting.example.org is empty"]);
    }
    assert!(plugin.0.try_wait().unwrap().is_none(), "the plugin has ended");
}
