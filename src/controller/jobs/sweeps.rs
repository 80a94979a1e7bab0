//! The ceilings of each job's sweep under the node's cap. A sweep is a profiling run through the power limits; its
//! ceilings are the highest limits that it measures, one per group of equal GPUs.
//!
//! A constant cap lowers the ceilings for good. A temporary cap lowers them only if it leaves too little power for
//! long: then the job is measured and planned up to lower ceilings, and the higher limits are measured once there is
//! enough power. If there will be enough power soon, the sweep waits instead, and claims no power meanwhile.

use chrono::{DateTime, TimeDelta, Utc};

use super::job::{Group, Job, PriorProfile, SweepCeiling};
use crate::controller::gpus::Gpu;
use crate::controller::planning::ReplanReason;
use crate::controller::snapshot::Snapshot;
use wattune_core::cap::LimitPurpose;
use wattune_core::domain::{CapSchedule, JobId, PowerLimit, Slot};
use wattune_core::profile::steps::joined;
use wattune_core::profile::{Profiler, Settings as ProfileSettings};
use wattune_core::units::{Seconds, Watts};

/// Maximum time for which a sweep waits for power.
const PATIENCE: TimeDelta = TimeDelta::hours(1);
/// Minimum time for which there must be enough power to make the beginning of a measurement worthwhile.
const WORTHWHILE: TimeDelta = TimeDelta::minutes(15);

/// Ceilings of a job's sweep (highest limits that it measures) now, and the effect of the node's cap on them.
pub(crate) struct SweepFit {
    pub(crate) job: JobId,
    ceilings: Vec<PowerLimit>,
    sweep_ceiling: SweepCeiling,
}

impl Snapshot<'_> {
    /// Lowers the ceilings (maximum usable limits) of a job's GPUs to what a constant cap leaves for these GPUs while
    /// all other GPUs are at their lowest limits. Higher limits could neither be measured nor used. GPUs that cannot be
    /// lowered just now, such as silent ones, count with their lowest limits too: they lower no ceiling for good.
    pub(crate) fn lower_to_constant_cap(&self, groups: &mut [Group]) {
        let Some(cap) = self.cap.constant(self.gpus.maximum_limits()) else { return };
        let least = |gpu: &Gpu| match gpu.range().filter(|_| gpu.handle.capabilities().why_no_control().is_none()) {
            Some(range) => range.min.watts(),
            None => gpu.in_force().map_or(Watts::ZERO, PowerLimit::watts),
        };
        let others: Watts = self.gpus.iter().filter(|gpu| !is_in(groups, gpu)).map(least).sum();
        lower(groups, cap - others, None);
    }

    /// Returns the ceilings of the sweep and the cap's effect for each controlled job that has a profiler; an empty
    /// list in observe mode.
    pub(crate) fn sweep_fits(&self) -> Vec<SweepFit> {
        if self.settings.observe {
            return Vec::new();
        }
        let schedule = self.cap.schedule_ahead(self.gpus.maximum_limits(), self.settings, self.now.utc);
        let fit = |job: &Job| {
            let (ceilings, sweep_ceiling) = self.ceilings_of(job, &schedule)?;
            Some(SweepFit { job: job.id.clone(), ceilings, sweep_ceiling })
        };
        self.jobs.iter().filter(|job| job.controls() && !job.is_absent()).filter_map(fit).collect()
    }

    /// Returns the ceilings of a job's sweep and the effect of the cap; `None` if the job has no profiler.
    fn ceilings_of(&self, job: &Job, schedule: &CapSchedule) -> Option<(Vec<PowerLimit>, SweepCeiling)> {
        let profiler = job.profiler.as_ref()?;
        // After a restart of the daemon, a job whose ceilings were lowered has the full ones until this call.
        let is_complete = profiler.is_complete() && !job.was_lowered;
        let lowered =
            job.was_lowered || job.groups.iter().zip(&job.full_ceilings).any(|(g, full)| g.range.ceiling < *full);
        if schedule.is_empty() || (is_complete && !lowered) {
            return Some((job.full_ceilings.clone(), SweepCeiling::Full));
        }
        let mut groups = job.groups.clone();
        groups.iter_mut().zip(&job.full_ceilings).for_each(|(g, full)| g.range.ceiling = *full);
        // The ceilings of a complete or lowered sweep are raised only if there is enough power from now on for long
        // enough.
        let cap = match is_complete || lowered {
            true => schedule.over(&Slot::new(self.now.utc, self.now.utc + WORTHWHILE)?),
            false => most_ahead(schedule, self.now.utc, self.cap.lead(self.settings)),
        };
        let soon = self.now.utc + PATIENCE;
        if let Some(cap) = cap {
            let by_hand =
                |gpu: &Gpu| gpu.manual.as_ref().is_some_and(|m| m.until_utc().is_none_or(|until| until > soon));
            let room = cap - self.others(&groups, by_hand);
            lower(&mut groups, room, Some(self.profiling.step_w));
        }
        let ceilings: Vec<PowerLimit> = groups.iter().map(|g| g.range.ceiling).collect();
        let raised = groups.iter().zip(&job.groups).any(|(new, old)| new.range.ceiling > old.range.ceiling);
        if is_complete && !raised {
            let to = job.groups.iter().map(|g| g.range.ceiling).collect();
            return Some((job.groups.iter().map(|g| g.range.ceiling).collect(), SweepCeiling::Lowered { to }));
        }
        let wanted = profiler.wanted().filter(|_| ceilings.iter().eq(job.groups.iter().map(|g| &g.range.ceiling)));
        let wanted: Watts = match wanted {
            Some(setting) => job.groups.iter().zip(setting).map(|(g, set)| set.limit.watts() * g.gpu_count()).sum(),
            None => groups.iter().map(|g| g.range.ceiling.watts() * g.gpu_count()).sum(),
        };
        let others = self.others(&groups, |gpu| gpu.manual.is_some());
        let room =
            self.cap.soon(schedule, self.settings, self.now.utc).map(|cap| cap - others).filter(|room| *room < wanted);
        // A sweep at the lowest limits does not wait: there is nothing lower to measure.
        let lowest: Watts = groups.iter().map(|g| g.range.min.watts() * g.gpu_count()).sum();
        let sweep_ceiling = match room.filter(|_| wanted > lowest) {
            Some(room) => {
                SweepCeiling::Waiting { until: room_again(schedule, self.now.utc, wanted + others), wanted, room }
            }
            None if ceilings != job.full_ceilings => SweepCeiling::Lowered { to: ceilings.clone() },
            None => SweepCeiling::Full,
        };
        Some((ceilings, sweep_ceiling))
    }

    /// Returns the lowest possible sum of the limits of all GPUs that are not in `groups`. A GPU with a manual override
    /// counts with the override's limit if `held` returns true for the GPU.
    fn others(&self, groups: &[Group], held: impl Fn(&Gpu) -> bool) -> Watts {
        let demand = self.demand();
        let least = |gpu: &Gpu| match (demand.purpose(gpu), gpu.range(), &gpu.manual) {
            (LimitPurpose::Fixed, ..) | (_, None, _) => gpu.in_force().map_or(Watts::ZERO, PowerLimit::watts),
            (_, _, Some(manual)) if held(gpu) => manual.limit.watts(),
            (_, Some(range), _) => range.min.watts(),
        };
        self.gpus.iter().filter(|gpu| !is_in(groups, gpu)).map(least).sum()
    }
}

fn is_in(groups: &[Group], gpu: &Gpu) -> bool {
    groups.iter().any(|g| g.members.contains(gpu.id()))
}

/// Lowers the groups' ceilings so that their sum fits into `room`, each by the same fraction of its range. With `step`
/// (the distance between measured limits), lowers each by whole steps, so that a later full sweep can use the
/// measurements.
fn lower(groups: &mut [Group], room: Watts, step: Option<Watts>) {
    let lowest: Watts = groups.iter().map(|g| g.range.min.watts() * g.gpu_count()).sum();
    let above: Watts = groups.iter().map(|g| (g.range.ceiling.watts() - g.range.min.watts()) * g.gpu_count()).sum();
    if above <= Watts::ZERO {
        return;
    }
    let part = ((room - lowest) / above).clamp(0.0, 1.0);
    for group in groups.iter_mut().filter(|_| part < 1.0) {
        let (min, ceiling) = (group.range.min.watts(), group.range.ceiling.watts());
        let exact = min + (ceiling - min) * part;
        let sweep_ceiling = match step {
            Some(step) => ceiling - step * ((ceiling - exact) / step - 1e-9).ceil(),
            None => Watts::new(exact.get().floor()),
        };
        group.range.ceiling =
            PowerLimit::from_watts(sweep_ceiling.max(min)).clamp(group.range.min, group.range.ceiling);
    }
}

/// Returns the highest power that the cap allows for the next `lead`, in which limits go down for a lower cap, or for
/// `WORTHWHILE` from one of its changes within `PATIENCE`; `None` if there is no cap throughout one of these times.
fn most_ahead(schedule: &CapSchedule, now: DateTime<Utc>, lead: Seconds) -> Option<Watts> {
    let starts = schedule.boundaries(now, now + PATIENCE);
    let ahead = starts.into_iter().map(|at| (at, WORTHWHILE)).chain([(now, lead.to_delta())]);
    let caps = ahead.map(|(at, span)| schedule.over(&Slot::new(at, at + span)?));
    caps.reduce(|most, cap| Some(most?.max(cap?))).flatten()
}

/// Returns the first change of the cap within `PATIENCE` from which on the cap allows `wanted` for at least
/// `WORTHWHILE`; `None` if there is none.
fn room_again(schedule: &CapSchedule, now: DateTime<Utc>, wanted: Watts) -> Option<DateTime<Utc>> {
    let allows = |at: &DateTime<Utc>| {
        Slot::new(*at, *at + WORTHWHILE).is_some_and(|slot| schedule.over(&slot).is_none_or(|cap| cap >= wanted))
    };
    schedule.boundaries(now, now + PATIENCE).into_iter().find(allows)
}

impl Job {
    /// Sets the ceilings of the job's sweep.
    pub(crate) fn fit_sweep(&mut self, fit: SweepFit, settings: &ProfileSettings) {
        if self.groups.iter().map(|g| g.range.ceiling).ne(fit.ceilings.iter().copied()) {
            let (id, to) = (&self.id, joined(&fit.ceilings));
            tracing::info!(job.id = %id, "job {id}: profiling measures limits up to {to} from now on, because of the node's cap");
            self.change_ceilings(&fit.ceilings, settings.clone());
        }
        self.sweep_ceiling = fit.sweep_ceiling;
        self.was_lowered = false;
    }

    /// Continues the sweep with other ceilings (highest limits to measure, one per group) and keeps the sweep's
    /// measurements.
    fn change_ceilings(&mut self, ceilings: &[PowerLimit], settings: ProfileSettings) {
        let known = |p: &Profiler| PriorProfile { record: p.record().clone(), expected: p.expected_limit() };
        let Some(known) = self.profiler.as_ref().map(known) else { return };
        let full = std::mem::take(&mut self.full_ceilings);
        let mut groups = self.groups.clone();
        groups.iter_mut().zip(ceilings).for_each(|(group, ceiling)| group.range.ceiling = *ceiling);
        self.note_other_ceilings(self.reference());
        self.equip(groups, settings, known);
        self.progress.has_lowered_ceilings = ceilings != full;
        self.note_profiler();
        self.full_ceilings = full;
        // A plan refers to points by their indices in the profile.
        self.plan = None;
        self.replan = Some(ReplanReason::OtherCeilings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::domain::GpuId;
    use wattune_core::profile::steps::GroupRange;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    fn group(ceiling: u32, gpus: u32) -> Group {
        let members = (0..gpus).map(|b| GpuId::new(format!("GPU-{b}")).expect("an id")).collect();
        let range = GroupRange { gpus, ..GroupRange::of_limits(w(ceiling), w(100)) };
        Group { model: "A".into(), members, range }
    }

    #[test]
    fn ceilings_are_lowered_to_steps_that_fit() {
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
