//! Choice of the slot in which each job ends, and proof that a choice is optimal (`planning.md` §2, "Dual form", here
//! with prices of shared constraints).
//!
//! A job fills its slots in order, so the slot in which it ends is a discrete choice. At given prices (multipliers) of
//! caps and budgets, the jobs are independent. The end that is cheapest at these prices is a better choice for a job;
//! if no job has a cheaper end, the current choice is proven optimal.

use super::interior::Prices;
use super::model::{End, Model};

/// Number of bisection steps of λ, the price of a sample.
const HALVINGS: usize = 60;

/// Result of comparing all possible ends of all jobs at given prices of the shared constraints.
pub(super) struct Priced {
    /// Cheapest end of each job at these prices; the job's current end if no other is clearly cheaper.
    pub(super) ends: Vec<End>,
    /// Lower bound of the cost of all jobs, whichever of the compared ends each job has, gCO2e.
    pub(super) bound: f64,
    /// Lower bound of the cost if the jobs keep their current ends, gCO2e.
    pub(super) bound_here: f64,
}

/// One job at given prices of the shared constraints, which make it independent of the others.
struct Alone<'a> {
    model: &'a Model,
    job: usize,
    prices: &'a Prices,
}

/// For each slot, the least cost of all full slots before it, less the value of the work in these slots at one price λ
/// of a sample.
struct Filled {
    cost: Vec<f64>,
}

impl Alone<'_> {
    /// Returns the cost of a second at a point in a slot at the given prices, without the cost of time and the value of
    /// the work.
    fn second(&self, t: usize, l: usize) -> f64 {
        let job = &self.model.jobs[self.job];
        let grams = (self.prices.budget[self.job] + self.prices.shared[t]) * self.model.carbon[t];
        (job.joule_cost[t] + grams) * job.power[l] + self.prices.cap[t] * job.limit[l]
    }

    /// Returns the cost less the value of the work (gCO2e/s) and the throughput (samples/s) of a slot's cheapest point,
    /// at a price λ of a sample.
    fn best(&self, t: usize, lambda: f64) -> (f64, f64) {
        let job = &self.model.jobs[self.job];
        let value = |l: usize| self.second(t, l) - lambda * job.rate[l];
        let mut best = (f64::INFINITY, 0.0);
        for &l in &job.needed(t).points {
            let value = value(l);
            if value < best.0 {
                best = (value, job.rate[l]);
            }
        }
        (best.0 + job.time_cost, best.1)
    }

    fn filled(&self, lambda: f64) -> Filled {
        let mut cost = vec![0.0];
        for t in 0..self.model.seconds.len() {
            let value = self.model.span(self.job, t) * self.best(t, lambda).0;
            cost.push(cost[t] + value + self.late(t) * self.model.lateness);
        }
        Filled { cost }
    }

    /// Returns the seconds of a full slot that are after the job's latest end.
    fn late(&self, t: usize) -> f64 {
        let (latest, within) = self.model.jobs[self.job].latest;
        match t.cmp(&latest) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => self.model.seconds[t] - within,
            std::cmp::Ordering::Greater => self.model.seconds[t],
        }
    }

    /// Returns first the cost of the slot in which the job ends, less the value of the work in this slot, second that
    /// work in samples.
    fn last(&self, end: End, lambda: f64) -> (f64, f64) {
        let (value, rate) = self.best(end.slot, lambda);
        let latest = self.model.latest(self.job);
        let late = if end.late { self.model.lateness } else { 0.0 };
        // In the slot of the latest end, only the time after the latest end is late.
        let free = if end.late && end.slot == latest.slot { late * latest.seconds } else { 0.0 };
        let value = value + late;
        if value < 0.0 { (value * end.seconds - free, rate * end.seconds) } else { (-free, 0.0) }
    }

    /// Returns the dual function of an end: a lower bound of the job's cost with this end, for any λ.
    fn bound(&self, end: End, lambda: f64, filled: &Filled) -> f64 {
        filled.cost[end.slot] + self.last(end, lambda).0 + lambda * self.model.jobs[self.job].work
    }

    /// Returns the largest lower bound of the job's cost with an end, or the first bound found that is at least
    /// `enough`; infinite if the work can't end there. `start` is the first λ that is tried.
    fn value(&self, end: End, start: f64, enough: f64) -> f64 {
        let job = &self.model.jobs[self.job];
        let least: f64 = (0..end.slot).map(|t| self.model.span(self.job, t) * job.slowest(t)).sum();
        if self.model.max_work(self.job, end) < job.work * (1.0 - 1e-12) || least > job.work * (1.0 + 1e-12) {
            return f64::INFINITY;
        }
        let at = |lambda: f64| {
            let (mut cost, mut work) = self.last(end, lambda);
            for t in 0..end.slot {
                let ((value, rate), seconds) = (self.best(t, lambda), self.model.span(self.job, t));
                cost += value * seconds + self.late(t) * self.model.lateness;
                work += rate * seconds;
            }
            (cost + lambda * job.work, work)
        };
        let mut best = f64::NEG_INFINITY;
        // The bound is concave in λ, and rises with λ as long as too little work is done.
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        let (mut lambda, mut stride) = (start, start.abs().max(1e-12));
        for _ in 0..HALVINGS {
            let (bound, work) = at(lambda);
            best = best.max(bound);
            if best >= enough {
                return best;
            }
            if work < job.work {
                low = lambda;
            } else {
                high = lambda;
            }
            lambda = match (low.is_finite(), high.is_finite()) {
                (true, true) => (low + high) / 2.0,
                (true, false) => low + stride,
                (false, _) => high - stride,
            };
            stride *= 4.0;
        }
        best
    }
}

/// Compares the ends of all jobs at given prices: ends in time for jobs that now end in time, late ends for the other
/// jobs.
pub(super) fn price(model: &Model, prices: &Prices, ends: &[End]) -> Priced {
    let mut shared: f64 = prices.budgets.iter().zip(&model.budgets).map(|(price, grams)| price * grams).sum();
    for (t, price) in prices.cap.iter().enumerate() {
        shared += price * model.cap(t, ends).unwrap_or(0.0) * model.seconds[t];
    }
    shared += model.jobs.iter().zip(&prices.budget).map(|(job, price)| price * job.budget.unwrap_or(0.0)).sum::<f64>();
    let (mut bound, mut bound_here) = (-shared, -shared);
    let mut cheapest = Vec::with_capacity(ends.len());
    for (job, &end) in ends.iter().enumerate() {
        let alone = Alone { model, job, prices };
        let lambda = prices.work[job];
        let filled = alone.filled(lambda);
        let here = alone.bound(end, lambda, &filled);
        let close = 1e-9 * (here.abs() + model.jobs[job].work * lambda.abs());
        let mut best = (here, end);
        for other in others(model, job, end) {
            if alone.bound(other, lambda, &filled) < best.0 - close {
                let value = alone.value(other, lambda, best.0 - close);
                if value < best.0 - close {
                    best = (value, other);
                }
            }
        }
        bound += best.0;
        bound_here += here;
        cheapest.push(best.1);
    }
    Priced { ends: cheapest, bound, bound_here }
}

/// Returns all other possible ends of a job: late ends if its current end is late, else ends in time.
fn others(model: &Model, job: usize, end: End) -> impl Iterator<Item = End> {
    let latest = model.latest(job);
    let mut all = Vec::new();
    if end.late {
        let mut next = model.later(job, latest);
        while let Some(later) = next {
            all.push(later);
            next = model.later(job, later);
        }
    } else {
        all.extend((0..=latest.slot).map(|slot| model.end_in(job, slot)));
    }
    all.into_iter().filter(move |other| *other != end)
}
