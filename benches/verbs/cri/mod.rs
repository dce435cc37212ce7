// SPDX-License-Identifier: Apache-2.0
//! The waits of an engine's user: CreateContainer and StartContainer of the CRI on containerd
//! 2.4.2, through nri-runc against the same containerd with its own NRI and the bare runc. Both
//! have the same runc and the same plugins; containers are created on both sides in turns, and each
//! is checked for the plugins' values.
//!
//! Skipped, with the reason, if `scripts/newer.sh` could not build containerd.

pub(crate) mod plugin;
mod side;

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;

use super::report::{Ratio, median};
use side::{Programs, Side, WORKERS};

pub(super) const NAMES: [&str; 6] = [
    "cri_one_plugin",
    "cri_ten_plugins",
    "cri_slow_plugin",
    "cri_slow_reentrant",
    "cri_one_floor",
    "cri_ten_floor",
];

const BASELINE: &str = "containerd 2.4.2, own NRI";

/// Containers on each side that are created before the measurement.
const WARM_UP: usize = 3;
const ROUNDS: usize = 40;
const GROWTH_ROUNDS: usize = 20;

/// With all workers at once: the number of turns, and of each worker's containers in a turn. The
/// first of these is not measured, because all workers begin together.
const TURNS: usize = 3;
const EACH: usize = 5;
const THINKS: Duration = Duration::from_millis(50);

/// The ratios, or the reason why there are none.
pub(super) fn measure(binary: &Path, tools: &Path) -> Result<Vec<Ratio>, String> {
    with_programs(binary, tools, all)
}

/// How many plugins or running containers there are, and the times with nri-runc and with containerd's
/// own NRI.
pub(super) type Times = Vec<(usize, Vec<[f64; 2]>)>;

/// Measures with each of these numbers of plugins, then with one plugin beside each of these numbers of
/// containers, which run on each side.
pub(super) fn growth(
    binary: &Path,
    tools: &Path,
    plugins: &[usize],
    known: &[usize],
) -> Result<[Times; 2], String> {
    with_programs(binary, tools, async |programs, dir| {
        let mut sides = [
            Side::ours(programs, dir.join("ours")).await,
            Side::theirs(programs, dir.join("theirs")).await,
        ];
        let [mut through, mut beside] = [const { Times::new() }; 2];
        for count in plugins {
            through.push((*count, in_turns(&mut sides, *count, GROWTH_ROUNDS).await));
        }
        for side in &mut sides {
            side.connect_plugins(1, "policy", Duration::ZERO).await;
        }
        let mut running = 0;
        for count in known {
            for side in &sides {
                side.run_more(running..*count).await;
            }
            running = *count;
            beside.push((*count, in_turns(&mut sides, 1, GROWTH_ROUNDS).await));
        }
        [through, beside]
    })
}

/// Measures in a folder that is removed afterwards; the error is the reason why a program is missing.
fn with_programs<T>(
    binary: &Path,
    tools: &Path,
    measured: impl AsyncFnOnce(&Programs<'_>, &Path) -> T,
) -> Result<T, String> {
    let newer = tools.join("../newer");
    let (containerd, runc) = (newer.join("containerd-2.4.2"), newer.join("runc-1.5.2/runc"));
    if !containerd.join("containerd").exists() {
        return Err("no containerd 2.4.2 here (scripts/newer.sh builds it with Go)".to_owned());
    }
    let programs = Programs {
        containerd: &containerd,
        runc: if runc.exists() { &runc } else { &tools.join("runc") },
        busybox: &tools.join("busybox"),
        binary,
    };
    let temp = tempfile::Builder::new().prefix("nri-bench").tempdir_in(super::base()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Ok(runtime.block_on(measured(&programs, temp.path())))
}

async fn all(programs: &Programs<'_>, dir: &Path) -> Vec<Ratio> {
    let mut sides = [
        Side::ours(programs, dir.join("ours")).await,
        Side::theirs(programs, dir.join("theirs")).await,
        Side::bare(programs, dir.join("bare")).await,
    ];
    let mut ratios = Vec::new();
    let what = ["CRI create and start, one plugin", "the same without NRI or any plugin"];
    ratios.extend(both([NAMES[0], NAMES[4]], what, &in_turns(&mut sides, 1, ROUNDS).await));
    let what = ["CRI create and start, ten plugins", "the same without NRI or any plugin"];
    ratios.extend(both([NAMES[1], NAMES[5]], what, &in_turns(&mut sides, 10, ROUNDS).await));
    let [ours, theirs, _bare] = sides;
    let mut sides = [ours, theirs];
    let what = "the same by 8 workers, one plugin that takes 50 ms";
    ratios.push(ratio(NAMES[2], what, at_once(&mut sides, "slow").await));
    let what = "the same, `concurrency = 8` for that plugin";
    let rounds = at_once(&mut sides, "reentrant").await;
    ratios.push(ratio(NAMES[3], what, rounds));
    ratios
}

fn ratio(name: &'static str, what: &'static str, rounds: Vec<(f64, f64)>) -> Ratio {
    super::time(name, what, BASELINE, rounds)
}

/// The ratio of nri-runc, and the floor: the time that remains on this machine if nothing is between
/// containerd and the runtime. No wrapper can have a lower ratio.
fn both(names: [&'static str; 2], what: [&'static str; 2], rounds: &[[f64; 3]]) -> [Ratio; 2] {
    let one = |side: usize| {
        ratio(names[side / 2], what[side / 2], rounds.iter().map(|at| (at[side], at[1])).collect())
    };
    [one(0), one(2)]
}

/// One container after the other, on all sides in turns.
async fn in_turns<const N: usize>(
    sides: &mut [Side; N],
    plugins: usize,
    count: usize,
) -> Vec<[f64; N]> {
    for side in sides.iter_mut() {
        side.connect_plugins(plugins, "policy", Duration::ZERO).await;
    }
    let mut rounds = Vec::new();
    for round in 0..WARM_UP + count {
        let mut times = [0.0; N];
        for turn in 0..N {
            let which = (round + turn) % N;
            times[which] = sides[which].container(round % WORKERS).await;
        }
        rounds.push(times);
    }
    rounds.split_off(WARM_UP)
}

/// All workers at once, on both sides in turns; the median of each turn.
async fn at_once(sides: &mut [Side; 2], plugin: &str) -> Vec<(f64, f64)> {
    for side in sides.iter_mut() {
        side.connect_plugins(1, plugin, THINKS).await;
    }
    let mut rounds = Vec::new();
    for round in 0..TURNS {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let took = join_all((0..WORKERS).map(|pod| worker(&sides[which], pod))).await;
            pair[which] = median(took.into_iter().flatten());
        }
        rounds.push((pair[0], pair[1]));
    }
    rounds
}

async fn worker(side: &Side, pod: usize) -> Vec<f64> {
    let mut took = Vec::new();
    for _container in 0..EACH {
        took.push(side.container(pod).await);
    }
    took.split_off(1)
}
