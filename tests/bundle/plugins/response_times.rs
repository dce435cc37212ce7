// SPDX-License-Identifier: Apache-2.0
//! Response times of plugins: the limit and the progress of Synchronize, and the times in `plugins`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nri_plugin::{Context, Handler, async_trait};
use nri_runc::plugin::{Event, api};
use serde_json::Value;
use test_support::{SILENT, Script, TestHost, started, succeeds, wait_until};

use super::policies::{connect, row};

/// Completes Synchronize only when the test permits it.
#[derive(Default)]
struct Thorough(AtomicBool);

#[async_trait]
impl Handler for Thorough {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn synchronize(
        &self,
        _: &Context,
        _: Vec<api::PodSandbox>,
        _: Vec<api::Container>,
    ) -> nri_plugin::Result<Vec<api::ContainerUpdate>> {
        while !self.0.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Vec::new())
    }
}

/// The progress of its Synchronize.
fn progress(host: &TestHost) -> Value {
    host.admin(&["plugins"])[0]["synchronizing"].clone()
}

#[test]
fn synchronize_has_its_own_time_limit_and_shows_its_progress() {
    let host = started(&format!("{SILENT}[plugin.late]\nsync_timeout = \"90s\"\n"));
    let late = Arc::new(Thorough::default());
    connect(&host, "10-late", Arc::<Thorough>::clone(&late));
    // Longer than the limit of a request, and until the log has a line.
    host.logs_at_least(&["10-late is being synchronized for", "limit 90s"], 1);
    let seen = progress(&host);
    assert_eq!((&seen["limit_ms"], &seen["answered"]), (&90_000.0.into(), &0.into()), "{seen}");
    assert!(seen["for_ms"].as_f64() > Some(3000.0), "{seen}");
    let page = String::from_utf8(host.call(&["nri", "plugins"]).stdout).unwrap();
    assert!(
        page.contains("10-late: is being synchronized for ") && page.contains("limit 90s"),
        "{page}"
    );
    succeeds(&host.create("c1"));
    late.0.store(true, Ordering::Relaxed);
    wait_until("it takes part", || row(&host, "10-late").is_some());
    assert_eq!(progress(&host), Value::Null);
}

#[test]
fn a_plugin_that_exceeds_its_sync_timeout_is_disconnected() {
    let host = started("[plugin.late]\nsync_timeout = \"3s\"\n");
    connect(&host, "10-late", Arc::new(Thorough::default()));
    host.logs(&["10-late could not be synchronized", "it did not answer in time"], 1);
    wait_until("it is let go", || host.admin(&["status"])["plugins"] == 0);
    // Another plugin has the usual limit.
    let other = Arc::new(Thorough(AtomicBool::new(true)));
    connect(&host, "20-other", other);
    wait_until("it takes part", || row(&host, "20-other").is_some());
}

#[test]
fn plugins_shows_answer_times_against_the_limit() {
    let host = started("[plugin.a]\nrequest_timeout = \"45s\"\n");
    let _plugin = host.plugin("10", "a", Script::default());
    assert_eq!(host.admin(&["plugins"])[0]["answers"], Value::Null, "Synchronize is no answer");
    succeeds(&host.create("c1"));
    wait_until("its answers are counted", || {
        host.admin(&["plugins"])[0]["answers"]["count"].as_u64() >= Some(3)
    });
    let answers = &host.admin(&["plugins"])[0]["answers"];
    let of = |member: &str| answers[member].as_f64().unwrap();
    assert_eq!((of("limit_ms"), &answers["busy_for_an_hour"]), (45_000.0, &false.into()));
    assert!(0.0 < of("p50_ms") && of("p50_ms") <= of("p99_ms"), "{answers}");
    let page = String::from_utf8(host.call(&["nri", "plugins"]).stdout).unwrap();
    assert!(page.contains("10-a: answers within ") && page.contains("(p99), limit 45s"), "{page}");
}
