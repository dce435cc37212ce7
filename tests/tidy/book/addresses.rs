// SPDX-License-Identifier: Apache-2.0
//! The addresses of the project are in `Cargo.toml` once; each other file that has to contain one must match.

use regex::Regex;

use super::super::root;

/// Folders that are not part of the project, or have addresses as test data.
const ELSEWHERE: [&str; 5] = ["target", ".git", "fixtures", "fuzz", "vendor"];

/// A key of `Cargo.toml` that occurs once.
fn value(key: &str) -> Option<String> {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{key} = \""))?.strip_suffix('"'));
    line.map(ToOwned::to_owned)
}

/// The links and mail addresses of a text that are meant for this project and are not these.
fn others(text: &str, known: &[String], mail: &str) -> Vec<String> {
    let link = Regex::new(r#"https?://[A-Za-z0-9._~:/?#@%+-]+"#).unwrap();
    let address = Regex::new(r"[A-Za-z0-9._+-]+@nri-runc\.[a-z]+").unwrap();
    let is_known = |link: &&str| {
        known.iter().any(|known| {
            link.strip_prefix(known.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '#', '.']))
        })
    };
    let links = link.find_iter(text).map(|found| found.as_str());
    let links = links.filter(|link| {
        let (host, path) = link
            .split_once("://")
            .map_or(("", ""), |(_, rest)| rest.split_once('/').unwrap_or((rest, "")));
        // The repository of a forge is below its owner.
        host.contains("nri-runc")
            || path.split('/').nth(1).is_some_and(|it| it.starts_with("nri-runc"))
    });
    let links = links.filter(|link| !is_known(link));
    let addresses = address.find_iter(text).map(|found| found.as_str());
    links.chain(addresses.filter(|address| *address != mail)).map(ToOwned::to_owned).collect()
}

/// All text files of the project.
fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if ELSEWHERE.iter().any(|other| name == *other) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                texts.push((path.strip_prefix(root()).unwrap().display().to_string(), text));
            }
        }
    }
    texts
}

/// The address for mail: that of the packages.
fn mail() -> String {
    let text = std::fs::read_to_string(root().join("contrib/package/nfpm.yaml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("maintainer: ")).unwrap();
    line.split(['<', '>']).nth(1).unwrap().to_owned()
}

#[test]
fn the_project_has_one_address_wherever_it_is_named() {
    let site = value("homepage").unwrap();
    let known: Vec<String> = std::iter::once(site.clone()).chain(value("repository")).collect();
    let mail = mail();
    let texts = texts();
    assert!(texts.len() > 1000, "{} files", texts.len());
    for (name, text) in &texts {
        if name == "tests/tidy/book/addresses.rs" {
            continue;
        }
        let wrong = others(text, &known, &mail);
        assert!(
            wrong.is_empty(),
            "{name}: {wrong:?}; Cargo.toml has {known:?}, the packages {mail}"
        );
    }
    let has = |file: &str, line: &str| {
        let (_, text) = texts.iter().find(|(name, _)| name == file).unwrap();
        assert!(text.lines().any(|it| it == line), "{file} lacks: {line}");
    };
    has("contrib/package/nfpm.yaml", &format!("homepage: {site}"));
    has("contrib/kubernetes/chart/nri-runc/Chart.yaml", &format!("home: {site}"));
    assert!(texts.iter().any(|(name, text)| name == "SECURITY.md" && text.contains(&mail)));
    let manifests = texts.iter().filter(|(name, _)| {
        name == "Cargo.toml" || (name.starts_with("crates/") && name.ends_with("/Cargo.toml"))
    });
    let manifests: Vec<_> = manifests.map(|(name, _)| name).collect();
    assert!(manifests.len() > 4, "{manifests:?}");
    manifests.iter().for_each(|manifest| has(manifest, "homepage.workspace = true"));
}

#[test]
fn another_spelling_of_an_address_is_found() {
    let known = ["https://nri-runc.dev".to_owned(), "https://forge.test/us/nri-runc".to_owned()];
    let find = |text: &str| others(text, &known, "m@nri-runc.dev");
    for right in [
        "see https://nri-runc.dev, and https://nri-runc.dev/book#a.",
        "https://forge.test/us/nri-runc/issues <m@nri-runc.dev>",
        "https://github.com/containerd/nri and nri-runc.dev/pod-name",
    ] {
        assert_eq!(find(right), [""; 0], "{right}");
    }
    for wrong in [
        "http://nri-runc.dev",
        "https://www.nri-runc.dev/",
        "https://nri-runc.devel/x",
        "https://github.com/other/nri-runc/issues",
        "write to security@nri-runc.dev",
        "m@nri-runc.org",
    ] {
        assert_eq!(find(wrong).len(), 1, "{wrong}");
    }
}

/// The output of `scripts/address.sh`.
fn printed(word: &str, repository: Option<&str>) -> (String, Option<i32>) {
    let mut script = std::process::Command::new("sh");
    script.arg(root().join("scripts/address.sh")).arg(word);
    script.env_remove("GITHUB_REPOSITORY").env_remove("GITHUB_SERVER_URL");
    script.envs(repository.map(|name| ("GITHUB_REPOSITORY", name)));
    let output = script.output().unwrap();
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), output.status.code())
}

#[test]
fn scripts_get_the_addresses_of_the_manifest() {
    assert_eq!(printed("site", None), (value("homepage").unwrap(), Some(0)));
    let repository = value("repository");
    assert_eq!(printed("repository", None), (repository.clone().unwrap_or_default(), Some(0)));
    let under_ci = repository.unwrap_or_else(|| "https://github.com/us/it".to_owned());
    assert_eq!(printed("repository", Some("us/it")), (under_ci, Some(0)));
    assert_eq!(printed("nothing", None), (String::new(), Some(2)));
    for script in ["docs.sh", "image.sh"] {
        let text = std::fs::read_to_string(root().join("scripts").join(script)).unwrap();
        assert!(text.contains("scripts/address.sh repository"), "{script}");
    }
}

/// The versions of the program in a text that are not `version`: in the names of packages and images,
/// and in the manifests of Kubernetes.
fn other_versions(text: &str, version: &str) -> Vec<String> {
    let named = [
        r"nri-runc[:_-](\d+\.\d+\.\d+)",
        r"(?m)^(?:version|appVersion|    newTag): (\d\S*)$",
        r#"app\.kubernetes\.io/version: "([^"]+)""#,
    ];
    let found = named.into_iter().flat_map(|named| {
        let all: Vec<_> = Regex::new(named).unwrap().captures_iter(text).collect();
        all.into_iter().map(|found| found[1].to_owned())
    });
    found.filter(|found| found != version).collect()
}

#[test]
fn the_version_is_the_same_in_pages_and_manifests() {
    let version = value("version").unwrap();
    let texts = texts();
    let texts = texts.iter().filter(|(name, _)| {
        let is_read = name.starts_with("docs/") || name.starts_with("contrib/kubernetes/");
        (is_read && !name.ends_with(".toml")) || name == "README.md"
    });
    let mut named = 0;
    for (name, text) in texts {
        let wrong = other_versions(text, &version);
        assert!(wrong.is_empty(), "{name}: {wrong:?}; Cargo.toml has {version}");
        named += other_versions(text, "").len();
    }
    assert!(named > 20, "{named} versions were found");
}

#[test]
fn another_version_of_a_package_or_image_is_found() {
    for wrong in [
        "apt install ./nri-runc_0.1.9-1_amd64.deb",
        "tar -xzf nri-runc-0.1.9-x86_64.tar.gz",
        "image: \"localhost/nri-runc:0.1.9\"",
        "name: x\nappVersion: 0.1.9\n",
        "    newTag: 0.1.9",
        "    app.kubernetes.io/version: \"0.1.9\"",
    ] {
        assert_eq!(other_versions(wrong, "0.2.0"), ["0.1.9"], "{wrong}");
        assert_eq!(other_versions(wrong, "0.1.9"), [""; 0], "{wrong}");
    }
}
