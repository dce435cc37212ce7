// SPDX-License-Identifier: Apache-2.0
//! Checks whether a JSON document fits a JSON schema, with only the keywords that `docs/schema`
//! uses: an unknown keyword is an error, so that only `format` and texts are ignored. It is
//! stricter than the standard in one way: an object that lists its `properties` has no other
//! members, so a new member of an output needs its line in the schema.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A schema of `docs/schema`.
pub struct Schema(Value);

impl Schema {
    /// The schema of a file in `docs/schema`, without `.json`.
    pub fn of(name: &str) -> Self {
        let path = crate::program::project().join(format!("docs/schema/{name}.json"));
        Self(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
    }

    pub fn new(schema: Value) -> Self {
        Self(schema)
    }

    /// Checks the document; the error is the first place that does not fit, and the reason.
    pub fn check(&self, document: &Value) -> Result<(), String> {
        self.check_at(&self.0, document, "$")
    }

    fn check_at(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        if schema == &Value::Bool(true) {
            return Ok(());
        }
        let rules = schema.as_object().ok_or_else(|| format!("{at}: the schema is no object"))?;
        for (keyword, rule) in rules {
            match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" | "format" => {}
                "$ref" => self.check_at(self.referenced(rule)?, value, at)?,
                "type" if !has_type(rule, value) => {
                    return Err(format!("{at}: {value} is not of type {rule}"));
                }
                "const" if rule != value => return Err(format!("{at}: {value} is not {rule}")),
                "enum" if !list(rule)?.contains(value) => {
                    return Err(format!("{at}: {value} is none of {rule}"));
                }
                "type" | "const" | "enum" => {}
                "minimum" | "minItems" | "maxItems" => {
                    if is_beyond(keyword, rule, value) {
                        return Err(format!("{at}: {value} is beyond the {keyword} {rule}"));
                    }
                }
                "anyOf" => self.check_any(list(rule)?, value, at)?,
                "oneOf" => self.check_one(list(rule)?, value, at)?,
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check_at(rule, item, &format!("{at}[{index}]"))?;
                    }
                }
                "required" => {
                    let Some(members) = value.as_object() else { continue };
                    for name in list(rule)?.iter().filter_map(Value::as_str) {
                        members.get(name).ok_or_else(|| format!("{at}: {name} is missing"))?;
                    }
                }
                "properties" | "additionalProperties" => {
                    let Some(members) = value.as_object() else { continue };
                    self.check_members(rules, members, at)?;
                }
                other => return Err(format!("{at}: the keyword {other} is not known")),
            }
        }
        Ok(())
    }

    fn check_any(&self, forms: &[Value], value: &Value, at: &str) -> Result<(), String> {
        let mut why = Vec::new();
        for form in forms {
            match self.check_at(form, value, at) {
                Ok(()) => return Ok(()),
                Err(error) => why.push(error),
            }
        }
        Err(format!("none of {} forms fits: {}", forms.len(), why.join("; ")))
    }

    fn check_one(&self, forms: &[Value], value: &Value, at: &str) -> Result<(), String> {
        self.check_any(forms, value, at)?;
        let fitting = forms.iter().filter(|form| self.check_at(form, value, at).is_ok());
        match fitting.count() {
            1 => Ok(()),
            fitting => Err(format!("{at}: {fitting} forms fit {value}")),
        }
    }

    fn check_members(
        &self,
        rules: &Map<String, Value>,
        members: &Map<String, Value>,
        at: &str,
    ) -> Result<(), String> {
        for (name, member) in members {
            let listed = rules.get("properties").and_then(|properties| properties.get(name));
            let rule = listed.or_else(|| rules.get("additionalProperties"));
            let rule = rule.ok_or_else(|| format!("{at}: {name} is not in the schema"))?;
            self.check_at(rule, member, &format!("{at}.{name}"))?;
        }
        Ok(())
    }

    fn referenced(&self, to: &Value) -> Result<&Value, String> {
        let path = to.as_str().and_then(|to| to.strip_prefix('#')).unwrap_or_default();
        self.0.pointer(path).filter(|_| !path.is_empty()).ok_or_else(|| format!("no {to}"))
    }
}

/// Whether a number or the length of a list is below its minimum, or above its maximum.
fn is_beyond(keyword: &str, rule: &Value, value: &Value) -> bool {
    let length = || value.as_array().map(|items| items.len() as f64);
    let size = if keyword == "minimum" { value.as_f64() } else { length() };
    let limit = rule.as_f64().unwrap_or_default();
    size.is_some_and(|size| if keyword == "maxItems" { size > limit } else { size < limit })
}

fn list(rule: &Value) -> Result<&Vec<Value>, String> {
    rule.as_array().ok_or_else(|| format!("{rule} is no list"))
}

fn has_type(rule: &Value, value: &Value) -> bool {
    let own = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_it = |name: &Value| name == own || name == "number" && own == "integer";
    rule.as_array().map_or_else(|| is_it(rule), |names| names.iter().any(is_it))
}

/// Each document that differs from `document` in one place (a value of another type, or a missing
/// or additional member), with the place, such as `$.a[].b` for all items of a list.
pub fn wrong_forms(document: &Value) -> Vec<(String, Value)> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    damage(document, "$", &mut seen, &mut |place, form| wrong.push((place, form)));
    wrong
}

/// Damages `value` in one place at a time; `whole` receives the place and the damaged value.
fn damage(
    value: &Value,
    at: &str,
    seen: &mut BTreeSet<String>,
    whole: &mut dyn FnMut(String, Value),
) {
    let other = if value.is_array() { Value::from("wrong") } else { Value::from(vec!["wrong"]) };
    if seen.insert(at.to_owned()) {
        whole(at.to_owned(), other);
    }
    match value {
        Value::Object(members) => {
            if seen.insert(format!("{at}+")) {
                let mut more = members.clone();
                more.insert("unknown-member".to_owned(), Value::Null);
                whole(format!("{at}+"), more.into());
            }
            for (name, member) in members {
                let place = format!("{at}.{name}");
                if seen.insert(format!("{place}-")) {
                    let mut fewer = members.clone();
                    fewer.remove(name);
                    whole(format!("{place}-"), fewer.into());
                }
                damage(member, &place, seen, &mut |place, form| {
                    let mut with = members.clone();
                    with.insert(name.clone(), form);
                    whole(place, with.into());
                });
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                damage(item, &format!("{at}[]"), seen, &mut |place, form| {
                    let mut with = items.clone();
                    with[index] = form;
                    whole(place, with.into());
                });
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
