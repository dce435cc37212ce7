// SPDX-License-Identifier: Apache-2.0
//! The generated messages are those of `proto/nri/v1alpha1/api.proto`, and have the same meaning on
//! the wire as the official Go types: `fixtures/wire` has one full instance of each message as
//! those types write it. `UPDATE_GOLDEN=1` writes both, the fixtures if Go is installed. The rest
//! needs no Go. Reference: `proto/README.md`, `tests/interop/wire`.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nri_runc::plugin::api;
use protobuf::reflect::{
    EnumDescriptor, MessageDescriptor, ReflectFieldRef, ReflectMapRef, ReflectRepeatedRef,
    ReflectValueRef,
};
use protobuf::{Message, MessageDyn};
use serde_json::{Map, Value, json};
use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

fn generate(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    Codegen::new()
        .out_dir(into)
        .inputs([
            root.join("nri/v1alpha1/api.proto"),
            root.join("nri/extension/v1alpha1/extension.proto"),
        ])
        .include(root)
        .rust_protobuf()
        .customize(Customize { async_all: true, gen_mod: false, ..Customize::default() })
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()
        .unwrap();
}

#[test]
fn the_checked_in_messages_are_generated_from_the_proto() {
    let temp = tempfile::tempdir().unwrap();
    generate(temp.path());
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/nri-api/src/generated");
    for name in ["api.rs", "api_ttrpc.rs", "extension.rs", "extension_ttrpc.rs"] {
        let fresh = std::fs::read(temp.path().join(name)).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            test_support::program::copy(&temp.path().join(name), &checked_in.join(name));
        }
        let known = std::fs::read(checked_in.join(name)).unwrap();
        assert!(fresh == known, "{name} differs: UPDATE_GOLDEN=1 cargo test --test pure wire::");
    }
}

#[test]
fn fields_of_a_newer_protocol_are_kept() {
    // Field 1000, a text.
    let bytes = b"\xc2\x3e\x03new";
    let adjust = api::ContainerAdjustment::parse_from_bytes(bytes).unwrap();
    assert_eq!(adjust.write_to_bytes().unwrap(), bytes);
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/wire")
}

type Files = BTreeMap<String, Vec<u8>>;

fn files(dir: &Path) -> Files {
    let name = |entry: &std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (name(&entry), std::fs::read(entry.path()).unwrap())).collect()
}

/// The output of the Go types on this machine; once in a run, because it may replace the fixtures.
fn written_by_go() -> Option<&'static Files> {
    static FRESH: OnceLock<Option<Files>> = OnceLock::new();
    let fresh = FRESH.get_or_init(|| {
        let program = test_support::golang::program("wire")?;
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ran = Command::new(program).arg("-out").arg(temp.path()).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let fresh = files(temp.path());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(fixtures()).unwrap();
            for stale in files(&fixtures()).keys().filter(|name| !fresh.contains_key(*name)) {
                std::fs::remove_file(fixtures().join(stale)).unwrap();
            }
            for name in fresh.keys() {
                test_support::program::copy(&temp.path().join(name), &fixtures().join(name));
            }
        }
        Some(fresh)
    });
    fresh.as_ref()
}

fn known() -> Files {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _first_replaced = written_by_go();
    }
    files(&fixtures())
}

fn known_json(name: &str) -> Value {
    serde_json::from_slice(&known()[&format!("{name}.json")]).unwrap()
}

/// Every generated message, including nested ones, by its name below the package.
fn messages() -> BTreeMap<String, MessageDescriptor> {
    let mut found = BTreeMap::new();
    let mut left: Vec<_> = api::file_descriptor().messages().collect();
    while let Some(message) = left.pop() {
        left.extend(message.nested_messages().filter(|nested| !nested.is_map_entry()));
        found.insert(message.name_to_package().to_owned(), message);
    }
    found
}

/// Each generated message with the bytes that the Go types write for it.
fn cases() -> Vec<(String, MessageDescriptor, Vec<u8>)> {
    let known = known();
    let bytes = |name: &str| known[&format!("{name}.bin")].clone();
    messages().into_iter().map(|(name, message)| (name.clone(), message, bytes(&name))).collect()
}

#[test]
fn the_go_types_write_the_checked_in_bytes() {
    let Some(fresh) = written_by_go() else { return };
    let known = known();
    let names: BTreeSet<&String> = fresh.keys().chain(known.keys()).collect();
    let differing: Vec<_> =
        names.into_iter().filter(|name| fresh.get(*name) != known.get(*name)).collect();
    assert!(differing.is_empty(), "{differing:?}: UPDATE_GOLDEN=1 cargo test --test pure wire::");
}

#[test]
fn each_message_has_a_fixture_and_each_fixture_a_message() {
    let of = |name: &String| [format!("{name}.bin"), format!("{name}.json")];
    let mut wanted: BTreeSet<String> = messages().keys().flat_map(of).collect();
    wanted.insert("numbers.json".to_owned());
    let known: BTreeSet<String> = known().into_keys().collect();
    let differing: Vec<_> = known.symmetric_difference(&wanted).collect();
    assert!(differing.is_empty(), "only on one side: {differing:?}");
}

#[test]
fn the_bytes_of_the_go_types_stay_unchanged() {
    for (name, message, bytes) in cases() {
        let decoded = message.parse_from_bytes(&bytes).unwrap();
        assert!(decoded.write_to_bytes_dyn().unwrap() == bytes, "{name}");
    }
}

/// In JSON the names and types of the fields must agree too: 64-bit numbers are strings there, and
/// enums are names.
#[test]
fn each_field_has_the_value_that_go_encoded() {
    for (name, message, bytes) in cases() {
        let decoded = message.parse_from_bytes(&bytes).unwrap();
        assert_eq!(as_json(&name, &*decoded), known_json(&name), "{name}");
    }
}

fn as_json(path: &str, message: &dyn MessageDyn) -> Value {
    let unknown: Vec<_> = message.unknown_fields_dyn().iter().collect();
    assert!(unknown.is_empty(), "{path} has fields that we do not know: {unknown:?}");
    let mut object = Map::new();
    for field in message.descriptor_dyn().fields() {
        let path = format!("{path}.{}", field.name());
        assert!(field.has_field(message), "{path} is not set");
        let value = match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => value_as_json(&path, &value.value().unwrap()),
            ReflectFieldRef::Repeated(list) => list_as_json(&path, &list),
            ReflectFieldRef::Map(map) => map_as_json(&path, &map),
        };
        object.insert(field.json_name().to_owned(), value);
    }
    Value::Object(object)
}

fn list_as_json(path: &str, list: &ReflectRepeatedRef<'_>) -> Value {
    assert_eq!(list.len(), 2, "{path}");
    list.into_iter().map(|value| value_as_json(path, &value)).collect()
}

fn map_as_json(path: &str, map: &ReflectMapRef<'_>) -> Value {
    let entry = |(key, value): (ReflectValueRef<'_>, ReflectValueRef<'_>)| {
        (key.to_string(), value_as_json(path, &value))
    };
    Value::Object(map.into_iter().map(entry).collect())
}

fn value_as_json(path: &str, value: &ReflectValueRef<'_>) -> Value {
    match value {
        ReflectValueRef::U32(number) => json!(number),
        ReflectValueRef::I32(number) => json!(number),
        ReflectValueRef::U64(number) => json!(number.to_string()),
        ReflectValueRef::I64(number) => json!(number.to_string()),
        ReflectValueRef::Bool(truth) => json!(truth),
        ReflectValueRef::String(text) => json!(text),
        ReflectValueRef::Enum(of, number) => json!(of.value_by_number(*number).unwrap().name()),
        ReflectValueRef::Message(message) => as_json(path, &**message),
        ReflectValueRef::F32(_) | ReflectValueRef::F64(_) | ReflectValueRef::Bytes(_) => {
            panic!("{path} is of a type that NRI does not have")
        }
    }
}

/// Values cannot distinguish two booleans of one message, nor show each number of an enum.
#[test]
fn names_and_numbers_are_those_of_the_go_types() {
    let (known, ours) = (known_json("numbers"), numbers());
    for section in ["enums", "messages", "services"] {
        let (known, ours) = (known[section].as_object().unwrap(), &ours[section]);
        for (name, numbers) in known {
            assert_eq!(ours[name], *numbers, "{name}");
        }
        assert_eq!(ours.as_object().unwrap().len(), known.len(), "{section}");
    }
}

/// The content of numbers.json by `tests/interop/wire`, from the generated types.
fn numbers() -> Value {
    let file = api::file_descriptor();
    let mut enums: Vec<EnumDescriptor> = file.enums().collect();
    let mut of_messages = Map::new();
    for (name, message) in messages() {
        enums.extend(message.nested_enums());
        let fields = message.fields().map(|field| (field.name().to_owned(), json!(field.number())));
        of_messages.insert(name, fields.collect());
    }
    let of_enums = enums.iter().map(|of| {
        let values = of.values().map(|value| (value.name().to_owned(), json!(value.value())));
        (of.name_to_package().to_owned(), values.collect())
    });
    let of_services = file.services().map(|service| {
        let methods = service.methods().map(|method| {
            let (takes, returns) = (method.input_type(), method.output_type());
            let both = json!([takes.name_to_package(), returns.name_to_package()]);
            (method.proto().name().to_owned(), both)
        });
        (service.proto().name().to_owned(), methods.collect())
    });
    let of_enums: Map<String, Value> = of_enums.collect();
    let of_services: Map<String, Value> = of_services.collect();
    json!({"enums": of_enums, "messages": of_messages, "services": of_services})
}

/// Bytes that may be damaged: an error, or a value that can be passed on and read again. Returns
/// whether there was a value.
fn passed_on(message: &MessageDescriptor, bytes: &[u8]) -> bool {
    let Ok(decoded) = message.parse_from_bytes(bytes) else { return false };
    let again = message.parse_from_bytes(&decoded.write_to_bytes_dyn().unwrap()).unwrap();
    assert!(message.eq(&*decoded, &*again), "{} of {bytes:02x?}", message.name());
    true
}

/// rust-protobuf takes a cut between two fields for the end, also inside a nested message with
/// another length; every other cut is an error.
#[test]
fn truncated_bytes_are_mostly_an_error_and_never_a_panic() {
    let (mut refused, mut read) = (0, 0);
    for (_, message, bytes) in cases() {
        for at in 0..bytes.len() {
            let count = if passed_on(&message, &bytes[..at]) { &mut read } else { &mut refused };
            *count += 1;
        }
    }
    assert!(read > 1000 && refused > 5 * read, "refused {refused}, read {read}");
}

#[test]
fn flipped_bits_are_an_error_or_a_value_and_never_a_panic() {
    let (mut refused, mut read) = (0, 0);
    for (_, message, mut bytes) in cases() {
        let step = 1 + bytes.len() / 500;
        for (turn, at) in (0..bytes.len()).step_by(step).enumerate() {
            // The highest bit is flipped too: it makes a length or a number continue into the
            // following bytes.
            for bit in [turn % 7, 7] {
                bytes[at] ^= 1 << bit;
                let count = if passed_on(&message, &bytes) { &mut read } else { &mut refused };
                *count += 1;
                bytes[at] ^= 1 << bit;
            }
        }
    }
    assert!(refused > 1000 && read > 1000, "refused {refused}, read {read}");
}
