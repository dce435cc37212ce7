// SPDX-License-Identifier: Apache-2.0
//! A JSON document that can be edited without being rewritten.
//!
//! Objects are opened one level at a time, to read or edit their members. The rest stays a
//! byte range of the original text and is written back unchanged: blanks, unusual numbers, escapes,
//! lone surrogates, order of keys, repeated unknown keys. Nothing is guessed: if a key to edit is
//! repeated, or in another case, Go's decoder would merge what this parser reads as two members, so
//! the edit is refused. Reference: Go `encoding/json` (`Unmarshal`: key case, duplicates, null),
//! RFC 8259.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use crate::array::Array;
use crate::gojson::{fold, is_field};
use crate::scan::{self, MemberSpan};

/// Length of the largest accepted document, in bytes: engines write smaller ones, and a document is in memory
/// as a whole.
pub const MAX_BYTES: usize = 16 << 20;

/// The reason why a document cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// More than [`MAX_BYTES`].
    #[error("config.json has {size} bytes, more than the {MAX_BYTES} that are accepted")]
    TooLarge {
        /// The document's length in bytes.
        size: usize,
    },
    /// The text does not begin with a JSON value.
    #[error("config.json is not well-formed JSON: {detail}")]
    Malformed {
        /// The parser's message.
        detail: String,
    },
    /// A value to read or edit has an unexpected type.
    #[error("{place} in config.json is not an {wanted}", place = place(path))]
    WrongType {
        /// The value's dotted path; empty for the document itself.
        path: String,
        /// The expected type.
        wanted: &'static str,
    },
    /// A key to read or edit is repeated or in another case.
    #[error("config.json is ambiguous: {path} is spelt {spellings}")]
    Ambiguous {
        /// The member to read or edit, as a dotted path.
        path: String,
        /// Each spelling of the member's key.
        spellings: String,
    },
    /// A repeated member that Go merges into the earlier one, or that runtimes read differently.
    #[error("config.json is ambiguous: {} occurs more than once", shown(path))]
    Repeated {
        /// The member, as a dotted path.
        path: String,
    },
}

/// Formats a name that the document's author chose for a one-line message: at most a hundred
/// characters, escaped.
fn shown(name: &str) -> String {
    const MOST: usize = 100;
    let mut shown: String = name.chars().take(MOST).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

fn place(path: &str) -> &str {
    if path.is_empty() { "the whole document" } else { path }
}

/// A parsed document; edits go through [`SpecDocument::root`].
#[derive(Debug)]
pub struct SpecDocument<'t> {
    text: &'t [u8],
    root: Object<'t>,
}

impl<'t> SpecDocument<'t> {
    /// Checks that `text` begins with a JSON object, and opens only its top level. Go's decoder
    /// ignores text after it, which is preserved.
    pub fn parse(text: &'t [u8]) -> Result<Self, DocumentError> {
        if text.len() > MAX_BYTES {
            return Err(DocumentError::TooLarge { size: text.len() });
        }
        let span = scan::first_value(text)
            .map_err(|error| DocumentError::Malformed { detail: error.to_string() })?;
        let root = Object::open(text, span, String::new(), false)?;
        Ok(Self { text, root })
    }

    /// Returns the top level.
    pub fn root(&mut self) -> &mut Object<'t> {
        &mut self.root
    }

    /// Returns the document with all edits made.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len() + 1024);
        let span = self.root.source.clone().unwrap_or_default();
        out.extend_from_slice(self.text.get(..span.start).unwrap_or_default());
        self.root.write(&mut out);
        out.extend_from_slice(self.text.get(span.end..).unwrap_or_default());
        out
    }
}

/// One opened object.
#[derive(Debug)]
pub struct Object<'t> {
    text: &'t [u8],
    path: String,
    /// `None` if the document has no such object yet.
    source: Option<Range<usize>>,
    /// Whether keys are data (annotations), and so case-sensitive, instead of names of a schema.
    exact: bool,
    members: Vec<Member<'t>>,
    /// Indices of members by name, for objects with more than [`FEW`] members.
    index: Option<HashMap<String, Vec<usize>>>,
}

/// The source of a value that an earlier edit put in place: none of the document's text.
pub(crate) const EDITED: Range<usize> = 0..0;

/// Number of members above which an object is indexed.
const FEW: usize = 16;

#[derive(Debug)]
struct Member<'t> {
    name: Cow<'t, str>,
    origin: Option<MemberSpan>,
    /// Whether the member's original value was removed or replaced and must not be restored.
    is_replaced: bool,
    now: Now<'t>,
}

#[derive(Debug)]
enum Now<'t> {
    Kept,
    Text(Vec<u8>),
    Object(Object<'t>),
    Array(Array<'t>),
    Removed,
}

impl<'t> Object<'t> {
    pub(crate) fn open(
        text: &'t [u8],
        source: Range<usize>,
        path: String,
        exact: bool,
    ) -> Result<Self, DocumentError> {
        let Some(places) = scan::members(text, source.start) else {
            return Err(DocumentError::WrongType { path, wanted: "object" });
        };
        let mut members = Vec::with_capacity(places.len() + 2);
        for origin in places {
            let name = name(text.get(origin.key.clone()).unwrap_or_default());
            members.push(Member { name, origin: Some(origin), is_replaced: false, now: Now::Kept });
        }
        let mut object = Self { text, path, source: Some(source), exact, members, index: None };
        object.index_many();
        Ok(object)
    }

    /// Indexes the members if there are many.
    fn index_many(&mut self) {
        if self.members.len() > FEW {
            let mut index: HashMap<String, Vec<usize>> = HashMap::with_capacity(self.members.len());
            for (place, member) in self.members.iter().enumerate() {
                index.entry(self.folded(&member.name)).or_default().push(place);
            }
            self.index = Some(index);
        }
    }

    /// Returns a name in the form for comparison: unchanged, or in one case.
    fn folded(&self, name: &str) -> String {
        if self.exact { name.to_owned() } else { fold(name) }
    }

    /// Returns the value of member `key`, opened or not; `None` if it is absent or `null`.
    pub fn value(&self, key: &str) -> Result<Option<Value>, DocumentError> {
        let Some(index) = self.find(key)? else { return Ok(None) };
        let Some(written) = self.members[index].written() else { return Ok(None) };
        let mut text = Vec::new();
        written.write(self.text, &mut text);
        Ok((text != b"null").then(|| value_of(&text)))
    }

    /// Replaces member `key` in place, or adds it at the end.
    pub fn set(&mut self, key: &str, value: &Value) -> Result<(), DocumentError> {
        let text = value.to_string().into_bytes();
        self.put(key, Now::Text(text))?;
        Ok(())
    }

    /// Removes member `key`, if it exists.
    pub fn remove(&mut self, key: &str) -> Result<(), DocumentError> {
        if let Some(index) = self.find(key)? {
            self.members[index].now = Now::Removed;
        }
        Ok(())
    }

    /// Opens the object `key` whose keys are names of the specification. A missing one is created
    /// with its first member.
    pub fn object(&mut self, key: &str) -> Result<&mut Object<'t>, DocumentError> {
        self.open_object(key, false)
    }

    /// Opens the object `key` whose keys are data, such as annotations.
    pub fn map(&mut self, key: &str) -> Result<&mut Object<'t>, DocumentError> {
        self.open_object(key, true)
    }

    fn open_object(&mut self, key: &str, exact: bool) -> Result<&mut Object<'t>, DocumentError> {
        let index = match self.find(key)? {
            Some(index) if matches!(self.members[index].now, Now::Object(_)) => index,
            _ => {
                let path = self.path_of(key);
                let object = match self.span(key)? {
                    Some(source) => Object::open(self.text, source, path, exact)?,
                    None => self.reopen(key, path, exact)?,
                };
                self.put(key, Now::Object(object))?
            }
        };
        match &mut self.members[index].now {
            Now::Object(object) => Ok(object),
            Now::Kept | Now::Text(_) | Now::Array(_) | Now::Removed => {
                Err(DocumentError::WrongType { path: key.to_owned(), wanted: "object" })
            }
        }
    }

    /// Opens the value that an earlier edit put at `key`, or an object that does not exist yet.
    fn reopen(&self, key: &str, path: String, exact: bool) -> Result<Object<'t>, DocumentError> {
        let (members, source) = match self.value(key)? {
            None => (Vec::new(), None),
            Some(Value::Object(members)) => {
                let member = |(name, value): (String, Value)| {
                    let now = Now::Text(value.to_string().into_bytes());
                    Member { name: Cow::Owned(name), origin: None, is_replaced: false, now }
                };
                (members.into_iter().map(member).collect(), Some(EDITED))
            }
            Some(_) => return Err(DocumentError::WrongType { path, wanted: "object" }),
        };
        let mut object = Object { text: self.text, path, source, exact, members, index: None };
        object.index_many();
        Ok(object)
    }

    /// Opens the array `key`. A missing one is created with its first element.
    pub fn array(&mut self, key: &str) -> Result<&mut Array<'t>, DocumentError> {
        let index = match self.find(key)? {
            Some(index) if matches!(self.members[index].now, Now::Array(_)) => index,
            _ => {
                let path = self.path_of(key);
                let array = match self.span(key)? {
                    Some(source) => Array::open(self.text, source, path)?,
                    None => Array::reopen(self.text, self.value(key)?, path)?,
                };
                self.put(key, Now::Array(array))?
            }
        };
        match &mut self.members[index].now {
            Now::Array(array) => Ok(array),
            Now::Kept | Now::Text(_) | Now::Object(_) | Now::Removed => {
                Err(DocumentError::WrongType { path: key.to_owned(), wanted: "array" })
            }
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Returns the range of the original value of `key`, unless it is absent, edited or `null`.
    fn span(&self, key: &str) -> Result<Option<Range<usize>>, DocumentError> {
        let Some(index) = self.find(key)? else { return Ok(None) };
        let member = &self.members[index];
        let Now::Kept = member.now else { return Ok(None) };
        let span = member.origin.as_ref().map(|origin| origin.value.clone());
        Ok(span.filter(|span| self.text.get(span.clone()) != Some(b"null")))
    }

    fn put(&mut self, key: &str, now: Now<'t>) -> Result<usize, DocumentError> {
        if let Some(index) = self.find(key)? {
            let member = &mut self.members[index];
            member.is_replaced |= !matches!(member.now, Now::Kept);
            member.now = now;
            return Ok(index);
        }
        let (name, place) = (self.folded(key), self.members.len());
        self.members.push(Member {
            name: Cow::Owned(key.to_owned()),
            origin: None,
            is_replaced: false,
            now,
        });
        match &mut self.index {
            Some(index) => index.entry(name).or_default().push(place),
            None => self.index_many(),
        }
        Ok(place)
    }

    /// Returns the indices of the members that match `key`.
    fn places(&self, key: &str) -> Vec<usize> {
        match &self.index {
            Some(index) => index.get(&self.folded(key)).cloned().unwrap_or_default(),
            None => {
                let means_key = |member: &Member<'t>| {
                    member.name == key || (!self.exact && is_field(&member.name, key))
                };
                let members = self.members.iter().enumerate();
                members.filter(|(_, m)| means_key(m)).map(|(place, _)| place).collect()
            }
        }
    }

    /// Finds the member `key`; fails if it is repeated or in another case.
    fn find(&self, key: &str) -> Result<Option<usize>, DocumentError> {
        let found = self.places(key);
        match found.as_slice() {
            [] => return Ok(None),
            [only] if self.members[*only].name == key => return Ok(Some(*only)),
            _ => {}
        }
        let spellings: Vec<String> =
            found.iter().map(|at| format!("\"{}\"", shown(&self.members[*at].name))).collect();
        let path = shown(&self.path_of(key));
        Err(DocumentError::Ambiguous { path, spellings: spellings.join(", ") })
    }

    /// Whether the object was absent and still has no members.
    fn is_absent(&self) -> bool {
        self.source.is_none() && self.members.iter().all(|member| member.written().is_none())
    }

    fn write(&self, out: &mut Vec<u8>) {
        let style = Style::of(self);
        out.extend_from_slice(style.head);
        let mut is_first = true;
        for (index, member) in self.members.iter().enumerate() {
            let Some(written) = member.written() else { continue };
            if !is_first {
                match self.before(index) {
                    Some(between) => out.extend_from_slice(between),
                    None => {
                        out.push(b',');
                        out.extend_from_slice(style.indent);
                    }
                }
            }
            is_first = false;
            match &member.origin {
                Some(origin) => {
                    let label = origin.key.start..origin.value.start;
                    out.extend_from_slice(self.text.get(label).unwrap_or_default());
                }
                None => {
                    out.extend_from_slice(Value::from(member.name.as_ref()).to_string().as_bytes());
                    out.extend_from_slice(style.colon);
                }
            }
            written.write(self.text, out);
        }
        out.extend_from_slice(style.tail);
    }

    /// Returns the text that separated a member from its neighbour in the original. It is used even
    /// if that neighbour is gone, so that removing a member only removes text.
    fn before(&self, index: usize) -> Option<&'t [u8]> {
        let from = self.members.get(index.checked_sub(1)?)?.origin.as_ref()?.value.end;
        let to = self.members.get(index)?.origin.as_ref()?.key.start;
        self.text.get(from..to)
    }
}

/// The layout of an object, so that added members match the others.
struct Style<'t> {
    head: &'t [u8],
    indent: &'t [u8],
    colon: &'t [u8],
    tail: &'t [u8],
}

impl<'t> Style<'t> {
    fn of(object: &Object<'t>) -> Self {
        let plain = Self { head: b"{", indent: b"", colon: b":", tail: b"}" };
        let Some(source) = &object.source else { return plain };
        let text = object.text;
        let mut origins = object.members.iter().filter_map(|member| member.origin.as_ref());
        let Some(first) = origins.next() else {
            let tail = text.get(source.start + 1..source.end).unwrap_or(plain.tail);
            return Self { tail, ..plain };
        };
        let last = origins.next_back().unwrap_or(first);
        Self {
            head: text.get(source.start..first.key.start).unwrap_or(plain.head),
            indent: text.get(source.start + 1..first.key.start).unwrap_or_default(),
            colon: text.get(first.key.end..first.value.start).unwrap_or(plain.colon),
            tail: text.get(last.value.end..source.end).unwrap_or(plain.tail),
        }
    }
}

enum MemberSource<'m, 't> {
    Origin(&'m Range<usize>),
    Text(&'m [u8]),
    Object(&'m Object<'t>),
    Array(&'m Array<'t>),
}

impl MemberSource<'_, '_> {
    fn write(&self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            MemberSource::Origin(span) => {
                out.extend_from_slice(text.get((*span).clone()).unwrap_or_default());
            }
            MemberSource::Text(text) => out.extend_from_slice(text),
            MemberSource::Object(object) => object.write(out),
            MemberSource::Array(array) => array.write(out),
        }
    }
}

impl<'t> Member<'t> {
    /// Returns the source of this member in the result; `None` if it is removed or still absent.
    fn written(&self) -> Option<MemberSource<'_, 't>> {
        let origin = || {
            let origin = self.origin.as_ref().filter(|_| !self.is_replaced);
            origin.map(|origin| MemberSource::Origin(&origin.value))
        };
        match &self.now {
            Now::Kept => origin(),
            Now::Text(text) => Some(MemberSource::Text(text)),
            // Opened without an edit, an absent object must not be written.
            Now::Object(object) if object.is_absent() => origin(),
            Now::Object(object) => Some(MemberSource::Object(object)),
            Now::Array(array) if array.is_absent() => origin(),
            Now::Array(array) => Some(MemberSource::Array(array)),
            Now::Removed => None,
        }
    }
}

/// Decodes a value of the document. A string with a lone surrogate is decoded as in Go; another
/// value that serde_json cannot represent (too large or nested too deep) becomes a string of its source.
pub(crate) fn value_of(raw: &[u8]) -> Value {
    serde_json::from_slice(raw)
        .unwrap_or_else(|_| Value::String(scan::decode(raw).unwrap_or_else(|| scan::lossy(raw))))
}

fn name(literal: &[u8]) -> Cow<'_, str> {
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    match std::str::from_utf8(inner) {
        Ok(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        _ => Cow::Owned(scan::decode(literal).unwrap_or_default()),
    }
}
