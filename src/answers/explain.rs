// SPDX-License-Identifier: Apache-2.0
//! The daemon's response to `explain`.

use std::collections::BTreeMap;

use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::policy::ExecRuleRow;
use super::{ContainerState, PromiseResult, SandboxState, Times};
use crate::config::RuleMode;
use crate::state::{Change, ChangedMember, ExecChange, HiddenFrom, RuleHit, Skipped};
use crate::text::rfc3339_nanos;

/// The answer to `explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(crate) enum Explanation {
    Several(SeveralMatches),
    Pod(Box<PodExplained>),
    Container(Box<ContainerExplained>),
}

/// The containers that an argument may mean, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SeveralMatches {
    pub(crate) error: String,
    pub(crate) matches: Vec<MatchRow>,
}

/// A container's row in a list to choose from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct MatchRow {
    pub(crate) id: String,
    pub(crate) root: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) state: ContainerState,
    pub(crate) engine: String,
    #[serde(flatten)]
    pub(crate) times: Times,
}

/// The changes that plugins and injections made to a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ContainerExplained {
    pub(crate) id: String,
    pub(crate) root: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) name: String,
    pub(crate) state: ContainerState,
    /// Null while unknown.
    pub(crate) exit_code: Option<i32>,
    /// Why the container's process no longer runs, in CRI's words.
    pub(crate) status_reason: Option<String>,
    pub(crate) engine: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) runtime: String,
    pub(crate) bundle: String,
    /// Whether the container's record was lost and then recovered from the runtime's state.
    pub(crate) found: bool,
    /// The plugin or injection (`inject:NAME`) that owns each field.
    pub(crate) owners: BTreeMap<String, String>,
    /// The changes in order of time, and those of one event in the order of the chain.
    pub(crate) changes: Vec<Dated<Change>>,
    pub(crate) changed_behind: Vec<ChangedMember>,
    pub(crate) times: Vec<Dated<CallTime>>,
    pub(crate) refused: Vec<String>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) would_refuse: Vec<Dated<RuleHit>>,
    pub(crate) exec_rules: Vec<ExecRuleRow>,
    pub(crate) would_inject: Vec<Dated<InjectionNote>>,
    pub(crate) gave_way: Vec<WayGiven>,
    pub(crate) exec_changes: Vec<Dated<ExecChange>>,
    pub(crate) promises: Vec<PromiseOutcome>,
    pub(crate) repeated: Vec<Dated<Repetition>>,
    pub(crate) hidden_from: Vec<HiddenFrom>,
    #[serde(flatten)]
    pub(crate) life: Times,
    /// Earlier containers of this name.
    pub(crate) earlier: Vec<MatchRow>,
}

/// The plugins' changes to a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PodExplained {
    pub(crate) kind: PodKind,
    pub(crate) id: String,
    pub(crate) pod: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) state: SandboxState,
    pub(crate) engine: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) found: bool,
    pub(crate) owners: BTreeMap<String, String>,
    pub(crate) changes: Vec<Dated<Change>>,
    #[serde(default)]
    pub(crate) times: Vec<Dated<CallTime>>,
    pub(crate) refused: Vec<String>,
    pub(crate) skipped: Vec<Skipped>,
    #[serde(default)]
    pub(crate) promises: Vec<PromiseOutcome>,
    #[serde(default)]
    pub(crate) hidden_from: Vec<HiddenFrom>,
    pub(crate) containers: Vec<MemberRow>,
}

/// The member by which readers distinguish a pod from a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum PodKind {
    Pod,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct MemberRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: ContainerState,
    pub(crate) exit_code: Option<i32>,
    pub(crate) refused: Vec<String>,
}

/// The time that a plugin took for an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct CallTime {
    pub(crate) at: i64,
    pub(crate) plugin: String,
    pub(crate) call: String,
    /// The wait for the plugin's turn, in microseconds.
    pub(crate) waited_us: u64,
    pub(crate) took_us: u64,
    /// gRPC's name of the failure.
    pub(crate) error: Option<String>,
}

/// A call of the flight recorder with its messages, as `sysdump` stores it.
#[derive(Debug, Serialize)]
pub(crate) struct RecentCall {
    #[serde(flatten)]
    pub(crate) time: Dated<CallTime>,
    /// Why the plugin refused the request.
    pub(crate) refusal: Option<String>,
    pub(crate) request_bytes: usize,
    pub(crate) request: Option<Value>,
    pub(crate) answer_bytes: usize,
    pub(crate) answer: Option<Value>,
}

/// A value that an injection in audit mode would have set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct InjectionNote {
    pub(crate) at: i64,
    pub(crate) event: String,
    pub(crate) plugin: String,
    pub(crate) field: String,
}

/// A field that an injection left to the container or to a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct WayGiven {
    pub(crate) plugin: String,
    pub(crate) field: String,
    /// The owner of the existing value; null if the container has it.
    pub(crate) to: Option<String>,
}

/// A promise about a container or a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PromiseOutcome {
    pub(crate) promise: String,
    pub(crate) plugin: String,
    pub(crate) why: String,
    pub(crate) mode: RuleMode,
    /// Null for a pod.
    pub(crate) result: Option<PromiseResult>,
}

/// A value that the engine repeats while the plugin's value stays in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Repetition {
    pub(crate) at: i64,
    pub(crate) plugin: String,
    pub(crate) field: String,
    pub(crate) engine: Value,
    pub(crate) value: Value,
}

/// A note with a member `at`. Serialization adds the member `time`, which is `at` as text (RFC 3339).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Dated<T>(pub(crate) T);

impl<T: Serialize> Serialize for Dated<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let note = serde_json::to_value(&self.0).map_err(S::Error::custom)?;
        let mut dated = Map::new();
        for (name, value) in note.as_object().into_iter().flatten() {
            dated.insert(name.clone(), value.clone());
            if name == "at" {
                let time = value.as_i64().and_then(rfc3339_nanos);
                dated.insert("time".to_owned(), time.into());
            }
        }
        dated.serialize(serializer)
    }
}

#[cfg(test)]
impl<T: schemars::JsonSchema> schemars::JsonSchema for Dated<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        format!("Dated<{}>", T::schema_id()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = T::json_schema(generator);
        let members = schema.get_mut("properties").and_then(Value::as_object_mut);
        let mut dated = Map::new();
        for (name, member) in members.into_iter().flat_map(std::mem::take) {
            let is_time = name == "at";
            dated.insert(name, member);
            if is_time {
                dated.insert("time".to_owned(), Option::<String>::json_schema(generator).into());
            }
        }
        schema.insert("properties".to_owned(), dated.into());
        let required = schema.get_mut("required").and_then(Value::as_array_mut);
        required.into_iter().for_each(|required| required.push("time".into()));
        schema
    }
}
