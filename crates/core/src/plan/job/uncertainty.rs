//! Limit on how far a plan follows an uncertain forecast.
//!
//! The optimum exploits differences between hours, which are forecast with errors. Two rules limit the risk. Each
//! compares two plans and uses the standard error of the difference of their emissions, which depends only on the
//! energy that is moved between slots ([`ErrorPaths`]); errors common to all hours cancel.
//!
//! 1. **Slowing down below the most efficient point (least energy per sample), or pausing, requires a significant
//!    gain.** Such slowness costs energy besides time and pays only if the work is done at a cleaner time later. The
//!    present slot is that slow only if the emissions saved by the plan, compared with the most efficient point, exceed
//!    [`WORTH`] standard errors; a pause begins only if those saved compared with no pause at all exceed
//!    [`WORTH_STOPPING`] standard errors, or [`WORTH_HOLDING`] if the job holds its GPUs at idle power meanwhile. A job
//!    stays paused only if those saved compared with resuming at once, for good, exceed [`WORTH_STAYING`] standard
//!    errors: less than a new pause needs, so that small changes of the forecast do not stop and start the job.
//! 2. **A plan may be only little worse than the best constant mix.** The job is compared with its *baseline*: the best
//!    constant mix of two points (the same shares of time throughout) from the job's first plan on. What profiling cost
//!    before is no loss of following a forecast, so it does not count. The present slot stays as planned if there is a
//!    slot such that, with the plan up to that slot and a constant mix from there on, the emissions saved so far plus
//!    those expected to be saved, less a multiple of their standard error, are at least −[`MOST_LOST`]; the plan's
//!    expected gain over the constant mix may be lost in addition. Else the present slot is moved towards the constant
//!    mix until the condition holds. A plan whose gain over the constant mix from now on has no standard error takes no
//!    risk, and stays as it is.
//!
//! Only the present slot is changed, since only the present setting is applied; the following slots are the optimum
//! after the changed slot.
//!
//! [`ErrorPaths`]: crate::forecast::ErrorPaths

use super::dual::{Hulls, solve};
use super::planner::{DueWork, Planner};
use super::problem::{Problem, Solution};
use crate::domain::{Slot, Work};
use crate::forecast::{ErrorPaths, SlotErrors};
use crate::plan::request::{FirstPlan, PastEmissions, Progress, Weighing};
use crate::units::{GramsCo2e, JOULES_PER_KWH, Samples, SamplesPerSecond, Seconds, Watts};

/// Minimum emissions saved by slowing down below the most efficient point, in standard errors of the emissions saved.
const WORTH: f64 = 0.15;
/// Minimum emissions saved by pausing at 0 W, in standard errors of the emissions saved. Pauses move far more energy
/// than limits, and the plan that seems to save most is the one whose forecast is most likely too good.
const WORTH_STOPPING: f64 = 1.0;
/// Minimum emissions saved by pausing at idle power, in standard errors of the emissions saved. The idle energy is spent
/// for certain, and most of the gross gain pays for it; what is left is a small difference of large numbers.
const WORTH_HOLDING: f64 = 3.0;
/// Minimum emissions saved by staying paused, in standard errors of the emissions saved.
const WORTH_STAYING: f64 = 0.2;
/// Maximum excess over the emissions of the baseline (best constant mix), relative to the emissions of the same work at
/// the maximum usable limit.
const MOST_LOST: f64 = 0.003;
/// Maximum standard error of a plan's gain over the constant mix that counts as rounding, relative to the same emissions
/// as [`MOST_LOST`].
const NO_RISK: f64 = 1e-9;
/// Multiple of the standard error that rule 2 subtracts from the emissions saved.
const SAFE: f64 = 0.75;
/// Bisection steps for the fraction by which the present slot follows the plan rather than the constant mix.
const HALVINGS: u32 = 6;

/// Data for evaluating the risk of one job's plans: problem, hulls (useful points) and forecast errors.
struct RiskModel<'a> {
    problem: &'a Problem,
    hulls: Hulls,
    errors: SlotErrors,
}

/// Energy in each slot of the problem, kWh.
type Energies = Vec<f64>;

/// The best constant mix: two neighbouring hull points whose shares of time are the same throughout, with the mean
/// throughput that just ends the work in time.
struct ConstantMix {
    throughput: SamplesPerSecond,
    /// Energy in each slot from now on, kWh.
    energies: Energies,
}

impl Planner<'_> {
    /// Returns the solution with its present slot changed by the two rules of this module; `None` if the slot stays as
    /// it is.
    ///
    /// The rules do not apply if the objective gives weight to time or price or if the forecast's errors are unknown.
    /// If the changed solution would exceed the carbon budget, the slot is not changed.
    pub(super) fn restrained(&self, problem: &Problem, solution: &Solution, due: &DueWork) -> Option<Solution> {
        let model = RiskModel::of(self, problem)?;
        let efficient = model.without_uncertain_slowness(solution);
        let followed = efficient.as_ref().unwrap_or(solution);
        let restrained = self.limit_expected_loss(&model, followed, due).or(efficient)?;
        let budget = self.budget_left().map(|(left, _)| left);
        budget.is_none_or(|left| restrained.counted <= left).then_some(restrained)
    }

    /// Returns whether a plan with pauses emits significantly less than one without. True if the two rules do not
    /// apply, but false for pauses at idle power as long as the errors of only a few days are known.
    pub(super) fn pausing_pays(&self, without: (&Problem, &Solution), with: (&Problem, &Solution)) -> bool {
        let holds = self.request.objective.pausable.is_some_and(|pausing| pausing.idle_power > Watts::ZERO);
        if holds {
            self.saves(WORTH_HOLDING, false, without, with)
        } else {
            self.saves(WORTH_STOPPING, true, without, with)
        }
    }

    /// Returns whether a plan that stays paused emits significantly less than one that resumes. True if the two rules
    /// do not apply.
    pub(super) fn staying_paused_pays(&self, resumed: (&Problem, &Solution), with: (&Problem, &Solution)) -> bool {
        self.saves(WORTH_STAYING, true, resumed, with)
    }

    /// Returns whether one plan emits less than another by `deviations` standard errors. True if the two rules do not
    /// apply, `too_few` if the errors of too few days are known.
    fn saves(
        &self,
        deviations: f64,
        too_few: bool,
        without: (&Problem, &Solution),
        with: (&Problem, &Solution),
    ) -> bool {
        let applies = |errors: &&ErrorPaths| self.weighs_carbon_alone() && !errors.is_empty();
        let Some(errors) = self.request.errors.filter(applies) else { return true };
        let (a, b) = (parts(without.0, without.1), parts(with.0, with.1));
        let slots: Vec<Slot> = a.iter().chain(&b).map(|(slot, _)| *slot).collect();
        let weights: Energies = a.iter().map(|(_, e)| *e).chain(b.iter().map(|(_, e)| -e)).collect();
        let saved = (without.1.carbon - with.1.carbon).get();
        errors.over(&slots).map_or(too_few, |errors| saved >= deviations * errors.of(&weights))
    }

    fn weighs_carbon_alone(&self) -> bool {
        self.request.objective.eta >= 1.0 && self.request.weighing() == Weighing::Carbon
    }

    /// Applies rule 2 of this module: returns the solution with the present slot moved towards the constant mix; `None`
    /// if the present slot may stay as planned.
    fn limit_expected_loss(&self, model: &RiskModel<'_>, solution: &Solution, due: &DueWork) -> Option<Solution> {
        let Work::TotalSamples(total) = self.request.work else { return None };
        // Work from before the last change counts as the samples that now take the same time at the maximum usable limit.
        let first = self.first_plan();
        let total = self.reference.throughput * (self.reference_time(total) - first.reference_time);
        let elapsed = self.request.progress.elapsed - first.elapsed;
        let (throughput, present) = (model.constant_throughput(due.samples, 0), model.throughput_in(solution, 0));
        let from_first_plan = elapsed + model.time_left(0);
        let baseline = {
            let throughput = model.clamped_throughput(total / from_first_plan);
            ConstantMix { throughput, energies: model.constant(throughput, total - throughput * elapsed, 0) }
        };
        let (so_far, level) = self.so_far(model, &baseline, elapsed);
        let at_ceiling = self.reference.power * (total / self.reference.throughput);
        let planned = model.energies(solution);
        let moved = difference(&model.constant(throughput, due.samples, 0), &planned);
        if model.errors.of(&moved) <= NO_RISK * at_ceiling.get() / JOULES_PER_KWH * level {
            return None;
        }
        let gain = model.carbon(&moved);
        let least = -MOST_LOST * at_ceiling.get() / JOULES_PER_KWH * level - gain.max(0.0);
        // Emissions saved against the baseline, less a multiple of their standard error, if the job follows the plan
        // for a number of slots and a constant mix from there on.
        let until = |slots: usize| {
            let done: Samples = (0..slots).map(|slot| model.throughput_in(solution, slot) * model.duration(slot)).sum();
            let rest = (due.samples - done).max(Samples::ZERO);
            let mut energies = model.constant(model.constant_throughput(rest, slots), rest, slots);
            energies[..slots].copy_from_slice(&planned[..slots]);
            let against = difference(&baseline.energies, &energies);
            so_far.get() + model.carbon(&against) - SAFE * model.errors.of(&against)
        };
        // The same if the job follows the plan by a fraction in the present slot only, and a constant mix from there
        // on.
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

    /// Returns the job's progress when its baseline begins: at its first plan, or now if the emissions since then are
    /// unknown.
    fn first_plan(&self) -> FirstPlan {
        let Progress { samples, elapsed, first_plan, past_emissions, .. } = self.request.progress;
        match past_emissions {
            Some(_) => first_plan,
            None => FirstPlan { elapsed, reference_time: self.reference_time(samples) },
        }
    }

    /// Returns first the emissions saved against the baseline since the first plan (0 if unknown), second the mean
    /// carbon intensity of the baseline's energy since then (only of the time from now on if the past is unknown), in
    /// g/kWh.
    fn so_far(&self, model: &RiskModel<'_>, baseline: &ConstantMix, elapsed: Seconds) -> (GramsCo2e, f64) {
        let energy: f64 = baseline.energies.iter().sum();
        let ahead = if energy > 0.0 { model.carbon(&baseline.energies) / energy } else { 0.0 };
        let Some(PastEmissions { intensity, carbon }) = self.request.progress.past_emissions else {
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

    /// Applies rule 1 of this module: returns the solution with the present slot at the most efficient point; `None` if
    /// the present slot is not slower than that point, or the gain of slowness is significant.
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

    /// Returns the cheapest plan with this throughput in the present slot; `None` if the work ends in the present slot
    /// or cannot end in time.
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

    /// Returns the time from the start of a slot to the job's latest end.
    fn time_left(&self, slot: usize) -> Seconds {
        let left = |end| Seconds::from_delta(end - self.problem.slots()[slot].slot.start());
        self.problem.latest_end().map_or(Seconds::new(f64::MAX), left)
    }

    /// Returns the throughput of the best constant mix that does `work` from the start of a slot to the latest end.
    fn constant_throughput(&self, work: Samples, slot: usize) -> SamplesPerSecond {
        self.clamped_throughput(work / self.time_left(slot.min(self.slots() - 1)).max(Seconds::new(1e-3)))
    }

    /// Clamps a throughput to the range from that of the most efficient point to that of the fastest.
    fn clamped_throughput(&self, throughput: SamplesPerSecond) -> SamplesPerSecond {
        let slowest = self.problem.points()[self.hulls.most_efficient(self.problem)].throughput;
        throughput.max(slowest).min(self.problem.fastest())
    }

    /// Returns the mean throughput of a solution in one of its slots.
    fn throughput_in(&self, solution: &Solution, slot: usize) -> SamplesPerSecond {
        let part = |(point, time): &(usize, Seconds)| self.problem.points()[*point].throughput * *time;
        solution.shares[slot].iter().map(part).sum::<Samples>() / self.duration(slot)
    }

    /// Returns the power of the cheapest mix of two points with this throughput, in W.
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

    /// Returns the emissions of given energies in all slots, in g.
    fn carbon(&self, energies: &[f64]) -> f64 {
        self.problem.slots().iter().zip(energies).map(|(s, energy)| s.intensity.get() * energy).sum()
    }
}

/// Returns each slot that a solution uses and the energy in the slot in kWh, in time order.
fn parts(problem: &Problem, solution: &Solution) -> Vec<(Slot, f64)> {
    let energy = |parts: &Vec<(usize, Seconds)>| {
        parts.iter().map(|(point, time)| (problem.points()[*point].power * *time).get() / JOULES_PER_KWH).sum()
    };
    problem.slots().iter().zip(&solution.shares).map(|(s, parts)| (s.slot, energy(parts))).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Energies {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
