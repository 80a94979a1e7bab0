//! The optimum by marginal costs: hull, one sort, greedy fill (`planning.md` §2, "Dual form").
//!
//! Once the finishing slot is fixed, every slot before it is full and starts at the hull's point of least power; the
//! finishing slot starts empty. From there each further sample is bought where it is cheapest: a *rung* leads a slot
//! from one hull point to the next and has a price in gCO2e per sample. Prices rise along each ladder, so that buying
//! the cheapest rungs of all ladders until the work is done is optimal; the price of the last one is the multiplier λ.
//! In a full slot time is a constant, and the rungs are the same whichever slot finishes. In the finishing slot time is
//! saved by being fast, and its ladder begins at zero power and zero throughput.

use super::problem::{Infeasible, Mode, Problem, Solution};
use crate::profile::concave_envelope;
use crate::units::{SamplesPerSecond, Seconds};

/// Two costs this close are the same, and the earlier end wins.
const TIE: f64 = 1e-12;
/// Shares below this part of their slot are rounding.
const NOTHING: f64 = 1e-12;

/// A step up a slot's ladder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rung {
    /// The point below; `None` is standing still.
    pub(super) from: Option<usize>,
    /// The point above.
    pub(super) to: usize,
    /// Throughput gained, samples/s.
    pub(super) gain: f64,
    /// What a gained sample costs, gCO2e.
    pub(super) price: f64,
}

/// For each mode the places in [`Problem::points`] of the hull of the points that may be used in it, slowest first.
pub(super) struct Hulls {
    run: Vec<usize>,
    either: Vec<usize>,
    pause: [usize; 1],
    resume: [usize; 1],
}

impl Hulls {
    pub(super) fn of(problem: &Problem) -> Self {
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

    /// Of the points with which work is done.
    pub(super) fn running(&self) -> &[usize] {
        &self.run
    }

    /// Of those with which work is done, the one of least energy per sample; of equals the fastest.
    pub(super) fn most_efficient(&self, problem: &Problem) -> usize {
        let energy = |point: usize| problem.points()[point].power.get() / problem.points()[point].throughput.get();
        self.run.iter().copied().fold(self.run[0], |best, p| if energy(p) <= energy(best) { p } else { best })
    }

    /// The two neighbouring points of the running hull that together have a throughput, the faster first, and the share of
    /// time at each: no other mixture draws less. Beyond the hull's ends it is the end's point alone.
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

    pub(super) fn at(&self, mode: Mode) -> &[usize] {
        match mode {
            Mode::Run => &self.run,
            Mode::Either => &self.either,
            Mode::Pause => &self.pause,
            Mode::Resume => &self.resume,
        }
    }
}

/// The ladder of a full slot, from the hull's point of least power. Prices never fall.
pub(super) fn full_ladder(problem: &Problem, hulls: &Hulls, slot: usize) -> Vec<Rung> {
    ladder(problem, hulls.at(problem.mode(slot)), slot)
}

fn ladder(problem: &Problem, hull: &[usize], slot: usize) -> Vec<Rung> {
    let joule_cost = problem.joule_cost(slot);
    let rung = |pair: &[usize]| {
        let (below, above) = (problem.points()[pair[0]], problem.points()[pair[1]]);
        let gain = (above.throughput - below.throughput).get();
        let price = joule_cost * ((above.power - below.power).get() / gain);
        Rung { from: Some(pair[0]), to: pair[1], gain, price }
    };
    hull.windows(2).map(rung).collect()
}

/// The ladder of the finishing slot: first to the point of least cost per sample, then up the hull. Prices never fall.
pub(super) fn finishing_ladder(problem: &Problem, hulls: &Hulls, slot: usize) -> Vec<Rung> {
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
    let mut rungs = vec![Rung { from: None, to, gain, price: price(to) }];
    for mut rung in ladder(problem, &hull[first..], slot) {
        rung.price = rung.price.max(rungs[rungs.len() - 1].price);
        rungs.push(rung);
    }
    rungs
}

/// Solves the problem. Of equally cheap plans it takes the one that ends first and has its faster parts earlier, so
/// that planning again later with an unchanged forecast repeats the plan.
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

/// The least cost of a plan that ends in each slot, in the order of slots; where one can. Empty if none can.
pub(super) fn costs_by_end(problem: &Problem) -> Vec<(usize, f64)> {
    let Ok(work) = problem.reachable_work() else { return Vec::new() };
    let mut costs = Vec::new();
    each_end(problem, &Hulls::of(problem), work.get(), |candidate| costs.push((candidate.finishing, candidate.cost)));
    costs
}

/// The cheapest plan that ends in a given slot; `None` if none can.
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

/// Looks at each slot that a plan can end in.
fn each_end<'a>(problem: &'a Problem, hulls: &'a Hulls, work: f64, mut look: impl FnMut(Candidate)) -> Market<'a> {
    let mut market = Market::new(problem, hulls);
    for finishing in 0..problem.open_slots().len() {
        if finishing > 0 {
            market.fill_slot(finishing - 1);
        }
        if market.base_samples > work {
            break; // the slots before are more than enough, and so for every later finishing slot
        }
        if problem.runs(finishing) {
            market.finish_in(finishing, work).into_iter().for_each(&mut look);
        }
    }
    market
}

/// The cheapest way to end in one slot.
struct Candidate {
    finishing: usize,
    cost: f64,
    /// Samples bought on the full slots' ladders, above the base.
    above_base: f64,
    /// Samples bought on the finishing slot's ladder.
    in_last: f64,
}

/// A rung of a full slot, offered for the slot's whole length.
struct Offer {
    slot: usize,
    price: f64,
    samples: f64,
}

/// All rungs of all full slots, cheapest first, of which those of the first so many slots count.
struct Market<'a> {
    problem: &'a Problem,
    hulls: &'a Hulls,
    offers: Vec<Offer>,
    /// For each slot the places of its offers.
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
            let offer = |rung: Rung| Offer { slot, price: rung.price, samples: rung.gain * seconds };
            offers.extend(full_ladder(problem, hulls, slot).into_iter().map(offer));
        }
        // Stable: at equal prices the earlier slot climbs first, and each ladder is climbed in order.
        offers.sort_by(|a, b| a.price.total_cmp(&b.price));
        let mut places = vec![Vec::new(); slots.len()];
        for (place, offer) in offers.iter().enumerate() {
            places[offer.slot].push(place);
        }
        let counted = PrefixSums::new(offers.len());
        Self { problem, hulls, offers, places, counted, base_samples: 0.0, base_cost: 0.0 }
    }

    /// From now on this slot is full.
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

    /// The cheapest plan whose full slots are those filled so far; `None` if they and the last are not enough.
    fn finish_in(&self, finishing: usize, work: f64) -> Option<Candidate> {
        let usable = self.problem.usable(&self.problem.slots()[finishing]).get();
        let needed = work - self.base_samples;
        let (mut in_last, mut cost) = (0.0, self.base_cost);
        for rung in finishing_ladder(self.problem, self.hulls, finishing) {
            let cheaper = self.offers.partition_point(|offer| offer.price <= rung.price);
            let left = needed - in_last - self.counted.samples_before(cheaper);
            if left <= 0.0 {
                break;
            }
            let bought = left.min(rung.gain * usable);
            in_last += bought;
            cost += bought * rung.price;
        }
        let above_base = (needed - in_last).max(0.0);
        let (bought, bought_cost) = self.buy(above_base);
        (above_base - bought <= 1e-9 * work).then_some(Candidate {
            finishing,
            cost: cost + bought_cost,
            above_base,
            in_last,
        })
    }

    /// The cheapest so many samples of the full slots, as far as there are any, and their cost.
    fn buy(&self, samples: f64) -> (f64, f64) {
        let (place, whole, cost) = self.counted.whole_within(samples);
        match self.offers.get(place) {
            Some(offer) => (samples, cost + (samples - whole) * offer.price),
            None => (whole, cost),
        }
    }

    /// Writes a candidate out as seconds.
    fn shares(&self, candidate: &Candidate) -> Vec<Vec<(usize, Seconds)>> {
        let mut bought = vec![0.0; candidate.finishing];
        let mut left = candidate.above_base;
        for offer in self.offers.iter().filter(|offer| offer.slot < candidate.finishing) {
            let samples = left.min(offer.samples);
            bought[offer.slot] += samples;
            left -= samples;
        }
        let full = bought.into_iter().enumerate().map(|(slot, samples)| {
            let seconds = self.problem.slots()[slot].slot.duration().get();
            let slowest = self.hulls.at(self.problem.mode(slot))[0];
            climb(&full_ladder(self.problem, self.hulls, slot), Some(slowest), seconds, samples)
        });
        let usable = self.problem.usable(&self.problem.slots()[candidate.finishing]).get();
        let ladder = finishing_ladder(self.problem, self.hulls, candidate.finishing);
        let last = climb(&ladder, None, usable, candidate.in_last);
        full.chain([last]).collect()
    }
}

/// The seconds at each point after buying so many samples of a ladder that stands for so many seconds.
fn climb(ladder: &[Rung], bottom: Option<usize>, seconds: f64, samples: f64) -> Vec<(usize, Seconds)> {
    if seconds <= 0.0 {
        return Vec::new(); // a slot of less than a microsecond
    }
    let (mut at, mut left) = (bottom, samples);
    for rung in ladder {
        let part = left / (rung.gain * seconds);
        if part < 1.0 - NOTHING {
            let (above, below) = (part * seconds, (1.0 - part) * seconds);
            // A first rung from standing still is the only part of a plan that may be arbitrarily short.
            let above = (part > NOTHING || (rung.from.is_none() && part > 0.0)).then_some((rung.to, above));
            let parts = [above, at.map(|point| (point, below))];
            return parts.into_iter().flatten().map(|(point, seconds)| (point, Seconds::new(seconds))).collect();
        }
        at = Some(rung.to);
        left -= rung.gain * seconds;
    }
    at.map(|point| (point, Seconds::new(seconds))).into_iter().collect()
}

/// Sums over the first so many of a list whose members are switched on one by one (a Fenwick tree): planning looks at
/// them once per finishing slot.
struct PrefixSums {
    /// Samples and cost; entry i (from 1) sums the i & −i members up to i.
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

    /// How many members fit whole into so many samples, and the samples and cost of these.
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
