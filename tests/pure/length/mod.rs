// SPDX-License-Identifier: Apache-2.0
//! Each field that a tenant, a plugin or an engine chooses, at 1, 10, 100 and 1,000 times its usual
//! length: ten times the length costs at most twelve times the processor time and memory. The fields
//! are found in the protocol's types, whole documents and the engines' sources, so that a new field
//! is included immediately.
//!
//! `LENGTHS=all` measures every field (`make soak`), `LENGTHS=NUMBER` a sample with that seed; the
//! default sample changes daily. Time is the processor time of this thread, and memory is its
//! allocations, so a busy machine changes neither.

mod documents;
mod keys;
mod plugins;
mod settings;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// Multiples of the usual length.
const TIMES: [usize; 4] = [1, 10, 100, 1000];

/// The usual length of a text in bytes, and of a list in entries. Multiples of three are no powers of
/// two, so that no capacity doubles for the last entry.
const TEXT: usize = 120;
const ENTRIES: usize = 6;

/// Maximum cost of ten times the length, as a multiple.
const MOST: u32 = 12;

/// Costs below these are not measured, because the ratio of two small costs shows nothing. They are
/// low enough to find a list that is searched once for each of its entries (the first test).
const LEAST_TIME: Duration = Duration::from_millis(5);
const LEAST_BYTES: usize = 256 << 10;

/// Counts the allocations of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // An exiting thread has no counter.
    let _ended = ALLOCATED.try_with(|all| all.set(all.get() + bytes));
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    time: Duration,
    bytes: usize,
}

fn cost(work: impl FnOnce()) -> Cost {
    let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let (time, bytes) = (clock(), ALLOCATED.get());
    work();
    Cost { time: clock() - time, bytes: ALLOCATED.get() - bytes }
}

/// Maximum ratio of costs for ten times the length, for work that allocates `bytes` for the shorter
/// one: larger than [`MOST`] by as much as linear work costs more than ten times, because a machine
/// with small caches or slow pages slows both. Never as large as the square.
fn most_times(bytes: usize) -> f64 {
    let linear = |bytes: usize| {
        let entries = vec![1_usize; bytes / 25];
        let cost = cost(|| {
            let texts: Vec<_> = entries.iter().map(usize::to_string).collect();
            drop(std::hint::black_box(texts));
        });
        cost.time.as_secs_f64()
    };
    let bytes = bytes.clamp(LEAST_BYTES, 4 << 20);
    let growth = linear(10 * bytes) / linear(bytes);
    f64::from(MOST) * (growth / 10.0).clamp(1.0, 4.0)
}

/// The shapes of a long text: each is the worst case of some reader.
const SHAPES: [&str; 11] =
    ["a", "a,", "\"", "[", "\\", "is a directory ", "é\n", "k8s_a_b_", "/../", "{list}", "{map}"];

/// A text of `times` the usual length in this shape, behind `start`.
fn text(start: &str, shape: &str, times: usize) -> String {
    let entries = ENTRIES * times;
    match shape {
        "{list}" => {
            Value::from((0..entries).map(|n| format!("v{n}")).collect::<Vec<_>>()).to_string()
        }
        "{map}" => {
            let pairs = (0..entries).map(|n| (format!("k{n}.example.org"), Value::from("v")));
            Value::Object(pairs.collect()).to_string()
        }
        shape => start.to_owned() + &shape.repeat(TEXT * times / shape.len()),
    }
}

/// The measured fields.
#[derive(Clone, Copy)]
struct Sample {
    seed: Option<u64>,
}

impl Sample {
    fn of_today() -> Self {
        let wanted = std::env::var("LENGTHS").unwrap_or_default();
        if wanted == "all" {
            return Self { seed: None };
        }
        let seed = wanted.parse().unwrap_or(UNIX_EPOCH.elapsed().unwrap().as_secs() / 86_400);
        let line = format!("LENGTHS={seed}\n");
        // Directly, because the test harness holds back a test's output until it fails.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        Self { seed: Some(seed) }
    }

    /// Whether this field is measured: one of `share` is.
    fn has(self, name: &str, share: u64) -> bool {
        self.seed.is_none_or(|seed| hash(seed, name).is_multiple_of(share))
    }

    /// The shape in which this field is measured, if there are too many for all of them.
    fn shape(self, name: &str) -> &'static str {
        let number = hash(self.seed.unwrap_or_default(), name) / 1000;
        SHAPES[usize::try_from(number).unwrap() % SHAPES.len()]
    }
}

fn hash(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step) >> 20
}

/// The fields that cost too much, by name.
#[derive(Default)]
struct Findings {
    measured: usize,
    lines: Vec<String>,
}

impl Findings {
    /// Measures `work` on the result of `made` for each length.
    fn measure<T>(&mut self, name: &str, made: impl Fn(usize) -> T, work: impl Fn(&T)) {
        self.measured += 1;
        let once = |times: usize| {
            let made = made(times);
            (times, cost(|| work(&made)))
        };
        // Filling a cache once is no cost of the length.
        let _warm = once(TIMES[0]);
        let costs = TIMES.map(once);
        for pair in costs.windows(2) {
            let [(_, less), (times, more)] = [pair[0], pair[1]];
            let most = usize::try_from(MOST).unwrap() * less.bytes.max(LEAST_BYTES);
            if more.bytes > most {
                self.lines.push(format!("{name}: {times} times as long allocates {costs:?}"));
                break;
            }
            // Repeated until it is within the limit: other programs on the core empty its caches,
            // which slows the longer text more.
            let is_slow = || {
                std::thread::sleep(Duration::from_millis(50));
                let most = most_times(less.bytes);
                once(times).1.time > once(times / 10).1.time.max(LEAST_TIME).mul_f64(most)
            };
            if more.time > MOST * less.time.max(LEAST_TIME) && (0..20).all(|_| is_slow()) {
                self.lines.push(format!("{name}: {times} times as long takes {costs:?}"));
                break;
            }
        }
    }

    #[track_caller]
    fn are_none(self, least: usize) {
        assert!(self.measured >= least, "only {} were measured", self.measured);
        assert!(self.lines.is_empty(), "{}", self.lines.join("\n"));
    }
}

#[test]
fn a_cost_that_grows_with_the_square_of_a_length_is_found() {
    let mut findings = Findings::default();
    let made = |times: usize| vec![0_u8; times];
    findings.measure("copies", made, |list| {
        (0..list.len()).for_each(|_| drop(std::hint::black_box(list.repeat(50))));
    });
    findings.measure(
        "compares",
        |times| (0..ENTRIES * times).collect::<Vec<_>>(),
        |list| {
            let found = list.iter().filter(|one| list.contains(&(**one + list.len())));
            assert_eq!(std::hint::black_box(found.count()), 0);
        },
    );
    assert_eq!(findings.lines.len(), 2, "{:?}", findings.lines);
}

#[test]
fn a_linear_cost_is_not_reported() {
    let mut findings = Findings::default();
    findings.measure(
        "linear",
        |times| vec![1_usize; 1000 * times],
        |list| {
            assert!(list.iter().map(|one| one.to_string()).collect::<Vec<_>>().len() >= 1000);
        },
    );
    findings.are_none(1);
}
