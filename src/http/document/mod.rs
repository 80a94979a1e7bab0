//! Self-contained pages with plots: no script, nothing loaded, light and dark, ready to be printed.

mod plot;

pub use plot::{Mark, Plot, escaped};

const STYLE: &str = include_str!("style.css");

/// A whole page around its body. Neither is escaped here.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}
