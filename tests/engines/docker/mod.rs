// SPDX-License-Identifier: Apache-2.0
//! A real Docker, in which `install` has registered nri-runc, runs containers through it with the
//! real runc; plugins in this process see, change and refuse them. The results are checked inside
//! the containers, in their cgroups, and by Docker itself.

mod described;
mod endings;
pub(crate) mod engine;
mod later;
mod registration;
mod rootless;
mod tested;

use std::sync::{Arc, Mutex};

use serde_json::Value;
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{LIFE, has_received};

type EventLines = Arc<Mutex<Vec<String>>>;

/// The requests of one event, in order.
fn requests(seen: &ReceivedRequests, event: &str) -> Vec<Value> {
    let all = seen.lock().unwrap();
    all.iter().filter(|(what, _)| what == event).map(|(_, request)| request.clone()).collect()
}

/// The received events of one container, in order.
fn events(received: &Mutex<Vec<String>>, name: &str) -> Vec<String> {
    let end = format!(" {name}");
    let received = received.lock().unwrap();
    received.iter().filter_map(|event| event.strip_suffix(&end)).map(ToOwned::to_owned).collect()
}
