// SPDX-License-Identifier: Apache-2.0
//! A real Docker, in which `install` has registered nri-runc, runs containers through it with the
//! real runc; plugins in this process see, change and refuse them. The results are checked inside
//! the containers, in their cgroups, and by Docker itself.

mod adjusted;
mod endings;
mod engine;
mod injected;
mod later;
mod origin;
mod promised;
mod registration;
mod rootless;
mod told;
mod updates;

use std::sync::{Arc, Mutex};

use serde_json::Value;
use test_support::LIFE;
use test_support::scripted_plugin::{Heard, listening};

type Told = Arc<Mutex<Vec<String>>>;

/// The requests of one event, in order.
fn requests(heard: &Heard, event: &str) -> Vec<Value> {
    let all = heard.lock().unwrap();
    all.iter().filter(|(what, _)| what == event).map(|(_, request)| request.clone()).collect()
}

/// The received events of one container, in order.
fn events(told: &Mutex<Vec<String>>, name: &str) -> Vec<String> {
    let end = format!(" {name}");
    let told = told.lock().unwrap();
    told.iter().filter_map(|event| event.strip_suffix(&end)).map(ToOwned::to_owned).collect()
}

fn heard_of(told: &Mutex<Vec<String>>, what: &str) -> bool {
    told.lock().unwrap().iter().any(|event| event == what)
}
