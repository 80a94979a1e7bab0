//! Detection of changes that invalidate earlier results, such as other data, another GPU or other code.

use crate::bandit::{Spec, Trial};

/// Number of standard deviations from the mean beyond which a result is an outlier.
const FAR: f64 = 3.0;
/// Maximum difference of an epoch's log cost from the previous one that is not an outlier.
const EPOCH_COST: f64 = 0.1;
/// Minimum number of results of a batch size for outlier detection.
const KNOWN: f64 = 4.0;
/// Prior standard deviation of log epochs, and the weight of this prior in runs.
pub(super) const NOISE: (f64, f64) = (0.1, 2.0);
/// Minimum standard deviation of log epochs assumed in outlier detection.
const LEAST_NOISE: f64 = 0.1;
/// Number of consecutive outliers that count as a change, on the side of higher and of lower costs or epochs. Three for
/// lower ones, because running a cheaper batch size once more does no harm.
const DEARER: usize = 2;
const CHEAPER: usize = 3;

/// Result of one run, as far as beliefs use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    pub(super) arm: usize,
    /// Natural logarithm of the completed epochs.
    pub(super) log_epochs: f64,
    pub(super) epochs: f64,
    pub(super) log_epoch_cost: f64,
    pub(super) reached: bool,
}

impl Observation {
    pub(super) fn of(spec: &Spec, trial: &Trial) -> Option<Self> {
        let epoch_cost = trial.epoch_cost.filter(|c| c.get() > 0.0 && c.get().is_finite())?;
        if !trial.has_result() || trial.epochs == 0 {
            return None;
        }
        let epochs = f64::from(trial.epochs);
        Some(Self {
            arm: spec.place(trial.batch_size)?,
            log_epochs: epochs.ln(),
            epochs,
            log_epoch_cost: epoch_cost.get().ln(),
            reached: trial.reached(),
        })
    }
}

/// Mean and spread of log epochs by batch size (Welford's recurrence).
pub(super) struct Spread {
    /// Count, mean and sum of squared deviations for each arm (batch size).
    arms: Vec<(f64, f64, f64)>,
}

impl Spread {
    pub(super) fn new(arms: usize) -> Self {
        Self { arms: vec![(0.0, 0.0, 0.0); arms] }
    }

    pub(super) fn add(&mut self, arm: usize, value: f64) {
        let (count, mean, squares) = &mut self.arms[arm];
        *count += 1.0;
        let off = value - *mean;
        *mean += off / *count;
        *squares += off * (value - *mean);
    }

    /// Returns the pooled variance within batch sizes, including a prior deviation with a weight in runs.
    pub(super) fn pooled(&self, (deviation, worth): (f64, f64)) -> f64 {
        let squares: f64 = self.arms.iter().map(|a| a.2).sum();
        let freedom: f64 = self.arms.iter().map(|a| (a.0 - 1.0).max(0.0)).sum();
        (worth * deviation * deviation + squares) / (worth + freedom)
    }

    /// Returns the deviation of `value` from the arm's mean, in standard deviations; `None` if the arm has few results.
    fn above(&self, arm: usize, value: f64) -> Option<f64> {
        let (count, mean, squares) = self.arms[arm];
        if count < KNOWN {
            return None;
        }
        let own = (squares / (count - 1.0)).sqrt();
        let noise = self.pooled(NOISE).sqrt().max(own).max(LEAST_NOISE);
        Some((value - mean) / (noise * (1.0 + 1.0 / count).sqrt()))
    }
}

/// Detected changes of a job.
pub(super) struct Changes {
    /// Indices of the results that begin a change, oldest first: the first of consecutive outliers on one side.
    pub(super) at: Vec<usize>,
    /// Arm of the newest result, if that is an outlier at its target and a change is not yet certain.
    pub(super) doubtful: Option<usize>,
}

/// Consecutive outliers on one side.
struct Off {
    since: usize,
    dearer: bool,
    results: usize,
}

/// Detects changes in a job's results, which are given oldest first.
pub(super) fn changes(arms: usize, seen: &[Observation]) -> Changes {
    let mut found = Changes { at: Vec::new(), doubtful: None };
    let (mut spread, mut epoch_cost) = (Spread::new(arms), vec![None; arms]);
    let mut off: Option<Off> = None;
    for (at, s) in seen.iter().enumerate() {
        found.doubtful = None;
        let dearer = epoch_cost[s.arm].map(|known: f64| s.log_epoch_cost - known).filter(|by| by.abs() > EPOCH_COST);
        let longer = spread.above(s.arm, s.log_epochs);
        // A stopped run can only show that it takes longer.
        let telling = longer.filter(|z| z.abs() > FAR && (s.reached || *z > 0.0));
        match (dearer.or(telling).map(|by| by > 0.0), off.take()) {
            (Some(dearer), before) if before.as_ref().is_none_or(|o| o.dearer == dearer) => {
                let Off { since, results, .. } = before.unwrap_or(Off { since: at, dearer, results: 0 });
                if results + 1 < if dearer { DEARER } else { CHEAPER } {
                    off = Some(Off { since, dearer, results: results + 1 });
                    found.doubtful = s.reached.then_some(s.arm);
                    continue;
                }
                found.at.push(since);
                (spread, epoch_cost) = (Spread::new(arms), vec![None; arms]);
                for s in &seen[since..at] {
                    learn(&mut spread, &mut epoch_cost, s);
                }
            }
            // A normal result of an arm with few results does not end a series of outliers.
            (None, before) if longer.is_none() => off = before,
            // Alternating sides or a normal result: the noise is larger than assumed, and outliers are part of it.
            (_, before) => {
                let noise = before.map(|o| &seen[o.since..at]).unwrap_or_default();
                noise.iter().filter(|s| s.reached && epoch_cost[s.arm].is_some()).for_each(|s| {
                    if spread.above(s.arm, s.log_epochs).is_some_and(|z| z.abs() > FAR) {
                        spread.add(s.arm, s.log_epochs);
                    }
                });
            }
        }
        learn(&mut spread, &mut epoch_cost, s);
    }
    found
}

fn learn(spread: &mut Spread, epoch_cost: &mut [Option<f64>], s: &Observation) {
    epoch_cost[s.arm] = Some(s.log_epoch_cost);
    if s.reached {
        spread.add(s.arm, s.log_epochs);
    }
}
