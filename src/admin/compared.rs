// SPDX-License-Identifier: Apache-2.0
//! The pages of `policy test --compare`: a table for people, JUnit's XML for CI.

use serde_json::Value;

use super::show::{table, text};
use crate::text::{counted, printable};

/// Formats the result for people.
pub(super) fn page(document: &Value) -> String {
    let number = |member: &str| usize::try_from(document[member].as_u64().unwrap_or_default());
    let number = |member: &str| number(member).unwrap_or(usize::MAX);
    let containers = counted(number("containers"), "container");
    if document["compared"] != true {
        let rows = cells(document, |change| vec![text(&change["what"]), text(&change["before"])]);
        return format!("{containers}\n\n{}", table(&["container", "about", "decision"], &rows));
    }
    let mut page = format!("{containers}, {} with another decision\n", number("changed"));
    if number("unfinished") > 0 {
        let left = counted(number("unfinished"), "request");
        page.push_str(&format!("{left} without a decision in the recording\n"));
    }
    if number("changed") == 0 {
        return page;
    }
    let rows = cells(document, |change| {
        ["what", "before", "after"].map(|member| text(&change[member])).to_vec()
    });
    page.push('\n');
    page.push_str(&table(&["container", "about", "before", "after"], &rows));
    if number("not_listed") > 0 {
        page.push_str(&format!("and {} more\n", number("not_listed")));
    }
    page
}

/// A row for each change; the container stands in the first of its rows.
fn cells(document: &Value, cells: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for verdict in document["decisions"].as_array().into_iter().flatten() {
        let mut name = name_of(verdict);
        if let Some(count) = verdict["count"].as_u64().filter(|count| *count > 1) {
            name.push_str(&format!(" ({count} times)"));
        }
        for change in verdict["changes"].as_array().into_iter().flatten() {
            rows.push([vec![std::mem::take(&mut name)], cells(change)].concat());
        }
    }
    rows
}

fn name_of(verdict: &Value) -> String {
    let parts = ["namespace", "pod", "container"].map(|member| text(&verdict[member]));
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// Formats the result as JUnit's XML: each container with another decision is a failed case.
pub(super) fn junit(document: &Value) -> String {
    let verdicts = document["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let failed = if document["compared"] == true { verdicts } else { &[] };
    let mut cases = String::new();
    for verdict in failed {
        let mut lines = Vec::new();
        for change in verdict["changes"].as_array().into_iter().flatten() {
            let [what, before, after] =
                ["what", "before", "after"].map(|member| text(&change[member]));
            lines.push(format!("{what}: {before} -> {after}"));
        }
        let (name, message) = (xml(&name_of(verdict)), xml(lines.first().map_or("", |line| line)));
        let lines = xml(&lines.join("\n"));
        cases.push_str(&format!(
            "    <testcase classname=\"nri-runc policy\" name=\"{name}\">\n      \
             <failure message=\"{message}\">{lines}</failure>\n    </testcase>\n"
        ));
    }
    let (all, changed) = (&document["containers"], &document["changed"]);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let same = number(all).saturating_sub(number(changed));
    cases.push_str(&format!(
        "    <testcase classname=\"nri-runc policy\" name=\"{same} containers keep their decision\"/>\n"
    ));
    let (tests, failures) = (failed.len() + 1, failed.len());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  \
         <testsuite name=\"nri-runc policy\" tests=\"{tests}\" failures=\"{failures}\">\n{cases}  \
         </testsuite>\n</testsuites>\n"
    )
}

/// Escapes a text that may be a tenant's. XML permits no control characters except these.
fn xml(text: &str) -> String {
    let lines = text.split('\n').map(printable);
    let text = lines.collect::<Vec<_>>().join("\n");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({"compared": true, "containers": 3, "changed": 2, "not_listed": 0, "decisions": [
            {"namespace": "shop", "pod": "web", "container": "<a> & \u{1b}[2J", "count": 2, "changes": [
                {"what": "container", "before": "created", "after": "refused: \"no\""},
                {"what": "Env[A]", "before": "set by 10-a", "after": null}]}]})
    }

    #[test]
    fn a_junit_report_has_a_failed_case_for_each_changed_decision() {
        let report = junit(&document());
        assert!(report.contains("tests=\"2\" failures=\"1\""), "{report}");
        assert!(report.contains("&lt;a&gt; &amp; ") && !report.contains('\u{1b}'), "{report}");
        assert!(report.contains("refused: &quot;no&quot;"), "{report}");
        assert!(report.contains("\nEnv[A]: set by 10-a -&gt; -"), "{report}");
        assert!(report.contains("1 containers keep their decision"), "{report}");
        let none = json!({"compared": true, "containers": 1, "changed": 0, "decisions": []});
        assert!(junit(&none).contains("failures=\"0\""));
    }

    #[test]
    fn a_page_names_a_container_once_and_counts_its_repetitions() {
        let page = page(&document());
        assert!(page.starts_with("3 containers, 2 with another decision\n"), "{page}");
        assert_eq!(page.matches("shop/web/").count(), 1, "{page}");
        assert!(page.contains("(2 times)") && !page.contains('\u{1b}'), "{page}");
    }
}
