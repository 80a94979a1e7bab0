//! Replays files: shifts the times of their values to the present.

use chrono::{DateTime, TimeDelta, Utc};

use super::parse::ParsedFile;
use super::settings::Settings;
use super::signal::FileSignal;
use wattune_core::domain::{Quoted, Slot, TimeSeries};

/// Length of the part of a file that one answer holds: `LOOKBACK` before now, and `AHEAD` after now.
pub(super) const LOOKBACK: TimeDelta = TimeDelta::days(31);
pub(super) const AHEAD: TimeDelta = TimeDelta::days(31);

/// Approximate maximum number of rows on each side of now when a short file repeats: 35 days in steps of 5 min.
pub(super) const MOST_ROWS: usize = 10_000;

/// The replay of a file: the shift of its times, and whether it repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Play {
    shift: TimeDelta,
    period: TimeDelta,
    start: DateTime<Utc>,
    repeat: bool,
}

impl Play {
    pub(super) fn new<V>(file: &ParsedFile<V>, settings: &Settings, anchor: DateTime<Utc>) -> Self {
        let (start, end) = file.span().unwrap_or((anchor, anchor));
        Self {
            shift: anchor - settings.replay_start.unwrap_or(start),
            period: end - start,
            start,
            repeat: settings.repeat,
        }
    }

    /// Returns the values of `series` near `now`, with shifted slots, from all rounds (passes through the file). There
    /// is nothing before the first round, which begins with the file's first row.
    pub(super) fn around<V: FileSignal>(
        &self,
        series: &TimeSeries<Quoted<V>>,
        now: DateTime<Utc>,
    ) -> Vec<(Slot, Quoted<V>)> {
        let Some(span) = Slot::new(now - LOOKBACK, now + AHEAD).filter(|_| !series.is_empty()) else {
            return Vec::new();
        };
        let round_of = |t: DateTime<Utc>| {
            let since = (t - (self.start + self.shift)).num_milliseconds();
            since.div_euclid(self.period.num_milliseconds().max(1))
        };
        let (first, last) = if self.repeat {
            let (most, current) = (i64::try_from(MOST_ROWS / series.points().len()).unwrap_or(0) + 1, round_of(now));
            (round_of(span.start()).max(current - most).max(0), round_of(span.end()).min(current + most).max(0))
        } else {
            (0, 0)
        };
        let mut points = Vec::new();
        for round in first..=last {
            let shift = TimeDelta::milliseconds(self.period.num_milliseconds() * round) + self.shift;
            let moved = |slot: &Slot| Slot::new(slot.start() + shift, slot.end() + shift);
            let placed = series.points().iter().filter_map(|(slot, value)| Some((moved(slot)?, *value)));
            points.extend(placed.filter(|(slot, _)| slot.intersection(&span).is_some()));
        }
        points
    }
}
