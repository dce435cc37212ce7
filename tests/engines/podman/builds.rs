// SPDX-License-Identifier: Apache-2.0
//! The steps of `podman build`, which Buildah starts from bundles that Podman does not know.

use test_support::adjustments::sets;
use test_support::podman::IMAGE;

use super::{installed, run};

#[test]
fn plugins_are_asked_about_the_steps_of_a_build() {
    let Some(host) = installed("") else { return };
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let file = format!("FROM {IMAGE}\nRUN echo \"$HELLO\" >/said\n");
    host.write("build/Containerfile", &file);
    let folder = host.path("build").display().to_string();
    let (program, cgroup) = (host.program().display().to_string(), host.cgroup());
    let words = ["--runtime", &program, "build", "--network", "none", "--isolation", "oci"];
    let more = ["--cgroup-parent", &cgroup, "--tag", "localhost/built:1", &folder];
    host.good(&[&words[..], &more].concat());
    host.wait_until_no_pods();
    let printed = received.lock().unwrap().join("\n");
    assert!(printed.contains("CreateContainer buildah"), "{printed}");
    run(&host, "built", &[], &["/bin/sleep", "1000"]);
    host.good(&["rm", "--force", "--time", "0", "built"]);
    let words = ["run", "--rm", "--network", "none", "--cgroup-parent", &cgroup];
    let printed = host.good(&[&words[..], &["localhost/built:1", "/bin/cat", "/said"]].concat());
    assert_eq!(printed, "there");
}
