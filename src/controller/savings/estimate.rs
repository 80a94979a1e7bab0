//! Estimates of a job's savings, from the job's rows in the ledger and its profile.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::reference::{ReferenceKind, changed_at, evidence_at};
use crate::controller::error::ControlError;
use crate::controller::jobs::Job;
use crate::controller::signal::HORIZONS_H;
use crate::controller::snapshot::Snapshot;
use crate::store::{StoreError, StoredJob};
use wattune_core::domain::{CarbonSeries, DeviceKind, GpuId, Intensity, PowerLimit, Slot};
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::pauses::pause_energy;
use wattune_core::ledger::savings::{
    BatchEffect, ReferencePeriod, SavingBasis, SavingInput, batch_effect, min_constant_power,
};
use wattune_core::ledger::savings_entries::{Counterfactual, OrUnknown, ReferenceComparison, Savings};
use wattune_core::ledger::waiting_times::WaitingTimes;
use wattune_core::ledger::{self, CompletedWork, Emissions, Interval};
use wattune_core::profile::{Curve, EarlierWork, Evidence, Profiler};
use wattune_core::units::{Joules, Samples, Seconds, Watts};

/// Time at a job's start and end in which rows of other jobs on its GPUs are accepted: a little more than the time
/// between readings.
const EDGE_TOLERANCE: chrono::TimeDelta = chrono::TimeDelta::seconds(2);

/// Maximum number of parts of a job's forecasts whose errors are taken as independent.
const PARTS: usize = 8;

/// Minimum relative standard error that forecasts are taken to have: no forecast is exact.
const LEAST_FORECAST_ERROR: f64 = 0.01;

/// Minimum number of hours that a forecast score must cover to be used.
const LEAST_SCORED_H: f64 = 24.0;

/// Ratio of the standard deviation to the mean absolute error of normal errors: √(π/2).
const DEVIATION_PER_ABSOLUTE: f64 = 1.253_314;

/// Maximum number of earlier parts of a job that are read to find its outages. For a job with more of them no wait counts.
const MOST_PARTS: usize = 100;

/// Maximum fraction of a job's samples that may be compared with a reference measured only after the job changed.
const OTHER_WORK: f64 = 0.01;

const NOT_CONTROLLED: &str = "registered without control: its GPUs are not controlled for it";

/// Data from which the savings of a running or ended job are estimated.
pub(crate) struct Estimate<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    pub(crate) stored: &'a StoredJob,
    /// The job, running or ended, with its profile.
    pub(crate) job: &'a Job,
    pub(crate) rows: &'a [Interval],
    pub(crate) series: &'a CarbonSeries,
    pub(crate) emissions: &'a Emissions,
}

/// Measurements of a job's references, with the periods of the job's work to which they apply.
struct MeasuredPeriods {
    /// Measurements as known now.
    points: Vec<Evidence>,
    epochs: Vec<ReferencePeriod>,
    /// Measurements as they were when the references were recorded; empty if the newest one was not measured then.
    as_frozen: Vec<Evidence>,
}

impl Estimate<'_> {
    /// Returns the job's savings, computed from its completed work `known`. Where no honest estimate exists, the saving
    /// is the reason why.
    pub(crate) async fn savings(&self, known: Result<SavingInput, String>) -> Result<Savings, ControlError> {
        let id = &self.stored.id;
        let written = self.snapshot.outcome(id).await?;
        if let Some(outcome) = written.filter(|_| self.stored.ended.is_some()) {
            let savings = outcome.savings;
            // Once the job's minutes are rolled up, hours are too coarse for its first and last minutes: keep the
            // earlier estimate.
            if self.snapshot.store.is_rolled_up(id).await? {
                return Ok(savings);
            }
            let again = |before: OrUnknown<ReferenceComparison>| match before {
                OrUnknown::Known(compared) => OrUnknown::Known(compared.with(&known)),
                unknown @ OrUnknown::Unknown { .. } => unknown,
            };
            return Ok(Savings {
                against_original: again(savings.against_original),
                against_max: again(savings.against_max),
                // The result of a batch size's trial is often known only after the job of that trial has ended.
                batch_size_effect: self.batch_size_effect().await?.map(Into::into),
            });
        }
        let frozen = self.snapshot.counterfactuals(id).await?;
        let against = |which| -> OrUnknown<ReferenceComparison> {
            let compared = self.references(&frozen, which);
            let compared = compared.map(|compared| compared.with(&known));
            // If the completed work is unknown too, the reason for that takes precedence.
            compared.map_err(|why| known.as_ref().err().cloned().unwrap_or(why)).into()
        };
        Ok(Savings {
            against_original: against(ReferenceKind::Original),
            against_max: against(ReferenceKind::Max),
            batch_size_effect: self.batch_size_effect().await?.map(Into::into),
        })
    }

    /// Returns the references that a job is compared with, in a comparison whose saving is not estimated yet; or why
    /// there is none. `frozen` are the job's references as recorded in the ledger, oldest first.
    fn references(&self, frozen: &[Counterfactual], which: ReferenceKind) -> Result<ReferenceComparison, String> {
        if !self.stored.spec.control || self.stored.progress.presence.is_guest {
            return Err(NOT_CONTROLLED.into());
        }
        let Some((newest, earlier)) = frozen.split_last() else {
            return Err(match self.stored.ended {
                None => "its first plan is not made yet".into(),
                Some(_) => "it ended before its first plan, or its version of wattune did not record savings".into(),
            });
        };
        if newest.fits_from() < changed_at(self.job) {
            // The work since the change has no reference yet, and the new measurements do not fit the work before.
            return Err("its throughput or power has changed, and it is being profiled again".into());
        }
        let limits = which.of(newest).limits.clone();
        let MeasuredPeriods { mut points, epochs, as_frozen } = self.measured_periods(newest, earlier, which)?;
        let (mix, mix_at_least) = if earlier.is_empty() { self.mix(&limits, &mut points) } else { Default::default() };
        let limit = limits.iter().zip(&self.job.groups).map(|(limit, group)| limit.watts() * group.gpu_count()).sum();
        let limit = (!limits.is_empty()).then_some(limit);
        let is_ceiling = limits.iter().zip(&self.job.groups).all(|(limit, group)| limit.same_as(group.range.ceiling));
        let at_ceiling = is_ceiling && earlier.iter().all(|f| which.of(f).limits == limits);
        let only_slowed = at_ceiling && earlier.is_empty() && !self.stored.progress.account.has_other_ceilings;
        let before = frozen.first().and_then(|first| first.other_work).unwrap_or_default();
        let uncertain_work = self.uncertain_work(&before, only_slowed, points.first())?;
        let same_sensors = self.job.measured_itself();
        let noise = self.job.profiler.as_ref().and_then(Profiler::noise);
        let basis =
            SavingBasis { points, epochs, mix, mix_at_least, limit, same_sensors, noise, at_ceiling, uncertain_work };
        let saving = OrUnknown::Unknown { unknown: "not estimated".into() };
        Ok(ReferenceComparison { limits, basis, frozen: as_frozen, saving, as_frozen_pct: None })
    }

    /// Returns the measurements of the job's references, one for each period of the job's work. `newest` is the
    /// reference recorded last, `earlier` are those before it, oldest first.
    fn measured_periods(
        &self,
        newest: &Counterfactual,
        earlier: &[Counterfactual],
        which: ReferenceKind,
    ) -> Result<MeasuredPeriods, String> {
        let known = |f: &Counterfactual| match &which.of(f).measured {
            OrUnknown::Known(at) => Ok(*at),
            OrUnknown::Unknown { unknown } => Err(unknown.clone()),
        };
        let limits = &which.of(newest).limits;
        let mut points: Vec<Evidence> = earlier.iter().map(known).collect::<Result<_, _>>()?;
        let as_frozen = match known(newest) {
            Ok(at) => points.iter().copied().chain([at]).collect(),
            Err(why) if limits.is_empty() => return Err(why),
            Err(_) => Vec::new(),
        };
        // The newest reference may have been measured, or measured more accurately, since it was recorded (frozen).
        points.push(evidence_at(self.job, limits)?);
        let start = |(point, f): (usize, &Counterfactual)| match point {
            0 => ReferencePeriod { from: Samples::ZERO, point },
            _ => ReferencePeriod { from: f.samples, point },
        };
        let epochs = earlier.iter().chain([newest]).enumerate().map(start).collect();
        Ok(MeasuredPeriods { points, epochs, as_frozen })
    }

    /// Returns the amount by which the work `before` the first reference may be converted wrongly to work of the job as
    /// it was measured for that reference, `first`. With `only_slowed`, only the training below the maximum usable limits
    /// is converted.
    fn uncertain_work(
        &self,
        before: &EarlierWork,
        only_slowed: bool,
        first: Option<&Evidence>,
    ) -> Result<Samples, String> {
        let other_work = if only_slowed { before.slowed.samples } else { before.samples };
        if other_work > self.stored.progress.account.samples * OTHER_WORK {
            return Err(
                "its throughput or power changed before its first plan, when no reference was measured yet".into()
            );
        }
        // Work of another speed takes another time than its conversion gives: by how much, the earlier reference says.
        let ratio = first.filter(|_| before.samples > Samples::ZERO);
        let ratio = ratio.map_or(1.0, |first| before.time * first.throughput / before.samples);
        Ok(other_work * (ratio - 1.0).abs().max(1.0))
    }

    /// Returns the best constant mix of settings (each for a fixed part of the time) with the job's throughput: first
    /// the settings, second a lower bound of the mix's power. Settings are indices into `points`, to which this
    /// function adds their measurements; empty if a setting of the mix is not measured.
    fn mix(&self, limits: &[PowerLimit], points: &mut Vec<Evidence>) -> (Vec<usize>, Option<Watts>) {
        let (account, profile) = (self.stored.progress.account, self.job.profile());
        let (Some(profiler), Some(curve)) = (&self.job.profiler, Curve::from_profile(profile)) else {
            return Default::default();
        };
        let rate = (account.active > Seconds::ZERO).then(|| account.samples / account.active);
        let Some((rate, mix)) = rate.and_then(|rate| Some((rate, curve.mix_at(rate)?))) else {
            return Default::default();
        };
        let mut places = Vec::new();
        for (part, _) in &mix.parts {
            let setting = &profile.points[part.index].setting;
            let is_reference = setting.iter().zip(limits).all(|(set, limit)| set.same_as((*limit).into()));
            match profiler.evidence(setting) {
                Some(_) if is_reference => places.push(0),
                Some(evidence) => {
                    places.push(points.len());
                    points.push(evidence);
                }
                None => return Default::default(),
            }
        }
        let is_beside = |index: &usize| mix.parts.iter().all(|(part, _)| part.index != *index);
        let unused = (0..profile.points.len()).filter(is_beside);
        let others: Vec<Evidence> =
            unused.filter_map(|index| profiler.evidence(&profile.points[index].setting)).collect();
        let mixed: Vec<&Evidence> = places.iter().map(|place| &points[*place]).collect();
        let least = min_constant_power(&mixed, &others.iter().collect::<Vec<_>>(), rate);
        (places, least)
    }

    /// Returns the job's work between its first and last report, with the grid's carbon intensities; or the reason why
    /// the work is unknown.
    pub(crate) async fn completed_work(&self) -> Result<Result<SavingInput, String>, StoreError> {
        let stored = self.stored;
        if !stored.spec.control || stored.progress.presence.is_guest {
            return Ok(Err(NOT_CONTROLLED.into()));
        }
        let span = stored.progress.started_at.zip(stored.progress.last.map(|l| l.received));
        let Some(span) = span.and_then(|(start, end)| Slot::new(start, end)) else {
            return Ok(Err("it has not reported progress yet".into()));
        };
        let waits = self.waits(&span).await?;
        let present = present_spans(&span, &waits);
        let inner = |span: &Slot| Slot::new(span.start() + EDGE_TOLERANCE, span.end() - EDGE_TOLERANCE);
        for inner in present.iter().filter_map(inner) {
            for gpu in &stored.spec.gpus {
                if self.snapshot.store.was_shared(gpu, &stored.id, &inner).await? {
                    let why = "another job or an unregistered process used its GPUs: the job's part of their energy is only estimated";
                    return Ok(Err(why.into()));
                }
            }
        }
        let gaps = self.snapshot.store.gaps(&span).await?;
        let hole = gaps.into_iter().find_map(|gap| {
            let is_hole = present.iter().any(|span| gap.is_hole_of(&stored.spec.gpus, span));
            gap.energy.err().filter(|_| is_hole)
        });
        if let Some(why) = hole {
            return Ok(Err(format!("a part of its GPUs' energy is missing in the ledger: {why}")));
        }
        let series = self.series_since_request(&span, &waits).await?;
        let with_larger_forecasts = self.with_errors_added(&series);
        let known = |(completed, waits): (CompletedWork, WaitingTimes)| -> Result<SavingInput, String> {
            let larger = |series| Ok::<_, String>((self.completed_in(&span, &series, &waits)?.0, series));
            let with_larger_forecasts = with_larger_forecasts.into_iter().map(larger).collect::<Result<_, _>>()?;
            let account = stored.progress.account;
            Ok(SavingInput { completed, account, series: series.clone(), with_larger_forecasts, waits })
        };
        Ok(self.completed_in(&span, &series, &waits).and_then(known))
    }

    /// Returns the waits of the job that the ledger records, before its start and in suspensions within `span`. They
    /// have no emissions yet. Times in which earlier parts of the job were dead are no waits.
    async fn waits(&self, span: &Slot) -> Result<WaitingTimes, StoreError> {
        let earlier = self.earlier_parts().await?;
        let parts = || std::iter::once(self.stored).chain(&earlier);
        let offers_to_wait = |part: &StoredJob| part.spec.offers.start.is_some() || part.spec.offers.suspend.is_some();
        // A job with a key has a time of request even if it offered no wait.
        if !parts().any(offers_to_wait) || earlier.len() >= MOST_PARTS {
            return Ok(WaitingTimes::default());
        }
        let (mut request, mut changes) = (None, Vec::new());
        for entry in self.snapshot.presence_of(&self.stored.id).await? {
            match entry {
                Entry::StartRequest(it) => request = Some(it),
                Entry::Presence(it) => changes.push(it),
                _ => {}
            }
        }
        let Some(request) = request else { return Ok(WaitingTimes::default()) };
        let presence = &self.stored.progress.presence;
        let outages = parts().zip(&earlier).map(|(part, before)| outage(before, part.registered_at)).sum();
        let waits = WaitingTimes::of(&request, &changes, self.stored.registered_at, span.end(), outages);
        Ok(WaitingTimes { stop_time: presence.stop_time, ..waits })
    }

    /// Returns the earlier jobs with the same key that the job continues, the newest first, at most [`MOST_PARTS`].
    async fn earlier_parts(&self) -> Result<Vec<StoredJob>, StoreError> {
        let before = |part: &StoredJob| part.spec.offers.continues.as_ref().map(|before| before.job.clone());
        let (mut parts, mut next) = (Vec::new(), before(self.stored));
        while let Some(id) = next.filter(|_| parts.len() < MOST_PARTS) {
            let Some(part) = self.snapshot.store.job(&id).await? else { break };
            next = before(&part);
            parts.push(part);
        }
        Ok(parts)
    }

    /// Returns the carbon intensities from the request on, if the job waited for its start.
    async fn series_since_request(&self, span: &Slot, waits: &WaitingTimes) -> Result<CarbonSeries, StoreError> {
        let asked = span.start().checked_sub_signed(waits.before_start.to_delta());
        let Some(before) = asked.and_then(|asked| Slot::new(asked, span.start())) else {
            return Ok(self.series.clone());
        };
        match self.snapshot.intensities().for_jobs(&before).await {
            Ok(mut series) => {
                series.overwrite(self.series);
                Ok(series)
            }
            Err(ControlError::Store(error)) => Err(error),
            Err(_) => Ok(self.series.clone()),
        }
    }

    /// Returns the carbon intensities with those that are not actual values increased by their standard error: first all
    /// of them, then each of up to [`PARTS`] successive parts of them alone, as errors of forecasts last some hours. Empty
    /// if all are actual values.
    fn with_errors_added(&self, series: &CarbonSeries) -> Vec<CarbonSeries> {
        let forecasts = series.points().iter().filter(|(_, i)| !i.origin.is_actual()).count();
        if forecasts == 0 {
            return Vec::new();
        }
        // After a start without a connection, the signal has no series yet.
        let spread_now = || spread(self.snapshot.signal.accounting_series().series()).max(spread(series));
        let error = self.usual_error().unwrap_or_else(spread_now).max(LEAST_FORECAST_ERROR);
        let larger = |of: std::ops::Range<usize>| {
            let mut place = 0;
            series.map(|i| {
                let is_larger = !i.origin.is_actual() && of.contains(&place);
                place += usize::from(!i.origin.is_actual());
                Intensity { value: i.value * if is_larger { 1.0 + error } else { 1.0 }, ..*i }
            })
        };
        let length = forecasts.div_ceil(PARTS);
        let parts = (0..forecasts).step_by(length).map(|from| from..from + length);
        std::iter::once(0..forecasts).chain(parts.filter(|part| part.len() < forecasts)).map(larger).collect()
    }

    /// Returns the relative standard error of the preferred source's forecasts an hour ahead; `None` if too few of
    /// these forecasts are scored.
    fn usual_error(&self) -> Option<f64> {
        let source = &self.snapshot.signal.accounting_series().sources().first()?.source;
        let score =
            self.snapshot.signal.scores().iter().find(|s| s.source == *source && s.horizon_h == HORIZONS_H[0])?;
        let absolute = score.mape_pct.filter(|_| score.hours >= LEAST_SCORED_H)?;
        Some(absolute / 100.0 * DEVIATION_PER_ABSOLUTE)
    }

    /// Returns the effect of a trial's batch size, or why the effect is unknown; `None` if the job is not a trial of a
    /// recurring job.
    async fn batch_size_effect(&self) -> Result<Option<Result<BatchEffect, String>>, StoreError> {
        let Some(recurring) = self.snapshot.store.recurring_by_run(&self.stored.id).await? else { return Ok(None) };
        let runs = &recurring.job.runs;
        let Some(own) = runs.iter().find(|r| r.job.as_ref() == Some(&self.stored.id)) else { return Ok(None) };
        let default = recurring.job.terms.spec.default_batch_size;
        if own.trial.batch_size == default {
            return Ok(Some(Err("it ran with the default batch size".into())));
        }
        if !own.trial.reached() {
            return Ok(Some(Err("it has not reached its target".into())));
        }
        let before = own.trial.ended_at.unwrap_or(self.snapshot.now.utc);
        let past = runs.iter().filter(|r| {
            r.trial.batch_size == default && r.trial.reached() && r.trial.ended_at.is_some_and(|ended| ended <= before)
        });
        let (mut energies, mut same_sensors) = (Vec::new(), true);
        let gpus: BTreeSet<&GpuId> = self.stored.spec.gpus.iter().collect();
        for run in past {
            energies.push(run.energy);
            let job = match &run.job {
                Some(job) => self.snapshot.store.job(job).await?,
                None => None,
            };
            same_sensors &= job.is_some_and(|j| j.spec.gpus.iter().collect::<BTreeSet<_>>() == gpus);
        }
        let Some(intensity) = self.emissions.mean_intensity().filter(|_| self.emissions.unknown <= Joules::ZERO) else {
            return Ok(Some(Err("the carbon intensity is unknown for a part of the job's time".into())));
        };
        Ok(Some(batch_effect(&energies, own.energy, intensity, same_sensors)))
    }

    /// Returns first the job's work in the span of its reports, with energy and emissions from the job's ledger rows,
    /// second the waits with the emissions of GPUs that were reserved for the job meanwhile.
    fn completed_in(
        &self,
        span: &Slot,
        series: &CarbonSeries,
        waits: &WaitingTimes,
    ) -> Result<(CompletedWork, WaitingTimes), String> {
        let account = self.stored.progress.account;
        let of_gpus = |slots: &[Slot]| {
            let mut rows: Vec<Interval> = slots.iter().flat_map(|slot| ledger::within(self.rows, slot)).collect();
            rows.retain(|r| r.device.kind() == DeviceKind::Gpu);
            rows
        };
        let rows = of_gpus(&present_spans(span, waits));
        let begun = self.stored.progress.presence.begun_at;
        let held: Vec<Slot> = begun.and_then(|at| Slot::new(self.stored.registered_at, at)).into_iter().collect();
        let (before, between) = (of_gpus(&held), of_gpus(&waits.suspensions));
        let (before, between) = (ledger::emissions(&before, series), ledger::emissions(&between, series));
        let waits = WaitingTimes {
            reserved_before: before.carbon,
            reserved_suspended: between.carbon,
            reserved_energy: before.energy + between.energy,
            ..waits.clone()
        };
        let spans: BTreeSet<_> = rows.iter().map(|r| (&r.device, r.slot)).collect();
        let covered: Seconds = spans.iter().map(|(_, slot)| slot.duration()).sum();
        let recorded = ledger::emissions(&rows, series);
        // The rows may cover a little less or more than the reported time. If they cover much less, the ledger has a
        // gap.
        let present = account.time() - waits.suspended_within(span);
        let reported = present * (self.stored.spec.gpus.len() as f64) / covered;
        if !(reported.is_finite() && reported < 1.1) {
            return Err("the ledger does not cover the time between its first report and its last".into());
        }
        if recorded.unknown + before.unknown + between.unknown > Joules::ZERO {
            return Err("the carbon intensity is unknown for a part of the job's time".into());
        }
        let completed = CompletedWork {
            started: span.start(),
            active: account.active,
            stalled: account.stalled,
            stalled_energy: pause_energy(&account, None).map_or(account.stalled_energy, |pauses| pauses.mean),
            samples: account.samples,
            energy: recorded.energy * reported,
            carbon: recorded.carbon * reported,
        };
        Ok((completed, waits))
    }
}

/// Returns the time for which a job was dead that another one continued at `continued_at`. Zero for a job that was held
/// or suspended at its end: that wait is the daemon's, and a scheduler takes such a job back to its queue.
fn outage(before: &StoredJob, continued_at: DateTime<Utc>) -> Seconds {
    let presence = &before.progress.presence;
    if presence.is_absent() {
        return Seconds::ZERO;
    }
    // A job that died has ended only after its lease: it was dead from about its last report on.
    let last_report = before.progress.last.map(|last| last.received);
    let alive = last_report.max(presence.present_since).unwrap_or(before.registered_at);
    Seconds::from_delta(continued_at - alive).max(Seconds::ZERO)
}

/// Returns the parts of a span in which the job was on its GPUs, oldest first.
fn present_spans(span: &Slot, waits: &WaitingTimes) -> Vec<Slot> {
    let (mut from, mut present) = (span.start(), Vec::new());
    for suspension in &waits.suspensions {
        present.extend(Slot::new(from, suspension.start().min(span.end())));
        from = from.max(suspension.end());
    }
    present.extend(Slot::new(from, span.end()));
    present
}

/// Returns the relative standard deviation of intensities: the error of any useful forecast is less.
fn spread(series: &CarbonSeries) -> f64 {
    let (mut time, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (slot, intensity) in series.points() {
        let (span, value) = (slot.duration().get(), intensity.value.get());
        time += span;
        sum += span * value;
        squares += span * value * value;
    }
    let mean = sum / time;
    if mean > 0.0 { (squares / time - mean * mean).max(0.0).sqrt() / mean } else { 0.0 }
}
