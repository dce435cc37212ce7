// SPDX-License-Identifier: Apache-2.0
//! Keeps plugins' values in an engine's `update`.
//!
//! Engines send resources from their records, which lack plugins' values; containerd even sends all
//! resources each time. So only what differs from the engine's last update is taken as its request,
//! and a plugin's value stays unless the engine changed that field. This module works on OCI
//! `LinuxResources` objects, never calls a runtime and never asks a plugin. Reference: decision
//! D21; OCI runtime-spec 1.3 `config-linux.md`; runc `update`.

use std::collections::HashSet;

use serde_json::Value;

use super::Block;
use super::owned::{self, OwnedMember};
pub use super::patch::resources::overlay_of;

/// The result of one `update`.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateOutcome {
    /// The resources for the runtime.
    pub to_runtime: Block,
    /// The engine's own resources from now on.
    pub engine: Block,
    /// The values that plugins still own.
    pub overlay: Block,
}

/// Sections whose members are separate fields; any other section is one field.
const SECTIONS: [&str; 7] = ["cpu", "memory", "pids", "unified", "blockIO", "network", "rdma"];

/// Members for which zero or the empty string means "unchanged" to every runtime.
const ZERO_IS_UNSET: [(&str, &[&str]); 3] = [
    ("cpu", &["shares", "quota", "period", "realtimeRuntime", "realtimePeriod", "cpus", "mems"]),
    ("memory", &["limit", "reservation", "swap", "kernel", "kernelTCP"]),
    ("blockIO", &["weight", "leafWeight"]),
];

/// Returns the fields of `request` that differ from the engine's last update. If the period
/// changes, the quota is returned too, because it depends on the period; if only the quota changes,
/// the period is not returned (D66). A swap limit that only follows the memory limit is not
/// returned.
pub(crate) fn delta(request: &Block, engine: &Block) -> Block {
    let request = without_unset(request);
    let mut delta = request.clone();
    delta.retain(|name, value| match (name.as_str(), value, engine.get(name)) {
        (name, Value::Object(asked), known) if SECTIONS.contains(&name) => {
            let known = known.and_then(Value::as_object);
            asked.retain(|key, value| known.and_then(|known| known.get(key)) != Some(&*value));
            !asked.is_empty()
        }
        ("hugepageLimits", Value::Array(asked), known) => {
            let known = known.and_then(Value::as_array).into_iter().flatten();
            let known: HashSet<String> = known.map(text_of).collect();
            asked.retain(|limit| !known.contains(&text_of(limit)));
            !asked.is_empty()
        }
        (_, value, known) => known != Some(&*value),
    });
    take_quota_along(&mut delta, &request);
    drop_following_swap(&mut delta, &request, engine);
    delta
}

/// If the quota changed, adds the engine's period, because an engine's own NRI sends plugins both.
pub(crate) fn with_period(mut delta: Block, request: &Block) -> Block {
    let period = request.get("cpu").and_then(|cpu| cpu.get("period"));
    if let (Some(Value::Object(cpu)), Some(period)) = (delta.get_mut("cpu"), period)
        && cpu.contains_key("quota")
    {
        cpu.insert("period".to_owned(), period.clone());
    }
    delta
}

/// Overlays an engine's request on its earlier resources, and keeps plugins' values of fields that the engine does
/// not change.
///
/// `strip_devices` is for crun, which applies an update's device rules and would thereby remove the
/// rules that plugins added; runc ignores them.
pub fn merge_update(
    engine: &Block,
    overlay: &Block,
    request: &Block,
    strip_devices: bool,
) -> UpdateOutcome {
    let delta = delta(request, engine);
    let mut new_engine = without_null(engine);
    put_over(&mut new_engine, &without_unset(request));
    let overlay = release(overlay, &delta);
    let mut to_runtime = new_engine.clone();
    put_over(&mut to_runtime, &overlay);
    if strip_devices {
        to_runtime.remove("devices");
    }
    UpdateOutcome { to_runtime, engine: new_engine, overlay }
}

/// Returns the resources about which plugins are asked when an engine only repeats its values: all
/// that are set, except device rules, which engines do not send in an update.
pub(crate) fn repeated(engine: &Block) -> Block {
    let mut repeated = without_unset(engine);
    repeated.remove("devices");
    repeated
}

/// Returns the members of `overlay` for which the engine requests another value, each with that
/// value, which does not take effect. Device rules are excluded, because no update removes them.
pub(crate) fn not_in_force(request: &Block, overlay: &Block) -> Vec<(OwnedMember, Value)> {
    let requested = owned::values(&without_unset(request));
    let members = owned::fields(overlay).into_iter().filter(|member| member.path != "devices");
    let differing = members.filter_map(|member| {
        let value = requested.get(&member.path).filter(|value| **value != member.value)?;
        Some((member, value.clone()))
    });
    differing.collect()
}

/// Overlays the fields of `base` with those of `top`: members of sections one by one, huge page limits by page size,
/// device rules after the existing ones.
pub(crate) fn put_over(base: &mut Block, top: &Block) {
    for (name, value) in top {
        match (name.as_str(), value, base.get_mut(name)) {
            (_, Value::Null, _) => {}
            (_, Value::Object(top), Some(Value::Object(base)))
                if SECTIONS.contains(&name.as_str()) =>
            {
                for (key, value) in top.iter().filter(|(_, value)| !value.is_null()) {
                    base.insert(key.clone(), value.clone());
                }
            }
            ("hugepageLimits", Value::Array(top), Some(Value::Array(base))) => {
                let new: HashSet<Option<&str>> = top.iter().map(page_size).collect();
                base.retain(|limit| !new.contains(&page_size(limit)));
                base.extend(top.iter().cloned());
            }
            ("devices", Value::Array(top), Some(Value::Array(base))) => {
                let known: HashSet<String> = base.iter().map(text_of).collect();
                let new = top.iter().filter(|rule| !known.contains(&text_of(rule))).cloned();
                let new: Vec<Value> = new.collect();
                base.extend(new);
            }
            (_, value, _) => {
                base.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Returns the overlay without the fields that the engine now changes itself.
fn release(overlay: &Block, delta: &Block) -> Block {
    let mut kept = without_null(overlay);
    kept.retain(|name, value| match (name.as_str(), value, delta.get(name)) {
        // Runtimes cannot remove device rules in an update, so plugins' rules stay.
        ("devices", ..) | (_, _, None) => true,
        (_, Value::Object(owned), Some(Value::Object(asked))) => {
            release_members(owned, asked);
            !owned.is_empty()
        }
        ("hugepageLimits", Value::Array(owned), Some(Value::Array(asked))) => {
            let asked: HashSet<Option<&str>> = asked.iter().map(page_size).collect();
            owned.retain(|limit| !asked.contains(&page_size(limit)));
            !owned.is_empty()
        }
        (_, _, Some(_)) => false,
    });
    kept
}

fn release_members(owned: &mut Block, asked: &Block) {
    let swap = owned.get("swap").cloned();
    let follows = swap.is_some() && swap.as_ref() == owned.get("limit");
    owned.retain(|key, _| !asked.contains_key(key));
    let (Some(limit), Some(swap)) = (asked.get("limit"), swap) else { return };
    // A plugin's swap limit is removed with the plugin's memory limit if both are equal, and also if no runtime
    // would accept it beside the engine's new memory limit.
    let too_low = match (limit.as_i64(), swap.as_i64()) {
        (Some(limit), Some(swap)) => (0..limit).contains(&swap) || (limit < 0 && swap >= 0),
        _ => false,
    };
    if follows || too_low {
        owned.remove("swap");
    }
}

fn take_quota_along(delta: &mut Block, request: &Block) {
    let Some(Value::Object(cpu)) = delta.get_mut("cpu") else { return };
    let quota = request.get("cpu").and_then(|cpu| cpu.get("quota"));
    if cpu.contains_key("period")
        && let Some(quota) = quota
    {
        cpu.insert("quota".to_owned(), quota.clone());
    }
}

fn drop_following_swap(delta: &mut Block, request: &Block, engine: &Block) {
    let Some(Value::Object(memory)) = delta.get_mut("memory") else { return };
    let value = |block: &Block, key| block.get("memory")?.get(key).cloned();
    let (limit, swap) = (value(request, "limit"), value(request, "swap"));
    let known = value(engine, "swap").filter(|swap| !swap.is_null());
    let followed = known.is_none() || known == value(engine, "limit");
    if limit.is_some() && limit == swap && followed {
        memory.remove("swap");
        if memory.is_empty() {
            delta.remove("memory");
        }
    }
}

/// Returns the same text for equal entries, in whatever order their members are.
fn text_of(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

fn page_size(limit: &Value) -> Option<&str> {
    limit.get("pageSize").and_then(Value::as_str)
}

/// Returns a request without meaningless members: `null`, and zero if that means "unchanged".
fn without_unset(request: &Block) -> Block {
    let mut request = without_null(request);
    for (section, members) in ZERO_IS_UNSET {
        if let Some(Value::Object(section)) = request.get_mut(section) {
            section.retain(|key, value| {
                let is_zero = value.as_f64() == Some(0.0) || value.as_str() == Some("");
                !(is_zero && members.contains(&key.as_str()))
            });
        }
    }
    request
}

/// Drops members that are `null`: runc crashes on some, and none has a meaning.
fn without_null(map: &Block) -> Block {
    let mut map = map.clone();
    map.retain(|_, value| !value.is_null());
    for value in map.values_mut() {
        if let Value::Object(section) = value {
            section.retain(|_, value| !value.is_null());
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Block {
        value.as_object().unwrap().clone()
    }

    fn engine() -> Block {
        map(json!({
            "devices": [{"allow": false, "access": "rwm"}],
            "memory": {"limit": 1000, "swap": 1000},
            "cpu": {"shares": 512, "quota": 20000, "period": 100_000, "cpus": "0-3"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
            "unified": {"memory.high": "1"},
        }))
    }

    fn update(overlay: Value, request: Value) -> UpdateOutcome {
        merge_update(&engine(), &map(overlay), &map(request), false)
    }

    #[test]
    fn values_that_repeat_the_engines_record_are_no_request() {
        assert_eq!(delta(&engine(), &engine()), Block::new());
        let outcome = update(json!({"cpu": {"cpus": "2"}}), Value::Object(engine()));
        assert_eq!(outcome.to_runtime["cpu"]["cpus"], "2", "the plugin's cpuset stays");
        assert_eq!(outcome.to_runtime["cpu"]["shares"], 512);
        assert_eq!(outcome.engine, engine());
        assert_eq!(Value::Object(outcome.overlay), json!({"cpu": {"cpus": "2"}}));
    }

    #[test]
    fn a_field_changed_by_the_engine_belongs_to_it_again() {
        let overlay = json!({"cpu": {"cpus": "2", "shares": 7}, "unified": {"memory.high": "9"}});
        let outcome = update(overlay, json!({"cpu": {"cpus": "1"}}));
        assert_eq!(outcome.to_runtime["cpu"]["cpus"], "1");
        assert_eq!(outcome.to_runtime["cpu"]["shares"], 7, "untouched fields stay the plugin's");
        let kept = json!({"cpu": {"shares": 7}, "unified": {"memory.high": "9"}});
        assert_eq!(Value::Object(outcome.overlay), kept);
        assert_eq!(outcome.engine["cpu"]["cpus"], "1");
        assert_eq!(outcome.engine["cpu"]["shares"], 512, "E never holds a plugin's value");
    }

    #[test]
    fn a_new_period_includes_the_quota_but_not_vice_versa() {
        let overlay = json!({"cpu": {"quota": 3000, "period": 5000}});
        let quota = map(json!({"cpu": {"quota": 50000, "period": 100_000}}));
        assert_eq!(Value::Object(delta(&quota, &engine())), json!({"cpu": {"quota": 50000}}));
        assert_eq!(with_period(delta(&quota, &engine()), &quota), quota, "as plugins are asked");
        let outcome = update(overlay.clone(), Value::Object(quota));
        assert_eq!(Value::Object(outcome.overlay), json!({"cpu": {"period": 5000}}));
        let cpu = &outcome.to_runtime["cpu"];
        assert_eq!((&cpu["quota"], &cpu["period"]), (&json!(50000), &json!(5000)));
        let period = map(json!({"cpu": {"quota": 20000, "period": 50000}}));
        assert_eq!(Value::Object(delta(&period, &engine())), Value::Object(period.clone()));
        let outcome = update(overlay, Value::Object(period));
        assert_eq!(outcome.overlay, Block::new(), "a plugin's quota means nothing to a new period");
    }

    #[test]
    fn values_not_in_force_are_those_that_differ_from_the_owners() {
        let overlay = json!({
            "memory": {"limit": 50}, "cpu": {"shares": 512, "cpus": "2"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 5}],
            "devices": [{"allow": true, "access": "r"}],
        });
        let found = not_in_force(&engine(), &map(overlay.clone()));
        let found: Vec<_> = found.into_iter().map(|(member, value)| (member.path, value)).collect();
        let wanted = [
            ("memory.limit".to_owned(), json!(1000)),
            ("cpu.cpus".to_owned(), json!("0-3")),
            ("hugepageLimits[2MB]".to_owned(), json!(0)),
        ];
        assert_eq!(found, wanted);
        let silent = json!({"cpu": {"cpus": ""}, "memory": {"limit": null}, "devices": []});
        assert_eq!(not_in_force(&map(silent), &map(overlay)), []);
    }

    #[test]
    fn derived_swap_is_not_a_request_but_reaches_the_runtime() {
        let request = json!({"memory": {"limit": 2000, "swap": 2000}});
        let difference = delta(&map(request.clone()), &engine());
        assert_eq!(Value::Object(difference), json!({"memory": {"limit": 2000}}));
        let outcome = update(json!({"memory": {"limit": 50, "swap": 50}}), request);
        assert_eq!(outcome.to_runtime["memory"], json!({"limit": 2000, "swap": 2000}));
        assert_eq!(outcome.overlay, Block::new());
    }

    #[test]
    fn swap_equal_to_an_unchanged_limit_is_not_a_request() {
        let known = map(json!({"memory": {"limit": 1000}}));
        let request = map(json!({"memory": {"limit": 1000, "swap": 1000}}));
        assert_eq!(delta(&request, &known), Block::new(), "CRI-O sends it with every update");
        let own = map(json!({"memory": {"swap": 1000}}));
        assert_eq!(delta(&own, &known), own, "alone it is one");
    }

    #[test]
    fn a_separate_swap_value_is_a_request() {
        let request = map(json!({"memory": {"limit": 2000, "swap": 4000}}));
        let wanted = json!({"memory": {"limit": 2000, "swap": 4000}});
        assert_eq!(Value::Object(delta(&request, &engine())), wanted);
    }

    #[test]
    fn a_plugins_swap_below_the_new_limit_is_released() {
        let request = json!({"memory": {"limit": 2000, "swap": 2000}});
        let low = update(json!({"memory": {"swap": 1500}}), request.clone());
        assert_eq!(low.to_runtime["memory"]["swap"], 2000);
        let high = update(json!({"memory": {"swap": 9000}}), request);
        assert_eq!(high.to_runtime["memory"]["swap"], 9000);
        let unlimited = update(json!({"memory": {"swap": 9000}}), json!({"memory": {"limit": -1}}));
        assert_eq!(unlimited.to_runtime["memory"]["limit"], -1);
        assert_eq!(unlimited.overlay, Block::new());
    }

    #[test]
    fn nulls_and_zeros_request_nothing_and_are_not_sent() {
        let request = json!({"cpu": {"cpus": "", "shares": 0, "quota": null}, "memory": null,
            "pids": {"limit": null}, "devices": null});
        assert_eq!(
            Value::Object(delta(&map(request.clone()), &engine())),
            json!({}),
            "CRI-O sends empty cpusets with every update"
        );
        let outcome = update(json!({"memory": {"limit": null}}), request);
        assert!(!Value::Object(outcome.to_runtime.clone()).to_string().contains("null"));
        assert_eq!(outcome.to_runtime["cpu"], engine()["cpu"]);
    }

    #[test]
    fn a_meaningful_zero_is_kept() {
        let request = json!({"cpu": {"burst": 0, "idle": 0}, "memory": {"swappiness": 0}});
        assert_eq!(Value::Object(delta(&map(request.clone()), &engine())), request);
    }

    #[test]
    fn huge_page_limits_are_matched_by_page_size() {
        let overlay = json!({"hugepageLimits": [
            {"pageSize": "2MB", "limit": 5}, {"pageSize": "1GB", "limit": 6}]});
        let outcome = update(overlay, json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 8}]}));
        let limits = json!([{"pageSize": "2MB", "limit": 8}, {"pageSize": "1GB", "limit": 6}]);
        assert_eq!(outcome.to_runtime["hugepageLimits"], limits);
        assert_eq!(outcome.overlay["hugepageLimits"], json!([{"pageSize": "1GB", "limit": 6}]));
    }

    #[test]
    fn device_rules_of_plugins_follow_the_engines() {
        let rule = json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"});
        let overlay = map(json!({"devices": [rule]}));
        let outcome = merge_update(&engine(), &overlay, &engine(), false);
        let rules = json!([{"allow": false, "access": "rwm"}, rule]);
        assert_eq!(outcome.to_runtime["devices"], rules);
        let again = merge_update(&outcome.engine, &outcome.overlay, &outcome.to_runtime, false);
        assert_eq!(again.to_runtime["devices"], rules, "no rule is added twice");
        let crun = merge_update(&engine(), &overlay, &engine(), true);
        assert!(!crun.to_runtime.contains_key("devices"));
        assert_eq!(crun.overlay, overlay);
    }

    #[test]
    fn unknown_members_of_a_request_pass_through() {
        let request = json!({"vendor": {"x": [1]}, "cpu": {"newKnob": 3}});
        let outcome = update(json!({}), request);
        assert_eq!(outcome.to_runtime["vendor"], json!({"x": [1]}));
        assert_eq!(outcome.to_runtime["cpu"]["newKnob"], 3);
    }
}
