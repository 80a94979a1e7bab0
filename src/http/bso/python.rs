//! Texts as Python prints them, which the messages of Zeus's server contain.

/// Returns `repr(number)`.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let text = if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        return text.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = number.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Returns `repr(text)`.
pub(super) fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            '\\' => quoted += "\\\\",
            c if c == quote => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\x{:02x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push(quote);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_and_texts_are_those_of_python() {
        let floats = [
            (0.0, "0.0"),
            (-3000.0, "-3000.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (2.5e300, "2.5e+300"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, text) in floats {
            assert_eq!(float(number), text);
        }
        let texts = [("a", "'a'"), ("a'b", "\"a'b\""), ("'\"", "'\\'\"'"), ("\\\n\u{7}é", "'\\\\\\n\\x07é'")];
        for (text, expected) in texts {
            assert_eq!(quoted(text), expected);
        }
    }
}
