//! Text from outside that people read later, in terminals, reports and metrics.

/// Whether a character shows nothing itself or changes how others are shown: control characters, and of Unicode's format
/// characters the bidirectional and the zero-width ones, tags, fillers and separators of lines.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Whether a text has a character that shows something of its own: no space of any kind, none that is unseen, none that only
/// changes the character before it, none that Unicode has not given a meaning.
pub fn is_seen(text: &str) -> bool {
    // What `escape_debug` spells out is not printable, or extends the character before; these two are printable blanks.
    let is_blank = |c: char| c.is_whitespace() || is_unseen(c) || matches!(c, '\u{2800}' | '\u{1d159}');
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1;
    text.chars().any(|c| !is_blank(c) && is_plain(c))
}

/// The text with a mark in the place of each such character.
pub fn legible(text: &str) -> String {
    text.chars().map(|c| if is_unseen(c) { '\u{fffd}' } else { c }).collect()
}

/// The first such character of a text, as Unicode numbers it ("U+202E").
pub fn first_unseen(text: &str) -> Option<String> {
    text.chars().find(|c| is_unseen(*c)).map(|c| format!("U+{:04X}", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_seen_by_a_character_that_shows_something() {
        for text in ["a", "größe", "訓練", "👍", " a ", "\u{301}a", "é", "🏳\u{fe0f}", "'", "\"", "\\", "-", "ｱ", "أ"]
        {
            assert!(is_seen(text), "{text:?}");
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
            assert!(!is_seen(text), "{text:?}");
        }
    }
}
