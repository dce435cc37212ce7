// SPDX-License-Identifier: Apache-2.0
//! The engine and two plugins update one container at the same time: the result equals one of their
//! sequences, and never mixes values of two updates. `STRESS_ROUNDS` sets the duration.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Asking, Place, is_done, place, succeeds, wait_until};

const PAGE: u64 = 4096;

/// Two values that belong together; the number identifies their author.
fn pair(number: u64) -> Value {
    json!({"cpu": {"shares": number}, "memory": {"reservation": number * PAGE}})
}

fn rounds() -> u64 {
    std::env::var("STRESS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Number of concurrent updates in a round.
const TURNS: u32 = 12;

/// The content of the files: shares, and reservation in pages.
fn end(place: &Place) -> (u64, u64) {
    let number = |controller, file| place.file("c1", controller, file).parse::<u64>().unwrap();
    let shares = number("cpu", "cpu.shares");
    (shares, number("memory", "memory.soft_limit_in_bytes") / PAGE)
}

/// Makes all three calls at once. The engine's takes about `long`, and in each turn the plugins
/// start at another moment of it.
fn meet(place: &Place, plugins: &[Asking; 2], numbers: [u64; 3], turn: u32, long: Duration) {
    let [engine, first, second] = numbers;
    std::thread::scope(|scope| {
        for (plugin, number, place_in_time) in
            [(&plugins[0], first, turn * 5), (&plugins[1], second, turn * 7 + 4)]
        {
            scope.spawn(move || {
                std::thread::sleep(long * (place_in_time % TURNS) / TURNS);
                assert!(is_done(plugin, "c1", &pair(number)), "{number}");
            });
        }
        succeeds(&place.update("c1", &pair(engine)));
    });
}

#[test]
fn concurrent_updates_never_leave_values_of_two_authors() {
    let Some(place) = place("") else { return };
    place.run("c1", &pair(1024));
    let plugins = [place.asker(), place.asker_called("20", "second")];
    let begun = Instant::now();
    succeeds(&place.update("c1", &pair(1025)));
    let long = begun.elapsed() * 2;
    for round in 0..rounds() {
        for turn in 0..TURNS {
            // The number identifies the author, and no two are equal, so the engine's change is
            // deliberate.
            let number = |who: u64| 10_000 * who + 100 * (round % 80) + u64::from(turn) + 1100;
            let numbers = [number(0), number(1), number(2)];
            meet(&place, &plugins, numbers, turn, long);
            let (shares, reservation) = end(&place);
            assert_eq!(shares, reservation, "a mixture");
            assert!(numbers.contains(&shares), "{shares} is of another turn: {numbers:?}");
            // The record has the same values as the files.
            let wanted =
                match ["", "10-asker", "20-second"][usize::try_from(shares / 10_000).unwrap()] {
                    "" => json!({}),
                    owner => json!({"CPUShares": owner, "MemReservation": owner}),
                };
            wait_until("the record says whose the values are", || {
                place.host.admin(&["explain", "c1"])["owners"] == wanted
            });
            assert_eq!(end(&place), (shares, reservation));
            if turn == TURNS - 1 {
                // An engine that repeats its values changes nothing.
                succeeds(&place.update("c1", &pair(numbers[0])));
                assert_eq!(end(&place), (shares, reservation));
            }
        }
    }
}
