//! Limit on how far a plan follows an uncertain forecast.
//!
//! The optimum exploits differences between hours, which are forecast with errors. Two rules limit the risk. Both use
//! the standard error of exactly the energy that is moved between slots ([`ErrorPaths`]), in which errors common to all
//! hours cancel.
//!
//! * **Slowing down below the most efficient point, or pausing, requires a significant gain.** Such slowness costs
//!   energy besides time and pays only if the work is done at a cleaner time later. The present slot is that slow only
//!   if the plan's gain exceeds a multiple of its standard error.
//! * **A plan may be only little worse than the best constant mix.** The job is compared with its *baseline*: the best
//!   constant mix of two points from the job's start on. The present slot stays as planned if there is a slot such
//!   that, with the plan up to that slot and a constant mix from there on, the gain so far plus the expected gain, less
//!   a multiple of the standard error, is at least −[`MOST_LOST`]; the plan's expected gain over the constant mix may
//!   be lost in addition. Else the present slot is moved towards the constant mix until the condition holds.
//!
//! Only the present slot is changed, since only its setting is applied; the following slots are the optimum after it.
//!
//! [`ErrorPaths`]: crate::forecast::ErrorPaths

use super::dual::{Hulls, solve};
use super::planner::{DueWork, Planner};
use super::problem::{Problem, Solution};
use crate::domain::{Slot, Work};
use crate::forecast::SlotErrors;
use crate::plan::request::{PastEmissions, Weighing};
use crate::units::{GramsCo2e, JOULES_PER_KWH, Samples, SamplesPerSecond, Seconds};

/// Minimum gain of slowing down below the most efficient point and of pausing, in standard errors of the gain.
const WORTH: f64 = 0.15;
/// Maximum excess over the baseline's emissions, relative to the job's emissions at the maximum usable limit.
const MOST_LOST: f64 = 0.003;
/// Multiple of the standard error that the second rule subtracts from a gain.
const SAFE: f64 = 0.75;
/// Bisection steps for the fraction by which the present slot follows the plan.
const HALVINGS: u32 = 6;

/// Basis for evaluating the risk of one job's plans: problem, hulls and forecast errors.
struct RiskModel<'a> {
    problem: &'a Problem,
    hulls: Hulls,
    errors: SlotErrors,
}

/// Energy per slot of the problem in kWh.
type Energies = Vec<f64>;

/// The best constant mix: the mean throughput of two neighbouring hull points that just ends the work in time.
struct ConstantMix {
    throughput: SamplesPerSecond,
    /// Energy in each slot from now on, kWh.
    energies: Energies,
}

impl Planner<'_> {
    /// Returns the solution with its present slot changed by the two rules; `None` if it need not change.
    ///
    /// The rules do not apply if the objective weighs more than carbon or the forecast's errors are unknown. A carbon
    /// budget takes precedence over the rules.
    pub(super) fn restrained(&self, problem: &Problem, solution: &Solution, due: &DueWork) -> Option<Solution> {
        let model = RiskModel::of(self, problem)?;
        let efficient = model.without_uncertain_slowness(solution);
        let followed = efficient.as_ref().unwrap_or(solution);
        let restrained = self.limit_expected_loss(&model, followed, due).or(efficient)?;
        let budget = self.budget_left().map(|(left, _)| left);
        budget.is_none_or(|left| restrained.counted <= left).then_some(restrained)
    }

    /// Returns whether a plan with pauses emits significantly less than one without. True if the errors are unknown.
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

    /// Applies the second rule: returns the changed solution; `None` if the present slot may stay as planned.
    fn limit_expected_loss(&self, model: &RiskModel<'_>, solution: &Solution, due: &DueWork) -> Option<Solution> {
        let Work::TotalSamples(total) = self.request.work else { return None };
        let elapsed = self.request.progress.elapsed;
        let (throughput, present) = (model.constant_throughput(due.samples, 0), model.throughput_in(solution, 0));
        let own_start = elapsed + model.time_left(0);
        let baseline = {
            let throughput = model.clamped_throughput(total / own_start);
            ConstantMix { throughput, energies: model.constant(throughput, total - throughput * elapsed, 0) }
        };
        let (so_far, level) = self.so_far(model, &baseline, elapsed);
        let at_ceiling = self.reference.power * (total / self.reference.throughput);
        let planned = model.energies(solution);
        let gain = model.carbon(&difference(&model.constant(throughput, due.samples, 0), &planned));
        let least = -MOST_LOST * at_ceiling.get() / JOULES_PER_KWH * level - gain.max(0.0);
        // Gain over the baseline, less the margin, of following the plan up to a slot and a constant mix from there on.
        let until = |slots: usize| {
            let done: Samples = (0..slots).map(|slot| model.throughput_in(solution, slot) * model.duration(slot)).sum();
            let rest = (due.samples - done).max(Samples::ZERO);
            let mut energies = model.constant(model.constant_throughput(rest, slots), rest, slots);
            energies[..slots].copy_from_slice(&planned[..slots]);
            let against = difference(&baseline.energies, &energies);
            so_far.get() + model.carbon(&against) - SAFE * model.errors.of(&against)
        };
        // The same for following the plan by a fraction in the present slot only, and a constant mix from there on.
        let throughput_by = |part: f64| throughput + (present - throughput) * part;
        let outcome = |part: f64| {
            let rest = due.samples - throughput_by(part) * model.duration(0);
            let mut energies = model.constant(model.constant_throughput(rest, 1), rest, 1);
            energies[0] = model.energy(throughput_by(part), 0);
            let against = difference(&baseline.energies, &energies);
            so_far.get() + model.carbon(&against) - SAFE * model.errors.of(&against)
        };
        let slots = solution.shares.len();
        if model.slots() < 2 || slots < 2 || (1..=slots).any(|slot| until(slot) >= least) {
            return None;
        }
        let (mut holds, mut fails) = (0.0, 1.0);
        if outcome(holds) >= least {
            for _ in 0..HALVINGS {
                let middle = 0.5 * (holds + fails);
                *(if outcome(middle) >= least { &mut holds } else { &mut fails }) = middle;
            }
        }
        model.with_present_at(throughput_by(holds))
    }

    /// Returns the emissions saved against the baseline so far (0 if unknown) and the mean intensity of the job's life.
    fn so_far(&self, model: &RiskModel<'_>, baseline: &ConstantMix, elapsed: Seconds) -> (GramsCo2e, f64) {
        let energy: f64 = baseline.energies.iter().sum();
        let ahead = if energy > 0.0 { model.carbon(&baseline.energies) / energy } else { 0.0 };
        let Some(PastEmissions { intensity, carbon }) = self.request.progress.past else {
            return (GramsCo2e::ZERO, ahead);
        };
        let used = model.power(baseline.throughput) * elapsed.get() / JOULES_PER_KWH;
        let life = used + energy;
        let level = if life > 0.0 { (used * intensity.get() + energy * ahead) / life } else { ahead };
        (GramsCo2e::new(used * intensity.get()) - carbon, level)
    }
}

impl<'a> RiskModel<'a> {
    fn of(planner: &Planner<'_>, problem: &'a Problem) -> Option<Self> {
        let paths = planner.request.errors.filter(|_| planner.weighs_carbon_alone())?;
        let slots: Vec<Slot> = problem.slots().iter().map(|s| s.slot).collect();
        Some(Self { problem, hulls: Hulls::of(problem), errors: paths.over(&slots)? })
    }

    /// Applies the first rule: returns the changed solution; `None` if the present slot is not slower than the most
    /// efficient point, or the gain is significant.
    fn without_uncertain_slowness(&self, solution: &Solution) -> Option<Solution> {
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

    /// Returns the cheapest plan with this throughput in the present slot; `None` if the work ends in this slot or
    /// late.
    fn with_present_at(&self, throughput: SamplesPerSecond) -> Option<Solution> {
        let duration = self.duration(0);
        let after = solve(&self.problem.after_first(self.problem.work() - throughput * duration)?).ok()?;
        let parts = self.hulls.mix_at(self.problem, throughput).into_iter().filter(|(_, share)| *share > 0.0);
        let present = parts.map(|(point, share)| (point, duration * share)).collect();
        Some(self.problem.evaluate(std::iter::once(present).chain(after.shares).collect()))
    }

    fn slots(&self) -> usize {
        self.problem.slots().len()
    }

    fn duration(&self, slot: usize) -> Seconds {
        self.problem.slots()[slot].slot.duration()
    }

    /// Returns the time from the start of a slot to the latest end.
    fn time_left(&self, slot: usize) -> Seconds {
        let left = |end| Seconds::from_delta(end - self.problem.slots()[slot].slot.start());
        self.problem.latest_end().map_or(Seconds::new(f64::MAX), left)
    }

    /// Returns the throughput of the best constant mix that does `work` from a slot on.
    fn constant_throughput(&self, work: Samples, slot: usize) -> SamplesPerSecond {
        self.clamped_throughput(work / self.time_left(slot.min(self.slots() - 1)).max(Seconds::new(1e-3)))
    }

    /// Clamps a throughput to the range from the most efficient to the fastest point.
    fn clamped_throughput(&self, throughput: SamplesPerSecond) -> SamplesPerSecond {
        let slowest = self.problem.points()[self.hulls.most_efficient(self.problem)].throughput;
        throughput.max(slowest).min(self.problem.fastest())
    }

    /// Returns the mean throughput of a solution in one of its slots.
    fn throughput_in(&self, solution: &Solution, slot: usize) -> SamplesPerSecond {
        let part = |(point, time): &(usize, Seconds)| self.problem.points()[*point].throughput * *time;
        solution.shares[slot].iter().map(part).sum::<Samples>() / self.duration(slot)
    }

    /// Returns the power of the constant mix with this throughput, in W.
    fn power(&self, throughput: SamplesPerSecond) -> f64 {
        let parts = self.hulls.mix_at(self.problem, throughput);
        parts.into_iter().map(|(point, share)| self.problem.points()[point].power.get() * share).sum()
    }

    /// Returns the energy of a whole slot at this throughput, in kWh.
    fn energy(&self, throughput: SamplesPerSecond, slot: usize) -> f64 {
        self.power(throughput) * self.duration(slot).get() / JOULES_PER_KWH
    }

    /// Returns the energy in each slot if `work` is done at this throughput from slot `from` on.
    fn constant(&self, throughput: SamplesPerSecond, work: Samples, from: usize) -> Energies {
        let (mut energies, mut left) = (vec![0.0; self.slots()], work / throughput);
        let power = self.power(throughput) / JOULES_PER_KWH;
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

    /// Returns the emissions of the energies in all slots, in g.
    fn carbon(&self, energies: &[f64]) -> f64 {
        self.problem.slots().iter().zip(energies).map(|(s, energy)| s.intensity.get() * energy).sum()
    }
}

/// Returns the slots of a solution with their energy in kWh.
fn parts(problem: &Problem, solution: &Solution) -> Vec<(Slot, f64)> {
    let energy = |parts: &Vec<(usize, Seconds)>| {
        parts.iter().map(|(point, time)| (problem.points()[*point].power * *time).get() / JOULES_PER_KWH).sum()
    };
    problem.slots().iter().zip(&solution.shares).map(|(s, parts)| (s.slot, energy(parts))).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Energies {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
