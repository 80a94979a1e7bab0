//! Threshold rule as in Wiesner et al., "Let's Wait Awhile" (Middleware 2021): the job starts as soon as the intensity is
//! at or below a quantile of the forecast over the time in which it may start.

use chrono::{DateTime, TimeDelta, Utc};

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};
use wattune_core::domain::{CarbonSeries, Slot};
use wattune_core::ledger::mean_intensity;

pub(super) const POLICY: StartPolicy = StartPolicy {
    name: "quantile",
    about: "as soon as the forecast hour is among the cleanest quarter of the forecast, after \"Let's wait awhile\"",
    choose,
};

/// Part of the hours in which the job may start that are clean enough.
const CLEAN_PART: f64 = 0.25;

/// Takes the threshold from the forecast as published at the submission, and compares with it the forecast of each hour
/// as published at its start; without such an hour, the job starts at its latest start.
fn choose(job: &Submission, grid: &VisibleGrid<'_>) -> ChosenStart {
    let hour = |series: &CarbonSeries, start: DateTime<Utc>| {
        let slot = Slot::new(start, start + TimeDelta::hours(1))?;
        mean_intensity(series, &slot).map(|mean| mean.get())
    };
    let published = grid.published(job.at);
    let mut ahead: Vec<f64> = job.hourly_starts().filter_map(|start| hour(&published, start)).collect();
    ahead.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rank")]
    let rank = (CLEAN_PART * ahead.len() as f64).ceil().max(1.0) as usize;
    let Some(threshold) = ahead.get(rank - 1) else { return ChosenStart::at(job.at) };
    let clean = |start: &DateTime<Utc>| hour(&grid.published(*start), *start).is_some_and(|value| value <= *threshold);
    ChosenStart::at(job.hourly_starts().find(clean).unwrap_or_else(|| job.latest()))
}
