//! One job's planning problem, its solution and why it may have none (`planning.md` §2).

use chrono::{DateTime, Utc};

use crate::domain::Slot;
use crate::units::{GramsCo2e, GramsPerKwh, JOULES_PER_KWH, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// The work may be missed by this share of it, or by [`RESOLUTION`]: moments are rounded to the microsecond.
const ROUNDING: f64 = 1e-9;
/// Time that planning does not resolve.
pub(super) const RESOLUTION: Seconds = Seconds::new(1e-3);

/// A span of the horizon and the intensity expected in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanSlot {
    /// Its span; the first one of a horizon may be cut at the present.
    pub slot: Slot,
    /// Expected carbon intensity, c_t.
    pub intensity: GramsPerKwh,
}

/// What the job does at one setting of its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Average power of all its boards, p(l).
    pub power: Watts,
    /// Throughput, r(l); more than zero.
    pub throughput: SamplesPerSecond,
}

/// Why a problem cannot be posed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidProblem {
    /// There is no slot.
    #[error("the horizon is empty")]
    NoSlots,
    /// A slot does not begin where the one before it ends.
    #[error("the horizon has a gap or an overlap at {0}")]
    NotContiguous(DateTime<Utc>),
    /// An intensity is below zero.
    #[error("the intensity of {0} is negative")]
    NegativeIntensity(Slot),
    /// There is no point.
    #[error("no operating point")]
    NoPoints,
    /// A point stands still or gives power.
    #[error("operating point {0} has no throughput or negative power")]
    UnusablePoint(usize),
    /// There is nothing to plan.
    #[error("{0} of work; it must be more than 0")]
    NoWork(Samples),
    /// η is outside 0..=1, or what it weighs time with is negative.
    #[error("eta must be within 0 to 1, reference intensity and maximum power not negative")]
    BadWeights,
}

/// Why no plan keeps the promises, and by how much. Numbers are for running flat out.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// Even the fastest point is too slow for the latest end.
    #[error("even flat out {missing:.0} are missing at the latest end, {late_by:.0} of work")]
    NotEnoughTime {
        /// Work that is not done by the latest end.
        missing: Samples,
        /// How long after the latest end it would be done.
        late_by: Seconds,
    },
    /// The horizon ends before the work can be done; nothing is known about later.
    #[error("even flat out {missing:.0} are missing at the end of the horizon, {short_by:.0} of work")]
    HorizonTooShort {
        /// Work that does not fit in.
        missing: Samples,
        /// How much longer the horizon would have to be.
        short_by: Seconds,
    },
}

/// Which seconds to spend at which point, and what that costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// For each used slot, oldest first: the points used (places in [`Problem::points`]), faster first, and for how
    /// long. Every slot but the last is full.
    pub shares: Vec<Vec<(usize, Seconds)>>,
    /// The objective of `planning.md` §2: carbon (or what is minimised in its place) weighed with η, and time with 1 − η.
    pub cost: GramsCo2e,
    /// Σ x·c·p.
    pub carbon: GramsCo2e,
    /// Σ x·p.
    pub energy: Joules,
    /// When the work is done.
    pub ends_at: DateTime<Utc>,
}

/// The problem of `planning.md` §2 for one job that never pauses. Checked when made.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    slots: Vec<PlanSlot>,
    points: Vec<Point>,
    work: Samples,
    eta: f64,
    reference_intensity: GramsPerKwh,
    max_power: Watts,
    latest_end: Option<DateTime<Utc>>,
    /// What energy costs in each slot, in g/kWh: η·c_t unless something else is weighed.
    weights: Vec<f64>,
    /// What may be done in each slot.
    modes: Vec<Mode>,
    /// How many of the points do work. Those after them are of a pause.
    working: usize,
}

/// What may be done in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The job runs, unless it has ended.
    Run,
    /// The job pauses.
    Pause,
    /// The job saves or loads a checkpoint, and does no work.
    Resume,
    /// The job runs, or runs first and pauses then, or pauses.
    Either,
}

impl Problem {
    /// Poses the problem: `slots` are contiguous and the first begins now; `points` are all limits that may be used,
    /// in any order; `work` is what remains; `eta` is Zeus's knob, whose time term is weighed with
    /// `reference_intensity` (c_ref) and `max_power` (P_max, all boards); `latest_end` is the earlier of the deadline
    /// and the end of the slowdown budget.
    ///
    /// # Errors
    /// What is wrong with the input. Infeasibility is not: that is the solver's answer.
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
        let weights = slots.iter().map(|s| eta * s.intensity.get()).collect();
        let (modes, working) = (vec![Mode::Run; slots.len()], points.len());
        Ok(Self { slots, points, work, eta, reference_intensity, max_power, latest_end, weights, modes, working })
    }

    /// The same problem with two more points that do no work: one of a pause, one of saving or loading a checkpoint.
    #[must_use]
    pub(super) fn pausing_at(mut self, idle: Watts, checkpoint: Watts) -> Self {
        let point = |power| Point { power, throughput: SamplesPerSecond::ZERO };
        self.points.extend([point(idle), point(checkpoint)]);
        self
    }

    /// The same problem over pieces of its slots: for each piece the slot it lies in, its span, and what may be done.
    pub(super) fn in_pieces(&self, pieces: &[(usize, Slot, Mode)]) -> Self {
        let piece =
            |(of, slot, _): &(usize, Slot, Mode)| PlanSlot { slot: *slot, intensity: self.slots[*of].intensity };
        Self {
            slots: pieces.iter().map(piece).collect(),
            weights: pieces.iter().map(|(of, ..)| self.weights[*of]).collect(),
            modes: pieces.iter().map(|(.., mode)| *mode).collect(),
            ..self.clone()
        }
    }

    /// The same problem from the second slot on, with so much work; `None` where no slot or no work is left.
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

    /// What energy is weighed with in a slot: η times what is minimised.
    pub(super) fn weight(&self, slot: usize) -> GramsPerKwh {
        GramsPerKwh::new(self.weights[slot])
    }

    /// What may be done in a slot.
    pub(super) fn mode(&self, slot: usize) -> Mode {
        self.modes[slot]
    }

    /// The point of a pause, if the job may pause.
    pub(super) fn idle(&self) -> Option<usize> {
        (self.working < self.points.len()).then_some(self.working)
    }

    /// The points that may be used in a mode.
    pub(super) fn points_in(&self, mode: Mode) -> std::ops::Range<usize> {
        match mode {
            Mode::Run => 0..self.working,
            Mode::Either => 0..self.working + 1,
            Mode::Pause => self.working..self.working + 1,
            Mode::Resume => self.working + 1..self.working + 2,
        }
    }

    /// Whether work may be done in a slot.
    pub(super) fn runs(&self, slot: usize) -> bool {
        matches!(self.modes[slot], Mode::Run | Mode::Either)
    }

    /// The same problem with other intensities to minimise, one per slot and none negative: a mixture of carbon and
    /// price. The slots' own go on telling the carbon.
    #[must_use]
    pub fn minimising(mut self, intensities: &[GramsPerKwh]) -> Self {
        debug_assert_eq!(intensities.len(), self.slots.len());
        self.weights = intensities.iter().map(|i| self.eta * i.get().max(0.0)).collect();
        self
    }

    /// The same problem in which each gram of carbon costs `multiplier` grams more.
    pub(super) fn with_carbon_at(&self, multiplier: f64) -> Self {
        let dearer = |(weight, slot): (&f64, &PlanSlot)| weight + multiplier * slot.intensity.get();
        let weights = self.weights.iter().zip(&self.slots).map(dearer).collect();
        Self { weights, ..self.clone() }
    }

    /// The same problem in which nothing but carbon counts.
    pub(super) fn least_carbon(&self) -> Self {
        let weights = self.slots.iter().map(|s| s.intensity.get()).collect();
        Self { weights, eta: 1.0, ..self.clone() }
    }

    /// The horizon, oldest first.
    pub fn slots(&self) -> &[PlanSlot] {
        &self.slots
    }

    /// The points that may be used, as they were given.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The work that remains, W.
    pub fn work(&self) -> Samples {
        self.work
    }

    /// When the work must be done, if ever.
    pub fn latest_end(&self) -> Option<DateTime<Utc>> {
        self.latest_end
    }

    /// The greatest throughput of any point.
    pub fn fastest(&self) -> SamplesPerSecond {
        self.points.iter().fold(SamplesPerSecond::ZERO, |fastest, p| fastest.max(p.throughput))
    }

    /// The slots that may be used at all: those that begin before the latest end.
    pub(super) fn open_slots(&self) -> &[PlanSlot] {
        let open = self.slots.partition_point(|s| self.latest_end.is_none_or(|end| s.slot.start() < end));
        &self.slots[..open]
    }

    /// The seconds of a slot that lie before the latest end. Zero after it.
    pub(super) fn usable(&self, slot: &PlanSlot) -> Seconds {
        let until = self.latest_end.map_or(slot.slot.end(), |end| end.min(slot.slot.end()));
        Seconds::from_delta(until - slot.slot.start()).max(Seconds::ZERO)
    }

    /// What a second costs through time alone, in gCO2e/s: (1−η)·c_ref·P_max.
    pub(super) fn time_cost(&self) -> f64 {
        (1.0 - self.eta) * self.reference_intensity.get() * self.max_power.get() / JOULES_PER_KWH
    }

    /// What a joule costs in a slot, in gCO2e/J: η·c_t, or what is minimised in its place.
    pub(super) fn joule_cost(&self, slot: usize) -> f64 {
        self.weights[slot] / JOULES_PER_KWH
    }

    /// What a second at a point costs in a slot, in gCO2e/s: the bracket of `planning.md` §2.
    pub(super) fn second_cost(&self, slot: usize, point: usize) -> f64 {
        self.joule_cost(slot) * self.points[point].power.get() + self.time_cost()
    }

    /// The work that a solver shall place: all of it, or as much as fits where the difference is only rounding.
    ///
    /// # Errors
    /// If even the fastest point cannot do it in the time there is.
    pub(super) fn reachable_work(&self) -> Result<Samples, Infeasible> {
        let fastest = self.fastest();
        let tolerance = (self.work * ROUNDING).max(fastest * RESOLUTION);
        let start = self.slots[0].slot.start();
        let (mut available, mut idle) = (Seconds::ZERO, Seconds::ZERO);
        for (slot, s) in self.open_slots().iter().enumerate() {
            *(if self.runs(slot) { &mut available } else { &mut idle }) += self.usable(s);
        }
        if let Some(end) = self.latest_end {
            let late_by = self.work / fastest - (Seconds::from_delta(end - start) - idle);
            // What is late by less is rounding, but for where no time is left at all.
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

    /// What given shares cost.
    pub(super) fn evaluate(&self, mut shares: Vec<Vec<(usize, Seconds)>>) -> Solution {
        while shares.last().is_some_and(Vec::is_empty) {
            shares.pop();
        }
        let (mut carbon, mut energy, mut cost) = (GramsCo2e::ZERO, Joules::ZERO, 0.0);
        for (slot, parts) in shares.iter_mut().enumerate() {
            parts.sort_by(|a, b| self.points[b.0].throughput.total_cmp(&self.points[a.0].throughput));
            for &(point, seconds) in parts.iter() {
                let joules = self.points[point].power * seconds;
                energy += joules;
                carbon += joules * self.slots[slot].intensity;
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
        Solution { shares, cost: GramsCo2e::new(cost), carbon, energy, ends_at }
    }
}

/// Whether a horizon can be planned over: not empty, contiguous, without negative intensities.
pub(super) fn check_horizon(slots: &[PlanSlot]) -> Result<(), InvalidProblem> {
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
