// SPDX-License-Identifier: Apache-2.0
//! containerd's records of containers: `containers.v1.Containers/Get` on its socket. Only the
//! few fields that we use are read from the message; their numbers are containerd's
//! (api/services/containers/v1/containers.proto). Tasks are never asked about.

use std::collections::BTreeMap;

use crate::engine::{Query, Record};
use crate::error::{Error, Result};
use crate::host::Host;

use super::unary;

const PATH: &str = "/containerd.services.containers.v1.Containers/Get";

/// Fetches records; an id that containerd does not know is simply absent.
pub(super) async fn get(host: &Host, query: &Query) -> Result<BTreeMap<String, Record>> {
    let messages: Vec<Vec<u8>> = query.ids.iter().map(|id| request(id)).collect();
    let metadata = [("containerd-namespace", query.namespace.as_str())];
    let answers = unary::call(&host.path(&query.socket), PATH, &metadata, &messages).await?;
    let mut records = BTreeMap::new();
    for (id, answer) in query.ids.iter().zip(answers) {
        if let Some(bytes) = answer {
            records.insert(id.clone(), record(&bytes)?);
        }
    }
    Ok(records)
}

/// `GetContainerRequest`: the id is field 1.
fn request(id: &str) -> Vec<u8> {
    let mut bytes = vec![0x0a];
    let mut length = id.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap_or(0));
    bytes.extend_from_slice(id.as_bytes());
    bytes
}

/// Reads a `GetContainerResponse`.
///
/// # Errors
/// Fails on bytes that are no such message.
pub fn record(response: &[u8]) -> Result<Record> {
    let mut record = Record::default();
    for field in fields(response) {
        if let (1, container) = field? {
            read_container(container, &mut record)?;
        }
    }
    Ok(record)
}

/// `Container`: labels 2, image 3, runtime 4, extensions 10.
fn read_container(bytes: &[u8], record: &mut Record) -> Result<()> {
    for field in fields(bytes) {
        match field? {
            (2, entry) => {
                let (key, value) = pair(entry)?;
                record.labels.insert(key, text(value));
            }
            (3, image) => record.image = text(image),
            (4, runtime) => record.runtime = text(member(runtime, 1)?),
            (10, entry) => {
                let (key, any) = pair(entry)?;
                record.extensions.insert(key, member(any, 2)?.to_vec());
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An entry of a map: key 1, value 2.
pub(super) fn pair(entry: &[u8]) -> Result<(String, &[u8])> {
    Ok((text(member(entry, 1)?), member(entry, 2)?))
}

/// The last field of that number, empty if there is none.
pub(super) fn member(bytes: &[u8], number: u64) -> Result<&[u8]> {
    let mut found: &[u8] = &[];
    for field in fields(bytes) {
        let (is, value) = field?;
        if is == number {
            found = value;
        }
    }
    Ok(found)
}

/// The fields of a protobuf message; those that are numbers have no bytes.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, &[u8])>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| Error::new("its record cannot be read")))
    })
}

fn next_field<'b>(rest: &mut &'b [u8]) -> Option<(u64, &'b [u8])> {
    let tag = varint(rest)?;
    let length = match tag & 7 {
        0 => {
            let _number = varint(rest)?;
            0
        }
        1 => {
            *rest = rest.get(8..)?;
            0
        }
        2 => usize::try_from(varint(rest)?).ok()?,
        5 => {
            *rest = rest.get(4..)?;
            0
        }
        _ => return None,
    };
    let (value, more) = rest.split_at_checked(length)?;
    *rest = more;
    Some((tag >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, more) = rest.split_first()?;
        *rest = more;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
    }

    #[test]
    fn a_record_gives_labels_image_runtime_and_extensions() {
        let entry = |key: &[u8], value: &[u8]| [field(1, key), field(2, value)].concat();
        let container = [
            field(1, b"id"),
            field(2, &entry(b"app", b"web")),
            field(3, b"busybox"),
            field(4, &field(1, b"io.containerd.runc.v2")),
            field(10, &entry(b"ext", &[field(1, b"url"), field(2, b"{}")].concat())),
            vec![0x58, 0x96, 0x01],
        ];
        let told = record(&field(1, &container.concat())).unwrap();
        assert_eq!((told.labels["app"].as_str(), told.image.as_str()), ("web", "busybox"));
        assert_eq!(told.runtime, "io.containerd.runc.v2");
        assert_eq!(told.extensions["ext"], b"{}");
    }

    #[test]
    fn a_record_that_is_cut_short_is_an_error() {
        for bytes in [&b"\x0a\x05ab"[..], b"\x0a", b"\xff", b"\x0b\x00", b"\x0a\x02\x12\x09"] {
            assert!(record(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_long_id_keeps_its_length() {
        let bytes = request(&"x".repeat(200));
        assert_eq!(member(&bytes, 1).unwrap().len(), 200);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(record(&bytes));
        }
    }
}
