// SPDX-License-Identifier: Apache-2.0
//! Converts the document of an `exec`'s process to the extension's message, as the runtime reads
//! the document. It never writes.

use oci_document::odd_document;
use serde_json::Value;

use crate::plugin::api;
use crate::plugin::api::extension::ExecProcess;

/// Returns the process that a document describes; `None` if the document, or a member that is read
/// except `cwd`, is invalid.
pub(crate) fn exec_process(document: &[u8]) -> Option<ExecProcess> {
    let read = odd_document(document).ok()?.or_else(|| serde_json::from_slice(document).ok())?;
    let process = read.as_object()?;
    let member = |name: &str| process.get(name).unwrap_or(&Value::Null);
    let user = member("user");
    let limit = |limit: &Value| {
        Some(api::POSIXRlimit {
            type_: limit.get("type")?.as_str()?.to_owned(),
            hard: limit.get("hard")?.as_u64()?,
            soft: limit.get("soft")?.as_u64()?,
            ..api::POSIXRlimit::default()
        })
    };
    let user = api::User {
        uid: id(user.get("uid"))?,
        gid: id(user.get("gid"))?,
        additional_gids: list(user.get("additionalGids"), |gid| id(Some(gid)))?,
        ..api::User::default()
    };
    let terminal = member("terminal");
    Some(ExecProcess {
        args: list(Some(member("args")), text)?,
        env: list(Some(member("env")), text)?,
        cwd: member("cwd").as_str().unwrap_or_default().to_owned(),
        terminal: if terminal.is_null() { false } else { terminal.as_bool()? },
        user: Some(user).into(),
        rlimits: list(Some(member("rlimits")), limit)?,
        ..ExecProcess::default()
    })
}

/// Returns an ID; every runtime takes an absent one as zero.
fn id(value: Option<&Value>) -> Option<u32> {
    match value {
        None | Some(Value::Null) => Some(0),
        Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()),
    }
}

fn text(value: &Value) -> Option<String> {
    if value.is_null() { Some(String::new()) } else { value.as_str().map(str::to_owned) }
}

fn list<T>(value: Option<&Value>, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(value) => value.as_array()?.iter().map(read).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_by_its_document() {
        let document = br#"{"args":["sh","-c"],"env":["A=1"],"cwd":"/w","terminal":true,
            "user":{"uid":7,"additionalGids":[3]},
            "rlimits":[{"type":"RLIMIT_NOFILE","hard":9,"soft":8}]}"#;
        let process = exec_process(document).unwrap();
        assert_eq!((process.args.len(), process.env.as_slice()), (2, &["A=1".to_owned()][..]));
        assert_eq!((process.user.uid, process.user.additional_gids.as_slice()), (7, &[3][..]));
        assert_eq!((process.rlimits[0].soft, process.terminal), (8, true));
        let empty = ExecProcess { user: Some(api::User::default()).into(), ..Default::default() };
        assert_eq!(exec_process(b"{}"), Some(empty));
    }

    #[test]
    fn an_unreadable_process_document_is_ignored() {
        let odd = [
            r#"{"args":"sh"}"#,
            r#"{"env":[7]}"#,
            r#"{"terminal":"yes"}"#,
            r#"{"user":{"uid":-1}}"#,
        ];
        let limit = r#"{"rlimits":[{"type":"RLIMIT_NOFILE"}]}"#;
        for text in ["", "[]", "{", "null", "7", limit].into_iter().chain(odd) {
            assert_eq!(exec_process(text.as_bytes()), None, "{text}");
        }
    }
}
