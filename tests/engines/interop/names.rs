// SPDX-License-Identifier: Apache-2.0
//! Names of JSON members, compared in the same way as by Go's decoder.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use oci_document as gojson;
use serde_json::Value;
use test_support::golang;

/// The program's output for these lines.
fn go(program: &Path, flags: &[&str], lines: &str) -> String {
    let mut command = Command::new(program);
    command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let lines = lines.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_character_has_gos_case_folding() {
    let Some(program) = golang::program("names") else { return };
    let taken: BTreeMap<char, Vec<u32>> =
        serde_json::from_str(&go(&program, &["-letters"], "")).unwrap();
    let mut ours: BTreeMap<char, Vec<u32>> = BTreeMap::new();
    for c in '\0'..=char::MAX {
        let folded = gojson::fold(c.encode_utf8(&mut [0; 4]));
        if let [letter @ b'a'..=b'z'] = folded.as_bytes() {
            ours.entry(char::from(*letter)).or_default().push(u32::from(c));
        }
    }
    assert_eq!(ours, taken);
}

#[test]
fn member_names_match_fields_as_in_go() {
    let Some(program) = golang::program("names") else { return };
    let fields = ["config", "digest", "disk", "Classes", "hugepageLimits", "kernelTCP", "k-s_1"];
    let mut names = vec![String::new(), "-".to_owned(), "k_s-1".to_owned()];
    for field in fields {
        names.extend([field.to_owned(), field.to_uppercase(), format!("{field} ")]);
        for (letter, others) in [
            ("i", &["\u{131}", "\u{130}", "I"][..]),
            ("s", &["\u{17f}", "\u{df}", "S"]),
            ("ss", &["\u{df}", "\u{1e9e}", "\u{17f}S"]),
            ("k", &["\u{212a}", "\u{ff4b}", "K"]),
            ("fi", &["\u{fb01}", "FI"]),
            ("st", &["\u{fb06}", "\u{17f}t"]),
            ("-", &["_", "\r", "\u{2d}"]),
        ] {
            names.extend(others.iter().map(|other| field.replace(letter, other)));
        }
    }
    let lines = names.iter().map(|name| format!("{}\n", serde_json::json!({name: "set"})));
    let received = go(&program, &[], &lines.collect::<String>());
    assert_eq!(received.lines().count(), names.len());
    for (name, line) in names.iter().zip(received.lines()) {
        let record: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
        for field in fields {
            let is_set = record[field] == "set";
            assert_eq!(gojson::is_field(name, field), is_set, "{name:?} for {field}");
        }
    }
}
