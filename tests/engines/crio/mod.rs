// SPDX-License-Identifier: Apache-2.0
//! A real CRI-O calls nri-runc instead of runc, registered as in `docs/quickstart/crio.md`, on a
//! private host (`host.rs`). `make engines` builds that CRI-O; without it the tests are skipped.

mod critest;
mod host;
mod life;
mod live;
mod registration;
mod template;
pub(crate) mod tested;

use host::CrioHost;
use test_support::cri::generated as messages;
use test_support::cri::{self, Cri};

/// The handler that `install` adds.
const HANDLER: &str = "nri-runc";

/// A CRI-O with a registered nri-runc, which has the usual plugin socket.
async fn registered() -> Option<(CrioHost, Cri)> {
    let host = CrioHost::new()?;
    host.configure_runtime();
    Some(register(host).await)
}

async fn register(mut host: CrioHost) -> (CrioHost, Cri) {
    host.start().await;
    host.nri(&["install", "crio", "--take-over-nri"]).unwrap();
    let cri = host.restart().await;
    (host, cri)
}

fn pod(host: &CrioHost, name: &str) -> messages::PodSandboxConfig {
    cri::pod(&host.cgroup(), name)
}

/// Runs a container in a separate pod; returns the IDs of both.
async fn run(host: &CrioHost, cri: &mut Cri, name: &str, handler: &str) -> (String, String) {
    let id = cri::run_pod_with(cri, pod(host, name), handler).await;
    let app = cri::container("app", &["/bin/sleep", "1000"]);
    let app = cri::create(cri, &id, pod(host, name), app).await;
    cri::start(cri, &app).await.unwrap();
    (id, app)
}

/// Ends both at once: the stop of a pod alone would wait for its containers to handle SIGTERM.
async fn end(cri: &mut Cri, pod: &str, container: &str) {
    cri::end_container(cri, container).await;
    cri::end_pod(cri, pod).await;
}
