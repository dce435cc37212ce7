// SPDX-License-Identifier: Apache-2.0
//! The ceiling of the daemon's loop, which is one thread: the processor time of a create whose runtime exits at once,
//! with 1 to 256 callers, and the thread's time for each kind of request of a real container's life.

use std::path::Path;
use std::time::{Duration, Instant};

use super::growth::{Curve, Point};
use super::plugin::Plugins;
use super::report::median;
use super::{Place, run};

/// Creates at each point, by all callers together.
const CREATES: usize = 512;
const CALLERS: [usize; 5] = [1, 8, 32, 64, 256];
/// Half of what such a create with eight callers cost before the daemon was measured this way, in microseconds.
const LIMITS: [(usize, f64); 3] = [(0, 323.0), (1, 719.0), (10, 1641.0)];

/// Microseconds of the daemon for a create that leaves nothing, with 0, 1 and 10 plugins, and creates a second.
pub(crate) fn curves(binary: &Path, tools: &Path) -> Vec<Curve> {
    let names = [("loop_none", "rate_none"), ("loop_one", "rate_one"), ("loop_ten", "rate_ten")];
    let one = |((count, limit), (name, rate)): ((usize, f64), (&'static str, &'static str))| {
        let (place, _plugins) = with_plugins(binary, tools, count, "instant/runc");
        let points = CALLERS.map(|callers| at(&place, callers));
        let of = |which: fn(&(f64, f64)) -> f64| {
            let point = |(x, at): (&usize, &(f64, f64))| Point::alone(*x, which(at));
            CALLERS.iter().zip(&points).map(point).collect()
        };
        let limit = ("us of the daemon for a create, 8 callers", limit, points[1].0);
        // The reciprocal, because a limit is a maximum: many callers do not make the rate fall.
        let falls = ("the rate of 8 callers / that of 256", 1.25, points[1].1 / points[4].1);
        [
            Curve { name, unit: "us", points: of(|at| at.0), limit },
            Curve { name: rate, unit: "/s", points: of(|at| at.1), limit: falls },
        ]
    };
    LIMITS.into_iter().zip(names).flat_map(one).collect()
}

/// Prints the loop's time for each request of a life, and the rate of containers that takes half of the thread.
pub(crate) fn requests(binary: &Path, tools: &Path) {
    println!(
        "\nMicroseconds of the daemon's loop for each request of a container's life, with runc:"
    );
    println!("plugins    create   start  update    kill  delete   lives a second at 50 %");
    for (count, _) in LIMITS {
        let (place, _plugins) = with_plugins(binary, tools, count, "");
        let bundle = place.path("bundle").display().to_string();
        let life: [&[&str]; 5] = [
            &["create", "--bundle", &bundle, "c"],
            &["start", "c"],
            &["update", "--cpu-share", "512", "c"],
            &["kill", "c", "KILL"],
            &["delete", "--force", "c"],
        ];
        let mut spent = [const { Vec::new() }; 5];
        for _ in 0..30 {
            for (verb, values) in life.iter().zip(&mut spent) {
                let before = place.loop_spent();
                place.timed(&place.binary, verb);
                std::thread::sleep(Duration::from_millis(10)); // Its process's exit, its Post events.
                values.push((place.loop_spent() - before) * 1e3);
            }
        }
        let each = spent.map(|values| median(values.into_iter()));
        let [create, start, update, kill, delete] = each;
        let lives = 0.5e6 / each.iter().sum::<f64>();
        println!(
            "{count:<9}{create:>8.0}{start:>8.0}{update:>8.0}{kill:>8.0}{delete:>8.0}{lives:>12.0}"
        );
    }
}

fn with_plugins(binary: &Path, tools: &Path, count: usize, runtime: &str) -> (Place, Plugins) {
    let mut place = Place::new(binary.to_owned(), tools);
    if !runtime.is_empty() {
        let file = place.path(runtime);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let source = file.with_extension("c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut cc = std::process::Command::new("cc");
        assert!(run(cc.args(["-O2", "-static", "-o"]).args([&file, &source])).succeeded);
        place.configure(&file);
    }
    place.start_daemon();
    let plugins = Plugins::start(&place.path("nri.sock"), count, Duration::ZERO);
    place.await_plugins(count);
    (place, plugins)
}

/// Microseconds of the daemon for one create, and creates a second.
fn at(place: &Place, callers: usize) -> (f64, f64) {
    let document = std::fs::read(place.path("bundle/config.json")).unwrap();
    let bundles: Vec<String> = (0..callers)
        .map(|caller| {
            let bundle = place.path(&format!("bundle-{callers}-{caller}"));
            std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
            std::fs::write(bundle.join("config.json"), &document).unwrap();
            bundle.display().to_string()
        })
        .collect();
    let (before, begun) = (place.daemon_spent(), Instant::now());
    std::thread::scope(|scope| {
        for (caller, bundle) in bundles.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..CREATES / callers {
                    let id = format!("c-{callers}-{caller}-{number}");
                    place.timed(&place.binary, &["create", "--bundle", bundle, &id]);
                }
            });
        }
    });
    let creates = (CREATES / callers * callers) as f64;
    let rate = creates / begun.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_millis(200)); // The undoing of the last ones.
    ((place.daemon_spent() - before) * 1e3 / creates, rate)
}
