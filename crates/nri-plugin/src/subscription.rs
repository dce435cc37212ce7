// SPDX-License-Identifier: Apache-2.0
//! The events to which a plugin subscribes. A runtime disconnects a plugin that subscribes to an
//! event that it does not know, and a runtime before NRI v0.12 does not report its version.

use nri_api as api;
use nri_api::event::Event;

use crate::HandlerError;

/// The events that came with NRI v0.10.
const LATER: i32 = Event::UpdatePodSandbox.bit()
    | Event::PostUpdatePodSandbox.bit()
    | Event::ValidateContainerAdjustment.bit();

/// For each engine, by the name that it reports: the first release with the events of NRI v0.10.
const FIRST_RELEASES: [(&str, (u32, u32)); 2] = [("containerd", (2, 2)), ("cri-o", (1, 34))];

/// Whether this runtime knows the events of [`LATER`]; `None` if its request does not show that.
pub(crate) fn knows_later_events(request: &api::ConfigureRequest) -> Option<bool> {
    if !request.NRI_version.is_empty() {
        return Some(true);
    }
    // Runtimes state their time-outs since NRI v0.7.
    if request.request_timeout == 0 {
        return Some(false);
    }
    let known = FIRST_RELEASES.iter().find(|(name, _)| *name == request.runtime_name);
    known.and_then(|(_, first)| Some(release(&request.runtime_version)? >= *first))
}

/// Returns the first two numbers of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+', '~']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A subscription, as bits.
#[derive(Debug, PartialEq)]
pub(crate) struct Subscription {
    pub(crate) events: i32,
    /// Whether the runtime may disconnect the plugin because of this subscription.
    pub(crate) in_doubt: bool,
}

impl Subscription {
    /// Selects the events to subscribe to. If it is unknown whether the runtime knows those of
    /// [`LATER`], selects all of `wanted`, unless the runtime has just disconnected the plugin after
    /// such a subscription.
    ///
    /// # Errors
    /// Fails if nothing remains, because the protocol treats an empty subscription as all events.
    pub(crate) fn new(
        wanted: i32,
        knows_later: Option<bool>,
        was_in_doubt: bool,
    ) -> Result<Self, HandlerError> {
        if wanted == 0 {
            return Err("the plugin names no event, which the protocol cannot express".into());
        }
        if wanted & LATER == 0 || knows_later.unwrap_or(!was_in_doubt) {
            let in_doubt = wanted & LATER != 0 && knows_later.is_none();
            return Ok(Self { events: wanted, in_doubt });
        }
        let events = wanted & !LATER;
        if events == 0 {
            return Err(
                "the runtime has none of the plugin's events, which came with NRI v0.10".into()
            );
        }
        tracing::warn!(
            "the runtime has an NRI before v0.10: no UpdatePodSandbox, PostUpdatePodSandbox and \
             ValidateContainerAdjustment"
        );
        Ok(Self { events, in_doubt: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, version: &str) -> api::ConfigureRequest {
        api::ConfigureRequest {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            request_timeout: 2000,
            ..Default::default()
        }
    }

    #[test]
    fn support_of_later_events_follows_name_version_and_time_out() {
        for (name, version, wanted) in [
            ("containerd", "v1.7.30", Some(false)),
            ("containerd", "2.1.6~ds1", Some(false)),
            ("containerd", "v2.2.0-rc.1", Some(true)),
            ("containerd", "v3.0.0", Some(true)),
            ("containerd", "dev", None),
            ("cri-o", "1.33.8", Some(false)),
            ("cri-o", "1.34", Some(true)),
            ("other", "v1.0", None),
        ] {
            assert_eq!(knows_later_events(&request(name, version)), wanted, "{name} {version}");
        }
        let old = api::ConfigureRequest { request_timeout: 0, ..request("other", "v1.0") };
        assert_eq!(knows_later_events(&old), Some(false));
        let new = api::ConfigureRequest { NRI_version: "v0.12.0".to_owned(), ..old };
        assert_eq!(knows_later_events(&new), Some(true));
    }

    #[test]
    fn newer_events_are_requested_unless_the_runtime_lacks_them() {
        let create = Event::CreateContainer.bit();
        let both = create | Event::PostUpdatePodSandbox.bit();
        let of = |events, in_doubt| Some(Subscription { events, in_doubt });
        for (wanted, knows_later, was_in_doubt, result) in [
            (both, Some(true), true, of(both, false)),
            (both, Some(false), false, of(create, false)),
            (both, None, false, of(both, true)),
            (both, None, true, of(create, false)),
            (create, None, false, of(create, false)),
            (LATER, Some(false), false, None),
            (0, Some(true), false, None),
        ] {
            let asked = Subscription::new(wanted, knows_later, was_in_doubt).ok();
            assert_eq!(asked, result, "{wanted:#b} {knows_later:?} {was_in_doubt}");
        }
    }
}
