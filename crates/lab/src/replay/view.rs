//! Input and decision of a policy that chooses power limits.

use chrono::{DateTime, Utc};

use crate::grid::VisibleGrid;
use wattune_core::domain::{Activity, Pausing, Profile};
use wattune_core::plan::{FirstPlan, PastEmissions, Unplannable};
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

/// Part of a throughput that is rounding: a limit that just keeps the budget keeps it.
const ROUNDING: f64 = 1e-12;

/// State of a job and of its grid at the time at which a policy decides. A policy decides equally for equal views.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The present time.
    pub now: DateTime<Utc>,
    /// Start of the job.
    pub start: DateTime<Utc>,
    /// Profile that the policy knows; the first point is that of the largest limit.
    pub profile: &'a Profile,
    /// The profile that the policy knows as a curve of throughput over power, with its concave hull.
    pub curve: &'a Curve,
    /// Relative standard error of the profile's throughputs.
    pub profile_error: f64,
    /// Largest power limit of the job (P_max).
    pub max_power: Watts,
    /// All the job's work (W).
    pub work: Samples,
    /// Part of the work that is done.
    pub samples_done: Samples,
    /// Time since the job's start.
    pub elapsed: Seconds,
    /// Progress at the end of the job's sweep, from which on the policy decides; zero without a sweep.
    pub first_plan: FirstPlan,
    /// Emissions since the end of the sweep, and the mean carbon intensity since then; `None` at that time.
    pub past_emissions: Option<PastEmissions>,
    /// Extra time that the job may take: 0.03 is 3 %. If `None`, the policy uses its own weights.
    pub budget: Option<f64>,
    /// Conditions and costs of pauses; `None` if the job may not pause.
    pub pausing: Option<Pausing>,
    /// Present activity of the job (running or paused), with the time at which the activity began.
    pub activity: Activity,
    /// The part of the grid that is known at `now`; only the clairvoyant policy reads the future of the grid.
    pub grid: &'a VisibleGrid<'a>,
}

impl View<'_> {
    /// Returns the work that remains to be done.
    pub fn left(&self) -> Samples {
        self.work - self.samples_done
    }

    /// Returns the smallest constant throughput, from start to end of the job, that keeps the budget; 0 without a
    /// budget.
    pub fn slowest_allowed(&self) -> SamplesPerSecond {
        self.curve.ceiling().throughput / (1.0 + self.budget.unwrap_or(f64::INFINITY))
    }

    /// Returns the smallest constant throughput, from now to the end of the job, that keeps the budget with the time
    /// and the work that are behind: a sweep may have cost time. 0 without a budget; `None` if no time is left.
    pub fn slowest_from_now(&self) -> Option<SamplesPerSecond> {
        let Some(budget) = self.budget else { return Some(SamplesPerSecond::ZERO) };
        let left = self.work / self.curve.ceiling().throughput * (1.0 + budget) - self.elapsed;
        (left > Seconds::ZERO).then(|| self.left() / left * (1.0 - ROUNDING))
    }

    /// Returns power (first) and throughput (second) of each point of the profile.
    pub fn points(&self) -> impl Iterator<Item = (Watts, SamplesPerSecond)> {
        self.profile.points.iter().map(|p| (p.power.mean, p.throughput.mean))
    }

    /// Returns the index of the point with the least `cost`, a function of power and throughput. Of points with equal
    /// costs, returns that of the largest limit.
    pub fn cheapest(&self, cost: impl Fn(Watts, SamplesPerSecond) -> f64) -> usize {
        let costs = self.points().map(|(power, throughput)| cost(power, throughput));
        costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
    }
}

/// Activity of a job in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The job trains at one point of the profile, or at several points, interleaved evenly. Each entry is the index of
    /// a point in [`Profile::points`] (first) and the point's share of the time (second); the shares add up to 1.
    Train(Vec<(usize, f64)>),
    /// The job pauses.
    Pause,
    /// The job saves or loads a training checkpoint, at the power of this point of the profile.
    Checkpoint(usize),
}

/// An activity of a job, and how long it lasts.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The activity.
    pub action: Action,
    /// Maximum duration of the activity; if the work is done earlier, the activity ends then.
    pub lasts: Seconds,
}

impl Step {
    /// Returns training at one point of the profile for a given time.
    pub fn at(point: usize, lasts: Seconds) -> Self {
        Self { action: Action::Train(vec![(point, 1.0)]), lasts }
    }

    /// Returns training at one point of the profile until the work is done.
    pub fn to_the_end(point: usize) -> Self {
        Self::at(point, Seconds::new(f64::MAX))
    }
}

/// Decision of a policy: steps from now on, after which the policy decides again.
pub type Decision = Result<Vec<Step>, Unplannable>;
