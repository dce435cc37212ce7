// SPDX-License-Identifier: Apache-2.0
//! `reload`: makes the running daemon read its configuration again, and shows the changes, or with
//! `--dry-run` those that it would apply. It changes nothing itself.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::config::Loaded;
use crate::daemon::other;
use crate::error::{Error, Result};
use crate::wrapper;

use super::output::{Format, PlainOutput, tell_page};
use super::paint;

/// `reload`.
#[derive(Debug, Args)]
pub(super) struct Reload {
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Reloads. Without a daemon, the next one reads the files; an error that it would refuse is an
/// error here too.
pub(super) fn reload(loaded: &Loaded, wanted: &Reload, format: Format) -> Result<u8> {
    tell_page(format, &document(loaded, wanted.dry_run)?, show, paint::diff)
}

fn document(loaded: &Loaded, is_dry: bool) -> Result<Value> {
    if !wrapper::is_listening(&loaded.config) {
        if let Some(problem) = loaded.refusal() {
            let error = Error::new(format!("the configuration has an error: {}", problem.text));
            return Err(error.hint("the daemon is not running; fix this file before it starts"));
        }
        // Its plugins are connected to a daemon that does not read this: a success would mislead.
        if let Some(other) = other::find(&loaded.config, loaded.only.as_deref()) {
            return Err(other.error(&loaded.config));
        }
        let warnings = loaded.warnings();
        return Ok(json!({
            "applied": false, "running": false, "changed": [], "warnings": warnings,
        }));
    }
    let mut document: Value =
        super::ask(&loaded.config, &json!({"verb": "reload", "dry_run": is_dry}))?;
    document["running"] = true.into();
    Ok(document)
}

/// Formats the result for people: a diff of the keys and of the sections of lists, with those that
/// need a restart apart.
fn show(document: &Value) -> String {
    let list = |name: &str| document[name].as_array().cloned().unwrap_or_default();
    let (restarts, changed): (Vec<Value>, Vec<Value>) =
        list("changed").into_iter().partition(|changed| changed["applied_by"] == "restart");
    let mut page = String::new();
    for warning in list("warnings") {
        let _infallible = writeln!(page, "warning: {}", warning.as_str().unwrap_or_default());
    }
    if document["running"] != true {
        page.push_str("the daemon is not running; it reads the configuration when it starts");
        return page;
    }
    let verb = if document["applied"] == true { "reloaded" } else { "would be reloaded" };
    match changed.as_slice() {
        [] if restarts.is_empty() => page.push_str("nothing has changed\n"),
        [] => page.push_str("nothing that a reload applies has changed\n"),
        changed => page.push_str(&diff(&format!("{verb}:"), changed)),
    }
    if !restarts.is_empty() {
        let how = document["restart_with"].as_str().unwrap_or_default();
        page.push_str(&diff(&format!("needs a restart ({how}):"), &restarts));
    }
    page
}

fn diff(head: &str, changed: &[Value]) -> String {
    let mut page = format!("{head}\n");
    for one in changed {
        let [key, line] = ["key", "line"].map(|member| one[member].as_str().unwrap_or_default());
        if line != key && !line.is_empty() {
            let _infallible = writeln!(page, "{line}");
        }
        for (sign, side) in [('-', "before"), ('+', "after")] {
            if let Some(value) = one[side].as_str() {
                let _infallible = writeln!(page, "{sign}{key} = {value}");
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(key: &str, values: (Value, Value), by: &str) -> Value {
        json!({"key": key, "before": values.0, "after": values.1, "applied_by": by})
    }

    #[test]
    fn what_changes_is_a_diff_and_what_needs_a_restart_stands_apart() {
        let document = json!({
            "running": true, "applied": true, "restart_with": "nri-runc nri restart",
            "warnings": ["f:1:1: unknown key x"],
            "changed": [
                changed("log.level", ("\"info\"".into(), "\"warn\"".into()), "reload"),
                changed("plugin.a.strikes", (Value::Null, "2".into()), "reload"),
                changed("run_dir", ("\"/a\"".into(), "\"/b\"".into()), "restart"),
                {"key": "rule \"a\"", "line": "rule \"a\": new", "after": "{hide = true}"},
            ],
        });
        let wanted = "warning: f:1:1: unknown key x\nreloaded:\n-log.level = \"info\"\n\
                      +log.level = \"warn\"\n+plugin.a.strikes = 2\nrule \"a\": new\n+rule \"a\" = {hide = true}\n\
                      needs a restart (nri-runc nri restart):\n-run_dir = \"/a\"\n+run_dir = \"/b\"\n";
        assert_eq!(show(&document), wanted);
    }

    #[test]
    fn a_reload_without_changes_is_reported_as_such() {
        let page = |changed: Value| {
            show(&json!({"running": true, "applied": false, "warnings": [], "changed": changed}))
        };
        assert_eq!(page(json!([])), "nothing has changed\n");
        let restart = changed("run_dir", (Value::Null, "\"/b\"".into()), "restart");
        assert!(page(json!([restart])).starts_with("nothing that a reload applies"));
        assert!(show(&json!({"running": false})).contains("is not running"));
    }
}
