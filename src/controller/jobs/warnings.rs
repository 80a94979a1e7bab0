//! What a job cannot keep, or not yet, in words.

use chrono::{DateTime, Utc};

use super::job::{Job, Phase};
use wattune_core::domain::Objective;
use wattune_core::plan::{Promise, Verdict, Weighing};
use wattune_core::time::Now;
use wattune_core::units::{GramsCo2e, Lasting, Points, Rounded, Samples, SamplesPerSecond, Seconds};

const NO_PRICES: &str = "no price is known: its plan follows carbon alone although it gives weight to prices";

impl Job {
    /// The promises that it cannot keep, and by how much; and what keeps it from being measured.
    pub(in crate::controller) fn warnings(&self, now: Now) -> Vec<String> {
        let planned = matches!(self.phase, Phase::Planned | Phase::Paused | Phase::Observing);
        let mut warnings = match &self.plan {
            Some(plan) if planned => {
                let prices = (plan.weighing == Weighing::NoPrices).then(|| NO_PRICES.to_owned());
                self.broken_by_plan().into_iter().chain(self.overrun_beyond_plan()).chain(prices).collect()
            }
            _ => self.broken_without_plan(now),
        };
        warnings.extend(self.sweep_ceiling.describe());
        warnings.extend(self.describe_setback());
        warnings.extend(self.received_reports.likely_mistakes(&self.spec));
        warnings
    }

    /// How many promises it cannot keep, by the plan in force or, where none is applied, whatever comes.
    pub(in crate::controller) fn broken_promises(&self, now: Now) -> usize {
        match &self.plan {
            Some(_) if matches!(self.phase, Phase::Planned | Phase::Paused) => {
                self.broken_by_plan().len() + usize::from(self.overrun_beyond_plan().is_some())
            }
            _ => self.broken_without_plan(now).len(),
        }
    }

    /// What is broken whatever comes, as far as that is known while there is no plan to follow.
    fn broken_without_plan(&self, now: Now) -> Vec<String> {
        let Objective { deadline, carbon_budget, .. } = self.spec.objective;
        let left = self.remaining().filter(|left| *left > Samples::ZERO);
        let late = deadline.zip(left).and_then(|(deadline, left)| {
            let fastest = self.profile().points.iter().map(|p| p.throughput.mean).reduce(SamplesPerSecond::max);
            let needed =
                fastest.filter(|rate| *rate > SamplesPerSecond::ZERO).map_or(Seconds::ZERO, |rate| left / rate);
            let late = needed - Seconds::from_delta(deadline - now.utc);
            (late > Seconds::ZERO).then(|| match deadline <= now.utc {
                true => format!("the deadline {} has passed, and work is left", deadline.format("%FT%TZ")),
                false => format!("the deadline will be missed by {} at the least, even flat out", Lasting(late)),
            })
        });
        let emitted = self.emissions.sum().carbon;
        let over = carbon_budget.filter(|budget| emitted > *budget).map(|budget| {
            format!(
                "its carbon budget of {} g is exceeded by {} g",
                Rounded(budget.get()),
                Rounded((emitted - budget).get())
            )
        });
        late.into_iter().chain(over).chain(self.overrun()).collect()
    }

    /// The promises that its plan cannot keep, and by how much.
    fn broken_by_plan(&self) -> Vec<String> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let Objective { carbon_budget, .. } = self.spec.objective;
        let of_budget =
            carbon_budget.map(|b| format!("its carbon budget of {} g", Rounded(b.get()))).unwrap_or_default();
        match plan.verdict {
            Verdict::Optimal => Vec::new(),
            Verdict::OverBudget { exceeds_budget_by: over } => {
                let kept = self.promises_about_time().unwrap_or_else(|| "does all of the work".into());
                vec![format!(
                    "{of_budget} will be exceeded by {} g: that is the least carbon of any plan that {kept}",
                    Rounded(over.get())
                )]
            }
            Verdict::FlatOut { misses_deadline_by, exceeds_slowdown_by, exceeds_budget_by, .. } => {
                let cap = self.planned_under.map(|cap| format!(" under the cap of {cap}")).unwrap_or_default();
                let deadline = misses_deadline_by.map(|late| {
                    format!("the deadline will be missed by {} although the job runs flat out{cap}", Lasting(late))
                });
                let slowdown = exceeds_slowdown_by.map(|over| {
                    format!("the job will be {} slower than allowed although it runs flat out{cap}", Points(over))
                });
                let budget = exceeds_budget_by.map(|over| {
                    format!(
                        "{of_budget} will be exceeded by {} g, as the promises about time go first",
                        Rounded(over.get())
                    )
                });
                deadline.into_iter().chain(slowdown).chain(budget).collect()
            }
            Verdict::SharedLimits { misses_deadline_by, exceeds_slowdown_by, exceeds_budget_by } => {
                let shared = "by the node's cap";
                let deadline = misses_deadline_by
                    .map(|late| format!("held down {shared}, it will miss the deadline by {}", Lasting(late)));
                let slowdown = exceeds_slowdown_by
                    .map(|over| format!("held down {shared}, it will be {} slower than allowed", Points(over)));
                let budget = exceeds_budget_by.map(|over| {
                    format!("{of_budget} will be exceeded by {} g because of the node's cap", Rounded(over.get()))
                });
                deadline.into_iter().chain(slowdown).chain(budget).collect()
            }
        }
    }

    /// By how much the promised slowdown is exceeded already, where its plan does not say that it will be: a plan holds for
    /// some time, and what is lost meanwhile by noise or by others is not in it.
    fn overrun_beyond_plan(&self) -> Option<String> {
        let says_so = matches!(
            self.plan.as_ref().map(|plan| &plan.verdict),
            Some(
                Verdict::FlatOut { exceeds_slowdown_by: Some(_), .. }
                    | Verdict::SharedLimits { exceeds_slowdown_by: Some(_), .. }
            )
        );
        self.overrun().filter(|_| !says_so)
    }

    /// The promises that it did not keep, once it has ended then and emitted so much.
    pub(in crate::controller) fn broken_at_end(&self, ended_at: DateTime<Utc>, carbon: GramsCo2e) -> Vec<String> {
        let Objective { deadline, carbon_budget, .. } = self.spec.objective;
        let late = deadline.filter(|deadline| ended_at > *deadline).map(|deadline| {
            let by = Seconds::from_delta(ended_at - deadline);
            format!("the deadline {} was missed by {}", deadline.format("%FT%TZ"), Lasting(by))
        });
        let over = carbon_budget.filter(|budget| carbon > *budget).map(|budget| {
            format!("its carbon budget of {} g was exceeded by {:.1} g", Rounded(budget.get()), (carbon - budget).get())
        });
        late.into_iter().chain(over).chain(self.overran()).collect()
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
