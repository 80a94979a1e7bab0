//! Parsing of a report's span and functional unit as users write them, and the default threshold for restatements.

use chrono::{DateTime, TimeDelta, Timelike as _, Utc};

use wattune_core::domain::{InvalidJob, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::report::{FunctionalUnit, MIN_SAMPLES_PER_EPOCH};
use wattune_core::units::{Samples, Short};

/// Default threshold for restatements, in percent: larger changes of an hour's emissions are listed.
pub const RESTATED_BY_PCT: f64 = 5.0;

fn invalid(field: &'static str, why: impl ToString) -> InvalidJob {
    InvalidJob { field, why: why.to_string() }
}

/// Parses the functional unit of the SCI (software carbon intensity, ISO/IEC 21031).
///
/// # Errors
/// If the unit is unknown or the samples of an epoch are invalid.
pub fn functional_unit(unit: Option<&str>, samples: Option<f64>) -> Result<Option<FunctionalUnit>, InvalidJob> {
    let field = "samples_per_epoch";
    let samples = match samples {
        Some(number) if number >= MIN_SAMPLES_PER_EPOCH => {
            Some(Samples::try_new(number).ok_or_else(|| invalid(field, "is not finite"))?)
        }
        Some(number) => return Err(invalid(field, format!("is {}; it must be at least 1", Short(number)))),
        None => None,
    };
    match unit {
        Some("epoch") => Ok(Some(FunctionalUnit::Epoch(samples))),
        _ if samples.is_some() => Err(invalid(field, "needs functional_unit=epoch")),
        None => Ok(None),
        Some("run") => Ok(Some(FunctionalUnit::Run)),
        Some("1e6-samples") => Ok(Some(FunctionalUnit::MillionSamples)),
        Some(other) => {
            let other: String = other.chars().take(80).collect();
            Err(invalid("functional_unit", format!("{other:?} is unknown; give run, epoch or 1e6-samples")))
        }
    }
}

/// Returns a span of whole UTC hours: from the hour that contains `from` to the end of the hour that contains `to`. A
/// date means the start of its day as `from`, and the end of its day as `to`.
///
/// # Errors
/// If a time is invalid, or the span is empty.
pub fn span(from: Option<&str>, to: Option<&str>, now: DateTime<Utc>) -> Result<Slot, InvalidJob> {
    let hour = TimeDelta::hours(1);
    let end = match to {
        Some(text) => time("to", text, true)?,
        None => now,
    };
    let from = from.map(|text| time("from", text, false)).transpose()?;
    // An empty span must not become a whole hour.
    let is_none = from.is_some_and(|from| from >= end);
    let (floor, given) = (hour_of(end), end);
    let end = if floor == end { end } else { floor + hour };
    let start = from.map_or(end - TimeDelta::days(30), hour_of);
    let why = || match Slot::new(start, end) {
        None => format!("is not before the end, {}", end.format("%FT%RZ")),
        Some(_) => format!("is not before the end, {}", given.format("%FT%TZ")),
    };
    Slot::new(start, end).filter(|_| !is_none).ok_or_else(|| invalid("from", why()))
}

/// Returns the span exactly as given. A date means the start of its day as `from`, and the end of its day as `to`.
///
/// # Errors
/// If a time is invalid, or the span is empty.
pub fn exact_span(from: &str, to: Option<&str>, now: DateTime<Utc>) -> Result<Slot, InvalidJob> {
    let end = to.map_or(Ok(now), |text| time("to", text, true))?;
    let why = format!("is not before the end, {}", end.format("%FT%TZ"));
    Slot::new(time("from", from, false)?, end).ok_or_else(|| invalid("from", why))
}

fn time(field: &'static str, text: &str, is_end: bool) -> Result<DateTime<Utc>, InvalidJob> {
    let (first, last) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + TimeDelta::days(366 * 400));
    let shown = || text.chars().take(80).collect::<String>();
    let found = match text.parse::<chrono::NaiveDate>() {
        Ok(date) => {
            let day = date.and_time(chrono::NaiveTime::MIN).and_utc();
            // No time follows the last day of the calendar, which is not in the range either.
            Some(if is_end { day.checked_add_signed(TimeDelta::days(1)).unwrap_or(day) } else { day })
        }
        // A leap second counts to the hour that it ends.
        Err(_) => DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|t| t.to_utc())
            .map(|t| t.with_nanosecond(t.nanosecond().min(999_999_999)).unwrap_or(t)),
    };
    match found {
        Some(t) if (first..=last).contains(&t) => Ok(t),
        Some(_) => {
            let why = format!("{:?} is not between {} and {}", shown(), first.format("%F"), last.format("%F"));
            Err(invalid(field, why))
        }
        None => {
            let why = format!("{:?} is not a time; write it as 2026-01-31 or 2026-01-31T12:00:00Z", shown());
            Err(invalid(field, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_range_are_refused() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        for date in ["1969-12-30", "2400-01-01", "+262142-12-31", "-262143-01-01"] {
            let right = format!("{date:?} is not between 1970-01-01 and ");
            for (refused, field) in [
                (span(None, Some(date), now), "to"),
                (span(Some(date), None, now), "from"),
                (exact_span("2026-03-01", Some(date), now), "to"),
                (exact_span(date, None, now), "from"),
            ] {
                let error = refused.expect_err(date);
                assert_eq!(error.field, field, "{date}: {error:?}");
                assert!(error.why.starts_with(&right), "{date}: {error:?}");
            }
        }
        // Years outside of the calendar.
        for date in ["+262143-01-01", "-262144-12-31"] {
            let error = span(None, Some(date), now).expect_err(date);
            assert!(error.why.starts_with(&format!("{date:?} is not a time; ")), "{error:?}");
        }
    }
}
