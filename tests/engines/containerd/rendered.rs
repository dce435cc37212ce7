// SPDX-License-Identifier: Apache-2.0
//! k3s and RKE2, which write their containerd's file at each start: a replacement renders it with Go's
//! `text/template`, as they do, and executes a real containerd. nri-runc is registered, the engine
//! restarted, a pod adjusted, and nri-runc unregistered; then every byte is as before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use test_support::cri::{self, container};
use test_support::{golang, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::{adjusting, look_inside, messages, pid_of};

/// k3s or RKE2, with a containerd of this version.
struct Rancher {
    program: &'static str,
    /// The template that its owner may write.
    template: &'static str,
    /// Returns the distribution's own configuration, for the folder of all its files.
    base: fn(&Path, &Path) -> String,
    /// Further arguments of `install`.
    words: &'static [&'static str],
    /// The file that `install` writes into the folder of the configuration.
    writes: &'static str,
}

/// The files below a folder, with their content.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path.clone());
                found.insert(path, String::new());
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    found
}

struct Registered<'r> {
    rancher: &'r Rancher,
    engine: Engine,
    /// The folder of the configuration.
    folder: PathBuf,
    /// The programs for its restart.
    _programs: tempfile::TempDir,
}

impl<'r> Registered<'r> {
    /// Starts the distribution with the programs in `containerd`.
    fn start(rancher: &'r Rancher, tools: &Path, containerd: &Path, runc: &Path) -> Option<Self> {
        let stand_in = golang::program("rancher")?;
        let programs = tempfile::Builder::new().prefix("nri").tempdir_in("/tmp").unwrap();
        for entry in std::fs::read_dir(containerd).unwrap().flatten() {
            if entry.file_name() != "containerd" {
                let link = programs.path().join(entry.file_name());
                std::os::unix::fs::symlink(entry.path(), link).unwrap();
            }
        }
        let base = |dir: &Path| {
            let folder = dir.join(rancher.program).join("agent/etc/containerd");
            std::fs::create_dir_all(&folder).unwrap();
            let real = containerd.join("containerd");
            let line = format!(
                "#!/bin/sh\nexec {} {} {}/containerd.toml {} {} {}\n",
                stand_in.display(),
                rancher.program,
                dir.display(),
                folder.display(),
                rancher.template,
                real.display()
            );
            let script = programs.path().join("containerd");
            test_support::program::put(&script, line.as_bytes());
            (rancher.base)(dir, runc)
        };
        let parts = Parts { tools, containerd: programs.path(), runc, configuration: Some(&base) };
        let engine = Engine::of(&parts);
        let folder = engine.path(rancher.program).join("agent/etc/containerd");
        let root = engine.path("host");
        std::fs::create_dir_all(&root).unwrap();
        for path in [engine.path(""), PathBuf::from(env!("CARGO_BIN_EXE_nri-runc"))] {
            let first = path.components().nth(1).unwrap();
            let _twice_the_same =
                std::os::unix::fs::symlink(Path::new("/").join(first), root.join(first));
        }
        let config = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
        let config = format!("{config}[debug]\nhost_root = \"{}\"\n", root.display());
        nri_runc::testing::files::replace(&engine.path("host.toml"), config.as_bytes()).unwrap();
        Some(Self { rancher, engine, folder, _programs: programs })
    }

    /// Runs an admin verb on that host; returns whether it succeeded, and its output.
    fn nri(&self, words: &[&str]) -> (bool, Value, String) {
        let config = self.engine.path("host.toml").display().to_string();
        let output = self.engine.nri(&[&["--config", config.as_str()], words].concat());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let document = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), document, printed)
    }

    /// Registers; returns whether that changed anything.
    fn install(&self) -> bool {
        let main = self.folder.join("config.toml").display().to_string();
        let binary = env!("CARGO_BIN_EXE_nri-runc");
        let mut words = vec!["install", "containerd", "--distribution", self.rancher.program];
        words.extend(["--engine-config", main.as_str(), "--binary", binary]);
        words.extend(self.rancher.words);
        let (is_well, document, printed) = self.nri(&words);
        assert!(is_well, "{printed}");
        document["changed"] == true
    }

    /// The row of `check` about the registration.
    fn checked(&self) -> (bool, String) {
        let (_, printed, _) = self.nri(&["check"]);
        let mut findings = printed.as_array().unwrap().iter();
        let finding = findings.find(|f| f["check"] == "registered with containerd").unwrap();
        (finding["ok"] == true, finding["detail"].as_str().unwrap().to_owned())
    }

    fn start_again(&mut self) {
        self.engine.containerd.stop();
        self.engine.containerd.run();
    }

    fn rendered(&self) -> String {
        std::fs::read_to_string(self.folder.join("config.toml")).unwrap()
    }

    /// Registers twice, of which only the first has an effect, without changing the rendered file.
    fn registers(&mut self) {
        let rendered = self.rendered();
        assert!(self.install());
        assert!(!self.install(), "a second time it changed something");
        assert_eq!(self.rendered(), rendered, "the rendered file was written");
        assert!(self.folder.join(self.rancher.writes).exists());
        let (is_well, detail) = self.checked();
        assert!(!is_well && detail.contains("has not loaded it yet"), "{detail}");
        self.start_again();
        let (is_well, detail) = self.checked();
        assert!(is_well && detail.contains("has loaded it"), "{detail}");
        assert!(!self.install(), "after a start it changed something");
    }

    /// Checks that a pod with the handler is adjusted, and that the registration stays as long as
    /// the pod exists.
    async fn is_used(&self) {
        let mut daemon = self.engine.start_daemon();
        let _plugin = test_support::scripted_plugin::connect(
            self.engine.path("nri.sock"),
            "10",
            "adjust",
            adjusting(&self.engine),
        );
        self.engine.wait_until("the plugin is synchronized", || {
            self.engine.admin(&["plugins"])[0]["state"] == "synchronized"
        });
        let mut cri = self.engine.client().await;
        let config = cri::pod(self.engine.cgroup(), "web");
        let pod = cri::run_pod_with(&mut cri, config.clone(), "nri-runc").await;
        let app = container("app", &["/bin/sleep", "1000"]);
        let app = cri::create(&mut cri, &pod, config, app).await;
        cri::start(&mut cri, &app).await.unwrap();
        let pid = pid_of(&mut cri, &app).await;
        look_inside(&self.engine, &app, pid);
        let (is_well, _, printed) =
            self.nri(&["uninstall", "--distribution", self.rancher.program]);
        assert!(!is_well && printed.contains("still use"), "{printed}");
        cri::end_container(&mut cri, &app).await;
        cri::end_pod(&mut cri, &pod).await;
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Unregisters; checks that the engine runs without the handler, and that every file is as
    /// before.
    async fn unregisters(&mut self, before: &BTreeMap<PathBuf, String>) {
        self.engine
            .wait_until("no container needs nri-runc", || self.nri(&["uninstall", "containerd"]).0);
        self.start_again();
        assert_eq!(&files(&self.folder), before);
        assert!(!self.engine.path("host/var").exists());
        let mut cri = self.engine.client().await;
        let pod = cri::run_pod(&mut cri, cri::pod(self.engine.cgroup(), "after")).await;
        cri::end_pod(&mut cri, &pod).await;
        let ours = messages::RunPodSandboxRequest {
            config: Some(cri::pod(self.engine.cgroup(), "none")),
            runtime_handler: "nri-runc".to_owned(),
        };
        let error = cri.run_pod_sandbox(ours).await.unwrap_err();
        assert!(error.message().contains("nri-runc"), "{error}");
    }
}

async fn is_registered_used_and_unregistered(rancher: &Rancher, containerd: &Path, runc: &Path) {
    let Some(tools) = host::tools() else { return };
    let Some(mut registered) = Registered::start(rancher, &tools, containerd, runc) else { return };
    let before = files(&registered.folder);
    registered.registers();
    registered.is_used().await;
    registered.unregisters(&before).await;
}

/// Version 2, with the settings of k3s and RKE2 on containerd 1.x.
fn base_2(dir: &Path, _runc: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"
# File generated by {{{{ .Program }}}}. DO NOT EDIT. Use config.toml.tmpl instead.
version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{dir}/containerd.sock"
[ttrpc]
  address = "{dir}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
  sandbox_image = "localhost/busybox:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
{{{{- if not .NodeConfig.NoFlannel }}}}
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{dir}/cni"
  conf_dir = "{dir}/cni"
{{{{end}}}}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = {{{{ .SystemdCgroup }}}}
  Root = "{dir}/runc"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{{{{ .NodeConfig.Containerd.Template }}}}/certs.d"
"#
    )
}

/// Version 3, which imports a folder since 2026.
fn base_3_with_imports(dir: &Path, runc: &Path) -> String {
    let folder = "{{ .NodeConfig.Containerd.Template }}/config-v3.toml.d";
    base_3(dir, runc, &format!("imports = [\"{folder}/*.toml\"]"))
}

fn base_3_without_imports(dir: &Path, runc: &Path) -> String {
    base_3(dir, runc, "")
}

fn base_3(dir: &Path, runc: &Path, imports: &str) -> String {
    let handlers = [("runc", Passes::All)];
    let wanted = Wanted { version: 3, handlers: &handlers, runtime: runc, has_nri: false };
    let text = config::containerd(dir, &wanted);
    let usual = format!("imports = [\"{}/conf.d/*.toml\"]", dir.display());
    assert!(text.contains(&usual));
    let header = "# File generated by {{ .Program }}. DO NOT EDIT.";
    format!("{header}\n{}", text.replace(&usual, imports))
}

#[tokio::test]
async fn k3s_with_containerd_1_6_has_a_template_and_is_restored() {
    let Some(tools) = host::tools() else { return };
    let k3s = Rancher {
        program: "k3s",
        template: "config.toml.tmpl",
        base: base_2,
        words: &[],
        writes: "config.toml.tmpl",
    };
    is_registered_used_and_unregistered(&k3s, &tools, &tools.join("runc")).await;
}

async fn newer(rancher: &Rancher) {
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let Some(runc) = tools::newer("runc-1.5.2").map(|dir| dir.join("runc")) else { return };
    is_registered_used_and_unregistered(rancher, &containerd, &runc).await;
}

#[tokio::test]
async fn live_rke2_with_containerd_2_4_has_a_template_and_is_restored() {
    newer(&Rancher {
        program: "rke2",
        template: "config-v3.toml.tmpl",
        base: base_3_without_imports,
        words: &[],
        writes: "config-v3.toml.tmpl",
    })
    .await;
}

#[tokio::test]
async fn live_k3s_with_containerd_2_4_has_a_drop_in_and_is_restored() {
    newer(&Rancher {
        program: "k3s",
        template: "config-v3.toml.tmpl",
        base: base_3_with_imports,
        words: &["--default"],
        writes: "config-v3.toml.d/50-nri-runc.toml",
    })
    .await;
}
