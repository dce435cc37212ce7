// SPDX-License-Identifier: Apache-2.0
//! `install.sh` into a private folder: the files that it installs, and that it removes exactly
//! those.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use test_support::skip;

struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { temp: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(place.root().join("etc/other")).unwrap();
        place.write("etc/other/file", "somebody else's");
        place.stub("binary", "echo nri-runc nri 1.0");
        place
    }

    /// A script in place of a program.
    fn stub(&self, name: &str, script: &str) -> String {
        let path = self.temp.path().join(name);
        test_support::program::put(&path, format!("#!/bin/sh\n{script}\n").as_bytes());
        path.display().to_string()
    }

    fn program(&self) -> PathBuf {
        self.root().join("usr/local/bin/nri-runc")
    }

    /// The versions that the installed program and the replaced one report.
    fn versions(&self) -> [Option<String>; 2] {
        let previous = self.program().with_file_name("nri-runc.previous");
        [self.program(), previous].map(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(text.lines().nth(1)?.trim_start_matches("echo nri-runc nri ").to_owned())
        })
    }

    fn root(&self) -> PathBuf {
        self.temp.path().join("root")
    }

    fn write(&self, path: &str, text: &str) {
        std::fs::create_dir_all(self.root()).unwrap();
        nri_runc::testing::files::replace(&self.root().join(path), text.as_bytes()).unwrap();
    }

    fn run(&self, words: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        let mut command = std::process::Command::new("sh");
        command.arg(script).arg("--destdir").arg(self.root()).args(words).output().unwrap()
    }

    fn install(&self, more: &[&str]) -> String {
        let binary = self.temp.path().join("binary").display().to_string();
        let words = [&["--binary", &binary, "--no-units"][..], more].concat();
        let output = self.run(&words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn tree(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut tree = BTreeMap::new();
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    tree.insert(path.clone(), None);
                    dirs.push(path);
                } else {
                    tree.insert(path.clone(), Some(std::fs::read(&path).unwrap()));
                }
            }
        }
        tree
    }
}

#[test]
fn installed_files_are_removed_without_a_trace() {
    let place = Place::new();
    let before = place.tree();
    place.install(&[]);
    assert!(place.root().join("usr/local/bin/nri-runc").exists());
    assert!(place.root().join("etc/nri-runc/config.toml").exists());
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn a_sample_plugin_next_to_the_binary_is_installed() {
    let place = Place::new();
    let before = place.tree();
    let sample = place.root().join("usr/local/lib/nri-runc/plugins/resource-defaults");
    place.install(&[]);
    assert!(!sample.exists(), "there is none beside the binary");
    assert!(place.run(&["--uninstall"]).status.success());
    let beside = place.temp.path().join("resource-defaults");
    test_support::program::put(&beside, b"#!/bin/sh\n");
    place.install(&[]);
    assert_eq!(sample.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(!place.root().join("opt/nri").exists());
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn a_second_installation_changes_nothing() {
    let place = Place::new();
    let before = place.tree();
    place.install(&[]);
    let once = place.tree();
    let printed = place.install(&[]);
    assert!(printed.contains("unchanged"), "{printed}");
    assert_eq!(place.tree(), once);
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn the_default_configuration_can_be_read() {
    let place = Place::new();
    place.install(&["--units"]);
    let file = place.root().join("etc/nri-runc/config.toml");
    let loaded = nri_runc::testing::config::load(Some(&file));
    assert_eq!(loaded.problems, []);
    assert!(!loaded.config.autostart, "systemd runs the daemon then");
    let unit = place.root().join("etc/systemd/system/nri-runc.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/nri-runc nri daemon\n"), "{unit}");
    assert!(unit.contains("/bin/nri-runc nri reload\n"), "{unit}");
}

#[test]
fn units_are_installed_with_the_command_that_enables_them() {
    let place = Place::new();
    let printed = place.install(&["--units"]);
    assert!(
        printed.contains("systemctl enable --now nri-runc.socket nri-runc.service"),
        "{printed}"
    );
    let printed = Place::new().install(&[]);
    assert!(!printed.contains("systemctl"), "a wrapper starts the daemon then: {printed}");
}

#[test]
fn optional_hooks_name_the_program_and_are_removed() {
    let place = Place::new();
    let before = place.tree();
    let folder = place.root().join("usr/share/containers/oci/hooks.d");
    place.install(&[]);
    assert!(!folder.exists());
    place.install(&["--hooks", "--prefix", "/opt/x"]);
    let mut stages = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let text = std::fs::read(entry.path()).unwrap();
        let hook: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&hook["version"], &hook["when"]["always"]), (&"1.0.0".into(), &true.into()));
        assert_eq!(hook["hook"]["path"], "/opt/x/bin/nri-runc");
        assert_eq!(hook["hook"]["args"][3], hook["stages"][0]);
        stages.push(hook["stages"][0].as_str().unwrap().to_owned());
    }
    stages.sort();
    assert_eq!(stages, ["createRuntime", "poststart", "poststop"]);
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn hooks_go_to_the_given_folder_and_an_edited_one_is_kept() {
    let place = Place::new();
    place.install(&["--hooks-dir", "/etc/containers/oci/hooks.d"]);
    let edited = "etc/containers/oci/hooks.d/90-nri-runc-poststop.json";
    place.write(edited, "{}");
    assert!(
        place
            .install(&["--hooks-dir", "/etc/containers/oci/hooks.d"])
            .contains("kept (locally modified): ")
    );
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(std::fs::read_to_string(place.root().join(edited)).unwrap(), "{}");
    let binary = place.temp.path().join("binary").display().to_string();
    let relative = place.run(&["--binary", &binary, "--no-units", "--hooks-dir", "hooks"]);
    assert!(String::from_utf8_lossy(&relative.stderr).contains("absolute path"));
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = Place::new();
    let before = place.tree();
    let printed = place.install(&["--dry-run"]);
    assert!(printed.contains("would write"), "{printed}");
    assert_eq!(place.tree(), before);
}

#[test]
fn an_edited_configuration_is_kept_and_reported() {
    let place = Place::new();
    place.install(&[]);
    place.write("etc/nri-runc/config.toml", "autostart = false\n");
    assert!(place.install(&[]).contains("kept (locally modified): "));
    let output = place.run(&["--uninstall"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("kept (locally modified): "));
    let text = std::fs::read_to_string(place.root().join("etc/nri-runc/config.toml")).unwrap();
    assert_eq!(text, "autostart = false\n");
}

/// Executable files that are not nri-runc: text, another program, an eighth of a program, one for another
/// processor, one that fails, and one with other output.
#[test]
fn a_file_that_does_not_answer_as_nri_runc_changes_nothing() {
    let place = Place::new();
    place.install(&[]);
    let before = place.tree();
    let built = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
    let mut foreign = built[..4096].to_vec();
    foreign[18] = 0xf3; // e_machine
    let files: [(&str, &[u8]); 6] = [
        ("text", b"nothing to execute\n"),
        ("truncated", &built[..built.len() / 8]),
        ("foreign", &foreign),
        ("runtime", b"#!/bin/sh\necho 'runc version 1.1.5'\n"),
        ("failing", b"#!/bin/sh\necho nri-runc nri 1.0; exit 3\n"),
        ("empty", b""),
    ];
    for (name, bytes) in files {
        let path = place.temp.path().join(name);
        test_support::program::put(&path, bytes);
        for more in [&[][..], &["--dry-run"]] {
            let words = ["--binary", &path.display().to_string(), "--no-units"];
            let output = place.run(&[&words[..], more].concat());
            let shown = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{name}: {shown}");
            assert!(
                shown.contains("does not answer as nri-runc on this machine"),
                "{name}: {shown}"
            );
            assert!(shown.contains("nothing was changed") && shown.lines().count() == 1, "{shown}");
        }
        assert_eq!(place.tree(), before, "{name}");
    }
}

#[test]
fn unchecked_installs_a_program_that_cannot_run_into_a_folder() {
    let place = Place::new();
    let foreign = place.stub("foreign", "exit 126");
    let words = ["--binary", &foreign, "--no-units", "--unchecked"];
    let output = place.run(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(place.program().exists());
    let mut without_folder = std::process::Command::new("sh");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    let output = without_folder.arg(script).args(["--unchecked", "--dry-run"]).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && shown.contains("--unchecked requires --destdir"),
        "{shown}"
    );
}

#[test]
fn the_previous_program_stays_and_a_rollback_swaps_both() {
    let version = |text: &str| Some(text.to_owned());
    let place = Place::new();
    let before = place.tree();
    place.install(&[]);
    assert_eq!(place.versions(), [version("1.0"), None], "there was none before");
    let newer = place.stub("newer", "echo nri-runc nri 2.0");
    for _again in 0..2 {
        assert!(place.run(&["--binary", &newer, "--no-units"]).status.success());
        assert_eq!(place.versions(), [version("2.0"), version("1.0")]);
    }
    let dry = place.run(&["--rollback", "--dry-run"]);
    assert!(dry.status.success());
    assert_eq!(place.versions(), [version("2.0"), version("1.0")]);
    for [is, other] in [["1.0", "2.0"], ["2.0", "1.0"], ["1.0", "2.0"]] {
        let output = place.run(&["--rollback"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.contains(&format!("rolled back to nri-runc nri {is}")), "{shown}");
        assert_eq!(place.versions(), [version(is), version(other)]);
    }
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn a_rollback_to_nothing_or_to_a_broken_file_changes_nothing() {
    let place = Place::new();
    let refused = |why: &str| {
        let before = place.tree();
        let output = place.run(&["--rollback"]);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && shown.contains(why), "{shown}");
        assert_eq!(place.tree(), before);
    };
    refused("nri-runc is not installed");
    place.install(&[]);
    refused("there is no previous program");
    let newer = place.stub("newer", "echo nri-runc nri 2.0");
    assert!(place.run(&["--binary", &newer, "--no-units"]).status.success());
    let previous = place.program().with_file_name("nri-runc.previous");
    test_support::program::put(&previous, b"#!/bin/sh\nexit 1\n");
    refused("does not answer as nri-runc");
}

/// A checkout with built files: the pages are found, and the missing ones are named.
#[test]
fn a_checkout_installs_built_files_and_names_missing_ones() {
    let place = Place::new();
    let checkout = place.temp.path().join("checkout");
    std::fs::create_dir_all(&checkout).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    test_support::program::copy(&script, &checkout.join("install.sh"));
    let install = || {
        let mut command = std::process::Command::new("sh");
        command.arg(checkout.join("install.sh")).arg("--no-units");
        command.arg("--destdir").arg(place.root());
        command.arg("--binary").arg(place.temp.path().join("binary"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = install();
    assert!(shown.contains("left out    the sample plugin (make release WITH_SAMPLE=1"), "{shown}");
    assert!(shown.contains("man pages and completions (make manual)"), "{shown}");
    for file in [
        "man/nri-runc.8",
        "completions/nri-runc.bash",
        "completions/_nri-runc",
        "completions/nri-runc.fish",
    ] {
        let path = checkout.join("target/manual").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&path, b"text").unwrap();
    }
    place.stub("resource-defaults", "");
    let shown = install();
    assert!(!shown.contains("left out"), "{shown}");
    for file in ["share/man/man8/nri-runc.8", "lib/nri-runc/plugins/resource-defaults"] {
        assert!(place.root().join("usr/local").join(file).exists(), "{file}");
    }
}

#[test]
fn a_missing_binary_changes_nothing() {
    let place = Place::new();
    let before = place.tree();
    let output = place.run(&["--binary", "/nowhere/nri-runc"]);
    assert!(!output.status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn a_program_too_large_for_the_disk_leaves_no_partial_file() {
    let place = Place::new();
    place.install(&[]);
    let before = place.tree();
    let large =
        place.stub("large", &format!("echo nri-runc nri 2.0\nexit\n{}", "#".repeat(1 << 20)));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    let mut command = std::process::Command::new("sh");
    // Simulates a full disk: no file can become larger than 50 KiB.
    command.args(["-c", "trap '' XFSZ; ulimit -f 100; exec sh \"$@\"", "sh"]).arg(script);
    command.arg("--destdir").arg(place.root()).args(["--binary", &large, "--no-units"]);
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), shown.lines().count()), (Some(1), 1), "{shown}");
    assert!(shown.contains("cannot write") && shown.contains("File too large"), "{shown}");
    let half = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "new");
    assert_eq!(place.tree().keys().filter(|path| half(path)).count(), 0);
    assert_eq!(place.tree().get(&place.program()), before.get(&place.program()));
}

#[test]
fn an_engine_is_unregistered_before_the_program_is_removed() {
    let place = Place::new();
    let before = place.tree();
    let program = env!("CARGO_BIN_EXE_nri-runc");
    let words = ["--binary", program, "--no-units", "--engine", "docker", "--default"];
    let output = place.run(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = place.root().join("etc/docker/daemon.json");
    let printed: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(printed["runtimes"]["nri-runc"]["path"], "/usr/local/bin/nri-runc");
    assert_eq!(printed["default-runtime"], "nri-runc");
    let user = place.root().join("var/lib/docker/containers/ours");
    std::fs::create_dir_all(&user).unwrap();
    place.write("var/lib/docker/containers/ours/hostconfig.json", r#"{"Runtime":"nri-runc"}"#);
    let output = place.run(&["--uninstall"]);
    assert!(!output.status.success() && place.root().join("usr/local/bin/nri-runc").exists());
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was changed"));
    std::fs::remove_dir_all(place.root().join("var/lib/docker")).unwrap();
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

/// A CRI-O of an image is treated as one that serves NRI itself.
#[test]
fn an_engine_with_its_own_nri_needs_a_decision() {
    let place = Place::new();
    std::fs::create_dir_all(place.root().join("usr/bin")).unwrap();
    test_support::program::put(&place.root().join("usr/bin/crio"), b"");
    let before = place.tree();
    let program = env!("CARGO_BIN_EXE_nri-runc");
    let words = ["--binary", program, "--no-units", "--engine", "crio"];
    let file = place.root().join("etc/crio/crio.conf.d/50-nri-runc.conf");
    let output = place.run(&words);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && shown.contains("not registered with crio"), "{shown}");
    assert!(shown.contains("--take-over-nri") && shown.contains("--beside"), "{shown}");
    assert!(!file.exists());
    for (option, is_off) in [("--take-over-nri", true), ("--beside=/run/x.sock", false)] {
        let dry = place.run(&[&words[..], &[option, "--dry-run"]].concat());
        let shown = String::from_utf8_lossy(&dry.stdout).into_owned();
        assert!(shown.contains(&format!("nri install crio  {option}\n")), "{shown}");
        let output = place.run(&[&words[..], &[option]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!(written.contains("enable_nri = false"), is_off, "{option}");
        let beside = place.root().join("etc/nri-runc/config.d/50-beside-crio.toml");
        assert_eq!(beside.exists(), !is_off, "{option}");
        assert!(place.run(&["--uninstall"]).status.success());
        assert_eq!(place.tree(), before, "{option}");
    }
}

#[test]
fn uninstalling_two_engines_in_any_order_leaves_no_folder() {
    let place = Place::new();
    std::fs::create_dir_all(place.root().join("etc/containers")).unwrap();
    let before = place.tree();
    let program = env!("CARGO_BIN_EXE_nri-runc");
    for engines in [["docker", "podman"], ["podman", "docker"]] {
        let words = ["--binary", program, "--no-units", "--engine", engines[0], "--engine"];
        let output = place.run(&[&words[..], &[engines[1]]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(place.root().join("var/lib/nri-runc/engines/docker.json").exists());
        assert!(place.run(&["--uninstall"]).status.success());
        assert_eq!(place.tree(), before, "{engines:?}");
    }
}

#[test]
fn an_engine_that_refuses_keeps_the_others_registered_too() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_nri-runc");
    let engines = ["--engine", "containerd", "--engine", "docker"];
    let output = place.run(&[&["--binary", program, "--no-units"][..], &engines].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    place.write("etc/docker/daemon.json", "{ \"debug\": ");
    let before = place.tree();
    let output = place.run(&["--uninstall"]);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{shown}");
    assert!(shown.contains("docker is still registered; nothing was changed"), "{shown}");
    assert_eq!(place.tree(), before);
}

/// The second engine's file becomes unremovable after the check: by a folder of its name.
#[test]
fn an_interrupted_removal_names_the_rest_and_can_continue() {
    let place = Place::new();
    let before = place.tree();
    let program = env!("CARGO_BIN_EXE_nri-runc");
    let engines = ["--engine", "docker", "--engine", "podman"];
    let output = place.run(&[&["--binary", program, "--no-units"][..], &engines].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The installed program fails in one case, and is unchanged in every other.
    let (path, real) =
        (place.root().join("usr/local/bin/nri-runc"), place.temp.path().join("real"));
    std::fs::rename(&path, &real).unwrap();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *uninstall\\ podman*dry-run) ;; *uninstall\\ podman*) exit 1 ;; esac\nexec {} \"$@\"\n",
        real.display()
    );
    test_support::program::put(&path, script.as_bytes());
    let output = place.run(&["--uninstall"]);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{shown}");
    assert!(
        shown.contains("unregistered: docker; still registered: podman; no file was removed"),
        "{shown}"
    );
    std::fs::rename(&real, &path).unwrap();
    assert!(place.run(&["--uninstall"]).status.success());
    assert_eq!(place.tree(), before);
}

#[test]
fn an_unknown_option_changes_nothing() {
    let place = Place::new();
    let before = place.tree();
    let output = place.run(&["--force"]);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(shown, "install.sh: unknown option --force (install.sh --help lists the options)\n");
    assert_eq!(place.tree(), before);
}

#[test]
fn uninstalling_without_an_installation_is_reported() {
    let place = Place::new();
    let output = place.run(&["--uninstall"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("nri-runc is not installed"));
}

#[test]
fn make_install_honours_prefix_and_destdir_and_is_undone() {
    let place = Place::new();
    let before = place.tree();
    let make = |target: &str| {
        let mut command = std::process::Command::new("make");
        command.arg("-C").arg(env!("CARGO_MANIFEST_DIR")).arg(target).env_remove("MAKEFLAGS");
        command.arg(format!("DESTDIR={}", place.root().display())).arg("PREFIX=/opt/x");
        command.arg(format!("BINARY={}", place.temp.path().join("binary").display()));
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
        shown
    };
    let shown = make("install");
    assert!(place.root().join("opt/x/bin/nri-runc").exists(), "{shown}");
    assert!(place.root().join("etc/nri-runc/config.toml").exists());
    assert!(!place.root().join("usr").exists() && !place.root().join("etc/systemd").exists());
    assert!(!shown.contains("to register"), "the engines of this machine are not asked: {shown}");
    assert!(!make("uninstall").contains("daemon"), "nothing below a folder runs");
    assert_eq!(place.tree(), before);
}

/// Installs, starts the daemon, uninstalls; with private mounts, so that the machine's folders stay
/// unchanged. Prints the daemon's result.
const UNINSTALL: &str = include_str!("../../fixtures/uninstall.sh");

#[test]
fn uninstalling_ends_the_daemon() {
    let place = Place::new();
    let mut probe = std::process::Command::new("unshare");
    if !probe.args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        return skip::machine_lacks("mounts of its own are not to be had here");
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", UNINSTALL]);
    command.env("T", place.temp.path()).env("B", env!("CARGO_BIN_EXE_nri-runc"));
    command.env("S", Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh"));
    let output = command.env_remove("NRI_RUNC_CONFIG").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "would stop  the daemon",
        "stopped     the daemon",
        "it ended in order",
        "and the program is gone",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}
