//! Views of the boards, and what somebody should look at.

use super::cap::LimitGrants;
use super::gpus::concerns;
use super::show::megahertz;
use super::view::{GpuView, LimitSpanView};
use super::{ControlError, Controller, Gpu, GpuRef};
use crate::gpu::GpuError;
use wattune_core::domain::{ClockLimit, PowerLimit};

impl Controller {
    /// The boards, by index.
    pub fn gpus(&self) -> Vec<GpuView> {
        let passes = self.passes(self.now());
        let mut views: Vec<GpuView> = self.gpus.iter().map(|g| self.gpu_view(g, &passes)).collect();
        views.sort_by_key(|g| g.index);
        views
    }

    /// One board.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn gpu(&self, which: &GpuRef) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        self.gpus
            .get(&id)
            .map(|g| self.gpu_view(g, &self.passes(self.now())))
            .ok_or_else(|| ControlError::Conflict("the GPU has gone".into()))
    }

    /// A board's limits and draw of the last day, as far as this daemon has seen it.
    ///
    /// # Errors
    /// If there is no such board.
    pub fn gpu_history(&self, which: &GpuRef) -> Result<Vec<LimitSpanView>, ControlError> {
        let id = self.gpus.resolve(which)?;
        Ok(self.gpus.get(&id).map(|g| g.history.view()).unwrap_or_default())
    }

    fn gpu_view(&self, gpu: &Gpu, passes: &LimitGrants) -> GpuView {
        let (board, capabilities) = (gpu.handle.board(), gpu.handle.capabilities());
        let (seen, reading, range) = (&gpu.seen, &gpu.seen.reading, gpu.range());
        let clocks = capabilities.clocks.as_ref().ok();
        let watts = |l: PowerLimit| l.watts().get();
        let cap = gpu.out_of_band_cap();
        let state = match (&seen.fault, &gpu.foreign) {
            (Some((GpuError::TimedOut { .. }, _)), _) => "unresponsive",
            (Some(_), _) => "lost",
            (None, Some(_)) => "foreign",
            (None, None) if gpu.why_no_control().is_some() => "observed",
            (None, None) if gpu.manual.is_some() => "override",
            (None, None) if gpu.owner.is_some() => "job",
            (None, None) => "free",
        };
        let capped = cap.map(|c| {
            format!(
                "an out-of-band cap holds it at {c}; plans stay under it until it lifts, or the host's cap is raised"
            )
        });
        let now = self.now();
        let set = self.wanted_under(passes, gpu.id(), now);
        let wanted = set.map(|set| set.limit);
        let held = passes.get(gpu.id()).and_then(|(stake, pass)| {
            let cut = (pass.limit < stake.wanted).then(|| {
                format!(
                    "the node's cap lets it have {} of {}; the rest comes back when the cap lifts",
                    pass.limit, stake.wanted
                )
            });
            let waits =
                (!pass.now).then(|| format!("{} waits until others are lowered under the node's cap", pass.limit));
            let told: Vec<String> = cut.into_iter().chain(waits).collect();
            (!told.is_empty()).then(|| told.join("; "))
        });
        let unset = self.gpus.journal_fault().filter(|_| wanted.is_some() && wanted != reading.requested);
        let concerns = concerns(gpu, now.monotonic);
        let mut kinds: Vec<&'static str> = concerns.iter().map(|(concern, _)| concern.as_str()).collect();
        kinds.dedup();
        let mut details: Vec<String> = concerns.into_iter().map(|(_, words)| words).collect();
        details.extend(unset.map(|fault| format!("no limit is set: {fault}")));
        details.extend(capped);
        details.extend(held);
        // What was done last explains the present only while the board is away from what was found.
        if details.is_empty() && self.gpus.journal().entry(gpu.id()).is_some() {
            details.extend(gpu.remark.clone());
        }
        GpuView {
            index: board.index,
            uuid: board.id.to_string(),
            pci_bus_id: board.pci_bus_id.clone(),
            model: board.model.clone(),
            simulated: board.simulated,
            state,
            problems: kinds,
            detail: (!details.is_empty()).then(|| details.join("; ")),
            owner: gpu.owner.as_ref().map(ToString::to_string),
            booked_jobs: gpu.guests.iter().map(ToString::to_string).collect(),
            power_limit_requested_w: reading.requested.map(watts),
            power_limit_enforced_w: reading.enforced.map(watts),
            power_limit_wanted_w: wanted.map(watts),
            power_limit_found_w: self.gpus.journal().entry(gpu.id()).map(|e| watts(e.found)),
            power_limit_default_w: range.map(|r| watts(r.default)),
            foreign_limits: gpu.yields,
            restore_failed: gpu.not_back.is_some(),
            restore_failures: gpu.restore_failures,
            power_limit_min_w: range.map(|r| watts(r.min)),
            power_limit_max_w: range.map(|r| watts(r.max)),
            clock_limit_mhz: gpu.clock_lock().map(ClockLimit::megahertz),
            clock_limit_wanted_mhz: megahertz(set),
            clock_limit_min_mhz: clocks.map(|c| c.min().megahertz()),
            clock_limit_max_mhz: clocks.map(|c| c.max().megahertz()),
            clocks_left_alone: gpu.why_clocks_left_alone(self.settings.clocks),
            out_of_band_cap_w: cap.map(watts),
            override_until: gpu.manual.map(|m| m.until_utc),
            power_w: reading.power.map(|p| p.get()),
            energy_j: seen.metered.total().to_joules().get(),
            energy_source: match &capabilities.energy_counter {
                Ok(()) if seen.tells_energy.missing_since.is_none() => "counter",
                _ => "integrated_power",
            },
            counter_resets: seen.counter_resets,
            counter_over_power: seen.counter_over_power,
            temperature_c: reading.temperature_c,
            sm_clock_mhz: reading.sm_clock_mhz,
            event_reasons: reading.reasons.map(|r| r.names().collect()),
            persistence: reading.persistence,
            driver: capabilities.driver.clone(),
        }
    }

    /// What somebody should look at, in one sentence each.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.gpus.problems().to_vec();
        problems.extend(self.accounting.store_fault().iter().map(|f| format!("books: {f}")));
        problems.extend(self.gpus.journal_fault().iter().map(|f| format!("no limit is set: {f}")));
        problems.extend(self.cap_problems());
        problems.extend(self.accounting.cpu_problems());
        problems.extend(self.planner.broken.iter().cloned());
        problems.extend(self.planner.apart.iter().map(|why| {
            format!(
                "the jobs that share the node's cap or carbon budget could not be planned together, by a fault in wattune \
                 ({why}); each is planned alone, and limits are lowered where their sum exceeds the cap"
            )
        }));
        problems.extend(self.planner.search.as_ref().map(|search| {
            let since = self.now().monotonic.since(search.since);
            format!("plans have been searched for {:.1} s; those before stay in force meanwhile", since.get())
        }));
        let now = self.now().monotonic;
        let mut gpus: Vec<&Gpu> = self.gpus.iter().collect();
        gpus.sort_by_key(|g| g.handle.board().index);
        for gpu in gpus {
            let index = gpu.handle.board().index;
            problems.extend(concerns(gpu, now).into_iter().map(|(_, why)| format!("GPU {index}: {why}")));
        }
        for (id, entry) in self.gpus.journal().entries().filter(|(id, _)| !self.gpus.contains(id)) {
            problems.push(format!(
                "GPU {id} was set by wattune and is not there now; its limit of {} comes back once it is there again, with \
                 this daemon or `wattune restore`",
                entry.found
            ));
        }
        for job in self.jobs.values() {
            problems.extend(
                job.warnings(self.now()).into_iter().map(|w| format!("job {} ({}): {w}", job.id, job.spec.name)),
            );
        }
        problems
    }
}
