// SPDX-License-Identifier: Apache-2.0
//! Fields of a plugin's reply that this version's schema does not know.
//!
//! A plugin built on a newer NRI may set fields that are unknown here. They never fail a container
//! (D23), but must not be dropped silently, so every reply is searched for them. The search reads
//! the encoded reply with a constant table of the schema's fields: the schema's reflection would
//! keep some 500 KB in memory. Nothing is logged here.

use std::collections::HashSet;
use std::fmt;

use protobuf::rt::WireType;
use protobuf::{CodedInputStream, Message};

use crate::schema::{KnownFields, MESSAGES};

/// Returns the places of unknown fields in a message, such as `CreateContainerResponse.adjust field 99`.
pub(crate) fn fields<M: Message>(message: &M) -> Vec<String> {
    unknown_fields(message, M::NAME)
}

/// Lists the places of unknown fields of a message, each once; after 100 it only counts them, and may count a place
/// more than once. Each place begins with `name`.
pub fn unknown_fields<M: Message>(message: &M, name: &str) -> Vec<String> {
    let mut found = UnknownFields::default();
    // Encoding fails only if a required field is missing, and NRI's messages have none.
    let bytes = message.write_to_bytes().unwrap_or_default();
    let _readable = walk(&bytes, M::NAME, Place { parent: None, name }, &mut found);
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

/// The place of a message in a reply, written as text only for an unknown field.
#[derive(Clone, Copy)]
struct Place<'p> {
    parent: Option<&'p Place<'p>>,
    name: &'p str,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(self.name)
    }
}

/// Searches an encoded message of type `of`: notes its unknown fields by number, then searches the
/// messages in its fields.
fn walk(
    bytes: &[u8],
    of: &str,
    place: Place<'_>,
    found: &mut UnknownFields,
) -> protobuf::Result<()> {
    let at = MESSAGES.binary_search_by_key(&of, |(name, _, _)| name);
    let Some((_, [numbers, lengths], inside)): Option<&KnownFields> =
        at.ok().and_then(|at| MESSAGES.get(at))
    else {
        return Ok(());
    };
    let (mut unknown, mut inner) = (Vec::new(), Vec::new());
    let mut input = CodedInputStream::from_bytes(bytes);
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        let (number, form) = (tag >> 3, WireType::new(tag & 7));
        // A known number in another form is unknown too: the field's value is not read.
        let known = match form {
            Some(WireType::Varint) => *numbers,
            Some(WireType::LengthDelimited) => *lengths,
            _ => 0,
        };
        let is_known = 1_u64.checked_shl(number).is_some_and(|bit| known & bit != 0);
        match inside.iter().find(|(field, _, _)| is_known && *field == number) {
            Some((_, name, of)) => inner.push((name, of, input.read_bytes()?)),
            None => input.skip_field(form.unwrap_or(WireType::Varint))?,
        }
        if !is_known {
            unknown.push(number);
        }
    }
    unknown.sort_unstable();
    unknown.into_iter().for_each(|number| found.note(format!("{place} field {number}")));
    inner.into_iter().try_for_each(|(name, of, bytes)| match *name {
        // The value of a map's entry.
        "" => walk(&bytes, of, place, found),
        name => walk(&bytes, of, Place { parent: Some(&place), name }, found),
    })
}
