//! Planning problem of several jobs and its solution (`planning.md` §3).

use chrono::{DateTime, Utc};

use crate::domain::{Slot, TimeSeries};
use crate::plan::job::{InvalidProblem, PlanSlot, SHORTEST, check_horizon};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Power and throughput of a job at one setting, and the limit that a cap counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetPoint {
    /// Average power of all its GPUs, p(l).
    pub power: Watts,
    /// Throughput, r(l); zero for a pause.
    pub throughput: SamplesPerSecond,
    /// Sum of its GPUs' limits in force.
    pub limit: Watts,
}

/// One of the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetJob {
    /// Usable points in any order.
    pub points: Vec<FleetPoint>,
    /// Remaining work.
    pub work: Samples,
    /// Earlier of the deadline and the end of the slowdown budget.
    pub latest_end: Option<DateTime<Utc>>,
    /// Zeus's η.
    pub eta: f64,
    /// c_ref, which weighs time.
    pub reference_intensity: GramsPerKwh,
    /// P_max, which weighs time.
    pub max_power: Watts,
    /// Emissions that its remaining work may cause.
    pub carbon_budget: Option<GramsCo2e>,
    /// Priority: the lowest yields first if not all constraints can be kept.
    pub priority: i32,
    /// Power that a cap counts for its GPUs after its end, at most its lowest limit.
    pub at_rest: Watts,
    /// Intensity that the objective uses in each slot, if that is not the carbon intensity.
    pub weighed: Option<Vec<GramsPerKwh>>,
    /// True for each slot in which it pauses, at its lowest limit and without counted energy; empty for none.
    pub still: Vec<bool>,
}

impl FleetJob {
    /// Returns the index of a pause in [`FleetSchedule::parts`]: after the points.
    pub fn standing_still(&self) -> usize {
        self.points.len()
    }

    /// Returns the limit in force at an index of [`FleetSchedule::parts`].
    pub fn limit(&self, place: usize) -> Watts {
        self.points.get(place).map_or(self.lowest(), |point| point.limit)
    }

    /// Returns the lowest limit.
    pub(super) fn lowest(&self) -> Watts {
        self.points.iter().map(|p| p.limit).reduce(Watts::min).unwrap_or_default()
    }

    /// Returns the power that a cap counts for its GPUs after its end.
    pub(super) fn rest(&self) -> Watts {
        self.at_rest.min(self.lowest())
    }
}

/// Several jobs over one horizon. Validated on construction.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetProblem {
    pub(super) slots: Vec<PlanSlot>,
    pub(super) caps: Vec<Option<Watts>>,
    pub(super) jobs: Vec<FleetJob>,
    /// Emissions that all jobs may cause within each span, in time order.
    pub(super) carbon_budgets: TimeSeries<GramsCo2e>,
    /// Preferred minimum duration of a part of a slot.
    pub(super) shortest: Seconds,
}

impl FleetProblem {
    /// Poses the problem: `slots` are contiguous and the first begins now; `caps` holds for each slot what the limits
    /// of these jobs may add up to at any instant; `carbon_budgets` is what all jobs together may emit within each span (a
    /// slot belongs to the one in which it begins).
    ///
    /// # Errors
    /// For invalid input. Infeasible problems are valid; the solver reports them.
    pub fn new(
        slots: Vec<PlanSlot>,
        caps: Vec<Option<Watts>>,
        jobs: Vec<FleetJob>,
        carbon_budgets: Option<TimeSeries<GramsCo2e>>,
    ) -> Result<Self, InvalidProblem> {
        check_horizon(&slots)?;
        if caps.len() != slots.len() {
            return Err(InvalidProblem::NotPerSlot);
        }
        for j in &jobs {
            check_job(j)?;
            let weighed = j.weighed.as_ref();
            let weighs = weighed.is_none_or(|w| w.len() == slots.len() && w.iter().all(|c| *c >= GramsPerKwh::ZERO));
            let pauses = j.still.is_empty() || j.still.len() == slots.len();
            if !(weighs && pauses) {
                return Err(InvalidProblem::NotPerSlot);
            }
            if j.at_rest < Watts::ZERO || j.points.iter().any(|p| p.limit < Watts::ZERO) {
                return Err(InvalidProblem::NegativeLimit);
            }
        }
        let carbon_budgets = carbon_budgets.unwrap_or_default();
        Ok(Self { slots, caps, jobs, carbon_budgets, shortest: SHORTEST })
    }

    /// Returns the index of the shared carbon budget that a slot belongs to.
    pub(super) fn budget_of(&self, t: usize) -> Option<usize> {
        let start = self.slots[t].slot.start();
        self.carbon_budgets.points().iter().position(|(span, _)| span.contains(start))
    }

    /// Returns the end of the binding carbon budget in a slot, and whether it is kept.
    pub(in crate::plan) fn binding_budget(&self, solution: &FleetSolution, t: usize) -> Option<(DateTime<Utc>, bool)> {
        let budget = self.budget_of(t).filter(|_| solution.budget_prices[t] > 1e-6)?;
        let broken = |b: &Breach| matches!(b, Breach::SharedBudget { budget: broken, .. } if *broken == budget);
        Some((self.carbon_budgets.points()[budget].0.end(), !solution.breaches.iter().any(broken)))
    }

    /// Returns the emissions within each shared carbon budget; `grams` are those of all jobs in a slot.
    pub(super) fn within_budgets(&self, grams: impl Fn(usize) -> GramsCo2e) -> Vec<GramsCo2e> {
        let mut sums = vec![GramsCo2e::ZERO; self.carbon_budgets.points().len()];
        for t in 0..self.slots.len() {
            self.budget_of(t).into_iter().for_each(|budget| sums[budget] += grams(t));
        }
        sums
    }

    /// Returns the problem with a minimum time at one setting of at least a second.
    #[must_use]
    pub fn with_dwell(self, dwell: Seconds) -> Self {
        Self { shortest: dwell.max(SHORTEST), ..self }
    }

    /// Returns the horizon in time order.
    pub fn slots(&self) -> &[PlanSlot] {
        &self.slots
    }

    /// Returns the cap of each slot.
    pub fn caps(&self) -> &[Option<Watts>] {
        &self.caps
    }

    /// Returns the jobs in input order.
    pub fn jobs(&self) -> &[FleetJob] {
        &self.jobs
    }
}

fn check_job(job: &FleetJob) -> Result<(), InvalidProblem> {
    if job.points.iter().all(|p| p.throughput <= SamplesPerSecond::ZERO) {
        return Err(InvalidProblem::NoPoints);
    }
    let usable = |p: &FleetPoint| p.power >= Watts::ZERO && p.throughput >= SamplesPerSecond::ZERO;
    if let Some(unusable) = job.points.iter().position(|p| !usable(p)) {
        return Err(InvalidProblem::UnusablePoint(unusable));
    }
    if job.work <= Samples::ZERO {
        return Err(InvalidProblem::NoWork(job.work));
    }
    let (eta, reference, power) = (job.eta, job.reference_intensity, job.max_power);
    let weighs = (0.0..=1.0).contains(&eta) && reference >= GramsPerKwh::ZERO && power >= Watts::ZERO;
    if weighs { Ok(()) } else { Err(InvalidProblem::BadWeights) }
}

/// Schedule of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSchedule {
    /// For each used slot, oldest first: the points used (places in [`FleetJob::points`]) in the order in which they
    /// are in force, and for how long. Every slot but the last is full.
    pub parts: Vec<Vec<(usize, Seconds)>>,
    /// Objective of `planning.md` §2.
    pub cost: GramsCo2e,
    /// Σ x·c·p.
    pub carbon: GramsCo2e,
    /// Σ x·p.
    pub energy: Joules,
    /// End of the job.
    pub ends_at: DateTime<Utc>,
}

/// A broken constraint and its excess.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// Even the lowest limits exceed a slot's cap.
    Cap {
        /// The slot.
        slot: Slot,
        /// Excess.
        by: Watts,
    },
    /// A job ends late.
    Late {
        /// Index of the job.
        job: usize,
        /// Delay.
        by: Seconds,
    },
    /// Work does not fit into the horizon.
    Unfinished {
        /// Index of the job.
        job: usize,
        /// Missing work.
        missing: Samples,
    },
    /// A job's carbon budget is exceeded.
    Budget {
        /// Index of the job.
        job: usize,
        /// Excess.
        by: GramsCo2e,
    },
    /// A shared carbon budget is exceeded.
    SharedBudget {
        /// Index of the budget.
        budget: usize,
        /// Excess.
        by: GramsCo2e,
    },
}

/// Schedules of all jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSolution {
    /// One per job, in their order. Within a slot their parts lie so that limits never add up to more than the cap.
    pub schedules: Vec<FleetSchedule>,
    /// Cost of all of them.
    pub cost: GramsCo2e,
    /// The optimum where slots keep caps on average only and each job ends in the slot in which it ends here.
    /// Meaningless where promises clash.
    pub relaxed: GramsCo2e,
    /// No plan that keeps all promises costs less. Meaningless where promises clash.
    pub bound: GramsCo2e,
    /// The broken constraints.
    pub breaches: Vec<Breach>,
    /// True if the search finished.
    pub finished: bool,
    /// Price of each slot's cap in gCO2e/J; 0 if it does not bind.
    pub cap_prices: Vec<f64>,
    /// Price of each slot's shared carbon budget in gCO2e/g; 0 if none binds.
    pub budget_prices: Vec<f64>,
}
