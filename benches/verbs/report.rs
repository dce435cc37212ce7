// SPDX-License-Identifier: Apache-2.0
//! What was measured, as a table for people and as `target/bench/report.json` for scripts.

use std::path::Path;

use serde_json::{Value, json};

/// One ratio: ours against theirs, measured in turns.
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    /// What one value of ours and of theirs is.
    pub(crate) what: &'static str,
    pub(crate) baseline: &'static str,
    /// The ratio that is aimed at, `None` where none was set.
    pub(crate) aim: Option<f64>,
    /// Larger is better.
    pub(crate) rises: bool,
    pub(crate) unit: &'static str,
    /// Ours and theirs of each round.
    pub(crate) rounds: Vec<(f64, f64)>,
}

impl Ratio {
    fn ours(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.0))
    }

    fn theirs(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.1))
    }

    /// The ratio of the medians: a round that something else disturbed does not count.
    fn median(&self) -> f64 {
        self.ours() / self.theirs()
    }

    fn each(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|round| round.0 / round.1)
    }

    fn to_json(&self) -> Value {
        json!({
            "median": self.median(),
            "min": self.each().fold(f64::MAX, f64::min),
            "max": self.each().fold(0.0, f64::max),
            "runs": self.rounds.len(),
            "baseline": self.baseline,
            "what": self.what,
            "ours": self.ours(),
            "theirs": self.theirs(),
            "unit": self.unit,
            "aim": self.aim,
        })
    }

    fn line(&self) -> String {
        let aim = self.aim.map_or_else(String::new, |aim| {
            let sign = if self.rises { ">=" } else { "<=" };
            let is_met = if self.rises { self.median() >= aim } else { self.median() <= aim };
            format!("{sign} {aim:.2}{}", if is_met { "" } else { " missed" })
        });
        format!(
            "{:<22}{:>7.3}  {aim:<15}{:>9.1}{:>10.1} {:<5}{:>4}  {}, against {}",
            self.name,
            self.median(),
            self.ours(),
            self.theirs(),
            self.unit,
            self.rounds.len(),
            self.what,
            self.baseline
        )
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the table and writes the report.
pub(crate) fn tell(ratios: &[Ratio], place: &str) {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!("Ratio of medians, ours to theirs; each round measures both, in turns.");
    println!("Linux {kernel}, {cpus} processors, load {load} now, bundle and state on {place}.\n");
    println!(
        "{:<22}{:>7}  {:<15}{:>9}{:>10} {:<5}{:>4}  what",
        "name", "ratio", "aim", "ours", "theirs", "unit", "runs"
    );
    for ratio in ratios {
        println!("{}", ratio.line());
    }
    let machine = json!({"kernel": kernel, "cpus": cpus, "load": load, "place": place});
    let told: serde_json::Map<String, Value> =
        ratios.iter().map(|ratio| (ratio.name.to_owned(), ratio.to_json())).collect();
    let document = json!({"machine": machine, "ratios": told});
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&dir).unwrap();
    nri_runc::testing::files::replace(&dir.join("report.json"), document.to_string().as_bytes())
        .unwrap();
}
