// SPDX-License-Identifier: Apache-2.0
//! Mutated input: each target for a limited time, with the checked-in files as seeds. FUZZ_SECONDS
//! (for each target; 1 by default) and FUZZ_SEED set duration and seed; a failure is printed with
//! both. `fuzz/` runs the same targets with libFuzzer.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use targets::{TARGETS, Target};

/// Random numbers that a printed seed reproduces (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which may be 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }
}

/// Valid files, to be mutated.
fn seeds() -> Vec<Vec<u8>> {
    let mut found = vec![Vec::new()];
    let mut dirs: Vec<PathBuf> =
        ["fixtures/wire", "fixtures/bundles", "fixtures/argv", "fixtures/records", "docs"]
            .map(|dir| Path::new(env!("CARGO_MANIFEST_DIR")).join(dir))
            .to_vec();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => dirs.push(path),
                path => found.push(std::fs::read(path).unwrap()),
            }
        }
    }
    found.retain(|seed| seed.len() < 64 << 10);
    assert!(found.len() > 200, "the fixtures have moved");
    found
}

/// Applies one kind of mutation.
fn bend(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    const ODD: [&[u8]; 12] = [
        b"\x00",
        b"\xff\xff\xff\xff",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\n",
        b"\"",
        b"{",
        b"[",
        b"-",
        b"1e999",
        b"\\ud800",
        b"\xc3",
        b"../",
    ];
    let at = dice.below(bytes.len() + 1);
    let end = at + dice.below((bytes.len() - at).min(64) + 1);
    match dice.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => drop(bytes.splice(at..at, ODD[dice.below(ODD.len())].iter().copied())),
        3 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        4 => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len() + 1);
            let to = from + dice.below((other.len() - from).min(256) + 1);
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Feeds a target until its time is over; at least once with each seed, as far as the time permits.
fn feed(name: &str, target: Target) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let seed = number("FUZZ_SEED").unwrap_or(u64::try_from(clock & 0xffff_ffff).unwrap()) | 1;
    let time = Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(1));
    let (seeds, mut dice) = (seeds(), Dice(seed));
    // Any other file is no record at all, however little it is mutated.
    let is_right = |seed: &&Vec<u8>| name != "records" || seed.starts_with(b"{\"schema\"");
    let right: Vec<&Vec<u8>> = seeds.iter().filter(is_right).collect();
    let (begun, mut rounds) = (Instant::now(), 0_u64);
    while begun.elapsed() < time || rounds < 10 {
        let mut bytes = right[dice.below(right.len())].clone();
        for _ in 0..dice.below(5) {
            bend(&mut bytes, &seeds, &mut dice);
        }
        let fed = std::panic::catch_unwind(|| target(&bytes));
        assert!(
            fed.is_ok(),
            "FUZZ_SEED={seed} {name} failed in round {rounds} with: {}",
            bytes.escape_ascii()
        );
        rounds += 1;
    }
    println!("{name}: {rounds} inputs, FUZZ_SEED={seed}");
}

macro_rules! fed {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            feed(stringify!($name), targets::$name);
        })*

        #[test]
        fn every_fuzz_target_has_a_test() {
            let fed = [$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(all, fed);
        }
    };
}

fed!(mux ttrpc messages config_json answers replay_lines link command_lines files records);
