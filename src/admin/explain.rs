// SPDX-License-Identifier: Apache-2.0
//! The output of `explain`: one container, one pod, or all matches of a name.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Map, Value};

use super::exit::DONE;
use super::output::{Answer, Format, PageOutput, tell};
use super::policy::exec_rule;
use super::show::{REDACTED, ago, milliseconds, name_of_pod, or_dash, table, text, wrapped};
use super::{ask, paint};
use crate::answers::{
    AdminRequest, CallTime, Change, ChangedMember, ContainerExplained, Dated, ExecChange,
    Explanation, HiddenFrom, InjectionNote, MatchRow, PodExplained, PromiseOutcome, PromiseResult,
    Repetition, RuleHit, Skipped, Times, WayGiven,
};
use crate::audit;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::messages;
use crate::text::{printable, rfc3339_nanos, short_id};

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

/// Prints the explanation. If several objects match, they are listed and the command fails.
pub(super) fn explain(config: &Config, wanted: &Explain, format: Format) -> Result<u8> {
    let request = AdminRequest::Explain { id: wanted.id.clone() };
    let mut explanation: Explanation = ask(config, &request)?;
    if !wanted.show_env {
        redact(&mut explanation);
    }
    tell(format, &explanation)?;
    match explanation {
        Explanation::Several(several) => {
            Err(Error::new(several.error).hint("name one by its id, or NAMESPACE/POD/NAME"))
        }
        Explanation::Pod(_) | Explanation::Container(_) => Ok(DONE),
    }
}

/// Hides the values of environment variables in changes, including those of hooks.
fn redact(explanation: &mut Explanation) {
    let changes = match explanation {
        Explanation::Container(container) => &mut container.changes,
        Explanation::Pod(pod) => &mut pod.changes,
        Explanation::Several(_) => return,
    };
    for Dated(change) in changes {
        for side in [&mut change.before, &mut change.after] {
            audit::redact(&change.field, side, REDACTED);
        }
    }
}

/// Maximum characters of a value, unless the page is wide.
const VALUE_WIDTH: usize = 40;

impl Answer for Explanation {
    const PAINTER: fn(&str) -> String = paint::trouble;

    fn page(&self, format: Format) -> String {
        match self {
            Self::Several(several) => matches(&several.matches),
            Self::Pod(pod) => of_pod(pod),
            Self::Container(container) => of_container(container, format == Format::Wide),
        }
    }
}

fn of_container(container: &ContainerExplained, wide: bool) -> String {
    let mut page = String::new();
    let mut line = |title: &str, words: &str| {
        let _infallible = writeln!(page, "{:<12}{words}", format!("{title}:"));
    };
    let (id, name) = (printable(&container.id), printable(&container.name));
    // Without an engine, and with ctr, a container's name is its ID.
    line("container", &if id == name { id } else { format!("{id} ({name})") });
    line("pod", &name_of_pod(&printable(&container.namespace), &printable(&container.pod)));
    line("state", &state(container));
    line("engine", &printable(&container.engine));
    if container.found {
        page.push_str("recovered after its record was lost; plugin changes unknown\n");
    }
    add_changes(container, wide, &mut page);
    let behind = container.changed_behind.iter();
    let behind =
        behind.map(|ChangedMember { field, change }| printable(&format!("{field} {change}")));
    let behind = behind.collect::<Vec<_>>().join(", ");
    if !behind.is_empty() {
        page.push_str(&wrapped("changed by a wrapper after nri-runc:", &behind));
    }
    add_times(&container.times, &mut page);
    add_traces(container, &mut page);
    add_promises(&container.promises, &mut page);
    add_repeated(&container.repeated, &mut page);
    stays(&container.id, &container.hidden_from, &container.refused, &container.skipped, &mut page);
    for other in &container.earlier {
        let (id, state) = (printable(&other.id), other.state.name());
        let age = age(&other.times);
        let _infallible = writeln!(page, "earlier: {} {state}, {age} old", short_id(&id));
    }
    page
}

fn state(container: &ContainerExplained) -> String {
    let (state, life) = (container.state.name(), &container.life);
    let times = [
        (&life.finished_time, life.finished_at, "ended"),
        (&life.started_time, life.started_at, "started"),
        (&life.created_time, life.created_at, "created"),
        (&life.refused_time, life.refused_at, "refused"),
    ];
    let last = times.into_iter().find_map(|(time, at, word)| Some((time.as_ref()?, at, word)));
    let Some((time, at, word)) = last else { return state.to_owned() };
    let exit = exit(container.exit_code, container.status_reason.as_deref());
    format!("{state} ({word} {}, {} ago{exit})", to_seconds(time), ago(at))
}

/// Formats the exit code, with the reason if known; empty without a code.
fn exit(code: Option<i32>, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| format!(": {}", printable(reason))).unwrap_or_default();
    code.map(|code| format!(", exit code {code}{reason}")).unwrap_or_default()
}

/// Formats the time since the container's creation, or since the refusal of a container that was
/// never created.
fn age(life: &Times) -> String {
    ago(if life.created_at > 0 { life.created_at } else { life.refused_at })
}

fn to_seconds(time: &str) -> String {
    let time = printable(time);
    time.split_once('.').map(|(seconds, _)| format!("{seconds}Z")).unwrap_or(time)
}

/// Formats a time, given in nanoseconds, to the second.
fn time_of(at: i64) -> String {
    to_seconds(&rfc3339_nanos(at).unwrap_or_else(|| "-".to_owned()))
}

/// Adds a table for each event, in the order of the daemon's answer; without changes, a line that says so.
fn add_changes(container: &ContainerExplained, wide: bool, page: &mut String) {
    if container.changes.is_empty() {
        page.push_str(match container.found {
            true => "what plugins changed is unknown\n",
            false => "no plugin changed anything\n",
        });
    }
    let is_same = |Dated(one): &Dated<Change>, Dated(next): &Dated<Change>| {
        one.at == next.at && one.event == next.event
    };
    for event in container.changes.chunk_by(is_same) {
        let Some(Dated(Change { at, event: name, .. })) = event.first() else { continue };
        let (name, time, ago) = (printable(name), time_of(*at), ago(*at));
        let _infallible = writeln!(page, "\n{name}, {time} ({ago} ago)");
        let rows = event.iter().map(|Dated(change)| {
            let (before, after) = differing(&change.before, &change.after);
            // An engine's own change has no plugin.
            let plugin = Some(&change.plugin).filter(|plugin| !plugin.is_empty());
            vec![
                or_dash(plugin),
                printable(&change.field),
                cut(text(&before), wide),
                cut(text(&after), wide),
            ]
        });
        let rows: Vec<_> = rows.collect();
        for row in table(&["plugin", "field", "before", "after"], &rows).lines() {
            let _infallible = writeln!(page, "  {row}");
        }
    }
}

/// Returns two objects without the members that are equal in both; returns other values unchanged.
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

fn cut(value: String, wide: bool) -> String {
    if wide || value.chars().count() <= VALUE_WIDTH {
        return value;
    }
    let kept: String = value.chars().take(VALUE_WIDTH - 3).collect();
    format!("{kept}...")
}

fn of_pod(pod: &PodExplained) -> String {
    let name = name_of_pod(&printable(&pod.namespace), &printable(&pod.name));
    let mut page = format!("pod {} ({name}), {}\n", printable(&pod.id), pod.state.name());
    add_times(&pod.times, &mut page);
    add_promises(&pod.promises, &mut page);
    stays(&pod.id, &pod.hidden_from, &pod.refused, &pod.skipped, &mut page);
    for container in &pod.containers {
        let [name, state, id] =
            [&container.name, container.state.name(), &container.id].map(printable);
        let exit = exit(container.exit_code, None);
        let _infallible = writeln!(page, "container: {name} {state}{exit} {}", short_id(&id));
    }
    page
}

/// Adds the time that each plugin took, a line for each event.
fn add_times(times: &[Dated<CallTime>], page: &mut String) {
    for event in times.chunk_by(|Dated(one), Dated(next)| one.call == next.call) {
        let Some(Dated(first)) = event.first() else { continue };
        let plugins: Vec<String> = event.iter().map(|Dated(call)| time_of_plugin(call)).collect();
        page.push_str(&wrapped(&format!("took: {}", printable(&first.call)), &plugins.join(", ")));
    }
}

fn time_of_plugin(call: &CallTime) -> String {
    let [took, waited] = [call.took_us, call.waited_us].map(|micros| micros as f64 / 1000.0);
    let mut notes = Vec::new();
    notes.extend((waited >= 1.0).then(|| format!("after {} in turn", milliseconds(waited))));
    notes.extend(call.error.as_deref().map(printable));
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    format!("{} {}{notes}", printable(&call.plugin), milliseconds(took))
}

/// Adds the effects of rules, exec rules and injections, and plugins' changes of `exec`, one per line.
fn add_traces(container: &ContainerExplained, page: &mut String) {
    for Dated(RuleHit { event, plugin, field, rule, .. }) in &container.would_refuse {
        let [plugin, field, rule] = [plugin, field, rule].map(|text| printable(text));
        let what = match event == "exec" {
            true => format!("audit: an exec that the exec rule \"{rule}\" would refuse"),
            false => format!("audit: {plugin} set {field}, which rule \"{rule}\" would refuse"),
        };
        let _infallible = writeln!(page, "{what}");
    }
    for rule in container.exec_rules.iter().filter(|rule| rule.decides) {
        let _infallible = writeln!(page, "{}", exec_rule(rule));
    }
    for Dated(InjectionNote { plugin, field, .. }) in &container.would_inject {
        let line = printable(&format!("audit: {plugin} would set {field}"));
        let _infallible = writeln!(page, "{line}");
    }
    for WayGiven { plugin, field, to } in &container.gave_way {
        let whose = match to.as_deref() {
            None | Some("") => "the container has a value of its own".to_owned(),
            Some(to) => format!("{to} sets it"),
        };
        let line = printable(&format!("gave way: {plugin} did not set {field}, as {whose}"));
        let _infallible = writeln!(page, "{line}");
    }
    page.extend(container.exec_changes.iter().map(exec_change));
}

fn add_promises(promises: &[PromiseOutcome], page: &mut String) {
    for PromiseOutcome { promise, plugin, why, mode: _, result } in promises {
        let result = match result {
            Some(PromiseResult::Met) => "was there",
            Some(PromiseResult::Refused) => "was missing",
            Some(PromiseResult::WouldRefuse) => "was missing (audit)",
            Some(PromiseResult::Unknown) | None => "is required",
        };
        let line = format!("promise \"{promise}\" ({why}): the plugin {plugin} {result}");
        let _infallible = writeln!(page, "{}", printable(&line));
    }
}

/// Adds the plugins' values that stay although the engine requested others.
fn add_repeated(repeated: &[Dated<Repetition>], page: &mut String) {
    for Dated(Repetition { plugin, field, engine, value, .. }) in repeated {
        let ([plugin, field], [engine, value]) =
            ([plugin, field].map(|name| printable(name)), [engine, value].map(text));
        let _infallible = writeln!(
            page,
            "repeated: an update of the engine sets {field} = {engine}; {value}, which {plugin} set, stays"
        );
    }
}

/// Adds the plugins from which the container or pod is hidden, refusals, skipped plugins, and
/// ignored identity claims.
fn stays(
    id: &str,
    hidden: &[HiddenFrom],
    refused: &[String],
    skipped: &[Skipped],
    page: &mut String,
) {
    for HiddenFrom { plugin, rule } in hidden {
        let line = printable(&format!("hidden from {plugin} (rule \"{rule}\")"));
        let _infallible = writeln!(page, "{line}");
    }
    for refused in refused {
        // The message for the engine refers to this command, so the reference is omitted here.
        let here = format!("; see: nri-runc nri explain {}", printable(id));
        let refused = messages::with_code(&printable(refused).replace(&here, ""));
        let _infallible = writeln!(page, "refused: {refused}");
    }
    for Skipped { plugin, reason } in skipped {
        let (plugin, reason) = (printable(plugin), printable(reason));
        let _infallible = match (plugin.is_empty(), reason.strip_prefix("identity: ")) {
            (true, Some(claim)) => writeln!(page, "ignored: {claim}"),
            (true, None) => writeln!(page, "skipped: {reason}"),
            (false, _) => writeln!(page, "skipped: {plugin} {reason}"),
        };
    }
}

fn matches(matches: &[MatchRow]) -> String {
    let rows = matches.iter().map(|container| {
        let [id, name] = [&container.id, &container.name].map(|text| printable(text));
        let pod = name_of_pod(&printable(&container.namespace), &printable(&container.pod));
        vec![
            short_id(&id).to_owned(),
            if pod == name || pod == id { name } else { format!("{pod}/{name}") },
            container.state.name().to_owned(),
            age(&container.times),
        ]
    });
    table(&["id", "name", "state", "age"], &rows.collect::<Vec<_>>())
}

/// Formats the line about an `exec` whose process plugins changed.
fn exec_change(Dated(change): &Dated<ExecChange>) -> String {
    let owners = change.owners.iter();
    let owners: Vec<String> =
        owners.map(|(field, plugin)| format!("{plugin} set {field}")).collect();
    let time = rfc3339_nanos(change.at);
    let (program, owners) = (printable(&change.program), printable(&owners.join(", ")));
    format!("exec of {program} at {}: {owners}\n", or_dash(time))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let call = |call: &str, plugin: &str, took_us, waited_us, error: Option<&str>| {
            let (call, plugin) = (call.to_owned(), plugin.to_owned());
            let error = error.map(str::to_owned);
            Dated(CallTime { at: 1, plugin, call, waited_us, took_us, error })
        };
        let calls = [
            call("CreateContainer", "10-a", 1240, 20, None),
            call("CreateContainer", "20-b", 2_000_000, 3000, Some("deadline_exceeded")),
            call("StartContainer", "10-a", 400, 0, None),
        ];
        let mut page = String::new();
        add_times(&calls, &mut page);
        assert_eq!(
            page,
            "took: CreateContainer 10-a 1.2ms, 20-b 2s (after 3.0ms in turn,\n    deadline_exceeded)\n\
             took: StartContainer 10-a 0.4ms\n"
        );
    }

    fn container(document: Value) -> ContainerExplained {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn an_injection_that_gave_way_names_the_owner_of_the_value() {
        let left = |to: Value| {
            let mut page = String::new();
            let left = json!({"plugin": "inject:a", "field": "Env[A]", "to": to});
            add_traces(&container(json!({"gave_way": [left]})), &mut page);
            page
        };
        let own =
            "gave way: inject:a did not set Env[A], as the container has a value of its own\n";
        assert_eq!((left(Value::Null).as_str(), left(json!("")).as_str()), (own, own));
        assert_eq!(left(json!("10-b")), "gave way: inject:a did not set Env[A], as 10-b sets it\n");
    }

    #[test]
    fn an_exit_code_is_shown_with_the_exit_only_if_known() {
        let ended = |code: Value, reason: Value| {
            let times = json!({"finished_time": "2026-11-22T14:17:01Z", "finished_at": 1});
            let mut document =
                json!({"state": "stopped", "exit_code": code, "status_reason": reason});
            document.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            state(&container(document))
        };
        assert!(ended(json!(137), json!("OOMKilled")).ends_with(" ago, exit code 137: OOMKilled)"));
        assert!(ended(json!(0), Value::Null).ends_with(" ago, exit code 0)"));
        assert!(ended(Value::Null, json!("Unknown")).ends_with(" ago)"));
    }

    #[test]
    fn the_three_forms_of_a_response_are_distinguished() {
        let several = json!({"error": "two", "matches": []});
        let pod = json!({"kind": "pod", "id": "p", "pod": "web", "name": "web", "namespace": "shop",
            "uid": "u", "state": "ready", "engine": "containerd", "evidence": [], "found": false,
            "owners": {}, "changes": [], "times": [], "refused": [], "skipped": [], "promises": [],
            "hidden_from": [], "containers": [{"id": "c", "name": "app", "state": "stopped",
                "exit_code": 0, "refused": []}]});
        for document in [several, pod] {
            let explanation: Explanation = serde_json::from_value(document.clone()).unwrap();
            assert!(!matches!(explanation, Explanation::Container(_)), "{document}");
            assert_eq!(json!(explanation).to_string(), document.to_string());
        }
        let hit = json!({"at": 1_000_000_000_i64, "time": "1970-01-01T00:00:01.000000000Z",
            "event": "CreateContainer", "plugin": "10-a", "field": "Env[A]", "rule": "r"});
        let one = json!({"id": "c", "exit_code": 1, "would_refuse": [hit]});
        let read: Explanation = serde_json::from_value(one).unwrap();
        assert_eq!(json!(read)["would_refuse"][0].to_string(), hit.to_string());
        assert!(matches!(read, Explanation::Container(_)));
    }

    fn redacted(changes: Value) -> Value {
        redacted_of(json!({"id": "c", "changes": changes}))
    }

    fn redacted_of(document: Value) -> Value {
        let mut read = serde_json::from_value(document).unwrap();
        redact(&mut read);
        json!(read)["changes"].take()
    }

    fn change(field: &str, before: Value, after: Value) -> Value {
        json!({"at": 1, "event": "e", "plugin": "p", "field": field, "before": before, "after": after})
    }

    #[test]
    fn environment_values_are_hidden_and_nothing_else() {
        let changes = redacted(json!([
            change("process.env[TOKEN]", Value::Null, json!("secret")),
            change("annotations[a]", Value::Null, json!("b"))
        ]));
        assert!(!changes.to_string().contains("secret"));
        assert_eq!(changes[0]["before"], Value::Null);
        assert_eq!(changes[1]["after"], "b");
    }

    #[test]
    fn environment_values_in_changes_of_a_pod_are_hidden_too() {
        let changes = [change("process.env[TOKEN]", json!("secret"), json!("secret2"))];
        let changes = redacted_of(json!({"kind": "pod", "id": "p", "pod": "web", "name": "web",
            "namespace": "shop", "uid": "u", "state": "ready", "engine": "containerd",
            "evidence": [], "found": false, "owners": {}, "changes": changes, "refused": [],
            "skipped": [], "containers": []}));
        assert!(!changes.to_string().contains("secret"), "{changes}");
        assert_eq!(changes[0]["after"], REDACTED);
    }

    #[test]
    fn environment_values_of_hooks_are_hidden_but_names_are_shown() {
        let hook = json!({"path": "/bin/h", "args": ["h", "A=b"], "env": ["TOKEN=secret"]});
        let text = redacted(json!([change("hooks.prestart", json!([hook]), json!([hook, hook]))]));
        let text = text.to_string();
        assert!(!text.contains("secret") && text.contains("TOKEN=(hidden"), "{text}");
        assert!(text.contains("/bin/h") && text.contains("A=b"), "{text}");
    }
}
