// SPDX-License-Identifier: Apache-2.0
//! Later processes: exec probes and `kubectl exec` see the plugins' values.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Cluster;
use super::kubectl::Namespace;
use super::machine::wait_for;
use super::manifests::{card, container, pod, spec};
use super::plugins::{Greeter, Plugin};

/// A readiness probe that runs a shell.
fn asks(script: &str) -> Value {
    json!({
        "exec": {"command": ["/bin/sh", "-c", script]},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
    })
}

pub(super) fn probes_see_what_plugins_gave(_: &Cluster) -> String {
    let space = Namespace::new("probes");
    // The first container starts the daemon, and this may be the first row.
    space.apply(pod("first", &card(), &spec(&[container("first", "exec sleep 100000")])));
    space.waits("first", "condition=Ready", 30);
    let _greeter = Plugin::connect("30-greeter", Arc::new(Greeter("probed")));
    let mut probed = container("probed", "exec sleep 100000");
    probed["readinessProbe"] = asks("test \"$CARD\" = one && test \"$GREETING\" = hello");
    space.apply(pod("needs", &card(), &spec(&[probed])));
    space.waits("needs", "condition=Ready", 30);
    let printed =
        space.does(&["exec", "needs", "--", "/bin/sh", "-c", "echo $GREETING $(ulimit -n)"]);
    assert_eq!(printed.trim(), "hello 123", "kubectl exec sees something else");
    "an exec probe that needs a CDI device's and a plugin's variable is ready; kubectl exec has \
     both and `ulimit -n` 123"
        .to_owned()
}

pub(super) fn probes_that_fail_restart_the_container(_: &Cluster) -> String {
    let space = Namespace::new("failing-probes");
    let mut doomed = container("app", "exec sleep 100000");
    // The probe succeeds only if a plugin sets the variable, and none does.
    doomed["livenessProbe"] = asks("test \"$NOBODY_GIVES\" = this");
    doomed["livenessProbe"]["failureThreshold"] = json!(1);
    space.apply(pod("doomed", &card(), &spec(&[doomed])));
    let restarts = wait_for("it is restarted", || {
        let status = &space.pod("doomed")["status"]["containerStatuses"][0];
        status["restartCount"].as_u64().filter(|count| *count > 0)
    });
    space.empties();
    let (_, containers) = super::logged_events::whole_lives("failing-probes");
    assert!(containers > usize::try_from(restarts).unwrap());
    format!(
        "a liveness probe that fails ended it {restarts} time(s); {containers} containers received once"
    )
}
