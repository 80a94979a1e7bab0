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
    let referred: Vec<&Evidence> = basis.epochs.iter().filter_map(|e| basis.points.get(e.point)).collect();
    if referred.is_empty() {
        return Err("the job was not measured at the reference's power limit".into());
    }
    if referred.iter().any(|p| p.freedom < LEAST_FREEDOM) {
        return Err("the reference's power limit was measured in too few windows for a confidence interval".into());
    }
    if completed.samples <= Samples::ZERO || completed.active <= Seconds::ZERO {
        return Err("no samples were completed yet".into());
    }
    let pauses = pause_energy(account, basis.limit)?;
    let with_pauses = |completed: &CompletedWork| CompletedWork { stalled_energy: pauses.mean, ..*completed };
    let completed = &with_pauses(completed);
    let training_split = basis.training_split(account);
    let compared = |completed: &CompletedWork, points: &[Evidence], series: &CarbonSeries| {
        basis.compared(completed, waits, &training_split, points, None, series)
    };
    let found = compared(completed, &basis.points, series).ok_or(
        "the carbon intensity is unknown for part of the time, or zero throughout: emissions cannot be compared",
    )?;
    let mut errors: [Errors; FIGURES] = Default::default();
    for (i, point) in basis.points.iter().enumerate() {
        let moved = |moved: Evidence| {
            let mut points = basis.points.clone();
            points[i] = moved;
            compared(completed, &points, series)
        };
        let faster = moved(Evidence { throughput: point.throughput * (1.0 + point.throughput_error), ..*point });
        let hungrier = moved(Evidence { power: point.power * (1.0 + point.power_error), ..*point });
        for moved in [faster, hungrier] {
            let moved = moved.ok_or("the measurements at the reference are too uncertain for a comparison")?;
            for (sum, off) in errors.iter_mut().zip(difference(&moved, &found)) {
                sum.add(off, point.freedom.max(1.0));
            }
        }
    }
    // Work at other settings counts by its samples, whose number fluctuates like the throughput.
    if let Some(noise) = basis.noise {
        let more = training_split.with_more_converted(noise.error_after(training_split.converted()));
        let moved = basis.compared(completed, waits, &more, &basis.points, None, series);
        let moved = moved.ok_or("the job's throughput fluctuates too much for a comparison")?;
        for (sum, off) in errors.iter_mut().zip(difference(&moved, &found)) {
            sum.add(off, noise.degrees_of_freedom().max(1.0));
        }
    }
    let more = training_split.with_part_more(basis.uncertain_work / completed.samples);
    let moved = basis.compared(completed, waits, &more, &basis.points, None, series);
    let moved = moved.ok_or("too much of the work precedes a change of the job")?;
    for (sum, off) in errors.iter_mut().zip(difference(&moved, &found)) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let longer = CompletedWork { stalled_energy: pauses.mean + pauses.half, ..*completed };
    let moved = compared(&longer, &basis.points, series).ok_or("the power in the job's own pauses is unknown")?;
    let off = difference(&moved, &found);
    if off[0].abs() > MAX_REDUCTION_ERROR_PCT {
        return Err(format!(
            "the power in the job's own pauses at the reference is uncertain: the reduction may be off by {:.1} \
             percentage points",
            off[0].abs()
        ));
    }
    for (sum, off) in errors.iter_mut().zip(off) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let suspended: Seconds = waits.suspensions.iter().map(Slot::duration).sum();
    let present = (completed.active + completed.stalled - suspended).max(READING_OFFSET);
    let missed = 1.0 + READING_OFFSET / present;
    let hungrier = CompletedWork { energy: completed.energy * missed, carbon: completed.carbon * missed, ..*completed };
    let moved = compared(&hungrier, &basis.points, series).ok_or("the job's energy is unknown")?;
    for (sum, off) in errors.iter_mut().zip(difference(&moved, &found)) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let off =
        ambiguous_time_effect(completed, account, &found, &|completed| compared(completed, &basis.points, series))?;
    for (sum, off) in errors.iter_mut().zip(off) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let mut provisional = false;
    for (i, (completed, series)) in with_larger_forecasts.iter().enumerate() {
        let moved = compared(&with_pauses(completed), &basis.points, series)
            .ok_or("the carbon intensity is unknown for part of the time")?;
        let off = difference(&moved, &found);
        provisional |= off.iter().any(|off| *off != 0.0);
        for (figure, (sum, off)) in errors.iter_mut().zip(off).enumerate() {
            // The first entry, which shifts all forecasts, already covers the grams.
            if i == 0 || figure != GRAMS {
                sum.add(off, f64::INFINITY);
            }
        }
    }
    // If other sensors measured the points, the gain errors of the job's energy and of the points may be opposite.
    let mut gains = [0.0; FIGURES];
    if !basis.same_sensors {
        let gain = 1.0 + SENSOR_GAIN * std::f64::consts::SQRT_2;
        let points: Vec<Evidence> =
            basis.points.iter().map(|point| Evidence { power: point.power * gain, ..*point }).collect();
        let moved = compared(completed, &points, series).ok_or("the power at the reference is unknown")?;
        gains = difference(&moved, &found);
    }
    let half = |i: usize| errors[i].half_width().hypot(gains[i]);
    let figures = figures(&found);
    let interval = |i: usize| ConfidenceInterval::about(figures[i], half(i));
    // A constant mix that needs less power than measured would shift a part of the reduction from the timing effect to
    // the energy effect.
    let more = basis
        .mix_at_least
        .and_then(|least| basis.compared(completed, waits, &training_split, &basis.points, Some(least), series));
    let more = more.map_or(0.0, |more| (more.energy_effect_pct - found.energy_effect_pct).max(0.0));
    let split = |i: usize, (low, high): (f64, f64)| {
        let (mean, half) = (figures[i], half(i));
        let known = !basis.mix.is_empty() && basis.mix_is_known();
        known.then(|| ConfidenceInterval { low: mean - half.hypot(low), mean, high: mean + half.hypot(high) })
    };
    let has_waits = *waits != WaitingTimes::default();
    Ok(Saving {
        time_at_reference_s: found.time_at_reference,
        energy_at_reference_j: found.energy_at_reference,
        carbon_at_reference_g: found.carbon_at_reference,
        carbon_reduction_pct: interval(0),
        carbon_reduction_g: interval(1).with_gain(SENSOR_GAIN),
        time_increase_pct: interval(2),
        start_effect_pct: has_waits.then(|| interval(5)),
        suspension_effect_pct: has_waits.then(|| interval(6)),
        energy_effect_pct: split(3, (0.0, more)),
        timing_effect_pct: split(4, (more, 0.0)),
        provisional,
    })
}

/// Returns the change of each of the [`figures`] if all time that may be training or pauses (`account.unclear_time`)
/// were pauses, at the job's mean power; the reason why the saving is unknown if the change is too large.
fn ambiguous_time_effect(
    completed: &CompletedWork,
    account: &ProgressAccount,
    found: &Comparison,
    compared: &dyn Fn(&CompletedWork) -> Option<Comparison>,
) -> Result<[f64; FIGURES], String> {
    let unclear_time = account.unclear_time.min(completed.active * 0.5);
    let energy = completed.energy * (unclear_time / (completed.active + completed.stalled));
    let paused = CompletedWork {
        active: completed.active - unclear_time,
        stalled: completed.stalled + unclear_time,
        stalled_energy: completed.stalled_energy + energy,
        ..*completed
    };
    let moved = compared(&paused).ok_or("the job's own pauses cannot be distinguished from training")?;
    let off = difference(&moved, found);
    if off[0].abs() > MAX_REDUCTION_ERROR_PCT || off[2].abs() > MAX_TIME_ERROR_PCT {
        return Err(format!(
            "{:.0} s may be training or the job's own pauses: progress reports are too far apart to distinguish them",
            unclear_time.get()
        ));
    }
    Ok(off)
}

const FIGURES: usize = 7;
/// Index of the reduction in grams in [`figures`].
const GRAMS: usize = 1;

/// Returns the figures that have a confidence interval: reduction of emissions in percent and in grams, time increase,
/// energy effect, timing effect, start effect and suspension effect, the last five in percent.
fn figures(found: &Comparison) -> [f64; FIGURES] {
    let grams = found.carbon_at_reference * (found.carbon_reduction_pct / 100.0);
    [
        found.carbon_reduction_pct,
        grams.get(),
        found.time_increase_pct,
        found.energy_effect_pct,
        found.timing_effect_pct,
        found.start_effect_pct,
        found.suspension_effect_pct,
    ]
}

fn difference(moved: &Comparison, found: &Comparison) -> [f64; FIGURES] {
    let (a, b) = (figures(moved), figures(found));
    std::array::from_fn(|i| a[i] - b[i])
}

impl SavingBasis {
    fn training_split(&self, account: &ProgressAccount) -> TrainingSplit {
        // If there are several references, the account does not record during which one the job was slowed.
        let is_known = self.epochs.len() == 1 || account.lost().samples <= Samples::ZERO;
        match self.at_ceiling && is_known {
            true => TrainingSplit::at_ceiling(account),
            false => TrainingSplit::all(account),
        }
    }

    /// Compares `completed` with the reference, taking the values in `points` as exact. `mix_draws` is the power of the
    /// best constant mix; if absent, this power is computed from `points`. Returns `None` where [`compare`] does, or if
    /// the reference has no throughput.
    fn compared(
        &self,
        completed: &CompletedWork,
        waits: &WaitingTimes,
        training_split: &TrainingSplit,
        points: &[Evidence],
        mix_draws: Option<Watts>,
        series: &CarbonSeries,
    ) -> Option<Comparison> {
        let (mut time, mut energy) = (Seconds::ZERO, Joules::ZERO);
        for (i, epoch) in self.epochs.iter().enumerate() {
            let point = points.get(epoch.point).filter(|p| p.throughput > SamplesPerSecond::ZERO)?;
            let until = self.epochs.get(i + 1).map_or(completed.samples, |next| next.from.min(completed.samples));
            let spent = (until - epoch.from).max(Samples::ZERO) / point.throughput;
            time += spent;
            energy += point.power * spent;
        }
        if training_split.is_unslowed() && *waits == WaitingTimes::default() {
            return Comparison::with_itself(completed);
        }
        let at = training_split.at_reference(completed, (time, energy))?;
        let mix: Option<Vec<&Evidence>> = self.mix.iter().map(|place| points.get(*place)).collect();
        let mix = mix?;
        // A deviation of the job from its profile affects the mix's power like the reference's.
        let mixed = |rate| mix_draws.or_else(|| constant_power(&mix, rate)).map(|mixed| mixed * at.scale);
        let constant = |rate| mixed(rate).unwrap_or(at.power);
        let reference = (at.throughput, at.power);
        compare_with_waits(completed, waits, reference, |rate| Some(constant(rate)), series)
    }

    fn mix_is_known(&self) -> bool {
        self.mix.iter().all(|place| self.points.get(*place).is_some_and(|p| p.freedom >= LEAST_FREEDOM))
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
