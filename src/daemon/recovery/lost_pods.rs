// SPDX-License-Identifier: Apache-2.0
//! Restores missing records of pods whose containers have records: the pod's record was damaged and set aside, or part
//! of the run directory was deleted while no daemon ran. The pod is described again from its containers' bundles; no
//! plugin is notified of it a second time.

use std::rc::Rc;

use tracing::{info, warn};

use crate::daemon::pods::life;
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::state::Container;

use super::rediscover::{self, Look, Wanted};

/// Restores the missing pod records, before plugins connect.
pub(crate) async fn restore(daemon: &Rc<Daemon>) {
    let mut containers: Vec<Container> = {
        let store = daemon.records.read();
        store.containers().filter(|one| store.pod(&one.pod).is_none()).cloned().collect()
    };
    // Infrastructure containers first: they have all data for a pod's record.
    containers.sort_by_key(|container| (!container.is_sandbox, container.process.created_at));
    for container in containers {
        let (pod, id) = (&container.pod, &container.key.id);
        if daemon.records.read().pod(pod).is_some() {
            continue; // Another of its containers has restored it.
        }
        match describe_pod(daemon, &container).await {
            Ok(true) => info!("the pod {pod} had no record; it was described again from {id}"),
            Ok(false) => {
                warn!(
                    "the pod {pod} has no record, and the runtime does not know its container {id}"
                );
            }
            Err(error) => {
                warn!("the pod {pod} has no record, and cannot be described from {id}: {error}");
            }
        }
    }
}

/// Records the container's pod, described from its bundle; false if the runtime has no such
/// container.
async fn describe_pod(daemon: &Rc<Daemon>, container: &Container) -> Result<bool> {
    let wanted = if container.by_plain_runtime { Wanted::Plain } else { Wanted::Ours };
    let look = rediscover::look_at(daemon, &container.key, (wanted, true), "").await?;
    let Look::Found(found) = look else { return Ok(false) };
    life::adopt(daemon, &found.description, container).map(|()| true)
}
