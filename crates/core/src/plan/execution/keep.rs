//! Hysteresis of plans: the job's current plan is kept unless a new plan is clearly cheaper.
//!
//! Forecasts are reissued with small differences, and with each issue another one of many nearly equal plans is the
//! cheapest. So the current plan is continued under the new forecast and profile, with the same work and constraints,
//! and a new plan replaces it only if the new plan's cost is lower by a threshold.

use chrono::{DateTime, Utc};

use crate::domain::Slot;
use crate::plan::fleet::{JointPlan, Member, Shared, broken};
use crate::plan::job::{Due, PlanSlot, Planner, Problem, RESOLUTION};
use crate::plan::request::{Request, Unplannable};
use crate::plan::schedule::{JobActivity, Plan, Segment, Verdict};
use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Relative deviation of a plan's samples from the job's remaining work above which the plan is not continued.
const FAR_OFF: f64 = 0.01;
/// Fraction of the remaining work that may be missing and counts as rounding.
const NEGLIGIBLE: f64 = 1e-6;

/// Returns the new plan, or the current one (`old`) continued from now if the new plan is not cheaper by more than the
/// fraction `better_by`. `request` is the input from which the new plan was made.
///
/// The current plan keeps its settings at their times. If the job's throughput or remaining work has changed since the
/// current plan was made, the plan's end moves to the time at which the work is done; work that would be missing at the
/// latest end is made up by running at full speed before it. The current plan is dropped if it would violate a
/// constraint, uses a setting that is no longer allowed, was not optimal when made, deviates from the remaining work by
/// more than 1 %, or pauses where the new plan does not.
#[must_use]
pub fn keep_if_nearly_as_good(old: &Plan, new: Plan, request: &Request<'_>, better_by: f64) -> Plan {
    let Some(Continued { mut plan, cost, cost_of_new }) = continue_plan(old, &new, request) else { return new };
    let saved = cost - cost_of_new;
    if saved > better_by * cost {
        return new;
    }
    plan.forgone_saving = Some(if cost > 0.0 { (saved / cost).max(0.0) } else { 0.0 });
    plan
}

/// Decides like [`keep_if_nearly_as_good`], for joint plans: returns that function's choice for each member if the
/// chosen plans together meet the shared constraints, else all current or all new plans, by comparing the sums of their
/// costs. `old` has one plan per member, `None` for members without a plan.
#[must_use]
pub fn keep_jointly_if_nearly_as_good(
    old: &[Option<&Plan>],
    new: JointPlan,
    members: &[Member<'_>],
    shared: &Shared<'_>,
    better_by: f64,
) -> JointPlan {
    let pairs = || old.iter().zip(&new.plans).zip(members).map(|((old, new), member)| (*old, new, &member.request));
    let keeps = |plans: &[Result<Plan, Unplannable>]| broken(members, plans, shared).is_empty();
    if !new.broken.is_empty() {
        return new;
    }
    let alone = pairs().map(|(old, new, request)| match (old, new) {
        (Some(old), Ok(new)) => Ok(keep_if_nearly_as_good(old, new.clone(), request, better_by)),
        _ => new.clone(),
    });
    let plans: Vec<_> = alone.collect();
    if keeps(&plans) {
        return JointPlan { plans, ..new };
    }
    let continued = pairs().map(|(old, new, request)| continue_plan(old?, new.as_ref().ok()?, request));
    let Some(continued) = continued.collect::<Option<Vec<_>>>() else { return new };
    let cost = continued.iter().fold(0.0, |sum, member| sum + member.cost);
    let of_new = continued.iter().fold(0.0, |sum, member| sum + member.cost_of_new);
    let forgone_saving = Some(if cost > 0.0 { ((cost - of_new) / cost).max(0.0) } else { 0.0 });
    let plans: Vec<_> = continued.into_iter().map(|member| Ok(Plan { forgone_saving, ..member.plan })).collect();
    if cost - of_new <= better_by * cost && keeps(&plans) { JointPlan { plans, ..new } } else { new }
}

/// The current plan continued from now on. Costs are those of the objective, in grams.
struct Continued {
    plan: Plan,
    cost: f64,
    cost_of_new: f64,
}

/// Continues the current plan from now on; `None` if the current plan must be dropped.
fn continue_plan(old: &Plan, new: &Plan, request: &Request<'_>) -> Option<Continued> {
    if !may_continue(old, new, request.now) {
        return None;
    }
    let planner = Planner::new(request).ok()?;
    let Due::Work(due) = planner.due() else { return None };
    let (problem, known_until) = planner.problem(&due).ok()?;
    let pieces = remaining_segments(old, new, &planner, problem.slots(), due.endless())?;
    let pieces = fit_to_work(pieces, &planner, &problem, due.endless())?;
    let end = pieces.last()?.slot.end();
    if problem.latest_end().is_some_and(|latest| Seconds::from_delta(end - latest) > RESOLUTION) {
        return None;
    }
    let total = |segments: &[Segment]| segments.iter().map(|s| cost_of(s, &problem)).sum::<f64>();
    let (cost, cost_of_new) = (total(&pieces), total(&new.segments));
    let duration = Seconds::from_delta(end - request.now);
    let plan = planner.sum_up(pieces, problem.slots(), duration, known_until, Verdict::Optimal);
    let broken = planner.broken(end, plan.expected.slowdown, plan.expected.carbon);
    let keeps_times = broken.iter().all(|broken| broken.promise.bounds_time());
    keeps_times.then_some(Continued { plan, cost, cost_of_new })
}

/// Returns whether the two plans can be compared, and the new plan does not rule out the current one's pauses.
fn may_continue(old: &Plan, new: &Plan, now: DateTime<Utc>) -> bool {
    if old.verdict != Verdict::Optimal || new.verdict != Verdict::Optimal || new.is_restrained() {
        return false;
    }
    // The new plan has no pause if none is worth its risk any more, although a pause may cost less in expectation.
    let pauses = |plan: &Plan| plan.segments.iter().any(|s| s.activity == JobActivity::Paused && s.slot.end() > now);
    !pauses(old) || pauses(new)
}

/// Returns the current plan's segments from now on, with the present profile's power and throughput, divided by
/// `slots`. An endless job's plans cover a moving window, so the new plan covers the time after the old window's end.
/// `None` if a setting is not usable any more.
fn remaining_segments(
    old: &Plan,
    new: &Plan,
    planner: &Planner<'_>,
    slots: &[PlanSlot],
    endless: bool,
) -> Option<Vec<Segment>> {
    let known = &planner.request.profile.points;
    let at_new_throughput = |s: &Segment| {
        let point = *planner.choice.places.iter().find(|place| known[**place].setting == s.setting)?;
        let (power, throughput) = (known[point].power.mean, known[point].throughput.mean);
        Some(match s.activity {
            JobActivity::Training => Segment { point, power, throughput, ..s.clone() },
            JobActivity::Paused => Segment { point, ..s.clone() },
            JobActivity::Resuming => Segment { point, power, ..s.clone() },
        })
    };
    let (now, ended) = (planner.request.now, old.ends_at());
    let ahead = old.segments.iter().map(|s| (s, now));
    let gained = new.segments.iter().filter(|_| endless).map(|s| (s, ended));
    let mut pieces = Vec::new();
    for (s, start) in ahead.chain(gained).filter(|(s, start)| s.slot.end() > *start) {
        let slot = Slot::new(s.slot.start().max(start), s.slot.end())?;
        within_slots(&Segment { slot, ..at_new_throughput(s)? }, slots, &mut pieces);
    }
    Some(pieces)
}

/// Makes the segments do the work that is due: moves their end, or changes settings where the end is fixed, as it is
/// for an endless job's window. `None` if the segments deviate too much from that work, or if some would be missing.
fn fit_to_work(
    mut pieces: Vec<Segment>,
    planner: &Planner<'_>,
    problem: &Problem,
    endless: bool,
) -> Option<Vec<Segment>> {
    let work = problem.work();
    let missing = work - pieces.iter().map(Segment::samples).sum();
    if pieces.is_empty() || missing.abs() > work * FAR_OFF {
        return None;
    }
    let (known, places) = (&planner.request.profile.points, &planner.choice.places);
    let fastest = places[planner.choice.fastest()];
    let slowest = *places.iter().min_by(|a, b| known[**a].throughput.mean.total_cmp(&known[**b].throughput.mean))?;
    let to = |place: usize, s: &Segment| Segment {
        point: place,
        setting: known[place].setting.clone(),
        power: known[place].power.mean,
        throughput: known[place].throughput.mean,
        ..s.clone()
    };
    let missing = if missing.abs() <= work * NEGLIGIBLE {
        missing
    } else if missing > Samples::ZERO {
        let (latest, slots) = (problem.latest_end(), problem.slots());
        let missing = if endless { missing } else { extend(&mut pieces, missing, latest, slots) };
        make_up(&mut pieces, missing, |s| to(fastest, s))
    } else if endless {
        -make_up(&mut pieces, -missing, |s| to(slowest, s))
    } else {
        shorten(&mut pieces, -missing);
        Samples::ZERO
    };
    let tolerance = (known[fastest].throughput.mean * RESOLUTION).max(work * NEGLIGIBLE);
    (missing <= tolerance).then_some(pieces)
}

/// Splits a segment at slot boundaries and gives each piece the intensity of its slot.
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

/// Extends the plan at its last setting to do `missing` work, at most until `latest`; returns the work that is still
/// missing.
fn extend(pieces: &mut Vec<Segment>, missing: Samples, latest: Option<DateTime<Utc>>, slots: &[PlanSlot]) -> Samples {
    let Some(last) = pieces.last().filter(|s| s.activity == JobActivity::Training).cloned() else { return missing };
    let start = last.slot.end();
    let wanted = start + (missing / last.throughput).to_delta();
    let Some(more) = Slot::new(start, latest.map_or(wanted, |latest| wanted.min(latest))) else { return missing };
    let before = pieces.len();
    within_slots(&Segment { slot: more, ..last }, slots, pieces);
    missing - pieces[before..].iter().map(Segment::samples).sum()
}

/// Shortens the plan at its end by the surplus work.
fn shorten(pieces: &mut Vec<Segment>, mut surplus: Samples) {
    while let Some(last) = pieces.last_mut() {
        if surplus <= Samples::ZERO && last.activity == JobActivity::Training {
            return;
        }
        let keep = last.slot.duration() - surplus / last.throughput;
        let kept = Slot::new(last.slot.start(), last.slot.start() + keep.max(Seconds::ZERO).to_delta());
        match kept.filter(|_| last.activity == JobActivity::Training) {
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

/// Applies `changed` to segments, from the plan's end backwards, until the change of samples amounts to `missing`;
/// returns the part of `missing` that is left.
fn make_up(pieces: &mut Vec<Segment>, mut missing: Samples, changed: impl Fn(&Segment) -> Segment) -> Samples {
    for place in (0..pieces.len()).rev() {
        if missing <= Samples::ZERO {
            break;
        }
        let piece = &pieces[place];
        let other = changed(piece);
        let gain = (other.throughput - piece.throughput).abs();
        if piece.activity != JobActivity::Training || gain <= SamplesPerSecond::ZERO {
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

/// Returns the cost of a segment in the objective of `planning.md` §2, in grams.
fn cost_of(s: &Segment, problem: &Problem) -> f64 {
    let slots = problem.slots();
    let slot = slots.partition_point(|slot| slot.slot.end() <= s.slot.start()).min(slots.len() - 1);
    problem.joule_cost(slot) * s.energy().get() + problem.time_cost() * s.slot.duration().get()
}
