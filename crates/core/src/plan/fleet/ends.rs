//! In which slot each job ends, and what that proves (`planning.md` §2, "Dual form", with prices for what is shared).
//!
//! Slots fill in order, so that the slot in which a job ends is a discrete choice. Given prices of caps and budgets,
//! the jobs are alone with their own choice each; the cheapest end of each at these prices is both a better guess and,
//! where no guess is better, the proof that there is none.

use super::interior::Prices;
use super::model::{End, Model};

/// Halvings of the interval in which the best price of a sample lies.
const HALVINGS: usize = 60;

/// What pricing all ends of all jobs gives.
pub(super) struct Priced {
    /// For each job the cheapest end at these prices; the present one where no other is clearly cheaper.
    pub(super) ends: Vec<End>,
    /// No plan whose jobs end anywhere costs less, gCO2e.
    pub(super) bound: f64,
    /// No plan whose jobs end where they do now costs less, gCO2e.
    pub(super) bound_here: f64,
}

/// One job's costs at given prices: per second of each point in each slot.
struct Alone<'a> {
    model: &'a Model,
    job: usize,
    prices: &'a Prices,
}

/// The least cost, less the worth of the work done, of all full slots before each one, at one price of a sample.
struct Filled {
    cost: Vec<f64>,
}

impl Alone<'_> {
    /// What a second at a point costs in a slot, without its time and the work done.
    fn second(&self, t: usize, l: usize) -> f64 {
        let job = &self.model.jobs[self.job];
        let grams = (self.prices.budget[self.job] + self.prices.shared[t]) * self.model.carbon[t];
        (job.joule_cost[t] + grams) * job.power[l] + self.prices.cap[t] * job.limit[l]
    }

    /// The cheapest point of a slot at a price per sample: cost less worth per second, and throughput.
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

    /// How many seconds of a full slot are late.
    fn late(&self, t: usize) -> f64 {
        let (latest, within) = self.model.jobs[self.job].latest;
        match t.cmp(&latest) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => self.model.seconds[t] - within,
            std::cmp::Ordering::Greater => self.model.seconds[t],
        }
    }

    /// What the last slot costs, less the worth of the work done in it, and that work.
    fn last(&self, end: End, lambda: f64) -> (f64, f64) {
        let (value, rate) = self.best(end.slot, lambda);
        let latest = self.model.latest(self.job);
        let late = if end.late { self.model.lateness } else { 0.0 };
        // In the slot of the latest end, only what lies after it is late.
        let free = if end.late && end.slot == latest.slot { late * latest.seconds } else { 0.0 };
        let value = value + late;
        if value < 0.0 { (value * end.seconds - free, rate * end.seconds) } else { (-free, 0.0) }
    }

    /// The dual function of ending here: a lower bound of its cost whatever λ is.
    fn bound(&self, end: End, lambda: f64, filled: &Filled) -> f64 {
        filled.cost[end.slot] + self.last(end, lambda).0 + lambda * self.model.jobs[self.job].work
    }

    /// The largest lower bound of ending here, or any that is at least `enough`. Infinite where it is impossible.
    fn value(&self, end: End, start: f64, enough: f64) -> f64 {
        let job = &self.model.jobs[self.job];
        let least: f64 = (0..end.slot).map(|t| self.model.span(self.job, t) * job.slowest(t)).sum();
        if self.model.reach(self.job, end) < job.work * (1.0 - 1e-12) || least > job.work * (1.0 + 1e-12) {
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
        // The bound is concave in λ; it rises where too little work is done.
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

/// Prices all ends of all jobs. Ends that keep the promise are looked at for jobs that keep it now, later ones for those
/// that do not.
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

/// All other ends that a job may choose: as late as it is, or not.
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
