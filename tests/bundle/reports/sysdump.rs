// SPDX-License-Identifier: Apache-2.0
//! `sysdump` of the built binary: the content of the archive, that it has no secret, that it works without
//! the daemon, and that it replaces nothing.

use std::io::Read;
use std::path::Path;

use nri_plugin::Adjustment;
use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::{Script, TestHost, fails, succeeds, wait_until};

/// The files that support relies on.
const FILES: [&str; 13] = [
    "plugin-output.txt",
    "status.json",
    "plugins.json",
    "pods.json",
    "metrics.txt",
    "recent.jsonl",
    "check.json",
    "engines.json",
    "config.json",
    "log.txt",
    "audit.jsonl",
    "node.json",
    "errors.txt",
];

const SECRETS: usize = 49;

/// A secret for one place.
fn secret(number: usize) -> String {
    assert!(number < SECRETS);
    format!("sekrit{number:02}qz")
}

/// Injections that apply to no pod, and a log in a file.
fn configuration(host: &TestHost) -> String {
    let s = secret;
    format!(
        "[log]\ntarget = \"file\"\n[audit]\ntarget = \"file\"\npath = \"{}\"\nexec = true\n\
         exec_args = \"all\"\n# {}\n[[inject]]\nname = \"i\"\nwhen = \"always\"\nnamespaces = [\"none\"]\n\
         env = {{ A = \"{}\" }}\nannotations = {{ \"x.org/password\" = \"{}\" }}\n\
         mounts = [{{ source = \"/a\", destination = \"/b\", options = [\"rbind\", \"x={}\"] }}]\n\
         hooks = {{ poststop = [{{ path = \"/bin/true\", args = [\"t\", \"{}\"], env = [\"B={}\"] }}] }}\n",
        host.path("audit.log").display(),
        s(0),
        s(1),
        s(2),
        s(3),
        s(4),
        s(5),
    )
}

/// Installs a plugin that prints secrets, never registers, and exits with its daemon.
fn leaky_plugin(host: &TestHost) {
    let s = secret;
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    let script = format!(
        "#!/bin/sh\n# {}\necho 'TOKEN={} {}' >&2\necho '{{\"authToken\": \"{}\"}}' >&2\n\
         echo 'Authorization: Bearer {}' >&2\necho 'asks https://u:{}@db/x' >&2\n\
         echo 'pwd: {}' >&2\necho 'pass: {}' >&2\necho 'accessKey: {}' >&2\n\
         echo '-----BEGIN PRIVATE KEY-----{}' >&2\necho 'SECRET={}'\nexec cat <&3 >/dev/null\n",
        s(6),
        s(7),
        s(8),
        s(9),
        s(10),
        s(11),
        s(44),
        s(45),
        s(46),
        s(12),
        s(13)
    );
    host.put_program("plugins/10-leaky", &script);
    host.write("10-leaky.conf", &format!("token={}\n{}\n", s(14), s(15)));
}

/// A document with secrets in every place where its author may put one.
fn document() -> Value {
    let s = secret;
    json!({
        "ociVersion": "1.0.2",
        "annotations": {
            "nri-runc.dev/pod-namespace": "shop", "nri-runc.dev/pod-name": "web",
            "nri-runc.dev/pod-id": "p1", "nri-runc.dev/container-name": "app",
            "nri-runc.dev/label/api-token": s(16),
            "example.org/password": s(17),
            "example.org/image-pull-key": format!("aGVsbG8{}", s(47)),
            "example.org/uid-pwd": s(48),
            "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"spec\":\"{}\"}}", s(18)),
            "example.org/cert": format!("-----BEGIN KEY-----\n{}", s(19)),
            "example.org/web": format!("eyJhbGciOi.{}", s(20)),
            "example.org/random": format!("a8f5f167f44f4964e6c998dee827110c{}", s(21)),
            "example.org/url": format!("https://u:{}@host", s(22)),
        },
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/",
            "args": ["sleep", "1", s(23), "--password", s(24), format!("KEY={}", s(25))],
            "env": ["PATH=/bin", format!("TOKEN={}", s(26)), format!("PLAIN={} {}", s(27), s(28))],
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/m", "type": "cifs", "source": "//h/s",
            "options": [format!("password={}", s(29))]}],
        "hooks": {"poststop": [{"path": "/bin/true", "args": ["true", s(30), format!("K={}", s(31))],
            "env": [format!("H={}", s(32))]}]},
        "linux": {},
    })
}

/// Connects a plugin whose responses contain secrets.
fn connect_plugin(host: &TestHost) {
    let s = secret;
    let hook = api::Hook {
        path: "/bin/true".to_owned(),
        args: vec!["true".to_owned(), s(33)],
        env: vec![format!("H={}", s(34))],
        ..Default::default()
    };
    let hooks = api::Hooks { poststop: vec![hook], ..Default::default() };
    let adjust = Adjustment::new().annotation("x.org/secret", &s(35)).env("A", &s(36));
    let adjust = adjust.args(["sleep", "1", &s(37)]).hooks(hooks);
    let _sets = host.plugin("20", "sets", adjust);
}

/// A host with all of these secrets.
fn host_with_secrets() -> TestHost {
    let mut host = TestHost::default();
    let more = configuration(&host);
    host.configure(&host.path("fake/runc"), &more);
    leaky_plugin(&host);
    host.start_daemon();
    for id in ["c1", "refused"] {
        std::fs::create_dir_all(host.path(&format!("{id}/rootfs"))).unwrap();
        let mut document = document();
        document["annotations"]["nri-runc.dev/container-name"] = id.into();
        host.write(&format!("{id}/config.json"), &document.to_string());
    }
    connect_plugin(&host);
    succeeds(&host.create_from("c1", "c1"));
    let refuses = Some("DB_PASSWORD=sekrit38qz or sekrit39qz");
    let _refuses = host.plugin("30", "refuses", Script { refuses, ..Script::default() });
    fails(&host.create_from("refused", "refused"), &["30-refuses refused"]);
    let (args, variable) = (format!("run {}", secret(40)), format!("X={}", secret(41)));
    let password = format!("PASS={}", secret(42));
    let exec = host.verb(&["exec", "--env", &variable, "c1", "/bin/sh", "-c", &args, &password]);
    succeeds(&exec);
    wait_until("the exec is in the audit log", || {
        host.read("audit.log").contains("\"action\":\"exec\"")
    });
    wait_until("the plugin's words are in the log", || {
        host.read("run/daemon.log").contains(&secret(13))
    });
    host
}

/// The files of an archive by name.
fn unpacked(path: &Path) -> Vec<(String, Vec<u8>)> {
    let file = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (name, bytes)
    });
    entries.collect()
}

fn dump(host: &TestHost, name: &str) -> Vec<(String, String)> {
    let path = host.path(name);
    succeeds(&host.call(&["nri", "sysdump", path.to_str().unwrap()]));
    assert!(path.metadata().unwrap().len() <= 20_000_000);
    let text = |(name, bytes)| (name, String::from_utf8(bytes).unwrap());
    unpacked(&path).into_iter().map(text).collect()
}

fn file<'f>(files: &'f [(String, String)], name: &str) -> &'f str {
    &files.iter().find(|(of, _)| of == name).unwrap().1
}

#[test]
fn no_file_of_an_archive_has_one_of_forty_planted_secrets() {
    let host = host_with_secrets();
    let shown = host.admin(&["explain", "c1", "--show-env"]).to_string();
    for number in [33, 34, 35, 36, 37] {
        assert!(shown.contains(&secret(number)), "{number} was planted: {shown}");
    }
    assert!(host.read("audit.log").contains(&secret(40)), "{}", host.read("audit.log"));
    let files = dump(&host, "dump.tar.gz");
    for number in 0..SECRETS {
        for (name, text) in &files {
            let at = text.find(&secret(number)).unwrap_or_default();
            let near = text.get(at.saturating_sub(60)..at + 12).unwrap_or_default();
            assert!(!text.contains(&secret(number)), "{number} is in {name}: {near}");
        }
    }
    for (name, wanted) in [
        ("recent.jsonl", "\"TOKEN=(hidden)\""),
        ("recent.jsonl", "\"call\":\"CreateContainer\""),
        ("log.txt", "10-leaky: TOKEN=(hidden)"),
        ("plugin-output.txt", "Authorization:(hidden)"),
        ("audit.jsonl", "\"action\":\"exec\""),
        ("status.json", "DB_PASSWORD=(hidden)"),
        ("config.json", "audit.exec_args"),
        ("node.json", "10-leaky.conf"),
        ("pods.json", "\"name\": \"web\""),
        ("metrics.txt", "nri_runc_build_info"),
    ] {
        assert!(file(&files, name).contains(wanted), "{name} has no {wanted}");
    }
}

#[test]
fn an_archive_without_a_daemon_names_the_missing_parts() {
    let mut host = host_with_secrets();
    let names = |files: &[(String, String)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&dump(&host, "alive.tar.gz")), FILES);
    host.kill_daemon();
    let files = dump(&host, "dead.tar.gz");
    assert_eq!(names(&files), FILES);
    for name in ["status.json", "plugins.json", "pods.json", "metrics.txt", "recent.jsonl"] {
        let line = format!("{name}: the daemon is not running");
        assert!(file(&files, "errors.txt").contains(&line), "{}", file(&files, "errors.txt"));
    }
    assert!(file(&files, "log.txt").contains("10-leaky: TOKEN=(hidden)"));
    assert!(file(&files, "check.json").contains("\"check\""));
    // Even the configuration cannot be read.
    host.write("config.toml", "= broken");
    assert_eq!(names(&dump(&host, "broken.tar.gz")), FILES);
}

#[test]
fn the_end_of_a_long_log_is_kept_in_archive_and_directory() {
    let host = TestHost::default();
    let log = "a line of the log\n".repeat(400_000) + "the last line\n";
    std::fs::create_dir_all(host.path("run")).unwrap();
    host.write("run/daemon.log", &log);
    let dir = host.path("plain");
    succeeds(&host.call(&["nri", "sysdump", "--plain", dir.to_str().unwrap()]));
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut wanted = FILES.map(str::to_owned);
    names.sort();
    wanted.sort();
    assert_eq!(names, wanted);
    let text = host.read("plain/log.txt");
    assert!(text.len() <= 2 << 20 && text.len() > 1 << 20, "{}", text.len());
    assert!(text.starts_with("a line") && text.ends_with("the last line\n"));
}

#[test]
fn existing_files_are_not_replaced_and_links_not_followed() {
    let host = TestHost::default();
    host.write("there.tar.gz", "mine");
    std::os::unix::fs::symlink(host.path("target"), host.path("link.tar.gz")).unwrap();
    for name in ["there.tar.gz", "link.tar.gz"] {
        let path = host.path(name);
        let output = host.call(&["nri", "sysdump", path.to_str().unwrap()]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.contains(name) && line.lines().count() == 1, "{line}");
    }
    let plain = host.path("there.tar.gz");
    let output = host.call(&["nri", "sysdump", "--plain", plain.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(host.read("there.tar.gz"), "mine");
    assert!(!host.path("target").exists());
}
