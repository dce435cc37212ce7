// SPDX-License-Identifier: Apache-2.0
//! Decodes a document like Go's decoder, if strict readers would read it differently.
//!
//! runc accepts documents that strict readers refuse or read differently: repeated members, members
//! in another case, strings with lone surrogates or bytes that are not UTF-8, `null` in lists, any
//! text after the document. Plugins must receive what runc reads, or a member could be hidden from
//! them. Nothing is edited here. Reference: Go `encoding/json` (`Unmarshal`); tried with runc
//! 1.1.5, 1.5.2 and 1.6.0-rc.1.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::document::DocumentError;
use crate::gojson::fold;
use crate::scan;

/// Members of the specification that any part of the program reads.
const NAMES: &str = "process terminal user uid gid username additionalGids args env cwd rlimits \
    type hard soft oomScoreAdj ioPriority class priority scheduler policy nice flags runtime deadline period \
    mounts destination source options hooks path timeout prestart createRuntime createContainer \
    startContainer poststart poststop annotations root linux namespaces devices major minor \
    fileMode cgroupsPath resources sysctl netDevices name intelRdt closID schemata \
    enableMonitoring seccomp defaultAction defaultErrnoRet architectures listenerPath \
    listenerMetadata syscalls names action errnoRet index value valueTwo op allow access memory \
    limit reservation swap kernel kernelTCP swappiness disableOOMKiller useHierarchy \
    checkBeforeUpdate cpu shares quota burst realtimeRuntime realtimePeriod cpus mems idle pids \
    blockIO weight leafWeight weightDevice throttleReadBpsDevice throttleWriteBpsDevice \
    throttleReadIOPSDevice throttleWriteIOPSDevice rate hugepageLimits pageSize network classID \
    priorities rdma hcaHandles hcaObjects unified rootfsPropagation memoryPolicy nodes mode";

static KNOWN: LazyLock<HashMap<String, &'static str>> =
    LazyLock::new(|| NAMES.split_whitespace().map(|name| (fold(name), name)).collect());

/// Objects whose keys are data, and so case-sensitive.
const MAPS: [&str; 5] = ["annotations", "sysctl", "unified", "netDevices", "rdma"];

/// Members that are maps of strings.
const STRING_MAPS: [&str; 3] = ["annotations", "sysctl", "unified"];

/// Members that are lists of strings.
const STRING_LISTS: [&str; 7] =
    ["args", "env", "options", "flags", "architectures", "names", "schemata"];

/// Nesting depth beyond which objects and lists become `null`; no member of the specification is as deep.
const DEEPEST: usize = 64;

/// Decodes a document like Go; `None` if a strict reader reads the same.
///
/// # Errors
/// Fails like Go's decoder if the document does not begin with a JSON object, and with
/// [`DocumentError::Repeated`] if parts of an earlier, repeated member may stay in force.
pub fn odd_document(text: &[u8]) -> Result<Option<Value>, DocumentError> {
    let start = scan::skip_blank(text, 0);
    let plain = std::str::from_utf8(text).ok().filter(|_| text.get(start) == Some(&b'{'));
    let end = plain.and_then(|text| Plain { text, keys: Vec::new() }.value_end(start, "", 0));
    if end.is_some_and(|end| scan::skip_blank(text, end) == text.len()) {
        return Ok(None);
    }
    let malformed =
        |error: serde_json::Error| DocumentError::Malformed { detail: error.to_string() };
    let span = scan::first_value(text).map_err(malformed)?;
    if text.get(span.start) != Some(&b'{') {
        return Err(DocumentError::WrongType { path: String::new(), wanted: "object" });
    }
    let mut document = read(text, &span, "", 0).map_err(|path| DocumentError::Repeated { path })?;
    fill(&mut document, "", "");
    Ok(Some(document))
}

/// Finds out whether a strict reader reads a text like Go.
struct Plain<'t> {
    text: &'t str,
    /// The first folded keys of each object around the current place, the innermost object's last.
    keys: Vec<Cow<'t, str>>,
}

impl<'t> Plain<'t> {
    /// Returns the end of the value at `at`; `None` if Go may read it differently than a strict reader.
    /// `name` is the member that has the value.
    fn value_end(&mut self, at: usize, name: &str, depth: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        match bytes.get(at)? {
            b'{' | b'[' if depth > DEEPEST => None,
            b'{' => self.object_end(at, name, depth),
            b'[' => scan::entries(bytes, at, b"[]", |at| {
                let end = self.value_end(at, name, depth + 1)?;
                (bytes.get(at..end) != Some(b"null")).then_some(end)
            }),
            b'"' => plain_text(self.text, at).map(|(_, end)| end),
            _ => {
                let end = scan::value_end(bytes, at)?;
                let value = bytes.get(at..end)?;
                (is_whole(value) || serde_json::from_slice::<Value>(value).is_ok()).then_some(end)
            }
        }
    }

    fn object_end(&mut self, at: usize, name: &str, depth: usize) -> Option<usize> {
        let (is_data, is_text) = (MAPS.contains(&name), STRING_MAPS.contains(&name));
        let (bytes, begin) = (self.text.as_bytes(), self.keys.len());
        let mut more = HashSet::new();
        let end = scan::entries(bytes, at, b"{}", |at| {
            let (key, end) = plain_text(self.text, at)?;
            let start = scan::value_of(bytes, end)?;
            let folded = if is_data { key.clone() } else { folded(&key) };
            if !is_data && KNOWN.get(folded.as_ref()).is_some_and(|known| *known != key) {
                return None;
            }
            // The first keys are compared one by one, because most objects have few.
            let earlier = self.keys.get(begin..).unwrap_or_default();
            let is_one_of_few = earlier.len() < 16;
            if earlier.contains(&folded) || !is_one_of_few && !more.insert(folded.clone()) {
                return None;
            }
            if is_one_of_few {
                self.keys.push(folded);
            }
            let end = self.value_end(start, &key, depth + 1)?;
            (!is_text || bytes.get(start..end) != Some(b"null")).then_some(end)
        });
        self.keys.truncate(begin);
        end
    }
}

/// Whether the text is a usual whole number, `true`, `false` or `null`, which all readers read alike.
fn is_whole(value: &[u8]) -> bool {
    match value {
        b"true" | b"false" | b"null" | b"0" => true,
        [b'1'..=b'9', rest @ ..] => rest.len() < 18 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Folds a key ([`fold`]); most keys need no change.
fn folded<'t>(key: &Cow<'t, str>) -> Cow<'t, str> {
    let has_case = |byte: u8| !byte.is_ascii() || byte.is_ascii_uppercase();
    if key.bytes().any(has_case) { Cow::Owned(fold(key)) } else { key.clone() }
}

/// Returns the string at `at` and its end; `None` if readers may read it differently.
fn plain_text(text: &str, at: usize) -> Option<(Cow<'_, str>, usize)> {
    let inside = text.get(at..)?.strip_prefix('"')?;
    let is_odd = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
    let length = inside.bytes().position(is_odd)?;
    if inside.as_bytes().get(length) == Some(&b'"') {
        return Some((Cow::Borrowed(inside.get(..length)?), at + length + 2));
    }
    let end = scan::string_end(text.as_bytes(), at)?;
    let read = serde_json::from_str(text.get(at..end)?).ok()?;
    Some((Cow::Owned(read), end))
}

/// Reads a value; fails with the path of a repeated member that [`put`] refuses.
fn read(text: &[u8], span: &Range<usize>, name: &str, depth: usize) -> Result<Value, String> {
    let raw = text.get(span.clone()).unwrap_or_default();
    Ok(match raw.first() {
        Some(b'{' | b'[') if depth > DEEPEST => Value::Null,
        Some(b'{') => {
            let mut object = Map::new();
            for member in scan::members(text, span.start).unwrap_or_default() {
                let key = text.get(member.key.clone()).and_then(scan::decode).unwrap_or_default();
                let key = if MAPS.contains(&name) { key } else { known(key) };
                let value = read(text, &member.value, &key, depth + 1);
                let mut value = value.map_err(|path| format!("{key}.{path}"))?;
                if value.is_null() && STRING_MAPS.contains(&name) {
                    value = Value::from("");
                }
                put(&mut object, name, key, value)?;
            }
            Value::Object(object)
        }
        Some(b'[') => {
            let elements = scan::elements(text, span.start).unwrap_or_default();
            let element = |at: &Range<usize>| read(text, at, name, depth + 1);
            elements.iter().map(element).collect::<Result<_, String>>()?
        }
        Some(b'"') => Value::from(scan::decode(raw).unwrap_or_default()),
        _ => serde_json::from_slice(raw).unwrap_or_default(),
    })
}

/// Replaces each `null` in the lists of a value with what Go reads. The value is the member `name` of the
/// object `of`.
fn fill(value: &mut Value, name: &str, of: &str) {
    match value {
        Value::Object(members) => {
            members.iter_mut().for_each(|(key, value)| fill(value, key, name));
        }
        Value::Array(list) => list.iter_mut().for_each(|element| {
            if element.is_null() {
                *element = zero(name, of);
            } else {
                fill(element, name, of);
            }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the value that Go reads for `null` in a list of this name.
fn zero(name: &str, of: &str) -> Value {
    match name {
        // The conditions of a system call, which are objects.
        "args" if of == "syscalls" => Value::Object(Map::new()),
        name if STRING_LISTS.contains(&name) => Value::from(""),
        "additionalGids" => Value::from(0),
        _ => Value::Object(Map::new()),
    }
}

/// Returns the specification's spelling of a name; other names are unchanged.
fn known(name: String) -> String {
    KNOWN.get(&fold(&name)).map_or(name, |known| (*known).to_owned())
}

/// Adds a member to the object `of`. A repeated member replaces the earlier one, except that
/// objects outside of maps are merged, and `null` changes neither a string nor `user`. Of members that
/// the program reads, fails with the path of a list whose elements Go merges into the earlier list's,
/// and of a number or boolean that `null` repeats: Go resets it if its type is a pointer, else keeps it.
fn put(object: &mut Map<String, Value>, of: &str, key: String, value: Value) -> Result<(), String> {
    let is_whole =
        |element: &Value| !(element.is_null() || element.is_object() || element.is_array());
    let is_read = KNOWN.contains_key(&fold(&key));
    match (object.get_mut(&key), value) {
        (Some(Value::Object(before)), Value::Object(again)) if !MAPS.contains(&of) => {
            for (inner, value) in again {
                put(before, &key, inner, value).map_err(|path| format!("{key}.{path}"))?;
            }
        }
        (Some(Value::Object(_)), Value::Null) if key == "user" && !MAPS.contains(&of) => {}
        (Some(Value::String(_)), Value::Null) => {}
        (Some(Value::Number(_) | Value::Bool(_)), Value::Null) if is_read => return Err(key),
        (Some(Value::Array(before)), Value::Array(again))
            if is_read && !before.is_empty() && !again.iter().all(is_whole) =>
        {
            return Err(key);
        }
        (_, value) => drop(object.insert(key, value)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn says(text: &[u8]) -> Value {
        odd_document(text).unwrap().unwrap()
    }

    #[test]
    fn an_engines_usual_document_is_not_odd() {
        for text in [
            &br#" {"ociVersion":"1.0.2","process":{"env":["A=\u00e9\ud83d\ude00"]},"Xx":[1e3]} "#[..],
            br#"{"annotations":{"a":"1","A":"2"},"linux":{"netDevices":{"e":{},"E":{}}}}"#,
            br#"{"hooks":null,"linux":{"resources":{"memory":null}}}"#,
        ] {
            assert_eq!(odd_document(text), Ok(None), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn values_that_are_no_json_make_a_document_odd() {
        for value in [
            "0",
            "7",
            "-0",
            "1e3",
            "-1.5E+2",
            "999999999999999999",
            "18446744073709551616",
            "true",
            "null",
        ] {
            let text = format!(r#"{{"x":{value},"y":[{{"z":{value}}}]}}"#);
            assert_eq!(odd_document(text.as_bytes()), Ok(None), "{value}");
        }
        for value in ["01", "+1", "1.", ".5", "1e", "truex", "nul", "0x1", "--1", "1_0"] {
            assert!(odd_document(format!(r#"{{"x":{value}}}"#).as_bytes()).is_err(), "{value}");
        }
    }

    #[test]
    fn members_in_another_case_or_repeated_are_read_as_runc_does() {
        let text = br#"{"process":{"args":["a"],"env":["A=1"]},"Process":{"args":["b"]},
            "annotations":{"a":"1"},"ANNOTATIONS":{"b":"2"},"linux":{"CGROUPSPATH":"/x"}}"#;
        assert_eq!(
            says(text),
            json!({
                "process": {"args": ["b"], "env": ["A=1"]},
                "annotations": {"a": "1", "b": "2"}, "linux": {"cgroupsPath": "/x"},
            })
        );
        assert_eq!(says("{\"proce\u{17f}s\":{}}".as_bytes()), json!({"process": {}}));
        assert_eq!(says(br#"{"linux":{"x":1},"linux":null}"#), json!({"linux": null}));
        let user = br#"{"process":{"user":{"uid":5},"user":null,"cwd":"/","cwd":null}}"#;
        assert_eq!(says(user), json!({"process": {"user": {"uid": 5}, "cwd": "/"}}));
    }

    #[test]
    fn members_inside_lists_are_read_as_runc_does() {
        let text = br#"{"mounts":[{"SOURCE":"/x"},{"source":"\ud800"}],"x":[[{"TYPE":1}]]}"#;
        let read =
            json!({"mounts": [{"source": "/x"}, {"source": "\u{fffd}"}], "x": [[{"type": 1}]]});
        assert_eq!(says(text), read);
        let groups = br#"{"process":{"user":{"additionalGids":[1,null]}}}"#;
        assert_eq!(says(groups), json!({"process": {"user": {"additionalGids": [1, 0]}}}));
    }

    #[test]
    fn keys_that_gos_decoder_may_merge_make_a_document_odd() {
        for (text, read) in [
            (r#"{"X":1,"x":2}"#, json!({"X": 1, "x": 2})),
            ("{\"\u{212a}\":1,\"k\":2}", json!({"\u{212a}": 1, "k": 2})),
            (r#"{"\\":1,"\u005c":2}"#, json!({"\\": 2})),
        ] {
            assert_eq!(says(text.as_bytes()), read, "{text}");
        }
        let mut many: Vec<String> =
            (0..40).map(|key| format!("\"k{key}\":{{\"k3\":1,\"k{}\":{key}}}", key + 50)).collect();
        let document = |many: &[String]| format!("{{{}}}", many.join(","));
        assert_eq!(odd_document(document(&many).as_bytes()), Ok(None));
        for repeated in ["\"k3\":7", "\"k39\":7"] {
            many.push(repeated.to_owned());
            assert!(odd_document(document(&many).as_bytes()).unwrap().is_some(), "{repeated}");
            many.pop();
        }
    }

    #[test]
    fn nesting_deeper_than_64_is_cut_off() {
        let objects = |depth| format!("{}1{}", "{\"x\":".repeat(depth), "}".repeat(depth));
        let lists = |depth| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        // The whole document is the first level, and a key in another case makes it odd.
        let odd = |text: &str| says(text.replacen('{', "{\"ARGS\":null,", 1).as_bytes());
        let innermost = |mut value: Value| {
            let mut depth = 0;
            while let Some(inner) = value.get_mut("x").map(Value::take) {
                (value, depth) = (inner, depth + 1);
            }
            while let Some(inner) = value.get_mut(0).map(Value::take) {
                (value, depth) = (inner, depth + 1);
            }
            (value, depth)
        };
        assert_eq!(odd_document(objects(65).as_bytes()), Ok(None));
        assert_eq!(odd_document(lists(64).as_bytes()), Ok(None));
        assert_eq!(innermost(odd(&objects(65))), (json!(1), 65));
        assert_eq!(innermost(odd(&lists(64))), (json!([]), 64));
        for depth in [66, 67] {
            assert_eq!(innermost(says(objects(depth).as_bytes())), (Value::Null, 65));
        }
        for depth in [65, 66] {
            // In a list, the value that was cut off is read like `null`.
            assert_eq!(innermost(says(lists(depth).as_bytes())), (json!({}), 65));
        }
    }

    #[test]
    fn a_member_that_go_merges_into_an_earlier_one_is_refused() {
        for (text, place) in [
            (&br#"{"mounts":[{"source":"/x"}],"mounts":[{}]}"#[..], "mounts"),
            (br#"{"process":{"args":["sh","-c","x"],"args":[null,null,null]}}"#, "process.args"),
            (br#"{"process":{"args":["sh"]},"Process":{"ARGS":[null]}}"#, "process.args"),
            (br#"{"process":{"env":["A=1"],"env":["B=1"],"env":[null]}}"#, "process.env"),
            (br#"{"hooks":{"poststop":[{"path":"/x"}],"poststop":[null]}}"#, "hooks.poststop"),
            (br#"{"linux":{"namespaces":[{"type":"ipc"}],"namespaces":[{}]}}"#, "linux.namespaces"),
            (
                br#"{"linux":{"resources":{"memory":{"limit":1,"limit":null}}}}"#,
                "linux.resources.memory.limit",
            ),
            (
                br#"{"linux":{"resources":{"cpu":{"shares":1}},"resources":{"cpu":{"shares":null}}}}"#,
                "linux.resources.cpu.shares",
            ),
            (br#"{"process":{"oomScoreAdj":1,"oomScoreAdj":null}}"#, "process.oomScoreAdj"),
            (br#"{"process":{"terminal":true,"terminal":null}}"#, "process.terminal"),
        ] {
            let error = DocumentError::Repeated { path: place.to_owned() };
            assert_eq!(odd_document(text), Err(error), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn repeated_members_that_fully_replace_are_read() {
        for (text, read) in [
            (&br#"{"args":["a","b"],"args":["c"]}"#[..], json!({"args": ["c"]})),
            (br#"{"args":["a"],"args":[],"args":[null]}"#, json!({"args": [""]})),
            (
                br#"{"x":[{"a":1}],"x":[{"b":2}],"y":1,"y":null}"#,
                json!({"x": [{"b": 2}], "y": null}),
            ),
            (
                br#"{"netDevices":{"user":{"name":"a"},"user":null}}"#,
                json!({"netDevices": {"user": null}}),
            ),
            (br#"{"mounts":[{"source":"/x"}],"mounts":null}"#, json!({"mounts": null})),
            (br#"{"mounts":[{"source":"/x"}],"mounts":[],"mounts":[{}]}"#, json!({"mounts": [{}]})),
            (
                br#"{"rdma":{"a":{"hcaHandles":1},"b":{}},"rdma":{"a":{"hcaObjects":2}}}"#,
                json!({"rdma": {"a": {"hcaObjects": 2}, "b": {}}}),
            ),
            (
                br#"{"annotations":{"a":"1"},"annotations":{"a":null}}"#,
                json!({"annotations": {"a": ""}}),
            ),
        ] {
            assert_eq!(says(text), read, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn odd_strings_numbers_depth_and_trailers_are_read_as_runc_does() {
        assert_eq!(says(b"{\"a\":1} {\"a\":2}"), json!({"a": 1}));
        assert_eq!(says(b"{\"a\":1}\0"), json!({"a": 1}));
        assert_eq!(says(br#"{"a":"x\ud800"}"#), json!({"a": "x\u{fffd}"}));
        assert_eq!(says(b"{\"a\":\"\xe2\x82\"}"), json!({"a": "\u{fffd}\u{fffd}"}));
        assert_eq!(
            says(br#"{"env":[null],"mounts":[null]}"#),
            json!({"env": [""], "mounts": [{}]})
        );
        assert_eq!(
            says(br#"{"syscalls":[{"names":[null],"args":[null]}]}"#),
            json!({"syscalls": [{"names": [""], "args": [{}]}]})
        );
        assert_eq!(says(br#"{"annotations":{"a":null}}"#), json!({"annotations": {"a": ""}}));
        assert_eq!(says(br#"{"x":1e999}"#), json!({"x": null}));
        let deep = format!("{{\"x\":{}{},\"process\":{{}}}}", "[".repeat(9000), "]".repeat(9000));
        assert_eq!(says(deep.as_bytes())["process"], json!({}));
    }

    #[test]
    fn a_document_that_runc_refuses_is_refused_with_the_place() {
        for text in
            [&b""[..], b"{", b"{\"a\":1,}", b"\xef\xbb\xbf{}", b"{\"a\":\"\0\"}", b"{\"a\":\xff}"]
        {
            let error = odd_document(text).unwrap_err().to_string();
            assert!(error.contains("line 1 column"), "{error}");
        }
        for text in [&b"[]x"[..], b"[]", b" 1 ", b"\"{}\"", b"null"] {
            assert!(odd_document(text).unwrap_err().to_string().contains("is not an object"));
        }
    }
}
