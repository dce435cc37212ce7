// SPDX-License-Identifier: Apache-2.0
//! Memory of the daemon after many containers: the records that `explain` shows are bounded, and beyond that
//! nothing grows. `PLATEAU=all` (`make soak`) fills the limit three times; otherwise a few containers show
//! the memory of each.

use test_support::{BUNDLE, BUSY, TestHost, in_status, started};

/// Concurrent wrappers.
const WORKERS: usize = 4;

/// Containers of one part, without `PLATEAU=all`.
const FEW: usize = 48;

/// Removed containers that `explain` shows.
const REMEMBERED: usize = 1000;

/// Maximum memory of a removed container and its pod, in kilobytes: 4.3 were measured.
const EACH: u64 = 8;

/// Allowance for partly used threads and pages, in kilobytes.
const BEGUN: u64 = 1024;

/// Creates and deletes `count` containers; returns the growth of memory in kilobytes.
fn come_and_go(host: &TestHost, part: usize, count: usize) -> u64 {
    let before = in_status(host.daemon_pid(), "RssAnon");
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || {
                for number in (worker..count).step_by(WORKERS) {
                    let (bundle, id) = (format!("b{worker}"), format!("c{part}-{number}"));
                    let bundle = host.path(&bundle).display().to_string();
                    for words in
                        [&["create", "--bundle", &bundle, &id][..], &["delete", "--force", &id]]
                    {
                        assert!(host.spawn(words).wait().unwrap().success(), "{words:?}");
                    }
                }
            });
        }
    });
    in_status(host.daemon_pid(), "RssAnon").saturating_sub(before)
}

#[test]
fn memory_of_removed_containers_has_a_bound() {
    let host = started(BUSY);
    for worker in 0..WORKERS {
        std::fs::create_dir_all(host.path(&format!("b{worker}/rootfs"))).unwrap();
        host.write(&format!("b{worker}/config.json"), BUNDLE);
    }
    let is_whole = std::env::var_os("PLATEAU").is_some();
    let count = if is_whole { REMEMBERED } else { FEW };
    let grown = [0, 1, 2].map(|part| come_and_go(&host, part, count));
    let [first, second, third] = grown;
    if is_whole {
        // Each removed container replaces an earlier one.
        assert!(second + third < first / 4, "{grown:?} KB for {count} containers each");
    } else {
        let most = EACH * 2 * u64::try_from(count).unwrap() + BEGUN;
        assert!(second + third < most, "{grown:?} KB for {count} containers each");
    }
    let removed = host.admin(&["explain", "c2-0"]);
    assert_eq!(removed["id"], "c2-0", "{removed}");
}
