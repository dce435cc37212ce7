// SPDX-License-Identifier: Apache-2.0
//! The end of an installation, before the permissions of its pods are removed: nothing is begun while a
//! pod names the RuntimeClass; then the DaemonSet is deleted, and its pods clean their nodes. It prints
//! which pod or node delays the end.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::api::ApiServer;
use crate::{Failure, Result};

/// Interval of checks whether the pods have ended.
const POLL: Duration = Duration::from_secs(1);
/// Number of pods that a line names.
const NAMED: usize = 5;
/// Objects in one page of a list.
const PAGE: u32 = 500;

/// The installation to remove.
#[derive(Debug)]
pub(crate) struct Installed<'n> {
    /// The namespace of the DaemonSet.
    pub(crate) namespace: &'n str,
    /// The name of the DaemonSet.
    pub(crate) name: &'n str,
    /// The RuntimeClass.
    pub(crate) class: &'n str,
    /// The key of the label of nodes that have nri-runc; empty if there is none.
    pub(crate) label: &'n str,
}

/// Removes the installation.
///
/// # Errors
/// Fails without a change while pods name the RuntimeClass. Fails later if a pod of the DaemonSet does not end
/// in time, or if a node kept nri-runc because a container needs it.
pub(crate) fn remove(
    server: &ApiServer,
    installed: &Installed<'_>,
    within: Duration,
) -> Result<()> {
    let users = all(server, "/api/v1/pods", |pod| uses(pod, installed.class).then(|| named(pod)))?;
    if !users.is_empty() {
        return Err(Failure::new(format!(
            "nothing was removed: the RuntimeClass {} is in use by {}; delete them first",
            installed.class,
            counted(&users)
        )));
    }
    let path =
        format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", installed.namespace, installed.name);
    let deletion = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}"#;
    match server.request("DELETE", &path, deletion) {
        Ok(_) => log(&format!("deleting the DaemonSet {}/{}", installed.namespace, installed.name)),
        Err(failure) if failure.code == Failure::NOT_FOUND => {}
        Err(failure) => return Err(failure),
    }
    await_pods(server, installed, &path, within)?;
    if installed.label.is_empty() {
        return Ok(());
    }
    let labelled = format!("/api/v1/nodes?labelSelector={}", in_query(installed.label));
    let kept = all(server, &labelled, |node| {
        Some(node["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    })?;
    if kept.is_empty() {
        log("nri-runc is removed from all nodes");
        return Ok(());
    }
    Err(Failure::new(format!(
        "nri-runc stays on {}: containers there need it, or the node could not be cleaned; install it \
         again, remove these containers, then uninstall",
        counted(&kept)
    )))
}

/// Waits until the DaemonSet is gone, which is when its last pod is.
fn await_pods(
    server: &ApiServer,
    installed: &Installed<'_>,
    path: &str,
    within: Duration,
) -> Result<()> {
    let deadline = Instant::now() + within;
    let mut was = String::new();
    loop {
        match server.request("GET", path, "") {
            Err(failure) if failure.code == Failure::NOT_FOUND => return Ok(()),
            // The server may be unavailable for a moment.
            Ok(_) | Err(_) => {}
        }
        let pods = format!("/api/v1/namespaces/{}/pods", installed.namespace);
        let left = all(server, &pods, |pod| is_of(pod, installed.name).then(|| on_node(pod)));
        let left = left.map_or_else(|failure| failure.text, |left| counted(&left));
        if left != was {
            log(&format!("waiting for {left}"));
            was.clone_from(&left);
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(format!(
                "not removed within {} s: waiting for {left} (kubectl logs says why)",
                within.as_secs()
            )));
        }
        std::thread::sleep(POLL);
    }
}

/// The results of `pick` for all objects of a list, page by page.
fn all(
    server: &ApiServer,
    path: &str,
    pick: impl Fn(&Value) -> Option<String>,
) -> Result<Vec<String>> {
    let mut picked = Vec::new();
    let mut next = String::new();
    loop {
        let and = if path.contains('?') { '&' } else { '?' };
        let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let list = server.get(&format!("{path}{and}limit={PAGE}{more}"))?;
        picked.extend(list["items"].as_array().into_iter().flatten().filter_map(&pick));
        next = in_query(list["metadata"]["continue"].as_str().unwrap_or_default());
        if next.is_empty() {
            return Ok(picked);
        }
    }
}

/// Whether a pod has containers of this RuntimeClass. The containers of an ended pod are gone.
fn uses(pod: &Value, class: &str) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    pod["spec"]["runtimeClassName"] == class && !["Succeeded", "Failed"].contains(&phase)
}

fn is_of(pod: &Value, daemonset: &str) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().any(|owner| owner["kind"] == "DaemonSet" && owner["name"] == daemonset)
}

fn named(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn on_node(pod: &Value) -> String {
    format!("{} on {}", named(pod), pod["spec"]["nodeName"].as_str().unwrap_or("no node"))
}

fn counted(names: &[String]) -> String {
    match names {
        [] => "the DaemonSet itself".to_owned(),
        few if few.len() <= NAMED => few.join(", "),
        many => format!("{}, and {} more", many[..NAMED].join(", "), many.len() - NAMED),
    }
}

/// Escapes `text` for a URL's query.
fn in_query(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let bytes = text.bytes().map(|byte| match byte {
        plain if is_plain(plain) => char::from(plain).to_string(),
        other => format!("%{other:02X}"),
    });
    bytes.collect()
}

fn log(line: &str) {
    let _nobody_reads = writeln!(std::io::stdout(), "nri-runc: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_uses_the_class_until_it_has_ended() {
        let pod = |class: Value, phase: &str| json!({"spec": {"runtimeClassName": class}, "status": {"phase": phase}});
        assert!(uses(&pod(json!("nri-runc"), "Running"), "nri-runc"));
        assert!(uses(&pod(json!("nri-runc"), "Pending"), "nri-runc"));
        assert!(!uses(&pod(json!("nri-runc"), "Succeeded"), "nri-runc"));
        assert!(!uses(&pod(json!("nri-runc"), "Failed"), "nri-runc"));
        assert!(!uses(&pod(json!("gvisor"), "Running"), "nri-runc"));
        assert!(!uses(&pod(Value::Null, "Running"), "nri-runc"));
    }

    #[test]
    fn a_long_list_of_pods_is_cut_and_the_rest_counted() {
        let names: Vec<String> = (0..8).map(|number| format!("a/{number}")).collect();
        assert_eq!(counted(&names), "a/0, a/1, a/2, a/3, a/4, and 3 more");
        assert_eq!(counted(&names[..2]), "a/0, a/1");
    }

    #[test]
    fn labels_and_page_tokens_are_query_encoded() {
        assert_eq!(in_query("nri-runc.dev/ready"), "nri-runc.dev%2Fready");
        assert_eq!(in_query("a=&b+"), "a%3D%26b%2B");
    }
}
