// SPDX-License-Identifier: Apache-2.0
//! Determines the promises (`[[require]]`) that apply to a pod or a container (decision D61).
//!
//! Every promise is checked, and one matching list (devices, images, annotations etc.) is enough.
//! If a source of the devices was unreadable, or the pod's identity is unproven, the promise may
//! apply, and is treated as if it did. A source that an engine does not have names no devices.
//! Pure: no file, no clock.

use std::collections::BTreeSet;

use nri_adaptation::keys;

use super::RuledPod;
use super::execs::has;
use super::matching::{Fit, Reason, fit_pod};
use crate::answers::PromiseFit;
use crate::config::PromiseSection;
use crate::engine::{Allocated, Allocations};
use crate::glob;
use crate::plugin::api;

/// Prefix of annotations with names of CDI devices, separated by commas.
const CDI_ANNOTATIONS: &str = "cdi.k8s.io/";

/// The facts that promises match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromiseFacts<'s> {
    pub(crate) ruled: &'s RuledPod,
    pub(crate) pod: &'s api::PodSandbox,
    /// The container; `None` for the pod itself, whose devices are known only from annotations and
    /// kubelet's allocations.
    pub(crate) container: Option<&'s api::Container>,
    /// Set if the engine's record of the container was not read: the record's name, or the reason.
    pub(crate) unread: Option<&'s str>,
    /// The host paths of the container's device nodes; if they are unknown, the name of the unread source, or the
    /// reason.
    pub(crate) nodes: Result<&'s [String], &'s str>,
    pub(crate) allocations: &'s Allocations,
}

/// The values that a list is compared with, and the unread source (or the reason) if there may be more.
type Found<'s> = (Vec<String>, Option<&'s str>);

impl<'s> PromiseFacts<'s> {
    /// Returns the facts of a pod itself.
    pub(crate) fn new(
        ruled: &'s RuledPod,
        pod: &'s api::PodSandbox,
        allocations: &'s Allocations,
    ) -> Self {
        Self { ruled, pod, container: None, unread: None, nodes: Ok(&[]), allocations }
    }

    fn of(&self, list: &str) -> Found<'s> {
        match list {
            "claims" => self.allocated(|allocated| &allocated.claims),
            "resources" => self.allocated(|allocated| &allocated.resources),
            "cdi" => (self.cdi(), self.unread),
            "devices" => match self.nodes {
                Ok(nodes) => ([self.paths(), nodes.to_vec()].concat(), None),
                Err(why) => (self.paths(), Some(why)),
            },
            "annotations" => {
                let pairs =
                    self.annotations().into_iter().map(|(key, value)| format!("{key}={value}"));
                (pairs.collect(), self.unread)
            }
            _ => {
                let image = self.container.and_then(|container| container.image.as_ref());
                (image.map(|image| image.name.clone()).into_iter().collect(), self.unread)
            }
        }
    }

    /// Returns the container's allocations, or the whole pod's if kubelet does not list the container: it lists neither
    /// ephemeral nor ordinary init containers.
    fn allocated(&self, part: fn(&Allocated) -> &BTreeSet<String>) -> Found<'s> {
        let listed = match self.allocations {
            Allocations::None => return (Vec::new(), None),
            Allocations::Unreadable(why) => return (Vec::new(), Some(why)),
            Allocations::Listed(listed) => listed,
        };
        let own = self.container.and_then(|container| listed.get(&container.name));
        let all: BTreeSet<&String> = match own {
            Some(own) => part(own).iter().collect(),
            None => listed.values().flat_map(part).collect(),
        };
        (all.into_iter().cloned().collect(), None)
    }

    fn annotations(&self) -> Vec<(&'s String, &'s String)> {
        let own = self.container.map(|container| &container.annotations);
        self.pod.annotations.iter().chain(own.into_iter().flatten()).collect()
    }

    fn cdi(&self) -> Vec<String> {
        let devices = self.container.map(|container| container.CDI_devices.as_slice());
        let named = devices.unwrap_or_default().iter().map(|device| device.name.clone());
        let annotated =
            self.annotations().into_iter().filter(|(key, _)| key.starts_with(CDI_ANNOTATIONS));
        let annotated = annotated.flat_map(|(_, names)| names.split(','));
        named.chain(annotated.map(|name| name.trim().to_owned())).collect()
    }

    /// Returns the paths of device nodes, and the sources and destinations of mounts.
    fn paths(&self) -> Vec<String> {
        let Some(container) = self.container else { return Vec::new() };
        let devices = container.linux.as_ref().map(|linux| linux.devices.as_slice());
        let devices = devices.unwrap_or_default().iter().map(|device| &device.path);
        let sources = container.mounts.iter().map(|mount| &mount.source);
        let paths = devices.chain(sources).filter(|path| path.starts_with('/'));
        // Runtimes interpret a relative destination from the container's root.
        let destinations = container.mounts.iter().map(|mount| format!("/{}", mount.destination));
        paths.cloned().chain(destinations).map(|path| keys::path(&path)).collect()
    }
}

/// Returns the numbers of a container's device nodes, each with whether it is a block device; nodes without
/// numbers are left out.
pub(crate) fn device_numbers(container: &api::Container) -> BTreeSet<(bool, u64, u64)> {
    // The bits of a runtime's number that the kernel uses (`new_decode_dev`, include/linux/kdev_t.h).
    let number =
        |major: i64, minor: i64| (major.cast_unsigned() & 0xfff, minor.cast_unsigned() & 0xf_ffff);
    let devices = container.linux.as_ref().map(|linux| linux.devices.as_slice());
    let numbers = devices.unwrap_or_default().iter().filter_map(|device| {
        let is_block = match device.type_.as_str() {
            "b" => true,
            "c" | "u" => false,
            _ => return None,
        };
        let (major, minor) = number(device.major, device.minor);
        Some((is_block, major, minor))
    });
    numbers.collect()
}

/// Returns whether a promise applies to this container or pod, and why: the first list that matches.
pub(crate) fn fit_promise(section: &PromiseSection, facts: &PromiseFacts<'_>) -> (Fit, Reason) {
    let (of_pod, reason) = fit_pod(&section.pods, facts.ruled);
    let Reason::Matches(mut by) = reason else { return (of_pod, reason) };
    if !section.selects_devices() {
        return (of_pod, Reason::Matches(by));
    }
    let mut doubt = None;
    for (name, list) in section.of_devices().into_iter().filter(|(_, list)| !list.is_empty()) {
        let (values, unknown) = facts.of(name);
        if let Some(value) = values.into_iter().find(|value| is_in(list, name, value)) {
            by.push((name, value));
            return (of_pod, Reason::Matches(by));
        }
        doubt = doubt.or_else(|| Some((name, format!("(not readable: {})", unknown?))));
    }
    match doubt {
        Some(doubt) => {
            by.push(doubt);
            (of_pod.min(Fit::Maybe), Reason::Matches(by))
        }
        None => {
            let lists = section.of_devices().into_iter().find(|(_, list)| !list.is_empty());
            let (name, list) = lists.unwrap_or_default();
            (Fit::No, Reason::Lacks(name, list.first().cloned().unwrap_or_default()))
        }
    }
}

/// Whether a list selects a value. A pattern of annotations without `=` matches only the key.
fn is_in(list: &[String], name: &str, value: &str) -> bool {
    let is_it = |pattern: &str| match value.split_once('=').filter(|_| name == "annotations") {
        None => glob::matches(pattern, value),
        Some((key, value)) => match pattern.split_once('=') {
            None => glob::matches(pattern, key),
            Some((wanted, pattern)) => glob::matches(wanted, key) && glob::matches(pattern, value),
        },
    };
    has(list, is_it)
}

/// Returns every promise, and whether it matches, for `policy test`.
pub(crate) fn promise_rows(
    sections: &[PromiseSection],
    facts: &PromiseFacts<'_>,
) -> Vec<PromiseFit> {
    let rows = sections.iter().map(|section| {
        let (fit, reason) = fit_promise(section, facts);
        PromiseFit {
            promise: section.name.clone(),
            plugin: section.plugin.clone(),
            matches: fit,
            why: reason.to_string(),
            mode: section.mode,
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::config::RuleMode;
    use crate::engine::PodAllocations;
    use proptest::prelude::*;
    use serde_json::json;

    /// A container as a test describes it.
    #[derive(Default)]
    struct Subject {
        ruled: RuledPod,
        pod: api::PodSandbox,
        container: api::Container,
        unread: Option<&'static str>,
        nodes: Vec<String>,
        unknown_nodes: bool,
        allocations: Allocations,
    }

    impl Subject {
        fn fit(&self, section: &PromiseSection) -> (Fit, String) {
            let (fit, why) = fit_promise(section, &self.facts(Some(&self.container)));
            (fit, why.to_string())
        }

        fn facts<'s>(&'s self, container: Option<&'s api::Container>) -> PromiseFacts<'s> {
            PromiseFacts {
                container,
                unread: self.unread,
                nodes: if self.unknown_nodes { Err("/dev") } else { Ok(&self.nodes) },
                ..PromiseFacts::new(&self.ruled, &self.pod, &self.allocations)
            }
        }
    }

    /// Returns a section with one list of devices; `entries` are separated by blanks.
    fn section(key: &str, entries: &str) -> PromiseSection {
        let list = entries.split(' ').map(str::to_owned).collect();
        let mut section = PromiseSection { plugin: "a".to_owned(), ..PromiseSection::default() };
        match key {
            "claims" => section.claims = list,
            "cdi" => section.cdi = list,
            "devices" => section.devices = list,
            "resources" => section.resources = list,
            "annotations" => section.annotations = list,
            "images" => section.images = list,
            other => panic!("{other}"),
        }
        section
    }

    fn annotated(key: &str, value: &str) -> HashMap<String, String> {
        HashMap::from([(key.to_owned(), value.to_owned())])
    }

    fn listed(container: &str, claim: &str, resource: &str) -> Allocations {
        let allocated = Allocated {
            claims: [claim.to_owned()].into(),
            resources: [resource.to_owned()].into(),
        };
        let side = ("side".to_owned(), Allocated::default());
        Allocations::Listed(PodAllocations::from([(container.to_owned(), allocated), side]))
    }

    /// Returns a container that has one entry for each list.
    fn whole() -> Subject {
        let container = json!({
            "name": "app",
            "annotations": {"cdi.k8s.io/net": "b.com/nic=1, b.com/nic=2"},
            "mounts": [
                {"destination": "/dev/./dri/card0", "source": "/dev/x/../dri/card1"},
                {"destination": "dev/null"},
            ],
            "linux": {"devices": [{"path": "/dev//nvidia0"}, {"path": "/dev/fuse"}]},
            "CDIDevices": [{"name": "nvidia.com/gpu=0"}],
            "image": {"name": "docker.io/library/a:1"},
        });
        Subject {
            pod: api::PodSandbox { annotations: annotated("team", "ml=yes"), ..Default::default() },
            container: crate::plugin::json::read(&container).unwrap(),
            nodes: vec!["/dev/kvm".to_owned()],
            allocations: listed("app", "dra.net", "nvidia.com/gpu"),
            ..Subject::default()
        }
    }

    #[test]
    fn each_list_matches_its_device_and_no_other() {
        for (key, entries, found) in [
            ("claims", "dra.net", Some("dra.net")),
            ("claims", "dra.*", Some("dra.net")),
            ("claims", "dra.cpu", None),
            ("cdi", "nvidia.com/gpu=0", Some("nvidia.com/gpu=0")),
            ("cdi", "nvidia.com/gpu=1", None),
            ("cdi", "b.com/*", Some("b.com/nic=1")),
            ("cdi", "b.com/nic=2", Some("b.com/nic=2")),
            ("cdi", "b.com/* !b.com/nic=1", Some("b.com/nic=2")),
            ("cdi", "b.com/* !b.com/nic=?", None),
            ("devices", "/dev/nvidia*", Some("/dev/nvidia0")),
            ("devices", "/dev/dri/card0", Some("/dev/dri/card0")),
            ("devices", "/dev/dri/card1", Some("/dev/dri/card1")),
            ("devices", "/dev/kvm", Some("/dev/kvm")),
            ("devices", "/dev/null", Some("/dev/null")),
            ("devices", "/dev/x", None),
            ("resources", "nvidia.com/gpu", Some("nvidia.com/gpu")),
            ("resources", "amd.com/gpu", None),
            ("annotations", "team", Some("team=ml=yes")),
            ("annotations", "team=ml=*", Some("team=ml=yes")),
            ("annotations", "team=ml", None),
            ("annotations", "cdi.k8s.io/*", Some("cdi.k8s.io/net=b.com/nic=1, b.com/nic=2")),
            ("annotations", "* !team", Some("cdi.k8s.io/net=b.com/nic=1, b.com/nic=2")),
            ("annotations", "tea", None),
            ("images", "docker.io/library/a:*", Some("docker.io/library/a:1")),
            ("images", "b", None),
        ] {
            let (fit, why) = whole().fit(&section(key, entries));
            let wanted = found.map(|value| format!("{key}: \"{value}\""));
            let first = entries.split(' ').next().unwrap_or_default();
            let lacks = || format!("it has nothing that matches {key} (\"{first}\")");
            assert_eq!(fit, if found.is_some() { Fit::Yes } else { Fit::No }, "{key} {entries}");
            assert_eq!(why, wanted.unwrap_or_else(lacks), "{key} {entries}");
        }
    }

    #[test]
    fn a_container_without_devices_needs_no_plugin() {
        for key in ["claims", "cdi", "devices", "resources", "annotations", "images"] {
            assert_eq!(Subject::default().fit(&section(key, "*")).0, Fit::No, "{key}");
        }
    }

    #[test]
    fn any_one_condition_suffices_and_other_pods_need_nothing() {
        let mut promise = section("cdi", "x.com/y=z");
        assert_eq!(whole().fit(&promise).0, Fit::No);
        promise.images = vec!["docker.io/*".to_owned()];
        assert_eq!(whole().fit(&promise).0, Fit::Yes);
        promise.pods.namespaces = vec!["prod".to_owned()];
        assert_eq!(whole().fit(&promise).0, Fit::No);
        let doubtful = RuledPod { is_doubtful: true, ..RuledPod::default() };
        assert_eq!(Subject { ruled: doubtful, ..whole() }.fit(&promise).0, Fit::Maybe);
    }

    #[test]
    fn a_selector_of_pods_alone_selects_all_their_containers() {
        let mut promise = PromiseSection::default();
        promise.pods.handlers = vec!["kata".to_owned()];
        let kata = RuledPod { handler: "kata".to_owned(), ..RuledPod::default() };
        let other = Subject::default();
        assert_eq!(other.fit(&promise).0, Fit::No);
        let subject = Subject { ruled: kata, ..Subject::default() };
        assert_eq!(subject.fit(&promise).0, Fit::Yes);
        assert_eq!(fit_promise(&promise, &subject.facts(None)).0, Fit::Yes);
        assert_eq!(other.fit(&PromiseSection::default()).0, Fit::Yes, "one that is closed");
    }

    #[test]
    fn unreadable_sources_may_match_but_absent_ones_do_not() {
        let unreadable = || Subject {
            unread: Some("the record"),
            unknown_nodes: true,
            allocations: Allocations::Unreadable("/k.sock".to_owned()),
            ..Subject::default()
        };
        for (key, source) in [
            ("claims", "/k.sock"),
            ("resources", "/k.sock"),
            ("cdi", "the record"),
            ("images", "the record"),
            ("annotations", "the record"),
            ("devices", "/dev"),
        ] {
            let (fit, why) = unreadable().fit(&section(key, "a/b=c"));
            assert_eq!((fit, why), (Fit::Maybe, format!("{key}: \"(not readable: {source})\"")));
        }
        let mut both = section("claims", "dra.net");
        both.images = vec!["docker.io/*".to_owned()];
        let image = api::Image { name: "docker.io/a".to_owned(), ..Default::default() };
        let mut subject = unreadable();
        subject.container.image = Some(image).into();
        assert_eq!(subject.fit(&both).0, Fit::Yes, "what is known suffices");
    }

    #[test]
    fn an_unlisted_container_has_the_claims_of_its_pod() {
        let promise = section("claims", "dra.net");
        for (name, fit) in [("app", Fit::Yes), ("side", Fit::No), ("debugger", Fit::Yes)] {
            let mut subject = whole();
            subject.container.name = name.to_owned();
            assert_eq!(subject.fit(&promise).0, fit, "{name}");
        }
        let subject = Subject { nodes: Vec::new(), ..whole() };
        assert_eq!(fit_promise(&promise, &subject.facts(None)).0, Fit::Yes, "the pod itself");
        for key in ["cdi", "devices", "images"] {
            let of_pod = fit_promise(&section(key, "*"), &subject.facts(None)).0;
            assert_eq!(of_pod, Fit::No, "{key} are a container's");
        }
    }

    #[test]
    fn a_device_node_has_the_kernels_number() {
        let device = |kind: &str, major: i64| api::LinuxDevice {
            type_: kind.to_owned(),
            major,
            minor: 3,
            ..Default::default()
        };
        let devices = vec![
            device("p", 1),
            device("", 1),
            device("u", 1),
            device("b", 8),
            device("c", 4096 + 9),
        ];
        let linux = api::LinuxContainer { devices, ..Default::default() };
        let container = api::Container { linux: Some(linux).into(), ..Default::default() };
        assert_eq!(device_numbers(&container), [(false, 1, 3), (true, 8, 3), (false, 9, 3)].into());
        assert_eq!(device_numbers(&api::Container::default()), [].into());
    }

    #[test]
    fn each_promise_has_a_row_with_its_reason() {
        let claims = PromiseSection { name: "net".to_owned(), ..section("claims", "dra.net") };
        let images = PromiseSection { mode: RuleMode::Audit, ..section("images", "b") };
        let row = |promise: &str, matches, why: &str, mode| PromiseFit {
            promise: promise.to_owned(),
            plugin: "a".to_owned(),
            matches,
            why: why.to_owned(),
            mode,
        };
        let subject = whole();
        assert_eq!(
            promise_rows(&[claims, images], &subject.facts(Some(&subject.container))),
            [
                row("net", Fit::Yes, "claims: \"dra.net\"", RuleMode::Enforce),
                row("", Fit::No, "it has nothing that matches images (\"b\")", RuleMode::Audit),
            ]
        );
    }

    fn word() -> impl Strategy<Value = String> {
        "[ab*!/=]{1,4}"
    }

    proptest! {
        #[test]
        fn more_devices_or_unknown_facts_never_lift_a_promise(
            entries in proptest::collection::vec(word(), 1..4),
            devices in proptest::collection::vec(word(), 0..4),
            more in word(),
        ) {
            let promise = section("cdi", &entries.join(" "));
            let subject = |devices: &[String]| {
                let cdi = |name: &String| api::CDIDevice { name: name.clone(), ..Default::default() };
                let devices = devices.iter().map(cdi).collect();
                let container = api::Container { CDI_devices: devices, ..Default::default() };
                Subject { container, ..Subject::default() }
            };
            let before = subject(&devices).fit(&promise).0;
            let added = subject(&[devices.clone(), vec![more]].concat()).fit(&promise).0;
            let unread = Subject { unread: Some("x"), ..subject(&devices) }.fit(&promise).0;
            prop_assert!(added >= before && unread >= before);
            prop_assert!(unread != Fit::No);
        }
    }
}
