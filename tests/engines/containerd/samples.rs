// SPDX-License-Identifier: Apache-2.0
//! The sample plugins that inject hooks and resource limits, and the one that prints changes, as
//! programs with a real containerd: the hooks run, the limits are in force, the changes are
//! printed, and an invalid annotation refuses the container.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use test_support::Started;
use test_support::cri::{self, Cri, container, pods};
use test_support::example::example;
use test_support::program::put_with;

use super::host::{self, Engine};
use super::{create, end_pod, pid_of, start};

fn command(program: &Path) -> Command {
    Command::new(program)
}

/// Starts a sample, which writes to `NAME.out`, and waits until it is synchronized.
pub(super) fn sample(engine: &Engine, name: &str, id: &str, more: &[&str]) -> Started {
    let file = || {
        let path = engine.path(&format!("{name}.out"));
        std::fs::File::options().create(true).append(true).open(path).unwrap()
    };
    let mut command = command(&example(name));
    command.arg("--socket").arg(engine.path("nri.sock")).args(more);
    let command = command.stdin(Stdio::null()).stdout(file()).stderr(file());
    let started = Started(command.spawn().unwrap());
    engine.wait_until(&format!("{id} is synchronized"), || {
        test_support::is_synchronized(&engine.admin(&["plugins"]), id)
    });
    started
}

/// A program that stores the state of its call, by its argument; and hooks that run it.
fn write_hooks(engine: &Engine) -> String {
    let program = engine.path("hook");
    put_with(&program, "#!/bin/sh\ncat >>\"$0.$1\"\n", 0o755);
    for stage in ["createRuntime", "poststop"] {
        let hook = json!({
            "version": "1.0.0",
            "hook": {"path": program, "args": ["hook", stage], "timeout": 10},
            "when": {"annotations": {"^example\\.org/team$": "^blue$"}, "commands": ["/sleep$"]},
            "stages": [stage],
        });
        put_with(&engine.path(&format!("hooks/{stage}.json")), hook.to_string(), 0o644);
    }
    let config = json!({"folders": [engine.path("hooks")]});
    put_with(&engine.path("hooks.conf"), config.to_string(), 0o644);
    engine.path("hooks.conf").display().to_string()
}

/// The states with which the hook of that stage was called.
fn called(engine: &Engine, stage: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(engine.path(&format!("hook.{stage}"))).unwrap_or_default();
    let states = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    states.map_while(Result::ok).collect()
}

/// A pod with limits for two of its containers, one of which is invalid.
async fn run_pod(engine: &Engine, cri: &mut Cri) -> String {
    let mut config = cri::pod(engine.cgroup(), "web");
    for (name, limits) in [
        ("app", r#"[{"type": "nofile", "soft": 111, "hard": 222}]"#),
        ("bad", r#"[{"type": "files", "hard": 1}]"#),
    ] {
        let key = format!("ulimits.noderesource.dev/container.{name}");
        config.annotations.insert(key, limits.to_owned());
    }
    cri::run_pod(cri, config).await
}

#[tokio::test]
async fn sample_plugins_inject_hooks_and_limits_into_a_pod() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let hooks = write_hooks(&engine);
    let _daemon = engine.start_daemon();
    let _plugins = [
        sample(&engine, "hook_injector", "10-hook-injector", &["--config", &hooks]),
        sample(&engine, "ulimit_adjuster", "10-ulimit-adjuster", &[]),
        sample(&engine, "differ", "99-differ", &[]),
    ];
    let mut cri = engine.client().await;
    let pod = run_pod(&engine, &mut cri).await;
    let of_app = container("app", &["/bin/sleep", "1000"]);
    let app = create(&engine, &mut cri, &pod, "web", of_app).await;
    start(&mut cri, &app).await.unwrap();
    let limits = format!("/proc/{}/limits", pid_of(&mut cri, &app).await);
    let limits = std::fs::read_to_string(limits).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(files.contains("111") && files.contains("222"), "{files}");
    let states = called(&engine, "createRuntime");
    assert_eq!(states.len(), 1, "{states:?}");
    assert_eq!(states[0]["id"], app.as_str(), "the hook ran for another container");
    assert!(called(&engine, "poststop").is_empty());

    let memory = super::messages::LinuxContainerResources {
        memory_limit_in_bytes: 48 << 20,
        ..Default::default()
    };
    pods::update(&mut cri, &app, memory).await.unwrap();
    let of_other = container("other", &["/bin/cat"]);
    let other = create(&engine, &mut cri, &pod, "web", of_other).await;
    start(&mut cri, &other).await.unwrap();
    assert_eq!(called(&engine, "createRuntime").len(), 1, "its program is not sleep");
    let of_bad = container("bad", &["/bin/sleep", "1000"]);
    let bad = create(&engine, &mut cri, &pod, "web", of_bad).await;
    let error = start(&mut cri, &bad).await.unwrap_err().to_string();
    assert!(
        error.contains("10-ulimit-adjuster") && error.contains("is not a resource limit"),
        "{error}"
    );

    end_pod(&mut cri, &pod).await;
    engine.wait_until("the hook has run after the end", || {
        called(&engine, "poststop").iter().any(|state| state["id"] == app.as_str())
    });
    let printed = || std::fs::read_to_string(engine.path("differ.out")).unwrap();
    engine.wait_until("the end is printed", || {
        printed().contains("RemovePodSandbox shop/web: removed")
    });
    let printed = printed();
    for line in [
        "RunPodSandbox shop/web: seen for the first time",
        "CreateContainer shop/web/app: seen for the first time",
        "UpdateContainer shop/web/app: wants memory.limit.value: \"50331648\"",
        "linux.resources.memory.limit.value: \"67108864\" -> \"50331648\"",
        "RemoveContainer shop/web/app: removed",
    ] {
        assert!(printed.contains(line), "{line} is not in:\n{printed}");
    }
    assert!(!printed.contains("FROM=pod"), "the value of a variable was printed:\n{printed}");
}
