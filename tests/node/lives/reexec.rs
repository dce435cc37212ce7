// SPDX-License-Identifier: Apache-2.0
//! The daemon executes another program while it watches a thousand containers, ten plugins are
//! connected, and other containers are created, started and removed: nothing fails, and every
//! plugin receives each event once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::{BUNDLE, BUSY, Script, TestHost, wait_until};

use super::say;
use super::scale::{put_on_record, sleeper, with_a_record};

const WATCHED: usize = 1000;
const PLUGINS: usize = 10;
const WORKERS: usize = 3;
const TIMES: usize = 4;
/// Number of watched containers that exit meanwhile.
const EXITS: usize = 40;

/// The containers that one worker created, and the longest duration of a create.
struct Work {
    ids: Vec<String>,
    longest: Duration,
}

#[test]
fn a_thousand_containers_and_ten_plugins_notice_no_reexec() {
    let mut host = with_a_record(BUSY);
    let mut sleepers: Vec<_> = (0..WATCHED).map(|_| sleeper()).collect();
    let pids: Vec<u32> = sleepers.iter().map(|sleeper| sleeper.id()).collect();
    put_on_record(&host, &pids);
    host.start_daemon();
    let before = host.admin(&["status"])["pid"].clone();
    let plugins: Vec<_> = (0..PLUGINS)
        .map(|number| host.plugin(&format!("{number:02}"), "a", Script::default()))
        .collect();
    let (is_over, held, lives) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let done: Vec<Work> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                scope.spawn({
                    let host = &host;
                    let (is_over, lives) = (&is_over, &lives);
                    move || work(host, number, is_over, lives)
                })
            })
            .collect();
        let _even_if_this_fails = SetAtEnd(&is_over);
        for round in 0..TIMES {
            let wanted = lives.load(Ordering::Relaxed) + WORKERS;
            wait_until("containers live", || lives.load(Ordering::Relaxed) >= wanted);
            for child in &mut sleepers[round * EXITS / TIMES..(round + 1) * EXITS / TIMES] {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let output = host.call(&["nri", "--json", "reexec"]);
            let line = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{line}");
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&document["pid"], &document["plugins"]), (&before, &PLUGINS.into()));
            let millis = usize::try_from(document["held_ms"].as_u64().unwrap()).unwrap();
            held.fetch_max(millis, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let longest = done.iter().map(|work| work.longest).max().unwrap();
    let created: Vec<String> = done.into_iter().flat_map(|work| work.ids).collect();
    say(&format!(
        "reexec: {TIMES} times beside {} creates: requests were held for {} ms at most, the longest create took {} ms",
        created.len(),
        held.into_inner(),
        longest.as_millis()
    ));
    for row in host.admin(&["plugins"]).as_array().unwrap() {
        assert_eq!((&row["state"], &row["timeouts"]), (&"synchronized".into(), &0.into()), "{row}");
    }
    for received in &plugins {
        assert_all_received_once(received, &created);
    }
    assert_eq!(host.admin(&["status"])["pid"], before, "it is the same process");
    assert_eq!(host.admin(&["status"])["bypassed"], 0);
}

/// Stops the workers on drop.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs lifecycles one after the other until the end.
fn work(host: &TestHost, number: usize, is_over: &AtomicBool, lives: &AtomicUsize) -> Work {
    let mut work = Work { ids: Vec::new(), longest: Duration::ZERO };
    let bundle = format!("bundle{number}");
    std::fs::create_dir_all(host.path(&bundle).join("rootfs")).unwrap();
    let path = host.path(&bundle).display().to_string();
    while !is_over.load(Ordering::Relaxed) || work.ids.is_empty() {
        let id = format!("w{number}x{}", work.ids.len());
        host.write(&format!("{bundle}/config.json"), BUNDLE);
        let begun = Instant::now();
        for words in [
            &["create", "--bundle", &path, &id][..],
            &["start", &id],
            &["kill", &id, "9"],
            &["delete", &id],
        ] {
            let ended = host.spawn(words).wait().unwrap();
            assert!(ended.success(), "{words:?}");
            if words[0] == "create" {
                work.longest = work.longest.max(begun.elapsed());
            }
            if words[0] == "kill" {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        work.ids.push(id);
        lives.fetch_add(1, Ordering::Relaxed);
    }
    work
}

fn assert_all_received_once(received: &Arc<Mutex<Vec<String>>>, created: &[String]) {
    let count =
        |line: &str| received.lock().unwrap().iter().filter(|received| *received == line).count();
    // The records were copied from one record, and have its name.
    let stops = "StopContainer c0";
    wait_until("the exits are heard", || count(stops) >= EXITS);
    assert_eq!(count(stops), EXITS, "each once");
    assert_eq!(count("Synchronize c0"), WATCHED + 1, "it was never synchronized anew");
    for id in created {
        let last = format!("RemoveContainer {id}");
        wait_until(&last, || count(&last) >= 1);
        let events: Vec<String> = {
            let received = received.lock().unwrap();
            let about = received.iter().filter_map(|line| line.split_once(' '));
            about.filter(|(_, name)| name == id).map(|(event, _)| event.to_owned()).collect()
        };
        let of_container = test_support::ORDER[1..].iter();
        let wanted: Vec<&&str> = of_container.collect();
        let requests: Vec<&String> =
            events.iter().filter(|event| !event.contains("PodSandbox")).collect();
        assert_eq!(format!("{requests:?}"), format!("{wanted:?}"), "{id}");
    }
}
