// SPDX-License-Identifier: Apache-2.0
//! Injections and an exec rule, without a plugin.

use test_support::injected::{FILE, SETTINGS, WANTED};

use super::{Call, Tested, Wanted, exec};

pub(super) fn a_container_has_injections_and_exec_rules<E: Tested>() {
    let Some(host) = E::with_nri_runc() else { return };
    nri_runc::testing::files::replace(&host.path(FILE), b"from the node").unwrap();
    host.configure(&SETTINGS.replace("SOURCE", &host.path(FILE).display().to_string()));
    host.run(&Wanted { env: &[("OWN", "kept")], ..Wanted::default() }).unwrap();
    let inside = exec(&host, &["/bin/cat", "/proc/1/environ", "/corp.pem"]).text;
    for wanted in WANTED {
        assert!(inside.contains(wanted), "{wanted} is not in {inside}");
    }
    for words in [&["/bin/sh", "-c", "true"][..], &["/bin/../bin/cat", "/corp.pem"]] {
        for has_terminal in [false, true] {
            let refused = host.exec("web", &Call { words, has_terminal, options: &[] });
            let text = &refused.text;
            assert_ne!(refused.code, Some(0), "{words:?}: {text}");
            assert!(text.contains("cat alone") && !text.contains("from the node"), "{text}");
        }
    }
    host.remove(&["web"]);
    host.no_container_is_left();
}
