//! Power and emissions that a node's cap and carbon budget leave for the jobs that are planned jointly.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::controller::accounting::BudgetAccount;
use crate::controller::cap::{Cap, Demand};
use crate::controller::jobs::{Job, Phase};
use wattune_core::cap::{LimitPurpose, LimitRequest};
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
    /// Limits with which GPUs that belong to no job in `members` count against the cap.
    others: BTreeMap<GpuId, Counted>,
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
            LimitPurpose::Idle if request.unyielding => Self::Always(request.in_force),
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
        let counted = |(id, request): (GpuId, LimitRequest)| {
            let manual = demand.gpus.get(&id)?.manual.as_ref();
            Some((id, Counted::of(&request, manual.and_then(|manual| manual.until_utc()))))
        };
        let others = others.filter_map(counted).collect();
        let members = members.into_iter().map(|job| job.id.clone()).collect();
        Some(Self { schedule, budget, members, others, lead: cap.lead(demand.settings) })
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
            Some((slot, (cap - others).max(Watts::ZERO)))
        };
        let slots = cuts.windows(2).filter_map(|w| Some((Slot::new(w[0], w[1])?, w[1] + lead)));
        let after = Slot::new(until, until + TimeDelta::days(3650)).map(|slot| (slot, until + BEYOND));
        TimeSeries::from_points(slots.chain(after).filter_map(left).collect()).0
    }
}

/// Returns whether a job takes part in joint planning: the job's limits follow a plan, so they have to fit under the
/// cap.
fn is_member(job: &Job, observes: bool) -> bool {
    let follows = !matches!(job.phase, Phase::Waiting | Phase::Profiling | Phase::Observing);
    let is_present = !job.is_absent();
    job.is_profiled() && is_present && (follows || (observes && job.controls()))
}
