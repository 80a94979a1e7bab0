//! Search for plans, on a thread of its own, so that neither the control loop nor API clients wait for long.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use tokio::task::JoinHandle;

use wattune_core::domain::{Activity, JobId, Objective, PowerLimit, Profile, Quoted, Slot, TimeSeries, Work};
use wattune_core::forecast::ErrorPaths;
use wattune_core::plan::{
    JointPlan, Member, Plan, PlanSlot, Prices, Progress, Request, Shared, SharedViolation, Solver, Unplannable,
    keep_if_nearly_as_good, keep_jointly_if_nearly_as_good, plan, plan_jointly,
};
use wattune_core::time::Monotonic;
use wattune_core::units::{GramsCo2e, GramsPerKwh, PricePerMwh, Seconds, Watts};

use super::shared_budget::SharedBudget;

/// Input of one job's plan, as owned data that moves to the search thread.
pub(super) struct PlanInput {
    pub(super) id: JobId,
    pub(super) now: DateTime<Utc>,
    pub(super) profile: Profile,
    pub(super) horizon: Vec<PlanSlot>,
    pub(super) objective: Objective,
    pub(super) work: Work,
    pub(super) progress: Progress,
    pub(super) max_power: Watts,
    pub(super) reference_intensity: GramsPerKwh,
    pub(super) prices: Option<(TimeSeries<Quoted<PricePerMwh>>, PricePerMwh)>,
    pub(super) dwell: Seconds,
    pub(super) activity: Option<Activity>,
    /// Errors of past forecasts.
    pub(super) errors: Arc<ErrorPaths>,
    pub(super) window: Seconds,
    pub(super) out_of_band_cap: Option<PowerLimit>,
    pub(super) priority: i32,
    /// Current plan, which stays in force unless a new one costs less by the fraction `better_by`; `None` if the new
    /// plan applies in any case.
    pub(super) before: Option<Plan>,
    pub(super) better_by: f64,
    /// Sum of the GPUs' power limits at each point of the profile, which counts against the node's cap.
    pub(super) limits: Vec<Watts>,
    /// Sum of the GPUs' lowest power limits, which counts against the node's cap once the job has ended.
    pub(super) at_rest: Watts,
}

impl PlanInput {
    fn request(&self) -> Request<'_> {
        Request {
            now: self.now,
            profile: &self.profile,
            horizon: &self.horizon,
            objective: &self.objective,
            work: self.work,
            progress: self.progress,
            max_power: self.max_power,
            reference_intensity: self.reference_intensity,
            prices: self
                .prices
                .as_ref()
                .map(|(known_prices, reference)| Prices { known_prices, reference: *reference }),
            dwell: self.dwell,
            activity: self.activity,
            errors: Some(&self.errors),
            window: self.window,
            allowed: self.out_of_band_cap,
        }
    }

    fn plan(&self) -> Result<Plan, Unplannable> {
        let request = self.request();
        let made = plan(&request)?;
        Ok(match &self.before {
            Some(before) => keep_if_nearly_as_good(before, made, &request, self.better_by),
            None => made,
        })
    }

    fn member(&self) -> Member<'_> {
        Member { request: self.request(), priority: self.priority, limits: &self.limits, at_rest: self.at_rest }
    }
}

/// Jobs that are planned by one search.
#[derive(Default)]
pub(super) struct PlanBatch {
    /// Jobs that share neither a cap nor a carbon budget.
    pub(super) alone: Vec<PlanInput>,
    /// Jobs that share the node's cap or its carbon budget.
    pub(super) joint: Vec<PlanInput>,
    /// Power that the node's cap leaves for the limits of the jobs in `joint`, over time.
    pub(super) cap: TimeSeries<Watts>,
    /// Emissions that the carbon budget leaves for the jobs in `joint`, for each budget period.
    pub(super) carbon_budget: TimeSeries<GramsCo2e>,
    /// Solver for joint planning.
    pub(super) solver: Solver,
}

impl PlanBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.alone.is_empty() && self.joint.is_empty()
    }

    /// Makes the plans. This may take long: joint planning searches until it is finished or `go_on` returns false.
    fn solve(self, go_on: &dyn Fn() -> bool) -> Solved {
        let joint = |jobs: &[&PlanInput], shared: &Shared<'_>| joint_plan(jobs, shared, self.solver, go_on);
        self.solve_by(&Planning { alone: &PlanInput::plan, joint: &joint })
    }

    /// Makes the plans with the functions `planning`. A job whose planning panics gets no plan; the other jobs are
    /// planned without that job.
    fn solve_by(&self, planning: &Planning<'_>) -> Solved {
        let mut plans: BTreeMap<JobId, _> = self.alone.iter().map(|job| (job.id.clone(), planning.plan(job))).collect();
        let mut left: Vec<&PlanInput> = self.joint.iter().collect();
        let mut cap = self.cap.clone();
        while !left.is_empty() {
            let shared = Shared { cap: &cap, carbon_budget: Some(&self.carbon_budget) };
            let why = match catch_panic(|| (planning.joint)(&left, &shared)) {
                // The current plans stay in force.
                Ok(None) => return Solved { plans, ..Solved::default() },
                Ok(Some(made)) => {
                    let made_plans = made.plans.into_iter().map(|plan| plan.map_err(NoPlan::Unplannable));
                    plans.extend(left.iter().map(|job| job.id.clone()).zip(made_plans));
                    return Solved { plans, broken: Some(made.broken), joint_failure: None };
                }
                Err(why) => why,
            };
            let culprits = planning.culprits(&left, &shared);
            if culprits.is_empty() {
                plans.extend(left.iter().map(|job| (job.id.clone(), planning.plan(job))));
                return Solved { plans, broken: None, joint_failure: Some(why) };
            }
            for job in left.extract_if(.., |job| culprits.contains(&job.id)) {
                // The job's highest limits are reserved until the next planning, which counts its limits in force
                // instead.
                let most = job.limits.iter().copied().fold(job.at_rest, Watts::max);
                let less = |(slot, cap): &(Slot, Watts)| (*slot, (*cap - most).max(Watts::ZERO));
                cap = TimeSeries::from_points(cap.points().iter().map(less).collect()).0;
                plans.insert(job.id.clone(), Err(NoPlan::Panicked(why.clone())));
            }
        }
        Solved { plans, ..Solved::default() }
    }
}

/// Functions that make plans: one for a single job, one for several jobs that share a cap or a carbon budget.
struct Planning<'a> {
    alone: &'a dyn Fn(&PlanInput) -> Result<Plan, Unplannable>,
    /// Returns `None` if the current plans are to stay in force.
    joint: &'a dyn Fn(&[&PlanInput], &Shared<'_>) -> Option<JointPlan>,
}

impl Planning<'_> {
    fn plan(&self, job: &PlanInput) -> Result<Plan, NoPlan> {
        match catch_panic(|| (self.alone)(job)) {
            Ok(made) => made.map_err(NoPlan::Unplannable),
            Err(why) => Err(NoPlan::Panicked(why)),
        }
    }

    /// Returns the jobs that make joint planning panic: those whose planning alone panics, or else the first job
    /// without which the others can be planned.
    fn culprits(&self, jobs: &[&PlanInput], shared: &Shared<'_>) -> Vec<JobId> {
        let panics = |job: &&&PlanInput| catch_panic(|| (self.alone)(job)).is_err();
        let alone: Vec<JobId> = jobs.iter().filter(panics).map(|job| job.id.clone()).collect();
        if !alone.is_empty() {
            return alone;
        }
        let spoils = |job: &&&PlanInput| {
            let others: Vec<&PlanInput> = jobs.iter().filter(|other| other.id != job.id).copied().collect();
            !others.is_empty() && catch_panic(|| (self.joint)(&others, shared)).is_ok()
        };
        jobs.iter().find(spoils).map(|job| job.id.clone()).into_iter().collect()
    }
}

/// Plans jobs jointly. Returns `None`, which means to keep the current plans, if the search was stopped early and each
/// job has a current plan.
fn joint_plan(jobs: &[&PlanInput], shared: &Shared<'_>, solver: Solver, go_on: &dyn Fn() -> bool) -> Option<JointPlan> {
    let members: Vec<Member<'_>> = jobs.iter().map(|job| job.member()).collect();
    let made = plan_jointly(&members, shared, solver, go_on);
    let before: Vec<Option<&Plan>> = jobs.iter().map(|job| job.before.as_ref()).collect();
    if !made.finished && before.iter().all(Option::is_some) {
        return None;
    }
    let better_by = jobs.iter().map(|job| job.better_by).fold(0.0, f64::max);
    Some(keep_jointly_if_nearly_as_good(&before, made, &members, shared, better_by))
}

/// Runs `work` and turns a panic into an error with the panic's message. The work is planning, which leaves no
/// inconsistent state behind if it panics.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".into())
    })
}

/// Reason why a job has no plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NoPlan {
    /// No plan is possible for the job's input.
    Unplannable(Unplannable),
    /// Planning panicked, with this message.
    Panicked(String),
}

/// Result of the search for a batch's plans.
#[derive(Default)]
pub(super) struct Solved {
    pub(super) plans: BTreeMap<JobId, Result<Plan, NoPlan>>,
    /// Shared constraints (cap or carbon budget) that the new joint plans break; `None` if there are no new joint
    /// plans.
    pub(super) broken: Option<Vec<SharedViolation>>,
    /// Reason why joint planning failed and each job was planned alone.
    pub(super) joint_failure: Option<String>,
}

/// A search in progress.
pub(super) struct Search {
    task: JoinHandle<Solved>,
    stop: Arc<AtomicBool>,
    pub(super) since: Monotonic,
    /// Cap and carbon budget for which the search was started, with the jobs that share them; `None` if there were
    /// none.
    pub(super) shared_budget: Option<SharedBudget>,
}

impl Search {
    /// Starts a search on a thread of its own.
    pub(super) fn start(batch: PlanBatch, shared_budget: Option<SharedBudget>, now: Monotonic) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let go_on = move || !stopped.load(Ordering::Relaxed);
        Self { task: tokio::task::spawn_blocking(move || batch.solve(&go_on)), stop, since: now, shared_budget }
    }

    /// Returns the plans if the search ends within `patience`. Otherwise returns `None` and asks the search to stop
    /// with the best plans found so far; if `patience` is zero, does not ask the search to stop.
    pub(super) async fn outcome(&mut self, patience: Seconds) -> Option<Solved> {
        if patience <= Seconds::ZERO && !self.is_finished() {
            return None;
        }
        match tokio::time::timeout(patience.to_std(), &mut self.task).await {
            Ok(Ok(solved)) => Some(solved),
            Ok(Err(error)) => {
                tracing::error!("planning failed ({error}); current plans stay in force");
                Some(Solved::default())
            }
            Err(_) => {
                self.stop.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
