//! A plan as immutable data: settings over time with reasons, and the expected result.

use chrono::{DateTime, Utc};

use super::job::Infeasible;
use super::reason::Reason;
use super::request::Weighing;
use crate::domain::{Broken, Circumstance, PowerLimit, SetPoint, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Watts};

/// Activity of a job in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobActivity {
    /// Training.
    Training,
    /// Paused, without progress.
    Paused,
    /// Saving or loading a checkpoint after a pause: running power, no progress.
    Resuming,
}

/// A time span at one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Time span within one slot of the horizon.
    pub slot: Slot,
    /// One set point per group of equal GPUs.
    pub setting: Vec<SetPoint>,
    /// Index of the point in [`crate::domain::Profile::points`].
    pub point: usize,
    /// Activity. During a pause the limits are the lowest of the profile.
    pub activity: JobActivity,
    /// Expected average power of all GPUs of the job.
    pub power: Watts,
    /// Expected throughput of the whole job; zero unless it trains.
    pub throughput: SamplesPerSecond,
    /// Expected carbon intensity.
    pub intensity: GramsPerKwh,
    /// Reason for this point.
    pub reason: Reason,
}

impl Segment {
    /// Returns the expected samples.
    pub fn samples(&self) -> Samples {
        self.throughput * self.slot.duration()
    }

    /// Returns the expected energy.
    pub fn energy(&self) -> Joules {
        self.power * self.slot.duration()
    }
}

/// Expected result of a plan from its creation to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Time at which the planned work is done.
    pub ends_at: DateTime<Utc>,
    /// Planned work.
    pub samples: Samples,
    /// Carbon of the planned work.
    pub carbon: GramsCo2e,
    /// Energy of the planned work.
    pub energy: Joules,
    /// Slowdown over the job's whole life, past and planned, against the ceiling. May be negative.
    pub slowdown: f64,
    /// Carbon of the planned work at the ceiling, from now on without pauses.
    pub carbon_at_ceiling: GramsCo2e,
}

/// Verdict of a plan on the promises of its job.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The cheapest plan that keeps all of them.
    Optimal,
    /// Budgets yield to the promises about time: the plan of least carbon that keeps those.
    OverBudget {
        /// The exceeded budgets.
        broken: Vec<Broken>,
    },
    /// No plan keeps the promises about time, so the job runs at its fastest point.
    FullSpeed {
        /// The broken promises; none if only the reserve for the reference's error is used up.
        broken: Vec<Broken>,
        /// Reason of the infeasibility.
        why: Infeasible,
    },
    /// The job alone could keep its promises, but not together with the jobs that share its cap or budget. The plan
    /// breaks them least, those of the lowest priority first.
    SharedLimits {
        /// The broken promises.
        broken: Vec<Broken>,
    },
}

impl Verdict {
    /// Returns the broken promises.
    pub fn broken(&self) -> &[Broken] {
        match self {
            Self::Optimal => &[],
            Self::OverBudget { broken } | Self::FullSpeed { broken, .. } | Self::SharedLimits { broken } => broken,
        }
    }

    /// Returns the circumstances in which promises are broken, if any are; `cap` is the external cap planned under.
    pub fn circumstance(&self, cap: Option<PowerLimit>) -> Circumstance {
        match self {
            Self::Optimal | Self::OverBudget { .. } => Circumstance::Yielding,
            Self::FullSpeed { .. } => Circumstance::FullSpeed(cap),
            Self::SharedLimits { .. } => Circumstance::Sharing,
        }
    }
}

/// Settings over time for one job. Only the present is applied (`planning.md` §4).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Time of planning; the first segment starts here.
    pub made_at: DateTime<Utc>,
    /// Samples done by then.
    pub samples_done: Samples,
    /// Contiguous segments in time order. Empty if no work remains.
    pub segments: Vec<Segment>,
    /// Expected result.
    pub expected: Expected,
    /// Verdict on the promises of the job.
    pub verdict: Verdict,
    /// End of the forecast if segments lie after it; these use the forecast's mean.
    pub extended_from: Option<DateTime<Utc>>,
    /// Basis of the energy cost.
    pub weighing: Weighing,
    /// Latest end and greatest throughput, which determine how long [`super::next_set_point`] may wait.
    pub slack: Option<(DateTime<Utc>, SamplesPerSecond)>,
    /// Relative cost reduction that a new plan would have had if an older plan was kept.
    pub forgone_saving: Option<f64>,
}

impl Plan {
    /// Returns the segment at a time. `None` before the plan and after its end.
    pub fn segment_at(&self, t: DateTime<Utc>) -> Option<&Segment> {
        let next = self.segments.partition_point(|segment| segment.slot.end() <= t);
        self.segments.get(next).filter(|segment| segment.slot.contains(t))
    }

    /// Returns whether forecast uncertainty changed the present slot.
    pub fn is_restrained(&self) -> bool {
        self.segments.first().is_some_and(|s| matches!(s.reason, Reason::Uncertain { .. }))
    }

    /// Returns the time at which the planned work is done.
    pub fn ends_at(&self) -> DateTime<Utc> {
        self.expected.ends_at
    }

    /// Returns the expected emissions within a time span.
    pub fn carbon_within(&self, span: &Slot) -> GramsCo2e {
        let part = |s: &Segment| Some(s.power * s.slot.intersection(span)?.duration() * s.intensity);
        self.segments.iter().filter_map(part).sum()
    }

    /// Returns the total samples expected by a time, for comparison with progress. Constant before and after the plan.
    pub fn expected_samples_at(&self, t: DateTime<Utc>) -> Samples {
        let until = |segment: &Segment| {
            let past = Slot::new(segment.slot.start(), t.min(segment.slot.end()))?;
            Some(segment.throughput * past.duration())
        };
        self.samples_done + self.segments.iter().map_while(until).sum()
    }
}
