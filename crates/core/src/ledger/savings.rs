//! Savings of a job compared with a reference, with 95 % confidence intervals.
//!
//! The reference is the same work at one setting (power limits of the job's GPUs) from the job's start on, with the
//! throughput and power that the job's profile measured at this setting; if the reference is the maximum usable limit,
//! training at that limit keeps its own time and energy.
//!
//! To find the error, each measured quantity in turn is shifted by its standard error, and the resulting changes of the
//! saving are combined as independent errors.
//!
//! The job's own pauses, such as evaluation, are part of the reference: they have the same duration there, and the same
//! energy unless a lower limit reduced it in the job. The sensors' gain error cancels in percentages if the same
//! sensors measured job and reference; in grams it does not cancel. Carbon intensities without an actual value are
//! forecasts: until the actual values are known, the interval includes the effect of the forecasts' standard error.
//! The energy between the first and the last report may be off by half a second of the job's power,
//! 0.8 % for a job of one minute.

use serde::{Deserialize, Serialize};

use super::confidence::{ConfidenceInterval, Errors, LEAST_FREEDOM, student};
use super::counterfactual::{Comparison, CompletedWork, compare_with_waits};
use super::figures::Figures;
use super::pauses::pause_energy;
use super::training_split::TrainingSplit;
use super::waiting_times::WaitingTimes;
use crate::domain::{CarbonSeries, SENSOR_GAIN, Slot};
use crate::profile::{Evidence, Noise, ProgressAccount};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Maximum error of the reduction of emissions, in percentage points, due to pauses whose power or duration is
/// uncertain; with a larger error the saving is unknown.
const MAX_REDUCTION_ERROR_PCT: f64 = 0.5;
/// Maximum error of the time increase, in percentage points, due to time that may be training or pauses; with a larger
/// error the saving is unknown.
const MAX_TIME_ERROR_PCT: f64 = 0.3;
/// Maximum error of the energy between the first and the last report, as time at the job's mean power: energy is read at
/// intervals, and a report may be sent after the work that it reports.
const READING_OFFSET: Seconds = Seconds::new(0.5);
/// Minimum number of earlier runs with the default batch size for a comparison of batch sizes.
const MIN_RUNS: usize = 4;

/// Data from which a job's saving is computed: the job's work, and the carbon intensities, as known so far.
#[derive(Clone, Debug, PartialEq)]
pub struct SavingInput {
    /// Work, time, energy and emissions of the job.
    pub completed: CompletedWork,
    /// Time and energy of the job's own pauses.
    pub account: ProgressAccount,
    /// Carbon intensities, from the job's start to the end that the job would have had at the reference.
    pub series: CarbonSeries,
    /// Values of `completed` (first) and `series` (second) if forecasts were larger by their standard error: first all
    /// forecasts together, then each of several successive parts of them alone. Empty if `series` contains no forecasts.
    pub with_larger_forecasts: Vec<(CompletedWork, CarbonSeries)>,
    /// Waiting times of the job before its start and in suspensions.
    pub waits: WaitingTimes,
}

/// Measurements and assumptions that a saving is computed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavingBasis {
    /// Throughput and power measured at the references and at the settings of `mix`.
    pub points: Vec<Evidence>,
    /// References that apply one after another from the job's start on; more than one if the job was profiled again.
    pub epochs: Vec<ReferencePeriod>,
    /// Indices in `points` of the best constant mix: the one or two settings that, in constant proportions over time,
    /// give the job's throughput with the least power. Empty if the mix is unknown.
    pub mix: Vec<usize>,
    /// Lower bound of the power of the best constant mix, from [`min_constant_power`]; absent if it is not below the
    /// measured power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix_at_least: Option<Watts>,
    /// Power limits at the reference, summed over the job's GPUs; no pause draws more. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Watts>,
    /// True if the sensors of the job's own GPUs measured `points`, and not those of other GPUs.
    pub same_sensors: bool,
    /// Noise of the job's throughput; absent if unknown, and in entries of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// True if the reference is the maximum usable limit: the job's progress account counts training below this limit
    /// as slowed. If true, only slowed training is converted to the reference's throughput and power, and the rest
    /// counts with its actual duration and energy; if false, if a slowed job has several references, or if the
    /// maximum usable limit changed, all of the job's work is converted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_ceiling: bool,
    /// Amount by which the converted work is uncertain, because the job changed and no reference was measured before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertain_work: Samples,
}

fn is_zero(samples: &Samples) -> bool {
    *samples == Samples::ZERO
}

/// A reference that applies to the job's work from a number of completed samples on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferencePeriod {
    /// Number of completed samples from which on the reference applies.
    pub from: Samples,
    /// Index in [`SavingBasis::points`] of the reference's measurement.
    pub point: usize,
}

/// Comparison of a job with its reference (the same work at another power limit), in percent of the reference. The
/// effects (start, suspension, energy and timing) add up to the reduction of emissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// Time that the job would have taken at the reference, including the job's own pauses.
    pub time_at_reference_s: Seconds,
    /// Energy that the job would have used at the reference.
    pub energy_at_reference_j: Joules,
    /// Emissions that the job would have caused at the reference.
    pub carbon_at_reference_g: GramsCo2e,
    /// Reduction of emissions, in percent of those at the reference.
    pub carbon_reduction_pct: ConfidenceInterval,
    /// Reduction of emissions, in grams.
    pub carbon_reduction_g: ConfidenceInterval,
    /// Increase of time, in percent of the time at the reference.
    pub time_increase_pct: ConfidenceInterval,
    /// Part of the reduction, in percent of the emissions at the reference, due to starting later than asked; absent for
    /// a job that neither waited for its start nor was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_effect_pct: Option<ConfidenceInterval>,
    /// Part of the reduction, in percent of the emissions at the reference, due to suspensions, with the emissions of
    /// saving and restarting; absent for a job that neither waited for its start nor was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension_effect_pct: Option<ConfidenceInterval>,
    /// Part of the reduction, in percent of the emissions at the reference, that the best constant mix of limits with
    /// the same time would have had; absent if unknown.
    pub energy_effect_pct: Option<ConfidenceInterval>,
    /// Rest of the reduction, due to following the carbon intensity, in percent of the emissions at the reference;
    /// absent if unknown.
    pub timing_effect_pct: Option<ConfidenceInterval>,
    /// True if some carbon intensities have no actual value yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provisional: bool,
}

/// Effect of a run's batch size compared with runs at the default batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchEffect {
    /// Number of earlier runs with the default batch size.
    pub runs: u32,
    /// Reduction of energy compared with the mean of the earlier runs, in joules.
    pub energy_j: ConfidenceInterval,
    /// Reduction of emissions in grams: the reduction of energy at the mean carbon intensity of this run.
    pub carbon_g: ConfidenceInterval,
    /// Reduction of energy in percent of the mean of the earlier runs.
    pub pct: ConfidenceInterval,
}

/// Compares a job with its reference, from the job's data `known` and the reference's measurements in `basis`.
///
/// # Errors
/// Returns the reason if measurements, carbon intensities or pauses are too uncertain for a comparison.
pub fn saving(known: &SavingInput, basis: &SavingBasis) -> Result<Saving, String> {
    let SavingInput { completed, account, series, with_larger_forecasts, waits } = known;
    basis.check_references()?;
    if completed.samples <= Samples::ZERO || completed.active <= Seconds::ZERO {
        return Err("no samples were completed yet".into());
    }
    let pauses = pause_energy(account, basis.limit)?;
    let inputs = Inputs {
        basis,
        completed: CompletedWork { stalled_energy: pauses.mean, ..*completed },
        waits,
        training_split: basis.training_split(account),
        points: &basis.points,
        mix_draws: None,
        series,
    };
    let found = inputs.compare().ok_or(
        "the carbon intensity is unknown for part of the time, or zero throughout: emissions cannot be compared",
    )?;
    let shifts = Shifts { inputs, found };
    let mut errors = Figures::<Errors>::default();
    for (shift, freedom) in shifts.by_measurements()? {
        errors.add_shift(shift, freedom);
    }
    if let Some(noise) = basis.noise {
        errors.add_shift(shifts.by_noise(&noise)?, noise.degrees_of_freedom().max(1.0));
    }
    errors.add_range(shifts.by_uncertain_work()?);
    errors.add_range(shifts.by_pause_energy(pauses.half)?);
    errors.add_range(shifts.by_reading_offset()?);
    errors.add_range(shifts.by_unclear_time(account)?);
    let mut provisional = false;
    for (i, (completed, series)) in with_larger_forecasts.iter().enumerate() {
        let shift = shifts.by_forecasts(completed, series)?;
        provisional |= shift != Figures::default();
        // The first entry, which shifts all forecasts, already covers the grams.
        let shift = if i == 0 { shift } else { Figures { reduction_g: 0.0, ..shift } };
        errors.add_shift(shift, f64::INFINITY);
    }
    let gains = if basis.same_sensors { Figures::default() } else { shifts.by_sensor_gain()? };
    let half = errors.zip(gains, |errors, gain| errors.half_width().hypot(gain));
    let intervals = Figures::of(&found).zip(half, ConfidenceInterval::about);
    let more = shifts.energy_effect_missed();
    let (energy, timing) = (intervals.energy_effect_pct, intervals.timing_effect_pct);
    let energy = ConfidenceInterval { high: energy.mean + half.energy_effect_pct.hypot(more), ..energy };
    let timing = ConfidenceInterval { low: timing.mean - half.timing_effect_pct.hypot(more), ..timing };
    let (has_waits, mix_is_known) = (*waits != WaitingTimes::default(), basis.mix_is_known());
    Ok(Saving {
        time_at_reference_s: found.time_at_reference,
        energy_at_reference_j: found.energy_at_reference,
        carbon_at_reference_g: found.carbon_at_reference,
        carbon_reduction_pct: intervals.reduction_pct,
        carbon_reduction_g: intervals.reduction_g.with_gain(SENSOR_GAIN),
        time_increase_pct: intervals.time_increase_pct,
        start_effect_pct: has_waits.then_some(intervals.start_effect_pct),
        suspension_effect_pct: has_waits.then_some(intervals.suspension_effect_pct),
        energy_effect_pct: mix_is_known.then_some(energy),
        timing_effect_pct: mix_is_known.then_some(timing),
        provisional,
    })
}

/// Inputs of a comparison of a job with its reference, all taken as exact.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    basis: &'a SavingBasis,
    /// Work of the job, with the energy of its own pauses at the reference.
    completed: CompletedWork,
    waits: &'a WaitingTimes,
    training_split: TrainingSplit,
    /// Measurements at the settings of `basis.points`.
    points: &'a [Evidence],
    /// Power of the best constant mix; if absent, this power is computed from `points`.
    mix_draws: Option<Watts>,
    series: &'a CarbonSeries,
}

impl Inputs<'_> {
    /// Compares the job with the reference. Returns `None` where [`compare_with_waits`] does, or if the reference has
    /// no throughput.
    fn compare(&self) -> Option<Comparison> {
        let Self { basis, completed, waits, training_split, points, mix_draws, series } = *self;
        let (mut time, mut energy) = (Seconds::ZERO, Joules::ZERO);
        for (i, epoch) in basis.epochs.iter().enumerate() {
            let point = points.get(epoch.point).filter(|p| p.throughput > SamplesPerSecond::ZERO)?;
            let until = basis.epochs.get(i + 1).map_or(completed.samples, |next| next.from.min(completed.samples));
            let spent = (until - epoch.from).max(Samples::ZERO) / point.throughput;
            time += spent;
            energy += point.power * spent;
        }
        if training_split.is_unslowed() && *waits == WaitingTimes::default() {
            return Comparison::with_itself(&completed);
        }
        let at = training_split.at_reference(&completed, (time, energy))?;
        let mix: Option<Vec<&Evidence>> = basis.mix.iter().map(|place| points.get(*place)).collect();
        let mix = mix?;
        // A deviation of the job from its profile affects the mix's power like the reference's.
        let mixed = |rate| mix_draws.or_else(|| constant_power(&mix, rate)).map(|mixed| mixed * at.scale);
        let constant = |rate| mixed(rate).unwrap_or(at.power);
        let reference = (at.throughput, at.power);
        compare_with_waits(&completed, waits, reference, |rate| Some(constant(rate)), series)
    }
}

/// A comparison whose inputs are shifted, one source of error after another. Each method returns the changes of the
/// figures, or the reason why the saving is unknown.
struct Shifts<'a> {
    inputs: Inputs<'a>,
    found: Comparison,
}

impl Shifts<'_> {
    /// Returns the changes of the figures with the inputs `moved`; the reason `why` if there is no comparison.
    fn to(&self, moved: &Inputs<'_>, why: &str) -> Result<Figures<f64>, String> {
        let moved = moved.compare().ok_or(why)?;
        Ok(Figures::of(&moved).zip(Figures::of(&self.found), |moved, found| moved - found))
    }

    /// Shifts each measured throughput and power by its standard error. Returns the changes for each shift, with the
    /// degrees of freedom of the measurement.
    fn by_measurements(&self) -> Result<Vec<(Figures<f64>, f64)>, String> {
        let mut shifts = Vec::new();
        for (i, point) in self.inputs.points.iter().enumerate() {
            let faster = Evidence { throughput: point.throughput * (1.0 + point.throughput_error), ..*point };
            let hungrier = Evidence { power: point.power * (1.0 + point.power_error), ..*point };
            for moved in [faster, hungrier] {
                let mut points = self.inputs.points.to_vec();
                points[i] = moved;
                let why = "the measurements at the reference are too uncertain for a comparison";
                shifts.push((self.to(&Inputs { points: &points, ..self.inputs }, why)?, point.freedom.max(1.0)));
            }
        }
        Ok(shifts)
    }

    /// Shifts the work at other settings: it counts by its samples, whose number fluctuates like the throughput.
    fn by_noise(&self, noise: &Noise) -> Result<Figures<f64>, String> {
        let split = self.inputs.training_split;
        let training_split = split.with_more_converted(noise.error_after(split.converted()));
        let why = "the job's throughput fluctuates too much for a comparison";
        self.to(&Inputs { training_split, ..self.inputs }, why)
    }

    /// Shifts the converted work by the amount that is uncertain because the job changed.
    fn by_uncertain_work(&self) -> Result<Figures<f64>, String> {
        let Inputs { basis, completed, training_split, .. } = self.inputs;
        let training_split = training_split.with_part_more(basis.uncertain_work / completed.samples);
        self.to(&Inputs { training_split, ..self.inputs }, "too much of the work precedes a change of the job")
    }

    /// Shifts the energy of the job's own pauses at the reference by `half`, half the width of its range of error.
    fn by_pause_energy(&self, half: Joules) -> Result<Figures<f64>, String> {
        let completed = self.inputs.completed;
        let completed = CompletedWork { stalled_energy: completed.stalled_energy + half, ..completed };
        let shift = self.to(&Inputs { completed, ..self.inputs }, "the power in the job's own pauses is unknown")?;
        let points = shift.reduction_pct.abs();
        if points > MAX_REDUCTION_ERROR_PCT {
            return Err(format!(
                "the power in the job's own pauses at the reference is uncertain: the reduction may be off by \
                 {points:.1} percentage points"
            ));
        }
        Ok(shift)
    }

    /// Shifts the job's energy by what may be missing before the first and after the last report.
    fn by_reading_offset(&self) -> Result<Figures<f64>, String> {
        let Inputs { completed, waits, .. } = self.inputs;
        let suspended: Seconds = waits.suspensions.iter().map(Slot::duration).sum();
        let present = (completed.active + completed.stalled - suspended).max(READING_OFFSET);
        let missed = 1.0 + READING_OFFSET / present;
        let (energy, carbon) = (completed.energy * missed, completed.carbon * missed);
        let completed = CompletedWork { energy, carbon, ..completed };
        self.to(&Inputs { completed, ..self.inputs }, "the job's energy is unknown")
    }

    /// Counts all time that may be training or pauses (`account.unclear_time`) as pauses, at the job's mean power.
    fn by_unclear_time(&self, account: &ProgressAccount) -> Result<Figures<f64>, String> {
        let completed = self.inputs.completed;
        let unclear_time = account.unclear_time.min(completed.active * 0.5);
        let energy = completed.energy * (unclear_time / (completed.active + completed.stalled));
        let completed = CompletedWork {
            active: completed.active - unclear_time,
            stalled: completed.stalled + unclear_time,
            stalled_energy: completed.stalled_energy + energy,
            ..completed
        };
        let why = "the job's own pauses cannot be distinguished from training";
        let shift = self.to(&Inputs { completed, ..self.inputs }, why)?;
        if shift.reduction_pct.abs() > MAX_REDUCTION_ERROR_PCT || shift.time_increase_pct.abs() > MAX_TIME_ERROR_PCT {
            return Err(format!(
                "{:.0} s may be training or the job's own pauses: progress reports are too far apart to distinguish \
                 them",
                unclear_time.get()
            ));
        }
        Ok(shift)
    }

    /// Shifts forecasts: with them the work is `completed`, and the carbon intensities are `series`.
    fn by_forecasts(&self, completed: &CompletedWork, series: &CarbonSeries) -> Result<Figures<f64>, String> {
        let completed = CompletedWork { stalled_energy: self.inputs.completed.stalled_energy, ..*completed };
        let why = "the carbon intensity is unknown for part of the time";
        self.to(&Inputs { completed, series, ..self.inputs }, why)
    }

    /// Shifts the powers of all points, which other sensors than the job's measured: the gain errors of the job's
    /// energy and of the points may be opposite.
    fn by_sensor_gain(&self) -> Result<Figures<f64>, String> {
        let gain = 1.0 + SENSOR_GAIN * std::f64::consts::SQRT_2;
        let scaled = |point: &Evidence| Evidence { power: point.power * gain, ..*point };
        let points: Vec<Evidence> = self.inputs.points.iter().map(scaled).collect();
        self.to(&Inputs { points: &points, ..self.inputs }, "the power at the reference is unknown")
    }

    /// Returns the part of the reduction that a constant mix with less power than measured would shift from the timing
    /// effect to the energy effect; 0 without a lower bound of that power.
    fn energy_effect_missed(&self) -> f64 {
        let least = self.inputs.basis.mix_at_least;
        let more = least.and_then(|least| Inputs { mix_draws: Some(least), ..self.inputs }.compare());
        more.map_or(0.0, |more| (more.energy_effect_pct - self.found.energy_effect_pct).max(0.0))
    }
}

impl SavingBasis {
    /// Checks that the references were measured well enough for a confidence interval.
    fn check_references(&self) -> Result<(), String> {
        let referred: Vec<&Evidence> = self.epochs.iter().filter_map(|e| self.points.get(e.point)).collect();
        if referred.is_empty() {
            return Err("the job was not measured at the reference's power limit".into());
        }
        if referred.iter().any(|p| p.freedom < LEAST_FREEDOM) {
            return Err("the reference's power limit was measured in too few windows for a confidence interval".into());
        }
        Ok(())
    }

    fn training_split(&self, account: &ProgressAccount) -> TrainingSplit {
        // If there are several references, the account does not record during which one the job was slowed.
        let is_known = self.epochs.len() == 1 || account.lost().samples <= Samples::ZERO;
        match self.at_ceiling && is_known {
            true => TrainingSplit::at_ceiling(account),
            false => TrainingSplit::all(account),
        }
    }

    fn mix_is_known(&self) -> bool {
        let is_known = |place: &usize| self.points.get(*place).is_some_and(|p| p.freedom >= LEAST_FREEDOM);
        !self.mix.is_empty() && self.mix.iter().all(is_known)
    }
}

/// Returns the power of a constant mix of one or two settings with the throughput `rate`; `None` for an empty mix.
fn constant_power(mix: &[&Evidence], rate: SamplesPerSecond) -> Option<Watts> {
    match mix {
        [only] => Some(only.power),
        [a, b] => {
            let span = a.throughput - b.throughput;
            let share = if span.abs() > SamplesPerSecond::ZERO { (rate - b.throughput) / span } else { 1.0 };
            Some(b.power + (a.power - b.power) * share)
        }
        _ => None,
    }
}

/// Returns a lower bound of the power of the best constant mix with the throughput `rate`; `None` if the bound is not
/// below the power of the measured `mix`. Settings that measured badly by chance are not measured again, so the
/// measured mix may not be the best. Each of `others`, the settings outside the mix, is therefore moved to the
/// favourable end of its own 95 % confidence interval while the rest stay as measured. An error of throughput is
/// converted to one of power by the slope of power over throughput in the mix.
pub fn min_constant_power(mix: &[&Evidence], others: &[&Evidence], rate: SamplesPerSecond) -> Option<Watts> {
    let measured = constant_power(mix, rate)?;
    let slope = match mix {
        [a, b] if a.throughput != b.throughput => (a.power - b.power).get() / (a.throughput - b.throughput).get(),
        _ => measured.get() / rate.get(),
    };
    let mut least = measured;
    for (place, other) in others.iter().enumerate().filter(|(_, other)| other.freedom >= LEAST_FREEDOM) {
        let error =
            (other.power.get() * other.power_error).hypot(slope * other.throughput.get() * other.throughput_error);
        let lucky = Evidence { power: other.power - Watts::new(student(other.freedom) * error), ..**other };
        if lucky.throughput >= rate {
            least = least.min(lucky.power);
        }
        let rest = others.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, rest)| *rest);
        for partner in mix.iter().copied().chain(rest) {
            let (slow, fast) = (lucky.throughput.min(partner.throughput), lucky.throughput.max(partner.throughput));
            if slow < rate && rate < fast {
                least = constant_power(&[&lucky, partner], rate).map_or(least, |power| least.min(power));
            }
        }
    }
    (least < measured).then(|| least.max(Watts::ZERO))
}

/// Compares the energy `run` of a run with the energies `default_runs` of earlier runs with the default batch size.
/// `intensity` is the run's mean carbon intensity; `same_sensors` is true if all runs used the same GPUs.
///
/// # Errors
/// Returns the reason if there are fewer than four earlier runs, or the ledger has no energy for them.
pub fn batch_effect(
    default_runs: &[Joules],
    run: Joules,
    intensity: GramsPerKwh,
    same_sensors: bool,
) -> Result<BatchEffect, String> {
    let runs = default_runs.len();
    if runs < MIN_RUNS {
        return Err(format!(
            "the default batch size reached the target in {runs} earlier run(s); at least \
             {MIN_RUNS} are needed for a comparison"
        ));
    }
    let count = runs as f64;
    let mean = default_runs.iter().copied().sum::<Joules>() / count;
    if mean <= Joules::ZERO {
        return Err("the ledger has no energy for the runs with the default batch size".into());
    }
    let squares: f64 = default_runs.iter().map(|e| (*e - mean).get().powi(2)).sum();
    let half = Joules::new(student(count - 1.0) * (squares / (count - 1.0) / count).sqrt());
    let gain = if same_sensors { 0.0 } else { SENSOR_GAIN * std::f64::consts::SQRT_2 };
    let less = mean - run;
    let energy = ConfidenceInterval::about(less.get(), half.get()).with_gain(SENSOR_GAIN);
    let other = run.get() * gain;
    let energy_j = ConfidenceInterval { low: energy.low - other, high: energy.high + other, ..energy };
    let part = run / mean;
    Ok(BatchEffect {
        runs: u32::try_from(runs).unwrap_or(u32::MAX),
        energy_j,
        carbon_g: energy_j.times((Joules::new(1.0) * intensity).get()),
        pct: ConfidenceInterval::about(100.0 * (1.0 - part), 100.0 * part * (half / mean).hypot(gain)),
    })
}

#[cfg(test)]
#[path = "savings_tests.rs"]
mod tests;
