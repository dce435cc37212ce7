// SPDX-License-Identifier: Apache-2.0
//! The FNV-1a hash, in 64 and 128 bits. Both are stored on disk (records, notes, Bolt databases),
//! so they never change. They detect accidents, not attacks.

/// Returns the 64-bit hash.
pub(crate) fn fnv64(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Returns the 128-bit hash.
pub(crate) fn fnv128(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test values of the reference (draft-eastlake-fnv).
    #[test]
    fn hashes_match_the_reference_values() {
        assert_eq!(fnv64([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv64(*b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv128(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
