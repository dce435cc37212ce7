// SPDX-License-Identifier: Apache-2.0
//! Docker and Podman, whose clients have the same commands and options.

use std::process::Output;

use serde_json::Value;
use test_support::cgroup;

use super::{Call, Printed, Tested, Wanted};

/// An engine that its own client controls.
pub(crate) trait Client: Tested {
    const IMAGE: &'static str;
    /// Whether it records what its users requested, and gives an update and a restart all of it.
    /// Podman's record is the runtime's document, with the plugins' values.
    const RECORDS_REQUESTS: bool;
    /// The option that gives a container [`Tested::DEVICE`].
    const DEVICE_OPTION: &'static str;

    /// The first word of its scopes' names.
    const SCOPE: &'static str;

    fn call(&self, words: &[&str]) -> Output;

    /// The cgroup of its containers.
    fn parent(&self) -> String;

    /// The annotations that the runtime received.
    fn annotations(&self, id: &str) -> Value;

    /// The words before the options of `run --detach` through nri-runc.
    fn run_words(&self) -> Vec<String>;

    /// Calls it successfully; returns its output.
    #[track_caller]
    fn good(&self, words: &[&str]) -> String {
        let printed = printed(&self.call(words));
        assert_eq!(printed.code, Some(0), "{words:?}: {}", printed.text);
        printed.text.trim().to_owned()
    }

    fn inspect(&self, name: &str) -> Value {
        serde_json::from_str::<Value>(&self.good(&["inspect", name])).unwrap()[0].take()
    }

    /// The memory limit, CPU shares, CPU quota and pids limit in a container's cgroup.
    fn limits(&self, id: &str) -> [String; 4] {
        [
            ("memory", "memory.limit_in_bytes"),
            ("cpu", "cpu.shares"),
            ("cpu", "cpu.cfs_quota_us"),
            ("pids", "pids.max"),
        ]
        .map(|file| cgroup::read(self.parent().trim_start_matches('/'), (Self::SCOPE, id), file))
    }
}

fn printed(output: &Output) -> Printed {
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Printed { code: output.status.code(), text: text.concat().replace('\r', "") }
}

pub(crate) fn run<E: Client>(host: &E, wanted: &Wanted<'_>) -> Result<String, String> {
    let mut words = host.run_words();
    words.extend(["--name".to_owned(), wanted.name.to_owned()]);
    words.extend(wanted.env.iter().map(|(name, value)| format!("--env={name}={value}")));
    words.extend(wanted.folders.iter().map(|path| format!("--volume={path}:{path}:ro")));
    words.extend(wanted.has_device.then(|| E::DEVICE_OPTION.to_owned()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = host.call(&[&words, wanted.options, &[E::IMAGE], wanted.args].concat());
    let out = || String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then(out).ok_or_else(|| printed(&output).text)
}

pub(crate) fn exec(host: &impl Client, name: &str, call: &Call<'_>) -> Printed {
    let terminal: &[&str] = if call.has_terminal { &["--tty"] } else { &[] };
    printed(&host.call(&[&["exec"], terminal, call.options, &[name], call.words].concat()))
}

pub(crate) fn end(host: &impl Client, name: &str, kills: bool) -> String {
    if kills {
        host.good(&["kill", name]);
    }
    host.good(&["wait", name])
}
