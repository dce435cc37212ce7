// SPDX-License-Identifier: Apache-2.0
//! `events`: prints the events that the daemon stores; with `--follow` it then prints new ones. After a
//! re-execution or restart of the daemon it continues after the last event; a line marks missing events.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::PodRow;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::named::Named;
use crate::stream::{EventKind, Since};
use crate::text::printable;
use crate::wrapper;

use super::audit::{SubjectFilter, about, columns, fits_columns};
use super::exit::DONE;
use super::output::{Format, PageOutput, complain, print, print_page};
use super::pods::PodFilter;
use super::watch::{has_reader, wait_for_lines};
use super::{ask, paint, yaml};

/// Interval of attempts to connect to a daemon that does not run.
const INTERVAL: Duration = Duration::from_secs(1);

/// The arguments of `events`.
#[derive(Debug, Args)]
pub(super) struct Events {
    /// After this event; 0: all, now: new ones.
    #[arg(long, value_name = "CURSOR", default_value = "0", value_parser = cursor)]
    since: String,
    /// Then print new events as they happen, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    pods: PodFilter,
    #[command(flatten)]
    subject: SubjectFilter,
    /// Only these kinds, such as refused,exited.
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(EventKind::names()),
        hide_possible_values = true
    )]
    kind: Vec<String>,
    #[command(flatten)]
    pub(super) output: PageOutput,
}

fn cursor(text: &str) -> std::result::Result<String, String> {
    match Since::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected the cursor of an event, 0 or now".to_owned()),
    }
}

/// The pod of an event, with the fields that the filters need.
fn pod_of(event: &Value) -> PodRow {
    let of = |member: &str| event[member].as_str().unwrap_or_default().to_owned();
    let labels = Option::deserialize(&event["labels"]).unwrap_or_default();
    PodRow { namespace: of("namespace"), engine: of("engine"), labels, ..PodRow::default() }
}

impl Events {
    /// Whether the filters admit an event. A line about missing events always passes.
    fn admits(&self, event: &Value) -> bool {
        let filter = self.subject.filter();
        let is_kind = self.kind.is_empty() || self.kind.iter().any(|kind| event["kind"] == **kind);
        let is_pods =
            self.pods.is_empty() || event["pod_id"] != "" && self.pods.admits(&pod_of(event));
        event["kind"] == "lost" || is_kind && is_pods && filter.admits(event)
    }
}

/// Prints the events.
///
/// # Errors
/// Fails when the daemon does not run, and when the output cannot be written.
pub(super) fn events(config: &Config, wanted: &Events, format: Format) -> Result<u8> {
    let mut page = EventPage { wanted, format, count: 0 };
    if !wanted.follow {
        let question = json!({"verb": "events", "since": wanted.since});
        for event in ask::<Vec<_>>(config, &question)? {
            page.add(&event)?;
        }
        return match page.count {
            0 if format.is_page() => print_page("no events", paint::plain),
            _ => Ok(DONE),
        };
    }
    let (mut since, mut is_away) = (wanted.since.clone(), None);
    loop {
        let ended = open(config, &mut since).and_then(|stream| {
            is_away = Some(false);
            follow(&stream, &mut since, &mut page)
        });
        match (ended, is_away) {
            (Ok(StreamEnd::ByReader), _) => return Ok(DONE),
            // The next attempt shows whether a daemon runs.
            (Ok(StreamEnd::ByDaemon), _) => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(false)) => {
                is_away = Some(true);
                complain(&format!("{error}; watching for it"));
            }
            (Err(_), Some(true)) => {}
        }
        if !has_reader(INTERVAL)? {
            return Ok(DONE);
        }
    }
}

/// Which side ended a stream.
enum StreamEnd {
    /// Standard output was closed.
    ByReader,
    ByDaemon,
}

/// Starts to read. Replaces `since` by a cursor, so that a reconnection before the first event
/// misses nothing.
fn open(config: &Config, since: &mut String) -> Result<UnixStream> {
    let question = json!({"verb": "events", "since": since, "follow": true});
    let (answer, stream) = wrapper::admin_stream(config, &question.to_string())?;
    stream.set_read_timeout(None)?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    // A daemon of an earlier version sends no cursor.
    if let (Some(present), "0" | "now") = (answer["cursor"].as_str(), since.as_str()) {
        present.clone_into(since);
    }
    Ok(stream)
}

/// Prints the events of one connection; `since` is the cursor of the last one.
fn follow(
    mut stream: &UnixStream,
    since: &mut String,
    page: &mut EventPage<'_>,
) -> Result<StreamEnd> {
    let (mut unfinished, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if !wait_for_lines(&stream)? {
            return Ok(StreamEnd::ByReader);
        }
        let read = match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return Ok(StreamEnd::ByDaemon),
            Ok(read) => read,
        };
        unfinished.extend_from_slice(bytes.get(..read).unwrap_or_default());
        let whole = unfinished.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = unfinished.drain(..whole).collect();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(line)
                .map_err(|error| Error::json(&error))
                .doing(|| "reading an event")?;
            page.add(&event)?;
            event["cursor"].as_str().unwrap_or_default().clone_into(since);
        }
    }
}

/// The output, which is written as events arrive.
struct EventPage<'w> {
    wanted: &'w Events,
    format: Format,
    count: usize,
}

impl EventPage<'_> {
    fn add(&mut self, event: &Value) -> Result<()> {
        if !self.wanted.admits(event) {
            return Ok(());
        }
        self.count += 1;
        match self.format {
            Format::Json => print(format!("{event}\n").as_bytes())?,
            Format::Yaml => print(format!("---\n{}", yaml::yaml(event)).as_bytes())?,
            Format::Page | Format::Wide | Format::Name | Format::Junit => {
                let heading = ["TIME", "KIND", "PLUGIN", "ABOUT"].map(ToOwned::to_owned);
                let heading = format!("{}  DETAIL\n", columns(heading, false));
                let heading = if self.count == 1 { &*heading } else { "" };
                let fits = fits_columns(self.format);
                print_page(&format!("{heading}{}", shown(event, fits)), paint::plain)?
            }
        };
        Ok(())
    }
}

/// Formats an event for people.
fn shown(event: &Value, fits: bool) -> String {
    let of = |member: &str| printable(event[member].as_str().unwrap_or_default());
    let or_dash = |word: String| if word.is_empty() { "-".to_owned() } else { word };
    let time = of("time").chars().take(19).collect::<String>() + "Z";
    let first = [time, of("kind"), or_dash(of("plugin")), or_dash(about(event))];
    let mut words = vec![columns(first, fits)];
    words.extend(["event", "field"].map(of));
    for (member, name) in [("exit_code", "exit code"), ("lost", "events")] {
        let number = event[member].as_i64();
        words.extend(number.map(|number| format!("{name} {number}")));
    }
    let rule = of("rule");
    words.push(if rule.is_empty() { rule } else { format!("rule {rule}") });
    words.push(of("reason"));
    words.retain(|word| !word.is_empty());
    words.join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        events: Events,
    }

    fn event(kind: &str, namespace: &str, pod: &str, labels: Value) -> Value {
        let pod_id = if pod.is_empty() { String::new() } else { format!("id-{pod}") };
        json!({"cursor": "1-1", "time": "2026-11-22T10:15:00.5Z", "kind": kind, "namespace": namespace,
            "pod": pod, "pod_id": pod_id, "container": "app", "container_id": "c1", "plugin": "10-a",
            "reason": "no", "event": "create", "rule": "", "field": "", "engine": "cri-o", "labels": labels})
    }

    #[test]
    fn filters_select_events_but_never_hide_lost_ones() {
        let list = [
            event("refused", "shop", "web", json!({"app": "web"})),
            event("exited", "shop", "db", Value::Null),
            event("connected", "", "", Value::Null),
            event("lost", "", "", Value::Null),
        ];
        let mut updated = event("updated", "shop", "web", Value::Null);
        updated["plugin"] = json!("10-a,20-b");
        for (plugin, is_wanted) in
            [("b", true), ("20-b", true), ("10-a", true), ("a,20-b", false), ("c", false)]
        {
            let line = Line::try_parse_from(["--plugin", plugin]).unwrap();
            assert_eq!(line.events.admits(&updated), is_wanted, "{plugin}");
        }
        for (words, wanted) in [
            (&[][..], "refused exited connected lost"),
            (&["-n", "shop"], "refused exited lost"),
            (&["-n", "s*", "--engine", "cri-o", "--kind", "refused,started"], "refused lost"),
            (&["--engine", "podman"], "lost"),
            (&["-l", "app=web"], "refused exited lost"),
            (&["-l", "app!=web"], "exited lost"),
            (&["--pod", "shop/web"], "refused lost"),
            (&["--pod", "id-d"], "exited lost"),
            (&["--plugin", "a", "--container", "c1"], "refused exited connected lost"),
            (&["--plugin", "b"], "lost"),
        ] {
            let line = Line::try_parse_from(words).unwrap();
            let admitted = list.iter().filter(|event| line.events.admits(event));
            let kinds: Vec<&str> = admitted.map(|event| event["kind"].as_str().unwrap()).collect();
            assert_eq!(kinds.join(" "), wanted, "{words:?}");
        }
    }

    #[test]
    fn meaningless_arguments_are_a_usage_error() {
        for words in [["--since", "5m"], ["--since", "1"], ["--kind", "died"], ["-l", "=x"]] {
            assert!(Line::try_parse_from(words).is_err(), "{words:?}");
        }
        for since in ["0", "now", "18bd3f00-7"] {
            assert!(Line::try_parse_from(["--since", since]).is_ok(), "{since}");
        }
    }

    #[test]
    fn a_text_line_has_the_fields_of_its_kind() {
        let refused = shown(&event("refused", "shop", "web", Value::Null), false);
        let wanted = "2026-11-22T10:15:00Z  refused       10-a              shop/web/app              create  no";
        assert_eq!(refused, wanted);
        let mut exited = event("exited", "shop", "web", Value::Null);
        exited["exit_code"] = json!(137);
        assert!(shown(&exited, false).contains("exit code 137"), "{}", shown(&exited, false));
        let mut hostile = event("lost", "\u{1b}[2J", "x", Value::Null);
        hostile["lost"] = json!(3);
        let shown = shown(&hostile, false);
        assert!(shown.contains("events 3") && !shown.contains('\u{1b}'), "{shown}");
    }
}
