//! A plan as data: which limits when, why, and what is expected of it. Immutable; nothing is left to decide.

use chrono::{DateTime, Utc};

use super::problem::Infeasible;
use super::reason::Reason;
use super::request::Weighing;
use crate::domain::{SetPoint, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// What a job does in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It trains.
    Training,
    /// It pauses: no work is done.
    Paused,
    /// It saves or loads a checkpoint after a pause: running power, no work.
    Resuming,
}

/// A span with one setting of the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// When; within one slot of the horizon.
    pub slot: Slot,
    /// One set point per group of equal boards, as in the profile's point.
    pub setting: Vec<SetPoint>,
    /// The point's place in [`crate::domain::Profile::points`].
    pub point: usize,
    /// What the job does. While it pauses the limits are the lowest of its profile.
    pub doing: Doing,
    /// Expected average power of all the job's boards.
    pub power: Watts,
    /// Expected throughput of the whole job; none unless it trains.
    pub throughput: SamplesPerSecond,
    /// Expected carbon intensity.
    pub intensity: GramsPerKwh,
    /// Why this point here.
    pub reason: Reason,
}

impl Segment {
    /// Expected samples of the whole segment.
    pub fn samples(&self) -> Samples {
        self.throughput * self.slot.duration()
    }

    /// Expected energy of the whole segment.
    pub fn energy(&self) -> Joules {
        self.power * self.slot.duration()
    }
}

/// What a plan is expected to give, from when it was made to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// When the planned work is done.
    pub ends_at: DateTime<Utc>,
    /// The planned work.
    pub samples: Samples,
    /// Carbon of the planned work.
    pub carbon: GramsCo2e,
    /// Energy of the planned work.
    pub energy: Joules,
    /// Time over the job's whole life, past and planned, over what the same samples take at the ceiling, less one.
    /// May be negative.
    pub slowdown: f64,
    /// Carbon of the planned work at the ceiling, from now on without a pause.
    pub carbon_at_ceiling: GramsCo2e,
}

/// Whether the promises are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The cheapest plan that keeps them all.
    Optimal,
    /// No plan keeps the carbon budget together with the promises about time, and the budget bends first: the plan of
    /// least carbon that keeps the others.
    OverBudget {
        /// What all of the work will emit, the past included, above the budget.
        exceeds_budget_by: GramsCo2e,
    },
    /// No plan keeps the promises about time, so the job runs at its fastest point. The promises that are broken say by
    /// how much; none is where only the margin for the reference's error is used up.
    FlatOut {
        /// How long after its deadline the job ends.
        misses_deadline_by: Option<Seconds>,
        /// The slowdown above the one allowed, as a fraction: 0.01 is one percent point.
        exceeds_slowdown_by: Option<f64>,
        /// What all of the work will emit, the past included, above the carbon budget.
        exceeds_budget_by: Option<GramsCo2e>,
        /// The planner's finding.
        why: Infeasible,
    },
    /// Alone the job could keep its promises, but not together with those of the jobs that it shares a cap or a budget
    /// with: of all plans the one that breaks the least, and of those of the lowest priority first.
    HeldDown {
        /// How long after its deadline the job ends.
        misses_deadline_by: Option<Seconds>,
        /// The slowdown above the one allowed, as a fraction: 0.01 is one percent point.
        exceeds_slowdown_by: Option<f64>,
        /// What all of the work will emit, the past included, above the carbon budget.
        exceeds_budget_by: Option<GramsCo2e>,
    },
}

/// Limits over time for one job. Only its present is meant to be applied (`planning.md` §4).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The present it was made in; the first segment begins here.
    pub made_at: DateTime<Utc>,
    /// Samples done by then.
    pub samples_done: Samples,
    /// Contiguous, oldest first. Empty where no work remains.
    pub segments: Vec<Segment>,
    /// What it should give.
    pub expected: Expected,
    /// Whether it keeps what was promised.
    pub verdict: Verdict,
    /// Where the forecast ended, if segments lie after that: these are planned with the forecast's mean.
    pub extended_from: Option<DateTime<Utc>>,
    /// What energy was weighed with.
    pub weighing: Weighing,
    /// When the planned work must be done, if ever, and the greatest throughput there is: what [`super::follow`] waits with.
    pub slack: Option<(DateTime<Utc>, SamplesPerSecond)>,
    /// Where an older plan was kept: by which part of its cost a new one would have been better.
    pub kept_from: Option<f64>,
}

impl Plan {
    /// What is planned for a moment. `None` before the plan and after its end.
    pub fn segment_at(&self, t: DateTime<Utc>) -> Option<&Segment> {
        let next = self.segments.partition_point(|segment| segment.slot.end() <= t);
        self.segments.get(next).filter(|segment| segment.slot.contains(t))
    }

    /// Whether its present is slower or faster than by its forecast alone, as that is too uncertain.
    pub fn is_restrained(&self) -> bool {
        self.segments.first().is_some_and(|s| matches!(s.reason, Reason::Uncertain { .. }))
    }

    /// When the planned work is done.
    pub fn ends_at(&self) -> DateTime<Utc> {
        self.expected.ends_at
    }

    /// What it is expected to emit within a span.
    pub fn carbon_within(&self, span: &Slot) -> GramsCo2e {
        let part = |s: &Segment| Some(s.power * s.slot.intersection(span)?.duration() * s.intensity);
        self.segments.iter().filter_map(part).sum()
    }

    /// The samples that the job should have done in all by a moment if it follows the plan: what progress is compared
    /// with. Constant before the plan and after its end.
    pub fn expected_samples_at(&self, t: DateTime<Utc>) -> Samples {
        let until = |segment: &Segment| {
            let past = Slot::new(segment.slot.start(), t.min(segment.slot.end()))?;
            Some(segment.throughput * past.duration())
        };
        self.samples_done + self.segments.iter().map_while(until).sum()
    }
}
