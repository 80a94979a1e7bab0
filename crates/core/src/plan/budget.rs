//! A carbon budget: the cheapest plan that emits no more.
//!
//! Once the finishing slot is fixed, the problem with a budget is a linear programme with one more row. Its multiplier
//! µ, in grams of the objective per gram of carbon, makes carbon dearer until the plan fits; the optimum is a mixture
//! of the plans just below and just above the right µ, which have the same finishing slot. Which slot that is follows
//! from bounds: at any µ ≥ 0, the least cost with carbon at µ, less µ times the budget, is not above the optimum of
//! that slot, and slots whose bound is above the best plan found need no closer look.

use super::dual::{Hulls, costs_by_end, solve, solve_ending_in};
use super::problem::{Infeasible, Problem, Solution};
use crate::units::{GramsCo2e, Samples, Seconds};

/// The budget may be exceeded by this part of it: rounding.
const ROUNDING: f64 = 1e-9;
/// Halvings of the interval in which µ lies.
const HALVINGS: u32 = 60;
/// How close to its bound a plan has to be to be called optimal.
const GAP: f64 = 1e-9;

/// A plan that keeps a budget.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Within {
    /// The cheapest.
    pub(super) solution: Solution,
    /// About µ: how much dearer the budget makes each gram of carbon; 0 where it does not bind.
    pub(super) multiplier: f64,
}

/// Why a budget cannot be kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OverBudget {
    /// The work cannot be done in time at all.
    Infeasible(Infeasible),
    /// Even this plan, which emits the least of all that keep the latest end, exceeds it.
    By(Solution),
}

/// Solves the problem such that the work emits no more than `budget`.
///
/// # Errors
/// If no plan does; then the plan of least carbon comes with it. If the work cannot be done in time.
pub(super) fn solve_within(problem: &Problem, budget: GramsCo2e) -> Result<Within, OverBudget> {
    let cheapest = solve(problem).map_err(OverBudget::Infeasible)?;
    let limit = budget + GramsCo2e::new(ROUNDING * budget.get().abs());
    if cheapest.carbon <= limit {
        return Ok(Within { solution: cheapest, multiplier: 0.0 });
    }
    let frugal = problem.least_carbon();
    let least = solve(&frugal).map_err(OverBudget::Infeasible)?;
    if least.carbon > limit {
        return Err(OverBudget::By(problem.evaluate(least.shares)));
    }
    let search = Search { problem, frugal: &frugal, limit };
    // Somewhere near this µ the cheapest plan of all fits; bounds are tight there.
    let near = search.halve(0.0, |mu| solve(&problem.with_carbon_at(mu)).ok()).1;
    let mut bounds: Vec<(usize, f64)> = costs_by_end(&problem.with_carbon_at(near));
    bounds.iter_mut().for_each(|(_, cost)| *cost -= near * limit.get());
    bounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut best = problem.evaluate(least.shares);
    for (finishing, bound) in bounds {
        if bound >= best.cost.get() * (1.0 - GAP) {
            break;
        }
        if let Some(found) = search.ending_in(finishing, best.cost.get())
            && found.cost < best.cost
        {
            best = found;
        }
    }
    Ok(Within { solution: best, multiplier: near })
}

struct Search<'a> {
    problem: &'a Problem,
    /// The problem in which only carbon counts.
    frugal: &'a Problem,
    limit: GramsCo2e,
}

impl Search<'_> {
    /// The two ends of a tiny interval of µ in which the carbon of the solutions passes the limit.
    fn halve(&self, from: f64, mut solved: impl FnMut(f64) -> Option<Solution>) -> (f64, f64) {
        let mut fits = |mu| solved(mu).is_none_or(|s| s.carbon <= self.limit);
        let (mut low, mut high) = (from, 1.0);
        while !fits(high) && high < 1e15 {
            low = high;
            high *= 8.0;
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if fits(middle) {
                high = middle
            } else {
                low = middle
            }
            if high - low <= 1e-12 * high {
                break;
            }
        }
        (low, high)
    }

    /// The cheapest plan within the budget that ends in a slot; `None` if there is none, or none below `worth`.
    fn ending_in(&self, finishing: usize, worth: f64) -> Option<Solution> {
        let priced = |s: Solution| self.problem.evaluate(s.shares);
        let least = priced(solve_ending_in(self.frugal, finishing)?);
        if least.carbon > self.limit {
            return None;
        }
        let at = |mu: f64| solve_ending_in(&self.problem.with_carbon_at(mu), finishing).map(priced);
        let free = at(0.0)?;
        if free.carbon <= self.limit {
            return Some(free);
        }
        if free.cost.get() >= worth {
            return None;
        }
        let (low, high) = self.halve(0.0, at);
        let (dirty, clean) = (at(low)?, at(high).filter(|s| s.carbon <= self.limit).unwrap_or(least));
        Some(self.mixture(&dirty, &clean))
    }

    /// As much of the dirtier plan as fits.
    fn mixture(&self, dirty: &Solution, clean: &Solution) -> Solution {
        let span = (dirty.carbon - clean.carbon).get();
        let share = if span > 0.0 { ((self.limit - clean.carbon).get() / span).clamp(0.0, 1.0) } else { 0.0 };
        let nothing = Vec::new();
        let slots = dirty.shares.len().max(clean.shares.len());
        let mixed = (0..slots).map(|slot| {
            let part = |of: &Solution, share: f64| {
                let parts = of.shares.get(slot).unwrap_or(&nothing);
                parts.iter().map(|(point, seconds)| (*point, *seconds * share)).collect::<Vec<_>>()
            };
            self.two_at_most(&[part(dirty, share), part(clean, 1.0 - share)].concat())
        });
        self.problem.evaluate(mixed.collect())
    }

    /// The same work in the same time at the two neighbouring points of the hull: no more power than any other mixture.
    fn two_at_most(&self, parts: &[(usize, Seconds)]) -> Vec<(usize, Seconds)> {
        let points = self.problem.points();
        let time: Seconds = parts.iter().map(|part| part.1).sum();
        let work: Samples = parts.iter().map(|(point, seconds)| points[*point].throughput * *seconds).sum();
        if time <= Seconds::ZERO {
            return Vec::new();
        }
        let both = Hulls::of(self.problem).mix_at(self.problem, work / time);
        both.into_iter().map(|(point, share)| (point, time * share)).filter(|part| part.1 > Seconds::ZERO).collect()
    }
}
