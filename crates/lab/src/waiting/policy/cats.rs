//! Rule of `cats`, the Climate-aware task scheduler: the best window of the forecast as published at the submission,
//! without correction and without thinking again.

use chrono::{DateTime, Utc};

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};
use wattune_core::domain::Slot;
use wattune_core::ledger::mean_intensity;
use wattune_core::units::GramsPerKwh;

pub(super) const POLICY: StartPolicy = StartPolicy {
    name: "cats",
    about: "the best window of the forecast as published at the submission, as the scheduler cats chooses it",
    choose,
};

/// Chooses among the windows that begin at a full hour after the submission and that the forecast covers.
fn choose(job: &Submission, grid: &VisibleGrid<'_>) -> ChosenStart {
    let published = grid.published(job.at);
    let window = |start: DateTime<Utc>| -> Option<(GramsPerKwh, DateTime<Utc>)> {
        Some((mean_intensity(&published, &Slot::new(start, job.end(start))?)?, start))
    };
    let best = job.hourly_starts().filter_map(window).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ChosenStart::at(best.map_or(job.at, |(_, start)| start))
}
