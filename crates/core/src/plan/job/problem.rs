//! The planning problem of one job, its solution, and the reasons why it may have none (`planning.md` §2).

use chrono::{DateTime, Utc};

use crate::domain::Slot;
use crate::units::{GramsCo2e, GramsPerKwh, JOULES_PER_KWH, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Fraction of the work that may exceed what fits into the available time and still counts as rounding; or the work of
/// [`RESOLUTION`] at full speed, if that is more. Times are rounded to the microsecond.
const ROUNDING: f64 = 1e-9;
/// Time resolution of planning; shorter times count as rounding.
pub(in crate::plan) const RESOLUTION: Seconds = Seconds::new(1e-3);

/// Slot (time step) of the planning horizon with its expected carbon intensity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanSlot {
    /// Time span of the slot; the first slot of a horizon may be cut at the present.
    pub slot: Slot,
    /// Expected carbon intensity, c_t.
    pub intensity: GramsPerKwh,
}

/// Operating point: power and throughput of the job at one setting of its power limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Average power of all the job's GPUs, p(l).
    pub power: Watts,
    /// Throughput of the whole job, r(l).
    pub throughput: SamplesPerSecond,
}

/// Reason why the input of a planning problem is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidProblem {
    /// The horizon has no slots.
    #[error("the forecast horizon has no slots; at least one is needed")]
    NoSlots,
    /// A slot does not start where the previous one ends.
    #[error("the horizon has a gap or an overlap at {0}; each slot must start where the previous one ends")]
    NotContiguous(DateTime<Utc>),
    /// An intensity is below zero.
    #[error("the carbon intensity of {0} is negative; it must be at least 0 g/kWh")]
    NegativeIntensity(Slot),
    /// There are no operating points, or work is done at none of them.
    #[error("no operating point does any work; at least one with a throughput above 0 is needed")]
    NoPoints,
    /// The power or the throughput of the point with this index is negative; in the problem of one job, a throughput of
    /// zero is invalid too.
    #[error("operating point {0} has a throughput that is too low or a power below 0 W")]
    UnusablePoint(usize),
    /// The remaining work is not more than 0.
    #[error("the remaining work is {0}; it must be more than 0")]
    NoWork(Samples),
    /// η (weight of carbon against time) is outside 0 to 1, or c_ref or P_max, which scale the cost of time, is
    /// negative.
    #[error("eta must be from 0 to 1; the reference intensity and the maximum power must be at least 0")]
    BadWeights,
    /// Joint planning: the number of caps, weighted intensities or pause flags is not the number of slots, or a
    /// weighted intensity is negative.
    #[error(
        "caps, weighted intensities and pauses must have one value per slot, and weighted intensities must be at least 0"
    )]
    NotPerSlot,
    /// Joint planning: a power limit of a point, or the limit that counts after a job's end (resting limit), is
    /// negative.
    #[error("a power limit of a job, or of its GPUs after its end, is negative; limits must be at least 0 W")]
    NegativeLimit,
}

/// Reason why no plan does the work in time, with figures for running at full speed (always at the fastest point).
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// Even at the fastest point, the work ends after the latest end that the job's promises allow.
    #[error("even at full speed {missing:.0} are not done at the latest end; they take another {late_by:.0}")]
    NotEnoughTime {
        /// Work that full speed leaves undone at the latest end.
        missing: Samples,
        /// Time after the latest end at which full speed completes the work.
        late_by: Seconds,
    },
    /// The planning horizon ends before the work can be done.
    #[error(
        "even at full speed {missing:.0} are not done when the planning horizon ends; they take another {short_by:.0}"
    )]
    HorizonTooShort {
        /// Work that full speed leaves undone at the end of the horizon.
        missing: Samples,
        /// Additional length of the horizon that the work would need at full speed.
        short_by: Seconds,
    },
}

/// Solution of a planning problem: the time at each point in each slot, and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// For each used slot in time order, its parts, faster ones first: first the index of the point in
    /// [`Problem::points`], second the time at the point. All slots but the last are full.
    pub shares: Vec<Vec<(usize, Seconds)>>,
    /// Value of the objective in `planning.md` §2: η · carbon (or a mixture of carbon and price) + (1 − η) · time, in
    /// grams.
    pub cost: GramsCo2e,
    /// Emissions, Σ x·c·p.
    pub carbon: GramsCo2e,
    /// Emissions with the carbon intensities that the job's carbon budget counts.
    pub counted: GramsCo2e,
    /// Energy, Σ x·p.
    pub energy: Joules,
    /// Time at which the work is done.
    pub ends_at: DateTime<Utc>,
}

/// Planning problem of one job (`planning.md` §2): the choice of an operating point at each time. Validated on
/// construction.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    slots: Vec<PlanSlot>,
    points: Vec<Point>,
    work: Samples,
    eta: f64,
    reference_intensity: GramsPerKwh,
    max_power: Watts,
    latest_end: Option<DateTime<Utc>>,
    weights: Vec<Weight>,
    /// Allowed activity in each slot.
    modes: Vec<Mode>,
    /// Number of points at which the job trains, which come first in `points`. A job that may pause has two more: one
    /// for pauses, one for checkpoints.
    working: usize,
}

/// Weights of energy in a slot, in g/kWh: in the objective and in the carbon budget.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weight {
    /// Cost of energy in the objective: η·c_t, or η times the mixture of carbon and price.
    cost: f64,
    /// Carbon intensity that a carbon budget counts.
    counted: f64,
}

/// Activity of the job that is allowed in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Mode {
    /// The job runs unless it has ended.
    Run,
    /// The job pauses.
    Pause,
    /// The job saves or loads a checkpoint without progress.
    Resume,
    /// The job runs, pauses, or first runs and then pauses.
    Either,
}

impl Problem {
    /// Creates a problem. `slots` are contiguous and the first starts now; `points` are all usable operating points in
    /// any order; `work` is the remaining work; `eta` is η, the weight of carbon, and 1 − η that of time, whose cost is
    /// scaled by `reference_intensity` (c_ref) and `max_power` (P_max of all GPUs); `latest_end` is the earlier of the
    /// deadline and the time at which the maximum slowdown is used up.
    ///
    /// # Errors
    /// For invalid input. A problem without a feasible plan is valid input; the solver reports that there is no plan.
    pub fn new(
        slots: Vec<PlanSlot>,
        points: Vec<Point>,
        work: Samples,
        eta: f64,
        reference_intensity: GramsPerKwh,
        max_power: Watts,
        latest_end: Option<DateTime<Utc>>,
    ) -> Result<Self, InvalidProblem> {
        check_horizon(&slots)?;
        if points.is_empty() {
            return Err(InvalidProblem::NoPoints);
        }
        let usable = |p: &Point| p.power >= Watts::ZERO && p.throughput > SamplesPerSecond::ZERO;
        if let Some(unusable) = points.iter().position(|p| !usable(p)) {
            return Err(InvalidProblem::UnusablePoint(unusable));
        }
        if work <= Samples::ZERO {
            return Err(InvalidProblem::NoWork(work));
        }
        let weighs = (0.0..=1.0).contains(&eta) && reference_intensity >= GramsPerKwh::ZERO && max_power >= Watts::ZERO;
        if !weighs {
            return Err(InvalidProblem::BadWeights);
        }
        let weights =
            slots.iter().map(|s| Weight { cost: eta * s.intensity.get(), counted: s.intensity.get() }).collect();
        let (modes, working) = (vec![Mode::Run; slots.len()], points.len());
        Ok(Self { slots, points, work, eta, reference_intensity, max_power, latest_end, weights, modes, working })
    }

    /// Adds two points at which no work is done, given by their power: one for pauses, one for checkpoints.
    #[must_use]
    pub(in crate::plan) fn pausing_at(mut self, idle: Watts, checkpoint: Watts) -> Self {
        let point = |power| Point { power, throughput: SamplesPerSecond::ZERO };
        self.points.extend([point(idle), point(checkpoint)]);
        self
    }

    /// Returns the problem with its slots replaced by pieces of them. Each piece has the index of the slot that it is
    /// cut from, its time span, and its allowed activity.
    pub(in crate::plan) fn in_pieces(&self, pieces: &[(usize, Slot, Mode)]) -> Self {
        let piece =
            |(of, slot, _): &(usize, Slot, Mode)| PlanSlot { slot: *slot, intensity: self.slots[*of].intensity };
        Self {
            slots: pieces.iter().map(piece).collect(),
            weights: pieces.iter().map(|(of, ..)| self.weights[*of]).collect(),
            modes: pieces.iter().map(|(.., mode)| *mode).collect(),
            ..self.clone()
        }
    }

    /// Returns the problem that starts at the second slot, with the given work; `None` if no slot or no work remains.
    pub(super) fn after_first(&self, work: Samples) -> Option<Self> {
        let left = self.slots.len() > 1 && work > Samples::ZERO;
        left.then(|| Self {
            slots: self.slots[1..].to_vec(),
            weights: self.weights[1..].to_vec(),
            modes: self.modes[1..].to_vec(),
            work,
            ..self.clone()
        })
    }

    /// Returns the cost of energy in a slot as the objective counts it: η times the carbon intensity, or η times the
    /// mixture of carbon and price.
    pub(in crate::plan) fn weight(&self, slot: usize) -> GramsPerKwh {
        GramsPerKwh::new(self.weights[slot].cost)
    }

    /// Returns the allowed activity in a slot.
    pub(super) fn mode(&self, slot: usize) -> Mode {
        self.modes[slot]
    }

    /// Returns the index of the point for pauses; `None` if the job may not pause.
    pub(in crate::plan) fn idle(&self) -> Option<usize> {
        (self.working < self.points.len()).then_some(self.working)
    }

    /// Returns the indices of the points that may be used in a slot with this allowed activity.
    pub(in crate::plan) fn points_in(&self, mode: Mode) -> std::ops::Range<usize> {
        match mode {
            Mode::Run => 0..self.working,
            Mode::Either => 0..self.working + 1,
            Mode::Pause => self.working..self.working + 1,
            Mode::Resume => self.working + 1..self.working + 2,
        }
    }

    /// Returns whether the job may train in a slot.
    pub(in crate::plan) fn runs(&self, slot: usize) -> bool {
        matches!(self.modes[slot], Mode::Run | Mode::Either)
    }

    /// Sets the intensities that the objective minimises, one per slot, such as a mixture of carbon and price. Negative
    /// values count as 0. Reported emissions still use the slots' carbon intensities.
    #[must_use]
    pub fn minimising(mut self, intensities: &[GramsPerKwh]) -> Self {
        debug_assert_eq!(intensities.len(), self.slots.len());
        let eta = self.eta;
        self.weights.iter_mut().zip(intensities).for_each(|(w, i)| w.cost = eta * i.get().max(0.0));
        self
    }

    /// Sets the intensities that a carbon budget counts, one per slot.
    pub(super) fn counting(mut self, intensities: impl Iterator<Item = GramsPerKwh>) -> Self {
        self.weights.iter_mut().zip(intensities).for_each(|(w, i)| w.counted = i.get());
        self
    }

    /// Returns the problem with an additional cost of `multiplier` per gram of carbon that the budget counts.
    pub(super) fn with_budget_at(&self, multiplier: f64) -> Self {
        let priced = |w: &Weight| Weight { cost: w.cost + multiplier * w.counted, ..*w };
        Self { weights: self.weights.iter().map(priced).collect(), ..self.clone() }
    }

    /// Returns the problem whose only objective is the carbon that the budget counts.
    pub(in crate::plan) fn least_counted(&self) -> Self {
        let weights = self.weights.iter().map(|w| Weight { cost: w.counted, ..*w }).collect();
        Self { weights, eta: 1.0, ..self.clone() }
    }

    /// Returns the horizon in time order.
    pub fn slots(&self) -> &[PlanSlot] {
        &self.slots
    }

    /// Returns the points in input order. If the job may pause, two points follow: one for pauses, one for checkpoints.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns the remaining work, W.
    pub fn work(&self) -> Samples {
        self.work
    }

    /// Returns the time by which the work must be done; `None` if there is no such time.
    pub fn latest_end(&self) -> Option<DateTime<Utc>> {
        self.latest_end
    }

    /// Returns the greatest throughput of any point.
    pub fn fastest(&self) -> SamplesPerSecond {
        self.points.iter().fold(SamplesPerSecond::ZERO, |fastest, p| fastest.max(p.throughput))
    }

    /// Returns the slots that start before the latest end.
    pub(in crate::plan) fn open_slots(&self) -> &[PlanSlot] {
        let open = self.slots.partition_point(|s| self.latest_end.is_none_or(|end| s.slot.start() < end));
        &self.slots[..open]
    }

    /// Returns the part of a slot before the latest end; zero for slots after the latest end.
    pub(in crate::plan) fn usable(&self, slot: &PlanSlot) -> Seconds {
        let until = self.latest_end.map_or(slot.slot.end(), |end| end.min(slot.slot.end()));
        Seconds::from_delta(until - slot.slot.start()).max(Seconds::ZERO)
    }

    /// Returns the cost of time in gCO2e/s: (1−η)·c_ref·P_max.
    pub(in crate::plan) fn time_cost(&self) -> f64 {
        (1.0 - self.eta) * self.reference_intensity.get() * self.max_power.get() / JOULES_PER_KWH
    }

    /// Returns the cost of energy in a slot in gCO2e/J.
    pub(in crate::plan) fn joule_cost(&self, slot: usize) -> f64 {
        self.weights[slot].cost / JOULES_PER_KWH
    }

    /// Returns the cost of a second at a point in a slot, in gCO2e/s: the term in brackets of the objective in
    /// `planning.md` §2, for energy and time.
    pub(in crate::plan) fn second_cost(&self, slot: usize, point: usize) -> f64 {
        self.joule_cost(slot) * self.points[point].power.get() + self.time_cost()
    }

    /// Returns the work to plan: all remaining work, or the part that fits into the available time if what remains is
    /// only rounding.
    ///
    /// # Errors
    /// If even the fastest point cannot do the work in the available time.
    pub(in crate::plan) fn reachable_work(&self) -> Result<Samples, Infeasible> {
        self.reachable_work_after(Seconds::ZERO)
    }

    /// Returns the work to plan like [`Self::reachable_work`], if the job does no work for the time `restart` first.
    pub(super) fn reachable_work_after(&self, restart: Seconds) -> Result<Samples, Infeasible> {
        let fastest = self.fastest();
        let tolerance = (self.work * ROUNDING).max(fastest * RESOLUTION);
        let start = self.slots[0].slot.start();
        let (mut available, mut idle) = (Seconds::ZERO, restart);
        for (slot, s) in self.open_slots().iter().enumerate() {
            *(if self.runs(slot) { &mut available } else { &mut idle }) += self.usable(s);
        }
        available = (available - restart).max(Seconds::ZERO);
        if let Some(end) = self.latest_end {
            let late_by = self.work / fastest - (Seconds::from_delta(end - start) - idle);
            // A delay within the tolerance counts as rounding, unless no time is left at all.
            if fastest * late_by > tolerance || available <= Seconds::ZERO {
                let missing = (fastest * late_by).min(self.work);
                return Err(Infeasible::NotEnoughTime { missing, late_by });
            }
        }
        let missing = self.work - fastest * available;
        if missing > tolerance {
            return Err(Infeasible::HorizonTooShort { missing, short_by: missing / fastest });
        }
        Ok(self.work.min(fastest * available))
    }

    /// Returns the solution with given time shares (for each slot, the points used and the time at each): sorts each
    /// slot's points, the fastest first, and computes cost, emissions, energy and end.
    pub(in crate::plan) fn evaluate(&self, mut shares: Vec<Vec<(usize, Seconds)>>) -> Solution {
        while shares.last().is_some_and(Vec::is_empty) {
            shares.pop();
        }
        let (mut carbon, mut counted, mut energy, mut cost) = (GramsCo2e::ZERO, GramsCo2e::ZERO, Joules::ZERO, 0.0);
        for (slot, parts) in shares.iter_mut().enumerate() {
            parts.sort_by(|a, b| self.points[b.0].throughput.total_cmp(&self.points[a.0].throughput));
            for &(point, seconds) in parts.iter() {
                let joules = self.points[point].power * seconds;
                energy += joules;
                carbon += joules * self.slots[slot].intensity;
                counted += joules * GramsPerKwh::new(self.weights[slot].counted);
                cost += self.second_cost(slot, point) * seconds.get();
            }
        }
        let ends_at = match shares.last() {
            None => self.slots[0].slot.start(),
            Some(last) => {
                let slot = self.slots[shares.len() - 1].slot;
                (slot.start() + last.iter().map(|part| part.1).sum::<Seconds>().to_delta()).min(slot.end())
            }
        };
        Solution { shares, cost: GramsCo2e::new(cost), carbon, counted, energy, ends_at }
    }
}

/// Checks that a horizon has slots, is contiguous and has no negative intensity.
pub(in crate::plan) fn check_horizon(slots: &[PlanSlot]) -> Result<(), InvalidProblem> {
    if slots.is_empty() {
        return Err(InvalidProblem::NoSlots);
    }
    if let Some(pair) = slots.windows(2).find(|pair| pair[0].slot.end() != pair[1].slot.start()) {
        return Err(InvalidProblem::NotContiguous(pair[0].slot.end()));
    }
    match slots.iter().find(|s| s.intensity < GramsPerKwh::ZERO) {
        Some(negative) => Err(InvalidProblem::NegativeIntensity(negative.slot)),
        None => Ok(()),
    }
}
