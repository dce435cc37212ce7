// SPDX-License-Identifier: Apache-2.0
//! `scripts/image.sh`: an image layout with correct digests, for both architectures, reproducible, and
//! no image of a program that could not run in it.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

struct Programs {
    temp: tempfile::TempDir,
}

impl Programs {
    /// Files that begin like static programs for two processors.
    fn new() -> Self {
        let programs = Self { temp: tempfile::tempdir().unwrap() };
        for (name, machine) in [("x86", 0x3e), ("arm", 0xb7)] {
            let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
            bytes.extend([machine, 0]);
            bytes.extend(name.as_bytes());
            programs.write(name, &bytes);
        }
        programs.write("sbom", b"{\"bomFormat\": \"CycloneDX\"}");
        programs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        nri_runc::testing::files::replace(&self.path(name), bytes).unwrap();
    }

    fn shell(script: &str, here: &Path, words: &[&str]) -> Output {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script, "sh"]).args(words).current_dir(here);
        command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap()
    }

    fn image(&self, words: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/image.sh");
        let script = format!("exec sh {} \"$@\"", script.display());
        Self::shell(&script, self.temp.path(), words)
    }

    /// A pair of programs, as an argument.
    fn pair(&self, arch: &str, name: &str) -> String {
        let path = self.path(name).display().to_string();
        format!("{arch}={path},{path}")
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn an_image_has_both_architectures_and_its_sbom() {
    let programs = Programs::new();
    let (x86, arm) = (programs.pair("amd64", "x86"), programs.pair("arm64", "arm"));
    let sbom = programs.path("sbom").display().to_string();
    let out = |name: &str| programs.path(name).display().to_string();
    let name = "example.org/nri-runc:7";
    for tar in ["one.tar", "two.tar"] {
        let words = ["--name", name, "--sbom", &sbom, "--out", &out(tar), &x86, &arm];
        let output = programs.image(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let bytes = |name: &str| std::fs::read(programs.path(name)).unwrap();
    assert!(bytes("one.tar") == bytes("two.tar"), "the same programs gave other bytes");
    let script = "mkdir layout && tar -C layout -xf one.tar && cd layout/blobs/sha256 \
                  && for blob in *; do echo \"$blob  $blob\"; done | sha256sum --quiet -c";
    let checked = Programs::shell(script, programs.temp.path(), &[]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let layout = programs.path("layout");
    let blob = |descriptor: &Value| {
        let digest =
            descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
        let path = layout.join("blobs/sha256").join(digest);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        path
    };
    let top = json(&layout.join("index.json"));
    assert_eq!(top["manifests"][0]["annotations"]["io.containerd.image.name"], name);
    let index = json(&blob(&top["manifests"][0]));
    let mut seen = Vec::new();
    for descriptor in index["manifests"].as_array().unwrap() {
        let arch = descriptor["platform"]["architecture"].as_str().unwrap();
        let manifest = json(&blob(descriptor));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["architecture"], arch);
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.title"], "nri-runc");
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let layer = blob(&manifest["layers"][0]).display().to_string();
        let script = "gunzip <\"$1\" | sha256sum | cut -d ' ' -f 1; gunzip <\"$1\" | tar -t";
        let listed = Programs::shell(script, programs.temp.path(), &[&layer]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut lines = listed.lines();
        let digest = format!("sha256:{}", lines.next().unwrap());
        assert_eq!(config["rootfs"]["diff_ids"][0], digest.as_str());
        let files: Vec<&str> = lines.filter(|line| !line.ends_with('/')).collect();
        let wanted =
            ["./licenses/nri-runc", "./nri-runc", "./nri-runc-node-helper", "./sbom.cdx.json"];
        assert_eq!(files, wanted);
        seen.push(arch.to_owned());
    }
    assert_eq!(seen, ["amd64", "arm64"]);
    let referrer = json(&blob(&top["manifests"][1]));
    assert_eq!(referrer["subject"]["digest"], top["manifests"][0]["digest"]);
    assert_eq!(referrer["artifactType"], "application/vnd.cyclonedx+json");
    assert_eq!(std::fs::read(blob(&referrer["layers"][0])).unwrap(), bytes("sbom"));
}

#[test]
fn programs_that_would_not_run_in_the_image_are_refused() {
    let programs = Programs::new();
    programs.write("text", b"#!/bin/sh\n");
    let mut linked = std::fs::read(programs.path("x86")).unwrap();
    linked.extend(b"\0/lib64/ld-linux-x86-64.so.2\0");
    programs.write("linked", &linked);
    let out = programs.path("image.tar").display().to_string();
    let pair = |arch, name| programs.pair(arch, name);
    for (words, why) in [
        (vec![pair("amd64", "arm")], "is no program for amd64"),
        (vec![pair("arm64", "text")], "is no program for arm64"),
        (vec![pair("amd64", "linked")], "is not static"),
        (vec![pair("amd64", "none")], "is missing"),
        (vec![pair("riscv64", "x86")], "unknown argument"),
        (vec![format!("amd64={}", programs.path("x86").display())], "has no helper"),
        (vec!["--plugin".to_owned(), "a/b".to_owned(), pair("amd64", "x86")], "is not the name of"),
        (vec!["--name".to_owned(), "a b:1".to_owned(), pair("amd64", "x86")], "is not the name"),
        (vec![], "no program is named"),
    ] {
        let mut all = vec!["--out", out.as_str()];
        all.extend(words.iter().map(String::as_str));
        let output = programs.image(&all);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && printed.contains(why), "{words:?}: {printed}");
        assert!(!programs.path("image.tar").exists());
    }
}

#[test]
fn a_plugin_image_contains_only_the_plugin() {
    let programs = Programs::new();
    let out = programs.path("image.tar").display().to_string();
    let plugin = format!("amd64={}", programs.path("x86").display());
    let output = programs.image(&["--out", &out, "--plugin", "device-injector", &plugin]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains(" is localhost/device-injector:"));
    let script = "mkdir layout && tar -C layout -xf image.tar && cd layout/blobs/sha256 \
                  && grep -ho '\"Entrypoint\":[^]]*' * && for blob in *; do gunzip <\"$blob\" | tar -t; done 2>&1";
    let listed = Programs::shell(script, programs.temp.path(), &[]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("\"Entrypoint\":[\"/device-injector\""), "{listed}");
    assert!(listed.contains("./device-injector\n") && !listed.contains("./nri-runc"), "{listed}");
}
