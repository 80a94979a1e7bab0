//! Property tests and scores computed by hand. `tests/grids` measures the quality on recorded grids.

mod backtests;
mod properties;
mod scores;

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{CarbonSeries, Intensity, Origin, Slot};
use crate::units::GramsPerKwh;

/// Returns the time that lies a number of minutes after midnight of a Thursday.
fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_006) + TimeDelta::minutes(minutes)
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

fn series(points: impl IntoIterator<Item = (i64, i64, f64)>) -> CarbonSeries {
    let points = points.into_iter().map(|(from, to, value)| {
        (slot(from, to), Intensity { value: GramsPerKwh::new(value), origin: Origin::Measured })
    });
    CarbonSeries::from_points(points.collect()).0
}

/// Returns hourly values from `from` to `to` (hours) as a function of the hour.
fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
    series((from..to).map(|h| (h * 60, h * 60 + 60, value(h))))
}
