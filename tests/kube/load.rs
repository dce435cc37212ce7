// SPDX-License-Identifier: Apache-2.0
//! A node under load: waves of pods are created, resized and deleted while ten plugins answer, one slowly, one that
//! leaves and returns, and one that updates others; then the same waves with containerd's own NRI.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nri_plugin::{Adjustment, Context, Handler, Update, async_trait};
use nri_runc::plugin::{Event, api};
use serde_json::{Value, json};

use super::Cluster;
use super::control::KUBECONFIG;
use super::inside::{daemon, wait_until_forgotten};
use super::kubectl::{Namespace, apply};
use super::logged_events::whole_lives;
use super::machine::{command, wait_for, wait_up_to};
use super::manifests::{card, container, pod, spec};
use super::plugins::Plugin;

const STEADY: [&str; 7] = [
    "30-steady-a",
    "31-steady-b",
    "32-steady-c",
    "33-steady-d",
    "34-steady-e",
    "35-steady-f",
    "36-steady-g",
];
const SLOW: &str = "37-slow";
const RETURNING: &str = "38-returning";
const UPDATING: &str = "39-updating";

/// Makes the container print the number of variables that the permanently connected plugins set.
const SHOWS: &str = "env | grep -c '^LOAD_'; exec sleep 100000";

/// Growth of the daemon's private memory from the first wave to the last, in KiB: it keeps what `explain` shows of a
/// thousand removed containers, and the latest events and requests.
const GROWTH: u64 = 8 << 10;

/// Wake-ups of the idle daemon in twenty seconds.
const WAKE_UPS: u64 = 20;

/// Answers each creation after a while; knows the containers that run.
struct Loaded {
    variable: String,
    takes: Duration,
    is_synchronized: AtomicBool,
    running: Mutex<BTreeSet<String>>,
}

impl Loaded {
    /// Connects it to whichever adaptation serves the socket.
    fn connect(id: &'static str, takes: Duration) -> (Arc<Self>, Plugin) {
        let variable = format!("LOAD_{}", id[3..].replace('-', "_"));
        let (is_synchronized, running) = (AtomicBool::new(false), Mutex::default());
        let loaded = Arc::new(Self { variable, takes, is_synchronized, running });
        let plugin = Plugin::start(id, Arc::<Self>::clone(&loaded));
        wait_for("the plugin is synchronized", || {
            loaded.is_synchronized.load(Ordering::SeqCst).then_some(())
        });
        (loaded, plugin)
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Handler for Loaded {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer, Event::PostStartContainer, Event::StopContainer]
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        self.is_synchronized.store(true, Ordering::SeqCst);
        Ok(Vec::new())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        if request.pod.namespace != "load" {
            return Ok(api::CreateContainerResponse::default());
        }
        tokio::time::sleep(self.takes).await;
        Ok(Adjustment::new().env(&self.variable, "1").into())
    }

    async fn post_start_container(
        &self,
        _: &Context,
        request: api::PostStartContainerRequest,
    ) -> nri_plugin::Result<()> {
        if request.pod.namespace == "load" {
            self.running().insert(request.container.id.clone());
        }
        Ok(())
    }

    async fn stop_container(
        &self,
        _: &Context,
        request: api::StopContainerRequest,
    ) -> nri_plugin::Result<api::StopContainerResponse> {
        self.running().remove(&request.container.id);
        Ok(api::StopContainerResponse::default())
    }
}

/// A thread that repeats an action until it is dropped.
struct Again {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Again {
    fn every(pause: Duration, mut work: impl FnMut() + Send + 'static) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut next = Instant::now();
            while !seen.load(Ordering::SeqCst) {
                if Instant::now() >= next {
                    work();
                    next = Instant::now() + pause;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _its_failure_was_shown = self.thread.take().map(JoinHandle::join);
    }
}

/// The ten connected plugins; they disconnect on drop.
struct Plugins {
    _steady: Vec<Plugin>,
    _returning: Again,
    _updating: Again,
}

impl Plugins {
    fn connect() -> Self {
        let quick = |id: &'static str| Loaded::connect(id, Duration::ZERO);
        let mut steady: Vec<Plugin> = STEADY.into_iter().map(|id| quick(id).1).collect();
        steady.push(Loaded::connect(SLOW, Duration::from_millis(200)).1);
        let mut returns = Some(quick(RETURNING));
        let stays = Duration::from_secs(setting("LOAD_SECONDS", 60).clamp(20, 240) / 4);
        let returning = Again::every(stays, move || {
            drop(returns.take());
            returns = Some(Loaded::connect(RETURNING, Duration::ZERO));
        });
        let (known, asks) = quick(UPDATING);
        // CRI shows CPU shares, which kubelet would take for an unfinished resize.
        let mut pids = 100;
        let updating = Again::every(Duration::from_secs(1), move || {
            pids = if pids == 100 { 101 } else { 100 };
            let ids: Vec<String> = known.running().iter().cloned().collect();
            // A container may have ended since.
            let update = |id: &String| Update::of(id).pids_limit(pids).ignore_failure().into();
            let update = ids.iter().map(update).collect();
            let request = api::UpdateContainersRequest { update, ..Default::default() };
            asks.ask(request).expect("a plugin's updates are answered");
        });
        Self { _steady: steady, _returning: returning, _updating: updating }
    }
}

/// Follows which pods are ready, and when.
struct Watch {
    kubectl: Child,
    ready: Arc<Mutex<Vec<(String, Instant)>>>,
    reader: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(space: &Namespace) -> Self {
        let shown =
            "jsonpath={.metadata.name} {.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}";
        let mut kubectl = command("kubectl");
        kubectl.args(["--kubeconfig", KUBECONFIG, "--namespace", space.name()]);
        kubectl.args(["get", "pods", "--watch", "-o", shown]);
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut kubectl = kubectl.spawn().unwrap();
        let lines = BufReader::new(kubectl.stdout.take().unwrap()).lines();
        let ready = Arc::<Mutex<Vec<(String, Instant)>>>::default();
        let known = Arc::clone(&ready);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some(name) = line.strip_suffix(" True") else { continue };
                let mut known = known.lock().unwrap();
                if known.iter().all(|(one, _)| one != name) {
                    known.push((name.to_owned(), Instant::now()));
                }
            }
        });
        Self { kubectl, ready, reader: Some(reader) }
    }

    /// Returns how long after `begun` each of `count` pods was ready.
    fn wait(&self, begun: Instant, wave: &str, count: usize) -> Vec<Duration> {
        let of_wave = || {
            let ready = self.ready.lock().unwrap();
            let of_wave = ready.iter().filter(|(name, _)| name.starts_with(wave));
            of_wave.map(|(_, at)| at.duration_since(begun)).collect::<Vec<_>>()
        };
        let most = Duration::from_secs(300);
        wait_up_to(most, "the pods of a wave are ready", || {
            Some(of_wave()).filter(|all| all.len() == count)
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ended = self.kubectl.kill();
        let _reaped = self.kubectl.wait();
        let _read_to_its_end = self.reader.take().map(JoinHandle::join);
    }
}

/// A pod of a wave; `handler` is its RuntimeClass.
fn pod_of(wave: &str, number: usize, handler: Option<&str>) -> Value {
    let mut app = container("app", SHOWS);
    app["resources"] =
        json!({"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}});
    let mut spec = spec(&[app]);
    match handler {
        Some(handler) => spec["runtimeClassName"] = json!(handler),
        None => drop(spec.as_object_mut().unwrap().remove("runtimeClassName")),
    }
    let mut pod = pod(&format!("{wave}{number}"), &card(), &spec);
    pod["metadata"]["namespace"] = json!("load");
    pod
}

/// Creates pods at once, resizes and deletes them; returns how long each start took.
fn wave(space: &Namespace, number: usize, count: usize, handler: Option<&str>) -> Vec<Duration> {
    let name = format!("wave{number}-");
    let watch = Watch::start(space);
    let pods: Vec<Value> = (0..count).map(|pod| pod_of(&name, pod, handler)).collect();
    let begun = Instant::now();
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}));
    let took = watch.wait(begun, &name, count);
    let patch = json!({"spec": {"containers": [
        {"name": "app", "resources": {"limits": {"memory": "96Mi"}}},
    ]}});
    for pod in (0..count).step_by(4) {
        let pod = format!("{name}{pod}");
        let words =
            ["patch", "pod", &pod, "--subresource", "resize", "--patch", &patch.to_string()];
        space.does(&words);
        wait_for("it is resized", || {
            let status = &space.pod(&pod)["status"]["containerStatuses"][0];
            (status["resources"]["limits"]["memory"] == "96Mi").then_some(())
        });
        let shown: usize = space.logs(&pod, "app").trim().parse().unwrap();
        assert!(shown > STEADY.len() + 1, "{pod} has {shown} variables of plugins");
    }
    space.empties();
    took
}

/// Waves until the time is over; each pod's start.
fn waves(space: &Namespace, handler: Option<&str>) -> Vec<Duration> {
    let count = usize::try_from(setting("LOAD_PODS", 10)).unwrap();
    let (begun, most) = (Instant::now(), Duration::from_secs(setting("LOAD_SECONDS", 60)));
    let mut took = Vec::new();
    for number in 0.. {
        took.extend(wave(space, number, count, handler));
        if begun.elapsed() >= most {
            break;
        }
    }
    took.sort();
    took
}

/// Reads `LOAD_PODS` (pods at once) or `LOAD_SECONDS` (on each side) from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// A number of the daemon's in a file of /proc.
fn of_daemon(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", daemon().unwrap())).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon().unwrap())).unwrap().count()
}

fn seconds(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100].as_secs_f64()
}

fn summary(took: &[Duration]) -> String {
    format!("start p50 {:.1} s, p99 {:.1} s", seconds(took, 50), seconds(took, 99))
}

pub(super) fn a_node_under_load_loses_nothing(cluster: &Cluster) -> String {
    let space = Namespace::new("load");
    // The first container starts the daemon.
    space.apply(pod_of("first", 0, Some("nri-runc")));
    space.waits("first0", "condition=Ready", 120);
    let plugins = Plugins::connect();
    let first = 1 + wave(&space, 1000, 4, Some("nri-runc")).len();
    let (memory, files) = (of_daemon("smaps_rollup", "Private_Dirty:"), descriptors());
    let ours = waves(&space, Some("nri-runc"));
    let (pods, containers) = whole_lives("load");
    assert_eq!((pods, containers), (ours.len() + first, ours.len() + first));
    wait_until_forgotten("load");
    wait_for("its descriptors are closed", || (descriptors() <= files).then_some(()));
    let grown = of_daemon("smaps_rollup", "Private_Dirty:").saturating_sub(memory);
    assert!(grown < GROWTH, "{grown} KiB more than after the first wave");
    drop(plugins);
    // Waits until the daemon has handled the disconnected plugins.
    std::thread::sleep(Duration::from_secs(5));
    let before = of_daemon("status", "voluntary_ctxt_switches:");
    std::thread::sleep(Duration::from_secs(20));
    let woken = of_daemon("status", "voluntary_ctxt_switches:") - before;
    assert!(woken <= WAKE_UPS, "{woken} wake-ups in twenty idle seconds");
    cluster.node.removed(&cluster.machine);
    let _plugins = Plugins::connect();
    let theirs = waves(&space, None);
    format!(
        "{pods} pods, ten plugins: {}; no event lost, doubled or out of order, {grown} KiB more, {woken} wake-ups in \
         twenty idle seconds; containerd's own NRI, {} pods: {}",
        summary(&ours),
        theirs.len(),
        summary(&theirs),
    )
}
