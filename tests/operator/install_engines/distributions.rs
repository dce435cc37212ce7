// SPDX-License-Identifier: Apache-2.0
//! Distributions that write their containerd's file at each start: the addition of `install`
//! survives that, is found again, and is removed; and which containerd is meant if there are
//! several.

use serde_json::Value;

use super::{Place, cases, new_files, tree};

const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd";
const BASE: &str = "{{ template \"base\" . }}\n";

fn fixture(name: &str) -> Place {
    let (_, case, _) = cases().into_iter().find(|(case, ..)| case == name).unwrap();
    Place::of(&case)
}

/// A fake k3s: the file that it renders at a start, from its base and the owner's template.
struct K3s {
    place: Place,
    base: String,
    template: &'static str,
}

impl K3s {
    fn of(name: &str, template: &'static str) -> Self {
        let place = fixture(name);
        let base = place.read(&format!("{K3S}/config.toml"));
        Self { place, base, template }
    }

    fn template(&self) -> Option<String> {
        std::fs::read_to_string(self.place.path(&format!("{K3S}/{}", self.template))).ok()
    }

    /// Starts it: the file is written again.
    fn start(&self) -> String {
        let template = self.template().unwrap_or_else(|| BASE.to_owned());
        let rendered = template.replace(BASE.trim_end(), &self.base);
        self.place.write(&format!("{K3S}/config.toml"), &rendered);
        rendered
    }

    fn install(&self, words: &str) -> Value {
        serde_json::from_str(&self.place.install(&format!("containerd --json {words}"))).unwrap()
    }
}

#[test]
fn an_addition_survives_rendering_until_uninstall() {
    for (name, template, words) in [
        ("k3s-v3-template", "config-v3.toml.tmpl", "--take-over-nri"),
        ("k3s-v3-template", "config-v3.toml.tmpl", "--default --take-over-nri"),
        ("k3s-v2-template", "config.toml.tmpl", "--take-over-nri"),
    ] {
        let k3s = K3s::of(name, template);
        let first = k3s.start();
        assert_eq!(k3s.install(words)["changed"], true);
        let written = k3s.template().unwrap();
        assert!(written.starts_with(BASE), "{written}");
        let is_once = |rendered: &str| {
            let again = k3s.install(words);
            assert_eq!(again["changed"], false, "{name} {words}: {again}");
            assert_eq!(k3s.place.read(&format!("{K3S}/config.toml")), rendered);
        };
        // A second `install` changes nothing, before K3s's next start or after it.
        is_once(&first);
        let rendered = k3s.start();
        is_once(&rendered);
        assert_eq!(rendered.matches("runtimes.nri-runc]").count(), 1, "{rendered}");
        let document: toml_edit::DocumentMut = rendered.parse().unwrap();
        assert_eq!(
            document["plugins"]["io.containerd.nri.v1.nri"]["disable"].as_bool(),
            Some(true),
            "{name}"
        );
        k3s.place.uninstall("containerd");
        assert_eq!(k3s.template(), None, "the template was none of the owner's");
        assert_eq!(k3s.start(), first);
    }
}

#[test]
fn another_handler_replaces_the_first_in_the_template() {
    let k3s = K3s::of("k3s-v2-template", "config.toml.tmpl");
    let first = k3s.start();
    k3s.install("");
    k3s.start();
    let second = k3s.install("--name other");
    assert_eq!(second["changed"], true);
    let rendered = k3s.start();
    assert!(rendered.contains("runtimes.other]") && !rendered.contains("runtimes.nri-runc]"));
    // And back, without a start in between.
    k3s.install("--name third");
    k3s.install("");
    let rendered = k3s.start();
    assert!(rendered.contains("runtimes.nri-runc]") && !rendered.contains("runtimes.third]"));
    k3s.place.uninstall("containerd");
    assert_eq!(k3s.start(), first);
}

#[test]
fn an_edited_addition_is_removed_but_not_overwritten() {
    let k3s = K3s::of("k3s-v3-template", "config-v3.toml.tmpl");
    k3s.install("--take-over-nri");
    let path = format!("{K3S}/config-v3.toml.tmpl");
    let text = k3s.place.read(&path);
    let edited = text.replace("SystemdCgroup = true", "SystemdCgroup = false");
    k3s.place.write(&path, &edited);
    let printed = k3s.place.refused("install", "containerd --take-over-nri");
    assert!(printed.contains("the addition of nri-runc was edited since"), "{printed}");
    let printed = k3s.place.uninstall("containerd");
    assert!(
        printed.contains("the addition of nri-runc was edited since, and was removed"),
        "{printed}"
    );
    assert!(k3s.template().is_none(), "nothing else was in it");
    // An operator's additions around it are kept.
    k3s.install("--take-over-nri");
    k3s.place.write(&path, &format!("# mine\n{text}# below\n"));
    assert!(k3s.place.uninstall("containerd").contains("edited since"));
    assert_eq!(k3s.template().unwrap(), format!("# mine\n{BASE}# below\n"));
}

/// A newer version imports a folder: the template stays until the next `install`.
#[test]
fn a_distribution_update_leaves_a_registration_unchanged() {
    let mut k3s = K3s::of("k3s-v3-template", "config-v3.toml.tmpl");
    k3s.install("--take-over-nri");
    k3s.base = fixture("k3s-v3-imports").read(&format!("{K3S}/config.toml"));
    k3s.start();
    assert_eq!(k3s.install("--take-over-nri")["changed"], false);
    k3s.place.uninstall("containerd");
    k3s.start();
    k3s.install("--take-over-nri");
    assert_eq!(k3s.template(), None);
    assert!(k3s.place.path(&format!("{K3S}/config-v3.toml.d/50-nri-runc.toml")).exists());
}

#[test]
fn no_file_that_a_distribution_writes_is_ever_written() {
    let mut rendered = 0;
    for (name, case, args) in cases() {
        let is_rendered = |path: &str| {
            path.ends_with("/agent/etc/containerd/config.toml")
                || path.starts_with("run/k0s/")
                || path.ends_with("/args/containerd.toml")
                || path.starts_with("usr/share/")
        };
        let place = Place::of(&case);
        let before = tree(place.root());
        if name.contains("-refused-") || !before.keys().any(|path| is_rendered(path)) {
            continue;
        }
        place.install(&args);
        let new = new_files(&before, &tree(place.root()));
        assert!(new.keys().all(|path| !is_rendered(path)), "{name}: {new:?}");
        rendered += 1;
    }
    assert!(rendered >= 14, "{rendered}");
}

#[test]
fn a_distribution_alone_means_its_containerd() {
    let place = fixture("k3s-v3-imports");
    let before = tree(place.root());
    place.install("--distribution k3s --take-over-nri");
    assert!(place.install("containerd --take-over-nri").contains("nothing to change"));
    let printed = place.refused("uninstall", "--distribution rke2");
    assert!(printed.contains("not registered with RKE2"), "{printed}");
    place.uninstall("--distribution k3s");
    assert_eq!(tree(place.root()), before);
    let output = place.run("install", "");
    assert_eq!(output.status.code(), Some(2), "neither an engine nor a distribution");
    let output = place.run("install", "containerd --distribution talos");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn each_distribution_is_restarted_by_its_own_service() {
    for (name, wanted) in [
        ("k3s-v3-imports", "systemctl restart k3s"),
        ("k3s-agent-v3-imports", "systemctl restart k3s-agent"),
        ("rke2-v3-imports", "systemctl restart rke2-server"),
        ("k0s-v3", ""),
        ("microk8s", "systemctl restart snap.microk8s.daemon-containerd"),
        ("kind", "systemctl restart containerd"),
        ("flatcar-imports", "systemctl daemon-reload && systemctl restart containerd"),
        ("flatcar-copy", "systemctl daemon-reload && systemctl restart containerd"),
    ] {
        let (_, case, args) = cases().into_iter().find(|(case, ..)| case == name).unwrap();
        let place = Place::of(&case);
        let printed: Value =
            serde_json::from_str(&place.install(&format!("{args} --json"))).unwrap();
        assert_eq!(printed["next"], wanted, "{name}");
        let printed: Value = serde_json::from_str(&place.uninstall("containerd --json")).unwrap();
        assert_eq!(printed["next"], wanted, "{name}, after uninstall");
    }
}

#[test]
fn containers_are_found_where_each_distribution_keeps_them() {
    for (name, state) in [
        ("k3s-v2-template", "/run/k3s/containerd"),
        ("k3s-v3-imports", "/run/k3s/containerd"),
        ("k0s-v2", "/run/k0s/containerd"),
        ("microk8s", "/var/snap/microk8s/common/run/containerd"),
        ("flatcar-imports", "/run/containerd"),
    ] {
        let (_, case, args) = cases().into_iter().find(|(case, ..)| case == name).unwrap();
        let place = Place::of(&case);
        place.install(&args);
        let bundle = format!("{state}/io.containerd.runtime.v2.task/k8s.io/ours");
        place.write(&format!("{bundle}/runtime"), super::PROGRAM);
        let printed = place.refused("uninstall", "containerd");
        assert!(
            printed.contains("1 container still uses") && printed.contains(": ours ("),
            "{printed}"
        );
        std::fs::remove_dir_all(place.path(&bundle)).unwrap();
        place.uninstall("containerd");
    }
}

#[test]
fn the_suggested_commands_fit_the_distribution() {
    for (name, wanted) in [
        ("k3s-v3-imports", ["k3s crictl runp --runtime nri-runc ", "k3s ctr run --runc-binary "]),
        (
            "rke2-v3-imports",
            [
                "/var/lib/rancher/rke2/bin/crictl --config ",
                "/var/lib/rancher/rke2/bin/ctr --address ",
            ],
        ),
        ("k0s-v3", ["crictl --runtime-endpoint unix:///run/k0s/containerd.sock ", "k0s ctr run "]),
        ("microk8s", ["crictl --runtime-endpoint unix:///var/snap/", "microk8s ctr run "]),
        ("kind", ["crictl runp --runtime nri-runc ", "ctr run --runc-binary "]),
    ] {
        let place = fixture(name);
        let printed: Value =
            serde_json::from_str(&place.install("containerd --json --take-over-nri")).unwrap();
        let lines: Vec<&str> = printed["use"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .map(|line| line.as_str().unwrap())
            .collect();
        let is_so =
            lines.len() == 2 && lines[0].starts_with(wanted[0]) && lines[1].starts_with(wanted[1]);
        assert!(is_so, "{name}: {lines:?}");
    }
}
