// SPDX-License-Identifier: Apache-2.0
//! The quick start: registration, a pod that the sample plugin adjusts, its explanation, and the
//! removal; and the two ways in which CRI-O's own NRI and nri-runc share a node.

use test_support::cri::{self, Cri, container};

use super::host::{CrioHost, OF_NRI_RUNC, OF_PACKAGE};
use super::{HANDLER, end, pod, run};

/// Runs a pod whose annotation asks the sample plugin for this number of CPU shares, until it has
/// them.
async fn adjusted(host: &CrioHost, cri: &mut Cri, name: &str, handler: &str) -> (String, String) {
    let mut attempt = 0;
    loop {
        attempt += 1;
        assert!(attempt < 100, "the plugin adjusted no pod\n{}", host.log_tail());
        let mut config = pod(host, &format!("{name}-{attempt}"));
        let wanted = r#"{"cpu": {"shares": 512}}"#;
        config.annotations = [("resources.nri-runc.dev".to_owned(), wanted.to_owned())].into();
        let id = cri::run_pod_with(cri, config.clone(), handler).await;
        let app = cri::create(cri, &id, config, container("app", &["/bin/sleep", "1000"])).await;
        cri::start(cri, &app).await.unwrap();
        let shares = host.cgroup_file("cpu", &app, "cpu.shares");
        if shares == "512" {
            return (id, app);
        }
        // The plugin has not connected to the other socket yet. Both values are weight 39 on cgroup
        // v2.
        assert!(["1024", "1000"].contains(&&*shares), "{shares} {}", host.log_tail());
        end(cri, &id, &app).await;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn the_quick_start_works_from_registration_to_removal() {
    let Some(mut host) = CrioHost::new() else { return };
    let before = host.read(OF_PACKAGE);
    host.start().await;
    host.start_sample();

    let refusal = host.nri(&["install", "crio"]).unwrap_err();
    for words in ["serves NRI itself on /var/run/nri/nri.sock", "--take-over-nri", "--beside"] {
        assert!(refusal.contains(words), "{words} is not in: {refusal}");
    }
    // CRI-O's runtime is in a separate folder that is in no search path.
    let refusal = host.nri(&["install", "crio", "--take-over-nri"]).unwrap_err();
    let line = format!("set runtime = \"{}\" in /etc/nri-runc", host.path("runc").display());
    assert!(refusal.contains("no real runtime was found") && refusal.contains(&line), "{refusal}");
    assert!(!host.path(OF_NRI_RUNC).exists());
    host.configure_runtime();

    assert_eq!(host.nri(&["install", "crio", "--take-over-nri"]).unwrap()["changed"], true);
    assert_eq!(host.nri(&["install", "crio", "--take-over-nri"]).unwrap()["changed"], false);
    assert_eq!(host.read(OF_PACKAGE), before);
    let (is_well, detail) = host.checked("registered with crio");
    assert!(!is_well && detail.contains("systemctl restart crio"), "{detail}");
    let mut cri = host.restart().await;
    let (is_well, detail) = host.checked("registered with crio");
    assert!(is_well && detail.contains("crio has loaded it"), "{detail}");
    let (is_well, detail) = host.checked("real runtime");
    assert!(is_well && detail.contains("(found by crio)"), "{detail}");

    let (id, app) = adjusted(&host, &mut cri, "web", HANDLER).await;
    let explained = host.nri(&["explain", &app]).unwrap();
    assert_eq!(explained["engine"], "cri-o", "{explained:#}");
    assert!(explained.to_string().contains("linux.resources.cpu.shares"), "{explained:#}");

    let refusal = host.nri(&["uninstall", "crio"]).unwrap_err();
    assert!(refusal.contains("still use") && refusal.contains(&app[..13]), "{refusal}");
    end(&mut cri, &id, &app).await;
    assert_eq!(host.nri(&["uninstall", "crio"]).unwrap()["changed"], true);
    assert_eq!(host.read(OF_PACKAGE), before);
    assert!(!host.path(OF_NRI_RUNC).exists() && !host.path("var-lib/nri-runc").exists());
    host.nri(&["stop"]).unwrap();

    // CRI-O serves plugins again, and has no handler nri-runc.
    let mut cri = host.restart().await;
    let (id, app) = adjusted(&host, &mut cri, "after", "").await;
    end(&mut cri, &id, &app).await;
    let ours = super::messages::RunPodSandboxRequest {
        config: Some(pod(&host, "none")),
        runtime_handler: HANDLER.to_owned(),
    };
    let error = cri.run_pod_sandbox(ours).await.unwrap_err();
    assert!(error.message().contains("failed to find runtime handler nri-runc"), "{error}");
}

#[tokio::test]
async fn nri_runc_beside_crios_own_nri_has_its_own_plugins() {
    let Some(mut host) = CrioHost::new() else { return };
    host.configure_runtime();
    host.start().await;
    host.start_sample();
    host.nri(&["install", "crio", "--beside"]).unwrap();
    let mut cri = host.restart().await;
    let (is_well, detail) = host.checked("registered with crio");
    assert!(is_well, "{detail}");
    // The sample is connected to CRI-O, and its value is in the messages of nri-runc's plugins.
    let mut script = test_support::Script::default();
    script.adjust.env.push(test_support::adjustments::env("BESIDE", "yes"));
    host.start_daemon();
    let socket = "/run/nri/nri-runc.sock";
    let received = test_support::scripted_plugin::connect(host.seen(socket), "30", "ours", script);
    host.wait_for("30-ours");
    let (id, app) = adjusted(&host, &mut cri, "both", HANDLER).await;
    let pid = cri::info(&mut cri, &app).await["pid"].as_u64().unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(environ.contains("BESIDE=yes"), "{environ:?}");
    end(&mut cri, &id, &app).await;
    host.wait_until("the end is reported", || {
        received.lock().unwrap().iter().any(|line| line.starts_with("RemovePodSandbox both"))
    });
    assert_eq!(host.nri(&["uninstall", "crio"]).unwrap()["changed"], true);
    assert!(!host.path(OF_NRI_RUNC).exists());
}

#[tokio::test]
async fn every_pod_passes_through_nri_runc_as_crios_default() {
    let Some(mut host) = CrioHost::new() else { return };
    host.configure_runtime();
    host.start().await;
    host.nri(&["install", "crio", "--take-over-nri", "--default"]).unwrap();
    let mut cri = host.restart().await;
    let (is_well, detail) = host.checked("registered with crio");
    assert!(is_well, "{detail}");
    let (id, app) = run(&host, &mut cri, "plain", "").await;
    let pods = host.nri(&["pods"]).unwrap();
    assert_eq!(pods[0]["containers"][0]["id"], app.as_str(), "{pods:#}");
    end(&mut cri, &id, &app).await;
    assert_eq!(host.nri(&["uninstall", "crio"]).unwrap()["changed"], true);
    let mut cri = host.restart().await;
    let (id, app) = run(&host, &mut cri, "plain", "").await;
    assert_eq!(host.nri(&["pods"]).unwrap(), serde_json::json!([]));
    end(&mut cri, &id, &app).await;
}
