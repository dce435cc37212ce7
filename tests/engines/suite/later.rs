// SPDX-License-Identifier: Apache-2.0
//! Processes that an engine starts later in a container whose process a plugin changed.

use nri_plugin::Adjustment;
use test_support::adjustments::just_so_many_files;

use super::client::Client;
use super::{Call, Tested, Wanted, exec};

const LIMITED: Wanted<'_> = Wanted {
    name: "web",
    env: &[("OWN", "kept")],
    folders: &[],
    has_device: false,
    options: &[],
    args: &["/bin/sleep", "1000"],
};

/// The values of the plugin in a later process.
const CHANGED: &str = "hello=there own=changed from= files=321/321 score=950";

/// Sets a variable, changes one, removes one; sets limits and the score.
fn changing<E: Tested>() -> Adjustment {
    let adjustment = Adjustment::new().env("HELLO", "there").env("OWN", "changed");
    just_so_many_files(adjustment.remove_env(E::VARIABLE.0).oom_score_adj(950))
}

/// A script that prints every value that a plugin can set, in one line.
fn look<E: Tested>() -> String {
    format!(
        "echo hello=$HELLO own=$OWN from=${} files=$(ulimit -Sn)/$(ulimit -Hn) \
         score=$(cat /proc/self/oom_score_adj)",
        E::VARIABLE.0
    )
}

pub(super) fn a_later_process_has_the_plugins_values<E: Tested>() {
    let Some(mut host) = E::with_nri_runc() else { return };
    let _plugin = host.plugin("10-later", changing::<E>());
    host.run(&LIMITED).unwrap();
    let words = ["/bin/sh", "-c", &look::<E>()];
    for is_away in [false, true] {
        if is_away {
            host.kill_daemon();
        }
        assert_eq!(exec(&host, &words).text.trim_end(), CHANGED);
        // The output also has text of the terminal and of the client.
        let on_terminal = Call { words: &words, has_terminal: true, options: &[] };
        let printed = host.exec("web", &on_terminal).text;
        assert!(printed.lines().any(|line| line.ends_with(CHANGED)), "{printed}");
    }
    // A failing probe has its own exit code, and a missing program its own message.
    assert_eq!(exec(&host, &["/bin/sh", "-c", "exit 3"]).code, Some(3));
    let missing = exec(&host, &["/bin/nothing"]).text;
    assert!(missing.contains("no such file or directory"), "{missing}");
    host.start_daemon();
    host.remove(&["web"]);
}

pub(super) fn an_exec_has_the_plugins_values_unless_it_sets_its_own<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let received = host.plugin("10-later", changing::<E>());
    host.run(&LIMITED).unwrap();
    let words = ["/bin/sh", "-c", &look::<E>()];
    let exec = |options: &[&str]| {
        let call = Call { words: &words, has_terminal: false, options };
        host.exec("web", &call).text.trim_end().to_owned()
    };
    let variable = format!("--env={}=mine", E::VARIABLE.0);
    let asked = ["--env=HELLO=mine", "--env=OWN=mine", &variable];
    assert_eq!(exec(&asked), "hello=mine own=mine from=mine files=321/321 score=950");
    assert_eq!(exec(&["--user=7:8"]), CHANGED);
    let calls = host.admin(&["status"])["requests"].get("exec").cloned();
    assert_eq!(calls, None, "the daemon is not asked");
    host.remove(&["web"]);
    host.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), test_support::life("web"));
}

pub(super) fn a_restart_without_the_plugin_leaves_the_engines_values<E: Client>() {
    let Some(mut host) = E::with_nri_runc() else { return };
    let _plugin = host.plugin("10-later", changing::<E>());
    // Podman drops all limits of its configuration for one option.
    let options = &["--ulimit=nofile=1000:1000", "--ulimit=nproc=1024:1024"];
    host.run(&Wanted { options, ..LIMITED }).unwrap();
    let words = ["/bin/sh", "-c", &look::<E>()];
    assert_eq!(exec(&host, &words).text.trim_end(), CHANGED);
    host.good(&["stop", "--time=0", "web"]);
    // The next daemon starts without the plugin.
    host.kill_daemon();
    host.good(&["start", "web"]);
    let wanted = format!("hello= own=kept from={} files=1000/1000 score=0", E::VARIABLE.1);
    assert_eq!(exec(&host, &words).text.trim_end(), wanted);
    host.remove(&["web"]);
}
