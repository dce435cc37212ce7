// SPDX-License-Identifier: Apache-2.0
//! A promise by a CDI device that containerd 2.4.2 gives to a pod's container, which containerd's record names.

use std::path::Path;

use test_support::cri::generated::{CdiDevice, CreateContainerRequest};
use test_support::cri::{self, container, end_container, end_pod, start};
use test_support::{Script, scripted_plugin, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::pod;

const PROMISE: &str =
    "[[require]]\nname = \"card\"\nplugin = \"card\"\ncdi = [\"example.org/card=*\"]\n";
const HANDLERS: [(&str, Passes); 1] = [("rich", Passes::All)];

#[tokio::test]
async fn a_containerd_container_with_a_cdi_device_needs_the_plugin() {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let runtime = Path::new(env!("CARGO_BIN_EXE_nri-runc"));
    let wanted = Wanted { version: 4, handlers: &HANDLERS, runtime, has_nri: false };
    let configuration = |dir: &Path| config::containerd(dir, &wanted);
    let runc = tools.join("runc");
    let parts = Parts {
        tools: &tools,
        containerd: &containerd,
        runc: &runc,
        configuration: Some(&configuration),
    };
    let engine = Engine::of(&parts);
    let file = engine.path("nri-runc.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    nri_runc::testing::files::replace(&file, format!("{settings}{PROMISE}").as_bytes()).unwrap();
    let mut daemon = engine.start_daemon();
    let mut cri = engine.client().await;
    let pod_id = cri::run_pod_with(&mut cri, pod(&engine, "web"), "rich").await;
    let mut app = container("app", &["/bin/sleep", "1000"]);
    app.cdi_devices = vec![CdiDevice { name: "example.org/card=one".to_owned() }];
    let request = CreateContainerRequest {
        pod_sandbox_id: pod_id.clone(),
        config: Some(app.clone()),
        sandbox_config: Some(pod(&engine, "web")),
    };
    // containerd calls the runtime's create when the container is started.
    let id = cri.create_container(request).await.unwrap().into_inner().container_id;
    let error = start(&mut cri, &id).await.unwrap_err().to_string();
    let line = "the promise \"card\" refuses container app (cdi: \"example.org/card=one\")";
    assert!(error.replace('\\', "").contains(line), "{error}");
    let other = container("other", &["/bin/sleep", "1000"]);
    let other = cri::create(&mut cri, &pod_id, pod(&engine, "web"), other).await;
    start(&mut cri, &other).await.unwrap();
    let _plugin =
        scripted_plugin::connect(engine.path("nri.sock"), "10", "card", Script::default());
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    app.metadata.as_mut().unwrap().attempt = 1;
    let again = cri::create(&mut cri, &pod_id, pod(&engine, "web"), app).await;
    start(&mut cri, &again).await.unwrap();
    assert_eq!(engine.admin(&["explain", &again])["promises"][0]["result"], "met");
    for id in [&other, &again] {
        end_container(&mut cri, id).await;
    }
    end_pod(&mut cri, &pod_id).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
