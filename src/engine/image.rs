// SPDX-License-Identifier: Apache-2.0
//! The labels of an image's configuration and the annotations of its manifest. Engines mix them
//! with the operator's; this module tells them apart.
//!
//! Image authors control every byte of these documents, and engines read them as Go does: names are
//! case-insensitive, and of duplicates Go uses the later one, or merges both. So a pair is the
//! image's wherever it occurs, and a member that occurs twice is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use oci_document as gojson;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

/// Every key in the image's documents, with all its string values.
#[derive(Debug, Default)]
pub(super) struct ImageWords(BTreeMap<String, BTreeSet<String>>);

impl ImageWords {
    /// Reads a document; `None` if it is not JSON.
    pub(super) fn read(document: &[u8]) -> Option<Self> {
        let mut said = Self::default();
        said.add(document)?;
        Some(said)
    }

    /// Adds another document; `None` if it is not JSON.
    pub(super) fn add(&mut self, document: &[u8]) -> Option<()> {
        self.take(serde_json::from_slice(document).ok()?);
        Some(())
    }

    /// Whether the image has this pair.
    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.0.get(key).is_some_and(|values| values.contains(value))
    }

    fn take(&mut self, node: JsonNode) {
        match node {
            JsonNode::Members(members) => {
                for (key, node) in members {
                    if let JsonNode::Text(value) = node {
                        self.0.entry(key).or_default().insert(value);
                    } else {
                        self.take(node);
                    }
                }
            }
            JsonNode::Items(items) => items.into_iter().for_each(|item| self.take(item)),
            JsonNode::Text(_) | JsonNode::Other => {}
        }
    }
}

/// Returns the digest of the configuration that a manifest names, if it names only one.
pub(super) fn config_digest(manifest: &[u8]) -> Option<String> {
    let manifest: JsonNode = serde_json::from_slice(manifest).ok()?;
    let JsonNode::Text(digest) = manifest.only("config")?.only("digest")? else { return None };
    Some(digest.clone())
}

/// A JSON value as written. `null` is an empty string, as in Go.
enum JsonNode {
    Text(String),
    Members(Vec<(String, JsonNode)>),
    Items(Vec<JsonNode>),
    Other,
}

impl JsonNode {
    /// Returns the member of this name, in any case, if it occurs once.
    fn only(&self, name: &str) -> Option<&Self> {
        let Self::Members(members) = self else { return None };
        let mut found = members.iter().filter(|(key, _)| gojson::is_field(key, name));
        let (_, node) = found.next()?;
        found.next().is_none().then_some(node)
    }
}

impl<'de> Deserialize<'de> for JsonNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = JsonNode;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonNode, E> {
        Ok(JsonNode::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<JsonNode, E> {
        Ok(JsonNode::Text(String::new()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonNode, E> {
        Ok(JsonNode::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<JsonNode, E> {
        Ok(JsonNode::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<JsonNode, E> {
        Ok(JsonNode::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonNode, E> {
        Ok(JsonNode::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonNode, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(JsonNode::Items(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<JsonNode, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = members.next_entry()? {
            all.push(member);
        }
        Ok(JsonNode::Members(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_label_is_recognized_in_any_case_and_place() {
        for document in [
            r#"{"config":{"Labels":{"k":"v"}}}"#,
            r#"{"config":{"labels":{"k":"v"}}}"#,
            r#"{"CONFIG":{"Label\u017f":{"k":"v"}}}"#,
            r#"{"config":{"Labels":{"k":"v"}},"config":{}}"#,
            r#"{"config":{"Labels":{"k":"v","k":"w"},"labels":null}}"#,
            r#"[1, -1, 1.5, true, [{"\u006b":"v"}]]"#,
        ] {
            let said = ImageWords::read(document.as_bytes()).unwrap();
            assert!(said.has("k", "v") && !said.has("k", "x"), "{document}");
        }
        assert!(ImageWords::read(br#"{"config":{"Labels":{"k":null}}}"#).unwrap().has("k", ""));
    }

    #[test]
    fn an_invalid_image_document_yields_nothing() {
        let deep = "[".repeat(5000);
        for document in [&b""[..], b"{", b"\"\xff\"", b"{} {}", br#""\ud800""#, deep.as_bytes()] {
            assert!(ImageWords::read(document).is_none());
            assert_eq!(config_digest(document), None);
        }
    }

    #[test]
    fn an_ambiguous_manifest_names_no_configuration() {
        let named = |manifest: &str| config_digest(manifest.as_bytes());
        let one = Some("sha256:a".to_owned());
        assert_eq!(named(r#"{"config":{"digest":"sha256:a"},"layers":[]}"#), one);
        assert_eq!(named(r#"{"Config":{"DIGEST":"sha256:a"}}"#), one);
        // Members that Go does not treat as `config` or `digest`.
        let others =
            "{\"con\u{fb01}g\":{},\"conf\u{131}g\":1,\"config\":{\"digest\":\"sha256:a\"}}";
        assert_eq!(named(others), one);
        for two in [
            r#"{"config":{"digest":"sha256:a"},"Config":{"digest":"sha256:b"}}"#,
            r#"{"config":{"digest":"sha256:a"},"config":{"digest":"sha256:a"}}"#,
            r#"{"config":{"digest":"sha256:a","dige\u017ft":"sha256:b"}}"#,
            r#"{"config":{"digest":7}}"#,
            r#"{"config":[]}"#,
            "{}",
        ] {
            assert_eq!(named(two), None, "{two}");
        }
    }
}
