// SPDX-License-Identifier: Apache-2.0
//! `events`: prints the events that the daemon stores; with `--follow` it then prints new ones.
//! After a re-execution or restart of the daemon it continues after the last event; a line says how
//! many events were lost.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use serde_json::Value;

use crate::answers::{AdminRequest, EventsBegin, PodRow};
use crate::audit::LoggedLine;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::named::Named;
use crate::stream::{EventKind, Since};
use crate::wrapper;

use super::audit::{SubjectFilter, columns, fits_columns, row};
use super::exit::DONE;
use super::output::{Format, PageOutput, complain, print, print_page};
use super::pods::PodFilter;
use super::watch::{has_reader, wait_for_lines, whole_lines};
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

/// Returns an event's pod, with the fields that the filters need.
fn pod_of(event: &LoggedLine) -> PodRow {
    let LoggedLine { labels, subject, .. } = event.clone();
    PodRow { namespace: subject.namespace, engine: subject.engine, labels, ..PodRow::default() }
}

impl Events {
    /// Whether the filters admit an event. A line about lost events always passes.
    fn admits(&self, event: &LoggedLine) -> bool {
        let is_kind = self.kind.is_empty() || self.kind.contains(&event.action);
        let is_pods = self.pods.is_empty()
            || !event.subject.pod_id.is_empty() && self.pods.admits(&pod_of(event));
        event.action == "lost" || is_kind && is_pods && self.subject.filter().admits(event)
    }
}

/// Prints the events.
///
/// # Errors
/// Fails when the daemon does not run (with `--follow`: at the start), when an event cannot be parsed, and
/// when the output cannot be written.
pub(super) fn events(config: &Config, wanted: &Events, format: Format) -> Result<u8> {
    let mut page = EventPage { wanted, format, count: 0 };
    if !wanted.follow {
        let request = AdminRequest::Events { since: wanted.since.clone(), follow: false };
        for event in ask::<Vec<_>>(config, &request)? {
            page.add(&event)?;
        }
        return match page.count {
            0 if format.is_page() => print_page("no events", paint::plain),
            _ => Ok(DONE),
        };
    }
    let (mut since, mut is_away) = (wanted.since.clone(), None);
    loop {
        match (open(config, &mut since), is_away) {
            (Ok(stream), _) => {
                is_away = Some(false);
                match follow(&stream, &mut since, &mut page)? {
                    StreamEnd::ByReader => return Ok(DONE),
                    // The next attempt to connect shows whether a daemon runs.
                    StreamEnd::ByDaemon => {}
                }
            }
            (Err(error), None) => return Err(error),
            (Err(error), Some(false)) => {
                is_away = Some(true);
                complain(&format!("{error}; waiting for it"));
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

/// Opens the stream of events. Replaces `0` or `now` in `since` with the cursor at which the stream begins,
/// so that a reconnection before the first event misses nothing.
pub(super) fn open(config: &Config, since: &mut String) -> Result<UnixStream> {
    let request = AdminRequest::Events { since: since.clone(), follow: true };
    let (answer, stream) = wrapper::admin_stream(config, &request)?;
    stream.set_read_timeout(None)?;
    let answer: EventsBegin = serde_json::from_str(&answer).unwrap_or_default();
    // A daemon of an earlier version sends no cursor.
    if ["0", "now"].contains(&since.as_str()) && !answer.cursor.is_empty() {
        *since = answer.cursor;
    }
    Ok(stream)
}

/// Prints the events of one connection; sets `since` to the cursor of the last event.
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
        let lines = whole_lines(&mut unfinished, bytes.get(..read).unwrap_or_default());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(line)
                .map_err(|error| Error::json(&error))
                .doing(|| "reading an event")?;
            *since = page.add(&event)?;
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
    /// Prints an event if the filters admit it; returns its cursor.
    fn add(&mut self, event: &Value) -> Result<String> {
        let line = LoggedLine::deserialize(event)
            .map_err(|error| Error::json(&error))
            .doing(|| "reading an event")?;
        if !self.wanted.admits(&line) {
            return Ok(line.cursor);
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
                print_page(&format!("{heading}{}", shown(&line, fits)), paint::plain)?
            }
        };
        Ok(line.cursor)
    }
}

/// Formats an event for people.
fn shown(event: &LoggedLine, fits: bool) -> String {
    let code = event.exit_code.map(|code| format!("exit code {code}"));
    let lost = event.lost.map(|lost| format!("events {lost}"));
    row(event, code.or(lost).unwrap_or_default(), fits)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        events: Events,
    }

    fn event(kind: &str, namespace: &str, pod: &str, labels: Value) -> LoggedLine {
        let pod_id = if pod.is_empty() { String::new() } else { format!("id-{pod}") };
        let line = json!({"cursor": "1-1", "time": "2026-11-22T10:15:00.5Z", "kind": kind, "namespace": namespace,
            "pod": pod, "pod_id": pod_id, "container": "app", "container_id": "c1", "plugin": "10-a",
            "reason": "no", "event": "create", "rule": "", "field": "", "engine": "cri-o", "labels": labels});
        serde_json::from_value(line).unwrap()
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
        updated.plugin = "10-a,20-b".to_owned();
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
            let kinds: Vec<&str> = admitted.map(|event| event.action.as_str()).collect();
            assert_eq!(kinds.join(" "), wanted, "{words:?}");
        }
    }

    #[test]
    fn invalid_option_values_are_a_usage_error() {
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
        exited.exit_code = Some(137);
        assert!(shown(&exited, false).contains("exit code 137"), "{}", shown(&exited, false));
        let mut hostile = event("lost", "\u{1b}[2J", "x", Value::Null);
        hostile.lost = Some(3);
        let shown = shown(&hostile, false);
        assert!(shown.contains("events 3") && !shown.contains('\u{1b}'), "{shown}");
    }
}
