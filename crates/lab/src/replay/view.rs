//! Input and decision of a policy.

use chrono::{DateTime, Utc};

use crate::grid::VisibleGrid;
use wattune_core::domain::{Activity, Pausing, Profile};
use wattune_core::plan::{PastEmissions, Unplannable};
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

/// The state of a job and its grid at a decision. A policy answers the same view in the same way.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// The start of the job.
    pub start: DateTime<Utc>,
    /// The profile that the policy knows; the first point is the largest limit's.
    pub profile: &'a Profile,
    /// The same as a curve with its hull.
    pub curve: &'a Curve,
    /// Relative standard error of the profile's throughputs.
    pub profile_error: f64,
    /// P_max: the largest limit.
    pub max_power: Watts,
    /// All the work, W.
    pub work: Samples,
    /// The work done.
    pub done: Samples,
    /// Time since the job began.
    pub elapsed: Seconds,
    /// Emissions and mean intensity of that time; none before any has passed.
    pub past: Option<PastEmissions>,
    /// The allowed increase of the job's time: 0.03 is 3 %. Without one, a policy uses its own weights.
    pub budget: Option<f64>,
    /// The costs of a pause, if the job may pause.
    pub pausing: Option<Pausing>,
    /// The present activity, and its start.
    pub activity: Activity,
    /// The known part of the grid; only the bounds look into its future.
    pub grid: &'a VisibleGrid<'a>,
}

impl View<'_> {
    /// Returns the work that remains.
    pub fn left(&self) -> Samples {
        self.work - self.done
    }

    /// Returns the least throughput with which a job that keeps it from start to end stays within the budget.
    pub fn slowest_allowed(&self) -> SamplesPerSecond {
        self.curve.ceiling().throughput / (1.0 + self.budget.unwrap_or(f64::INFINITY))
    }

    /// Power and throughput of each point of the profile.
    pub fn points(&self) -> impl Iterator<Item = (Watts, SamplesPerSecond)> {
        self.profile.points.iter().map(|p| (p.power.mean, p.throughput.mean))
    }

    /// Returns the index of the cheapest point; of equals that of the larger limit. `cost` gets power and throughput.
    pub fn cheapest(&self, cost: impl Fn(Watts, SamplesPerSecond) -> f64) -> usize {
        let costs = self.points().map(|(power, throughput)| cost(power, throughput));
        costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
    }
}

/// An activity of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Training at one setting, or at several interleaved evenly: indices in [`Profile::points`] with the share of time of
    /// each; shares add up to 1.
    Train(Vec<(usize, f64)>),
    /// A pause.
    Pause,
    /// Saving or loading a checkpoint, at the power of this point.
    Checkpoint(usize),
}

/// An action and its duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Its duration; the end of the work cuts it short.
    pub lasts: Seconds,
}

impl Step {
    /// Training at one setting for this long.
    pub fn at(point: usize, lasts: Seconds) -> Self {
        Self { action: Action::Train(vec![(point, 1.0)]), lasts }
    }

    /// Training at one setting until the work is done.
    pub fn to_the_end(point: usize) -> Self {
        Self::at(point, Seconds::new(f64::MAX))
    }
}

/// The answer of a policy: steps from now on, after which it is asked again.
pub type Decision = Result<Vec<Step>, Unplannable>;
