//! Builder of the view of a GPU.

use super::megahertz;
use crate::controller::cap::LimitGrants;
use crate::controller::error::ControlError;
use crate::controller::gpus::{Gpu, GpuRef, concerns};
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{Concern, EnergyMethod, GpuState, GpuView};
use crate::gpu::GpuError;
use wattune_core::domain::{ClockLimit, PowerLimit};

impl Snapshot<'_> {
    /// Returns the views of all GPUs, in order of their index.
    pub(crate) fn gpus(&self, grants: &LimitGrants) -> Vec<GpuView> {
        let mut views: Vec<GpuView> = self.gpus.iter().map(|gpu| self.gpu_view(gpu, grants)).collect();
        views.sort_by_key(|gpu| gpu.index);
        views
    }

    /// Returns the view of one GPU.
    pub(crate) fn gpu(&self, which: &GpuRef) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        let gpu = self.gpus.get(&id).ok_or_else(|| ControlError::Conflict("the GPU is no longer present".into()))?;
        Ok(self.gpu_view(gpu, &self.grants()))
    }

    fn gpu_view(&self, gpu: &Gpu, grants: &LimitGrants) -> GpuView {
        let (identity, capabilities) = (gpu.handle.identity(), gpu.handle.capabilities());
        let (observed, reading, range) = (&gpu.observed, &gpu.observed.reading, gpu.range());
        let clocks = capabilities.clocks.as_ref().ok();
        let watts = |l: PowerLimit| l.watts().get();
        let cap = gpu.out_of_band_cap();
        let state = match (&observed.fault, &gpu.external) {
            (Some((GpuError::TimedOut { .. }, _)), _) => GpuState::Unresponsive,
            (Some(_), _) => GpuState::Lost,
            (None, Some(_)) => GpuState::External,
            (None, None) if gpu.why_no_control().is_some() => GpuState::Observed,
            (None, None) if gpu.manual.is_some() => GpuState::Override,
            (None, None) if gpu.owner.is_some() => GpuState::Job,
            (None, None) => GpuState::Free,
        };
        let capped = cap
            .map(|c| format!("an out-of-band cap holds the GPU at {c}; plans stay below this cap until it is lifted"));
        let set = grants.permitted(gpu.id(), self.demand().set_point(gpu.id()));
        let wanted = set.map(|set| set.limit);
        let held = grants.of(gpu.id()).and_then(|(request, grant)| {
            let cut = (grant.limit < request.wanted).then(|| {
                format!(
                    "the node's cap allows {} of the wanted {}; the limit is raised again when the cap rises",
                    grant.limit, request.wanted
                )
            });
            let waits = (!grant.now).then(|| {
                format!("{} is set once other GPUs' limits are lowered, to stay under the node's cap", grant.limit)
            });
            let parts: Vec<String> = cut.into_iter().chain(waits).collect();
            (!parts.is_empty()).then(|| parts.join("; "))
        });
        let unset = self.gpus.journal_fault().filter(|_| wanted.is_some() && wanted != reading.requested);
        let concerns = concerns(gpu, self.now.monotonic);
        let mut kinds: Vec<Concern> = concerns.iter().map(|(concern, _)| *concern).collect();
        kinds.dedup();
        let mut details: Vec<String> = concerns.into_iter().map(|(_, words)| words).collect();
        details.extend(unset.map(|fault| format!("power limits cannot be changed: {fault}")));
        details.extend(capped);
        details.extend(held);
        // The remark is about wattune's last action, which explains the GPU's state only while the limit is not the
        // original one.
        if details.is_empty() && self.gpus.journal().entry(gpu.id()).is_some() {
            details.extend(gpu.remark.clone());
        }
        GpuView {
            index: identity.index,
            uuid: identity.id.to_string(),
            pci_bus_id: identity.pci_bus_id.clone(),
            model: identity.model.clone(),
            simulated: identity.simulated,
            state,
            problems: kinds,
            detail: (!details.is_empty()).then(|| details.join("; ")),
            owner: gpu.owner.as_ref().map(ToString::to_string),
            observed_jobs: gpu.guests.iter().map(ToString::to_string).collect(),
            power_limit_requested_w: reading.requested.map(watts),
            power_limit_enforced_w: reading.enforced.map(watts),
            power_limit_wanted_w: wanted.map(watts),
            power_limit_original_w: self.gpus.journal().entry(gpu.id()).map(|e| watts(e.original)),
            power_limit_default_w: range.map(|r| watts(r.default)),
            external_limits: gpu.yields,
            restore_failed: gpu.restore_problem.is_some(),
            restore_failures: gpu.restore_failures,
            power_limit_min_w: range.map(|r| watts(r.min)),
            power_limit_max_w: range.map(|r| watts(r.max)),
            clock_limit_mhz: gpu.clock_lock().map(ClockLimit::megahertz),
            clock_limit_wanted_mhz: megahertz(set),
            clock_limit_min_mhz: clocks.map(|c| c.min().megahertz()),
            clock_limit_max_mhz: clocks.map(|c| c.max().megahertz()),
            clocks_left_alone: gpu.why_clocks_left_alone(self.settings.clocks),
            out_of_band_cap_w: cap.map(watts),
            override_until: gpu.manual.as_ref().and_then(|m| m.until_utc()),
            override_by: gpu.manual.as_ref().map(|m| m.by.to_string()),
            power_w: reading.power.map(|p| p.get()),
            energy_j: observed.metered.total().to_joules().get(),
            energy_age_s: observed.metered_at.map(|at| self.now.monotonic.since(at.monotonic).get()),
            energy_source: match &capabilities.energy_counter {
                Ok(()) if observed.energy_availability.missing_since.is_none() => EnergyMethod::Counter,
                _ => EnergyMethod::IntegratedPower,
            },
            counter_resets: observed.counter_resets,
            counter_over_power: observed.counter_over_power,
            temperature_c: reading.temperature_c,
            sm_clock_mhz: reading.sm_clock_mhz,
            event_reasons: reading.reasons.map(|r| r.names().collect()),
            persistence: reading.persistence,
            driver: capabilities.driver.clone(),
        }
    }
}
