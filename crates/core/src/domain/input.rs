//! Checks of input from users, for invalid fields, numbers in other units, invisible text and mistyped names.

use crate::units::{GramsPerKwh, Short, Watts};

/// Error for an invalid field of a request: what is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidJob {
    /// Path of the field in the request.
    pub field: &'static str,
    /// Description of the problem, with a valid alternative.
    pub why: String,
}

/// Upper bound of the power of a GPU.
const MOST_POWER_PER_GPU: Watts = Watts::new(5_000.0);
/// Upper bound of the power of all GPUs of a node.
pub const MOST_POWER_PER_NODE: Watts = Watts::new(50_000.0);
/// Lower bound of plausible carbon intensities other than zero.
const LEAST_INTENSITY: GramsPerKwh = GramsPerKwh::new(1.0);

/// Checks the power or power limit of `gpus` GPUs, or of a whole node if `gpus` is `None`.
///
/// # Errors
/// Returns an error for more power than these GPUs can draw; the message also says how many watts the number would be
/// in milliwatts.
pub fn check_power(given: Watts, gpus: Option<u32>) -> Result<(), String> {
    let most = gpus.map_or(MOST_POWER_PER_NODE, |gpus| MOST_POWER_PER_GPU * f64::from(gpus));
    if given <= most {
        return Ok(());
    }
    let of = match gpus {
        None => "the GPUs of one node draw".to_owned(),
        Some(1) => "a GPU draws".to_owned(),
        Some(gpus) => format!("{gpus} GPUs draw"),
    };
    let (most, meant) = (most.get(), Short(given.get() / 1000.0));
    Err(format!("{}, and {of} at most {most} watts; in milliwatts: {meant} watts", Short(given.get())))
}

/// Checks a carbon intensity.
///
/// # Errors
/// Returns an error for a value between 0 and 1 g/kWh; the message also says how many g/kWh the number would be in
/// kg/kWh.
pub fn check_intensity(given: GramsPerKwh) -> Result<(), String> {
    if given <= GramsPerKwh::ZERO || given >= LEAST_INTENSITY {
        return Ok(());
    }
    let (given, meant) = (Short(given.get()), Short(given.get() * 1000.0));
    Err(format!("{given}; it is in grams of CO2 equivalent per kWh: {given} kg/kWh are {meant} g/kWh"))
}

/// Returns true if a character is invisible or changes how others are shown: control characters, bidirectional and
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

/// Returns true if a text has a visible character: one that is assigned in Unicode and is neither a space nor invisible
/// nor a combining mark.
pub fn is_visible(text: &str) -> bool {
    // `escape_debug` escapes unprintable and combining characters, but not the two blank characters listed here.
    let is_blank = |c: char| c.is_whitespace() || is_invisible(c) || matches!(c, '\u{2800}' | '\u{1d159}');
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1;
    text.chars().any(|c| !is_blank(c) && is_plain(c))
}

/// Replaces each invisible character with U+FFFD.
pub fn legible(text: &str) -> String {
    text.chars().map(|c| if is_invisible(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns the first invisible character of a text in Unicode notation ("U+202E"); `None` if there is none.
pub fn first_invisible(text: &str) -> Option<String> {
    text.chars().find(|c| is_invisible(*c)).map(|c| format!("U+{:04X}", u32::from(c)))
}

/// Returns the known name that needs the fewest edits (insert, delete, replace, swap neighbours), ignoring case; `None`
/// if that name needs more than three edits, or more than a third of the length of the longer name.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The computing time grows with the product of both lengths, so only the first 80 characters count.
    let given: Vec<char> = given.chars().take(80).flat_map(char::to_lowercase).collect();
    let near = known.into_iter().filter_map(|name| {
        let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
        let allowed = (given.len().max(letters.len()) / 3).clamp(1, 3);
        let edits = edits(&given, &letters);
        (edits <= allowed).then_some((edits, name))
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// Appends the most similar valid name to a serde message about an unknown field or variant.
pub fn with_nearest(message: String) -> String {
    let rest = message.split_once("unknown field `").or_else(|| message.split_once("unknown variant `"));
    let nearest = rest.and_then(|(_, rest)| {
        let (given, known) = rest.split_once("`, expected ")?;
        nearest(given, known.split('`').skip(1).step_by(2))
    });
    match nearest {
        Some(name) => format!("{message}; did you mean `{name}`?"),
        None => message,
    }
}

/// Replaces the names of Rust types in a serde message by plain words.
pub fn name_types_plainly(message: &str) -> String {
    let Some((what, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let what = what.replace("type: sequence", "type: list").replace("type: map", "type: object");
    let expected = match expected {
        "f64" | "f32" => "a number",
        "u64" | "u32" | "u16" | "usize" | "i64" | "i32" => "a whole number",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{what}, expected {expected}")
}

/// Returns the Damerau–Levenshtein distance (optimal string alignment) of two texts.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut rows: [Vec<usize>; 3] = [Vec::new(), Vec::new(), (0..=b.len()).collect()];
    for i in 1..=a.len() {
        rows.rotate_left(1);
        let [before, above, row] = &mut rows;
        *row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
    }
    rows[2][b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_power_beyond_what_gpus_draw_was_given_in_milliwatts() {
        let said = |watts, gpus| check_power(Watts::new(watts), gpus).err().unwrap_or_default();
        for (watts, gpus) in [(50_000.0, None), (5_000.0, Some(1)), (40_000.0, Some(8)), (0.0, None)] {
            assert_eq!(said(watts, gpus), "", "{watts} {gpus:?}");
        }
        assert_eq!(
            said(2e6, None),
            "2000000, and the GPUs of one node draw at most 50000 watts; in milliwatts: 2000 watts"
        );
        assert_eq!(said(3e5, Some(1)), "300000, and a GPU draws at most 5000 watts; in milliwatts: 300 watts");
        assert!(said(2.4e6, Some(8)).ends_with("8 GPUs draw at most 40000 watts; in milliwatts: 2400 watts"));
        assert!(said(1e300, None).starts_with("1e300, and"));
    }

    #[test]
    fn an_intensity_below_a_gram_was_given_in_kilograms() {
        let said = |intensity| check_intensity(GramsPerKwh::new(intensity)).err().unwrap_or_default();
        for intensity in [0.0, 1.0, 35.0, 475.0] {
            assert_eq!(said(intensity), "", "{intensity}");
        }
        assert!(said(0.035).ends_with("0.035 kg/kWh are 35 g/kWh"));
    }

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

    const KNOWN: [&str; 5] = ["WATTUNE_ZONE", "WATTUNE_CONFIG", "WATTUNE_GPUS", "WATTUNE_LISTEN", "WATTUNE_OBSERVE"];

    #[test]
    fn typing_errors_find_their_names() {
        let table = [
            ("WATTUNE_ZNOE", Some("WATTUNE_ZONE")),
            ("WATTUNE_ZON", Some("WATTUNE_ZONE")),
            ("wattune_zone", Some("WATTUNE_ZONE")),
            ("WATTUEN_ZONE", Some("WATTUNE_ZONE")),
            ("WATTUNE_GPU", Some("WATTUNE_GPUS")),
            ("WATTUNE_OBSERVED", Some("WATTUNE_OBSERVE")),
            ("WATTUNE_PORT_4938_TCP_ADDR", None),
            ("HOME", None),
            ("", None),
        ];
        for (given, right) in table {
            assert_eq!(nearest(given, KNOWN), right, "{given}");
        }
        assert_eq!(nearest("obseve", ["observe", "tick_s"]), Some("observe"));
        assert_eq!(nearest("gpu", ["gpus", "tags"]), Some("gpus"));
        assert_eq!(nearest("ab", ["xy"]), None);
    }

    #[test]
    fn messages_about_unknown_names_get_the_nearest() {
        let table = [
            ("unknown field `obseve`, expected `tick_s` or `observe`", Some("; did you mean `observe`?")),
            ("unknown field `gpu`, expected one of `name`, `gpus`, `tags`", Some("; did you mean `gpus`?")),
            ("unknown variant `nvlm`, expected `nvml` or `simulated`", Some("; did you mean `nvml`?")),
            ("limt: unknown field `limt`, expected `state` or `limit`", Some("; did you mean `limit`?")),
            ("unknown field `colour`, expected one of `name`, `gpus`", None),
            ("unknown field `a`, there are no fields", None),
            ("missing field `name`", None),
        ];
        for (message, added) in table {
            assert_eq!(with_nearest(message.into()), format!("{message}{}", added.unwrap_or_default()));
        }
    }

    #[test]
    fn types_have_plain_names() {
        let table = [
            ("invalid type: string \"a\", expected f64", "invalid type: string \"a\", expected a number"),
            ("invalid value: integer `-1`, expected u64", "invalid value: integer `-1`, expected a whole number"),
            ("invalid type: map, expected a sequence", "invalid type: object, expected a list"),
            ("invalid type: sequence, expected a map", "invalid type: list, expected an object"),
            ("invalid type: integer `1`, expected a string", "invalid type: integer `1`, expected a string"),
            ("missing field `name`", "missing field `name`"),
        ];
        for (message, plain) in table {
            assert_eq!(name_types_plainly(message), plain);
        }
    }

    proptest! {
        #[test]
        fn a_name_is_nearest_to_itself_and_edits_are_symmetric(a in "[a-z_]{1,12}", b in "[a-z_]{0,12}") {
            prop_assert_eq!(nearest(&a, [b.as_str(), a.as_str()]), Some(a.as_str()));
            let (x, y): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            prop_assert_eq!(edits(&x, &y), edits(&y, &x));
            prop_assert!(edits(&x, &y) <= x.len().max(y.len()));
        }
    }
}
