//! Suggestions for mistyped names.

/// Returns the known name with the fewest edits (insert, delete, replace, swap neighbours), ignoring case, if they are
/// at most three and at most a third of the longer name.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Limits the effort, which grows with the product of the lengths.
    let given: Vec<char> = given.chars().take(80).flat_map(char::to_lowercase).collect();
    let near = known.into_iter().filter_map(|name| {
        let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
        let allowed = (given.len().max(letters.len()) / 3).clamp(1, 3);
        let edits = edits(&given, &letters);
        (edits <= allowed).then_some((edits, name))
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// Appends the nearest of the listed names to a serde message about an unknown field or variant.
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

/// Returns the Damerau–Levenshtein distance (optimal string alignment).
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
