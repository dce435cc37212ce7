// SPDX-License-Identifier: Apache-2.0
//! The NRI cases of the CRI validation suite on containerd 2.4.2: with its own NRI, then with
//! nri-runc.

use test_support::{critest, registry, tools};

use super::host::{self, Engine};

#[test]
fn critest_passes_as_many_tests_on_containerd_as_the_page_says() {
    let Some(suite) = critest::program() else { return };
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    for (column, has_nri) in [("containerd 2.4.2", true), ("containerd with nri-runc", false)] {
        let with_limit = |own: String| {
            let socket = "  socket_path =";
            own.replace(socket, &format!("  {}\n{socket}", critest::TIMEOUT))
        };
        let (engine, nri) = Engine::of_nri((&tools, &containerd), has_nri, with_limit);
        let ours = engine.path("nri-runc.toml");
        let text = std::fs::read_to_string(&ours).unwrap();
        let text = text.replace("[nri]\n", &format!("[nri]\n{}\n", critest::TIMEOUT));
        nri_runc::testing::files::replace(&ours, text.as_bytes()).unwrap();
        let _daemon = (!has_nri).then(|| engine.start_daemon());
        let image = registry::serve(engine.path("image/layout"));
        let cri = engine.path("containerd.sock");
        let its = critest::Engine { cri: &cri, nri: &nri, handler: "", image: &image };
        let results = critest::run(&suite, &its, &engine.path(""));
        assert_eq!(results, critest::published(column), "{column}: {}", engine.log_tail());
    }
}
