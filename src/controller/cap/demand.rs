//! Demand on the node's cap: the set point (power limit and clock) wanted for each GPU, and its request to the cap.

use crate::controller::gpus::{Gpu, Gpus};
use crate::controller::jobs::{Jobs, Phase, SweepCeiling};
use crate::controller::settings::Settings;
use wattune_core::cap::{LimitPurpose, LimitRequest};
use wattune_core::domain::{GpuId, SetPoint};
use wattune_core::time::Now;
use wattune_core::units::Samples;

/// References to the GPUs and their jobs, and the time at which they are read.
#[derive(Clone, Copy)]
pub(crate) struct Demand<'a> {
    pub(crate) gpus: &'a Gpus,
    pub(crate) jobs: &'a Jobs,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Now,
}

impl Demand<'_> {
    /// Returns the set point wanted for a GPU by its manual override, else by its job; `None` if neither wants one.
    pub(crate) fn set_point(&self, id: &GpuId) -> Option<SetPoint> {
        let gpu = self.gpus.get(id)?;
        if self.settings.observe {
            return None;
        }
        if let Some(manual) = &gpu.manual {
            return Some(manual.limit.into());
        }
        let job = self.jobs.get(gpu.owner.as_ref()?)?;
        let ceiling = self.gpus.ceiling(id)?;
        job.wanted(id, self.now).map(|set| SetPoint { limit: set.limit.min(ceiling), ..set })
    }

    /// Returns, for each GPU that has reported a limit, the GPU's request for a part of the cap.
    pub(crate) fn requests(&self) -> Vec<(GpuId, LimitRequest)> {
        self.gpus.iter().filter_map(|gpu| Some((gpu.id().clone(), self.request(gpu)?))).collect()
    }

    fn request(&self, gpu: &Gpu) -> Option<LimitRequest> {
        let in_force = gpu.in_force()?;
        let original = self.gpus.original_limit(gpu.id()).unwrap_or(in_force);
        let set_point = self.set_point(gpu.id()).map(|set| set.limit);
        let purpose = self.purpose(gpu);
        let (floor, ceiling) = match gpu.range() {
            Some(range) if purpose != LimitPurpose::Fixed => (range.min, range.ceiling(original)),
            _ => (in_force, in_force),
        };
        let wanted = set_point.unwrap_or(original);
        let most = match purpose {
            LimitPurpose::Job { .. } | LimitPurpose::Sweep { .. } => ceiling,
            LimitPurpose::Fixed | LimitPurpose::Idle | LimitPurpose::Manual => wanted,
        };
        let (unyielding, unplanned) = (gpu.is_unyielding(), set_point.is_none());
        Some(LimitRequest { in_force, wanted, floor, most, purpose, unyielding, unplanned })
    }

    /// Returns the purpose of a GPU's limit, which decides when the limit is lowered under the cap.
    pub(crate) fn purpose(&self, gpu: &Gpu) -> LimitPurpose {
        let owner = gpu.owner.as_ref().and_then(|id| self.jobs.get(id));
        let is_silent = gpu.observed.fault.is_some() || gpu.observed.reading.requested.is_none();
        let not_ours = gpu.external.is_some() || gpu.handle.capabilities().why_no_control().is_some();
        if is_silent || not_ours {
            return LimitPurpose::Fixed;
        }
        if gpu.manual.is_some() {
            return LimitPurpose::Manual;
        }
        let Some(job) = owner else {
            // The operator's cap also applies to GPUs whose jobs wattune does not control.
            let guests = gpu.guests.iter().filter_map(|id| self.jobs.get(id));
            let highest = guests.map(|job| job.spec.priority).max();
            return highest.map_or(LimitPurpose::Idle, |priority| LimitPurpose::Job { priority });
        };
        let priority = job.spec.priority;
        let finished = job.remaining().is_some_and(|left| left <= Samples::ZERO);
        match job.phase {
            // A job that has not reported yet may not train yet; one that has reported to an earlier daemon does.
            Phase::Waiting if job.progress.last.is_none() => LimitPurpose::Idle,
            Phase::Observing if finished => LimitPurpose::Idle,
            // A sweep that waits for power claims none of the cap.
            Phase::Profiling if matches!(job.sweep_ceiling, SweepCeiling::Waiting { .. }) => LimitPurpose::Idle,
            Phase::Profiling => LimitPurpose::Sweep { priority, seniority: -job.registered_at.timestamp_micros() },
            _ => LimitPurpose::Job { priority },
        }
    }
}
