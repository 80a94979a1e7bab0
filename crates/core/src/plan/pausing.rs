//! Pausing: when a job that may stand still does so.
//!
//! A pause is idle power and no work, so that without shortest lengths and checkpoints it is one more point, and the
//! optimum is that of [`super::solve`] with it. With them the choice of slots is combinatorial. For a given price λ of a
//! sample every slot has one best way to run and one way to pause, and a dynamic programme over the slots' boundaries
//! finds the cheapest pattern of runs and pauses; halving λ finds the patterns around the one that does the work. Each
//! is then solved exactly, with its pauses fixed and with one of them beginning within a slot, and the best is improved
//! by moving and leaving out pauses while that helps. What the dynamic programme says at any λ is a lower bound, but a
//! low one over all ends at once: an end between two days is no mixture of one before and one after it. So λ is halved
//! anew for each slot that the work could end in and whose own bound leaves something to find, the most promising first.

use std::ops::Range;

use chrono::{DateTime, Utc};

use super::dual::{Hulls, solve};
use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::domain::{Activity, Pausing, Slot};
use crate::units::{GramsCo2e, Seconds, Watts};

/// Halvings of the interval in which λ lies.
const HALVINGS: u32 = 50;
/// Halvings of the interval in which a carbon budget's multiplier lies.
const BUDGET_HALVINGS: u32 = 40;
/// An improvement smaller than this part of the cost is rounding.
const ROUNDING: f64 = 1e-10;
/// With so few slots it pays to look at what each of them could be forced to.
const FEW_SLOTS: usize = 128;
/// Halvings of λ then.
const FORCED_HALVINGS: u32 = 12;
/// So many slots are looked at, in all passes over the ends together: the passes are fewer where slots are many.
const MOST_LOOKS: usize = 2_000_000;
/// Durations are compared with so much tolerance, in seconds.
const SLACK: f64 = 1e-3;

/// What pausing costs, and where the job stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) costs: Pausing,
    pub(super) activity: Option<Activity>,
    pub(super) now: DateTime<Utc>,
    /// Power while a checkpoint is saved or loaded.
    pub(super) checkpoint: Watts,
    /// What the rest of the work may emit.
    pub(super) budget: Option<GramsCo2e>,
}

/// A plan with pauses.
#[derive(Clone, Debug)]
pub(super) struct Paused {
    /// The problem over the pieces of its slots, in which the pauses are fixed.
    pub(super) problem: Problem,
    pub(super) solution: Solution,
    /// How much dearer the budget makes each gram of carbon; 0 where it does not bind.
    pub(super) multiplier: f64,
    /// Whether even the plan of least carbon, which this then is, exceeds the budget.
    pub(super) over_budget: bool,
}

/// The cheapest plan found that keeps the rules. A pause that has just begun is cut short where the work could not be
/// done in time otherwise.
///
/// # Errors
/// If the work cannot be done in time even without a further pause.
pub(super) fn solve_pausing(problem: &Problem, rules: &Rules) -> Result<Paused, Infeasible> {
    // Where not even a job that never pauses is in time there is no pattern of pauses to look for, and maybe no slot.
    problem.reachable_work()?;
    let problem = problem.clone().pausing_at(rules.costs.idle_power, rules.checkpoint);
    let cheapest = solve_free(&problem, rules)?;
    let Some(limit) = rules.budget.filter(|limit| cheapest.solution.carbon > *limit) else { return Ok(cheapest) };
    let least = solve_free(&problem.least_carbon(), rules)?;
    if least.solution.carbon > limit {
        return Ok(Paused { over_budget: true, ..least });
    }
    // Between patterns carbon jumps: what is found keeps the budget and need not use it up.
    let (mut low, mut high, mut best) = (0.0, 1.0, least);
    for _ in 0..BUDGET_HALVINGS {
        let middle = 0.5 * (low + high);
        // From 0 to 1 the multiplier runs from 0 to infinity.
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

/// The same without a budget.
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
    // The promise wins over the shortest pause.
    let at_once = Grid { since: f64::INFINITY, ..grid };
    at_once.search().map_or_else(|| Paused::exactly(problem.in_pieces(&at_once.pieces(&at_once.no_pause(), None))), Ok)
}

impl Paused {
    fn exactly(problem: Problem) -> Result<Self, Infeasible> {
        let solution = solve(&problem)?;
        Ok(Self { problem, solution, multiplier: 0.0, over_budget: false })
    }
}

/// Pauses as ranges of slots, oldest first. Each is followed by a checkpoint; a job that pauses now has one from the
/// first slot on, which may be empty.
type Pattern = Vec<Range<usize>>;

struct Grid<'a> {
    problem: &'a Problem,
    hulls: Hulls,
    costs: Pausing,
    pauses_now: bool,
    /// For how long it has been running, or pausing.
    since: f64,
    /// When each open slot begins, and at last when they end, in seconds from now.
    bounds: Vec<f64>,
}

/// A pattern that is the best for some λ.
struct Priced {
    pattern: Pattern,
    samples: f64,
    /// For each slot: no plan that ends in it and whose pauses begin and end with slots costs less.
    bounds: Vec<f64>,
}

/// What is known while a pattern is sought.
struct Search {
    /// For each slot: no plan that ends in it and whose pauses begin and end with slots costs less.
    bounds: Vec<f64>,
    tried: Vec<Pattern>,
    best: Option<(Pattern, Paused)>,
}

impl Search {
    /// Whether a plan that ends in this slot may be better than the best so far.
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

    /// The pattern of a job that pauses no more than it has to.
    fn no_pause(&self) -> Pattern {
        if !self.pauses_now {
            return Vec::new();
        }
        let may_resume = |at: &usize| self.since + self.bounds[*at] + SLACK >= self.costs.min_pause.get();
        let resumes = (0..self.slots()).find(may_resume).unwrap_or(self.slots());
        Vec::from([Range { start: 0, end: resumes }])
    }

    /// The best of what halving λ and improving find.
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
        // One pause may begin within a slot: its first one, or the one before.
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

    /// Looks at the ends that may be better than the best so far.
    fn each_end(&self, search: &mut Search, price: f64) {
        let mut closed = vec![false; self.slots()];
        for _ in 0..MOST_LOOKS / (self.slots() * HALVINGS as usize) {
            let open = (0..self.slots()).filter(|end| !closed[*end]);
            let end = open.min_by(|a, b| search.bounds[*a].total_cmp(&search.bounds[*b]));
            let Some(end) = end.filter(|end| search.may_end_in(*end)) else { return };
            closed[end] = true;
            self.halve(search, Some(end), price);
        }
    }

    /// Halves λ until the work is done. With an end, only plans that end in that slot are looked at, and no further than
    /// they may be better than the best so far. Answers with the price at which the work is done.
    fn halve(&self, search: &mut Search, end: Option<usize>, price: f64) -> f64 {
        let (mut low, mut high) = (0.0, price);
        while !self.look(search, end, high) && high < 1e12 && end.is_none_or(|end| search.may_end_in(end)) {
            low = high;
            high *= 8.0;
        }
        for _ in 0..HALVINGS {
            if high - low <= 1e-9 * high || end.is_some_and(|end| !search.may_end_in(end)) {
                break;
            }
            let middle = 0.5 * (low + high);
            *(if self.look(search, end, middle) { &mut high } else { &mut low }) = middle;
        }
        high
    }

    /// Solves the pattern that is best at a price, if it is new, and lifts the bounds. Whether it does the work.
    fn look(&self, search: &mut Search, end: Option<usize>, price: f64) -> bool {
        let Some(priced) = self.at(price, None, end) else { return false };
        search.bounds.iter_mut().zip(&priced.bounds).for_each(|(bound, at)| *bound = bound.max(*at));
        if !search.tried.contains(&priced.pattern) {
            self.improve(&mut search.best, &priced.pattern, None);
            search.tried.push(priced.pattern);
        }
        priced.samples >= self.problem.work().get()
    }

    /// Solves a pattern exactly and keeps it if it is the best so far. Whether it is.
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

    /// Moves the ends of pauses by a slot, and leaves pauses out, while that helps.
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

    /// Tries what is best if the job must run, or must pause, in each slot in turn: with few slots patterns are so coarse
    /// that the best of all need not be the best at any λ.
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

    /// Whether runs and pauses are long enough.
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

    /// Whether a pause that begins within its first slot is long enough.
    fn pauses_long_enough(&self, found: &Paused, pause: &Range<usize>) -> bool {
        let begin = self.problem.slots()[pause.start].slot;
        let place = found.problem.slots().iter().position(|s| s.slot == begin);
        let parts = place.and_then(|place| found.solution.shares.get(place)).map(Vec::as_slice).unwrap_or_default();
        let ran: f64 = parts.iter().filter(|part| Some(part.0) != self.problem.idle()).map(|part| part.1.get()).sum();
        let length = self.bounds[pause.end] - self.bounds[pause.start] - ran;
        length + SLACK >= self.costs.min_pause.get()
    }

    /// The pieces of the horizon's slots under a pattern. The pause `within` begins somewhere in its first slot.
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

    /// The cheapest pattern where a sample is worth λ; `None` if the rules allow none. In a forced slot the job runs
    /// (`true`) or pauses, unless it has ended. With an `end`, of those that end in that slot.
    fn at(&self, price: f64, forced: Option<(usize, bool)>, end: Option<usize>) -> Option<Priced> {
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
            // More than anything else can save, and not so much that the rest would drown in it.
            let prohibitive = 1e3 * (run[n].abs() + pause[n].abs() + price * samples[n]);
            let sums = if runs { &mut pause } else { &mut run };
            sums[slot + 1..].iter_mut().for_each(|sum| *sum += prohibitive);
        }
        // What a checkpoint at a boundary adds to running from there on, and the samples it takes.
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
        // Least cost of having run, of having paused, up to a boundary, and the boundary at which that began; `None`
        // began before now.
        let mut ran = vec![(f64::INFINITY, None); n + 1];
        let mut paused = vec![(f64::INFINITY, None); n + 1];
        let mut ends = vec![(f64::INFINITY, 0, None); n + 1];
        let mut from_ran = Earlier::new(min_pause);
        let mut from_paused = Earlier::new(min_run.max(checkpoint));
        let mut last_run = Earlier::new(checkpoint);
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
        // A slot is ended in somewhere between its boundaries.
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
        Some(Priced { pattern, samples: done, bounds })
    }
}

/// The least of a sequence over the boundaries that lie at least so long before another; asked in rising order.
struct Earlier {
    least: f64,
    next: usize,
    best: Option<(f64, usize)>,
}

impl Earlier {
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
