// SPDX-License-Identifier: Apache-2.0
//! `pods`: lists pods and their containers, in a table the newest pod first. The daemon sends all
//! pods; this command filters them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use crate::answers::{AdminRequest, ContainerRow, PodRow};
use crate::config::Config;
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::glob;
use crate::named::Named;
use crate::text::{printable, short_id};

use super::output::{Answer, Format, ListOutput, print, tell};
use super::show::{ago, fit, or_dash, screen, table};
use super::watch::{ListRow, WatchedList, watch};
use super::{ask, paint};

/// The arguments of `pods`.
#[derive(Debug, Args)]
pub(super) struct Pods {
    #[command(flatten)]
    filter: PodFilter,
    /// Only pods or containers in this state.
    #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(STATES), hide_possible_values = true)]
    state: Vec<String>,
    /// List, then print changes until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    pub(super) output: ListOutput,
}

/// Selects pods.
#[derive(Debug, Args)]
pub(super) struct PodFilter {
    /// Only this namespace, or NAME* (repeatable).
    #[arg(short, long, value_name = "NS")]
    namespace: Vec<String>,
    /// Only with label KEY, KEY=VALUE or KEY!=VALUE.
    #[arg(short, long, value_name = "LABEL", value_delimiter = ',', value_parser = label)]
    label: Vec<LabelFilter>,
    /// Only this engine.
    #[arg(long, value_name = "ENGINE", value_parser = PossibleValuesParser::new(EngineKind::names()), hide_possible_values = true)]
    engine: Vec<String>,
}

/// A label that a pod must have, or must not have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelFilter {
    key: String,
    value: Option<String>,
    is_wanted: bool,
}

/// The states that `--state` accepts, of pods and containers.
const STATES: [&str; 6] = ["creating", "created", "paused", "ready", "running", "stopped"];

fn label(text: &str) -> std::result::Result<LabelFilter, String> {
    let (key, value, is_wanted) = match text.split_once('=') {
        None => (text, None, true),
        Some((key, value)) => match key.strip_suffix('!') {
            Some(key) => (key, Some(value), false),
            None => (key, Some(value.strip_prefix('=').unwrap_or(value)), true),
        },
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err("expected KEY, KEY=VALUE or KEY!=VALUE".to_owned());
    }
    Ok(LabelFilter { key: key.to_owned(), value: value.map(ToOwned::to_owned), is_wanted })
}

impl LabelFilter {
    fn admits(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        let has_it = match &self.value {
            None => found.is_some(),
            Some(value) => found == Some(value),
        };
        has_it == self.is_wanted
    }
}

impl PodFilter {
    /// Whether the filter admits a pod. A pod whose labels are unknown passes every label filter.
    pub(super) fn admits(&self, pod: &PodRow) -> bool {
        let is_any = |wanted: &[String], found: &str| {
            wanted.is_empty() || wanted.iter().any(|wanted| glob::matches(wanted, found))
        };
        let has = |labels| self.label.iter().all(|label| label.admits(labels));
        is_any(&self.namespace, &pod.namespace)
            && is_any(&self.engine, &pod.engine)
            && pod.labels.as_ref().is_none_or(has)
    }

    /// Whether the filter admits every pod.
    pub(super) fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.engine.is_empty() && self.label.is_empty()
    }
}

impl Pods {
    fn admits(&self, pod: &PodRow) -> bool {
        let states = pod.containers.iter().map(|container| container.state.name());
        let mut states = std::iter::once(pod.state.name()).chain(states);
        self.filter.admits(pod)
            && (self.state.is_empty()
                || states.any(|state| self.state.iter().any(|wanted| wanted == state)))
    }

    /// Returns the pods that the filters admit; fails if labels are wanted and the daemon sent none.
    fn select(&self, mut pods: Vec<PodRow>) -> Result<Vec<PodRow>> {
        if !self.filter.label.is_empty() && pods.iter().any(|pod| pod.labels.is_none()) {
            return Err(Error::new("the running daemon is older and does not list labels")
                .hint("replace it: nri-runc nri reexec"));
        }
        pods.retain(|pod| self.admits(pod));
        Ok(pods)
    }
}

/// Lists the pods.
pub(super) fn pods(config: &Config, wanted: &Pods, format: Format) -> Result<u8> {
    let request = AdminRequest::Pods;
    if wanted.watch {
        let list = WatchedList {
            request,
            head: head(format),
            rows: &|pods| Ok(watched(&wanted.select(pods)?, format, room(format))),
            gone: Some("removed"),
        };
        return watch(config, &list, format);
    }
    let pods = wanted.select(ask(config, &request)?)?;
    if format == Format::Name {
        let names = pods.iter().map(|pod| printable(&pod.full_name()) + "\n");
        return print(names.collect::<String>().as_bytes());
    }
    tell(format, &pods)
}

impl Answer for Vec<PodRow> {
    const PAINTER: fn(&str) -> String = paint::states;

    fn page(&self, format: Format) -> String {
        page(self, format, room(format))
    }
}

fn head(format: Format) -> Vec<&'static str> {
    let mut head = vec!["name", "state", "age", "pid", "engine", "id"];
    if format == Format::Wide {
        head.extend(["uid", "labels"]);
    }
    head
}

/// Returns the terminal's width for a page on a terminal; otherwise `None`, which is no limit.
fn room(format: Format) -> Option<usize> {
    screen().filter(|_| format == Format::Page)
}

/// The indexes of columns of names and IDs, which are shortened if the list is wider than the screen.
const SHORTENED: [usize; 2] = [0, 5];

/// Renders the page; a wide one has whole IDs, UIDs and labels.
fn page(pods: &[PodRow], format: Format, screen: Option<usize>) -> String {
    let mut pods: Vec<&PodRow> = pods.iter().collect();
    pods.sort_by_key(|pod| Reverse(created_at(pod)));
    let mut lines = Vec::new();
    for pod in pods {
        lines.push(row_of_pod(pod, format));
        for container in &pod.containers {
            let mark = if container.found { " (recovered)" } else { "" };
            let name = format!("  {}{mark}", id(&container.name, format));
            lines.push(row_of_container(container, name, String::new(), format));
        }
    }
    fit(&head(format), &mut lines, &SHORTENED, screen);
    table(&head(format), &lines)
}

/// Returns the earliest creation time of the pod and its containers, because an older daemon reports no
/// creation times of pods.
fn created_at(pod: &PodRow) -> i64 {
    let times = pod.containers.iter().map(|container| container.times.created_at);
    let times = std::iter::once(pod.created_at).chain(times).filter(|at| *at > 0);
    times.min().unwrap_or_default()
}

/// Shortens an ID, or a name that an engine generated, unless the page is wide.
fn id(whole: &str, format: Format) -> String {
    let whole = printable(whole);
    if format == Format::Wide { whole } else { short_id(&whole).to_owned() }
}

fn row_of_pod(pod: &PodRow, format: Format) -> Vec<String> {
    // A container on an engine without pods has a pod whose name is the container's ID.
    let name = match pod.id == pod.name {
        true => id(&pod.id, format),
        false => printable(&pod.full_name()),
    };
    let mut row = vec![
        name,
        pod.state.name().to_owned(),
        ago(created_at(pod)),
        "-".to_owned(),
        printable(&pod.engine),
        id(&pod.id, format),
    ];
    if format == Format::Wide {
        let uid = printable(&pod.uid);
        let labels = pod.labels.iter().flatten();
        let labels = labels.map(|(key, value)| printable(&format!("{key}={value}")));
        let labels = labels.collect::<Vec<_>>().join(",");
        row.extend([uid, labels].map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }
    row
}

fn row_of_container(
    container: &ContainerRow,
    name: String,
    engine: String,
    format: Format,
) -> Vec<String> {
    vec![
        name,
        container.state.name().to_owned(),
        ago(container.times.created_at),
        or_dash(container.pid),
        engine,
        id(&container.id, format),
    ]
}

/// Returns the rows of `--watch`. Each row names both pod and container, because it is printed
/// alone.
fn watched(pods: &[PodRow], format: Format, screen: Option<usize>) -> Vec<ListRow> {
    let mut rows = Vec::new();
    for pod in pods {
        let cells = row_of_pod(pod, format);
        let key = pod.id.clone();
        if !format.is_page() {
            let (document, name) = (json!(pod), pod.full_name());
            rows.push(ListRow { key, compared: document.to_string(), cells, name, document });
            continue;
        }
        let (name_of_pod, engine) = (cells[0].clone(), printable(&pod.engine));
        let compared = pod.state.name().to_owned();
        let document = Value::Null;
        rows.push(ListRow { key: key.clone(), compared, cells, name: String::new(), document });
        for container in &pod.containers {
            let name = format!("{name_of_pod}/{}", id(&container.name, format));
            let cells = row_of_container(container, name, engine.clone(), format);
            let compared = format!("{:?}", (container.state, container.pid));
            let (key, name) = (format!("{key}/{}", container.id), String::new());
            rows.push(ListRow { key, compared, cells, name, document: Value::Null });
        }
    }
    if format.is_page() {
        let mut cells: Vec<_> = rows.iter_mut().map(|row| std::mem::take(&mut row.cells)).collect();
        fit(&head(format), &mut cells, &SHORTENED, screen);
        rows.iter_mut().zip(cells).for_each(|(row, cells)| row.cells = cells);
    }
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::answers::ContainerState;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        pods: Pods,
    }

    fn list() -> Vec<PodRow> {
        let pod = |namespace: &str, name: &str, at: i64, labels: Value| {
            json!({"id": format!("id-{name}"), "name": name, "namespace": namespace, "uid": "u",
                "state": "ready", "engine": "containerd-cri", "labels": labels, "created_at": at,
                "containers": [{"id": format!("c-{name}"), "name": "app", "state": "running",
                    "pid": 7, "created_at": at + 1}]})
        };
        rows(&json!([
            pod("shop", "web", 1, json!({"app": "web", "tier": "front"})),
            pod("shop", "db", 3, json!({"app": "db"})),
            pod("kube-system", "dns", 2, json!({})),
        ]))
    }

    fn rows(document: &Value) -> Vec<PodRow> {
        serde_json::from_value(document.clone()).unwrap()
    }

    fn selected(words: &[&str]) -> String {
        let line = Line::try_parse_from(words).unwrap();
        let pods = line.pods.select(list()).unwrap();
        pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn filters_select_by_namespace_label_engine_and_state() {
        for (words, wanted) in [
            (&[][..], "web db dns"),
            (&["-n", "shop"], "web db"),
            (&["-n", "shop", "--namespace", "kube-*"], "web db dns"),
            (&["-l", "app"], "web db"),
            (&["-l", "app=web"], "web"),
            (&["-l", "app==db"], "db"),
            (&["-l", "app!=web"], "db dns"),
            (&["-l", "app=web,tier=front"], "web"),
            (&["-l", "app=web", "-l", "tier=back"], ""),
            (&["--engine", "containerd-cri", "--state", "ready"], "web db dns"),
            (&["--engine", "podman"], ""),
            (&["--state", "stopped"], ""),
        ] {
            assert_eq!(selected(words), wanted, "{words:?}");
        }
    }

    #[test]
    fn an_invalid_filter_is_a_usage_error() {
        for words in [["-l", "=x"], ["-l", "a b"], ["--engine", "dokcer"], ["--state", "dead"]] {
            assert!(Line::try_parse_from(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_label_filter_fails_if_an_older_daemon_sends_no_labels() {
        let line = Line::try_parse_from(["-l", "app"]).unwrap();
        let error = line.pods.select(rows(&json!([{"id": "a"}]))).unwrap_err().to_string();
        assert!(error.contains("older") && error.contains("reexec"), "{error}");
    }

    #[test]
    fn the_newest_pod_comes_first_and_the_wide_page_has_labels() {
        let page_of = |format| page(&list(), format, None);
        let narrow = page_of(Format::Page);
        let at = |name: &str| narrow.find(name).unwrap();
        assert!(at("shop/db") < at("dns") && at("dns") < at("shop/web"), "{narrow}");
        assert!(!narrow.contains("tier=front"), "{narrow}");
        let wide = page_of(Format::Wide);
        assert!(wide.contains("app=web,tier=front") && wide.contains("LABELS"), "{wide}");
    }

    #[test]
    fn long_names_and_ids_fit_the_screen_and_a_pipe_gets_them_whole() {
        let (name, id) = ("checkout-service-deployment-7d9f8b6c5d-".repeat(2), "id-".repeat(30));
        let member = json!({"id": id, "name": name, "state": "running", "pid": 4_194_303});
        let list = rows(&json!([{"id": id, "name": name, "namespace": "payments-production",
            "uid": "u", "state": "ready", "engine": "containerd-cri", "created_at": 1,
            "containers": [member]}]));
        let fits = |page: &str| page.lines().all(|line| line.chars().count() <= 80);
        let narrow = page(&list, Format::Page, Some(80));
        assert!(fits(&narrow) && narrow.contains("payment"), "{narrow}");
        let rows = watched(&list, Format::Page, Some(80));
        let cells: Vec<_> = rows.into_iter().map(|row| row.cells).collect();
        assert!(fits(&table(&head(Format::Page), &cells)), "{cells:?}");
        let whole = page(&list, Format::Page, None);
        assert!(!fits(&whole) && whole.contains(&name) && whole.contains(&id), "{whole}");
    }

    #[test]
    fn a_pod_has_the_name_that_explain_accepts() {
        assert_eq!(list()[0].full_name(), "shop/web");
        let handle = |pod: Value| rows(&json!([pod]))[0].full_name();
        assert_eq!(handle(json!({"id": "c1", "name": "c1", "namespace": "plain"})), "c1");
        assert_eq!(handle(json!({"id": "c1", "name": "web", "namespace": ""})), "web");
        assert_eq!(handle(json!({"id": "c1"})), "c1");
    }

    #[test]
    fn a_watched_row_is_compared_without_its_age() {
        let (mut list, format) = (list(), Format::Page);
        let rows = |list: &[PodRow]| watched(list, format, None);
        let before = rows(&list);
        assert_eq!(before[1].cells[0], "shop/web/app");
        list[0].containers[0].state = ContainerState::Stopped;
        let after = rows(&list);
        let changed = before.iter().zip(&after).filter(|(one, two)| one.compared != two.compared);
        assert_eq!(
            changed.map(|(one, _)| one.key.as_str()).collect::<Vec<_>>(),
            [before[1].key.as_str()]
        );
    }
}
