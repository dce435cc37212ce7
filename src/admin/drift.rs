// SPDX-License-Identifier: Apache-2.0
//! `drift`: values that plugins and injections own and that the kernel does not have. It changes nothing; the
//! daemon reads the files.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::exit::{DONE, FOUND};
use super::output::{Format, PlainOutput, complain, tell_page};
use super::show::{rows, table, text};
use super::{ask_within, paint};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::text::short_id;

/// Time limit of the request without a heartbeat of the daemon, which reads files of all containers.
const DRIFT_WAIT: Duration = Duration::from_secs(60);

/// `drift`.
#[derive(Debug, Args)]
pub(super) struct Drift {
    /// ID, ID prefix, name, NAMESPACE/NAME or NAMESPACE/POD[/NAME]; else all.
    id: Option<String>,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Prints the values that differ, and on standard error what could not be compared.
pub(super) fn drift(config: &Config, wanted: &Drift, format: Format) -> Result<u8> {
    let question = json!({"verb": "drift", "id": wanted.id});
    let mut answer: Value = ask_within(config, &question, DRIFT_WAIT)?;
    let found = answer["drift"].take();
    let unread: Vec<String> = answer["unread"].as_array().into_iter().flatten().map(text).collect();
    let code = code(&found, &unread, &answer["compared"]);
    if code.is_ok() {
        tell_page(format, &found, page, paint::plain)?;
    }
    unread.iter().for_each(|line| complain(&format!("not compared: {line}")));
    code
}

/// The exit code; that nothing differs is no answer where nothing could be compared.
fn code(found: &Value, unread: &[String], compared: &Value) -> Result<u8> {
    match found.as_array().is_some_and(|rows| !rows.is_empty()) {
        true => Ok(FOUND),
        false if unread.is_empty() || compared != 0 => Ok(DONE),
        false => Err(Error::new("none of the values that plugins own could be compared")),
    }
}

fn page(found: &Value) -> String {
    let rows = rows(found, |row| {
        let field = text(&row["field"]);
        vec![
            short_id(&text(&row["container_id"])).to_owned(),
            if row["process"] == true { format!("{field} (process)") } else { field },
            text(&row["owner"]),
            text(&row["expected"]),
            text(&row["actual"]),
            text(&row["writer"]),
        ]
    });
    match rows.is_empty() {
        true => "no value differs from what plugins own".to_owned(),
        false => table(&["container", "field", "owner", "expected", "actual", "writer"], &rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_fails_only_if_nothing_could_be_compared() {
        let (none, row, lines) = (json!([]), json!([{}]), ["c: it is away".to_owned()]);
        for (found, unread, compared, wanted) in [
            (&none, &[][..], 0, Some(DONE)),
            (&none, &[], 3, Some(DONE)),
            (&none, &lines, 3, Some(DONE)),
            (&none, &lines, 0, None),
            (&row, &lines, 0, Some(FOUND)),
            (&row, &[], 1, Some(FOUND)),
        ] {
            assert_eq!(code(found, unread, &json!(compared)).ok(), wanted, "{found} {compared}");
        }
    }
}
