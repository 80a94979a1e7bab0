//! Validation of text from outside that is later shown in terminals, reports and metrics.

/// Returns whether a character is invisible or changes how others are shown: control characters, bidirectional and
/// zero-width format characters, tags, fillers and line separators.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns whether a text has a visible character: not a space, not invisible, not only combining, and assigned in
/// Unicode.
pub fn is_visible(text: &str) -> bool {
    // `escape_debug` escapes unprintable and combining characters; these two are printable blanks.
    let is_blank = |c: char| c.is_whitespace() || is_invisible(c) || matches!(c, '\u{2800}' | '\u{1d159}');
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1;
    text.chars().any(|c| !is_blank(c) && is_plain(c))
}

/// Replaces each invisible character with U+FFFD.
pub fn legible(text: &str) -> String {
    text.chars().map(|c| if is_invisible(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns the first invisible character in Unicode notation ("U+202E").
pub fn first_invisible(text: &str) -> Option<String> {
    text.chars().find(|c| is_invisible(*c)).map(|c| format!("U+{:04X}", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visible_text_has_a_visible_character() {
        for text in ["a", "größe", "訓練", "👍", " a ", "\u{301}a", "é", "🏳\u{fe0f}", "'", "\"", "\\", "-", "ｱ", "أ"]
        {
            assert!(is_visible(text), "{text:?}");
        }
        let blank = [
            "",
            " ",
            "\u{a0}",
            "\u{2003}\u{3000}",
            "\u{200b}",
            "\u{301}",
            "\u{301}\u{302}",
            "\u{fe0f}",
            "\u{e0100}",
            "\u{2800}",
            "\u{3164}",
            "\u{115f}",
            "\u{1d159}",
            "\u{17b4}",
            "\u{180b}",
            "\u{20dd}",
            "\u{e000}",
            "\u{10ffff}",
            "\u{378}",
            " \u{300} ",
        ];
        for text in blank {
            assert!(!is_visible(text), "{text:?}");
        }
    }
}
