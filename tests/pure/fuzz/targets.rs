// SPDX-License-Identifier: Apache-2.0
//! Functions that receive input from outside, and the properties that must hold for any input. Each
//! target is a plain function, so that any fuzzer can run it (`fuzz/` does with libFuzzer).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use nri_adaptation::{Creation, Rights};
use nri_api::identity::PluginIdentity;
use nri_runc::plugin::api;
use nri_runc::testing::describe::Spec;
use nri_runc::testing::link::{DaemonResponse, Notice, WrapperRequest};
use nri_runc::testing::plugin::{Settings, handshake, json};
use nri_runc::testing::spec::patch::{HostFacts, patch_on};
use nri_runc::testing::{argv, config, dry, state};
use nri_transport::Upcalls;
use oci_document::SpecDocument;
use protobuf::reflect::MessageDescriptor;
use protobuf::{Message, MessageDyn, MessageFull};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

/// A function that takes any bytes.
pub(crate) type Target = fn(&[u8]);

/// All of them, by name.
pub(crate) const TARGETS: [(&str, Target); 10] = [
    ("mux", mux),
    ("ttrpc", ttrpc),
    ("messages", messages),
    ("config_json", config_json),
    ("answers", answers),
    ("replay_lines", replay_lines),
    ("link", link),
    ("command_lines", command_lines),
    ("files", files),
    ("records", records),
];

/// A runtime that can update nothing.
struct Nobody;

#[async_trait::async_trait]
impl Upcalls for Nobody {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        Err("nobody".to_owned())
    }
}

/// Serves a connection on which a plugin sends `bytes` and then nothing.
fn connection(bytes: &[u8]) {
    let settings = Settings {
        registration_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(60),
        runtime_name: "fuzz".to_owned(),
        runtime_version: "v1".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let saying = async {
            // The reading side may have disconnected meanwhile, as it is entitled to.
            let _said = theirs.write_all(bytes).await;
            drop(theirs);
        };
        let shaken = handshake(ours, None, &settings, Arc::new(Nobody));
        let (shaken, ()) = tokio::join!(shaken, saying);
        assert!(shaken.is_err(), "a plugin that has gone is no plugin");
    });
}

/// Bytes of the trunk: frames, truncated frames, frames with a wrong length.
pub(crate) fn mux(bytes: &[u8]) {
    connection(bytes);
}

/// ttRPC messages in whole frames of the trunk, on the connection of plugins' requests; the first
/// byte of a piece is its length.
pub(crate) fn ttrpc(bytes: &[u8]) {
    let mut trunk = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (payload, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        trunk.extend(2_u32.to_be_bytes());
        trunk.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        trunk.extend(payload);
    }
    connection(&trunk);
}

fn every_message() -> Vec<MessageDescriptor> {
    fn add(found: &mut Vec<MessageDescriptor>, message: MessageDescriptor) {
        if !message.is_map_entry() {
            message.nested_messages().for_each(|nested| add(found, nested));
            found.push(message);
        }
    }
    let mut found = Vec::new();
    let file = api::Container::descriptor().file_descriptor().clone();
    file.messages().for_each(|message| add(&mut found, message));
    found
}

/// Each message of the protocol: a readable message can be written, and is read equally again, also
/// by way of JSON.
pub(crate) fn messages(bytes: &[u8]) {
    for descriptor in every_message() {
        let Ok(message) = descriptor.parse_from_bytes(bytes) else { continue };
        if has_negative_flag(&*message) {
            continue;
        }
        let written = message.write_to_bytes_dyn().unwrap();
        let again = descriptor.parse_from_bytes(&written).unwrap();
        assert!(descriptor.eq(&*message, &*again) || has_nan(&*message), "{}", descriptor.name());
        let _shown = json::show(&*message);
    }
    let Ok(container) = api::Container::parse_from_bytes(bytes) else { return };
    let shown = json::show(&container);
    if is_plain(&container) && shown != Value::Null {
        let mut read: api::Container = json::read(&shown).unwrap();
        read.special_fields = container.special_fields.clone();
        assert_eq!(json::show(&read), shown);
    }
}

/// Whether a list of flags has a negative number, for which protobuf 3.7 writes ten bytes and
/// counts five. No flag of NRI is negative; the reader of such a message from nri-runc reports an
/// error.
fn has_negative_flag(message: &dyn MessageDyn) -> bool {
    let text = format!("{message:?}");
    text.split("flags: [").skip(1).any(|list| list.split(']').next().unwrap().contains('-'))
}

/// Whether the message contains NaN, which is not equal to itself.
fn has_nan(message: &dyn MessageDyn) -> bool {
    format!("{message:?}").contains("NaN")
}

/// Whether JSON can represent it: unknown fields and unnamed enum values have no name there.
fn is_plain(container: &api::Container) -> bool {
    let states = container.state.enum_value().is_ok();
    states && !format!("{container:?}").contains("unknown_fields: UnknownFields { fields: Some")
}

/// A document, and an adjustment of it behind the last NUL byte. The result is JSON; an empty
/// adjustment changes nothing.
pub(crate) fn config_json(bytes: &[u8]) {
    let at = bytes.iter().rposition(|byte| *byte == 0).unwrap_or(bytes.len());
    let (document, wanted) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    let _described = Spec::parse(document);
    let Ok(parsed) = SpecDocument::parse(document) else { return };
    assert_eq!(parsed.to_bytes(), document, "reading alone changes nothing");
    let Ok(adjust) = api::ContainerAdjustment::parse_from_bytes(wanted) else { return };
    let Ok(patched) = patch_on(document, &adjust, &HostFacts::default()) else { return };
    if let Some(new) = patched.bytes {
        assert_eq!(SpecDocument::parse(&new).unwrap().to_bytes(), new, "it is a document still");
    }
}

/// Responses of plugins to CreateContainer: pieces as for `ttrpc`, each the response of one plugin.
pub(crate) fn answers(bytes: &[u8]) {
    let container = api::Container { id: "c0".to_owned(), ..Default::default() };
    let mut creation = Creation::new(api::PodSandbox::new(), container);
    let mut rest = bytes;
    let mut number = 0;
    while let Some((length, after)) = rest.split_first() {
        let (answer, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        number += 1;
        let Ok(answer) = api::CreateContainerResponse::parse_from_bytes(answer) else { continue };
        let received = creation.answer(&format!("{number:02}-p"), &Rights::default(), answer);
        let Ok(next) = received else { return };
        creation = next;
    }
    let merged = creation.finish();
    for owner in merged.owners.to_flat("c0").values() {
        assert!(!owner.is_empty());
    }
}

/// Lines of a script for `replay`: parsed, or refused in one line.
pub(crate) fn replay_lines(bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Err(why) = dry::check_line(line) {
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
        }
    }
}

/// Messages between wrapper and daemon: a readable message is written as it was.
pub(crate) fn link(bytes: &[u8]) {
    if let Ok(question) = WrapperRequest::decode(bytes) {
        let written = question.encode();
        let again = WrapperRequest::decode(&written[4..]).unwrap();
        assert_eq!(format!("{question:?}"), format!("{again:?}"));
    }
    if let Ok(answer) = DaemonResponse::decode(bytes) {
        let again = DaemonResponse::decode(&answer.encode()[4..]).unwrap();
        assert_eq!(format!("{answer:?}"), format!("{again:?}"));
    }
    if let Ok(notice) = Notice::decode(bytes) {
        let again = Notice::decode(&notice.encode()[4..]).unwrap();
        assert_eq!(format!("{notice:?}"), format!("{again:?}"));
    }
}

/// A command line, its words separated by NUL: facts after the verb are found within it.
pub(crate) fn command_lines(bytes: &[u8]) {
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    let call = argv::read(&words);
    assert!(call.verb_index.is_none_or(|at| (1..words.len()).contains(&at)));
    if let Some(id) = &call.id {
        assert!(words.contains(id), "an id is a word of the command line");
    }
}

/// nri-runc's own files: configuration and records.
pub(crate) fn files(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for problem in config::problems(text) {
            assert!(!problem.is_empty() && !problem.contains('\n'), "{problem}");
        }
    }
}

/// The daemon's records: an unusable record is set aside with one line, a usable one can be written
/// again as it was read, and the next daemon reports nothing.
pub(crate) fn records(bytes: &[u8]) {
    let name = format!("nri-runc-records-{}", std::process::id());
    let memory = std::path::Path::new("/dev/shm");
    let dir = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }.join(name);
    let _of_the_last_time = std::fs::remove_dir_all(&dir);
    let open = || state::Store::open(&dir, "boot").unwrap();
    let (mut store, _) = open();
    // Under the name that it would have, if it is a record; else under any name.
    let (container, pod) = (serde_json::from_slice(bytes), serde_json::from_slice(bytes));
    let _written = container.map(|container| store.put(container));
    let _written = pod.map(|pod| store.put_pod(pod));
    for kind in ["containers", "pods", "kept"] {
        let folder = dir.join(kind);
        let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
        names.retain(|entry| entry.path().extension().is_some());
        let known = names.first().map(std::fs::DirEntry::path);
        nri_runc::testing::files::replace(&known.unwrap_or(folder.join("odd.json")), bytes)
            .unwrap();
    }
    let (mut store, problems) = open();
    assert!(problems.iter().all(|line| !line.is_empty() && !line.contains('\n')), "{problems:?}");
    let known: Vec<state::Container> = store.containers().cloned().collect();
    for container in &known {
        store.note(&container.key, |_| ()).unwrap();
    }
    let (store, problems) = open();
    assert_eq!(problems, Vec::<String>::new());
    assert!(store.containers().eq(&known));
    std::fs::remove_dir_all(&dir).unwrap();
}
