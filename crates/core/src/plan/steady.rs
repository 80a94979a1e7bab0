//! Steadiness: a plan is not left for a little gain, and set points are not changed too often or too steeply.
//!
//! Forecasts are issued again and again with small differences, and each of many nearly equal plans is the best for some
//! of them. So the plan in force is carried on under the new forecast and profile, with the same work and the same
//! promises, and the new plan replaces it only if it is better by a threshold. What is then set follows the plan with a
//! shortest stay at each set point, unless that would break a promise, and, if wanted, a steepest ramp.

use chrono::{DateTime, TimeDelta, Utc};

use super::dwell::shortest_dwell;
use super::member::{Member, Shared};
use super::problem::{PlanSlot, Problem, RESOLUTION};
use super::receding::{Owed, Planner};
use super::request::{Request, Unplannable};
use super::schedule::{Doing, Plan, Segment, Verdict};
use super::together::{Together, broken};
use crate::domain::{PowerLimit, Profile, SetPoint, Slot};
use crate::units::{GramsCo2e, Samples, SamplesPerSecond, Seconds, Watts};

/// A plan off by more than this part of the work is not carried on.
const FAR_OFF: f64 = 0.01;
/// Work that is missed by less than this part of it is rounding: the next plan owes it.
const NEGLIGIBLE: f64 = 1e-6;
/// Grams above a budget that are rounding, as a part of it.
const ROUNDING: f64 = 1e-6;
/// How long each step of a ramp lasts.
const STEP: TimeDelta = TimeDelta::minutes(1);

/// The new plan, or the old one carried on from now if the new one is not cheaper by more than the part `better_by`.
/// `request` is what the new plan was made from.
///
/// The old plan keeps its settings at their times. Where the job's pace or the work that is owed has changed since, its
/// end is adjusted: it ends when the work is done, and what is missing at the latest end is made up by going flat out
/// before. It is given up where it would break a promise, where one of its settings may not be used any more, where a
/// promise could not be kept when it was made, and where it is off by more than 1 % of the work.
#[must_use]
pub fn steadier(old: &Plan, new: Plan, request: &Request<'_>, better_by: f64) -> Plan {
    let Some((mut carried, cost, of_new)) = carry_on(old, &new, request) else { return new };
    let saved = cost - of_new;
    if saved > better_by * cost {
        return new;
    }
    carried.kept_from = Some(if cost > 0.0 { (saved / cost).max(0.0) } else { 0.0 });
    carried
}

/// The same for plans that were made together: of each member the plan that is steadier for it alone where these keep
/// what the members share; else all new ones, or all old ones carried on, whichever [`steadier`] would take of the sums of
/// their costs. `old` has one plan per member, `None` for one that had none.
#[must_use]
pub fn steadier_together(
    old: &[Option<&Plan>],
    new: Together,
    members: &[Member<'_>],
    shared: &Shared<'_>,
    better_by: f64,
) -> Together {
    let pairs = || old.iter().zip(&new.plans).zip(members).map(|((old, new), member)| (*old, new, &member.request));
    let keeps = |plans: &[Result<Plan, Unplannable>]| broken(members, plans, shared).is_empty();
    if !new.broken.is_empty() {
        return new;
    }
    let alone = pairs().map(|(old, new, request)| match (old, new) {
        (Some(old), Ok(new)) => Ok(steadier(old, new.clone(), request, better_by)),
        _ => new.clone(),
    });
    let plans: Vec<_> = alone.collect();
    if keeps(&plans) {
        return Together { plans, ..new };
    }
    let carried = pairs().map(|(old, new, request)| carry_on(old?, new.as_ref().ok()?, request));
    let Some(carried) = carried.collect::<Option<Vec<_>>>() else { return new };
    let (cost, of_new) = carried.iter().fold((0.0, 0.0), |sum, (_, cost, of_new)| (sum.0 + cost, sum.1 + of_new));
    let kept_from = Some(if cost > 0.0 { ((cost - of_new) / cost).max(0.0) } else { 0.0 });
    let plans: Vec<_> = carried.into_iter().map(|(plan, ..)| Ok(Plan { kept_from, ..plan })).collect();
    if cost - of_new <= better_by * cost && keeps(&plans) { Together { plans, ..new } } else { new }
}

/// The old plan from now on, with its cost and that of the new one.
fn carry_on(old: &Plan, new: &Plan, request: &Request<'_>) -> Option<(Plan, f64, f64)> {
    if old.verdict != Verdict::Optimal || new.verdict != Verdict::Optimal || new.is_restrained() {
        return None;
    }
    let planner = Planner::new(request).ok()?;
    let Owed::Work(owed) = planner.owed() else { return None };
    let (problem, known_until) = planner.problem(&owed).ok()?;
    let points = &planner.choice.places;
    let known = &request.profile.points;
    let at_new_pace = |s: &Segment| {
        let point = *points.iter().find(|place| known[**place].setting == s.setting)?;
        let (power, throughput) = (known[point].power.mean, known[point].throughput.mean);
        Some(match s.doing {
            Doing::Training => Segment { point, power, throughput, ..s.clone() },
            Doing::Paused => Segment { point, ..s.clone() },
            Doing::Resuming => Segment { point, power, ..s.clone() },
        })
    };
    let ahead = old.segments.iter().filter(|s| s.slot.end() > request.now);
    // A window moves on: what it gained at its end is as newly planned.
    let ended = old.ends_at();
    let gained = new.segments.iter().filter(|s| owed.endless() && s.slot.end() > ended);
    let mut pieces = Vec::new();
    let from = |s: &Segment, start: DateTime<Utc>| {
        let slot = Slot::new(s.slot.start().max(start), s.slot.end())?;
        Some(Segment { slot, ..at_new_pace(s)? })
    };
    for s in ahead {
        within_slots(&from(s, request.now)?, problem.slots(), &mut pieces);
    }
    for s in gained {
        within_slots(&from(s, ended)?, problem.slots(), &mut pieces);
    }
    let missing = owed.samples - pieces.iter().map(Segment::samples).sum();
    if pieces.is_empty() || missing.abs() > owed.samples * FAR_OFF {
        return None;
    }
    let latest_end = owed.latest_end.map(|(end, _)| end);
    let fast = planner.choice.fastest();
    let (fastest, slowest) = (
        &points[fast],
        points.iter().min_by(|a, b| known[**a].throughput.mean.total_cmp(&known[**b].throughput.mean))?,
    );
    let to = |place: usize, s: &Segment| Segment {
        point: place,
        setting: known[place].setting.clone(),
        power: known[place].power.mean,
        throughput: known[place].throughput.mean,
        ..s.clone()
    };
    let missing = if missing.abs() <= owed.samples * NEGLIGIBLE {
        missing
    } else if missing > Samples::ZERO {
        let missing = if owed.endless() { missing } else { extend(&mut pieces, missing, latest_end, problem.slots()) };
        make_up(&mut pieces, missing, |s| to(*fastest, s))
    } else if owed.endless() {
        -make_up(&mut pieces, -missing, |s| to(*slowest, s))
    } else {
        shorten(&mut pieces, -missing);
        Samples::ZERO
    };
    let tolerance = (known[*fastest].throughput.mean * RESOLUTION).max(owed.samples * NEGLIGIBLE);
    let end = pieces.last()?.slot.end();
    let late = latest_end.is_some_and(|latest| Seconds::from_delta(end - latest) > RESOLUTION);
    if missing > tolerance || late {
        return None;
    }
    let cost = |segments: &[Segment]| segments.iter().map(|s| cost_of(s, &problem)).sum::<f64>();
    let (of_old, of_new) = (cost(&pieces), cost(&new.segments));
    let duration = Seconds::from_delta(end - request.now);
    let plan = planner.sum_up(pieces, problem.slots(), duration, known_until, Verdict::Optimal);
    let left = planner.carbon_left().map(|(left, _)| left + GramsCo2e::new(ROUNDING * left.get().abs()));
    left.is_none_or(|left| plan.expected.carbon <= left).then_some((plan, of_old, of_new))
}

/// Adds a segment in pieces that lie in one slot each, with its intensity.
fn within_slots(s: &Segment, slots: &[PlanSlot], pieces: &mut Vec<Segment>) {
    let first = slots.partition_point(|slot| slot.slot.end() <= s.slot.start());
    for slot in slots[first..].iter().take_while(|slot| slot.slot.start() < s.slot.end()) {
        pieces.extend(slot.slot.intersection(&s.slot).map(|part| Segment {
            slot: part,
            intensity: slot.intensity,
            ..s.clone()
        }));
    }
}

/// Goes on at the last pace until so much more is done, at most until `latest`. Answers with what is missing then.
fn extend(pieces: &mut Vec<Segment>, missing: Samples, latest: Option<DateTime<Utc>>, slots: &[PlanSlot]) -> Samples {
    let Some(last) = pieces.last().filter(|s| s.doing == Doing::Training).cloned() else { return missing };
    let start = last.slot.end();
    let wanted = start + (missing / last.throughput).to_delta();
    let Some(more) = Slot::new(start, latest.map_or(wanted, |latest| wanted.min(latest))) else { return missing };
    let before = pieces.len();
    within_slots(&Segment { slot: more, ..last }, slots, pieces);
    missing - pieces[before..].iter().map(Segment::samples).sum()
}

/// Ends so much earlier.
fn shorten(pieces: &mut Vec<Segment>, mut surplus: Samples) {
    while let Some(last) = pieces.last_mut() {
        if surplus <= Samples::ZERO && last.doing == Doing::Training {
            return;
        }
        let keep = last.slot.duration() - surplus / last.throughput;
        let kept = Slot::new(last.slot.start(), last.slot.start() + keep.max(Seconds::ZERO).to_delta());
        match kept.filter(|_| last.doing == Doing::Training) {
            Some(slot) => {
                last.slot = slot;
                return;
            }
            None => {
                surplus -= last.samples();
                pieces.pop();
            }
        }
    }
}

/// Changes the pace from the end backwards until the work differs by so much. Answers with what is missing then.
fn make_up(pieces: &mut Vec<Segment>, mut missing: Samples, changed: impl Fn(&Segment) -> Segment) -> Samples {
    for place in (0..pieces.len()).rev() {
        if missing <= Samples::ZERO {
            break;
        }
        let piece = &pieces[place];
        let other = changed(piece);
        let gain = (other.throughput - piece.throughput).abs();
        if piece.doing != Doing::Training || gain <= SamplesPerSecond::ZERO {
            continue;
        }
        let part = (missing / gain).min(piece.slot.duration());
        missing -= gain * part;
        let middle = piece.slot.end() - part.to_delta();
        let (before, after) = (Slot::new(piece.slot.start(), middle), Slot::new(middle, piece.slot.end()));
        let before = before.map(|slot| Segment { slot, ..piece.clone() });
        let after = after.map(|slot| Segment { slot, ..other });
        pieces.splice(place..=place, before.into_iter().chain(after));
    }
    missing
}

/// What a segment costs in the objective of `planning.md` §2, in grams.
fn cost_of(s: &Segment, problem: &Problem) -> f64 {
    let slots = problem.slots();
    let slot = slots.partition_point(|slot| slot.slot.end() <= s.slot.start()).min(slots.len() - 1);
    problem.joule_cost(slot) * s.energy().get() + problem.time_cost() * s.slot.duration().get()
}

/// How set points may follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The shortest stay at one.
    pub dwell: Seconds,
    /// The most that a limit changes within a minute, if there is such a bound.
    pub ramp_per_min: Option<Watts>,
}

/// What a job is set to, and since when.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// One set point per group of equal boards.
    pub setting: Vec<SetPoint>,
    /// When it became that.
    pub since: DateTime<Utc>,
    /// Whether it is on the way to another one.
    pub ramping: bool,
    /// What the job was told to do.
    pub doing: Doing,
}

/// What to set now to follow a plan: what it says, or what is held where that has not been held for long enough, or a
/// step towards it. `None` where the plan says nothing about now; `done` are all samples so far.
///
/// A promise about time goes before the shortest stay: where waiting at a slower set point would break it, a faster one
/// comes at once, and where staying at a slower one for the shortest time would, it does not come. Beginning and ending
/// a pause waits for nothing.
pub fn follow(
    held: Option<&Held>,
    plan: &Plan,
    profile: &Profile,
    done: Samples,
    now: DateTime<Utc>,
    pace: &Pace,
) -> Option<Held> {
    let Segment { setting: wanted, throughput, doing, .. } = plan.segment_at(now)?;
    let dwell = shortest_dwell(pace.dwell, plan.samples_done + plan.expected.samples, profile).to_delta();
    let fresh = || Held { setting: wanted.clone(), since: now, ramping: false, doing: *doing };
    let Some(held) = held.filter(|held| held.setting.len() == wanted.len()) else { return Some(fresh()) };
    let trains = *doing == Doing::Training && held.doing == Doing::Training;
    if held.setting == *wanted {
        return Some(Held { doing: *doing, ..held.clone() });
    }
    if held.ramping && now - held.since < STEP {
        return Some(Held { doing: *doing, ..held.clone() });
    }
    if trains && !held.ramping {
        let kept = profile.at(&held.setting).map_or(SamplesPerSecond::ZERO, |p| p.throughput.mean);
        let stay = held.since + dwell;
        let waits = if *throughput > kept {
            now < stay && may_wait(plan, done, kept, now, stay)
        } else {
            now < stay || !may_wait(plan, done, *throughput, now, now + dwell)
        };
        if waits {
            return Some(held.clone());
        }
    }
    let step = pace.ramp_per_min.map(|ramp| ramp.max(Watts::new(1.0)));
    let towards = |(from, to): (&SetPoint, &SetPoint)| {
        let (from, target) = (from.limit.watts(), to.limit.watts());
        let Some(step) = step.filter(|step| (target - from).abs() > *step) else { return *to };
        let next = if target > from { from + step } else { from - step };
        SetPoint { limit: PowerLimit::from_watts(next), ..*to }
    };
    let setting: Vec<SetPoint> = held.setting.iter().zip(wanted).map(towards).collect();
    Some(Held { ramping: setting != *wanted, setting, since: now, doing: *doing })
}

/// Whether a plan's promise about time can still be kept if the job goes on at `pace` until a moment, having done so
/// many samples in all by now: even flat out from then on.
fn may_wait(plan: &Plan, done: Samples, pace: SamplesPerSecond, now: DateTime<Utc>, until: DateTime<Utc>) -> bool {
    let Some((latest_end, fastest)) = plan.slack else { return true };
    let wait = Seconds::from_delta(until - now).max(Seconds::ZERO);
    let left = plan.samples_done + plan.expected.samples - done - pace * wait;
    let needed = (left / fastest).max(Seconds::ZERO);
    let ends_before = left <= Samples::ZERO;
    ends_before || Seconds::from_delta(latest_end - now) + RESOLUTION >= wait + needed
}
