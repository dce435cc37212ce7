// SPDX-License-Identifier: Apache-2.0
//! The JSON schemas of outputs (`docs/schema`), written from the types whose serialization is
//! printed: doc comments become descriptions. `UPDATE_GOLDEN=1 cargo test --lib schemas` renews the
//! files. This module is compiled only for tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::check::Finding;
use super::install::Outcome;
use super::reload::ReloadResult;
use super::succession::{Reexecution, Restarted, Stopped};
use super::switch::Switched;
use super::sysdump::Written;
use super::top::sample::Document;
use crate::answers::{
    DriftRow, Explanation, Forgotten, PluginOutput, PluginRow, PodRow, PolicyAnswer, Status,
};
use crate::dry::{Adjusted, Compared};
use crate::files;

/// A schema: its file's name, its title, the commands that print such output, and its type.
struct Output {
    file: &'static str,
    title: &'static str,
    verbs: &'static [&'static str],
    schema: fn(&mut SchemaGenerator) -> Schema,
}

const fn output<T: JsonSchema>(
    file: &'static str,
    title: &'static str,
    verbs: &'static [&'static str],
) -> Output {
    Output { file, title, verbs, schema: |generator| generator.root_schema_for::<T>() }
}

fn outputs() -> Vec<Output> {
    vec![
        output::<Status>("status", "Output of nri-runc nri status -o json", &["status"]),
        output::<Document>("top", "Output of nri-runc nri top -o json", &["top"]),
        output::<Vec<PluginRow>>("plugins", "Output of nri-runc nri plugins -o json", &["plugins"]),
        output::<PluginOutput>(
            "plugin-log",
            "Output of nri-runc nri plugins --logs NAME -o json",
            &["plugins"],
        ),
        output::<Vec<PodRow>>("pods", "Output of nri-runc nri pods -o json", &["pods"]),
        output::<Explanation>(
            "explain",
            "Output of nri-runc nri explain ID -o json: a container, a pod, or what an ambiguous name may mean",
            &["explain"],
        ),
        output::<crate::audit::Line<'_>>(
            "audit-line",
            "A line of the audit log, and a member of the output of nri-runc nri audit -o json",
            &["audit"],
        ),
        output::<crate::stream::EventLine<'_>>(
            "event",
            "A line of nri-runc nri events -o json",
            &["events"],
        ),
        output::<PolicyAnswer>("policy", "Output of nri-runc nri policy test -o json", &["policy"]),
        output::<Compared>(
            "policy-compare",
            "Output of nri-runc nri policy test -f FILE, or --compare FILE, -o json",
            &["policy"],
        ),
        output::<Vec<DriftRow>>("drift", "Output of nri-runc nri drift -o json", &["drift"]),
        output::<Vec<Finding>>("check", "Output of nri-runc nri check -o json", &["check"]),
        output::<Written>("sysdump", "Output of nri-runc nri sysdump -o json", &["sysdump"]),
        output::<Adjusted>("adjust", "Output of nri-runc nri adjust --output json", &["adjust"]),
        output::<Outcome>(
            "install",
            "Output of nri-runc nri install and uninstall -o json",
            &["install", "uninstall"],
        ),
        output::<ReloadResult>("reload", "Output of nri-runc nri reload -o json", &["reload"]),
        output::<Reexecution>("reexec", "Output of nri-runc nri reexec -o json", &["reexec"]),
        output::<Stopped>("stop", "Output of nri-runc nri stop -o json", &["stop"]),
        output::<Restarted>("restart", "Output of nri-runc nri restart -o json", &["restart"]),
        output::<Forgotten>("forget", "Output of nri-runc nri forget -o json", &["forget"]),
        output::<Switched>(
            "disable",
            "Output of nri-runc nri disable and enable -o json",
            &["disable", "enable"],
        ),
    ]
}

/// Returns the description of a member that is a time; `None` for other members.
fn description_of(member: &str) -> Option<&'static str> {
    match member {
        _ if member == "at" || member.ends_with("_at") => {
            Some("Unix time in nanoseconds; 0 if it did not happen.")
        }
        _ if member == "time" || member.ends_with("_time") => {
            Some("The same time as text (RFC 3339).")
        }
        _ => None,
    }
}

/// Adds the descriptions of times, removes defaults, which matter only to readers of documents with missing
/// members, and joins the lines of descriptions.
fn complete(schema: &mut Schema) {
    schema.remove("default");
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    let members = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, member) in members.into_iter().flatten() {
        let member = member.as_object_mut().filter(|member| !member.contains_key("description"));
        if let (Some(member), Some(text)) = (member, description_of(name)) {
            member.insert("description".to_owned(), text.into());
        }
    }
}

fn written(output: &Output) -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = (output.schema)(&mut settings.into_generator());
    RecursiveTransform(complete).transform(&mut schema);
    let mut whole = json!({"$schema": schema.get("$schema"), "title": output.title});
    schema.remove("description");
    schema.remove("title");
    let parts = schema.as_object().into_iter().flatten();
    whole.as_object_mut().unwrap().extend(parts.map(|(name, part)| (name.clone(), part.clone())));
    format!("{whole:#}\n")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema")
}

#[test]
fn the_checked_in_schemas_match_the_types() {
    let renews = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut files = BTreeSet::new();
    for output in outputs() {
        let (text, path) = (written(&output), folder().join(output.file).with_extension("json"));
        assert!(!text.contains("`None`"), "{}: a description is about Rust", output.file);
        if renews {
            files::replace(&path, text.as_bytes()).unwrap();
        }
        let known = files::read(&path, text.len()).unwrap_or_default();
        assert!(
            known == text.as_bytes(),
            "{} is stale: UPDATE_GOLDEN=1 cargo test --lib schemas",
            path.display()
        );
        files.insert(path);
    }
    let all = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(all.collect::<BTreeSet<_>>(), files, "a schema has no type");
}

#[test]
fn each_command_with_json_has_a_schema() {
    let described: BTreeSet<&str> =
        outputs().iter().flat_map(|output| output.verbs).copied().collect();
    let has_json = |verb: &clap::Command| {
        let formats = verb
            .get_arguments()
            .filter(|argument| argument.get_id() == "output" && !argument.is_hide_set());
        let mut formats = formats.flat_map(clap::Arg::get_possible_values);
        formats.any(|format| format.get_name() == "json")
    };
    let command = super::command();
    let verbs = command.get_subcommands();
    let verbs = verbs.filter(|verb| has_json(verb) || verb.get_subcommands().any(has_json));
    let verbs: BTreeSet<&str> = verbs.map(clap::Command::get_name).collect();
    assert_eq!(verbs, described);
}

#[test]
fn the_schema_of_a_dated_note_has_its_serialized_members() {
    use crate::answers::{CallTime, Dated};
    let note = json!(Dated(CallTime { at: 1, ..CallTime::default() }));
    let schema = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = schema.into_root_schema_for::<Dated<CallTime>>();
    let printed: Vec<&String> = note.as_object().unwrap().keys().collect();
    let described: Vec<&String> =
        schema.get("properties").unwrap().as_object().unwrap().keys().collect();
    assert_eq!(printed, described);
    let required = schema.get("required").unwrap().as_array().unwrap();
    assert_eq!(required.len(), printed.len());
}
