//! Input of plans: expected carbon intensities and prices of the grid, and each job's state.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::replan::ReplanReason;
use super::search::PlanInput;
use crate::controller::gpus::{Gpu, Gpus};
use crate::controller::jobs::{Group, Job};
use crate::controller::node::Node;
use crate::controller::settings::Settings;
use crate::controller::signal::Signal;
use crate::store::StoredFirstPlan;
use wattune_core::domain::{
    CarbonSeries, JobId, Objective, PowerLimit, Processes, Quoted, SetPoint, Slot, TimeSeries, Work,
};
use wattune_core::forecast::{ErrorPaths, reference_intensity};
use wattune_core::plan::{FirstPlan, PastEmissions, PlanSlot, Progress, Settings as PlanSettings, slots_ahead};
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, Joules, PricePerMwh, Samples, Seconds, Watts};

/// Maximum length of a planning horizon; beyond it, the planner assumes the horizon's mean intensity.
const FURTHEST: TimeDelta = TimeDelta::days(30);

/// Planning input that is the same for all jobs.
struct Outlook {
    slots: Vec<PlanSlot>,
    errors: Arc<ErrorPaths>,
    reference: GramsPerKwh,
    prices: Option<(TimeSeries<Quoted<PricePerMwh>>, PricePerMwh)>,
    dwell: Seconds,
}

/// Returns the planner's input for each of these jobs, and clears the jobs' reasons to be planned again.
pub(super) fn inputs(ids: &[JobId], node: &mut Node<'_>, planning: &PlanSettings, now: Now) -> Vec<PlanInput> {
    let window = node.settings.window_s;
    let ends = ids.iter().filter_map(|id| node.jobs.get(id)).map(|job| horizon_end(job, window, now));
    let Some(until) = ends.max() else { return Vec::new() };
    let shared = outlook(node.signal, planning, now.utc, until);
    let mut inputs = Vec::new();
    for id in ids {
        let Some(job) = node.jobs.get_mut(id) else { continue };
        let why = job.replan.take().unwrap_or(ReplanReason::WithOthers);
        tracing::debug!(job.id = %id, "job {id}: planned again ({why})");
        job.note_first_plan(node.gpus, now);
        let input = job.plan_input(&shared, node.gpus, window, now);
        let before =
            job.plan.clone().filter(|_| why.is_routine() && job.planned_out_of_band_cap == input.out_of_band_cap);
        job.planned_out_of_band_cap = input.out_of_band_cap;
        inputs.push(PlanInput { before, better_by: planning.better_by, ..input });
    }
    inputs
}

impl Job {
    /// Records the job's progress at its first plan after its last profiling. Plans before the first report do not count:
    /// until then the job loads.
    fn note_first_plan(&mut self, gpus: &Gpus, now: Now) {
        let is_first = self.progress.first_plan.is_none() && self.progress.started_at.is_some();
        let Some(reference) = self.reference().filter(|_| is_first) else { return };
        let (samples, elapsed) = self.progress_now(now);
        let account = &self.progress.account;
        let reference_time = account.reference_time(samples, reference);
        let energy = self.emissions.sum().energy + self.unrecorded_energy(gpus) - account.stalled_energy;
        self.progress.first_plan = Some(StoredFirstPlan { at: now.utc, elapsed, reference_time, energy });
        self.unsaved = true;
    }

    /// Drops the record of the first plan while the job is profiled again, for example because it now has the time to
    /// measure further limits.
    pub(super) fn drop_first_plan(&mut self) {
        let is_profiled_again = self.profiler.as_ref().is_some_and(|profiler| !profiler.is_complete());
        if is_profiled_again && self.progress.first_plan.take().is_some() {
            self.unsaved = true;
        }
    }

    /// Returns the energy of the GPUs that the job has alone since the ledger's last interval. In a job of a few hours,
    /// even the energy of a minute of profiling is more than its plans may lose.
    fn unrecorded_energy(&self, gpus: &Gpus) -> Joules {
        let energy = |gpu: &Gpu| {
            let reading = gpu.observed.energy_reading()?;
            let interval = gpu.interval.as_ref().filter(|interval| !interval.has_rule_changes())?;
            let age = interval.age(reading.at);
            (age > Seconds::ZERO).then(|| interval.mean_power(reading.at, reading.metered) * age)
        };
        let is_alone = |gpu: &&Gpu| matches!(gpu.holders().as_slice(), [only] if *only == self.id);
        self.spec.gpus.iter().filter_map(|id| gpus.get(id)).filter(is_alone).filter_map(energy).sum()
    }

    /// Returns the job's mean carbon intensity and its emissions since its first plan. The emissions are without those
    /// of the job's own pauses, which power limits do not affect.
    fn past_emissions(&self, gpus: &Gpus, now: Now, reference: GramsPerKwh) -> Option<PastEmissions> {
        let (first, started) = self.progress.first_plan.zip(self.progress.started_at)?;
        let mean = |from, to| self.emissions.mean_intensity_over(&Slot::new(from, to)?);
        let (intensity, whole) = (mean(first.at, now.utc)?, mean(started, now.utc)?);
        let before = first.energy * mean(started, first.at).unwrap_or(intensity);
        let stalled = self.progress.account.stalled_energy * whole;
        let emitted = self.emissions.sum().estimate(reference) + self.unrecorded_energy(gpus) * intensity;
        Some(PastEmissions { intensity, carbon: emitted - stalled - before })
    }

    fn first_plan(&self) -> FirstPlan {
        let first = self.progress.first_plan;
        first.map_or_else(FirstPlan::default, |f| FirstPlan { elapsed: f.elapsed, reference_time: f.reference_time })
    }

    /// Returns the mean power of the job's own pauses, at most the maximum usable limits; zero while none was metered.
    /// Accounts of older versions have the energy of pauses, but not their time.
    fn pause_power(&self) -> Watts {
        let account = &self.progress.account;
        let mean = if account.metered > Seconds::ZERO { account.stalled_energy / account.metered } else { Watts::ZERO };
        mean.min(self.max_power())
    }

    /// Returns the sum of the maximum usable limits of the job's GPUs.
    fn max_power(&self) -> Watts {
        self.groups.iter().map(|group| group.range.ceiling.watts() * group.gpu_count()).sum()
    }

    /// Returns the input of the job's plan.
    fn plan_input(&self, outlook: &Outlook, gpus: &Gpus, window: Seconds, now: Now) -> PlanInput {
        let profile = self.profile().clone().with_reference();
        let limit = |(group, set): (&Group, &SetPoint)| set.limit.watts() * group.gpu_count();
        let limits = profile.points.iter().map(|p| self.groups.iter().zip(&p.setting).map(limit).sum()).collect();
        let (samples, elapsed) = self.progress_now(now);
        let excess_before = self.reference().map(|reference| self.progress.account.excess_before(reference));
        let work = match self.spec.work {
            Work::TotalSamples(total) => Work::TotalSamples(total - Samples::new(self.progress.first_samples)),
            Work::Unknown => Work::Unknown,
        };
        PlanInput {
            id: self.id.clone(),
            now: now.utc,
            horizon: outlook.slots.clone(),
            objective: self.planned_objective(),
            work,
            progress: Progress {
                samples,
                elapsed,
                excess_before: excess_before.unwrap_or_default(),
                reserve: self.planned_reserve(),
                pauses_ahead: self.pauses_ahead(),
                pause_power: self.pause_power(),
                restart_left: self.restart_left(now),
                first_plan: self.first_plan(),
                carbon: self.emitted_before() + self.emissions.sum().estimate(outlook.reference),
                past_emissions: self.past_emissions(gpus, now, outlook.reference),
            },
            profile,
            max_power: self.max_power(),
            reference_intensity: outlook.reference,
            prices: outlook.prices.clone(),
            window,
            out_of_band_cap: self.out_of_band_cap(gpus),
            dwell: outlook.dwell,
            activity: self.progress.activity,
            errors: outlook.errors.clone(),
            priority: self.spec.priority,
            before: None,
            better_by: 0.0,
            limits,
            at_rest: lowest_limits(self, gpus),
        }
    }

    /// Returns the lowest out-of-band cap (power limit set from outside the host) on the job's GPUs; `None` if no such
    /// cap is known.
    pub(super) fn out_of_band_cap(&self, gpus: &Gpus) -> Option<PowerLimit> {
        let gpu_ids = self.spec.gpus.iter().filter(|_| !self.is_absent());
        gpu_ids.filter_map(|id| gpus.get(id)?.out_of_band_cap()).min()
    }
}

/// Returns the sum of the lowest power limits of a job's GPUs.
fn lowest_limits(job: &Job, gpus: &Gpus) -> Watts {
    let ranges = job.spec.gpus.iter().filter_map(|id| gpus.get(id).and_then(Gpu::range));
    ranges.map(|range| range.min.watts()).sum()
}

/// Returns the reason why wattune does not control a job's GPUs; `None` if it controls them.
pub(super) fn hindrance(job: &Job, gpus: &Gpus, settings: &Settings, now: Now) -> Option<String> {
    if settings.observe {
        return Some("this daemon observes only: it plans and records, and sets no limits".into());
    }
    if matches!(job.spec.processes, Some(Processes::Found(_))) {
        return Some("found by its processes: its energy is recorded, its limits are not controlled".into());
    }
    if job.progress.presence.is_guest {
        return Some(
            "another job controlled one of its GPUs when it began: its energy is recorded, its limits are not controlled"
                .into(),
        );
    }
    if !job.spec.control {
        return Some("registered without control: its energy is recorded, its limits are not controlled".into());
    }
    job.spec.gpus.iter().find_map(|id| {
        let Some(gpu) = gpus.get(id) else { return Some(format!("GPU {id} is absent")) };
        if gpu.manual.is_some() {
            return Some(format!("GPU {} has a manual override", gpu.handle.identity().index));
        }
        let why = gpu.why_no_control_of_job(now.monotonic)?;
        Some(format!("GPU {}: {why}", gpu.handle.identity().index))
    })
}

/// Returns the end of the planning horizon that a job needs: now plus the longest time that the job may still take, but
/// at least an hour and at most `FURTHEST` ahead.
fn horizon_end(job: &Job, window: Seconds, now: Now) -> DateTime<Utc> {
    let slowest = job.profile().points.iter().map(|p| p.throughput.mean).reduce(|a, b| a.min(b));
    let needed = match (job.remaining(), slowest) {
        (Some(left), Some(rate)) => left / rate,
        _ => window,
    };
    // A pausable job may use all the time that its deadline or its allowed slowdown leaves. The slowdown counts over the
    // whole job: what the work done so far did not use of it, the rest may use.
    let Objective { pausable, deadline, max_slowdown, .. } = job.planned_objective();
    let max_slowdown = pausable.and(max_slowdown);
    let left_by_slowdown = max_slowdown.and_then(|max| job.time_left(max, now)).unwrap_or_default();
    let needed = (needed * (1.0 + max_slowdown.unwrap_or(0.0))).max(left_by_slowdown);
    let until_deadline = pausable.and(deadline).map_or(TimeDelta::zero(), |at| at - now.utc);
    now.utc + needed.to_delta().max(until_deadline).clamp(TimeDelta::hours(1), FURTHEST)
}

/// Returns the planning input up to `until` that is the same for all jobs. Its intensities are those of the forecast,
/// moved closer to their mean the less skill the forecast has, with gaps filled, and extended by the model.
fn outlook(signal: &Signal, planning: &PlanSettings, now: DateTime<Utc>, until: DateTime<Utc>) -> Outlook {
    let nothing = CarbonSeries::default();
    let (expected, recent) = match signal.forecast() {
        Some(forecast) => (&forecast.expected, forecast.known_values()),
        None => (&nothing, CarbonSeries::default()),
    };
    let slots = slots_ahead(signal.model(), expected, (now, until), signal.fallback(), planning);
    let reference = reference_intensity(&recent, expected, now).unwrap_or(signal.fallback());
    let errors = Arc::new(signal.model().error_paths());
    Outlook { slots, errors, reference, prices: prices(signal, now), dwell: planning.dwell_s }
}

/// Returns the known prices and their mean absolute value; `None` if the current price is unknown.
pub(super) fn prices(signal: &Signal, now: DateTime<Utc>) -> Option<(TimeSeries<Quoted<PricePerMwh>>, PricePerMwh)> {
    let known = signal.price()?.state.borrow().forecast.as_ref()?.known_values();
    known.at(now)?;
    let span = Slot::new(known.start()?, known.end()?)?;
    let (mean, _) = known.mean_over(&span, |price| price.value.get().abs())?;
    Some((known, PricePerMwh::new(mean)))
}

#[cfg(test)]
#[path = "inputs_tests.rs"]
mod tests;
