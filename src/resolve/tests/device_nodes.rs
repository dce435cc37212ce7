// SPDX-License-Identifier: Apache-2.0
//! Tests device nodes of CDI files, completed from the host's nodes. They use a pipe and a link to
//! `/dev/null`, which need no privilege.

use nix::sys::stat::Mode;

use super::{HostTree, cdi};
use crate::plugin::api;

const FIELD: &str = "CdiDevices[v.com/d=x]";

/// Returns a host with a pipe that only its owner may open, a character device and a plain file.
fn tree(nodes: &str) -> HostTree {
    let text = format!(
        "cdiVersion: 1.1.0\nkind: v.com/d\ndevices:\n- name: x\n  containerEdits:\n    deviceNodes: [{nodes}]\n"
    );
    let tree = HostTree::new(&[("/etc/cdi/d.yaml", &text), ("/dev/plain", "")]);
    let at = |path: &str| tree.host().path(path);
    nix::unistd::mkfifo(&at("/dev/closed"), Mode::from_bits_truncate(0o600)).unwrap();
    std::os::unix::fs::symlink("/dev/null", at("/dev/open")).unwrap();
    tree
}

/// Returns the only node: type, numbers, mode.
#[track_caller]
fn node(nodes: &str) -> (String, i64, i64, Option<u32>) {
    let resolved = tree(nodes).resolve(&cdi(&["v.com/d=x"])).unwrap();
    let [(node, _access)] = &resolved.cdi[0].nodes[..] else { panic!("{resolved:?}") };
    let api::LinuxDevice { type_, major, minor, file_mode, .. } = node.clone();
    (type_, major, minor, file_mode.as_ref().map(|mode| mode.value))
}

#[track_caller]
fn is_refused(nodes: &str, wanted: &[&str]) {
    tree(nodes).refuses(&cdi(&["v.com/d=x"]), FIELD, &[&["/etc/cdi/d.yaml"], wanted].concat());
}

#[test]
fn a_device_node_without_a_mode_gets_the_hosts_mode() {
    let pipe = || "p".to_owned();
    assert_eq!(node("{path: /dev/closed}"), (pipe(), 0, 0, Some(0o600)));
    assert_eq!(node("{path: /dev/closed, type: p}"), (pipe(), 0, 0, Some(0o600)));
    assert_eq!(node("{path: /dev/in, hostPath: /dev/closed}"), (pipe(), 0, 0, Some(0o600)));
    let given = "{path: /dev/in, hostPath: /dev/closed, type: c, major: 195, minor: 7}";
    assert_eq!(node(given), ("c".to_owned(), 195, 7, Some(0o600)), "the file's numbers hold");
}

#[test]
fn a_node_without_numbers_gets_the_hosts_and_keeps_its_mode() {
    let null = |mode| ("c".to_owned(), 1, 3, Some(mode));
    assert_eq!(node("{path: /dev/open}"), null(0o666));
    assert_eq!(node("{path: /dev/open, type: \"\", fileMode: 0}"), null(0));
    assert_eq!(node("{path: /dev/open, type: c, fileMode: 416}"), null(0o640));
    assert_eq!(node("{path: /dev/open, type: c, major: 0, minor: 9}"), null(0o666));
}

#[test]
fn a_node_missing_on_the_host_comes_from_its_file() {
    let gone = "{path: /dev/gone, type: c, major: 195, minor: 7}";
    assert_eq!(node(gone), ("c".to_owned(), 195, 7, None));
    assert_eq!(node("{path: /dev/gone, type: p}"), ("p".to_owned(), 0, 0, None));
}

#[test]
fn a_device_node_without_a_description_is_refused() {
    is_refused("{path: /dev/gone}", &["/dev/gone of this host", "NotFound"]);
    is_refused("{path: /dev/gone, type: c}", &["/dev/gone"]);
    is_refused("{path: /dev/gone, type: c, major: 0, minor: 7}", &["/dev/gone"]);
    is_refused("{path: /dev/plain}", &["/dev/plain", "not a device node"]);
    is_refused("{path: /dev/open, type: b}", &["has type c, not b"]);
    is_refused("{path: /dev/in, hostPath: /dev/gone}", &["/dev/gone"]);
}
