//! Choice of the set point (power limits) to apply: the plan's, after a minimum time at the applied one (dwell), which
//! yields to time constraints, or a step of a ramp.

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{PowerLimit, Profile, SetPoint};
use crate::plan::job::{RESOLUTION, shortest_dwell};
use crate::plan::schedule::{JobActivity, Plan, Segment};
use crate::units::{Samples, SamplesPerSecond, Seconds, Watts};

/// Duration of each step of a ramp.
const STEP: TimeDelta = TimeDelta::minutes(1);

/// Limits on how often and how fast set points change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchingLimits {
    /// Minimum time at one set point.
    pub dwell: Seconds,
    /// Maximum change of a power limit per minute; `None` if unlimited. Values below 1 W count as 1 W.
    pub ramp_per_min: Option<Watts>,
}

/// The set point applied to a job, and the time since which it is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedSetPoint {
    /// One set point per group of equal GPUs.
    pub setting: Vec<SetPoint>,
    /// Time at which the setting was applied.
    pub since: DateTime<Utc>,
    /// True if the setting is an intermediate step of a ramp.
    pub ramping: bool,
    /// Activity requested from the job.
    pub activity: JobActivity,
}

/// Returns the set point to apply now: the plan's, the applied one (`applied`) if its minimum dwell has not passed, or
/// a step of a ramp from the applied one to the plan's. `None` if the plan does not cover `now`. `samples_done` are the
/// job's samples so far.
///
/// Time constraints take precedence over the dwell: if waiting at a slower set point would violate a constraint, the
/// faster one applies at once; a slower set point whose own dwell would violate a constraint is skipped. Pauses start
/// and end without delay.
pub fn next_set_point(
    applied: Option<&AppliedSetPoint>,
    plan: &Plan,
    profile: &Profile,
    samples_done: Samples,
    now: DateTime<Utc>,
    limits: &SwitchingLimits,
) -> Option<AppliedSetPoint> {
    let Segment { setting: wanted, throughput, activity, .. } = plan.segment_at(now)?;
    let dwell = shortest_dwell(limits.dwell, plan.samples_done + plan.expected.samples, profile).to_delta();
    let fresh = || AppliedSetPoint { setting: wanted.clone(), since: now, ramping: false, activity: *activity };
    let Some(applied) = applied.filter(|applied| applied.setting.len() == wanted.len()) else { return Some(fresh()) };
    let trains = *activity == JobActivity::Training && applied.activity == JobActivity::Training;
    if applied.setting == *wanted {
        return Some(AppliedSetPoint { activity: *activity, ramping: false, ..applied.clone() });
    }
    // A step that began later than now began before the clock was set back.
    if applied.ramping && (TimeDelta::zero()..STEP).contains(&(now - applied.since)) {
        return Some(AppliedSetPoint { activity: *activity, ..applied.clone() });
    }
    if trains && !applied.ramping {
        let kept = profile.at(&applied.setting).map_or(SamplesPerSecond::ZERO, |p| p.throughput.mean);
        // If the setting began later than now, the clock was set back, and the dwell counts as over.
        let stay = if applied.since > now { now } else { applied.since + dwell };
        let waits = if *throughput > kept {
            now < stay && may_wait(plan, samples_done, kept, now, stay)
        } else {
            now < stay || !may_wait(plan, samples_done, *throughput, now, now + dwell)
        };
        if waits {
            return Some(applied.clone());
        }
    }
    let step = limits.ramp_per_min.map(|ramp| ramp.max(Watts::new(1.0)));
    let towards = |(from, to): (&SetPoint, &SetPoint)| {
        let (from, target) = (from.limit.watts(), to.limit.watts());
        let Some(step) = step.filter(|step| (target - from).abs() > *step) else { return *to };
        let next = if target > from { from + step } else { from - step };
        SetPoint { limit: PowerLimit::from_watts(next), ..*to }
    };
    let setting: Vec<SetPoint> = applied.setting.iter().zip(wanted).map(towards).collect();
    Some(AppliedSetPoint { ramping: setting != *wanted, setting, since: now, activity: *activity })
}

/// Returns whether the job still ends in time if it stays at `throughput` until `until` and then runs at full speed.
fn may_wait(
    plan: &Plan,
    samples_done: Samples,
    throughput: SamplesPerSecond,
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> bool {
    let Some((latest_end, fastest)) = plan.slack else { return true };
    let wait = Seconds::from_delta(until - now).max(Seconds::ZERO);
    let left = plan.samples_done + plan.expected.samples - samples_done - throughput * wait;
    let needed = (left / fastest).max(Seconds::ZERO);
    let ends_before = left <= Samples::ZERO;
    ends_before || Seconds::from_delta(latest_end - now) + RESOLUTION >= wait + needed
}
