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
use wattune_core::domain::{
    CarbonSeries, JobId, LimitRange, Objective, PowerLimit, Processes, Quoted, SetPoint, Slot, TimeSeries, Work,
};
use wattune_core::forecast::{ErrorPaths, reference_intensity};
use wattune_core::plan::{PastEmissions, PlanSlot, Progress, Settings as PlanSettings, slots_ahead};
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

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
        let input = job.plan_input(&shared, node.gpus, window, now);
        let before =
            job.plan.clone().filter(|_| why.is_routine() && job.planned_out_of_band_cap == input.out_of_band_cap);
        job.planned_out_of_band_cap = input.out_of_band_cap;
        inputs.push(PlanInput { before, better_by: planning.better_by, ..input });
    }
    inputs
}

impl Job {
    /// Returns the job's mean carbon intensity and its emissions so far. The emissions are without those of the job's
    /// own pauses, which power limits do not affect.
    fn past_emissions(&self, now: Now, reference: GramsPerKwh) -> Option<PastEmissions> {
        let span = Slot::new(self.progress.started_at?, now.utc)?;
        let intensity = self.emissions.mean_intensity_over(&span)?;
        let stalled = self.progress.account.stalled_energy * intensity;
        Some(PastEmissions { intensity, carbon: self.emissions.sum().estimate(reference) - stalled })
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
                carbon: self.emitted_before() + self.emissions.sum().estimate(outlook.reference),
                past_emissions: self.past_emissions(now, outlook.reference),
            },
            profile,
            max_power: sum_of_ranges(self, gpus, |range| range.max),
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
            at_rest: sum_of_ranges(self, gpus, |range| range.min),
        }
    }

    /// Returns the lowest out-of-band cap (power limit set from outside the host) on the job's GPUs; `None` if no such
    /// cap is known.
    pub(super) fn out_of_band_cap(&self, gpus: &Gpus) -> Option<PowerLimit> {
        let gpu_ids = self.spec.gpus.iter().filter(|_| !self.is_absent());
        gpu_ids.filter_map(|id| gpus.get(id)?.out_of_band_cap()).min()
    }
}

/// Returns the sum over a job's GPUs of one bound of their power limit ranges.
fn sum_of_ranges(job: &Job, gpus: &Gpus, bound: impl Fn(LimitRange) -> PowerLimit) -> Watts {
    let ranges = job.spec.gpus.iter().filter_map(|id| gpus.get(id).and_then(Gpu::range));
    ranges.map(|range| bound(range).watts()).sum()
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
/// at least an hour and at most `FURTHEST`.
fn horizon_end(job: &Job, window: Seconds, now: Now) -> DateTime<Utc> {
    let slowest = job.profile().points.iter().map(|p| p.throughput.mean).reduce(|a, b| a.min(b));
    let needed = match (job.remaining(), slowest) {
        (Some(left), Some(rate)) => left / rate,
        _ => window,
    };
    // A pausable job may use all the time that its deadline or its allowed slowdown leaves.
    let Objective { pausable, deadline, max_slowdown, .. } = job.planned_objective();
    let needed = needed * (1.0 + pausable.and(max_slowdown).unwrap_or(0.0));
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
