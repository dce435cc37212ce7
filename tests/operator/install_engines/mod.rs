// SPDX-License-Identifier: Apache-2.0
//! `nri install` and `uninstall` on hosts laid out in folders (`fixtures/install`): the written
//! files, the refusals, that a second call changes nothing, and that `uninstall` restores every
//! byte.

mod distributions;
mod edited;
mod escapes;
mod image;
mod isulad;
mod next_step;
mod node;
mod node_cluster;
mod of_user;
mod own_nri;
mod runtimes;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

const PROGRAM: &str = "/usr/local/bin/nri-runc";
const LEDGERS: &str = "var/lib/nri-runc/engines";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/install")
}

/// Path below the root to its mode, and its content unless it is a folder.
type Tree = BTreeMap<String, (u32, Option<String>)>;

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let mode = std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777;
            if let Ok(target) = std::fs::read_link(&path) {
                tree.insert(name, (mode, Some(format!("-> {}", target.display()))));
            } else if path.is_dir() {
                tree.insert(name, (mode, None));
                dirs.push(path);
            } else {
                tree.insert(name, (mode, Some(std::fs::read_to_string(&path).unwrap())));
            }
        }
    }
    tree
}

struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { temp: tempfile::tempdir().unwrap() };
        place.write(PROGRAM, "#!/bin/sh\n");
        place.mode(PROGRAM, 0o755);
        place
    }

    fn of(case: &Path) -> Self {
        let place = Self::new();
        for (path, (_, text)) in tree(&case.join("before")) {
            if let Some(text) = text {
                place.write(&path, &text);
                let is_program = path.contains("bin/");
                place.mode(&path, if is_program { 0o755 } else { 0o640 });
            }
        }
        place
    }

    fn root(&self) -> &Path {
        self.temp.path()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
    }

    fn mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    fn command(&self, config: &Path) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nri-runc"));
        command.args(["nri", "--config"]).arg(config);
        command
    }

    /// A configuration file with paths below the root only.
    fn configuration(&self) -> PathBuf {
        let config = self.root().join("nri-runc.toml");
        let own = format!("run_dir = \"{}\"\n", self.root().join("run/nri-runc").display());
        nri_runc::testing::files::replace(&config, own.as_bytes()).unwrap();
        config
    }

    fn run(&self, verb: &str, words: &str) -> Output {
        let config = self.configuration();
        let mut command = self.command(&config);
        command.arg(verb).args(words.split_whitespace());
        if verb == "install" && !words.contains("--binary") {
            command.args(["--binary", PROGRAM]);
        }
        let output = command.arg("--root").arg(self.root()).output().unwrap();
        std::fs::remove_file(config).unwrap();
        output
    }

    fn install(&self, words: &str) -> String {
        succeeded(&self.run("install", words))
    }

    fn uninstall(&self, words: &str) -> String {
        succeeded(&self.run("uninstall", words))
    }

    fn refused(&self, verb: &str, words: &str) -> String {
        let before = tree(self.root());
        let output = self.run(verb, words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(tree(self.root()), before, "a refusal changed something");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn cases() -> Vec<(String, PathBuf, String)> {
    let entries = std::fs::read_dir(fixtures()).unwrap().flatten().map(|entry| entry.path());
    let mut cases: Vec<_> = entries
        .filter(|path| path.is_dir())
        .map(|path| {
            let args = std::fs::read_to_string(path.join("args")).unwrap().trim().to_owned();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), path, args)
        })
        .collect();
    cases.sort();
    cases
}

/// The cases that must succeed.
fn good() -> Vec<(String, PathBuf, String)> {
    cases().into_iter().filter(|(name, ..)| !name.contains("-refused-")).collect()
}

fn golden(case: &Path, file: &str, text: &str) {
    let path = case.join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, wanted, "{}", path.display());
}

fn engine(words: &str) -> &str {
    words.split(' ').next().unwrap()
}

/// The differences, without nri-runc's records.
fn new_files(before: &Tree, after: &Tree) -> BTreeMap<String, String> {
    let engines = after.iter().filter(|(path, _)| !path.starts_with(LEDGERS));
    let changed = engines.filter(|(path, now)| before.get(*path) != Some(now));
    changed.filter_map(|(path, (_, text))| Some((path.clone(), text.clone()?))).collect()
}

#[test]
fn each_host_is_changed_or_refused_as_its_folder_describes() {
    assert!(cases().len() >= 60, "{}", cases().len());
    for (name, case, args) in cases() {
        let place = Place::of(&case);
        if name.contains("-refused-") {
            golden(&case, "refused", &place.refused("install", &args));
            continue;
        }
        let before = tree(place.root());
        golden(&case, "said", &place.install(&format!("{args} --dry-run")));
        assert_eq!(tree(place.root()), before, "{name}: a dry run changed something");
        place.install(&args);
        let new = new_files(&before, &tree(place.root()));
        let wanted = tree(&case.join("after"));
        let wanted =
            wanted.into_iter().filter(|(_, (_, text))| text.is_some()).map(|(path, _)| path);
        let mut paths: Vec<String> = wanted.chain(new.keys().cloned()).collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            let text = new.get(&path).map_or("(not written)", String::as_str);
            golden(&case, &format!("after/{path}"), text);
        }
    }
}

#[test]
fn a_second_install_changes_nothing() {
    for (name, case, args) in good() {
        let place = Place::of(&case);
        place.install(&args);
        let once = tree(place.root());
        let printed = place.install(&args);
        assert!(printed.contains("nothing to change"), "{name}: {printed}");
        assert_eq!(tree(place.root()), once, "{name}");
    }
}

#[test]
fn undoing_leaves_every_byte_mode_and_folder_as_it_was() {
    for (name, case, args) in good() {
        let place = Place::of(&case);
        let before = tree(place.root());
        place.install(&args);
        if tree(place.root()) == before {
            let shown = place.refused("uninstall", engine(&args));
            assert!(shown.contains("is not registered with"), "{name}: {shown}");
            continue;
        }
        place.uninstall(engine(&args));
        assert_eq!(tree(place.root()), before, "{name}");
        place.install(&args);
        place.uninstall(engine(&args));
        assert_eq!(tree(place.root()), before, "{name}, the second time");
    }
}

/// Where the engine's own files have lines, an operator adds some around nri-runc's.
#[test]
fn uninstall_keeps_an_edit_made_elsewhere_in_the_file() {
    let mut edited = 0;
    for (name, case, args) in good() {
        let place = Place::of(&case);
        let before = tree(place.root());
        place.install(&args);
        for (path, text) in new_files(&before, &tree(place.root())) {
            let was_there = before.contains_key(&path) && text.ends_with('\n');
            let is_toml =
                path.ends_with(".toml") && !text.starts_with("version = 2\n\n[plugins.\"");
            if !was_there || !is_toml {
                continue;
            }
            let (was, mode) = (before[&path].1.clone().unwrap(), 0o640);
            place.write(&path, &format!("# above\n{text}\n# below\n"));
            place.mode(&path, mode);
            let printed = place.uninstall(engine(&args));
            assert!(printed.contains("edited since"), "{name}: {printed}");
            let mut wanted = before.clone();
            let both = format!("# above\n{was}\n# below\n");
            wanted.insert(path.clone(), (mode, Some(both)));
            assert_eq!(tree(place.root()), wanted, "{name}");
            edited += 1;
            break;
        }
    }
    assert!(edited >= 8, "{edited}");
}

#[test]
fn an_entry_edited_to_name_another_program_is_kept() {
    let mut edited = 0;
    for (name, case, args) in good() {
        let place = Place::of(&case);
        let before = tree(place.root());
        place.install(&args);
        let new = new_files(&before, &tree(place.root())).into_iter();
        let is_template = |path: &str| path.ends_with(".tmpl");
        for (path, text) in new.filter(|(path, text)| text.contains(PROGRAM) && !is_template(path))
        {
            place.write(&path, &text.replace(PROGRAM, "/opt/mine"));
            let shown = place.refused("install", &args);
            let is_named = shown.contains(".runtimes.") || shown.contains(": runtimes.");
            assert!(is_named && shown.contains(" was edited since `install`"), "{name}: {shown}");
            assert_eq!(shown.lines().count(), 1, "{shown}");
            let shown = place.uninstall(engine(&args));
            assert!(shown.contains(" was edited since, and was kept"), "{name}: {shown}");
            assert!(place.read(&path).contains("/opt/mine"), "{name}");
            edited += 1;
        }
    }
    assert!(edited >= 20, "{edited}");
}

const DOCKER: &str = "/etc/docker/daemon.json";

#[test]
fn uninstall_undoes_a_default_that_was_set_later() {
    for engine in ["containerd", "crio", "docker", "podman"] {
        let place = Place::new();
        let before = tree(place.root());
        place.install(engine);
        let printed = place.install(&format!("{engine} --default"));
        assert!(printed.contains("wrote"), "{engine}: {printed}");
        place.uninstall(engine);
        assert_eq!(tree(place.root()), before, "{engine}");
    }
}

#[test]
fn containers_that_name_our_path_keep_the_registration() {
    let record = r#"{"key":{"root":"/r","id":"ours"},"engine":"containerd-cri","state":"running"}"#;
    let task = "/run/containerd/io.containerd.runtime.v2.task";
    let conmon = |words: &str| format!("/usr/bin/conmon\0{}", words.replace(' ', "\0"));
    let crio = conmon("-c ours -n x -r /usr/local/bin/nri-runc --exit-dir /run/crio");
    let podman = conmon("-c ours -r /usr/local/bin/nri-runc --exit-command /usr/bin/podman");
    let cases = [
        ("containerd", "/run/nri-runc/state/containers/a.json".to_owned(), record.to_owned()),
        ("containerd", format!("{task}/k8s.io/ours/runtime"), PROGRAM.to_owned()),
        (
            "docker",
            "/var/lib/docker/containers/ours/hostconfig.json".to_owned(),
            r#"{"Runtime":"nri-runc"}"#.to_owned(),
        ),
        ("crio", "/proc/7/cmdline".to_owned(), crio.clone()),
        ("podman", "/proc/7/cmdline".to_owned(), podman.clone()),
    ];
    for (engine, path, text) in cases {
        let place = Place::new();
        place.install(engine);
        place.write(&path, &text);
        let shown = place.refused("uninstall", engine);
        assert!(shown.contains("1 container still uses") && shown.contains(": ours ("), "{shown}");
        let renamed = place.install(&format!("{engine} --name other --dry-run"));
        let warning =
            "note: 1 container still uses the handler nri-runc, which this installation replaces";
        assert!(renamed.contains(warning), "{renamed}");
        let printed = place.uninstall(&format!("{engine} --force"));
        assert!(printed.contains("still uses /usr/local/bin/nri-runc: keep it"), "{printed}");
        assert!(!place.path(LEDGERS).join(format!("{engine}.json")).exists());
    }
    // IDs by an engine are shortened, and complete in --json.
    let id = "b1".repeat(32);
    let place = Place::new();
    place.install("containerd");
    place.write(&format!("{task}/k8s.io/{id}/runtime"), PROGRAM);
    assert!(place.refused("uninstall", "containerd").contains(": b1b1b1b1b1b1b ("));
    assert!(place.refused("uninstall", "containerd --json").contains(&id));
    // The folders of running containers may be elsewhere.
    let place = Place::new();
    place.write("/etc/containerd/config.toml", "version = 2\nstate = \"/srv/state\"\n");
    place.install("containerd");
    place.write("/srv/state/io.containerd.runtime.v2.task/k8s.io/there/runtime", PROGRAM);
    assert!(place.refused("uninstall", "containerd").contains(": there ("));
    // Containers of other engines and of other runtimes do not matter here.
    let plain = record.replace("\"state\"", "\"by_plain_runtime\":true,\"state\"");
    for (engine, path, text) in [
        ("crio", "/proc/7/cmdline", podman),
        ("podman", "/proc/7/cmdline", crio),
        (
            "docker",
            "/var/lib/docker/containers/a/hostconfig.json",
            r#"{"Runtime":"runc"}"#.to_owned(),
        ),
        ("docker", "/run/nri-runc/state/containers/a.json", record.to_owned()),
        ("containerd", "/run/nri-runc/state/containers/a.json", plain),
        ("containerd", &format!("{task}/k8s.io/a/runtime"), "/usr/bin/runc".to_owned()),
    ] {
        let place = Place::new();
        place.install(engine);
        place.write(path, &text);
        assert!(place.uninstall(engine).contains("removed"));
    }
}

#[test]
fn a_record_without_bundle_and_state_keeps_no_registration() {
    let record = r#"{"key":{"root":"/r","id":"ours"},"engine":"containerd-cri","state":"running"}"#;
    for (bundle, state, is_seen) in
        [(false, false, false), (true, false, true), (false, true, true)]
    {
        let place = Place::new();
        place.install("containerd");
        let record = record.replace("{\"root\":\"/r\"", "{\"root\":\"/run/r\"");
        let record = record.replace("\"state\"", "\"bundle\":\"/run/b/ours\",\"state\"");
        place.write("/run/nri-runc/state/containers/a.json", &record);
        for (folder, is_there) in [("/run/b", bundle), ("/run/r", state)] {
            std::fs::create_dir_all(place.path(folder)).unwrap();
            if is_there {
                std::fs::create_dir(place.path(folder).join("ours")).unwrap();
            }
        }
        let code = place.run("uninstall", "containerd").status.code();
        assert_eq!(code, Some(i32::from(is_seen)), "bundle {bundle}, state {state}");
    }
}

#[test]
fn a_link_is_not_replaced_and_no_file_is_left() {
    let place = Place::new();
    place.write("/srv/daemon.json", "{}\n");
    std::fs::create_dir_all(place.path("/etc/docker")).unwrap();
    symlink("/srv/daemon.json", place.path(DOCKER)).unwrap();
    let shown = place.refused("install", "docker");
    assert!(shown.contains("symbolic link") && shown.contains("manually"), "{shown}");
}

#[test]
fn an_interrupted_install_can_be_undone_and_repeated() {
    let place = Place::new();
    place.write(DOCKER, "{}\n");
    place.install("docker");
    let done = tree(place.root());
    // The record exists, but the file is not written yet.
    place.write(DOCKER, "{}\n");
    place.install("docker");
    assert_eq!(tree(place.root()), done);
    place.write(DOCKER, "{}\n");
    place.uninstall("docker");
    assert_eq!(place.read(DOCKER), "{}\n");
    assert!(!place.path("/var/lib/nri-runc").exists());
}

#[test]
fn an_unreadable_record_stops_install_and_uninstall() {
    let place = Place::new();
    place.write(&format!("{LEDGERS}/docker.json"), "{");
    for verb in ["install", "uninstall"] {
        assert!(place.refused(verb, "docker").contains("not a valid undo record"));
    }
}

#[test]
fn install_json_prints_one_document() {
    let place = Place::new();
    let printed: serde_json::Value = serde_json::from_str(&place.install("docker --json")).unwrap();
    assert_eq!((&printed["engine"], &printed["changed"]), (&"docker".into(), &true.into()));
    assert_eq!(printed["next"], "systemctl reload docker");
    assert_eq!(printed["files"][0]["path"], DOCKER);
    let again: serde_json::Value = serde_json::from_str(&place.install("docker --json")).unwrap();
    assert_eq!((&again["changed"], &again["next"]), (&false.into(), &"".into()));
    assert_eq!(printed["use"], serde_json::json!(["docker run --runtime nri-runc IMAGE"]));
    assert_eq!(again["use"], printed["use"], "how it is used is said again");
}

#[test]
fn install_ends_by_showing_how_to_use_the_registration() {
    for (words, wanted) in [
        ("docker", "use:  docker run --runtime nri-runc IMAGE\n"),
        ("docker --default", "use:  docker run IMAGE\n"),
        ("docker --name mine", "use:  docker run --runtime mine IMAGE\n"),
        ("podman", "use:  podman --runtime nri-runc run IMAGE\n"),
        ("podman --default", "use:  podman run IMAGE\n"),
        (
            "crio",
            "use:  runtimeClassName: nri-runc in the pod's spec, after: echo '{\"apiVersion\":\"node.k8s.io/v1\",\"kind\":\"RuntimeClass\",\"metadata\":{\"name\":\"nri-runc\"},\"handler\":\"nri-runc\"}' | kubectl apply -f -\nuse:  crictl runp --runtime nri-runc POD.json\n",
        ),
        ("crio --default", "use:  every pod without a runtimeClassName\n"),
        (
            "containerd",
            "use:  crictl runp --runtime nri-runc POD.json\nuse:  ctr run --runc-binary /usr/local/bin/nri-runc IMAGE ID",
        ),
        (
            "containerd --name Mine_1",
            "use:  a Kubernetes RuntimeClass cannot use the handler name Mine_1",
        ),
        ("nerdctl", "use:  nerdctl run --runtime /usr/local/bin/nri-runc IMAGE\n"),
    ] {
        let place = Place::new();
        let shown = place.install(words);
        assert!(shown.contains(wanted), "{words}: {shown}");
        let dry = place.install(&format!("{words} --dry-run"));
        assert!(!dry.contains("use:"), "{dry}");
        if words != "nerdctl" {
            let engine = engine(words);
            assert!(!place.uninstall(engine).contains("use:"), "{engine}");
        }
    }
}

#[test]
fn dockers_containers_are_found_by_its_command_line() {
    for (line, is_seen) in [
        ("dockerd --data-root /srv/docker", true),
        ("/usr/sbin/dockerd -D --data-root=/srv/docker", true),
        ("dockerd --config-file=/etc/docker/daemon.json -g /srv/docker", true),
        ("dockerd --config-file /home/me/daemon.json --data-root /srv/docker", false),
        ("other --data-root /srv/docker", false),
        ("dockerd --data-root", false),
    ] {
        let place = Place::new();
        place.install("docker");
        place.write("/proc/7/cmdline", &line.replace(' ', "\0"));
        let there = "/srv/docker/containers/ours/hostconfig.json";
        place.write(there, r#"{"Runtime": "nri-runc"}"#);
        let output = place.run("uninstall", "docker");
        assert_eq!(output.status.code(), Some(i32::from(is_seen)), "{line}");
    }
}

#[test]
fn removing_a_runtime_needs_a_restart_of_docker() {
    let place = Place::new();
    let next = |words: &str| {
        let (verb, rest) = words.split_once(' ').unwrap();
        let output = place.run(verb, rest);
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (printed["next"].as_str().unwrap().to_owned(), printed["notes"].to_string())
    };
    let (reload, restart) = ("systemctl reload docker", "systemctl restart docker");
    let (added, notes) = next("install docker --default --json");
    assert_eq!((added.as_str(), notes.contains("a reload keeps")), (reload, false));
    let (less, notes) = next("install docker --json");
    assert_eq!((less.as_str(), notes.contains("a reload keeps")), (restart, true));
    let settings = std::fs::read_to_string(place.root().join(&DOCKER[1..])).unwrap();
    assert!(!settings.contains("default-runtime"), "{settings}");
    let (gone, notes) = next("uninstall docker --json");
    assert_eq!((gone.as_str(), notes.contains("live-restore")), (restart, true));
}

#[test]
fn only_root_can_read_the_undo_record() {
    let place = Place::new();
    place.write(DOCKER, "{\"secret\": 1}\n");
    place.install("docker");
    let (mode, _) = tree(place.root())[&format!("{LEDGERS}/docker.json")].clone();
    assert_eq!(mode, 0o600);
}

#[test]
fn an_unknown_engine_is_a_usage_error() {
    let output = Place::new().run("install", "rkt");
    assert_eq!(output.status.code(), Some(2));
}

/// A plugin socket on which this test listens.
fn socket(place: &Place) -> PathBuf {
    let path = place.path("/var/run/nri/nri.sock");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    path
}

#[test]
fn a_listener_on_the_plugin_socket_is_named_and_kept() {
    let place = Place::new();
    let path = socket(&place);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let shown = place.install("containerd");
    let us = format!("(process {}) listens on /var/run/nri/nri.sock: plugins", std::process::id());
    assert!(shown.contains(&us), "{shown}");
    // A second call changes nothing, and reports the same.
    assert!(place.install("containerd").contains(&us));
    drop(listener);
    assert!(path.exists(), "the socket of another process was removed");
}

#[test]
fn a_socket_without_a_listener_is_not_reported() {
    let place = Place::new();
    let path = socket(&place);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let shown = place.install("containerd");
    assert!(!shown.contains("listens on"), "{shown}");
    assert!(path.exists());
}
