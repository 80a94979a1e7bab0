//! Solution of a joint planning problem, with a search for the slots in which jobs should end.

use super::alone::{alone, uncoupled};
use super::arrange::{Arrangement, First, arrange};
use super::breaches::breaches;
use super::ends::price;
use super::general::{Relaxer, Solver};
use super::interior::Interior;
use super::iterate::{Aim, FIRST_FACTOR};
use super::model::{End, MISSED, Model};
use super::problem::{FleetProblem, FleetSchedule, FleetSolution};
use crate::units::{GramsCo2e, Joules, Seconds};

/// Relative excess of an arrangement's cost over the cost of the relaxation from which on another arrangement is tried.
/// (Relaxation: caps hold on average over a slot; arrangement: at every instant.)
const WORTH_A_TRY: f64 = 1e-4;
/// Maximum number of relaxations solved in a search.
const MOST_ROUNDS: usize = 24;
/// Factor by which penalties rise while avoidable misses of work or budgets remain; [`STIFFEST`] is the maximum of
/// penalties.
const STIFFER: f64 = 100.0;
pub(super) const STIFFEST: f64 = 1e6;

/// Plans all jobs together. If no shared constraint binds, each job's schedule is its own optimum
/// ([`crate::plan::solve`]), whatever `solver` is. At every instant, the limits in force and the resting limits of
/// ended jobs add up to no more than the slot's cap, unless even the lowest limits exceed it.
///
/// If not all constraints can be kept, carbon budgets yield first, then latest ends, those of the lowest priority
/// first, and caps last; [`FleetSolution::breaches`] lists the excesses. `go_on` is called before each iteration and
/// returns false to stop the search; then the best solution so far is returned.
pub fn solve_fleet(problem: &FleetProblem, solver: Solver, go_on: &dyn Fn() -> bool) -> FleetSolution {
    solve_by(problem, Relaxer::new(solver), go_on)
}

/// Does the same as [`solve_fleet`], with given settings for solving relaxations.
pub(super) fn solve_by(problem: &FleetProblem, relaxer: Relaxer, go_on: &dyn Fn() -> bool) -> FleetSolution {
    let own: Option<Vec<_>> = problem.jobs.iter().map(|job| alone(problem, job)).collect();
    if let Some(shares) = own.filter(|shares| uncoupled(problem, shares)) {
        let schedules: Vec<_> = shares.into_iter().enumerate().map(|(job, s)| schedule(problem, job, s)).collect();
        let cost = schedules.iter().map(|s| s.cost).sum();
        let none = vec![0.0; problem.slots.len()];
        let (cap_prices, budget_prices, breaches) = (none.clone(), none, Vec::new());
        let (relaxed, bound, finished) = (cost, cost, true);
        return FleetSolution { schedules, cost, relaxed, bound, breaches, finished, cap_prices, budget_prices };
    }
    let model = Model::new(problem);
    let bound = f64::NEG_INFINITY;
    let found = Search { problem, model: &model, relaxer, go_on, rounds: 0, bound, late_bound: bound }.run();
    let schedules = schedules_of(problem, &model, &found.arrangement);
    let breaches = breaches(problem, &schedules);
    let cost: GramsCo2e = schedules.iter().map(|s| s.cost).sum();
    // With values of very different magnitude the relaxation may fail; then zero is the only known lower bound.
    let known = |figure: f64, otherwise: GramsCo2e| GramsCo2e::try_new(figure).unwrap_or(otherwise);
    let priced = |prices: Vec<f64>| prices.into_iter().map(|p| if p.is_finite() { p } else { 0.0 }).collect();
    FleetSolution {
        cost,
        relaxed: known(found.relaxed, cost),
        bound: known(found.bound, GramsCo2e::ZERO),
        breaches,
        // A relaxation may also fail due to rounding; the search counts as finished if `go_on` did not stop it.
        finished: found.finished || go_on(),
        cap_prices: priced(found.interior.prices.cap),
        budget_prices: priced(found.interior.prices.shared),
        schedules,
    }
}

/// Result of trying one choice of the slots in which jobs end: its relaxation and the arrangement made from it.
struct SearchResult {
    ends: Vec<End>,
    interior: Interior,
    arrangement: Arrangement,
    /// First work that was not placed, second lateness, both in seconds weighted by priority, third cost, gCO2e. In
    /// comparisons the first difference decides.
    score: (f64, f64, f64),
    relaxed: f64,
    bound: f64,
    finished: bool,
}

impl SearchResult {
    /// Returns whether some work was not placed.
    fn misses(&self) -> bool {
        self.score.0 > 0.0
    }
}

/// Slots between which a job can end: in a slot up to `too_early` some of its work is missing, from `too_late` on even
/// its slowest points do too much. `None` if no slot is known to be too early or too late.
#[derive(Clone, Copy, Default)]
struct Bracket {
    too_early: Option<usize>,
    too_late: Option<usize>,
}

impl Bracket {
    /// Returns the proposed slot if it lies between the two, else a slot in the middle between them; the proposed slot
    /// if one of the two is unknown, `None` if no slot is left between them.
    fn within(&self, proposed: usize) -> Option<usize> {
        let (Some(early), Some(late)) = (self.too_early, self.too_late) else { return Some(proposed) };
        if early < proposed && proposed < late {
            return Some(proposed);
        }
        (early + 1 < late).then(|| early.midpoint(late))
    }
}

struct Search<'a> {
    problem: &'a FleetProblem,
    model: &'a Model,
    relaxer: Relaxer,
    go_on: &'a dyn Fn() -> bool,
    /// Number of relaxations solved so far.
    rounds: usize,
    /// Greatest lower bound of the cost from relaxations in which all jobs end in time, gCO2e; `late_bound` is that from
    /// relaxations in which some job ends late.
    bound: f64,
    late_bound: f64,
}

impl Search<'_> {
    fn run(mut self) -> SearchResult {
        let mut ends = self.first_ends();
        let mut tried: Vec<Vec<End>> = Vec::new();
        let mut best: Option<SearchResult> = None;
        loop {
            tried.push(ends.clone());
            let interior = self.relax(&mut ends);
            let solved = interior.solved;
            let priced = price(self.model, &interior.prices, &ends);
            let bound = if ends.iter().any(|end| end.late) { &mut self.late_bound } else { &mut self.bound };
            *bound = bound.max(priced.bound);
            tried.push(ends.clone());
            let found = self.arranged(ends, interior, priced.bound_here);
            ends = self.made_longer(&found.ends, &found.arrangement).unwrap_or(priced.ends);
            let furthest = self.furthest(&found.ends, &found.arrangement);
            if best.as_ref().is_none_or(|b| found.score < b.score) {
                best = Some(found);
            }
            // If not all work is placed, the last slot of the horizon is tried as the end of the jobs concerned, since
            // it leaves the most room.
            if tried.contains(&ends) || self.rounds >= MOST_ROUNDS {
                match furthest
                    .filter(|furthest| !tried.contains(furthest) && best.as_ref().is_some_and(SearchResult::misses))
                {
                    Some(furthest) => ends = furthest,
                    None => break,
                }
            }
            if !solved {
                break;
            }
        }
        let mut best = best.expect("judged at least once");
        // A relaxation with late ends bounds only late plans, but its arrangement may still end in time.
        if best.score.1 == 0.0 && best.ends.iter().any(|end| end.late) {
            best.relaxed = best.relaxed.min(best.score.2);
            best.bound = self.bound.min(best.relaxed);
        } else {
            best.bound = self.bound.max(self.late_bound).min(best.relaxed);
        }
        best
    }

    /// Solves the relaxation. Moves the jobs' ends if their work does not fit before these ends.
    fn relax(&mut self, ends: &mut Vec<End>) -> Interior {
        let (mut work, mut budget, mut ranked) = (FIRST_FACTOR, FIRST_FACTOR, false);
        let mut brackets = vec![Bracket::default(); ends.len()];
        loop {
            self.rounds += 1;
            let aim = Aim::Cost { work, budget, ranked };
            let interior = self.relaxer.solve(self.model, ends, aim, self.go_on);
            if !interior.solved || self.rounds >= MOST_ROUNDS {
                return interior;
            }
            if let Some(other) = self.within_promises(ends, &interior, &mut brackets) {
                *ends = other;
                continue;
            }
            let (missing, over) = (self.missing(&interior), self.over(&interior));
            if ranked || !(missing || over) {
                return interior;
            }
            // Minimising misses alone shows which misses are unavoidable.
            let least = self.relaxer.solve(self.model, ends, Aim::Misses, self.go_on);
            self.rounds += 1;
            if missing && self.missing(&least) {
                match self.beyond_promises(ends, &least) {
                    Some(other) => *ends = other,
                    None => ranked = true,
                }
            } else if work < STIFFEST && (missing || !self.over(&least)) {
                work *= STIFFER;
                budget *= if self.over(&least) { 1.0 } else { STIFFER };
            } else {
                return interior;
            }
        }
    }

    /// Returns the first choice of ends: the end of each job's optimum without shared constraints, or the job's latest
    /// end if there is no such optimum.
    fn first_ends(&self) -> Vec<End> {
        let first = |(j, job)| match alone(self.problem, job) {
            Some(shares) => self.model.end_in(j, shares.len().max(1) - 1),
            None => self.model.latest(j),
        };
        self.problem.jobs.iter().enumerate().map(first).collect()
    }

    /// Returns whether some job's work is not completely done in a relaxation.
    fn missing(&self, interior: &Interior) -> bool {
        interior.missing.iter().any(|part| *part > MISSED)
    }

    /// Returns whether a relaxation exceeds a job's own or a shared carbon budget.
    fn over(&self, interior: &Interior) -> bool {
        let over = |grams: f64, budget: Option<f64>| grams > MISSED * budget.unwrap_or(0.0).abs().max(1e-3);
        interior.over_budget.iter().zip(&self.model.jobs).any(|(grams, job)| over(*grams, job.budget))
            || interior.over_shared.iter().zip(&self.model.budgets).any(|(grams, budget)| over(*grams, Some(*budget)))
    }

    /// Returns ends that fit the work better without being late: later ends for jobs with missing work, earlier ends
    /// for jobs that do too much even at their slowest points. `None` if the ends fit. `brackets` keeps what the ends
    /// tried so far have shown, so that no job alternates between an end that is too early and one that is too late.
    fn within_promises(&self, ends: &[End], interior: &Interior, brackets: &mut [Bracket]) -> Option<Vec<End>> {
        let mut moved = ends.to_vec();
        for (j, end) in moved.iter_mut().enumerate() {
            let (job, bracket) = (&self.model.jobs[j], &mut brackets[j]);
            let slot = if interior.missing[j] > MISSED && !end.late {
                bracket.too_early = bracket.too_early.max(Some(end.slot));
                self.model.latest(j).slot
            } else if interior.surplus[j] > MISSED {
                bracket.too_late = Some(bracket.too_late.map_or(end.slot, |slot| slot.min(end.slot)));
                let mut too_much = interior.surplus[j] * job.work;
                let mut slot = end.slot;
                while too_much > 0.0 && slot > 0 {
                    slot -= 1;
                    too_much -= self.model.span(j, slot) * job.slowest(slot);
                }
                slot
            } else {
                continue;
            };
            if let Some(slot) = bracket.within(slot) {
                *end = self.model.end_in(j, slot);
            }
        }
        (moved != ends).then_some(moved)
    }

    /// Returns later ends for jobs with missing work, even after their latest ends; `None` if no end can move.
    fn beyond_promises(&self, ends: &[End], least: &Interior) -> Option<Vec<End>> {
        let mut moved = ends.to_vec();
        for (j, end) in moved.iter_mut().enumerate().filter(|(j, _)| least.missing[*j] > MISSED) {
            let time = self.model.time(j, *end);
            let needed = time * least.missing[j] / (1.0 - least.missing[j]).max(0.1);
            *end = self.moved_by(j, *end, needed);
        }
        (moved != ends).then_some(moved)
    }

    /// Returns an end that is later than `end` by about `seconds`, and at most at the end of the horizon.
    fn moved_by(&self, job: usize, mut end: End, seconds: f64) -> End {
        let mut left = seconds;
        while left > 0.0
            && let Some(later) = self.model.later(job, end)
        {
            left -= if later.slot == end.slot { later.seconds - end.seconds } else { later.seconds };
            end = later;
        }
        end
    }

    /// Returns the ends, moved to the end of the horizon for jobs whose work was not placed; `None` if all work was
    /// placed.
    fn furthest(&self, ends: &[End], arrangement: &Arrangement) -> Option<Vec<End>> {
        let last = self.model.last();
        let short = |j: usize| arrangement.short[j] > MISSED * self.model.jobs[j].work;
        let end = |(j, end): (usize, &End)| if short(j) { self.model.last_end(j, last) } else { *end };
        (0..ends.len()).any(short).then(|| ends.iter().enumerate().map(end).collect())
    }

    /// Returns the ends, moved later for jobs whose work was not placed; `None` if no end can move.
    fn made_longer(&self, ends: &[End], arrangement: &Arrangement) -> Option<Vec<End>> {
        let mut longer = ends.to_vec();
        for (j, end) in longer.iter_mut().enumerate() {
            let job = &self.model.jobs[j];
            if arrangement.short[j] > MISSED * job.work {
                *end = self.moved_by(j, *end, arrangement.short[j] / job.fastest());
            }
        }
        (longer != ends).then_some(longer)
    }

    /// Converts the relaxation's solution to limits at every instant. If the cost leaves room for improvement, tries a
    /// second order of placing work too, and returns the better result.
    fn arranged(&self, ends: Vec<End>, interior: Interior, relaxed: f64) -> SearchResult {
        let over: f64 = interior.over_budget.iter().chain(&interior.over_shared).sum();
        let finished = interior.solved;
        let try_out = |first: First| {
            let arrangement = arrange(self.model, &ends, &interior, first);
            let (missed, late, cost) = self.score(&arrangement);
            (arrangement, (missed, late, cost + STIFFEST * over))
        };
        let (mut arrangement, mut score) = try_out(First::Cheapest);
        if score.0 + score.1 > 0.0 || score.2 > relaxed + WORTH_A_TRY * relaxed.abs() {
            let (other, its_score) = try_out(First::SameSlot);
            if its_score < score {
                (arrangement, score) = (other, its_score);
            }
        }
        SearchResult { ends, interior, arrangement, score, relaxed, bound: f64::NEG_INFINITY, finished }
    }

    /// Returns first an arrangement's undone work, second its lateness, both in seconds weighted by priority, third its
    /// cost, gCO2e. In comparisons the first difference decides.
    fn score(&self, arrangement: &Arrangement) -> (f64, f64, f64) {
        let schedules = schedules_of(self.problem, self.model, arrangement);
        let weight = |rank: i32| 100_f64.powi(rank.min(4));
        let missed = arrangement.short.iter().zip(&self.model.jobs).filter(|(short, job)| **short > MISSED * job.work);
        let missed: f64 = missed.map(|(short, job)| short / job.fastest() * weight(job.rank)).sum();
        let late = |(j, s): (usize, &FleetSchedule)| {
            let late = self.problem.jobs[j].latest_end.map_or(0.0, |end| Seconds::from_delta(s.ends_at - end).get());
            late.max(0.0) * weight(self.model.jobs[j].rank)
        };
        let late: f64 = schedules.iter().enumerate().map(late).filter(|late| *late > 1e-3).sum();
        (missed, late, schedules.iter().map(|s| s.cost.get()).sum())
    }
}

/// Returns the jobs' schedules in an arrangement.
fn schedules_of(problem: &FleetProblem, model: &Model, arrangement: &Arrangement) -> Vec<FleetSchedule> {
    let of_job = |job: usize| {
        let mut slots: Vec<Vec<(usize, Seconds)>> = Vec::new();
        for pieces in &arrangement.slots {
            let mut parts: Vec<(usize, Seconds)> = Vec::new();
            for piece in pieces {
                let pause = piece.is_paused(job).then(|| problem.jobs[job].pause_index());
                let place = piece.point(job).map(|point| model.jobs[job].places[point]);
                let Some(place) = place.or(pause) else { break };
                let seconds = Seconds::new(piece.seconds);
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
        while slots.last().is_some_and(|parts| parts.iter().all(|p| p.0 == problem.jobs[job].pause_index())) {
            slots.pop();
        }
        schedule(problem, job, slots)
    };
    (0..problem.jobs.len()).map(of_job).collect()
}

/// Returns the schedule that consists of the given parts, with its cost and end.
fn schedule(problem: &FleetProblem, job: usize, parts: Vec<Vec<(usize, Seconds)>>) -> FleetSchedule {
    let j = &problem.jobs[job];
    let (mut cost, mut carbon, mut energy) = (GramsCo2e::ZERO, GramsCo2e::ZERO, Joules::ZERO);
    for (t, (slot, parts)) in problem.slots.iter().zip(&parts).enumerate() {
        let weight = j.weighed.as_ref().map_or(slot.intensity, |w| w[t]);
        for (point, seconds) in parts.iter().filter_map(|(place, seconds)| Some((j.points.get(*place)?, *seconds))) {
            let joules = point.power * seconds;
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
