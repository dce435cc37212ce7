// SPDX-License-Identifier: Apache-2.0
//! Containers that exit in known ways, and the exit codes that a plugin received. If the kernel
//! reports none (before Linux 6.15) the engine does; a code may be unknown, never wrong.

use std::sync::{Arc, Mutex};

use crate::Script;

/// The last event of a container, in which its code must be known.
const REMOVED: &str = "RemoveContainer";

/// The way in which a container exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(u64),
    /// The test kills it.
    Killed,
    OutOfMemory,
}

impl Exit {
    pub fn code(self) -> u64 {
        match self {
            Self::Code(code) => code,
            Self::Killed | Self::OutOfMemory => 137,
        }
    }

    /// Returns the shell command that exits in this way, in a container with limited memory.
    pub fn command(self) -> String {
        match self {
            Self::Code(code) => format!("exit {code}"),
            Self::Killed => "exec sleep 1000".to_owned(),
            Self::OutOfMemory => "x=0123456789; while :; do x=$x$x; done".to_owned(),
        }
    }
}

/// Lists twenty exits, or the number in `EXITS`. Of twenty, four containers are killed and two
/// exhaust their memory; the codes of the others differ from one to the next, and from one run to
/// the next.
pub fn list() -> Vec<Exit> {
    let count = std::env::var("EXITS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let start = u64::from(std::process::id());
    let exit = |number: u64| match number % 10 {
        4 | 9 => Exit::Killed,
        7 => Exit::OutOfMemory,
        _ => Exit::Code(1 + (start + number * 7) % 120),
    };
    (0..count).map(exit).collect()
}

/// The name of the container that exits like this item of the list.
pub fn name(number: usize) -> String {
    format!("c{number}")
}

/// An event, its container, and the exit code if it was known.
type Event = (String, String, Option<u64>);

/// The events that a plugin received of each exit.
#[derive(Clone, Default)]
pub struct Received(Arc<Mutex<Vec<Event>>>);

impl Received {
    /// The plugin's script.
    pub fn script(&self) -> Script {
        let list = Arc::clone(&self.0);
        let on_request = move |event: &str, request: &dyn protobuf::MessageDyn| {
            let request = crate::scripted_plugin::json_of(request);
            let container = &request["container"];
            if let Some(name) = container["name"].as_str() {
                let code = container["exitCode"].as_u64().unwrap_or_default();
                // A process that the OOM killer ended cannot have the code 0.
                let is_unknown = match container["statusReason"].as_str() {
                    Some("Unknown") => true,
                    Some("OOMKilled") => code == 0,
                    _ => false,
                };
                let code = Some(code).filter(|_| !is_unknown);
                list.lock().unwrap().push((event.to_owned(), name.to_owned(), code));
            }
        };
        Script { on_request: Some(Arc::new(on_request)), ..Script::default() }
    }

    /// Returns the number and exit code of the container in each `event`.
    fn of(&self, event: &str) -> Vec<(usize, Option<u64>)> {
        let all = self.0.lock().unwrap();
        let of = all.iter().filter(|(what, ..)| what == event);
        of.filter_map(|(_, name, code)| Some((name.strip_prefix('c')?.parse().ok()?, *code)))
            .collect()
    }

    /// The number of containers that have had this event.
    pub fn count(&self, event: &str) -> usize {
        self.of(event).len()
    }

    /// Asserts that no code is wrong, and that each is known at the removal; prints how many were
    /// known at each event.
    #[track_caller]
    #[expect(clippy::print_stderr, reason = "the documentation has the counts")]
    pub fn compare(&self, exits: &[Exit]) {
        let mut unknown: Vec<Exit> = Vec::new();
        for event in ["StopContainer", REMOVED] {
            let all = self.of(event);
            assert_eq!(all.len(), exits.len(), "{event}");
            for (number, code) in &all {
                let wanted = exits[*number];
                let is_right = code.is_none_or(|code| code == wanted.code());
                assert!(is_right, "c{number} at {event}: {code:?}, not {wanted:?}");
            }
            let of_event = all.iter().filter(|(_, code)| code.is_none());
            unknown = of_event.map(|(number, _)| exits[*number]).collect();
            eprintln!("exits: {} of {} known at {event}", exits.len() - unknown.len(), exits.len());
        }
        assert!(unknown.is_empty(), "unknown at {REMOVED}: {unknown:?}");
    }
}
