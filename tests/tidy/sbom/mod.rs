// SPDX-License-Identifier: Apache-2.0
//! The bill of materials of a release, as CycloneDX 1.5: every crate in the program, with version, checksum and
//! licence, from cargo's own resolution. `scripts/package.sh` names a file with `NRI_RUNC_SBOM` and a target
//! with `NRI_RUNC_SBOM_TARGET`; for an image, `scripts/node-image.sh` also names the folder of its other
//! program with `NRI_RUNC_SBOM_WITH`. The document depends only on `Cargo.lock` and `SOURCE_DATE_EPOCH`: no
//! path, no random number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::{release_time, root};

/// Cargo's resolution for one target.
struct Resolution {
    /// By name and version.
    checksums: BTreeMap<(String, String), String>,
    packages: BTreeMap<String, Value>,
    /// The packages that each one needs, and their kind: null, `build` or `dev`.
    needs: BTreeMap<String, Vec<(String, Vec<Value>)>>,
    program: String,
}

fn resolve(folder: &Path, target: &str) -> Resolution {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target]);
    let output = cargo.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let packages = packages.map(|package| (text(&package["id"]), package.clone())).collect();
    let mut needs = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let needed = node["deps"].as_array().unwrap().iter().map(|dep| {
            let kinds = dep["dep_kinds"].as_array().unwrap().iter();
            (text(&dep["pkg"]), kinds.map(|kind| kind["kind"].clone()).collect())
        });
        needs.insert(text(&node["id"]), needed.collect());
    }
    let (checksums, program) = (checksums(folder), text(&metadata["resolve"]["root"]));
    Resolution { checksums, packages, needs, program }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Resolution {
    /// The packages that the program reaches by dependencies of these kinds; macros, which run in the compiler,
    /// are reached but not followed unless `with_tools`.
    fn reached(&self, with_tools: bool) -> BTreeSet<&str> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![self.program.as_str()]);
        while let Some(id) = next.pop() {
            if !reached.insert(id) {
                continue;
            }
            for (needed, kinds) in &self.needs[id] {
                let is_for = |kind: &Value| kind.is_null() || with_tools && kind == "build";
                let is_in = with_tools || !is_macro(&self.packages[needed]);
                if is_in && kinds.iter().any(is_for) {
                    next.push(needed);
                }
            }
        }
        reached.remove(self.program.as_str());
        reached
    }

    fn document(&self) -> Value {
        let (all, in_program) = (self.reached(true), self.reached(false));
        let mut components = Vec::new();
        let mut dependencies = vec![self.dependencies_of(&self.program, &all)];
        for id in &all {
            let package = &self.packages[*id];
            let scope = if in_program.contains(id) { "required" } else { "excluded" };
            let mut component = described(package, "library");
            component["scope"] = json!(scope);
            let key = (text(&package["name"]), text(&package["version"]));
            if let Some(checksum) = self.checksums.get(&key) {
                component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
            }
            components.push(component);
            dependencies.push(self.dependencies_of(id, &all));
        }
        components.sort_by_key(|component| text(&component["bom-ref"]));
        dependencies.sort_by_key(|entry| text(&entry["ref"]));
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": release_time(),
                "component": described(&self.packages[&self.program], "application"),
            },
            "components": components,
            "dependencies": dependencies,
        })
    }

    fn dependencies_of(&self, id: &str, all: &BTreeSet<&str>) -> Value {
        let needed = self.needs[id].iter().filter(|(needed, kinds)| {
            all.contains(needed.as_str()) && kinds.iter().any(|kind| kind != "dev")
        });
        let needed: BTreeSet<String> =
            needed.map(|(needed, _)| reference(&self.packages[needed])).collect();
        json!({"ref": reference(&self.packages[id]), "dependsOn": needed})
    }
}

/// One document for two programs: the second is a component of the first one's.
fn joined(mut document: Value, other: &Value) -> Value {
    let program = [other["metadata"]["component"].clone()];
    let parts = other["components"].as_array().unwrap().iter().chain(&program);
    for (list, key, more) in [
        ("components", "bom-ref", parts.cloned().collect::<Vec<_>>()),
        ("dependencies", "ref", other["dependencies"].as_array().unwrap().clone()),
    ] {
        let all = document[list].as_array_mut().unwrap();
        for part in more {
            match all.iter_mut().find(|one| one[key] == part[key]) {
                None => all.push(part),
                // A package that one program needs only for its build may be in the other.
                Some(one) if part["scope"] == "required" => one["scope"] = json!("required"),
                // Features differ: its dependencies in either program.
                Some(one) if list == "dependencies" => {
                    let both = [&one["dependsOn"], &part["dependsOn"]].map(|all| all.as_array());
                    let both: BTreeSet<String> =
                        both.into_iter().flatten().flatten().map(text).collect();
                    one["dependsOn"] = json!(both);
                }
                Some(_) => {}
            }
        }
        all.sort_by_key(|part| text(&part[key]));
    }
    document
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets.flat_map(|target| target["kind"].as_array()).flatten().any(|kind| kind == "proc-macro")
}

fn reference(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

fn described(package: &Value, kind: &str) -> Value {
    let reference = reference(package);
    json!({
        "type": kind,
        "bom-ref": reference,
        "name": package["name"],
        "version": package["version"],
        "description": package["description"].as_str().unwrap_or_default().trim(),
        "licenses": [{"expression": text(&package["license"]).replace('/', " OR ")}],
        "purl": reference,
    })
}

/// The checksum of each crate of the registry, by name and version.
fn checksums(folder: &Path) -> BTreeMap<(String, String), String> {
    let lock = std::fs::read_to_string(folder.join("Cargo.lock")).unwrap();
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]").skip(1);
    let known = blocks.filter_map(|block| {
        Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    });
    known.collect()
}

#[test]
fn sbom_names_every_crate_of_the_program_and_no_other() {
    let target = std::env::var("NRI_RUNC_SBOM_TARGET");
    let target = target.as_deref().unwrap_or("x86_64-unknown-linux-gnu");
    let document = resolve(&root(), target).document();
    let components = document["components"].as_array().unwrap();
    let scope = |name: &str| {
        components.iter().find(|part| part["name"] == name).map(|part| part["scope"].clone())
    };
    for name in ["tokio", "ttrpc", "serde_json", "clap_builder"] {
        assert_eq!(scope(name), Some(json!("required")), "{name}");
    }
    // Macros run in the compiler; dependencies of tests are in no build.
    assert_eq!(scope("serde_derive"), Some(json!("excluded")));
    for name in ["proptest", "roff", "nri-runc"] {
        assert_eq!(scope(name), None, "{name}");
    }
    for part in components {
        let name = &part["name"];
        let hash = part["hashes"][0]["content"].as_str().unwrap_or_default();
        // Folders of this repository: one replaces a crate, the others are below `crates`.
        let is_folder = name == "jsonschema" || root().join("crates").join(text(name)).is_dir();
        assert!(hash.len() == 64 || is_folder, "{name} has no checksum");
        assert!(text(&part["licenses"][0]["expression"]).len() > 2, "{name} has no licence");
    }
    if let Some(file) = std::env::var_os("NRI_RUNC_SBOM") {
        let other = std::env::var_os("NRI_RUNC_SBOM_WITH");
        let other = other.map(|folder| resolve(Path::new(&folder), target).document());
        let document = other.map_or(document.clone(), |other| joined(document, &other));
        let text = serde_json::to_string_pretty(&document).unwrap();
        let text = text + "\n";
        nri_runc::testing::files::replace(file.as_ref(), text.as_bytes()).unwrap();
    }
}

#[test]
fn sbom_lists_each_dependency_and_contains_no_path() {
    let document = resolve(&root(), "x86_64-unknown-linux-gnu").document();
    let names: BTreeSet<String> =
        document["components"].as_array().unwrap().iter().map(|part| text(&part["purl"])).collect();
    let entries = document["dependencies"].as_array().unwrap();
    assert_eq!(entries.len(), names.len() + 1, "one entry for each, and one for the program");
    for entry in entries {
        for needed in entry["dependsOn"].as_array().unwrap() {
            assert!(names.contains(&text(needed)), "{needed} is no component");
        }
    }
    let page = document.to_string();
    assert!(!page.contains("file://"), "a path of this machine");
    assert!(!page.contains(&*root().to_string_lossy()), "a path of this machine");
}

#[test]
fn sbom_of_two_programs_has_each_crate_once() {
    let document = |parts: Value, needs: Value| json!({"metadata": {"component": {"bom-ref": "b"}}, "components": parts, "dependencies": needs});
    let one = document(
        json!([{"bom-ref": "x", "scope": "excluded"}]),
        json!([{"ref": "a", "dependsOn": ["x"]}, {"ref": "x", "dependsOn": ["p"]}]),
    );
    let other = document(
        json!([{"bom-ref": "x", "scope": "required"}, {"bom-ref": "c", "scope": "required"}]),
        json!([{"ref": "b", "dependsOn": ["c", "x"]}, {"ref": "x", "dependsOn": ["q"]}]),
    );
    let all = joined(one, &other);
    let wanted = json!([
        {"bom-ref": "b"},
        {"bom-ref": "c", "scope": "required"},
        {"bom-ref": "x", "scope": "required"},
    ]);
    assert_eq!(all["components"], wanted);
    let wanted = json!([
        {"ref": "a", "dependsOn": ["x"]},
        {"ref": "b", "dependsOn": ["c", "x"]},
        {"ref": "x", "dependsOn": ["p", "q"]},
    ]);
    assert_eq!(all["dependencies"], wanted);
}
