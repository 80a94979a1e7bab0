//! Energy and time of a trial that contradict each other: mostly one of them is in another unit.

use super::{Run, Terms};
use crate::units::{Joules, Seconds, Short, Watts};

/// Shorter times are too coarse for a mean power.
const SHORTEST: Seconds = Seconds::new(1.0);
/// Each GPU draws more, also where it only waits,
const LEAST_PER_GPU: Watts = Watts::new(1.0);
/// and more than this part of the largest power: an idle GPU draws about ten times that.
const LEAST_SHARE: f64 = 0.002;
/// No GPU draws more, with its part of the node.
const MOST_PER_GPU: Watts = Watts::new(10_000.0);
/// How far a node draws more than its GPUs at the most.
const MOST_TIMES: f64 = 2.0;
/// A mean power within this range of the largest power is a likely one.
const LIKELY: std::ops::RangeInclusive<f64> = 0.05..=MOST_TIMES;
/// Units that energy or time may be in, and how many times too small they make the mean power.
const MEANT: [(f64, &str); 3] = [
    (3.6e6, "energy_j in kilowatt-hours"),
    (3600.0, "energy_j in watt-hours"),
    (1000.0, "time_s in milliseconds, or energy_j in kilojoules"),
];

/// Returns what looks like a mistake in the energy and time of a trial so far, with what was most likely meant.
pub fn doubts(run: &Run, terms: &Terms) -> Vec<String> {
    let (energy, time, most_power) = (run.energy, run.time, terms.spec.knob.max_power);
    // Where only time counts, whoever has no meter reports 0; a job's ledger may still lack its first interval.
    let is_unmetered = energy <= Joules::ZERO && (terms.spec.knob.eta == 0.0 || run.job.is_some());
    if time < SHORTEST || is_unmetered {
        return Vec::new();
    }
    let mean = energy / time;
    let gpus = terms.boards.as_ref().map(|boards| f64::from(boards.count));
    let least = (LEAST_PER_GPU * gpus.unwrap_or(1.0)).max(most_power * LEAST_SHARE);
    let most = gpus.map_or_else(|| MOST_PER_GPU.max(most_power * MOST_TIMES), |gpus| MOST_PER_GPU * gpus);
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
    // Two digits are enough to see the unit.
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
    use crate::bandit::{Boards, Job, Knob, PolicyName, Reward, Spec, Target};
    use crate::domain::JobId;

    /// A recurring job with a trial, of `gpus` GPUs that draw `each` at the most.
    fn job(gpus: Option<u32>, each: Watts, eta: f64) -> Job {
        let spec = Spec {
            batch_sizes: vec![8],
            default_batch_size: 8,
            max_epochs: 9,
            knob: Knob { eta, max_power: each * f64::from(gpus.unwrap_or(1)) },
            beta: None,
            window: 0,
            policy: PolicyName::Wattune,
        };
        let target = Target { metric: 0.5, higher_is_better: true };
        let boards = gpus.map(|count| Boards { model: "A100".into(), count });
        let terms = Terms { spec, target, lease: Seconds::new(100.0), reward: Reward::Energy, boards, seed: None };
        let mut job = Job::new(terms, 0);
        job.begin(None, DateTime::UNIX_EPOCH).expect("begun");
        job
    }

    fn said(job: &mut Job, energy: f64, time: f64) -> String {
        (job.runs[0].energy, job.runs[0].time) = (Joules::new(energy), Seconds::new(time));
        doubts(&job.runs[0], &job.terms).join("; ")
    }

    #[test]
    fn energy_and_time_that_contradict_each_other_are_doubted() {
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
            let said = said(&mut job(gpus, Watts::new(300.0), 0.5), energy, time);
            assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{energy} J in {time} s: {said:?}");
        }
        let said_of_large = said(&mut job(Some(1), Watts::new(2_000.0), 0.5), 12_000.0 * 60.0, 60.0);
        assert!(said_of_large.contains("draw at most 10000 W: is energy_j in millijoules"), "{said_of_large}");
    }

    #[test]
    fn no_energy_is_no_mistake_where_nobody_need_measure_it() {
        assert_eq!(said(&mut job(None, Watts::new(300.0), 0.0), 0.0, 900.0), "", "only time counts");
        let mut of_ledger = job(None, Watts::new(300.0), 0.5);
        of_ledger.runs[0].job = Some(JobId::new("a").expect("an id"));
        assert_eq!(said(&mut of_ledger, 0.0, 900.0), "", "no interval is closed yet");
    }
}
