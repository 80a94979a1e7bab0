//! Bounds that a job's promises (deadline, maximum slowdown, carbon budget) put on its remaining work, and the excess
//! over a promise that counts as rounding.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};

use super::planner::Planner;
use super::problem::{PlanSlot, RESOLUTION};
use super::shares::mean;
use crate::domain::{Broken, Outcome, Promise, Work};
use crate::plan::request::Request;
use crate::time::later;
use crate::units::{GramsCo2e, GramsPerKwh, Seconds};

/// Value at which carbon budgets are clamped: about a week of global emissions.
const MOST_CARBON: GramsCo2e = GramsCo2e::new(1e15);

/// Bound that a promise puts on the remaining work.
enum Bound {
    /// The work must end by this time.
    End(DateTime<Utc>),
    /// Training in the remaining work may emit at most this much, counted with the intensities of [`Planner::counted`].
    Budget(GramsCo2e),
}

impl Planner<'_> {
    /// Returns the bound that a promise puts on the remaining work.
    fn bound(&self, promise: Promise) -> Bound {
        let Request { now, work, progress, window, .. } = *self.request;
        match promise {
            Promise::Deadline(at) => {
                let most = Seconds::from_delta(at - now).max(Seconds::ZERO);
                Bound::End(at - progress.pauses_ahead.max(Seconds::ZERO).min(most).to_delta())
            }
            Promise::Slowdown(max) => {
                let left = match work {
                    Work::TotalSamples(total) => {
                        self.reference_time(total) * (1.0 + self.guarded(max)) - progress.elapsed
                    }
                    Work::Unknown => window,
                };
                Bound::End(later(now, left.to_delta()))
            }
            Promise::CarbonBudget(budget) => {
                Bound::Budget(budget.min(MOST_CARBON) - progress.carbon - self.pause_carbon())
            }
        }
    }

    /// Returns the excess over a promise up to which the promise counts as kept, in the promise's unit: seconds,
    /// fraction of the time, or grams. `rest` is the emissions of the remaining work.
    fn rounding(&self, promise: Promise, rest: GramsCo2e) -> f64 {
        match promise {
            Promise::Deadline(_) => RESOLUTION.get(),
            Promise::Slowdown(_) => 1e-6,
            Promise::CarbonBudget(budget) => 1e-6 * (budget - self.request.progress.carbon).abs().max(rest).get(),
        }
    }

    /// Returns the expected emissions of the job's own pauses in its remaining work.
    fn pause_carbon(&self) -> GramsCo2e {
        let Request { progress, horizon, reference_intensity, .. } = *self.request;
        let intensity = mean(horizon).unwrap_or(reference_intensity).max(GramsPerKwh::ZERO);
        progress.pause_power * progress.pauses_ahead.max(Seconds::ZERO) * intensity
    }

    /// Returns a maximum slowdown less the reserve for the error of the reference throughput r(l_max), at least 0.
    pub(super) fn guarded(&self, max_slowdown: f64) -> f64 {
        (max_slowdown - self.request.progress.reserve.max(0.0)).max(0.0)
    }

    /// Returns first the earliest time by which a promise requires the work to be done, second that promise; `None` if
    /// no promise does.
    pub(in crate::plan) fn latest_end(&self) -> Option<(DateTime<Utc>, Promise)> {
        let ends = self.request.promises().filter_map(|promise| match self.bound(promise) {
            Bound::End(at) => Some((at, promise)),
            Bound::Budget(_) => None,
        });
        ends.max_by_key(|(at, _)| Reverse(*at))
    }

    /// Returns the carbon intensity with which a promise about emissions counts energy in a slot.
    pub(super) fn counted(&self, promise: Promise, slot: &PlanSlot) -> GramsPerKwh {
        match promise {
            Promise::Deadline(_) | Promise::Slowdown(_) | Promise::CarbonBudget(_) => slot.intensity,
        }
    }

    /// Returns first the part of the carbon budget that is left for the remaining work, second the promise that sets
    /// the budget; `None` without a budget.
    pub(in crate::plan) fn budget_left(&self) -> Option<(GramsCo2e, Promise)> {
        self.request.promises().find_map(|promise| match self.bound(promise) {
            Bound::Budget(left) => Some((left, promise)),
            Bound::End(_) => None,
        })
    }

    /// Returns the promises that are broken if the work ends at `ends_at`, the slowdown over the job's life is
    /// `slowdown`, and the planned work emits `rest`.
    pub(in crate::plan) fn broken(&self, ends_at: DateTime<Utc>, slowdown: f64, rest: GramsCo2e) -> Vec<Broken> {
        let carbon = Some(self.request.progress.carbon + self.pause_carbon() + rest);
        let outcome = Outcome { ends_at: Some(ends_at), slowdown: Some(slowdown), carbon };
        Broken::among(self.request.promises(), &outcome, |promise| self.rounding(promise, rest))
    }
}
