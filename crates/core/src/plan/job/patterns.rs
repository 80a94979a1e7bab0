//! Patterns of runs and pauses: the patterns that a job's rules allow, and the cheapest pattern for a given marginal
//! cost λ per sample. For a given λ each slot has one best way to run and one to pause, and dynamic programming over
//! slot boundaries finds the cheapest pattern.

use std::ops::Range;

use chrono::{DateTime, Utc};

use super::dual::Hulls;
use super::problem::{Mode, Problem};
use crate::domain::{Activity, Pausing, Slot};
use crate::units::Seconds;

/// Tolerance for comparing durations, in seconds.
pub(in crate::plan) const SLACK: f64 = 1e-3;

/// Pauses of a plan as ranges of slots in time order. After each pause the job loads a checkpoint. For a job that is
/// paused now, the first pause starts at the first slot and may be empty.
pub(super) type Pattern = Vec<Range<usize>>;

/// The slots of a problem, and the rules and costs of the job's pauses.
pub(super) struct Grid<'a> {
    pub(in crate::plan) problem: &'a Problem,
    pub(super) hulls: Hulls,
    pub(in crate::plan) costs: Pausing,
    pub(super) pauses_now: bool,
    /// Seconds since the job's current run or pause began; infinite if unknown.
    pub(in crate::plan) since: f64,
    /// Boundaries of the slots before the latest end, in seconds from now.
    pub(super) bounds: Vec<f64>,
}

/// The cheapest pattern of runs and pauses for some λ, the price of a sample.
pub(super) struct PricedPattern {
    pub(super) pattern: Pattern,
    pub(in crate::plan) samples: f64,
    /// For each slot, a lower bound of the cost of plans that end in the slot and pause at slot boundaries only.
    pub(super) bounds: Vec<f64>,
}

impl<'a> Grid<'a> {
    pub(in crate::plan) fn new(
        problem: &'a Problem,
        costs: Pausing,
        activity: Option<Activity>,
        now: DateTime<Utc>,
    ) -> Self {
        let (pauses_now, since) = match activity {
            Some(Activity::RunningSince(at)) => (false, Some(at)),
            Some(Activity::PausedSince(at)) => (true, Some(at)),
            None => (false, None),
        };
        let since = since.map_or(f64::INFINITY, |at| (now - at).as_seconds_f64());
        let mut bounds = vec![0.0];
        for slot in problem.open_slots() {
            bounds.push(bounds[bounds.len() - 1] + problem.usable(slot).get());
        }
        Self { problem, hulls: Hulls::of(problem), costs, pauses_now, since, bounds }
    }

    pub(in crate::plan) fn slots(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the pattern without further pauses: if the job is paused now, the pause ends as soon as its minimum
    /// duration allows.
    pub(super) fn no_pause(&self) -> Pattern {
        if !self.pauses_now {
            return Vec::new();
        }
        let may_resume = |at: &usize| self.since + self.bounds[*at] + SLACK >= self.costs.min_pause.get();
        let resumes = (0..self.slots()).find(may_resume).unwrap_or(self.slots());
        Vec::from([Range { start: 0, end: resumes }])
    }

    /// Returns whether all runs and pauses of a pattern have their minimum durations.
    pub(super) fn is_allowed(&self, pattern: &Pattern) -> bool {
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

    /// Splits the horizon's slots into pieces with one activity each, by a pattern. Each piece is first the index of
    /// its slot, second its time span, third its activity. `within` is the index of the pause that may start anywhere
    /// in its first slot, if any.
    pub(in crate::plan) fn pieces(&self, pattern: &Pattern, within: Option<usize>) -> Vec<(usize, Slot, Mode)> {
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

    /// Returns the cheapest pattern at a price λ per sample; `None` if the rules allow none. `forced` is a slot in
    /// which the job has to run (`true`) or to pause (`false`) unless it has ended. With an `end`, only patterns that
    /// end in that slot count.
    pub(in crate::plan) fn cheapest_pattern(
        &self,
        price: f64,
        forced: Option<(usize, bool)>,
        end: Option<usize>,
    ) -> Option<PricedPattern> {
        let idle = self.problem.idle()?;
        let sums = self.sums(price, forced, idle)?;
        let loads = self.loads(&sums, idle + 1);
        let steps = self.cheapest_steps(&sums, &loads);
        let ends = &steps.ends;
        // The work ends between the two boundaries of a slot, so the lower cost of the two boundaries gives the slot's
        // bound.
        let value = price * self.problem.work().get();
        let bounds = ends.windows(2).map(|pair| pair[0].cost.min(pair[1].cost) + value).collect();
        let among = end.map_or(0..=self.slots(), |slot| slot..=slot + 1);
        let last = among.min_by(|a, b| ends[*a].cost.total_cmp(&ends[*b].cost))?;
        if ends[last].cost.is_infinite() {
            return None;
        }
        let (pattern, samples) = steps.trace_back(last, &sums, &loads);
        Some(PricedPattern { pattern, samples, bounds })
    }

    /// Returns the sums over the slots before each boundary, with the best way to run in each slot at the price λ;
    /// `None` if there is no way to run. `idle` is the index of the point for pauses.
    fn sums(&self, price: f64, forced: Option<(usize, bool)>, idle: usize) -> Option<Sums> {
        let (n, bounds, points) = (self.slots(), &self.bounds, self.problem.points());
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
            // This cost is larger than any saving, but small enough not to lose precision.
            let prohibitive = 1e3 * (run[n].abs() + pause[n].abs() + price * samples[n]);
            let sums = if runs { &mut pause } else { &mut run };
            sums[slot + 1..].iter_mut().for_each(|sum| *sum += prohibitive);
        }
        Some(Sums { run, samples, pause })
    }

    /// Returns what it costs to load a checkpoint from each boundary on. `loading` is the index of the point for that.
    fn loads(&self, sums: &Sums, loading: usize) -> Vec<Load> {
        let (n, bounds, Sums { run, samples, .. }) = (self.slots(), &self.bounds, sums);
        let load_from = |at: usize| {
            let (mut left, mut load) = (self.costs.checkpoint.get(), Load { cost: 0.0, lost: 0.0 });
            for slot in at..n {
                let length = bounds[slot + 1] - bounds[slot];
                let seconds = length.min(left);
                if seconds <= 0.0 {
                    break;
                }
                load.cost += self.problem.second_cost(slot, loading) * seconds
                    - (run[slot + 1] - run[slot]) * (seconds / length);
                load.lost += (samples[slot + 1] - samples[slot]) * (seconds / length);
                left -= seconds;
            }
            load
        };
        (0..n).map(load_from).collect()
    }

    /// Returns the cheapest steps to each boundary, by dynamic programming: each step continues the cheapest pattern
    /// that leads to its first boundary.
    fn cheapest_steps(&self, sums: &Sums, loads: &[Load]) -> Steps {
        let (bounds, since, Sums { run, pause, .. }) = (&self.bounds, self.since, sums);
        let (min_run, min_pause) = (self.costs.min_run.get(), self.costs.min_pause.get());
        let checkpoint = self.costs.checkpoint.get();
        let mut ran = vec![Step::NONE; bounds.len()];
        let (mut paused, mut ends) = (ran.clone(), ran.clone());
        let mut from_ran = DelayedMinimum::new(min_pause);
        let mut from_paused = DelayedMinimum::new(min_run.max(checkpoint));
        let mut last_run = DelayedMinimum::new(checkpoint);
        for at in 0..bounds.len() {
            if self.pauses_now && since + bounds[at] + SLACK >= min_pause {
                paused[at] = Step { cost: pause[at], from: None };
            }
            paused[at].lower_to(from_ran.best(bounds, at, |j| ran[j].cost - pause[j]).plus(pause[at]));
            if !self.pauses_now && since + bounds[at] + SLACK >= min_run {
                ran[at] = Step { cost: run[at], from: None };
            }
            let resumed = |i: usize| paused[i].cost + loads.get(i).map_or(0.0, |load| load.cost) - run[i];
            ran[at].lower_to(from_paused.best(bounds, at, resumed).plus(run[at]));
            if at > 0 {
                if !self.pauses_now {
                    ends[at].lower_to(Step { cost: run[at], from: None });
                }
                ends[at].lower_to(last_run.best(bounds, at, resumed).plus(run[at]));
            }
        }
        Steps { ran, paused, ends }
    }
}

/// Sums over the slots before each boundary.
struct Sums {
    /// Cost of running less the samples' value.
    run: Vec<f64>,
    samples: Vec<f64>,
    /// Cost of pausing.
    pause: Vec<f64>,
}

/// What it costs to load a checkpoint.
struct Load {
    /// Additional cost over running instead.
    cost: f64,
    /// Samples lost.
    lost: f64,
}

/// Cheapest way to a boundary with one run (or pause) before it.
#[derive(Clone, Copy)]
struct Step {
    /// Cost up to the boundary; infinite if the rules allow no such way.
    cost: f64,
    /// Boundary at which that run (or pause) began; `None` if it began before now.
    from: Option<usize>,
}

impl Step {
    const NONE: Self = Self { cost: f64::INFINITY, from: None };

    fn plus(self, cost: f64) -> Self {
        Self { cost: self.cost + cost, ..self }
    }

    /// Replaces the step by `other` if that is cheaper.
    fn lower_to(&mut self, other: Self) {
        if other.cost < self.cost {
            *self = other;
        }
    }
}

/// Cheapest steps to each boundary.
struct Steps {
    /// With a run before the boundary, after which the job may pause.
    ran: Vec<Step>,
    /// With a pause before the boundary, after which the job may resume.
    paused: Vec<Step>,
    /// With the last run before the boundary: it may be shorter than other runs.
    ends: Vec<Step>,
}

impl Steps {
    /// Returns the pattern of the steps that lead to the end at the boundary `last`, and the samples done by then.
    fn trace_back(&self, last: usize, sums: &Sums, loads: &[Load]) -> (Pattern, f64) {
        let (mut at, mut from) = (last, self.ends[last].from);
        let (mut pattern, mut done) = (Vec::new(), 0.0);
        while let Some(resumed) = from {
            done += sums.samples[at] - sums.samples[resumed] - loads[resumed].lost;
            let began = self.paused[resumed].from;
            at = began.unwrap_or(0);
            from = began.and_then(|began| self.ran[began].from);
            pattern.push(at..resumed);
        }
        done += sums.samples[at];
        pattern.reverse();
        (pattern, done)
    }
}

/// Minimum of a value over all slot boundaries that lie at least the duration `least` before a given boundary. The
/// given boundaries must ascend from query to query.
struct DelayedMinimum {
    least: f64,
    next: usize,
    best: Step,
}

impl DelayedMinimum {
    fn new(least: f64) -> Self {
        Self { least, next: 0, best: Step::NONE }
    }

    /// Returns the least value as the cost of a step from its boundary.
    fn best(&mut self, bounds: &[f64], at: usize, value: impl Fn(usize) -> f64) -> Step {
        while self.next < at && bounds[at] - bounds[self.next] + SLACK >= self.least {
            let value = value(self.next);
            if value.is_finite() {
                self.best.lower_to(Step { cost: value, from: Some(self.next) });
            }
            self.next += 1;
        }
        self.best
    }
}
