//! From a job's state and a forecast to a plan whose present is applied (`planning.md` §4).
//!
//! Planned anew whenever something relevant changed. Progress is accounted over the job's life: the slowdown budget is
//! (1+ε)·W/r(l_max) of active time in all, so that time lost early is bought back later. Because r(l_max) is an
//! estimate, and believing it too low allows too much time, plans use ε less half a relative standard error of it.

use chrono::{DateTime, Utc};

use super::dual::solve;
use super::problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, RESOLUTION, check_horizon};
use super::reason::{Reason, Story, explain};
use super::schedule::{Expected, Plan, Promise, Segment, Verdict};
use crate::domain::{Objective, PowerLimit, Profile, SetPoint, Slot, Work};
use crate::profile::{Curve, HullPoint};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// How far ahead unknown work is planned unless told otherwise: one day.
pub const WINDOW: Seconds = Seconds::new(86_400.0);
/// The margin, in standard errors of the reference. A whole one costs more carbon than the late visits to the ceiling,
/// which make the error small, leave to chance.
const GUARD: f64 = 0.5;
/// The shortest part of a slot that is worth a switch.
const SHORTEST: Seconds = Seconds::new(1.0);
/// No plan reaches further than this, about 3,000 years, however much work there is.
const FURTHEST: Seconds = Seconds::new(1e11);
/// A slowdown this little above the promise is rounding.
const SLOWDOWN_ROUNDING: f64 = 1e-6;

/// What a job has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Samples done.
    pub samples: Samples,
    /// Active time so far, without stalls that are not the limits' doing.
    pub elapsed: Seconds,
    /// Relative standard error of r(l_max): 0.003 is 0.3 %.
    pub reference_error: f64,
}

/// Everything a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// What was learned about the job; its first point is the reference r(l_max).
    pub profile: &'a Profile,
    /// What is expected of the grid, contiguous; slots that have passed are skipped, the present one is cut, negative
    /// intensities count as zero. Time after it is planned with its mean.
    pub horizon: &'a [PlanSlot],
    /// What the user wants. A deadline says nothing about unknown work.
    pub objective: &'a Objective,
    /// How much there is to do in all.
    pub work: Work,
    /// How much is done.
    pub progress: Progress,
    /// P_max: the largest limit, summed over the job's boards.
    pub max_power: Watts,
    /// c_ref: what makes carbon and time commensurable; also stands for a forecast that says nothing.
    pub reference_intensity: GramsPerKwh,
    /// How far ahead unknown work is planned; [`WINDOW`] by default.
    pub window: Seconds,
    /// The highest limit that may be used now, if an out-of-band cap is on. r(l_max) stays the reference.
    pub allowed: Option<PowerLimit>,
}

/// Why there is no plan at all.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unplannable {
    /// Nothing is known about the job yet.
    #[error("the profile has no usable point")]
    NoUsablePoint,
    /// The cap is below every limit that was profiled.
    #[error("no profiled limit is at or below {0}")]
    NothingAllowed(PowerLimit),
    /// The horizon or the objective makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidProblem),
}

/// Plans the rest of a job, or the next window of one that doesn't say how long it is. Within a slot that uses two
/// limits the faster comes first; no part of a slot is shorter than a second unless it stands alone.
///
/// Where no plan keeps the promises, the job runs flat out and the verdict says by how much they are broken. With
/// unknown work, the work of the window is `window · r(l_max)/(1+ε)` less what the job is ahead; without a maximum
/// slowdown, or ahead by a whole window, each slot takes argmin (η·c_t·p(l) + (1−η)·c_ref·P_max)/r(l).
///
/// # Errors
/// If nothing can be planned from the input.
pub fn plan(request: &Request<'_>) -> Result<Plan, Unplannable> {
    let curve = Curve::from_profile(request.profile).ok_or(Unplannable::NoUsablePoint)?;
    let planner = Planner { request, reference: *curve.ceiling(), choice: Choice::of(request)? };
    match planner.owed() {
        Owed::Done => Ok(planner.finish(&[], request.now, Vec::new(), Vec::new(), Verdict::Optimal)),
        Owed::NothingNow => planner.cheapest_per_slot(),
        Owed::Work(owed) => planner.solve(&owed),
    }
}

/// The points that may be used.
struct Choice {
    points: Vec<Point>,
    /// For each its place in the profile.
    places: Vec<usize>,
}

impl Choice {
    fn of(request: &Request<'_>) -> Result<Self, Unplannable> {
        let known = &request.profile.points;
        let allowed = |set: &SetPoint| request.allowed.is_none_or(|cap| set.limit <= cap || set.limit.same_as(cap));
        let (mut points, mut places) = (Vec::new(), Vec::new());
        for (place, p) in known.iter().enumerate() {
            let (power, throughput) = (p.power.mean, p.throughput.mean);
            let usable = power > Watts::ZERO && throughput > SamplesPerSecond::ZERO;
            let first = !places.iter().any(|&earlier: &usize| known[earlier].setting == p.setting);
            if usable && first && p.setting.iter().all(allowed) {
                points.push(Point { power, throughput });
                places.push(place);
            }
        }
        match (points.is_empty(), request.allowed) {
            (false, _) => Ok(Self { points, places }),
            (true, Some(cap)) => Err(Unplannable::NothingAllowed(cap)),
            (true, None) => Err(Unplannable::NoUsablePoint),
        }
    }

    /// The place of the best point, where `better` says whether its first argument beats its second.
    fn best(&self, better: impl Fn(&Point, &Point) -> bool) -> usize {
        (1..self.points.len()).fold(0, |best, i| if better(&self.points[i], &self.points[best]) { i } else { best })
    }
}

/// What a plan has to achieve.
enum Owed {
    /// The work is done.
    Done,
    /// Unknown work without a promise that binds.
    NothingNow,
    /// So much.
    Work(OwedWork),
}

struct OwedWork {
    samples: Samples,
    latest_end: Option<(DateTime<Utc>, Promise)>,
    /// For how long the job runs if it goes flat out: unknown work doesn't end.
    flat_out: Option<Seconds>,
}

struct Planner<'a> {
    request: &'a Request<'a>,
    reference: HullPoint,
    choice: Choice,
}

impl Planner<'_> {
    /// The maximum slowdown to plan with, less the margin for the reference's error.
    fn guarded_slowdown(&self) -> Option<f64> {
        let error = self.request.progress.reference_error.max(0.0);
        Some((self.request.objective.max_slowdown? - GUARD * error).max(0.0))
    }

    fn owed(&self) -> Owed {
        let Request { now, objective, progress, window, .. } = *self.request;
        let r_max = self.reference.throughput;
        let slowdown = self.guarded_slowdown().zip(objective.max_slowdown);
        match self.request.work {
            Work::TotalSamples(total) => {
                let samples = total - progress.samples;
                if samples <= Samples::ZERO {
                    return Owed::Done;
                }
                let budget = slowdown.map(|(guarded, promised)| {
                    let left = total / r_max * (1.0 + guarded) - progress.elapsed;
                    (later(now, left), Promise::Slowdown(promised))
                });
                let deadline = objective.deadline.map(|at| (at, Promise::Deadline(at)));
                let latest_end = budget.into_iter().chain(deadline).min_by_key(|(at, _)| *at);
                Owed::Work(OwedWork { samples, latest_end, flat_out: None })
            }
            Work::Unknown => {
                let Some((guarded, promised)) = slowdown else { return Owed::NothingNow };
                let pace = r_max / (1.0 + guarded);
                let ahead = progress.samples - pace * progress.elapsed;
                let samples = pace * window - ahead;
                if samples <= Samples::ZERO {
                    return Owed::NothingNow;
                }
                let latest_end = Some((later(now, window), Promise::Slowdown(promised)));
                Owed::Work(OwedWork { samples, latest_end, flat_out: Some(window) })
            }
        }
    }

    /// The optimum, or flat out.
    fn solve(&self, owed: &OwedWork) -> Result<Plan, Unplannable> {
        let now = self.request.now;
        let fastest =
            self.choice.best(|a, b| a.throughput > b.throughput || (a.throughput == b.throughput && a.power < b.power));
        let slowest = self.choice.points.iter().map(|p| p.throughput).fold(self.reference.throughput, |a, b| a.min(b));
        let flat_out = owed.flat_out.unwrap_or(owed.samples / self.choice.points[fastest].throughput);
        let at_leisure = later(now, owed.samples / slowest);
        let until = owed.latest_end.map_or(at_leisure, |(end, _)| end.min(at_leisure)).max(later(now, flat_out));
        let (slots, known_until) = self.horizon(until)?;
        let latest_end = owed.latest_end.map(|(end, _)| end);
        let promise = owed.latest_end.map(|(_, promise)| promise);
        let problem = Problem::new(
            slots,
            self.choice.points.clone(),
            owed.samples,
            self.request.objective.eta,
            self.request.reference_intensity.max(GramsPerKwh::ZERO),
            self.request.max_power,
            latest_end,
        )?;
        Ok(match solve(&problem) {
            Ok(solution) => {
                let shares = without_short_parts(solution.shares.clone());
                let slowdown = self.slowdown(self.samples(&shares), time(&shares));
                let reasons = explain(&problem, &solution, &shares, &Story { promise, slowdown });
                self.finish(problem.slots(), known_until, shares, reasons, Verdict::Optimal)
            }
            Err(why) => {
                let shares = fill(problem.slots(), flat_out, fastest);
                let reasons = shares.iter().map(|_| vec![Reason::FlatOut { promise }]).collect();
                let verdict = self.flat_out(why, self.samples(&shares), flat_out);
                self.finish(problem.slots(), known_until, shares, reasons, verdict)
            }
        })
    }

    fn flat_out(&self, why: Infeasible, samples: Samples, duration: Seconds) -> Verdict {
        let Request { now, objective, work, .. } = *self.request;
        let deadline = objective.deadline.filter(|_| work != Work::Unknown);
        let late = deadline.map(|at| Seconds::from_delta(later(now, duration) - at));
        let above = objective.max_slowdown.map(|max| self.slowdown(samples, duration) - max);
        Verdict::FlatOut {
            misses_deadline_by: late.filter(|by| *by > RESOLUTION),
            exceeds_slowdown_by: above.filter(|by| *by > SLOWDOWN_ROUNDING),
            why,
        }
    }

    /// Each slot of the window at its own optimum.
    fn cheapest_per_slot(&self) -> Result<Plan, Unplannable> {
        let Request { objective, reference_intensity, max_power, window, .. } = *self.request;
        let (slots, known_until) = self.horizon(later(self.request.now, window))?;
        let time_cost = (1.0 - objective.eta) * reference_intensity.get() * max_power.get();
        let cheapest = |slot: &PlanSlot| {
            let carbon = objective.eta * slot.intensity.get();
            let cost = |p: &Point| (carbon * p.power.get() + time_cost) / p.throughput.get();
            // Where several cost the same, as on a grid without carbon, the fastest.
            let better =
                |a: &Point, b: &Point| cost(a) < cost(b) || (cost(a) == cost(b) && a.throughput > b.throughput);
            vec![(self.choice.best(better), slot.slot.duration())]
        };
        let shares = slots.iter().map(cheapest).collect();
        let reason = |slot: &PlanSlot| vec![Reason::LeastCostPerSample { intensity: slot.intensity }];
        let reasons = slots.iter().map(reason).collect();
        Ok(self.finish(&slots, known_until, shares, reasons, Verdict::Optimal))
    }

    /// The slots from now to `until`, and how far the forecast itself reaches. What lies after it is one slot with the
    /// forecast's mean; one long slot can do whatever many equal ones can.
    fn horizon(&self, until: DateTime<Utc>) -> Result<(Vec<PlanSlot>, DateTime<Utc>), Unplannable> {
        let now = self.request.now;
        let until = until.clamp(later(now, SHORTEST), later(now, FURTHEST));
        let ahead = |s: &PlanSlot| {
            let slot = Slot::new(s.slot.start().max(now), s.slot.end().min(until))?;
            Some(PlanSlot { slot, intensity: s.intensity.max(GramsPerKwh::ZERO) })
        };
        let mut slots: Vec<PlanSlot> = self.request.horizon.iter().filter_map(ahead).collect();
        if let Some(late) = slots.first().map(|s| s.slot.start()).filter(|start| *start > now) {
            return Err(InvalidProblem::NotContiguous(late).into());
        }
        let known_until = slots.last().map_or(now, |s| s.slot.end());
        if let Some(slot) = Slot::new(known_until, until) {
            // Of all that was given, also the past: a mean that drifts as time goes by would undo earlier plans.
            let intensity = mean(self.request.horizon).unwrap_or(self.request.reference_intensity);
            let intensity = intensity.max(GramsPerKwh::ZERO);
            slots.push(PlanSlot { slot, intensity });
        }
        check_horizon(&slots)?;
        Ok((slots, known_until))
    }

    /// Work done by shares of slots.
    fn samples(&self, shares: &[Vec<(usize, Seconds)>]) -> Samples {
        shares.iter().flatten().map(|(point, seconds)| self.choice.points[*point].throughput * *seconds).sum()
    }

    /// The slowdown over the job's life if it does so many samples in so much time from now.
    fn slowdown(&self, samples: Samples, duration: Seconds) -> f64 {
        let Progress { samples: done, elapsed, .. } = self.request.progress;
        let at_ceiling = (done + samples) / self.reference.throughput;
        if at_ceiling > Seconds::ZERO { (elapsed + duration) / at_ceiling - 1.0 } else { 0.0 }
    }

    /// Puts moments to the shares of each slot.
    fn finish(
        &self,
        slots: &[PlanSlot],
        known_until: DateTime<Utc>,
        shares: Vec<Vec<(usize, Seconds)>>,
        reasons: Vec<Vec<Reason>>,
        verdict: Verdict,
    ) -> Plan {
        let (samples, duration) = (self.samples(&shares), time(&shares));
        let mut segments: Vec<Segment> = Vec::new();
        for ((slot, parts), reasons) in slots.iter().zip(shares).zip(reasons) {
            let (mut start, mut used) = (slot.slot.start(), Seconds::ZERO);
            for ((point, seconds), reason) in parts.into_iter().zip(reasons) {
                used += seconds;
                let full = slot.slot.duration() - used < RESOLUTION;
                let end = if full { slot.slot.end() } else { slot.slot.start() + used.to_delta() };
                let Some(span) = Slot::new(start, end) else { continue };
                start = end;
                let (place, Point { power, throughput }) = (self.choice.places[point], self.choice.points[point]);
                let setting = self.request.profile.points[place].setting.clone();
                segments.push(Segment {
                    slot: span,
                    setting,
                    point: place,
                    power,
                    throughput,
                    intensity: slot.intensity,
                    reason,
                });
            }
        }
        let (now, ends_at) = (self.request.now, segments.last().map_or(self.request.now, |s| s.slot.end()));
        let expected = Expected {
            ends_at,
            samples,
            carbon: segments.iter().map(|s| s.energy() * s.intensity).sum(),
            energy: segments.iter().map(Segment::energy).sum::<Joules>(),
            slowdown: self.slowdown(samples, duration),
            carbon_at_ceiling: carbon(slots, self.reference.power, samples / self.reference.throughput),
        };
        let extended_from = (ends_at > known_until).then_some(known_until);
        Plan { made_at: now, samples_done: self.request.progress.samples, segments, expected, verdict, extended_from }
    }
}

/// `seconds` after `t`, or the end of time.
fn later(t: DateTime<Utc>, seconds: Seconds) -> DateTime<Utc> {
    t.checked_add_signed(seconds.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// The time-weighted mean intensity; `None` for no slots.
fn mean(slots: &[PlanSlot]) -> Option<GramsPerKwh> {
    let time: Seconds = slots.iter().map(|s| s.slot.duration()).sum();
    (time > Seconds::ZERO).then(|| slots.iter().map(|s| s.intensity * (s.slot.duration() / time)).sum())
}

/// All time in shares of slots.
fn time(shares: &[Vec<(usize, Seconds)>]) -> Seconds {
    shares.iter().flatten().map(|part| part.1).sum()
}

/// One point for so long, slot after slot.
fn fill(slots: &[PlanSlot], duration: Seconds, point: usize) -> Vec<Vec<(usize, Seconds)>> {
    let mut left = duration;
    let part = |slot: &PlanSlot| {
        let seconds = left.min(slot.slot.duration());
        left -= seconds;
        (seconds > Seconds::ZERO).then(|| vec![(point, seconds)])
    };
    slots.iter().map_while(part).collect()
}

/// Carbon of a constant power for so long; time after the slots has their mean intensity.
fn carbon(slots: &[PlanSlot], power: Watts, duration: Seconds) -> GramsCo2e {
    let parts = fill(slots, duration, 0);
    let within: GramsCo2e = slots.iter().zip(&parts).map(|(s, part)| power * part[0].1 * s.intensity).sum();
    let after = (duration - time(&parts)).max(Seconds::ZERO);
    within + power * after * mean(slots).unwrap_or_default()
}

/// Parts of a slot too short to switch for go to their neighbour, as far as the work stays done: a short slower part
/// becomes fast, a short faster part becomes a second long. What planning does not resolve is dropped.
fn without_short_parts(mut shares: Vec<Vec<(usize, Seconds)>>) -> Vec<Vec<(usize, Seconds)>> {
    for parts in &mut shares {
        let [(fast, fast_time), (slow, slow_time)] = parts[..] else { continue };
        let both = fast_time + slow_time;
        *parts = if fast_time < RESOLUTION {
            vec![(slow, both)]
        } else if both - fast_time.max(SHORTEST) < SHORTEST {
            vec![(fast, both)]
        } else {
            let fast_time = fast_time.max(SHORTEST);
            vec![(fast, fast_time), (slow, both - fast_time)]
        };
    }
    if shares.len() > 1 && shares.last().is_some_and(|parts| parts.iter().all(|part| part.1 < RESOLUTION)) {
        shares.pop();
    }
    shares
}
