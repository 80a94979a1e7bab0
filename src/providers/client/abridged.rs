//! Names and paths from settings and files, abridged for messages. If a key was pasted in place of a name, only its
//! beginning is shown.

use std::path::Path;

/// Maximum length of a readable name, in characters.
const LONGEST: usize = 64;
/// Maximum length of a readable word within a name, in characters.
const LONGEST_WORD: usize = 24;
/// Maximum number of digits at the end of a readable word.
const MOST_DIGITS: usize = 4;
/// Maximum length of a word of capitals and digits that counts as part of a zone's code ("DK1", "10YGB").
const LONGEST_CODE: usize = 8;
/// Minimum length of a text that may be a key.
const SHORTEST_KEY: usize = 12;
/// Maximum length of a file name's extension.
const LONGEST_EXTENSION: usize = 5;

/// Returns a variable's name for a message: in full if the variable is set or the text reads like a name; else only the
/// text's beginning, which may be that of a key, with the advice to write a name.
pub(in crate::providers) fn variable(name: &str) -> String {
    let is_name = name.chars().count() <= LONGEST
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    // Usual names of variables are in capitals, or of several words joined by `_`.
    let is_usual = !name.bytes().any(|b| b.is_ascii_lowercase()) || name.trim_matches('_').contains('_');
    if is_name && (is_usual && is_readable(name) || std::env::var_os(name).is_some()) {
        return name.to_owned();
    }
    format!("{} (this looks like no variable's name; write the name, and put the key into the variable)", start(name))
}

/// Returns a path for a message: in full if the path or its directory exists, or if the text reads like a path; else
/// only the text's beginning, which may be that of a key, with the advice to write a path.
pub(in crate::providers) fn path(path: &Path) -> String {
    let shown = path.display().to_string();
    let above = path.parent().filter(|above| above.parent().is_some());
    let is_there = path.symlink_metadata().is_ok() || above.is_some_and(Path::is_dir);
    let has_extension = path.extension().is_some_and(|extension| extension.len() <= LONGEST_EXTENSION);
    let is_readable = path.components().all(|part| match part {
        std::path::Component::Normal(name) => name.to_str().is_some_and(is_readable),
        _ => true,
    });
    if is_there || (is_readable && (has_extension || shown.contains('/'))) {
        return shown;
    }
    format!("{} (this looks like no path; write the path of a file that holds the key)", start(&shown))
}

/// Returns true if a text that should be the code of a zone looks like a key, pasted there by mistake.
pub(in crate::providers) fn is_like_key(code: &str) -> bool {
    let is_code =
        |word: &str| word.len() <= LONGEST_CODE && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    code.len() >= SHORTEST_KEY
        && code.bytes().all(|b| b.is_ascii_graphic())
        && !is_energy_code(code)
        && code.parse::<f64>().is_err()
        && !words(code).all(|word| is_code(word) || is_readable_word(word))
}

/// Returns the beginning of a text that may be a key: at most a quarter of it, and at most 4 characters.
pub(in crate::providers) fn start(text: &str) -> String {
    let shown = (text.chars().count() / 4).min(4);
    format!("{}…", text.chars().take(shown).filter(|c| c.is_ascii_graphic()).collect::<String>())
}

/// Returns true if a code is an Energy Identification Code, such as "10Y1001A1001A82H".
fn is_energy_code(code: &str) -> bool {
    let of_kind = |(i, b): (usize, u8)| match i {
        0 | 1 => b.is_ascii_digit(),
        2 => b.is_ascii_uppercase(),
        _ => b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-',
    };
    code.len() == 16 && code.bytes().enumerate().all(of_kind)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

fn is_readable(text: &str) -> bool {
    text.chars().count() <= LONGEST
        && words(text).next().is_some()
        && words(text).all(is_readable_word)
        && !text.contains(|c: char| c.is_ascii_punctuation() && !"_-.".contains(c))
}

/// Returns true for a word of letters of one case, or with few capitals, and perhaps a short number at the end. Keys
/// mix cases and digits.
fn is_readable_word(word: &str) -> bool {
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let capitals = letters.chars().filter(|c| c.is_uppercase()).count();
    let count = letters.chars().count();
    let is_one_case = capitals == 0 || capitals == count;
    word.chars().count() <= LONGEST_WORD
        && word.len() - letters.len() <= MOST_DIGITS
        && letters.chars().all(char::is_alphabetic)
        && (is_one_case || 3 * capitals <= count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables_are_shown_and_keys_are_not() {
        for name in ["ELECTRICITY_MAPS_API_KEY", "WATTTIME_PASSWORD2", "KEY", "_KEY", "maps_key", "PATH"] {
            assert_eq!(variable(name), name);
        }
        let keys = [
            "aB3dE5gH7jK9mN1pQ3",
            "sk-live-aB3dE5gH7jK9mN1pQ3",
            "A1B2C3D4E5F60718293A4B5C6D7E8F90",
            "3f2a91bc55e1",
            "f3a291bc55e1d0987",
            "the_Frog7!x9Q2",
            "hunter2",
            "Summer2026",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
            "key\u{1b}[2J with blanks",
            "",
        ];
        for key in keys {
            let shown = variable(key);
            let start = shown.split_once('…').expect("cut").0;
            assert!(start.len() <= 4 && 4 * start.len() <= key.len() && key.starts_with(start), "{key}: {shown}");
            assert!(shown.contains("write the name"), "{shown}");
        }
    }

    #[test]
    fn paths_are_shown_and_keys_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let there = dir.path().join("aB3dE5gH7jK9mN1pQ3");
        let of_dir = there.to_str().expect("UTF-8");
        for there in [of_dir, "/nowhere/key", "/run/secrets/maps", "keys/maps", "maps.key", "./maps", "Cargo.toml"] {
            assert_eq!(path(Path::new(there)), there);
        }
        for key in ["aB3dE5gH7jK9mN1pQ3", "sk-live-aB3dE5gH7jK9", "/aB3dE5gH7jK9mN1p/Q3==", "hunter2", "the_Frog7!x"] {
            let shown = path(Path::new(key));
            assert!(shown.contains("…") && shown.contains("write the path") && !shown.contains(key), "{key}: {shown}");
        }
    }

    #[test]
    fn codes_of_the_grid_are_no_keys() {
        for code in
            ["DE", "US-CAL-CISO", "10Y1001A1001A82H", "10YGB----------A", "MISO_MASON_CITY", "westeurope", "DK-DK1"]
        {
            assert!(!is_like_key(code), "{code}");
        }
        for code in ["52.520,13.4050", "13", "CAISO_NORTH", "Nordrhein-Westfalen", "Deutschland Süd", "PJM_ROANOKE"] {
            assert!(!is_like_key(code), "{code}");
        }
        for key in ["aB3dE5gH7jK9mN1pQ3", "3f2a91bc-55e1-4d09-87aa-0123456789ab", "sk-aB3dE5gH7jK9", "the_Frog7!x9Q2"] {
            assert!(is_like_key(key), "{key}");
        }
    }
}
