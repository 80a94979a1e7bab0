//! Detection of changes of a job, such as other data, another GPU or other code, after which earlier results are no
//! longer valid.

use crate::bandit::{Spec, Trial};

/// Number of standard deviations from the mean beyond which the log epochs of a result are an outlier.
const FAR: f64 = 3.0;
/// Difference of an epoch's log cost from that of the arm's previous result beyond which a result is an outlier.
const EPOCH_COST: f64 = 0.1;
/// Minimum number of results of a batch size from which on outliers in its log epochs are detected.
const KNOWN: f64 = 4.0;
/// Prior standard deviation of log epochs among runs with the same batch size (first value), and the number of runs
/// that this prior weighs as much as (second).
pub(super) const NOISE: (f64, f64) = (0.1, 2.0);
/// Lower bound of the standard deviation of log epochs in outlier detection.
const LEAST_NOISE: f64 = 0.1;
/// Number of consecutive outliers with higher costs or more epochs that count as a change.
const DEARER: usize = 2;
/// Number of consecutive outliers with lower costs or fewer epochs that count as a change. Higher than [`DEARER`],
/// because it does no harm to run a batch size once more that has become cheaper.
const CHEAPER: usize = 3;

/// Result of one run, as far as beliefs use the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    pub(super) arm: usize,
    /// Natural logarithm of `epochs`, the number of completed epochs.
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

/// Mean and spread of log epochs at each batch size (Welford's recurrence).
pub(super) struct Spread {
    /// Number of values (first), their mean (second) and the sum of squared deviations (third) for each batch size
    /// (arm).
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

    /// Returns the variance within batch sizes, pooled over all of them and combined with a prior: a standard deviation
    /// (first argument) that weighs as much as a number of runs (second).
    pub(super) fn pooled(&self, (deviation, worth): (f64, f64)) -> f64 {
        let squares: f64 = self.arms.iter().map(|a| a.2).sum();
        let freedom: f64 = self.arms.iter().map(|a| (a.0 - 1.0).max(0.0)).sum();
        (worth * deviation * deviation + squares) / (worth + freedom)
    }

    /// Returns the deviation of `value` from the mean of `arm`, in standard deviations; `None` if the arm has too few
    /// results.
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

/// Changes of a job that were detected in the job's results.
pub(super) struct Changes {
    /// Index of the first result after each change, oldest change first: the first of the outliers that showed it.
    pub(super) at: Vec<usize>,
    /// Arm of the newest result if that result is an outlier, reached its target, and leaves open whether the job
    /// changed.
    pub(super) doubtful: Option<usize>,
}

/// Consecutive outliers on the same side (higher or lower), too few so far to count as a change.
struct Off {
    since: usize,
    dearer: bool,
    results: usize,
}

/// Returns the changes of a job that its results show; `seen` has the results, oldest first.
pub(super) fn changes(arms: usize, observations: &[Observation]) -> Changes {
    let mut found = Changes { at: Vec::new(), doubtful: None };
    let (mut spread, mut epoch_cost) = (Spread::new(arms), vec![None; arms]);
    let mut off: Option<Off> = None;
    for (at, s) in observations.iter().enumerate() {
        found.doubtful = None;
        let dearer = epoch_cost[s.arm].map(|known: f64| s.log_epoch_cost - known).filter(|by| by.abs() > EPOCH_COST);
        let longer = spread.above(s.arm, s.log_epochs);
        // A run that was stopped early can only be an outlier by needing more epochs, not fewer.
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
                for s in &observations[since..at] {
                    learn(&mut spread, &mut epoch_cost, s);
                }
            }
            // A normal result of an arm with few results does not end a sequence of outliers.
            (None, before) if longer.is_none() => off = before,
            // An outlier on the other side or a normal result: the noise is larger than assumed, and includes the
            // outliers before.
            (_, before) => {
                let noise = before.map(|o| &observations[o.since..at]).unwrap_or_default();
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
