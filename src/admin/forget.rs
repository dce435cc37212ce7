// SPDX-License-Identifier: Apache-2.0
//! `forget`: drops the record of a container or pod that no engine has. The daemon checks that, unless
//! `--force` is given, and notifies plugins.

use clap::Args;

use super::ask;
use super::output::{Answer, Format, PlainOutput, tell};
use crate::answers::{AdminRequest, Forgotten};
use crate::config::Config;
use crate::error::Result;
use crate::text::printable;

/// `forget`.
#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Container or pod ID, or an ID prefix.
    id: String,
    /// Remove the record even if the runtime still has the container.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Asks the daemon to drop the record, and prints the dropped containers and pods.
pub(super) fn forget(config: &Config, forget: &Forget, format: Format) -> Result<u8> {
    let request = AdminRequest::Forget { id: forget.id.clone(), force: forget.force };
    tell(format, &ask::<Forgotten>(config, &request)?)
}

impl Answer for Forgotten {
    fn page(&self, _: Format) -> String {
        let containers = self.containers.iter().map(|container| ("container", &container.id));
        let all = containers.chain(self.pods.iter().map(|pod| ("pod", pod)));
        let lines = all.map(|(what, id)| format!("forgot {what} {}\n", printable(id)));
        lines.collect::<String>() + &format!("warning: {}", printable(&self.warning))
    }
}
