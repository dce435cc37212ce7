// SPDX-License-Identifier: Apache-2.0
//! `drift`: prints values of plugins and injections that are not in force in the kernel. The daemon
//! compares them; nothing is changed.

use clap::Args;

use super::ask;
use super::exit::{DONE, FOUND};
use super::output::{Answer, Format, PlainOutput, complain, tell};
use super::show::{or_dash, table};
use crate::answers::{AdminRequest, DriftAnswer, DriftRow};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::text::{printable, short_id};

/// `drift`.
#[derive(Debug, Args)]
pub(super) struct Drift {
    /// ID, ID prefix, name, NAMESPACE/NAME or NAMESPACE/POD[/NAME]; else all.
    id: Option<String>,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Prints the values that differ. Values that could not be compared go to standard error.
pub(super) fn drift(config: &Config, wanted: &Drift, format: Format) -> Result<u8> {
    let request = AdminRequest::Drift { id: wanted.id.clone() };
    let answer: DriftAnswer = ask(config, &request)?;
    let code = code(&answer);
    if code.is_ok() {
        tell(format, &answer.drift)?;
    }
    answer.unread.iter().for_each(|line| complain(&format!("not compared: {}", printable(line))));
    code
}

/// Returns the exit code. Fails if there are values and none could be compared, because the empty list
/// then proves nothing.
fn code(answer: &DriftAnswer) -> Result<u8> {
    match answer.drift.is_empty() {
        false => Ok(FOUND),
        true if answer.unread.is_empty() || answer.compared != 0 => Ok(DONE),
        true => Err(Error::new("no plugin-owned value could be compared")),
    }
}

impl Answer for Vec<DriftRow> {
    fn page(&self, _: Format) -> String {
        if self.is_empty() {
            return "no plugin-owned value differs".to_owned();
        }
        let rows = self.iter().map(|row| {
            let of_process = if row.process { " (process)" } else { "" };
            let field = format!("{}{of_process}", printable(&row.field));
            let mut cells = vec![short_id(&printable(&row.container_id)).to_owned(), field];
            cells.extend([&row.owner, &row.expected, &row.actual].map(|text| printable(text)));
            cells.push(or_dash(row.writer.as_ref()));
            cells
        });
        let head = ["container", "field", "owner", "expected", "actual", "writer"];
        table(&head, &rows.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_fails_only_if_nothing_could_be_compared() {
        let lines = ["c: it is away".to_owned()];
        for (found, unread, compared, wanted) in [
            (0, &[][..], 0, Some(DONE)),
            (0, &[], 3, Some(DONE)),
            (0, &lines, 3, Some(DONE)),
            (0, &lines, 0, None),
            (1, &lines, 0, Some(FOUND)),
            (1, &[], 1, Some(FOUND)),
        ] {
            let drift = vec![DriftRow::default(); found];
            let answer = DriftAnswer { drift, unread: unread.to_vec(), compared };
            assert_eq!(code(&answer).ok(), wanted, "{answer:?}");
        }
    }
}
