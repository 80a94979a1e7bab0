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

/// The text with a mark in the place of each such character.
pub fn legible(text: &str) -> String {
    text.chars().map(|c| if is_unseen(c) { '\u{fffd}' } else { c }).collect()
}

/// The first such character of a text, as Unicode numbers it ("U+202E").
pub fn first_unseen(text: &str) -> Option<String> {
    text.chars().find(|c| is_unseen(*c)).map(|c| format!("U+{:04X}", u32::from(c)))
}
