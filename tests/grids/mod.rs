//! What the parsers and the forecast model make of the recorded grids.

mod quality;
mod ridge;

use chrono::{DateTime, TimeDelta, Utc};
use wattune::providers::FileSettings;
use wattune::providers::file::{ParsedFile, parse, parse_issued};
use wattune_core::domain::Issued;

fn trace(name: &str) -> Option<ParsedFile> {
    Some(parse(&read(name)?, &FileSettings::default(), None).expect("a recorded trace"))
}

/// Forecasts with the time of each.
fn issues(name: &str) -> Option<Vec<Issued>> {
    Some(parse_issued(&read(name)?).expect("recorded forecasts"))
}

fn read(name: &str) -> Option<Vec<u8>> {
    let path = crate::support::traces()?.join("carbon").join(name);
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn hours_after(start: Option<DateTime<Utc>>, hours: i64) -> DateTime<Utc> {
    start.expect("not empty") + TimeDelta::hours(hours)
}

#[test]
fn the_miso_trace_is_read_whole() {
    let Some(file) = trace("miso_mason_city_2022-10.csv") else { return };
    assert_eq!((file.expected.points().len(), file.actual.points().len()), (167, 167));
    assert_eq!(file.zone.map(String::from).as_deref(), Some("MISO_MASON_CITY"));
    assert!(file.notes.is_empty(), "{:?}", file.notes);
    assert_eq!(file.expected.end(), Some(hours_after(file.expected.start(), 83) + TimeDelta::minutes(30)));
}

#[test]
fn yearly_traces_have_no_gaps() {
    for zone in ["CISO", "PJM", "DE", "SE"] {
        let Some(file) = trace(&format!("{zone}_2021_hourly.csv")) else { return };
        assert_eq!((file.actual.points().len(), file.notes.len()), (8760, 0), "{zone}: {:?}", file.notes);
    }
}
