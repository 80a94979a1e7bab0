//! Self-contained pages with plots: no script, no external resources, light and dark, printable.

mod plot;

pub use plot::{Mark, Plot, escaped};

const STYLE: &str = include_str!("style.css");

/// Returns a page around its body. Neither argument is escaped.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}
