// SPDX-License-Identifier: Apache-2.0
//! Patching `config.json` loses nothing.
//!
//! Random documents (blanks anywhere, unknown keys at every level, odd numbers, escapes, lone
//! surrogates, repeated keys, deep nesting) are patched with random adjustments. Each part that no
//! adjustment names has a mark, and every mark must be kept byte for byte. Reference:
//! ARCHITECTURE.md, invariant "Lossless".

use nri_runc::plugin::api;
use nri_runc::testing::spec::patch::{HostFacts, PatchError, PatchedSpec, patch_on};
use oci_document::SpecDocument;
use proptest::collection::{hash_set, vec};
use proptest::prelude::*;
use serde_json::value::RawValue;

/// Patches for an unknown host.
fn patch(
    document: &[u8],
    adjustment: &api::ContainerAdjustment,
) -> Result<PatchedSpec, PatchError> {
    patch_on(document, adjustment, &HostFacts::default())
}

/// A stream of decisions; proptest shrinks it.
struct Choices<'c> {
    bytes: &'c [u8],
    at: usize,
}

impl Choices<'_> {
    fn below(&mut self, limit: u8) -> u8 {
        let byte = self.bytes[self.at % self.bytes.len()];
        // Later rounds over the same bytes decide differently.
        let round = u8::try_from(self.at / self.bytes.len() % 251).unwrap_or_default();
        self.at += 1;
        byte.wrapping_add(round) % limit
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }

    fn blank(&mut self) -> &'static str {
        ["", "", "", " ", "\n\t", "\r\n", "  "][usize::from(self.below(7))]
    }
}

/// A document under construction, and its texts that must survive.
struct Draft<'c> {
    choices: Choices<'c>,
    /// Texts that stay in this order.
    marks: Vec<String>,
    /// Texts that may move with their parents.
    loose: Vec<String>,
    /// Whether entries of the same name may be repeated.
    with_duplicates: bool,
    count: usize,
}

type Part<'c> = (&'static str, fn(&mut Draft<'c>) -> String);

impl<'c> Draft<'c> {
    fn odd_value(&mut self) -> String {
        let depth = 1 + usize::from(self.choices.below(250)) * 40;
        match self.choices.below(10) {
            0 => "1E+400".to_owned(),
            1 => "-0.10".to_owned(),
            2 => "123456789012345678901234567890".to_owned(),
            3 => r#""\ud800 \u00e9\/ é \"}],{""#.to_owned(),
            4 => r#"{"a":1, "a" :2,"A":null}"#.to_owned(),
            5 => format!("{}{}", "[".repeat(depth), "]".repeat(depth)),
            6 => format!("{}1{}", r#"{"d":"#.repeat(depth), "}".repeat(depth)),
            7 => "[ ]".to_owned(),
            8 => "\"\"".to_owned(),
            _ => "null".to_owned(),
        }
    }

    fn mark(&mut self) -> String {
        self.count += 1;
        let (before, after) = (self.choices.blank(), self.choices.blank());
        let value = self.odd_value();
        format!("\"x\\u002d{}\"{before}:{after}{value}", self.count)
    }

    fn member(&mut self, key: &str, value: &str) -> String {
        let is_escaped = self.choices.below(5) == 0;
        let key = if is_escaped { key.replace('o', "\\u006F") } else { key.to_owned() };
        let (before, after) = (self.choices.blank(), self.choices.blank());
        format!("\"{key}\"{before}:{after}{value}")
    }

    fn join(&mut self, open: char, parts: &[String], close: char) -> String {
        let mut text = open.to_string();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                text.push_str(self.choices.blank());
                text.push(',');
            }
            text.push_str(self.choices.blank());
            text.push_str(part);
        }
        text.push_str(self.choices.blank());
        text.push(close);
        text
    }

    /// An object with some of `members`, and marks between them.
    fn object(&mut self, members: &[Part<'c>]) -> String {
        let mut parts = Vec::new();
        for (key, value) in members {
            if self.choices.yes() {
                let mark = self.mark();
                self.marks.push(mark.clone());
                parts.push(mark);
            }
            match self.choices.below(8) {
                0 => {}
                1 => parts.push(self.member(key, "null")),
                _ => {
                    let value = value(self);
                    parts.push(self.member(key, &value));
                }
            }
        }
        self.join('{', &parts, '}')
    }

    fn root(&mut self) -> String {
        let (before, after) = (self.choices.blank(), self.choices.blank());
        let object = self.object(&[
            ("annotations", Self::annotations),
            ("process", Self::process),
            ("mounts", Self::mounts),
            ("hooks", |draft| draft.object(&[("prestart", |draft| draft.join('[', &[], ']'))])),
            ("linux", Self::linux),
        ]);
        format!("{before}{object}{after}")
    }

    fn annotations(&mut self) -> String {
        self.object(&[("k0", |_| "\"old\"".to_owned()), ("k1", |_| r#""\u006fld""#.to_owned())])
    }

    fn process(&mut self) -> String {
        self.object(&[
            ("env", Self::env),
            ("args", |_| r#"["a", "b"]"#.to_owned()),
            ("oomScoreAdj", |_| "1e1".to_owned()),
            ("ioPriority", |_| r#"{"class": "IOPRIO_CLASS_BE","x":1}"#.to_owned()),
            ("scheduler", |_| r#"{"policy":"SCHED_\u004fTHER"}"#.to_owned()),
        ])
    }

    fn env(&mut self) -> String {
        let mut parts = Vec::new();
        for index in 0..self.choices.below(6) {
            self.count += 1;
            let kept = format!(r#""K\u0045EP{}=\ud800 é""#, self.count);
            self.marks.push(kept.clone());
            parts.push(kept);
            let name = if self.with_duplicates { self.choices.below(2) } else { index };
            parts.push(format!(r#""E{name}=\u006fld""#));
        }
        self.join('[', &parts, ']')
    }

    fn mounts(&mut self) -> String {
        let mut parts = Vec::new();
        for index in 0..self.choices.below(5) {
            let mark = self.mark();
            self.loose.push(mark.clone());
            let place = self.member("destination", &format!("\"/keep{index}\""));
            parts.push(self.join('{', &[mark, place], '}'));
            let place = self.member("destination", &format!(r#""/d\u0030/{index}""#));
            parts.push(self.join('{', &[place], '}'));
        }
        self.join('[', &parts, ']')
    }

    fn linux(&mut self) -> String {
        let path: Part<'c> = ("cgroupsPath", |_| r#""\/old""#.to_owned());
        self.object(&[
            path,
            ("netDevices", Self::net_devices),
            ("seccomp", |_| r#"{"defaultAction" :"SCMP_ACT_LOG", "x":[ ]}"#.to_owned()),
            ("memoryPolicy", |_| r#"{ "mode":"MPOL_LOCAL" }"#.to_owned()),
            ("intelRdt", |draft| draft.object(&[("closID", |_| "\"old\"".to_owned())])),
            ("resources", Self::resources),
        ])
    }

    fn net_devices(&mut self) -> String {
        self.object(&[
            ("eth0", |_| r#"{"name": "old"}"#.to_owned()),
            ("eth1", |_| "{ }".to_owned()),
        ])
    }

    fn resources(&mut self) -> String {
        self.object(&[
            ("cpu", |draft| draft.object(&[("cpus", |_| "\"0-7\"".to_owned())])),
            ("memory", |draft| draft.object(&[("reservation", |_| "10".to_owned())])),
        ])
    }
}

fn draft(bytes: &[u8], with_duplicates: bool) -> (String, Draft<'_>) {
    let choices = Choices { bytes, at: 0 };
    let (marks, loose) = (Vec::new(), Vec::new());
    let mut draft = Draft { choices, marks, loose, with_duplicates, count: 0 };
    (draft.root(), draft)
}

/// Adds one small change; `area` selects its kind.
fn change(choices: &mut Choices<'_>, area: u8, adjustment: &mut api::ContainerAdjustment) {
    let minus = if choices.yes() { "-" } else { "" };
    let digit = choices.below(3);
    let linux = adjustment.linux.mut_or_insert_default();
    match area {
        0 => {
            adjustment.annotations.insert(format!("{minus}k{digit}"), "new\"\u{1}".to_owned());
        }
        1 => adjustment.env.push((&*format!("{minus}E{digit}"), "new=\u{7f}é").into()),
        2 => adjustment.args = vec!["new".to_owned()],
        3 => linux.oom_score_adj = Some(7.into()).into(),
        4 => "/new".clone_into(&mut linux.cgroups_path),
        5 => {
            let resources = linux.resources.mut_or_insert_default();
            "1".clone_into(&mut resources.cpu.mut_or_insert_default().cpus);
        }
        6 => {
            let resources = linux.resources.mut_or_insert_default();
            resources.memory.mut_or_insert_default().reservation = Some(77.into()).into();
        }
        7 => {
            let device = api::LinuxNetDevice { name: format!("new{digit}"), ..Default::default() };
            linux.net_devices.insert(format!("{minus}eth{digit}"), device);
        }
        8 => linux.rdt.mut_or_insert_default().clos_id = Some("new".to_owned().into()).into(),
        9 => whole_sections(linux, minus.is_empty()),
        _ => adjustment.mounts.push(api::Mount {
            destination: format!("{minus}/d0/{digit}"),
            type_: "tmpfs".to_owned(),
            ..Default::default()
        }),
    }
}

/// Sections that are replaced as a whole, or removed if NRI supports that.
fn whole_sections(linux: &mut api::LinuxContainerAdjustment, is_set: bool) {
    linux.io_priority.mut_or_insert_default().class =
        protobuf::EnumOrUnknown::from_i32(is_set.into());
    linux.scheduler.mut_or_insert_default().policy =
        protobuf::EnumOrUnknown::from_i32(is_set.into());
    let seccomp = linux.seccomp_policy.mut_or_insert_default();
    "SCMP_ACT_ALLOW".clone_into(&mut seccomp.default_action);
    linux.memory_policy.mut_or_insert_default();
}

fn changes(
    choices: &mut Choices<'_>,
    areas: impl IntoIterator<Item = u8>,
) -> api::ContainerAdjustment {
    let mut adjustment = api::ContainerAdjustment::default();
    areas.into_iter().for_each(|area| change(choices, area, &mut adjustment));
    adjustment
}

fn is_well_formed(text: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(text).is_ok()
}

/// The lengths of the common start and end of two texts, without overlap.
fn shared(before: &[u8], after: &[u8]) -> (usize, usize) {
    let start = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let longest = before.len().min(after.len()) - start;
    let ends = before.iter().rev().zip(after.iter().rev());
    (start, ends.take(longest).take_while(|(a, b)| a == b).count())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn an_unchanged_document_keeps_its_bytes(bytes in vec(any::<u8>(), 1..200)) {
        let (text, _) = draft(&bytes, true);
        prop_assert!(is_well_formed(text.as_bytes()), "the test's own document: {}", text);
        let document = SpecDocument::parse(text.as_bytes()).unwrap();
        prop_assert!(document.to_bytes() == text.as_bytes());
        let patched = patch(text.as_bytes(), &api::ContainerAdjustment::default()).unwrap();
        prop_assert_eq!(patched, PatchedSpec { bytes: None, changes: Vec::new() });
    }

    #[test]
    fn members_that_an_adjustment_does_not_name_keep_their_bytes(
        bytes in vec(any::<u8>(), 1..200),
        areas in vec(0_u8..11, 1..12),
    ) {
        let (text, mut draft) = draft(&bytes, true);
        let adjustment = changes(&mut draft.choices, areas);
        let patched = patch(text.as_bytes(), &adjustment).unwrap();
        prop_assert_eq!(patched.bytes.is_none(), patched.changes.is_empty());
        let after = patched.bytes.unwrap_or_else(|| text.clone().into_bytes());
        prop_assert!(is_well_formed(&after), "{}", String::from_utf8_lossy(&after));
        let after = String::from_utf8(after).unwrap();
        let mut rest = after.as_str();
        for mark in &draft.marks {
            let at = rest.find(mark.as_str());
            prop_assert!(at.is_some(), "lost or moved: {}\n{}\n{}", mark, text, after);
            rest = &rest[at.unwrap() + mark.len()..];
        }
        for mark in &draft.loose {
            prop_assert!(after.contains(mark.as_str()), "lost: {}\n{}", mark, after);
        }
        let count = |text: &str| text.matches("x\\u002d").count();
        prop_assert_eq!(count(&text), count(&after), "nothing is there twice");
    }

    #[test]
    fn one_change_is_one_insertion_one_cut_or_one_replaced_value(
        bytes in vec(any::<u8>(), 1..200),
        area in 0_u8..9,
    ) {
        let (text, mut draft) = draft(&bytes, false);
        let adjustment = changes(&mut draft.choices, [area]);
        let patched = patch(text.as_bytes(), &adjustment).unwrap();
        let Some(after) = patched.bytes else { return Ok(()) };
        prop_assert_eq!(patched.changes.len(), 1);
        let (start, end) = shared(text.as_bytes(), &after);
        let gone = &text[start..text.len() - end];
        let come = &after[start..after.len() - end];
        let what = &patched.changes[0];
        match (&what.before, &what.after) {
            (None, Some(_)) => prop_assert!("null".contains(gone), "{:?} cut {}", what, gone),
            (Some(_), None) => prop_assert!(come.is_empty(), "{:?} in {}", what, text),
            _ => prop_assert!(gone.len() <= 16, "{:?} in {}", what, text),
        }
    }

    #[test]
    fn patching_twice_is_patching_once(
        bytes in vec(any::<u8>(), 1..200),
        areas in hash_set(0_u8..11, 1..11),
    ) {
        let (text, mut draft) = draft(&bytes, true);
        let adjustment = changes(&mut draft.choices, areas);
        let once = patch(text.as_bytes(), &adjustment).unwrap().bytes;
        let once = once.unwrap_or_else(|| text.into_bytes());
        prop_assert_eq!(patch(&once, &adjustment).unwrap().bytes, None);
    }

    #[test]
    fn text_that_is_not_json_is_refused_without_a_panic(
        bytes in vec(any::<u8>(), 1..100),
        cut in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (text, mut draft) = draft(&bytes, true);
        let adjustment = changes(&mut draft.choices, 0..11);
        let mut broken = text.trim().to_owned().into_bytes();
        let at = cut.index(broken.len());
        let is_asked = adjustment != api::ContainerAdjustment::default();
        let part = patch(&broken[..at], &adjustment);
        prop_assert!(part.is_err() || !is_asked, "a part is no document");
        broken[at] = byte;
        if let Ok(PatchedSpec { bytes: Some(after), .. }) = patch(&broken, &adjustment) {
            prop_assert!(begins_well_formed(&broken) && begins_well_formed(&after));
        }
    }
}

/// The check of Go's decoder: one value, whose strings may contain any byte.
fn begins_well_formed(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut values = serde_json::Deserializer::from_str(&text).into_iter::<&RawValue>();
    values.next().is_some_and(|value| value.is_ok())
}

#[test]
fn five_megabytes_stay_byte_for_byte() {
    let vendor = format!("[{}1]", "{\"k\\u0065y\": 1.0e+0,\t\"key\":[-0]} ,\n".repeat(150_000));
    assert!(vendor.len() > 5 << 20);
    let text = format!("{{\"linux\": {{\"personality\":{vendor} , \"vendor\":{vendor}}}}}\n");
    let adjustment = changes(&mut Choices { bytes: &[0], at: 0 }, 0..11);
    let after = patch(text.as_bytes(), &adjustment).unwrap().bytes.unwrap();
    assert!(is_well_formed(&after));
    let head = format!("{{\"linux\": {{\"personality\":{vendor} , \"vendor\":{vendor},");
    assert!(after.starts_with(head.as_bytes()) && after.ends_with(b"}\n"));
}
