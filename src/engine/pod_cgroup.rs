// SPDX-License-Identifier: Apache-2.0
//! Names of cgroups as engines and kubelet write them, and the pod's own cgroup, which kubelet
//! makes before the sandbox. If the engine reports no resources of the pod, the current limits of
//! that cgroup (overhead included) are used. Only lossless values are used: cgroup v2 keeps no
//! shares. `src/cgroup` handles the cgroups of running containers.

use serde_json::{Map, Value};

use super::{Document, EngineKind, FetchedFacts};

const ROOT: &str = "/sys/fs/cgroup";

/// Returns the parent of a cgroup: the path without its last element, or the slice's full path
/// (`a-b.slice` is in `a.slice`, systemd.slice(5)).
pub(crate) fn cgroup_parent(path: &str) -> String {
    if let Some((slice, _)) = path.split_once(':') {
        let Some(name) = slice.strip_suffix(".slice") else { return slice.to_owned() };
        let mut parent = String::new();
        for (at, _) in name.match_indices('-').chain([(name.len(), "")]) {
            parent.push('/');
            parent.push_str(&name[..at]);
            parent.push_str(".slice");
        }
        return parent;
    }
    path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default()
}

/// Returns the cgroup that was made for the pod alone, by the cgroup path of its sandbox; `None` if
/// several pods may share it, or its path is not absolute.
pub(crate) fn cgroup_of_pod(path: &str, uid: &str) -> Option<String> {
    let parent = cgroup_parent(path);
    let name = parent.rsplit('/').next()?;
    let is_slice = path.contains(':');
    let bare = name.strip_suffix(".slice").unwrap_or(name);
    let of_kubelet = if is_slice { bare.contains("-pod") } else { bare.starts_with("pod") };
    let has_uid = !uid.is_empty() && (bare.contains(uid) || bare.contains(&uid.replace('-', "_")));
    let is_plain = parent.starts_with('/') && !parent.split('/').any(|part| part == "..");
    ((of_kubelet && is_kubelets(path) || has_uid) && is_plain).then_some(parent)
}

/// Returns the cgroup path in another document.
pub(super) fn path_in(document: &[u8]) -> Option<String> {
    let document: Value = serde_json::from_slice(document).ok()?;
    document.pointer("/linux/cgroupsPath")?.as_str().map(ToOwned::to_owned)
}

/// Whether kubelet made the parent of this cgroup.
pub(super) fn is_kubelets(path: &str) -> bool {
    let slice = path.split(':').next().unwrap_or_default();
    slice.split('/').any(|part| part.starts_with("kubepods")) || slice.contains("-kubepods-")
}

/// Returns the UID of the pod for which kubelet made the cgroup: `…/podUID/…`, or
/// `…-podUID.slice:…`, where systemd's names have underscores for dashes.
pub(super) fn pod_uid(path: &str) -> Option<String> {
    if !is_kubelets(path) {
        return None;
    }
    let uid = match path.split_once(':') {
        Some((slice, _)) => {
            let uid = slice.strip_suffix(".slice")?.rsplit_once("-pod")?.1;
            uid.replace('_', "-")
        }
        None => path.rsplit_once('/')?.0.rsplit('/').next()?.strip_prefix("pod")?.to_owned(),
    };
    (!uid.is_empty()).then_some(uid)
}

/// Returns the engine that named the cgroup, of those that share containers/storage: `…/crio-ID`,
/// `…:libpod:ID`.
pub(super) fn engine(path: &str) -> Option<EngineKind> {
    let name = match path.split(':').collect::<Vec<_>>()[..] {
        [_, prefix, _] => prefix,
        _ => path.rsplit('/').next()?.split('-').next()?,
    };
    match name {
        "crio" => Some(EngineKind::Crio),
        "libpod" => Some(EngineKind::Podman),
        _ => None,
    }
}

/// Returns the path of a file in the pod's cgroup, if kubelet made it.
fn path(document: &Document<'_>, controller: &str, file: &str) -> Option<String> {
    let parent = cgroup_parent(document.cgroups_path);
    let mut elements = parent.split('/');
    let is_pods = elements.clone().any(|element| element.starts_with("kubepods"))
        && !elements.any(|element| element == "..");
    is_pods.then(|| format!("{ROOT}{controller}{parent}/{file}"))
}

const MAX: (&str, &str) = ("", "cpu.max");
const MEMORY_MAX: (&str, &str) = ("", "memory.max");
const SHARES: (&str, &str) = ("/cpu", "cpu.shares");
const QUOTA: (&str, &str) = ("/cpu", "cpu.cfs_quota_us");
const PERIOD: (&str, &str) = ("/cpu", "cpu.cfs_period_us");
const LIMIT: (&str, &str) = ("/memory", "memory.limit_in_bytes");

/// Returns the files of both cgroup versions.
pub(super) fn files(document: &Document<'_>) -> Vec<String> {
    let all = [MAX, MEMORY_MAX, SHARES, QUOTA, PERIOD, LIMIT];
    all.iter().filter_map(|(controller, file)| path(document, controller, file)).collect()
}

/// Returns the shares and limits in [`files`] as a CRI message in JSON; `None` if there are none.
pub(super) fn resources(
    document: &Document<'_>,
    found: &FetchedFacts,
) -> Option<Map<String, Value>> {
    let text = |(controller, file): (&str, &str)| {
        let bytes = found.file(&path(document, controller, file)?)?;
        Some(std::str::from_utf8(bytes).ok()?.trim().to_owned())
    };
    let number = |file| text(file)?.parse::<i64>().ok();
    // "QUOTA PERIOD"; "max" does not parse.
    let max = text(MAX).and_then(|line| {
        let (quota, period) = line.split_once(' ')?;
        Some((quota.parse::<i64>().ok()?, period.parse::<i64>().ok()?))
    });
    let quota = max.map(|(quota, _)| quota).or_else(|| number(QUOTA)).filter(|quota| *quota > 0);
    let period = max.map(|(_, period)| period).or_else(|| number(PERIOD));
    // v1 shows "no limit" as a number beyond any memory size.
    let limit = number(MEMORY_MAX).or_else(|| number(LIMIT)).filter(|limit| *limit < 1 << 60);
    let told = [
        ("cpu_quota", quota),
        ("cpu_period", period.filter(|_| quota.is_some())),
        ("cpu_shares", number(SHARES)),
        ("memory_limit_in_bytes", limit),
    ];
    let told = told.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
    let told: Map<String, Value> = told.collect();
    (!told.is_empty()).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cgroups_path: &str, files: &[(&str, &str)]) -> Option<Value> {
        let annotations = Default::default();
        let document = Document {
            annotations: &annotations,
            root_path: "",
            cgroups_path,
            mounts: Vec::new(),
            namespaces: Vec::new(),
            clos: None,
            limits_block_io: false,
            has_seccomp: false,
        };
        let files = files.iter().map(|(path, text)| (format!("{ROOT}{path}"), (*text).into()));
        let found = FetchedFacts { files: files.collect(), ..FetchedFacts::default() };
        resources(&document, &found).map(Value::from)
    }

    #[test]
    fn the_parent_of_both_cgroup_drivers_is_found() {
        assert_eq!(cgroup_parent("/kubepods/pod1/abc"), "/kubepods/pod1");
        assert_eq!(
            cgroup_parent("kubepods-burstable-pod1.slice:cri-containerd:abc"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
        );
    }

    #[test]
    fn the_pods_own_cgroup_is_one_that_no_other_pod_shares() {
        let uid = "11111111-2222";
        for (path, wanted) in [
            ("/kubepods/burstable/pod1/abc", Some("/kubepods/burstable/pod1")),
            ("/test/11111111-2222/abc", Some("/test/11111111-2222")),
            (
                "kubepods-pod11111111_2222.slice:cri-containerd:abc",
                Some("/kubepods.slice/kubepods-pod11111111_2222.slice"),
            ),
            ("/k8s.io/abc", None),
            ("/kubepods/abc", None),
            ("system.slice:cri-containerd:abc", None),
            ("/kubepods/../pod1/abc", None),
            ("kubepods/pod1/abc", None),
            ("", None),
        ] {
            assert_eq!(cgroup_of_pod(path, uid).as_deref(), wanted, "{path}");
        }
        assert_eq!(cgroup_of_pod("/test/any/abc", ""), None);
    }

    #[test]
    fn a_cgroup_path_of_one_element_or_none_has_no_parent() {
        assert_eq!(cgroup_parent(""), "");
        assert_eq!(cgroup_parent("lonely"), "");
    }

    #[test]
    fn pod_limits_are_read_from_both_cgroup_versions() {
        let v2 = [
            ("/kubepods.slice/kubepods-pod1.slice/cpu.max", "200000 100000\n"),
            ("/kubepods.slice/kubepods-pod1.slice/memory.max", "1073741824\n"),
        ];
        let wanted = serde_json::json!({"cpu_quota": 200_000, "cpu_period": 100_000,
            "memory_limit_in_bytes": 1_073_741_824});
        assert_eq!(told("kubepods-pod1.slice:cri-containerd:c", &v2), Some(wanted));
        let v1 = [
            ("/cpu/kubepods/pod1/cpu.shares", "512"),
            ("/cpu/kubepods/pod1/cpu.cfs_quota_us", "-1"),
            ("/cpu/kubepods/pod1/cpu.cfs_period_us", "100000"),
            ("/memory/kubepods/pod1/memory.limit_in_bytes", "9223372036854771712"),
        ];
        let wanted = serde_json::json!({"cpu_shares": 512});
        assert_eq!(told("/kubepods/pod1/c", &v1), Some(wanted));
    }

    #[test]
    fn missing_foreign_and_malformed_limits_yield_nothing() {
        let none = [
            ("/kubepods/pod1/cpu.max", "max 100000"),
            ("/kubepods/pod1/memory.max", "max"),
            ("/cpu/kubepods/pod1/cpu.shares", "many"),
        ];
        assert_eq!(told("/kubepods/pod1/c", &none), None);
        for path in ["/system.slice/c", "/kubepods/../c/d", "", "c"] {
            let document = [("/system.slice/memory.max", "5"), ("/c/memory.max", "5")];
            assert_eq!(told(path, &document), None);
        }
    }
}
