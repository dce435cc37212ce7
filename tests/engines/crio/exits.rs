// SPDX-License-Identifier: Apache-2.0
//! Exit codes if the kernel reports none (before Linux 6.15): they come from conmon.

use nix::sys::signal::{Signal, kill};
use test_support::cri::{self, container};
use test_support::exits::{self, Exit, Received};

use super::{HANDLER, pod, registered};

#[tokio::test]
async fn without_kernel_exit_codes_conmon_reports_all_twenty() {
    let Some((host, mut cri)) = registered().await else { return };
    let config = host.read("etc/nri-runc/config.toml");
    let config = format!("debug.kernel_exits = false\n{config}");
    let file = host.path("etc/nri-runc/config.toml");
    nri_runc::testing::files::replace(&file, config.as_bytes()).unwrap();
    host.start_daemon();
    let received = Received::default();
    let _plugin = host.plugin("10", "codes", received.script());
    let web = cri::run_pod_with(&mut cri, pod(&host, "web"), HANDLER).await;
    let exits = exits::list();
    for (number, exit) in exits.iter().enumerate() {
        let config = container(&exits::name(number), &["/bin/sh", "-c", &exit.command()]);
        let id = cri::create(&mut cri, &web, pod(&host, "web"), config).await;
        cri::start(&mut cri, &id).await.unwrap();
        if *exit == Exit::Killed {
            let pid = cri::info(&mut cri, &id).await["pid"].as_i64().unwrap();
            kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        }
    }
    host.wait_until("all have ended", || received.count("StopContainer") == exits.len());
    cri::end_pod(&mut cri, &web).await;
    host.wait_until("all are removed", || received.count("RemoveContainer") == exits.len());
    received.compare(&exits);
}
