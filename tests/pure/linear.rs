// SPDX-License-Identifier: Apache-2.0
//! The work for one response grows linearly with its size.
//!
//! Each kind of list is merged and patched at one size and at eight times that size, alternately
//! and several times; the fastest runs are compared. Linear work takes eight times as long,
//! quadratic work sixty-four: the bound is in between, so that a busy machine does not matter.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nri_adaptation::{Creation, MOST_IN_ALL, MOST_IN_ONE, Merged, Rights, Updates};
use nri_runc::plugin::api;
use nri_runc::testing::spec::overlay;
use nri_runc::testing::spec::patch::{
    CdiDevice, HostFacts, HostMounts, Resolved, patch_anyway, propagating_sources,
};
use serde_json::json;

const FEW: usize = 400;
const MANY: usize = 8 * FEW;
const WORST: u32 = 24;

/// The processor time of this thread, independent of other work on the machine.
fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The fastest of several runs.
fn fastest(times: usize, work: &dyn Fn()) -> Duration {
    let time = || {
        let start = own_time();
        work();
        own_time() - start
    };
    (0..times).map(|_| time()).min().unwrap()
}

/// Fails when eight times the size takes much more than eight times as long.
#[track_caller]
fn is_linear(what: &str, work: impl Fn(usize)) {
    let ratio = || {
        let few = fastest(5, &|| work(FEW)).max(Duration::from_micros(50));
        let many = fastest(2, &|| work(MANY));
        (few, many)
    };
    // A machine that is busy during one measurement is not busy during all three.
    let seen: Vec<_> =
        (0..3).map(|_| ratio()).take_while(|(few, many)| *many > *few * WORST).collect();
    assert!(seen.len() < 3, "{what}: {FEW} and {MANY} take {seen:?}");
}

type Adjustment = api::ContainerAdjustment;

fn linux(linux: api::LinuxContainerAdjustment) -> Adjustment {
    Adjustment { linux: Some(linux).into(), ..Default::default() }
}

fn resources(resources: api::LinuxResources) -> Adjustment {
    linux(api::LinuxContainerAdjustment { resources: Some(resources).into(), ..Default::default() })
}

fn env(key: String) -> api::KeyValue {
    api::KeyValue { key, value: "v".to_owned(), ..Default::default() }
}

fn mount(destination: String) -> api::Mount {
    let options = vec!["rbind".to_owned(), "rslave".to_owned()];
    let source = format!("/m{destination}");
    api::Mount { destination, source, options, type_: "bind".to_owned(), ..Default::default() }
}

fn device(path: String, number: usize) -> api::LinuxDevice {
    let minor = i64::try_from(number).unwrap();
    api::LinuxDevice { path, type_: "c".to_owned(), major: 10, minor, ..Default::default() }
}

fn all<T>(n: usize, one: impl Fn(usize) -> T) -> Vec<T> {
    (0..n).map(one).collect()
}

fn named<V>(
    n: usize,
    name: &str,
    value: impl Fn(usize) -> V,
) -> std::collections::HashMap<String, V> {
    (0..n).map(|i| (format!("{name}{i}"), value(i))).collect()
}

fn hook(_: usize) -> api::Hook {
    api::Hook { path: "/bin/h".to_owned(), ..Default::default() }
}

fn page(i: usize) -> api::HugepageLimit {
    api::HugepageLimit { page_size: format!("{}KB", 2 * i + 1), limit: 1, ..Default::default() }
}

fn rule(i: usize) -> api::LinuxDeviceCgroup {
    api::LinuxDeviceCgroup {
        allow: true,
        type_: "c".to_owned(),
        major: Some(api::OptionalInt64 { value: i64::try_from(i).unwrap(), ..Default::default() })
            .into(),
        ..Default::default()
    }
}

/// Every list of an adjustment, with `n` entries whose names begin with `mark`.
fn adjustments(n: usize, mark: &str) -> Vec<(&'static str, Adjustment)> {
    let text = |i: usize| format!("v{i}");
    let net = |i: usize| api::LinuxNetDevice { name: format!("n{i}"), ..Default::default() };
    let hooks = api::Hooks { prestart: all(n, hook), ..Default::default() };
    vec![
        (
            "annotations",
            Adjustment { annotations: named(n, &format!("{mark}k"), text), ..Default::default() },
        ),
        ("env", Adjustment { env: all(n, |i| env(format!("{mark}K{i}"))), ..Default::default() }),
        (
            "mounts",
            Adjustment { mounts: all(n, |i| mount(format!("{mark}/d{i}"))), ..Default::default() },
        ),
        (
            "devices",
            linux(api::LinuxContainerAdjustment {
                devices: all(n, |i| device(format!("{mark}/dev/d{i}"), i)),
                ..Default::default()
            }),
        ),
        (
            "sysctl",
            linux(api::LinuxContainerAdjustment {
                sysctl: named(n, &format!("{mark}net.k"), text),
                ..Default::default()
            }),
        ),
        (
            "net devices",
            linux(api::LinuxContainerAdjustment {
                net_devices: named(n, &format!("{mark}e"), net),
                ..Default::default()
            }),
        ),
        ("hooks", Adjustment { hooks: Some(hooks).into(), ..Default::default() }),
        (
            "unified",
            resources(api::LinuxResources {
                unified: named(n, "memory.k", text),
                ..Default::default()
            }),
        ),
        (
            "hugepages",
            resources(api::LinuxResources { hugepage_limits: all(n, page), ..Default::default() }),
        ),
        (
            "device rules",
            resources(api::LinuxResources { devices: all(n, rule), ..Default::default() }),
        ),
    ]
}

fn merged(answers: Vec<Adjustment>) -> Merged {
    let container = api::Container { id: "c0".to_owned(), ..Default::default() };
    let mut creation = Creation::new(api::PodSandbox::default(), container);
    for (index, adjust) in answers.into_iter().enumerate() {
        let response =
            api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() };
        creation = creation.answer(&format!("{index}0-p"), &Rights::default(), response).unwrap();
    }
    let _asked = creation.validation_request(Vec::new());
    creation.finish()
}

/// A document with many entries of every kind.
fn document(n: usize) -> Vec<u8> {
    let rule =
        |i: usize| json!({"allow": true, "type": "c", "major": 11, "minor": i, "access": "rwm"});
    let node =
        |i: usize| json!({"path": format!("/dev/d{i}"), "type": "c", "major": 11, "minor": i});
    let map = |name: &str| -> serde_json::Value {
        (0..n)
            .map(|i| (format!("{name}{i}"), "x"))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .collect()
    };
    json!({
        "process": {"env": all(n, |i| format!("K{i}=x"))},
        "annotations": map("k"),
        "mounts": all(n, |i| json!({"destination": format!("/d{i}")})),
        "linux": {
            "devices": all(n, node), "sysctl": map("net.k"),
            "resources": {"devices": all(n, rule), "hugepageLimits": all(n, |i| json!({"pageSize": format!("{}KB", 2 * i + 1), "limit": 2}))},
        },
    }).to_string().into_bytes()
}

fn host(n: usize) -> HostFacts {
    let lines = (0..n).map(|i| format!("{i} 0 8:1 / /m/d{i} rw shared:{i} - ext4 /dev/sda rw"));
    let mounts = Some(HostMounts::read(&lines.collect::<Vec<_>>().join("\n")));
    HostFacts { mounts, ..HostFacts::default() }
}

#[test]
fn every_list_is_merged_and_patched_in_linear_time() {
    let sizes = [FEW, MANY].map(|n| (n, document(n), host(n)));
    let names: Vec<&str> = adjustments(1, "").into_iter().map(|(name, _)| name).collect();
    for (at, name) in names.iter().enumerate() {
        is_linear(name, |n| {
            let (_, document, host) = sizes.iter().find(|(size, ..)| *size == n).unwrap();
            let merged = merged(vec![adjustments(n, "").swap_remove(at).1]);
            let (patched, _) = patch_anyway(document, &merged.adjust, host).unwrap();
            assert!(
                patched.changes.len() >= n || *name == "hooks",
                "{name}: {}",
                patched.changes.len()
            );
        });
    }
}

#[test]
fn removals_and_replacements_are_merged_in_linear_time() {
    let names: Vec<&str> = adjustments(1, "").into_iter().map(|(name, _)| name).collect();
    for (at, name) in names.iter().enumerate() {
        if matches!(*name, "hooks" | "unified" | "hugepages" | "device rules") {
            continue; // They cannot be removed.
        }
        let sizes = [FEW, MANY].map(|n| (n, document(n), host(n)));
        is_linear(&format!("removal of {name}"), |n| {
            let (_, document, host) = sizes.iter().find(|(size, ..)| *size == n).unwrap();
            let of = |mark| adjustments(n, mark).swap_remove(at).1;
            let merged = merged(vec![of(""), of("-")]);
            drop(patch_anyway(document, &merged.adjust, host));
        });
    }
}

#[test]
fn rlimits_namespaces_and_cdi_devices_are_merged_in_linear_time() {
    is_linear("rlimits, namespaces, CDI devices", |n| {
        let rlimit = |i: usize| api::POSIXRlimit { type_: format!("x{i}"), ..Default::default() };
        let space = |i: usize| api::LinuxNamespace { type_: format!("x{i}"), ..Default::default() };
        let gone = |i: usize| api::LinuxNamespace { type_: format!("-x{i}"), ..Default::default() };
        let cdi = |i: usize| api::CDIDevice { name: format!("v/c={i}"), ..Default::default() };
        let spaces = |all| api::LinuxContainerAdjustment { namespaces: all, ..Default::default() };
        let first = Adjustment {
            rlimits: all(n, rlimit),
            CDI_devices: all(n, cdi),
            ..linux(spaces(all(n, space)))
        };
        merged(vec![first, linux(spaces(all(n, gone)))]);
    });
}

#[test]
fn cdi_edits_are_patched_in_linear_time() {
    let document = document(10);
    is_linear("CDI devices", |n| {
        let name = |i: usize| format!("v.com/c={i}");
        let brings = |i: usize| CdiDevice {
            name: name(i),
            env: vec![env(format!("C{i}"))],
            hooks: api::Hooks { create_runtime: vec![hook(i)], ..Default::default() },
            nodes: vec![(device(format!("/dev/c{i}"), i), "rw".to_owned())],
            mounts: vec![mount(format!("/c{i}"))],
            net_devices: vec![(format!("e{i}"), format!("f{i}"))],
            intel_rdt: None,
            additional_gids: vec![u32::try_from(i).unwrap()],
        };
        let names = Resolved { cdi: all(n, brings), ..Resolved::default() };
        let wanted = all(n, |i| api::CDIDevice { name: name(i), ..Default::default() });
        let adjust = Adjustment { CDI_devices: wanted, ..Default::default() };
        assert_eq!(propagating_sources(&adjust, &names).len(), n);
        let facts = HostFacts { names, ..HostFacts::default() };
        let (patched, _) = patch_anyway(&document, &adjust, &facts).unwrap();
        assert!(patched.changes.len() >= 5 * n);
    });
}

fn update(id: String, key: usize) -> api::ContainerUpdate {
    let unified = [(format!("memory.k{key}"), "1".to_owned())].into();
    let resources = api::LinuxResources { unified, ..Default::default() };
    let linux =
        api::LinuxContainerUpdate { resources: Some(resources).into(), ..Default::default() };
    let (linux, ignore_failure) = (Some(linux).into(), true);
    api::ContainerUpdate { container_id: id, linux, ignore_failure, ..Default::default() }
}

#[test]
fn updates_and_evictions_are_merged_in_linear_time() {
    is_linear("updates and evictions", |n| {
        let evicted = |i: usize| api::ContainerEviction {
            container_id: format!("e{i}"),
            ..Default::default()
        };
        let mut updates = all(n, |i| update(format!("u{i}"), i));
        updates.extend(all(n, |i| update("one".to_owned(), i)));
        updates.extend(all(n, |i| update("subject".to_owned(), i)));
        let subject = api::Container { id: "subject".to_owned(), ..Default::default() };
        let request =
            api::UpdateContainerRequest { container: Some(subject).into(), ..Default::default() };
        let mut merged = Updates::for_update(request);
        merged.answer("10-a", &Rights::default(), &updates, &all(n, evicted)).unwrap();
        // All of these conflict, and are left out.
        merged.answer("20-b", &Rights::default(), &updates, &all(n, evicted)).unwrap();
        assert_eq!(merged.finish().updates.len(), n + 2);
    });
}

#[test]
fn owned_values_survive_an_engines_update_in_linear_time() {
    is_linear("an update", |n| {
        let unified: serde_json::Map<_, _> =
            (0..n).map(|i| (format!("a.k{i}"), json!("1"))).collect();
        let pages = all(n, |i| json!({"pageSize": format!("{i}KB"), "limit": 1}));
        let rules = all(n, |i| json!({"allow": true, "major": i}));
        let held = json!({"unified": unified, "hugepageLimits": pages, "devices": rules});
        let held = held.as_object().unwrap();
        let merged = overlay::merge_update(held, held, held, false);
        let owners = (0..n).map(|i| (format!("CgroupsUnified[a.k{i}]"), "10-a".to_owned()));
        let mut owners = owners.collect();
        assert!(!nri_runc::testing::spec::owned::part(&merged.overlay, &owners).is_empty());
        assert!(!nri_runc::testing::spec::owned::keep_owned(&merged.overlay, |_| true).is_empty());
        nri_runc::testing::spec::owned::retain(&mut owners, &merged.overlay);
        nri_runc::testing::spec::owned::undone(&merged.overlay, held);
    });
}

#[test]
fn an_oversized_response_is_refused_with_plugin_and_field() {
    let refusal = |adjust: Adjustment| {
        let container = api::Container { id: "c0".to_owned(), ..Default::default() };
        let creation = Creation::new(api::PodSandbox::default(), container);
        let response =
            api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() };
        creation.answer("10-a", &Rights::default(), response).map(drop).map_err(|e| e.to_string())
    };
    let just =
        Adjustment { mounts: all(MOST_IN_ONE, |i| mount(format!("/{i}"))), ..Default::default() };
    let mut over = just.clone();
    over.mounts.push(mount("/x".to_owned()));
    assert_eq!(refusal(over).unwrap_err(), "plugin \"10-a\" answered with 20001 entries in adjust.mounts, more than the 10000 that are accepted".replace("20001", "10001"));
    let rules = resources(api::LinuxResources {
        unified: named(MOST_IN_ONE + 1, "a.b", |_| String::new()),
        ..Default::default()
    });
    assert!(
        refusal(rules).unwrap_err().contains("10001 entries in adjust.linux.resources.unified")
    );
    let words = all(MOST_IN_ALL / 1000 + 1, |_| api::Hook {
        args: vec![String::new(); 1000],
        ..Default::default()
    });
    let hooks = api::Hooks { prestart: words, ..Default::default() };
    let hooks = Adjustment { hooks: Some(hooks).into(), ..Default::default() };
    assert!(refusal(hooks).unwrap_err().contains("more than 50000 entries in all"));
    // Options are counted too, so this one is near both bounds.
    assert!(refusal(just).is_ok());
}
