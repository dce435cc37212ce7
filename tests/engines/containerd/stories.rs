// SPDX-License-Identifier: Apache-2.0
//! Three days of a platform team, on a containerd whose pods change meanwhile: a policy changes, a
//! plugin is rolled out, the program is upgraded. Every container is created, with the plugin and by
//! the right rule; the longest wait for a container is printed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use test_support::adjustments::sets;
use test_support::cri::generated as messages;
use test_support::cri::{self, Cri, container, end_container, end_pod};
use test_support::{Started, scripted_plugin};

use super::host::{self, Engine};

/// Number of pods whose containers are created at the same time.
const PODS: usize = 4;

/// A requested container: the time, the duration until it ran, and its program's `VERSION`, or the
/// reason of a failure.
struct Made {
    asked: Instant,
    took: Duration,
    outcome: Result<Option<String>, String>,
}

/// Pods that create one container after the other until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    pods: Vec<tokio::task::JoinHandle<Vec<Made>>>,
}

impl Load {
    async fn start(engine: &Engine) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pods = Vec::new();
        for n in 0..PODS {
            let mut cri = engine.client().await;
            let config = cri::pod(engine.cgroup(), &format!("load-{n}"));
            let stop = Arc::clone(&stop);
            pods.push(tokio::spawn(async move {
                let pod_id = cri::run_pod(&mut cri, config.clone()).await;
                let mut made = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    made.push(make(&mut cri, &pod_id, &config).await);
                }
                end_pod(&mut cri, &pod_id).await;
                made
            }));
        }
        Self { stop, pods }
    }

    /// All requested containers, in the order of the requests.
    async fn end(self) -> Vec<Made> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for pod in self.pods {
            all.extend(pod.await.unwrap());
        }
        all.sort_by_key(|made| made.asked);
        all
    }
}

/// Creates a container, starts it, reads its variable, and ends it.
async fn make(cri: &mut Cri, pod_id: &str, pod: &messages::PodSandboxConfig) -> Made {
    let asked = Instant::now();
    let request = messages::CreateContainerRequest {
        pod_sandbox_id: pod_id.to_owned(),
        config: Some(container("app", &["/bin/sleep", "1000"])),
        sandbox_config: Some(pod.clone()),
    };
    let id = cri.create_container(request).await.unwrap().into_inner().container_id;
    // containerd calls the runtime's create and start here.
    let started = cri::start(cri, &id).await;
    let took = asked.elapsed();
    let outcome = match started {
        Ok(()) => Ok(version(cri, &id).await),
        Err(status) => Err(status.message().to_owned()),
    };
    end_container(cri, &id).await;
    Made { asked, took, outcome }
}

/// The variable that the plugin sets, in the container's program.
async fn version(cri: &mut Cri, id: &str) -> Option<String> {
    let pid = cri::info(cri, id).await["pid"].as_u64().unwrap();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "the program of {id} does not run");
        let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
        // The engine's own variable shows that the program runs, not the runtime's init.
        if environ.split('\0').any(|variable| variable == "FROM=pod") {
            let mut variables = environ.split('\0');
            return variables
                .find_map(|variable| variable.strip_prefix("VERSION="))
                .map(Into::into);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sets `VERSION` in every container.
fn plugin(engine: &Engine, version: &str) -> Arc<std::sync::Mutex<Vec<String>>> {
    scripted_plugin::connect(engine.path("nri.sock"), "10", "versions", sets("VERSION", version))
}

fn begin(tools: &std::path::Path) -> (Arc<Engine>, Started) {
    let engine = Engine::start(tools);
    let daemon = engine.start_daemon();
    (Arc::new(engine), daemon)
}

/// A command of the operator, during the load.
async fn command(engine: &Arc<Engine>, word: &'static str) -> std::process::Output {
    let engine = Arc::clone(engine);
    tokio::task::spawn_blocking(move || engine.nri(&[word])).await.unwrap()
}

fn synchronized(engine: &Engine) {
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
}

/// Waits while a part of the load runs.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// Prints the results. The durations are only for the reader.
#[expect(clippy::print_stderr, reason = "figures of a story")]
fn print_results(story: &str, made: &[Made]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in made {
        let what = match &one.outcome {
            Ok(version) => version.clone().unwrap_or_else(|| "unadjusted".to_owned()),
            Err(_) => "refused".to_owned(),
        };
        *counts.entry(what).or_default() += 1;
    }
    let mut waits: Vec<u128> = made.iter().map(|one| one.took.as_millis()).collect();
    waits.sort_unstable();
    let (median, longest) = (waits[waits.len() / 2], waits.last().unwrap());
    let place = made.iter().position(|one| one.took.as_millis() == *longest).unwrap_or(0);
    eprintln!(
        "story {story}: {counts:?}, a container took {median} ms, the longest {longest} ms (number {place} of {})",
        made.len()
    );
}

async fn reload(engine: &Arc<Engine>, rule: &str, first: &str) -> (Instant, Instant) {
    let path = engine.path("nri-runc.toml");
    nri_runc::testing::files::replace(&path, format!("{first}{rule}").as_bytes()).unwrap();
    let before = Instant::now();
    let output = command(engine, "reload").await;
    assert!(output.status.success(), "{output:?}");
    (before, Instant::now())
}

#[tokio::test]
async fn a_policy_changes_while_pods_come_and_go() {
    let Some(tools) = host::tools() else { return };
    let (engine, _daemon) = begin(&tools);
    let received = plugin(&engine, "1");
    synchronized(&engine);
    let first = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
    let rule =
        "\n[[rule]]\nname = \"no variables in shops\"\nnamespaces = [\"shop\"]\ndeny = [\"Env\"]\n";
    let load = Load::start(&engine).await;
    a_while().await;
    let (before, after) = reload(&engine, rule, &first).await;
    a_while().await;
    let (lifting, lifted) = reload(&engine, "", &first).await;
    a_while().await;
    let made = load.end().await;
    print_results("policy", &made);
    let mut refused = 0;
    for one in &made {
        let done = one.asked + one.took;
        match &one.outcome {
            Ok(version) => {
                assert_eq!(version.as_deref(), Some("1"));
                assert!(one.asked < after || done > lifting, "the rule did not hold");
            }
            Err(why) => {
                refused += 1;
                assert!(why.contains("no variables in shops") && why.contains("Env"), "{why}");
                assert!(done > before && one.asked < lifted, "refused by no rule: {why}");
            }
        }
    }
    assert!(refused > 0 && refused < made.len(), "{refused} of {}", made.len());
    let synchronized =
        received.lock().unwrap().iter().filter(|l| l.starts_with("Synchronize")).count();
    assert_eq!(synchronized, 0, "the plugin was connected anew");
}

#[tokio::test]
async fn a_plugin_is_rolled_out_while_pods_come_and_go() {
    let Some(tools) = host::tools() else { return };
    let (engine, _daemon) = begin(&tools);
    let _first = plugin(&engine, "1");
    synchronized(&engine);
    let load = Load::start(&engine).await;
    a_while().await;
    let asked = Instant::now();
    let _second = plugin(&engine, "2");
    a_while().await;
    let made = load.end().await;
    print_results("plugin", &made);
    let versions: Vec<&str> = made
        .iter()
        .map(|one| match &one.outcome {
            Ok(version) => version.as_deref().expect("a container was created without the plugin"),
            Err(why) => panic!("{why}\n{}", engine.log_tail()),
        })
        .collect();
    assert!(
        made.iter()
            .zip(&versions)
            .all(|(one, version)| *version == "1" || one.asked + one.took > asked)
    );
    let (old, new) = (versions.first(), versions.last());
    assert_eq!((old, new), (Some(&"1"), Some(&"2")));
    let plugins = engine.admin(&["plugins"]);
    let connected = plugins.as_array().into_iter().flatten();
    assert_eq!(
        connected.filter(|plugin| plugin["state"] == "synchronized").count(),
        1,
        "{plugins}"
    );
}

#[tokio::test]
async fn the_program_is_upgraded_while_pods_come_and_go() {
    let Some(tools) = host::tools() else { return };
    let (engine, daemon) = begin(&tools);
    let received = plugin(&engine, "1");
    synchronized(&engine);
    let load = Load::start(&engine).await;
    for _upgrade in 0..3 {
        a_while().await;
        let output = command(&engine, "reexec").await;
        assert!(output.status.success(), "{output:?}\n{}", engine.log_tail());
        assert_eq!(engine.admin(&["status"])["pid"], daemon.id());
    }
    a_while().await;
    let made = load.end().await;
    print_results("program", &made);
    for one in &made {
        match &one.outcome {
            Ok(version) => assert_eq!(version.as_deref(), Some("1"), "{}", engine.log_tail()),
            Err(why) => panic!("{why}\n{}", engine.log_tail()),
        }
    }
    let received = received.lock().unwrap();
    for event in ["CreateContainer app", "StartContainer app", "RemoveContainer app"] {
        let count = received.iter().filter(|line| *line == event).count();
        assert_eq!(count, made.len(), "{event}");
    }
    assert!(!received.iter().any(|line| line.starts_with("Synchronize")), "it was connected anew");
}
