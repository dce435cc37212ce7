// SPDX-License-Identifier: Apache-2.0
//! The form of values that can be injected: members of the OCI specification that NRI can set, with
//! the checks of their keys.

use crate::config::shape::Shape::{self, Integer, Limit, List, Name, Path, Table, Text, Truth};
use crate::config::shape::{Member, may, must};

const ANY: Shape = Integer(i64::MIN, i64::MAX);
const NATURAL: Shape = Integer(0, i64::MAX);

pub(super) static MOUNT: &[Member] = &[
    must("destination", Path),
    may("type", Text),
    may("source", Text),
    may("options", List(&Text)),
];
pub(super) static DEVICE: &[Member] = &[
    must("path", Path),
    must("type", Name),
    may("major", NATURAL),
    may("minor", NATURAL),
    may("fileMode", Integer(0, 0o777)),
    may("uid", Integer(0, u32::MAX as i64)),
    may("gid", Integer(0, u32::MAX as i64)),
];
pub(super) static RLIMIT: &[Member] = &[must("soft", Limit), must("hard", Limit)];
static HOOK: &[Member] = &[
    must("path", Path),
    may("args", List(&Text)),
    may("env", List(&Text)),
    may("timeout", Integer(1, i32::MAX as i64)),
];
pub(super) static HOOKS: &[Member] = &[
    may("prestart", List(&Table(HOOK))),
    may("createRuntime", List(&Table(HOOK))),
    may("createContainer", List(&Table(HOOK))),
    may("startContainer", List(&Table(HOOK))),
    may("poststart", List(&Table(HOOK))),
    may("poststop", List(&Table(HOOK))),
];
pub(super) static RESOURCES: &[Member] = &[
    may(
        "memory",
        Table(&[
            may("limit", ANY),
            may("reservation", ANY),
            may("swap", ANY),
            may("kernel", ANY),
            may("kernelTCP", ANY),
            may("swappiness", Integer(0, 200)),
            may("disableOOMKiller", Truth),
            may("useHierarchy", Truth),
        ]),
    ),
    may(
        "cpu",
        Table(&[
            may("shares", NATURAL),
            may("quota", ANY),
            may("period", NATURAL),
            may("realtimeRuntime", ANY),
            may("realtimePeriod", NATURAL),
            may("cpus", Name),
            may("mems", Name),
        ]),
    ),
    may("pids", Table(&[must("limit", ANY)])),
    may("hugepageLimits", List(&Table(&[must("pageSize", Name), must("limit", NATURAL)]))),
    may("unified", Shape::Map(&Text, check_key)),
    may(
        "devices",
        List(&Table(&[
            must("allow", Truth),
            may("type", Text),
            may("major", ANY),
            may("minor", ANY),
            may("access", Text),
        ])),
    ),
];

pub(super) fn check_key(key: &str) -> Option<&'static str> {
    let is_marked =
        key.starts_with('-').then_some("would remove it: a key must not begin with a dash");
    is_marked.or(key.is_empty().then_some("is empty"))
}

pub(super) fn check_variable(name: &str) -> Option<&'static str> {
    check_key(name).or(name.contains('=').then_some("has a =, which ends a name"))
}

pub(super) fn check_rlimit(name: &str) -> Option<&'static str> {
    let kind: Result<oci_spec::runtime::PosixRlimitType, _> =
        serde_json::from_value(nri_adaptation::keys::rlimit(name).into());
    kind.is_err().then_some("is not the name of a resource limit, such as nofile")
}
