// SPDX-License-Identifier: Apache-2.0
//! Claims that hold on several engines, each written once. The tables below give each engine a test for each claim,
//! `suite::ENGINE::TOPIC::CLAIM`; if the engine lacks what the claim needs, that test prints why.

mod adjusted;
pub(crate) mod client;
mod exits;
mod injected;
mod later;
mod origin;
pub(crate) mod pods;
mod promised;
mod refused;
mod updates;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::example::example;
use test_support::{Script, is_synchronized, scripted_plugin};

/// An engine with nri-runc and its daemon, whose containers the claims control.
pub(crate) trait Tested: Sized {
    /// The namespace of its containers that have no Kubernetes pod.
    const NAME: &'static str;
    /// A variable of each container that no claim sets.
    const VARIABLE: (&'static str, &'static str);
    /// The configuration of nri-runc in its private folder.
    const CONFIG: &'static str = "etc/nri-runc/config.toml";
    /// A device that a container may request: the key of a promise, its pattern, and the name that matches.
    const DEVICE: [&'static str; 3];

    /// Starts all; `None` after printing why the test is skipped.
    fn with_nri_runc() -> Option<Self>;

    /// Starts all, with an engine that knows [`Self::DEVICE`].
    fn with_device() -> Option<Self> {
        Self::with_nri_runc()
    }

    /// A file in its private folder.
    fn path(&self, name: &str) -> PathBuf;
    fn admin(&self, words: &[&str]) -> Value;
    fn kill_daemon(&mut self);
    fn start_daemon(&mut self);

    #[track_caller]
    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool);

    /// Starts a container that keeps running; returns its ID, or the engine's message.
    fn run(&self, wanted: &Wanted<'_>) -> Result<String, String>;
    fn exec(&self, name: &str, call: &Call<'_>) -> Printed;

    /// Waits for the end of a container, perhaps after killing it; returns the engine's exit code.
    fn end(&self, name: &str, kills: bool) -> String;

    /// Ends and removes containers.
    fn remove(&self, names: &[&str]);

    /// Checks that neither the engine nor the daemon knows of any container.
    fn no_container_is_left(&self) {
        self.wait_until("no pod is known", || self.admin(&["pods"]) == json!([]));
    }

    /// The same, after a test in which nothing failed.
    fn nothing_is_left(&self) {
        self.no_container_is_left();
        assert_eq!(self.admin(&["status"])["failures"], json!([]));
    }

    fn config(&self) -> PathBuf {
        self.path(Self::CONFIG)
    }

    fn socket(&self) -> PathBuf {
        self.path("nri.sock")
    }

    /// Adds sections to the configuration of the running daemon.
    fn configure(&self, sections: &str) {
        let before = std::fs::read_to_string(self.config()).unwrap();
        let text = format!("{before}\n{sections}");
        nri_runc::testing::files::replace(&self.config(), text.as_bytes()).unwrap();
        self.admin(&["reload"]);
    }

    /// Connects a plugin and waits until it is synchronized.
    fn plugin(&self, id: &str, script: impl Into<Script>) -> Arc<Mutex<Vec<String>>> {
        let (index, name) = id.split_once('-').unwrap();
        let received = scripted_plugin::connect(self.socket(), index, name, script);
        self.wait_until("the plugin is synchronized", || {
            is_synchronized(&self.admin(&["plugins"]), id)
        });
        received
    }

    /// Runs the plugin `id` in a container, with the host's libraries.
    fn run_plugin(&self, name: &str, id: &str) {
        let [program, folder, dir, socket] = &plugin_paths(self);
        let folders = ["/usr", "/lib", "/lib64", folder, dir];
        let args = [program, "--id", id, "--socket", socket];
        self.run(&Wanted { name, folders: &folders, args: &args, ..Wanted::default() }).unwrap();
    }
}

/// A container.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// Folders of the host at the same path.
    pub(crate) folders: &'a [&'a str],
    pub(crate) has_device: bool,
    /// Further options of a client.
    pub(crate) options: &'a [&'a str],
    pub(crate) args: &'a [&'a str],
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        let args = &["/bin/sleep", "1000"];
        Self { name: "web", env: &[], folders: &[], has_device: false, options: &[], args }
    }
}

/// A later process of a container, and the options of a client.
#[derive(Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    pub(crate) words: &'a [&'a str],
    pub(crate) has_terminal: bool,
    pub(crate) options: &'a [&'a str],
}

/// The exit code, if the process started, and both streams or the engine's message.
pub(crate) struct Printed {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

/// Runs words in the container `web`.
fn exec(host: &impl Tested, words: &[&str]) -> Printed {
    host.exec("web", &Call { words, ..Call::default() })
}

/// The program of a plugin that only logs, its folder, the private folder and the socket in it.
pub(crate) fn plugin_paths(host: &impl Tested) -> [String; 4] {
    let program = example("event_logger");
    let (folder, dir) = (program.parent().unwrap().to_owned(), host.path(""));
    let socket = host.socket();
    [program, folder, dir, socket]
        .map(|path| path.display().to_string().trim_end_matches('/').to_owned())
}

#[expect(clippy::print_stderr, reason = "a test that an engine lacks says why")]
fn is_lacking(why: &str) {
    eprintln!("no such claim: {why}");
}

/// Tests of one engine: the topics with their claims, some with the reason why the engine lacks it.
macro_rules! engine {
    ($engine:ident: $tested:ty { $($topic:ident: $($claim:ident $(= $why:ident)?),+;)+ }) => {
        mod $engine {
            $(mod $topic {
                $(#[test]
                fn $claim() {
                    const { assert!(stringify!($claim).len() <= 60) };
                    engine!(@run $tested, $topic, $claim $(, $why)?);
                })+
            })+
        }
    };
    (@run $tested:ty, $topic:ident, $claim:ident) => { crate::suite::$topic::$claim::<$tested>() };
    (@run $tested:ty, $topic:ident, $claim:ident, $why:ident) => {
        crate::suite::is_lacking(crate::suite::$why)
    };
}

const NO_SECOND_START: &str = "the CRI starts no container twice";
const NO_VARIABLES: &str = "the CRI's ExecSync has no variables and no user";
const ANOTHER: &str = "a_pod_on_containerd_is_adjusted_and_has_all_events updates by the CRI";
const OF_THE_CRI: &str = "CRI-O receives the calls of the CRI that containerd receives";

engine! { containerd: crate::containerd::tested::Pods {
    origin: a_container_that_is_not_the_named_pod_cannot_be_that_plugin;
    later: a_later_process_has_the_plugins_values,
        an_exec_has_the_plugins_values_unless_it_sets_its_own = NO_VARIABLES,
        a_restart_without_the_plugin_leaves_the_engines_values = NO_SECOND_START;
    promised: a_container_with_the_device_needs_the_plugin;
    injected: a_container_has_injections_and_exec_rules;
    refused: a_refused_create_names_the_plugin_and_leaves_nothing;
    exits: without_kernel_exit_codes_the_engine_reports_all_twenty;
    updates: an_engines_update_wins_for_new_values_and_keeps_owned_ones = ANOTHER,
        an_update_refused_by_a_plugin_changes_nothing = ANOTHER,
        a_plugins_response_overrides_an_update = ANOTHER,
        a_plugins_own_update_outlives_the_engines_next_one = ANOTHER,
        a_restart_lets_the_plugin_set_its_values_again = NO_SECOND_START;
} }

engine! { crio: crate::crio::tested::Pods {
    origin: a_container_that_is_not_the_named_pod_cannot_be_that_plugin = OF_THE_CRI;
    later: a_later_process_has_the_plugins_values = OF_THE_CRI;
    promised: a_container_with_the_device_needs_the_plugin;
    injected: a_container_has_injections_and_exec_rules = OF_THE_CRI;
    refused: a_refused_create_names_the_plugin_and_leaves_nothing;
    exits: without_kernel_exit_codes_the_engine_reports_all_twenty;
} }

/// Engines that their own clients control have all claims.
macro_rules! clients {
    ($($engine:ident: $tested:ty),+) => { $(engine! { $engine: $tested {
        adjusted: a_container_is_adjusted_and_the_engine_works_as_before;
        origin: a_container_that_is_not_the_named_pod_cannot_be_that_plugin;
        later: a_later_process_has_the_plugins_values,
            an_exec_has_the_plugins_values_unless_it_sets_its_own,
            a_restart_without_the_plugin_leaves_the_engines_values;
        promised: a_container_with_the_device_needs_the_plugin;
        injected: a_container_has_injections_and_exec_rules;
        refused: a_refused_create_names_the_plugin_and_leaves_nothing,
            a_refused_container_stays_created_and_is_refused_again;
    exits: without_kernel_exit_codes_the_engine_reports_all_twenty;
        updates: an_engines_update_wins_for_new_values_and_keeps_owned_ones,
            an_update_refused_by_a_plugin_changes_nothing,
            a_plugins_response_overrides_an_update,
            a_plugins_own_update_outlives_the_engines_next_one,
            a_restart_lets_the_plugin_set_its_values_again;
    } })+ };
}

clients! { docker: crate::docker::engine::Docker, podman: test_support::podman::PodmanHost }
