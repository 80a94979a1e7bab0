//! Warnings about implausible energy and time of a trial, which are mostly due to wrong units.

use super::{Run, Terms};
use crate::units::{Joules, Seconds, Short, Watts};

/// Minimum reported time from which on a mean power is meaningful.
const MIN_TIME: Seconds = Seconds::new(1.0);
/// Lower bound of the mean power of one GPU, even if it is idle.
const MIN_PER_GPU: Watts = Watts::new(1.0);
/// Lower bound of the mean power as a fraction of the maximum power; idle GPUs draw about ten times as much.
const MIN_FRACTION: f64 = 0.002;
/// Upper bound of the mean power of one GPU, including the GPU's part of the power of its node.
const MAX_PER_GPU: Watts = Watts::new(10_000.0);
/// Upper bound of the power of a node as a multiple of the maximum power of its GPUs.
const MAX_RATIO: f64 = 2.0;
/// Plausible range of the mean power as a fraction of the maximum power.
const LIKELY: std::ops::RangeInclusive<f64> = 0.05..=MAX_RATIO;
/// Mistakes that make the mean power too small: the factor by which it is too small (first value), and the units that
/// the client used by mistake (second).
const MEANT: [(f64, &str); 3] = [
    (3.6e6, "energy_j in kilowatt-hours"),
    (3600.0, "energy_j in watt-hours"),
    (1000.0, "time_s in milliseconds, or energy_j in kilojoules"),
];

/// Returns a warning if the mean power of a trial is implausible, with the most likely mistakes; else nothing.
pub fn unit_warnings(run: &Run, terms: &Terms) -> Vec<String> {
    let (energy, time, most_power) = (run.energy, run.time, terms.spec.knob.max_power);
    // An energy of 0 J is no mistake in two cases: if only time counts, clients without a meter report 0 J; and if the
    // energy comes from the ledger, the first interval of the job's account may not be closed yet.
    let is_unmetered = energy <= Joules::ZERO && (terms.spec.knob.eta == 0.0 || run.job.is_some());
    if time < MIN_TIME || is_unmetered {
        return Vec::new();
    }
    let mean = energy / time;
    let gpus = terms.gpus.as_ref().map(|gpus| f64::from(gpus.count));
    let least = (MIN_PER_GPU * gpus.unwrap_or(1.0)).max(most_power * MIN_FRACTION);
    let most = gpus.map_or_else(|| MAX_PER_GPU.max(most_power * MAX_RATIO), |gpus| MAX_PER_GPU * gpus);
    let (bound, meant) = match mean {
        mean if mean < least => {
            let likely = MEANT.iter().filter(|(factor, _)| LIKELY.contains(&(mean * *factor / most_power)));
            let likely: Vec<&str> = likely.map(|(_, meant)| *meant).collect();
            let general = "energy_j in joules and time_s in seconds, both since the trial began".to_owned();
            let meant = if likely.is_empty() { general } else { likely.join(", or ") };
            (format!("draw at least {} W", Short(least.get())), meant)
        }
        mean if mean > most => {
            let meant = "energy_j in millijoules, or time_s in minutes or hours".to_owned();
            (format!("draw at most {} W", Short(most.get())), meant)
        }
        _ => return Vec::new(),
    };
    // Two digits suffice to recognise the unit.
    let mean = format!("{:.1e}", mean.get()).parse().unwrap_or(mean.get());
    vec![format!(
        "energy_j {} in time_s {} is a mean power of {} W, and its GPUs {bound}: is {meant}?",
        Short(energy.get()),
        Short(time.get()),
        Short(mean)
    )]
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::bandit::{GpuSet, Job, Knob, PolicyName, Reward, Spec, Target};
    use crate::domain::JobId;

    /// Returns a recurring job with one trial. It runs on `gpus` GPUs (`None`: not specified), which draw at most
    /// `each`.
    fn job(gpus: Option<u32>, each: Watts, eta: f64) -> Job {
        let spec = Spec {
            batch_sizes: vec![8],
            default_batch_size: 8,
            max_epochs: 9,
            knob: Knob { eta, max_power: each * f64::from(gpus.unwrap_or(1)) },
            beta: None,
            window: 0,
            policy: PolicyName::Wattune,
            zeus: None,
        };
        let target = Target { metric: 0.5, higher_is_better: true };
        let gpus = gpus.map(|count| GpuSet { model: "A100".into(), count });
        let terms = Terms { spec, target, lease: Seconds::new(100.0), reward: Reward::Energy, gpus, seed: None };
        let mut job = Job::new(terms, 0);
        job.begin(None, DateTime::UNIX_EPOCH).expect("begun");
        job
    }

    fn warnings(job: &mut Job, energy: f64, time: f64) -> String {
        (job.runs[0].energy, job.runs[0].time) = (Joules::new(energy), Seconds::new(time));
        unit_warnings(&job.runs[0], &job.terms).join("; ")
    }

    #[test]
    fn implausible_mean_powers_cause_a_warning() {
        let kwh = 225_000.0 / 3.6e6;
        let table = [
            (None, kwh, 900.0, "of 0.000069 W, and its GPUs draw at least 1 W: is energy_j in kilowatt-hours?"),
            (None, 62.5, 900.0, "energy_j in watt-hours"),
            (None, 225.0, 900.0, "energy_j in kilojoules?"),
            (None, 225_000.0, 900_000.0, "is time_s in milliseconds"),
            (Some(8), 1_800_000.0, 900_000.0, "of 2 W, and its GPUs draw at least 8 W: is time_s in milliseconds"),
            (None, 0.0, 900.0, "is energy_j in joules and time_s in seconds"),
            (None, 225_000.0, 900.0, ""),
            (Some(8), 1_800_000.0, 900.0, ""),
            (None, 20.0 * 900.0, 900.0, ""),
            (None, 0.0, 0.5, ""),
        ];
        for (gpus, energy, time, part) in table {
            let found = warnings(&mut job(gpus, Watts::new(300.0), 0.5), energy, time);
            assert!(found.contains(part) && found.is_empty() == part.is_empty(), "{energy} J in {time} s: {found:?}");
        }
        let of_large = warnings(&mut job(Some(1), Watts::new(2_000.0), 0.5), 12_000.0 * 60.0, 60.0);
        assert!(of_large.contains("draw at most 10000 W: is energy_j in millijoules"), "{of_large}");
    }

    #[test]
    fn missing_energy_is_valid_where_it_need_not_be_measured() {
        assert_eq!(warnings(&mut job(None, Watts::new(300.0), 0.0), 0.0, 900.0), "", "only time counts");
        let mut of_ledger = job(None, Watts::new(300.0), 0.5);
        of_ledger.runs[0].job = Some(JobId::new("a").expect("an id"));
        assert_eq!(warnings(&mut of_ledger, 0.0, 900.0), "", "no interval is closed yet");
    }
}
