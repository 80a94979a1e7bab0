//! The planning problem of one job, its solution, and why it may have none (`planning.md` §2).

use chrono::{DateTime, Utc};

use crate::domain::Slot;
use crate::units::{GramsCo2e, GramsPerKwh, JOULES_PER_KWH, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Relative tolerance for missed work, beside [`RESOLUTION`]: times are rounded to the microsecond.
const ROUNDING: f64 = 1e-9;
/// Time resolution of planning.
pub(in crate::plan) const RESOLUTION: Seconds = Seconds::new(1e-3);

/// A time span of the horizon with its expected intensity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanSlot {
    /// Time span; the first one of a horizon may be cut at the present.
    pub slot: Slot,
    /// Expected carbon intensity, c_t.
    pub intensity: GramsPerKwh,
}

/// Power and throughput of the job at one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Average power of all its GPUs, p(l).
    pub power: Watts,
    /// Throughput, r(l), above zero.
    pub throughput: SamplesPerSecond,
}

/// Error for invalid input of a problem.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidProblem {
    /// There are no slots.
    #[error("the horizon is empty")]
    NoSlots,
    /// A slot does not start where the previous one ends.
    #[error("the horizon has a gap or an overlap at {0}")]
    NotContiguous(DateTime<Utc>),
    /// An intensity is below zero.
    #[error("the intensity of {0} is negative")]
    NegativeIntensity(Slot),
    /// There are no points.
    #[error("no operating point")]
    NoPoints,
    /// A point has no throughput or negative power.
    #[error("operating point {0} has no throughput or negative power")]
    UnusablePoint(usize),
    /// There is no work.
    #[error("{0} of work; it must be more than 0")]
    NoWork(Samples),
    /// η is outside 0..=1, or a factor of the time cost is negative.
    #[error("eta must be within 0 to 1, reference intensity and maximum power not negative")]
    BadWeights,
    /// Joint planning: caps, weights or pauses are not one per slot, or a weight is negative.
    #[error("caps, weights of at least 0 and pauses are needed for each slot")]
    NotPerSlot,
    /// Joint planning: a limit is negative.
    #[error("a limit is negative")]
    NegativeLimit,
}

/// Reason why no plan meets the constraints, with figures for running at full speed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// Even the fastest point is too slow for the latest end.
    #[error("even at full speed {missing:.0} are missing at the latest end, {late_by:.0} of work")]
    NotEnoughTime {
        /// Work not done by the latest end.
        missing: Samples,
        /// Delay of its completion after the latest end.
        late_by: Seconds,
    },
    /// The horizon ends before the work can be done.
    #[error("even at full speed {missing:.0} are missing at the end of the horizon, {short_by:.0} of work")]
    HorizonTooShort {
        /// Work that does not fit in.
        missing: Samples,
        /// Missing length of the horizon.
        short_by: Seconds,
    },
}

/// Time at each point in each slot, with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// For each used slot in order: the points used (indices in [`Problem::points`]), faster first, and their
    /// durations. All slots but the last are full.
    pub shares: Vec<Vec<(usize, Seconds)>>,
    /// Objective of `planning.md` §2: η · carbon (or a mixture with price) + (1 − η) · time.
    pub cost: GramsCo2e,
    /// Σ x·c·p.
    pub carbon: GramsCo2e,
    /// The same with the intensities that a budget counts.
    pub counted: GramsCo2e,
    /// Σ x·p.
    pub energy: Joules,
    /// Time at which the work is done.
    pub ends_at: DateTime<Utc>,
}

/// The problem of `planning.md` §2 for one job. Validated on construction.
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
    /// Number of points with throughput; points after them belong to pauses.
    working: usize,
}

/// Cost of energy in a slot, and what a budget counts it as, in g/kWh.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weight {
    /// In the objective: η·c_t unless a price is included.
    cost: f64,
    /// In a budget: c_t unless it counts another intensity.
    counted: f64,
}

/// Allowed activity in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Mode {
    /// The job runs unless it has ended.
    Run,
    /// The job pauses.
    Pause,
    /// The job saves or loads a checkpoint without progress.
    Resume,
    /// The job runs, or runs and then pauses, or pauses.
    Either,
}

impl Problem {
    /// Creates a problem. `slots` are contiguous and the first starts now; `points` are all usable settings in any
    /// order; `work` is the remaining work; `eta` weighs carbon against time, whose cost is scaled by
    /// `reference_intensity` (c_ref) and `max_power` (P_max of all GPUs); `latest_end` is the earlier of the deadline
    /// and the end of the slowdown budget.
    ///
    /// # Errors
    /// For invalid input. Infeasible problems are valid; the solver reports them.
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

    /// Adds two points without throughput: one for pauses, one for checkpoints.
    #[must_use]
    pub(in crate::plan) fn pausing_at(mut self, idle: Watts, checkpoint: Watts) -> Self {
        let point = |power| Point { power, throughput: SamplesPerSecond::ZERO };
        self.points.extend([point(idle), point(checkpoint)]);
        self
    }

    /// Splits the slots into pieces, each given as the index of its slot, its time span and its mode.
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

    /// Returns the problem from the second slot on with less work; `None` without further slots or work.
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

    /// Returns the cost of energy in a slot.
    pub(in crate::plan) fn weight(&self, slot: usize) -> GramsPerKwh {
        GramsPerKwh::new(self.weights[slot].cost)
    }

    /// Returns the allowed activity in a slot.
    pub(super) fn mode(&self, slot: usize) -> Mode {
        self.modes[slot]
    }

    /// Returns the point for pauses if the job may pause.
    pub(in crate::plan) fn idle(&self) -> Option<usize> {
        (self.working < self.points.len()).then_some(self.working)
    }

    /// Returns the usable points in a mode.
    pub(in crate::plan) fn points_in(&self, mode: Mode) -> std::ops::Range<usize> {
        match mode {
            Mode::Run => 0..self.working,
            Mode::Either => 0..self.working + 1,
            Mode::Pause => self.working..self.working + 1,
            Mode::Resume => self.working + 1..self.working + 2,
        }
    }

    /// Returns whether work may be done in a slot.
    pub(in crate::plan) fn runs(&self, slot: usize) -> bool {
        matches!(self.modes[slot], Mode::Run | Mode::Either)
    }

    /// Sets the intensities to minimise, one non-negative value per slot: a mixture of carbon and price. Reported
    /// carbon still uses the slots' own intensities.
    #[must_use]
    pub fn minimising(mut self, intensities: &[GramsPerKwh]) -> Self {
        debug_assert_eq!(intensities.len(), self.slots.len());
        let eta = self.eta;
        self.weights.iter_mut().zip(intensities).for_each(|(w, i)| w.cost = eta * i.get().max(0.0));
        self
    }

    /// Sets the intensities that a budget counts, one per slot.
    pub(super) fn counting(mut self, intensities: impl Iterator<Item = GramsPerKwh>) -> Self {
        self.weights.iter_mut().zip(intensities).for_each(|(w, i)| w.counted = i.get());
        self
    }

    /// Returns the problem with an additional cost of `multiplier` per gram that a budget counts.
    pub(super) fn with_budget_at(&self, multiplier: f64) -> Self {
        let priced = |w: &Weight| Weight { cost: w.cost + multiplier * w.counted, ..*w };
        Self { weights: self.weights.iter().map(priced).collect(), ..self.clone() }
    }

    /// Returns the problem with what a budget counts as the only objective.
    pub(in crate::plan) fn least_counted(&self) -> Self {
        let weights = self.weights.iter().map(|w| Weight { cost: w.counted, ..*w }).collect();
        Self { weights, eta: 1.0, ..self.clone() }
    }

    /// Returns the horizon in time order.
    pub fn slots(&self) -> &[PlanSlot] {
        &self.slots
    }

    /// Returns the usable points in input order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns the remaining work, W.
    pub fn work(&self) -> Samples {
        self.work
    }

    /// Returns the time by which the work must be done, if any.
    pub fn latest_end(&self) -> Option<DateTime<Utc>> {
        self.latest_end
    }

    /// Returns the greatest throughput.
    pub fn fastest(&self) -> SamplesPerSecond {
        self.points.iter().fold(SamplesPerSecond::ZERO, |fastest, p| fastest.max(p.throughput))
    }

    /// Returns the slots that start before the latest end.
    pub(in crate::plan) fn open_slots(&self) -> &[PlanSlot] {
        let open = self.slots.partition_point(|s| self.latest_end.is_none_or(|end| s.slot.start() < end));
        &self.slots[..open]
    }

    /// Returns the part of a slot before the latest end; zero after it.
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

    /// Returns the cost of a second at a point in a slot, in gCO2e/s: the bracket of `planning.md` §2.
    pub(in crate::plan) fn second_cost(&self, slot: usize, point: usize) -> f64 {
        self.joule_cost(slot) * self.points[point].power.get() + self.time_cost()
    }

    /// Returns the work to place: all of it, or what fits if the difference is rounding.
    ///
    /// # Errors
    /// If even the fastest point cannot do it in the available time.
    pub(in crate::plan) fn reachable_work(&self) -> Result<Samples, Infeasible> {
        let fastest = self.fastest();
        let tolerance = (self.work * ROUNDING).max(fastest * RESOLUTION);
        let start = self.slots[0].slot.start();
        let (mut available, mut idle) = (Seconds::ZERO, Seconds::ZERO);
        for (slot, s) in self.open_slots().iter().enumerate() {
            *(if self.runs(slot) { &mut available } else { &mut idle }) += self.usable(s);
        }
        if let Some(end) = self.latest_end {
            let late_by = self.work / fastest - (Seconds::from_delta(end - start) - idle);
            // A smaller delay is rounding unless no time is left at all.
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

    /// Computes the cost of given time shares.
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

/// Checks that a horizon is not empty, contiguous and without negative intensities.
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
