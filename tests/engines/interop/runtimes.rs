// SPDX-License-Identifier: Apache-2.0
//! `nri-plugin` on the Go adaptation, as runtimes use it: each minor release from v0.2 to v0.12. A plugin with every
//! event, a cache and the extension registers, is synchronized, adjusts and updates, and stays connected although the
//! runtime lacks some of them. `make interop` sets `RUNTIMES=all`: each is built from source.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nri_plugin::{
    ALL_EVENTS, Adjustment, Cache, Context, Event, ExtensionEvent, Handler, Plugin, PluginHandle,
    Result, Update, Updates, api, async_trait,
};
use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::{example, golang, program, skip};
use tokio::sync::Semaphore;

struct Everything {
    cache: Cache,
    /// A permit for each update that the runtime has answered: the last container waits for one, because the runtime
    /// exits after it.
    answered: Semaphore,
    /// The events that each connection received.
    received: Mutex<Vec<Vec<&'static str>>>,
}

#[async_trait]
impl Handler for Everything {
    fn events(&self) -> &[Event] {
        &ALL_EVENTS
    }

    fn extension_events(&self) -> &[ExtensionEvent] {
        &[ExtensionEvent::EXEC_CONTAINER]
    }

    fn failure_policy(&self) -> Option<api::FailurePolicy> {
        Some(api::FailurePolicy::default())
    }

    fn cache(&self) -> Option<&Cache> {
        Some(&self.cache)
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        let mut received = self.received.lock().unwrap();
        if method == "Configure" {
            received.push(Vec::new());
        }
        // The runtime uses this container to detect whether the plugin is connected.
        let is_probe = protobuf::text_format::print_to_string(message).contains("\"probe\"");
        received.last_mut().unwrap().extend((!is_probe).then_some(method));
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> Result<api::CreateContainerResponse> {
        if request.container.name == "last" {
            self.answered.acquire().await?.forget();
        }
        Ok(Adjustment::new().env("FROM", &format!("rust-{}", request.container.name)).into())
    }

    async fn update_container(
        &self,
        _: &Context,
        request: api::UpdateContainerRequest,
    ) -> Result<api::UpdateContainerResponse> {
        Ok(Updates::from(Update::of(&request.container.id).cpu_shares(512)).into())
    }
}

/// The events that one connection receives.
fn life(minor: u32) -> Vec<&'static str> {
    let all = [
        ("Configure", 2),
        ("Synchronize", 2),
        ("RunPodSandbox", 2),
        ("UpdatePodSandbox", 10),
        ("PostUpdatePodSandbox", 10),
        ("CreateContainer", 2),
        ("ValidateContainerAdjustment", 10),
        ("PostCreateContainer", 2),
        ("StartContainer", 2),
        ("PostStartContainer", 2),
        ("UpdateContainer", 2),
        ("PostUpdateContainer", 2),
        ("StopContainer", 2),
        ("RemoveContainer", 2),
        ("StopPodSandbox", 2),
        ("RemovePodSandbox", 2),
        ("CreateContainer", 2),
        ("ValidateContainerAdjustment", 10),
    ];
    all.into_iter().filter(|(_, since)| minor >= *since).map(|(name, _)| name).collect()
}

/// Runs the runtime from start to end; returns its output.
fn run(program: &Path, dir: &Path, runtime: (&str, &str), words: &[&str]) -> Value {
    let mut command = Command::new(program);
    command.arg("-socket").arg(dir.join("nri.sock")).arg("-plugins").arg(dir.join("plugins"));
    command.args(["-name", runtime.0, "-version", runtime.1]).args(words);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let printed = serde_json::from_slice(&output.stdout);
    printed.unwrap_or_else(|_| json!(String::from_utf8_lossy(&output.stderr)))
}

/// Requests an update once the pod is removed, when no request is open.
async fn update_unasked(plugin: &Everything, handle: &PluginHandle, life: usize) {
    let is_over = || {
        let received = plugin.received.lock().unwrap();
        received.iter().filter(|received| received.contains(&"RemovePodSandbox")).count() == life
    };
    while !is_over() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let failed = handle.update(Update::of("other").cpu_shares(7)).await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    plugin.answered.add_permits(1);
}

/// Runs two runtimes one after the other, the first with a name that shows its version; the plugin stays.
async fn connected(program: &Path, dir: &Path, minor: u32, known: (&str, &str)) {
    // The adaptation of v0.2.0 crashes at an unprompted update.
    let is_updated = minor > 2;
    let answered = Semaphore::new(if is_updated { 0 } else { 2 });
    let plugin = Everything { cache: Cache::new(), answered, received: Mutex::default() };
    let plugin = Arc::new(plugin);
    let running = Plugin::new("10-everything", Arc::clone(&plugin)).unwrap();
    let running = running.socket(dir.join("nri.sock"));
    let handle = running.handle();
    let running = tokio::spawn(running.run());
    let words: &[&str] = if is_updated { &["-unasked"] } else { &[] };
    for (number, runtime) in [(1, known), (2, ("trial", "v1"))] {
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let runtime = (runtime.0.to_owned(), runtime.1.to_owned());
        let printed = tokio::task::spawn_blocking(move || {
            run(&program, &dir, (&runtime.0, &runtime.1), words)
        });
        if is_updated {
            update_unasked(&plugin, &handle, number).await;
        }
        let unasked = if is_updated { json!(["other"]) } else { json!(null) };
        let wanted = json!({"env": ["FROM=rust-c"], "last": ["FROM=rust-last"], "shares": 512,
            "unasked": unasked, "errors": null});
        assert_eq!(printed.await.unwrap(), wanted);
    }
    let received = plugin.received.lock().unwrap().clone();
    let mut wanted = vec![life(minor), life(minor)];
    if (7..10).contains(&minor) {
        // The plugin requested an event that this runtime does not know, and reconnected without it.
        wanted.insert(1, vec!["Configure"]);
    }
    assert_eq!(received, wanted);
    handle.shut_down();
    running.await.unwrap().unwrap();
    assert!(plugin.cache.pods().is_empty() && plugin.cache.containers().is_empty());
}

/// Checks a runtime that launches the sample which subscribes to all events except for validation.
fn launched(program: &Path, dir: &Path, minor: u32, known: (&str, &str)) {
    let log = dir.join("heard");
    program::copy(&example("event_logger"), &dir.join("plugins/10-logger"));
    let config = format!("file = {}\n", log.display());
    program::put_with(&dir.join("plugins/conf.d/10-logger.conf"), config, 0o644);
    let printed = run(program, dir, known, &["-launched"]);
    assert_eq!(printed["errors"], json!(null));
    let received = std::fs::read_to_string(log).unwrap();
    let received = received.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let received: Vec<String> =
        received.map(|line| line["event"].as_str().unwrap().into()).collect();
    let mut wanted = life(minor);
    wanted.retain(|event| *event != "ValidateContainerAdjustment");
    // Before v0.7 a runtime does not synchronize the plugins that it launches.
    wanted.retain(|event| minor >= 7 || *event != "Synchronize");
    assert_eq!(received, wanted);
}

#[expect(clippy::print_stderr, reason = "make interop lists the versions")]
fn runs(version: &str, minor: u32, known: (&str, &str)) {
    if std::env::var_os("RUNTIMES").is_none() {
        skip::machine_lacks("RUNTIMES is not set: make interop runs it");
        return;
    }
    let Some(program) = golang::program(&format!("runtime-{version}")) else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("plugins")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(connected(&program, dir.path(), minor, known));
    launched(&program, dir.path(), minor, known);
    let (name, release) = known;
    eprintln!("NRI {version} as {name} {release}: connected, restarted and launched");
}

macro_rules! versions {
    ($($test:ident $version:literal $minor:literal $runtime:literal $release:literal)*) => {
        $(
            #[test]
            fn $test() {
                runs($version, $minor, ($runtime, $release));
            }
        )*
    };
}

// With a runtime that sends it: before v0.12, a plugin recognizes a version by that.
versions! {
    v0_2_0 "v0.2.0" 2 "cri-o" "1.26.0"
    v0_3_0 "v0.3.0" 3 "containerd" "v1.7.0"
    v0_4_0 "v0.4.0" 4 "containerd" "1.7.13"
    v0_5_0 "v0.5.0" 5 "cri-o" "1.29.0"
    v0_6_1 "v0.6.1" 6 "containerd" "v1.7.25"
    v0_7_0 "v0.7.0" 7 "containerd" "v1.7.26"
    v0_8_0 "v0.8.0" 8 "containerd" "v2.1.6"
    v0_9_0 "v0.9.0" 9 "cri-o" "1.33.0"
    v0_10_0 "v0.10.0" 10 "containerd" "v2.2.0"
    v0_11_0 "v0.11.0" 11 "containerd" "v2.2.1"
    v0_12_5 "v0.12.5" 12 "containerd" "v2.4.2"
}
