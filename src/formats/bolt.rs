// SPDX-License-Identifier: Apache-2.0
//! Looks values up in the bytes of a Bolt database (format 2, go.etcd.io/bbolt): buckets within
//! buckets, each a tree of pages. Bolt writes data only to free pages, so bytes that were read during
//! a write have an earlier state, or are inconsistent because a freed page was reused. All work is
//! bounded, and an inconsistent value is treated as absent. This module never writes.

use crate::fnv::fnv64;
use crate::limits;

const MAGIC: u64 = 0xED0C_DAED;
const VERSION: u64 = 2;

const BRANCH: u64 = 1;
const LEAF: u64 = 2;

/// Bytes of a page's header.
const HEADER: usize = 16;
/// Bytes of each element that follows the header.
const ELEMENT: usize = 16;

/// A database, as of its last committed change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoltDatabase<'b> {
    bytes: &'b [u8],
    page_size: usize,
    root: usize,
}

enum Value<'b> {
    Plain(&'b [u8]),
    /// A bucket that has pages, by the number of its root page.
    Pages(usize),
    /// The only page of a small bucket, stored in its parent bucket.
    Inline(&'b [u8]),
}

/// The page at which a search begins: a page of the database, or a small bucket's only page.
#[derive(Clone, Copy)]
enum Pages<'b> {
    Page(usize),
    Inline(&'b [u8]),
}

impl<'b> BoltDatabase<'b> {
    /// Reads the newer of the valid meta pages.
    pub(crate) fn open(bytes: &'b [u8]) -> Option<Self> {
        let first = description(bytes, 0);
        // The second meta page follows the first one; its position depends on the page size, which
        // only the meta pages contain.
        let second = (9..=16).find_map(|bits| description(bytes, 1 << bits));
        let (_, page_size, root) = first.into_iter().chain(second).max_by_key(|found| found.0)?;
        Some(Self { bytes, page_size, root })
    }

    /// Returns the value at `path`: names of buckets, and a key.
    pub(crate) fn get(&self, path: &[&str]) -> Option<&'b [u8]> {
        let (key, buckets) = path.split_last()?;
        let mut left = limits::DATABASE_STEPS;
        match self.find(self.bucket(buckets, &mut left)?, key, limits::DATABASE_DEPTH, &mut left)? {
            Value::Plain(bytes) => Some(bytes),
            Value::Pages(_) | Value::Inline(_) => None,
        }
    }

    /// Returns the keys of the bucket at `path`, except those that are inconsistent or beyond the limit.
    pub(crate) fn keys(&self, path: &[&str]) -> Vec<&'b [u8]> {
        let mut left = limits::DATABASE_STEPS;
        let mut all = Vec::new();
        if let Some(place) = self.bucket(path, &mut left) {
            self.each(place, limits::DATABASE_DEPTH, &mut left, &mut |key, _| {
                all.push(key);
                None::<()>
            });
        }
        all
    }

    fn bucket(&self, path: &[&str], left: &mut usize) -> Option<Pages<'b>> {
        let mut place = Pages::Page(self.root);
        for name in path {
            place = match self.find(place, name, limits::DATABASE_DEPTH, left)? {
                Value::Pages(page) => Pages::Page(page),
                Value::Inline(bytes) => Pages::Inline(bytes),
                Value::Plain(_) => return None,
            };
        }
        Some(place)
    }

    fn find(
        &self,
        place: Pages<'b>,
        wanted: &str,
        depth: usize,
        left: &mut usize,
    ) -> Option<Value<'b>> {
        let is_it = &mut |key: &[u8], value| (key == wanted.as_bytes()).then_some(value);
        self.each(place, depth, left, is_it)
    }

    /// Visits each key with its value, until `found` returns something.
    fn each<T>(
        &self,
        place: Pages<'b>,
        depth: usize,
        left: &mut usize,
        found: &mut dyn FnMut(&'b [u8], Value<'b>) -> Option<T>,
    ) -> Option<T> {
        *left = left.checked_sub(1)?;
        let page = match place {
            Pages::Inline(page) => page,
            Pages::Page(number) => self.bytes.get(number.checked_mul(self.page_size)?..)?,
        };
        let kind = number(page, 8, 2)?;
        for at in 0..usize::try_from(number(page, 10, 2)?).ok()? {
            *left = left.checked_sub(1)?;
            let element = HEADER + at * ELEMENT;
            let word = |offset| usize::try_from(number(page, element + offset, 4)?).ok();
            let came = if kind & BRANCH != 0 {
                let child = usize::try_from(number(page, element + 8, 8)?).ok()?;
                self.each(Pages::Page(child), depth.checked_sub(1)?, left, found)
            } else if kind & LEAF != 0 {
                let from = element.checked_add(word(4)?)?;
                let middle = from.checked_add(word(8)?)?;
                let key = page.get(from..middle)?;
                let value = page.get(middle..middle.checked_add(word(12)?)?)?;
                found(key, if word(0)? & 1 == 0 { Value::Plain(value) } else { bucket(value)? })
            } else {
                return None;
            };
            if came.is_some() {
                return came;
            }
        }
        None
    }
}

/// Parses a bucket: the number of its root page and a sequence number; if the former is 0, the
/// bucket's only page follows.
fn bucket(value: &[u8]) -> Option<Value<'_>> {
    match usize::try_from(number(value, 0, 8)?).ok()? {
        0 => Some(Value::Inline(value.get(16..)?)),
        page => Some(Value::Pages(page)),
    }
}

/// Reads a meta page at `at`: its transaction ID, page size and root page; `None` if it is invalid.
fn description(bytes: &[u8], at: usize) -> Option<(u64, usize, usize)> {
    let meta = bytes.get(at.checked_add(HEADER)?..)?.get(..64)?;
    let (said, sum) = (meta.get(..56)?, number(meta, 56, 8)?);
    let page_size = usize::try_from(number(meta, 8, 4)?).ok()?;
    let is_one = number(meta, 0, 4)? == MAGIC && number(meta, 4, 4)? == VERSION;
    let is_sound = page_size >= 512 && page_size.is_power_of_two() && (at == 0 || at == page_size);
    let root = usize::try_from(number(meta, 16, 8)?).ok()?;
    (is_one && is_sound && fnv64(said.iter().copied()) == sum).then_some((
        number(meta, 48, 8)?,
        page_size,
        root,
    ))
}

/// Decodes a little-endian number.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let digits = bytes.get(at..at.checked_add(length)?)?;
    Some(digits.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A database of bbolt 1.3.6 with pages of 1024 bytes: its buckets are trees, and values span
    /// pages.
    const DATABASE: &[u8] = include_bytes!("../../fixtures/engines/bolt_state.db");
    const PAGE: usize = 1024;

    #[test]
    fn values_are_found_on_any_page_through_buckets() {
        let database = BoltDatabase::open(DATABASE).unwrap();
        let ids = database.keys(&["ctr"]);
        assert_eq!(ids.len(), 39, "one of forty was deleted");
        for id in ids {
            let id = std::str::from_utf8(id).unwrap();
            let json = database.get(&["ctr", id, "config"]).unwrap();
            let json: serde_json::Value = serde_json::from_slice(json).unwrap();
            assert_eq!(json["id"], id);
        }
    }

    /// In the forged tree, all children of a branch are the same leaf, both with the maximum number
    /// of entries.
    #[test]
    fn a_forged_tree_that_repeats_a_page_is_given_up_early() {
        let page = |kind: u16, element: [u8; ELEMENT]| {
            let mut page = vec![0; HEADER];
            page[8..10].copy_from_slice(&kind.to_le_bytes());
            page[10..12].copy_from_slice(&u16::MAX.to_le_bytes());
            page.extend(element.repeat(usize::from(u16::MAX)));
            page
        };
        let mut to_the_leaf = [0; ELEMENT];
        to_the_leaf[8] = 1;
        let mut bytes = page(u16::try_from(BRANCH).unwrap(), to_the_leaf);
        let page_size = bytes.len();
        bytes.extend(page(u16::try_from(LEAF).unwrap(), [0; ELEMENT]));
        let forged = BoltDatabase { bytes: &bytes, page_size, root: 0 };
        assert_eq!(forged.get(&["nowhere"]), None);
        assert!(forged.keys(&[]).len() < limits::DATABASE_STEPS);
    }

    #[test]
    fn a_missing_entry_is_none() {
        let database = BoltDatabase::open(DATABASE).unwrap();
        assert_eq!(database.get(&["ctr", "other03", "config"]), None, "it was deleted");
        assert!(
            DATABASE.windows(13).any(|bytes| bytes == b"\"id\":\"other03"),
            "it is there still"
        );
        assert_eq!(database.get(&["nothing", "config"]), None);
        assert_eq!(database.get(&["ctr"]), None, "a bucket is no value");
        assert_eq!(database.get(&[]), None);
        assert!(database.keys(&["ctr", "nobody"]).is_empty());
    }

    #[test]
    fn the_newer_valid_meta_page_is_used() {
        let mut bytes = DATABASE.to_vec();
        let newest = [0, PAGE].into_iter().max_by_key(|at| description(DATABASE, *at)).unwrap();
        bytes[newest + HEADER + 50] ^= 1;
        let older = BoltDatabase::open(&bytes).unwrap();
        assert_ne!(older.root, BoltDatabase::open(DATABASE).unwrap().root);
        bytes[PAGE - newest + HEADER] ^= 1;
        assert!(BoltDatabase::open(&bytes).is_none());
    }

    #[test]
    fn bytes_that_are_not_a_database_are_refused() {
        assert!(BoltDatabase::open(b"").is_none() && BoltDatabase::open(&[0; 9000]).is_none());
        assert!(BoltDatabase::open(b"SQLite format 3\0").is_none());
    }

    proptest! {
        #[test]
        fn torn_and_forged_bytes_never_panic_or_hang(
            edits in proptest::collection::vec((2 * PAGE..DATABASE.len(), any::<u8>()), 0..200),
            length in 2 * PAGE..DATABASE.len(),
        ) {
            let mut bytes = DATABASE.to_vec();
            for (at, value) in edits {
                bytes[at] = value;
            }
            for bytes in [&bytes[..], &bytes[..length]] {
                if let Some(database) = BoltDatabase::open(bytes) {
                    for id in database.keys(&["ctr"]) {
                        let id = String::from_utf8_lossy(id);
                        let _torn_or_not = database.get(&["ctr", &id, "config"]);
                    }
                }
            }
        }
    }
}
