// SPDX-License-Identifier: Apache-2.0
//! Tests mounts that propagate, and the host's conditions for them.

use serde_json::{Value, json};

use super::super::{
    CdiDevice, HostFacts, HostMounts, PatchError, Resolved, patch_on, propagating_sources,
};
use super::{Adjustment, adjusted};
use crate::plugin::api;

fn mount(destination: &str, options: &[&str]) -> api::Mount {
    let (kind, source) = ("bind", "/src");
    let mount =
        json!({"destination": destination, "type": kind, "source": source, "options": options});
    crate::plugin::json::read(&mount).unwrap()
}

fn mounts(mounts: Vec<api::Mount>) -> Adjustment {
    Adjustment { mounts, ..Default::default() }
}

fn tmpfs() -> api::Mount {
    api::Mount { type_: "tmpfs".to_owned(), ..mount("/a", &["rshared"]) }
}

/// Returns the root file system's propagation after a mount of `source` with `option`, on a host with only these
/// lines of mountinfo.
fn on_host(mountinfo: &[&str], source: &str, option: &str) -> Result<String, String> {
    let facts = HostFacts {
        mounts: Some(HostMounts::read(&mountinfo.join("\n"))),
        resolved: [("/link".to_owned(), "/shared/real".to_owned())].into(),
        ..HostFacts::default()
    };
    let mount = api::Mount { source: source.to_owned(), ..mount("/a", &["rbind", option]) };
    match patch_on(b"{}", &mounts(vec![mount]), &facts) {
        Ok(patched) => {
            let spec: Value = serde_json::from_slice(&patched.bytes.unwrap()).unwrap();
            Ok(spec["linux"]["rootfsPropagation"].as_str().unwrap_or_default().to_owned())
        }
        Err(PatchError::Invalid { field, problem }) => {
            assert_eq!(field, "Mounts[/a]");
            Err(problem)
        }
        Err(other) => panic!("{other}"),
    }
}

const HOST: [&str; 7] = [
    "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
    "2 1 8:2 / /shared rw shared:5 - ext4 /dev/sdb rw",
    "3 2 8:3 / /shared/private\\040dir rw - ext4 /dev/sdc rw",
    "4 1 8:4 / /slave rw master:5 propagate_from:2 - ext4 /dev/sdd rw",
    "5 1 8:5 / /both rw shared:7 master:5 - ext4 /dev/sde rw",
    "6 1 8:6 / /twice rw shared:8 - ext4 /dev/sdf rw",
    "7 1 8:7 / /twice rw - tmpfs shared:9 rw",
];

#[test]
fn a_propagating_bind_mount_makes_the_root_propagate() {
    let propagation = |there: &str, mounts_wanted: Vec<api::Mount>| {
        let document = format!(r#"{{"linux":{{"rootfsPropagation":"{there}"}}}}"#);
        let (text, _) = adjusted(&document, &mounts(mounts_wanted));
        serde_json::from_str::<Value>(&text).unwrap()["linux"]["rootfsPropagation"].clone()
    };
    assert_eq!(propagation("", vec![mount("/a", &["rbind", "rshared"])]), "rshared");
    assert_eq!(propagation("private", vec![mount("/a", &["rslave"])]), "rslave");
    assert_eq!(propagation("rshared", vec![mount("/a", &["rslave"])]), "rshared");
    assert_eq!(propagation("private", vec![mount("/a", &["rshared", "rprivate"])]), "private");
    let both = vec![mount("/a", &["rshared"]), mount("/b", &["ro"])];
    assert_eq!(propagation("private", both), "rshared", "one mount says nothing about another");
    assert_eq!(propagation("private", vec![tmpfs()]), "private");
}

#[test]
fn the_hosts_mount_must_propagate_as_far_as_requested() {
    for (source, shared, slave) in [
        ("/shared/data", true, true),
        ("/shared", true, true),
        ("/both/x", true, true),
        ("/slave/x", false, true),
        ("/sharedother", false, false),
        ("/shared/private dir/x", false, false),
        ("/shared/private dir/../x", true, true),
        ("/twice/x", false, false),
        ("/", false, false),
    ] {
        for (option, is_fine) in [("rshared", shared), ("rslave", slave)] {
            let outcome = on_host(&HOST, source, option);
            assert_eq!(outcome.is_ok(), is_fine, "{source} {option}: {outcome:?}");
            assert!(outcome.is_err() || outcome == Ok(option.to_owned()));
        }
        assert_eq!(on_host(&HOST, source, "rprivate"), Ok(String::new()));
    }
}

#[test]
fn links_are_followed_and_sources_on_no_mount_are_refused() {
    assert_eq!(on_host(&HOST, "/link", "rshared"), Ok("rshared".to_owned()));
    for (mountinfo, source) in
        [(&HOST[..], "relative"), (&HOST[..], ""), (&HOST[1..], "/elsewhere"), (&[], "/shared")]
    {
        assert!(on_host(mountinfo, source, "rshared").is_err(), "{source}");
    }
    for odd in ["", "1 2 3", "1 0 8:1 / /shared", "1 0 8:1 / \\9\\04 rw shared:1 - x"] {
        assert!(on_host(&[odd], "/shared", "rshared").is_err(), "{odd}");
    }
}

#[test]
fn a_refused_mount_is_named_with_the_hosts_mount() {
    let problem = on_host(&HOST, "/slave/x", "rshared").unwrap_err();
    let wanted =
        "its source /slave/x is on the host's mount /slave, which is a slave but must be shared";
    assert_eq!(problem, wanted);
}

#[test]
fn facts_are_needed_only_for_mounts_that_propagate() {
    let plain = [mount("/a", &["ro"]), mount("/a", &["rshared", "private"]), tmpfs()];
    let gone = mount("-/a", &["rshared"]);
    let adjustment = mounts(plain.into_iter().chain([gone]).collect());
    assert_eq!(propagating_sources(&adjustment, &Resolved::default()), Vec::<&str>::new());
    let adjustment = mounts(vec![mount("/a", &["slave"]), mount("/b", &[])]);
    assert_eq!(propagating_sources(&adjustment, &Resolved::default()), ["/src"]);
}

#[test]
fn a_cdi_device_may_bring_a_mount_that_propagates() {
    let device = CdiDevice {
        name: "v.com/d=x".to_owned(),
        mounts: vec![mount("/a", &["bind", "rshared"])],
        ..CdiDevice::default()
    };
    let names = Resolved { cdi: vec![device], ..Resolved::default() };
    let named = api::CDIDevice { name: "v.com/d=x".to_owned(), ..Default::default() };
    let adjustment = Adjustment { CDI_devices: vec![named], ..Default::default() };
    assert_eq!(propagating_sources(&adjustment, &names), ["/src"]);
    let private = Some(HostMounts::read("1 0 8:1 / / rw - ext4 /dev/sda rw"));
    let facts = HostFacts { mounts: private, names, ..HostFacts::default() };
    let error = patch_on(b"{}", &adjustment, &facts).unwrap_err();
    assert_eq!(error.field(), Some("CdiDevices[v.com/d=x]"));
    assert!(error.to_string().contains("Mounts[/a]"), "{error}");
}
