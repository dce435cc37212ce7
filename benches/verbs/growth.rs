// SPDX-License-Identifier: Apache-2.0
//! The growth of costs with quantities that others choose: plugins, fields, concurrent requests, known containers, the
//! length of a document, annotations, labels, rules, and the plugins and containers of an engine. Each curve is
//! measured beside its comparison, in turns, and its slope has a limit. `make bench-growth` draws them
//! (`scripts/growth.py`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::memory::Memory;
use super::{Place, beyond, ceiling, chain, cri, known};

/// Pairs of creations at each point.
const PAIRS: usize = 30;

/// Times of one point, nri-runc's and the comparison's.
pub(crate) struct Point {
    x: usize,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// A curve, and whether its slope is within its limit.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) points: Vec<Point>,
    /// The limit in words, the limit, and the measured slope.
    pub(crate) limit: (&'static str, f64, f64),
}

fn at(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let place = ((sorted.len() as f64 - 1.0) * share).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

impl Point {
    /// One value, without a comparison.
    pub(crate) fn alone(x: usize, value: f64) -> Self {
        Self { x, ours: vec![value], theirs: Vec::new() }
    }

    fn ours(&self) -> f64 {
        at(&self.ours, 0.5)
    }

    fn theirs(&self) -> f64 {
        at(&self.theirs, 0.5)
    }
}

/// Measures the wanted curves; `go`: the adaptation in Go, for curves that are compared with it.
pub(crate) fn measure(
    binary: &Path,
    tools: &Path,
    go: Option<&Path>,
    wants: impl Fn(&str) -> bool,
) {
    let mut curves = Vec::new();
    let mut measured = |name: &str, curve: &dyn Fn() -> Curve| {
        if wants(name) {
            let begun = Instant::now();
            curves.push(curve());
            println!("bench: {name} took {} s", begun.elapsed().as_secs());
        }
    };
    let place = || {
        let mut place = Place::new(binary.to_owned(), tools);
        place.start_daemon();
        place
    };
    if let Some(go) = go {
        measured("plugins", &|| plugins(go));
        measured("fields", &|| fields(go));
        measured("concurrent", &|| concurrent(go));
    } else {
        println!("skipped: plugins, fields, concurrent: the adaptation in Go was not built");
    }
    measured("document", &|| document(&place(), "document"));
    measured("annotations", &|| document(&place(), "annotations"));
    measured("labels", &|| document(&place(), "labels"));
    measured("rules", &|| rules(&mut place()));
    let mut all = Vec::new();
    if wants("engine") {
        match engine(binary, tools) {
            Ok(of_engine) => all.extend(of_engine),
            Err(why) => println!("skipped: engine_plugins, engine_known: {why}"),
        }
    }
    if wants("known") {
        all.extend(many(binary, tools));
    }
    curves.extend(all);
    let has_cc = std::env::var_os("NRI_RUNC_FLOOR").is_some();
    if wants("loop") && !has_cc {
        println!("skipped: loop: no C compiler for a runtime that exits at once");
    } else if wants("loop") {
        curves.extend(ceiling::curves(binary, tools));
        ceiling::requests(binary, tools);
    }
    print_results(&curves);
}

/// A folder of sockets, and the request of both adaptations.
fn requests() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    chain::write_request(dir.path());
    dir
}

/// One creation through `count` plugins, each with `fields` variables; microseconds.
fn chained(go: &Path, (count, fields): (usize, usize)) -> (Vec<f64>, Vec<f64>) {
    let dir = requests();
    let mut here =
        chain::Side::start(chain::ours(), dir.path(), "ours", (count, fields, Duration::ZERO));
    let there = Command::new(go);
    let mut there =
        chain::Side::start(there, dir.path(), "theirs", (count, fields, Duration::ZERO));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        ours.push(here.run(20, 1).0);
        theirs.push(there.run(20, 1).0);
    }
    (ours, theirs)
}

fn plugins(go: &Path) -> Curve {
    let point = |x| {
        let (ours, theirs) = chained(go, (x, 1));
        Point { x, ours, theirs }
    };
    let points: Vec<Point> = [1, 2, 4, 8, 16, 32].map(point).into();
    let slope = slope(&points, Point::ours) / slope(&points, Point::theirs);
    let limit = ("each further plugin, against the Go adaptation's", 0.6, slope);
    Curve { name: "plugins", unit: "us", points, limit }
}

/// A container on containerd, with nri-runc and with its own NRI: through more plugins, and beside more containers.
fn engine(binary: &Path, tools: &Path) -> Result<[Curve; 2], String> {
    let [through, beside] = cri::growth(binary, tools, &[1, 2, 4, 8, 16, 32], &[10, 100, 1_000])?
        .map(|times| {
            let point = |(x, rounds): (usize, Vec<[f64; 2]>)| {
                let of = |side: usize| rounds.iter().map(|times| times[side]).collect();
                Point { x, ours: of(0), theirs: of(1) }
            };
            times.into_iter().map(point).collect::<Vec<Point>>()
        });
    let added = slope(&through, Point::ours) / slope(&through, Point::theirs);
    let limit = ("each further plugin, against containerd's own NRI", 0.6, added);
    let plugins = Curve { name: "engine_plugins", unit: "ms", points: through, limit };
    let times = |of: fn(&Point) -> f64| of(&beside[2]) / of(&beside[0]);
    let per_ten = (times(Point::ours) / times(Point::theirs)).sqrt();
    let limit =
        ("a container beside ten times as many, against containerd's own NRI", 1.02, per_ten);
    let known = Curve { name: "engine_known", unit: "ms", points: beside, limit };
    Ok([plugins, known])
}

fn fields(go: &Path) -> Curve {
    let point = |x| {
        let (ours, theirs) = chained(go, (1, x));
        Point { x, ours, theirs }
    };
    let points: Vec<Point> = [1, 10, 100, 1000].map(point).into();
    let slope = slope(&points, Point::ours) / slope(&points, Point::theirs);
    let limit = ("each further variable, against the Go adaptation's", 0.6, slope);
    Curve { name: "fields", unit: "us", points, limit }
}

/// Creations a second for each number of concurrent ones, through ten plugins that work a millisecond each.
fn concurrent(go: &Path) -> Curve {
    let dir = requests();
    let ten = (10, 1, Duration::from_millis(1));
    let mut here = chain::Side::start(chain::ours(), dir.path(), "ours", ten);
    let mut there = chain::Side::start(Command::new(go), dir.path(), "theirs", ten);
    let point = |x: usize| {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let events = u32::try_from(x * 4).unwrap().max(16);
            ours.push(1e6 / here.run(events, x).0);
            theirs.push(1e6 / there.run(events.min(32), x).0);
        }
        Point { x, ours, theirs }
    };
    let points: Vec<Point> = [1, 2, 4, 8, 16, 32, 64].map(point).into();
    let (first, last) = (&points[0], points.last().unwrap());
    let times = last.ours() / first.ours();
    // The reciprocal, because a limit is a maximum: at least eight times as many creations.
    let limit = ("1 / how many times as many with 64 at once", 1.0 / 8.0, 1.0 / times);
    Curve { name: "concurrent", unit: "/s", points, limit }
}

/// Milliseconds of wrapped and bare creations, in turns.
fn pairs(place: &Place) -> (Vec<f64>, Vec<f64>) {
    let bundle = place.path("bundle").display().to_string();
    let words = ["create", "--bundle", &bundle, "c"];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..PAIRS {
        for turn in 0..2 {
            let is_ours = (round + turn) % 2 == 0;
            let program = if is_ours { &place.binary } else { &place.runc };
            let took = place.timed(program, &words);
            place.timed(program, &["delete", "--force", "c"]);
            if is_ours { ours.push(took) } else { theirs.push(took) }
        }
    }
    (ours, theirs)
}

/// Measures one plugin and a longer config.json: by one member that NRI does not know, or by annotations or CRI-O's
/// labels of a container, which each plugin receives.
fn document(place: &Place, name: &'static str) -> Curve {
    let text = std::fs::read_to_string(place.path("bundle/config.json")).unwrap();
    let _one = beyond::one(place);
    let point = |x: usize| {
        let one = |n: usize| (format!("example.org/{name}-{n}"), json!(format!("value {n}")));
        let many = || Value::Object((0..x).map(one).collect());
        let mut document: Value = serde_json::from_str(&text).unwrap();
        match name {
            "document" => document["vendor"] = json!({"data": "x".repeat(x)}),
            "annotations" => document["annotations"] = many(),
            _ => {
                document["annotations"] = json!({
                    "io.container.manager": "cri-o",
                    "io.kubernetes.cri-o.ContainerType": "container",
                    "io.kubernetes.cri-o.SandboxID": "sandbox",
                    "io.kubernetes.cri-o.Labels": many().to_string(),
                });
            }
        }
        place.write("bundle/config.json", &document.to_string());
        let (ours, theirs) = pairs(place);
        Point { x, ours, theirs }
    };
    let what = match name {
        "document" => "added time of 5 MB, against runc's own",
        "annotations" => "added time of 1,000 annotations, against runc's whole create",
        _ => "added time of 1,000 labels, against runc's whole create",
    };
    let (sizes, limit) = match name {
        "document" => ([10_000, 100_000, 1_000_000, 5_000_000], 4.0),
        _ => ([1, 10, 100, 1_000], 0.2),
    };
    let points: Vec<Point> = sizes.iter().map(|x| point(*x)).collect();
    let (first, last) = (&points[0], points.last().unwrap());
    let added = |point: &Point| point.ours() - point.theirs();
    let base = if name == "document" { last.theirs() - first.theirs() } else { first.theirs() };
    let limit = (what, limit, (added(last) - added(first)) / base);
    Curve { name, unit: "ms", points, limit }
}

/// Measures one plugin and 1 to 1,000 rules, of which only the last matches the pod.
fn rules(place: &mut Place) -> Curve {
    let mut points = Vec::new();
    for x in [1, 10, 100, 1000] {
        let text: String = (1..x)
            .map(|n| format!("[[rule]]\nname = \"r{n}\"\nnamespaces = [\"tenant-{n}-*\"]\nplugins = [\"1*\"]\ndeny = [\"Mounts\"]\n"))
            .chain(["[[rule]]\nname = \"last\"\ndeny = [\"OciHooks\"]\n".to_owned()])
            .collect();
        let (ours, theirs) = beyond::with(place, &text, |place| {
            let _one = beyond::one(place);
            pairs(place)
        });
        points.push(Point { x, ours, theirs });
    }
    let (first, last) = (&points[0], &points[3]);
    let added = |point: &Point| point.ours() - point.theirs();
    let limit = (
        "added time of 1,000 rules, against runc's whole create",
        0.05,
        (added(last) - added(first)) / first.theirs(),
    );
    Curve { name: "rules", unit: "ms", points, limit }
}

/// Measures a creation, the daemon's memory and its start, beside up to 10,000 known containers.
fn many(binary: &Path, tools: &Path) -> Vec<Curve> {
    let [mut creations, mut memory, mut starts] = [const { Vec::new() }; 3];
    for x in [10, 100, 1_000, 10_000] {
        let mut place = known::knowing(binary, tools, x);
        let (ours, theirs) = pairs(&place);
        creations.push(Point { x, ours, theirs });
        place.stop_daemon();
        let begun = Instant::now();
        place.start_daemon();
        place.await_plugins(0);
        let took = begun.elapsed().as_secs_f64() * 1e3;
        starts.push(Point::alone(x, took));
        std::thread::sleep(Duration::from_secs(3)); // They are checked once.
        let private = Memory::of(place.daemon_pid()).private;
        memory.push(Point::alone(x, private));
        let _ended = place.command(&place.runc, &["delete", "--force", "k"]).status();
    }
    let per_ten = (creations[3].ours() / creations[0].ours()).cbrt();
    let limit = ("a create beside ten times as many", 1.02, per_ten);
    let creations = Curve { name: "known", unit: "ms", points: creations, limit };
    let limit = ("KiB for each known container", 2.0, slope(&memory, Point::ours));
    let memory = Curve { name: "known_memory", unit: "KiB", points: memory, limit };
    let limit = ("ms with 10,000 containers on record", 100.0, starts[3].ours());
    vec![creations, memory, Curve { name: "known_start", unit: "ms", points: starts, limit }]
}

/// The cost of each further one, between the first point and the last.
fn slope(points: &[Point], of: impl Fn(&Point) -> f64) -> f64 {
    let (first, last) = (&points[0], points.last().unwrap());
    (of(last) - of(first)) / (last.x - first.x) as f64
}

/// Prints each curve with its limit, and writes the points.
fn print_results(curves: &[Curve]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench/growth.csv");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = std::fs::File::create(&path).unwrap();
    writeln!(file, "curve,x,side,p50,p90,p99,unit").unwrap();
    for Curve { name, unit, points, limit: (what, limit, slope) } in curves {
        for point in points {
            let sides = [("ours", &point.ours), ("theirs", &point.theirs)];
            for (side, values) in sides.into_iter().filter(|(_, values)| !values.is_empty()) {
                let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| at(values, share));
                writeln!(file, "{name},{},{side},{p50:.3},{p90:.3},{p99:.3},{unit}", point.x)
                    .unwrap();
            }
        }
        let is_met = if slope <= limit { "met" } else { "missed" };
        println!("{name:<14}{slope:>9.3}  <= {limit:<7.3}{is_met:<8}{what}");
    }
}
