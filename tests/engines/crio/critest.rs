// SPDX-License-Identifier: Apache-2.0
//! The NRI cases of the CRI validation suite on CRI-O: with its own NRI, then with nri-runc.

use test_support::{critest, registry};

use super::HANDLER;
use super::host::{CrioHost, SOCKET};

#[tokio::test]
async fn critest_passes_as_many_tests_on_crio_as_the_page_says() {
    let Some(suite) = critest::program() else { return };
    let Some(mut host) = CrioHost::new() else { return };
    registry::pack(&host.path("registry"), &host.tools().join("busybox"));
    let image = registry::serve(host.path("registry/layout"));
    let port = image.split('/').next().unwrap();
    let write = |name: &str, text: &str| {
        nri_runc::testing::files::replace(&host.path(name), text.as_bytes()).unwrap();
    };
    write(
        "etc/containers/registries.conf",
        &format!("[[registry]]\nlocation = \"{port}\"\ninsecure = true\n"),
    );
    let limit = "[crio.nri]\nnri_plugin_request_timeout = \"10s\"\n";
    write("etc/crio/crio.conf.d/20-limit.conf", limit);
    host.configure_runtime();
    let ours = format!("{}[nri]\n{}\n", host.read("etc/nri-runc/config.toml"), critest::TIMEOUT);
    write("etc/nri-runc/config.toml", &ours);
    host.start().await;
    for (column, handler) in [("CRI-O 1.36.3", ""), ("CRI-O with nri-runc", HANDLER)] {
        if handler == HANDLER {
            host.nri(&["install", "crio", "--take-over-nri"]).unwrap();
            host.stop();
            host.start_daemon();
            host.start().await;
        }
        let (cri, nri) = (host.seen(SOCKET), host.seen("/run/nri/nri.sock"));
        let its = critest::Engine { cri: &cri, nri: &nri, handler, image: &image };
        let results = critest::run(&suite, &its, &host.path("logs"));
        assert_eq!(results, critest::published(column), "{column}: {}", host.log_tail());
    }
}
