// SPDX-License-Identifier: Apache-2.0
//! The same tests on cgroup v2 alone, with runc and with crun. On a host with v1 each prints that
//! it is skipped; `make vm` runs them in a guest.

mod engine;
mod fields;
mod later;
mod others;

use super::{Place, anywhere, skip};

/// A guest without KVM is slow: no plugin is late there.
pub(super) const PATIENT: &str = "[nri]\nplugin_request_timeout = \"20s\"";

/// The files with a container's limits.
const LIMITS: [&str; 11] = [
    "pids.max",
    "memory.max",
    "memory.low",
    "memory.high",
    "memory.swap.max",
    "cpu.max",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "hugetlb.2MB.max",
    "hugetlb.2MB.rsvd.max",
];

/// Returns the host if v2 has the controllers; `None` after printing why a test is skipped.
fn place(runtime: &str) -> Option<Place> {
    if !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        skip::machine_lacks(
            "this host's cgroups are not v2 alone (make vm has a guest where they are)",
        );
        return None;
    }
    test_support::tools::find_in_guest(&["busybox", runtime])?;
    anywhere(runtime, PATIENT)
}

impl Place {
    /// The content of a file of the container's only cgroup.
    fn limit_in(&self, id: &str, file: &str) -> String {
        self.file(id, "", file)
    }

    /// All its limits.
    fn limits(&self, id: &str) -> Vec<String> {
        LIMITS.iter().map(|file| format!("{file}={}", self.limit_in(id, file))).collect()
    }

    /// The files with other content than these.
    fn wrong(&self, id: &str, files: &[(&str, &str)]) -> Vec<String> {
        let wrong = files.iter().filter_map(|(file, wanted)| {
            let text = self.limit_in(id, file);
            (text != *wanted).then(|| format!("{file} says {text}, not {wanted}"))
        });
        wrong.collect()
    }

    #[track_caller]
    fn all_say(&self, id: &str, files: &[(&str, &str)]) {
        assert_eq!(self.wrong(id, files), Vec::<String>::new());
    }
}

/// Prints one line for each case, because the closing summary counts them.
#[expect(clippy::print_stderr, reason = "the table of cases")]
fn show(runtime: &str, case: &str, outcome: &str) {
    eprintln!("case {runtime}: {case}: {outcome}");
}
