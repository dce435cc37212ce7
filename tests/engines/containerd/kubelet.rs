// SPDX-License-Identifier: Apache-2.0
//! A kubelet without an API server, whose pods are files, with containerd and the systemd driver: the containers are in
//! slices that systemd creates for it. `make vm-engines` runs this test; `tests/kube` tests the node of a whole
//! Kubernetes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nri_runc::testing::files;
use serde_json::{Value, json};
use test_support::{Started, cgroup, has_received};

use super::host::Engine;

/// The port on which kubelet lists its pods.
const PORT: u16 = 10255;

/// A kubelet with an engine.
struct Node {
    engine: Engine,
    kubelet: Started,
    program: PathBuf,
}

/// A pod of one container, `app`, as kubelet lists it.
struct Pod {
    slice: String,
    id: String,
    is_ready: bool,
    restarts: u64,
}

impl Node {
    fn start(engine: Engine, program: &Path) -> Self {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", engine.path("containerd.sock").display()),
            "staticPodPath": engine.path("pods"),
            "podLogsDir": engine.path("logs"),
            "readOnlyPort": PORT,
            "address": "127.0.0.1",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "systemd",
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "localStorageCapacityIsolation": false,
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
            "resolvConf": "",
            // One of two CPUs is exclusive.
            "cpuManagerPolicy": "static",
            "cpuManagerReconcilePeriod": "1s",
            "reservedSystemCPUs": "0",
            "fileCheckFrequency": "1s",
            // CRI calls are slow in a guest.
            "runtimeRequestTimeout": "10m",
        });
        std::fs::create_dir_all(engine.path("pods")).unwrap();
        files::replace(&engine.path("kubelet.json"), config.to_string().as_bytes()).unwrap();
        let kubelet = run(&engine, program);
        Self { engine, kubelet, program: program.to_owned() }
    }

    /// Ends kubelet by SIGTERM, and starts it again. The containers keep running.
    fn restart(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.kubelet.0.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        self.kubelet.0.wait().unwrap();
        assert!(pods().is_none(), "kubelet is gone");
        self.kubelet = run(&self.engine, &self.program);
    }

    /// Makes kubelet create a pod from a file.
    fn put(&self, name: &str, resources: &Value, probe: (&str, &str)) {
        let (kind, script) = probe;
        let container = json!({
            "name": name,
            "image": "localhost/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "exec sleep 100000"],
            "resources": resources,
            kind: {
                "exec": {"command": ["/bin/sh", "-c", script]},
                "periodSeconds": 2,
                "timeoutSeconds": 60,
                "failureThreshold": 1,
            },
        });
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        });
        // The file's name begins with a dot until it is complete, because kubelet ignores such
        // files.
        let file = self.engine.path(&format!("pods/{name}.json"));
        files::replace(&file, pod.to_string().as_bytes()).unwrap();
    }

    /// Waits until the pod of this file is as wanted, and returns it.
    #[track_caller]
    fn pod(&self, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        let mut found = None;
        self.wait_until(&format!("the pod {name} is as wanted"), || {
            found = pods().and_then(|pods| one(&pods, name)).filter(|pod| is_so(pod));
            found.is_some()
        });
        found.unwrap()
    }

    #[track_caller]
    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + test_support::PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited until {what}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.engine.path("kubelet.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n");
        let pods = pods().map_or("no answer".to_owned(), |pods| pods["items"].to_string());
        format!("pods: {pods}\n{tail}\n{}", self.engine.log_tail())
    }

    /// A file of its container's cgroup, which is a scope in the pod's slice.
    fn cgroup(&self, pod: &Pod, file: &str) -> String {
        let scope = format!("/sys/fs/cgroup/{}/cri-containerd-{}.scope", pod.slice, pod.id);
        std::fs::read_to_string(format!("{scope}/{file}")).unwrap().trim().to_owned()
    }
}

#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn run(engine: &Engine, program: &Path) -> Started {
    let log = std::fs::File::options().create(true).append(true).open(engine.path("kubelet.log"));
    let log = log.unwrap();
    let mut kubelet = Command::new(program);
    kubelet.arg("--config").arg(engine.path("kubelet.json"));
    kubelet.arg("--root-dir").arg(engine.path("kubelet")).arg("--hostname-override=node");
    kubelet.arg("--cert-dir").arg(engine.path("kubelet/pki"));
    kubelet.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Started(kubelet.spawn().unwrap())
}

/// Kubelet's list of its pods; `None` while it does not respond.
fn pods() -> Option<Value> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", PORT)).ok()?;
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").ok()?;
    let mut printed = String::new();
    stream.read_to_string(&mut printed).ok()?;
    serde_json::from_str(printed.split_once("\r\n\r\n")?.1).ok()
}

/// The pod of a file's name, with a container.
fn one(pods: &Value, name: &str) -> Option<Pod> {
    let of_file = format!("{name}-node");
    let pod = pods["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == of_file)?;
    let container = &pod["status"]["containerStatuses"][0];
    let id = container["containerID"].as_str()?.strip_prefix("containerd://")?;
    let (uid, class) = (pod["metadata"]["uid"].as_str()?, pod["status"]["qosClass"].as_str()?);
    let (above, class) = match class {
        "Guaranteed" => (String::new(), String::new()),
        class => {
            let class = format!("-{}", class.to_lowercase());
            (format!("kubepods{class}.slice/"), class)
        }
    };
    Some(Pod {
        slice: format!("kubepods.slice/{above}kubepods{class}-pod{}.slice", uid.replace('-', "_")),
        id: id.to_owned(),
        is_ready: container["ready"].as_bool()?,
        restarts: container["restartCount"].as_u64()?,
    })
}

/// A probe that succeeds only with the plugin's value.
const NEEDS: (&str, &str) = ("readinessProbe", "test \"$HELLO\" = there");

fn memory(limit: &str) -> Value {
    json!({"requests": {"memory": "16Mi"}, "limits": {"memory": limit}})
}

/// Checks that the plugin's values are in effect: shares and memory in the pod's slice, instead of kubelet's.
#[track_caller]
fn has_the_plugins_values(pod: &Pod) {
    let read = |file| cgroup::read(&pod.slice, ("cri-containerd", &pod.id), file);
    assert_eq!(read(("cpu", "cpu.shares")), "512");
    assert_eq!(read(("memory", "memory.limit_in_bytes")), (32_u64 << 20).to_string());
}

#[tokio::test]
async fn static_pods_of_a_kubelet_are_adjusted_in_their_slices() {
    let programs = ["busybox", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "kubelet"];
    let Some(tools) = test_support::tools::find_in_guest(&programs) else { return };
    let engine = Engine::start(&tools);
    let _daemon = engine.start_daemon();
    let (socket, script) = (engine.path("nri.sock"), super::adjusting(&engine));
    let script = test_support::Script { only: Some("web"), ..script };
    let received = test_support::scripted_plugin::connect(socket, "10", "adjust", script);
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let mut node = Node::start(engine, &tools.join("kubelet"));

    // An exec probe sees the plugin's value.
    node.put("web", &memory("64Mi"), NEEDS);
    let web = node.pod("web", |pod| pod.is_ready);
    has_the_plugins_values(&web);

    // The static CPU manager gives one pod a CPU alone, and takes it from the other one by an update.
    let exclusive = json!({"cpu": "1", "memory": "32Mi"});
    let exclusive = json!({"requests": exclusive, "limits": exclusive});
    node.put("pinned", &exclusive, ("readinessProbe", "true"));
    let pinned = node.pod("pinned", |pod| pod.is_ready);
    assert_eq!(node.cgroup(&pinned, "cpuset.cpus"), "1");
    node.wait_until("the other has left its CPU", || node.cgroup(&web, "cpuset.cpus") == "0");
    has_the_plugins_values(&web);

    // A failing probe restarts only its container.
    node.put("doomed", &memory("32Mi"), ("livenessProbe", "false"));
    node.pod("doomed", |pod| pod.restarts > 0);
    node.wait_until("its stop is reported", || has_received(&received, "StopContainer doomed"));
    std::fs::remove_file(node.engine.path("pods/doomed.json")).unwrap();
    node.wait_until("it is gone", || has_received(&received, "RemovePodSandbox doomed-node"));

    // For a restarted kubelet the running pods are unchanged, and plugins receive nothing: kubelet has checked both
    // pods when it reports them ready again, and only a pod that it creates afterwards is sent.
    let before = received.lock().unwrap().clone();
    node.restart();
    let again = node.pod("web", |pod| pod.is_ready);
    assert_eq!((&again.id, &again.slice, again.restarts), (&web.id, &web.slice, 0));
    has_the_plugins_values(&again);
    let again = node.pod("pinned", |pod| pod.is_ready);
    assert_eq!((&again.id, again.restarts), (&pinned.id, 0));
    node.put("later", &memory("32Mi"), ("readinessProbe", "true"));
    node.pod("later", |pod| pod.is_ready);
    node.wait_until("the later pod is reported", || {
        has_received(&received, "PostStartContainer later")
    });
    let lives = |events: &[String]| {
        let received = events.iter().filter(|event| !event.contains("Update"));
        received.filter(|event| !event.contains(" later")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(lives(&received.lock().unwrap()), lives(&before));

    // A static pod whose file changes is another pod: kubelet resizes none of them in place.
    node.put("web", &memory("96Mi"), NEEDS);
    let resized = node.pod("web", |pod| pod.is_ready && pod.id != web.id);
    assert_ne!(resized.slice, web.slice);
    has_the_plugins_values(&resized);
    node.wait_until("the end of the first is reported", || {
        has_received(&received, "RemovePodSandbox web-node")
    });
}
