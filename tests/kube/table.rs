// SPDX-License-Identifier: Apache-2.0
//! The table that `make kube` prints: a row for each tested property, with its result and evidence.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The evidence, or the failure.
struct Row {
    what: &'static str,
    seconds: u64,
    outcome: Result<String, String>,
}

#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Runs one scenario; it returns its evidence, or panics.
    pub(super) fn show(&mut self, what: &'static str, scenario: impl FnOnce() -> String) {
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(scenario)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "it panicked".to_owned())
        });
        self.rows.push(Row { what, seconds: begin.elapsed().as_secs(), outcome });
    }

    /// The failed rows.
    pub(super) fn failed(&self) -> Vec<&'static str> {
        self.rows.iter().filter(|row| row.outcome.is_err()).map(|row| row.what).collect()
    }

    pub(super) fn text(&self) -> String {
        let widest = self.rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
        self.rows.iter().map(|row| row.line(widest)).collect()
    }

    /// The last row.
    pub(super) fn last(&self) -> String {
        self.rows.last().map(|row| row.line(0)).unwrap_or_default()
    }
}

impl Row {
    fn line(&self, width: usize) -> String {
        let (result, evidence) = match &self.outcome {
            Ok(evidence) => ("ok", evidence),
            Err(why) => ("FAILED", why),
        };
        // A panic may have many lines, a row has one.
        let evidence = evidence.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{:width$}  {result:6}  {:>3} s  {evidence}\n", self.what, self.seconds)
    }
}

#[test]
fn a_row_that_panics_is_shown_and_counted_as_failed() {
    let mut table = Table::default();
    table.show("one", || "is there".to_owned());
    table.show("another", || panic!("two\n  lines"));
    assert_eq!(table.failed(), ["another"]);
    let text = table.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("one      ok      ") && lines[0].ends_with("is there"), "{text}");
    assert!(lines[1].starts_with("another  FAILED  ") && lines[1].ends_with("two lines"), "{text}");
    assert_eq!(lines.len(), 2, "{text}");
    assert!(table.last().starts_with("another  FAILED  "), "{}", table.last());
}
