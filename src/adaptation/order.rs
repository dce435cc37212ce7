// SPDX-License-Identifier: Apache-2.0
//! The order in which plugins are asked: by index, and among equal indices by arrival.
//!
//! The reference sorts by index only and leaves ties to its sort; here ties are defined, so that
//! the same plugins always give the same container.
//! Nothing here knows what a plugin is.

/// A plugin's place in the chain; the smaller one is asked first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainPosition {
    /// The two digits of its index, compared as text.
    pub index: String,
    /// The number of its connection, counted by the caller.
    pub arrival: u64,
}

impl ChainPosition {
    /// The place of the plugin with this index that came as number `arrival`.
    pub fn new(index: impl Into<String>, arrival: u64) -> Self {
        Self { index: index.into(), arrival }
    }
}

/// Sorts plugins into the order in which they are asked; equal places keep their order.
pub fn sort<T>(plugins: &mut [T], place: impl Fn(&T) -> &ChainPosition) {
    plugins.sort_by(|one, other| place(one).cmp(place(other)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_decides_and_arrival_breaks_ties() {
        let mut plugins =
            [("d", 10, 4), ("c", 5, 9), ("b", 10, 2), ("a", 0, 7)].map(|(name, index, arrival)| {
                (name, ChainPosition::new(format!("{index:02}"), arrival))
            });
        sort(&mut plugins, |(_, place)| place);
        assert_eq!(plugins.map(|(name, _)| name), ["a", "c", "b", "d"]);
    }

    #[test]
    fn equal_places_keep_the_order_in_which_they_stood() {
        let mut plugins: Vec<(u32, ChainPosition)> =
            (0..100).map(|n| (n, ChainPosition::new("07", u64::from(n / 10)))).collect();
        let before = plugins.clone();
        sort(&mut plugins, |(_, place)| place);
        assert_eq!(plugins, before);
    }
}
