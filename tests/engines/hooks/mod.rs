// SPDX-License-Identifier: Apache-2.0
//! OCI hooks: the built binary as the program of the shipped definitions, called with handwritten
//! states, by the real runc without a wrapper, beside the wrapper, and by Podman.

mod beside;
mod input;
mod podman;
mod poststart;
mod real;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, has_received, life, succeeds, wait_until};

type EventLines = Arc<Mutex<Vec<String>>>;

/// A lifecycle without the events that contain one of `words`.
fn life_without(words: &[&str]) -> Vec<String> {
    let mut life = life("c1");
    life.retain(|event| !words.iter().any(|word| event.starts_with(word)));
    life
}

/// The shipped definitions, with the program under test and its configuration.
fn definitions(config: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    let read = files.into_iter().map(|path| {
        let mut definition: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        definition["hook"]["path"] = json!(env!("CARGO_BIN_EXE_nri-runc"));
        definition["hook"]["env"] = json!([format!("NRI_RUNC_CONFIG={config}")]);
        definition
    });
    read.collect()
}

/// A container `c1` whose document has nri-runc's hooks, a daemon, and the real runc.
struct Hooked {
    real: RealRuntime,
    host: TestHost,
    document: String,
}

impl Hooked {
    fn new(args: &[&str], more: &str) -> Option<Self> {
        let mut hooked = Self::without_daemon(args, more)?;
        hooked.host.start_daemon();
        Some(hooked)
    }

    fn without_daemon(args: &[&str], more: &str) -> Option<Self> {
        let host = TestHost::new(more);
        let real = RealRuntime::new(&host.path(""))?;
        let mut document = real.document("c1", args);
        for definition in definitions(&host.path("config.toml").display().to_string()) {
            for stage in definition["stages"].as_array().unwrap() {
                let stage = stage.as_str().unwrap().to_owned();
                document["hooks"][stage] = json!([definition["hook"]]);
            }
        }
        let document = serde_json::to_string_pretty(&document).unwrap();
        host.write("bundle/config.json", &document);
        host.configure(real.runc(), more);
        Some(Self { real, host, document })
    }

    /// The real runc, called directly.
    fn runc(&self, words: &[&str]) -> Output {
        let (out, err) = (self.host.path("out"), self.host.path("err"));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true);
        let bundle = self.host.path("bundle").display().to_string();
        let words = words.iter().map(|word| word.replace("BUNDLE", &bundle));
        let status = Command::new(self.real.runc())
            .arg("--root")
            .arg(self.host.path("root"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(file.open(&out).unwrap())
            .stderr(file.open(&err).unwrap())
            .status()
            .unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    fn create(&self) -> Output {
        self.runc(&["create", "--bundle", "BUNDLE", "c1"])
    }

    fn init(&self) -> u32 {
        let state: Value = serde_json::from_str(&self.host.read("root/c1/state.json")).unwrap();
        u32::try_from(state["init_process_pid"].as_u64().unwrap()).unwrap()
    }

    /// Checks that the runtime, the bundle and the daemon have no trace of the container.
    fn nothing_is_left(&self) {
        wait_until("no pod is known", || self.host.admin(&["pods"]) == json!([]));
        assert_eq!(self.host.read("bundle/config.json"), self.document);
        assert_eq!(std::fs::read_dir(self.host.path("bundle")).unwrap().count(), 2);
        assert!(!self.host.path("root/c1").exists());
    }
}

#[track_caller]
fn fails(output: &Output, wanted: &[&str]) {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{printed}");
    for word in wanted {
        assert!(printed.contains(word), "{word} is not in: {printed}");
    }
}
