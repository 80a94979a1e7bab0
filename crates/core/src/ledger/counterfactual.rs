//! Energy and emissions of the same work at the maximum usable limit, and decomposition of the difference into an
//! energy effect and a timing effect (`planning.md` §5).

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::waiting_times::{WaitingTimes, earlier, mean_over};
use crate::domain::{CarbonSeries, Slot};
use crate::units::{GramsCo2e, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Work, time, energy and emissions of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletedWork {
    /// Start of the job.
    pub started: DateTime<Utc>,
    /// Training time, without the job's own pauses (such as evaluation and checkpoints).
    pub active: Seconds,
    /// Time in the job's own pauses, not in those that wattune requested.
    pub stalled: Seconds,
    /// Energy that the job would use in its own pauses at the limit with which the job is compared.
    pub stalled_energy: Joules,
    /// Number of samples that the job completed.
    pub samples: Samples,
    /// Energy used, including the job's own pauses.
    pub energy: Joules,
    /// Emissions, including those of the job's own pauses.
    pub carbon: GramsCo2e,
}

/// Comparison of a job with the same work at the maximum usable limit (or another reference that the caller gives),
/// from the same start on and with the same pauses. The energy effect and the timing effect add up to the reduction of
/// emissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Time that the job would have taken at the maximum usable limit.
    #[serde(rename = "time_at_max_s")]
    pub time_at_reference: Seconds,
    /// Energy that the job would have used at the maximum usable limit.
    #[serde(rename = "energy_at_max_j")]
    pub energy_at_reference: Joules,
    /// Emissions that the job would have caused at the maximum usable limit.
    #[serde(rename = "carbon_at_max_g")]
    pub carbon_at_reference: GramsCo2e,
    /// Reduction of emissions, in percent of those at the maximum usable limit.
    pub carbon_reduction_pct: f64,
    /// Increase of time, in percent of the time at the maximum usable limit.
    pub time_increase_pct: f64,
    /// Part of the reduction due to starting later than asked.
    #[serde(skip)]
    pub start_effect_pct: f64,
    /// Part of the reduction due to suspensions, less the emissions of saving and restarting.
    #[serde(skip)]
    pub suspension_effect_pct: f64,
    /// Part of the reduction that the best constant mix of power limits with the same training time would have had.
    pub energy_effect_pct: f64,
    /// Rest of the reduction: the effect of following the carbon intensity over time.
    pub timing_effect_pct: f64,
}

impl Comparison {
    /// Returns the comparison of a job with itself, as for a job that was never slowed; `None` if it caused no emissions.
    pub(super) fn with_itself(completed: &CompletedWork) -> Option<Self> {
        (completed.carbon > GramsCo2e::ZERO).then(|| Self {
            time_at_reference: completed.active + completed.stalled,
            energy_at_reference: completed.energy,
            carbon_at_reference: completed.carbon,
            carbon_reduction_pct: 0.0,
            time_increase_pct: 0.0,
            start_effect_pct: 0.0,
            suspension_effect_pct: 0.0,
            energy_effect_pct: 0.0,
            timing_effect_pct: 0.0,
        })
    }
}

/// Compares `completed` with the same work at the maximum usable limit (or another reference), where the job has
/// throughput `reference.0` and power `reference.1`. `static_power` returns the power of the best constant mix of power
/// limits with a given throughput (the lower hull of the profile); `series` holds the carbon intensities.
///
/// Returns `None` if no work was done, the throughput `reference.0` is zero, a carbon intensity is unknown for a part
/// of the job's time or of the time at the limit, `static_power` returns `None`, or the emissions at the limit are
/// zero.
pub fn compare(
    completed: &CompletedWork,
    reference: (SamplesPerSecond, Watts),
    static_power: impl Fn(SamplesPerSecond) -> Option<Watts>,
    series: &CarbonSeries,
) -> Option<Comparison> {
    compare_with_waits(completed, &WaitingTimes::default(), reference, static_power, series)
}

/// Compares `completed`, like [`compare`], with the same work that started when it was asked for, was never suspended
/// and ran at the reference. The reduction is the sum of four effects, each the difference between two cases of which
/// the second differs from the first in one way: the job's start instead of the asked one (start effect), the job's
/// suspensions with the time that they cost (suspension effect), the best constant mix of limits (energy effect), and
/// the job itself (timing effect). Emissions of GPUs that were reserved for the job while it was not on them count
/// against the start effect and the suspension effect.
pub(super) fn compare_with_waits(
    completed: &CompletedWork,
    waits: &WaitingTimes,
    reference: (SamplesPerSecond, Watts),
    static_power: impl Fn(SamplesPerSecond) -> Option<Watts>,
    series: &CarbonSeries,
) -> Option<Comparison> {
    let (throughput, power) = reference;
    if completed.samples <= Samples::ZERO || completed.active <= Seconds::ZERO || throughput <= SamplesPerSecond::ZERO {
        return None;
    }
    let training = completed.samples / throughput;
    let (time, time_at_reference) = (completed.active + completed.stalled, training + completed.stalled);
    let energy_at_reference = power * training + completed.stalled_energy;
    let end = completed.started.checked_add_signed(time.to_delta())?;
    let suspended = waits.suspended_within(&Slot::new(completed.started, end)?);
    let mean = |time| waits.mean_while_present(series, completed.started, time);
    // The reference starts when asked, after the work of the earlier jobs with the same key.
    let asked = earlier(completed.started, waits.before_start)?;
    let asked = asked.checked_add_signed((waits.done_before / throughput).to_delta())?;
    let carbon_at_reference = energy_at_reference * mean_over(series, asked, time_at_reference)?;
    let started = energy_at_reference * mean_over(series, completed.started, time_at_reference)?;
    let with_stops = energy_at_reference + power * waits.stop_time;
    let stopped = with_stops * mean(time_at_reference + waits.stop_time)?;
    let present = (completed.active - suspended).max(Seconds::ZERO);
    let trained = present - waits.stop_time;
    if trained <= Seconds::ZERO {
        return None;
    }
    let constant = static_power(completed.samples / trained)? * present + completed.stalled_energy;
    let constant = constant * mean(present + completed.stalled)?;
    if carbon_at_reference <= GramsCo2e::ZERO {
        return None;
    }
    let percent = |grams: GramsCo2e| 100.0 * (grams / carbon_at_reference);
    let reserved = waits.reserved_before + waits.reserved_suspended;
    Some(Comparison {
        time_at_reference,
        energy_at_reference,
        carbon_at_reference,
        carbon_reduction_pct: percent(carbon_at_reference - completed.carbon - reserved),
        time_increase_pct: 100.0 * (time / time_at_reference - 1.0),
        start_effect_pct: percent(carbon_at_reference - started - waits.reserved_before),
        suspension_effect_pct: percent(started - stopped - waits.reserved_suspended),
        energy_effect_pct: percent(stopped - constant),
        timing_effect_pct: percent(constant - completed.carbon),
    })
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::domain::{Intensity, Origin, TimeSeries};
    use crate::units::GramsPerKwh;

    #[test]
    fn the_two_effects_add_up_to_the_reduction() {
        let at = |hours| DateTime::UNIX_EPOCH + TimeDelta::hours(hours);
        let point = |from, to, value| {
            let value = GramsPerKwh::new(value);
            (Slot::new(at(from), at(to)).expect("from < to"), Intensity { value, origin: Origin::Measured })
        };
        let (series, _) = TimeSeries::from_points(vec![point(0, 1, 500.0), point(1, 3, 300.0)]);
        // Two hours at 90 samples/s and 180 W on average, compared with 100 samples/s and 240 W at the maximum usable
        // limit.
        let samples = Samples::new(90.0 * 7200.0);
        let energy = Joules::new(180.0 * 7200.0);
        let completed = CompletedWork {
            started: at(0),
            active: Seconds::new(7200.0),
            stalled: Seconds::ZERO,
            stalled_energy: Joules::ZERO,
            samples,
            energy,
            carbon: GramsCo2e::new(130.0),
        };
        let reference = (SamplesPerSecond::new(100.0), Watts::new(240.0));
        let found = compare(&completed, reference, |_| Some(Watts::new(185.0)), &series).expect("all known");
        let carbon = 240.0 * 6480.0 / 3.6e6 * (500.0 * 3600.0 + 300.0 * 2880.0) / 6480.0;
        assert!((found.carbon_at_reference.get() - carbon).abs() < 1e-9, "{found:?}");
        assert!((found.time_increase_pct - 100.0 * (7200.0 / 6480.0 - 1.0)).abs() < 1e-9);
        assert!((found.energy_effect_pct - 100.0 * (1.0 - 185.0 * 2.0 / 1000.0 * 400.0 / carbon)).abs() < 1e-9);
        let sum = found.energy_effect_pct + found.timing_effect_pct;
        assert!((sum - found.carbon_reduction_pct).abs() < 1e-12);
        // The same work with an hour of pauses at 60 W, and a constant carbon intensity.
        let (flat, _) = TimeSeries::from_points(vec![point(0, 4, 400.0)]);
        let pauses = Joules::new(60.0 * 3600.0);
        let carbon = (energy + pauses) * GramsPerKwh::new(400.0);
        let paused =
            CompletedWork { stalled: Seconds::new(3600.0), stalled_energy: pauses, energy, carbon, ..completed };
        let found = compare(&paused, reference, |_| Some(Watts::new(185.0)), &flat).expect("all known");
        let reference_energy = 240.0 * 6480.0 + 60.0 * 3600.0;
        let reduction = 100.0 * (1.0 - (180.0 * 7200.0 + 60.0 * 3600.0) / reference_energy);
        assert!((found.carbon_reduction_pct - reduction).abs() < 1e-9, "{found:?}");
        assert!((found.time_increase_pct - 100.0 * (10_800.0 / 10_080.0 - 1.0)).abs() < 1e-9, "{found:?}");
        let endless = CompletedWork { samples: Samples::new(1e15), ..completed };
        let crawling = (SamplesPerSecond::new(1e-9), Watts::new(240.0));
        assert_eq!(compare(&endless, crawling, |_| Some(Watts::new(185.0)), &series), None, "beyond all calendars");
        let later = CompletedWork { started: at(2), ..completed };
        assert_eq!(
            compare(&later, reference, |_| Some(Watts::new(185.0)), &series),
            None,
            "the third hour is the last"
        );
    }
}
