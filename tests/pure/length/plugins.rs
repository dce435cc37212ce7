// SPDX-License-Identifier: Apache-2.0
//! The messages of a plugin: each field, by the protocol's own reflection.

use nri_adaptation::{Creation, DefaultValidator, Merged, Rights, Updates, check, unknown_fields};
use nri_api::identity::PluginIdentity;
use nri_runc::plugin::api;
use nri_runc::testing::error::quoted;
use nri_runc::testing::plugin::json;
use nri_runc::testing::spec::overlay::overlay_of;
use nri_runc::testing::spec::patch::{HostFacts, Resolved, patch_anyway};
use protobuf::reflect::{
    FieldDescriptor, MessageDescriptor, ReflectValueBox, RuntimeFieldType, RuntimeType,
};
use protobuf::{MessageDyn, MessageFull};

use super::{ENTRIES, Findings, SHAPES, Sample, text};

/// The long part of a field.
#[derive(Debug, Clone, Copy)]
enum Long {
    Text,
    Key,
    List,
}

/// A field by the fields that lead to it.
#[derive(Clone)]
struct Place {
    name: String,
    path: Vec<FieldDescriptor>,
    long: Long,
}

/// Every place of a message, including nested messages.
fn places(message: &MessageDescriptor, depth: usize) -> Vec<Place> {
    let mut all = Vec::new();
    walk(message, &[], message.name(), depth, &mut all);
    all
}

fn walk(
    message: &MessageDescriptor,
    path: &[FieldDescriptor],
    name: &str,
    depth: usize,
    all: &mut Vec<Place>,
) {
    for field in message.fields() {
        let path = [path, std::slice::from_ref(&field)].concat();
        let name = format!("{name}.{}", field.name());
        let mut add = |long| all.push(Place { name: name.clone(), path: path.clone(), long });
        let of = match field.runtime_field_type() {
            RuntimeFieldType::Singular(of) => of,
            RuntimeFieldType::Repeated(of) => {
                add(Long::List);
                of
            }
            RuntimeFieldType::Map(_, of) => {
                add(Long::List);
                add(Long::Key);
                of
            }
        };
        match of {
            RuntimeType::String => add(Long::Text),
            RuntimeType::Message(of) if depth > 0 => walk(&of, &path, &name, depth - 1, all),
            RuntimeType::Message(_)
            | RuntimeType::Enum(_)
            | RuntimeType::Bool
            | RuntimeType::I32
            | RuntimeType::I64
            | RuntimeType::U32
            | RuntimeType::U64
            | RuntimeType::F32
            | RuntimeType::F64
            | RuntimeType::VecU8 => {}
        }
    }
}

/// A message in which only this place is long.
fn made<M: MessageFull>(place: &Place, shape: &str, times: usize) -> M {
    let mut message = M::new();
    fill(&mut message, &place.path, place.long, shape, times);
    message
}

fn fill(
    message: &mut dyn MessageDyn,
    path: &[FieldDescriptor],
    long: Long,
    shape: &str,
    times: usize,
) {
    let (field, rest) = path.split_first().unwrap();
    let what = format!("{}.{}", message.descriptor_dyn().name(), field.name());
    let one = |of: &RuntimeType| {
        if let (RuntimeType::Message(of), false) = (of, rest.is_empty()) {
            let mut inner = of.new_instance();
            if !matches!(field.runtime_field_type(), RuntimeFieldType::Singular(_)) {
                complete(&mut *inner, 0);
            }
            fill(&mut *inner, rest, long, shape, times);
            return ReflectValueBox::Message(inner);
        }
        match (of, long) {
            (RuntimeType::String, Long::Text) => {
                ReflectValueBox::String(text(&usual(&what, 0), shape, times))
            }
            _ => value(&what, of, 0),
        }
    };
    match field.runtime_field_type() {
        RuntimeFieldType::Singular(of) => field.set_singular_field(message, one(&of)),
        RuntimeFieldType::Repeated(of) if rest.is_empty() && matches!(long, Long::List) => {
            let mut list = field.mut_repeated(message);
            (0..ENTRIES * times).for_each(|number| list.push(value(&what, &of, number)));
        }
        RuntimeFieldType::Repeated(of) => field.mut_repeated(message).push(one(&of)),
        RuntimeFieldType::Map(by, of) => {
            let mut map = field.mut_map(message);
            let mut put = |key, value| map.insert(map_key(&by, key), value);
            match long {
                Long::List if rest.is_empty() => {
                    (0..ENTRIES * times).for_each(|n| put(key(&what, n), value(&what, &of, n)));
                }
                Long::Key if rest.is_empty() => {
                    put(text(&key(&what, 0), shape, times), value(&what, &of, 0));
                }
                Long::Text | Long::Key | Long::List => put(key(&what, 0), one(&of)),
            }
        }
    }
}

/// Sets every field of a list's entry.
fn complete(message: &mut dyn MessageDyn, number: usize) {
    let kind = message.descriptor_dyn();
    for field in kind.fields() {
        let what = format!("{}.{}", kind.name(), field.name());
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(of) => {
                let value = value(&what, &of, number);
                field.set_singular_field(message, value);
            }
            RuntimeFieldType::Repeated(of) => {
                let value = value(&what, &of, number);
                field.mut_repeated(message).push(value);
            }
            RuntimeFieldType::Map(by, of) => {
                let value = value(&what, &of, number);
                let key = map_key(&by, key(&what, number));
                field.mut_map(message).insert(key, value);
            }
        }
    }
}

fn value(what: &str, of: &RuntimeType, number: usize) -> ReflectValueBox {
    let small = u32::try_from(number).unwrap();
    match of {
        RuntimeType::Message(of) => {
            let mut inner = of.new_instance();
            complete(&mut *inner, number);
            ReflectValueBox::Message(inner)
        }
        RuntimeType::Enum(of) => ReflectValueBox::Enum(of.clone(), 1),
        RuntimeType::String => ReflectValueBox::String(usual(what, number)),
        RuntimeType::Bool => ReflectValueBox::Bool(true),
        RuntimeType::I32 => ReflectValueBox::I32(small.cast_signed()),
        RuntimeType::I64 => ReflectValueBox::I64(i64::from(small)),
        RuntimeType::U32 => ReflectValueBox::U32(small),
        RuntimeType::U64 => ReflectValueBox::U64(u64::from(small)),
        RuntimeType::F32 | RuntimeType::F64 | RuntimeType::VecU8 => {
            unreachable!("NRI has none of these: {of:?}")
        }
    }
}

/// A key of a map; keys of owners are numbers.
fn map_key(of: &RuntimeType, key: String) -> ReflectValueBox {
    if matches!(of, RuntimeType::String) {
        return ReflectValueBox::String(key);
    }
    let digits: String = key.chars().filter(char::is_ascii_digit).collect();
    ReflectValueBox::I32(digits.parse().unwrap_or_default())
}

fn key(what: &str, number: usize) -> String {
    match what.split_once('.').unwrap().1 {
        "sysctl" => format!("net.k{number}"),
        "unified" => format!("memory.k{number}"),
        "net_devices" => format!("e{number}"),
        _ => format!("k{number}"),
    }
}

/// A valid value for a field with rules, because a value that is refused immediately costs nothing.
fn usual(what: &str, number: usize) -> String {
    match what {
        "Mount.destination" => format!("/d{number}"),
        "Mount.source" => format!("/s{number}"),
        "Mount.type" => "bind".to_owned(),
        "KeyValue.key" => format!("K{number}"),
        "Hook.env" | "Container.env" => format!("K{number}=v"),
        "LinuxDevice.path" => format!("/dev/d{number}"),
        "LinuxDevice.type" | "LinuxDeviceCgroup.type" => "c".to_owned(),
        "LinuxDeviceCgroup.access" => "rw".to_owned(),
        "LinuxNamespace.path" => format!("/ns/{number}"),
        "HugepageLimit.page_size" => format!("{}KB", 2 * number + 1),
        "Hook.path" | "ContainerAdjustment.args" => "/bin/h".to_owned(),
        "CDIDevice.name" => format!("v.com/c={number}"),
        "LinuxNetDevice.name" => format!("n{number}"),
        "LinuxCPU.cpus" | "LinuxCPU.mems" | "LinuxMemoryPolicy.nodes" => "0".to_owned(),
        "LinuxContainerAdjustment.cgroups_path" => "/cg/c0".to_owned(),
        _ => format!("v{number}"),
    }
}

const DOCUMENT: &[u8] = include_bytes!("../../../fixtures/engines/podman-run/config.json");

fn answered(responses: &[&api::CreateContainerResponse]) -> Option<Merged> {
    let container = api::Container { id: "c0".to_owned(), ..Default::default() };
    let mut creation = Creation::new(api::PodSandbox::default(), container);
    for (number, response) in responses.iter().enumerate() {
        let id = format!("{number}0-p");
        match creation.answer(&id, &Rights::default(), (*response).clone()) {
            Ok(next) => creation = next,
            Err(refusal) => {
                assert!(!quoted(&refusal.to_string()).is_empty());
                return None;
            }
        }
    }
    let request = creation.validation_request(Vec::new());
    let validator = DefaultValidator {
        enable: true,
        reject_oci_hook_adjustment: true,
        reject_sysctl_adjustment: true,
        reject_namespace_adjustment: true,
        ..DefaultValidator::default()
    };
    drop(validator.validate(&request));
    Some(creation.finish())
}

/// Merges and patches an adjustment of one plugin; that of a second one conflicts.
fn create(response: &api::CreateContainerResponse) {
    if let Some(merged) = answered(&[response]) {
        drop(patch_anyway(DOCUMENT, &merged.adjust, &HostFacts::default()));
        drop(merged.owners.to_flat("c0"));
    }
    drop(answered(&[response, response]));
}

fn update(response: &api::UpdateContainerResponse) {
    let subject = api::Container { id: "subject".to_owned(), ..Default::default() };
    let request =
        api::UpdateContainerRequest { container: Some(subject).into(), ..Default::default() };
    let mut merged = Updates::for_update(request);
    for id in ["10-a", "20-b"] {
        let taken = merged.answer(id, &Rights::default(), &response.update, &response.evict);
        let refusal = taken.map(|_taken| String::new()).unwrap_or_else(|why| why.to_string());
        assert!(quoted(&refusal).len() < 64 << 10);
    }
    drop(merged.finish());
}

/// Processes an UpdateContainers request as in `daemon/resources/updates.rs`.
fn unasked(request: &api::UpdateContainersRequest) {
    if let Err(why) = check(request) {
        assert!(quoted(&why.to_string()).len() < 64 << 10);
        return;
    }
    let unknown = unknown_fields(request, "UpdateContainersRequest");
    assert!(unknown.len() <= 1000);
    let rights = Rights::default();
    for update in &request.update {
        let mut single = Updates::for_stop();
        let taken = single.answer("10-a", &rights, std::slice::from_ref(update), &[]);
        if let Err(why) = taken {
            assert!(quoted(&why.to_string()).len() < 64 << 10);
        }
        let updated = single.finish();
        for update in &updated.updates {
            drop(updated.owners.to_flat(&update.container_id));
            if let Some(resources) = update.linux.resources.as_ref() {
                drop(overlay_of(resources, &Resolved::default()));
            }
        }
    }
    let mut gone = Updates::for_stop();
    if let Err(why) = gone.answer("10-a", &rights, &[], &request.evict) {
        assert!(quoted(&why.to_string()).len() < 64 << 10);
    }
    drop(gone.finish());
}

/// Measures each place of a message, in one shape for a sample and in every shape for the whole.
fn measure<M: MessageFull + Clone>(
    findings: &mut Findings,
    sample: Sample,
    share: u64,
    work: impl Fn(&M),
) {
    for place in places(&M::descriptor(), 8) {
        for (number, shape) in SHAPES.iter().enumerate() {
            if matches!(place.long, Long::List) && number > 0 {
                break; // It has no text.
            }
            let name = format!("{} {:?} {shape}", place.name, place.long);
            if sample.has(&name, share) {
                findings.measure(&name, |times| made::<M>(&place, shape, times), &work);
            }
        }
    }
}

#[test]
fn each_field_of_an_adjustment_costs_linear_time() {
    let mut findings = Findings::default();
    measure(&mut findings, Sample::of_today(), 2, create);
    findings.are_none(10);
}

#[test]
fn each_field_of_an_update_costs_linear_time() {
    let mut findings = Findings::default();
    measure(&mut findings, Sample::of_today(), 1, update);
    findings.are_none(5);
}

#[test]
fn each_field_of_an_unsolicited_update_costs_linear_time() {
    let mut findings = Findings::default();
    measure(&mut findings, Sample::of_today(), 1, unasked);
    findings.are_none(5);
}

#[test]
fn each_field_of_a_registration_costs_linear_time() {
    let mut findings = Findings::default();
    let all = Sample { seed: None };
    measure(&mut findings, all, 1, |request: &api::RegisterPluginRequest| {
        let api::RegisterPluginRequest { plugin_idx, plugin_name, NRI_version, .. } = request;
        for (index, name) in [(plugin_idx.as_str(), "a"), ("10", plugin_name.as_str())] {
            let received = match PluginIdentity::checked(index, name, NRI_version) {
                Ok(identity) => identity.to_string() + &identity.nri_version,
                Err(why) => why,
            };
            assert!(received.len() < 1000, "{received}");
        }
    });
    measure(&mut findings, all, 1, |verdict: &api::ValidateContainerAdjustmentResponse| {
        assert!(quoted(&verdict.reason).len() < 64 << 10);
    });
    findings.are_none(3 * SHAPES.len());
}

/// Recordings have every message as JSON.
#[test]
fn each_message_is_read_and_shown_in_linear_time() {
    let (mut findings, sample) = (Findings::default(), Sample::of_today());
    let file = api::Container::descriptor().file_descriptor().clone();
    for message in file.messages() {
        for place in places(&message, 0) {
            let name = format!("{} {:?} as JSON", place.name, place.long);
            if !sample.has(&name, 2) {
                continue;
            }
            let bytes = |times| {
                let mut long = message.new_instance();
                fill(&mut *long, &place.path, place.long, "a\"", times);
                long.write_to_bytes_dyn().unwrap()
            };
            findings.measure(&name, bytes, |bytes| {
                let read = message.parse_from_bytes(bytes).unwrap();
                assert!(!json::show(&*read).is_null());
            });
        }
    }
    findings.are_none(5);
}
