// SPDX-License-Identifier: Apache-2.0
//! The results, as a table for people and as `target/bench/report.json` for scripts.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// One ratio: nri-runc against the comparison, measured in turns.
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    /// The meaning of one value of each side.
    pub(crate) what: &'static str,
    pub(crate) baseline: &'static str,
    /// Whether larger is better.
    pub(crate) rises: bool,
    pub(crate) unit: &'static str,
    /// The values of both sides in each round.
    pub(crate) rounds: Vec<(f64, f64)>,
}

/// The ratios with a target; the others are only reported.
const AIMS: [(&str, f64); 27] = [
    ("passthrough", 1.05),
    ("passthrough_floor", 0.94),
    ("create_no_plugin", 1.06),
    ("create_no_plugin_cpu", 1.05),
    ("create_one_plugin", 1.05),
    ("create_one_plugin_cpu", 1.06),
    ("rules_over_one_plugin_cpu", 1.01),
    ("exec", 1.02),
    ("wrapper_rss", 0.10),
    ("wrapper_private", 0.05),
    ("update_other", 0.05),
    ("create_during_synchronize", 1.2),
    ("create_during_slow_synchronize", 1.2),
    ("create_during_updates", 1.5),
    ("updates_done", 0.95),
    ("rss_during_updates", 1.05),
    ("create_10000_known", 1.06),
    ("synchronize_10000", 0.30),
    ("chain10", 0.45),
    ("chain10_cpu", 0.20),
    ("events_parallel", 11.0),
    ("daemon_rss", 0.20),
    ("daemon_private", 0.30),
    ("cri_one_plugin", 0.93),
    ("cri_ten_plugins", 0.85),
    ("cri_slow_plugin", 0.75),
    ("cri_slow_reentrant", 0.40),
];

impl Ratio {
    fn aim(&self) -> Option<f64> {
        AIMS.iter().find(|(name, _)| *name == self.name).map(|(_, aim)| *aim)
    }

    /// Whether the target is met; `None` without one.
    fn is_met(&self) -> Option<bool> {
        let aim = self.aim()?;
        Some(if self.rises { self.median() >= aim } else { self.median() <= aim })
    }

    fn ours(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.0))
    }

    fn theirs(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.1))
    }

    /// The ratio of the medians: a disturbed round does not count.
    fn median(&self) -> f64 {
        self.ours() / self.theirs()
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = f64> {
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
            "aim": self.aim(),
            "met": self.is_met(),
        })
    }

    fn line(&self) -> String {
        let aim = self.aim().map_or_else(String::new, |aim| {
            let sign = if self.rises { ">=" } else { "<=" };
            let is_met = if self.is_met() == Some(true) { "met" } else { "missed" };
            format!("{sign} {aim:.2} {is_met}")
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
pub(crate) fn print_results(ratios: &[Ratio], place: &str) {
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
    append(ratios, &format!("Linux {kernel}, {cpus} processors"), load);
    let machine = json!({"kernel": kernel, "cpus": cpus, "load": load, "place": place});
    let told: serde_json::Map<String, Value> =
        ratios.iter().map(|ratio| (ratio.name.to_owned(), ratio.to_json())).collect();
    let document = json!({"machine": machine, "ratios": told});
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&dir).unwrap();
    nri_runc::testing::files::replace(&dir.join("report.json"), document.to_string().as_bytes())
        .unwrap();
}

/// Adds a row for each ratio to the history that `NRI_RUNC_BENCH_CSV` names: the cost of a commit on a machine.
fn append(ratios: &[Ratio], machine: &str, load: &str) {
    let Some(path) = std::env::var_os("NRI_RUNC_BENCH_CSV") else { return };
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let date = said("date", &["-u", "+%Y-%m-%dT%H:%MZ"]);
    let commit = said("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    if file.metadata().unwrap().len() == 0 {
        writeln!(file, "date,commit,machine,load,name,ratio,ours,theirs,unit,runs,aim,met")
            .unwrap();
    }
    for ratio in ratios {
        let aim = ratio.aim().map_or_else(String::new, |aim| aim.to_string());
        let is_met = ratio.is_met().map_or("", |is_met| if is_met { "met" } else { "missed" });
        writeln!(
            file,
            "{date},{commit},\"{machine}\",{load},{},{:.4},{:.3},{:.3},{},{},{aim},{is_met}",
            ratio.name,
            ratio.median(),
            ratio.ours(),
            ratio.theirs(),
            ratio.unit,
            ratio.rounds.len()
        )
        .unwrap();
    }
}
