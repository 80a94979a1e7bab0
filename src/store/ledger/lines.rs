//! Storage of the lines (JSON) of ledger entries. Lines of settlements and closes, which make up nearly all of the
//! ledger, are stored as zlib streams (RFC 1950), other lines as text. Digests and exports use the uncompressed lines.

use std::borrow::Cow;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use rusqlite::Row;

use crate::store::{StoreError, rows};
use wattune_core::ledger::entry::Entry;

/// Upper bound of a line's size in bytes: if decompression gives more, the stored line is damaged.
const LONGEST: usize = 1 << 28;

/// Compression level of zlib: higher ones hardly reduce the size of such lines.
const LEVEL: u8 = 6;

/// Value of the column `line`.
pub(super) enum StoredLine {
    Text(String),
    Packed(Vec<u8>),
}

impl StoredLine {
    pub(super) fn of(entry: &Entry, line: String) -> Self {
        match entry {
            Entry::Settlement(_) | Entry::Close(_) => Self::Packed(compress_to_vec_zlib(line.as_bytes(), LEVEL)),
            // Queries read fields of these entries, which must therefore stay text.
            _ => Self::Text(line),
        }
    }
}

/// Returns the uncompressed line of a row with the columns `seq` and `line`.
pub(super) fn line<'a>(row: &'a Row<'_>) -> Result<Cow<'a, str>, StoreError> {
    let seq: i64 = row.get("seq")?;
    let damaged = |why: String| rows::damaged("ledger", format!("entry {seq}: {why}"));
    text(row.get_ref("line")?.as_bytes().map_err(|e| damaged(e.to_string()))?).map_err(damaged)
}

/// Returns the entry of a row with the columns `seq` and `line`.
pub(super) fn entry(row: &Row<'_>) -> Result<Entry, StoreError> {
    rows::from_json("ledger", &line(row)?)
}

/// Returns the text of a stored line, decompressed if necessary. Uncompressed lines are JSON and begin with a brace;
/// zlib streams begin with the byte 0x78.
fn text(stored: &[u8]) -> Result<Cow<'_, str>, String> {
    if stored.first() == Some(&b'{') {
        return std::str::from_utf8(stored).map(Cow::Borrowed).map_err(|e| e.to_string());
    }
    let line = decompress_to_vec_zlib_with_limit(stored, LONGEST).map_err(|e| e.to_string())?;
    String::from_utf8(line).map(Cow::Owned).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_packed_line_is_restored_and_a_damaged_one_is_detected(line in "\\{[ -~]{0,400}", place: prop::sample::Index, bit in 0u8..8) {
            let packed = compress_to_vec_zlib(line.as_bytes(), LEVEL);
            prop_assert_eq!(text(&packed).expect("unpacked"), line.as_str());
            prop_assert_eq!(text(line.as_bytes()).expect("read"), line.as_str());
            let mut damaged = packed;
            let place = place.index(damaged.len());
            damaged[place] ^= 1 << bit;
            prop_assert!(text(&damaged).map_or(true, |found| found == line.as_str()));
        }
    }
}
