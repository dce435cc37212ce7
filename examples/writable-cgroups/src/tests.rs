// SPDX-License-Identifier: Apache-2.0
//! The plugin with the crate's runtime, and tables of mounts.

#![expect(clippy::disallowed_methods, reason = "a test writes its files")]

use nri_plugin::harness::{Runtime, container, pod};
use nri_plugin::{Plugin, api};

use super::{KEY, MOUNT, WritableCgroups, is_delegated};

const DELEGATED: &str =
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const UNDELEGATED: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

/// A container of a test: what an engine makes for a pod without privileges.
fn usual() -> api::Container {
    let mut one = container("nginx", "web");
    one.mounts = vec![api::Mount {
        destination: MOUNT.to_owned(),
        type_: "cgroup".to_owned(),
        source: "cgroup".to_owned(),
        options: ["nosuid", "ro", "relatime"].map(ToOwned::to_owned).into(),
        ..Default::default()
    }];
    let own = api::LinuxNamespace { type_: "cgroup".to_owned(), ..Default::default() };
    one.linux.mut_or_insert_default().namespaces = vec![own];
    one
}

async fn create(
    namespaces: &str,
    table: &str,
    annotations: &[(&str, &str)],
    container: api::Container,
) -> nri_plugin::Result<Vec<api::Mount>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), table)?;
    let path = file.path().display();
    let config = format!(r#"{{"namespaces": {namespaces}, "mountinfo": "{path}"}}"#);
    let mut runtime = Runtime::new()?;
    let plugin = Plugin::new("20-writable-cgroups", WritableCgroups::default())?;
    runtime.start(plugin.config(config)).await?;
    let mut web = pod("web");
    for (key, value) in annotations {
        web.annotations.insert((*key).to_owned(), (*value).to_owned());
    }
    runtime.run_pod(web).await?;
    Ok(runtime.create(container).await?.adjust.mounts.clone())
}

#[tokio::test]
async fn the_cgroup_mount_of_an_annotated_container_is_writable() {
    for key in [KEY, &format!("{KEY}.container.nginx")] {
        let mounts = create(r#"["default"]"#, DELEGATED, &[(key, "true")], usual()).await.unwrap();
        let new = mounts.iter().find(|mount| mount.destination == MOUNT).unwrap();
        assert_eq!(new.options, ["nosuid", "relatime", "rw"]);
        assert_eq!((new.type_.as_str(), new.source.as_str()), ("cgroup", "cgroup"));
    }
}

#[tokio::test]
async fn other_containers_are_unchanged() {
    let narrow = format!("{KEY}.container.nginx");
    let other = format!("{KEY}.container.other");
    for annotations in
        [&[][..], &[(KEY, "false")], &[(KEY, "true"), (&narrow, "false")], &[(&other, "true")]]
    {
        let mounts = create(r#"["*"]"#, UNDELEGATED, annotations, usual()).await.unwrap();
        assert!(mounts.is_empty(), "{annotations:?}");
    }
    let mut writable = usual();
    writable.mounts[0].options = vec!["rw".to_owned()];
    let mounts = create(r#"["*"]"#, DELEGATED, &[(KEY, "true")], writable).await.unwrap();
    assert!(mounts.is_empty(), "{mounts:?}");
}

#[tokio::test]
async fn requests_that_are_unsafe_or_not_permitted_are_refused() {
    let mut of_node = usual();
    of_node.linux.mut_or_insert_default().namespaces.clear();
    let mut of_other = usual();
    of_other.linux.mut_or_insert_default().namespaces[0].path = "/proc/1/ns/cgroup".to_owned();
    let mut without = usual();
    without.mounts.clear();
    for (namespaces, table, container, wanted) in [
        (r#"["build"]"#, DELEGATED, usual(), "the namespace \"default\" may not use it"),
        ("[]", DELEGATED, usual(), "the namespace \"default\" may not use it"),
        (r#"["*"]"#, UNDELEGATED, usual(), "no cgroup v2 with nsdelegate"),
        (r#"["*"]"#, DELEGATED, of_node, "no cgroup namespace of its own"),
        (r#"["*"]"#, DELEGATED, of_other, "no cgroup namespace of its own"),
        (r#"["*"]"#, DELEGATED, without, "the container has no /sys/fs/cgroup"),
    ] {
        let why = create(namespaces, table, &[(KEY, "true")], container).await.unwrap_err();
        assert!(why.to_string().contains(wanted), "{why}");
    }
}

#[tokio::test]
async fn an_unreadable_annotation_or_configuration_is_refused() {
    let why = create(r#"["*"]"#, DELEGATED, &[(KEY, "yes")], usual()).await.unwrap_err();
    assert!(why.to_string().contains("neither true nor false"), "{why}");
    for namespaces in ["{}", "7", r#""*""#] {
        let why = create(namespaces, DELEGATED, &[], usual()).await.unwrap_err();
        assert!(why.to_string().contains("its configuration"), "{why}");
    }
}

#[test]
fn only_cgroup_v2_mounted_with_nsdelegate_is_delegated() {
    assert!(is_delegated(DELEGATED));
    assert!(is_delegated(&format!("1 0 8:1 / / rw - ext4 /dev/a rw\n{DELEGATED}")));
    for table in [
        "",
        "nonsense\n",
        UNDELEGATED,
        &DELEGATED.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        &DELEGATED.replace("cgroup2", "tmpfs"),
        &DELEGATED.replace("nsdelegate", "nsdelegated"),
    ] {
        assert!(!is_delegated(table), "{table}");
    }
}
