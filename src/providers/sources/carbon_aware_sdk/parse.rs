//! Parsers of the WebAPI's responses, without a clock and without requests.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::providers::client::json::{MOST_POINTS, array, malformed, time, unexpected, value};
use crate::providers::error::{ProviderError, shortened};
use wattune_core::domain::Slot;
use wattune_core::units::GramsPerKwh;

/// Maximum length of a slot.
const LONGEST: TimeDelta = TimeDelta::days(1);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ParsedForecast {
    /// Time at which the data source made the forecast.
    pub(super) generated_at: Option<DateTime<Utc>>,
    /// Values of the forecast, oldest first.
    pub(super) points: Vec<(Slot, GramsPerKwh)>,
    pub(super) notes: Vec<String>,
}

/// Reads the forecast for a location. Two fields are ignored: the `location` of each point, which is the data source's
/// own name, and `optimalDataPoints`.
pub(super) fn forecast(body: &Value, location: &str) -> Result<ParsedForecast, ProviderError> {
    let alone = std::slice::from_ref(body);
    let forecasts = if body.is_object() { alone } else { array(Some(body), "the answer")? };
    if forecasts.is_empty() {
        return Err(ProviderError::Empty { what: "the list of forecasts is empty".to_owned() });
    }
    let named = |forecast: &&Value| same(forecast.get("location"), location);
    let Some(forecast) = forecasts.iter().find(named) else {
        let given = forecasts[0].get("location").unwrap_or(&Value::Null);
        return Err(unexpected("location", &format!("{location:?}, which was asked for"), given));
    };
    let generated_at = forecast.get("generatedAt").filter(|t| !t.is_null());
    let generated_at = generated_at.map(|t| time(Some(t), "generatedAt")).transpose()?;
    let mut parsed = ParsedForecast { generated_at, ..ParsedForecast::default() };
    let mut points = Vec::new();
    let mut negative = 0;
    for (i, point) in array(forecast.get("forecastData"), "forecastData")?.iter().enumerate() {
        let at = |field: &str| format!("forecastData[{i}].{field}");
        let start = time(point.get("timestamp"), &at("timestamp"))?;
        let length = length(point.get("duration"), &at("duration"))?;
        let value = rating(point.get("value"), &at("value"), &mut negative)?;
        points.push((start, length, value));
    }
    parsed.points = slots(points, &mut parsed.notes);
    parsed.notes.extend(note_negative(negative));
    Ok(parsed)
}

/// Reads the actual values of `/emissions/bylocation`. The locations in the rows are the data source's own names, so
/// they are not compared with the requested one.
pub(super) fn emissions(body: &Value) -> Result<Vec<(Slot, GramsPerKwh)>, ProviderError> {
    let mut points = Vec::new();
    for (i, row) in array(Some(body), "the answer")?.iter().enumerate() {
        let at = |field: &str| format!("[{i}].{field}");
        let start = time(row.get("time"), &at("time"))?;
        let length = length(row.get("duration"), &at("duration"))?;
        points.push((start, length, rating(row.get("rating"), &at("rating"), &mut 0)?));
    }
    Ok(slots(points, &mut Vec::new()))
}

/// Reads the mean of the requested span from `/emissions/average-carbon-intensity`; `None` where it is not known.
pub(super) fn average(body: &Value, location: &str, asked: Slot) -> Result<Option<GramsPerKwh>, ProviderError> {
    if !same(body.get("location"), location) {
        let given = body.get("location").unwrap_or(&Value::Null);
        return Err(unexpected("location", &format!("{location:?}, which was asked for"), given));
    }
    let (start, end) = (time(body.get("startTime"), "startTime")?, time(body.get("endTime"), "endTime")?);
    if Slot::new(start, end) != Some(asked) {
        return Err(malformed("startTime", format!("is not the start of the requested span {asked}")));
    }
    rating(body.get("carbonIntensity"), "carbonIntensity", &mut 0)
}

/// A location that the WebAPI knows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Location {
    /// Name of the location in requests.
    pub(super) key: String,
    /// The data source's name of the location.
    pub(super) name: Option<String>,
    /// Latitude and longitude of the location in degrees.
    pub(super) coordinates: Option<(f64, f64)>,
}

/// Reads `/locations`: a map of keys to locations. Names of fields may be in any letter case, and numbers may be text.
pub(super) fn locations(body: &Value) -> Result<Vec<Location>, ProviderError> {
    let map = body.as_object().ok_or_else(|| unexpected("the answer", "a map of locations", body))?;
    if map.len() > MOST_POINTS {
        return Err(malformed("the answer", format!("{} locations; more than {MOST_POINTS}", map.len())));
    }
    let known = map.iter().map(|(key, place)| {
        let field = |wanted: &str| {
            let fields = place.as_object()?;
            fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        let degrees = |wanted: &str, most: f64| {
            let given = field(wanted)?;
            let number = given.as_f64().or_else(|| given.as_str()?.trim().parse().ok())?;
            (number.abs() <= most).then_some(number)
        };
        Location {
            key: key.clone(),
            name: field("name").and_then(Value::as_str).map(str::to_owned),
            coordinates: degrees("latitude", 90.0).zip(degrees("longitude", 180.0)),
        }
    });
    Ok(known.collect())
}

/// Returns true if a location in the body is the requested one; the WebAPI ignores case.
fn same(given: Option<&Value>, asked: &str) -> bool {
    given.and_then(Value::as_str).is_some_and(|given| given.trim().eq_ignore_ascii_case(asked))
}

/// Reads a value. A negative number counts as absent and increases `negative`: the WebAPI writes one where its data
/// source has no value.
fn rating(field: Option<&Value>, at: &str, negative: &mut usize) -> Result<Option<GramsPerKwh>, ProviderError> {
    if field.and_then(Value::as_f64).is_some_and(|number| number < 0.0) {
        *negative += 1;
        return Ok(None);
    }
    value(field, at)
}

fn note_negative(count: usize) -> Option<String> {
    (count > 0).then(|| format!("{count} points are negative, which stands for absent; left out"))
}

/// Reads a length: minutes as a number, or a .NET time span ("00:05:00", "1.00:00:00"). Zero and an absent field give
/// `None`.
fn length(field: Option<&Value>, at: &str) -> Result<Option<TimeDelta>, ProviderError> {
    let Some(field) = field.filter(|f| !f.is_null()) else { return Ok(None) };
    let seconds = field.as_f64().map(|minutes| minutes * 60.0).or_else(|| time_span(field.as_str()?));
    let seconds = seconds.filter(|s| (0.0..=LONGEST.as_seconds_f64()).contains(s));
    let seconds = seconds.ok_or_else(|| unexpected(at, "a length of at most a day", field))?;
    Ok(Some(wattune_core::units::Seconds::new(seconds).to_delta()).filter(|length| *length > TimeDelta::zero()))
}

/// Returns the seconds of a time span "[days.]hours:minutes:seconds[.fraction]".
fn time_span(text: &str) -> Option<f64> {
    let mut parts = text.trim().splitn(3, ':');
    let (first, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let (days, hours) = first.split_once('.').unwrap_or(("0", first));
    let whole = |text: &str| text.parse::<u16>().ok().map(f64::from);
    let seconds: f64 = seconds.parse().ok()?;
    Some(((whole(days)? * 24.0 + whole(hours)?) * 60.0 + whole(minutes)?) * 60.0 + seconds)
}

type Point = (DateTime<Utc>, Option<TimeDelta>, Option<GramsPerKwh>);

/// Returns the slots of points. A point that lasts beyond the start of the next one (as rolling means do) ends there; a
/// point without a length lasts as long as the smallest distance between points.
fn slots(mut points: Vec<Point>, notes: &mut Vec<String>) -> Vec<(Slot, GramsPerKwh)> {
    points.sort_by_key(|(start, ..)| *start);
    // Of two points with the same start, the later one counts.
    points.reverse();
    points.dedup_by_key(|(start, ..)| *start);
    points.reverse();
    let step = points.windows(2).map(|pair| pair[1].0 - pair[0].0).min();
    let mut overlapping = None;
    let mut slots = Vec::new();
    for (i, (start, length, value)) in points.iter().enumerate() {
        let until_next = points.get(i + 1).map(|(next, ..)| *next - *start);
        let mut lasts = length.or(step);
        if let (Some(length), Some(until_next)) = (*length, until_next)
            && until_next < length
        {
            overlapping = Some((length, until_next));
            lasts = Some(until_next);
        }
        if until_next.is_none() && overlapping.is_some() {
            // The last point of rolling means gets the same length as those before it.
            lasts = lasts.min(step).or(lasts);
        }
        let slot = lasts.and_then(|lasts| Slot::new(*start, start.checked_add_signed(lasts)?));
        slots.extend(slot.zip(*value));
    }
    if let Some((length, apart)) = overlapping {
        notes.push(format!(
            "points last {} min but are {} min apart, so they are means of a rolling window; each is used for {} min only. \
             Request the WebAPI without windowSize",
            length.num_minutes(),
            apart.num_minutes(),
            apart.num_minutes()
        ));
    }
    slots
}

/// Lists the first twelve locations for a message.
pub(super) fn some_of(locations: &[Location]) -> String {
    let names: Vec<_> = locations.iter().take(12).map(|l| format!("{:?}", shortened(&l.key))).collect();
    let more = if locations.len() > 12 { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
