//! What a job saved against a reference, and how sure that is.
//!
//! The reference is the same work at one setting from the job's start on, with the throughput and power that the job's
//! profile measured there. What was measured is off by chance: each of these quantities is moved by its standard error
//! in turn, and what that changes is added up as independent errors are. The job's own pauses are part of the reference:
//! as long, with what they used, where no lower limit lowered that. The sensors' gain is the same on both sides and
//! cancels in percent, as long as they are the same sensors; in grams it does not. Intensities that have not come yet are
//! forecasts: the interval holds what their usual error would change, until they have come.

use serde::{Deserialize, Serialize};

use super::counterfactual::{Comparison, Done, compare};
use super::pauses::paused;
use super::sure::{Errors, LEAST_FREEDOM, Sure, student};
use crate::domain::{CarbonSeries, SENSOR_GAIN};
use crate::profile::{Evidence, ProgressAccount};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// A reduction that may be off by more than this many percentage points, as the power in pauses is not known, is unknown.
const MOST_OFF_BY_PAUSES: f64 = 0.5;
/// The same of the time, in percentage points.
const MOST_LATE_BY_PAUSES: f64 = 0.3;
/// So many runs with the default batch size must be known before others are compared with them.
const LEAST_RUNS: usize = 4;

/// A job and the grid in its time, as far as is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// What the job did.
    pub done: Done,
    /// Its time and the energy of its own pauses.
    pub account: ProgressAccount,
    /// The intensities that this was reckoned with, up to the end of what it is compared with.
    pub series: CarbonSeries,
    /// What it would have done, and the intensities, if what is not an outcome yet is larger by its standard error.
    pub otherwise: Option<(Done, CarbonSeries)>,
}

/// What a saving is told from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    /// What was measured.
    pub points: Vec<Evidence>,
    /// The reference from the start on, oldest first: a job that was profiled anew has more than one.
    pub epochs: Vec<Epoch>,
    /// The places in `points` of the one or two settings that the best constant mix of the job's throughput consists of;
    /// empty where that is not known.
    pub mix: Vec<usize>,
    /// What the best constant mix may draw in truth: [`least_constant_power`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix_at_least: Option<Watts>,
    /// The reference's limits, summed over the job's GPUs: no pause draws more there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Watts>,
    /// Whether the sensors that measured the points are the job's own.
    pub same_sensors: bool,
    /// Whether the reference is the setting below which the job's account counts time as lost: then training at it takes
    /// as long as it took. Else all work is reckoned at the reference's throughput.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_ceiling: bool,
}

/// A reference from some work on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Samples done before it.
    pub from: Samples,
    /// Its place in [`Basis::points`].
    pub point: usize,
}

/// A job against its reference; percent are of the reference's. The two effects add up to the reduction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// What the job would have taken at the reference, with its own pauses.
    pub time_at_reference_s: Seconds,
    /// What it would have used.
    pub energy_at_reference_j: Joules,
    /// What it would have emitted.
    pub carbon_at_reference_g: GramsCo2e,
    /// Less carbon, in percent.
    pub carbon_reduction_pct: Sure,
    /// Less carbon, in grams.
    pub carbon_reduction_g: Sure,
    /// More time, in percent.
    pub time_increase_pct: Sure,
    /// The part of the reduction that the best constant mix of limits with the same time would have had.
    pub energy_effect_pct: Option<Sure>,
    /// The rest: from following the grid.
    pub timing_effect_pct: Option<Sure>,
    /// Whether some of the intensities have not come yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provisional: bool,
}

/// What a run's batch size changed against the default one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchEffect {
    /// The runs with the default batch size that it is compared with.
    pub runs: u32,
    /// Less energy than they used on average, in joules.
    pub energy_j: Sure,
    /// The same at the mean intensity of this run, in grams.
    pub carbon_g: Sure,
    /// Less than they used, in percent of that.
    pub pct: Sure,
}

/// Compares a job with its reference.
///
/// # Errors
/// Where it cannot be told honestly: why, in words.
pub fn saving(known: &Known, basis: &Basis) -> Result<Saving, String> {
    let Known { done, account, series, otherwise } = known;
    let referred: Vec<&Evidence> = basis.epochs.iter().filter_map(|e| basis.points.get(e.point)).collect();
    if referred.is_empty() {
        return Err("nothing was measured at that limit".into());
    }
    if referred.iter().any(|p| p.freedom < LEAST_FREEDOM) {
        return Err("that limit was measured in too few windows to say how sure it is".into());
    }
    if done.samples <= Samples::ZERO || done.active <= Seconds::ZERO {
        return Err("nothing was done yet".into());
    }
    let pauses = paused(account, basis.limit)?;
    let with_pauses = |done: &Done| Done { stalled_energy: pauses.mean, ..*done };
    let done = &with_pauses(done);
    let elsewhere = Elsewhere::of(account, basis);
    let compared = |done: &Done, points: &[Evidence], series: &CarbonSeries| {
        basis.compared(done, &elsewhere, points, None, series)
    };
    let found = compared(done, &basis.points, series)
        .ok_or("an intensity is unknown for part of the time, or was zero throughout it: grams cannot be compared")?;
    let mut errors: [Errors; FIGURES] = Default::default();
    for (i, point) in basis.points.iter().enumerate() {
        let moved = |moved: Evidence| {
            let mut points = basis.points.clone();
            points[i] = moved;
            compared(done, &points, series)
        };
        let faster = moved(Evidence { throughput: point.throughput * (1.0 + point.throughput_error), ..*point });
        let hungrier = moved(Evidence { power: point.power * (1.0 + point.power_error), ..*point });
        for moved in [faster, hungrier] {
            let moved = moved.ok_or("the reference is not known well enough to be compared with")?;
            for (sum, off) in errors.iter_mut().zip(difference(&moved, &found)) {
                sum.add(off, point.freedom.max(1.0));
            }
        }
    }
    let longer = Done { stalled_energy: pauses.mean + pauses.half, ..*done };
    let moved = compared(&longer, &basis.points, series).ok_or("the power in its own pauses is not known")?;
    let off = difference(&moved, &found);
    if off[0].abs() > MOST_OFF_BY_PAUSES {
        return Err(format!(
            "the power that its own pauses would have had is not known well enough: the reduction may be off by {:.1} \
             percentage points",
            off[0].abs()
        ));
    }
    for (sum, off) in errors.iter_mut().zip(off) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let off = in_doubt(done, account, &found, &|done| compared(done, &basis.points, series))?;
    for (sum, off) in errors.iter_mut().zip(off) {
        sum.add(off / student(f64::INFINITY), f64::INFINITY);
    }
    let mut provisional = false;
    if let Some((done, series)) = otherwise {
        let moved = compared(&with_pauses(done), &basis.points, series)
            .ok_or("an intensity is unknown for part of the time")?;
        let off = difference(&moved, &found);
        provisional = off.iter().any(|off| *off != 0.0);
        for (sum, off) in errors.iter_mut().zip(off) {
            sum.add(off, f64::INFINITY);
        }
    }
    // Other sensors: the job's own may be off to one side and those of the points to the other.
    let mut gains = [0.0; FIGURES];
    if !basis.same_sensors {
        let gain = 1.0 + SENSOR_GAIN * std::f64::consts::SQRT_2;
        let points: Vec<Evidence> =
            basis.points.iter().map(|point| Evidence { power: point.power * gain, ..*point }).collect();
        let moved = compared(done, &points, series).ok_or("the reference's power is not known")?;
        gains = difference(&moved, &found);
    }
    let half = |i: usize| errors[i].half_width().hypot(gains[i]);
    let figures = figures(&found);
    let sure = |i: usize| Sure::about(figures[i], half(i));
    // A cheaper constant mix would have had more of the reduction, and following the grid less.
    let more =
        basis.mix_at_least.and_then(|least| basis.compared(done, &elsewhere, &basis.points, Some(least), series));
    let more = more.map_or(0.0, |more| (more.energy_effect_pct - found.energy_effect_pct).max(0.0));
    let split = |i: usize, (low, high): (f64, f64)| {
        let (mean, half) = (figures[i], half(i));
        let known = !basis.mix.is_empty() && basis.mix_is_known();
        known.then(|| Sure { low: mean - half.hypot(low), mean, high: mean + half.hypot(high) })
    };
    Ok(Saving {
        time_at_reference_s: found.time_at_ceiling,
        energy_at_reference_j: found.energy_at_ceiling,
        carbon_at_reference_g: found.carbon_at_ceiling,
        carbon_reduction_pct: sure(0),
        carbon_reduction_g: sure(1).with_gain(SENSOR_GAIN),
        time_increase_pct: sure(2),
        energy_effect_pct: split(3, (0.0, more)),
        timing_effect_pct: split(4, (more, 0.0)),
        provisional,
    })
}

/// What changes if the time that may be training or pauses was pauses, with the job's mean power.
fn in_doubt(
    done: &Done,
    account: &ProgressAccount,
    found: &Comparison,
    compared: &dyn Fn(&Done) -> Option<Comparison>,
) -> Result<[f64; FIGURES], String> {
    let doubt = account.doubt.min(done.active * 0.5);
    let energy = done.energy * (doubt / (done.active + done.stalled));
    let paused = Done {
        active: done.active - doubt,
        stalled: done.stalled + doubt,
        stalled_energy: done.stalled_energy + energy,
        ..*done
    };
    let moved = compared(&paused).ok_or("its own pauses cannot be told from training")?;
    let off = difference(&moved, found);
    if off[0].abs() > MOST_OFF_BY_PAUSES || off[2].abs() > MOST_LATE_BY_PAUSES {
        return Err(format!(
            "{:.0} s may have been training or pauses of its own: its reports are too far apart to tell them from each other",
            doubt.get()
        ));
    }
    Ok(off)
}

const FIGURES: usize = 5;

/// What an interval is told of.
fn figures(found: &Comparison) -> [f64; FIGURES] {
    let grams = found.carbon_at_ceiling * (found.carbon_reduction_pct / 100.0);
    [found.carbon_reduction_pct, grams.get(), found.time_increase_pct, found.energy_effect_pct, found.timing_effect_pct]
}

fn difference(moved: &Comparison, found: &Comparison) -> [f64; FIGURES] {
    let (a, b) = (figures(moved), figures(found));
    std::array::from_fn(|i| a[i] - b[i])
}

/// How a job's training divides between the reference and other settings.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Elsewhere {
    /// Time at the reference.
    at_reference: Seconds,
    /// The part of all samples that were done at other settings.
    part: f64,
}

impl Elsewhere {
    fn of(account: &ProgressAccount, basis: &Basis) -> Self {
        let lost = account.lost();
        match basis.at_ceiling && account.samples > Samples::ZERO {
            true => Self {
                at_reference: (account.active - lost.below).max(Seconds::ZERO),
                part: (lost.samples / account.samples).min(1.0),
            },
            false => Self { at_reference: Seconds::ZERO, part: 1.0 },
        }
    }
}

impl Basis {
    /// The comparison if `points` were the truth, with a constant mix that draws so much, or what they say of it.
    fn compared(
        &self,
        done: &Done,
        elsewhere: &Elsewhere,
        points: &[Evidence],
        mix_draws: Option<Watts>,
        series: &CarbonSeries,
    ) -> Option<Comparison> {
        let (mut time, mut energy) = (Seconds::ZERO, Joules::ZERO);
        for (i, epoch) in self.epochs.iter().enumerate() {
            let point = points.get(epoch.point).filter(|p| p.throughput > SamplesPerSecond::ZERO)?;
            let until = self.epochs.get(i + 1).map_or(done.samples, |next| next.from.min(done.samples));
            let spent = (until - epoch.from).max(Samples::ZERO) / point.throughput;
            time += spent;
            energy += point.power * spent;
        }
        if time <= Seconds::ZERO {
            return None;
        }
        let training = elsewhere.at_reference + time * elsewhere.part;
        if training <= Seconds::ZERO {
            return None;
        }
        let reference = (done.samples / training, energy / time);
        let mix: Option<Vec<&Evidence>> = self.mix.iter().map(|place| points.get(*place)).collect();
        let mix = mix?;
        let constant = |rate| mix_draws.or_else(|| constant_power(&mix, rate)).unwrap_or(reference.1);
        compare(done, reference, |rate| Some(constant(rate)), series)
    }

    fn mix_is_known(&self) -> bool {
        self.mix.iter().all(|place| self.points.get(*place).is_some_and(|p| p.freedom >= LEAST_FREEDOM))
    }
}

/// The power of the constant mix of one or two settings that has a throughput; `None` without any.
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

/// The least power that a constant mix of a throughput may have in truth, where that lies below what `mix` has, the best
/// one as measured: what looked bad by chance is not measured again, so that its chance stays. Each of `others`, the
/// settings beside the mix, is moved to the good end of its own interval (at 95 %; an error of throughput counts at the
/// mix's slope) while the rest stay as measured.
pub fn least_constant_power(mix: &[&Evidence], others: &[&Evidence], rate: SamplesPerSecond) -> Option<Watts> {
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

/// Compares the energy of a run with that of earlier ones that had the default batch size. `intensity` is the run's mean
/// one; `same_sensors` says whether all ran on the same boards.
///
/// # Errors
/// While there are too few of them: how many there are, in words.
pub fn batch_effect(
    default_runs: &[Joules],
    run: Joules,
    intensity: GramsPerKwh,
    same_sensors: bool,
) -> Result<BatchEffect, String> {
    let runs = default_runs.len();
    if runs < LEAST_RUNS {
        return Err(format!(
            "the default batch size reached the target in {runs} earlier run(s); {LEAST_RUNS} are needed to say what it \
             costs"
        ));
    }
    let count = runs as f64;
    let mean = default_runs.iter().copied().sum::<Joules>() / count;
    if mean <= Joules::ZERO {
        return Err("the runs with the default batch size have no energy in the books".into());
    }
    let squares: f64 = default_runs.iter().map(|e| (*e - mean).get().powi(2)).sum();
    let half = Joules::new(student(count - 1.0) * (squares / (count - 1.0) / count).sqrt());
    let gain = if same_sensors { 0.0 } else { SENSOR_GAIN * std::f64::consts::SQRT_2 };
    let less = mean - run;
    let energy = Sure::about(less.get(), half.get()).with_gain(SENSOR_GAIN);
    let other = run.get() * gain;
    let energy_j = Sure { low: energy.low - other, high: energy.high + other, ..energy };
    let part = run / mean;
    Ok(BatchEffect {
        runs: u32::try_from(runs).unwrap_or(u32::MAX),
        energy_j,
        carbon_g: energy_j.times((Joules::new(1.0) * intensity).get()),
        pct: Sure::about(100.0 * (1.0 - part), 100.0 * part * (half / mean).hypot(gain)),
    })
}

#[cfg(test)]
#[path = "savings_tests.rs"]
mod tests;
