// SPDX-License-Identifier: Apache-2.0
//! Pods, containers and images whose authors claim another identity: the folders `attack-*` of
//! `fixtures/engines`. Each is identified as its engine says, none is exempt, and ignored claims
//! are reported.

use nri_runc::testing::engine::Role::{self, Container, Sandbox};

use super::{names, play};

/// Folder, engine, role, pod ID, namespace, pod name.
type Truth = (&'static str, &'static str, Role, &'static str, &'static str, &'static str);

const POD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

const ALL: [Truth; 32] = [
    ("attack-containerd-cri", "containerd-cri", Container, "5a0d", "tenant", "evil"),
    ("attack-containerd-cri-record", "containerd-cri", Container, "5a0d", "kube-system", "etcd"),
    ("attack-crio-manager", "cri-o", Sandbox, "bad1", "tenant", "evil"),
    ("attack-crio-member", "cri-o", Container, "bad1", "tenant", "evil"),
    ("attack-crio-names", "cri-o", Sandbox, "bad1", "libpod", "podman"),
    ("attack-crio-role", "cri-o", Sandbox, "bad1", "tenant", "evil"),
    ("attack-crio-role-conmon", "cri-o", Sandbox, "bad1", "tenant", "evil"),
    ("attack-crio-role-record", "cri-o", Sandbox, "bad1", "tenant", "evil"),
    ("attack-crio-role-unknown", "cri-o", Container, "bad1", "", ""),
    ("attack-ctr-image-labels", "containerd", Container, "evil", "containerd", "evil"),
    ("attack-ctr-in-k8s", "containerd-cri", Container, "evil", "shop", "etcd"),
    ("attack-ctr-named-moby", "containerd", Container, "e7cd", "kube-system", "etcd"),
    ("attack-docker-containerd-store", "docker", Container, "d0c1", "docker", "evil"),
    ("attack-docker-image-labels", "docker", Container, "d0c1", "docker", "evil"),
    ("attack-docker-image-unknown", "docker", Container, "d0c1", "docker", "evil"),
    ("attack-docker-kubernetes", "docker", Container, "d0c1", "docker", "evil"),
    ("attack-docker-manifest", "docker", Container, "d0c1", "docker", "evil"),
    ("attack-isulad-role", "isulad", Container, "5a0d", "tenant", "evil"),
    ("attack-nerdctl-namespace", "nerdctl", Container, "ab12", "default", "evil"),
    ("attack-plain-odd-id", "plain", Container, "c1", "plain", "mine"),
    ("attack-podman-image-config", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-image-labels", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-image-labels-case", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-image-unknown", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-infra-member", "podman", Container, POD, "podman", POD),
    ("attack-podman-infra-name", "podman", Container, "b0b1", "podman", "evil-infra"),
    ("attack-podman-labels-unknown", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-manifest", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-manifest-repulled", "podman", Container, "b0b1", "podman", "evil"),
    ("attack-podman-pod-labels", "podman", Container, POD, "podman", "shop"),
    ("attack-unknown-libpod", "plain", Container, "c1", "plain", "c1"),
    ("attack-unknown-role", "kubernetes", Container, "c1", "kube-system", "etcd"),
];

/// No source contradicts them: there is no other, or the operator made the claim.
const SILENT: [&str; 3] =
    ["attack-ctr-named-moby", "attack-podman-infra-member", "attack-podman-infra-name"];

#[test]
fn a_forged_identity_loses_to_that_of_the_engine() {
    let folders = names();
    let attacks = folders.iter().filter(|name| name.starts_with("attack-"));
    let known: Vec<&str> = ALL.iter().map(|truth| truth.0).collect();
    assert_eq!(attacks.collect::<Vec<_>>(), known);
    for (name, engine, role, id, namespace, pod) in ALL {
        let came = play(name);
        let received = (came.engine.name(), came.role);
        assert_eq!(received, (engine, role), "{name}: {:?}", came.engine.evidence());
        let received = (came.pod.id.as_str(), came.pod.namespace.as_str(), came.pod.name.as_str());
        assert_eq!(received, (id, namespace, pod), "{name}");
        assert!(!came.is_exempt, "{name}");
        let printed = [came.contradictions.as_slice(), &came.missing].concat();
        let is_silent = came.contradictions.is_empty();
        assert!(is_silent || !SILENT.contains(&name), "{name}: {printed:?}");
        assert!(!printed.is_empty() || SILENT.contains(&name), "{name}");
        assert!(printed.iter().all(|line| !line.contains(char::is_control)), "{name}: {printed:?}");
    }
}

#[test]
fn tolerations_come_only_from_the_pod_and_the_operator() {
    const KEY: &str = "tolerate.example.org";
    for name in names().iter().filter(|name| name.starts_with("attack-")) {
        let came = play(name);
        let is_reported = came.pod.annotations.contains_key(KEY);
        assert!(!is_reported || came.has_image_annotations, "{name}");
    }
    let unknown = play("attack-podman-image-unknown");
    assert!(unknown.pod.annotations.contains_key(KEY) && unknown.has_image_annotations);
}

#[test]
fn the_operators_own_values_count_despite_forged_ones() {
    for name in [
        "attack-docker-image-labels",
        "attack-podman-manifest",
        "attack-podman-manifest-repulled",
        "attack-podman-image-labels",
        "attack-podman-image-labels-case",
    ] {
        assert_eq!(play(name).pod.uid, "0b1c", "{name}");
    }
    // The image also has this label, with another value.
    assert_eq!(play("attack-podman-image-labels").container.name, "main");
}

#[test]
fn labels_that_may_be_the_images_are_ignored_with_a_note() {
    for name in ["attack-podman-labels-unknown", "attack-podman-image-config"] {
        let came = play(name);
        assert_eq!((came.pod.uid.as_str(), came.container.name.as_str()), ("b0b1", "evil"));
        let printed = "the labels of the image could not be read";
        assert!(came.missing.iter().any(|line| line.starts_with(printed)), "{:?}", came.missing);
    }
}

#[test]
fn podman_pod_labels_apply_unless_a_member_overrides_them() {
    let came = play("podman-labels");
    let received = |key: &str| came.pod.annotations.get(key).map(String::as_str);
    assert_eq!(received("cpu.example/class"), Some("gold"));
    assert_eq!(received("cpu.example/pin"), Some("no"));
    let lines = "{\"cpu\": 2,\n \"note\": \"two lines\"}";
    assert_eq!(received("cpu.example/container.shop-web"), Some(lines));
    assert_eq!(came.pod.labels["tier"], "front");
    assert_eq!((came.pod.uid.as_str(), came.pod.name.as_str()), ("0b1c", "shop"));
    assert_eq!(came.contradictions, [""; 0]);
    assert_eq!(came.missing, [""; 0]);
}
