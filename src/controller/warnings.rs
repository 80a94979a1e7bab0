//! What a job's plan cannot keep, in words.

use super::job::Job;
use crate::domain::Objective;
use crate::plan::{Promise, Verdict, Weighing};

impl Job {
    /// The promises that its plan cannot keep, and by how much.
    pub(super) fn warnings(&self) -> Vec<String> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let Objective { carbon_budget, .. } = self.spec.objective;
        let of_budget = carbon_budget.map(|b| format!("its carbon budget of {:.0} g", b.get())).unwrap_or_default();
        let prices = (plan.weighing == Weighing::NoPrices)
            .then(|| "no price is known: its plan follows carbon alone although it gives weight to prices".to_owned());
        let broken = match plan.verdict {
            Verdict::Optimal => Vec::new(),
            Verdict::OverBudget { exceeds_budget_by: over } => {
                let kept = self.promises_about_time().unwrap_or_else(|| "does all of the work".into());
                vec![format!(
                    "{of_budget} will be exceeded by {:.0} g: that is the least carbon of any plan that {kept}",
                    over.get()
                )]
            }
            Verdict::FlatOut { misses_deadline_by, exceeds_slowdown_by, exceeds_budget_by, .. } => {
                let cap = self.planned_under.map(|cap| format!(" under the cap of {cap}")).unwrap_or_default();
                let deadline = misses_deadline_by.map(|late| {
                    format!("the deadline will be missed by {:.0} s although the job runs flat out{cap}", late.get())
                });
                let slowdown = exceeds_slowdown_by.map(|over| {
                    format!(
                        "the job will be {:.2} points slower than allowed although it runs flat out{cap}",
                        100.0 * over
                    )
                });
                let budget = exceeds_budget_by.map(|over| {
                    format!("{of_budget} will be exceeded by {:.0} g, as the promises about time go first", over.get())
                });
                deadline.into_iter().chain(slowdown).chain(budget).collect()
            }
            Verdict::HeldDown { misses_deadline_by, exceeds_slowdown_by, exceeds_budget_by } => {
                let shared = "by what it shares with other jobs";
                let deadline = misses_deadline_by
                    .map(|late| format!("held down {shared}, it will miss the deadline by {:.0} s", late.get()));
                let slowdown = exceeds_slowdown_by.map(|over| {
                    format!("held down {shared}, it will be {:.2} points slower than allowed", 100.0 * over)
                });
                let budget = exceeds_budget_by.map(|over| {
                    format!("{of_budget} will be exceeded by {:.0} g because of what it shares", over.get())
                });
                deadline.into_iter().chain(slowdown).chain(budget).collect()
            }
        };
        broken.into_iter().chain(prices).collect()
    }

    /// What a plan has to keep beside a carbon budget, in words.
    fn promises_about_time(&self) -> Option<String> {
        let Objective { max_slowdown, deadline, .. } = self.spec.objective;
        let slowdown = max_slowdown.map(|max| Promise::Slowdown(max).to_string());
        let deadline = deadline.map(|at| Promise::Deadline(at).to_string());
        let promises: Vec<String> = slowdown.into_iter().chain(deadline).collect();
        (!promises.is_empty()).then(|| format!("keeps {}", promises.join(" and ")))
    }
}
