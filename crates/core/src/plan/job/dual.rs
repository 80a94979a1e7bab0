//! Solution of a job's planning problem by marginal costs: hull (concave envelope of the points' throughput over
//! power), one sort, greedy fill (`planning.md` §2, "Dual form").
//!
//! For a fixed finishing slot (the slot in which the work ends), all earlier slots are full and start at the hull's
//! point of least power; the finishing slot starts empty. From this start each further sample is taken where it is
//! cheapest: a *step* moves a slot from one hull point to the next, at a marginal cost in gCO2e per sample. Marginal
//! costs rise within a slot, so taking the cheapest steps of all slots until the work is done is optimal; the marginal
//! cost of the last step taken is the multiplier λ. The time in a full slot is constant, so the costs of its steps do
//! not depend on the finishing slot. In the finishing slot more speed saves time, and the steps start at zero power and
//! throughput.

use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::profile::concave_envelope;
use crate::units::{SamplesPerSecond, Seconds};

/// Relative difference up to which costs of plans count as equal; among equal plans the one that ends first is taken.
const TIE: f64 = 1e-12;
/// Fraction of a slot below which a time share counts as rounding.
const NOTHING: f64 = 1e-12;

/// A step of a slot from one hull point to the next faster one: additional work at a marginal cost.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct MarginalStep {
    /// Slower point; `None` in the first step of the finishing slot, which starts without power and throughput.
    pub(in crate::plan) from: Option<usize>,
    /// Faster point.
    pub(in crate::plan) to: usize,
    /// Increase of throughput, samples/s.
    pub(in crate::plan) gain: f64,
    /// Marginal cost, gCO2e per sample.
    pub(in crate::plan) price: f64,
}

/// Hulls (points on the concave envelope of throughput over power) for each allowed activity of a slot, as indices in
/// [`Problem::points`], slowest first.
pub(in crate::plan) struct Hulls {
    run: Vec<usize>,
    either: Vec<usize>,
    pause: [usize; 1],
    resume: [usize; 1],
}

impl Hulls {
    pub(in crate::plan) fn of(problem: &Problem) -> Self {
        let points = problem.points();
        let idle = problem.idle();
        let hull = |mode| {
            let places = problem.points_in(mode);
            let coordinates: Vec<_> = points[places].iter().map(|p| (p.power, p.throughput)).collect();
            concave_envelope(&coordinates)
        };
        let run = hull(Mode::Run);
        let either = if idle.is_some() { hull(Mode::Either) } else { run.clone() };
        let idle = idle.unwrap_or_default();
        Self { run, either, pause: [idle], resume: [idle + 1] }
    }

    /// Returns the hull of the points at which the job trains.
    pub(in crate::plan) fn running(&self) -> &[usize] {
        &self.run
    }

    /// Returns the training point with the least energy per sample; among equals, the fastest.
    pub(super) fn most_efficient(&self, problem: &Problem) -> usize {
        let energy = |point: usize| problem.points()[point].power.get() / problem.points()[point].throughput.get();
        self.run.iter().copied().fold(self.run[0], |best, p| if energy(p) <= energy(best) { p } else { best })
    }

    /// Returns the mixture that reaches a throughput with the least power: two neighbouring hull points, the faster
    /// first, each with its share of the time. For a throughput beyond the hull's ends, the end point has all the time.
    pub(super) fn mix_at(&self, problem: &Problem, throughput: SamplesPerSecond) -> [(usize, f64); 2] {
        let rate = |point: usize| problem.points()[point].throughput;
        let last = self.run.len() - 1;
        let above = self.run.partition_point(|point| rate(*point) < throughput).clamp(1.min(last), last);
        let (fast, slow) = (self.run[above], self.run[above.saturating_sub(1)]);
        let gain = rate(fast) - rate(slow);
        let share = if gain > SamplesPerSecond::ZERO { (throughput - rate(slow)) / gain } else { 1.0 };
        let share = share.clamp(0.0, 1.0);
        [(fast, share), (slow, 1.0 - share)]
    }

    pub(in crate::plan) fn at(&self, mode: Mode) -> &[usize] {
        match mode {
            Mode::Run => &self.run,
            Mode::Either => &self.either,
            Mode::Pause => &self.pause,
            Mode::Resume => &self.resume,
        }
    }
}

/// Returns the steps of a full slot from the hull's point of least power to the fastest point, in order of marginal
/// cost.
pub(in crate::plan) fn full_slot_steps(problem: &Problem, hulls: &Hulls, slot: usize) -> Vec<MarginalStep> {
    hull_steps(problem, hulls.at(problem.mode(slot)), slot)
}

fn hull_steps(problem: &Problem, hull: &[usize], slot: usize) -> Vec<MarginalStep> {
    let joule_cost = problem.joule_cost(slot);
    let step = |pair: &[usize]| {
        let (below, above) = (problem.points()[pair[0]], problem.points()[pair[1]]);
        let gain = (above.throughput - below.throughput).get();
        let price = joule_cost * ((above.power - below.power).get() / gain);
        MarginalStep { from: Some(pair[0]), to: pair[1], gain, price }
    };
    hull.windows(2).map(step).collect()
}

/// Returns the steps of the finishing slot (the slot in which the work ends): first from zero to the point of least
/// cost per sample, then from one hull point to the next.
pub(in crate::plan) fn finishing_slot_steps(problem: &Problem, hulls: &Hulls, slot: usize) -> Vec<MarginalStep> {
    let hull = hulls.running();
    let price = |point: usize| problem.second_cost(slot, point) / problem.points()[point].throughput.get();
    let mut first = 0;
    for place in 1..hull.len() {
        if price(hull[place]) <= price(hull[first]) {
            first = place;
        }
    }
    let to = hull[first];
    let gain = problem.points()[to].throughput.get();
    let mut steps = vec![MarginalStep { from: None, to, gain, price: price(to) }];
    for mut step in hull_steps(problem, &hull[first..], slot) {
        step.price = step.price.max(steps[steps.len() - 1].price);
        steps.push(step);
    }
    steps
}

/// Returns the cheapest plan of a job. Among equally cheap plans it is the one that ends first and has its faster parts
/// earlier, so that planning again later with an unchanged forecast repeats the plan.
///
/// # Errors
/// If even the fastest point cannot do the work in time.
pub fn solve(problem: &Problem) -> Result<Solution, Infeasible> {
    let work = problem.reachable_work()?.get();
    let hulls = Hulls::of(problem);
    let mut best: Option<Candidate> = None;
    let market = each_end(problem, &hulls, work, |candidate| {
        if best.as_ref().is_none_or(|b| candidate.cost < b.cost - TIE * b.cost.abs()) {
            best = Some(candidate);
        }
    });
    let best = best.expect("reachable work fits when every slot is at its fastest");
    Ok(problem.evaluate(market.shares(&best)))
}

/// Returns each slot in which a plan can end and the least cost of the plans that end there, in time order.
pub(super) fn costs_by_end(problem: &Problem) -> Vec<(usize, f64)> {
    let Ok(work) = problem.reachable_work() else { return Vec::new() };
    let mut costs = Vec::new();
    each_end(problem, &Hulls::of(problem), work.get(), |candidate| costs.push((candidate.finishing, candidate.cost)));
    costs
}

/// Returns the cheapest plan that ends in slot `finishing`; `None` if no plan can end there.
pub(super) fn solve_ending_in(problem: &Problem, finishing: usize) -> Option<Solution> {
    let work = problem.reachable_work().ok()?.get();
    let hulls = Hulls::of(problem);
    let mut market = Market::new(problem, &hulls);
    (0..finishing).for_each(|slot| market.fill_slot(slot));
    if market.base_samples > work || !problem.runs(finishing) {
        return None;
    }
    let candidate = market.finish_in(finishing, work)?;
    Some(problem.evaluate(market.shares(&candidate)))
}

/// Calls `evaluate` with the cheapest plan for each slot in which a plan can end. Returns the market, which converts
/// these plans to time shares.
fn each_end<'a>(problem: &'a Problem, hulls: &'a Hulls, work: f64, mut evaluate: impl FnMut(Candidate)) -> Market<'a> {
    let mut market = Market::new(problem, hulls);
    for finishing in 0..problem.open_slots().len() {
        if finishing > 0 {
            market.fill_slot(finishing - 1);
        }
        if market.base_samples > work {
            break; // the slots before `finishing` alone do too much work, as they do for every later finishing slot
        }
        if problem.runs(finishing) {
            market.finish_in(finishing, work).into_iter().for_each(&mut evaluate);
        }
    }
    market
}

/// The cheapest plan that ends in one slot.
struct Candidate {
    finishing: usize,
    cost: f64,
    /// Samples from steps of full slots, in addition to the samples that full slots do at their points of least power.
    above_base: f64,
    /// Samples from steps of the finishing slot.
    in_last: f64,
}

/// A step of a full slot, taken for the slot's whole duration.
struct Offer {
    slot: usize,
    price: f64,
    samples: f64,
}

/// All steps of all slots in order of marginal cost. Only the steps of slots that are marked as full count.
struct Market<'a> {
    problem: &'a Problem,
    hulls: &'a Hulls,
    offers: Vec<Offer>,
    /// Indices in `offers` of each slot's steps.
    places: Vec<Vec<usize>>,
    counted: PrefixSums,
    base_samples: f64,
    base_cost: f64,
}

impl<'a> Market<'a> {
    fn new(problem: &'a Problem, hulls: &'a Hulls) -> Self {
        let slots = problem.open_slots();
        let mut offers = Vec::with_capacity(slots.len() * hulls.running().len());
        for (slot, s) in slots.iter().enumerate() {
            let seconds = s.slot.duration().get();
            let offer = |step: MarginalStep| Offer { slot, price: step.price, samples: step.gain * seconds };
            offers.extend(full_slot_steps(problem, hulls, slot).into_iter().map(offer));
        }
        // The sort is stable: at equal costs the earlier slot comes first, and each slot's steps stay in order.
        offers.sort_by(|a, b| a.price.total_cmp(&b.price));
        let mut places = vec![Vec::new(); slots.len()];
        for (place, offer) in offers.iter().enumerate() {
            places[offer.slot].push(place);
        }
        let counted = PrefixSums::new(offers.len());
        Self { problem, hulls, offers, places, counted, base_samples: 0.0, base_cost: 0.0 }
    }

    /// Marks a slot as full, so that its steps count.
    fn fill_slot(&mut self, slot: usize) {
        let seconds = self.problem.slots()[slot].slot.duration().get();
        let slowest = self.hulls.at(self.problem.mode(slot))[0];
        self.base_samples += self.problem.points()[slowest].throughput.get() * seconds;
        self.base_cost += self.problem.second_cost(slot, slowest) * seconds;
        for &place in &self.places[slot] {
            let offer = &self.offers[place];
            self.counted.add(place, offer.samples, offer.samples * offer.price);
        }
    }

    /// Returns the cheapest plan that uses the full slots and ends in slot `finishing`; `None` if not even the fastest
    /// points of these slots do `work`.
    fn finish_in(&self, finishing: usize, work: f64) -> Option<Candidate> {
        let usable = self.problem.usable(&self.problem.slots()[finishing]).get();
        let needed = work - self.base_samples;
        let (mut in_last, mut cost) = (0.0, self.base_cost);
        for step in finishing_slot_steps(self.problem, self.hulls, finishing) {
            let cheaper = self.offers.partition_point(|offer| offer.price <= step.price);
            let left = needed - in_last - self.counted.samples_before(cheaper);
            if left <= 0.0 {
                break;
            }
            let taken = left.min(step.gain * usable);
            in_last += taken;
            cost += taken * step.price;
        }
        let above_base = (needed - in_last).max(0.0);
        let (taken, taken_cost) = self.take_cheapest(above_base);
        (above_base - taken <= 1e-9 * work).then_some(Candidate {
            finishing,
            cost: cost + taken_cost,
            above_base,
            in_last,
        })
    }

    /// Returns first how many of `samples` the full slots can do with their cheapest steps, second the cost of these
    /// steps.
    fn take_cheapest(&self, samples: f64) -> (f64, f64) {
        let (place, whole, cost) = self.counted.whole_within(samples);
        match self.offers.get(place) {
            Some(offer) => (samples, cost + (samples - whole) * offer.price),
            None => (whole, cost),
        }
    }

    /// Converts a candidate to the time at each point in each slot.
    fn shares(&self, candidate: &Candidate) -> Vec<Vec<(usize, Seconds)>> {
        let mut taken = vec![0.0; candidate.finishing];
        let mut left = candidate.above_base;
        for offer in self.offers.iter().filter(|offer| offer.slot < candidate.finishing) {
            let samples = left.min(offer.samples);
            taken[offer.slot] += samples;
            left -= samples;
        }
        let full = taken.into_iter().enumerate().map(|(slot, samples)| {
            let seconds = self.problem.slots()[slot].slot.duration().get();
            let slowest = self.hulls.at(self.problem.mode(slot))[0];
            climb(&full_slot_steps(self.problem, self.hulls, slot), Some(slowest), seconds, samples)
        });
        let usable = self.problem.usable(&self.problem.slots()[candidate.finishing]).get();
        let steps = finishing_slot_steps(self.problem, self.hulls, candidate.finishing);
        let last = climb(&steps, None, usable, candidate.in_last);
        full.chain([last]).collect()
    }
}

/// Returns the time at each point of a slot after taking `samples` from its steps, starting at point `bottom`.
fn climb(steps: &[MarginalStep], bottom: Option<usize>, seconds: f64, samples: f64) -> Vec<(usize, Seconds)> {
    if seconds <= 0.0 {
        return Vec::new(); // a slot of less than a microsecond
    }
    let (mut at, mut left) = (bottom, samples);
    for step in steps {
        let part = left / (step.gain * seconds);
        if part < 1.0 - NOTHING {
            let (above, below) = (part * seconds, (1.0 - part) * seconds);
            // Only the first step of the finishing slot may have an arbitrarily short share.
            let above = (part > NOTHING || (step.from.is_none() && part > 0.0)).then_some((step.to, above));
            let parts = [above, at.map(|point| (point, below))];
            return parts.into_iter().flatten().map(|(point, seconds)| (point, Seconds::new(seconds))).collect();
        }
        at = Some(step.to);
        left -= step.gain * seconds;
    }
    at.map(|point| (point, Seconds::new(seconds))).into_iter().collect()
}

/// Prefix sums of a list whose members are added one by one (a Fenwick tree), so that the sums can be queried for each
/// finishing slot.
struct PrefixSums {
    /// Sums, first of samples, second of costs; entry i (counted from 1) sums the last i & −i members up to the i-th.
    sums: Vec<(f64, f64)>,
}

impl PrefixSums {
    fn new(members: usize) -> Self {
        Self { sums: vec![(0.0, 0.0); members + 1] }
    }

    fn add(&mut self, place: usize, samples: f64, cost: f64) {
        let mut i = place + 1;
        while i < self.sums.len() {
            self.sums[i].0 += samples;
            self.sums[i].1 += cost;
            i += i & i.wrapping_neg();
        }
    }

    fn samples_before(&self, place: usize) -> f64 {
        let (mut i, mut samples) = (place, 0.0);
        while i > 0 {
            samples += self.sums[i].0;
            i &= i - 1;
        }
        samples
    }

    /// Returns first how many members from the list's start fit completely into `samples`, second the sum of their
    /// samples, third the sum of their costs.
    fn whole_within(&self, samples: f64) -> (usize, f64, f64) {
        let members = self.sums.len() - 1;
        let (mut place, mut sum, mut cost) = (0, 0.0, 0.0);
        let mut step = if members == 0 { 0 } else { 1 << members.ilog2() };
        while step > 0 {
            let next = place + step;
            if next <= members && sum + self.sums[next].0 <= samples {
                place = next;
                sum += self.sums[next].0;
                cost += self.sums[next].1;
            }
            step /= 2;
        }
        (place, sum, cost)
    }
}
