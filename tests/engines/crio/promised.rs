// SPDX-License-Identifier: Apache-2.0
//! A promise by a device that CRI-O gives to a pod's container under another name.

use test_support::Script;
use test_support::cri::container;

use super::messages::{CreateContainerRequest, Device};
use super::{HANDLER, cri, end, pod, registered};

const PROMISE: &str =
    "[[require]]\nname = \"full\"\nplugin = \"full\"\ndevices = [\"/dev/full\"]\n";

#[tokio::test]
async fn a_container_of_crio_with_the_device_needs_the_plugin() {
    let Some((host, mut client)) = registered().await else { return };
    let file = host.path("etc/nri-runc/config.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    nri_runc::testing::files::replace(&file, format!("{settings}{PROMISE}").as_bytes()).unwrap();
    host.start_daemon();
    let pod_id = cri::run_pod_with(&mut client, pod(&host, "web"), HANDLER).await;
    let mut app = container("app", &["/bin/sleep", "1000"]);
    app.devices = vec![Device {
        container_path: "/dev/mine".to_owned(),
        host_path: "/dev/full".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let request = CreateContainerRequest {
        pod_sandbox_id: pod_id.clone(),
        config: Some(app.clone()),
        sandbox_config: Some(pod(&host, "web")),
    };
    let error = client.create_container(request).await.unwrap_err().to_string();
    let line = "the promise \"full\" refuses container app (devices: \"/dev/full\")";
    assert!(error.replace('\\', "").contains(line), "{error}");
    let _plugin = host.plugin("10", "full", Script::default());
    let app = cri::create(&mut client, &pod_id, pod(&host, "web"), app).await;
    cri::start(&mut client, &app).await.unwrap();
    end(&mut client, &pod_id, &app).await;
}
