//! A recorded grid: actual carbon intensities, and the forecasts that were published by a given time.

use chrono::{DateTime, TimeDelta, Utc};

use wattune_core::domain::{CarbonSeries, Issued, Slot};

/// Length of the visible past: the span that the local forecaster learns from, and a day more for slots at its edge.
const BACK: TimeDelta = TimeDelta::days(29);
/// Lead time at which the rolling forecast of a slot becomes known: the longest horizon of the sources that publish
/// rolling forecasts.
const ROLLING_HORIZON: TimeDelta = TimeDelta::hours(72);

/// The forecasts that a source published for a recorded grid.
#[derive(Clone, Debug, PartialEq)]
pub enum PublishedForecasts {
    /// The source publishes no forecasts.
    Nothing,
    /// The source publishes one forecast value per slot, known from 72 hours before the slot on.
    Rolling(CarbonSeries),
    /// The source publishes forecasts, listed with the times of their publication and in the order of these times.
    Issued(Vec<Issued>),
}

impl PublishedForecasts {
    /// Returns the start of the earliest forecast slot.
    pub fn start(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Nothing => None,
            Self::Rolling(series) => series.start(),
            Self::Issued(issued) => issued.iter().filter_map(|i| i.series.start()).min(),
        }
    }

    /// Returns the end of the latest forecast slot.
    pub fn end(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Nothing => None,
            Self::Rolling(series) => series.end(),
            Self::Issued(issued) => issued.iter().filter_map(|i| i.series.end()).max(),
        }
    }
}

/// A grid recorded in files.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedGrid {
    /// Name of the grid in results.
    pub name: String,
    /// Actual carbon intensities.
    pub actual: CarbonSeries,
    forecasts: PublishedForecasts,
    /// For each slot, the newest forecast that was published before the slot began.
    at_begin: CarbonSeries,
}

impl RecordedGrid {
    /// Makes a grid of the actual values and of the forecasts that were published for them.
    pub fn new(name: String, actual: CarbonSeries, mut forecasts: PublishedForecasts) -> Self {
        let at_begin = match &mut forecasts {
            PublishedForecasts::Nothing => CarbonSeries::default(),
            PublishedForecasts::Rolling(series) => series.clone(),
            PublishedForecasts::Issued(issued) => {
                issued.sort_by_key(|i| i.issued_at);
                let mut begun = CarbonSeries::default();
                issued.iter().for_each(|i| begun.overwrite(&ahead(i, i.issued_at)));
                begun
            }
        };
        Self { name, actual, forecasts, at_begin }
    }

    /// Returns the forecasts of the grid.
    pub fn forecasts(&self) -> &PublishedForecasts {
        &self.forecasts
    }

    /// Returns the forecast values that were published by `now`: for slots of the last 29 days, the value that was the
    /// newest when the slot began; for later slots, the value that is the newest at `now`.
    pub(super) fn forecast_by(&self, now: DateTime<Utc>) -> CarbonSeries {
        let begun = |until| {
            let points = Slot::new(now - BACK, until).map_or(&[][..], |span| self.at_begin.overlapping(&span));
            CarbonSeries::from_points(points.to_vec()).0
        };
        match &self.forecasts {
            PublishedForecasts::Nothing => CarbonSeries::default(),
            PublishedForecasts::Rolling(_) => begun(now + ROLLING_HORIZON),
            PublishedForecasts::Issued(issued) => {
                let mut newest = begun(now + TimeDelta::microseconds(1));
                let known = &issued[..issued.partition_point(|i| i.issued_at <= now)];
                let reaching = known.iter().filter(|i| i.series.end().is_some_and(|end| end > now));
                reaching.for_each(|i| newest.overwrite(&ahead(i, now)));
                newest
            }
        }
    }

    pub(super) fn issues_by(&self, now: DateTime<Utc>) -> Vec<&Issued> {
        match &self.forecasts {
            PublishedForecasts::Issued(issued) => issued.iter().take_while(|i| i.issued_at <= now).collect(),
            PublishedForecasts::Nothing | PublishedForecasts::Rolling(_) => Vec::new(),
        }
    }

    /// Returns the actual values of the last 29 days, for slots that had ended by `now`.
    pub(super) fn actual_by(&self, now: DateTime<Utc>) -> CarbonSeries {
        let points = Slot::new(now - BACK, now).map_or(&[][..], |span| self.actual.overlapping(&span));
        CarbonSeries::from_points(points.iter().filter(|(slot, _)| slot.end() <= now).copied().collect()).0
    }
}

/// Returns the first time from `from` on for which a series has no value.
pub fn covered_until(series: &CarbonSeries, from: DateTime<Utc>) -> DateTime<Utc> {
    let points = series.points();
    let ahead = &points[points.partition_point(|(slot, _)| slot.end() <= from)..];
    ahead.iter().fold(from, |until, (slot, _)| if slot.start() <= until { slot.end() } else { until })
}

/// Returns the part of a forecast whose slots begin at `from` or later.
fn ahead(issued: &Issued, from: DateTime<Utc>) -> CarbonSeries {
    let points = issued.series.points().iter().filter(|(slot, _)| slot.start() >= from);
    CarbonSeries::from_points(points.copied().collect()).0
}
