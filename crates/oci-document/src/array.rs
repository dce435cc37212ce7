// SPDX-License-Identifier: Apache-2.0
//! One opened array of a [`SpecDocument`].
//!
//! The bytes of unchanged elements, even moved ones, and the blanks between neighbours are
//! preserved. An element is parsed only when it is read.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use crate::document::{DocumentError, EDITED, Object, value_of};
use crate::scan;

/// One opened array.
#[derive(Debug)]
pub struct Array<'t> {
    text: &'t [u8],
    /// The ranges of the array and of its elements; `None` if the document has no such array yet.
    source: Option<(Range<usize>, Vec<Range<usize>>)>,
    items: Vec<Item<'t>>,
}

/// One element.
#[derive(Debug, Clone)]
pub struct Item<'t> {
    /// Index of the original element that it is or replaces.
    origin: Option<usize>,
    text: Cow<'t, [u8]>,
}

impl Item<'_> {
    /// Decodes the element.
    pub fn value(&self) -> Value {
        value_of(&self.text)
    }

    /// Opens the element as an object, to read its members; `path` names it in error messages.
    pub fn open(&self, path: &str) -> Result<Object<'_>, DocumentError> {
        Object::open(&self.text, 0..self.text.len(), path.to_owned(), false)
    }

    /// Decodes the element if it is a string.
    pub fn as_string(&self) -> Option<String> {
        scan::decode(&self.text)
    }

    /// Replaces this element with `value`.
    pub fn replace(&mut self, value: &Value) {
        self.text = Cow::Owned(value.to_string().into_bytes());
    }

    /// Creates a new element.
    pub fn new(value: &Value) -> Self {
        Self { origin: None, text: Cow::Owned(value.to_string().into_bytes()) }
    }
}

impl<'t> Array<'t> {
    pub(crate) fn open(
        text: &'t [u8],
        source: Range<usize>,
        path: String,
    ) -> Result<Self, DocumentError> {
        let Some(places) = scan::elements(text, source.start) else {
            return Err(DocumentError::WrongType { path, wanted: "array" });
        };
        let items = places
            .iter()
            .enumerate()
            .map(|(index, place)| Item {
                origin: Some(index),
                text: Cow::Borrowed(text.get(place.clone()).unwrap_or_default()),
            })
            .collect();
        Ok(Self { text, source: Some((source, places)), items })
    }

    /// Opens the value that an earlier edit put in place, or an array that does not exist yet.
    pub(crate) fn reopen(
        text: &'t [u8],
        value: Option<Value>,
        path: String,
    ) -> Result<Self, DocumentError> {
        let (source, items) = match value {
            None => (None, Vec::new()),
            Some(Value::Array(items)) => (Some((EDITED, Vec::new())), items),
            Some(_) => return Err(DocumentError::WrongType { path, wanted: "array" }),
        };
        Ok(Self { text, source, items: items.iter().map(Item::new).collect() })
    }

    /// Returns the elements, which can be read, moved, removed and added to.
    pub fn items(&mut self) -> &mut Vec<Item<'t>> {
        &mut self.items
    }

    /// Decodes the array; `None` if the document has no such array and no element was added.
    pub fn value(&self) -> Option<Value> {
        (!self.is_absent()).then(|| self.items.iter().map(Item::value).collect())
    }

    /// Whether the array was absent and still has no elements.
    pub(crate) fn is_absent(&self) -> bool {
        self.source.is_none() && self.items.is_empty()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (head, indent, tail) = self.style();
        out.extend_from_slice(head);
        for (index, item) in self.items.iter().enumerate() {
            if index > 0 {
                match self.before(item) {
                    Some(between) => out.extend_from_slice(between),
                    None => {
                        out.push(b',');
                        out.extend_from_slice(indent);
                    }
                }
            }
            out.extend_from_slice(&item.text);
        }
        out.extend_from_slice(tail);
    }

    /// Returns the text that separated an element from its neighbour in the original. It is used
    /// even if that neighbour is gone, so that removing an element only removes text.
    fn before(&self, item: &Item<'t>) -> Option<&'t [u8]> {
        let (_, places) = self.source.as_ref()?;
        let index = item.origin?;
        self.text.get(places.get(index.checked_sub(1)?)?.end..places.get(index)?.start)
    }

    /// Returns head, indentation and tail, so that added elements look like the others.
    fn style(&self) -> (&'t [u8], &'t [u8], &'t [u8]) {
        let Some((source, places)) = &self.source else { return (b"[", b"", b"]") };
        let (Some(first), Some(last)) = (places.first(), places.last()) else {
            return (b"[", b"", self.text.get(source.start + 1..source.end).unwrap_or(b"]"));
        };
        (
            self.text.get(source.start..first.start).unwrap_or(b"["),
            self.text.get(source.start + 1..first.start).unwrap_or_default(),
            self.text.get(last.end..source.end).unwrap_or(b"]"),
        )
    }
}
