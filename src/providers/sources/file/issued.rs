//! Files of forecasts that name the day on which each forecast was made.

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::Deserialize;

use super::error::ParseError;
use wattune_core::domain::{CarbonSeries, Intensity, Issued, Origin, SignalKind, SignalScope, SignalValue, Slot, Zone};
use wattune_core::units::GramsPerKwh;

/// First bytes of a file that names the day on which each forecast was made.
const HEADER: &[u8] = b"issue_date_utc,";

/// A row of a file that names the day on which each forecast was made.
#[derive(Deserialize)]
struct Row {
    issue_date_utc: NaiveDate,
    horizon_h: u16,
    #[serde(rename = "forecast_gco2_per_kwh")]
    value: f64,
}

/// Returns true if the file names the day on which each forecast was made: a CSV file that begins with
/// `issue_date_utc`.
pub fn is_issued(bytes: &[u8]) -> bool {
    bytes.starts_with(HEADER)
}

/// Reads the forecasts in a file, in the file's order. Each was made at 00:00 UTC of its `issue_date_utc`; a row holds
/// the value for the hour that begins `horizon_h` hours later.
pub fn parse_issued(bytes: &[u8]) -> Result<Vec<Issued>, ParseError> {
    let mut all: Vec<Issued> = Vec::new();
    for (number, row) in (2..).zip(csv::Reader::from_reader(bytes).deserialize()) {
        let wrong = |what: String| ParseError { at: format!("line {number}"), what };
        let row: Row = row.map_err(|error| wrong(error.to_string()))?;
        let at = midnight(row.issue_date_utc);
        let start = at + TimeDelta::hours(row.horizon_h.into());
        let slot = Slot::new(start, start + TimeDelta::hours(1)).ok_or_else(|| wrong("no time".to_owned()))?;
        let value = GramsPerKwh::checked(row.value).ok_or_else(|| ParseError {
            at: format!("line {number}, column \"forecast_gco2_per_kwh\""),
            what: format!("{} for {slot} is not {}", row.value, GramsPerKwh::WHAT),
        })?;
        if all.last().is_none_or(|last| last.issued_at != at) {
            all.push(issued(at));
        }
        if let Some(last) = all.last_mut() {
            last.series.insert(slot, Intensity { value, origin: Origin::Forecast });
        }
    }
    Ok(all)
}

/// Splits a series into one forecast per day, as if made at 00:00 UTC for the slots that begin on that day.
pub fn day_ahead(series: &CarbonSeries) -> Vec<Issued> {
    let day = |slot: &Slot| midnight(slot.start().date_naive());
    let days = series.points().chunk_by(|a, b| day(&a.0) == day(&b.0));
    days.map(|points| {
        let made = issued(day(&points[0].0));
        Issued { series: CarbonSeries::from_points(points.to_vec()).0, ..made }
    })
    .collect()
}

fn midnight(date: NaiveDate) -> DateTime<Utc> {
    date.and_time(NaiveTime::MIN).and_utc()
}

fn issued(at: DateTime<Utc>) -> Issued {
    Issued {
        source: "file".into(),
        zone: Zone::new("file").expect("a short name of letters"),
        kind: SignalKind::Unspecified,
        scope: SignalScope::Unspecified,
        issued_at: at,
        retrieved_at: at,
        series: CarbonSeries::default(),
    }
}
