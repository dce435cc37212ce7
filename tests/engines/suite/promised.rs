// SPDX-License-Identifier: Apache-2.0
//! A promise by a device that an engine gives to a container: by a CDI name, which only the
//! engine's record has, or under another name in the container.

use test_support::Script;

use super::{Tested, Wanted, exec};

pub(super) fn a_container_with_the_device_needs_the_plugin<E: Tested>() {
    let Some(host) = E::with_device() else { return };
    let [key, pattern, name] = E::DEVICE;
    host.configure(&format!(
        "[[require]]\nname = \"card\"\nplugin = \"card\"\n{key} = [\"{pattern}\"]\n"
    ));
    let web = Wanted { has_device: true, ..Wanted::default() };
    let refused = host.run(&web).unwrap_err();
    let wanted = format!("the promise \"card\" refuses container web ({key}: \"{name}\")");
    for word in [&wanted, "card, which"] {
        assert!(refused.contains(word), "{word} is not in: {refused}");
    }
    host.run(&Wanted { name: "other", ..Wanted::default() }).unwrap();
    host.remove(&["web"]);
    let _plugin = host.plugin("10-card", Script::default());
    let id = host.run(&web).unwrap();
    assert_eq!(host.admin(&["explain", &id])["promises"][0]["result"], "met");
    if key == "cdi" {
        let environ = exec(&host, &["/bin/cat", "/proc/1/environ"]).text;
        assert!(environ.contains("CARD=one"), "{environ}");
    }
    host.remove(&["web", "other"]);
    host.no_container_is_left();
}
