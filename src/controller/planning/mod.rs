//! Owns planning: when and with what to plan, the search for plans, and their adoption.

mod explanation;
mod inputs;
mod reasons;
mod replan;
mod search;
mod shared_budget;

pub use replan::ReplanReason;

use super::accounting::BudgetAccount;
use super::cap::LimitGrants;
use super::jobs::Jobs;
use super::node::Node;
use explanation::CapReduction;
use inputs::{hindrance, inputs};
use search::{NoPlan, PlanBatch, Search, in_words};
use shared_budget::SharedBudget;
use wattune_core::domain::JobId;
use wattune_core::plan::{Settings as PlanSettings, SwitchingLimits};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Owner of the search for plans.
pub(super) struct Planner {
    settings: PlanSettings,
    /// The search that goes on.
    search: Option<Search>,
    /// What the cap left when plans were made last.
    share: Option<SharedBudget>,
    /// What the plans in force cannot keep although they share it, in one sentence each.
    broken: Vec<String>,
    /// Why those that share something were planned each alone, where that was so.
    apart: Option<String>,
    /// How long the last search took.
    took: Option<Seconds>,
}

impl Planner {
    /// Returns a planner that has planned nothing yet.
    pub(super) fn new(settings: PlanSettings) -> Self {
        Self { settings, search: None, share: None, broken: Vec::new(), apart: None, took: None }
    }

    /// Plans every job that has a reason to, and sees to the phase of each. Plans are searched for on other threads; a
    /// search that takes longer than the settings allow is told to stop, the plans before stay in force until it has.
    pub(super) async fn plan(&mut self, node: &mut Node<'_>, budget: &BudgetAccount, now: Now) {
        if self.search.as_ref().is_some_and(Search::is_finished) {
            self.await_plans(node, budget, Seconds::ZERO).await;
        }
        for id in node.jobs.ids() {
            self.look_at(&id, node, now);
        }
        if self.search.is_some() {
            return;
        }
        let share = SharedBudget::of(&node.demand(now), node.cap, budget);
        self.detect_other_share(node.jobs, share.as_ref());
        let batch = self.batch(node, budget, share.as_ref(), now);
        if batch.is_empty() {
            return;
        }
        self.share.clone_from(&share);
        self.search = Some(Search::begin(batch, share, now.monotonic));
        if node.settings.solve_limit_s > Seconds::ZERO {
            self.await_plans(node, budget, node.settings.solve_limit_s).await;
        }
    }

    /// Sees to one job's phase. Returns whether all are to be planned now: of many jobs each reports by itself, and what
    /// one reports seldom concerns others.
    pub(super) fn look_at_one(&mut self, id: &JobId, node: &mut Node<'_>, budget: &BudgetAccount, now: Now) -> bool {
        self.look_at(id, node, now);
        let is_finished = self.search.as_ref().is_some_and(Search::is_finished);
        is_finished
            || node.jobs.get(id).is_some_and(|job| job.is_due(now))
            || self.share != SharedBudget::of(&node.demand(now), node.cap, budget)
    }

    /// Has jobs do what their plans say now, and says why. Returns what the cap grants them.
    pub(super) fn follow(&self, ids: &[JobId], node: &mut Node<'_>, now: Now) -> LimitGrants {
        for id in ids {
            let pace = self.pace(id);
            if let Some(job) = node.jobs.get_mut(id) {
                job.follow_plan(now, &pace);
            }
        }
        let demand = node.demand(now);
        let grants = node.cap.grants(&demand);
        let held = |id: &JobId| CapReduction::of(demand.jobs.get(id)?, &grants, &demand, node.cap);
        let held: Vec<Option<CapReduction>> = ids.iter().map(held).collect();
        for (id, held) in ids.iter().zip(held) {
            if let Some(job) = node.jobs.get_mut(id) {
                job.explain(now, job.out_of_band_cap(node.gpus), held);
            }
        }
        grants
    }

    /// Returns what is wrong with planning, in one sentence each.
    pub(super) fn problems(&self, now: Now) -> Vec<String> {
        let apart = self.apart.iter().map(|why| {
            format!(
                "the jobs that share the node's cap or carbon budget could not be planned together, by a fault in wattune \
                 ({why}); each is planned alone, and limits are lowered where their sum exceeds the cap"
            )
        });
        let late = self.searching(now).map(|since| {
            format!("plans have been searched for {:.1} s; those before stay in force meanwhile", since.get())
        });
        self.broken.iter().cloned().chain(apart).chain(late).collect()
    }

    /// Returns what a job's plan and those of others cannot keep together, in one sentence each.
    pub(super) fn broken_for(&self, id: &JobId) -> &[String] {
        let shares = self.share.as_ref().is_some_and(|share| share.members.contains(id));
        if shares { &self.broken } else { &[] }
    }

    /// Returns how long the last search took.
    pub(super) fn last_search(&self) -> Option<Seconds> {
        self.took
    }

    /// Returns how long a search has been going on, if one is.
    pub(super) fn searching(&self, now: Now) -> Option<Seconds> {
        self.search.as_ref().map(|search| now.monotonic.since(search.since))
    }

    /// Sees to a job's phase, and whether it is to be planned.
    fn look_at(&self, id: &JobId, node: &mut Node<'_>, now: Now) {
        let Some(job) = node.jobs.get_mut(id) else { return };
        if job.slot_ended(now) {
            // A cap that a lower limit hides may have lifted: each slot's plan is made as if, and made again if it has not.
            for gpu in &job.spec.gpus {
                if let Some(gpu) = node.gpus.get_mut(gpu) {
                    gpu.expire_cap();
                }
            }
        }
        job.choose_phase(hindrance(job, node.gpus, node.settings));
        job.detect_reasons(now, job.out_of_band_cap(node.gpus));
    }

    /// Waits for the search in progress, at most `patience`, and takes what it found.
    async fn await_plans(&mut self, node: &mut Node<'_>, budget: &BudgetAccount, patience: Seconds) {
        let Some(mut search) = self.search.take() else { return };
        let Some(solved) = search.outcome(patience).await else {
            self.search = Some(search);
            return;
        };
        let now = node.now();
        self.took = Some(now.monotonic.since(search.since));
        // What came late may be for another cap than the present one; then it is planned anew, and not carried out.
        let is_stale =
            patience <= Seconds::ZERO && search.share != SharedBudget::of(&node.demand(now), node.cap, budget);
        let stale = search.share.as_ref().filter(|_| is_stale).map(|s| s.members.clone()).unwrap_or_default();
        self.apart = solved.apart;
        if let Some(broken) = solved.broken.filter(|_| !is_stale) {
            self.broken = broken.iter().map(in_words).collect();
        }
        for (id, outcome) in solved.plans {
            // A job that is profiled anew meanwhile has no use for it.
            let Some(job) = node.jobs.get_mut(&id).filter(|j| j.is_profiled()) else { continue };
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
    fn detect_other_share(&mut self, jobs: &mut Jobs, share: Option<&SharedBudget>) {
        if self.share.as_ref() == share {
            return;
        }
        let before = self.share.as_ref().map(|s| s.members.clone()).unwrap_or_default();
        let members = share.map(|s| s.members.as_slice()).unwrap_or_default();
        for id in before.iter().chain(members) {
            if let Some(job) = jobs.get_mut(id) {
                job.replan.get_or_insert(ReplanReason::OtherShare);
            }
        }
        if share.is_none() {
            self.share = None;
            self.apart = None;
            self.broken.clear();
        }
    }

    /// Returns what is to be planned now. Jobs that share a cap are planned together or not at all.
    fn batch(&self, node: &mut Node<'_>, budget: &BudgetAccount, share: Option<&SharedBudget>, now: Now) -> PlanBatch {
        let due = node.jobs.iter().filter(|job| job.is_due(now)).map(|job| job.id.clone());
        let members = share.map(|s| s.members.as_slice()).unwrap_or_default();
        let (together, alone): (Vec<JobId>, Vec<JobId>) = due.partition(|id| members.contains(id));
        let mut batch = PlanBatch {
            alone: inputs(&alone, node, &self.settings, now),
            solver: self.settings.solver,
            ..PlanBatch::default()
        };
        if let Some(share) = share.filter(|_| !together.is_empty()) {
            batch.together = inputs(members, node, &self.settings, now);
            let ends = batch.together.iter().filter_map(|b| b.horizon.last()).map(|s| s.slot.end());
            let until = ends.max().unwrap_or(now.utc);
            batch.cap = share.left(now.utc, until);
            batch.carbon_budget = budget.left(now.utc, until, node.signal.basis().value);
        }
        batch
    }

    /// Returns how steadily a job follows its plan. Those under a cap change together, when their plans say so.
    fn pace(&self, id: &JobId) -> SwitchingLimits {
        let shares = self.share.as_ref().is_some_and(|share| share.is_capped() && share.members.contains(id));
        let dwell = if shares { Seconds::ZERO } else { self.settings.dwell_s };
        SwitchingLimits { dwell, ramp_per_min: self.settings.ramp_w_per_min }
    }
}
