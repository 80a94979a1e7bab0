//! Converts the times in a file's rows that name no time zone.

use std::collections::HashMap;

use chrono::{DateTime, NaiveDateTime, Utc};

use super::time_zone::TimeZoneName;
use crate::providers::client::time::{ReadTime, TimeProblem, in_range, read_time};

/// Converts times without a time zone from the file's time zone (the setting `time_zone`) to UTC. When clocks are put
/// back, an hour occurs twice; the order of the rows determines which of the two is meant.
#[derive(Debug)]
pub(super) struct LocalTimes {
    zone: Option<TimeZoneName>,
    /// The last row of each zone of the grid: first its start, second true if the rows run back in time.
    last: HashMap<Option<String>, (DateTime<Utc>, bool)>,
    /// True if a time without a time zone was read.
    pub(super) is_used: bool,
}

impl LocalTimes {
    /// Makes a converter; if `zone` is absent, times without a time zone are refused.
    pub(super) fn new(zone: Option<TimeZoneName>) -> Self {
        Self { zone, last: HashMap::new(), is_used: false }
    }

    /// Reads the start of the next row. `grid_zone` is the row's zone of the grid: the last row of the same zone
    /// determines which of two possible times is meant.
    pub(super) fn start(&mut self, text: &str, grid_zone: Option<&str>) -> Result<DateTime<Utc>, TimeProblem> {
        let moments = self.moments(text)?;
        let key = grid_zone.map(str::to_owned);
        let last = self.last.get(&key).copied();
        let chosen = match last {
            Some((last, true)) => moments.iter().rev().find(|t| **t < last).or(moments.first()),
            Some((last, false)) => moments.iter().find(|t| **t > last).or(moments.last()),
            None => moments.first(),
        };
        let chosen = chosen.copied().ok_or(TimeProblem::Skipped)?;
        let goes_back = match last {
            Some((last, before)) if chosen == last => before,
            Some((last, _)) => chosen < last,
            None => false,
        };
        self.last.insert(key, (chosen, goes_back));
        Ok(chosen)
    }

    /// Reads the end of a row that begins at `start`.
    pub(super) fn end(&mut self, text: &str, start: DateTime<Utc>) -> Result<DateTime<Utc>, TimeProblem> {
        let moments = self.moments(text)?;
        moments.iter().find(|t| **t > start).or(moments.last()).copied().ok_or(TimeProblem::Skipped)
    }

    fn moments(&mut self, text: &str) -> Result<Vec<DateTime<Utc>>, TimeProblem> {
        let shown: NaiveDateTime = match read_time(text)? {
            ReadTime::Timestamp(at) => return Ok(vec![at]),
            ReadTime::Shown(shown) => shown,
        };
        self.is_used = true;
        let zone = self.zone.ok_or(TimeProblem::NoZone)?;
        zone.moments(shown).into_iter().map(in_range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(zone: &str, rows: &[&str]) -> Result<Vec<String>, TimeProblem> {
        let zone = TimeZoneName::try_from(zone.to_owned()).expect("a zone");
        let mut times = LocalTimes::new(Some(zone));
        rows.iter().map(|text| Ok(times.start(text, None)?.format("%d %H:%M").to_string())).collect()
    }

    #[test]
    fn the_order_resolves_an_hour_that_is_shown_twice() {
        let rows = [
            "2026-10-25 01:30",
            "2026-10-25 02:00",
            "2026-10-25 02:30",
            "2026-10-25 02:00",
            "2026-10-25 02:30",
            "2026-10-25 03:00",
        ];
        let right = ["24 23:30", "25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00"];
        assert_eq!(starts("Europe/Berlin", &rows).expect("right"), right);
        let back = |list: &[&'static str]| list.iter().rev().copied().collect::<Vec<_>>();
        assert_eq!(starts("Europe/Berlin", &back(&rows)).expect("right"), back(&right));
        let german = ["25.10.2026 01:30", "25.10.2026 02:00:00"];
        assert_eq!(starts("Europe/Berlin", &german).expect("right"), ["24 23:30", "25 00:00"]);
    }

    #[test]
    fn an_hour_that_never_was_is_refused() {
        assert_eq!(starts("Europe/Berlin", &["2026-03-29 02:30"]), Err(TimeProblem::Skipped));
        assert_eq!(starts("UTC", &["2026-03-29 02:30"]).expect("right"), ["29 02:30"]);
    }
}
