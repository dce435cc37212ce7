// SPDX-License-Identifier: Apache-2.0
//! The engine and two plugins update the same container at once: it ends as if they had come one
//! after the other, and never with one's half and another's half. `STRESS_ROUNDS` sets how long.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{is_done, place, succeeds};

const PAGE: u64 = 4096;

/// Two values that belong together; whose they are is in the number.
fn pair(number: u64) -> Value {
    json!({"cpu": {"shares": number}, "memory": {"reservation": number * PAGE}})
}

fn rounds() -> u64 {
    std::env::var("STRESS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

#[test]
fn the_engine_and_two_plugins_never_leave_a_mixture() {
    let Some(place) = place("") else { return };
    place.run("c1", &pair(1024));
    let plugins = [place.asker(), place.asker_called("20", "second")];
    let end = || {
        let number = |controller, file| place.file("c1", controller, file).parse::<u64>().unwrap();
        let shares = number("cpu", "cpu.shares");
        (shares, number("memory", "memory.soft_limit_in_bytes") / PAGE)
    };
    for round in 0..rounds() {
        let lasts: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (plugin, who) in plugins.iter().zip(1..) {
                let last = &lasts[usize::try_from(who).unwrap()];
                scope.spawn(move || {
                    for turn in 0..15 {
                        let number = 10_000 * who + 100 * (round % 90) + turn;
                        assert!(is_done(plugin, "c1", &pair(number)), "{number}");
                        last.store(number, Ordering::SeqCst);
                    }
                });
            }
            for turn in 0..8 {
                // Each differs from the one before: the engine means it.
                let number = 2000 + 100 * (round % 90) + turn;
                succeeds(&place.update("c1", &pair(number)));
                lasts[0].store(number, Ordering::SeqCst);
            }
        });
        let (shares, reservation) = end();
        assert_eq!(shares, reservation, "a mixture");
        let lasts: Vec<u64> = lasts.iter().map(|last| last.load(Ordering::SeqCst)).collect();
        assert!(lasts.contains(&shares), "{shares} is nobody's last word: {lasts:?}");
        // The record says the same as the files: who repeats itself changes nothing.
        succeeds(&place.update("c1", &pair(lasts[0])));
        assert_eq!(end(), (shares, reservation));
        let owners = place.rig.admin(&["explain", "c1"])["owners"].clone();
        let owner = ["", "10-asker", "20-second"][usize::try_from(shares / 10_000).unwrap()];
        let wanted = match owner {
            "" => json!({}),
            owner => json!({"CPUShares": owner, "MemReservation": owner}),
        };
        assert_eq!(owners, wanted);
    }
}
