// SPDX-License-Identifier: Apache-2.0
//! The cost of injections, promises, rules about later processes, events and drift, which no other
//! NRI has. Each is measured as users configure it, against bare runc.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::Place;
use crate::plugin::Plugins;
use crate::report::Ratio;

/// One injection for every container, like the cookbook's first.
const INJECTION: &str = "[[inject]]\nname = \"CA\"\nenv = { SSL_CERT_FILE = \"/etc/ssl/corp.pem\" }\n\
    mounts = [{ source = \"/etc/hostname\", destination = \"/etc/ssl/corp.pem\", options = [\"rbind\", \"ro\"] }]\n";
/// An exec rule that refuses nothing that is measured here.
const EXEC_RULE: &str = "[[exec_rule]]\nname = \"no shells\"\nterminal = true\n";
const AUDITED: &str = "[audit]\nexec = true\n";
/// Values that are checked as often as the configuration permits.
const WATCHED: &str =
    "[drift]\nevery = \"5s\"\n[[inject]]\nname = \"limits\"\nrlimits = { nofile = 4096 }\n";

pub(crate) fn measure(place: &mut Place) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let what = "`create`, no plugin, an injection of a variable and a mount, wall time";
    let names = ["create_injected", "create_injected_cpu"];
    ratios.extend(with(place, INJECTION, |place| place.create(names, what)));
    let what = "`create`, one plugin and 100 promises about other devices, wall time";
    let names = ["create_hundred_promises", "create_hundred_promises_cpu"];
    ratios.extend(with(place, &promises(), |place| {
        let _one = one(place);
        place.create(names, what)
    }));
    let what = "`create`, one plugin and a reader of events, wall time";
    let names = ["create_events_reader", "create_events_reader_cpu"];
    ratios.extend(with(place, "", |place| {
        let _one = one(place);
        let _reader = Reader::start(place);
        place.create(names, what)
    }));
    let what = "`create`, one plugin, metrics served and an audit log written, wall time";
    let names = ["create_observed", "create_observed_cpu"];
    let path = place.path("").display().to_string();
    let observed = format!(
        "[metrics]\nlisten = \"unix:{path}metrics.sock\"\n[audit]\ntarget = \"file\"\npath = \"{path}audit.log\"\n"
    );
    ratios.extend(with(place, &observed, |place| {
        let _one = one(place);
        place.create(names, what)
    }));
    let what = "`create`, an injection, drift looked for every 5 s, wall time";
    let names = ["create_drift", "create_drift_cpu"];
    ratios.extend(with(place, WATCHED, |place| place.create(names, what)));
    for (names, what, settings) in [
        (["exec", "exec_cpu"], "`exec` that nobody asks about, wall time", ""),
        (["exec_audited", "exec_audited_cpu"], "`exec` in the audit log, wall time", AUDITED),
        (["exec_ruled", "exec_ruled_cpu"], "`exec` with a rule, wall time", EXEC_RULE),
    ] {
        ratios.extend(with(place, settings, |place| exec(place, names, what)));
    }
    let what = "`exec`, a plugin that adds a variable to it, wall time";
    ratios.extend(with(place, "", |place| {
        let _one = Plugins::of_execs(&place.path("nri.sock"));
        place.await_plugins(1);
        exec(place, ["exec_plugin", "exec_plugin_cpu"], what)
    }));
    ratios
}

fn promises() -> String {
    let promise = |number| {
        format!(
            "[[require]]\nname = \"p{number}\"\ndevices = [\"/dev/accelerator{number}*\"]\nplugin = \"driver{number}\"\n"
        )
    };
    (0..100).map(promise).collect()
}

pub(crate) fn one(place: &Place) -> Plugins {
    let one = Plugins::start(&place.path("nri.sock"), 1, Duration::ZERO);
    place.await_plugins(1);
    one
}

/// Runs `measured` with more configuration, and a separate daemon.
pub(crate) fn with<T>(place: &mut Place, more: &str, measured: impl FnOnce(&mut Place) -> T) -> T {
    let text = std::fs::read_to_string(place.path("config.toml")).unwrap();
    place.write("config.toml", &format!("{text}{more}"));
    place.stop_daemon();
    place.start_daemon();
    let result = measured(place);
    place.write("config.toml", &text);
    place.stop_daemon();
    place.start_daemon();
    result
}

/// A later process that exits at once, wrapped and bare, in a container of nri-runc.
fn exec(place: &Place, names: [&'static str; 2], what: &'static str) -> [Ratio; 2] {
    let bundle = place.path("bundle").display().to_string();
    place.timed(&place.binary, &["create", "--bundle", &bundle, "c"]);
    place.timed(&place.binary, &["start", "c"]);
    let words = ["exec", "c", "/bin/sleep", "0"];
    let ratios = place.in_pairs(names, [what, "runc exec"], &words, |_program| {});
    place.timed(&place.binary, &["delete", "--force", "c"]);
    ratios
}

/// A process that follows the events, and reads them.
struct Reader(Child);

impl Reader {
    fn start(place: &Place) -> Self {
        let mut command = place.admin(&["nri", "events", "--follow", "-o", "json"]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
