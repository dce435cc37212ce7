// SPDX-License-Identifier: Apache-2.0
//! containerd's records of containers, and digests of their images: `containers.v1.Containers/Get`
//! and `images.v1.Images/Get` on its socket. Only the few fields in use are read from the messages,
//! by containerd's field numbers (api/services/containers/v1/containers.proto). Tasks are never queried.

use std::collections::BTreeMap;

use crate::engine::{StoreQuery, StoreRecord};
use crate::error::Result;
use crate::formats::protobuf::{self, fields, map_entry, member, text};
use crate::host::Host;

use super::unary;

const PATH: &str = "/containerd.services.containers.v1.Containers/Get";
/// The type of the options of `io.containerd.runc.v2`.
const RUNC_OPTIONS: &str = "containerd.runc.v1.Options";
const IMAGES_PATH: &str = "/containerd.services.images.v1.Images/Get";

/// Fetches records. `GetContainerRequest` has the ID as field 1; a record of an unknown ID is left
/// out. The second value is the reason why containerd refused other IDs.
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
    if query.with_images {
        add_digests(host, query, &mut records).await;
    }
    Ok((records, refusal))
}

/// Adds the digests of the images' names. If a name was moved to another image after the
/// container's creation, its digest is left out.
async fn add_digests(host: &Host, query: &StoreQuery, records: &mut BTreeMap<String, StoreRecord>) {
    let records = records.values_mut().filter(|record| !record.image.is_empty());
    let records: Vec<&mut StoreRecord> = records.collect();
    let messages: Vec<Vec<u8>> =
        records.iter().map(|record| protobuf::field(1, record.image.as_bytes())).collect();
    if messages.is_empty() {
        return;
    }
    let metadata = [("containerd-namespace", query.namespace.as_str())];
    let socket = host.path(&query.socket);
    let Ok(answers) = unary::call(&socket, IMAGES_PATH, &metadata, &messages).await else { return };
    for (record, answer) in records.into_iter().zip(answers) {
        let image = answer.ok().and_then(|bytes| image(&bytes).ok());
        if let Some((digest, _)) = image.filter(|(_, named)| *named <= record.created_at) {
            record.image_digest = digest;
        }
    }
}

/// Parses a `GetImageResponse`: the digest of the image, and when the image got its name. `Image`:
/// target 3 (a descriptor: digest 2), updated_at 8.
fn image(response: &[u8]) -> Result<(String, (u64, u64))> {
    let image = member(response, 1)?;
    Ok((text(member(member(image, 3)?, 2)?), time(member(image, 8)?)?))
}

/// Parses a `Timestamp`: seconds 1, nanoseconds 2.
fn time(bytes: &[u8]) -> Result<(u64, u64)> {
    let (mut seconds, mut nanoseconds) = (0, 0);
    for field in fields(bytes) {
        let field = field?;
        let value = protobuf::number(&field).unwrap_or_default();
        match field.number {
            1 => seconds = value,
            2 => nanoseconds = value,
            _ => {}
        }
    }
    Ok((seconds, nanoseconds))
}

/// Reads a `GetContainerResponse`.
///
/// # Errors
/// Fails if the bytes are not a `GetContainerResponse`.
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

/// Parses a `Container`: labels 2, image 3, runtime 4 (name 1, options 2), created_at 8, extensions
/// 10. The options of the runc shim have the program as field 6.
fn read_container(bytes: &[u8], record: &mut StoreRecord) -> Result<()> {
    for field in fields(bytes) {
        let field = field?;
        match field.number {
            2 => {
                let (key, value) = map_entry(field.value)?;
                record.labels.insert(key, text(value));
            }
            3 => record.image = text(field.value),
            4 => {
                record.runtime = text(member(field.value, 1)?);
                let options = member(field.value, 2)?;
                if text(member(options, 1)?).ends_with(RUNC_OPTIONS) {
                    record.binary = text(member(member(options, 2)?, 6)?);
                }
            }
            8 => record.created_at = time(field.value)?,
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
        let options = [
            field(1, b"type.googleapis.com/containerd.runc.v1.Options"),
            field(2, &[field(6, b"/opt/nri-runc"), field(7, b"/root")].concat()),
        ]
        .concat();
        let container = [
            field(1, b"id"),
            field(2, &entry(b"app", b"web")),
            field(3, b"busybox"),
            field(4, &[field(1, b"io.containerd.runc.v2"), field(2, &options)].concat()),
            field(8, &[0x08, 0x07, 0x10, 0x02]),
            field(10, &entry(b"ext", &[field(1, b"url"), field(2, b"{}")].concat())),
            vec![0x58, 0x96, 0x01],
        ];
        let told = record(&field(1, &container.concat())).unwrap();
        assert_eq!((told.labels["app"].as_str(), told.image.as_str()), ("web", "busybox"));
        assert_eq!(told.runtime, "io.containerd.runc.v2");
        assert_eq!(told.extensions["ext"], b"{}");
        assert_eq!((told.binary.as_str(), told.created_at), ("/opt/nri-runc", (7, 2)));
    }

    #[test]
    fn an_image_record_yields_its_digest_and_time_of_update() {
        let target = [field(1, b"index"), field(2, b"sha256:ab"), vec![0x18, 0x05]].concat();
        let times = [field(7, &[0x08, 0x01]), field(8, &[0x08, 0x96, 0x01])].concat();
        let whole = field(1, &[field(1, b"busybox:1"), field(3, &target), times].concat());
        assert_eq!(image(&whole).unwrap(), ("sha256:ab".to_owned(), (150, 0)));
        assert!(image(&whole[..whole.len() - 2]).is_err());
    }

    #[test]
    fn options_of_another_shim_name_no_program() {
        let options = [field(1, b"example.Options"), field(2, &field(6, b"/x"))].concat();
        let runtime = [field(1, b"io.containerd.other.v1"), field(2, &options)].concat();
        let told = record(&field(1, &field(4, &runtime))).unwrap();
        assert_eq!((told.runtime.as_str(), told.binary.as_str()), ("io.containerd.other.v1", ""));
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
