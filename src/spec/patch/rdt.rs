// SPDX-License-Identifier: Apache-2.0
//! Applies Intel RDT: class of service, schemata, monitoring.
//!
//! A removal is applied first and removes the whole section; only values set in the same adjustment
//! remain. Without a removal, fields that a plugin does not name stay. This module never accesses
//! resctrl; a name that would lead the runtime to another directory in it is refused. Reference:
//! NRI `AdjustRdt`, except for BUG-08; OCI `config-linux.md`, intelRdt.

use oci_document::Object;
use serde_json::{Map, Value};

use super::{Changes, Patch, PatchError, Result};
use crate::error::quoted;
use crate::plugin::api;

const PLACE: &str = "linux.intelRdt";
const CLOS_ID: &str = "RdtClosID";
const SCHEMATA: &str = "RdtSchemata";
const MONITORING: &str = "RdtEnableMonitoring";

/// Directories of resctrl that are not classes.
const NOT_CLASSES: [&str; 5] = [".", "..", "info", "mon_groups", "mon_data"];

/// One member of the section; removed if it has no value.
struct RdtSetting {
    key: &'static str,
    nri_field: &'static str,
    value: Option<Value>,
}

/// Applies the adjustment's RDT part; an empty one requests nothing.
pub(super) fn patch(patch: &mut Patch<'_, '_>, rdt: Option<&api::LinuxRdt>) -> Result<()> {
    let Some(rdt) = rdt else { return Ok(()) };
    let settings = read(rdt)?;
    if rdt.remove {
        return replace(patch.root.object("linux")?, settings, &mut patch.changes);
    }
    if settings.is_empty() {
        return Ok(());
    }
    let object = patch.root.object("linux")?.object("intelRdt")?;
    for RdtSetting { key, nri_field, value } in settings {
        patch.changes.put(object, key, value, (&format!("{PLACE}.{key}"), nri_field))?;
    }
    Ok(())
}

fn read(rdt: &api::LinuxRdt) -> Result<Vec<RdtSetting>> {
    let api::LinuxRdt { clos_id, schemata, enable_monitoring, remove: _, special_fields: _ } = rdt;
    let mut settings = Vec::new();
    if let Some(clos_id) = clos_id.as_ref().map(|given| given.value.as_str()) {
        if !is_class(clos_id) {
            let problem = format!("\"{}\" is not the name of a class", quoted(clos_id));
            return Err(PatchError::invalid(CLOS_ID, problem));
        }
        let value = (!clos_id.is_empty()).then(|| Value::from(clos_id));
        settings.push(RdtSetting { key: "closID", nri_field: CLOS_ID, value });
    }
    if let Some(schemata) = schemata.as_ref().map(|given| given.value.as_slice()) {
        // The runtime writes each schema on a line, and a line feed inside one would start another.
        let is_line = |line: &&String| line.contains(':') && !line.chars().any(char::is_control);
        if let Some(odd) = schemata.iter().find(|line| !is_line(line)) {
            let problem = format!("\"{}\" is not a schema, such as MB:0=70", quoted(odd));
            return Err(PatchError::invalid(SCHEMATA, problem));
        }
        let value = (!schemata.is_empty()).then(|| Value::from(schemata));
        settings.push(RdtSetting { key: "schemata", nri_field: SCHEMATA, value });
    }
    if let Some(monitoring) = enable_monitoring.as_ref() {
        let value = Some(Value::from(monitoring.value));
        settings.push(RdtSetting { key: "enableMonitoring", nri_field: MONITORING, value });
    }
    Ok(settings)
}

/// Whether this names a directory directly below resctrl, or is empty, which removes the member.
fn is_class(clos_id: &str) -> bool {
    let is_odd = |c: char| c == '/' || c.is_control();
    !NOT_CLASSES.contains(&clos_id) && clos_id.len() <= 255 && !clos_id.chars().any(is_odd)
}

/// Replaces the whole section with `settings`.
fn replace(linux: &mut Object<'_>, settings: Vec<RdtSetting>, changes: &mut Changes) -> Result<()> {
    let before = linux.value("intelRdt")?;
    let after: Map<String, Value> = settings
        .into_iter()
        .filter_map(|setting| Some((setting.key.to_owned(), setting.value?)))
        .collect();
    let after = (!after.is_empty()).then_some(Value::Object(after));
    if before == after {
        return Ok(());
    }
    let member = |section: &Option<Value>, key: &str| section.as_ref()?.get(key).cloned();
    let keys = |section: &Option<Value>| -> Vec<String> {
        let section = section.as_ref().and_then(Value::as_object);
        section.map(|section| section.keys().cloned().collect()).unwrap_or_default()
    };
    let mut all = keys(&before);
    all.extend(keys(&after).into_iter().filter(|key| member(&before, key).is_none()));
    let mut is_noted = false;
    for key in all {
        let (old, new) = (member(&before, &key), member(&after, &key));
        if old != new {
            is_noted = true;
            changes.note(format!("{PLACE}.{key}"), owner_of(&key), old, new);
        }
    }
    if !is_noted {
        changes.note(PLACE, CLOS_ID, before, after.clone());
    }
    match after {
        Some(after) => linux.set("intelRdt", &after)?,
        None => linux.remove("intelRdt")?,
    }
    Ok(())
}

/// Returns the NRI field to which a member of the section belongs.
fn owner_of(key: &str) -> &'static str {
    match key {
        "schemata" | "l3CacheSchema" | "memBwSchema" => SCHEMATA,
        "enableMonitoring" | "enableCMT" | "enableMBM" => MONITORING,
        _ => CLOS_ID,
    }
}
