//! Views of the controller's state.

mod job;

use chrono::{DateTime, TimeDelta, Utc};

pub(super) use job::ended_view;

use super::account::known_intensities;
use super::view::{CarbonView, GpuView, IntensityView, StatusView};
use super::{ControlError, Controller, Gpu, GpuRef};
use crate::domain::{PowerLimit, Slot};
use crate::gpu::GpuError;
use crate::providers::Freshness;
use crate::units::Seconds;

impl Controller {
    /// The daemon as a whole.
    pub fn status(&self) -> StatusView {
        let gpus = self.gpus();
        StatusView {
            version: env!("CARGO_PKG_VERSION"),
            mode: if self.settings.observe { "observe" } else { "control" },
            simulated: !gpus.is_empty() && gpus.iter().all(|g| g.simulated),
            started_at: self.started_at,
            now: self.now().utc,
            carbon: self.carbon_now(),
            problems: self.problems(&gpus),
            gpus,
            jobs: self.jobs(),
        }
    }

    fn problems(&self, gpus: &[GpuView]) -> Vec<String> {
        let mut problems = self.start_problems.clone();
        problems.extend(self.store_fault.iter().map(|f| format!("books: {f}")));
        problems.extend(self.journal_fault.iter().map(|f| format!("no limit is set: {f}")));
        let of_gpu = |g: &GpuView| g.detail.as_ref().map(|d| format!("GPU {}: {d}", g.index));
        problems.extend(gpus.iter().filter(|g| !matches!(g.state, "free" | "job" | "override")).filter_map(of_gpu));
        for (id, _) in self.journal.entries().filter(|(id, _)| !self.gpus.contains_key(*id)) {
            problems.push(format!("GPU {id} was set by wattune and is not there now; its limit comes back with it"));
        }
        for job in self.jobs.values() {
            problems.extend(job.warnings().into_iter().map(|w| format!("job {} ({}): {w}", job.id, job.spec.name)));
        }
        problems
    }

    /// The carbon signal now.
    pub fn carbon_now(&self) -> CarbonView {
        let now = self.now().utc;
        let state = self.signal.borrow();
        let forecast = self.forecast.as_deref();
        let present = forecast.and_then(|f| f.best_at(now)).map(|(_, i)| i);
        let freshness = state.freshness(now);
        let ahead = now + TimeDelta::hours(24);
        let mut notes = state.notes.clone();
        if forecast.is_some() {
            let filled = self.outlook_summary(now, ahead);
            notes.extend(filled);
        } else {
            notes.push(format!("no forecast; planning with {} throughout", self.carbon.fallback_g_per_kwh));
        }
        CarbonView {
            zone: forecast.map(|f| f.zone.to_string()),
            source: forecast.map(|f| f.source.clone()),
            kind: forecast.and_then(|f| spelled(&f.kind)),
            scope: forecast.and_then(|f| spelled(&f.scope)),
            intensity_g_per_kwh: present.map(|i| i.value.get()),
            origin: present.and_then(|i| spelled(&i.origin)),
            freshness: match freshness {
                Freshness::Fresh => "fresh",
                Freshness::Stale { .. } => "stale",
                Freshness::None => "none",
            }
            .into(),
            stale_since: match freshness {
                Freshness::Stale { since } => Some(since),
                _ => None,
            },
            fetched_at: state.fetched_at,
            next_poll_at: Some(state.next_poll_at),
            last_error: state.last_error.clone(),
            followed: forecast.map(|_| self.followed()),
            fallback_g_per_kwh: self.carbon.fallback_g_per_kwh.get(),
            notes,
        }
    }

    /// What is expected of the grid from now on, two days at most.
    pub fn carbon_forecast(&self) -> Vec<IntensityView> {
        self.expected_series(48)
            .into_iter()
            .map(|(slot, value, origin)| IntensityView {
                start: slot.start(),
                end: slot.end(),
                intensity_g_per_kwh: value.get(),
                origin: spelled(&origin).unwrap_or_default(),
            })
            .collect()
    }

    /// What is known of the grid's past hours.
    ///
    /// # Errors
    /// If the database cannot be read, or `hours` is not within 0 to a year.
    pub async fn carbon_history(&self, hours: f64) -> Result<Vec<IntensityView>, ControlError> {
        if !(hours > 0.0 && hours <= 8784.0) {
            let why = format!("is {hours}; it must be more than 0 and at most 8784 (a year)");
            return Err(ControlError::Invalid(crate::domain::InvalidJob { field: "hours", why }));
        }
        let now = self.now().utc;
        let span = Slot::new(now - Seconds::new(hours * 3600.0).to_delta(), now);
        let (Some(span), Some(forecast)) = (span, &self.forecast) else { return Ok(Vec::new()) };
        let series = self.store.intensities(&forecast.zone, &forecast.source, &span).await?.within(&span);
        let point = |(slot, i): &(Slot, crate::domain::Intensity)| IntensityView {
            start: slot.start(),
            end: slot.end(),
            intensity_g_per_kwh: i.value.get(),
            origin: spelled(&i.origin).unwrap_or_default(),
        };
        Ok(series.points().iter().map(point).collect())
    }

    /// The boards, by index.
    pub fn gpus(&self) -> Vec<GpuView> {
        let mut views: Vec<GpuView> = self.gpus.values().map(|g| self.gpu_view(g)).collect();
        views.sort_by_key(|g| g.index);
        views
    }

    /// One board.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn gpu(&self, which: &GpuRef) -> Result<GpuView, ControlError> {
        let id = self.resolve(which)?;
        self.gpus.get(&id).map(|g| self.gpu_view(g)).ok_or_else(|| ControlError::Conflict("the GPU has gone".into()))
    }

    fn gpu_view(&self, gpu: &Gpu) -> GpuView {
        let (board, capabilities) = (gpu.handle.board(), gpu.handle.capabilities());
        let (seen, reading, range) = (&gpu.seen, &gpu.seen.reading, gpu.range());
        let watts = |l: PowerLimit| l.watts().get();
        let cap = gpu.out_of_band_cap();
        let why = gpu.why_no_control();
        let state = match (&seen.fault, &gpu.foreign, &why) {
            (Some((GpuError::TimedOut { .. }, _)), ..) => "unresponsive",
            (Some(_), ..) => "lost",
            (None, Some(_), _) => "foreign",
            (None, None, Some(_)) => "observed",
            (None, None, None) if gpu.manual.is_some() => "override",
            (None, None, None) if gpu.owner.is_some() => "job",
            (None, None, None) => "free",
        };
        let capped = cap.map(|c| {
            format!("an out-of-band cap holds it at {c}, below the limit asked for; plans stay under it until it lifts")
        });
        // What was done last explains the present only while the board is away from what was found.
        let remark = gpu.remark.clone().filter(|_| self.journal.entry(gpu.id()).is_some());
        GpuView {
            index: board.index,
            uuid: board.id.to_string(),
            pci_bus_id: board.pci_bus_id.clone(),
            model: board.model.clone(),
            simulated: board.simulated,
            state,
            detail: why.or(capped).or(remark),
            owner: gpu.owner.as_ref().map(ToString::to_string),
            booked_jobs: gpu.guests.iter().map(ToString::to_string).collect(),
            power_limit_requested_w: reading.requested.map(watts),
            power_limit_enforced_w: reading.enforced.map(watts),
            power_limit_wanted_w: self.wanted(gpu.id(), self.now()).map(watts),
            power_limit_found_w: self.journal.entry(gpu.id()).map(|e| watts(e.found)),
            power_limit_default_w: range.map(|r| watts(r.default)),
            power_limit_min_w: range.map(|r| watts(r.min)),
            power_limit_max_w: range.map(|r| watts(r.max)),
            out_of_band_cap_w: cap.map(watts),
            override_until: gpu.manual.map(|m| m.until_utc),
            power_w: reading.power.map(|p| p.get()),
            energy_j: seen.metered.total().to_joules().get(),
            energy_source: if capabilities.energy_counter.is_ok() { "counter" } else { "integrated_power" },
            counter_resets: seen.counter_resets,
            counter_over_power: seen.counter_over_power,
            temperature_c: reading.temperature_c,
            sm_clock_mhz: reading.sm_clock_mhz,
            event_reasons: reading.reasons.map(|r| r.names().collect()),
            persistence: reading.persistence,
            driver: capabilities.driver.clone(),
        }
    }

    fn outlook_summary(&self, now: DateTime<Utc>, until: DateTime<Utc>) -> Option<String> {
        use crate::forecast::{HorizonPolicy, plan_horizon};
        let forecast = self.forecast.as_ref()?;
        let recent = known_intensities(forecast);
        let horizon = plan_horizon(&forecast.expected, now, until, &recent, &HorizonPolicy::default());
        let summary = horizon.summary();
        let made_up = horizon.slots.len() - summary.given;
        (made_up > 0).then(|| format!("the next 24 h: {summary}"))
    }
}

/// A unit variant as serde spells it.
fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
