//! Parsers for argument values that several commands share.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};

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

/// Creates a parser that accepts one of these names, each with its help text.
pub(super) fn one_of(names: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.map(|(name, about)| PossibleValue::new(name).help(about)))
}
