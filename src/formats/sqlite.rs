// SPDX-License-Identifier: Apache-2.0
//! Looks a row up in the bytes of a SQLite database (format 3, sqlite.org/fileformat2.html): walks
//! a table's pages and finds one row by the text of its first column. It supports no indexes or
//! write-ahead logs, and only UTF-8. The bytes may be inconsistent or forged, so all work is
//! bounded, and an inconsistent row is treated as absent.

use crate::limits;

/// A database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SqliteDatabase<'b> {
    bytes: &'b [u8],
    page_size: usize,
    /// Bytes of a page that rows can use.
    usable: usize,
}

impl<'b> SqliteDatabase<'b> {
    /// Reads the header; `None` if the database is not supported or may have a write-ahead log.
    pub(crate) fn open(bytes: &'b [u8]) -> Option<Self> {
        let header = bytes.get(..100)?;
        let page_size = match number(&header[16..18]) {
            1 => 65536,
            size => usize::try_from(size).ok()?,
        };
        let has_no_log = header[18] == 1 && header[19] == 1;
        let is_utf8 = number(&header[56..60]) == 1;
        let usable = page_size.checked_sub(usize::from(header[20]))?;
        let fits = page_size >= 512 && page_size.is_power_of_two() && usable >= 480;
        (header.starts_with(b"SQLite format 3\0") && has_no_log && is_utf8 && fits)
            .then_some(Self { bytes, page_size, usable })
    }

    /// Returns the column `wanted` of the row of `table` whose first column is the text `key`.
    pub(crate) fn find(&self, table: &str, key: &str, wanted: usize) -> Option<Vec<u8>> {
        self.search(self.root_of(table)?, &mut |row: &Row| {
            (row.column(0)? == key.as_bytes()).then(|| row.column(wanted).map(<[u8]>::to_vec))?
        })
    }

    /// Returns the first column of every row of `table`.
    pub(crate) fn keys(&self, table: &str) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        if let Some(root) = self.root_of(table) {
            self.search(root, &mut |row: &Row| {
                keys.extend(row.column(0).map(<[u8]>::to_vec));
                None::<()>
            });
        }
        keys
    }

    fn root_of(&self, table: &str) -> Option<usize> {
        // The first page is the root of the schema, whose columns are kind, name, table, root page,
        // text.
        let root = self.search(1, &mut |row: &Row| {
            let is_table = row.column(0) == Some(b"table") && row.column(1)? == table.as_bytes();
            is_table.then(|| row.column(3).map(number))?
        })?;
        usize::try_from(root).ok()
    }

    fn search<T>(&self, root: usize, found: &mut dyn FnMut(&Row) -> Option<T>) -> Option<T> {
        let mut left = limits::DATABASE_STEPS;
        self.search_below(root, limits::DATABASE_DEPTH, &mut left, found)
    }

    fn search_below<T>(
        &self,
        page: usize,
        depth: usize,
        left: &mut usize,
        found: &mut dyn FnMut(&Row) -> Option<T>,
    ) -> Option<T> {
        *left = left.checked_sub(1)?;
        let bytes = self.page(page)?;
        // The first page begins with the file's header.
        let head = bytes.get(if page == 1 { 100 } else { 0 }..)?;
        let is_leaf = match head.first()? {
            13 => true,
            5 => false,
            _ => return None,
        };
        let cells = usize::try_from(number(head.get(3..5)?)).ok()?;
        let pointers = head.get(if is_leaf { 8 } else { 12 }..)?;
        for pointer in pointers.chunks_exact(2).take(cells) {
            let cell = bytes.get(usize::try_from(number(pointer)).ok()?..)?;
            let came = if is_leaf {
                self.row(cell, left).and_then(|row| found(&row))
            } else {
                let child = usize::try_from(number(cell.get(..4)?)).ok()?;
                self.search_below(child, depth.checked_sub(1)?, left, found)
            };
            if came.is_some() {
                return came;
            }
        }
        if is_leaf {
            return None;
        }
        let last = usize::try_from(number(head.get(8..12)?)).ok()?;
        self.search_below(last, depth.checked_sub(1)?, left, found)
    }

    fn page(&self, number: usize) -> Option<&'b [u8]> {
        let from = number.checked_sub(1)?.checked_mul(self.page_size)?;
        self.bytes.get(from..)?.get(..self.page_size)
    }

    /// Reads a cell of a leaf: length, row number, and the row, part of which may be on overflow
    /// pages.
    fn row(&self, mut cell: &[u8], left: &mut usize) -> Option<Row> {
        let length = usize::try_from(varint(&mut cell)?).ok()?;
        let _row_number = varint(&mut cell)?;
        *left = left.saturating_sub(1 + length / 512);
        if *left == 0 || length > self.bytes.len() {
            return None;
        }
        let most = self.usable - 35;
        if length <= most {
            return Row::parse(cell.get(..length)?.to_vec());
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let part = least + (length - least) % (self.usable - 4);
        let here = if part <= most { part } else { least };
        let mut whole = cell.get(..here)?.to_vec();
        let mut next = number(cell.get(here..)?.get(..4)?);
        while whole.len() < length {
            let page = self.page(usize::try_from(next).ok()?)?;
            let more = (length - whole.len()).min(self.usable - 4);
            whole.extend_from_slice(page.get(4..)?.get(..more)?);
            next = number(page.get(..4)?);
        }
        Row::parse(whole)
    }
}

/// A row, and the position of each of its columns.
struct Row {
    bytes: Vec<u8>,
    columns: Vec<(usize, usize)>,
}

impl Row {
    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let header = usize::try_from(varint(&mut rest)?).ok()?;
        let mut kinds = bytes.get(bytes.len() - rest.len()..header)?;
        let (mut at, mut columns) = (header, Vec::new());
        while !kinds.is_empty() {
            let length = match varint(&mut kinds)? {
                kind @ 0..=4 => kind,
                5 => 6,
                6 | 7 => 8,
                8 | 9 => 0,
                10 | 11 => return None,
                kind => (kind - 12) / 2,
            };
            let end = at.checked_add(usize::try_from(length).ok()?)?;
            bytes.get(at..end)?;
            columns.push((at, end));
            at = end;
        }
        Some(Self { bytes, columns })
    }

    fn column(&self, number: usize) -> Option<&[u8]> {
        let (from, to) = *self.columns.get(number)?;
        self.bytes.get(from..to)
    }
}

/// Decodes a big-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Decodes a big-endian number with seven bits in each byte; a ninth byte has eight.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if at == 8 {
            return Some(value << 8 | u64::from(*byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Created by SQLite 3.40 with pages of 512 bytes: it has rows on many pages, and rows that
    /// span pages.
    const DATABASE: &[u8] = include_bytes!(
        "../../fixtures/engines/podman-5-database/host/var/lib/containers/storage/db.sql"
    );

    #[test]
    fn a_row_is_found_on_any_page_by_its_first_column() {
        let database = SqliteDatabase::open(DATABASE).unwrap();
        for at in 0..60 {
            let id = format!("other{at:02}");
            let json = database.find("ContainerConfig", &id, 3).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            assert_eq!(json["id"], id);
        }
        assert_eq!(database.find("ContainerConfig", "other07", 1).unwrap(), b"name07");
        assert!(database.find("ContainerConfig", "b0b1", 3).unwrap().len() > 4 * 512);
    }

    #[test]
    fn a_missing_entry_is_none() {
        let database = SqliteDatabase::open(DATABASE).unwrap();
        assert_eq!(database.find("ContainerConfig", "nobody", 3), None);
        assert_eq!(database.find("Nothing", "b0b1", 3), None);
        assert_eq!(database.find("ContainerConfig", "b0b1", 9), None);
    }

    #[test]
    fn a_database_with_a_write_ahead_log_or_other_format_is_skipped() {
        let changed = |at: usize, value: u8| {
            let mut bytes = DATABASE.to_vec();
            bytes[at] = value;
            SqliteDatabase::open(&bytes).is_none()
        };
        assert!(changed(0, b's') && changed(19, 2) && changed(59, 2) && changed(16, 0xff));
        assert!(SqliteDatabase::open(&DATABASE[..99]).is_none());
    }

    proptest! {
        #[test]
        fn torn_and_forged_bytes_never_panic_or_hang(
            edits in proptest::collection::vec((0..DATABASE.len(), any::<u8>()), 0..40),
            length in 100..DATABASE.len(),
        ) {
            let mut bytes = DATABASE[..length].to_vec();
            for (at, value) in edits {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if let Some(database) = SqliteDatabase::open(&bytes) {
                drop(database.find("ContainerConfig", "b0b1", 3));
            }
        }
    }
}
