// SPDX-License-Identifier: Apache-2.0
//! The messages of plugins about containers that another plugin adjusted: one pod with a container
//! for each area of an adjustment, on containerd 2.4.2's own NRI and on nri-runc, live. A plugin
//! behind the adjusting one receives the events, another connects later and is synchronized.
//! Compared field by field, except for the differences of `docs/nri-differences.md`. Part of `make
//! interop`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use nri_plugin::{Context, Handler, async_trait};
use nri_runc::plugin::{Event, api};
use serde_json::{Value, json};
use test_support::compare::{self, EventsByKey, Meant};
use test_support::cri::exec_sync::exec_sync;
use test_support::cri::{self, container};
use test_support::play::play;
use test_support::recorder::Recorder;
use test_support::tools;

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};

const ENGINE: &str = "containerd-2.4.2 live";

/// The container whose program does not exist: the runtime refuses it.
const REFUSED: &str = "refused";

/// Containers with RDT settings and an RDT class: without resctrl nri-runc refuses them before the
/// runtime does.
const RDT: [&str; 2] = ["rdt", "rdt-class"];

fn has_resctrl() -> bool {
    Path::new("/sys/fs/resctrl/schemata").exists()
}

/// The container with a CDI device, read inside.
const CDI: &str = "cdi";

/// An area, a plugin's response for the container of its name, and the fields that differ
/// intentionally, each with its ID in `docs/nri-differences.md`.
type Area = (&'static str, Value, &'static [(&'static str, &'static str)]);

/// All areas except for the block I/O and RDT classes and the huge pages, which a machine may lack.
fn areas(cgroup: &str) -> Vec<Area> {
    [lists(), linux(cgroup)].concat()
}

fn lists() -> Vec<Area> {
    let device = json!({"path": "/dev/told", "type": "c", "major": 1, "minor": 3,
        "fileMode": {"value": 384}, "uid": {"value": 7}});
    vec![
        ("nothing", json!({}), &[]),
        ("annotations", json!({"annotations": {"example.org/new": "1"}}), &[]),
        ("env", env(&[("NEW", "1"), ("FROM", "plugin"), ("LATE", "=")]), &[]),
        ("env-without-a-name", env(&[("", "x"), ("NEW", "1")]), &[]),
        ("env-removed", env(&[("-FROM", "")]), &[("container.env", "BUG-01")]),
        ("args", json!({"args": ["/bin/sleep", "1001"]}), &[]),
        (
            "mounts",
            json!({"mounts": [
                {"destination": "/deep/er/yet", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "-/dev/mqueue"},
                {"destination": "/deep", "type": "tmpfs", "source": "tmpfs", "options": ["ro"]},
            ]}),
            &[],
        ),
        ("hooks", json!({"hooks": {"poststop": [{"path": "/bin/true", "args": ["true"]}]}}), &[]),
        ("rlimits", json!({"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 321, "soft": 123}]}), &[]),
        (
            "device",
            json!({"linux": {"devices": [device]}}),
            &[("container.linux.resources.devices", "BUG-G9")],
        ),
        (
            CDI,
            json!({"CDIDevices": [{"name": "example.org/told=one"}]}),
            &[("container.CDI_devices", "BUG-07")],
        ),
    ]
}

fn linux(cgroup: &str) -> Vec<Area> {
    let memory = |memory: Value| json!({"linux": {"resources": {"memory": memory}}});
    let resources = |resources: Value| json!({"linux": {"resources": resources}});
    let filter = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": {"value": 13}}]});
    vec![
        ("oom", json!({"linux": {"oomScoreAdj": {"value": 901}}}), &[]),
        ("cgroup", json!({"linux": {"cgroupsPath": format!("/{cgroup}/elsewhere")}}), &[]),
        ("io", json!({"linux": {"ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 6}}}), &[]),
        ("io-none", json!({"linux": {"ioPriority": {"class": "IOPRIO_CLASS_NONE"}}}), &[]),
        ("scheduler", json!({"linux": {"scheduler": {"policy": "SCHED_BATCH", "nice": 7}}}), &[]),
        ("seccomp", json!({"linux": {"seccompPolicy": filter}}), &[]),
        (
            "namespaces",
            json!({"linux": {"namespaces": [{"type": "uts"}]}}),
            &[("container.linux.namespaces", "BUG-06")],
        ),
        ("sysctl", json!({"linux": {"sysctl": {"kernel.shm_rmid_forced": "1"}}}), &[]),
        ("memory", memory(json!({"limit": {"value": 33_554_432}})), &[]),
        ("memory-of-zero", memory(json!({"limit": {"value": 0}})), &[]),
        (
            "swap",
            memory(json!({"limit": {"value": 33_554_432}, "swap": {"value": 50_331_648}})),
            &[("container.linux.resources.memory.swap", "BUG-G3")],
        ),
        (
            "reservation",
            memory(json!({"reservation": {"value": 16_777_216}})),
            &[("container.linux.resources.memory.reservation", "BUG-G3")],
        ),
        ("cpu", resources(json!({"cpu": {"shares": {"value": 512}, "cpus": "0"}})), &[]),
        ("pids", resources(json!({"pids": {"limit": 99}})), &[]),
        (
            "rules",
            resources(json!({"devices": [{"allow": true, "type": "c", "major": {"value": 10},
                "minor": {"value": 229}, "access": "rw"}]})),
            &[],
        ),
    ]
}

fn env(variables: &[(&str, &str)]) -> Value {
    let env: Vec<Value> =
        variables.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({ "env": env })
}

/// Answers each container by its name.
struct Adjusting(BTreeMap<&'static str, api::ContainerAdjustment>);

#[async_trait]
impl Handler for Adjusting {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn create_container(
        &self,
        _context: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let adjust = self.0.get(request.container.name.as_str()).cloned();
        Ok(api::CreateContainerResponse { adjust: adjust.into(), ..Default::default() })
    }
}

fn connect_adjusting(engine: &Engine, socket: &str) {
    let rdt = [
        json!({"linux": {"rdt": {"schemata": {"value": ["MB:0=70"]}}}}),
        json!({"linux": {"resources": {"rdtClass": {"value": "gold"}}}}),
    ];
    let adjustments = areas(engine.cgroup()).into_iter().map(|(name, adjust, _)| (name, adjust));
    let adjustments = adjustments.chain(RDT.into_iter().zip(rdt)).map(|(name, adjust)| {
        (name, protobuf_json_mapping::parse_from_str(&adjust.to_string()).unwrap())
    });
    let handler = Arc::new(Adjusting(adjustments.collect()));
    play(engine.path(socket), "10-adjusting", handler);
}

/// Writes a device whose node only root may open on the host.
fn write_device(dir: &Path) {
    let node = dir.join("told-node");
    let closed = nix::sys::stat::Mode::from_bits_truncate(0o600);
    let numbers = nix::sys::stat::makedev(1, 3);
    nix::sys::stat::mknod(&node, nix::sys::stat::SFlag::S_IFCHR, closed, numbers).unwrap();
    let spec = json!({"cdiVersion": "0.7.0", "kind": "example.org/told",
    "containerEdits": {"hooks": [
        {"hookName": "createRuntime", "path": "/bin/true", "args": ["true"]}]},
    "devices": [{"name": "one", "containerEdits": {
        "env": ["TOLD=one"],
        "deviceNodes": [{"path": "/dev/told", "hostPath": node},
            {"path": "/dev/given", "hostPath": node, "type": "c", "major": 1, "minor": 5}],
        "mounts": [{"hostPath": dir.join("data"), "containerPath": "/told",
            "options": ["ro", "rbind"]}],
        "additionalGids": [4400],
    }}]});
    let file = dir.join("cdi/told.json");
    std::fs::create_dir_all(dir.join("cdi")).unwrap();
    nri_runc::testing::files::replace(&file, spec.to_string().as_bytes()).unwrap();
}

/// The messages that plugins received of each container, and the output inside the one with the
/// device.
struct Observed {
    of: BTreeMap<&'static str, EventsByKey>,
    inside: String,
}

async fn observe(engine: &Engine, socket: &str) -> Observed {
    connect_adjusting(engine, socket);
    let observing = Recorder::connect_as(engine.path(socket), "90-observing");
    let mut cri = engine.client().await;
    let config = cri::pod(engine.cgroup(), "told");
    let pod = cri::run_pod_with(&mut cri, config.clone(), "rich").await;
    let mut ids = vec![(pod.clone(), "POD")];
    for (name, ..) in areas(engine.cgroup()) {
        let app = container(name, &["/bin/sleep", "1000"]);
        let id = cri::create(&mut cri, &pod, config.clone(), app).await;
        cri::start(&mut cri, &id).await.unwrap();
        ids.push((id, name));
    }
    let inside = inside(engine, &ids).await;
    let late = Recorder::connect_as(engine.path(socket), "95-late");
    let snapshot = late.snapshot(&ids);
    let rdt = RDT.into_iter().filter(|_| !has_resctrl());
    for name in rdt.chain([REFUSED]) {
        let program = if name == REFUSED { "/bin/no-such-program" } else { "/bin/true" };
        let refused = container(name, &[program]);
        let id = cri::create(&mut cri, &pod, config.clone(), refused).await;
        assert!(cri::start(&mut cri, &id).await.is_err(), "the runtime ran {name}");
        ids.push((id, name));
    }
    for (id, _) in ids.iter().skip(1) {
        cri::end_container(&mut cri, id).await;
    }
    cri::end_pod(&mut cri, &pod).await;
    observing.wait_for("RemovePodSandbox");
    let mut life = observing.life(&ids);
    life.extend(snapshot.into_iter().map(|it| ("Synchronize".into(), json!({"container": it}))));
    let mut of: BTreeMap<&'static str, EventsByKey> = BTreeMap::new();
    for (event, request) in life {
        // Validators receive the adjustment (`tests/operator/adaptation`), not the container.
        if event == Event::ValidateContainerAdjustment.name() {
            continue;
        }
        let name = request["container"]["id"].as_str().unwrap_or_default();
        let name = ids.iter().map(|(_, name)| *name).find(|known| *known == name);
        let Some(name) = name else { continue };
        let before = of.entry(name).or_default().insert(event.clone(), request);
        assert_eq!(before, None, "{name} has a second {event}");
    }
    Observed { of, inside }
}

/// The device and the groups of a later process, as that process sees them.
async fn inside(engine: &Engine, ids: &[(String, &str)]) -> String {
    let (id, _) = ids.iter().find(|(_, name)| *name == CDI).unwrap();
    let look = "/bin/busybox stat -c '%a %t %T %u %g' /dev/told /dev/given; \
                /bin/busybox id -G; echo $TOLD; /bin/busybox cat /told/hello";
    let channel = engine.containerd.channel().await;
    let printed = exec_sync(channel, id, &["/bin/sh", "-c", look]).await.unwrap();
    String::from_utf8_lossy(&[printed.stdout, printed.stderr].concat()).into_owned()
}

/// Runs the same containerd twice: with its own NRI and the plain runtime, then with nri-runc.
async fn both(containerd: &Path, tools: &Path, runc: &Path) -> (Observed, Observed) {
    const HANDLERS: [(&str, Passes); 1] = [("rich", Passes::All)];
    let own = Wanted { version: 4, handlers: &HANDLERS, runtime: runc, has_nri: true };
    let ours = Wanted { runtime: Path::new(env!("CARGO_BIN_EXE_nri-runc")), has_nri: false, ..own };
    let configuration = |dir: &Path| config::containerd(dir, &own);
    let parts = Parts { tools, containerd, runc, configuration: Some(&configuration) };
    let mut engine = Engine::of(&parts);
    let write = |name: &str, text: &str| {
        nri_runc::testing::files::replace(&engine.path(name), text.as_bytes()).unwrap();
    };
    write_device(&engine.path(""));
    let mut settings = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
    settings.push_str(&format!("[cdi]\nspec_dirs = [\"{}\"]\n", engine.path("cdi").display()));
    write("nri-runc.toml", &settings);
    write("containerd.own.toml", &config::containerd(&engine.path(""), &ours));
    let native = observe(&engine, "own.sock").await;
    engine.containerd.stop();
    std::fs::rename(engine.path("containerd.own.toml"), engine.path("containerd.toml")).unwrap();
    engine.containerd.run();
    let mut daemon = engine.start_daemon();
    let through = observe(&engine, "nri.sock").await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    (native, through)
}

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The rows of `docs/compatibility.md`, and those of an area.
fn meant(differences: &[(&str, &str)]) -> Vec<Meant> {
    let rows =
        differences.iter().map(|(field, id)| format!("| `{ENGINE}` | all | `{field}` | {id} |\n"));
    let rows = format!("## Intended differences\n{}", rows.collect::<String>());
    // The differences of the area come first: each must be needed.
    let mut all = compare::meant(&rows);
    all.extend(compare::meant(&page("docs/compatibility.md")));
    all
}

#[tokio::test]
async fn adjusted_containers_equal_those_of_containerds_own_nri() {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let Some(runc) = tools::newer("runc-1.5.2") else { return };
    let (native, ours) = both(&containerd, &tools, &runc.join("runc")).await;
    let wanted = "600 1 3 0 0\n600 1 5 0 0\n";
    assert!(native.inside.starts_with(wanted) && native.inside.contains(" 4400\none\n"));
    assert_eq!(ours.inside, native.inside, "a later process with the device");
    let listed = page("docs/nri-differences.md");
    let mut problems = Vec::new();
    for (name, _, differences) in areas("") {
        let meant = meant(differences);
        let result = compare::compare(ENGINE, &native.of[name], &ours.of[name], &meant);
        for line in [result.wrong, result.absent, result.more].concat() {
            problems.push(format!("{name}: {line}"));
        }
        for (row, (field, id)) in differences.iter().enumerate() {
            // A random order may equal the document's by chance.
            let is_needed = result.used.contains(&row) || *id == "BUG-06";
            if !is_needed || !listed.contains(&format!("| {id} |")) {
                problems.push(format!("{name}: {field} does not differ, or {id} is not listed"));
            }
        }
        let events: BTreeSet<&str> = ours.of[name].keys().map(String::as_str).collect();
        assert!(events.contains("Synchronize") && events.contains("PostCreateContainer"), "{name}");
    }
    assert!(problems.is_empty(), "{} problems\n{problems:#?}", problems.len());
    refusals_are_equal(&native, &ours);
}

fn refusals_are_equal(native: &Observed, ours: &Observed) {
    for name in RDT.into_iter().filter(|_| !has_resctrl()) {
        for event in ["StopContainer", "RemoveContainer"] {
            let rdt =
                |received: &Observed| received.of[name][event]["container"]["linux"]["rdt"].clone();
            assert!(rdt(native)["clos_id"].is_object(), "{name} {event}: {}", rdt(native));
            assert_eq!(rdt(ours), rdt(native), "{name} {event}");
        }
    }
    for (side, received) in [("containerd", native), ("nri-runc", ours)] {
        for event in ["StopContainer", "RemoveContainer"] {
            let container = &received.of[REFUSED][event]["container"];
            let has_time = |name: &str| container[name].as_str().is_some_and(|time| time != "0");
            assert_eq!(container["exit_code"], 128, "{side} {event}: {container}");
            assert!(has_time("created_at") && has_time("finished_at"), "{side} {event}");
        }
    }
}
