// SPDX-License-Identifier: Apache-2.0
//! The table of known fields against the schema.

use protobuf::descriptor::field_descriptor_proto::Type;
use protobuf::reflect::{
    FieldDescriptor, FileDescriptor, MessageDescriptor, RuntimeFieldType, RuntimeType,
};

use super::*;

/// Returns a message's line in the table, and one for each map of messages, each with its name.
fn lines(message: &MessageDescriptor) -> Vec<(String, String)> {
    let (mut bits, mut inside, mut lines) = ([0_u64; 2], Vec::new(), Vec::new());
    for field in message.fields() {
        let number = u32::try_from(field.number()).unwrap();
        let bit = 1_u64.checked_shl(number).expect("a number above 63 needs another form");
        let (is_number, has_length) = forms(&field);
        bits[0] |= if is_number { bit } else { 0 };
        bits[1] |= if has_length { bit } else { 0 };
        let (name, number) = (field.name().to_owned(), number);
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(RuntimeType::Message(of))
            | RuntimeFieldType::Repeated(RuntimeType::Message(of)) => {
                inside.push((number, name, of.name().to_owned()));
            }
            RuntimeFieldType::Map(_, RuntimeType::Message(of)) => {
                let entry = format!("{name} of {}", message.name());
                lines.push((
                    entry.clone(),
                    row(&entry, [0, 0b110], &[(2, String::new(), of.name().to_owned())]),
                ));
                inside.push((number, name, entry));
            }
            RuntimeFieldType::Singular(_)
            | RuntimeFieldType::Repeated(_)
            | RuntimeFieldType::Map(..) => {}
        }
    }
    inside.sort_unstable();
    lines.push((message.name().to_owned(), row(message.name(), bits, &inside)));
    lines
}

/// Whether the field may be encoded as a number, and whether with a length prefix.
fn forms(field: &FieldDescriptor) -> (bool, bool) {
    let form = field.proto().type_();
    let has_length = matches!(form, Type::TYPE_STRING | Type::TYPE_BYTES | Type::TYPE_MESSAGE);
    let integers = [Type::TYPE_INT32, Type::TYPE_INT64, Type::TYPE_UINT32, Type::TYPE_UINT64];
    let is_number = integers.contains(&form) || matches!(form, Type::TYPE_BOOL | Type::TYPE_ENUM);
    assert!(is_number || has_length, "{form:?} of {} needs another form", field.name());
    (is_number, has_length || field.is_repeated())
}

fn row(name: &str, [numbers, lengths]: [u64; 2], inside: &[(u32, String, String)]) -> String {
    format!("    ({name:?}, [{numbers:#x}, {lengths:#x}], &{inside:?}),\n")
}

#[test]
fn a_known_field_number_with_another_wire_type_is_unknown() {
    let mut response = answered(api::ContainerAdjustment::default());
    // `adjust` and `update` are messages; an unknown field after them is still found.
    for number in [1, 2, 40] {
        response.special_fields.mut_unknown_fields().add_varint(number, 1 << 40);
    }
    response.adjust.mut_or_insert_default().special_fields.mut_unknown_fields().add_fixed32(4, 7);
    let places = ["R field 1", "R field 2", "R field 40", "R.adjust field 4"];
    assert_eq!(crate::unknown_fields(&response, "R"), places);
}

#[test]
fn unknown_fields_inside_maps_and_lists_are_reported_by_number() {
    let mut device = api::LinuxNetDevice::default();
    let mut update = api::ContainerUpdate::default();
    for number in [300, 9, 300] {
        device.special_fields.mut_unknown_fields().add_varint(number, 1);
        update.special_fields.mut_unknown_fields().add_fixed64(number, 1);
    }
    let net_devices = [("eth0".to_owned(), device.clone()), ("eth1".to_owned(), device)].into();
    let adjust = api::ContainerAdjustment {
        linux: some(api::LinuxContainerAdjustment { net_devices, ..Default::default() }),
        ..Default::default()
    };
    let update = vec![update.clone(), update];
    let response = api::CreateContainerResponse { update, ..answered(adjust) };
    let places = ["adjust.linux.net_devices", "update"];
    let numbers = |place| [9, 300].map(|number| format!("R.{place} field {number}"));
    assert_eq!(crate::unknown_fields(&response, "R"), places.map(numbers).concat());
}

#[test]
fn only_a_hundred_unknown_fields_are_listed_the_rest_counted() {
    for (count, more) in [(99, None), (100, None), (101, Some(1)), (103, Some(3))] {
        let mut response = api::CreateContainerResponse::new();
        for number in 100..100 + count {
            response.special_fields.mut_unknown_fields().add_varint(number, 1);
        }
        let listed = (100..100 + count.min(100)).map(|number| format!("R field {number}"));
        let counted = more.map(|more| format!("R in {more} more places"));
        let places: Vec<String> = listed.chain(counted).collect();
        assert_eq!(crate::unknown_fields(&response, "R"), places);
    }
}

#[test]
fn the_table_of_known_fields_matches_the_schema() {
    let files = [api::file_descriptor(), api::extension::file_descriptor()];
    let messages = files.into_iter().flat_map(FileDescriptor::messages);
    let mut lines: Vec<_> = messages.flat_map(|message| lines(&message)).collect();
    lines.sort_unstable();
    assert!(lines.is_sorted_by(|a, b| a.0 < b.0), "each name once");
    let lines: String = lines.into_iter().map(|(_, line)| line).collect();
    assert!(include_str!("../schema.rs").contains(&format!("= &[\n{lines}];")), "\n{lines}");
}
