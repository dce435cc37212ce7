// SPDX-License-Identifier: Apache-2.0
//! Converts cgroup v1's numbers to cgroup v2's.
//!
//! Runtimes convert CPU shares to a weight by one of two formulas: an older linear one, and one
//! that maps v1's default to v2's (runc since 1.3.2, crun since 1.23). A container's weight shows
//! which one was used. Reference: release notes of runc and crun.

/// The minimum and maximum of shares.
const SHARES: (u64, u64) = (2, 262_144);

/// Returns the weight for `shares`, by the formula that gives the current weight `now` for one of
/// `before`; by the newer one if neither or both do. The second value is the other formula's
/// result.
pub(super) fn weights(shares: u64, before: &[u64], now: Option<u64>) -> (u64, u64) {
    let by = |formula: fn(u64) -> u64| before.iter().any(|shares| Some(formula(*shares)) == now);
    let (old, new) = (linear(shares), curved(shares));
    if by(linear) && !by(curved) { (old, new) } else { (new, old) }
}

fn linear(shares: u64) -> u64 {
    let shares = shares.clamp(SHARES.0, SHARES.1);
    1 + (shares - 2) * 9999 / 262_142
}

fn curved(shares: u64) -> u64 {
    if shares <= SHARES.0 {
        return 1;
    }
    if shares >= SHARES.1 {
        return 10_000;
    }
    #[expect(clippy::cast_precision_loss, reason = "shares have 18 bits")]
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and 10000 for the shares that are left"
    )]
    let weight = 10_f64.powf(exponent).ceil() as u64;
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(shares: u64, before: &[u64], now: Option<u64>) -> u64 {
        weights(shares, before, now).0
    }

    #[test]
    fn both_formulas_give_the_runtimes_results() {
        for (shares, old, new) in [
            (2, 1, 1),
            (100, 4, 17),
            (256, 10, 35),
            (512, 20, 59),
            (1024, 39, 100),
            (2048, 79, 174),
            (4096, 157, 303),
            (262_144, 10_000, 10_000),
        ] {
            assert_eq!((linear(shares), curved(shares)), (old, new), "{shares}");
        }
    }

    #[test]
    fn the_current_weight_reveals_the_runtimes_formula() {
        assert_eq!(weight(512, &[1024], Some(39)), 20);
        assert_eq!(weight(512, &[1024], Some(100)), 59);
        // A failed update tried 700 where 300 was in force: the old formula gives 12 for 300, and
        // 27 for 700.
        for now in [12, 27] {
            assert_eq!(weight(512, &[300, 700], Some(now)), 20, "{now}");
        }
        // The new formula gives 39 for 300, and the old one gives 39 for 1024.
        for (before, now) in
            [(&[][..], None), (&[2], Some(1)), (&[1024], Some(77)), (&[300, 1024], Some(39))]
        {
            assert_eq!(weight(512, before, now), 59, "{before:?} {now:?}");
        }
    }
}
