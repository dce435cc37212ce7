// SPDX-License-Identifier: Apache-2.0
//! Exit codes if the kernel reports none (before Linux 6.15) and containerd writes none (before 2.4): they
//! come from containerd's events.

use test_support::exits::{self, Exit, Received};

use super::host::{self, Engine};
use super::{container, create, end_pod, run_pod, start};

#[tokio::test]
async fn without_kernel_exit_codes_containerd_reports_all_twenty() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let file = engine.path("nri-runc.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = format!("debug.kernel_exits = false\n{text}");
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
    let _daemon = engine.start_daemon();
    let received = Received::default();
    let socket = engine.path("nri.sock");
    let seen = test_support::scripted_plugin::connect(socket, "10", "codes", received.script());
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri, "web").await;
    let exits = exits::list();
    for (number, exit) in exits.iter().enumerate() {
        let config = container(&exits::name(number), &["/bin/sh", "-c", &exit.command()]);
        let id = create(&engine, &mut cri, &pod, "web", config).await;
        start(&mut cri, &id).await.unwrap();
        if *exit == Exit::Killed {
            let pid = super::pid_of(&mut cri, &id).await;
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    }
    engine.wait_until("all have ended", || received.count("StopContainer") == exits.len());
    end_pod(&mut cri, &pod).await;
    engine.wait_until("all are removed", || received.count("RemoveContainer") == exits.len());
    received.compare(&exits);
    drop(seen);
}
