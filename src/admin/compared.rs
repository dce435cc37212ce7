// SPDX-License-Identifier: Apache-2.0
//! The pages of `policy test` for a recording or a manifest: a table for people, JUnit's XML for CI.

use super::output::{Answer, Format};
use super::show::{or_dash, table};
use crate::dry::{ChangedDecision, Compared, ComparedContainer, JudgedContainer};
use crate::text::{counted, printable};

impl Answer for Compared {
    fn page(&self, _: Format) -> String {
        let containers = counted(self.containers, "container");
        if !self.compared {
            let cells = |change: &ChangedDecision| {
                vec![printable(&change.what), or_dash(change.before.as_ref())]
            };
            let rows = cells_of(self, cells);
            return format!(
                "{containers}\n\n{}",
                table(&["container", "about", "decision"], &rows)
            );
        }
        let mut page = format!("{containers}, {} with another decision\n", self.changed);
        if let Some(left) = self.unfinished.filter(|left| *left > 0) {
            let left = counted(left, "request");
            page.push_str(&format!("{left} without a decision in the recording\n"));
        }
        if self.changed == 0 {
            return page;
        }
        let rows = cells_of(self, |change| {
            let [before, after] = sides(change);
            vec![printable(&change.what), before, after]
        });
        page.push('\n');
        page.push_str(&table(&["container", "about", "before", "after"], &rows));
        if self.not_listed > 0 {
            page.push_str(&format!("and {} more\n", self.not_listed));
        }
        page
    }
}

fn sides(change: &ChangedDecision) -> [String; 2] {
    [&change.before, &change.after].map(|side| or_dash(side.as_ref()))
}

/// Returns a row for each listed decision; only the first row of a container names it.
fn cells_of(
    compared: &Compared,
    cells: impl Fn(&ChangedDecision) -> Vec<String>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for verdict in &compared.decisions {
        let mut name = name_of(verdict);
        if verdict.count > 1 {
            name.push_str(&format!(" ({} times)", verdict.count));
        }
        for change in &verdict.judged.changes {
            rows.push([vec![std::mem::take(&mut name)], cells(change)].concat());
        }
    }
    rows
}

fn name_of(verdict: &ComparedContainer) -> String {
    let JudgedContainer { namespace, pod, container, .. } = &verdict.judged;
    let parts = [namespace, pod, container].into_iter().filter(|part| !part.is_empty());
    parts.map(|part| printable(part)).collect::<Vec<_>>().join("/")
}

/// Formats the result as JUnit's XML: each listed container with another decision is a failed case.
pub(super) fn junit(compared: &Compared) -> String {
    let failed = if compared.compared { compared.decisions.as_slice() } else { &[] };
    let mut cases = String::new();
    for verdict in failed {
        let lines = verdict.judged.changes.iter().map(|change| {
            let [before, after] = sides(change);
            format!("{}: {before} -> {after}", printable(&change.what))
        });
        let lines: Vec<String> = lines.collect();
        let (name, message) = (xml(&name_of(verdict)), xml(lines.first().map_or("", |line| line)));
        let lines = xml(&lines.join("\n"));
        cases.push_str(&format!(
            "    <testcase classname=\"nri-runc policy\" name=\"{name}\">\n      \
             <failure message=\"{message}\">{lines}</failure>\n    </testcase>\n"
        ));
    }
    let same = compared.containers.saturating_sub(compared.changed);
    cases.push_str(&format!(
        "    <testcase classname=\"nri-runc policy\" name=\"containers with the same decision: {same}\"/>\n"
    ));
    let (tests, failures) = (failed.len() + 1, failed.len());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  \
         <testsuite name=\"nri-runc policy\" tests=\"{tests}\" failures=\"{failures}\">\n{cases}  \
         </testsuite>\n</testsuites>\n"
    )
}

/// Escapes a string that a tenant may have chosen. Line feeds stay; other control characters are made
/// printable, because XML forbids most of them.
fn xml(text: &str) -> String {
    let lines = text.split('\n').map(printable);
    let text = lines.collect::<Vec<_>>().join("\n");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document() -> Compared {
        of(json!({"compared": true, "containers": 3, "changed": 2, "not_listed": 0, "decisions": [
            {"namespace": "shop", "pod": "web", "container": "<a> & \u{1b}[2J", "count": 2, "changes": [
                {"what": "container", "before": "created", "after": "refused: \"no\""},
                {"what": "Env[A]", "before": "set by 10-a", "after": null}]}]}))
    }

    fn of(document: Value) -> Compared {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_junit_report_has_a_failed_case_for_each_changed_decision() {
        let report = junit(&document());
        assert!(report.contains("tests=\"2\" failures=\"1\""), "{report}");
        assert!(report.contains("&lt;a&gt; &amp; ") && !report.contains('\u{1b}'), "{report}");
        assert!(report.contains("refused: &quot;no&quot;"), "{report}");
        assert!(report.contains("\nEnv[A]: set by 10-a -&gt; -"), "{report}");
        assert!(report.contains("containers with the same decision: 1"), "{report}");
        let none = json!({"compared": true, "containers": 1, "changed": 0, "decisions": []});
        assert!(junit(&of(none)).contains("failures=\"0\""));
    }

    #[test]
    fn a_page_names_a_container_once_and_counts_its_repetitions() {
        let page = document().page(Format::Page);
        assert!(page.starts_with("3 containers, 2 with another decision\n"), "{page}");
        assert_eq!(page.matches("shop/web/").count(), 1, "{page}");
        assert!(page.contains("(2 times)") && !page.contains('\u{1b}'), "{page}");
    }
}
