// SPDX-License-Identifier: Apache-2.0
//! Chooses the file of this folder that plans for an engine. Pure.

use super::docker::{DOCKER, ISULAD};
use super::engine::Engine;
use super::nri_decision::NriSetting;
use super::plan::{EngineFile, Plan, Registration, Texts};
use super::{containerd, crio, distribution, docker, podman};
use crate::error::{Error, Result};

impl Engine {
    /// Returns the engine's files; `texts` are the files read so far, whose imports name more.
    pub(super) fn sources(self, main: Option<&str>, texts: &Texts) -> Vec<EngineFile> {
        match self {
            Self::Containerd => {
                let main = main.unwrap_or(containerd::MAIN);
                let mut all = containerd::sources(main, texts);
                all.extend(distribution::beside(main));
                all
            }
            Self::Crio => crio::sources(),
            Self::Docker => vec![EngineFile::File(main.unwrap_or(DOCKER.main).to_owned())],
            Self::Isulad => vec![EngineFile::File(main.unwrap_or(ISULAD.main).to_owned())],
            Self::Podman => podman::sources(main),
            Self::Nerdctl => Vec::new(),
        }
    }

    /// Plans the changed files for a registration.
    pub(super) fn plan(self, registration: &Registration, texts: &Texts) -> Result<Plan> {
        match self {
            Self::Containerd => containerd::plan(registration, texts),
            Self::Crio => crio::plan(registration, texts),
            Self::Docker => docker::plan(&DOCKER, registration, texts),
            Self::Isulad => docker::plan(&ISULAD, registration, texts),
            Self::Podman => podman::plan(registration, texts),
            Self::Nerdctl => nerdctl(registration),
        }
    }

    /// Reads the setting of the engine's own NRI; `None` for an engine without NRI.
    pub(super) fn nri_setting(
        self,
        main: Option<&str>,
        texts: &Texts,
    ) -> Result<Option<NriSetting>> {
        match self {
            Self::Containerd => {
                containerd::nri_setting(main.unwrap_or(containerd::MAIN), texts).map(Some)
            }
            Self::Crio => crio::nri_setting(texts).map(Some),
            Self::Docker => {
                docker::nri_setting(&DOCKER, main.unwrap_or(DOCKER.main), texts).map(Some)
            }
            Self::Isulad => {
                docker::nri_setting(&ISULAD, main.unwrap_or(ISULAD.main), texts).map(Some)
            }
            Self::Podman | Self::Nerdctl => Ok(None),
        }
    }

    /// Plans to switch the engine's own NRI off on a host on which nri-runc is registered with another engine.
    pub(super) fn plan_nri_off(
        self,
        main: Option<&str>,
        texts: &Texts,
        plan: &mut Plan,
    ) -> Result<()> {
        match self {
            Self::Containerd => {
                containerd::plan_nri_off(main.unwrap_or(containerd::MAIN), texts, plan)
            }
            Self::Crio => crio::plan_nri_off(texts, plan),
            Self::Docker => docker::plan_nri_off(&DOCKER, main.unwrap_or(DOCKER.main), texts, plan),
            Self::Isulad => docker::plan_nri_off(&ISULAD, main.unwrap_or(ISULAD.main), texts, plan),
            Self::Podman | Self::Nerdctl => Ok(()),
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
