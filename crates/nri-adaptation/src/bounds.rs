// SPDX-License-Identifier: Apache-2.0
//! Bounds on the size of one reply.
//!
//! Real plugins stay far below these limits; a larger reply is a mistake or an attack, and merging
//! it would delay all other requests. The walk uses the schema's reflection, so it covers future
//! lists and maps too. Values are not examined.

use protobuf::reflect::{ReflectFieldRef, ReflectValueRef};
use protobuf::{MessageDyn, MessageFull};

/// Maximum entries of one list or map of a reply.
pub const MOST_IN_ONE: usize = 10_000;

/// Maximum entries of all lists and maps of one reply together.
pub const MOST_IN_ALL: usize = 50_000;

/// A part of a response with too many entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooMany {
    /// The list or map, such as `adjust.mounts`; empty if the entries of all lists and maps
    /// together are too many.
    pub field: String,
    /// The number of its entries, or of all entries up to the place where the limit was exceeded.
    pub count: usize,
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, count } = self;
        if field.is_empty() {
            write!(f, "more than {MOST_IN_ALL} entries in all lists together")
        } else {
            write!(f, "{count} entries in {field}, more than the {MOST_IN_ONE} that are accepted")
        }
    }
}

/// Checks the number of entries in every list and map.
pub fn check<M: MessageFull>(message: &M) -> Result<(), TooMany> {
    // An entry has at least one byte, so a short message cannot have too many.
    if usize::try_from(message.compute_size()).is_ok_and(|bytes| bytes <= MOST_IN_ONE) {
        return Ok(());
    }
    walk(message, &mut 0)
}

/// Counts the entries below a message. The path of a field that is too long is built while the
/// error returns, so that a reply within the limits allocates no text.
fn walk(message: &dyn MessageDyn, all: &mut usize) -> Result<(), TooMany> {
    for field in message.descriptor_dyn().fields() {
        let inside = |mut excess: TooMany| {
            if !excess.field.is_empty() {
                excess.field = format!("{}.{}", field.name(), excess.field);
            }
            excess
        };
        let mut count = |count: usize| {
            *all += count;
            match count {
                count if count > MOST_IN_ONE => {
                    Err(TooMany { field: field.name().to_owned(), count })
                }
                _ if *all > MOST_IN_ALL => Err(TooMany { field: String::new(), count: *all }),
                _ => Ok(()),
            }
        };
        match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => {
                if let Some(ReflectValueRef::Message(inner)) = value.value() {
                    walk(&*inner, all).map_err(inside)?;
                }
            }
            ReflectFieldRef::Repeated(values) => {
                count(values.len())?;
                for value in values {
                    let ReflectValueRef::Message(inner) = value else { break };
                    walk(&*inner, all).map_err(inside)?;
                }
            }
            ReflectFieldRef::Map(map) => {
                count(map.len())?;
                for (_, value) in map.into_iter() {
                    let ReflectValueRef::Message(inner) = value else { break };
                    walk(&*inner, all).map_err(inside)?;
                }
            }
        }
    }
    Ok(())
}
