// SPDX-License-Identifier: Apache-2.0
//! The daemon's metrics, parsed from their text: rows with labels and numbers, sums over rows, and
//! a histogram's values for a time span.

use std::collections::BTreeMap;

/// One sample line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// All sample lines of one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Exposition(Vec<Row>);

/// Labels that a row must have, with their values.
pub(super) type Wanted<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// Parses the text; invalid lines are skipped.
    pub(super) fn read(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect())
    }

    fn rows<'s>(&'s self, name: &'s str, wanted: Wanted<'s>) -> impl Iterator<Item = &'s Row> {
        let has = move |row: &&Row| {
            let is_so = |(label, value): &(&str, &str)| {
                row.labels.get(*label).is_some_and(|there| there == value)
            };
            row.name == name && wanted.iter().all(is_so)
        };
        self.0.iter().filter(has)
    }

    /// Sums the rows with this name and these labels.
    pub(super) fn sum(&self, name: &str, wanted: Wanted<'_>) -> f64 {
        // `sum` of an empty iterator is a negative zero.
        self.rows(name, wanted).fold(0.0, |sum, row| sum + row.value)
    }

    /// Returns the values of a label in rows of this name.
    pub(super) fn values_of(&self, name: &str, label: &str) -> Vec<String> {
        let values = self.rows(name, &[]).filter_map(|row| row.labels.get(label).cloned());
        let values: std::collections::BTreeSet<String> = values.collect();
        values.into_iter().collect()
    }

    /// Returns the upper bounds of a histogram's buckets, each with its cumulative count.
    fn buckets(&self, name: &str, wanted: Wanted<'_>) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for row in self.rows(&format!("{name}_bucket"), wanted) {
            let bound = row.labels.get("le").and_then(|le| le.replace("+Inf", "inf").parse().ok());
            let Some(bound): Option<f64> = bound else { continue };
            match buckets.iter_mut().find(|(other, _)| other.total_cmp(&bound).is_eq()) {
                Some((_, count)) => *count += row.value,
                None => buckets.push((bound, row.value)),
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        buckets
    }
}

/// A histogram's observations between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Observed {
    pub(super) count: f64,
    /// Seconds; `None` without observations.
    pub(super) mean: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// Returns the difference of a histogram between two moments.
pub(super) fn observed(
    before: &Exposition,
    now: &Exposition,
    name: &str,
    wanted: Wanted<'_>,
) -> Observed {
    let grown = |suffix: &str| {
        let name = format!("{name}_{suffix}");
        since(now.sum(&name, wanted), before.sum(&name, wanted))
    };
    let (count, sum) = (grown("count"), grown("sum"));
    let earlier = before.buckets(name, wanted);
    let buckets = now.buckets(name, wanted).into_iter().map(|(bound, total)| {
        let old = earlier.iter().find(|(other, _)| other.total_cmp(&bound).is_eq());
        (bound, since(total, old.map_or(0.0, |(_, old)| *old)))
    });
    let p99 = quantile(0.99, &buckets.collect::<Vec<_>>());
    Observed { count, mean: (count > 0.0).then(|| sum / count), p99 }
}

/// Returns a counter's increase; a smaller value means that it was reset.
pub(super) fn since(now: f64, before: f64) -> f64 {
    if now < before { now } else { now - before }
}

/// Computes a quantile as PromQL's `histogram_quantile`: linear within a bucket, and the last
/// finite bound for higher values.
fn quantile(quantile: f64, buckets: &[(f64, f64)]) -> Option<f64> {
    let total = buckets.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
    let rank = quantile * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (below, counted) = at.checked_sub(1).map_or((0.0, 0.0), |before| buckets[before]);
    let (bound, count) = buckets[at];
    if bound.is_infinite() {
        return Some(below);
    }
    Some(below + (bound - below) * (rank - counted) / (count - counted))
}

/// Parses `name{label="value",…} number`, with the escapes of the format.
fn row(line: &str) -> Option<Row> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.insert(label.to_owned(), value);
            rest = after;
        }
        rest = rest.strip_prefix('}')?;
    }
    // A timestamp or an exemplar may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Row { name: name.to_owned(), labels, value })
}

/// Returns the text up to the closing quotation mark, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "\
        # HELP x of no use\n\
        calls_total{plugin=\"10-a\",status=\"success\"} 10\n\
        calls_total{plugin=\"10-a\",status=\"error\"} 1\n\
        calls_total{plugin=\"we\\\"ird\\\\\\n}\",status=\"error\"} 5\n\
        plain 7\n\
        garbage\n\
        broken{a=\"b} 1\n\
        took_bucket{le=\"0.005\",plugin=\"10-a\"} 4\n\
        took_bucket{le=\"0.01\",plugin=\"10-a\"} 4\n\
        took_bucket{le=\"+Inf\",plugin=\"10-a\"} 4\n\
        took_sum{plugin=\"10-a\"} 0.004\n\
        took_count{plugin=\"10-a\"} 4\n";

    #[test]
    fn rows_are_summed_by_labels_whatever_is_in_their_values() {
        let page = Exposition::read(EARLIER);
        let sum = |name, wanted: Wanted<'_>| page.sum(name, wanted);
        let is = |found: f64, wanted: f64| (found - wanted).abs() < f64::EPSILON;
        assert!(is(sum("calls_total", &[("plugin", "10-a")]), 11.0));
        assert!(is(sum("calls_total", &[("status", "error")]), 6.0));
        assert!(is(sum("plain", &[]), 7.0) && is(sum("absent", &[]), 0.0));
        assert_eq!(page.values_of("calls_total", "plugin"), ["10-a", "we\"ird\\\n}"]);
    }

    #[test]
    fn a_histogram_counts_between_two_samples() {
        let before = Exposition::read(EARLIER);
        let later = EARLIER
            .replace("} 4\n", "} 14\n")
            .replace("_sum{plugin=\"10-a\"} 0.004", "_sum{plugin=\"10-a\"} 0.024");
        let now = Exposition::read(&later);
        let seen = observed(&before, &now, "took", &[("plugin", "10-a")]);
        assert!((seen.count - 10.0).abs() < 1e-9);
        assert!(seen.mean.is_some_and(|mean| (mean - 0.002).abs() < 1e-9), "{seen:?}");
        assert!(seen.p99.is_some_and(|p99| (p99 - 0.00495).abs() < 1e-9), "{seen:?}");
        let none = observed(&now, &now, "took", &[]);
        assert_eq!((none.mean, none.p99), (None, None));
    }

    #[test]
    fn a_quantile_above_all_bounds_is_the_last_bound() {
        assert_eq!(quantile(0.99, &[(0.1, 0.0), (f64::INFINITY, 3.0)]), Some(0.1));
        assert_eq!(quantile(0.99, &[]), None);
        assert!((since(3.0, 10.0) - 3.0).abs() < f64::EPSILON);
    }
}
