// SPDX-License-Identifier: Apache-2.0
//! Properties of merging that hold for any plugins, not only for those in other tests.
//!
//! Replies are generated from a few names, so that plugins often conflict. No engine, plugin
//! process or file is involved. Reference: NRI's merging rules as corrected by `nri-adaptation`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nri_adaptation::{Creation, MergeError, Merged, Rights, Updates};
use nri_api as api;
use proptest::prelude::*;
use protobuf::{Message, MessageField};

/// One request that a plugin may make. Keys and values are small numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum FieldRequest {
    Annotation(u8, u8),
    Env(u8, u8),
    Mount(u8, u8),
    Device(u8, u8),
    Namespace(u8, u8),
    Sysctl(u8, u8),
    Rlimit(u8, u8),
    Hugepage(u8, u8),
    Unified(u8, u8),
    Shares(u8),
    Limit(u8),
    Pids(u8),
    Args(u8),
    ClosId(u8),
    RemoveAnnotation(u8),
    RemoveEnv(u8),
    RemoveMount(u8),
    RemoveDevice(u8),
    RemoveNamespace(u8),
    RemoveSysctl(u8),
}

impl FieldRequest {
    /// Returns the field over which two plugins would conflict: the request without its value.
    fn place(&self) -> (&'static str, u8) {
        match *self {
            Self::Annotation(key, _) | Self::RemoveAnnotation(key) => ("annotation", key),
            Self::Env(key, _) | Self::RemoveEnv(key) => ("env", key),
            Self::Mount(key, _) | Self::RemoveMount(key) => ("mount", key),
            Self::Device(key, _) | Self::RemoveDevice(key) => ("device", key),
            Self::Namespace(key, _) | Self::RemoveNamespace(key) => ("namespace", key),
            Self::Sysctl(key, _) | Self::RemoveSysctl(key) => ("sysctl", key),
            Self::Rlimit(key, _) => ("rlimit", key),
            Self::Hugepage(key, _) => ("hugepage", key),
            Self::Unified(key, _) => ("unified", key),
            Self::Shares(_) => ("shares", 0),
            Self::Limit(_) => ("limit", 0),
            Self::Pids(_) => ("pids", 0),
            Self::Args(_) => ("args", 0),
            Self::ClosId(_) => ("clos", 0),
        }
    }

    /// Returns the removal that a plugin must send first to set this field if another plugin owns
    /// it; `None` if there is none.
    fn release(&self) -> Option<Self> {
        match *self {
            Self::Annotation(key, _) => Some(Self::RemoveAnnotation(key)),
            Self::Env(key, _) => Some(Self::RemoveEnv(key)),
            Self::Mount(key, _) => Some(Self::RemoveMount(key)),
            Self::Device(key, _) => Some(Self::RemoveDevice(key)),
            Self::Namespace(key, _) => Some(Self::RemoveNamespace(key)),
            Self::Sysctl(key, _) => Some(Self::RemoveSysctl(key)),
            Self::Rlimit(..)
            | Self::Hugepage(..)
            | Self::Unified(..)
            | Self::Shares(_)
            | Self::Limit(_)
            | Self::Pids(_)
            | Self::Args(_)
            | Self::ClosId(_)
            | Self::RemoveAnnotation(_)
            | Self::RemoveEnv(_)
            | Self::RemoveMount(_)
            | Self::RemoveDevice(_)
            | Self::RemoveNamespace(_)
            | Self::RemoveSysctl(_) => None,
        }
    }

    fn put(&self, adjust: &mut api::ContainerAdjustment) {
        let linux = adjust.linux.mut_or_insert_default();
        match *self {
            Self::Annotation(k, v) => put(&mut adjust.annotations, name(k), v),
            Self::RemoveAnnotation(k) => put(&mut adjust.annotations, marker(k), 0),
            Self::Env(k, v) => adjust.env.push(variable(name(k), v)),
            Self::RemoveEnv(k) => adjust.env.push(variable(marker(k), 0)),
            Self::Mount(k, v) => adjust.mounts.push(mount(format!("/{}", name(k)), v)),
            Self::RemoveMount(k) => adjust.mounts.push(mount(format!("-/{}", name(k)), 0)),
            Self::Device(k, v) => linux.devices.push(device(name(k), v)),
            Self::RemoveDevice(k) => linux.devices.push(device(marker(k), 0)),
            Self::Namespace(k, v) => linux.namespaces.push(namespace(name(k), v)),
            Self::RemoveNamespace(k) => linux.namespaces.push(namespace(marker(k), 0)),
            Self::Sysctl(k, v) => put(&mut linux.sysctl, name(k), v),
            Self::RemoveSysctl(k) => put(&mut linux.sysctl, marker(k), 0),
            Self::Rlimit(k, v) => adjust.rlimits.push(api::POSIXRlimit {
                type_: format!("RLIMIT_{}", name(k)),
                hard: v.into(),
                ..Default::default()
            }),
            Self::Args(v) => adjust.args = vec![name(v)],
            Self::ClosId(v) => {
                let value = name(v);
                linux.rdt.mut_or_insert_default().clos_id =
                    MessageField::some(api::OptionalString { value, ..Default::default() });
            }
            Self::Hugepage(..)
            | Self::Unified(..)
            | Self::Shares(_)
            | Self::Limit(_)
            | Self::Pids(_) => self.put_resource(linux.resources.mut_or_insert_default()),
        }
    }

    /// Adds the request to `resources`, if it sets a resource.
    fn put_resource(&self, resources: &mut api::LinuxResources) {
        match *self {
            Self::Hugepage(k, v) => resources.hugepage_limits.push(api::HugepageLimit {
                page_size: format!("{}MB", 1 << k),
                limit: v.into(),
                ..Default::default()
            }),
            Self::Unified(k, v) => put(&mut resources.unified, name(k), v),
            Self::Shares(v) => {
                let value = v.into();
                resources.cpu.mut_or_insert_default().shares =
                    MessageField::some(api::OptionalUInt64 { value, ..Default::default() });
            }
            Self::Limit(v) => {
                let value = v.into();
                resources.memory.mut_or_insert_default().limit =
                    MessageField::some(api::OptionalInt64 { value, ..Default::default() });
            }
            Self::Pids(v) => {
                let limit = v.into();
                resources.pids = MessageField::some(api::LinuxPids { limit, ..Default::default() });
            }
            Self::Annotation(..)
            | Self::Env(..)
            | Self::Mount(..)
            | Self::Device(..)
            | Self::Namespace(..)
            | Self::Sysctl(..)
            | Self::Rlimit(..)
            | Self::Args(_)
            | Self::ClosId(_)
            | Self::RemoveAnnotation(_)
            | Self::RemoveEnv(_)
            | Self::RemoveMount(_)
            | Self::RemoveDevice(_)
            | Self::RemoveNamespace(_)
            | Self::RemoveSysctl(_) => {}
        }
    }
}

fn name(key: u8) -> String {
    format!("k{key}")
}

fn marker(key: u8) -> String {
    format!("-k{key}")
}

fn put(map: &mut HashMap<String, String>, key: String, value: u8) {
    map.insert(key, value.to_string());
}

fn variable(key: String, value: u8) -> api::KeyValue {
    api::KeyValue { key, value: value.to_string(), ..Default::default() }
}

fn mount(destination: String, source: u8) -> api::Mount {
    api::Mount { destination, source: source.to_string(), ..Default::default() }
}

fn device(path: String, major: u8) -> api::LinuxDevice {
    api::LinuxDevice { path, major: major.into(), ..Default::default() }
}

fn namespace(type_: String, path: u8) -> api::LinuxNamespace {
    api::LinuxNamespace { type_, path: path.to_string(), ..Default::default() }
}

fn wanted() -> impl Strategy<Value = FieldRequest> {
    let (k, v) = (|| 0..4_u8, || 0..4_u8);
    prop_oneof![
        (k(), v()).prop_map(|(k, v)| FieldRequest::Annotation(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Env(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Mount(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Device(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Namespace(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Sysctl(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Rlimit(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Hugepage(k, v)),
        (k(), v()).prop_map(|(k, v)| FieldRequest::Unified(k, v)),
        v().prop_map(FieldRequest::Shares),
        v().prop_map(FieldRequest::Limit),
        v().prop_map(FieldRequest::Pids),
        v().prop_map(FieldRequest::Args),
        v().prop_map(FieldRequest::ClosId),
        k().prop_map(FieldRequest::RemoveAnnotation),
        k().prop_map(FieldRequest::RemoveEnv),
        k().prop_map(FieldRequest::RemoveMount),
        k().prop_map(FieldRequest::RemoveDevice),
        k().prop_map(FieldRequest::RemoveNamespace),
        k().prop_map(FieldRequest::RemoveSysctl),
    ]
}

/// Returns a few plugins, each with a few requests.
fn plugins() -> impl Strategy<Value = Vec<Vec<FieldRequest>>> {
    prop::collection::vec(prop::collection::vec(wanted(), 0..6), 0..5)
}

/// Like [`plugins`], but no two plugins request the same field.
fn independent() -> impl Strategy<Value = Vec<Vec<FieldRequest>>> {
    plugins().prop_map(|plugins| {
        let mut taken = BTreeSet::new();
        let free = |requested: Vec<FieldRequest>| {
            requested.into_iter().filter(|wanted| taken.insert(wanted.place())).collect()
        };
        plugins.into_iter().map(free).collect()
    })
}

/// Returns a container that has some of the values that plugins remove and set.
fn container() -> impl Strategy<Value = api::Container> {
    prop::collection::btree_set(0..4_u8, 0..4).prop_map(|keys| {
        let mut container = api::Container { id: "c0".to_owned(), ..Default::default() };
        let linux = container.linux.mut_or_insert_default();
        for key in keys {
            put(&mut container.annotations, name(key), 9);
            put(&mut linux.sysctl, name(key), 9);
            container.env.push(format!("{}=9", name(key)));
            container.mounts.push(mount(format!("/{}", name(key)), 9));
            linux.devices.push(device(name(key), 9));
            linux.namespaces.push(namespace(name(key), 9));
        }
        container
    })
}

fn response(requested: &[FieldRequest]) -> api::CreateContainerResponse {
    let mut adjust = api::ContainerAdjustment::new();
    for wanted in requested {
        wanted.put(&mut adjust);
    }
    let adjust = MessageField::some(adjust);
    api::CreateContainerResponse { adjust, ..Default::default() }
}

fn creation(container: api::Container) -> Creation {
    Creation::new(api::PodSandbox::new(), container)
}

/// Merges the reply of a plugin without restrictions; a failing one changes nothing.
fn merge_reply(
    creation: &mut Creation,
    plugin: &str,
    response: api::CreateContainerResponse,
) -> Result<(), MergeError> {
    *creation = creation.clone().answer(plugin, &Rights::default(), response)?;
    Ok(())
}

fn plugin(number: usize) -> String {
    format!("{number:02}-p")
}

/// Returns a container and an adjustment as sets, because the order of independent plugins may
/// affect only the order of lists.
fn as_sets(merged: &Merged) -> (Vec<BTreeSet<String>>, BTreeMap<String, String>) {
    fn texts<T: ToString>(list: &[T]) -> BTreeSet<String> {
        list.iter().map(ToString::to_string).collect()
    }
    fn entries(map: &HashMap<String, String>) -> BTreeSet<String> {
        map.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
    let Merged { adjust, container, owners, .. } = merged;
    let (linux, seen) = (&adjust.linux, &container.linux);
    let mut sets = vec![entries(&adjust.annotations), entries(&container.annotations)];
    sets.extend([entries(&linux.sysctl), entries(&seen.sysctl)]);
    sets.extend([texts(&adjust.mounts), texts(&container.mounts)]);
    sets.extend([texts(&adjust.env), texts(&container.env)]);
    sets.extend([texts(&adjust.args), texts(&container.args)]);
    sets.extend([texts(&adjust.rlimits), texts(&container.rlimits)]);
    sets.extend([texts(&linux.devices), texts(&seen.devices)]);
    sets.extend([texts(&linux.namespaces), texts(&seen.namespaces)]);
    for resources in [&linux.resources, &seen.resources] {
        sets.push(entries(&resources.unified));
        sets.push(texts(&resources.hugepage_limits));
        let rest = [resources.cpu.to_string(), resources.memory.to_string()];
        sets.push(texts(&rest));
        sets.push(texts(&[resources.pids.to_string()]));
    }
    sets.push(texts(&[linux.rdt.to_string(), seen.rdt.to_string()]));
    (sets, owners.to_flat("c0"))
}

proptest! {
    #[test]
    fn after_each_reply_the_encoded_request_equals_the_request(
        container in container(),
        requested in plugins(),
    ) {
        let mut creation = creation(container);
        for (number, requests) in requested.iter().enumerate() {
            let bytes = creation.encode_request().unwrap();
            let request = api::CreateContainerRequest::parse_from_bytes(&bytes).unwrap();
            prop_assert_eq!(&request, creation.request());
            let bytes = creation.encode_container().unwrap();
            let mut container = api::Container::parse_from_bytes(&bytes).unwrap();
            let resources = container.linux.as_mut().unwrap().resources.as_mut().unwrap();
            resources.memory.mut_or_insert_default();
            resources.cpu.mut_or_insert_default();
            prop_assert_eq!(&container, creation.container());
            let _merged_or_not = merge_reply(&mut creation, &plugin(number), response(requests));
        }
    }

    #[test]
    fn merging_nothing_changes_nothing(container in container(), requested in plugins()) {
        let mut with = creation(container.clone());
        let mut without = creation(container);
        for (number, requested) in requested.iter().enumerate() {
            let one = merge_reply(&mut with, &plugin(number), response(requested));
            let other = merge_reply(&mut without, &plugin(number), response(requested));
            prop_assert_eq!(one, other);
            merge_reply(&mut with, "50-idle", api::CreateContainerResponse::new()).unwrap();
            merge_reply(&mut with, "50-idle", response(&[])).unwrap();
        }
        let (with, without) = (with.finish(), without.finish());
        prop_assert_eq!(with.adjust, without.adjust);
        prop_assert_eq!(with.container, without.container);
        prop_assert_eq!(with.owners, without.owners);
    }

    #[test]
    fn the_order_of_independent_plugins_does_not_matter(
        container in container(),
        requested in independent(),
    ) {
        let merge = |order: &mut dyn Iterator<Item = usize>| {
            let mut creation = creation(container.clone());
            for number in order {
                let answer = response(&requested[number]);
                merge_reply(&mut creation, &plugin(number), answer).unwrap();
            }
            as_sets(&creation.finish())
        };
        prop_assert_eq!(merge(&mut (0..requested.len())), merge(&mut (0..requested.len()).rev()));
    }

    #[test]
    fn a_plugin_may_set_a_value_that_it_removed_before(
        container in container(),
        requested in plugins(),
        last in wanted().prop_filter("has a marker", |wanted| wanted.release().is_some()),
    ) {
        let mut creation = creation(container);
        for (number, requested) in requested.iter().enumerate() {
            // Requests that conflict are refused; the others are a valid start.
            let _refused = merge_reply(&mut creation, &plugin(number), response(requested));
        }
        let release = last.release().unwrap();
        merge_reply(&mut creation, "90-last", response(&[release])).unwrap();
        merge_reply(&mut creation, "90-last", response(std::slice::from_ref(&last))).unwrap();
        let both = [last.clone(), last.release().unwrap()];
        merge_reply(&mut creation, "91-after", response(&both)).unwrap();
        prop_assert!(creation.owners().to_flat("c0").values().any(|owner| owner == "91-after"));
    }

    #[test]
    fn the_next_plugin_receives_exactly_the_applied_values(
        container in container(),
        requested in independent(),
    ) {
        let mut creation = creation(container);
        for (number, requested) in requested.iter().enumerate() {
            merge_reply(&mut creation, &plugin(number), response(requested)).unwrap();
        }
        let seen = creation.request().container.clone().unwrap();
        for wanted in requested.iter().flatten() {
            prop_assert!(shows(&seen, wanted), "{:?} in {}", wanted, seen);
        }
        prop_assert_eq!(seen, creation.finish().container);
    }

    #[test]
    fn an_update_receives_the_changes_of_earlier_plugins(requested in independent()) {
        let mut updates = Updates::for_update(api::UpdateContainerRequest {
            container: MessageField::some(api::Container { id: "c0".to_owned(), ..Default::default() }),
            ..Default::default()
        });
        let mut expected = api::LinuxResources::new();
        expected.memory.mut_or_insert_default();
        expected.cpu.mut_or_insert_default();
        for (number, requested) in requested.iter().enumerate() {
            let mut resources = api::LinuxResources::new();
            for wanted in requested {
                wanted.put_resource(&mut resources);
                wanted.put_resource(&mut expected);
            }
            let linux = api::LinuxContainerUpdate {
                resources: MessageField::some(resources),
                ..Default::default()
            };
            let update = api::ContainerUpdate {
                container_id: "c0".to_owned(),
                linux: MessageField::some(linux),
                ..Default::default()
            };
            updates.answer(&plugin(number), &Rights::default(), &[update], &[]).unwrap();
        }
        let seen = updates.request().unwrap().linux_resources.clone().unwrap();
        prop_assert_eq!(seen, expected);
    }
}

/// Whether a container shows that a request was granted.
fn shows(container: &api::Container, wanted: &FieldRequest) -> bool {
    let linux = &container.linux;
    let value = |map: &HashMap<String, String>, key: u8| map.get(&name(key)).cloned();
    let env = |k: u8| container.env.iter().find(|e| e.starts_with(&format!("{}=", name(k))));
    let mounted =
        |k: u8| container.mounts.iter().find(|m| m.destination == format!("/{}", name(k)));
    let device = |k: u8| linux.devices.iter().find(|device| device.path == name(k));
    let namespace = |k: u8| linux.namespaces.iter().find(|one| one.type_ == name(k));
    let resources = &linux.resources;
    match *wanted {
        FieldRequest::Annotation(k, v) => value(&container.annotations, k) == Some(v.to_string()),
        FieldRequest::RemoveAnnotation(k) => value(&container.annotations, k).is_none(),
        FieldRequest::Sysctl(k, v) => value(&linux.sysctl, k) == Some(v.to_string()),
        FieldRequest::RemoveSysctl(k) => value(&linux.sysctl, k).is_none(),
        FieldRequest::Env(k, v) => env(k) == Some(&format!("{}={v}", name(k))),
        FieldRequest::RemoveEnv(k) => env(k).is_none(),
        FieldRequest::Mount(k, v) => mounted(k).is_some_and(|mount| mount.source == v.to_string()),
        FieldRequest::RemoveMount(k) => mounted(k).is_none(),
        FieldRequest::Device(k, v) => device(k).is_some_and(|device| device.major == i64::from(v)),
        FieldRequest::RemoveDevice(k) => device(k).is_none(),
        FieldRequest::Namespace(k, v) => namespace(k).is_some_and(|one| one.path == v.to_string()),
        FieldRequest::RemoveNamespace(k) => namespace(k).is_none(),
        FieldRequest::Rlimit(k, v) => {
            let kind = format!("RLIMIT_{}", name(k));
            container.rlimits.iter().any(|one| one.type_ == kind && one.hard == u64::from(v))
        }
        FieldRequest::Hugepage(k, v) => {
            let size = format!("{}MB", 1 << k);
            let mut limits = resources.hugepage_limits.iter();
            limits.any(|one| one.page_size == size && one.limit == u64::from(v))
        }
        FieldRequest::Unified(k, v) => value(&resources.unified, k) == Some(v.to_string()),
        FieldRequest::Shares(v) => resources.cpu.shares.value == u64::from(v),
        FieldRequest::Limit(v) => resources.memory.limit.value == i64::from(v),
        FieldRequest::Pids(v) => resources.pids.limit == i64::from(v),
        FieldRequest::Args(v) => container.args == [name(v)],
        FieldRequest::ClosId(v) => linux.rdt.clos_id.value == name(v),
    }
}
