// SPDX-License-Identifier: Apache-2.0
//! The page of `top`: a few lines about the node, then plugins, commands, failures and pods, cut to
//! the size of the terminal.

use crate::admin::show::{ago, lines_of, name_of_pod, or_dash, table};
use crate::answers::{ContainerState, PodRow};
use crate::limits;
use crate::text::{counted, printable, span};

use super::sample::Document;

/// Renders the page; `size` is the terminal's, in columns and rows, `None` to cut nothing.
pub(super) fn page(document: &Document, size: Option<(usize, usize)>) -> String {
    let mut lines = head(document);
    let limit = |most: usize| size.map_or(usize::MAX, |_| most);
    add_section(&mut lines, plugins(document), limit(limits::TOP_PLUGINS));
    add_section(&mut lines, requests(document), usize::MAX);
    let width = size.map_or(usize::MAX, |(width, _)| width);
    add_section(&mut lines, failures(document, width), limit(limits::TOP_FAILURES));
    // Pods take the rest of the screen, less a blank line, their heading, and the line with the
    // number of further pods.
    let rest = size.map_or(usize::MAX, |(_, height)| height.saturating_sub(lines.len() + 3));
    add_section(&mut lines, pods(document), rest);
    fit(lines, size)
}

/// Renders the page that is shown while the daemon does not respond.
pub(super) fn failure(problem: &str, size: (usize, usize)) -> String {
    let problem = printable(problem);
    fit(
        vec![format!("{}  {problem}", now()), String::new(), "Trying again.".to_owned()],
        Some(size),
    )
}

fn fit(mut lines: Vec<String>, size: Option<(usize, usize)>) -> String {
    if let Some((width, height)) = size {
        lines.truncate(height);
        for line in &mut lines {
            *line = line.chars().take(width).collect();
        }
    }
    lines.join("\n") + "\n"
}

fn now() -> String {
    crate::text::rfc3339(std::time::SystemTime::now())
}

fn head(document: &Document) -> Vec<String> {
    let (version, pid) = (printable(&document.version), document.pid);
    let uptime = span(document.uptime_seconds);
    let mut lines = vec![format!("nri-runc {version}  {}  daemon {pid} up {uptime}", now())];
    let states = document.containers.iter().filter(|(_, count)| **count > 0.0);
    let states: Vec<String> =
        states.map(|(state, count)| format!("{count:.0} {}", printable(state))).collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    lines.push(format!(
        "{} ({} ready)  containers: {states}",
        counted(document.pods.known, "pod"),
        document.pods.ready
    ));
    if let Some(by) = &document.disabled_by {
        lines.push(format!("PLUGINS ARE DISABLED by {}", printable(by)));
    }
    if document.plugin_socket != "open" {
        lines.push(format!("plugin socket: {}", printable(&document.plugin_socket)));
    }
    lines
}

/// Adds a blank line, the heading, at most `most` rows, and a line with the number of further
/// rows.
fn add_section(lines: &mut Vec<String>, section: String, most: usize) {
    let mut rows = section.lines();
    let Some(heading) = rows.next() else { return };
    let rows: Vec<&str> = rows.collect();
    lines.extend([String::new(), heading.to_owned()]);
    lines.extend(rows.iter().take(most).map(|row| (*row).to_owned()));
    if rows.len() > most {
        lines.push(format!("... and {} more", rows.len() - most));
    }
}

fn plugins(document: &Document) -> String {
    let head =
        ["plugin", "state", "pid", "req/s", "mean", "p99", "queue", "errors", "skips", "refusals"];
    let rows = document.plugins.iter().map(|plugin| {
        vec![
            printable(&plugin.plugin),
            plugin.state.name().to_owned(),
            or_dash(plugin.pid),
            rate(plugin.per_second),
            time(plugin.mean_seconds),
            time(plugin.p99_seconds),
            time(plugin.queue_mean_seconds),
            number(plugin.errors),
            number(plugin.skips),
            number(plugin.refusals),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() { "no plugins\n".to_owned() } else { table(&head, &rows) }
}

fn requests(document: &Document) -> String {
    let head = ["command", "req/s", "mean", "p99", "proceeded", "refused", "bypassed"];
    let rows = document.requests.iter().map(|request| {
        vec![
            printable(&request.verb),
            rate(request.per_second),
            time(request.mean_seconds),
            time(request.p99_seconds),
            number(request.proceeded),
            number(request.refused),
            number(request.bypassed),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() { String::new() } else { table(&head, &rows) }
}

/// Renders the failures, latest first. A long line continues in further rows, because its end has
/// the reason.
fn failures(document: &Document, width: usize) -> String {
    let failures = document.failures.iter().rev();
    let rows: Vec<Vec<String>> = failures
        .flat_map(|failure| {
            let width = width.saturating_sub("23h59m  TIMES  ".len());
            let lines = lines_of("", &printable(&failure.what), width, "");
            let first = [ago(failure.at), failure.count.to_string()];
            let starts = std::iter::once(first).chain(std::iter::repeat_with(Default::default));
            starts.zip(lines).map(|([ago, times], line)| vec![ago, times, line]).collect::<Vec<_>>()
        })
        .collect();
    if rows.is_empty() { String::new() } else { table(&["ago", "times", "failure"], &rows) }
}

/// Renders the pods, most recently changed first.
fn pods(document: &Document) -> String {
    let mut pods: Vec<&PodRow> = document.pod_list.iter().collect();
    let newest = |pod: &PodRow| {
        let times = pod.containers.iter().map(|container| &container.times);
        let times = times.flat_map(|at| [at.created_at, at.started_at, at.finished_at]);
        times.max().unwrap_or_default()
    };
    pods.sort_by_cached_key(|pod| std::cmp::Reverse(newest(pod)));
    let rows: Vec<Vec<String>> = pods
        .into_iter()
        .map(|pod| {
            let members = &pod.containers;
            let running =
                members.iter().filter(|member| member.state == ContainerState::Running).count();
            vec![
                printable(&name_of_pod(&pod.namespace, &pod.name)),
                pod.state.name().to_owned(),
                format!("{running}/{}", members.len()),
                ago(newest(pod)),
                printable(&pod.engine),
            ]
        })
        .collect();
    let head = ["pod", "state", "running", "changed", "engine"];
    if rows.is_empty() { String::new() } else { table(&head, &rows) }
}

fn number(number: f64) -> String {
    format!("{number:.0}")
}

fn rate(rate: Option<f64>) -> String {
    or_dash(rate.map(|rate| format!("{rate:.1}")))
}

/// Formats seconds in a unit that needs few digits.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0}us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.2}s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(document: Value) -> Document {
        serde_json::from_value(document).unwrap()
    }

    fn sample() -> Document {
        let plugin = |n: usize| {
            json!({"plugin": format!("{n:02}-a"), "state": "synchronized", "pid": n,
                "per_second": 2.5, "mean_seconds": 0.0004, "p99_seconds": 0.0421,
                "queue_mean_seconds": null, "errors": 1.0, "skips": 0.0, "refusals": 2.0})
        };
        let pod = |n: usize| {
            json!({"name": format!("web-{n}\u{1b}[2J"), "namespace": "shop", "state": "ready",
                "engine": "containerd", "containers": [{"state": "running", "created_at": n + 1}]})
        };
        of(json!({"version": "0.1.0", "pid": 7, "uptime_seconds": 61, "plugin_socket": "open",
            "pods": {"known": 50, "ready": 50}, "containers": {"running": 50.0, "stopped": 0.0},
            "plugins": (0..30).map(plugin).collect::<Vec<_>>(),
            "requests": [{"verb": "create", "per_second": 1.0, "mean_seconds": 1.5,
                "p99_seconds": null, "proceeded": 9.0, "refused": 1.0, "bypassed": 0.0}],
            "pod_list": (0..50).map(pod).collect::<Vec<_>>(),
            "failures": [{"at": 5, "count": 3, "what": "create c1: no"}]}))
    }

    #[test]
    fn a_page_for_a_pipe_has_everything_and_no_escape() {
        let page = page(&sample(), None);
        for wanted in [
            "nri-runc 0.1.0",
            "daemon 7 up 1m1s",
            "50 pods (50 ready)  containers: 50 running",
            "29-a    synchronized  29   2.5    400us  42.1ms  -      1       0      2",
            "create   1.0    1.50s  -    9          1        0",
            "3      create c1: no",
            "shop/web-49\\u{1b}[2J  ready  1/1",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        assert!(!page.contains('\u{1b}') && !page.contains("more"), "{page}");
        let (newest, oldest) = (page.find("web-49").unwrap(), page.find("web-0").unwrap());
        assert!(newest < oldest, "the newest comes first");
    }

    #[test]
    fn a_page_fits_its_terminal() {
        for size in [(80, 24), (40, 10), (200, 60), (1, 1)] {
            let page = page(&sample(), Some(size));
            assert!(page.lines().count() <= size.1, "{size:?}: {page}");
            assert!(page.lines().all(|line| line.chars().count() <= size.0), "{size:?}: {page}");
        }
        let page = page(&sample(), Some((120, 60)));
        assert!(page.contains("... and 10 more"), "{page}");
        assert!(page.lines().last().unwrap().starts_with("... and"), "pods are cut last: {page}");
    }

    #[test]
    fn the_reason_at_the_end_of_a_long_failure_is_on_the_screen() {
        let what = "create 3ed05dbf8edc (web) is refused: the plugin 10-policy answered: the image has no signature";
        let document = of(json!({"failures": [{"at": 5, "count": 3, "what": what}]}));
        let page = page(&document, Some((80, 24)));
        assert!(page.contains("no signature"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }

    #[test]
    fn idle_and_disabled_nodes_are_shown_as_such() {
        let idle =
            of(json!({"plugin_socket": "not open: x", "disabled_by": "nri-runc nri disable"}));
        let page = page(&idle, None);
        assert!(page.contains("no plugins") && page.contains("0 pods (0 ready)  containers: none"));
        assert!(page.contains("PLUGINS ARE DISABLED") && page.contains("plugin socket: not open"));
        assert!(failure("gone\u{1b}", (80, 24)).contains("gone\\u{1b}"));
    }
}
