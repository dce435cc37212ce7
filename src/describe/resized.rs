// SPDX-License-Identifier: Apache-2.0
//! A pod's resources after kubelet resized its cgroup. A changed file updates the resources that
//! plugins last received; the others stay. The cgroup's limits include the pod's overhead, which
//! NRI reports separately.
//!
//! A removed limit is absent, as in a CRI request. cgroup v2 has a weight in place of shares: the
//! shares are computed from it as kubelet does, and may differ from the requested ones. Nothing is
//! read here. Reference: kubelet `cm/cgroup_v2_manager_linux.go`.

use std::collections::BTreeMap;

use crate::plugin::api;

/// The files that kubelet writes for a pod on v1, with their controllers.
pub(crate) const V1: [(&str, &str); 4] = [
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpu", "cpu.shares"),
    ("memory", "memory.limit_in_bytes"),
];

/// The files that kubelet writes for a pod on v2.
pub(crate) const V2: [(&str, &str); 3] = [("", "cpu.max"), ("", "cpu.weight"), ("", "memory.max")];

/// A memory limit of v1 of at least this many bytes means "no limit".
const NO_MEMORY_LIMIT: i64 = 1 << 60;

/// The contents of the files of [`V1`] or [`V2`], by file name.
pub(crate) type PodLimits = BTreeMap<String, String>;

/// Returns the pod's resources after its limits changed from `before` to `now`; `None` if none
/// changed.
pub(crate) fn resized(
    pod: &api::PodSandbox,
    before: &PodLimits,
    now: &PodLimits,
) -> Option<api::LinuxResources> {
    let is_changed = |files: &[&str]| files.iter().any(|file| before.get(*file) != now.get(*file));
    let quota = is_changed(&["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"]);
    let shares = is_changed(&["cpu.weight", "cpu.shares"]);
    let memory = is_changed(&["memory.max", "memory.limit_in_bytes"]);
    if !quota && !shares && !memory {
        return None;
    }
    // If plugins have received no resources of the pod yet, all of them are set.
    let is_new = pod.linux.pod_resources.is_none();
    let (quota, shares, memory) = (quota || is_new, shares || is_new, memory || is_new);
    let overhead = pod.linux.pod_overhead.clone().unwrap_or_default();
    let mut resources = pod.linux.pod_resources.clone().unwrap_or_default();
    if quota || shares {
        let mut cpu = resources.cpu.take().unwrap_or_default();
        if quota {
            let now = quota_and_period(now).map(|(quota, period)| {
                let of_overhead = overhead.cpu.quota.as_ref().map_or(0, |quota| quota.value);
                (without(quota, of_overhead), period)
            });
            cpu.quota = now.map(|(quota, _)| quota.into()).into();
            cpu.period = now.map(|(_, period)| period.into()).into();
        }
        if shares {
            let of_overhead = overhead.cpu.shares.as_ref().map_or(0, |shares| shares.value);
            let rest = |shares: u64| match shares.saturating_sub(of_overhead) {
                0 => shares,
                rest => rest,
            };
            cpu.shares = shares_of(now).map(rest).map(Into::into).into();
        }
        resources.cpu = (cpu != api::LinuxCPU::default()).then_some(cpu).into();
    }
    if memory {
        let mut kept = resources.memory.take().unwrap_or_default();
        let of_overhead = overhead.memory.limit.as_ref().map_or(0, |limit| limit.value);
        let limit = memory_limit(now).map(|limit| without(limit, of_overhead));
        kept.limit = limit.map(Into::into).into();
        resources.memory = (kept != api::LinuxMemory::default()).then_some(kept).into();
    }
    Some(resources)
}

/// Subtracts the overhead from a limit if the limit is larger.
fn without(limit: i64, overhead: i64) -> i64 {
    if (1..limit).contains(&overhead) { limit - overhead } else { limit }
}

fn number<T: std::str::FromStr>(limits: &PodLimits, file: &str) -> Option<T> {
    limits.get(file)?.parse().ok()
}

fn quota_and_period(limits: &PodLimits) -> Option<(i64, u64)> {
    let max = limits.get("cpu.max").and_then(|line| {
        let (quota, period) = line.split_once(' ')?;
        Some((quota.parse().ok()?, period.parse().ok()?))
    });
    let both = || Some((number(limits, "cpu.cfs_quota_us")?, number(limits, "cpu.cfs_period_us")?));
    max.or_else(both).filter(|(quota, _)| *quota > 0)
}

fn shares_of(limits: &PodLimits) -> Option<u64> {
    let weight = number::<u64>(limits, "cpu.weight").filter(|weight| *weight > 0);
    let read = weight.map(|weight| (weight.min(10_000) - 1) * 262_142 / 9999 + 2);
    read.or_else(|| number(limits, "cpu.shares"))
}

fn memory_limit(limits: &PodLimits) -> Option<i64> {
    let limit = number(limits, "memory.max").or_else(|| number(limits, "memory.limit_in_bytes"));
    limit.filter(|limit| (1..NO_MEMORY_LIMIT).contains(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(texts: &[(&str, &str)]) -> PodLimits {
        texts.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
    }

    /// Builds a pod with resources as an engine reports them.
    fn pod(shares: u64, memory: i64) -> api::PodSandbox {
        let mut pod = api::PodSandbox::default();
        let resources = pod.linux.mut_or_insert_default().pod_resources.mut_or_insert_default();
        resources.cpu.mut_or_insert_default().shares = Some(shares.into()).into();
        resources.memory.mut_or_insert_default().limit = Some(memory.into()).into();
        pod
    }

    const V2: [(&str, &str); 3] =
        [("cpu.max", "20000 100000"), ("cpu.weight", "20"), ("memory.max", "67108864")];

    #[test]
    fn unchanged_resources_stay_as_the_engine_sent_them() {
        let mut now = limits(&V2);
        now.insert("memory.max".to_owned(), "134217728".to_owned());
        let resources = resized(&pod(777, 67_108_864), &limits(&V2), &now).unwrap();
        assert_eq!(resources.memory.limit.value, 134_217_728);
        assert_eq!(resources.cpu.shares.value, 777, "not what the weight would give");
        assert!(resources.cpu.quota.is_none(), "the engine said none");
        assert_eq!(resized(&pod(1, 1), &now, &now), None);
    }

    #[test]
    fn all_limits_are_read_from_both_cgroup_versions() {
        let none = PodLimits::new();
        let v1 = [
            ("cpu.cfs_quota_us", "20000"),
            ("cpu.cfs_period_us", "100000"),
            ("cpu.shares", "512"),
            ("memory.limit_in_bytes", "67108864"),
        ];
        for (texts, shares) in [(&v1[..], 512), (&V2[..], 500)] {
            let update = resized(&api::PodSandbox::default(), &none, &limits(texts)).unwrap();
            assert_eq!((update.cpu.quota.value, update.cpu.period.value), (20_000, 100_000));
            assert_eq!((update.cpu.shares.value, update.memory.limit.value), (shares, 67_108_864));
        }
    }

    #[test]
    fn the_update_of_a_pod_with_unknown_resources_has_all_values() {
        let mut now = limits(&V2);
        now.insert("memory.max".to_owned(), "134217728".to_owned());
        let update = resized(&api::PodSandbox::default(), &limits(&V2), &now).unwrap();
        assert_eq!((update.cpu.quota.value, update.memory.limit.value), (20_000, 134_217_728));
    }

    #[test]
    fn a_limit_that_was_removed_is_absent() {
        let now = [("cpu.max", "max 100000"), ("cpu.weight", "20"), ("memory.max", "max")];
        let update = resized(&pod(2, 5), &limits(&V2), &limits(&now)).unwrap();
        assert!(
            update.memory.is_none() && update.cpu.quota.is_none() && update.cpu.period.is_none()
        );
        let before = [("cpu.cfs_quota_us", "1000"), ("memory.limit_in_bytes", "4096")];
        let now = [("cpu.cfs_quota_us", "-1"), ("memory.limit_in_bytes", "9223372036854771712")];
        let update = resized(&api::PodSandbox::default(), &limits(&before), &limits(&now)).unwrap();
        assert!(update.memory.is_none() && update.cpu.is_none());
    }

    #[test]
    fn a_resized_pods_values_exclude_its_overhead() {
        let mut pod = pod(2, 5);
        let overhead = pod.linux.mut_or_insert_default().pod_overhead.mut_or_insert_default();
        overhead.cpu.mut_or_insert_default().quota = Some(5000_i64.into()).into();
        overhead.cpu.mut_or_insert_default().shares = Some(100_u64.into()).into();
        overhead.memory.mut_or_insert_default().limit = Some((1_i64 << 20).into()).into();
        let update = resized(&pod, &PodLimits::new(), &limits(&V2)).unwrap();
        assert_eq!((update.cpu.quota.value, update.cpu.shares.value), (15_000, 400));
        assert_eq!(update.memory.limit.value, 63 << 20);
        let small = [("cpu.max", "4000 100000"), ("cpu.weight", "1"), ("memory.max", "4096")];
        let update = resized(&pod, &PodLimits::new(), &limits(&small)).unwrap();
        assert_eq!((update.cpu.quota.value, update.cpu.shares.value), (4000, 2));
        assert_eq!(update.memory.limit.value, 4096);
    }

    #[test]
    fn an_unparsable_file_is_not_a_limit() {
        let odd = [("cpu.max", "many"), ("cpu.weight", "0"), ("memory.max", "-5")];
        let update = resized(&pod(2, 5), &limits(&V2), &limits(&odd)).unwrap();
        assert_eq!(update, api::LinuxResources::default());
    }
}
