//! Builders of the views of jobs: state, plan, profile and account.

use std::collections::BTreeMap;

use super::megahertz;
use crate::controller::accounting::by_kind;
use crate::controller::cap::LimitGrants;
use crate::controller::error::ControlError;
use crate::controller::jobs::{Job, Phase, Wanted};
use crate::controller::savings::Estimate;
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{
    AccountView, JobView, MarginalCostsView, ObjectiveView, PartsView, PausingView, PlanView, PointView, ProcessesView,
    ProfileView, ProgressView, SegmentView, StartView, SuspendView, spelled,
};
use crate::store::StoredJob;
use wattune_core::domain::{
    ClockLimit, DeviceId, DeviceKind, GpuId, JobId, Objective, Pausing, Profile, SetPoint, Work,
};
use wattune_core::ledger::pauses::pause_energy;
use wattune_core::ledger::savings::SavingInput;
use wattune_core::ledger::waiting_times::WaitingTimes;
use wattune_core::ledger::{self, Emissions};
use wattune_core::plan::Plan;
use wattune_core::profile::{Curve, Profiler};
use wattune_core::time::Now;
use wattune_core::units::{GramsCo2e, Millijoules, Samples};

/// Maximum error of the energy in a job's own pauses, as a fraction of the job's energy, that a comparison may ignore.
const NEGLIGIBLE: f64 = 0.002;
/// Maximum number of parts of a job that an account adds up.
const MOST_PARTS: usize = 100;

impl Snapshot<'_> {
    /// Returns the views of the jobs that have not ended, oldest first.
    pub(crate) fn jobs(&self, grants: &LimitGrants) -> Vec<JobView> {
        let mut jobs: Vec<&Job> = self.jobs.iter().collect();
        jobs.sort_by_key(|job| job.registered_at);
        jobs.into_iter().map(|job| self.job_view(job, grants)).collect()
    }

    /// Returns the view of a job, running or ended.
    pub(crate) async fn job(&self, id: &JobId) -> Result<JobView, ControlError> {
        if let Some(job) = self.jobs.get(id) {
            return Ok(self.job_view(job, &self.grants()));
        }
        match self.store.job(id).await? {
            Some(stored) => self.ended_view(&stored).await,
            None => Err(ControlError::not_found("job", id, "; jobs are registered with POST /v1/jobs".into())),
        }
    }

    /// Returns the view of an ended job, with the promises that it broke and the likely mistakes in its reports.
    async fn ended_view(&self, stored: &StoredJob) -> Result<JobView, ControlError> {
        let view = JobView::from_stored(stored);
        let Some((at, _)) = stored.ended else { return Ok(view) };
        let carbon = match stored.spec.objective.carbon_budget {
            Some(_) => {
                let rows = self.accounting.rows_of(&stored.id, self.store).await?;
                self.intensities().emissions_of(&rows).await?.0.carbon
            }
            None => GramsCo2e::ZERO,
        };
        let job = self.make_job(stored).await?;
        let broken = job.broken_at_end(at, carbon);
        let broken_promises = broken.len();
        Ok(JobView { broken_promises, warnings: [broken, job.likely_mistakes()].concat(), ..view })
    }

    fn job_view(&self, job: &Job, grants: &LimitGrants) -> JobView {
        let (now, demand) = (self.now, self.demand());
        // The GPUs of an absent job may have another job.
        let is_present = !job.is_absent();
        let wanted = |gpu: &GpuId| grants.permitted(gpu, demand.set_point(gpu)).filter(|_| is_present);
        let sets: Vec<_> = job.spec.gpus.iter().map(wanted).collect();
        let limits: Vec<Option<f64>> = sets.iter().map(|set| Some(set.as_ref()?.limit.watts().get())).collect();
        let mut emissions = job.emissions.sum().clone();
        emissions.add(job.cpu_emissions.sum());
        let (wanted_activity, until) = job.wanted_now(now);
        JobView {
            wanted: Some(wanted_activity),
            until,
            start: start_view(job),
            suspend: suspend_view(job, now),
            lease_left_s: Some(job.lease_left(now).get()),
            phase: Some(job.phase),
            reason: job.reason.clone(),
            power_limit_w: limits.first().copied().flatten(),
            power_limits_w: limits,
            clock_limit_mhz: sets.first().copied().and_then(megahertz),
            slowdown: job.slowdown(),
            energy_j: Some(emissions.energy.get()),
            carbon_g: emissions.mean_intensity().map(|_| emissions.carbon.get()),
            energy_by_device_j: in_joules(&job.energy_by_kind),
            saved_g: job.saved.map(Into::into),
            expected_end: self.plan_within_cap(job).map(Plan::ends_at),
            plan_made_at: job.plan.as_ref().map(|p| p.made_at),
            planned_carbon_g: job.plan.as_ref().map(|p| p.expected.carbon.get()),
            planned_carbon_at_max_g: job.plan.as_ref().map(|p| p.expected.carbon_at_ceiling.get()),
            resume_at: job.resume_at(now),
            broken_promises: job.broken_promises(now),
            warnings: self.warnings_of(job),
            processes: job.spec.processes.as_ref().map(|p| self.accounting.processes_view(&job.id, p)),
            ..JobView::from_stored(&job.stored(None))
        }
    }

    /// Returns the response to a job's progress report; `None` if the job has ended or has no GPUs.
    pub(crate) fn progress_view(&self, id: &JobId, grants: &LimitGrants) -> Option<ProgressView> {
        let job = self.jobs.get(id)?;
        let gpu = job.spec.gpus.first()?;
        let wanted = grants.permitted(gpu, self.demand().set_point(gpu)).filter(|_| !job.is_absent());
        let (wanted_activity, until) = job.wanted_now(self.now);
        Some(ProgressView {
            wanted: wanted_activity,
            until,
            latest_start: job.latest_start(),
            start: start_view(job).filter(|_| job.is_held()),
            phase: job.phase,
            reason: job.reason.clone(),
            power_limit_w: wanted.map(|set| set.limit.watts().get()),
            clock_limit_mhz: megahertz(wanted),
            resume_at: job.resume_at(self.now),
            slowdown: job.slowdown(),
            expected_end: self.plan_within_cap(job).map(Plan::ends_at),
            lease_s: job.spec.lease.get(),
            warnings: self.warnings_of(job),
        })
    }

    /// Returns the plan of a job whose limits the node's cap does not lower below that plan; `None` for other jobs, and
    /// without a plan.
    fn plan_within_cap<'j>(&self, job: &'j Job) -> Option<&'j Plan> {
        job.plan.as_ref().filter(|_| !self.planner.is_below_plan(job))
    }

    /// Returns a job's plan.
    pub(crate) fn plan_of(&self, id: &JobId) -> Result<PlanView, ControlError> {
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
            applied: matches!(job.phase, Phase::Planned | Phase::Paused),
            expected_end: self.plan_within_cap(job).map(Plan::ends_at),
            expected_carbon_g: expected.map(|e| e.carbon.get()),
            expected_carbon_at_max_g: expected.map(|e| e.carbon_at_ceiling.get()),
            expected_energy_j: expected.map(|e| e.energy.get()),
            expected_slowdown: self.plan_within_cap(job).map(|plan| plan.expected.slowdown),
            forgone_saving: plan.and_then(|p| p.forgone_saving),
            warnings: self.warnings_of(job),
            segments: segments
                .iter()
                .map(|s| SegmentView {
                    start: s.slot.start(),
                    end: s.slot.end(),
                    power_limits_w: job.spec.gpus.iter().filter_map(|g| job.limit_of(g, &s.setting)).collect(),
                    clock_limit_mhz: clock(&s.setting),
                    activity: s.activity.into(),
                    power_w: s.power.get(),
                    samples_per_s: s.throughput.get(),
                    intensity_g_per_kwh: s.intensity.get(),
                    reason: s.reason.to_string(),
                    marginal_costs: s.reason.margin().map(|margin| MarginalCostsView {
                        slower: margin.slower,
                        faster: margin.faster,
                        plan: margin.price,
                    }),
                })
                .collect(),
        })
    }

    /// Returns the profile of a job, running or ended.
    pub(crate) async fn profile_of(&self, id: &JobId) -> Result<ProfileView, ControlError> {
        let ended;
        let (job, wanted) = match self.jobs.get(id) {
            Some(job) => (job, job.profiler.as_ref().and_then(Profiler::wanted)),
            None => {
                let Some(stored) = self.store.job(id).await? else { return Err(self.no_such_job(id).await) };
                ended = self.make_job(&stored).await?;
                (&ended, None)
            }
        };
        Ok(ProfileView {
            job_id: id.to_string(),
            complete: job.profiler.as_ref().is_some_and(Profiler::is_complete),
            measuring_w: wanted.map(|setting| watts(setting)),
            measuring_mhz: wanted.and_then(|setting| clock(setting)),
            thermal_trend: job.profiler.as_ref().and_then(|p| p.record().thermal_trend),
            points: points(job.profile()),
        })
    }

    /// Returns the account of a job, running or ended, with the best carbon intensities known now.
    pub(crate) async fn account_of(&self, id: &JobId) -> Result<AccountView, ControlError> {
        let ended;
        let (stored, job) = match self.jobs.get(id) {
            Some(job) => (job.stored(None), job),
            None => {
                let Some(stored) = self.store.job(id).await? else { return Err(self.no_such_job(id).await) };
                ended = self.make_job(&stored).await?;
                (stored, &ended)
            }
        };
        let rows = self.accounting.rows_of(id, self.store).await?;
        let (emissions, series) = self.intensities().emissions_of(&rows).await?;
        let account = stored.progress.account;
        let estimate =
            Estimate { snapshot: *self, stored: &stored, job, rows: &rows, series: &series, emissions: &emissions };
        let known = estimate.completed_work().await?;
        let known_pauses = known.as_ref().ok().filter(|known| {
            // `against_max` has no confidence intervals, so it is given only if the energy of pauses is almost exact.
            // It has no effects of waits either.
            known.waits == WaitingTimes::default()
                && pause_energy(&known.account, None).is_ok_and(|it| it.half <= known.completed.energy * NEGLIGIBLE)
        });
        let against_max = known_pauses.and_then(|known| against_ceiling(known, job.profile()));
        let savings = estimate.savings(known).await?;
        let warnings = match &stored.ended {
            Some((at, _)) => [job.broken_at_end(*at, emissions.carbon), job.likely_mistakes()].concat(),
            None => self.warnings_of(job),
        };
        Ok(AccountView {
            warnings,
            job_id: id.to_string(),
            name: stored.spec.name.to_string(),
            simulated: stored.spec.gpus.iter().any(|g| DeviceId::from(g).is_simulated()),
            samples: stored.progress.last.map(|l| l.samples),
            time_s: account.active.get(),
            stalled_s: account.stalled.get(),
            stalled_energy_j: account.stalled_energy.get(),
            energy_j: emissions.energy.get(),
            energy_by_device_j: in_joules(&by_kind(&rows)),
            carbon_g: emissions.mean_intensity().map(|_| emissions.carbon.get()),
            energy_by_origin_j: emissions
                .by_origin
                .iter()
                .filter_map(|(o, e)| Some((spelled(o)?, e.get())))
                .collect::<BTreeMap<_, _>>(),
            energy_without_intensity_j: emissions.unknown.get(),
            energy_estimated_j: emissions.estimated.get(),
            energy_uncertainty: emissions.uncertainty(),
            against_max: against_max.map(Into::into),
            savings: savings.into(),
            with_earlier_parts: self.parts(&stored, emissions.clone()).await?,
            ended_at: stored.ended.as_ref().map(|(at, _)| *at),
            end_reason: stored.ended.map(|(_, why)| why),
        })
    }

    /// Returns the sums over a job and the earlier jobs that it continues; `None` if it continues none. `own` are the
    /// job's own energy and emissions.
    async fn parts(&self, stored: &StoredJob, own: Emissions) -> Result<Option<PartsView>, ControlError> {
        let (mut ids, mut sum) = (vec![stored.id.to_string()], own);
        let mut next = stored.spec.offers.continues.as_ref().map(|before| before.job.clone());
        while let Some(id) = next.filter(|id| ids.len() < MOST_PARTS && !ids.contains(&id.to_string())) {
            let rows = self.accounting.rows_of(&id, self.store).await?;
            sum.add(&self.intensities().emissions_of(&rows).await?.0);
            let earlier = self.store.job(&id).await?;
            ids.push(id.to_string());
            next = earlier.and_then(|earlier| earlier.spec.offers.continues).map(|before| before.job);
        }
        ids.reverse();
        Ok((ids.len() > 1).then(|| PartsView {
            job_ids: ids,
            energy_j: sum.energy.get(),
            carbon_g: sum.mean_intensity().map(|_| sum.carbon.get()),
            energy_without_intensity_j: sum.unknown.get(),
        }))
    }

    /// Returns the error for a job that does not exist or has ended.
    pub(crate) async fn no_such_job(&self, id: &JobId) -> ControlError {
        match self.store.job(id).await {
            Ok(Some(job)) => {
                let (at, why) = job.ended.unwrap_or((job.registered_at, "unknown".into()));
                ControlError::Conflict(format!(
                    "job {id} has already ended, at {}: {why}; its account: GET /v1/jobs/{id}/emissions; to go on, register anew",
                    at.format("%FT%TZ")
                ))
            }
            _ => ControlError::not_found("job", id, "; jobs are registered with POST /v1/jobs".into()),
        }
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
    fn limit_of(&self, gpu: &GpuId, setting: &[SetPoint]) -> Option<f64> {
        let group = self.groups.iter().position(|g| g.members.contains(gpu))?;
        setting.get(group).map(|s| s.limit.watts().get())
    }
}

/// Compares a job with the same work at the maximum usable limit. Returns `None` if measurements at that limit, work or
/// carbon intensities are missing.
fn against_ceiling(known: &SavingInput, profile: &Profile) -> Option<ledger::Comparison> {
    let (curve, ceiling) = (Curve::from_profile(profile)?, profile.ceiling()?);
    let profiled = (ceiling.throughput.mean, ceiling.power.mean);
    let SavingInput { completed, account, series, .. } = known;
    ledger::compare_at_ceiling(completed, account, profiled, |rate| curve.power_at(rate), series)
}

fn watts(setting: &[SetPoint]) -> Vec<f64> {
    setting.iter().map(|s| s.limit.watts().get()).collect()
}

/// Returns the locked clock of a setting in MHz; `None` without a lock. There is at most one such clock, because clocks
/// are locked only for jobs with a single group of equal GPUs.
fn clock(setting: &[SetPoint]) -> Option<u32> {
    setting.iter().find_map(|s| s.clock).map(ClockLimit::megahertz)
}

fn points(profile: &Profile) -> Vec<PointView> {
    let point = |p: &wattune_core::domain::OperatingPoint| PointView {
        power_limits_w: watts(&p.setting),
        clock_limit_mhz: clock(&p.setting),
        samples_per_s: p.throughput.mean.get(),
        samples_per_s_error: p.throughput.relative_error,
        power_w: p.power.mean.get(),
        joules_per_sample: p.power.mean.get() / p.throughput.mean.get(),
        measured_s: p.measured.get(),
    };
    profile.points.iter().map(point).collect()
}

impl JobView {
    /// Returns the view of a stored job. For a running job the caller adds the present state, such as phase and limits.
    pub(crate) fn from_stored(job: &StoredJob) -> Self {
        let spec = &job.spec;
        let account = job.progress.account;
        let total = match job.work() {
            Work::TotalSamples(total) => Some(total.get()),
            Work::Unknown => None,
        };
        Self {
            job_id: job.id.to_string(),
            name: spec.name.to_string(),
            gpus: spec.gpus.iter().map(ToString::to_string).collect(),
            batch_size: spec.batch_size,
            total_samples: total,
            samples: job.progress.last.map(|l| Samples::new(l.samples).get()),
            progress_source: job.progress.source.map(Into::into),
            objective: objective_view(&spec.objective),
            control: spec.control,
            priority: spec.priority,
            tags: spec.tags.clone(),
            processes: spec.processes.as_ref().map(ProcessesView::of),
            lease_s: spec.lease.get(),
            reason: job.ended.as_ref().map(|(_, why)| why.clone()).unwrap_or_default(),
            active_s: account.active.get(),
            stalled_s: account.stalled.get(),
            key: spec.offers.key.as_ref().map(ToString::to_string),
            continues: spec.offers.continues.as_ref().map(|earlier| earlier.job.to_string()),
            registered_at: job.registered_at,
            started_at: job.progress.started_at,
            ended_at: job.ended.as_ref().map(|(at, _)| *at),
            end_reason: job.ended.as_ref().map(|(_, why)| why.clone()),
            ..Self::default()
        }
    }
}

fn start_view(job: &Job) -> Option<StartView> {
    let offer = job.spec.offers.start.as_ref()?;
    let choice = job.start.as_ref();
    // After a restart of the daemon, a job that has begun has what was stored when it began.
    let stored = job.progress.presence.chosen;
    let saving = choice.and_then(|choice| choice.saving).or(stored.map(|chosen| chosen.saving));
    let reason = choice.map(|choice| choice.reason.clone()).or(stored.map(|chosen| chosen.reason.to_string()));
    Some(StartView {
        asked_at: job.asked_at(),
        start_at: choice.map(|choice| choice.start).filter(|_| job.is_held()),
        latest_start: job.latest_start().unwrap_or(offer.latest),
        begun_at: job.progress.presence.begun_at,
        expected_saving_pct: saving.map(|saving| saving.expected * 100.0),
        saving_low_pct: saving.map(|saving| saving.low * 100.0),
        saving_high_pct: saving.map(|saving| saving.high * 100.0),
        loss_probability: saving.map(|saving| saving.loss_probability),
        reason: reason.unwrap_or_default(),
    })
}

fn suspend_view(job: &Job, now: Now) -> Option<SuspendView> {
    let offer = job.spec.offers.suspend.as_ref()?;
    let presence = &job.progress.presence;
    let (wanted, until) = job.wanted_now(now);
    Some(SuspendView {
        signal: offer.signal.clone(),
        checkpoint_s: presence.checkpoints.estimate(offer.checkpoint).get(),
        restart_s: presence.restarts.estimate(offer.restart).get(),
        stops: presence.stops,
        asked: wanted == Wanted::Suspend && !job.is_absent(),
        resume_at: until.filter(|_| wanted == Wanted::Suspend),
    })
}

fn objective_view(objective: &Objective) -> ObjectiveView {
    let Objective { eta, max_slowdown, deadline, carbon_budget, price_weight, pausable } = *objective;
    let pausing = |p: Pausing| PausingView {
        idle_power_w: p.idle_power.get(),
        min_run_s: p.min_run.get(),
        min_pause_s: p.min_pause.get(),
        checkpoint_s: p.checkpoint.get(),
    };
    let carbon_budget_g = carbon_budget.map(|budget| budget.get());
    ObjectiveView { eta, max_slowdown, deadline, carbon_budget_g, price_weight, pausable: pausable.map(pausing) }
}

fn in_joules(energy: &BTreeMap<DeviceKind, Millijoules>) -> BTreeMap<String, f64> {
    energy.iter().filter_map(|(kind, energy)| Some((spelled(kind)?, energy.to_joules().get()))).collect()
}
