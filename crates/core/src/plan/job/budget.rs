//! Cheapest plan of a job within its carbon budget.
//!
//! For a fixed finishing slot (the slot in which the work ends), the problem with a budget is a linear programme with
//! one more row. The multiplier µ of this row, in grams of the objective per gram of carbon, makes carbon more
//! expensive until the plan fits into the budget; the optimum is a mixture of the plans just below and just above the
//! right µ with the same finishing slot. Lower bounds select the finishing slots to evaluate: for any µ ≥ 0, the least
//! cost of plans that end in a slot, with carbon priced at µ, less µ times the budget, is a lower bound of the slot's
//! optimum. Slots whose bound is above the best plan found need no evaluation.

use super::dual::{Hulls, costs_by_end, solve, solve_ending_in};
use super::problem::{Infeasible, Problem, Solution};
use crate::units::{GramsCo2e, Samples, Seconds};

/// Relative excess over the carbon budget that counts as rounding.
const ROUNDING: f64 = 1e-9;
/// Maximum number of bisection steps of µ.
const HALVINGS: u32 = 60;
/// Relative gap between the best plan's cost and a lower bound up to which the plan counts as optimal.
const GAP: f64 = 1e-9;

/// The cheapest plan within the carbon budget.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::plan) struct Within {
    /// The plan's time shares and cost.
    pub(in crate::plan) solution: Solution,
    /// Approximation of µ: additional cost per gram of carbon, in grams of the objective; 0 if the budget does not
    /// bind.
    pub(in crate::plan) multiplier: f64,
}

/// Reason why the carbon budget cannot be met.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::plan) enum OverBudget {
    /// The work cannot be done in time, even without the budget.
    Infeasible(Infeasible),
    /// This plan emits least of all plans that end in time, and still exceeds the budget.
    By(Solution),
}

/// Returns the cheapest plan that emits at most `budget`.
///
/// # Errors
/// [`OverBudget::Infeasible`] if the work cannot be done in time; [`OverBudget::By`] with the plan of least carbon if
/// no plan meets the budget.
pub(in crate::plan) fn solve_within(problem: &Problem, budget: GramsCo2e) -> Result<Within, OverBudget> {
    let cheapest = solve(problem).map_err(OverBudget::Infeasible)?;
    let limit = budget + GramsCo2e::new(ROUNDING * budget.get().abs());
    if cheapest.counted <= limit {
        return Ok(Within { solution: cheapest, multiplier: 0.0 });
    }
    let frugal = problem.least_counted();
    let least = solve(&frugal).map_err(OverBudget::Infeasible)?;
    if least.counted > limit {
        return Err(OverBudget::By(problem.evaluate(least.shares)));
    }
    let search = Search { problem, frugal: &frugal, limit };
    // At the µ `near`, the cheapest plan over all finishing slots just meets the budget, so the slots' bounds are
    // tight.
    let near = search.halve(0.0, |mu| solve(&problem.with_budget_at(mu)).ok()).1;
    let mut bounds: Vec<(usize, f64)> = costs_by_end(&problem.with_budget_at(near));
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
    /// The problem whose only objective is carbon, as the budget counts it.
    frugal: &'a Problem,
    limit: GramsCo2e,
}

impl Search<'_> {
    /// Bisects µ, starting at `from`. Returns first a µ at which the plan of `solved` still exceeds the limit (or
    /// `from`), second a slightly larger µ at which it meets the limit.
    fn halve(&self, from: f64, mut solved: impl FnMut(f64) -> Option<Solution>) -> (f64, f64) {
        let mut fits = |mu| solved(mu).is_none_or(|s| s.counted <= self.limit);
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

    /// Returns the cheapest plan within the budget that ends in a slot; `None` if there is none, or if the budget binds
    /// and even the plan without it costs at least `worth`.
    fn ending_in(&self, finishing: usize, worth: f64) -> Option<Solution> {
        let priced = |s: Solution| self.problem.evaluate(s.shares);
        let least = priced(solve_ending_in(self.frugal, finishing)?);
        if least.counted > self.limit {
            return None;
        }
        let at = |mu: f64| solve_ending_in(&self.problem.with_budget_at(mu), finishing).map(priced);
        let free = at(0.0)?;
        if free.counted <= self.limit {
            return Some(free);
        }
        if free.cost.get() >= worth {
            return None;
        }
        let (low, high) = self.halve(0.0, at);
        let (dirty, clean) = (at(low)?, at(high).filter(|s| s.counted <= self.limit).unwrap_or(least));
        Some(self.mixture(&dirty, &clean))
    }

    /// Mixes two plans in time, with the largest share of the `dirty` plan that the budget allows.
    fn mixture(&self, dirty: &Solution, clean: &Solution) -> Solution {
        let span = (dirty.counted - clean.counted).get();
        let share = if span > 0.0 { ((self.limit - clean.counted).get() / span).clamp(0.0, 1.0) } else { 0.0 };
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

    /// Returns at most two neighbouring hull points that do the same work as `parts` in the same time with no more
    /// energy.
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
