// SPDX-License-Identifier: Apache-2.0
//! nri-runc's keys as labels and annotations, as in `docs/engines/podman.md`: on containers, on pods, and in images,
//! where they have no effect.

use serde_json::{Value, json};
use test_support::Script;
use test_support::podman::IMAGE;

use super::{
    PodmanHost, ReceivedRequests, events_of, inspect, installed, listening, request_of, run,
};

/// A value of several lines with quotes, as on the page.
const VALUE: &str = "{\"cpu\": {\"shares\": 512},\n \"memory\": {\"limit\": 67108864}}";
const LABEL: &str = "nri-runc.dev/annotation/resources.nri-runc.dev/container.web";
const KEY: &str = "resources.nri-runc.dev/container.web";

fn subscriber(host: &PodmanHost) -> (super::EventLines, ReceivedRequests) {
    let (script, requests) = listening(Script::default());
    (host.plugin("10", "witness", script), requests)
}

fn pod_of(requests: &ReceivedRequests, name: &str) -> Value {
    request_of(requests, "CreateContainer", name)["pod"].clone()
}

#[test]
fn labels_annotations_and_a_label_file_carry_a_value() {
    let Some(host) = installed("") else { return };
    let (_plugin, requests) = subscriber(&host);
    run(&host, "label", &["--label", &format!("{LABEL}={VALUE}")], &[]);
    let plain = format!("{LABEL}={VALUE}");
    // Podman 4 parses the whole of --annotation as a line of CSV.
    let reads_csv = host.major_version < 5;
    let csv = format!("\"{LABEL}={}\"", VALUE.replace('"', "\"\""));
    run(&host, "annotation", &["--annotation", if reads_csv { &csv } else { &plain }], &[]);
    host.write("labels", "nri-runc.dev/pod-name=front\nnri-runc.dev/label/app=web\n");
    let file = host.path("labels").display().to_string();
    run(&host, "file", &["--label-file", &file], &[]);
    for name in ["label", "annotation"] {
        assert_eq!(pod_of(&requests, name)["annotations"][KEY], VALUE, "{name}");
    }
    let pod = pod_of(&requests, "file");
    assert_eq!([&pod["name"], &pod["labels"]["app"]], [&json!("front"), &json!("web")]);
    let cgroup = host.cgroup();
    if reads_csv {
        let words = super::run_words(&cgroup, "plain", &["--annotation", &plain]);
        host.bad(&words, &["parse error", "bare \" in non-quoted-field"]);
    }
    let known = inspect(&host, "annotation");
    assert_eq!(known["Config"]["Annotations"][LABEL], VALUE);
}

#[test]
fn labels_of_a_pod_are_annotations_for_each_of_its_members() {
    let Some(host) = installed("") else { return };
    let (received, requests) = subscriber(&host);
    let cgroup = host.cgroup();
    let make = ["--runtime", "nri-runc", "pod", "create", "--name", "shop", "--network", "none"];
    let (value, other) = (format!("{LABEL}={VALUE}"), "nri-runc.dev/pod-id=other");
    let options = ["--cgroup-parent", &cgroup, "--label", &value, "--label", other];
    let id = host.good(&[&make[..], &options].concat());
    for name in ["web", "helper"] {
        let own = format!("nri-runc.dev/annotation/example.org/of.{name}=yes");
        let member = ["run", "--detach", "--pod", "shop", "--name", name, "--label", &own, IMAGE];
        host.good(&[&["--runtime", "nri-runc"][..], &member].concat());
    }
    let pod = &request_of(&requests, "RunPodSandbox", "shop")["pod"];
    assert_eq!([&pod["id"], &pod["annotations"][KEY]], [&json!(id), &json!(VALUE)]);
    for name in ["web", "helper"] {
        let pod = pod_of(&requests, name);
        let received = [&pod["id"], &pod["name"], &pod["annotations"][KEY]];
        assert_eq!(received, [&json!(id), &json!("shop"), &json!(VALUE)], "{name}");
        assert_eq!(pod["annotations"][format!("example.org/of.{name}")], "yes");
    }
    let printed = host.admin(&["status"])["contradictions"].to_string();
    assert!(printed.contains("the pod's label nri-runc.dev/pod-id does not count"), "{printed}");
    assert_eq!(events_of(&received, "shop").len(), 1, "one pod");
}

/// Creates an image with labels from the test's image.
fn import(host: &PodmanHost, labels: &[&str], name: &str) {
    let tar = host.path("rootfs.tar").display().to_string();
    let changes = labels.iter().flat_map(|label| ["--change", label]);
    let mut words = vec!["import", "--quiet", "--change", "CMD [\"/bin/sleep\",\"1000\"]"];
    words.extend(changes);
    words.extend([tar.as_str(), name]);
    host.good(&words);
}

#[test]
fn labels_count_only_if_they_differ_from_the_images() {
    let Some(host) = installed("") else { return };
    let (_plugin, requests) = subscriber(&host);
    let labels = [
        "LABEL nri-runc.dev/pod-namespace=kube-system",
        "LABEL nri-runc.dev/pod-name=etcd",
        "LABEL nri-runc.dev/annotation/example.org/from=image",
    ];
    import(&host, &labels, "localhost/evil:1");
    let cgroup = host.cgroup();
    let mut words = super::run_words(&cgroup, "evil", &["--detach"]);
    words.pop();
    words.extend(["--label", "nri-runc.dev/pod-name=mine", "--label", "nri-runc.dev/pod-uid=0b1c"]);
    words.push("localhost/evil:1");
    host.good(&words);
    let request = request_of(&requests, "CreateContainer", "evil");
    let (pod, container) = (&request["pod"], &request["container"]);
    assert_eq!([&pod["name"], &pod["uid"]], [&json!("mine"), &json!("0b1c")]);
    assert_eq!(pod["namespace"], "podman");
    assert_eq!(pod["annotations"]["example.org/from"], json!(null));
    assert_eq!(container["labels"]["nri-runc.dev/pod-namespace"], "kube-system");
    let printed = host.admin(&["explain", "evil"]).to_string();
    assert!(printed.contains("the image's label nri-runc.dev/pod-namespace"), "{printed}");
}

#[test]
fn labels_do_not_count_without_the_images_configuration() {
    let Some(host) = installed("") else { return };
    let (_plugin, requests) = subscriber(&host);
    let cgroup = host.cgroup();
    let label = "nri-runc.dev/pod-name=mine";
    let mut words = super::run_words(&cgroup, "web", &["--label", label]);
    let create = words.iter().position(|word| *word == "run").unwrap();
    words[create] = "create";
    host.good(&words);
    let script = "rm /var/lib/containers/storage/vfs-images/*/=*";
    assert!(host.call(std::path::Path::new("sh"), &["-c", script]).status.success());
    host.good(&["start", "web"]);
    assert_eq!(pod_of(&requests, "web")["name"], "web");
    let printed = host.admin(&["status"])["missing"].to_string();
    assert!(printed.contains("the labels of the image could not be read"), "{printed}");
}

const YAML: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: kubed
  labels:
    nri-runc.dev/label/tier: front
  annotations:
    resources.nri-runc.dev/container.kubed-web: |
      {"cpu": {"shares": 512},
       "memory": {"limit": 67108864}}
spec:
  hostNetwork: true
  containers:
  - name: web
    image: localhost/busybox:1
    imagePullPolicy: Never
"#;

#[test]
fn a_container_of_kube_play_is_named_after_its_pod_and_itself() {
    let Some(host) = installed("") else { return };
    let (_plugin, requests) = subscriber(&host);
    host.write("kubed.yaml", YAML);
    let file = host.path("kubed.yaml").display().to_string();
    host.good(&["--runtime", "nri-runc", "kube", "play", &file]);
    let request = request_of(&requests, "CreateContainer", "kubed-web");
    let (pod, container) = (&request["pod"], &request["container"]);
    assert_eq!([&container["name"], &pod["name"]], [&json!("kubed-web"), &json!("kubed")]);
    assert_eq!(
        pod["annotations"]["resources.nri-runc.dev/container.kubed-web"],
        format!("{VALUE}\n")
    );
    assert_eq!(pod["labels"]["tier"], "front");
    let id = pod["id"].as_str().unwrap().to_owned();
    host.good(&["kube", "down", &file]);
    host.wait_until_no_pods();
    drop(host);
    super::pods::forget_podmans_own_cgroup(&id);
}
