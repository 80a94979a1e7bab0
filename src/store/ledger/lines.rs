//! Entries' lines as they are kept: settlements and closes, which are nearly all of the ledger, as streams of zlib
//! (RFC 1950); the others as they are. Digests are of the lines themselves, and exports have those.

use std::borrow::Cow;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use rusqlite::Row;

use crate::store::{StoreError, rows};
use wattune_core::ledger::entry::Entry;

/// More than any line has: what would unpack to more is damaged.
const LONGEST: usize = 1 << 28;

/// Beyond this level zlib's streams of such lines get hardly shorter.
const LEVEL: u8 = 6;

/// What the column `line` gets.
pub(super) enum Kept {
    Text(String),
    Packed(Vec<u8>),
}

impl Kept {
    pub(super) fn of(entry: &Entry, line: String) -> Self {
        match entry {
            Entry::Settlement(_) | Entry::Close(_) => Self::Packed(compress_to_vec_zlib(line.as_bytes(), LEVEL)),
            // The database looks into these.
            _ => Self::Text(line),
        }
    }
}

/// The line in a row's columns `seq` and `line`.
pub(super) fn line<'a>(row: &'a Row<'_>) -> Result<Cow<'a, str>, StoreError> {
    let seq: i64 = row.get("seq")?;
    let damaged = |why: String| rows::damaged("ledger", format!("entry {seq}: {why}"));
    text(row.get_ref("line")?.as_bytes().map_err(|e| damaged(e.to_string()))?).map_err(damaged)
}

/// The entry in a row's columns `seq` and `line`.
pub(super) fn entry(row: &Row<'_>) -> Result<Entry, StoreError> {
    rows::from_json("ledger", &line(row)?)
}

/// A line is JSON, which begins with a brace; zlib's streams begin with 0x78.
fn text(kept: &[u8]) -> Result<Cow<'_, str>, String> {
    if kept.first() == Some(&b'{') {
        return std::str::from_utf8(kept).map(Cow::Borrowed).map_err(|e| e.to_string());
    }
    let line = decompress_to_vec_zlib_with_limit(kept, LONGEST).map_err(|e| e.to_string())?;
    String::from_utf8(line).map(Cow::Owned).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_packed_line_comes_back_and_a_damaged_one_is_told(line in "\\{[ -~]{0,400}", place: prop::sample::Index, bit in 0u8..8) {
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
