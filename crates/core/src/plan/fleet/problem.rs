//! Joint planning problem of several jobs that share power caps or carbon budgets, and its solution (`planning.md` §3).

use chrono::{DateTime, Utc};

use crate::domain::{Slot, TimeSeries};
use crate::plan::job::{InvalidProblem, PlanSlot, SHORTEST, check_horizon};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Operating point: power and throughput of a job at one setting, with the sum of limits that a cap counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetPoint {
    /// Average power of all the job's GPUs, p(l).
    pub power: Watts,
    /// Throughput of the whole job, r(l); zero for a pause.
    pub throughput: SamplesPerSecond,
    /// Sum of the power limits in force on the job's GPUs.
    pub limit: Watts,
}

/// One job of a joint planning problem.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetJob {
    /// Usable operating points in any order.
    pub points: Vec<FleetPoint>,
    /// Remaining work of the job.
    pub work: Samples,
    /// Earlier of the deadline and the time at which the maximum slowdown is used up; `None` without both.
    pub latest_end: Option<DateTime<Utc>>,
    /// Weight of carbon, η, from 0 to 1; 1 − η is the weight of time.
    pub eta: f64,
    /// c_ref: carbon intensity that converts the cost of time to grams.
    pub reference_intensity: GramsPerKwh,
    /// P_max: sum of the maximum usable limits of the job's GPUs, which scales the cost of time.
    pub max_power: Watts,
    /// Emissions that the job's remaining work may cause; `None` if unlimited.
    pub carbon_budget: Option<GramsCo2e>,
    /// Priority: if not all constraints can be kept, jobs of the lowest priority yield first.
    pub priority: i32,
    /// Power that a cap counts for the job's GPUs after the job's end. Values above the job's lowest limit count as the
    /// lowest limit.
    pub at_rest: Watts,
    /// Intensity that the objective uses in each slot, such as a mixture of carbon and price; `None` if that is the
    /// carbon intensity itself.
    pub weighed: Option<Vec<GramsPerKwh>>,
    /// True for each slot in which the job pauses: the job is then at its lowest limit, and the energy of the pause is
    /// not part of this problem. Empty if the job never pauses.
    pub pauses: Vec<bool>,
}

impl FleetJob {
    /// Returns the index that stands for a pause in [`FleetSchedule::parts`]: the index after those of the job's
    /// points.
    pub fn pause_index(&self) -> usize {
        self.points.len()
    }

    /// Returns the sum of limits in force at a point with this index in [`FleetSchedule::parts`]; during a pause, the
    /// lowest.
    pub fn limit(&self, place: usize) -> Watts {
        self.points.get(place).map_or(self.lowest(), |point| point.limit)
    }

    /// Returns the lowest sum of limits among the job's points.
    pub(super) fn lowest(&self) -> Watts {
        self.points.iter().map(|p| p.limit).reduce(Watts::min).unwrap_or_default()
    }

    /// Returns the power that a cap counts for the job's GPUs after the job's end.
    pub(super) fn rest(&self) -> Watts {
        self.at_rest.min(self.lowest())
    }
}

/// Joint planning problem of several jobs over one horizon. Validated on construction.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetProblem {
    pub(super) slots: Vec<PlanSlot>,
    pub(super) caps: Vec<Option<Watts>>,
    pub(super) jobs: Vec<FleetJob>,
    /// Maximum emissions of all jobs together within each budget period.
    pub(super) carbon_budgets: TimeSeries<GramsCo2e>,
    /// Preferred minimum duration of a part of a slot, in which all limits are constant.
    pub(super) shortest: Seconds,
}

impl FleetProblem {
    /// Creates a problem. `slots` are contiguous and the first starts now; `caps` has for each slot the maximum sum of
    /// these jobs' limits at any instant, `None` without a cap; `carbon_budgets` is the maximum of all jobs' emissions
    /// within each budget period (a slot belongs to the period in which the slot starts).
    ///
    /// # Errors
    /// For invalid input. A problem whose constraints cannot all be kept is valid input; the solver reports the
    /// violations.
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
            let pauses = j.pauses.is_empty() || j.pauses.len() == slots.len();
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

    /// Returns the index of the shared carbon budget that a slot belongs to; `None` if it belongs to none.
    pub(super) fn budget_of(&self, t: usize) -> Option<usize> {
        let start = self.slots[t].slot.start();
        self.carbon_budgets.points().iter().position(|(span, _)| span.contains(start))
    }

    /// Returns first the end of the shared carbon budget that binds in a slot, second whether the budget is kept;
    /// `None` if none binds.
    pub(in crate::plan) fn binding_budget(&self, solution: &FleetSolution, t: usize) -> Option<(DateTime<Utc>, bool)> {
        let budget = self.budget_of(t).filter(|_| solution.budget_prices[t] > 1e-6)?;
        let broken = |b: &Breach| matches!(b, Breach::SharedBudget { budget: broken, .. } if *broken == budget);
        Some((self.carbon_budgets.points()[budget].0.end(), !solution.breaches.iter().any(broken)))
    }

    /// Returns the emissions of all jobs within the period of each shared carbon budget; `grams` returns their
    /// emissions in a slot.
    pub(super) fn within_budgets(&self, grams: impl Fn(usize) -> GramsCo2e) -> Vec<GramsCo2e> {
        let mut sums = vec![GramsCo2e::ZERO; self.carbon_budgets.points().len()];
        for t in 0..self.slots.len() {
            self.budget_of(t).into_iter().for_each(|budget| sums[budget] += grams(t));
        }
        sums
    }

    /// Returns the problem with a preferred minimum time at one setting (dwell). Values below a second count as a
    /// second.
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

/// Schedule of one job: points over time, with cost and end.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSchedule {
    /// For each used slot in time order, its parts in the order in which they are in force: first the index of the
    /// point in [`FleetJob::points`], second the time at the point. All slots but the last are full.
    pub parts: Vec<Vec<(usize, Seconds)>>,
    /// Value of the objective in `planning.md` §2, in grams.
    pub cost: GramsCo2e,
    /// Emissions, Σ x·c·p.
    pub carbon: GramsCo2e,
    /// Energy, Σ x·p.
    pub energy: Joules,
    /// Time at which the job completes its work by this schedule.
    pub ends_at: DateTime<Utc>,
}

/// A violated constraint with the amount by which it is exceeded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// Even the lowest limits of all jobs exceed a slot's cap.
    Cap {
        /// Slot in which the cap is exceeded.
        slot: Slot,
        /// Greatest excess over the cap within the slot.
        by: Watts,
    },
    /// A job ends after the latest end that its deadline and its maximum slowdown allow.
    Late {
        /// Index of the job.
        job: usize,
        /// Time by which the job is late.
        by: Seconds,
    },
    /// A job's work is not completed within the horizon.
    Unfinished {
        /// Index of the job.
        job: usize,
        /// Work that is not done.
        missing: Samples,
    },
    /// A job's carbon budget is exceeded.
    Budget {
        /// Index of the job.
        job: usize,
        /// Excess over the budget.
        by: GramsCo2e,
    },
    /// A shared carbon budget is exceeded.
    SharedBudget {
        /// Index among the shared carbon budgets.
        budget: usize,
        /// Excess over the budget.
        by: GramsCo2e,
    },
}

/// Solution of a joint planning problem: schedules of all jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSolution {
    /// One schedule per job, in the problem's order. The limits of all jobs add up to at most the cap, except for a
    /// [`Breach::Cap`].
    pub schedules: Vec<FleetSchedule>,
    /// Sum of the schedules' costs.
    pub cost: GramsCo2e,
    /// Cost of the relaxation in which caps hold only on average over a slot and each job ends in the same slot as in
    /// `schedules`. Meaningless if constraints are violated.
    pub relaxed: GramsCo2e,
    /// Lower bound of the cost of any plan that keeps all constraints. Meaningless if constraints are violated.
    pub bound: GramsCo2e,
    /// The violated constraints.
    pub breaches: Vec<Breach>,
    /// True if the search for better plans was not stopped early.
    pub finished: bool,
    /// Price of each slot's cap, in gCO2e of cost saved per additional watt-second under the cap; 0 if the cap does not
    /// bind.
    pub cap_prices: Vec<f64>,
    /// Price of each slot's shared carbon budget, in grams of cost per gram of budget; 0 if no budget binds.
    pub budget_prices: Vec<f64>,
}
