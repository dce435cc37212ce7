// SPDX-License-Identifier: Apache-2.0
//! Sizes in Kubernetes' spelling: `64Mi`, `512Ki`, `1Gi`. A bare number is refused, because its
//! unit would be a guess.

const UNITS: [(&str, u64); 3] = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

/// Reads a size in bytes; `None` when it is malformed or too large.
pub(super) fn parse(text: &str) -> Option<u64> {
    UNITS.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit).filter(|digits| !digits.starts_with('+'))?;
        digits.parse::<u64>().ok()?.checked_mul(*factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        for (text, bytes) in
            [("64Mi", 64 << 20), ("512Ki", 512 << 10), ("1Gi", 1 << 30), ("0Ki", 0)]
        {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in ["", "64", "Mi", "64MB", "-1Mi", "+1Mi", "1.5Gi", "64mi", "99999999999999999Gi"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
