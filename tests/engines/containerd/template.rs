// SPDX-License-Identifier: Apache-2.0
//! The plugin from the template with containerd 2.4.2: on its own NRI, then on nri-runc.

use std::process::Command;
use std::time::Duration;

use test_support::cri::Cri;
use test_support::cri::generated::VersionRequest;
use test_support::{Started, is_synchronized, template, tools};

use super::host::{self, Engine};
use crate::template::{Node, adjusts_through_restarts, logged};

/// containerd, and the daemon if that serves the plugin.
struct Served {
    engine: Engine,
    daemon: Option<Started>,
}

impl Node for Served {
    fn cgroup(&self) -> String {
        self.engine.cgroup().to_owned()
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.engine.wait_until(what, is_so);
    }

    async fn restart(&mut self) -> Cri {
        self.engine.containerd.stop();
        if self.daemon.take().is_some() {
            self.daemon = Some(self.engine.start_daemon());
        }
        self.engine.containerd.run();
        let mut cri = self.engine.client().await;
        // containerd responds to `ctr` before its CRI responds.
        while cri.version(VersionRequest::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cri
    }

    fn has_synchronized(&self, times: usize) -> bool {
        if self.daemon.is_none() {
            let log = std::fs::read_to_string(self.engine.path("containerd.log"));
            return logged(&log.unwrap()) == times;
        }
        template::registrations(&self.engine.path("plugin.log")) == times
            && is_synchronized(&self.engine.admin(&["plugins"]), template::ID)
    }
}

#[tokio::test]
async fn the_template_works_on_containerds_own_nri_and_on_nri_runc() {
    let Some(program) = template::plugin() else { return };
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    for has_nri in [true, false] {
        let (engine, socket) = Engine::of_nri((&tools, &containerd), has_nri, |own| own);
        let daemon = (!has_nri).then(|| engine.start_daemon());
        let log = engine.path("plugin.log");
        let mut plugin = template::start(Command::new(&program), &socket, &log);
        let mut cri = engine.client().await;
        let mut node = Served { engine, daemon };
        adjusts_through_restarts(&mut node, &mut cri, "", &mut plugin).await;
    }
}
