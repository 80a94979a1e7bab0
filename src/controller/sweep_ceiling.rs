//! How far up a job can be measured under the node's cap, and what becomes of its sweep until more is possible.
//!
//! A cap that holds at all times lowers a job's ceiling for good. One that comes and goes does so only where it leaves no
//! room for long: then the job is measured as far as it can be and planned with that, and what was out of reach is
//! measured once there is room. For a cap that lifts soon the sweep waits, and takes no room from others meanwhile.

use chrono::{DateTime, TimeDelta, Utc};

use super::cap::LimitPriority;
use super::job::{Group, Job, Known};
use super::replan::ReplanReason;
use super::{Controller, Gpu};
use wattune_core::domain::{CapSchedule, JobId, PowerLimit, Slot};
use wattune_core::profile::Profiler;
use wattune_core::time::Now;
use wattune_core::units::Watts;

/// A sweep waits for room that comes within so long.
const PATIENCE: TimeDelta = TimeDelta::hours(1);
/// Room for less time than this is not worth beginning a measurement with.
const WORTHWHILE: TimeDelta = TimeDelta::minutes(15);

/// What the node's cap makes of a job's sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum SweepCeiling {
    /// Nothing.
    #[default]
    Whole,
    /// It waits for room.
    Waits {
        /// When there will be some, as far as that is known.
        until: Option<DateTime<Utc>>,
        /// What is to be measured, summed over its boards.
        wanted: Watts,
        /// What there is for them now.
        room: Watts,
    },
    /// It is measured up to lower limits than its boards allow.
    Lowered {
        /// Of each group of equal boards.
        to: Vec<PowerLimit>,
    },
}

impl Controller {
    /// Lowers the ceilings of a job's boards to what a cap that holds at all times ever leaves them, with all other boards
    /// at their lowest limits: what is above can neither be measured nor used.
    pub(super) fn keep_within_reach(&self, groups: &mut [Group]) {
        let Some(cap) = self.constant_cap() else { return };
        let room = cap - self.others(groups, |_| false);
        lower(groups, room, None);
    }

    /// Has the sweeps of all jobs go as far as the node's cap lets them.
    pub(super) fn fit_sweeps(&mut self) {
        if self.settings.observe {
            return;
        }
        let now = self.now();
        let schedule = self.cap_schedule(now.utc);
        let ids: Vec<JobId> = self.jobs.values().filter(|j| j.spec.control).map(|j| j.id.clone()).collect();
        for id in ids {
            let Some((ceilings, reach)) = self.jobs.get(&id).and_then(|j| self.reach(j, &schedule, now)) else {
                continue;
            };
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if job.groups.iter().map(|g| g.range.ceiling).ne(ceilings.iter().copied()) {
                let words: Vec<String> = ceilings.iter().map(ToString::to_string).collect();
                tracing::info!(job.id = %id, "job {id}: measured up to {} from now on, as the node's cap allows", words.join(" + "));
                job.reach_up_to(&ceilings, self.profiling.clone());
            }
            job.reach = reach;
        }
    }

    /// The ceilings that a job's sweep goes up to, and what that makes of it; `None` where it stays as it is.
    fn reach(&self, job: &Job, schedule: &CapSchedule, now: Now) -> Option<(Vec<PowerLimit>, SweepCeiling)> {
        let profiler = job.profiler.as_ref()?;
        let lowered = job.groups.iter().zip(&job.whole).any(|(g, whole)| g.range.ceiling < *whole);
        if profiler.is_complete() && !lowered {
            return Some((job.whole.clone(), SweepCeiling::Whole));
        }
        let mut groups = job.groups.clone();
        groups.iter_mut().zip(&job.whole).for_each(|(g, whole)| g.range.ceiling = *whole);
        // What is measured or planned with already is left only for room that is there and lasts.
        let cap = match profiler.is_complete() || lowered {
            true => schedule.over(&Slot::new(now.utc, now.utc + WORTHWHILE)?),
            false => most_ahead(schedule, now.utc),
        };
        let soon = now.utc + PATIENCE;
        if let Some(cap) = cap {
            let by_hand = |gpu: &Gpu| gpu.manual.is_some_and(|m| m.until_utc > soon);
            let room = cap - self.others(&groups, by_hand);
            lower(&mut groups, room, Some(self.profiling.step_w));
        }
        let ceilings: Vec<PowerLimit> = groups.iter().map(|g| g.range.ceiling).collect();
        let raised = groups.iter().zip(&job.groups).any(|(new, old)| new.range.ceiling > old.range.ceiling);
        if profiler.is_complete() && !raised {
            let to = job.groups.iter().map(|g| g.range.ceiling).collect();
            return Some((job.groups.iter().map(|g| g.range.ceiling).collect(), SweepCeiling::Lowered { to }));
        }
        let wanted = profiler.wanted().filter(|_| ceilings.iter().eq(job.groups.iter().map(|g| &g.range.ceiling)));
        let wanted: Watts = match wanted {
            Some(setting) => job.groups.iter().zip(setting).map(|(g, set)| set.limit.watts() * g.boards()).sum(),
            None => groups.iter().map(|g| g.range.ceiling.watts() * g.boards()).sum(),
        };
        let others = self.others(&groups, |gpu| gpu.manual.is_some());
        let room = self.cap_now(schedule, now.utc).map(|cap| cap - others).filter(|room| *room < wanted);
        // What even the lowest limits exceed is not waited for.
        let lowest: Watts = groups.iter().map(|g| g.range.min.watts() * g.boards()).sum();
        let reach = match room.filter(|_| wanted > lowest) {
            Some(room) => SweepCeiling::Waits { until: room_again(schedule, now.utc, wanted + others), wanted, room },
            None if ceilings != job.whole => SweepCeiling::Lowered { to: ceilings.clone() },
            None => SweepCeiling::Whole,
        };
        Some((ceilings, reach))
    }

    /// What all boards but those of some groups count with at the least; those that are `held` with what they want.
    fn others(&self, groups: &[Group], held: impl Fn(&Gpu) -> bool) -> Watts {
        let is_mine = |gpu: &&Gpu| groups.iter().any(|g| g.members.contains(gpu.id()));
        let least = |gpu: &Gpu| match (self.claim(gpu), gpu.range(), gpu.manual) {
            (LimitPriority::Fixed, ..) | (_, None, _) => gpu.in_force().map_or(Watts::ZERO, PowerLimit::watts),
            (_, _, Some(manual)) if held(gpu) => manual.limit.watts(),
            (_, Some(range), _) => range.min.watts(),
        };
        self.gpus.iter().filter(|gpu| !is_mine(gpu)).map(least).sum()
    }
}

/// Lowers ceilings to what fits into `room`, each by the same part of what it can give; with `step`, to a rung of the
/// ladder from the present ceiling, so that what is measured there is of use later.
fn lower(groups: &mut [Group], room: Watts, step: Option<Watts>) {
    let lowest: Watts = groups.iter().map(|g| g.range.min.watts() * g.boards()).sum();
    let above: Watts = groups.iter().map(|g| (g.range.ceiling.watts() - g.range.min.watts()) * g.boards()).sum();
    if above <= Watts::ZERO {
        return;
    }
    let part = ((room - lowest) / above).clamp(0.0, 1.0);
    for group in groups.iter_mut().filter(|_| part < 1.0) {
        let (min, ceiling) = (group.range.min.watts(), group.range.ceiling.watts());
        let exact = min + (ceiling - min) * part;
        let reach = match step {
            Some(step) => ceiling - step * ((ceiling - exact) / step - 1e-9).ceil(),
            None => Watts::new(exact.get().floor()),
        };
        group.range.ceiling = PowerLimit::from_watts(reach.max(min)).clamp(group.range.min, group.range.ceiling);
    }
}

/// The highest cap for a worthwhile time that begins soon; `None` where there is no cap for such a time.
fn most_ahead(schedule: &CapSchedule, now: DateTime<Utc>) -> Option<Watts> {
    let mut starts = schedule.boundaries(now, now + PATIENCE);
    starts.insert(0, now);
    let caps = starts.iter().map(|at| schedule.over(&Slot::new(*at, *at + WORTHWHILE)?));
    caps.reduce(|most, cap| Some(most?.max(cap?))).flatten()
}

/// When the cap allows so much next for a worthwhile time, as far as is soon.
fn room_again(schedule: &CapSchedule, now: DateTime<Utc>, wanted: Watts) -> Option<DateTime<Utc>> {
    let allows = |at: &DateTime<Utc>| {
        Slot::new(*at, *at + WORTHWHILE).is_some_and(|slot| schedule.over(&slot).is_none_or(|cap| cap >= wanted))
    };
    schedule.boundaries(now, now + PATIENCE).into_iter().find(allows)
}

impl Job {
    /// Goes on measuring up to other ceilings; what is known is kept.
    fn reach_up_to(&mut self, ceilings: &[PowerLimit], settings: wattune_core::profile::Settings) {
        let known = |p: &Profiler| Known { record: p.record().clone(), expected: p.expected() };
        let Some(known) = self.profiler.as_ref().map(known) else { return };
        let whole = std::mem::take(&mut self.whole);
        let mut groups = self.groups.clone();
        groups.iter_mut().zip(ceilings).for_each(|(group, ceiling)| group.range.ceiling = *ceiling);
        self.equip(groups, settings, known);
        self.whole = whole;
        // A plan knows points by their places in the profile.
        self.plan = None;
        self.replan = Some(ReplanReason::OtherCeilings);
    }

    /// What a cap keeps from its sweep, in one sentence.
    pub(super) fn reach_in_words(&self) -> Option<String> {
        match &self.reach {
            SweepCeiling::Whole => None,
            SweepCeiling::Waits { until, wanted, room } => {
                let until = until.map_or("until there is room".into(), |at| format!("until {}", at.format("%FT%TZ")));
                Some(format!(
                    "measuring waits {until}: the node's cap leaves its boards {:.0} W of the {:.0} W to be measured",
                    room.get().max(0.0),
                    wanted.get()
                ))
            }
            SweepCeiling::Lowered { to } => {
                let to: Vec<String> = to.iter().map(ToString::to_string).collect();
                Some(format!(
                    "the node's cap keeps it from its highest limits for long: it is measured up to {} and its slowdown is \
                     reckoned from there until there is room for more",
                    to.join(" + ")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::domain::GpuId;
    use wattune_core::profile::ladder::GroupRange;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    fn group(ceiling: u32, boards: u32) -> Group {
        let members = (0..boards).map(|b| GpuId::new(format!("GPU-{b}")).expect("an id")).collect();
        let range = GroupRange { boards, ..GroupRange::of_limits(w(ceiling), w(100)) };
        Group { model: "A".into(), members, range }
    }

    #[test]
    fn ceilings_are_lowered_to_rungs_that_fit() {
        let table = [(560.0, 280), (559.0, 255), (510.0, 255), (509.0, 230), (250.0, 105), (209.0, 100), (10.0, 100)];
        for (room, ceiling) in table {
            let mut groups = [group(280, 2)];
            lower(&mut groups, Watts::new(room), Some(Watts::new(25.0)));
            assert_eq!(groups[0].range.ceiling, w(ceiling), "{room} W");
        }
        let mut groups = [group(280, 2)];
        lower(&mut groups, Watts::new(500.9), None);
        assert_eq!(groups[0].range.ceiling, w(250));
    }
}
