//! How far a plan follows its forecast.
//!
//! The optimum bets on differences between hours that are known with an error only. Two rules keep it from paying for
//! nothing; both look at the standard error of exactly those energies that are moved between slots ([`ErrorPaths`]), in
//! which errors that all hours have in common cancel.
//!
//! * **Beyond the most efficient mix, and to pause, only for a gain.** There slowing down costs energy besides time, and
//!   the work has to be done later for it to pay. The present slot is that slow only if the plan gains more by it than a
//!   multiple of the gain's standard error.
//! * **No worse than the best constant mix.** The job is compared with its *shadow*: itself, had it run the best constant
//!   mix from its start on. What it gained or lost against the shadow so far, and what it would gain or lose in the rest
//!   if it followed the plan up to some slot and a constant mix from then on, less a multiple of the standard error, may
//!   together not be below −[`MOST_LOST`]; what the whole plan is expected to gain over the constant mix may be risked on
//!   top. Where no such slot exists, the present goes only so far from the constant mix that this holds.
//!
//! Only the present slot is changed, as only the present of a plan is carried out; the rest is the optimum after it.
//!
//! [`ErrorPaths`]: crate::forecast::ErrorPaths

use super::dual::{Hulls, solve};
use super::problem::{Problem, Solution};
use super::receding::{OwedWork, Planner};
use super::request::{Past, Weighing};
use crate::domain::{Slot, Work};
use crate::forecast::SlotErrors;
use crate::units::{GramsCo2e, JOULES_PER_KWH, Samples, SamplesPerSecond, Seconds};

/// Slowing down beyond the most efficient mix, and pausing, has to gain this many standard errors of the gain.
const WORTH: f64 = 0.15;
/// What a job may emit more than its shadow, as a part of what it would emit at the ceiling.
const MOST_LOST: f64 = 0.003;
/// So many standard errors must lie between what is expected and that.
const SAFE: f64 = 0.75;
/// Halvings of the part by which the present slot follows the plan.
const HALVINGS: u32 = 6;

/// What is weighed for one plan.
struct Scales<'a> {
    problem: &'a Problem,
    hulls: Hulls,
    errors: SlotErrors,
}

/// Energy by slot of the problem, in kWh.
type Energies = Vec<f64>;

/// A job that runs the best constant mix.
struct Constant {
    pace: SamplesPerSecond,
    /// What it uses from now on.
    energies: Energies,
}

impl Planner<'_> {
    /// The solution with its present slot as far as the forecast can be trusted; `None` where that is all the way.
    ///
    /// Plans that weigh more than carbon, and those of forecasts whose errors are not known, are left as they are. A
    /// carbon budget goes before: what would break it is not done.
    pub(super) fn restrained(&self, problem: &Problem, solution: &Solution, owed: &OwedWork) -> Option<Solution> {
        let scales = Scales::of(self, problem)?;
        let efficient = scales.without_doubtful_slowness(solution);
        let followed = efficient.as_ref().unwrap_or(solution);
        let restrained = self.beside_the_shadow(&scales, followed, owed).or(efficient)?;
        let budget = self.carbon_left().map(|(left, _)| left);
        budget.is_none_or(|left| restrained.carbon <= left).then_some(restrained)
    }

    /// Whether the plan of a running job with pauses gains enough over the one without.
    pub(super) fn pausing_pays(&self, without: (&Problem, &Solution), with: (&Problem, &Solution)) -> bool {
        let (a, b) = (parts(without.0, without.1), parts(with.0, with.1));
        let slots: Vec<Slot> = a.iter().chain(&b).map(|(slot, _)| *slot).collect();
        let weights: Energies = a.iter().map(|(_, e)| *e).chain(b.iter().map(|(_, e)| -e)).collect();
        let known = self.request.errors.filter(|_| self.weighs_carbon_alone()).and_then(|errors| errors.over(&slots));
        known.is_none_or(|errors| (without.1.carbon - with.1.carbon).get() >= WORTH * errors.of(&weights))
    }

    fn weighs_carbon_alone(&self) -> bool {
        self.request.objective.eta >= 1.0 && self.request.weighing() == Weighing::Carbon
    }

    /// The second rule. `None` where the present slot may be as planned.
    fn beside_the_shadow(&self, scales: &Scales<'_>, solution: &Solution, owed: &OwedWork) -> Option<Solution> {
        let Work::TotalSamples(total) = self.request.work else { return None };
        let elapsed = self.request.progress.elapsed;
        let (pace, present) = (scales.constant_pace(owed.samples, 0), scales.pace_in(solution, 0));
        let own_start = elapsed + scales.time_left(0);
        let shadow = {
            let pace = scales.pace_within(total / own_start);
            Constant { pace, energies: scales.constant(pace, total - pace * elapsed, 0) }
        };
        let (so_far, level) = self.so_far(scales, &shadow, elapsed);
        let at_ceiling = self.reference.power * (total / self.reference.throughput);
        let planned = scales.energies(solution);
        let gain = scales.carbon(&difference(&scales.constant(pace, owed.samples, 0), &planned));
        let least = -MOST_LOST * at_ceiling.get() / JOULES_PER_KWH * level - gain.max(0.0);
        // Following the plan up to a slot, and constant from it on.
        let until = |slots: usize| {
            let done: Samples = (0..slots).map(|slot| scales.pace_in(solution, slot) * scales.duration(slot)).sum();
            let rest = (owed.samples - done).max(Samples::ZERO);
            let mut energies = scales.constant(scales.constant_pace(rest, slots), rest, slots);
            energies[..slots].copy_from_slice(&planned[..slots]);
            let against = difference(&shadow.energies, &energies);
            so_far.get() + scales.carbon(&against) - SAFE * scales.errors.of(&against)
        };
        // Following it by this part in the present slot, and constant after it.
        let pace_by = |part: f64| pace + (present - pace) * part;
        let outcome = |part: f64| {
            let rest = owed.samples - pace_by(part) * scales.duration(0);
            let mut energies = scales.constant(scales.constant_pace(rest, 1), rest, 1);
            energies[0] = scales.energy(pace_by(part), 0);
            let against = difference(&shadow.energies, &energies);
            so_far.get() + scales.carbon(&against) - SAFE * scales.errors.of(&against)
        };
        let slots = solution.shares.len();
        if scales.slots() < 2 || slots < 2 || (1..=slots).any(|slot| until(slot) >= least) {
            return None;
        }
        let (mut holds, mut fails) = (0.0, 1.0);
        if outcome(holds) >= least {
            for _ in 0..HALVINGS {
                let middle = 0.5 * (holds + fails);
                *(if outcome(middle) >= least { &mut holds } else { &mut fails }) = middle;
            }
        }
        scales.with_present_at(pace_by(holds))
    }

    /// What the job has emitted less than its shadow so far, as far as it is known, and the mean intensity over its life.
    fn so_far(&self, scales: &Scales<'_>, shadow: &Constant, elapsed: Seconds) -> (GramsCo2e, f64) {
        let energy: f64 = shadow.energies.iter().sum();
        let ahead = if energy > 0.0 { scales.carbon(&shadow.energies) / energy } else { 0.0 };
        let Some(Past { intensity, carbon }) = self.request.progress.past else { return (GramsCo2e::ZERO, ahead) };
        let used = scales.power(shadow.pace) * elapsed.get() / JOULES_PER_KWH;
        let life = used + energy;
        let level = if life > 0.0 { (used * intensity.get() + energy * ahead) / life } else { ahead };
        (GramsCo2e::new(used * intensity.get()) - carbon, level)
    }
}

impl<'a> Scales<'a> {
    fn of(planner: &Planner<'_>, problem: &'a Problem) -> Option<Self> {
        let paths = planner.request.errors.filter(|_| planner.weighs_carbon_alone())?;
        let slots: Vec<Slot> = problem.slots().iter().map(|s| s.slot).collect();
        Some(Self { problem, hulls: Hulls::of(problem), errors: paths.over(&slots)? })
    }

    /// The first rule. `None` where the present slot is not slower than the most efficient point, or may be.
    fn without_doubtful_slowness(&self, solution: &Solution) -> Option<Solution> {
        let efficient = self.hulls.most_efficient(self.problem);
        let rate = |point: usize| self.problem.points()[point].throughput;
        if solution.shares.first()?.iter().all(|(point, _)| rate(*point) >= rate(efficient)) {
            return None;
        }
        let instead = self.with_present_at(rate(efficient))?;
        let moved = difference(&self.energies(&instead), &self.energies(solution));
        let doubtful = (instead.carbon - solution.carbon).get() < WORTH * self.errors.of(&moved);
        doubtful.then_some(instead)
    }

    /// The cheapest plan that has this pace in the present slot; `None` where the work ends in it, or would be late.
    fn with_present_at(&self, pace: SamplesPerSecond) -> Option<Solution> {
        let duration = self.duration(0);
        let after = solve(&self.problem.after_first(self.problem.work() - pace * duration)?).ok()?;
        let parts = self.hulls.mix_at(self.problem, pace).into_iter().filter(|(_, share)| *share > 0.0);
        let present = parts.map(|(point, share)| (point, duration * share)).collect();
        Some(self.problem.evaluate(std::iter::once(present).chain(after.shares).collect()))
    }

    fn slots(&self) -> usize {
        self.problem.slots().len()
    }

    fn duration(&self, slot: usize) -> Seconds {
        self.problem.slots()[slot].slot.duration()
    }

    /// The time from the begin of a slot to the latest end.
    fn time_left(&self, slot: usize) -> Seconds {
        let left = |end| Seconds::from_delta(end - self.problem.slots()[slot].slot.start());
        self.problem.latest_end().map_or(Seconds::new(f64::MAX), left)
    }

    /// The pace of the best constant mix for so much work from a slot on.
    fn constant_pace(&self, work: Samples, slot: usize) -> SamplesPerSecond {
        self.pace_within(work / self.time_left(slot.min(self.slots() - 1)).max(Seconds::new(1e-3)))
    }

    /// No slower than the most efficient point, no faster than the fastest.
    fn pace_within(&self, pace: SamplesPerSecond) -> SamplesPerSecond {
        let slowest = self.problem.points()[self.hulls.most_efficient(self.problem)].throughput;
        pace.max(slowest).min(self.problem.fastest())
    }

    /// The mean throughput of a solution in one of its slots.
    fn pace_in(&self, solution: &Solution, slot: usize) -> SamplesPerSecond {
        let part = |(point, time): &(usize, Seconds)| self.problem.points()[*point].throughput * *time;
        solution.shares[slot].iter().map(part).sum::<Samples>() / self.duration(slot)
    }

    /// The power of the constant mix with this pace, in W.
    fn power(&self, pace: SamplesPerSecond) -> f64 {
        let parts = self.hulls.mix_at(self.problem, pace);
        parts.into_iter().map(|(point, share)| self.problem.points()[point].power.get() * share).sum()
    }

    /// The energy of a whole slot at this pace.
    fn energy(&self, pace: SamplesPerSecond, slot: usize) -> f64 {
        self.power(pace) * self.duration(slot).get() / JOULES_PER_KWH
    }

    /// The energy of so much work at this pace, from a slot on.
    fn constant(&self, pace: SamplesPerSecond, work: Samples, from: usize) -> Energies {
        let (mut energies, mut left) = (vec![0.0; self.slots()], work / pace);
        let power = self.power(pace) / JOULES_PER_KWH;
        let last = self.slots().saturating_sub(1);
        for (slot, energy) in energies.iter_mut().enumerate().skip(from) {
            let time = if slot == last { left } else { left.min(self.duration(slot)) }.max(Seconds::ZERO);
            *energy = power * time.get();
            left -= time;
        }
        energies
    }

    fn energies(&self, solution: &Solution) -> Energies {
        let mut energies: Energies = parts(self.problem, solution).into_iter().map(|(_, energy)| energy).collect();
        energies.resize(self.slots(), 0.0);
        energies
    }

    /// What energies emit, in g.
    fn carbon(&self, energies: &[f64]) -> f64 {
        self.problem.slots().iter().zip(energies).map(|(s, energy)| s.intensity.get() * energy).sum()
    }
}

/// The slots of a solution with the energy of each, in kWh.
fn parts(problem: &Problem, solution: &Solution) -> Vec<(Slot, f64)> {
    let energy = |parts: &Vec<(usize, Seconds)>| {
        parts.iter().map(|(point, time)| (problem.points()[*point].power * *time).get() / JOULES_PER_KWH).sum()
    };
    problem.slots().iter().zip(&solution.shares).map(|(s, parts)| (s.slot, energy(parts))).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Energies {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
