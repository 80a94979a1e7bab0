//! The shared part of all sources' parsers: numbers, times, and errors about them.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::time::parse_time;
use crate::providers::error::{ProviderError, shortened};
use wattune_core::domain::{Forecast, Origin, Quoted, SeriesProblem, SignalValue, Slot, TimeSeries};

/// Maximum number of points in a response; 72 h in five-minute steps are 864. A response with more points is a mistake
/// or an attack.
pub(in crate::providers) const MOST_POINTS: usize = 20_000;

/// Returns an error about the place `at` in a body.
pub(in crate::providers) fn malformed(at: &str, what: impl Into<String>) -> ProviderError {
    ProviderError::Malformed { what: what.into(), at: at.to_owned() }
}

/// Returns an error that names the expected and the found value.
pub(in crate::providers) fn unexpected(at: &str, expected: &str, found: &Value) -> ProviderError {
    malformed(at, format!("expected {expected}, found {}", shortened(&found.to_string())))
}

/// Refuses a body that is not an object, or that reports an error in spite of status 200.
pub(in crate::providers) fn no_fault(body: &Value) -> Result<(), ProviderError> {
    if !body.is_object() {
        return Err(unexpected("the answer", "an object", body));
    }
    let Some(error) = body.get("error").filter(|error| !error.is_null()) else { return Ok(()) };
    let fields = [error.get("message"), body.get("message"), body.get("msg"), Some(error)];
    let message = fields.into_iter().flatten().find_map(Value::as_str);
    Err(ProviderError::Unexpected { status: 200, message: shortened(message.unwrap_or(&error.to_string())) })
}

/// Checks that a response is for the requested zone.
pub(in crate::providers) fn same_zone(given: Option<&Value>, asked: &str, at: &str) -> Result<(), ProviderError> {
    let given = given.unwrap_or(&Value::Null);
    let Some(zone) = given.as_str() else { return Err(unexpected(at, &format!("the zone {asked}"), given)) };
    if zone.eq_ignore_ascii_case(asked) {
        return Ok(());
    }
    let zone = shortened(zone);
    Err(malformed(at, format!("wrong zone in the answer: {zone}, but {asked} was asked for; check the zone")))
}

/// Maximum length of a zone's code, in bytes.
const LONGEST_CODE: usize = 96;

/// Returns true if a text can be a zone's code.
pub(in crate::providers) fn is_code(text: &str) -> bool {
    (1..=LONGEST_CODE).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

/// Reads a value of the signal, a number or a numeric text; `None` if the field is absent or `null`.
pub(in crate::providers) fn value<V: SignalValue>(field: Option<&Value>, at: &str) -> Result<Option<V>, ProviderError> {
    scaled(field, 1.0, at)
}

/// Reads a value of the signal and multiplies it by `factor`, which converts the body's unit to the type's.
pub(in crate::providers) fn scaled<V: SignalValue>(
    field: Option<&Value>,
    factor: f64,
    at: &str,
) -> Result<Option<V>, ProviderError> {
    let Some(field) = field.filter(|f| !f.is_null()) else { return Ok(None) };
    let number = field.as_f64().or_else(|| field.as_str()?.trim().parse().ok());
    let checked = number.and_then(|n| V::checked(n * factor));
    checked
        .map(Some)
        .ok_or_else(|| unexpected(at, &format!("{} from {} to {}, or null", V::WHAT, V::LOWEST, V::HIGHEST), field))
}

/// Reads a time: text with a zone, or unix seconds.
pub(in crate::providers) fn time(field: Option<&Value>, at: &str) -> Result<DateTime<Utc>, ProviderError> {
    timestamp(field, at, false)
}

/// Reads a time, where text without a zone is UTC.
pub(in crate::providers) fn utc_time(field: Option<&Value>, at: &str) -> Result<DateTime<Utc>, ProviderError> {
    timestamp(field, at, true)
}

fn timestamp(field: Option<&Value>, at: &str, assume_utc: bool) -> Result<DateTime<Utc>, ProviderError> {
    let field = field.unwrap_or(&Value::Null);
    let text = match field {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(unexpected(at, "a time", other)),
    };
    parse_time(&text, assume_utc).map_err(|problem| malformed(at, format!("{:?} {problem}", shortened(&text))))
}

/// Reads the array in a field, and refuses one of more than `MOST_POINTS` entries.
pub(in crate::providers) fn array<'a>(field: Option<&'a Value>, at: &str) -> Result<&'a [Value], ProviderError> {
    let field = field.unwrap_or(&Value::Null);
    let array = field.as_array().ok_or_else(|| unexpected(at, "an array", field))?;
    if array.len() > MOST_POINTS {
        return Err(malformed(at, format!("{} entries; at most {MOST_POINTS} are accepted", array.len())));
    }
    Ok(array)
}

/// Minimum difference between starts that may replace the most common difference as the step; shorter differences come
/// from inexact starts.
const SHORTEST_STEP: TimeDelta = TimeDelta::minutes(5);

/// Returns slots for points that have only a start. Each slot lasts the usual difference between neighbouring starts
/// (`step` if there is only one point), but at most until the next start. Points need not be in order; of two points
/// with the same start, the later one in `points` counts.
pub(in crate::providers) fn by_starts<T>(
    mut points: Vec<(DateTime<Utc>, T)>,
    step: Option<TimeDelta>,
) -> Vec<(Slot, T)> {
    points.sort_by_key(|(start, _)| *start);
    points.reverse();
    points.dedup_by_key(|(start, _)| *start);
    points.reverse();
    let differences = points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let Some(step) = usual(differences).or(step) else { return Vec::new() };
    let starts: Vec<_> = points.iter().map(|(start, _)| *start).skip(1).map(Some).chain([None]).collect();
    let slot = |start: DateTime<Utc>, next: Option<DateTime<Utc>>| {
        let end = start.checked_add_signed(step)?;
        Slot::new(start, next.map_or(end, |next| end.min(next)))
    };
    points.into_iter().zip(starts).filter_map(|((start, value), next)| Some((slot(start, next)?, value))).collect()
}

/// Returns the most common difference, or the median of equally common ones. If shorter differences divide the most
/// common one evenly, returns the shortest of them: points are missing then, and the most common difference spans the
/// gaps.
fn usual(mut differences: Vec<TimeDelta>) -> Option<TimeDelta> {
    differences.sort_unstable();
    let groups: Vec<&[TimeDelta]> = differences.chunk_by(|a, b| a == b).collect();
    let most = groups.iter().map(|group| group.len()).max()?;
    let common: Vec<TimeDelta> = groups.iter().filter(|group| group.len() == most).map(|group| group[0]).collect();
    let step = common[(common.len() - 1) / 2];
    let divides = |part: &TimeDelta| *part >= SHORTEST_STEP && step.num_seconds() % part.num_seconds() == 0;
    Some(differences.into_iter().find(divides).map_or(step, |part| part.min(step)))
}

/// Returns the points that have a value as a series, with notes about gaps and overlaps.
pub(in crate::providers) fn series<V: SignalValue>(
    points: impl Iterator<Item = (Slot, Option<V>)>,
    origin: Origin,
) -> (TimeSeries<Quoted<V>>, Vec<String>) {
    let points = points.filter_map(|(slot, value)| Some((slot, Quoted { value: value?, origin })));
    let (series, problems) = TimeSeries::from_points(points.collect());
    (series, notes(&problems))
}

/// Describes the first five problems, and the number of further ones.
pub(in crate::providers) fn notes(problems: &[SeriesProblem]) -> Vec<String> {
    let mut notes: Vec<String> = problems.iter().take(5).map(ToString::to_string).collect();
    if problems.len() > 5 {
        notes.push(format!("and {} more problems", problems.len() - 5));
    }
    notes
}

/// Returns the note of an answer without the actual values of the last day.
pub(in crate::providers) fn unknown_last_day(error: &ProviderError) -> String {
    format!("the actual values of the last 24 h are unknown: {error}")
}

/// Returns a note if the forecast ends more than 1.5 h before the requested horizon, `requested_h` hours after now.
pub(in crate::providers) fn note_short<V: SignalValue>(
    forecast: &Forecast<V>,
    now: DateTime<Utc>,
    requested_h: f64,
) -> Option<String> {
    let end = forecast.expected.end()?;
    let hours = (end - now).as_seconds_f64() / 3600.0;
    (hours < requested_h - 1.5)
        .then(|| format!("the forecast reaches {hours:.1} h ahead; {requested_h:.0} h were asked for"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::units::GramsPerKwh;

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
    fn starts_become_slots_of_the_usual_step() {
        let at = |minutes: i64| DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(minutes);
        let slots = by_starts(vec![(at(30), 'c'), (at(0), 'a'), (at(15), 'b'), (at(60), 'd'), (at(15), 'x')], None);
        let expected = [(0, 15, 'a'), (15, 30, 'x'), (30, 45, 'c'), (60, 75, 'd')];
        assert_eq!(slots, expected.map(|(from, to, v)| (Slot::new(at(from), at(to)).expect("from < to"), v)));
        let lengths = |starts: &[i64]| -> Vec<i64> {
            let points = starts.iter().map(|s| (DateTime::UNIX_EPOCH + TimeDelta::seconds(*s), ())).collect();
            by_starts(points, None).iter().map(|(slot, ())| (slot.end() - slot.start()).num_seconds()).collect()
        };
        assert_eq!(lengths(&[0, 3600, 3601, 7200, 10800, 14400]), [3600, 1, 3599, 3600, 3600, 3600], "one stray start");
        assert_eq!(lengths(&[0, 3600, 3601, 7200]), [3599, 1, 3599, 3599], "nothing overlaps");
        assert_eq!(lengths(&[0, 7200, 14400, 18000]), [3600, 3600, 3600, 3600], "gaps stay gaps");
        assert_eq!(lengths(&[0, 60, 120]), [60, 60, 60]);
        assert_eq!(by_starts(vec![(at(0), 'a')], None), []);
        assert_eq!(by_starts(vec![(at(0), 'a')], Some(chrono::TimeDelta::hours(1))).len(), 1);
    }
}
