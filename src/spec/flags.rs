// SPDX-License-Identifier: Apache-2.0
//! Converts the resource flags of `update` to an OCI `LinuxResources` object.
//!
//! Only operators use these flags; engines send a document. The flags are converted to a document
//! too, because plugins' values must be added. Values are read as runc reads them, and never
//! corrected. The specification's resources have no RDT members, so the RDT flags stay flags.
//! Reference: runc `update.go`; docker go-units `RAMInBytes`.

use serde_json::Value;

use super::Block;
use crate::error::{Error, Result, quoted};

enum FlagValue {
    Signed,
    Unsigned,
    Bytes,
    Text,
    /// The flag is not converted.
    StaysFlag,
}

/// Flag, section and member of `LinuxResources`, and kind of value.
const FLAGS: [(&str, &str, &str, FlagValue); 18] = [
    ("blkio-weight", "blockIO", "weight", FlagValue::Unsigned),
    ("cpu-period", "cpu", "period", FlagValue::Unsigned),
    ("cpu-quota", "cpu", "quota", FlagValue::Signed),
    ("cpu-burst", "cpu", "burst", FlagValue::Unsigned),
    ("cpu-share", "cpu", "shares", FlagValue::Unsigned),
    ("cpu-rt-period", "cpu", "realtimePeriod", FlagValue::Unsigned),
    ("cpu-rt-runtime", "cpu", "realtimeRuntime", FlagValue::Signed),
    ("cpu-idle", "cpu", "idle", FlagValue::Signed),
    ("cpuset-cpus", "cpu", "cpus", FlagValue::Text),
    ("cpuset-mems", "cpu", "mems", FlagValue::Text),
    ("kernel-memory", "memory", "kernel", FlagValue::Bytes),
    ("kernel-memory-tcp", "memory", "kernelTCP", FlagValue::Bytes),
    ("memory", "memory", "limit", FlagValue::Bytes),
    ("memory-reservation", "memory", "reservation", FlagValue::Bytes),
    ("memory-swap", "memory", "swap", FlagValue::Bytes),
    ("pids-limit", "pids", "limit", FlagValue::Signed),
    ("l3-cache-schema", "", "", FlagValue::StaysFlag),
    ("mem-bw-schema", "", "", FlagValue::StaysFlag),
];

/// Converts `(flag, value)` pairs, without their dashes, to `LinuxResources`. The last of several
/// equal flags applies; if its value is empty, none does, as in runc.
pub(crate) fn resources_from_flags(flags: &[(&str, &str)]) -> Result<Block> {
    let mut resources = Block::new();
    for (flag, value) in flags {
        let Some((_, section, member, kind)) = FLAGS.iter().find(|(name, ..)| name == flag) else {
            return Err(Error::new(format!("update: --{} is not a resource flag", quoted(flag))));
        };
        if value.is_empty() {
            if let Some(Value::Object(section)) = resources.get_mut(*section) {
                section.remove(*member);
            }
            continue;
        }
        let number = match kind {
            FlagValue::Signed => value.parse::<i64>().ok().map(Value::from),
            FlagValue::Unsigned => value.parse::<u64>().ok().map(Value::from),
            FlagValue::Bytes => bytes(value).map(Value::from),
            FlagValue::Text => Some(Value::from(*value)),
            FlagValue::StaysFlag => continue,
        };
        let number = number.ok_or_else(|| {
            Error::new(format!("update: --{flag} cannot be \"{}\"", quoted(value)))
        })?;
        let section = resources.entry(*section).or_insert_with(|| Value::Object(Block::new()));
        if let Value::Object(section) = section {
            section.insert((*member).to_owned(), number);
        }
    }
    resources.retain(|_, section| section.as_object().is_some_and(|members| !members.is_empty()));
    Ok(resources)
}

/// Parses `512m`, `1.5 GiB`, `100`, `-1`: units are powers of 1024 in any spelling.
fn bytes(text: &str) -> Option<i64> {
    if text == "-1" {
        return Some(-1);
    }
    let digits_end = text.rfind(|c: char| c.is_ascii_digit() || c == '.' || c == ' ')? + 1;
    let (number, unit) = text.split_at(digits_end);
    let number: f64 = number.strip_suffix(' ').unwrap_or(number).parse().ok()?;
    let unit = unit.to_ascii_lowercase();
    let (prefix, rest) = match unit.chars().next() {
        None => return whole(number),
        Some('b') => (0, unit.get(1..)?),
        Some(prefix) => ("kmgtp".find(prefix)? + 1, unit.get(1..)?),
    };
    let is_known = rest.is_empty() || (prefix > 0 && (rest == "b" || rest == "ib"));
    let power = i32::try_from(prefix).ok()?;
    is_known.then(|| whole(number * 1024_f64.powi(power))).flatten()
}

/// Returns the integer part, unless it is negative or does not fit 64 bits.
fn whole(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked right here")]
    (0.0..9_223_372_036_854_775_807.0).contains(&number).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_become_the_document_that_an_engine_would_send() {
        let resources = resources_from_flags(&[
            ("memory", "512m"),
            ("memory-swap", "-1"),
            ("cpu-share", "7"),
            ("cpu-share", "512"),
            ("cpu-quota", "-1"),
            ("cpuset-cpus", "0-3,5"),
            ("cpuset-mems", ""),
            ("cpu-burst", "5"),
            ("cpu-burst", ""),
            ("kernel-memory", "1"),
            ("kernel-memory", ""),
            ("pids-limit", "-1"),
            ("blkio-weight", "100"),
            ("l3-cache-schema", "L3:0=ff"),
        ]);
        let wanted = json!({
            "memory": {"limit": 536_870_912, "swap": -1},
            "cpu": {"shares": 512, "quota": -1, "cpus": "0-3,5"},
            "pids": {"limit": -1},
            "blockIO": {"weight": 100},
        });
        assert_eq!(Value::Object(resources.unwrap()), wanted);
    }

    #[test]
    fn sizes_are_read_as_runc_reads_them() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("100", Some(100)),
            ("100b", Some(100)),
            ("1k", Some(1024)),
            ("1KB", Some(1024)),
            ("1KiB", Some(1024)),
            ("1.5g", Some(1_610_612_736)),
            ("2 MB", Some(2_097_152)),
            ("1t", Some(1 << 40)),
            ("1p", Some(1 << 50)),
            ("-1", Some(-1)),
            ("-2", None),
            ("", None),
            ("m", None),
            ("1x", None),
            ("1bb", None),
            ("1kx", None),
            ("1kibi", None),
            ("9999999999g", None),
            ("1 é", None),
        ] {
            assert_eq!(bytes(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn an_invalid_value_or_flag_is_named() {
        for (flag, value) in [
            ("cpu-period", "-1"),
            ("cpu-share", "many"),
            ("memory", "512x"),
            ("pids-limit", "1.5"),
            ("no-such-flag", "1"),
        ] {
            let error = resources_from_flags(&[(flag, value)]).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }
}
