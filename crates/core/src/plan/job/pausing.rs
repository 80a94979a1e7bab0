//! Plans with pauses: the times at which a job that may pause does so.
//!
//! During a pause the job draws idle power and does no work. Without minimum durations and checkpoints a pause is just
//! one more point for [`super::solve`]; with them the choice of paused slots is combinatorial. For a given marginal
//! cost λ per sample, [`super::patterns`] finds the cheapest pattern of runs and pauses; bisection of λ finds patterns
//! that do just too little and just enough work. Each pattern is then solved exactly, with its pauses fixed or with one
//! of them starting within a slot, and the best pattern is improved by moving and removing pauses. The dynamic
//! programme of [`super::patterns`] also gives a lower bound of the cost for any λ. One λ for all finishing slots
//! (slots in which the work can end) gives a weak bound, because the cost is not convex over finishing slots. So λ is
//! bisected again for each finishing slot whose own bound leaves room for improvement, the lowest bound first.

use std::ops::Range;

use chrono::{DateTime, Utc};

use super::dual::solve;
use super::patterns::{Grid, Pattern, SLACK};
use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::domain::{Activity, Pausing};
use crate::units::{GramsCo2e, Seconds, Watts};

/// Maximum number of bisection steps of λ.
const HALVINGS: u32 = 50;
/// Number of bisection steps of a carbon budget's multiplier.
const BUDGET_HALVINGS: u32 = 40;
/// Relative reduction of a plan's cost that counts as rounding.
const ROUNDING: f64 = 1e-10;
/// Maximum number of slots for which `force_slots` tries a forced run and a forced pause, slot by slot.
const FEW_SLOTS: usize = 128;
/// Number of bisection steps of λ for each forced slot.
const FORCED_HALVINGS: u32 = 12;
/// Approximate maximum number of slot evaluations over all finishing slots (slots in which the work can end): the more
/// slots there are, the fewer finishing slots are tried.
const MOST_EVALUATIONS: usize = 2_000_000;

/// Rules for the job's pauses, its current activity, and its carbon budget.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Rules {
    pub(in crate::plan) costs: Pausing,
    pub(in crate::plan) activity: Option<Activity>,
    pub(in crate::plan) now: DateTime<Utc>,
    /// Power of the job while it saves or loads a checkpoint.
    pub(in crate::plan) checkpoint: Watts,
    /// Maximum emissions of the remaining work; `None` without a carbon budget.
    pub(in crate::plan) budget: Option<GramsCo2e>,
}

/// A plan that may contain pauses.
#[derive(Clone, Debug)]
pub(in crate::plan) struct Paused {
    /// The problem whose slots are pieces of the horizon's slots with fixed runs and pauses.
    pub(in crate::plan) problem: Problem,
    pub(in crate::plan) solution: Solution,
    /// Additional cost per gram of carbon due to the carbon budget, in grams of the objective; 0 if the budget does not
    /// bind.
    pub(in crate::plan) multiplier: f64,
    /// True if no plan that was found meets the carbon budget; then this plan is the one of least carbon.
    pub(in crate::plan) over_budget: bool,
}

/// Returns the time that a job needs to restart before it can train: that of a checkpoint if it is paused.
pub(super) fn restart_time(costs: &Pausing, activity: Option<Activity>) -> Seconds {
    match activity {
        Some(Activity::PausedSince(_)) => costs.checkpoint,
        Some(Activity::RunningSince(_)) | None => Seconds::ZERO,
    }
}

/// Returns the cheapest plan found under the rules. If the work cannot be done in time otherwise, the pause in which
/// the job is now may end before its minimum duration.
///
/// # Errors
/// If the work cannot be done in time even without a further pause.
pub(in crate::plan) fn solve_pausing(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    // Pauses only take time: if the work cannot be done in time without further pauses, it cannot be done with them.
    problem.reachable_work_after(restart_time(&rules.costs, rules.activity))?;
    let problem = problem.clone().pausing_at(rules.costs.idle_power, rules.checkpoint);
    let cheapest = solve_free(&problem, rules)?;
    let Some(limit) = rules.budget.filter(|limit| cheapest.solution.counted > *limit) else { return Ok(cheapest) };
    let least = solve_free(&problem.least_counted(), rules)?;
    if least.solution.counted > limit {
        return Ok(Paused { over_budget: true, ..least });
    }
    // Emissions change abruptly between patterns, so the result meets the budget but may not use all of it.
    let (mut low, mut high, mut best) = (0.0, 1.0, least);
    for _ in 0..BUDGET_HALVINGS {
        let middle = 0.5 * (low + high);
        // Maps values from 0 to 1 to multipliers from 0 to infinity.
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

/// Returns the cheapest plan of a paused job that resumes as soon as its pause has its minimum duration, and does not
/// pause again.
///
/// # Errors
/// If the work cannot be done in time then.
pub(in crate::plan) fn solve_resuming(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    let problem = problem.clone().pausing_at(rules.costs.idle_power, rules.checkpoint);
    let grid = Grid::new(&problem, rules.costs, rules.activity, rules.now);
    Paused::exactly(problem.in_pieces(&grid.pieces(&grid.no_pause(), None)))
}

/// Returns the cheapest plan found without regard to the carbon budget.
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
    // No pattern does the work in time: time constraints take precedence, so a current pause may end at once.
    let at_once = Grid { since: f64::INFINITY, ..grid };
    at_once.search().map_or_else(|| Paused::exactly(problem.in_pieces(&at_once.pieces(&at_once.no_pause(), None))), Ok)
}

impl Paused {
    fn exactly(problem: Problem) -> Result<Self, Infeasible> {
        let solution = solve(&problem)?;
        Ok(Self { problem, solution, multiplier: 0.0, over_budget: false })
    }
}

/// State of the search for the best pattern of runs and pauses.
struct Search {
    /// For each slot, a lower bound of the cost of plans that complete the work in the slot and whose pauses begin and
    /// end at slot boundaries.
    bounds: Vec<f64>,
    tried: Vec<Pattern>,
    best: Option<(Pattern, Paused)>,
}

impl Search {
    /// Returns whether a plan that ends in `slot` may be cheaper than the best plan so far.
    fn may_end_in(&self, slot: usize) -> bool {
        let beats = |found: &Paused| self.bounds[slot] < found.solution.cost.get() * (1.0 - ROUNDING);
        self.best.as_ref().is_none_or(|(_, found)| beats(found))
    }
}

impl Grid<'_> {
    /// Returns the cheapest plan found by bisection of λ and local improvement; `None` if no pattern is feasible.
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
        // One of the pauses may start within a slot: within the pause's first slot or within the slot before.
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

    /// Tries the finishing slots (slots in which the work ends) that may give a cheaper plan than the best so far, the
    /// lowest lower bound first. `price` is the first λ that is tried for each.
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

    /// Bisects λ to the lowest value at which the work is done, and returns this value. `price` is the first λ that is
    /// tried. With an `end`, considers only plans that end in that slot, and stops when these can't be cheaper than the
    /// best so far.
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

    /// Solves the cheapest pattern at a price λ if the pattern is new, and raises the lower bounds of the search.
    /// Returns whether the pattern does all the work.
    fn evaluate_price(&self, search: &mut Search, end: Option<usize>, price: f64) -> bool {
        let Some(priced) = self.cheapest_pattern(price, None, end) else { return false };
        search.bounds.iter_mut().zip(&priced.bounds).for_each(|(bound, at)| *bound = bound.max(*at));
        if !search.tried.contains(&priced.pattern) {
            self.improve(&mut search.best, &priced.pattern, None);
            search.tried.push(priced.pattern);
        }
        priced.samples >= self.problem.work().get()
    }

    /// Solves a pattern exactly. `within` is the index of the pause that may start anywhere in its first slot, if any.
    /// Stores the plan if it is the cheapest so far, and returns whether it is.
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

    /// Moves starts and ends of pauses by one slot, or removes pauses, as long as the cost falls.
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

    /// Tries the cheapest patterns in which the job is forced to run or to pause in a slot, for each slot in turn: with
    /// few slots, patterns are so coarse that the optimum need not be the cheapest pattern at any λ.
    fn force_slots(&self, best: &mut Option<(Pattern, Paused)>, price: f64) {
        let mut tried: Vec<Pattern> = Vec::new();
        for forced in (0..self.slots()).flat_map(|slot| [(slot, true), (slot, false)]) {
            let (mut low, mut high) = (0.25 * price, 4.0 * price);
            for _ in 0..FORCED_HALVINGS {
                let middle = 0.5 * (low + high);
                let found = self.cheapest_pattern(middle, Some(forced), None);
                let enough = found.as_ref().is_some_and(|found| found.samples >= self.problem.work().get());
                *(if enough { &mut high } else { &mut low }) = middle;
                tried.extend(found.map(|found| found.pattern).filter(|pattern| !tried.contains(pattern)));
            }
        }
        for pattern in &tried {
            self.improve(best, pattern, None);
        }
    }

    /// Returns whether `pause`, which may start within its first slot, has its minimum duration in the plan `found`.
    fn pauses_long_enough(&self, found: &Paused, pause: &Range<usize>) -> bool {
        let begin = self.problem.slots()[pause.start].slot;
        let place = found.problem.slots().iter().position(|s| s.slot == begin);
        let parts = place.and_then(|place| found.solution.shares.get(place)).map(Vec::as_slice).unwrap_or_default();
        let ran: f64 = parts.iter().filter(|part| Some(part.0) != self.problem.idle()).map(|part| part.1.get()).sum();
        let length = self.bounds[pause.end] - self.bounds[pause.start] - ran;
        length + SLACK >= self.costs.min_pause.get()
    }
}
