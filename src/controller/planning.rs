//! When and with what to plan: the newest signal, the profile as it stands, and what the boards allow.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::cap::LimitGrants;
use super::job::{Job, Phase};
pub(super) use super::planner::Planner;
use super::planner::{NoPlan, PlanBatch, PlanInput, Search, in_words};
use super::replan::ReplanReason;
use super::shared_budget::SharedBudget;
use super::{Controller, Gpu};
use wattune_core::domain::{CarbonSeries, GpuId, JobId, Objective, PowerLimit, Quoted, Slot, TimeSeries, Work};
use wattune_core::forecast::{ErrorPaths, HorizonPolicy, reference_intensity};
use wattune_core::plan::{Pace, Past, Plan, PlanSlot, Progress, slots_ahead};
use wattune_core::profile::Stage;
use wattune_core::time::Now;
use wattune_core::units::{GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

/// Work off the plan by more than this part is a reason to plan again.
const DEVIATION: f64 = 0.01;
/// Deviations within less time than this are noise of the reports' spacing; within this part of a shorter job.
const DEVIATION_SPAN: Seconds = Seconds::new(60.0);
const DEVIATION_PART: f64 = 0.02;
/// So is a lag of less than this part of what the job may still lose, and of less than this part of its time.
const LAG: f64 = 0.05;
const LEAST_LAG: f64 = 0.0002;
/// Plans that are better by less than this part are the same but for rounding.
const WORTH_TELLING: f64 = 1e-6;
/// No horizon is built further than this; the planner repeats its mean beyond.
const FURTHEST: TimeDelta = TimeDelta::days(30);

/// What all jobs plan with at one moment.
pub(super) struct Outlook {
    slots: Vec<PlanSlot>,
    errors: Arc<ErrorPaths>,
    reference: GramsPerKwh,
    prices: Option<(TimeSeries<Quoted<PricePerMwh>>, PricePerMwh)>,
    dwell: Seconds,
}

impl Controller {
    /// Plans every job that has a reason to, and sees to the phase of each. Plans are searched for on other threads; a
    /// search that takes longer than the settings allow is told to stop, the plans before stay in force until it has.
    pub(super) async fn plan(&mut self) {
        if self.planner.search.as_ref().is_some_and(Search::is_finished) {
            self.await_plans(Seconds::ZERO).await;
        }
        let now = self.now();
        let ids: Vec<_> = self.jobs.keys().cloned().collect();
        for id in &ids {
            self.look_at(id, now);
        }
        if self.planner.search.is_none() {
            let share = self.share(now);
            self.notice_share(share.as_ref());
            let order = self.order(now, share.as_ref());
            if !order.is_empty() {
                self.planner.share.clone_from(&share);
                self.planner.search = Some(Search::begin(order, share, now.monotonic));
                if self.settings.solve_limit_s > Seconds::ZERO {
                    self.await_plans(self.settings.solve_limit_s).await;
                }
            }
        }
        self.freeze_references().await;
        for id in &ids {
            let pace = self.pace(id);
            if let Some(job) = self.jobs.get_mut(id) {
                job.follow_plan(now, &pace);
            }
        }
        let passes = self.passes(now);
        for id in &ids {
            self.explain(id, now, &passes);
        }
    }

    /// The same after something that concerns one job alone: of many jobs each reports by itself, and not all of them have
    /// a reason to be looked at for that. All are where this one is to be planned, or jobs share something.
    pub(super) async fn plan_one(&mut self, id: &JobId) {
        let now = self.now();
        let passes = self.passes(now);
        self.look_at(id, now);
        let is_due = |job: &Job| job.replan.is_some() && job.is_profiled() && !job.rests_from_planning(now);
        let finished = self.planner.search.as_ref().is_some_and(Search::is_finished);
        if finished || !passes.is_empty() || self.share(now).is_some() || self.jobs.get(id).is_some_and(is_due) {
            return self.plan().await;
        }
        self.follow_plan_of(id, now, &passes);
    }

    /// Sees to a job's phase, and whether it is to be planned.
    fn look_at(&mut self, id: &JobId, now: Now) {
        self.doubt_caps_at_slot_ends(id, now);
        let Some((hindrance, allowed)) = self.jobs.get(id).map(|j| (self.hindrance(j), self.allowed(j))) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.choose_phase(hindrance);
        job.notice_reasons(now, allowed);
    }

    /// Has a job do what its plan says now, and says why.
    fn follow_plan_of(&mut self, id: &JobId, now: Now, passes: &LimitGrants) {
        let pace = self.pace(id);
        if let Some(job) = self.jobs.get_mut(id) {
            job.follow_plan(now, &pace);
        }
        self.explain(id, now, passes);
    }

    /// Waits for the search in progress, at most `patience`, and takes what it found.
    async fn await_plans(&mut self, patience: Seconds) {
        let Some(mut search) = self.planner.search.take() else { return };
        let Some(solved) = search.outcome(patience).await else {
            self.planner.search = Some(search);
            return;
        };
        self.planner.took = Some(self.now().monotonic.since(search.since));
        // What came late may be for another cap than the present one; then it is planned anew, and not carried out.
        let is_stale = patience <= Seconds::ZERO && search.share != self.share(self.now());
        let stale = search.share.as_ref().filter(|_| is_stale).map(|s| s.members.clone()).unwrap_or_default();
        self.planner.apart = solved.apart;
        if let Some(broken) = solved.broken.filter(|_| !is_stale) {
            self.planner.broken = broken.iter().map(in_words).collect();
        }
        let now = self.now();
        for (id, outcome) in solved.plans {
            // A job that is profiled anew meanwhile has no use for it.
            let Some(job) = self.jobs.get_mut(&id).filter(|j| j.is_profiled()) else { continue };
            match outcome {
                Err(NoPlan::Died(why)) => job.fail_planning(why, now),
                _ if stale.contains(&id) => {}
                Ok(made) => {
                    job.plan = Some(made);
                    (job.unplannable, job.setback) = (None, None);
                }
                Err(NoPlan::Unplannable(error)) => {
                    job.plan = None;
                    (job.unplannable, job.setback) = (Some(error.to_string()), None);
                }
            }
        }
    }

    /// Has those that share a cap planned anew where it, or what others take of it, has changed; and those that did, once
    /// it is gone.
    fn notice_share(&mut self, share: Option<&SharedBudget>) {
        if self.planner.share.as_ref() == share {
            return;
        }
        let before = self.planner.share.as_ref().map(|s| s.members.clone()).unwrap_or_default();
        let members = share.map(|s| s.members.as_slice()).unwrap_or_default();
        for id in before.iter().chain(members) {
            if let Some(job) = self.jobs.get_mut(id) {
                job.replan.get_or_insert(ReplanReason::OtherShare);
            }
        }
        if share.is_none() {
            self.planner.share = None;
            self.planner.apart = None;
            self.planner.broken.clear();
        }
    }

    /// What is to be planned now. Jobs that share a cap are planned together or not at all.
    fn order(&mut self, now: Now, share: Option<&SharedBudget>) -> PlanBatch {
        // A sweep is not interrupted by a plan; what it learns is planned with when it is done.
        let is_due = |job: &&Job| job.replan.is_some() && job.is_profiled() && !job.rests_from_planning(now);
        let mut due: Vec<JobId> = self.jobs.values().filter(is_due).map(|j| j.id.clone()).collect();
        let members = share.map(|s| s.members.clone()).unwrap_or_default();
        let anew = due.iter().any(|id| members.contains(id));
        due.retain(|id| !members.contains(id));
        let mut order = PlanBatch { alone: self.briefs(&due, now), ..PlanBatch::default() };
        if let Some(share) = share.filter(|_| anew) {
            order.together = self.briefs(&members, now);
            let ends = order.together.iter().filter_map(|b| b.horizon.last()).map(|s| s.slot.end());
            let until = ends.max().unwrap_or(now.utc);
            order.cap = share.left(now.utc, until);
            order.carbon_budget = self.accounting.budget().left(now.utc, until, self.signal.basis().value);
        }
        order
    }

    /// What the plans of these jobs are made from. The reasons to plan them are done with.
    fn briefs(&mut self, ids: &[JobId], now: Now) -> Vec<PlanInput> {
        let jobs = || ids.iter().filter_map(|id| self.jobs.get(id));
        let Some(until) = jobs().map(|job| self.horizon_end(job, now)).max() else { return Vec::new() };
        let shared = self.outlook(now.utc, until);
        let mut briefs = Vec::new();
        for id in ids {
            let Some(job) = self.jobs.get(id) else { continue };
            let (max_power, allowed) = (self.max_power(job), self.allowed(job));
            let (limits, at_rest) = self.counted_limits(job);
            let window = self.settings.window_s;
            if let Some(job) = self.jobs.get_mut(id) {
                let why = job.replan.take().unwrap_or(ReplanReason::WithOthers);
                tracing::debug!(job.id = %id, "job {id}: planned again ({why})");
                let before = job.plan.clone().filter(|_| why.is_routine() && job.planned_under == allowed);
                job.planned_under = allowed;
                let brief = job.brief(now, &shared, window, max_power, allowed, limits, at_rest);
                briefs.push(PlanInput { before, better_by: self.planner.settings.better_by, ..brief });
            }
        }
        briefs
    }

    /// Puts the present choice's reason in words.
    fn explain(&mut self, id: &JobId, now: Now, passes: &LimitGrants) {
        let Some(allowed) = self.jobs.get(id).map(|j| self.allowed(j)) else { return };
        let held = self.held_by_cap(id, now, passes);
        if let Some(job) = self.jobs.get_mut(id) {
            job.explain(now, allowed, held);
            if let Some(why) = job.why_held(now) {
                job.reason = format!("{why}: {}", job.reason);
            }
        }
    }

    /// How steadily a job follows its plan. Those under a cap change together, when their plans say so.
    fn pace(&self, id: &JobId) -> Pace {
        let shares = self.planner.share.as_ref().is_some_and(|share| share.is_capped() && share.members.contains(id));
        let dwell = if shares { Seconds::ZERO } else { self.planner.settings.dwell_s };
        Pace { dwell, ramp_per_min: self.planner.settings.ramp_w_per_min }
    }

    /// What the node's cap makes of a job's wishes, if it does not let all of them through.
    fn held_by_cap(&self, id: &JobId, now: Now, passes: &LimitGrants) -> Option<CapReduction> {
        let job = self.jobs.get(id)?;
        let cut = job.spec.gpus.iter().filter_map(|gpu| {
            let (stake, pass) = passes.get(gpu)?;
            (self.wish(gpu, now).is_some() && pass.limit < stake.wanted).then_some((pass.limit, stake.wanted))
        });
        let (limit, wanted) = cut.min()?;
        let cap = self.cap_schedule(now.utc);
        let (cap, source) = cap.binding_at(now.utc).map(|(cap, source)| (cap, source.to_string())).unzip();
        Some(CapReduction { limit, wanted, cap, source })
    }

    /// A cap that a lower limit hides may have lifted: each slot's plan is made as if, and made again if it has not.
    fn doubt_caps_at_slot_ends(&mut self, id: &JobId, now: Now) {
        let Some(job) = self.jobs.get(id).filter(|j| j.slot_ended(now)) else { return };
        for gpu in &job.spec.gpus {
            if let Some(gpu) = self.gpus.get_mut(gpu) {
                gpu.doubt_cap();
            }
        }
    }

    /// Why a job's boards are not to be controlled.
    fn hindrance(&self, job: &Job) -> Option<String> {
        if self.settings.observe {
            return Some("this daemon observes only: it plans and books, and sets nothing".into());
        }
        if !job.spec.control {
            return Some("registered with \"control\": false: it is booked, its limits are left alone".into());
        }
        job.spec.gpus.iter().find_map(|id| {
            let Some(gpu) = self.gpus.get(id) else { return Some(format!("GPU {id} is not there")) };
            if gpu.manual.is_some() {
                return Some(format!("GPU {} is set by hand", gpu.handle.board().index));
            }
            let why = gpu.why_no_control()?;
            Some(format!("GPU {}: {why}", gpu.handle.board().index))
        })
    }

    /// The strictest out-of-band cap on a job's boards.
    fn allowed(&self, job: &Job) -> Option<PowerLimit> {
        job.spec.gpus.iter().filter_map(|id| self.gpus.get(id)?.out_of_band_cap()).min()
    }

    fn max_power(&self, job: &Job) -> Watts {
        let limit = |id: &GpuId| self.gpus.get(id).and_then(Gpu::range).map_or(Watts::ZERO, |r| r.max.watts());
        job.spec.gpus.iter().map(limit).sum()
    }

    /// How far a job has to look ahead: as long as it may take.
    fn horizon_end(&self, job: &Job, now: Now) -> DateTime<Utc> {
        let slowest = job.profile().points.iter().map(|p| p.throughput.mean).reduce(|a, b| a.min(b));
        let needed = match (job.remaining(), slowest) {
            (Some(left), Some(rate)) => left / rate,
            _ => self.settings.window_s,
        };
        // Who may pause may use all the time that it is given.
        let Objective { pausable, deadline, max_slowdown, .. } = job.spec.objective;
        let needed = needed * (1.0 + pausable.and(max_slowdown).unwrap_or(0.0));
        let until_deadline = pausable.and(deadline).map_or(TimeDelta::zero(), |at| at - now.utc);
        now.utc + needed.to_delta().max(until_deadline).clamp(TimeDelta::hours(1), FURTHEST)
    }

    /// The intensities to plan with: the forecast, followed as far as its skill goes, filled and extended.
    pub(super) fn outlook(&self, now: DateTime<Utc>, until: DateTime<Utc>) -> Outlook {
        let policy = HorizonPolicy { fallback: self.signal.fallback(), ..HorizonPolicy::default() };
        let nothing = CarbonSeries::default();
        let (expected, recent) = match self.signal.forecast() {
            Some(forecast) => (&forecast.expected, forecast.known()),
            None => (&nothing, CarbonSeries::default()),
        };
        let slots = slots_ahead(self.signal.model(), expected, (now, until), &policy, &self.planner.settings);
        let reference = reference_intensity(&recent, expected, now).unwrap_or(policy.fallback);
        let errors = Arc::new(self.signal.model().error_paths());
        Outlook { slots, errors, reference, prices: self.prices(now), dwell: self.planner.settings.dwell_s }
    }

    /// What is known of prices, and their mean; none while the source says nothing about the present.
    fn prices(&self, now: DateTime<Utc>) -> Option<(TimeSeries<Quoted<PricePerMwh>>, PricePerMwh)> {
        let known = self.signal.price()?.state.borrow().forecast.as_ref()?.known();
        known.at(now)?;
        let span = Slot::new(known.start()?, known.end()?)?;
        let (mean, _) = known.mean_over(&span, |price| price.value.get())?;
        Some((known, PricePerMwh::new(mean)))
    }
}

impl Job {
    /// Looks for reasons to plan again: a slot that ended, work off the plan, a cap that came or went.
    fn notice_reasons(&mut self, now: Now, allowed: Option<PowerLimit>) {
        let Some(plan) = &self.plan else {
            self.replan.get_or_insert(ReplanReason::NoPlan);
            return;
        };
        if self.replan.is_some() {
            return;
        }
        let (samples, _) = self.progress_now(now);
        let planned = plan.expected_samples_at(now.utc) - plan.samples_done;
        let since = Seconds::from_delta(now.utc - plan.made_at);
        let done = samples - plan.samples_done;
        if self.slot_ended(now) {
            self.replan = Some(ReplanReason::NewSlot);
        } else if allowed != self.planned_under {
            self.replan = Some(ReplanReason::OutOfBandCap);
        } else if self.is_off(planned - done, planned, since, now) {
            self.replan = Some(ReplanReason::OffThePlan);
        }
    }

    /// Whether work that is `missing` from what was `planned` since the plan was made asks for a new one: by much, or by a
    /// part of what the job may still lose.
    fn is_off(&self, missing: Samples, planned: Samples, since: Seconds, now: Now) -> bool {
        let (Some(reference), Some(slack)) = (self.reference(), self.slack(now)) else {
            return since > DEVIATION_SPAN && missing.abs() > planned * DEVIATION;
        };
        let whole = slack.whole.unwrap_or(DEVIATION_SPAN / DEVIATION_PART);
        let is_late = missing / reference > (slack.left() * LAG).max(whole * LEAST_LAG);
        since > DEVIATION_SPAN.min(whole * DEVIATION_PART) && (missing.abs() > planned * DEVIATION || is_late)
    }

    /// Whether the slot in which the plan was made is over.
    fn slot_ended(&self, now: Now) -> bool {
        let end_at = |plan: &Plan, at| plan.segment_at(at).map(|s| s.slot.end());
        self.plan.as_ref().is_some_and(|plan| end_at(plan, now.utc) != end_at(plan, plan.made_at))
    }

    /// Whether all of its points are measured.
    pub(super) fn is_profiled(&self) -> bool {
        self.profiler.as_ref().is_some_and(|p| p.stage() == Stage::Done)
    }

    /// What the grid was in its time so far, and what its training emitted: pauses of its own would have been the same.
    fn past(&self, now: Now, reference: GramsPerKwh) -> Option<Past> {
        let span = Slot::new(self.progress.started_at?, now.utc)?;
        let intensity = self.emissions.mean_intensity_over(&span)?;
        let stalled = self.progress.account.stalled_energy * intensity;
        Some(Past { intensity, carbon: self.emissions.sum().estimate(reference) - stalled })
    }

    #[expect(clippy::too_many_arguments, reason = "what only the controller knows of it")]
    fn brief(
        &self,
        now: Now,
        outlook: &Outlook,
        window: Seconds,
        max_power: Watts,
        allowed: Option<PowerLimit>,
        limits: Vec<Watts>,
        at_rest: Watts,
    ) -> PlanInput {
        let profile = self.profile();
        let (samples, elapsed) = self.progress_now(now);
        let work = match self.spec.work {
            Work::TotalSamples(total) => Work::TotalSamples(total - Samples::new(self.progress.first_samples)),
            Work::Unknown => Work::Unknown,
        };
        PlanInput {
            id: self.id.clone(),
            now: now.utc,
            horizon: outlook.slots.clone(),
            objective: self.spec.objective,
            work,
            progress: Progress {
                samples,
                elapsed,
                reserve: self.reserve(),
                carbon: self.emissions.sum().estimate(outlook.reference),
                past: self.past(now, outlook.reference),
            },
            profile,
            max_power,
            reference_intensity: outlook.reference,
            prices: outlook.prices.clone(),
            window,
            allowed,
            dwell: outlook.dwell,
            activity: self.progress.activity,
            errors: outlook.errors.clone(),
            priority: self.spec.priority,
            before: None,
            better_by: 0.0,
            limits,
            at_rest,
        }
    }

    /// Puts the present choice's reason in words.
    fn explain(&mut self, now: Now, allowed: Option<PowerLimit>, held: Option<CapReduction>) {
        if self.phase == Phase::Profiling {
            let wanted = self.profiler.as_ref().and_then(|p| p.wanted()).and_then(|w| w.iter().map(|s| s.limit).max());
            if let (Some(cap), Some(wanted)) = (allowed, wanted)
                && cap < wanted
            {
                self.reason =
                    format!("measuring waits: an out-of-band cap of {cap} is below the {wanted} to be measured");
            } else if let Some(held) = &held {
                self.reason = format!("measuring waits for {}: {held}", held.wanted);
            }
        }
        if !matches!(self.phase, Phase::Planned | Phase::Paused) {
            return;
        }
        let segment = self.plan.as_ref().and_then(|p| p.segment_at(now.utc));
        let kept = self.plan.as_ref().and_then(|p| p.kept_from);
        self.reason = match (segment, &self.unplannable) {
            (Some(segment), _) if kept.is_some_and(|by| by >= WORTH_TELLING) => {
                let percent = 100.0 * kept.unwrap_or_default();
                format!("{} (kept: a new plan would be only {percent:.3} % better)", segment.reason)
            }
            (Some(segment), _) => segment.reason.to_string(),
            (None, Some(why)) => format!("no plan, limits as found: {why}"),
            (None, None) => "past the end of its plan; limits as found".into(),
        };
        if let Some(held) = held {
            self.reason = format!("{held}; planned are {}: {}", held.wanted, self.reason);
        }
    }
}

/// What the node's cap makes of a wish.
struct CapReduction {
    limit: PowerLimit,
    wanted: PowerLimit,
    /// The cap now; absent where it only begins soon.
    cap: Option<Watts>,
    source: Option<String>,
}

impl std::fmt::Display for CapReduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "held down to {} by the node's cap", self.limit)?;
        match (self.cap, &self.source) {
            (Some(cap), Some(source)) => write!(f, " of {:.0} W ({source})", cap.get()),
            _ => f.write_str(", which begins in a moment"),
        }
    }
}
