// SPDX-License-Identifier: Apache-2.0
//! Chooses the file of this folder that plans for an engine. Pure.

use super::engine::Engine;
use super::plan::{EngineFile, Plan, Registration, Texts};
use super::{containerd, crio, docker, podman};
use crate::error::{Error, Result};

impl Engine {
    /// Where it reads; `texts` is what was read so far, which may name more.
    pub(super) fn sources(self, main: Option<&str>, texts: &Texts) -> Vec<EngineFile> {
        match self {
            Self::Containerd => containerd::sources(main.unwrap_or(containerd::MAIN), texts),
            Self::Crio => crio::sources(),
            Self::Docker => vec![EngineFile::File(main.unwrap_or(docker::MAIN).to_owned())],
            Self::Podman => podman::sources(),
            Self::Nerdctl => Vec::new(),
        }
    }

    /// What would have to be written.
    pub(super) fn plan(self, registration: &Registration, texts: &Texts) -> Result<Plan> {
        match self {
            Self::Containerd => containerd::plan(registration, texts),
            Self::Crio => crio::plan(registration, texts),
            Self::Docker => docker::plan(registration, texts),
            Self::Podman => podman::plan(registration, texts),
            Self::Nerdctl => nerdctl(registration),
        }
    }
}

fn nerdctl(registration: &Registration) -> Result<Plan> {
    if registration.default {
        return Err(Error::new("nerdctl.toml has no key for a default runtime").hint(format!(
            "pass it with each container: nerdctl run --runtime {}",
            registration.binary
        )));
    }
    let mut plan = Plan::default();
    plan.notes.push(format!(
        "nothing to register: nerdctl takes the runtime with each container: nerdctl run --runtime {} \
         IMAGE",
        registration.binary
    ));
    Ok(plan)
}
