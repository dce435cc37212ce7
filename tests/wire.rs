// SPDX-License-Identifier: Apache-2.0
//! The generated messages are those of `proto/nri/v1alpha1/api.proto`; `UPDATE_GOLDEN=1` writes
//! them anew. The generator is pure Rust, so this runs everywhere.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use nri_runc::plugin::api;
use protobuf::Message;
use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

fn generate(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    Codegen::new()
        .out_dir(into)
        .input(root.join("nri/v1alpha1/api.proto"))
        .include(root)
        .rust_protobuf()
        .customize(Customize { async_all: true, gen_mod: false, ..Customize::default() })
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()
        .unwrap();
}

#[test]
fn the_checked_in_messages_are_generated_from_the_proto() {
    let temp = tempfile::tempdir().unwrap();
    generate(temp.path());
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plugin/api");
    for name in ["api.rs", "api_ttrpc.rs"] {
        let fresh = std::fs::read(temp.path().join(name)).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::copy(temp.path().join(name), checked_in.join(name)).unwrap();
        }
        let known = std::fs::read(checked_in.join(name)).unwrap();
        assert!(fresh == known, "{name} differs: UPDATE_GOLDEN=1 cargo test --test wire");
    }
}

/// A request as a Go plugin of NRI v0.12 receives it, written out byte by byte.
#[test]
fn known_bytes_mean_known_fields() {
    let bytes = b"\x0a\x03exp\x12\x0210\x1a\x07v0.12.5";
    let request = api::RegisterPluginRequest::parse_from_bytes(bytes).unwrap();
    assert_eq!((request.plugin_name.as_str(), request.plugin_idx.as_str()), ("exp", "10"));
    assert_eq!(request.write_to_bytes().unwrap(), bytes);
    let answer = api::ConfigureResponse::parse_from_bytes(b"\x10\x29").unwrap();
    assert_eq!(answer.events, 0x29);
    let answer = b"\x0a\x0c\x22\x0a\x0a\x03FOO\x12\x03bar";
    let answer = api::CreateContainerResponse::parse_from_bytes(answer).unwrap();
    assert_eq!(answer.adjust.env[0].value, "bar");
}

#[test]
fn fields_of_a_newer_protocol_are_kept() {
    // Field 1000, a text.
    let bytes = b"\xc2\x3e\x03new";
    let adjust = api::ContainerAdjustment::parse_from_bytes(bytes).unwrap();
    assert_eq!(adjust.write_to_bytes().unwrap(), bytes);
}

#[test]
fn cut_bytes_are_an_error_and_never_a_panic() {
    let mut container = api::Container::new();
    container.id = "c".repeat(40);
    container.env = vec!["A=1".to_owned(); 10];
    let bytes = container.write_to_bytes().unwrap();
    let cut =
        (1..bytes.len()).filter(|at| api::Container::parse_from_bytes(&bytes[..*at]).is_err());
    assert!(cut.count() > bytes.len() / 2);
}
