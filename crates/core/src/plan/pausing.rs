//! Pausing: when a job that may pause does so.
//!
//! A pause is idle power without work. Without minimum durations and checkpoints it is just one more point for
//! [`super::solve`]. With them the choice of slots is combinatorial. For a given marginal cost λ each slot has one best
//! way to run and one to pause, and dynamic programming over slot boundaries finds the cheapest pattern of runs and
//! pauses; bisection of λ finds the patterns around the one that does the work. Each is then solved exactly, with its
//! pauses fixed and with one of them starting within a slot, and the best is improved by moving and removing pauses.
//! The dynamic programme is a lower bound for any λ, but a weak one over all ends at once, because an end between two
//! days is no mixture of one before and one after it. So λ is bisected again for each possible finishing slot whose own
//! bound leaves room for improvement, the most promising first.

use std::ops::Range;

use chrono::{DateTime, Utc};

use super::dual::{Hulls, solve};
use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::domain::{Activity, Pausing, Slot};
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
/// Tolerance for comparing durations, in seconds.
const SLACK: f64 = 1e-3;

/// Costs of pausing and the job's current state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) costs: Pausing,
    pub(super) activity: Option<Activity>,
    pub(super) now: DateTime<Utc>,
    /// Power while saving or loading a checkpoint.
    pub(super) checkpoint: Watts,
    /// Maximum emissions of the remaining work.
    pub(super) budget: Option<GramsCo2e>,
}

/// A plan with pauses.
#[derive(Clone, Debug)]
pub(super) struct Paused {
    /// The problem over pieces of slots with fixed pauses.
    pub(super) problem: Problem,
    pub(super) solution: Solution,
    /// Additional cost per gram of carbon from the budget; 0 if it does not bind.
    pub(super) multiplier: f64,
    /// True if the budget is exceeded even by this plan, which then is the one of least carbon.
    pub(super) over_budget: bool,
}

/// Returns the cheapest plan found under the rules. Shortens a current pause if the work could not be done in time
/// otherwise.
///
/// # Errors
/// If the work cannot be done in time even without a further pause.
pub(super) fn solve_pausing(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    // Without a feasible plan that never pauses, no pattern is feasible.
    problem.reachable_work()?;
    let problem = problem.clone().pausing_at(rules.costs.idle_power, rules.checkpoint);
    let cheapest = solve_free(&problem, rules)?;
    let Some(limit) = rules.budget.filter(|limit| cheapest.solution.carbon > *limit) else { return Ok(cheapest) };
    let least = solve_free(&problem.least_carbon(), rules)?;
    if least.solution.carbon > limit {
        return Ok(Paused { over_budget: true, ..least });
    }
    // Carbon jumps between patterns, so the result meets the budget but may not use it up.
    let (mut low, mut high, mut best) = (0.0, 1.0, least);
    for _ in 0..BUDGET_HALVINGS {
        let middle = 0.5 * (low + high);
        // Maps 0..1 to a multiplier from 0 to infinity.
        let multiplier = middle / (1.0 - middle);
        match solve_free(&problem.with_carbon_at(multiplier), rules) {
            Ok(found) if found.solution.carbon <= limit => {
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
    let grid = Grid::new(problem, rules);
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

/// Pauses as ranges of slots in time order, each followed by a checkpoint. A currently paused job has one from the
/// first slot on, which may be empty.
type Pattern = Vec<Range<usize>>;

struct Grid<'a> {
    problem: &'a Problem,
    hulls: Hulls,
    costs: Pausing,
    pauses_now: bool,
    /// Time since the job started running or pausing.
    since: f64,
    /// Start of each open slot and the end of the last, in seconds from now.
    bounds: Vec<f64>,
}

/// The best pattern for some λ.
struct PricedPattern {
    pattern: Pattern,
    samples: f64,
    /// Lower bounds of the cost of plans that end in each slot with pauses at slot boundaries.
    bounds: Vec<f64>,
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

impl<'a> Grid<'a> {
    fn new(problem: &'a Problem, rules: &Rules) -> Self {
        let (pauses_now, since) = match rules.activity {
            Some(Activity::RunningSince(at)) => (false, Some(at)),
            Some(Activity::PausedSince(at)) => (true, Some(at)),
            None => (false, None),
        };
        let since = since.map_or(f64::INFINITY, |at| (rules.now - at).as_seconds_f64());
        let mut bounds = vec![0.0];
        for slot in problem.open_slots() {
            bounds.push(bounds[bounds.len() - 1] + problem.usable(slot).get());
        }
        Self { problem, hulls: Hulls::of(problem), costs: rules.costs, pauses_now, since, bounds }
    }

    fn slots(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the pattern of a job that pauses no more than it must.
    fn no_pause(&self) -> Pattern {
        if !self.pauses_now {
            return Vec::new();
        }
        let may_resume = |at: &usize| self.since + self.bounds[*at] + SLACK >= self.costs.min_pause.get();
        let resumes = (0..self.slots()).find(may_resume).unwrap_or(self.slots());
        Vec::from([Range { start: 0, end: resumes }])
    }

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

    /// Returns whether runs and pauses have their minimum durations.
    fn is_allowed(&self, pattern: &Pattern) -> bool {
        let (min_run, min_pause) = (self.costs.min_run.get(), self.costs.min_pause.get());
        let mut resumed: Option<usize> = None;
        pattern.iter().enumerate().all(|(block, pause)| {
            let given = self.pauses_now && block == 0;
            let valid = pause.start < pause.end || given;
            if !valid || pause.end > self.slots() || resumed.is_some_and(|at| pause.start < at) {
                return false;
            }
            let ran = match resumed {
                _ if given => f64::INFINITY,
                None => self.since + self.bounds[pause.start],
                Some(at) => self.bounds[pause.start] - self.bounds[at],
            };
            let least = if resumed.is_some() { min_run.max(self.costs.checkpoint.get()) } else { min_run };
            let before = if given { self.since } else { 0.0 };
            resumed = Some(pause.end);
            ran + SLACK >= least && before + self.bounds[pause.end] - self.bounds[pause.start] + SLACK >= min_pause
        })
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

    /// Splits the horizon's slots by a pattern. The pause `within` starts somewhere in its first slot.
    fn pieces(&self, pattern: &Pattern, within: Option<usize>) -> Vec<(usize, Slot, Mode)> {
        let mut pieces = Vec::with_capacity(self.slots() + 2 * pattern.len());
        let (mut next, mut to_load) = (0, Seconds::ZERO);
        for (place, slot) in self.problem.slots().iter().enumerate() {
            let slot = slot.slot;
            if pattern.get(next).is_some_and(|pause| place >= pause.end) {
                next += 1;
                to_load = self.costs.checkpoint;
            }
            if pattern.get(next).is_some_and(|pause| pause.contains(&place)) {
                let begins = within == Some(next) && pattern[next].start == place;
                pieces.push((place, slot, if begins { Mode::Either } else { Mode::Pause }));
                continue;
            }
            let loaded = (slot.start() + to_load.to_delta()).min(slot.end());
            pieces.extend(Slot::new(slot.start(), loaded).map(|piece| (place, piece, Mode::Resume)));
            pieces.extend(Slot::new(loaded, slot.end()).map(|piece| (place, piece, Mode::Run)));
            to_load = (to_load - slot.duration()).max(Seconds::ZERO);
        }
        pieces
    }

    /// Returns the cheapest pattern for a price λ of a sample; `None` if the rules allow none. In a forced slot the job
    /// runs (`true`) or pauses, unless it has ended. An `end` restricts the search to patterns that end in that slot.
    fn at(&self, price: f64, forced: Option<(usize, bool)>, end: Option<usize>) -> Option<PricedPattern> {
        let n = self.slots();
        let (bounds, points) = (&self.bounds, self.problem.points());
        let idle = self.problem.idle()?;
        // Sums over the slots before each boundary: cost of running, samples, cost of pausing.
        let (mut run, mut samples, mut pause) = (vec![0.0; n + 1], vec![0.0; n + 1], vec![0.0; n + 1]);
        for slot in 0..n {
            let seconds = bounds[slot + 1] - bounds[slot];
            let rate = |point: usize| points[point].throughput.get();
            let net = |point: usize| self.problem.second_cost(slot, point) - price * rate(point);
            let best = self.hulls.running().iter().copied().min_by(|a, b| net(*a).total_cmp(&net(*b)))?;
            run[slot + 1] = run[slot] + net(best) * seconds;
            samples[slot + 1] = samples[slot] + rate(best) * seconds;
            pause[slot + 1] = pause[slot] + self.problem.second_cost(slot, idle) * seconds;
        }
        if let Some((slot, runs)) = forced {
            // Larger than any saving, but small enough not to lose precision.
            let prohibitive = 1e3 * (run[n].abs() + pause[n].abs() + price * samples[n]);
            let sums = if runs { &mut pause } else { &mut run };
            sums[slot + 1..].iter_mut().for_each(|sum| *sum += prohibitive);
        }
        // Additional cost of a checkpoint at a boundary, and the samples it takes.
        let checkpoint = self.costs.checkpoint.get();
        let loading = |at: usize| {
            let (mut left, mut cost, mut lost) = (checkpoint, 0.0, 0.0);
            for slot in at..n {
                let length = bounds[slot + 1] - bounds[slot];
                let seconds = length.min(left);
                if seconds <= 0.0 {
                    break;
                }
                cost += self.problem.second_cost(slot, idle + 1) * seconds
                    - (run[slot + 1] - run[slot]) * (seconds / length);
                lost += (samples[slot + 1] - samples[slot]) * (seconds / length);
                left -= seconds;
            }
            (cost, lost)
        };
        let loads: Vec<(f64, f64)> = (0..n).map(loading).collect();

        let (min_run, min_pause) = (self.costs.min_run.get(), self.costs.min_pause.get());
        let since = self.since;
        // Least cost up to a boundary when running or paused there, and the boundary at which that began; `None` began
        // before now.
        let mut ran = vec![(f64::INFINITY, None); n + 1];
        let mut paused = vec![(f64::INFINITY, None); n + 1];
        let mut ends = vec![(f64::INFINITY, 0, None); n + 1];
        let mut from_ran = DelayedMinimum::new(min_pause);
        let mut from_paused = DelayedMinimum::new(min_run.max(checkpoint));
        let mut last_run = DelayedMinimum::new(checkpoint);
        for at in 0..=n {
            if self.pauses_now && since + bounds[at] + SLACK >= min_pause {
                paused[at] = (pause[at], None);
            }
            if let Some((cost, from)) = from_ran.best(bounds, at, |j| ran[j].0 - pause[j])
                && cost + pause[at] < paused[at].0
            {
                paused[at] = (cost + pause[at], Some(from));
            }
            if !self.pauses_now && since + bounds[at] + SLACK >= min_run {
                ran[at] = (run[at], None);
            }
            let resumed = |i: usize| paused[i].0 + loads.get(i).map_or(0.0, |l| l.0) - run[i];
            if let Some((cost, from)) = from_paused.best(bounds, at, resumed)
                && cost + run[at] < ran[at].0
            {
                ran[at] = (cost + run[at], Some(from));
            }
            if at > 0 {
                let straight = if self.pauses_now { None } else { Some((run[at], None)) };
                let after = last_run.best(bounds, at, resumed).map(|(cost, from)| (cost + run[at], Some(from)));
                for (cost, from) in straight.into_iter().chain(after) {
                    if cost < ends[at].0 {
                        ends[at] = (cost, at, from);
                    }
                }
            }
        }
        // The work ends somewhere between a slot's boundaries.
        let bounds = ends.windows(2).map(|pair| pair[0].0.min(pair[1].0) + price * self.problem.work().get()).collect();
        let among = end.map_or(&ends[..], |slot| &ends[slot..=slot + 1]);
        let (cost, mut at, mut from) = *among.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        if cost.is_infinite() {
            return None;
        }
        let (mut pattern, mut done) = (Vec::new(), 0.0);
        while let Some(resumed) = from {
            done += samples[at] - samples[resumed] - loads[resumed].1;
            match paused[resumed].1 {
                None => {
                    pattern.push(0..resumed);
                    (at, from) = (0, None);
                }
                Some(began) => {
                    pattern.push(began..resumed);
                    (at, from) = (began, ran[began].1);
                }
            }
        }
        done += samples[at];
        pattern.reverse();
        Some(PricedPattern { pattern, samples: done, bounds })
    }
}

/// The minimum of a sequence over the boundaries at least a duration before another, queried in ascending order.
struct DelayedMinimum {
    least: f64,
    next: usize,
    best: Option<(f64, usize)>,
}

impl DelayedMinimum {
    fn new(least: f64) -> Self {
        Self { least, next: 0, best: None }
    }

    fn best(&mut self, bounds: &[f64], at: usize, value: impl Fn(usize) -> f64) -> Option<(f64, usize)> {
        while self.next < at && bounds[at] - bounds[self.next] + SLACK >= self.least {
            let value = value(self.next);
            if value.is_finite() && self.best.is_none_or(|(best, _)| value < best) {
                self.best = Some((value, self.next));
            }
            self.next += 1;
        }
        self.best
    }
}
