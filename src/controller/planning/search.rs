//! The search for plans: on threads of its own, so that neither the loop nor its clients wait for long.

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

/// What one job's plan is made from, by value.
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
    /// By how much forecasts made like the present one were off.
    pub(super) errors: Arc<ErrorPaths>,
    pub(super) window: Seconds,
    pub(super) allowed: Option<PowerLimit>,
    pub(super) priority: i32,
    /// The plan that stays in force unless a new one costs less by the part `better_by`.
    pub(super) before: Option<Plan>,
    pub(super) better_by: f64,
    /// What the node's cap counts at each point of the profile.
    pub(super) limits: Vec<Watts>,
    /// And once the job has ended.
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
            prices: self.prices.as_ref().map(|(known, reference)| Prices { known, reference: *reference }),
            dwell: self.dwell,
            activity: self.activity,
            errors: Some(&self.errors),
            window: self.window,
            allowed: self.allowed,
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

/// What is to be planned at once.
#[derive(Default)]
pub(super) struct PlanBatch {
    /// Jobs that share nothing.
    pub(super) alone: Vec<PlanInput>,
    /// Jobs that share the node's cap or its carbon budget.
    pub(super) together: Vec<PlanInput>,
    /// What the cap leaves for those.
    pub(super) cap: TimeSeries<Watts>,
    /// What they may still emit together.
    pub(super) carbon_budget: TimeSeries<GramsCo2e>,
    /// Solver of their joint plan.
    pub(super) solver: Solver,
}

impl PlanBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.alone.is_empty() && self.together.is_empty()
    }

    /// Makes the plans. May take long; a search for plans together goes on as long as `go_on` says.
    fn carry_out(self, go_on: &dyn Fn() -> bool) -> Solved {
        let together = |briefs: &[&PlanInput], shared: &Shared<'_>| plans_together(briefs, shared, self.solver, go_on);
        self.carry_out_by(&Rules { alone: &PlanInput::plan, together: &together })
    }

    /// A fault in planning one job fails that job: the others are planned without it.
    fn carry_out_by(&self, rules: &Rules<'_>) -> Solved {
        let mut plans: BTreeMap<JobId, _> =
            self.alone.iter().map(|brief| (brief.id.clone(), rules.plan(brief))).collect();
        let mut left: Vec<&PlanInput> = self.together.iter().collect();
        let mut cap = self.cap.clone();
        while !left.is_empty() {
            let shared = Shared { cap: &cap, carbon_budget: Some(&self.carbon_budget) };
            let why = match guarded(|| (rules.together)(&left, &shared)) {
                // Where nothing but time has passed since the plans before, they are what falls back on.
                Ok(None) => return Solved { plans, broken: None, apart: None },
                Ok(Some(made)) => {
                    let made_plans = made.plans.into_iter().map(|plan| plan.map_err(NoPlan::Unplannable));
                    plans.extend(left.iter().map(|brief| brief.id.clone()).zip(made_plans));
                    return Solved { plans, broken: Some(made.broken), apart: None };
                }
                Err(why) => why,
            };
            let culprits = rules.culprits(&left, &shared);
            if culprits.is_empty() {
                plans.extend(left.iter().map(|brief| (brief.id.clone(), rules.plan(brief))));
                return Solved { plans, broken: None, apart: Some(why) };
            }
            for brief in left.extract_if(.., |brief| culprits.contains(&brief.id)) {
                // Until it is counted with what its boards are set to, it may take as much as it ever does.
                let most = brief.limits.iter().copied().fold(brief.at_rest, Watts::max);
                let less = |(slot, cap): &(Slot, Watts)| (*slot, (*cap - most).max(Watts::ZERO));
                cap = TimeSeries::from_points(cap.points().iter().map(less).collect()).0;
                plans.insert(brief.id.clone(), Err(NoPlan::Died(why.clone())));
            }
        }
        Solved { plans, broken: None, apart: None }
    }
}

/// How plans are made: of one job, and of those that share something (`None` where the plans before are to stay).
struct Rules<'a> {
    alone: &'a dyn Fn(&PlanInput) -> Result<Plan, Unplannable>,
    together: &'a dyn Fn(&[&PlanInput], &Shared<'_>) -> Option<JointPlan>,
}

impl Rules<'_> {
    fn plan(&self, brief: &PlanInput) -> Result<Plan, NoPlan> {
        match guarded(|| (self.alone)(brief)) {
            Ok(made) => made.map_err(NoPlan::Unplannable),
            Err(why) => Err(NoPlan::Died(why)),
        }
    }

    /// Those because of whom planning together dies: those whose planning dies alone, else the first without whom the
    /// others can be planned; none where there is no such job.
    fn culprits(&self, briefs: &[&PlanInput], shared: &Shared<'_>) -> Vec<JobId> {
        let dies = |brief: &&&PlanInput| guarded(|| (self.alone)(brief)).is_err();
        let alone: Vec<JobId> = briefs.iter().filter(dies).map(|brief| brief.id.clone()).collect();
        if !alone.is_empty() {
            return alone;
        }
        let spoils = |brief: &&&PlanInput| {
            let others: Vec<&PlanInput> = briefs.iter().filter(|other| other.id != brief.id).copied().collect();
            !others.is_empty() && guarded(|| (self.together)(&others, shared)).is_ok()
        };
        briefs.iter().find(spoils).map(|brief| brief.id.clone()).into_iter().collect()
    }
}

/// Plans of jobs that share something; `None` where the search was cut short and the plans before are as good.
fn plans_together(
    briefs: &[&PlanInput],
    shared: &Shared<'_>,
    solver: Solver,
    go_on: &dyn Fn() -> bool,
) -> Option<JointPlan> {
    let members: Vec<Member<'_>> = briefs.iter().map(|brief| brief.member()).collect();
    let made = plan_jointly(&members, shared, solver, go_on);
    let before: Vec<Option<&Plan>> = briefs.iter().map(|brief| brief.before.as_ref()).collect();
    if !made.finished && before.iter().all(Option::is_some) {
        return None;
    }
    let better_by = briefs.iter().map(|brief| brief.better_by).fold(0.0, f64::max);
    Some(keep_jointly_if_nearly_as_good(&before, made, &members, shared, better_by))
}

/// Does what may die of a fault; then the answer is its last words. It has nothing that outlives it.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|died| {
        let text = died.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| died.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".into())
    })
}

/// Why there is no plan of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NoPlan {
    /// Nothing can be planned from what is known.
    Unplannable(Unplannable),
    /// Planning it died of a fault; its last words.
    Died(String),
}

/// What came of an order.
pub(super) struct Solved {
    pub(super) plans: BTreeMap<JobId, Result<Plan, NoPlan>>,
    /// What is shared and cannot be kept; `None` where that is as before.
    pub(super) broken: Option<Vec<SharedViolation>>,
    /// Why those that share something were planned each alone, where that was so.
    pub(super) apart: Option<String>,
}

/// A search that has been begun.
pub(super) struct Search {
    task: JoinHandle<Solved>,
    stop: Arc<AtomicBool>,
    pub(super) since: Monotonic,
    /// What the cap left when it began.
    pub(super) share: Option<SharedBudget>,
}

impl Search {
    /// Begins it on a thread of its own.
    pub(super) fn begin(order: PlanBatch, share: Option<SharedBudget>, now: Monotonic) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let go_on = move || !stopped.load(Ordering::Relaxed);
        Self { task: tokio::task::spawn_blocking(move || order.carry_out(&go_on)), stop, since: now, share }
    }

    /// Waits for its end, at most `patience`, after which it is told to make do with what it has found; `None` if it goes
    /// on. One that died found nothing, and the log says so.
    pub(super) async fn outcome(&mut self, patience: Seconds) -> Option<Solved> {
        if patience <= Seconds::ZERO && !self.is_finished() {
            return None;
        }
        match tokio::time::timeout(patience.to_std(), &mut self.task).await {
            Ok(Ok(solved)) => Some(solved),
            Ok(Err(died)) => {
                tracing::error!("the planner died ({died}); the plans before stay in force");
                Some(Solved { plans: BTreeMap::new(), broken: None, apart: None })
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

/// A broken promise in words.
pub(super) fn in_words(broken: &SharedViolation) -> String {
    match broken {
        SharedViolation::Cap { by, during } => format!(
            "the plans exceed the node's cap by up to {:.0} W during {:.0} s: even the lowest limits add up to more",
            by.get(),
            during.get()
        ),
        SharedViolation::SharedBudget { during, by } => format!(
            "the node's carbon budget until {} will be exceeded by {:.0} g: that is the least carbon of any plans that keep \
             the jobs' promises about time",
            during.end().format("%FT%TZ"),
            by.get()
        ),
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
