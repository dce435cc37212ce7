// SPDX-License-Identifier: Apache-2.0
//! The extension of NRI: messages and services of `proto/nri/extension`, and its events as bits. A
//! plugin subscribes with [`SubscribeRequest`]; a runtime without the extension answers
//! "unimplemented".

use protobuf::{Enum, EnumOrUnknown};

pub use crate::generated::extension::*;
#[cfg(feature = "services")]
pub use crate::generated::extension_ttrpc::*;

/// Every event of the extension.
pub const ALL_EXTENSION_EVENTS: [ExtensionEvent; 4] = [
    ExtensionEvent::EXEC_CONTAINER,
    ExtensionEvent::VALIDATE_EXEC,
    ExtensionEvent::POST_EXEC,
    ExtensionEvent::UPDATE_RESULTS,
];

impl ExtensionEvent {
    /// Returns the event's bit in a set of events.
    pub fn bit(self) -> u32 {
        1 << self.value()
    }

    /// Returns the method that delivers the event; empty for `EXTENSION_UNKNOWN`.
    pub fn method(self) -> &'static str {
        match self {
            Self::EXTENSION_UNKNOWN => "",
            Self::EXEC_CONTAINER => "ExecContainer",
            Self::VALIDATE_EXEC => "ValidateExec",
            Self::POST_EXEC => "PostExec",
            Self::UPDATE_RESULTS => "UpdateResults",
        }
    }
}

/// Returns the events of a list as bits, without events that are unknown here.
pub fn event_bits(events: &[EnumOrUnknown<ExtensionEvent>]) -> u32 {
    let known = events.iter().filter_map(|event| event.enum_value().ok());
    known.filter(|event| ALL_EXTENSION_EVENTS.contains(event)).fold(0, |bits, e| bits | e.bit())
}

/// Returns the events in a set of bits.
pub fn events_in(bits: u32) -> impl Iterator<Item = ExtensionEvent> {
    ALL_EXTENSION_EVENTS.into_iter().filter(move |event| bits & event.bit() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_converted_to_bits_and_unknown_ones_dropped() {
        let events = [1, 4, 0, 99, -1].map(EnumOrUnknown::from_i32);
        let bits = event_bits(&events);
        let known: Vec<ExtensionEvent> = events_in(bits).collect();
        assert_eq!(known, [ExtensionEvent::EXEC_CONTAINER, ExtensionEvent::UPDATE_RESULTS]);
        assert_eq!(event_bits(&[]), 0);
        assert!(ALL_EXTENSION_EVENTS.iter().all(|event| !event.method().is_empty()));
    }
}
