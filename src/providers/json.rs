//! What the parsers of all sources share: numbers, times and complaints about them.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::ProviderError;
use super::error::shortened;
use super::time::parse_time;
use crate::domain::{Forecast, SeriesProblem, SignalValue, Slot};

/// More points than this in one answer are a mistake or an attack: 72 h of five minutes are 864.
pub(super) const MOST_POINTS: usize = 20_000;

/// Complaint about a place in a body.
pub(super) fn malformed(at: &str, what: impl Into<String>) -> ProviderError {
    ProviderError::Malformed { what: what.into(), at: at.to_owned() }
}

/// Complaint with what was found there.
pub(super) fn unexpected(at: &str, expected: &str, found: &Value) -> ProviderError {
    malformed(at, format!("expected {expected}, found {}", shortened(&found.to_string())))
}

/// A value of the signal: a number, or text that is one; `None` where there is none or `null`. Zero is zero.
pub(super) fn value<V: SignalValue>(field: Option<&Value>, at: &str) -> Result<Option<V>, ProviderError> {
    scaled(field, 1.0, at)
}

/// The same with a factor from the body's unit to the type's.
pub(super) fn scaled<V: SignalValue>(field: Option<&Value>, factor: f64, at: &str) -> Result<Option<V>, ProviderError> {
    let Some(field) = field.filter(|f| !f.is_null()) else { return Ok(None) };
    let number = field.as_f64().or_else(|| field.as_str()?.trim().parse().ok());
    let checked = number.and_then(|n| V::checked(n * factor));
    checked
        .map(Some)
        .ok_or_else(|| unexpected(at, &format!("{} from {} to {}, or null", V::WHAT, V::LOWEST, V::HIGHEST), field))
}

/// A moment: text with a zone, or unix seconds.
pub(super) fn time(field: Option<&Value>, at: &str) -> Result<DateTime<Utc>, ProviderError> {
    moment(field, at, false)
}

/// The same, where text without a zone is UTC.
pub(super) fn utc_time(field: Option<&Value>, at: &str) -> Result<DateTime<Utc>, ProviderError> {
    moment(field, at, true)
}

fn moment(field: Option<&Value>, at: &str, assume_utc: bool) -> Result<DateTime<Utc>, ProviderError> {
    let field = field.unwrap_or(&Value::Null);
    let text = match field {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(unexpected(at, "a time", other)),
    };
    parse_time(&text, assume_utc).map_err(|problem| malformed(at, format!("{:?} {problem}", shortened(&text))))
}

/// The array in a field, not longer than any honest answer.
pub(super) fn array<'a>(field: Option<&'a Value>, at: &str) -> Result<&'a [Value], ProviderError> {
    let field = field.unwrap_or(&Value::Null);
    let array = field.as_array().ok_or_else(|| unexpected(at, "an array", field))?;
    if array.len() > MOST_POINTS {
        return Err(malformed(at, format!("{} entries; more than {MOST_POINTS} are no forecast", array.len())));
    }
    Ok(array)
}

/// Slots for points that give their start alone: each lasts the smallest difference of neighbours, or `step` where
/// there is one point only. Points need not be in order; of two with the same start the later one counts.
pub(super) fn by_starts<T>(mut points: Vec<(DateTime<Utc>, T)>, step: Option<chrono::TimeDelta>) -> Vec<(Slot, T)> {
    points.sort_by_key(|(start, _)| *start);
    points.reverse();
    points.dedup_by_key(|(start, _)| *start);
    points.reverse();
    let smallest = points.windows(2).map(|pair| pair[1].0 - pair[0].0).min();
    let Some(step) = smallest.or(step) else { return Vec::new() };
    let slot = |start: DateTime<Utc>| Slot::new(start, start.checked_add_signed(step)?);
    points.into_iter().filter_map(|(start, value)| Some((slot(start)?, value))).collect()
}

/// The first few problems, in words.
pub(super) fn notes(problems: &[SeriesProblem]) -> Vec<String> {
    let mut notes: Vec<String> = problems.iter().take(5).map(ToString::to_string).collect();
    if problems.len() > 5 {
        notes.push(format!("and {} more of the kind", problems.len() - 5));
    }
    notes
}

/// A note if the forecast ends much earlier than was asked for.
pub(super) fn note_short<V: SignalValue>(forecast: &Forecast<V>, now: DateTime<Utc>, asked_h: f64) -> Option<String> {
    let end = forecast.expected.end()?;
    let hours = (end - now).as_seconds_f64() / 3600.0;
    (hours < asked_h - 1.5).then(|| format!("the forecast reaches {hours:.1} h ahead; {asked_h:.0} h were asked for"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GramsPerKwh;

    #[test]
    fn null_is_absent_zero_is_zero_and_text_may_be_a_number() {
        let read = |text: &str| {
            let body: Value = serde_json::from_str(text).expect("JSON");
            value::<GramsPerKwh>(body.get("v"), "v").map(|v| v.map(GramsPerKwh::get))
        };
        assert_eq!(read(r#"{"v":null}"#), Ok(None));
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#"{"v":0}"#), Ok(Some(0.0)));
        assert_eq!(read(r#"{"v":"12.5"}"#), Ok(Some(12.5)));
        for wrong in [r#"{"v":-1}"#, r#"{"v":"NaN"}"#, r#"{"v":30000}"#, r#"{"v":[]}"#, r#"{"v":true}"#] {
            assert!(read(wrong).expect_err(wrong).to_string().contains("from 0 to 20000, or null"), "{wrong}");
        }
        let converted = scaled::<GramsPerKwh>(Some(&Value::from(870)), 0.453_592_37, "v").expect("right");
        assert!((converted.expect("there").get() - 394.625_361_9).abs() < 1e-6);
    }

    #[test]
    fn starts_become_slots_of_the_smallest_step() {
        let at = |minutes: i64| DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(minutes);
        let slots = by_starts(vec![(at(30), 'c'), (at(0), 'a'), (at(15), 'b'), (at(60), 'd'), (at(15), 'x')], None);
        let expected = [(0, 15, 'a'), (15, 30, 'x'), (30, 45, 'c'), (60, 75, 'd')];
        assert_eq!(slots, expected.map(|(from, to, v)| (Slot::new(at(from), at(to)).expect("from < to"), v)));
        assert_eq!(by_starts(vec![(at(0), 'a')], None), []);
        assert_eq!(by_starts(vec![(at(0), 'a')], Some(chrono::TimeDelta::hours(1))).len(), 1);
    }
}
