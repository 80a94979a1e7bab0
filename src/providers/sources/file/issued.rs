//! Files of forecasts that name the day on which each forecast was made.

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::Deserialize;

use super::error::ParseError;
use crate::providers::client::time::in_range;
use wattune_core::domain::{CarbonSeries, Intensity, Issued, Origin, SignalKind, SignalScope, SignalValue, Slot, Zone};
use wattune_core::units::GramsPerKwh;

/// Column that names the day on which each forecast was made.
const ISSUE_DATE: &str = "issue_date_utc";

/// A row of a file that names the day on which each forecast was made.
#[derive(Deserialize)]
struct Row {
    issue_date_utc: NaiveDate,
    horizon_h: u16,
    #[serde(rename = "forecast_gco2_per_kwh")]
    value: f64,
}

/// Returns a reader of the rows, without the byte order mark with which some programs begin a file.
fn rows(bytes: &[u8]) -> csv::Reader<&[u8]> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes)
}

/// Returns true if the file names the day on which each forecast was made: a CSV file with the column `issue_date_utc`.
pub fn is_issued(bytes: &[u8]) -> bool {
    rows(bytes).headers().is_ok_and(|names| names.iter().any(|name| name == ISSUE_DATE))
}

/// Reads the forecasts in a file, in the file's order. Each was made at 00:00 UTC of its `issue_date_utc`; a row holds
/// the value, in the column `forecast_gco2_per_kwh`, for the hour that begins `horizon_h` hours later. Columns may come
/// in any order.
pub fn parse_issued(bytes: &[u8]) -> Result<Vec<Issued>, ParseError> {
    let mut all: Vec<Issued> = Vec::new();
    for (number, row) in (2..).zip(rows(bytes).deserialize()) {
        let wrong = |what: String| ParseError::new(format!("line {number}"), what);
        let row: Row = row.map_err(|error| wrong(error.to_string()))?;
        let date = row.issue_date_utc;
        // In this range, a horizon cannot exceed the calendar.
        let at = in_range(midnight(date));
        let at = at.map_err(|_| wrong(format!("{ISSUE_DATE} {date} lies outside the years 1970 to 2200")))?;
        let start = at + TimeDelta::hours(row.horizon_h.into());
        let slot = Slot::new(start, start + TimeDelta::hours(1)).ok_or_else(|| wrong("no time".to_owned()))?;
        let value = GramsPerKwh::checked(row.value).ok_or_else(|| {
            let what = format!("{} for {slot} is not {}", row.value, GramsPerKwh::WHAT);
            ParseError::new(format!("line {number}, column \"forecast_gco2_per_kwh\""), what)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_their_names() {
        let usual = "issue_date_utc,horizon_h,forecast_gco2_per_kwh\n2021-07-01,0,355.5\n2021-07-01,24,300\n";
        let right = parse_issued(usual.as_bytes()).expect("read");
        assert_eq!((right.len(), right[0].series.points().len()), (1, 2));
        for other in [
            format!("\u{feff}{usual}"),
            "horizon_h, issue_date_utc ,note,forecast_gco2_per_kwh\n0,2021-07-01,x,355.5\n24, 2021-07-01,y,300\n"
                .to_owned(),
        ] {
            assert!(is_issued(other.as_bytes()), "{other}");
            assert_eq!(parse_issued(other.as_bytes()).expect("read"), right, "{other}");
        }
        for other in ["", "time,forecast\n2021-07-01T00:00Z,1\n", "[{\"issue_date_utc\": 1}]", "issue_date,x\n"] {
            assert!(!is_issued(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn dates_beyond_the_calendar_are_refused() {
        let text = "issue_date_utc,horizon_h,forecast_gco2_per_kwh\n+262142-12-31,65535,300\n";
        let error = parse_issued(text.as_bytes()).expect_err("no such time").to_string();
        assert_eq!(error, "line 2: issue_date_utc +262142-12-31 lies outside the years 1970 to 2200");
    }
}
