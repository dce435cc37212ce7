// SPDX-License-Identifier: Apache-2.0
//! Fields of a plugin's reply that this version's schema does not know.
//!
//! A plugin built on a newer NRI may set fields that are unknown here. They never fail a container
//! (D23), but must not be dropped silently, so every reply is searched for them. The walk uses the
//! schema's reflection, so it covers future messages too. Nothing is logged here.

use std::collections::HashSet;

use protobuf::reflect::{ReflectFieldRef, ReflectValueRef};
use protobuf::{MessageDyn, MessageFull};

/// The places of unknown fields in a message, such as `CreateContainerResponse.adjust field 99`,
/// each once, in the order of the schema.
pub(crate) fn fields<M: MessageFull>(message: &M) -> Vec<String> {
    unknown_fields(message, M::NAME)
}

/// Lists the places of unknown fields of a message, whose name in them is `name`.
pub fn unknown_fields<M: MessageFull>(message: &M, name: &str) -> Vec<String> {
    let mut found = UnknownFields::default();
    walk(message, name, &mut found);
    let UnknownFields { mut places, seen: _, more } = found;
    if more > 0 {
        places.push(format!("{name} in {more} more places"));
    }
    places
}

/// Maximum places listed; the others are counted.
const NAMED: usize = 100;

#[derive(Default)]
struct UnknownFields {
    places: Vec<String>,
    seen: HashSet<String>,
    more: usize,
}

impl UnknownFields {
    fn note(&mut self, place: String) {
        if self.seen.contains(&place) {
        } else if self.places.len() < NAMED {
            self.seen.insert(place.clone());
            self.places.push(place);
        } else {
            self.more += 1;
        }
    }
}

fn walk(message: &dyn MessageDyn, path: &str, found: &mut UnknownFields) {
    let mut numbers: Vec<u32> =
        message.special_fields_dyn().unknown_fields().iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    for number in numbers {
        found.note(format!("{path} field {number}"));
    }
    for field in message.descriptor_dyn().fields() {
        let mut descend = |value: ReflectValueRef<'_>| {
            if let ReflectValueRef::Message(inner) = value {
                walk(&*inner, &format!("{path}.{}", field.name()), found);
            }
        };
        match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => {
                if let Some(value) = value.value() {
                    descend(value);
                }
            }
            ReflectFieldRef::Repeated(values) => values.into_iter().for_each(&mut descend),
            ReflectFieldRef::Map(map) => {
                map.into_iter().for_each(|(_, value)| descend(value));
            }
        }
    }
}
