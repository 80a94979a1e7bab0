//! Conversion of a relaxation's solution, averages of limits over slots, to power limits at every instant.
//!
//! The relaxation keeps a cap only on average over a slot. Here each job first gets, in each slot, one point whose
//! limit and throughput are at most the job's averages, so that limits fit under the cap at every instant. Work that is
//! then still undone is placed where it is cheapest at the relaxation's prices (multipliers of the constraints) and the
//! cap leaves room; slots are divided in time as needed. At equal prices the earlier slot comes first, and within a
//! slot the earlier part, so that few slots are divided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::interior::{Interior, Prices};
use super::model::{End, Model, ROUNDING};

/// Difference of costs per second, relative to the largest cost, up to which costs count as equal.
const SAME: f64 = 1e-6;
/// Difference of powers that counts as rounding, W.
const NO_POWER: f64 = 1e-6;
/// Value in [`Piece::at`] for a job that has ended; [`PAUSED`] is the value for a job that pauses.
const ENDED: u16 = u16::MAX;
const PAUSED: u16 = u16::MAX - 1;

/// A part of a slot in which no job changes its power limit.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) seconds: f64,
    /// Difference between the cap and the sum of the jobs' limits, W.
    free: f64,
    /// Index of each job's point, [`ENDED`] or [`PAUSED`].
    at: Vec<u16>,
}

impl Piece {
    /// Returns the index of a job's point; `None` if the job pauses or has ended.
    pub(super) fn point(&self, job: usize) -> Option<usize> {
        (self.at[job] < PAUSED).then(|| usize::from(self.at[job]))
    }

    /// Returns whether a job pauses.
    pub(super) fn is_paused(&self, job: usize) -> bool {
        self.at[job] == PAUSED
    }
}

/// Operating points of all jobs at every instant, so that all limits fit under the cap.
pub(super) struct Arrangement {
    /// Pieces of each slot in time order.
    pub(super) slots: Vec<Vec<Piece>>,
    /// Samples of each job for which no time and power were found.
    pub(super) short: Vec<f64>,
}

/// A way for a job to do more work in a piece of a slot: at a faster point, or by running longer.
#[derive(Clone, Copy)]
struct Offer {
    key: i64,
    piece: usize,
    to: usize,
    /// Gain in throughput, samples/s; `watts` is the increase of the limit that the gain needs, W.
    gain: f64,
    watts: f64,
}

struct Arranger<'a> {
    model: &'a Model,
    ends: &'a [End],
    prices: &'a Prices,
    slots: Vec<Vec<Piece>>,
    /// Samples of each job that are still undone; negative if the job does too much.
    left: Vec<f64>,
    /// Indices of the jobs that end in each slot.
    enders: Vec<Vec<usize>>,
    /// True if not all constraints can be met, so that jobs of higher priority are served first.
    by_priority: bool,
    /// Largest cost of a second at any point of any job in any slot, gCO2e.
    scale: f64,
}

/// Order in which work that is still undone is placed in slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum First {
    /// Undone work goes where its cost is least.
    Cheapest,
    /// Undone work goes into the slot in which the relaxation does it, if there is room; the rest goes where its cost
    /// is least.
    SameSlot,
}

/// Converts the solution of the relaxation to operating points at every instant.
pub(super) fn arrange(model: &Model, ends: &[End], interior: &Interior, first: First) -> Arrangement {
    let slots = 0..model.seconds.len();
    let highest = model.jobs.iter().flat_map(|job| slots.clone().map(|t| job.max_second_cost(t))).fold(0.0, f64::max);
    let mut arranger = Arranger {
        model,
        ends,
        prices: &interior.prices,
        slots: Vec::with_capacity(model.seconds.len()),
        left: model.jobs.iter().map(|job| job.work).collect(),
        enders: slots.clone().map(|t| (0..ends.len()).filter(|job| ends[*job].slot == t).collect()).collect(),
        by_priority: ends.iter().any(|end| end.late) || interior.missing.iter().any(|part| *part > 1e-7),
        scale: if highest > 0.0 { highest } else { 1.0 },
    };
    for t in slots {
        let pieces = arranger.base_pieces(t, interior);
        for piece in &pieces {
            for (job, left) in arranger.left.iter_mut().enumerate() {
                *left -= piece.point(job).map_or(0.0, |l| model.jobs[job].rate[l] * piece.seconds);
            }
        }
        arranger.slots.push(pieces);
    }
    if first == First::SameSlot {
        arranger.place_in_same_slot(interior);
    }
    arranger.place_undone_work();
    for job in 0..ends.len() {
        arranger.trim(job);
    }
    Arrangement { slots: arranger.slots, short: arranger.left.iter().map(|left| left.max(0.0)).collect() }
}

impl Arranger<'_> {
    /// Returns a first division of a slot into pieces, in which each job stays at one point for as long as it runs.
    fn base_pieces(&self, t: usize, interior: &Interior) -> Vec<Piece> {
        let jobs = self.model.jobs.len();
        let mut at = vec![ENDED; jobs];
        let mut over = vec![0.0; jobs];
        let mut until = vec![self.model.seconds[t]; jobs];
        let mut work = vec![0.0; jobs];
        for job in (0..jobs).filter(|job| t <= self.ends[*job].slot) {
            if self.model.jobs[job].pauses_in(t) {
                at[job] = PAUSED;
                continue;
            }
            let points = self.model.jobs[job].points();
            let parts = &interior.parts[job][t * points..];
            let running: f64 = parts[..points].iter().sum();
            if t == self.ends[job].slot {
                until[job] = (self.ends[job].seconds * running).min(self.ends[job].seconds);
            }
            let mean = |of: &[f64]| of.iter().zip(&parts[..points]).map(|(x, y)| x * y).sum::<f64>() / running;
            let (limit, rate) = (mean(&self.model.jobs[job].limit), mean(&self.model.jobs[job].rate));
            let point = self.base_point(job, t, limit, rate);
            over[job] = self.model.jobs[job].limit[point] - limit;
            at[job] = point as u16;
            work[job] = rate * until[job];
        }
        let cap = self.model.cap(t, self.ends).unwrap_or(f64::INFINITY);
        self.fit(t, cap, &mut at, &mut over);
        // A job that ends in this slot runs longer if its point is slower than its average in the relaxation.
        for job in (0..jobs).filter(|job| t == self.ends[*job].slot && at[*job] < PAUSED) {
            let rate = self.model.jobs[job].rate[usize::from(at[job])];
            if rate > 0.0 {
                until[job] = (work[job] / rate).clamp(until[job], self.ends[job].seconds);
            }
        }
        let mut cuts: Vec<f64> = until.iter().copied().filter(|cut| *cut > 0.0).collect();
        cuts.push(self.model.seconds[t]);
        cuts.sort_by(f64::total_cmp);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut from = 0.0;
        for cut in cuts {
            if cut - from <= ROUNDING * self.model.seconds[t] {
                continue;
            }
            let runs = |job: usize| at[job] != ENDED && until[job] > from + ROUNDING * self.model.seconds[t];
            let now: Vec<u16> = (0..jobs).map(|job| if runs(job) { at[job] } else { ENDED }).collect();
            let mut piece = Piece { seconds: cut - from, free: cap, at: now };
            for job in 0..jobs {
                piece.free -= piece.point(job).map_or(0.0, |l| self.model.jobs[job].limit[l]);
            }
            pieces.push(piece);
            from = cut;
        }
        pieces
    }

    /// Returns the point that costs least at the relaxation's prices, less the value of its work, among the points
    /// whose limit and throughput are at most `limit` and `rate`.
    fn base_point(&self, job: usize, t: usize, limit: f64, rate: f64) -> usize {
        let j = &self.model.jobs[job];
        let (most, fastest) = (limit + 1e-5 * j.highest() + NO_POWER, rate + 1e-5 * j.fastest());
        let value = |l: usize| self.cost_per_second(job, t, l) - self.prices.work[job] * j.rate[l];
        let within = || (0..j.points()).filter(|l| j.limit[*l] <= most && j.rate[*l] <= fastest);
        let best = within().map(value).fold(f64::INFINITY, f64::min);
        let good = within().filter(|l| value(*l) <= best + SAME * self.scale);
        good.max_by(|a, b| j.rate[*a].total_cmp(&j.rate[*b])).unwrap_or(0)
    }

    /// Lowers the jobs' points until all limits fit under the cap, first the points of the jobs that are furthest above
    /// their average limit in the relaxation.
    fn fit(&self, t: usize, cap: f64, at: &mut [u16], over: &mut [f64]) {
        let limit = |job: usize, l: u16| self.model.jobs[job].limit[usize::from(l)];
        loop {
            let needed: f64 = (0..at.len()).filter(|job| at[*job] < PAUSED).map(|job| limit(job, at[job])).sum();
            let lower = (0..at.len()).filter(|job| at[*job] < PAUSED && at[*job] > 0);
            let Some(job) = lower.max_by(|a, b| over[*a].total_cmp(&over[*b])).filter(|_| needed > cap + NO_POWER)
            else {
                return;
            };
            let before = limit(job, at[job]);
            let lambda = self.prices.work[job];
            let value = |l: &u16| {
                self.cost_per_second(job, t, usize::from(*l)) - lambda * self.model.jobs[job].rate[usize::from(*l)]
            };
            let below = (0..at[job]).filter(|l| limit(job, *l) < before || *l == 0);
            at[job] = below.min_by(|a, b| value(a).total_cmp(&value(b))).unwrap_or(0);
            over[job] -= before - limit(job, at[job]);
        }
    }

    /// Returns the cost of a second at a point, at the relaxation's prices, without the cost of time and without the
    /// value of the work done.
    fn cost_per_second(&self, job: usize, t: usize, l: usize) -> f64 {
        let j = &self.model.jobs[job];
        let grams = (self.prices.budget[job] + self.prices.shared[t]) * self.model.carbon[t];
        (j.joule_cost[t] + grams) * j.power[l] + self.prices.cap[t] * j.limit[l]
    }

    /// Returns whether all work of a job is placed, up to rounding.
    fn is_placed(&self, job: usize) -> bool {
        self.left[job] <= ROUNDING * self.model.jobs[job].work
    }

    fn place_in_same_slot(&mut self, interior: &Interior) {
        for t in 0..self.slots.len() {
            let mut jobs: Vec<usize> = (0..self.ends.len()).filter(|job| t <= self.ends[*job].slot).collect();
            jobs.sort_by_key(|job| self.placing_rank(*job));
            for job in jobs {
                let j = &self.model.jobs[job];
                let span = if t == self.ends[job].slot { self.ends[job].seconds } else { self.model.span(job, t) };
                let parts = &interior.parts[job][t * j.points()..][..j.points()];
                let target: f64 = parts.iter().zip(&j.rate).map(|(y, r)| y * r * span).sum();
                let at = |piece: &Piece| piece.point(job).map_or(0.0, |l| j.rate[l] * piece.seconds);
                let mut left = (target - self.slots[t].iter().map(at).sum::<f64>()).min(self.left[job]);
                while left > ROUNDING * j.work
                    && let Some(offer) = self.offer(job, t)
                {
                    left -= self.accept(job, t, offer, left);
                }
            }
        }
    }

    fn place_undone_work(&mut self) {
        // Each round may free power that was reserved in `room` for other jobs.
        while self.place_once() {}
    }

    /// Places work that is still undone, the cheapest first, as far as there is room. Returns whether any work was
    /// placed.
    fn place_once(&mut self) -> bool {
        let mut placed = false;
        let mut queue = BinaryHeap::new();
        for job in (0..self.ends.len()).filter(|job| !self.is_placed(*job)) {
            for t in 0..=self.ends[job].slot {
                queue.extend(self.offer(job, t).map(|offer| Reverse((self.placing_rank(job), offer.key, t, job))));
            }
        }
        while let Some(Reverse((_, key, t, job))) = queue.pop() {
            if self.is_placed(job) {
                continue;
            }
            let Some(offer) = self.offer(job, t) else { continue };
            if offer.key <= key {
                self.accept(job, t, offer, self.left[job]);
                placed = true;
            }
            queue.extend(self.offer(job, t).map(|offer| Reverse((self.placing_rank(job), offer.key, t, job))));
        }
        placed
    }

    /// Returns the power of a piece of a slot that a job may take: the free power, less what unfinished jobs that end
    /// in this slot need for running longer.
    fn room(&self, job: usize, t: usize, piece: &Piece) -> f64 {
        let waits = |other: &&usize| **other != job && piece.at[**other] == ENDED && !self.is_placed(**other);
        let kept: f64 = self.enders[t].iter().filter(waits).map(|other| self.model.jobs[*other].lowest()).sum();
        piece.free - kept + NO_POWER
    }

    /// Returns a job's rank in the order of placing work; the job with the lowest rank comes first.
    fn placing_rank(&self, job: usize) -> i32 {
        if self.by_priority { -self.model.jobs[job].rank } else { 0 }
    }

    /// Returns the cheapest way for a job to do more work in a slot. The offer's `key` compares offers of different
    /// jobs: the price above the relaxation's price of the job's work, for the work of a second at the job's fastest
    /// point, in units of the tolerance [`SAME`].
    fn offer(&self, job: usize, t: usize) -> Option<Offer> {
        let j = &self.model.jobs[job];
        let lambda = self.prices.work[job];
        let mut best: Option<(f64, Offer)> = None;
        let mut consider = |price: f64, offer: Offer| {
            if best.as_ref().is_none_or(|(least, _)| price < *least) {
                best = Some((price, offer));
            }
        };
        let mut last = None;
        for (piece, p) in self.slots[t].iter().enumerate() {
            let Some(from) = p.point(job) else {
                if t == self.ends[job].slot && !p.is_paused(job) {
                    self.longer(job, t, piece, &mut consider);
                }
                break;
            };
            // An equal earlier piece was considered already; this piece is considered once the earlier one has no room.
            if last == Some((from, p.free)) {
                continue;
            }
            last = Some((from, p.free));
            let (below, rate, limit) = (self.cost_per_second(job, t, from), j.rate[from], j.limit[from]);
            let room = self.room(job, t, p);
            for to in 0..j.points() {
                let (gain, watts) = (j.rate[to] - rate, j.limit[to] - limit);
                if gain > 0.0 && watts <= room {
                    let price = (self.cost_per_second(job, t, to) - below) / gain;
                    consider(price, Offer { key: 0, piece, to, gain, watts });
                }
            }
        }
        let (price, offer) = best?;
        let above = (price - lambda) * j.fastest() / (self.scale * SAME);
        Some(Offer { key: above.round() as i64, ..offer })
    }

    /// Passes to `consider` the ways to run longer in the slot in which the job ends.
    fn longer(&self, job: usize, t: usize, piece: usize, consider: &mut impl FnMut(f64, Offer)) {
        let j = &self.model.jobs[job];
        let so_far: f64 = self.slots[t][..piece].iter().map(|p| p.seconds).sum();
        if self.ends[job].seconds - so_far <= ROUNDING * self.model.seconds[t] {
            return;
        }
        let late = if self.ends[job].late { self.model.lateness } else { 0.0 };
        let room = self.room(job, t, &self.slots[t][piece]);
        for to in (0..j.points()).filter(|to| j.rate[*to] > 0.0) {
            if j.limit[to] <= room {
                let price = (self.cost_per_second(job, t, to) + j.time_cost + late) / j.rate[to];
                consider(price, Offer { key: 0, piece, to, gain: j.rate[to], watts: j.limit[to] });
            }
        }
    }

    /// Applies as much of an offer as `work` samples need; returns the samples gained.
    fn accept(&mut self, job: usize, t: usize, offer: Offer, work: f64) -> f64 {
        let so_far: f64 = self.slots[t][..offer.piece].iter().map(|p| p.seconds).sum();
        let pieces = &mut self.slots[t];
        let mut whole = pieces[offer.piece].seconds;
        if pieces[offer.piece].at[job] == ENDED {
            whole = whole.min(self.ends[job].seconds - so_far);
        }
        let shortest = self.model.shortest;
        let needed = (work / offer.gain).max(shortest);
        let seconds = if needed + shortest > whole { whole } else { needed };
        if seconds < pieces[offer.piece].seconds {
            let mut rest = pieces[offer.piece].clone();
            rest.seconds -= seconds;
            pieces[offer.piece].seconds = seconds;
            pieces.insert(offer.piece + 1, rest);
        }
        let piece = &mut pieces[offer.piece];
        piece.at[job] = offer.to as u16;
        piece.free -= offer.watts;
        self.left[job] -= offer.gain * seconds;
        offer.gain * seconds
    }

    /// Ends a job earlier if it does more than its work.
    fn trim(&mut self, job: usize) {
        for t in (0..=self.ends[job].slot).rev() {
            for place in (0..self.slots[t].len()).rev() {
                let surplus = -self.left[job];
                let Some(point) = self.slots[t][place].point(job) else { continue };
                let (rate, limit) = (self.model.jobs[job].rate[point], self.model.jobs[job].limit[point]);
                if surplus <= 0.0 {
                    return;
                }
                let pieces = &mut self.slots[t];
                let seconds =
                    if rate > 0.0 { (surplus / rate).min(pieces[place].seconds) } else { pieces[place].seconds };
                if seconds < pieces[place].seconds {
                    let mut rest = pieces[place].clone();
                    rest.seconds = seconds;
                    pieces[place].seconds -= seconds;
                    pieces.insert(place + 1, rest);
                    pieces[place + 1].at[job] = ENDED;
                    pieces[place + 1].free += limit;
                    self.left[job] += rate * seconds;
                    return;
                }
                pieces[place].at[job] = ENDED;
                pieces[place].free += limit;
                self.left[job] += rate * seconds;
            }
        }
    }
}
