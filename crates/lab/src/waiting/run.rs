//! Runs policies for all jobs and submissions of a study.

use chrono::{DateTime, Utc};

use super::kind::{ChosenStart, StartPolicy, Submission};
use super::policy::start_policy;
use super::row::WaitingRow;
use crate::grid::VisibleGrid;
use wattune_core::domain::Slot;
use wattune_core::ledger::mean_intensity;
use wattune_core::units::Seconds;

/// The combinations to run: each duration with each freedom from each submission, under each policy.
pub struct WaitingStudy<'a> {
    /// The grid, as policies see it with their foresight; its horizon must cover the longest freedom and duration.
    pub grid: &'a VisibleGrid<'a>,
    /// Durations of jobs.
    pub durations: &'a [Seconds],
    /// Times for which starts may wait.
    pub freedoms: &'a [Seconds],
    /// Times of submissions.
    pub submissions: &'a [DateTime<Utc>],
    /// The policies.
    pub policies: &'a [StartPolicy],
}

impl WaitingStudy<'_> {
    /// Runs all combinations and calls `step` after each submission. Submissions without an actual value in one of the
    /// windows that policies chose have no rows.
    pub fn run(&self, mut step: impl FnMut()) -> Vec<WaitingRow> {
        let best = start_policy("clairvoyant").expect("the bound is a policy");
        let mut rows = Vec::new();
        for &at in self.submissions {
            for &duration in self.durations {
                for &within in self.freedoms {
                    let job = Submission { at, duration, within };
                    rows.extend(self.rows(&job, &best).unwrap_or_default());
                }
            }
            step();
        }
        rows
    }

    /// Returns the number of calls of `step` in [`WaitingStudy::run`].
    pub fn steps(&self) -> usize {
        self.submissions.len()
    }

    fn rows(&self, job: &Submission, best: &StartPolicy) -> Option<Vec<WaitingRow>> {
        let intensity = |start| {
            let window = Slot::new(start, job.end(start))?;
            mean_intensity(self.grid.actual(), &window).map(|mean| mean.get())
        };
        let at_once = intensity(job.at)?;
        let reduction = |start| {
            let chosen = intensity(start)?;
            Some(if at_once > 0.0 { 100.0 * (1.0 - chosen / at_once) } else { 0.0 })
        };
        let best_start = (best.choose)(job, self.grid);
        let best_reduction_pct = reduction(best_start.start)?;
        let row = |policy: &StartPolicy| {
            let chosen = if policy.name == best.name { best_start } else { (policy.choose)(job, self.grid) };
            let ChosenStart { start, stated } = chosen;
            let hours = |seconds: Seconds| seconds.get() / 3600.0;
            Some(WaitingRow {
                policy: policy.name,
                grid: self.grid.name().to_owned(),
                duration_h: hours(job.duration),
                within_h: hours(job.within),
                submitted_at: job.at,
                start,
                waited_h: hours(Seconds::from_delta(start - job.at)),
                at_once_g_per_kwh: at_once,
                carbon_reduction_pct: reduction(start)?,
                best_reduction_pct,
                loss_probability: stated.map(|stated| stated.loss_probability),
                stated_window_reduction_pct: stated.map_or(Some(None), |stated| reduction(stated.start).map(Some))?,
            })
        };
        self.policies.iter().map(row).collect()
    }
}
