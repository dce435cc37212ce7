// SPDX-License-Identifier: Apache-2.0
//! What the real runc says of itself, as the daemon reads it: its words are known, nothing that
//! it honours is refused, and what its version lacks is.

use nri_runc::plugin::api;
use nri_runc::testing::resolve::{ResourceWriter, check_runtime, needs_runtime};
use nri_runc::testing::runtime::features::{Features, ask};
use nri_runc::testing::spec::patch::Resolved;

fn runc() -> Option<Features> {
    let runc = test_support::tools::find(&["runc"])?.join("runc");
    Some(ask(&runc).unwrap())
}

fn mount(option: &str) -> api::ContainerAdjustment {
    let options = vec!["rbind".to_owned(), option.to_owned()];
    let mount = api::Mount { destination: "/m".to_owned(), options, ..Default::default() };
    api::ContainerAdjustment { mounts: vec![mount], ..Default::default() }
}

fn linux(linux: api::LinuxContainerAdjustment) -> api::ContainerAdjustment {
    api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() }
}

#[test]
fn runc_reports_its_name_version_and_features() {
    let Some(runc) = runc() else { return };
    assert_eq!(runc.name, "runc");
    assert!(runc.version.is_some_and(|version| version > (1, 0, 0)), "{runc}");
    let said = runc.said.unwrap();
    assert!(said.mount_options.unwrap().iter().any(|option| option == "rbind"));
    let linux = said.linux.unwrap();
    assert!(linux.namespaces.unwrap().iter().any(|kind| kind == "pid"));
    assert_eq!(linux.seccomp.unwrap().enabled, Some(true));
}

#[test]
fn fields_that_every_runc_with_features_has_are_accepted() {
    let Some(runc) = runc() else { return };
    let one = api::LinuxContainerAdjustment::default;
    let kinds = ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"];
    let namespaces = kinds.map(|kind| api::LinuxNamespace {
        type_: kind.to_owned(),
        path: format!("/run/{kind}"),
        ..Default::default()
    });
    let call = api::LinuxSyscall {
        names: vec!["mkdir".to_owned()],
        action: "SCMP_ACT_ERRNO".to_owned(),
        args: vec![api::LinuxSeccompArg { op: "SCMP_CMP_EQ".to_owned(), ..Default::default() }],
        ..Default::default()
    };
    let policy = api::LinuxSeccomp {
        default_action: "SCMP_ACT_ALLOW".to_owned(),
        architectures: vec!["SCMP_ARCH_X86_64".to_owned()],
        syscalls: vec![call],
        ..Default::default()
    };
    let options = ["rro", "rnosuid", "tmpcopyup", "nosymfollow", "lazytime", "iversion"];
    let mut fine: Vec<api::ContainerAdjustment> = options.into_iter().map(mount).collect();
    fine.push(linux(api::LinuxContainerAdjustment { namespaces: namespaces.into(), ..one() }));
    fine.push(linux(api::LinuxContainerAdjustment {
        seccomp_policy: Some(policy).into(),
        ..one()
    }));
    for adjustment in fine {
        assert!(needs_runtime(&adjustment, &Resolved::default()), "{adjustment:?}");
        check_runtime(&adjustment, &Resolved::default(), &runc, ResourceWriter::Runtime).unwrap();
    }
}

#[test]
fn fields_that_no_runc_has_are_refused_with_its_version() {
    let Some(runc) = runc() else { return };
    let namespace = api::LinuxNamespace { type_: "weather".to_owned(), ..Default::default() };
    let policy =
        api::LinuxSeccomp { default_action: "SCMP_ACT_SING".to_owned(), ..Default::default() };
    for (adjustment, field) in [
        (
            linux(api::LinuxContainerAdjustment {
                namespaces: vec![namespace],
                ..Default::default()
            }),
            "Namespace[weather]",
        ),
        (
            linux(api::LinuxContainerAdjustment {
                seccomp_policy: Some(policy).into(),
                ..Default::default()
            }),
            "SeccompPolicy",
        ),
    ] {
        let error =
            check_runtime(&adjustment, &Resolved::default(), &runc, ResourceWriter::Runtime)
                .unwrap_err();
        assert_eq!(error.field(), Some(field));
        assert!(error.to_string().contains(&runc.to_string()), "{error}");
    }
}
