//! Input and decision of a policy that chooses power limits.

use chrono::{DateTime, Utc};

use crate::grid::VisibleGrid;
use wattune_core::domain::{Activity, Pausing, Profile};
use wattune_core::plan::{PastEmissions, Unplannable};
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

/// State of a job and its grid when a policy decides. For equal views a policy decides equally.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The present time.
    pub now: DateTime<Utc>,
    /// Start of the job.
    pub start: DateTime<Utc>,
    /// Profile that the policy knows; the first point is that of the largest limit.
    pub profile: &'a Profile,
    /// The profile that the policy knows as a curve, with its convex hull.
    pub curve: &'a Curve,
    /// Relative standard error of the profile's throughputs.
    pub profile_error: f64,
    /// P_max: the largest power limit.
    pub max_power: Watts,
    /// All the job's work, W.
    pub work: Samples,
    /// Work that is done.
    pub done: Samples,
    /// Time since the job's start.
    pub elapsed: Seconds,
    /// Emissions since the job's start, and the mean carbon intensity of that time; absent at the start.
    pub past: Option<PastEmissions>,
    /// Allowed increase of the job's time: 0.03 is 3 %. If absent, the policy uses its own weights.
    pub budget: Option<f64>,
    /// Costs of a pause; absent if the job may not pause.
    pub pausing: Option<Pausing>,
    /// Present activity of the job, with its start.
    pub activity: Activity,
    /// The known part of the grid; only the clairvoyant policy reads its future.
    pub grid: &'a VisibleGrid<'a>,
}

impl View<'_> {
    /// Returns the work that remains to be done.
    pub fn left(&self) -> Samples {
        self.work - self.done
    }

    /// Returns the smallest throughput that stays within the budget if the job keeps it from start to end.
    pub fn slowest_allowed(&self) -> SamplesPerSecond {
        self.curve.ceiling().throughput / (1.0 + self.budget.unwrap_or(f64::INFINITY))
    }

    /// Returns power and throughput of each point of the profile.
    pub fn points(&self) -> impl Iterator<Item = (Watts, SamplesPerSecond)> {
        self.profile.points.iter().map(|p| (p.power.mean, p.throughput.mean))
    }

    /// Returns the index of the point of least `cost` (of power and throughput); of equals, the larger limit's.
    pub fn cheapest(&self, cost: impl Fn(Watts, SamplesPerSecond) -> f64) -> usize {
        let costs = self.points().map(|(power, throughput)| cost(power, throughput));
        costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
    }
}

/// Activity of a job in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Training at one point of the profile, or at several, interleaved evenly: indices in [`Profile::points`], each
    /// with its share of the time; the shares add up to 1.
    Train(Vec<(usize, f64)>),
    /// A pause.
    Pause,
    /// Saving or loading a checkpoint, at the power of this point of the profile.
    Checkpoint(usize),
}

/// An action of a job, and its duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Maximum duration of the action; the end of the work shortens it.
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
