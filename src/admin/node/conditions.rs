// SPDX-License-Identifier: Apache-2.0
//! The conditions and taints of a node for required plugins that are missing: decides which are
//! due, and patches the node. The node is read only from the response to a patch, so that no
//! permission to read is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::cluster::{Failures, NodeApi, needing};
use super::helper::{ApiError, ApiProblem};
use super::log;
use crate::answers::Status;
use crate::error::Error;
use crate::files;
use crate::limits;
use crate::text::{printable, rfc3339};

/// Prefix of each condition's type and each taint's key.
const PREFIX: &str = "nri-runc.dev/missing-";
/// Time for which the daemon's last status stays valid while the daemon does not respond; a restart takes less.
const UNKNOWN_AFTER: Duration = Duration::from_secs(30);
/// Interval of comparisons with the node, which restore conditions that another program removed.
const RECHECK: Duration = Duration::from_secs(300);

/// Keys of conditions and taints, each with the name of its plugin.
type Keys = BTreeMap<String, String>;

/// The missing required plugins of a node, and the conditions that the node has for them.
#[derive(Debug)]
pub(super) struct NodeConditions {
    /// The effect of the taints; `None`: no taints are set.
    effect: Option<String>,
    after: Duration,
    /// Missing plugins, each with the time at which it was first missing.
    missing: BTreeMap<String, Instant>,
    /// Time of the daemon's last answer.
    heard: Option<Instant>,
    /// The keys that the node has, and the time of the last comparison; `None` before the first.
    shown: Option<(Keys, Instant)>,
    failures: Failures,
}

impl NodeConditions {
    pub(super) fn new(effect: Option<String>, after: Duration) -> Self {
        let (missing, failures) = (BTreeMap::new(), Failures::default());
        Self { effect, after, missing, heard: None, shown: None, failures }
    }

    /// Notes the missing plugins of the daemon's status. Once the daemon has not answered for
    /// [`UNKNOWN_AFTER`], forgets them: the next container starts the daemon, so pods must still be
    /// scheduled here.
    pub(super) fn observe(&mut self, status: Option<&Status>) {
        let now = Instant::now();
        let Some(status) = status else {
            if self.heard.is_none_or(|heard| heard.elapsed() >= UNKNOWN_AFTER) {
                self.missing.clear();
            }
            return;
        };
        self.heard = Some(now);
        let names: BTreeSet<String> = status.missing_plugins().map(str::to_owned).collect();
        self.missing.retain(|name, _| names.contains(name));
        for name in names {
            self.missing.entry(name).or_insert(now);
        }
    }

    /// Returns the keys of the conditions that the node should have now.
    fn wanted(&self) -> Keys {
        let due = self.missing.iter().filter(|(_, since)| since.elapsed() >= self.after);
        let due = due.take(limits::NODE_CONDITIONS);
        due.map(|(name, _)| (key(name), name.clone())).collect()
    }

    /// Returns the time until the next missing plugin is due for a condition; `None` if no further one is.
    pub(super) fn next_change(&self) -> Option<Duration> {
        let left = |since: &Instant| self.after.checked_sub(since.elapsed());
        self.missing.values().filter_map(left).min()
    }

    /// Patches the node if that is due. A failure is logged, and the patch is repeated later.
    pub(super) fn report(&mut self, api: &NodeApi) {
        let wanted = self.wanted();
        let is_shown = self
            .shown
            .as_ref()
            .is_some_and(|(shown, at)| *shown == wanted && at.elapsed() < RECHECK);
        if is_shown || !self.failures.may_try() {
            return;
        }
        match reconcile(api, &wanted, self.effect.as_deref()) {
            Ok(()) => self.note(wanted),
            Err(error) => self.failures.add(&error.to_string()),
        }
    }

    /// Removes all conditions and taints.
    pub(super) fn end(&mut self, api: &NodeApi) {
        if self.shown.as_ref().is_some_and(|(shown, _)| shown.is_empty()) {
            return;
        }
        match reconcile(api, &Keys::new(), None) {
            Ok(()) => self.note(Keys::new()),
            Err(error) => log(&error.to_string()),
        }
    }

    /// Records the conditions that the node has now, and logs the changes.
    fn note(&mut self, now: Keys) {
        self.failures.clear();
        let was = self.shown.take().map(|(shown, _)| shown).unwrap_or_default();
        for (key, plugin) in now.iter().filter(|(key, _)| !was.contains_key(*key)) {
            log(&format!("set the condition {key}: the required plugin {plugin} is not connected"));
        }
        for key in was.keys().filter(|key| !now.contains_key(*key)) {
            log(&format!("removed the condition {key}"));
        }
        self.shown = Some((now, Instant::now()));
    }
}

/// Returns the type of a plugin's condition, which is also the key of its taint. If Kubernetes does not accept the
/// plugin's name, the name is cut to half the limit, each invalid character is replaced, and a fingerprint is added.
fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = name.len() <= limits::CONDITION_NAME
        && name.chars().all(is_plain)
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if fits {
        return format!("{PREFIX}{name}");
    }
    let plain = name.chars().map(|c| if is_plain(c) { c } else { '-' });
    let plain: String = plain.take(limits::CONDITION_NAME / 2).collect();
    let print = files::fingerprint(name.as_bytes());
    let print = print.rsplit(':').next().unwrap_or_default();
    format!("{PREFIX}{plain}-{}", print.get(..8).unwrap_or_default())
}

/// Gives the node exactly these conditions and taints with nri-runc's prefix; others stay. A patch replaces the
/// whole list of taints, so if the node was changed since it was read, all is tried again.
fn reconcile(api: &NodeApi, wanted: &Keys, effect: Option<&str>) -> Result<(), Error> {
    let mut tries = 1;
    loop {
        match reconcile_once(api, wanted, effect) {
            Err((error, _))
                if error.problem == ApiProblem::Conflict && tries < limits::CONFLICTS =>
            {
                tries += 1;
            }
            done => return done.map_err(|(_, line)| line),
        }
    }
}

/// Makes one attempt. An error has the API server's error and a line for the log.
fn reconcile_once(
    api: &NodeApi,
    wanted: &Keys,
    effect: Option<&str>,
) -> Result<(), (ApiError, Error)> {
    let (node, path) = (&api.node, format!("/api/v1/nodes/{}", api.node));
    let status = format!("{path}/status");
    // The response to an empty patch is the node.
    let patched = api.send("STRATEGIC", &status, &json!({})).and_then(|node| {
        let changes = condition_changes(&node, wanted);
        if changes.is_empty() {
            return Ok(node);
        }
        api.send("STRATEGIC", &status, &json!({"status": {"conditions": changes}}))
    });
    let patched = patched.map_err(|error| {
        let why = &error.why;
        let line = Error::new(format!("the conditions of the node {node} were not changed: {why}"));
        let line = needing(line, &error, "patch of nodes/status");
        (error, line)
    })?;
    let Some(patch) = taint_change(&patched, wanted, effect) else { return Ok(()) };
    api.send("PATCH", &path, &patch).map(|_node| ()).map_err(|error| {
        let why = &error.why;
        let line = Error::new(format!("the taints of the node {node} were not changed: {why}"));
        let line = needing(line, &error, "patch of nodes");
        (error, line)
    })
}

/// Returns the changes of conditions, as a patch that is merged by type.
fn condition_changes(node: &Value, wanted: &Keys) -> Vec<Value> {
    let there = node["status"]["conditions"].as_array().into_iter().flatten();
    let there = there.filter_map(|one| Some((one["type"].as_str()?, one)));
    let there: BTreeMap<&str, &Value> = there.filter(|(key, _)| key.starts_with(PREFIX)).collect();
    let is_set = |key: &str| there.get(key).is_some_and(|one| one["status"] == "True");
    let now = rfc3339(SystemTime::now());
    let set = wanted.iter().filter(|(key, _)| !is_set(key)).map(|(key, plugin)| {
        json!({
            "type": key,
            "status": "True",
            "reason": "RequiredPluginMissing",
            "message": format!(
                "the required plugin {} is not connected: containers are refused, except in exempt namespaces",
                printable(plugin)
            ),
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    });
    let gone = there.keys().filter(|key| !wanted.contains_key(**key));
    set.chain(gone.map(|key| json!({"$patch": "delete", "type": key}))).collect()
}

/// Returns the patch that sets nri-runc's taints to these, if they differ. The API server refuses
/// the patch if the node has changed since it was read.
fn taint_change(node: &Value, wanted: &Keys, effect: Option<&str>) -> Option<Value> {
    let there = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_ours = |taint: &Value| taint["key"].as_str().is_some_and(|key| key.starts_with(PREFIX));
    let is_wanted = |taint: &Value| {
        let key = taint["key"].as_str().unwrap_or_default();
        wanted.contains_key(key) && taint["effect"].as_str() == effect
    };
    let mut taints = there.clone();
    taints.retain(|taint| !is_ours(taint) || is_wanted(taint));
    let is_there = |key: &String| taints.iter().any(|taint| taint["key"] == **key);
    let absent: Vec<&String> =
        wanted.keys().filter(|key| effect.is_some() && !is_there(key)).collect();
    taints.extend(absent.into_iter().map(|key| json!({"key": key, "effect": effect})));
    (taints != there).then(|| {
        let version = &node["metadata"]["resourceVersion"];
        json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::RequiredPlugin;

    fn keys(names: &[&str]) -> Keys {
        names.iter().map(|name| (key(name), (*name).to_owned())).collect()
    }

    fn status(rows: &[(&str, bool)]) -> Status {
        let row = |(plugin, connected): &(&str, bool)| RequiredPlugin {
            connected: *connected,
            plugin: (*plugin).to_owned(),
        };
        Status { required: rows.iter().map(row).collect(), ..Status::default() }
    }

    #[test]
    fn a_condition_is_due_after_a_delay_and_only_with_a_daemon() {
        let mut conditions = NodeConditions::new(None, Duration::from_secs(3600));
        conditions.observe(Some(&status(&[("a", false)])));
        assert!(conditions.wanted().is_empty(), "it may be starting");
        assert!(conditions.next_change().is_some_and(|left| left <= conditions.after));
        conditions.after = Duration::ZERO;
        assert_eq!(conditions.wanted(), keys(&["a"]));
        conditions.observe(None);
        assert_eq!(conditions.wanted(), keys(&["a"]), "the daemon may be restarting");
        conditions.heard = None;
        conditions.observe(None);
        assert!(conditions.wanted().is_empty(), "nothing is known without a daemon");
        conditions.observe(Some(&status(&[("a", false)])));
        conditions.observe(Some(&status(&[("a", true)])));
        assert!(conditions.wanted().is_empty(), "it is back");
    }

    #[test]
    fn conditions_that_differ_are_set_and_removed_and_others_stay() {
        let node = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": key("a"), "status": "True"},
            {"type": key("gone"), "status": "True"},
            {"type": key("c"), "status": "False"},
        ]}});
        let changes = condition_changes(&node, &keys(&["a", "b", "c"]));
        let types: Vec<&str> = changes.iter().map(|one| one["type"].as_str().unwrap()).collect();
        assert_eq!(types, [key("b"), key("c"), key("gone")]);
        assert_eq!(changes[0]["status"], "True");
        assert_eq!(changes[2], json!({"$patch": "delete", "type": key("gone")}));
        assert_eq!(condition_changes(&node, &keys(&["a", "c", "gone"])).len(), 1);
        assert!(condition_changes(&json!({}), &Keys::new()).is_empty());
    }

    #[test]
    fn a_taint_patch_keeps_foreign_taints_and_names_the_version() {
        let others =
            json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "x"});
        let node = |taints: Value| json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": taints}});
        let ours = |name: &str, effect: &str| json!({"key": key(name), "effect": effect});
        let change = |taints: Value, names: &[&str], effect| {
            taint_change(&node(taints), &keys(names), effect).map(|patch| {
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
                patch["spec"]["taints"].clone()
            })
        };
        let no = Some("NoSchedule");
        assert_eq!(
            change(json!([others]), &["a"], no),
            Some(json!([others, ours("a", "NoSchedule")]))
        );
        assert_eq!(change(json!([others, ours("a", "NoSchedule")]), &["a"], no), None);
        assert_eq!(
            change(json!([ours("a", "PreferNoSchedule"), others]), &["a"], no),
            Some(json!([others, ours("a", "NoSchedule")])),
            "the effect was configured anew"
        );
        assert_eq!(
            change(json!([ours("a", "NoSchedule"), others]), &[], no),
            Some(json!([others]))
        );
        assert_eq!(
            change(json!([ours("a", "NoSchedule")]), &["a"], None),
            Some(json!([])),
            "of a pod that was killed, before taints were switched off"
        );
        assert_eq!(change(Value::Null, &["a"], None), None);
    }

    #[test]
    fn condition_keys_are_valid_in_kubernetes() {
        assert_eq!(key("10-policy"), "nri-runc.dev/missing-10-policy");
        let odd = ["a b", "ä", "a.", "", "a/b", &"x".repeat(300)].map(key);
        for one in &odd {
            let name = one.strip_prefix("nri-runc.dev/").unwrap();
            assert!(name.len() <= 63 && !name.ends_with(['-', '.']), "{one}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{one}");
        }
        assert_eq!(BTreeSet::from(odd).len(), 6, "they are distinct");
    }
}
