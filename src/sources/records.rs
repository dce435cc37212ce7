// SPDX-License-Identifier: Apache-2.0
//! containerd's records of containers: `containers.v1.Containers/Get` on its socket. Only the
//! few fields that we use are read from the message; their numbers are containerd's
//! (api/services/containers/v1/containers.proto). Tasks are never asked about.

use std::collections::BTreeMap;

use crate::engine::{StoreQuery, StoreRecord};
use crate::error::Result;
use crate::formats::protobuf::{self, fields, map_entry, member, text};
use crate::host::Host;

use super::unary;

const PATH: &str = "/containerd.services.containers.v1.Containers/Get";

/// Fetches records. `GetContainerRequest` has the id as field 1; an id that containerd does not know is simply absent.
/// The second is why containerd refused others.
pub(super) async fn get(
    host: &Host,
    query: &StoreQuery,
) -> Result<(BTreeMap<String, StoreRecord>, Option<String>)> {
    let messages: Vec<Vec<u8>> =
        query.ids.iter().map(|id| protobuf::field(1, id.as_bytes())).collect();
    let metadata = [("containerd-namespace", query.namespace.as_str())];
    let answers = unary::call(&host.path(&query.socket), PATH, &metadata, &messages).await?;
    let (mut records, mut refusal) = (BTreeMap::new(), None);
    for (id, answer) in query.ids.iter().zip(answers) {
        match answer {
            Ok(bytes) => drop(records.insert(id.clone(), record(&bytes)?)),
            Err(status) if status.is_not_found() => {}
            Err(status) => refusal = Some(status.to_string()),
        }
    }
    Ok((records, refusal))
}

/// Reads a `GetContainerResponse`.
///
/// # Errors
/// Fails on bytes that are no such message.
pub(crate) fn record(response: &[u8]) -> Result<StoreRecord> {
    let mut record = StoreRecord::default();
    for field in fields(response) {
        let field = field?;
        if field.number == 1 {
            read_container(field.value, &mut record)?;
        }
    }
    Ok(record)
}

/// `Container`: labels 2, image 3, runtime 4, extensions 10.
fn read_container(bytes: &[u8], record: &mut StoreRecord) -> Result<()> {
    for field in fields(bytes) {
        let field = field?;
        match field.number {
            2 => {
                let (key, value) = map_entry(field.value)?;
                record.labels.insert(key, text(value));
            }
            3 => record.image = text(field.value),
            4 => record.runtime = text(member(field.value, 1)?),
            10 => {
                let (key, any) = map_entry(field.value)?;
                record.extensions.insert(key, member(any, 2)?.to_vec());
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::protobuf::field;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(record(&bytes));
        }
    }
}
