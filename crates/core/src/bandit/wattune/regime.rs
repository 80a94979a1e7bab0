//! When what was learnt holds no more: other data, another board, another code.

use super::observation::Observation;

/// How many deviations off is too far.
const FAR: f64 = 3.0;
/// By how much the cost of an epoch may change.
const EPOCH_COST: f64 = 0.1;
/// Results of a batch size before another can be off them.
const KNOWN: f64 = 4.0;
/// The noise of log epochs before any is seen, and how many runs that is worth.
pub(super) const NOISE: (f64, f64) = (0.1, 2.0);
/// Log epochs vary by this much, whatever was seen.
const LEAST_NOISE: f64 = 0.1;
/// So many results in a row that are dearer than what is known, or take longer, are a change; so many that are cheaper:
/// what became cheaper can be run once more before anything else is tried.
const DEARER: usize = 2;
const CHEAPER: usize = 3;

/// Means and spreads of log epochs by batch size (Welford's recurrence).
pub(super) struct Spread {
    /// Count, mean and sum of squares around it.
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

    /// The variance within batch sizes, drawn to a prior deviation worth so many runs.
    pub(super) fn pooled(&self, (deviation, worth): (f64, f64)) -> f64 {
        let squares: f64 = self.arms.iter().map(|a| a.2).sum();
        let freedom: f64 = self.arms.iter().map(|a| (a.0 - 1.0).max(0.0)).sum();
        (worth * deviation * deviation + squares) / (worth + freedom)
    }

    /// How many deviations `value` lies above what is known of the arm; `None` if that is little.
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

/// What results say about change.
pub(super) struct Changes {
    /// Where things changed, the oldest first: at the first of some results in a row, among those of well-known batch
    /// sizes, that lie off on the same side.
    pub(super) at: Vec<usize>,
    /// The batch size of the newest result, if that lies off and it is not yet clear whether things changed.
    pub(super) doubtful: Option<usize>,
}

/// Results in a row that lie off.
struct Off {
    since: usize,
    dearer: bool,
    results: usize,
}

/// Looks through all results, the oldest first.
pub(super) fn changes(arms: usize, seen: &[Observation]) -> Changes {
    let mut found = Changes { at: Vec::new(), doubtful: None };
    let (mut spread, mut epoch_cost) = (Spread::new(arms), vec![None; arms]);
    let mut off: Option<Off> = None;
    for (at, s) in seen.iter().enumerate() {
        found.doubtful = None;
        let dearer = epoch_cost[s.arm].map(|known: f64| s.log_epoch_cost - known).filter(|by| by.abs() > EPOCH_COST);
        let longer = spread.above(s.arm, s.log_epochs);
        // A run that was given up can only show that it takes longer.
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
            // What is little known says nothing about results that lie off.
            (None, before) if longer.is_none() => off = before,
            // Off on one side and then on the other, or as usual again: it varies more than was known.
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
