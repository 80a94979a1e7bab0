//! Parsers for argument values, and for times in JSON, that several commands share.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::Value;
use wattune_core::units::Seconds;

/// The issue times to assume for the values of a forecast file that does not state them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Issue {
    /// All values of a day were issued at 00:00 UTC of that day.
    DayAhead,
    /// Values are issued continuously, without a fixed issue time.
    Rolling,
}

/// Parses a number from `low` to `high`. `right` describes the valid values in the error.
pub(super) fn within(text: &str, low: f64, high: f64, right: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (low..=high).contains(n));
    number.ok_or_else(|| format!("give {right}"))
}

/// Parses a lease in seconds.
pub(super) fn lease(text: &str) -> Result<f64, String> {
    within(text, 1.0, 86_400.0, "1 to 86400 seconds")
}

/// Parses a maximum slowdown, as a fraction.
pub(super) fn slowdown(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.999, "a fraction from 0 to 0.999; 0.03 allows 3 % more time, so write 0.03 for 3 %")
}

/// Parses a time, or a date as the beginning of that day in UTC.
pub(super) fn begin(text: &str) -> Result<DateTime<Utc>, String> {
    time(text, 0)
}

/// Parses a time, or a date as the end of that day in UTC.
pub(super) fn end(text: &str) -> Result<DateTime<Utc>, String> {
    time(text, 1)
}

/// Parses a time, or a date as midnight UTC `days` days later.
fn time(text: &str, days: u64) -> Result<DateTime<Utc>, String> {
    let midnight = |date: NaiveDate| Some(date.checked_add_days(Days::new(days))?.and_time(NaiveTime::MIN).and_utc());
    let date = text.parse::<NaiveDate>().ok().and_then(midnight);
    date.or_else(|| text.parse().ok())
        .ok_or_else(|| "give a date like 2021-07-01 or a time like 2021-07-01T06:00:00Z".into())
}

/// Parses a time with its time zone. Refuses a date without a time, which may mean the start or the end of that day.
pub(super) fn zoned_time(text: &str) -> Result<DateTime<Utc>, String> {
    text.parse()
        .map_err(|_| "give a time with its zone, such as 2026-11-26T18:00:00Z or 2026-11-26T19:00:00+01:00".into())
}

/// Parses a time in the daemon's JSON; `None` if the value is not a time.
pub(super) fn time_of(value: &Value) -> Option<DateTime<Utc>> {
    value.as_str()?.parse().ok()
}

/// Replaces the fields' names in an API error by the flags that set the fields: the name at the beginning, and names in
/// the sentence after it. `flags` has pairs of field and flag.
pub(super) fn name_flag(refusal: &str, flags: &[(&str, &str)]) -> String {
    let renamed = flags.iter().find_map(|(field, flag)| {
        let why = refusal.strip_prefix(field)?.strip_prefix(": ")?;
        Some(format!("{flag}: {}", name_flags_within(why, flags)))
    });
    renamed.unwrap_or_else(|| name_flags_within(refusal, flags))
}

/// Replaces fields' names in a sentence by the flags that set the fields.
fn name_flags_within(sentence: &str, flags: &[(&str, &str)]) -> String {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    let renamed = |piece: &str| {
        let name = piece.trim_end_matches(|c: char| !is_part(c) || c == '.');
        flag_of(name, flags).map_or_else(|| piece.to_owned(), |flag| format!("{flag}{}", &piece[name.len()..]))
    };
    // Each piece is a word and the character after it; the word may be empty.
    sentence.split_inclusive(|c: char| !is_part(c)).map(renamed).collect()
}

/// Returns the flag that sets the field of this name: the whole name, or its last part, such as `total_samples` of
/// `work.total_samples`. `None` for names that are also words of a sentence, such as `name` or `deadline`.
fn flag_of<'a>(name: &str, flags: &[(&str, &'a str)]) -> Option<&'a str> {
    if !name.contains(['_', '.']) {
        return None;
    }
    flags.iter().find_map(|(field, flag)| {
        let is_named = *field == name || field.rsplit('.').next() == Some(name);
        is_named.then_some(*flag)
    })
}

/// Creates a parser that accepts one of these names, each with its help text.
pub(super) fn one_of(names: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// Parses a duration: a number with a unit (`8h`, `90m`, `45s`, `2d`), several of them (`1h30m`), or plain seconds.
pub(super) fn duration(text: &str) -> Result<Seconds, String> {
    let wrong = || "give a duration like 8h, 90m, 1h30m or 2d, or a number of seconds".to_owned();
    let number = |digits: &str| {
        let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        digits.parse::<f64>().ok().filter(|_| is_plain)
    };
    if let Some(seconds) = number(text) {
        return longest(seconds);
    }
    let (mut rest, mut seconds, mut last) = (text, 0.0, f64::INFINITY);
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let unit = match rest.as_bytes()[at] {
            b'd' => 86_400.0,
            b'h' => 3600.0,
            b'm' => 60.0,
            b's' => 1.0,
            _ => return Err(wrong()),
        };
        // From the largest unit to the smallest, each once: `30m1h` is more likely a mistake.
        if unit >= last {
            return Err(wrong());
        }
        seconds += number(&rest[..at]).ok_or_else(wrong)? * unit;
        (rest, last) = (&rest[at + 1..], unit);
    }
    if rest.is_empty() && !text.is_empty() { longest(seconds) } else { Err(wrong()) }
}

/// Returns a duration in seconds of at most ten years: longer ones are mistakes, and overflow calendars.
fn longest(seconds: f64) -> Result<Seconds, String> {
    let is_allowed = (0.0..=3650.0 * 86_400.0).contains(&seconds);
    is_allowed.then(|| Seconds::new(seconds)).ok_or_else(|| "a duration is at most ten years, 3650d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_flags_in_place_of_fields() {
        let flags = [
            ("name", "--name"),
            ("work", "--total-samples"),
            ("work.total_samples", "--total-samples"),
            ("objective.max_slowdown", "--max-slowdown"),
            ("objective.deadline", "--deadline"),
            ("start.within_s", "--within"),
            ("start.latest", "--latest"),
            ("start.duration_s", "--duration"),
            ("start.power_w", "--power"),
            ("suspend", "--suspend"),
        ];
        for (refusal, named) in [
            ("work.total_samples: is -5; it must be more than 0", "--total-samples: is -5; it must be more than 0"),
            (
                "objective.deadline: needs known work; give work.total_samples too",
                "--deadline: needs known work; give --total-samples too",
            ),
            (
                "start.duration_s: is needed: no run of \"true\" has a profile, or work.total_samples is unknown; give \
                 the expected duration",
                "--duration: is needed: no run of \"true\" has a profile, or --total-samples is unknown; give the \
                 expected duration",
            ),
            ("suspend: needs max_slowdown or a deadline", "--suspend: needs --max-slowdown or a deadline"),
            ("start.latest: and within_s both bound the start", "--latest: and --within both bound the start"),
            ("duplicate field `within_s`", "duplicate field `--within`"),
            ("give work.total_samples.", "give --total-samples."),
            // Words, longer names and parts of words are no fields of these flags.
            ("name: the latest name and deadline of work", "--name: the latest name and deadline of work"),
            ("suspend.idle_power_w: is 9e9", "suspend.idle_power_w: is 9e9"),
            ("x: idle_power_w, max_slowdowns, job-max_slowdown", "x: idle_power_w, max_slowdowns, job-max_slowdown"),
            ("at 0.5 s... or 1.5", "at 0.5 s... or 1.5"),
            ("", ""),
            ("é: is max_slowdown", "é: is --max-slowdown"),
        ] {
            assert_eq!(name_flag(refusal, &flags), named, "{refusal}");
        }
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, seconds) in [
            ("24h", 86_400.0),
            ("90m", 5400.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
            ("1d12h", 129_600.0),
            ("1.5h", 5400.0),
            ("45s", 45.0),
            ("3600", 3600.0),
            ("0", 0.0),
            ("0h", 0.0),
        ] {
            assert_eq!(duration(text), Ok(Seconds::new(seconds)), "{text}");
        }
        for wrong in
            ["", "h", "-1h", "1h-", "30m1h", "1h1h", "1w", "8 h", "1h30", "inf", "nan", "1e9", "1e9d", "+1h", "é"]
        {
            assert!(duration(wrong).is_err_and(|why| why.contains("1h30m")), "{wrong}");
        }
        for long in ["4000d", "99999999d", "315360001"] {
            assert!(duration(long).is_err_and(|why| why.contains("ten years")), "{long}");
        }
    }
}
