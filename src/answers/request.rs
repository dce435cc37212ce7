// SPDX-License-Identifier: Apache-2.0
//! The requests of `nri` commands. Daemon and command may be of different versions, so a verb and its
//! members never change: the daemon ignores a member that it does not know, and a member added later needs a default.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// Start of the daemon's response to a verb that it does not know. Commands of every version recognize the
/// response by it, so it never changes.
pub(crate) const UNKNOWN_VERB: &str = "the daemon does not know the verb";

/// A request of an `nri` command to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", expecting = "expected an object with a verb")]
pub(crate) enum AdminRequest {
    Status,
    Plugins,
    PluginOutput {
        plugin: String,
    },
    Pods,
    Top,
    /// The containers that reach the plugin socket.
    SocketMounts,
    /// The containers of the plain runtime that plugins do not see.
    Unseen,
    Metrics,
    /// The calls of the flight recorder.
    Recent,
    Explain {
        id: String,
    },
    /// What the rules permit plugins to do with a pod.
    Policy {
        pod: String,
        #[serde(default)]
        plugins: Vec<String>,
    },
    /// Compares the plugin-owned values of one container, or of all, with the kernel's.
    Drift {
        id: Option<String>,
    },
    /// The events after a cursor; with `follow`, as a stream that continues with new ones.
    Events {
        #[serde(default = "oldest")]
        since: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        follow: bool,
    },
    /// A stream of the requests that plugins receive, after the current state.
    Record,
    Reload {
        #[serde(default)]
        dry_run: bool,
    },
    Reexec,
    Stop,
    Forget {
        id: String,
        #[serde(default)]
        force: bool,
    },
    /// Logs which user (`by`) disabled plugins (`off`) or enabled them.
    Switched {
        off: bool,
        by: String,
    },
    /// A verb of a later version.
    #[serde(other)]
    Unknown,
}

fn oldest() -> String {
    "0".to_owned()
}

impl AdminRequest {
    /// Parses a request.
    ///
    /// # Errors
    /// Fails if the request is malformed.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let read = serde_json::from_str(text);
        read.map_err(|error| Error::new(error.to_string()).doing("reading the request"))
    }

    /// Returns the refusal of the request `text`, which was parsed as [`Self::Unknown`].
    pub(crate) fn refuse_unknown(text: &str) -> Error {
        let request: Value = serde_json::from_str(text).unwrap_or_default();
        Error::new(format!("{UNKNOWN_VERB} {}", request["verb"].as_str().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::AdminRequest as R;

    /// Every request, with the JSON that other versions of the program send and read.
    fn requests() -> Vec<(R, &'static str)> {
        let text = str::to_owned;
        vec![
            (R::Status, r#"{"verb":"status"}"#),
            (R::Plugins, r#"{"verb":"plugins"}"#),
            (
                R::PluginOutput { plugin: text("10-a") },
                r#"{"verb":"plugin_output","plugin":"10-a"}"#,
            ),
            (R::Pods, r#"{"verb":"pods"}"#),
            (R::Top, r#"{"verb":"top"}"#),
            (R::SocketMounts, r#"{"verb":"socket_mounts"}"#),
            (R::Unseen, r#"{"verb":"unseen"}"#),
            (R::Metrics, r#"{"verb":"metrics"}"#),
            (R::Recent, r#"{"verb":"recent"}"#),
            (R::Explain { id: text("c1") }, r#"{"verb":"explain","id":"c1"}"#),
            (
                R::Policy { pod: text("shop/web"), plugins: vec![text("10-a")] },
                r#"{"verb":"policy","pod":"shop/web","plugins":["10-a"]}"#,
            ),
            (R::Drift { id: None }, r#"{"verb":"drift","id":null}"#),
            (R::Drift { id: Some(text("c1")) }, r#"{"verb":"drift","id":"c1"}"#),
            (R::Events { since: text("now"), follow: false }, r#"{"verb":"events","since":"now"}"#),
            (
                R::Events { since: text("a-1"), follow: true },
                r#"{"verb":"events","since":"a-1","follow":true}"#,
            ),
            (R::Record, r#"{"verb":"record"}"#),
            (R::Reload { dry_run: true }, r#"{"verb":"reload","dry_run":true}"#),
            (R::Reexec, r#"{"verb":"reexec"}"#),
            (R::Stop, r#"{"verb":"stop"}"#),
            (
                R::Forget { id: text("c1"), force: false },
                r#"{"verb":"forget","id":"c1","force":false}"#,
            ),
            (
                R::Switched { off: true, by: text("ann") },
                r#"{"verb":"switched","off":true,"by":"ann"}"#,
            ),
        ]
    }

    #[test]
    fn each_request_has_the_json_of_every_version() {
        for (request, wire) in requests() {
            assert_eq!(json!(request).to_string(), wire);
            assert_eq!(R::parse(wire).unwrap(), request);
        }
    }

    #[test]
    fn unknown_members_are_ignored_and_missing_ones_have_defaults() {
        for (request, wire) in requests() {
            let later = wire.replacen('{', r#"{"later":{"a":[1]},"#, 1);
            assert_eq!(R::parse(&later).unwrap(), request, "{later}");
        }
        for (wire, wanted) in [
            (r#"{"verb":"reload"}"#, R::Reload { dry_run: false }),
            (r#"{"verb":"drift"}"#, R::Drift { id: None }),
            (r#"{"verb":"events"}"#, R::Events { since: "0".to_owned(), follow: false }),
        ] {
            assert_eq!(R::parse(wire).unwrap(), wanted);
        }
    }

    #[test]
    fn an_unknown_verb_is_refused_by_its_name() {
        let later = r#"{"verb":"dream","id":7}"#;
        assert_eq!(R::parse(later).unwrap(), R::Unknown);
        let line = R::refuse_unknown(later).to_string();
        assert_eq!(line, "the daemon does not know the verb dream");
    }

    #[test]
    fn a_malformed_request_is_refused_with_one_line() {
        for (malformed, why) in [
            ("", "EOF while parsing"),
            ("null", "expected an object with a verb"),
            (r#"{"id":"c1"}"#, "missing field `verb`"),
            (r#"{"verb":7}"#, "invalid type: integer `7`"),
            (r#"{"verb":"forget"}"#, "missing field `id`"),
            (r#"{"verb":"explain","id":["a\nb"]}"#, "invalid type: sequence"),
            (r#"{"verb":"switched","off":"a\nb","by":"x"}"#, "invalid type: string"),
        ] {
            let line = R::parse(malformed).unwrap_err().to_string();
            let is_clear = line.starts_with("reading the request: ") && !line.contains('\n');
            assert!(is_clear && line.contains(why), "{malformed}: {line}");
        }
    }
}
