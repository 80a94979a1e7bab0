//! A job's plan as immutable data: settings (power limits) over time with the reasons for them, and the expected
//! result.

use chrono::{DateTime, Utc};

use super::job::Infeasible;
use super::reason::Reason;
use super::request::Weighing;
use crate::domain::{Broken, Circumstance, PowerLimit, SetPoint, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Watts};

/// Activity of a job in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobActivity {
    /// The job trains.
    Training,
    /// The job is paused, without progress.
    Paused,
    /// The job saves or loads a training checkpoint around a pause: it draws running power and makes no progress.
    Resuming,
}

/// Part of a plan: a time span with one setting and one activity.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Time span within one slot of the horizon.
    pub slot: Slot,
    /// One set point per group of equal GPUs.
    pub setting: Vec<SetPoint>,
    /// Index of the point in [`crate::domain::Profile::points`].
    pub point: usize,
    /// Activity of the job. During a pause, `setting` is the one of least power; in a joint plan of several jobs, the
    /// one with the lowest limit.
    pub activity: JobActivity,
    /// Expected average power of all GPUs of the job.
    pub power: Watts,
    /// Expected throughput of the whole job; zero while paused or resuming.
    pub throughput: SamplesPerSecond,
    /// Expected carbon intensity of the slot.
    pub intensity: GramsPerKwh,
    /// Reason for the choice of this operating point.
    pub reason: Reason,
}

impl Segment {
    /// Returns the samples that the job is expected to process in the segment.
    pub fn samples(&self) -> Samples {
        self.throughput * self.slot.duration()
    }

    /// Returns the energy that the job is expected to use in the segment.
    pub fn energy(&self) -> Joules {
        self.power * self.slot.duration()
    }
}

/// Expected result of a plan from its creation to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Time at which the planned work is done, without the time of the job's own pauses ahead (evaluations,
    /// checkpoints).
    pub ends_at: DateTime<Utc>,
    /// Planned work.
    pub samples: Samples,
    /// Expected emissions of the planned work, without those of the job's own pauses ahead.
    pub carbon: GramsCo2e,
    /// Expected energy of the planned work, without that of the job's own pauses ahead.
    pub energy: Joules,
    /// Slowdown over the job's life, past and planned, relative to running at the maximum usable limit (0.1: 10 %). May
    /// be negative. The job's own pauses are left out.
    pub slowdown: f64,
    /// Emissions of the planned work if it were done at the maximum usable limit, from now on without pauses.
    pub carbon_at_ceiling: GramsCo2e,
}

/// Result of checking a plan against its job's promises: deadline, maximum slowdown and carbon budget.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The plan is the cheapest that keeps all promises.
    Optimal,
    /// No plan keeps all promises: this plan exceeds the carbon budget, but emits least of all plans that end in time.
    OverBudget {
        /// The exceeded carbon budgets.
        broken: Vec<Broken>,
    },
    /// No plan keeps the deadline and the maximum slowdown or does the work within the planning horizon, so the job
    /// runs at its fastest point.
    FullSpeed {
        /// The broken promises; empty if full speed uses up only the reserve that plans keep for the error of r(l_max),
        /// for the end of a temporary cap or for the job's own pauses, or if only the horizon is too short.
        broken: Vec<Broken>,
        /// Reason why no plan does the work in time.
        why: Infeasible,
    },
    /// The job alone could keep its promises, but not together with the jobs that share its power cap or carbon budget.
    /// The joint plan breaks promises as little as possible, first those of the jobs with the lowest priority.
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

    /// Returns the circumstance by which messages explain broken promises. `cap` is the external limit under which the
    /// plan was made, if any.
    pub fn circumstance(&self, cap: Option<PowerLimit>) -> Circumstance {
        match self {
            Self::Optimal | Self::OverBudget { .. } => Circumstance::Yielding,
            Self::FullSpeed { .. } => Circumstance::FullSpeed(cap),
            Self::SharedLimits { .. } => Circumstance::Sharing,
        }
    }
}

/// Plan of one job: settings (power limits) over time. Only the setting for the present is applied (`planning.md` §4).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Time of planning; the first segment starts here.
    pub made_at: DateTime<Utc>,
    /// Samples done by the job until `made_at`.
    pub samples_done: Samples,
    /// Contiguous segments in time order. Empty if no work remains.
    pub segments: Vec<Segment>,
    /// Expected result.
    pub expected: Expected,
    /// Result of checking the plan against the job's promises: deadline, maximum slowdown and carbon budget.
    pub verdict: Verdict,
    /// End of the forecast, if the plan has segments after that time; these assume the forecast's mean intensity.
    /// `None` if the forecast covers the whole plan.
    pub extended_from: Option<DateTime<Utc>>,
    /// Quantities that make up the cost of energy: carbon, with or without the electricity price.
    pub weighing: Weighing,
    /// First the latest end that the promises allow, second the greatest throughput, from which
    /// [`super::next_set_point`] computes how long a change may wait; `None` if no promise sets a latest end.
    pub slack: Option<(DateTime<Utc>, SamplesPerSecond)>,
    /// Relative cost reduction that a newer plan offered when this older one was kept; `None` if this plan is new.
    pub forgone_saving: Option<f64>,
}

impl Plan {
    /// Returns the segment at a time; `None` before the plan's start and after its end.
    pub fn segment_at(&self, t: DateTime<Utc>) -> Option<&Segment> {
        let next = self.segments.partition_point(|segment| segment.slot.end() <= t);
        self.segments.get(next).filter(|segment| segment.slot.contains(t))
    }

    /// Returns whether the plan's present slot deviates from the optimum because the forecast is too uncertain to
    /// follow.
    pub fn is_restrained(&self) -> bool {
        self.segments.first().is_some_and(|s| matches!(s.reason, Reason::Uncertain { .. }))
    }

    /// Returns the time at which the planned work is done.
    pub fn ends_at(&self) -> DateTime<Utc> {
        self.expected.ends_at
    }

    /// Returns the plan's expected emissions within a time span.
    pub fn carbon_within(&self, span: &Slot) -> GramsCo2e {
        let part = |s: &Segment| Some(s.power * s.slot.intersection(span)?.duration() * s.intensity);
        self.segments.iter().filter_map(part).sum()
    }

    /// Returns the job's expected total samples at a time, to compare with its progress. The number is constant before
    /// the plan's start and after its end.
    pub fn expected_samples_at(&self, t: DateTime<Utc>) -> Samples {
        let until = |segment: &Segment| {
            let past = Slot::new(segment.slot.start(), t.min(segment.slot.end()))?;
            Some(segment.throughput * past.duration())
        };
        self.samples_done + self.segments.iter().map_while(until).sum()
    }
}
