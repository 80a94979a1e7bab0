//! Power and emissions that a node's cap and carbon budget leave for the jobs that are planned jointly.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::controller::accounting::BudgetAccount;
use crate::controller::cap::{Cap, Demand};
use crate::controller::jobs::{Job, Phase};
use wattune_core::cap::{LimitPurpose, LimitRequest, allocate};
use wattune_core::domain::{CapSchedule, GpuId, JobId, PowerLimit, Slot, TimeSeries};
use wattune_core::units::{Seconds, Watts};

/// Assumed time until a profiling sweep ends. Until then its GPUs count against the cap with the limit that is being
/// measured, and afterwards with their lowest limit.
const SWEEPING: TimeDelta = TimeDelta::minutes(15);
/// Time after the jobs' end for which the cap is considered: longer than the period of weekly time windows.
const BEYOND: TimeDelta = TimeDelta::days(8);

/// Cap and carbon budget, the jobs that share them, and the limits reserved for other GPUs. A change in any of these
/// causes new plans.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SharedBudget {
    schedule: CapSchedule,
    /// Current period of the carbon budget; `None` without a budget for the current time.
    budget: Option<Slot>,
    /// Jobs that are planned jointly.
    pub(super) members: Vec<JobId>,
    /// Limits with which GPUs that belong to no job in `members` count against the cap, those in `unplanned` aside.
    others: BTreeMap<GpuId, Counted>,
    /// Requests of the GPUs whose jobs no plan controls. By the jobs' priorities, more or less of the cap is theirs.
    unplanned: Vec<LimitRequest>,
    /// Requests of all GPUs of `members` for their maximum limits; empty if `unplanned` is.
    most: Vec<LimitRequest>,
    lead: Seconds,
}

/// Power limit, over time, with which a GPU that is not planned jointly counts against the cap.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Always(PowerLimit),
    /// First the limit while the GPU's job is profiled, second the limit afterwards.
    Sweeping(PowerLimit, PowerLimit),
    /// First the end of a manual override, second the override's limit, third the limit after that end.
    Until(DateTime<Utc>, PowerLimit, PowerLimit),
}

impl Counted {
    /// Returns the limit, over time, with which the GPU that makes `request` counts against the cap; `until` is the end
    /// of the GPU's manual override, if it has one.
    fn of(request: &LimitRequest, until: Option<DateTime<Utc>>) -> Self {
        match request.purpose {
            LimitPurpose::Fixed => Self::Always(request.in_force),
            // The last write failed or had no full effect, so that the limit may stay in force.
            LimitPurpose::Idle | LimitPurpose::Job { .. } if request.unyielding => Self::Always(request.in_force),
            LimitPurpose::Idle => Self::Always(request.floor),
            LimitPurpose::Job { .. } => Self::Always(request.wanted),
            LimitPurpose::Sweep { .. } => Self::Sweeping(request.wanted, request.floor),
            LimitPurpose::Manual => match until {
                Some(until) => Self::Until(until, request.wanted, request.floor),
                None => Self::Always(request.wanted),
            },
        }
    }

    fn at(self, t: DateTime<Utc>, now: DateTime<Utc>) -> Watts {
        let ended = self.ends(now).is_some_and(|end| t >= end);
        match self {
            Self::Always(limit) => limit.watts(),
            Self::Sweeping(limit, after) | Self::Until(_, limit, after) => if ended { after } else { limit }.watts(),
        }
    }

    fn ends(self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Always(_) => None,
            Self::Sweeping(..) => Some(now + SWEEPING),
            Self::Until(end, ..) => Some(end),
        }
    }
}

impl SharedBudget {
    /// Returns the current shared budget; `None` if there is neither a cap nor a carbon budget.
    pub(super) fn of(demand: &Demand<'_>, cap: &Cap, budget: &BudgetAccount) -> Option<Self> {
        let now = demand.now;
        let schedule = cap.schedule(demand.gpus.maximum_limits(), now.utc);
        let budget = budget.span(now.utc);
        if schedule.is_empty() && budget.is_none() {
            return None;
        }
        let is_in = |job: &&Job| is_member(job, demand.settings.observe) && !job.rests_from_planning(now);
        let members: Vec<&Job> = demand.jobs.iter().filter(is_in).collect();
        let planned: BTreeSet<&GpuId> = members.iter().flat_map(|job| &job.spec.gpus).collect();
        let requests = if schedule.is_empty() { Vec::new() } else { demand.requests() };
        let others = requests.into_iter().filter(|(id, _)| !planned.contains(id));
        let (unplanned, others): (Vec<_>, Vec<_>) = others.partition(|(_, request)| yields(request));
        let unplanned: Vec<LimitRequest> =
            unplanned.into_iter().map(|(_, request)| LimitRequest { in_force: request.floor, ..request }).collect();
        let with_unplanned = members.iter().filter(|_| !unplanned.is_empty());
        let most = with_unplanned.flat_map(|job| most(job, demand)).collect();
        let counted = |(id, request): (GpuId, LimitRequest)| {
            let manual = demand.gpus.get(&id)?.manual.as_ref();
            Some((id, Counted::of(&request, manual.and_then(|manual| manual.until_utc()))))
        };
        let others = others.into_iter().filter_map(counted).collect();
        let members = members.into_iter().map(|job| job.id.clone()).collect();
        Some(Self { schedule, budget, members, others, unplanned, most, lead: cap.lead(demand.settings) })
    }

    /// Returns whether there is a cap at any time.
    pub(super) fn is_capped(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Returns the power left for the members' limits from `now` to well beyond `until`; empty without a cap. Where the
    /// cap falls, the returned power falls earlier by `lead`, the time by which limits are lowered in advance.
    pub(super) fn left(&self, now: DateTime<Utc>, until: DateTime<Utc>) -> TimeSeries<Watts> {
        let (until, lead) = (until.max(now + TimeDelta::hours(1)), self.lead.to_delta());
        let mut cuts: Vec<DateTime<Utc>> = self.schedule.boundaries(now, until + lead);
        cuts.extend(cuts.clone().into_iter().map(|at| at - lead));
        cuts.extend(self.others.values().filter_map(|c| c.ends(now)));
        cuts.retain(|at| now < *at && *at < until);
        cuts.extend([now, until]);
        cuts.sort();
        cuts.dedup();
        let left = |(slot, look): (Slot, DateTime<Utc>)| {
            let cap = self.schedule.over(&Slot::new(slot.start(), look)?)?;
            let others: Watts = self.others.values().map(|c| c.at(slot.start(), now)).sum();
            let room = (cap - others).max(Watts::ZERO);
            Some((slot, (room - self.unplanned_of(room)).max(Watts::ZERO)))
        };
        let slots = cuts.windows(2).filter_map(|w| Some((Slot::new(w[0], w[1])?, w[1] + lead)));
        let after = Slot::new(until, until + TimeDelta::days(3650)).map(|slot| (slot, until + BEYOND));
        TimeSeries::from_points(slots.chain(after).filter_map(left).collect()).0
    }

    /// Returns the part of `room` that the GPUs without a plan get if all members request their maximum. A GPU without
    /// a plan may get what members of higher priority leave before members of lower priority do: these can then only
    /// rely on what is left if the former request their minimum.
    fn unplanned_of(&self, room: Watts) -> Watts {
        let lowest = self.most.iter().map(|request| request.purpose).min();
        let competes = lowest.is_some_and(|lowest| self.unplanned.iter().any(|request| request.purpose >= lowest));
        let member = |request: &LimitRequest| match competes && Some(request.purpose) > lowest {
            true => LimitRequest { wanted: request.floor, most: request.floor, ..*request },
            false => *request,
        };
        let requests: Vec<LimitRequest> = self.most.iter().map(member).chain(self.unplanned.iter().copied()).collect();
        let grants = allocate(&requests, Some(u64::from(room.to_milliwatts())));
        grants.iter().skip(self.most.len()).map(|grant| grant.limit.watts()).sum()
    }
}

/// Returns whether a job's GPU without a plan can be lowered in favour of planned jobs.
fn yields(request: &LimitRequest) -> bool {
    matches!(request.purpose, LimitPurpose::Job { .. }) && request.unplanned && !request.unyielding
}

/// Returns the requests of a job's GPUs for their maximum limits, whatever the GPUs' present state is.
fn most(job: &Job, demand: &Demand<'_>) -> Vec<LimitRequest> {
    let purpose = LimitPurpose::Job { priority: job.spec.priority };
    let request = |id: &GpuId| {
        let (floor, most) = (demand.gpus.get(id)?.range()?.min, demand.gpus.ceiling(id)?);
        Some(LimitRequest { in_force: floor, wanted: most, floor, most, purpose, unyielding: false, unplanned: false })
    };
    job.spec.gpus.iter().filter_map(request).collect()
}

/// Returns whether a job takes part in joint planning: the job's limits follow a plan, so they have to fit under the
/// cap.
fn is_member(job: &Job, observes: bool) -> bool {
    let follows = !matches!(job.phase, Phase::Waiting | Phase::Profiling | Phase::Observing);
    let is_present = !job.is_absent();
    job.is_profiled() && is_present && (follows || (observes && job.controls()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::domain::{ConfiguredCap, Level};

    #[test]
    fn jobs_without_a_plan_leave_power_by_their_priority() {
        let w = |watts: u32| PowerLimit::from_milliwatts(watts * 1000);
        let request = |priority: i32, unplanned: bool| LimitRequest {
            in_force: w(100),
            wanted: w(300),
            floor: w(100),
            most: w(300),
            purpose: LimitPurpose::Job { priority },
            unyielding: false,
            unplanned,
        };
        let now = DateTime::from_timestamp(1_800_000_000, 0).expect("in range");
        let left = |cap_w: u32, priorities: &[i32]| {
            let constant = Some(Level::Watts(Watts::new(f64::from(cap_w))));
            let cap = ConfiguredCap { constant, ..ConfiguredCap::default() };
            let shared = SharedBudget {
                schedule: CapSchedule::new(&cap, &[], Watts::new(900.0), now),
                budget: None,
                members: Vec::new(),
                others: BTreeMap::new(),
                unplanned: vec![request(0, true)],
                most: priorities.iter().map(|priority| request(*priority, false)).collect(),
                lead: Seconds::new(5.0),
            };
            shared.left(now, now + TimeDelta::hours(2)).points()[0].1
        };
        assert_eq!([[100], [0], [-100]].map(|one| left(420, &one)), [300.0, 210.0, 120.0].map(Watts::new));
        // What the first member leaves goes to the GPU without a plan before it goes to the second one.
        assert_eq!([[10, 0], [10, -10], [10, 5]].map(|two| left(700, &two)), [400.0, 400.0, 600.0].map(Watts::new));
    }
}
