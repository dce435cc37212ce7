// SPDX-License-Identifier: Apache-2.0
//! The features that real runtimes report, as the daemon reads them: all names are known, no
//! supported field is refused, and fields that its version lacks are. crun's are recorded.

use nri_runc::testing::resolve::{ResourceWriter, check_runtime, needs_runtime};
use nri_runc::testing::runtime::features::{Features, ask};
use nri_runc::testing::spec::patch::Resolved;
use serde_json::json;
use test_support::adjustments::message;

fn runc() -> Option<Features> {
    let runc = test_support::tools::find(&["runc"])?.join("runc");
    Some(ask(&runc).unwrap())
}

#[test]
fn runc_reports_its_name_version_and_features() {
    let Some(runc) = runc() else { return };
    assert_eq!(runc.name, "runc");
    assert!(runc.version.is_some_and(|version| version > (1, 0, 0)), "{runc}");
    let printed = runc.said.unwrap();
    assert!(printed.mount_options.unwrap().iter().any(|option| option == "rbind"));
    let linux = printed.linux.unwrap();
    assert!(linux.namespaces.unwrap().iter().any(|kind| kind == "pid"));
    assert_eq!(linux.seccomp.unwrap().enabled, Some(true));
}

#[test]
fn fields_that_every_runc_with_features_has_are_accepted() {
    let Some(runc) = runc() else { return };
    let kinds = ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"];
    let namespaces = kinds.map(|kind| json!({"type": kind, "path": format!("/run/{kind}")}));
    let policy = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "SCMP_CMP_EQ"}]}],
    });
    let options = ["rro", "rnosuid", "tmpcopyup", "nosymfollow", "lazytime", "iversion"];
    let mount = |option| json!({"mounts": [{"destination": "/m", "options": ["rbind", option]}]});
    let mut fine = options.map(mount).to_vec();
    fine.push(json!({"linux": {"namespaces": namespaces}}));
    fine.push(json!({"linux": {"seccompPolicy": policy}}));
    for adjustment in &fine {
        let adjustment = message(adjustment);
        assert!(needs_runtime(&adjustment, &Resolved::default()), "{adjustment:?}");
        check_runtime(&adjustment, &Resolved::default(), &runc, ResourceWriter::Runtime).unwrap();
    }
}

#[test]
fn fields_that_no_runc_has_are_refused_with_its_version() {
    let Some(runc) = runc() else { return };
    for (asked, field) in [
        (json!({"namespaces": [{"type": "weather"}]}), "Namespace[weather]"),
        (json!({"seccompPolicy": {"defaultAction": "SCMP_ACT_SING"}}), "SeccompPolicy"),
    ] {
        let adjustment = message(&json!({ "linux": asked }));
        let error =
            check_runtime(&adjustment, &Resolved::default(), &runc, ResourceWriter::Runtime)
                .unwrap_err();
        assert_eq!(error.field(), Some(field));
        assert!(error.to_string().contains(&runc.to_string()), "{error}");
    }
}

#[test]
fn cruns_recorded_features_are_those_of_the_real_one() {
    for version in ["1.21", "1.28"] {
        let Some(crun) = test_support::tools::later_crun(&format!("crun-{version}")) else {
            continue;
        };
        let path = format!("fixtures/runtime/crun/{version}.features.json");
        let recorded =
            std::fs::read_to_string(test_support::program::project().join(path)).unwrap();
        let printed = format!("crun version {version}");
        assert_eq!(ask(&crun).unwrap(), Features::from_answers(&printed, &recorded));
    }
}
