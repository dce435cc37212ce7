// SPDX-License-Identifier: Apache-2.0
//! A JSON object stored as its text: thousands of records have such a member, and few requests read it. In a
//! map, each entry would take a hundred bytes, and would be serialized with every write of the record. The text
//! never changes in place.

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A JSON object as its text; empty for one without members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactObject(Box<str>);

impl CompactObject {
    /// Returns the object.
    pub fn map(&self) -> Map<String, Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    fn text(&self) -> &str {
        if self.0.is_empty() { "{}" } else { &self.0 }
    }
}

impl From<&Map<String, Value>> for CompactObject {
    fn from(map: &Map<String, Value>) -> Self {
        let text = if map.is_empty() { None } else { serde_json::to_string(map).ok() };
        Self(text.unwrap_or_default().into())
    }
}

impl Serialize for CompactObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: &RawValue = serde_json::from_str(self.text()).map_err(ser::Error::custom)?;
        text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CompactObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(|map| Self::from(&map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_the_same_in_memory_and_on_disk() {
        for text in ["{}", r#"{"b":{"x":[1,"\n",null]},"a":18446744073709551615}"#] {
            let compact: CompactObject = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&compact).unwrap(), text);
            assert_eq!(serde_json::to_value(&compact).unwrap(), Value::Object(compact.map()));
            assert_eq!(Value::Object(compact.map()).to_string(), text);
        }
        assert_eq!(CompactObject::default(), CompactObject::from(&Map::new()));
        assert!(serde_json::from_str::<CompactObject>("[]").is_err());
    }
}
