// SPDX-License-Identifier: Apache-2.0
//! Defines the result of a call to a plugin as a type, because ttRPC's errors are text. This module makes no call.

use ttrpc::Code;

use crate::limits;

/// The beginnings of the paths of plugins' methods.
const SERVICES: [&str; 2] =
    ["/nri.pkg.api.v1alpha1.Plugin/", "/nri.extension.v1alpha1.PluginExtension/"];

/// The result of one call to a plugin.
#[derive(Debug)]
pub enum Outcome<T> {
    /// The plugin answered.
    Answered(T),
    /// The plugin refused, or the request or its reply cannot be used; the reason.
    Refused(String),
    /// The plugin has no such method, according to this error message. If a reply is needed, this
    /// is a refusal.
    Unimplemented(String),
    /// The plugin did not answer in time; a late reply is discarded.
    TimedOut,
    /// The plugin's connection broke during the call, for this reason.
    Gone(String),
    /// The plugin was disconnected before its turn, and was not called.
    NotConnected,
    /// The plugin was not called, because its turn would come after the caller stops waiting, or it did not answer a
    /// request of the extension in time; the reason.
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

/// Interprets a status other than OK.
pub(super) fn from_status<T>(status: &ttrpc::Status) -> Outcome<T> {
    let message = status.message();
    let words = limits::cut(message, limits::QUOTED).into_owned();
    if status.code() == Code::UNIMPLEMENTED || is_unknown_method(status) {
        Outcome::Unimplemented(words)
    } else {
        Outcome::Refused(words)
    }
}

/// Whether the plugin's server does not know the method: ttrpc-rust's synchronous server answers
/// with code 3 and this text instead of code 12. A refusal may end with the same words, so the
/// method's path must precede them.
fn is_unknown_method(status: &ttrpc::Status) -> bool {
    let path = status.message().strip_suffix(" does not exist");
    let of = |path: &str, service: &str| path.strip_prefix(service).map(str::to_owned);
    let method = path.and_then(|path| SERVICES.iter().find_map(|service| of(path, service)));
    let is_name = |method: &str| method.bytes().all(|byte| byte.is_ascii_alphanumeric());
    status.code() == Code::INVALID_ARGUMENT && method.as_deref().is_some_and(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, message: &str) -> ttrpc::Status {
        ttrpc::get_status(code, message)
    }

    #[test]
    fn a_method_that_a_plugin_lacks_is_known_by_code_or_path() {
        let method = "/nri.pkg.api.v1alpha1.Plugin/UpdatePodSandbox does not exist";
        for lacking in [status(Code::UNIMPLEMENTED, "no"), status(Code::INVALID_ARGUMENT, method)] {
            assert!(matches!(from_status::<()>(&lacking), Outcome::Unimplemented(_)));
        }
    }

    #[test]
    fn a_refusal_stays_a_refusal_whatever_its_text_ends_with() {
        let method = "/nri.pkg.api.v1alpha1.Plugin/UpdatePodSandbox does not exist";
        for refusal in [
            status(Code::UNKNOWN, "RDT class gold does not exist"),
            status(Code::INVALID_ARGUMENT, "class gold does not exist"),
            status(Code::INVALID_ARGUMENT, "/nri.pkg.api.v1alpha1.Plugin/a b does not exist"),
            status(Code::UNKNOWN, method),
        ] {
            assert!(matches!(from_status::<()>(&refusal), Outcome::Refused(_)), "{refusal:?}");
        }
    }
}
