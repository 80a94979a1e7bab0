//! What a node's cap and carbon budget leave for the jobs that are planned together.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::Controller;
use super::cap::LimitPriority;
use super::job::{Job, Phase};
use wattune_core::domain::{CapSchedule, GpuId, JobId, PowerLimit, Slot, TimeSeries};
use wattune_core::profile::Stage;
use wattune_core::time::Now;
use wattune_core::units::{Seconds, Watts};

/// A sweep's boards are reckoned with at what is being measured for so long; then with their lowest limits.
const SWEEPING: TimeDelta = TimeDelta::minutes(15);
/// The cap is looked at for so long after the jobs' end: longer than windows take to repeat.
const BEYOND: TimeDelta = TimeDelta::days(8);

/// The cap and the budget, and who takes part in them how. Plans are made anew when it changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SharedBudget {
    schedule: CapSchedule,
    /// The carbon budget's present span.
    budget: Option<Slot>,
    /// Jobs that are planned together.
    pub(super) members: Vec<JobId>,
    /// What every other board counts with.
    others: BTreeMap<GpuId, Counted>,
    lead: Seconds,
}

/// What a board counts with that is not planned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Always(PowerLimit),
    /// While it is being measured, and afterwards.
    Sweeping(PowerLimit, PowerLimit),
    /// Until a moment, and afterwards.
    Until(DateTime<Utc>, PowerLimit, PowerLimit),
}

impl Counted {
    fn at(self, t: DateTime<Utc>, now: DateTime<Utc>) -> Watts {
        let limit = match self {
            Self::Always(limit) => limit,
            Self::Sweeping(limit, after) => {
                if t < now + SWEEPING {
                    limit
                } else {
                    after
                }
            }
            Self::Until(end, limit, after) => {
                if t < end {
                    limit
                } else {
                    after
                }
            }
        };
        limit.watts()
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
    /// Whether there is a cap at any time.
    pub(super) fn is_capped(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// What is left for the members' limits from now to well beyond `until`; absent where there is no cap. Falls come
    /// early by the lead with which limits are lowered.
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

impl Controller {
    /// What the cap and the budget leave for whom; `None` where there is neither.
    pub(super) fn share(&self, now: Now) -> Option<SharedBudget> {
        let schedule = self.cap_schedule(now.utc);
        let budget = self.accounting.budget().settings.span(now.utc);
        if schedule.is_empty() && budget.is_none() {
            return None;
        }
        let members: Vec<&Job> =
            self.jobs.values().filter(|job| self.is_member(job) && !job.rests_from_planning(now)).collect();
        let mut others = BTreeMap::new();
        let stakes = if schedule.is_empty() { Vec::new() } else { self.stakes(now) };
        for (id, stake) in stakes {
            if members.iter().any(|job| job.spec.gpus.contains(&id)) {
                continue;
            }
            let Some(gpu) = self.gpus.get(&id) else { continue };
            let counted = match stake.claim {
                LimitPriority::Fixed => Counted::Always(stake.in_force),
                // It is being lowered, unless it does not yield.
                LimitPriority::Idle if stake.unyielding => Counted::Always(stake.in_force),
                LimitPriority::Idle => Counted::Always(stake.floor),
                LimitPriority::Job { .. } => Counted::Always(stake.wanted),
                LimitPriority::Sweep { .. } => Counted::Sweeping(stake.wanted, stake.floor),
                LimitPriority::Manual => match gpu.manual {
                    Some(manual) => Counted::Until(manual.until_utc, stake.wanted, stake.floor),
                    None => Counted::Always(stake.wanted),
                },
            };
            others.insert(id, counted);
        }
        let members = members.into_iter().map(|job| job.id.clone()).collect();
        Some(SharedBudget { schedule, budget, members, others, lead: self.lead() })
    }

    /// Whether a job's limits follow a plan that has to fit under the cap.
    fn is_member(&self, job: &Job) -> bool {
        let learned = job.profiler.as_ref().is_some_and(|p| p.stage() == Stage::Done);
        let follows = !matches!(job.phase, Phase::Waiting | Phase::Profiling | Phase::Observing);
        learned && (follows || (self.settings.observe && job.spec.control))
    }

    /// What a cap counts with at each point of a job's profile, and once the job has ended.
    pub(super) fn counted_limits(&self, job: &Job) -> (Vec<Watts>, Watts) {
        let points = job.profile().points;
        let of_point = |setting: &[wattune_core::domain::SetPoint]| {
            let of_group =
                |(group, set): (&super::Group, &wattune_core::domain::SetPoint)| set.limit.watts() * group.boards();
            job.groups.iter().zip(setting).map(of_group).sum::<Watts>()
        };
        let floor = |id: &GpuId| self.gpus.get(id).and_then(super::Gpu::range).map_or(Watts::ZERO, |r| r.min.watts());
        (points.iter().map(|p| of_point(&p.setting)).collect(), job.spec.gpus.iter().map(floor).sum())
    }
}
