// SPDX-License-Identifier: Apache-2.0
//! `reload`: makes the running daemon read its configuration again and shows the changes; with
//! `--dry-run` it shows what would change.

use clap::Args;
use serde::Serialize;

use super::output::{Answer, Format, PlainOutput};
use super::{ask, paint};
use crate::answers::{AdminRequest, Reloaded};
use crate::config::{ChangedKey, Effect, Loaded};
use crate::daemon::other;
use crate::error::{Error, Result};
use crate::wrapper;

/// `reload`.
#[derive(Debug, Args)]
pub(super) struct Reload {
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// The result of a reload.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(super) enum ReloadResult {
    Done {
        #[serde(flatten)]
        reloaded: Reloaded,
        running: bool,
    },
    NotRunning {
        applied: bool,
        running: bool,
        changed: [String; 0],
        warnings: Vec<String>,
    },
}

/// Asks the daemon to reload its configuration. If none runs, fails if the files have an error that makes a
/// reload fail, or if a daemon with another run directory has the plugins.
pub(super) fn reload(loaded: &Loaded, wanted: &Reload) -> Result<ReloadResult> {
    if !wrapper::is_listening(&loaded.config) {
        if let Some(problem) = loaded.refusal() {
            let error = Error::new(format!("the configuration has an error: {}", problem.text));
            return Err(error.hint("the daemon is not running; fix this file before it starts"));
        }
        // A daemon with another run directory has the plugins and does not read these files, so
        // success would be misleading.
        if let Some(other) = other::find(&loaded.config, loaded.only.as_deref()) {
            return Err(other.error(&loaded.config));
        }
        let warnings = loaded.warnings();
        return Ok(ReloadResult::NotRunning {
            applied: false,
            running: false,
            changed: [],
            warnings,
        });
    }
    let request = AdminRequest::Reload { dry_run: wanted.dry_run };
    Ok(ReloadResult::Done { reloaded: ask(&loaded.config, &request)?, running: true })
}

impl Answer for ReloadResult {
    const PAINTER: fn(&str) -> String = paint::diff;

    /// Renders a diff of the keys and of the lists' sections; lists changes that need a restart
    /// separately.
    fn page(&self, _: Format) -> String {
        let (Self::Done { reloaded: Reloaded { warnings, .. }, .. }
        | Self::NotRunning { warnings, .. }) = self;
        let mut page: String =
            warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
        let Self::Done { reloaded: Reloaded { applied, changed, restart_with, .. }, .. } = self
        else {
            return page + "the daemon is not running; it reads the configuration when it starts";
        };
        let (restarts, changed): (Vec<&ChangedKey>, Vec<&ChangedKey>) =
            changed.iter().partition(|changed| changed.effect == Effect::Restart);
        let verb = if *applied { "reloaded" } else { "would be reloaded" };
        match changed.as_slice() {
            [] if restarts.is_empty() => page.push_str("nothing has changed\n"),
            [] => page.push_str("nothing that a reload applies has changed\n"),
            changed => page.push_str(&diff(&format!("{verb}:"), changed)),
        }
        if !restarts.is_empty() {
            page.push_str(&diff(&format!("needs a restart ({restart_with}):"), &restarts));
        }
        page
    }
}

fn diff(head: &str, changed: &[&ChangedKey]) -> String {
    let mut page = format!("{head}\n");
    for ChangedKey { key, line, before, after, effect: _ } in changed {
        if line != key && !line.is_empty() {
            page.push_str(&format!("{line}\n"));
        }
        for (sign, side) in [('-', before), ('+', after)] {
            page.extend(side.iter().map(|value| format!("{sign}{key} = {value}\n")));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn changed(key: &str, values: (Value, Value), by: &str) -> Value {
        json!({"key": key, "before": values.0, "after": values.1, "applied_by": by})
    }

    fn page(reloaded: Value) -> String {
        let reloaded = serde_json::from_value(reloaded).unwrap();
        ReloadResult::Done { reloaded, running: true }.page(Format::Page)
    }

    #[test]
    fn reload_shows_a_diff_and_changes_for_a_restart_separately() {
        let document = json!({
            "applied": true, "restart_with": "nri-runc nri restart",
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
        assert_eq!(page(document), wanted);
    }

    #[test]
    fn a_reload_without_changes_is_reported_as_such() {
        assert_eq!(page(json!({"changed": []})), "nothing has changed\n");
        let restart = changed("run_dir", (Value::Null, "\"/b\"".into()), "restart");
        assert!(page(json!({"changed": [restart]})).starts_with("nothing that a reload applies"));
        let (changed, warnings) = ([], vec!["w".to_owned()]);
        let none = ReloadResult::NotRunning { applied: false, running: false, changed, warnings };
        assert!(none.page(Format::Page).contains("is not running"));
        let document = r#"{"applied":false,"running":false,"changed":[],"warnings":["w"]}"#;
        assert_eq!(json!(none).to_string(), document);
    }
}
