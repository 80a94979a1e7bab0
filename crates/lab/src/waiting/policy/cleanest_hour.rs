//! Rule without a forecast: the hour of the day from which the job would have emitted least over the last four weeks.

use chrono::{DateTime, TimeDelta, Utc};

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};
use wattune_core::domain::Slot;
use wattune_core::ledger::mean_intensity;

pub(super) const POLICY: StartPolicy = StartPolicy {
    name: "cleanest-hour",
    about: "the hour of the day from which the job would have emitted least over the last 28 days",
    choose,
};

/// Days of the past that count.
const DAYS: i64 = 28;

/// Chooses among the next 24 full hours after the submission, as far as the latest start allows them; the first day
/// that has the cleanest hour.
fn choose(job: &Submission, grid: &VisibleGrid<'_>) -> ChosenStart {
    let known = grid.past_actuals(job.at);
    let usual = |start: DateTime<Utc>| -> Option<f64> {
        let days = 1 + (job.end(start) - job.at).num_hours().max(0) / 24;
        let past = (days..=DAYS).filter_map(|day| {
            let begun = start - TimeDelta::days(day);
            mean_intensity(&known, &Slot::new(begun, job.end(begun))?).map(|mean| mean.get())
        });
        let (count, sum) = past.fold((0_u32, 0.0), |(count, sum), mean| (count + 1, sum + mean));
        (count > 0).then(|| sum / f64::from(count))
    };
    let hours = job.hourly_starts().take(24).filter_map(|start| Some((usual(start)?, start)));
    let best = hours.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ChosenStart::at(best.map_or(job.at, |(_, start)| start))
}
