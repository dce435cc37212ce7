// SPDX-License-Identifier: Apache-2.0
//! The page of `explain`: one container, one pod, or all matches of a name.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Map, Value, json};

use super::exit::DONE;
use super::output::{Format, PageOutput, tell_page};
use super::policy::exec_rule;
use super::show::{ago_of, milliseconds, name_of_pod, rows, table, text, wrapped};
use super::{ask, paint, show};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::messages;
use crate::text::{printable, short_id};

/// `explain`.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// ID, ID prefix, name, NAMESPACE/NAME or NAMESPACE/POD[/NAME].
    id: String,
    /// Show environment variable values.
    #[arg(long)]
    show_env: bool,
    #[command(flatten)]
    pub(super) output: PageOutput,
}

/// Explains. Several that are meant are listed, and that is a failure: nothing was explained.
pub(super) fn explain(config: &Config, wanted: &Explain, format: Format) -> Result<u8> {
    let mut document: Value = ask(config, &json!({"verb": "explain", "id": wanted.id}))?;
    if !wanted.show_env {
        show::redact(&mut document);
    }
    tell_page(
        format,
        &document,
        |document| page(document, format == Format::Wide),
        paint::trouble,
    )?;
    match document["error"].as_str() {
        Some(error) => Err(Error::new(error).hint("name one by its id, or NAMESPACE/POD/NAME")),
        None => Ok(DONE),
    }
}

/// Maximum characters of a value, unless the page is wide.
const VALUE_WIDTH: usize = 40;

/// Renders the page of `explain`.
fn page(document: &Value, wide: bool) -> String {
    if document["matches"].is_array() {
        return matches(document);
    }
    if document["kind"] == "pod" {
        return pod(document);
    }
    let mut page = String::new();
    let mut line = |title: &str, words: &str| {
        let _infallible = writeln!(page, "{:<12}{words}", format!("{title}:"));
    };
    let (id, name) = (text(&document["id"]), text(&document["name"]));
    // Without an engine, and with ctr, the ID is the name.
    line("container", &if id == name { id } else { format!("{id} ({name})") });
    line("pod", &name_of_pod(&text(&document["namespace"]), &text(&document["pod"])));
    line("state", &state(document));
    line("engine", &text(&document["engine"]));
    if document["found"] == true {
        page.push_str("recovered after its record was lost; plugin changes unknown\n");
    }
    changes(document, wide, &mut page);
    changed_behind(document, &mut page);
    times(document, &mut page);
    traces(document, &mut page);
    for other in document["earlier"].as_array().into_iter().flatten() {
        let (id, state) = (text(&other["id"]), text(&other["state"]));
        let _infallible = writeln!(page, "earlier: {} {state}, {} old", short_id(&id), age(other));
    }
    page
}

fn state(document: &Value) -> String {
    let state = text(&document["state"]);
    let times = [
        ("finished", "ended"),
        ("started", "started"),
        ("created", "created"),
        ("refused", "refused"),
    ];
    let last = times.into_iter().find(|(key, _)| document[format!("{key}_time")].is_string());
    match last {
        None => state,
        Some((key, word)) => {
            let time = time(&document[format!("{key}_time")]);
            let ago = ago_of(&document[format!("{key}_at")]);
            format!("{state} ({word} {time}, {ago} ago{})", exit(document))
        }
    }
}

/// Formats the exit code, with the reason where it is known; nothing while it is not.
fn exit(container: &Value) -> String {
    match (container["exit_code"].as_i64(), text(&container["status_reason"])) {
        (None, _) => String::new(),
        (Some(code), reason) if reason.is_empty() => format!(", exit code {code}"),
        (Some(code), reason) => format!(", exit code {code}: {reason}"),
    }
}

/// Age since its creation, or since the refusal of one that was never created.
fn age(container: &Value) -> String {
    let created = Some(&container["created_at"]).filter(|at| at.as_i64() > Some(0));
    ago_of(created.unwrap_or(&container["refused_at"]))
}

/// Formats a time to the second.
fn time(value: &Value) -> String {
    let time = text(value);
    match time.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => time,
    }
}

/// Adds a table for each event, in the order in which they happened.
fn changes(document: &Value, wide: bool, page: &mut String) {
    let changes = document["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        let nothing = if document["found"] == true {
            "what plugins changed is unknown\n"
        } else {
            "no plugin changed anything\n"
        };
        page.push_str(nothing);
    }
    for event in
        changes.chunk_by(|one, next| one["at"] == next["at"] && one["event"] == next["event"])
    {
        let Some(first) = event.first() else { continue };
        let (name, time, ago) = (text(&first["event"]), time(&first["time"]), ago_of(&first["at"]));
        let _infallible = writeln!(page, "\n{name}, {time} ({ago} ago)");
        let rows = rows(&Value::from(event.to_vec()), |change| {
            let (before, after) = differing(&change["before"], &change["after"]);
            vec![
                plugin_or_dash(&change["plugin"]),
                text(&change["field"]),
                cut(text(&before), wide),
                cut(text(&after), wide),
            ]
        });
        for row in table(&["plugin", "field", "before", "after"], &rows).lines() {
            let _infallible = writeln!(page, "  {row}");
        }
    }
}

/// Adds the members that a wrapper behind nri-runc changed.
fn changed_behind(document: &Value, page: &mut String) {
    let members = document["changed_behind"].as_array().into_iter().flatten();
    let members: Vec<String> = members
        .map(|member| format!("{} {}", text(&member["field"]), text(&member["change"])))
        .collect();
    if !members.is_empty() {
        page.push_str(&wrapped("after nri-runc, by a wrapper behind it:", &members.join(", ")));
    }
}

/// Two values without the members in which they agree.
fn differing(before: &Value, after: &Value) -> (Value, Value) {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before.clone(), after.clone());
    };
    let only = |of: &Map<String, Value>, other: &Map<String, Value>| {
        let members = of.iter().filter(|(key, value)| other.get(*key) != Some(value));
        Value::Object(members.map(|(key, value)| (key.clone(), value.clone())).collect())
    };
    (only(old, new), only(new, old))
}

/// Formats a plugin; an engine's own change has none.
fn plugin_or_dash(plugin: &Value) -> String {
    match text(plugin) {
        none if none.is_empty() => "-".to_owned(),
        plugin => plugin,
    }
}

fn cut(value: String, wide: bool) -> String {
    if wide || value.chars().count() <= VALUE_WIDTH {
        return value;
    }
    let kept: String = value.chars().take(VALUE_WIDTH - 3).collect();
    format!("{kept}...")
}

fn pod(document: &Value) -> String {
    let mut page = format!(
        "pod {} ({}), {}\n",
        text(&document["id"]),
        name_of_pod(&text(&document["namespace"]), &text(&document["name"])),
        text(&document["state"]),
    );
    times(document, &mut page);
    traces(document, &mut page);
    for container in document["containers"].as_array().into_iter().flatten() {
        let [name, state, id] = ["name", "state", "id"].map(|key| text(&container[key]));
        let exit = exit(container);
        let _infallible = writeln!(page, "container: {name} {state}{exit} {}", short_id(&id));
    }
    page
}

/// Adds the time that each plugin took, a line for each event.
fn times(document: &Value, page: &mut String) {
    let times = document["times"].as_array().map(Vec::as_slice).unwrap_or_default();
    for event in times.chunk_by(|one, next| one["call"] == next["call"]) {
        let Some(first) = event.first() else { continue };
        let plugins: Vec<String> = event.iter().map(time_of_plugin).collect();
        page.push_str(&wrapped(&format!("took: {}", text(&first["call"])), &plugins.join(", ")));
    }
}

fn time_of_plugin(call: &Value) -> String {
    let millis = |member: &str| call[member].as_f64().unwrap_or_default() / 1000.0;
    let (took, waited) = (milliseconds(millis("took_us")), millis("waited_us"));
    let mut notes = Vec::new();
    notes.extend((waited >= 1.0).then(|| format!("after {} in turn", milliseconds(waited))));
    notes.extend(call["error"].as_str().map(printable));
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    format!("{} {took}{notes}", text(&call["plugin"]))
}

/// Adds refusals, skipped plugins and the effects of rules, one a line.
fn traces(document: &Value, page: &mut String) {
    for hit in document["would_refuse"].as_array().into_iter().flatten() {
        let [plugin, field, rule] = ["plugin", "field", "rule"].map(|key| text(&hit[key]));
        let what = match hit["event"] == "exec" {
            true => format!("audit: an exec that the exec rule \"{rule}\" would refuse"),
            false => format!("audit: {plugin} set {field}, which rule \"{rule}\" would refuse"),
        };
        let _infallible = writeln!(page, "{what}");
    }
    let rules = document["exec_rules"].as_array().into_iter().flatten();
    for rule in rules.filter(|rule| rule["decides"] == true) {
        let _infallible = writeln!(page, "{}", exec_rule(rule));
    }
    for would in document["would_inject"].as_array().into_iter().flatten() {
        let (plugin, field) = (text(&would["plugin"]), text(&would["field"]));
        let _infallible = writeln!(page, "audit: {plugin} would set {field}");
    }
    for left in document["gave_way"].as_array().into_iter().flatten() {
        let [plugin, field] = ["plugin", "field"].map(|key| text(&left[key]));
        let whose = match left["to"].as_str() {
            None | Some("") => "the container has a value of its own".to_owned(),
            Some(to) => format!("{} sets it", printable(to)),
        };
        let _infallible = writeln!(page, "gave way: {plugin} did not set {field}, as {whose}");
    }
    let execs = document["exec_changes"].as_array().into_iter().flatten();
    execs.for_each(|change| page.push_str(&exec_change(change)));
    for promise in document["promises"].as_array().into_iter().flatten() {
        let [name, plugin, why] = ["promise", "plugin", "why"].map(|key| text(&promise[key]));
        let result = match promise["result"].as_str() {
            Some("met") => "was there",
            Some("refused") => "was missing",
            Some("would_refuse") => "was missing (audit)",
            _ => "has to be there",
        };
        let _infallible =
            writeln!(page, "promise \"{name}\" ({why}): the plugin {plugin} {result}");
    }
    stays(document, page);
}

/// What stays although something else was asked for, and what is hidden.
fn stays(document: &Value, page: &mut String) {
    for repeated in document["repeated"].as_array().into_iter().flatten() {
        let [plugin, field, engine, value] =
            ["plugin", "field", "engine", "value"].map(|key| text(&repeated[key]));
        let _infallible = writeln!(
            page,
            "repeated: an update of the engine says {field} = {engine}; {value}, which {plugin} set, stays"
        );
    }
    for hidden in document["hidden_from"].as_array().into_iter().flatten() {
        let (plugin, rule) = (text(&hidden["plugin"]), text(&hidden["rule"]));
        let _infallible = writeln!(page, "hidden from {plugin} (rule \"{rule}\")");
    }
    for refused in document["refused"].as_array().into_iter().flatten() {
        // The message for the engine names this very command.
        let here = format!("; see: nri-runc nri explain {}", text(&document["id"]));
        let refused = messages::with_code(&text(refused).replace(&here, ""));
        let _infallible = writeln!(page, "refused: {refused}");
    }
    for skipped in document["skipped"].as_array().into_iter().flatten() {
        let (plugin, reason) = (text(&skipped["plugin"]), text(&skipped["reason"]));
        let _infallible = match (plugin.is_empty(), reason.strip_prefix("identity: ")) {
            (true, Some(claim)) => writeln!(page, "ignored: {claim}"),
            (true, None) => writeln!(page, "skipped: {reason}"),
            (false, _) => writeln!(page, "skipped: {plugin} {reason}"),
        };
    }
}

/// Renders the matches, newest first.
fn matches(document: &Value) -> String {
    let rows = rows(&document["matches"], |container| {
        let id = text(&container["id"]);
        let name = text(&container["name"]);
        let pod = name_of_pod(&text(&container["namespace"]), &text(&container["pod"]));
        vec![
            short_id(&id).to_owned(),
            if pod == name || pod == id { name } else { format!("{pod}/{name}") },
            text(&container["state"]),
            age(container),
        ]
    });
    table(&["id", "name", "state", "age"], &rows)
}

/// The line about a process of `exec` that plugins changed, with its end.
fn exec_change(change: &Value) -> String {
    let owners = change["owners"].as_object().into_iter().flatten();
    let owners: Vec<String> = owners
        .map(|(field, plugin)| format!("{} set {}", text(plugin), printable(field)))
        .collect();
    format!(
        "exec of {} at {}: {}\n",
        text(&change["program"]),
        text(&change["time"]),
        owners.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_only_the_members_that_differ() {
        let mount = |ro: &[&str]| json!({"destination": "/x", "type": "bind", "options": ro});
        let (before, after) = differing(&mount(&["rw"]), &mount(&["ro"]));
        assert_eq!((before, after), (json!({"options": ["rw"]}), json!({"options": ["ro"]})));
        let (before, after) = differing(&json!({"a": 1}), &json!({"a": 1, "b": 2}));
        assert_eq!((before, after), (json!({}), json!({"b": 2})));
        for (before, after) in
            [(json!(null), mount(&[])), (json!(1), json!(2)), (json!([1]), json!([1, 2]))]
        {
            assert_eq!(differing(&before, &after), (before.clone(), after.clone()));
        }
    }

    #[test]
    fn each_event_has_a_line_with_the_time_of_each_plugin() {
        let call = |call: &str, plugin: &str, took: u64, waited: u64, error: Value| json!({"call": call, "plugin": plugin, "took_us": took, "waited_us": waited, "error": error});
        let document = json!({"times": [
            call("CreateContainer", "10-a", 1240, 20, Value::Null),
            call("CreateContainer", "20-b", 2_000_000, 3000, json!("deadline_exceeded")),
            call("StartContainer", "10-a", 400, 0, Value::Null),
        ]});
        let mut page = String::new();
        times(&document, &mut page);
        assert_eq!(
            page,
            "took: CreateContainer 10-a 1.2ms, 20-b 2s (after 3.0ms in turn,\n    deadline_exceeded)\n\
             took: StartContainer 10-a 0.4ms\n"
        );
        // A daemon of an earlier version does not send them.
        times(&json!({}), &mut page);
        assert_eq!(page.lines().count(), 3);
    }

    #[test]
    fn what_gave_way_names_whose_value_holds() {
        let left = |to: Value| {
            let mut page = String::new();
            let left = json!({"plugin": "inject:a", "field": "Env[A]", "to": to});
            traces(&json!({"gave_way": [left]}), &mut page);
            page
        };
        let own =
            "gave way: inject:a did not set Env[A], as the container has a value of its own\n";
        assert_eq!((left(Value::Null).as_str(), left(json!("")).as_str()), (own, own));
        assert_eq!(left(json!("10-b")), "gave way: inject:a did not set Env[A], as 10-b sets it\n");
    }

    #[test]
    fn an_exit_code_stands_with_the_end_and_only_where_it_is_known() {
        let ended = |code: Value, reason: &str| {
            let times = json!({"finished_time": "2026-11-22T14:17:01Z", "finished_at": 1});
            let mut document =
                json!({"state": "stopped", "exit_code": code, "status_reason": reason});
            document.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            state(&document)
        };
        assert!(ended(json!(137), "OOMKilled").ends_with(" ago, exit code 137: OOMKilled)"));
        assert!(ended(json!(0), "").ends_with(" ago, exit code 0)"));
        assert!(ended(json!(null), "Unknown").ends_with(" ago)"));
    }
}
