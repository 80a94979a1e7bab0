//! Owns planning: when jobs are planned, the search for plans, and their adoption.

mod explanation;
mod inputs;
mod reasons;
mod replan;
mod search;
mod shared_budget;
mod starts;

pub use replan::ReplanReason;

use super::accounting::BudgetAccount;
use super::cap::LimitGrants;
use super::jobs::{Job, Jobs};
use super::node::Node;
use explanation::CapReduction;
use inputs::{hindrance, inputs};
use search::{NoPlan, PlanBatch, Search};
use shared_budget::SharedBudget;
use starts::Starts;
use wattune_core::domain::JobId;
use wattune_core::plan::{Segment, Settings as PlanSettings, SharedViolation, SwitchingLimits};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Owner of the search for plans.
pub(super) struct Planner {
    settings: PlanSettings,
    /// The search in progress.
    search: Option<Search>,
    /// Cap and carbon budget for which plans were made last, with the jobs that share them; `None` if there are none.
    shared_budget: Option<SharedBudget>,
    /// Shared constraints that the plans in force break, in one sentence each.
    broken: Vec<String>,
    /// True if the plans in force exceed the node's cap, so that limits are lowered below them.
    is_cap_broken: bool,
    /// Reason why joint planning failed and each job was planned alone.
    joint_failure: Option<String>,
    /// Duration of the last search.
    took: Option<Seconds>,
    /// Choice of the starts of held jobs.
    starts: Starts,
}

impl Planner {
    /// Returns a planner without plans.
    pub(super) fn new(settings: PlanSettings) -> Self {
        Self {
            settings,
            search: None,
            shared_budget: None,
            broken: Vec::new(),
            is_cap_broken: false,
            joint_failure: None,
            took: None,
            starts: Starts::default(),
        }
    }

    /// Updates the phase of each job and plans every job that has a reason to be planned. A search that takes longer
    /// than the settings allow is asked to stop; current plans stay in force until the search has ended.
    pub(super) async fn plan(&mut self, node: &mut Node<'_>, budget: &BudgetAccount, now: Now) {
        self.starts.plan(node, now).await;
        if self.search.as_ref().is_some_and(Search::is_finished) {
            self.await_plans(node, budget, Seconds::ZERO).await;
        }
        for id in node.jobs.ids() {
            self.update_phase(&id, node, now);
        }
        if self.search.is_some() {
            return;
        }
        let shared_budget = SharedBudget::of(&node.demand(now), node.cap, budget);
        self.detect_other_budget(node.jobs, shared_budget.as_ref());
        let batch = self.batch(node, budget, shared_budget.as_ref(), now);
        if batch.is_empty() {
            return;
        }
        self.shared_budget.clone_from(&shared_budget);
        self.search = Some(Search::start(batch, shared_budget, now.monotonic));
        if node.settings.solve_limit_s > Seconds::ZERO {
            self.await_plans(node, budget, node.settings.solve_limit_s).await;
        }
    }

    /// Requests that the starts of held jobs are chosen again, because a forecast or the jobs on the GPUs changed.
    pub(super) fn rethink_starts(&mut self) {
        self.starts.rethink();
    }

    /// Updates one job's phase after its report. Returns whether planning is due now; usually it is not, because a
    /// report seldom affects plans.
    pub(super) fn update_one(&mut self, id: &JobId, node: &mut Node<'_>, budget: &BudgetAccount, now: Now) -> bool {
        self.update_phase(id, node, now);
        let is_finished = self.search.as_ref().is_some_and(Search::is_finished);
        is_finished
            || node.jobs.get(id).is_some_and(|job| job.is_due(now))
            || self.shared_budget != SharedBudget::of(&node.demand(now), node.cap, budget)
    }

    /// Sets each job's current set point by its plan, with a sentence that explains the set point. Returns the limits
    /// that the node's cap grants to the GPUs.
    pub(super) fn follow(&self, ids: &[JobId], node: &mut Node<'_>, now: Now) -> LimitGrants {
        for id in ids {
            let limits = self.switching_limits(id);
            if let Some(job) = node.jobs.get_mut(id) {
                job.follow_plan(now, &limits);
            }
        }
        let demand = node.demand(now);
        let grants = node.cap.grants(&demand);
        let of = |id: &JobId| CapReduction::of(demand.jobs.get(id)?, &grants, &demand, node.cap);
        let reductions: Vec<Option<CapReduction>> = ids.iter().map(of).collect();
        for (id, reduction) in ids.iter().zip(reductions) {
            if let Some(job) = node.jobs.get_mut(id) {
                job.explain(now, job.out_of_band_cap(node.gpus), reduction);
            }
        }
        grants
    }

    /// Returns the problems of planning, in one sentence each.
    pub(super) fn problems(&self, now: Now) -> Vec<String> {
        let joint_failure = self.joint_failure.iter().map(|why| {
            format!(
                "joint planning of the jobs that share the node's cap or carbon budget failed because of a bug in wattune \
                 ({why}); each job is planned alone, and limits are lowered where their sum exceeds the cap"
            )
        });
        let late = self.searching(now).map(|since| {
            format!("planning has taken {:.1} s so far; current plans stay in force meanwhile", since.get())
        });
        self.broken.iter().cloned().chain(joint_failure).chain(late).collect()
    }

    /// Returns the shared constraints that a job's plan and those of others break, in one sentence each.
    pub(super) fn broken_for(&self, id: &JobId) -> &[String] {
        let shares = self.shared_budget.as_ref().is_some_and(|shared| shared.members.contains(id));
        if shares { &self.broken } else { &[] }
    }

    /// Returns whether the node's cap lowers limits below a job's plan. The throughput there is not measured, so the
    /// end and the slowdown of the plan do not hold.
    pub(super) fn is_below_plan(&self, job: &Job) -> bool {
        let is_member = self.shared_budget.as_ref().is_some_and(|shared| shared.members.contains(&job.id));
        let can_fall =
            |segment: &Segment| job.groups.iter().zip(&segment.setting).any(|(group, set)| set.limit > group.range.min);
        self.is_cap_broken && is_member && job.plan.iter().flat_map(|plan| &plan.segments).any(can_fall)
    }

    /// Returns the duration of the last search.
    pub(super) fn last_search(&self) -> Option<Seconds> {
        self.took
    }

    /// Returns the duration so far of the search in progress.
    pub(super) fn searching(&self, now: Now) -> Option<Seconds> {
        self.search.as_ref().map(|search| now.monotonic.since(search.since))
    }

    /// Updates a job's phase and detects reasons to plan the job anew.
    fn update_phase(&self, id: &JobId, node: &mut Node<'_>, now: Now) {
        let Some(job) = node.jobs.get_mut(id) else { return };
        if job.slot_ended(now) && !job.is_absent() {
            // An out-of-band cap is visible only below the requested limit, so it may have lifted unseen. Each slot is
            // first planned without the cap, and planned again if the cap then shows that it still holds.
            for gpu in &job.spec.gpus {
                if let Some(gpu) = node.gpus.get_mut(gpu) {
                    gpu.expire_cap();
                }
            }
        }
        job.choose_phase(hindrance(job, node.gpus, node.settings, now));
        job.drop_first_plan();
        job.detect_reasons(now, job.out_of_band_cap(node.gpus));
    }

    /// Waits for the search in progress, at most `patience`, and adopts the plans that it found.
    async fn await_plans(&mut self, node: &mut Node<'_>, budget: &BudgetAccount, patience: Seconds) {
        let Some(mut search) = self.search.take() else { return };
        let Some(solved) = search.outcome(patience).await else {
            self.search = Some(search);
            return;
        };
        let now = node.now();
        self.took = Some(now.monotonic.since(search.since));
        // A late result may be for another cap than the current one. Such a result is dropped: its jobs are planned
        // again.
        let is_stale =
            patience <= Seconds::ZERO && search.shared_budget != SharedBudget::of(&node.demand(now), node.cap, budget);
        let stale = search.shared_budget.as_ref().filter(|_| is_stale).map(|s| s.members.clone()).unwrap_or_default();
        self.joint_failure = solved.joint_failure;
        if self.joint_failure.is_some() && !is_stale {
            // Each job is planned alone, whatever the cap leaves.
            self.broken.clear();
            self.is_cap_broken = search.shared_budget.as_ref().is_some_and(SharedBudget::is_capped);
        }
        if let Some(broken) = solved.broken.filter(|_| !is_stale) {
            self.broken = broken.iter().map(ToString::to_string).collect();
            self.is_cap_broken = broken.iter().any(|broken| matches!(broken, SharedViolation::Cap { .. }));
        }
        for (id, outcome) in solved.plans {
            // A job that is being profiled again by now adopts no plan; it is planned after profiling.
            let Some(job) = node.jobs.get_mut(&id).filter(|j| j.is_profiled()) else { continue };
            match outcome {
                Err(NoPlan::Panicked(why)) => job.fail_planning(why, now),
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

    /// If the shared budget changed, requests new plans for the jobs that share it now or shared it before.
    fn detect_other_budget(&mut self, jobs: &mut Jobs, shared_budget: Option<&SharedBudget>) {
        if self.shared_budget.as_ref() == shared_budget {
            return;
        }
        let before = self.shared_budget.as_ref().map(|s| s.members.clone()).unwrap_or_default();
        let members = shared_budget.map(|s| s.members.as_slice()).unwrap_or_default();
        for id in before.iter().chain(members) {
            if let Some(job) = jobs.get_mut(id) {
                job.replan.get_or_insert(ReplanReason::OtherShare);
            }
        }
        if shared_budget.is_none() {
            self.shared_budget = None;
            self.joint_failure = None;
            self.broken.clear();
            self.is_cap_broken = false;
        }
    }

    /// Returns the jobs to plan now. If a job that shares the cap or budget is due, all jobs that share the cap or
    /// budget are planned.
    fn batch(
        &self,
        node: &mut Node<'_>,
        budget: &BudgetAccount,
        shared_budget: Option<&SharedBudget>,
        now: Now,
    ) -> PlanBatch {
        let due = node.jobs.iter().filter(|job| job.is_due(now)).map(|job| job.id.clone());
        let members = shared_budget.map(|s| s.members.as_slice()).unwrap_or_default();
        let (joint, alone): (Vec<JobId>, Vec<JobId>) = due.partition(|id| members.contains(id));
        let mut batch = PlanBatch {
            alone: inputs(&alone, node, &self.settings, now),
            solver: self.settings.solver,
            ..PlanBatch::default()
        };
        if let Some(shared_budget) = shared_budget.filter(|_| !joint.is_empty()) {
            batch.joint = inputs(members, node, &self.settings, now);
            let ends = batch.joint.iter().filter_map(|b| b.horizon.last()).map(|s| s.slot.end());
            let until = ends.max().unwrap_or(now.utc);
            batch.cap = shared_budget.left(now.utc, until);
            batch.carbon_budget = budget.left(now.utc, until, node.signal.basis().value);
        }
        batch
    }

    /// Returns the limits on how often and how fast a job's set points change. Jobs that share a cap have no minimum
    /// time at a set point: their set points change when the joint plan says so.
    fn switching_limits(&self, id: &JobId) -> SwitchingLimits {
        let shares =
            self.shared_budget.as_ref().is_some_and(|shared| shared.is_capped() && shared.members.contains(id));
        let dwell = if shares { Seconds::ZERO } else { self.settings.dwell_s };
        SwitchingLimits { dwell, ramp_per_min: self.settings.ramp_w_per_min }
    }
}
