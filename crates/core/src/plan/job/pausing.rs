//! Pausing: when a job that may pause does so.
//!
//! A pause is idle power without work. Without minimum durations and checkpoints it is just one more point for
//! [`super::solve`]. With them the choice of slots is combinatorial. For a given marginal cost λ, [`super::patterns`]
//! finds the cheapest pattern of runs and pauses; bisection of λ finds the patterns around the one that does the work.
//! Each is then solved exactly, with its pauses fixed and with one of them starting within a slot, and the best is
//! improved by moving and removing pauses. The dynamic programme is a lower bound for any λ, but a weak one over all
//! ends at once, because an end between two days is no mixture of one before and one after it. So λ is bisected again
//! for each possible finishing slot whose own bound leaves room for improvement, the most promising first.

use std::ops::Range;

use chrono::{DateTime, Utc};

use super::dual::solve;
use super::patterns::{Grid, Pattern, SLACK};
use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::domain::{Activity, Pausing};
use crate::units::{GramsCo2e, Seconds, Watts};

/// Bisection steps of λ.
const HALVINGS: u32 = 50;
/// Bisection steps of a carbon budget's multiplier.
const BUDGET_HALVINGS: u32 = 40;
/// Relative improvement that counts as rounding.
const ROUNDING: f64 = 1e-10;
/// Maximum number of slots for which each slot's activity is forced in turn.
const FEW_SLOTS: usize = 128;
/// Bisection steps of λ then.
const FORCED_HALVINGS: u32 = 12;
/// Maximum number of slot evaluations over all ends; with many slots there are fewer passes.
const MOST_EVALUATIONS: usize = 2_000_000;

/// Costs of pausing and the job's current state.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Rules {
    pub(in crate::plan) costs: Pausing,
    pub(in crate::plan) activity: Option<Activity>,
    pub(in crate::plan) now: DateTime<Utc>,
    /// Power while saving or loading a checkpoint.
    pub(in crate::plan) checkpoint: Watts,
    /// Maximum emissions of the remaining work.
    pub(in crate::plan) budget: Option<GramsCo2e>,
}

/// A plan with pauses.
#[derive(Clone, Debug)]
pub(in crate::plan) struct Paused {
    /// The problem over pieces of slots with fixed pauses.
    pub(in crate::plan) problem: Problem,
    pub(in crate::plan) solution: Solution,
    /// Additional cost per gram of carbon from the budget; 0 if it does not bind.
    pub(in crate::plan) multiplier: f64,
    /// True if the budget is exceeded even by this plan, which then is the one of least carbon.
    pub(in crate::plan) over_budget: bool,
}

/// Returns the cheapest plan found under the rules. Shortens a current pause if the work could not be done in time
/// otherwise.
///
/// # Errors
/// If the work cannot be done in time even without a further pause.
pub(in crate::plan) fn solve_pausing(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    // Without a feasible plan that never pauses, no pattern is feasible.
    problem.reachable_work()?;
    let problem = problem.clone().pausing_at(rules.costs.idle_power, rules.checkpoint);
    let cheapest = solve_free(&problem, rules)?;
    let Some(limit) = rules.budget.filter(|limit| cheapest.solution.counted > *limit) else { return Ok(cheapest) };
    let least = solve_free(&problem.least_counted(), rules)?;
    if least.solution.counted > limit {
        return Ok(Paused { over_budget: true, ..least });
    }
    // Carbon jumps between patterns, so the result meets the budget but may not use it up.
    let (mut low, mut high, mut best) = (0.0, 1.0, least);
    for _ in 0..BUDGET_HALVINGS {
        let middle = 0.5 * (low + high);
        // Maps 0..1 to a multiplier from 0 to infinity.
        let multiplier = middle / (1.0 - middle);
        match solve_free(&problem.with_budget_at(multiplier), rules) {
            Ok(found) if found.solution.counted <= limit => {
                best = Paused { multiplier, ..found };
                high = middle;
            }
            _ => low = middle,
        }
    }
    Ok(best)
}

/// Solves without a budget.
fn solve_free(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    let Pausing { min_run, min_pause, checkpoint, .. } = rules.costs;
    if [min_run, min_pause, checkpoint] == [Seconds::ZERO; 3] {
        let slots = problem.slots().iter().enumerate();
        let pieces: Vec<_> = slots.map(|(place, s)| (place, s.slot, Mode::Either)).collect();
        return Paused::exactly(problem.in_pieces(&pieces));
    }
    let grid = Grid::new(problem, rules.costs, rules.activity, rules.now);
    if let Some(found) = grid.search() {
        return Ok(found);
    }
    // The time constraint takes precedence over the minimum pause.
    let at_once = Grid { since: f64::INFINITY, ..grid };
    at_once.search().map_or_else(|| Paused::exactly(problem.in_pieces(&at_once.pieces(&at_once.no_pause(), None))), Ok)
}

impl Paused {
    fn exactly(problem: Problem) -> Result<Self, Infeasible> {
        let solution = solve(&problem)?;
        Ok(Self { problem, solution, multiplier: 0.0, over_budget: false })
    }
}

/// State of the search for a pattern.
struct Search {
    /// Lower bounds of the cost of plans that end in each slot with pauses at slot boundaries.
    bounds: Vec<f64>,
    tried: Vec<Pattern>,
    best: Option<(Pattern, Paused)>,
}

impl Search {
    /// Returns whether a plan that ends in this slot may be better than the best so far.
    fn may_end_in(&self, slot: usize) -> bool {
        let beats = |found: &Paused| self.bounds[slot] < found.solution.cost.get() * (1.0 - ROUNDING);
        self.best.as_ref().is_none_or(|(_, found)| beats(found))
    }
}

impl Grid<'_> {
    /// Returns the best pattern found by bisection of λ and local improvement.
    fn search(&self) -> Option<Paused> {
        let mut search = Search { bounds: vec![f64::NEG_INFINITY; self.slots()], tried: Vec::new(), best: None };
        self.improve(&mut search.best, &self.no_pause(), None);
        let price = self.halve(&mut search, None, 1e-9);
        self.each_end(&mut search, price);
        let Search { bounds, mut best, .. } = search;
        let bound = bounds.into_iter().fold(f64::INFINITY, f64::min);
        if best.as_ref().is_some_and(|(_, found)| found.solution.cost.get() > bound * (1.0 + ROUNDING)) {
            self.move_pauses(&mut best);
            if self.slots() <= FEW_SLOTS {
                self.force_slots(&mut best, price);
                self.move_pauses(&mut best);
            }
        }
        let (pattern, _) = best.clone()?;
        // One pause may start within a slot: its first one or the one before.
        for block in 0..pattern.len() {
            for earlier in [0, 1] {
                let mut pattern = pattern.clone();
                let Some(start) = pattern[block].start.checked_sub(earlier) else { continue };
                pattern[block].start = start;
                self.improve(&mut best, &pattern, Some(block));
            }
        }
        best.map(|(_, found)| found)
    }

    /// Evaluates the ends that may be better than the best so far.
    fn each_end(&self, search: &mut Search, price: f64) {
        let mut closed = vec![false; self.slots()];
        for _ in 0..MOST_EVALUATIONS / (self.slots() * HALVINGS as usize) {
            let open = (0..self.slots()).filter(|end| !closed[*end]);
            let end = open.min_by(|a, b| search.bounds[*a].total_cmp(&search.bounds[*b]));
            let Some(end) = end.filter(|end| search.may_end_in(*end)) else { return };
            closed[end] = true;
            self.halve(search, Some(end), price);
        }
    }

    /// Bisects λ until the work is done, and returns it. With an `end`, considers only plans that end in that slot, as
    /// long as they may be better than the best so far.
    fn halve(&self, search: &mut Search, end: Option<usize>, price: f64) -> f64 {
        let (mut low, mut high) = (0.0, price);
        while !self.evaluate_price(search, end, high) && high < 1e12 && end.is_none_or(|end| search.may_end_in(end)) {
            low = high;
            high *= 8.0;
        }
        for _ in 0..HALVINGS {
            if high - low <= 1e-9 * high || end.is_some_and(|end| !search.may_end_in(end)) {
                break;
            }
            let middle = 0.5 * (low + high);
            *(if self.evaluate_price(search, end, middle) { &mut high } else { &mut low }) = middle;
        }
        high
    }

    /// Solves the best pattern at a price if it is new, and raises the bounds. Returns whether it does the work.
    fn evaluate_price(&self, search: &mut Search, end: Option<usize>, price: f64) -> bool {
        let Some(priced) = self.at(price, None, end) else { return false };
        search.bounds.iter_mut().zip(&priced.bounds).for_each(|(bound, at)| *bound = bound.max(*at));
        if !search.tried.contains(&priced.pattern) {
            self.improve(&mut search.best, &priced.pattern, None);
            search.tried.push(priced.pattern);
        }
        priced.samples >= self.problem.work().get()
    }

    /// Solves a pattern exactly and stores it if it is the best so far. Returns whether it is.
    fn improve(&self, best: &mut Option<(Pattern, Paused)>, pattern: &Pattern, within: Option<usize>) -> bool {
        if !self.is_allowed(pattern) || (self.pauses_now && within == Some(0)) {
            return false;
        }
        let Ok(found) = Paused::exactly(self.problem.in_pieces(&self.pieces(pattern, within))) else { return false };
        let cost = |found: &Paused| found.solution.cost.get();
        let better = best.as_ref().is_none_or(|(_, b)| cost(&found) < cost(b) * (1.0 - ROUNDING));
        let better = better && within.is_none_or(|block| self.pauses_long_enough(&found, &pattern[block]));
        if better {
            *best = Some((pattern.clone(), found));
        }
        better
    }

    /// Moves the ends of pauses by a slot and removes pauses while that helps.
    fn move_pauses(&self, best: &mut Option<(Pattern, Paused)>) {
        for _ in 0..32 {
            let Some((pattern, _)) = best.clone() else { return };
            let mut moved = false;
            for block in 0..pattern.len() {
                let first = self.pauses_now && block == 0;
                for (start, end) in [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1)] {
                    let Range { start: from, end: to } = pattern[block];
                    let shifted = (from.checked_add_signed(start), to.checked_add_signed(end));
                    let (Some(from), Some(to)) = shifted else { continue };
                    if first && start != 0 {
                        continue;
                    }
                    let mut other = pattern.clone();
                    other[block] = from..to;
                    moved |= self.improve(best, &other, None);
                }
                if !first {
                    let mut other = pattern.clone();
                    other.remove(block);
                    moved |= self.improve(best, &other, None);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Tries the best pattern with the job forced to run or pause in each slot in turn: with few slots patterns are so
    /// coarse that the optimum need not be the best at any λ.
    fn force_slots(&self, best: &mut Option<(Pattern, Paused)>, price: f64) {
        let mut tried: Vec<Pattern> = Vec::new();
        for forced in (0..self.slots()).flat_map(|slot| [(slot, true), (slot, false)]) {
            let (mut low, mut high) = (0.25 * price, 4.0 * price);
            for _ in 0..FORCED_HALVINGS {
                let middle = 0.5 * (low + high);
                let found = self.at(middle, Some(forced), None);
                let enough = found.as_ref().is_some_and(|found| found.samples >= self.problem.work().get());
                *(if enough { &mut high } else { &mut low }) = middle;
                tried.extend(found.map(|found| found.pattern).filter(|pattern| !tried.contains(pattern)));
            }
        }
        for pattern in &tried {
            self.improve(best, pattern, None);
        }
    }

    /// Returns whether a pause that starts within its first slot has its minimum duration.
    fn pauses_long_enough(&self, found: &Paused, pause: &Range<usize>) -> bool {
        let begin = self.problem.slots()[pause.start].slot;
        let place = found.problem.slots().iter().position(|s| s.slot == begin);
        let parts = place.and_then(|place| found.solution.shares.get(place)).map(Vec::as_slice).unwrap_or_default();
        let ran: f64 = parts.iter().filter(|part| Some(part.0) != self.problem.idle()).map(|part| part.1.get()).sum();
        let length = self.bounds[pause.end] - self.bounds[pause.start] - ran;
        length + SLACK >= self.costs.min_pause.get()
    }
}
