//! Views of the controller's state.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::account::known_intensities;
use super::job::Job;
use super::view::{
    AccountView, CarbonView, IntensityView, JobView, ObjectiveView, PlanView, PointView, ProfileView, ProgressView,
    SegmentView, StatusView,
};
use super::{ControlError, Controller};
use crate::domain::{CarbonSeries, Forecast, GpuId, JobId, Objective, PowerLimit, Profile, Slot, Work};
use crate::ledger::{self, Done};
use crate::profile::{Curve, Profiler, Stage};
use crate::providers::Freshness;
use crate::store::StoredJob;
use crate::units::{Samples, Seconds};

/// Relative uncertainty of a board's energy: the sensors' gain error (Yang, Adámek, Armour, SC'24).
const ENERGY_UNCERTAINTY: f64 = 0.05;

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
            problems: self.problems(),
            gpus,
            jobs: self.jobs(),
        }
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

    /// The jobs that have not ended, oldest first.
    pub fn jobs(&self) -> Vec<JobView> {
        let mut jobs: Vec<&Job> = self.jobs.values().collect();
        jobs.sort_by_key(|j| j.registered_at);
        jobs.into_iter().map(|j| self.job_view(j)).collect()
    }

    /// The jobs that ended last, newest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<JobView>, ControlError> {
        Ok(self.store.ended_jobs(limit).await?.iter().map(ended_view).collect())
    }

    pub(super) fn job_view(&self, job: &Job) -> JobView {
        let now = self.now();
        let limits: Vec<Option<f64>> =
            job.spec.gpus.iter().map(|g| self.wanted(g, now).map(|l| l.watts().get())).collect();
        JobView {
            lease_left_s: Some(job.lease_left(now).get()),
            phase: Some(job.phase),
            reason: job.reason.clone(),
            power_limit_w: limits.first().copied().flatten(),
            power_limits_w: limits,
            slowdown: job.slowdown(),
            energy_j: job.emissions.energy.get(),
            carbon_g: job.emissions.mean_intensity().map(|_| job.emissions.carbon.get()),
            expected_end: job.plan.as_ref().map(|p| p.ends_at()),
            warnings: job.warnings(),
            ..ended_view(&job.stored(None))
        }
    }

    pub(super) fn progress_view(&self, id: &JobId) -> Option<ProgressView> {
        let job = self.jobs.get(id)?;
        let first = job.spec.gpus.first()?;
        Some(ProgressView {
            phase: job.phase,
            reason: job.reason.clone(),
            power_limit_w: self.wanted(first, self.now()).map(|l| l.watts().get()),
            slowdown: job.slowdown(),
            expected_end: job.plan.as_ref().map(|p| p.ends_at()),
            lease_s: job.spec.lease.get(),
            warnings: job.warnings(),
        })
    }

    /// What will happen to a job, and why.
    ///
    /// # Errors
    /// If there is no such job that has not ended.
    pub fn plan_of(&self, id: &JobId) -> Result<PlanView, ControlError> {
        let job = self.running(id)?;
        let plan = job.plan.as_ref();
        let segments = plan.map(|p| p.segments.as_slice()).unwrap_or_default();
        let expected = plan.map(|p| &p.expected);
        Ok(PlanView {
            job_id: id.to_string(),
            made_at: plan.map(|p| p.made_at),
            note: match plan.and_then(|p| p.extended_from) {
                Some(from) => format!("{} (from {} on with the forecast's mean)", job.reason, from.format("%FT%TZ")),
                None => job.reason.clone(),
            },
            applied: job.phase == super::Phase::Planned,
            expected_end: expected.map(|e| e.ends_at),
            expected_carbon_g: expected.map(|e| e.carbon.get()),
            expected_carbon_at_max_g: expected.map(|e| e.carbon_at_ceiling.get()),
            expected_energy_j: expected.map(|e| e.energy.get()),
            expected_slowdown: expected.map(|e| e.slowdown),
            warnings: job.warnings(),
            segments: segments
                .iter()
                .map(|s| SegmentView {
                    start: s.slot.start(),
                    end: s.slot.end(),
                    power_limits_w: job.spec.gpus.iter().filter_map(|g| job.limit_of(g, &s.limits)).collect(),
                    power_w: s.power.get(),
                    samples_per_s: s.throughput.get(),
                    intensity_g_per_kwh: s.intensity.get(),
                    reason: s.reason.to_string(),
                })
                .collect(),
        })
    }

    /// What was learned about a job, running or ended.
    ///
    /// # Errors
    /// If there is no such job.
    pub async fn profile_of(&self, id: &JobId) -> Result<ProfileView, ControlError> {
        let watts = |limits: &[PowerLimit]| limits.iter().map(|l| l.watts().get()).collect::<Vec<f64>>();
        if let Some(job) = self.jobs.get(id) {
            let profiler = job.profiler.as_ref();
            return Ok(ProfileView {
                job_id: id.to_string(),
                complete: profiler.is_some_and(|p| p.stage() == Stage::Done),
                measuring_w: profiler.and_then(Profiler::wanted).map(|s| watts(s)),
                thermal_trend: profiler.and_then(|p| p.record().thermal_trend),
                points: points(&job.profile()),
            });
        }
        let Some(stored) = self.store.job(id).await? else { return Err(self.no_such_job(id).await) };
        let job = self.make_job(id.clone(), stored.spec, stored.progress, stored.registered_at).await?;
        Ok(ProfileView {
            job_id: id.to_string(),
            complete: job.profiler.as_ref().is_some_and(|p| p.stage() == Stage::Done),
            measuring_w: None,
            thermal_trend: job.profiler.as_ref().and_then(|p| p.record().thermal_trend),
            points: points(&job.profile()),
        })
    }

    /// What a job used and emitted, running or ended, with the best intensities known now.
    ///
    /// # Errors
    /// If there is no such job, or the database cannot be read.
    pub async fn account_of(&self, id: &JobId) -> Result<AccountView, ControlError> {
        let (stored, profile) = match self.jobs.get(id) {
            Some(job) => (job.stored(None), job.profile()),
            None => {
                let Some(stored) = self.store.job(id).await? else { return Err(self.no_such_job(id).await) };
                let job = self.make_job(id.clone(), stored.spec.clone(), stored.progress, stored.registered_at).await?;
                (stored, job.profile())
            }
        };
        let mut rows = self.store.intervals_of(id).await?;
        let unwritten = self.backlog.intervals.iter();
        rows.extend(unwritten.filter(|r| r.share == ledger::Share::Job(id.clone())).cloned());
        let span = rows.first().zip(rows.last()).and_then(|(a, b)| Slot::new(a.slot.start(), b.slot.end()));
        let series = match (span, &self.forecast) {
            (Some(span), Some(forecast)) => self.best_intensities(forecast, &span).await?,
            _ => CarbonSeries::default(),
        };
        let emissions = ledger::emissions(&rows, &series);
        let account = stored.progress.account;
        let against_max = stored.progress.started_at.and_then(|started| {
            let curve = Curve::from_profile(&profile)?;
            let ceiling = profile.ceiling()?;
            let done = Done {
                started,
                active: account.active,
                samples: account.samples,
                energy: emissions.energy,
                carbon: emissions.carbon,
            };
            let top = (ceiling.throughput.mean, ceiling.power.mean);
            ledger::compare(&done, top, |rate| curve.power_at(rate), &series)
        });
        Ok(AccountView {
            job_id: id.to_string(),
            name: stored.spec.name.to_string(),
            samples: stored.progress.last.map(|l| l.samples),
            time_s: account.active.get(),
            energy_j: emissions.energy.get(),
            carbon_g: emissions.mean_intensity().map(|_| emissions.carbon.get()),
            energy_by_origin_j: emissions
                .by_origin
                .iter()
                .filter_map(|(o, e)| Some((spelled(o)?, e.get())))
                .collect::<BTreeMap<_, _>>(),
            energy_without_intensity_j: emissions.unknown.get(),
            energy_estimated_j: emissions.estimated.get(),
            energy_uncertainty: ENERGY_UNCERTAINTY,
            against_max: against_max.map(Into::into),
            ended_at: stored.ended.as_ref().map(|(at, _)| *at),
            end_reason: stored.ended.map(|(_, why)| why),
        })
    }

    async fn best_intensities(&self, forecast: &Forecast, span: &Slot) -> Result<CarbonSeries, ControlError> {
        let mut series = self.store.intensities(&forecast.zone, &forecast.source, span).await?;
        // What is known in memory and could not be written yet.
        if self.store_fault.is_some() {
            series.overwrite(&known_intensities(forecast).within(span));
        }
        Ok(series)
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

    fn running(&self, id: &JobId) -> Result<&Job, ControlError> {
        self.jobs.get(id).ok_or_else(|| ControlError::NotFound {
            what: "running job",
            given: id.to_string(),
            hint: "; a plan exists only while a job runs".into(),
        })
    }
}

impl Job {
    fn limit_of(&self, gpu: &GpuId, limits: &[PowerLimit]) -> Option<f64> {
        let group = self.groups.iter().position(|g| g.members.contains(gpu))?;
        limits.get(group).map(|l| l.watts().get())
    }
}

fn points(profile: &Profile) -> Vec<PointView> {
    let point = |p: &crate::domain::OperatingPoint| PointView {
        power_limits_w: p.limits.iter().map(|l| l.watts().get()).collect(),
        samples_per_s: p.throughput.mean.get(),
        samples_per_s_error: p.throughput.relative_error,
        power_w: p.power.mean.get(),
        joules_per_sample: p.power.mean.get() / p.throughput.mean.get(),
        measured_s: p.measured.get(),
    };
    profile.points.iter().map(point).collect()
}

/// What a stored job shows; for a running one the rest is filled in.
pub(super) fn ended_view(job: &StoredJob) -> JobView {
    let spec = &job.spec;
    let account = job.progress.account;
    let total = match spec.work {
        Work::TotalSamples(total) => Some(total.get()),
        Work::Unknown => None,
    };
    JobView {
        job_id: job.id.to_string(),
        name: spec.name.to_string(),
        gpus: spec.gpus.iter().map(ToString::to_string).collect(),
        batch_size: spec.batch_size,
        total_samples: total,
        samples: job.progress.last.map(|l| Samples::new(l.samples).get()),
        objective: objective_view(&spec.objective),
        control: spec.control,
        tags: spec.tags.clone(),
        lease_s: spec.lease.get(),
        lease_left_s: None,
        phase: None,
        reason: job.ended.as_ref().map(|(_, why)| why.clone()).unwrap_or_default(),
        power_limit_w: None,
        power_limits_w: Vec::new(),
        slowdown: None,
        active_s: account.active.get(),
        stalled_s: account.stalled.get(),
        energy_j: 0.0,
        carbon_g: None,
        registered_at: job.registered_at,
        started_at: job.progress.started_at,
        expected_end: None,
        ended_at: job.ended.as_ref().map(|(at, _)| *at),
        end_reason: job.ended.as_ref().map(|(_, why)| why.clone()),
        warnings: Vec::new(),
    }
}

fn objective_view(objective: &Objective) -> ObjectiveView {
    ObjectiveView { eta: objective.eta, max_slowdown: objective.max_slowdown, deadline: objective.deadline }
}

/// A unit variant as serde spells it.
fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
