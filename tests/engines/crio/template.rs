// SPDX-License-Identifier: Apache-2.0
//! The plugin from the template with CRI-O: on its own NRI, then on nri-runc, to which it reconnects by itself.

use std::path::Path;

use test_support::cri::Cri;
use test_support::{is_synchronized, template};

use super::HANDLER;
use super::host::CrioHost;
use crate::template::{Node, adjusts_through_restarts, logged};

/// CRI-O with the plugin; `before` counts its registrations with the earlier server.
struct Served {
    host: CrioHost,
    is_ours: bool,
    before: usize,
}

impl Served {
    fn registrations(&self) -> usize {
        template::registrations(&self.host.path("plugin.log"))
    }
}

impl Node for Served {
    fn cgroup(&self) -> String {
        self.host.cgroup()
    }

    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.host.wait_until(what, is_so);
    }

    async fn restart(&mut self) -> Cri {
        self.host.stop();
        if self.is_ours {
            self.host.kill_daemon();
            self.host.start_daemon();
        }
        self.host.start().await
    }

    fn has_synchronized(&self, times: usize) -> bool {
        if !self.is_ours {
            return logged(&self.host.read("crio.log")) == times;
        }
        let plugins = self.host.nri(&["plugins"]);
        self.registrations() == self.before + times
            && plugins.is_ok_and(|plugins| is_synchronized(&plugins, template::ID))
    }
}

#[tokio::test]
async fn the_template_works_on_crios_own_nri_and_on_nri_runc() {
    let Some(program) = template::plugin() else { return };
    let Some(mut host) = CrioHost::new() else { return };
    host.configure_runtime();
    let mut cri = host.start().await;
    let socket = Path::new("/run/nri/nri.sock");
    let mut plugin = template::start(host.inside(&program), socket, &host.path("plugin.log"));
    let mut node = Served { host, is_ours: false, before: 0 };
    adjusts_through_restarts(&mut node, &mut cri, "", &mut plugin).await;

    node.host.nri(&["install", "crio", "--take-over-nri"]).unwrap();
    node.before = node.registrations();
    node.is_ours = true;
    node.host.stop();
    node.host.start_daemon();
    let mut cri = node.host.start().await;
    adjusts_through_restarts(&mut node, &mut cri, HANDLER, &mut plugin).await;
}
