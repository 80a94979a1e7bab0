//! A report as CSV.

use super::view::{ReportRow, ReportView};
use wattune_core::domain::is_invisible;

/// Returns the rows as CSV under a header line; without the total, so that columns can be summed.
///
/// # Errors
/// If a row cannot be written.
pub fn csv(view: &ReportView) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in &view.rows {
        let (key, sci_note) = (no_formula(row.key.clone()), no_formula(row.sci_note.clone()));
        writer.serialize(ReportRow { key, sci_note, ..row.clone() })?;
    }
    if view.rows.is_empty() {
        // An empty report still has a header line.
        writer.serialize(&view.total)?;
        let mut bytes = writer.into_inner().map_err(|e| e.into_error())?;
        bytes.truncate(bytes.iter().position(|b| *b == b'\n').map_or(0, |end| end + 1));
        return Ok(bytes);
    }
    writer.into_inner().map_err(|e| e.into_error().into())
}

/// Prefixes text that a spreadsheet could take for a formula with `'`, because clients choose the names. Some
/// spreadsheets skip spaces and quotes before a formula; some separate cells at semicolons or tabs, whatever the file's
/// separator is.
pub fn no_formula(name: String) -> String {
    let is_formula = |cell: &str| {
        let begins = cell.trim_start_matches(|c: char| c.is_whitespace() || is_invisible(c) || matches!(c, '"' | '\''));
        begins.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']) || cell.starts_with(['\t', '\r'])
    };
    let mut safe = String::with_capacity(name.len() + 1);
    for cell in name.split_inclusive([';', ',', '|', '\t', '\r', '\n']) {
        if is_formula(cell) {
            safe.push('\'');
        }
        safe.push_str(cell);
    }
    safe
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_name_becomes_a_formula() {
        let table = [
            ("=1+1", "'=1+1"),
            ("  =1", "'  =1"),
            ("\u{a0}@a", "'\u{a0}@a"),
            ("\"=1", "'\"=1"),
            ("a;=1", "a;'=1"),
            ("a; +1;b;-2", "a;' +1;b;'-2"),
            ("a,=1|@b", "a,'=1|'@b"),
            ("＝1", "'＝1"),
            ("resnet50; 3 = 4, b-e", "resnet50; 3 = 4, b-e"),
            ("größe 訓練", "größe 訓練"),
            ("", ""),
        ];
        for (name, safe) in table {
            assert_eq!(no_formula(name.into()), safe);
        }
    }

    proptest! {
        #[test]
        fn no_separator_makes_a_formula(name in "[a=+@ \"';,|\t-]{0,12}") {
            let safe = no_formula(name.clone());
            prop_assert!(safe.len() >= name.len());
            for cell in safe.split([';', ',', '|', '\t', '\r', '\n']) {
                let bare = cell.trim_start_matches([' ', '"']);
                prop_assert!(!bare.starts_with(['=', '+', '-', '@']), "{safe:?}");
            }
        }
    }
}
