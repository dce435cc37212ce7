// SPDX-License-Identifier: Apache-2.0
//! The events that a plugin can subscribe to, with their numbers on the wire.

/// Defines the events and their table from one list, so that they cannot differ.
macro_rules! events {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// An event of the NRI protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are the protocol's own")]
        #[repr(u8)]
        pub enum Event {
            $($name = $number),+
        }

        /// Every event, in the order of their numbers.
        pub const ALL_EVENTS: [Event; 14] = [$(Event::$name),+];

        impl Event {
            /// Returns the protocol's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),+
                }
            }
        }
    };
}

events! {
    RunPodSandbox = 1,
    StopPodSandbox = 2,
    RemovePodSandbox = 3,
    CreateContainer = 4,
    PostCreateContainer = 5,
    StartContainer = 6,
    PostStartContainer = 7,
    UpdateContainer = 8,
    PostUpdateContainer = 9,
    StopContainer = 10,
    RemoveContainer = 11,
    UpdatePodSandbox = 12,
    PostUpdatePodSandbox = 13,
    ValidateContainerAdjustment = 14,
}

/// Every valid bit of a subscription.
pub const ALL_BITS: i32 = (1 << 14) - 1;

impl Event {
    /// Returns the event's bit in a subscription.
    pub const fn bit(self) -> i32 {
        1 << (self as u8 - 1)
    }

    /// Returns the event's number on the wire.
    pub fn number(self) -> i32 {
        i32::from(self as u8)
    }
}
