// SPDX-License-Identifier: Apache-2.0
//! The built-in validator flag by flag, and the containers that a missing plugin does not block.

use proptest::prelude::*;

use super::*;
use crate::validator::{DefaultValidator, REQUIRED_PLUGINS, ValidatorExemptions, missing_required};
use nri_api::ValidateContainerAdjustmentRequest as Request;
use nri_api::security_profile::ProfileType;

/// The key of the annotation that tolerates missing plugins.
const TOLERATE: &str = "tolerate.example";

/// Returns an enabled validator with one setting.
fn on(set: impl FnOnce(&mut DefaultValidator)) -> DefaultValidator {
    let mut validator = DefaultValidator { enable: true, ..Default::default() };
    set(&mut validator);
    validator
}

/// Returns a validator that refuses everything it can refuse, but requires no plugins.
fn strict() -> DefaultValidator {
    on(|v| {
        v.reject_oci_hook_adjustment = true;
        v.reject_runtime_default_seccomp_adjustment = true;
        v.reject_unconfined_seccomp_adjustment = true;
        v.reject_custom_seccomp_adjustment = true;
        v.reject_namespace_adjustment = true;
        v.reject_sysctl_adjustment = true;
    })
}

/// Returns the request for validators after `10-foo`, `20-bar`, … replied with these adjustments.
fn asked(container: api::Container, adjusts: Vec<api::ContainerAdjustment>) -> Request {
    let mut creation = creation_of(api::Container { name: "ctr".to_owned(), ..container });
    for (plugin, adjust) in ["10-foo", "20-bar"].iter().zip(adjusts) {
        answer(&mut creation, plugin, adjust).unwrap();
    }
    let plugin = |index: &str, name: &str| {
        let (index, name) = (index.to_owned(), name.to_owned());
        api::PluginInstance { index, name, ..Default::default() }
    };
    creation.validation_request(vec![plugin("10", "foo"), plugin("20", "bar")])
}

fn adjusted(adjust: api::ContainerAdjustment) -> Request {
    asked(api::Container::new(), vec![adjust])
}

fn annotated(annotations: &[(&str, &str)]) -> Request {
    let mut request = adjusted(api::ContainerAdjustment::new());
    request.pod.mut_or_insert_default().annotations = map(annotations);
    request
}

fn hooks() -> api::ContainerAdjustment {
    let hooks = some(api::Hooks { prestart: vec![hook("/h")], ..Default::default() });
    api::ContainerAdjustment { hooks, ..Default::default() }
}

fn seccomp() -> api::ContainerAdjustment {
    let seccomp_policy = some(api::LinuxSeccomp::new());
    of_linux(api::LinuxContainerAdjustment { seccomp_policy, ..Default::default() })
}

fn namespaces(entries: &[&str]) -> api::ContainerAdjustment {
    let namespaces = entries.iter().map(|kind| namespace(kind, "")).collect();
    of_linux(api::LinuxContainerAdjustment { namespaces, ..Default::default() })
}

fn sysctls(entries: &[(&str, &str)]) -> api::ContainerAdjustment {
    let sysctl = map(entries);
    of_linux(api::LinuxContainerAdjustment { sysctl, ..Default::default() })
}

/// Returns a container with this profile, if any, and with or without a policy.
fn confined(profile: Option<i32>, has_policy: bool) -> api::Container {
    let seccomp_profile = profile.map(|kind| api::SecurityProfile {
        profile_type: protobuf::EnumOrUnknown::from_i32(kind),
        ..Default::default()
    });
    let seccomp_policy = has_policy.then(api::LinuxSeccomp::new).into();
    let seccomp_profile = seccomp_profile.into();
    let linux = api::LinuxContainer { seccomp_profile, seccomp_policy, ..Default::default() };
    api::Container { linux: some(linux), ..Default::default() }
}

#[test]
fn each_flag_refuses_its_own_adjustment_and_nothing_else() {
    type Case = (fn(&mut DefaultValidator), Request, &'static str);
    let cases: [Case; 4] = [
        (
            |v| v.reject_oci_hook_adjustment = true,
            adjusted(hooks()),
            "validation error: plugin \"10-foo\" attempted restricted OCI hook injection",
        ),
        (
            |v| v.reject_unconfined_seccomp_adjustment = true,
            adjusted(seccomp()),
            "validation error: plugin \"10-foo\" attempted restricted unconfined seccomp policy \
             adjustment",
        ),
        (
            |v| v.reject_namespace_adjustment = true,
            adjusted(namespaces(&["pid"])),
            "validation error: attempted restricted namespace adjustment by plugin(s) \
             \"10-foo\" (namespace \"pid\")",
        ),
        (
            |v| v.reject_sysctl_adjustment = true,
            adjusted(sysctls(&[("a", "1")])),
            "validation error: attempted restricted sysctl adjustment by plugin(s) 10-foo",
        ),
    ];
    for (set, _, _) in &cases {
        let validator = on(set);
        for (other, request, text) in &cases {
            let wanted = if on(other) == validator { Err((*text).to_owned()) } else { Ok(()) };
            assert_eq!(validator.validate(request), wanted, "{validator:?}");
        }
    }
}

#[test]
fn a_disabled_validator_refuses_nothing() {
    let off = DefaultValidator {
        enable: false,
        required_plugins: vec!["absent".to_owned()],
        tolerate_missing_plugins_annotation: TOLERATE.to_owned(),
        ..strict()
    };
    for adjust in [hooks(), seccomp(), namespaces(&["pid"]), sysctls(&[("a", "")])] {
        assert_eq!(off.validate(&adjusted(adjust.clone())), Ok(()));
        assert_eq!(on(|_| ()).validate(&adjusted(adjust)), Ok(()), "without a flag");
    }
    assert_eq!(off.validate(&annotated(&[(REQUIRED_PLUGINS, "no list")])), Ok(()));
    assert_eq!(off.validate(&annotated(&[(TOLERATE, "maybe")])), Ok(()));
}

#[test]
fn the_strictest_validator_permits_all_other_adjustments() {
    let adjust = api::ContainerAdjustment {
        env: vec![variable("A", "1")],
        mounts: vec![mount("/d", "/s")],
        annotations: map(&[("a", "b")]),
        hooks: some(api::Hooks::new()),
        ..of_resources(shares(7))
    };
    assert_eq!(strict().validate(&adjusted(adjust)), Ok(()));
    assert_eq!(strict().validate(&Request::new()), Ok(()));
}

#[test]
fn changes_to_another_container_do_not_fail_the_validation() {
    let mut request = adjusted(hooks());
    request.container.mut_or_insert_default().id = "another".to_owned();
    assert_eq!(strict().validate(&request), Ok(()));
}

#[test]
fn every_plugin_that_injected_a_hook_is_named() {
    let request = asked(api::Container::new(), vec![hooks(), hooks()]);
    assert_eq!(
        strict().validate(&request).unwrap_err(),
        "validation error: plugins \"10-foo,20-bar\" attempted restricted OCI hook injection"
    );
}

#[test]
fn the_containers_seccomp_profile_selects_the_validator_flag() {
    let default = on(|v| v.reject_runtime_default_seccomp_adjustment = true);
    let custom = on(|v| v.reject_custom_seccomp_adjustment = true);
    let unconfined = on(|v| v.reject_unconfined_seccomp_adjustment = true);
    let all = [("runtime default", &default), ("custom", &custom), ("unconfined", &unconfined)];
    let every = ["runtime default", "custom", "unconfined"];
    let cases: [(Option<i32>, bool, &[&str]); 9] = [
        (None, false, &["unconfined"]),
        (None, true, &every),
        (Some(ProfileType::RUNTIME_DEFAULT as i32), false, &["runtime default"]),
        (Some(ProfileType::RUNTIME_DEFAULT as i32), true, &["runtime default"]),
        (Some(ProfileType::UNCONFINED as i32), false, &["unconfined"]),
        (Some(ProfileType::UNCONFINED as i32), true, &["unconfined"]),
        (Some(ProfileType::LOCALHOST as i32), false, &["custom"]),
        (Some(ProfileType::LOCALHOST as i32), true, &["custom"]),
        (Some(77), true, &every),
    ];
    for (profile, has_policy, rejecting) in cases {
        let request = asked(confined(profile, has_policy), vec![seccomp()]);
        let untouched = asked(confined(profile, has_policy), vec![hooks()]);
        for (kind, validator) in all {
            let text = format!(
                "validation error: plugin \"10-foo\" attempted restricted {kind} seccomp policy \
                 adjustment"
            );
            let wanted = if rejecting.contains(&kind) { Err(text) } else { Ok(()) };
            assert_eq!(validator.validate(&request), wanted, "{profile:?} {has_policy}");
            assert_eq!(validator.validate(&untouched), Ok(()));
        }
    }
}

#[test]
fn removed_namespaces_and_sysctls_are_refused_with_the_plugin() {
    let container = api::Container::new;
    let request = asked(container(), vec![namespaces(&["-pid", "ipc"]), namespaces(&["net"])]);
    assert_eq!(
        strict().validate(&request).unwrap_err(),
        "validation error: attempted restricted namespace adjustment by plugin(s) \"10-foo\" \
         (namespace \"ipc\"), \"20-bar\" (namespace \"net\"), \"10-foo\" (namespace \"pid\")"
    );
    let request =
        asked(container(), vec![sysctls(&[("-b", "")]), sysctls(&[("c", "1"), ("d", "")])]);
    assert_eq!(
        strict().validate(&request).unwrap_err(),
        "validation error: attempted restricted sysctl adjustment by plugin(s) 10-foo, 20-bar"
    );
}

#[test]
fn a_removed_sysctl_without_an_owner_is_refused_too() {
    let mut request = adjusted(sysctls(&[("-b", "")]));
    request.owners.mut_or_insert_default().owners.clear();
    let reason = strict().validate(&request).unwrap_err();
    assert!(reason.ends_with("sysctl adjustment by plugin(s) (unknown)"), "{reason}");
}

#[test]
fn the_first_failed_check_gives_the_reason() {
    let mut all = hooks();
    let linux = all.linux.mut_or_insert_default();
    linux.seccomp_policy = some(api::LinuxSeccomp::new());
    linux.namespaces = vec![namespace("pid", "")];
    linux.sysctl = map(&[("a", "1")]);
    let request = adjusted(all);
    let mut validator = strict();
    validator.required_plugins = vec!["absent".to_owned()];
    type Lift = fn(&mut DefaultValidator);
    let lift: [(&str, Lift); 5] = [
        ("OCI hook", |v| v.reject_oci_hook_adjustment = false),
        ("seccomp", |v| v.reject_unconfined_seccomp_adjustment = false),
        ("namespace", |v| v.reject_namespace_adjustment = false),
        ("required plugin", |v| v.required_plugins.clear()),
        ("sysctl", |v| v.reject_sysctl_adjustment = false),
    ];
    for (about, lift) in lift {
        let reason = validator.validate(&request).unwrap_err();
        assert!(reason.contains(about), "{reason}");
        lift(&mut validator);
    }
    assert_eq!(validator.validate(&request), Ok(()));
}

#[test]
fn required_plugins_are_matched_by_name_or_by_index_and_name() {
    let cases: [(&[&str], &str); 9] = [
        (&[], ""),
        (&["foo"], ""),
        (&["10-foo", "bar", "20-bar"], ""),
        (&["absent"], "required plugin \"absent\" not present"),
        (&["20-foo"], "required plugin \"20-foo\" not present"),
        (&["10"], "required plugin \"10\" not present"),
        (&["Foo"], "required plugin \"Foo\" not present"),
        (&["b", "foo", "a", "b"], "required plugins \"b,a\" not present"),
        (&[""], "required plugin \"\" not present"),
    ];
    for (required, text) in cases {
        let required: Vec<String> = required.iter().map(|name| (*name).to_owned()).collect();
        let validator = on(|v| v.required_plugins.clone_from(&required));
        let wanted =
            if text.is_empty() { Ok(()) } else { Err(format!("validation error: {text}")) };
        assert_eq!(validator.validate(&annotated(&[])), wanted, "by the configuration");
        let list = serde_json::to_string(&required).unwrap();
        let request = annotated(&[(REQUIRED_PLUGINS, &list)]);
        assert_eq!(on(|_| ()).validate(&request), wanted, "by annotation");
    }
}

#[test]
fn an_annotation_adds_to_the_operators_required_plugins() {
    let validator = on(|v| v.required_plugins = vec!["a".to_owned()]);
    let reason = validator.validate(&annotated(&[(REQUIRED_PLUGINS, "- b\n- foo\n")])).unwrap_err();
    assert_eq!(reason, "validation error: required plugins \"a,b\" not present");
    let reason = validator.validate(&annotated(&[(REQUIRED_PLUGINS, "[]")])).unwrap_err();
    assert_eq!(reason, "validation error: required plugin \"a\" not present");
}

#[test]
fn the_containers_own_list_replaces_the_pods() {
    let own = format!("{REQUIRED_PLUGINS}/container.ctr");
    let others = format!("{REQUIRED_PLUGINS}/container.other");
    let pods = format!("{REQUIRED_PLUGINS}/pod");
    let judge = |annotations: &[(&str, &str)]| on(|_| ()).validate(&annotated(annotations));
    assert!(judge(&[(&pods, "[absent]")]).is_err());
    assert!(judge(&[(&own, "[absent]")]).is_err());
    assert_eq!(judge(&[(&others, "[absent]")]), Ok(()));
    assert_eq!(judge(&[(&own, "[]"), (&pods, "[absent]"), (REQUIRED_PLUGINS, "x")]), Ok(()));
    assert_eq!(judge(&[(&pods, "[foo]"), (REQUIRED_PLUGINS, "[absent]")]), Ok(()));
}

#[test]
fn a_pod_needs_the_plugins_that_operator_and_annotations_name() {
    let validator = on(|v| v.required_plugins = vec!["operator".to_owned()]);
    let key = |form: &str| format!("{REQUIRED_PLUGINS}{form}");
    let [own, other, pods] = ["/container.ctr", "/container.other", "/pod"].map(key);
    let (longer, slash) = (key("x"), key("/container"));
    let annotations = [
        (REQUIRED_PLUGINS, "[a]"),
        (pods.as_str(), "[b]"),
        (&own, "[c, a]"),
        (&other, "[d]"),
        (&longer, "[absent]"),
        (&slash, "[absent]"),
        ("required-plugins", "[absent]"),
    ];
    let pod = api::PodSandbox { annotations: map(&annotations), ..Default::default() };
    let names: Vec<String> = validator.plugins_of_pod(&pod).into_iter().collect();
    assert_eq!(names, ["a", "b", "c", "d", "operator"]);
    let off = DefaultValidator { enable: false, ..validator.clone() };
    assert!(off.plugins_of_pod(&pod).is_empty());
    let unreadable = [(REQUIRED_PLUGINS, "no list"), (own.as_str(), "[c]")];
    let pod = api::PodSandbox { annotations: map(&unreadable), ..Default::default() };
    let names: Vec<String> = validator.plugins_of_pod(&pod).into_iter().collect();
    assert_eq!(names, ["c", "operator"]);
}

#[test]
fn a_pod_may_name_64_plugins_in_all_its_annotations() {
    let validator = on(|v| v.required_plugins = vec!["operator".to_owned()]);
    let names = |from: usize, to: usize| {
        let names: Vec<String> = (from..to).map(|name| format!("p{name}")).collect();
        format!("[{}]", names.join(","))
    };
    let own = format!("{REQUIRED_PLUGINS}/container.other");
    for (count, fits) in [(64, true), (65, false), (66, false)] {
        let (first, more) = (names(0, 40), names(30, count));
        let annotations = map(&[(REQUIRED_PLUGINS, &first), (&own, &more)]);
        let pod = api::PodSandbox { annotations, ..Default::default() };
        let judged = validator.absent_plugins(&pod, Some("ctr"), |name| name != "operator");
        if fits {
            assert_eq!(judged, Ok(vec!["operator".to_owned()]));
        } else {
            let reason = judged.unwrap_err();
            assert!(reason.contains("more than 64 names in all"), "{reason}");
        }
        let needed = validator.plugins_of_pod(&pod).len();
        assert_eq!(needed, if fits { count + 1 } else { 1 });
    }
}

#[test]
fn an_unreadable_annotation_refuses_and_is_quoted() {
    let validator = on(|v| v.tolerate_missing_plugins_annotation = TOLERATE.to_owned());
    for value in ["foo", "{}", "[a", "[[a]]", "a: b", "- a\n  - b"] {
        let reason = validator.validate(&annotated(&[(REQUIRED_PLUGINS, value)])).unwrap_err();
        let start = "invalid required-plugins.noderesource.dev annotation \"";
        assert!(reason.starts_with(start) && !reason.contains('\n'), "{reason}");
    }
    for value in ["", "yes", "TrUe", " true", "2", "[]"] {
        let reason = validator.validate(&annotated(&[(TOLERATE, value)])).unwrap_err();
        let shown = format!("invalid {TOLERATE} annotation \"{value}\": expected true or false");
        assert_eq!(reason, shown);
    }
}

#[test]
fn a_huge_annotation_is_shortened_in_a_refusal() {
    let huge = "permission denied ".repeat(20_000);
    let names = format!("['{}']", [huge.as_str(); 3].join("','"));
    for value in [&huge, &names] {
        let reason = on(|_| ()).validate(&annotated(&[(REQUIRED_PLUGINS, value)])).unwrap_err();
        assert!(reason.chars().count() < 1100);
    }
}

#[test]
fn toleration_exempts_only_from_missing_plugins() {
    let mut validator = strict();
    validator.required_plugins = vec!["absent".to_owned()];
    validator.tolerate_missing_plugins_annotation = TOLERATE.to_owned();
    for (value, passes) in [("true", true), ("1", true), ("false", false), ("F", false)] {
        // The list of a pod that tolerates missing plugins may be invalid: it is not read.
        let mut request = annotated(&[(TOLERATE, value)]);
        assert_eq!(validator.validate(&request).is_ok(), passes, "{value}");
        let pod = request.pod.mut_or_insert_default();
        pod.annotations.insert(REQUIRED_PLUGINS.to_owned(), "no list".to_owned());
        assert_eq!(validator.validate(&request).is_ok(), passes, "{value}");
    }
    let mut request = adjusted(sysctls(&[("a", "1")]));
    request.pod.mut_or_insert_default().annotations = map(&[(TOLERATE, "true")]);
    assert!(validator.validate(&request).unwrap_err().contains("sysctl"));
    validator.tolerate_missing_plugins_annotation.clear();
    assert!(validator.validate(&annotated(&[(TOLERATE, "true"), ("", "true")])).is_err());
}

#[test]
fn a_missing_required_plugin_refuses_pods_without_toleration() {
    let judge = |namespace: &str, annotations: &[(&str, &str)], key: &str, present: &str| {
        let pod = api::PodSandbox {
            namespace: namespace.to_owned(),
            annotations: map(annotations),
            ..Default::default()
        };
        let is_exempt = namespace == "kube-system";
        let exemptions =
            ValidatorExemptions { is_exempt, tolerate_missing_plugins_annotation: key };
        missing_required(&pod, Some("ctr"), exemptions, ["b", "a", "b"], |name| {
            present.contains(name)
        })
    };
    let both = Ok(vec!["b", "a"]);
    let none = Ok(Vec::new());
    let own = format!("{TOLERATE}/container.ctr");
    assert_eq!(judge("default", &[], TOLERATE, "ab"), none);
    assert_eq!(judge("default", &[], TOLERATE, "b"), Ok(vec!["a"]));
    assert_eq!(judge("default", &[], TOLERATE, ""), both);
    assert_eq!(judge("", &[], "", ""), both);
    assert_eq!(judge("kube-system", &[], TOLERATE, ""), none);
    assert_eq!(judge("kube-system-2", &[], TOLERATE, ""), both);
    assert_eq!(judge("default", &[(TOLERATE, "true")], TOLERATE, ""), none);
    assert_eq!(judge("default", &[(TOLERATE, "true")], "", ""), both, "not configured");
    assert_eq!(judge("default", &[("", "true")], "", ""), both, "not configured");
    assert_eq!(judge("default", &[(TOLERATE, "false")], TOLERATE, ""), both);
    assert_eq!(judge("default", &[(TOLERATE, "true"), (&own, "0")], TOLERATE, ""), both);
    assert_eq!(judge("default", &[(TOLERATE, "0"), (&own, "1")], TOLERATE, ""), none);
    let unreadable = judge("default", &[(TOLERATE, "sure")], TOLERATE, "").unwrap_err();
    assert!(unreadable.contains(TOLERATE) && unreadable.contains("\"sure\""), "{unreadable}");
    assert_eq!(judge("default", &[(TOLERATE, "sure")], TOLERATE, "ab"), none, "nothing missing");
    assert_eq!(judge("kube-system", &[(TOLERATE, "sure")], TOLERATE, ""), none);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "-?[0-9]{2}-[a-z]", "[-\\[\\],'\" \na]{0,12}"]
}

prop_compose! {
    /// Requests that no merge would produce.
    fn any_request()(
        texts in prop::collection::vec(text(), 12),
        fields in prop::collection::vec(-2..42i32, 3),
        profile in any::<Option<i32>>(),
        has_parts in any::<bool>(),
    ) -> Request {
        let mut request = if has_parts { annotated(&[]) } else { Request::new() };
        let [a, b, c, d, e, f, ..] = &texts[..] else { return request };
        let pod = request.pod.mut_or_insert_default();
        pod.annotations = map(&[(REQUIRED_PLUGINS, a), (TOLERATE, b), (c, d)]);
        let container = confined(profile, has_parts);
        request.container = some(api::Container { name: f.clone(), ..container });
        let owned = request.owners.mut_or_insert_default().owners.entry(String::new());
        let owned = owned.or_default();
        for field in &fields {
            owned.simple.insert(*field, e.clone());
            let keyed = owned.compound.entry(*field).or_default();
            keyed.owners = map(&[(a, b), (e, f)]);
        }
        request.adjust = some(sysctls(&[(c, d), (e, a)]));
        request
    }
}

proptest! {
    #[test]
    fn no_request_causes_a_panic_and_refusals_are_one_line(request in any_request()) {
        let mut validator = strict();
        for key in ["", TOLERATE] {
            validator.tolerate_missing_plugins_annotation = key.to_owned();
            let reason = validator.validate(&request).err();
            prop_assert!(reason.is_some(), "a sysctl is set, so there is always a reason");
            prop_assert!(!reason.is_some_and(|line| line.contains(char::is_control)));
            prop_assert_eq!(validator.validate(&request), validator.validate(&request));
        }
    }
}
