// SPDX-License-Identifier: Apache-2.0
//! `--root` on an image whose author wants to read or write the host's files: symbolic links in
//! place of folders and files, `..` in paths and records. Nothing outside is changed or printed;
//! links that stay inside are followed, as the image would resolve them.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;

use super::{DOCKER, LEDGERS, PROGRAM, Place, Tree, succeeded, tree};

const SECRET: &str = "s3cr3t-of-the-host";

/// A folder of the host beside the image, with files that every engine would read.
struct Outside {
    temp: tempfile::TempDir,
    before: Tree,
}

impl Outside {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let toml = format!("# {SECRET}\n");
        let json = format!("{{\"labels\": [\"{SECRET}\"]}}\n");
        for (path, text) in [
            ("docker/daemon.json", &json),
            ("daemon.json", &json),
            ("containerd/config.toml", &format!("version = 2\n{toml}")),
            ("config.toml", &format!("version = 2\n{toml}")),
            ("crio/crio.conf", &toml),
            ("crio/crio.conf.d/10-host.conf", &toml),
            ("crio.conf", &toml),
            ("containers/containers.conf", &toml),
            ("containers/containers.conf.d/10-host.conf", &toml),
            ("nri-runc/engines/docker.json", &format!("{{{SECRET}")),
            ("engines/docker.json", &format!("{{{SECRET}")),
            ("docker.json", &format!("{{{SECRET}")),
            ("10-host.conf", &toml),
            ("a/hostconfig.json", &"{\"Runtime\": \"nri-runc\"}".to_owned()),
        ] {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            nri_runc::testing::files::replace(&path, text.as_bytes()).unwrap();
        }
        std::fs::create_dir(temp.path().join("empty")).unwrap();
        let before = tree(temp.path());
        Self { temp, before }
    }

    /// The path of the folder in a link: from the host's root, and relative to the link.
    fn targets(&self) -> [String; 2] {
        let path = self.temp.path().display().to_string();
        [path.clone(), format!("../../../../../../../..{path}")]
    }

    #[track_caller]
    fn is_untouched(&self, case: &str) {
        assert_eq!(tree(self.temp.path()), self.before, "{case}");
    }
}

const ENGINES: [&str; 4] = ["containerd", "crio", "docker", "podman"];

/// Runs both verbs with every option that reads or writes; checks that nothing outside is changed
/// or shown.
#[track_caller]
fn stays_inside(place: &Place, outside: &Outside, case: &str) {
    for engine in ENGINES {
        for (verb, words) in [
            ("install", format!("{engine} --dry-run")),
            ("install", format!("{engine} --default")),
            ("uninstall", format!("{engine} --dry-run")),
            ("uninstall", engine.to_owned()),
        ] {
            let output = place.run(verb, &words);
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8_lossy(&printed);
            assert!(!printed.contains(SECRET), "{case}: {verb} {words}: {printed}");
            outside.is_untouched(&format!("{case}: {verb} {words}: {printed}"));
        }
    }
}

#[test]
fn links_to_folders_outside_of_the_root_are_not_followed() {
    for link in [
        "etc",
        "etc/docker",
        "etc/containerd",
        "etc/crio",
        "etc/crio/crio.conf.d",
        "etc/containers",
        "etc/containers/containers.conf.d",
        "var",
        "var/lib/nri-runc",
        "var/lib/nri-runc/engines",
    ] {
        let outside = Outside::new();
        for target in outside.targets() {
            let place = Place::new();
            let path = place.path(link);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(&target, &path).unwrap();
            stays_inside(&place, &outside, &format!("{link} -> {target}"));
        }
    }
}

#[test]
fn links_to_files_outside_of_the_root_are_not_read() {
    for (link, file) in [
        ("etc/docker/daemon.json", "daemon.json"),
        ("etc/containerd/config.toml", "config.toml"),
        ("etc/crio/crio.conf", "crio.conf"),
        ("etc/crio/crio.conf.d/10-x.conf", "10-host.conf"),
        ("etc/containers/containers.conf.d/10-x.conf", "10-host.conf"),
        ("var/lib/nri-runc/engines/docker.json", "docker.json"),
    ] {
        let outside = Outside::new();
        for target in outside.targets() {
            let place = Place::new();
            let path = place.path(link);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(format!("{target}/{file}"), &path).unwrap();
            stays_inside(&place, &outside, &format!("{link} -> {target}/{file}"));
        }
    }
}

#[test]
fn paths_with_dots_in_options_imports_and_records_stay_inside() {
    let outside = Outside::new();
    let [_, up] = outside.targets();
    let place = Place::new();
    let output = place.run("install", &format!("docker --engine-config /{up}/daemon.json"));
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!printed.contains(SECRET), "{printed}");
    outside.is_untouched("--engine-config");

    let place = Place::new();
    let imports = format!("version = 2\nimports = [\"/{up}/*.toml\", \"{up}/config.toml\"]\n");
    place.write("/etc/containerd/config.toml", &imports);
    stays_inside(&place, &outside, "imports");

    // A record that the image's author wrote.
    let place = Place::new();
    let victim = format!("/{up}/daemon.json");
    let now = std::fs::read_to_string(outside.temp.path().join("daemon.json")).unwrap();
    let record = serde_json::json!({
        "schema": 1, "name": "nri-runc", "binary": PROGRAM, "default": false, "main": null,
        "files": [{"path": victim, "before": "owned", "after": now}],
        "folders": [format!("/{up}/empty")],
    });
    place.write(&format!("{LEDGERS}/docker.json"), &record.to_string());
    succeeded(&place.run("uninstall", "docker"));
    outside.is_untouched("a record's paths");
}

#[test]
fn containers_outside_of_the_root_do_not_count() {
    let outside = Outside::new();
    for target in outside.targets() {
        let place = Place::new();
        place.install("docker");
        let containers = place.path("/var/lib/docker/containers");
        std::fs::create_dir_all(containers.parent().unwrap()).unwrap();
        symlink(&target, &containers).unwrap();
        assert!(place.uninstall("docker").contains("removed"));
        outside.is_untouched("containers");
    }
}

#[test]
fn links_that_stay_inside_are_followed_as_the_image_sees_them() {
    for target in ["/usr/etc", "usr/etc", "../../../usr/etc"] {
        let place = Place::new();
        place.write("/usr/etc/docker/daemon.json", "{}\n");
        symlink(target, place.path("/etc")).unwrap();
        let before = tree(place.root());
        place.install("docker --default");
        let new = place.read("/usr/etc/docker/daemon.json");
        assert!(new.contains(PROGRAM), "{target}: {new}");
        place.uninstall("docker");
        assert_eq!(tree(place.root()), before, "{target}");
    }
    // The program may be a link in the image too.
    let place = Place::new();
    symlink(PROGRAM, place.path("/usr/local/bin/link")).unwrap();
    place.install("docker --binary /usr/local/bin/link");
    assert!(place.read(DOCKER).contains("/usr/local/bin/link"));
    let place = Place::new();
    symlink("/bin/sh", place.path("/usr/local/bin/link")).unwrap();
    let printed = place.refused("install", "docker --binary /usr/local/bin/link");
    assert!(
        printed.contains("/usr/local/bin/link"),
        "the host's /bin/sh is not the image's: {printed}"
    );
}

#[test]
fn a_fifo_in_an_image_is_refused_without_waiting() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("/etc/docker")).unwrap();
    nix::unistd::mkfifo(&place.path(DOCKER), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let output = place.run("install", "docker");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("regular file"), "{printed}");
}

/// Makes openat2 unknown to a process and its children, as before Linux 5.6.
#[expect(unsafe_code, reason = "a filter of system calls has no safe interface")]
fn without_openat2() -> std::io::Result<()> {
    use nix::libc;
    const OPENAT2: u32 = 437;
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    let errno = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, OPENAT2),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, errno),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers; it changes nothing but what this process may gain.
    let no_more = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program and its filter outlive the call, which copies them.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if no_more == 0 && set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
#[expect(unsafe_code, reason = "see without_openat2")]
fn without_openat2_only_a_root_option_is_refused() {
    let place = Place::new();
    let before = tree(place.root());
    let config = place.configuration();
    let call = |words: &[&str]| {
        let mut command = place.command(&config);
        command.args(words);
        // SAFETY: it only makes system calls, allocates nothing and takes no lock.
        unsafe { command.pre_exec(without_openat2) };
        command.output().unwrap()
    };
    let root = place.root().display().to_string();
    let words = ["install", "docker", "--binary", PROGRAM, "--root", &root];
    let output = call(&words);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("openat2") && printed.contains("chroot"), "{printed}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
    // Without a root there is nothing to escape from.
    let output = call(&["install", "docker", "--dry-run", "--binary", "/bin/sh"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&config).unwrap();
    assert_eq!(tree(place.root()), before);
    assert!(Path::new(&root).exists());
}
