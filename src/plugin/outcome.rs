// SPDX-License-Identifier: Apache-2.0
//! The result of a call to a plugin, as a type: ttRPC's errors are text. It makes no call.

use ttrpc::Code;

use crate::limits;

/// The result of one call to a plugin.
#[derive(Debug)]
pub enum Outcome<T> {
    /// The plugin answered.
    Answered(T),
    /// The plugin refused; its error message.
    Refused(String),
    /// The plugin has no such method; its error message. Counts as a refusal unless the caller can do
    /// without an answer.
    Unimplemented(String),
    /// It did not answer in time. Its late answer is discarded.
    TimedOut,
    /// Its connection broke while it was asked; why.
    Gone(String),
    /// It was disconnected before its turn came, and was not asked.
    NotConnected,
    /// It was not asked: its turn would come after the caller has given up; the reason.
    Busy(String),
}

impl<T> Outcome<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Answered(answer) => Outcome::Answered(change(answer)),
            Self::Refused(why) => Outcome::Refused(why),
            Self::Unimplemented(why) => Outcome::Unimplemented(why),
            Self::TimedOut => Outcome::TimedOut,
            Self::Gone(why) => Outcome::Gone(why),
            Self::NotConnected => Outcome::NotConnected,
            Self::Busy(why) => Outcome::Busy(why),
        }
    }
}

/// What a status other than OK means.
pub(super) fn from_status<T>(status: &ttrpc::Status) -> Outcome<T> {
    let message = status.message();
    let words = limits::cut(message, limits::QUOTED).into_owned();
    // ttrpc-rust's synchronous server answers with code 3 and this text instead of code 12.
    if status.code() == Code::UNIMPLEMENTED || message.ends_with("does not exist") {
        Outcome::Unimplemented(words)
    } else {
        Outcome::Refused(words)
    }
}
