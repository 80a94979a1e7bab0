//! The recorded traces, where they are at hand: `WATTUNE_TRACES` names the folder (default: `../shared/data` beside
//! the repository). With `WATTUNE_REQUIRE_TRACES=1` their absence is a failure.

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};

use super::FileSettings;
use super::file::{ParsedFile, parse, parse_issued};
use crate::domain::Issued;

pub(crate) fn trace(name: &str) -> Option<ParsedFile> {
    Some(parse(&read(name)?, &FileSettings::default(), None).expect("a recorded trace"))
}

/// Forecasts with the time of each.
pub(crate) fn issues(name: &str) -> Option<Vec<Issued>> {
    Some(parse_issued(&read(name)?).expect("recorded forecasts"))
}

fn read(name: &str) -> Option<Vec<u8>> {
    let folder = std::env::var_os("WATTUNE_TRACES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"));
    let path = folder.join("carbon").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
            assert!(!required, "{} is required: {error}", path.display());
            println!("skipped: {} cannot be read ({error}); set WATTUNE_TRACES", path.display());
            None
        }
    }
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
