// SPDX-License-Identifier: Apache-2.0
//! Exit codes if the kernel reports none (before Linux 6.15): they come from containerd's events,
//! or from conmon.

use test_support::exits::{self, Exit, Received};

use super::{Tested, Wanted};

pub(super) fn without_kernel_exit_codes_the_engine_reports_all_twenty<E: Tested>() {
    let Some(mut host) = E::with_nri_runc() else { return };
    host.kill_daemon();
    let config = std::fs::read_to_string(host.config()).unwrap();
    let config = format!("debug.kernel_exits = false\n{config}");
    nri_runc::testing::files::replace(&host.config(), config.as_bytes()).unwrap();
    host.start_daemon();
    let received = Received::default();
    let _plugin = host.plugin("10-codes", received.script());
    let exits = exits::list();
    for (number, exit) in exits.iter().enumerate() {
        let (name, command) = (&exits::name(number), &exit.command());
        let (options, args) = (&["--memory=32m", "--memory-swap=32m"], &["/bin/sh", "-c", command]);
        host.run(&Wanted { name, options, args, ..Wanted::default() }).unwrap();
        assert_eq!(host.end(name, *exit == Exit::Killed), exit.code().to_string(), "{exit:?}");
        host.wait_until("its end is reported", || received.count("StopContainer") > number);
        host.remove(&[name]);
    }
    host.wait_until("all are removed", || received.count("RemoveContainer") == exits.len());
    received.compare(&exits);
    host.nothing_is_left();
}
