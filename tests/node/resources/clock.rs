// SPDX-License-Identifier: Apache-2.0
//! The machine's clock jumps, as when NTP corrects a clock that was wrong at boot: plugins are asked, no
//! time-out is early, records are kept. The clock is set only in the guest of `make vm`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime, clock_settime};
use serde_json::json;
use test_support::adjustments::sets;
use test_support::{has_received, is_synchronized, skip};

use super::{anywhere, succeeds, wait_until};

const DAY: i64 = 24 * 60 * 60;

/// Restores the clock on drop, because other tests read it too.
struct Clock {
    /// The time of day at moment 0 of the monotonic clock.
    offset: Duration,
}

impl Clock {
    fn of_guest() -> Option<Self> {
        if std::env::var_os("NRI_RUNC_BINARY").is_none_or(|path| path != "/guest/bin/nri-runc") {
            skip::machine_lacks("the clock is only set in a guest (make vm)");
            return None;
        }
        let now = |clock| Duration::from(clock_gettime(clock).unwrap());
        Some(Self { offset: now(ClockId::CLOCK_REALTIME) - now(ClockId::CLOCK_MONOTONIC) })
    }

    /// Sets the clock this number of days away from the right time.
    fn is_wrong_by(&self, days: i64) {
        let right = self.offset + Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let seconds = i64::try_from(right.as_secs()).unwrap() + days * DAY;
        let wrong = Duration::from_secs(u64::try_from(seconds).unwrap());
        clock_settime(ClockId::CLOCK_REALTIME, wrong.into()).unwrap();
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.is_wrong_by(0);
    }
}

#[test]
fn a_clock_that_jumps_makes_no_plugin_late_and_loses_no_record() {
    let Some(clock) = Clock::of_guest() else { return };
    let patient =
        "[nri]\nplugin_request_timeout = \"20s\"\nplugin_registration_timeout = \"20s\"\n";
    let Some(mut place) = anywhere("runc", patient) else { return };
    let received = place.host.plugin("10", "env", sets("GREETING", "hello"));
    for (id, days) in [("before", 0), ("later", 1), ("earlier", -1)] {
        clock.is_wrong_by(days);
        place.run(id, &json!({}));
        assert!(place.host.read(&format!("{id}/config.json")).contains("GREETING=hello"), "{id}");
        let row = place.host.admin(&["plugins"])[0].clone();
        assert_eq!((&row["timeouts"], &row["failures"]), (&json!(0), &json!(0)), "{row}");
        succeeds(&place.update(id, &json!({"pids": {"limit": 50}})));
        wait_until("each event is received", || {
            ["CreateContainer", "PostStartContainer", "UpdateContainer"]
                .iter()
                .all(|event| has_received(&received, &format!("{event} {id}")))
        });
    }
    // The next daemon also accepts records from the future.
    place.host.kill_daemon();
    place.host.start_daemon();
    for id in ["before", "later", "earlier"] {
        assert_eq!(place.state(id).as_deref(), Some("running"), "{id}");
    }
    let again = place.host.plugin("10", "env", sets("GREETING", "hello"));
    wait_until("it is synchronized", || is_synchronized(&place.host.admin(&["plugins"]), "10-env"));
    clock.is_wrong_by(0);
    succeeds(&place.host.verb(&["kill", "later", "9"]));
    wait_until("its end is received", || has_received(&again, "StopContainer later"));
    let status = place.host.admin(&["status"]);
    assert_eq!(status["bypassed"], 0, "{status}");
    let page = String::from_utf8(place.host.call(&["nri", "pods"]).stdout).unwrap();
    assert!(page.contains("earlier"), "{page}");
    let row = place.host.admin(&["plugins"])[0].clone();
    assert_eq!((&row["timeouts"], &row["failures"]), (&json!(0), &json!(0)), "{row}");
}
