// SPDX-License-Identifier: Apache-2.0
//! Every removal mark: what it removes, what stays in the adjustment, and who owns the field
//! afterwards.

use super::*;

/// A field whose entries can be removed by marks.
struct RemovalCase {
    field: NriField,
    key: &'static str,
    /// An adjustment with these (name, value) entries; a name may be a mark.
    adjust: fn(&[(&str, &str)]) -> api::ContainerAdjustment,
    /// A container that has this entry.
    container: fn(&str, &str) -> api::Container,
    /// The entries that a plugin receives under this key.
    visible: fn(&api::Container, &str) -> Vec<String>,
    /// The names in a combined adjustment, in order (sorted for maps).
    combined: fn(&api::ContainerAdjustment) -> Vec<String>,
    /// Whether other plugins may not set what one plugin removed from the original.
    removal_is_owned: bool,
}

fn sorted<V>(map: &HashMap<String, V>) -> Vec<String> {
    let mut keys: Vec<String> = map.keys().cloned().collect();
    keys.sort();
    keys
}

fn with_linux(linux: api::LinuxContainer) -> api::Container {
    api::Container { linux: some(linux), ..Default::default() }
}

const ANNOTATIONS: RemovalCase = RemovalCase {
    field: NriField::Annotations,
    key: "k",
    adjust: |e| api::ContainerAdjustment { annotations: map(e), ..Default::default() },
    container: |k, v| api::Container { annotations: map(&[(k, v)]), ..Default::default() },
    visible: |c, k| c.annotations.get(k).cloned().into_iter().collect(),
    combined: |a| sorted(&a.annotations),
    removal_is_owned: true,
};

const SYSCTL: RemovalCase = RemovalCase {
    field: NriField::Sysctl,
    key: "net.x",
    adjust: |e| of_linux(api::LinuxContainerAdjustment { sysctl: map(e), ..Default::default() }),
    container: |k, v| {
        with_linux(api::LinuxContainer { sysctl: map(&[(k, v)]), ..Default::default() })
    },
    visible: |c, k| c.linux.sysctl.get(k).cloned().into_iter().collect(),
    combined: |a| sorted(&a.linux.sysctl),
    removal_is_owned: true,
};

const NET_DEVICES: RemovalCase = RemovalCase {
    field: NriField::LinuxNetDevices,
    key: "host0",
    adjust: |e| {
        let net_devices = e.iter().map(|(k, v)| ((*k).to_owned(), net_device(v))).collect();
        of_linux(api::LinuxContainerAdjustment { net_devices, ..Default::default() })
    },
    container: |k, v| {
        let net_devices = HashMap::from([(k.to_owned(), net_device(v))]);
        with_linux(api::LinuxContainer { net_devices, ..Default::default() })
    },
    visible: |c, k| c.linux.net_devices.get(k).map(|d| d.name.clone()).into_iter().collect(),
    combined: |a| sorted(&a.linux.net_devices),
    removal_is_owned: true,
};

const ENV: RemovalCase = RemovalCase {
    field: NriField::Env,
    key: "PATH",
    adjust: of_env,
    container: |k, v| api::Container { env: vec![format!("{k}={v}")], ..Default::default() },
    visible: |c, k| {
        let name = format!("{k}=");
        c.env.iter().filter_map(|e| e.strip_prefix(&name)).map(str::to_owned).collect()
    },
    combined: |a| a.env.iter().map(|e| e.key.clone()).collect(),
    removal_is_owned: false,
};

const MOUNTS: RemovalCase = RemovalCase {
    field: NriField::Mounts,
    key: "/mnt/data",
    adjust: |e| {
        let mounts = e.iter().map(|(k, v)| mount(k, v)).collect();
        api::ContainerAdjustment { mounts, ..Default::default() }
    },
    container: |k, v| api::Container { mounts: vec![mount(k, v)], ..Default::default() },
    visible: |c, k| {
        c.mounts.iter().filter(|m| m.destination == k).map(|m| m.source.clone()).collect()
    },
    combined: |a| a.mounts.iter().map(|m| m.destination.clone()).collect(),
    removal_is_owned: false,
};

const DEVICES: RemovalCase = RemovalCase {
    field: NriField::Devices,
    key: "/dev/gpu",
    adjust: |e| {
        let devices = e.iter().map(|(k, v)| device(k, v.len().try_into().unwrap())).collect();
        of_linux(api::LinuxContainerAdjustment { devices, ..Default::default() })
    },
    container: |k, v| {
        let devices = vec![device(k, v.len().try_into().unwrap())];
        with_linux(api::LinuxContainer { devices, ..Default::default() })
    },
    visible: |c, k| {
        let found = c.linux.devices.iter().filter(|d| d.path == k);
        found.map(|d| "v".repeat(usize::try_from(d.major).unwrap())).collect()
    },
    combined: |a| a.linux.devices.iter().map(|d| d.path.clone()).collect(),
    removal_is_owned: false,
};

const NAMESPACES: RemovalCase = RemovalCase {
    field: NriField::Namespace,
    key: "pid",
    adjust: |e| {
        let namespaces = e.iter().map(|(k, v)| namespace(k, v)).collect();
        of_linux(api::LinuxContainerAdjustment { namespaces, ..Default::default() })
    },
    container: |k, v| {
        let namespaces = vec![namespace(k, v)];
        with_linux(api::LinuxContainer { namespaces, ..Default::default() })
    },
    visible: |c, k| {
        c.linux.namespaces.iter().filter(|n| n.type_ == k).map(|n| n.path.clone()).collect()
    },
    combined: |a| a.linux.namespaces.iter().map(|n| n.type_.clone()).collect(),
    removal_is_owned: true,
};

const KINDS: [RemovalCase; 7] =
    [ANNOTATIONS, SYSCTL, NET_DEVICES, ENV, MOUNTS, DEVICES, NAMESPACES];

impl RemovalCase {
    fn marker(&self) -> String {
        format!("-{}", self.key)
    }

    fn set(&self, value: &str) -> api::ContainerAdjustment {
        (self.adjust)(&[(self.key, value)])
    }

    fn remove(&self) -> api::ContainerAdjustment {
        (self.adjust)(&[(&self.marker(), "")])
    }

    fn replace(&self, value: &str) -> api::ContainerAdjustment {
        (self.adjust)(&[(self.key, value), (&self.marker(), "")])
    }

    fn seen(&self, creation: &Creation) -> Vec<String> {
        (self.visible)(&creation.request().container, self.key)
    }

    fn in_original(&self) -> Creation {
        creation_of((self.container)(self.key, "vvv"))
    }

    fn owner(&self, creation: &Creation) -> Option<String> {
        let owner = creation.owners().owner(SUBJECT, self.field, Some(self.key));
        owner.map(ToString::to_string)
    }
}

#[test]
fn a_removed_original_value_becomes_a_marker_and_is_hidden() {
    for kind in KINDS {
        let mut creation = kind.in_original();
        assert_eq!(kind.seen(&creation), ["vvv"], "{}", kind.field);
        answer(&mut creation, "10-foo", kind.remove()).unwrap();
        assert!(kind.seen(&creation).is_empty(), "{}", kind.field);
        assert_eq!((kind.combined)(&creation.finish().adjust), [kind.marker()], "{}", kind.field);
    }
}

#[test]
fn removing_another_plugins_value_hides_it_from_a_third() {
    for kind in KINDS {
        let mut creation = creation();
        answer(&mut creation, "00-bar", kind.set("v")).unwrap();
        answer(&mut creation, "10-foo", kind.remove()).unwrap();
        assert!(kind.seen(&creation).is_empty(), "{}", kind.field);
        assert_eq!(kind.owner(&creation).as_deref(), Some("-10-foo"), "{}", kind.field);
        let merged = creation.finish();
        assert_eq!((kind.combined)(&merged.adjust), [kind.marker()], "{}", kind.field);
    }
}

#[test]
fn a_removed_value_belongs_to_the_remover() {
    for kind in KINDS {
        let mut creation = creation();
        answer(&mut creation, "00-bar", kind.set("v")).unwrap();
        answer(&mut creation, "10-foo", kind.remove()).unwrap();
        let error = answer(&mut creation, "20-baz", kind.set("vv")).unwrap_err().to_string();
        assert!(error.contains(r#""20-baz" and "10-foo""#), "{error}");
        assert!(kind.seen(&creation).is_empty());
    }
}

#[test]
fn a_removal_with_a_new_value_in_any_order_overrides_a_plugin() {
    for kind in KINDS {
        for order in [
            (kind.adjust)(&[(&kind.marker(), ""), (kind.key, "vv")]),
            (kind.adjust)(&[(kind.key, "vv"), (&kind.marker(), "")]),
        ] {
            let mut creation = kind.in_original();
            answer(&mut creation, "00-bar", kind.set("v")).unwrap();
            answer(&mut creation, "10-foo", order).unwrap();
            assert_eq!(kind.seen(&creation), ["vv"], "{}", kind.field);
            assert_eq!(kind.owner(&creation).as_deref(), Some("10-foo"), "{}", kind.field);
            let names = (kind.combined)(&creation.finish().adjust);
            assert_eq!(names.iter().filter(|name| *name == kind.key).count(), 1, "{names:?}");
        }
    }
}

#[test]
fn a_removal_keeps_the_other_entries_of_earlier_plugins() {
    for kind in KINDS {
        let mut creation = creation();
        let both = (kind.adjust)(&[(kind.key, "v"), ("other", "v")]);
        answer(&mut creation, "00-bar", both).unwrap();
        answer(&mut creation, "10-foo", kind.remove()).unwrap();
        assert_eq!((kind.visible)(creation.container(), "other"), ["v"], "{}", kind.field);
        let mut names = (kind.combined)(&creation.finish().adjust);
        names.sort();
        assert_eq!(names, [kind.marker(), "other".to_owned()]);
    }
}

#[test]
fn only_maps_keep_the_marker_next_to_the_new_value() {
    for kind in KINDS {
        let mut creation = kind.in_original();
        answer(&mut creation, "10-foo", kind.replace("v")).unwrap();
        let names = (kind.combined)(&creation.finish().adjust);
        let is_map = [NriField::Annotations, NriField::Sysctl, NriField::LinuxNetDevices];
        if is_map.contains(&kind.field) {
            assert_eq!(names, [kind.marker(), kind.key.to_owned()]);
        } else {
            assert_eq!(names, [kind.key]);
        }
    }
}

#[test]
fn only_unowned_removals_let_another_plugin_set_the_value() {
    for kind in KINDS {
        let mut creation = kind.in_original();
        answer(&mut creation, "00-bar", kind.remove()).unwrap();
        let later = answer(&mut creation, "10-foo", kind.set("v"));
        if kind.removal_is_owned {
            assert!(later.is_err(), "{}", kind.field);
            assert_eq!(kind.owner(&creation).as_deref(), Some("-00-bar"), "{}", kind.field);
        } else {
            later.unwrap();
            assert_eq!(kind.seen(&creation), ["v"], "{}", kind.field);
            assert_eq!(kind.owner(&creation).as_deref(), Some("10-foo"), "{}", kind.field);
        }
    }
}

#[test]
fn a_mount_added_after_its_removal_by_another_keeps_the_marker() {
    let mut creation = MOUNTS.in_original();
    answer(&mut creation, "00-bar", MOUNTS.remove()).unwrap();
    answer(&mut creation, "10-foo", MOUNTS.set("v")).unwrap();
    assert_eq!((MOUNTS.combined)(&creation.finish().adjust), ["-/mnt/data", "/mnt/data"]);
}

#[test]
fn a_variable_or_device_set_after_its_removal_drops_the_marker() {
    for kind in [ENV, DEVICES] {
        let mut creation = kind.in_original();
        answer(&mut creation, "00-bar", kind.remove()).unwrap();
        answer(&mut creation, "10-foo", kind.set("v")).unwrap();
        assert_eq!((kind.combined)(&creation.finish().adjust), [kind.key]);
    }
}

#[test]
fn removing_twice_leaves_one_marker() {
    for kind in KINDS {
        let mut creation = kind.in_original();
        answer(&mut creation, "00-bar", kind.remove()).unwrap();
        answer(&mut creation, "10-foo", kind.remove()).unwrap();
        assert_eq!((kind.combined)(&creation.finish().adjust), [kind.marker()], "{}", kind.field);
    }
}

#[test]
fn a_plugin_that_may_not_set_may_not_remove() {
    for kind in KINDS {
        let rights = Rights { deny: [kind.field].into(), ..Default::default() };
        let refused = kind.in_original().answer("10-foo", &rights, answered(kind.remove()));
        assert!(matches!(refused, Err(MergeError::NotAllowed { .. })), "{}", kind.field);
    }
}

#[test]
fn removing_and_setting_always_yields_the_new_value() {
    for kind in [ANNOTATIONS, SYSCTL, NET_DEVICES] {
        for _ in 0..10_000 {
            let mut creation = kind.in_original();
            answer(&mut creation, "10-foo", kind.replace("v")).unwrap();
            assert_eq!(kind.seen(&creation), ["v"]);
        }
    }
}

#[test]
fn only_one_dash_is_a_marker() {
    let mut creation = creation_of(api::Container {
        annotations: map(&[("-k", "v"), ("k", "v")]),
        ..Default::default()
    });
    let adjust = (ANNOTATIONS.adjust)(&[("--k", "")]);
    answer(&mut creation, "10-foo", adjust).unwrap();
    assert_eq!(sorted(&creation.request().container.annotations), ["k"]);
}

fn rdt(clos_id: Option<&str>, remove: bool) -> api::LinuxRdt {
    let clos_id = clos_id.map_or_else(MessageField::none, string);
    api::LinuxRdt { clos_id, remove, ..Default::default() }
}

/// Returns a removal with every member set anew.
fn full_replacement() -> api::LinuxRdt {
    api::LinuxRdt {
        schemata: some(api::OptionalRepeatedString::new()),
        enable_monitoring: boolean(false),
        ..rdt(Some("foo"), true)
    }
}

fn of_rdt(rdt: api::LinuxRdt) -> api::ContainerAdjustment {
    of_linux(api::LinuxContainerAdjustment { rdt: some(rdt), ..Default::default() })
}

#[test]
fn removing_rdt_clears_all_of_it_before_new_values_are_set() {
    let original = api::LinuxRdt { enable_monitoring: boolean(true), ..rdt(Some("old"), false) };
    let container = with_linux(api::LinuxContainer { rdt: some(original), ..Default::default() });
    let mut creation = creation_of(container);
    answer(&mut creation, "00-bar", of_rdt(rdt(Some("bar"), false))).unwrap();
    answer(&mut creation, "10-foo", of_rdt(rdt(Some("foo"), true))).unwrap();
    assert_eq!(creation.request().container.linux.rdt, some(rdt(Some("foo"), false)));
    let merged = creation.finish();
    assert_eq!(merged.adjust.linux.rdt, some(rdt(Some("foo"), true)));
    let owners = merged.owners.to_flat(SUBJECT);
    assert_eq!(owners["RdtClosID"], "10-foo");
    assert_eq!(owners["RdtSchemata"], "-10-foo");
    assert_eq!(owners["RdtEnableMonitoring"], "-10-foo");
}

#[test]
fn removed_rdt_is_hidden_and_no_later_plugin_may_set_it() {
    let mut creation = creation();
    answer(&mut creation, "00-bar", of_rdt(rdt(Some("bar"), false))).unwrap();
    answer(&mut creation, "10-foo", of_rdt(rdt(None, true))).unwrap();
    assert!(creation.request().container.linux.rdt.is_none());
    assert!(answer(&mut creation, "20-baz", of_rdt(rdt(Some("baz"), false))).is_err());
    assert_eq!(creation.finish().adjust.linux.rdt, some(rdt(None, true)));
}

#[test]
fn a_full_rdt_replacement_has_no_removal_flag() {
    let full = full_replacement();
    let mut creation = creation();
    answer(&mut creation, "10-foo", of_rdt(full.clone())).unwrap();
    let asked = creation.validation_request(Vec::new());
    assert!(!asked.adjust.linux.rdt.remove);
    assert_eq!(creation.finish().adjust.linux.rdt, some(api::LinuxRdt { remove: false, ..full }));
}

#[test]
fn an_rdt_replacement_without_one_member_keeps_the_removal_flag() {
    let full = full_replacement();
    for partial in [
        api::LinuxRdt { clos_id: MessageField::none(), ..full.clone() },
        api::LinuxRdt { schemata: MessageField::none(), ..full.clone() },
        api::LinuxRdt { enable_monitoring: MessageField::none(), ..full.clone() },
        rdt(Some("foo"), true),
        api::LinuxRdt { enable_monitoring: boolean(false), ..rdt(None, true) },
    ] {
        let mut creation = creation();
        answer(&mut creation, "10-foo", of_rdt(partial.clone())).unwrap();
        assert_eq!(creation.finish().adjust.linux.rdt, some(partial));
    }
}

#[test]
fn an_unrelated_adjustment_creates_no_rdt_section() {
    let mut creation = creation();
    answer(&mut creation, "00-bar", of_rdt(api::LinuxRdt::new())).unwrap();
    answer(&mut creation, "10-foo", of_resources(shares(1))).unwrap();
    assert!(creation.request().container.linux.rdt.is_none());
    assert!(creation.finish().adjust.linux.rdt.is_none());
}

fn of_args(args: &[&str]) -> api::ContainerAdjustment {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    api::ContainerAdjustment { args, ..Default::default() }
}

#[test]
fn an_empty_first_argument_overrides_another_plugins_command() {
    let mut creation = creation();
    answer(&mut creation, "00-bar", of_args(&["a"])).unwrap();
    answer(&mut creation, "10-foo", of_args(&["", "b", ""])).unwrap();
    assert_eq!(creation.request().container.args, ["b", ""]);
    let merged = creation.finish();
    assert_eq!(merged.adjust.args, ["b", ""]);
    assert_eq!(merged.owners.to_flat(SUBJECT)["Args"], "10-foo");
}

#[test]
fn an_empty_command_is_refused() {
    let mut creation = creation();
    answer(&mut creation, "00-bar", of_args(&["a"])).unwrap();
    let error = answer(&mut creation, "10-foo", of_args(&[""])).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"plugin "10-foo" set Args of container c0 to an empty command"#
    );
    assert_eq!(creation.request().container.args, ["a"]);
}
