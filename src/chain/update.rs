// SPDX-License-Identifier: Apache-2.0
//! UpdateContainer and StopContainer through the chain: requests whose answers may update other
//! containers.

use std::rc::Rc;

use crate::adaptation::{Updated, Updates};
use crate::plugin::{Event, api};

use super::create::{Stopped, Witness};
use super::seat::{Failure, Said, Seat};

/// Asks everybody in turn about an engine's update; each sees it as those before left it. `witness`
/// hears which plugins were skipped.
///
/// # Errors
/// Fails with the first plugin that refuses, conflicts, or is silent and whose policy refuses.
pub async fn update(
    audience: &[Rc<Seat>],
    request: api::UpdateContainerRequest,
    witness: &dyn Witness,
) -> Result<Updated, Stopped> {
    let mut updates = Updates::for_update(request);
    for (index, seat) in audience.iter().enumerate() {
        let asked = index + 1;
        let rights = seat.rights().map_err(|failure| Stopped { failure, asked })?;
        let Some(request) = updates.request() else { break };
        let call = seat.plugin.update_container(request);
        match seat.ask(Event::UpdateContainer, call).await {
            Said::Answer(answer) => match seat.believe(answer) {
                Ok(answer) => {
                    let answered = updates.answer_update(&seat.id(), rights, answer);
                    let failure = answered.map_err(|error| Failure::of_merge(&seat.id(), &error));
                    failure.map_err(|failure| Stopped { failure, asked })?;
                }
                Err(why) => witness.skipped(&seat.id(), &why),
            },
            Said::Skipped(why) => witness.skipped(&seat.id(), &why),
            Said::Refusal(failure) => return Err(Stopped { failure, asked }),
        }
    }
    Ok(updates.finish())
}

/// Tells everybody in turn that a container has stopped, whatever they say, and collects what
/// they want others to have of the room it leaves. Returns who failed it as well.
pub async fn stop(
    audience: &[Rc<Seat>],
    request: &api::StopContainerRequest,
) -> (Updated, Vec<Failure>) {
    let mut updates = Updates::for_stop();
    let mut failures = Vec::new();
    for seat in audience {
        let call = seat.plugin.stop_container(request);
        let answer = match seat.ask(Event::StopContainer, call).await {
            Said::Answer(answer) => match seat.believe(answer) {
                Ok(answer) => answer,
                Err(_it_was_logged) => continue,
            },
            Said::Skipped(_) => continue,
            Said::Refusal(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let merged = seat.rights().and_then(|rights| {
            let answered = updates.answer_stop(&seat.id(), rights, answer);
            answered.map_err(|error| Failure::of_merge(&seat.id(), &error))
        });
        failures.extend(merged.err());
    }
    (updates.finish(), failures)
}
