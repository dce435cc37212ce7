// SPDX-License-Identifier: Apache-2.0
//! Resolves block I/O classes, which a YAML file defines; engines read the same file through goresctrl.
//!
//! Only the requested class is read, and devices are looked up each time, because they may change.
//! A device pattern without a match limits nothing and is reported in a note, as other readers of
//! the file do, so that one file works on different machines. Reference: goresctrl
//! `doc/blockio.md`; OCI `config-linux.md`, block IO.

use std::path::{Path, PathBuf};

use oci_document as gojson;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

use super::glob;
use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;
use crate::spec::patch::Class;

/// The range of weights in the OCI specification.
const WEIGHTS: std::ops::RangeInclusive<u64> = 10..=1000;

/// The keys of a class for limits of one device, and their names in the OCI specification.
const LIMITS: [(&str, &str); 4] = [
    ("ThrottleReadBps", "throttleReadBpsDevice"),
    ("ThrottleWriteBps", "throttleWriteBpsDevice"),
    ("ThrottleReadIOPS", "throttleReadIOPSDevice"),
    ("ThrottleWriteIOPS", "throttleWriteIOPSDevice"),
];

/// Resolves the class to a value of `linux.resources.blockIO`; the empty class removes the engine's value.
pub(super) fn class(
    name: &str,
    file: Option<&Path>,
    host: &Host,
    notes: &mut Vec<String>,
) -> Result<Class, String> {
    if name.is_empty() {
        return Ok(Class::Cleared);
    }
    let shown = quoted(name);
    let Some(file) = file else {
        return Err(format!("class \"{shown}\" is unknown: [blockio] config_file is not set"));
    };
    let place = file.display();
    let text = files::read_text(&host.path(file), limits::SETTINGS_FILE)
        .map_err(|error| format!("class \"{shown}\": {place}: {}", in_our_words(&error)))?;
    let documents = Yaml::load_from_str(&text)
        .map_err(|error| format!("class \"{shown}\": {place} is not YAML: {error}"))?;
    let classes = documents
        .first()
        .and_then(|top| member(top, "Classes"))
        .and_then(Yaml::as_mapping)
        .ok_or_else(|| format!("class \"{shown}\": {place} has no Classes"))?;
    let found = classes.iter().find(|(key, _)| key.as_str() == Some(name));
    let Some((_, items)) = found else {
        return Err(format!("there is no class \"{shown}\" in {place}"));
    };
    let mut block_io = BlockIoSection::default();
    let items =
        if items.is_null() { Some(&[][..]) } else { items.as_sequence().map(Vec::as_slice) };
    items
        .ok_or_else(|| "it is not a list".to_owned())
        .and_then(|items| items.iter().try_for_each(|item| block_io.add(item, host, notes)))
        .map_err(|problem| format!("class \"{shown}\" in {place}: {problem}"))?;
    Ok(Class::Set(Value::Object(block_io.0)))
}

/// Finds a member. Keys are case-insensitive, as for other readers of the file, which convert it to
/// JSON.
pub(super) fn member<'y>(mapping: &'y Yaml<'y>, name: &str) -> Option<&'y Yaml<'y>> {
    let mapping = mapping.as_mapping()?;
    let is_it = |key: &Yaml<'_>| key.as_str().is_some_and(|key| gojson::is_field(key, name));
    mapping.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
}

/// `linux.resources.blockIO` under construction.
#[derive(Debug, Default)]
struct BlockIoSection(Map<String, Value>);

impl BlockIoSection {
    /// Adds one item of a class; a later item overrides an earlier one for the same device.
    fn add(&mut self, item: &Yaml<'_>, host: &Host, notes: &mut Vec<String>) -> Result<(), String> {
        let keys = item.as_mapping().ok_or("an item is not a mapping")?;
        for key in keys.keys() {
            let key = key.as_str().unwrap_or_default();
            let known = ["Weight", "Devices"].into_iter().chain(LIMITS.iter().map(|(key, _)| *key));
            if !known.into_iter().any(|known| gojson::is_field(key, known)) {
                return Err(format!("\"{}\" is not a setting of a class", quoted(key)));
            }
        }
        let weight = number(item, "Weight")?;
        if let Some(weight) = weight.filter(|weight| !WEIGHTS.contains(weight)) {
            return Err(format!("the weight {weight} is outside 10 to 1000"));
        }
        let mut limits = Vec::new();
        for (key, member) in LIMITS {
            limits.extend(number(item, key)?.map(|rate| (key, member, rate)));
        }
        let Some(patterns) = member(item, "Devices").filter(|devices| !devices.is_null()) else {
            if let Some((key, _, _)) = limits.first() {
                return Err(format!("{key} is set without Devices"));
            }
            if let Some(weight) = weight {
                self.0.insert("weight".to_owned(), Value::from(weight));
            }
            return Ok(());
        };
        for (major, minor) in devices(patterns, host, notes)? {
            if let Some(weight) = weight {
                self.put("weightDevice", (major, minor), "weight", weight);
            }
            for (_, member, rate) in &limits {
                self.put(member, (major, minor), "rate", *rate);
            }
        }
        Ok(())
    }

    fn put(&mut self, member: &str, (major, minor): (u64, u64), key: &str, value: u64) {
        let list = self.0.entry(member).or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(list) = list else { return };
        list.retain(|there| there["major"] != major || there["minor"] != minor);
        list.push(json!({ "major": major, "minor": minor, key: value }));
    }
}

/// Returns major and minor numbers of the disks that match the patterns.
fn devices(
    patterns: &Yaml<'_>,
    host: &Host,
    notes: &mut Vec<String>,
) -> Result<Vec<(u64, u64)>, String> {
    let patterns = patterns.as_sequence().ok_or("Devices is not a list")?;
    let mut found = Vec::new();
    for pattern in patterns {
        let pattern = pattern.as_str().filter(|pattern| pattern.starts_with("/dev/"));
        let pattern = pattern.ok_or("an entry of Devices is not a path in /dev")?;
        let matching = glob::expand(pattern, host);
        if matching.is_empty() {
            notes.push(format!("block I/O: no device matches {}", quoted(pattern)));
        }
        for path in matching {
            match disk(&path, host) {
                Some(numbers) if found.contains(&numbers) => {}
                Some(numbers) => found.push(numbers),
                None => notes.push(format!(
                    "block I/O: {} is not a disk and was left out",
                    quoted(&path.to_string_lossy())
                )),
            }
        }
    }
    Ok(found)
}

/// Returns the numbers of a whole disk: the kernel does not limit partitions, and `/sys/block` does not list them.
fn disk(path: &Path, host: &Host) -> Option<(u64, u64)> {
    let real = std::fs::canonicalize(host.path(path)).or_absent()?;
    let dev = std::fs::canonicalize(host.path("/dev")).or_absent()?;
    // sysfs has `!` where the device's name has `/`.
    let name = real.strip_prefix(dev).ok()?.to_str()?.replace('/', "!");
    let numbers: PathBuf = ["/sys/block", &name, "dev"].iter().collect();
    let numbers = files::read_kernel(&host.path(numbers)).or_absent()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn number(item: &Yaml<'_>, key: &str) -> Result<Option<u64>, String> {
    let Some(value) = member(item, key) else { return Ok(None) };
    let text = match value {
        Yaml::Value(Scalar::Null) => return Ok(None),
        Yaml::Value(Scalar::Integer(number)) => number.to_string(),
        Yaml::Value(Scalar::FloatingPoint(number)) => number.to_string(),
        Yaml::Value(Scalar::String(text)) if text.is_empty() => return Ok(None),
        Yaml::Value(Scalar::String(text)) => text.to_string(),
        Yaml::Value(_)
        | Yaml::Representation(..)
        | Yaml::Sequence(_)
        | Yaml::Mapping(_)
        | Yaml::Tagged(..)
        | Yaml::Alias(_)
        | Yaml::BadValue => return Err(format!("{key} is not a number")),
    };
    quantity(&text).map(Some).ok_or_else(|| {
        format!("{key}: \"{}\" is not a quantity such as 60M, or is too large", quoted(&text))
    })
}

/// Parses a number in Kubernetes' quantity format: `60M`, `1.5Gi`, `2e3`. Fractions are rounded up.
fn quantity(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (binary, power): (u32, i32) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let power = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(1 << binary)?;
    let ten = 10u128.checked_pow(power.unsigned_abs())?;
    let value = if power < 0 { scaled.div_ceil(ten) } else { scaled.checked_mul(ten)? };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, value) in [
            ("80", 80),
            ("60M", 60_000_000),
            ("10k", 10_000),
            ("1.5Gi", 1_610_612_736),
            ("2e3", 2000),
            ("1500m", 2),
            ("+5", 5),
            ("0", 0),
        ] {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_quantity_is_refused() {
        for text in ["", "M", "-1", "1.2.3", "10 M", "5KB", "99999999999E", "e3", "."] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }
}
