//! The reference pages of the book, rendered from the code and compared with the files that are checked in.
//!
//! `WATTUNE_WRITE_REFERENCE=1 cargo test --test it reference` writes them anew.

mod cli;
mod configuration;
mod http;
mod metrics;

use std::path::Path;

/// Compares a page with what was rendered, or writes it where the environment asks for that.
fn check(name: &str, rendered: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/reference").join(name);
    if std::env::var_os("WATTUNE_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, rendered).expect("written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = || {
        let (old, new) = found
            .lines()
            .zip(rendered.lines())
            .find(|(old, new)| old != new)
            .unwrap_or(("(the page ends)", "(the page ends)"));
        format!("docs/src/reference/{name} is not what the code says; it has\n  {old}\nin place of\n  {new}")
    };
    assert!(
        found == rendered,
        "{}\nWrite it anew with: WATTUNE_WRITE_REFERENCE=1 cargo test --test it reference",
        differs()
    );
}

/// A page's title and the note that it is generated.
fn opening(title: &str, from: &str) -> String {
    format!("# {title}\n\nThis page is generated from {from}. Change that, not the page.\n")
}

/// Text for a cell of a table: in one line, with nothing in it that Markdown takes for a column or a tag. Code between
/// backticks keeps its angle brackets.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let parts = line.split('`').enumerate();
    let parts = parts.map(|(i, part)| if i % 2 == 0 { part.replace('<', "\\<") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// A table without its last columns where none of their cells says anything.
fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let used: Vec<usize> = (0..heads.len()).filter(|&i| rows.iter().any(|row| !row[i].is_empty())).collect();
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(used.iter().map(|&i| heads[i]).collect());
    text += &format!("|{}\n", "---|".repeat(used.len()));
    for row in rows {
        text += &line(used.iter().map(|&i| row[i].as_str()).collect());
    }
    text
}

#[test]
fn cells_hold_columns_and_tags_as_text() {
    assert_eq!(cell("a | b\n  <c> `d <e>`"), "a \\| b \\<c> `d <e>`");
    let rows = [vec!["a".to_owned(), String::new(), "b".to_owned()]];
    assert_eq!(table(&["x", "y", "z"], &rows), "| x | z |\n|---|---|\n| a | b |\n");
}
