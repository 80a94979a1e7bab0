//! The search over the jobs' ends, and what comes of it.

use super::alone::{alone, uncoupled};
use super::arrange::{Arrangement, arrange};
use super::clash::clashes;
use super::ends::price;
use super::interior::{Interior, Method};
use super::model::{End, Model};
use super::problem::{FleetProblem, FleetSchedule, FleetSolution};
use crate::units::{GramsCo2e, Joules, Seconds};

/// Relaxations solved at most.
const MOST_ROUNDS: usize = 16;
/// What of a row is missed by less is rounding.
pub(super) const MISSED: f64 = 1e-7;
/// How much dearer it becomes to miss a row, to see whether it must be.
const STIFFER: f64 = 1e4;

/// Plans all jobs at once. Where nothing that they share binds, each job's schedule is its own optimum
/// ([`crate::plan::solve`]). At every instant the limits in force, and what ended jobs rest at, add up to no more than
/// the slot's cap, unless even the lowest limits exceed it.
///
/// Where not all promises can be kept, carbon budgets bend first, then latest ends, those of the lowest priority first,
/// and caps last; [`FleetSolution::clashes`] says which and by how much. `go_on` is asked before each iteration whether
/// to continue; without that, what was found so far is arranged.
pub fn solve_fleet(problem: &FleetProblem, go_on: &dyn Fn() -> bool) -> FleetSolution {
    let own: Option<Vec<_>> = problem.jobs.iter().map(|job| alone(problem, job)).collect();
    if let Some(shares) = own.filter(|shares| uncoupled(problem, shares)) {
        let schedules: Vec<_> = shares.into_iter().enumerate().map(|(job, s)| schedule(problem, job, s)).collect();
        let cost = schedules.iter().map(|s| s.cost).sum();
        let cap_prices = vec![0.0; problem.slots.len()];
        let clashes = Vec::new();
        return FleetSolution { schedules, cost, relaxed: cost, bound: cost, clashes, finished: true, cap_prices };
    }
    let model = Model::new(problem);
    let found = Search { problem, model: &model, go_on, stiffness: 1.0, bound: f64::NEG_INFINITY }.run();
    let schedules = written(problem, &model, &found.arrangement);
    let clashes = clashes(problem, &model, &schedules, &found.ends, go_on);
    FleetSolution {
        cost: schedules.iter().map(|s| s.cost).sum(),
        relaxed: GramsCo2e::new(found.relaxed),
        bound: GramsCo2e::new(found.bound),
        clashes,
        finished: found.finished,
        cap_prices: found.interior.prices.cap,
        schedules,
    }
}

/// What a search found.
struct Found {
    ends: Vec<End>,
    interior: Interior,
    arrangement: Arrangement,
    /// Samples that found no room, in seconds of the jobs' work, and the cost.
    score: (f64, f64),
    relaxed: f64,
    bound: f64,
    finished: bool,
}

struct Search<'a> {
    problem: &'a FleetProblem,
    model: &'a Model,
    go_on: &'a dyn Fn() -> bool,
    stiffness: f64,
    bound: f64,
}

impl Search<'_> {
    fn run(mut self) -> Found {
        let mut ends = self.first_ends();
        let mut tried: Vec<Vec<End>> = Vec::new();
        let mut best: Option<Found> = None;
        for round in 0..MOST_ROUNDS {
            tried.push(ends.clone());
            let interior = Method::new(self.model, &ends, self.stiffness).run(self.go_on);
            let solved = interior.solved;
            if solved && self.stiffness == 1.0 && self.misses(&interior) && self.no_end_helps(&ends, &interior) {
                self.stiffness = STIFFER;
                continue;
            }
            if let Some(other) = self.moved(&ends, &interior).filter(|_| solved)
                && round + 1 < MOST_ROUNDS
                && !tried.contains(&other)
            {
                ends = other;
                continue;
            }
            let priced = price(self.model, &interior.prices, &ends);
            self.bound = self.bound.max(priced.bound);
            let arrangement = arrange(self.model, &ends, &interior);
            let longer = self.made_longer(&ends, &arrangement);
            let found = self.judge(ends.clone(), interior, arrangement, priced.bound_here);
            if best.as_ref().is_none_or(|b| found.score < b.score) {
                best = Some(found);
            }
            let next = longer.filter(|_| priced.ends == ends).unwrap_or(priced.ends);
            if !solved || tried.contains(&next) {
                break;
            }
            ends = next;
        }
        let mut best = best.expect("the last round is judged");
        best.bound = self.bound.min(best.relaxed);
        best
    }

    /// Where each job ends without the others; where it cannot, at the latest end.
    fn first_ends(&self) -> Vec<End> {
        let first = |(j, job)| match alone(self.problem, job) {
            Some(shares) => self.model.end_in(j, shares.len().max(1) - 1),
            None => self.model.latest(j),
        };
        self.problem.jobs.iter().enumerate().map(first).collect()
    }

    /// Whether a promise is broken.
    fn misses(&self, interior: &Interior) -> bool {
        let over = |grams: f64, budget: Option<f64>| grams > MISSED * budget.unwrap_or(0.0).abs().max(1.0);
        let jobs = interior.over_budget.iter().zip(&self.model.jobs);
        interior.missing.iter().any(|part| *part > MISSED)
            || jobs.into_iter().any(|(grams, job)| over(*grams, job.budget))
            || over(interior.over_shared, self.model.budget)
    }

    /// Whether every job that misses work already ends as late as it may.
    fn no_end_helps(&self, ends: &[End], interior: &Interior) -> bool {
        let may = |(j, end): (usize, &End)| !end.late && *end != self.model.latest(j);
        !ends.iter().enumerate().any(|(j, end)| interior.missing[j] > MISSED && may((j, end)))
            && interior.surplus.iter().all(|part| *part <= MISSED)
    }

    /// Ends that suit the work better, where some job misses work or does too much; `None` where none does.
    fn moved(&self, ends: &[End], interior: &Interior) -> Option<Vec<End>> {
        let mut moved = ends.to_vec();
        for (j, end) in moved.iter_mut().enumerate() {
            let job = &self.model.jobs[j];
            if interior.missing[j] > MISSED {
                let time = self.model.seconds[..end.slot].iter().sum::<f64>() + end.seconds;
                let needed = time * interior.missing[j] / (1.0 - interior.missing[j]).max(0.1);
                *end = self.moved_by(j, *end, needed);
            } else if interior.surplus[j] > MISSED && end.slot > 0 {
                let mut too_much = interior.surplus[j] * job.work;
                let mut slot = end.slot;
                while too_much > 0.0 && slot > 0 {
                    slot -= 1;
                    too_much -= self.model.seconds[slot] * job.slowest();
                }
                *end = self.model.end_in(j, slot);
            }
        }
        (moved != ends).then_some(moved)
    }

    /// A later end, by about so many seconds: the latest that keeps the promise, or a broken one.
    fn moved_by(&self, job: usize, mut end: End, seconds: f64) -> End {
        if !end.late && end != self.model.latest(job) {
            return self.model.latest(job);
        }
        let mut left = seconds;
        while left > 0.0
            && let Some(later) = self.model.later(job, end)
        {
            left -= if later.slot == end.slot { later.seconds - end.seconds } else { later.seconds };
            end = later;
        }
        end
    }

    /// Later ends for the jobs whose work found no room.
    fn made_longer(&self, ends: &[End], arrangement: &Arrangement) -> Option<Vec<End>> {
        let mut longer = ends.to_vec();
        for (j, end) in longer.iter_mut().enumerate() {
            let job = &self.model.jobs[j];
            if arrangement.short[j] > MISSED * job.work {
                let next = if end.late || *end == self.model.latest(j) { None } else { Some(end.slot + 1) };
                *end = match next {
                    Some(slot) => self.model.end_in(j, slot),
                    None => self.moved_by(j, *end, arrangement.short[j] / job.fastest()),
                };
            }
        }
        (longer != ends).then_some(longer)
    }

    fn judge(&self, ends: Vec<End>, interior: Interior, arrangement: Arrangement, relaxed: f64) -> Found {
        let schedules = written(self.problem, self.model, &arrangement);
        let short = arrangement.short.iter().zip(&self.model.jobs).filter(|(short, job)| **short > MISSED * job.work);
        let weight = |rank: i32| 100_f64.powi(rank.min(4));
        let short: f64 = short.map(|(short, job)| short / job.fastest() * weight(job.rank)).sum();
        let late = |(j, s): (usize, &FleetSchedule)| {
            let late = self.problem.jobs[j].latest_end.map_or(0.0, |end| Seconds::from_delta(s.ends_at - end).get());
            late.max(0.0) * weight(self.model.jobs[j].rank)
        };
        let late: f64 = schedules.iter().enumerate().map(late).sum();
        let over = interior.over_budget.iter().sum::<f64>() + interior.over_shared;
        let cost: f64 = schedules.iter().map(|s| s.cost.get()).sum();
        // Unfinished work is worse than late work, and both are worse than any cost.
        let broken = 10.0 * short + if late > 1e-3 { late } else { 0.0 };
        let finished = interior.solved;
        let score = (broken, cost + STIFFER * over);
        Found { ends, interior, arrangement, score, relaxed, bound: f64::NEG_INFINITY, finished }
    }
}

/// The schedules of an arrangement.
fn written(problem: &FleetProblem, model: &Model, arrangement: &Arrangement) -> Vec<FleetSchedule> {
    let of_job = |job: usize| {
        let mut slots: Vec<Vec<(usize, Seconds)>> = Vec::new();
        for pieces in &arrangement.slots {
            let mut parts: Vec<(usize, Seconds)> = Vec::new();
            for piece in pieces {
                let Some(point) = piece.point(job) else { break };
                let (place, seconds) = (model.jobs[job].places[point], Seconds::new(piece.seconds));
                match parts.last_mut() {
                    Some(last) if last.0 == place => last.1 += seconds,
                    _ => parts.push((place, seconds)),
                }
            }
            if parts.is_empty() {
                break;
            }
            slots.push(parts);
        }
        schedule(problem, job, slots)
    };
    (0..problem.jobs.len()).map(of_job).collect()
}

/// What given parts cost.
fn schedule(problem: &FleetProblem, job: usize, parts: Vec<Vec<(usize, Seconds)>>) -> FleetSchedule {
    let j = &problem.jobs[job];
    let (mut cost, mut carbon, mut energy) = (GramsCo2e::ZERO, GramsCo2e::ZERO, Joules::ZERO);
    for (t, (slot, parts)) in problem.slots.iter().zip(&parts).enumerate() {
        let weight = j.weighed.as_ref().map_or(slot.intensity, |w| w[t]);
        for &(point, seconds) in parts {
            let joules = j.points[point].power * seconds;
            energy += joules;
            carbon += joules * slot.intensity;
            cost += joules * weight * j.eta + j.max_power * seconds * j.reference_intensity * (1.0 - j.eta);
        }
    }
    let start = problem.slots[0].slot.start();
    let ends_at = parts.last().map_or(start, |last| {
        let slot = problem.slots[parts.len() - 1].slot;
        (slot.start() + last.iter().map(|part| part.1).sum::<Seconds>().to_delta()).min(slot.end())
    });
    FleetSchedule { parts, cost, carbon, energy, ends_at }
}
