//! Detection of changes of a job, such as other data, another GPU or other code, after which earlier results are no
//! longer valid. Two consecutive outliers with a higher cost count as a change; with a lower cost, which is less urgent,
//! three.

use super::observation::Observation;

/// Number of standard deviations from the mean beyond which the log epochs of a result are an outlier.
const OUTLIER_DEVIATIONS: f64 = 3.0;
/// Difference of an epoch's log cost from that of the arm's previous result beyond which a result is an outlier.
const OUTLIER_EPOCH_COST: f64 = 0.1;
/// Minimum number of results of a batch size from which on outliers in its log epochs are detected.
const MIN_RESULTS: f64 = 4.0;
/// Prior standard deviation of log epochs among runs with the same batch size (first value), and the number of runs
/// that this prior weighs as much as (second).
pub(super) const NOISE: (f64, f64) = (0.1, 2.0);
/// Lower bound of the standard deviation of log epochs in outlier detection.
const MIN_NOISE: f64 = 0.1;
/// Number of consecutive outliers with higher costs or more epochs that count as a change.
const HIGHER_COSTS: usize = 2;
/// Number of consecutive outliers with lower costs or fewer epochs that count as a change. Higher than [`HIGHER_COSTS`],
/// because it does no harm to run a batch size once more that has become cheaper.
const LOWER_COSTS: usize = 3;

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
    fn z_score(&self, arm: usize, value: f64) -> Option<f64> {
        let (count, mean, squares) = self.arms[arm];
        if count < MIN_RESULTS {
            return None;
        }
        let own = (squares / (count - 1.0)).sqrt();
        let noise = self.pooled(NOISE).sqrt().max(own).max(MIN_NOISE);
        Some((value - mean) / (noise * (1.0 + 1.0 / count).sqrt()))
    }
}

/// Changes of a job that were detected in the job's results.
pub(super) struct Changes {
    /// Index of the first result after each change, oldest change first: the first of the outliers that showed it.
    pub(super) at: Vec<usize>,
    /// Arm of the newest result if that result is an outlier, reached its target, and leaves open whether the job
    /// changed.
    pub(super) unconfirmed_outlier: Option<usize>,
}

/// Consecutive outliers on the same side (higher or lower), too few so far to count as a change.
struct OutlierStreak {
    /// Index of the first outlier.
    since: usize,
    is_higher: bool,
    results: usize,
}

/// Returns the changes of a job that its results show; `observations` has the results, oldest first.
pub(super) fn changes(arms: usize, observations: &[Observation]) -> Changes {
    let mut found = Changes { at: Vec::new(), unconfirmed_outlier: None };
    let (mut spread, mut epoch_cost) = (Spread::new(arms), vec![None; arms]);
    let mut streak: Option<OutlierStreak> = None;
    for (at, s) in observations.iter().enumerate() {
        found.unconfirmed_outlier = None;
        let cost_change = epoch_cost[s.arm].map(|previous: f64| s.log_epoch_cost - previous);
        let cost_outlier = cost_change.filter(|by| by.abs() > OUTLIER_EPOCH_COST);
        let z_score = spread.z_score(s.arm, s.log_epochs);
        // A run that was stopped early can only be an outlier by needing more epochs, not fewer.
        let epochs_outlier = z_score.filter(|z| z.abs() > OUTLIER_DEVIATIONS && (s.reached || *z > 0.0));
        match (cost_outlier.or(epochs_outlier).map(|by| by > 0.0), streak.take()) {
            (Some(is_higher), before) if before.as_ref().is_none_or(|b| b.is_higher == is_higher) => {
                let (since, results) = before.map_or((at, 1), |b| (b.since, b.results + 1));
                if results < if is_higher { HIGHER_COSTS } else { LOWER_COSTS } {
                    streak = Some(OutlierStreak { since, is_higher, results });
                    found.unconfirmed_outlier = s.reached.then_some(s.arm);
                    continue;
                }
                found.at.push(since);
                (spread, epoch_cost) = (Spread::new(arms), vec![None; arms]);
                for s in &observations[since..at] {
                    learn(&mut spread, &mut epoch_cost, s);
                }
            }
            // A normal result of an arm with few results does not end a sequence of outliers.
            (None, before) if z_score.is_none() => streak = before,
            // An outlier on the other side or a normal result: the noise is larger than assumed, and includes the
            // outliers before.
            (_, before) => {
                let noise = before.map(|b| &observations[b.since..at]).unwrap_or_default();
                noise.iter().filter(|s| s.reached && epoch_cost[s.arm].is_some()).for_each(|s| {
                    if spread.z_score(s.arm, s.log_epochs).is_some_and(|z| z.abs() > OUTLIER_DEVIATIONS) {
                        spread.add(s.arm, s.log_epochs);
                    }
                });
            }
        }
        learn(&mut spread, &mut epoch_cost, s);
    }
    found
}

/// Adds a normal result to what is known of its arm.
fn learn(spread: &mut Spread, epoch_cost: &mut [Option<f64>], s: &Observation) {
    epoch_cost[s.arm] = Some(s.log_epoch_cost);
    if s.reached {
        spread.add(s.arm, s.log_epochs);
    }
}
