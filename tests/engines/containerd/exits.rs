// SPDX-License-Identifier: Apache-2.0
//! Exit codes where the kernel reports none (before Linux 6.15) and containerd writes none (before 2.4): they
//! come from containerd's events.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use test_support::Script;

use super::host::{self, Engine};
use super::{container, create, end_pod, run_pod, start};

/// How many containers end.
const COUNT: u8 = 20;

/// What a plugin received of a container's exit, by event: its name, and the code if it was known.
type Codes = Arc<Mutex<Vec<(String, String, Option<u64>)>>>;

fn listening() -> (Script, Codes) {
    let codes = Codes::default();
    let list = Arc::clone(&codes);
    let hears = move |event: &str, request: &dyn protobuf::MessageDyn| {
        let request = protobuf_json_mapping::print_to_string(request).unwrap();
        let request: Value = serde_json::from_str(&request).unwrap();
        let container = &request["container"];
        if let Some(name) = container["name"].as_str() {
            let is_known = container["statusReason"] != "Unknown";
            let code = is_known.then(|| container["exitCode"].as_u64().unwrap_or_default());
            list.lock().unwrap().push((event.to_owned(), name.to_owned(), code));
        }
    };
    (Script { hears: Some(Arc::new(hears)), ..Script::default() }, codes)
}

/// A different code for each container, and another list in each run; 137 is SIGKILL's.
fn codes() -> Vec<u64> {
    let start = u64::from(std::process::id()) % 200;
    let code =
        |number: u8| if number % 5 == 4 { 137 } else { 1 + (start + u64::from(number)) % 120 };
    (0..COUNT).map(code).collect()
}

#[tokio::test]
async fn without_the_kernels_word_twenty_codes_are_containerds() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let file = engine.path("nri-runc.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = format!("debug.kernel_exits = false\n{text}");
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
    let _daemon = engine.start_daemon();
    let (script, heard) = listening();
    let told =
        test_support::scripted_plugin::connect(engine.path("nri.sock"), "10", "codes", script);
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri, "web").await;
    let codes = codes();
    for (number, code) in codes.iter().enumerate() {
        let command = match code {
            137 => "sleep 1000".to_owned(),
            code => format!("exit {code}"),
        };
        let config = container(&format!("c{number}"), &["/bin/sh", "-c", &command]);
        let id = create(&engine, &mut cri, &pod, "web", config).await;
        start(&mut cri, &id).await.unwrap();
        if *code == 137 {
            let pid = super::pid_of(&mut cri, &id).await;
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    }
    let of = |event: &str| -> Vec<(usize, Option<u64>)> {
        let heard = heard.lock().unwrap();
        let of = heard.iter().filter(|(what, ..)| what == event);
        of.map(|(_, name, code)| (name[1..].parse().unwrap(), *code)).collect()
    };
    engine.wait_until("all have ended", || of("StopContainer").len() == codes.len());
    end_pod(&mut cri, &pod).await;
    engine.wait_until("all are removed", || of("RemoveContainer").len() == codes.len());
    for event in ["StopContainer", "RemoveContainer"] {
        let all = of(event);
        for (number, code) in &all {
            let wanted = codes[*number];
            assert!(code.is_none_or(|code| code == wanted), "c{number}: {code:?}, not {wanted}");
        }
        let known = all.iter().filter(|(_, code)| code.is_some()).count();
        assert!(event == "StopContainer" || known == usize::from(COUNT), "{known} at {event}");
    }
    drop(told);
}
