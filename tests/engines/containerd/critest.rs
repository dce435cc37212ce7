// SPDX-License-Identifier: Apache-2.0
//! The NRI cases of the CRI's own suite on containerd 2.4.2: with its own NRI, then with nri-runc.

use std::path::Path;

use test_support::{critest, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};

#[test]
fn containerd_passes_as_many_of_the_suites_cases_as_we_publish() {
    let Some(suite) = critest::program() else { return };
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let runc = tools.join("runc");
    let columns = [("containerd 2.4.2", true, "own.sock"), ("with nri-runc", false, "nri.sock")];
    for (column, has_nri, socket) in columns {
        let runtime = if has_nri { &*runc } else { env!("CARGO_BIN_EXE_nri-runc").as_ref() };
        let handlers = [("tested", Passes::All)];
        let wanted = Wanted { version: 4, handlers: &handlers, runtime, has_nri };
        let configuration = |dir: &Path| {
            let socket = "  socket_path =";
            config::containerd(dir, &wanted)
                .replace(socket, &format!("  {}\n{socket}", critest::TIMEOUT))
        };
        let configuration = Some(&configuration as &dyn Fn(&Path) -> String);
        let parts = Parts { tools: &tools, containerd: &containerd, runc: &runc, configuration };
        let engine = Engine::of(&parts);
        let ours = engine.path("nri-runc.toml");
        let text = std::fs::read_to_string(&ours).unwrap();
        let text = text.replace("[nri]\n", &format!("[nri]\n{}\n", critest::TIMEOUT));
        nri_runc::testing::files::replace(&ours, text.as_bytes()).unwrap();
        let _daemon = (!has_nri).then(|| engine.start_daemon());
        let image = critest::image(&engine.path(""), &tools);
        let (cri, nri) = (engine.path("containerd.sock"), engine.path(socket));
        let its = critest::Engine { cri: &cri, nri: &nri, handler: "", image: &image };
        let results = critest::run(&suite, &its, &engine.path(""));
        assert_eq!(results, critest::published(column), "{column}: {}", engine.log_tail());
    }
}
