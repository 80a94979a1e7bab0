//! Jobs × starts × budgets × policies, replayed and compared: the rows of `wattune simulate carbon`.

mod frontier;
mod row;

use std::sync::Arc;

use chrono::{DateTime, Utc};

pub use frontier::Frontier;
pub use row::{Figures, Mean, Row, means};

use super::policy::{Policy, Runs, sweep};
use super::replay::{Decision, Job, ReplayError, Replayed, Setting, Sight, UnderCap, View, replay, replay_together};
use wattune_core::domain::{Pausing, Profile};
use wattune_core::ledger;
use wattune_core::units::{Seconds, Watts};

/// What is replayed. Every combination is.
pub struct Study<'a> {
    /// The jobs: each alone, or all together under `node_cap`.
    pub jobs: &'a [Job],
    /// What their limits may add up to, if they share a node. Then only policies that plan are run: wattune and
    /// clairvoyant; rows have no captured headroom, for want of a constant mix to compare with.
    pub node_cap: Option<Watts>,
    /// What the grid is called.
    pub grid_name: &'a str,
    /// The grid, with as much foresight as policies have.
    pub grid: &'a Sight<'a>,
    /// When jobs begin.
    pub starts: &'a [DateTime<Utc>],
    /// Maximum slowdowns: 0.03 is 3 %.
    pub budgets: &'a [f64],
    /// What decides.
    pub policies: &'a [Policy],
    /// Seconds per limit that policies which learn have to measure for; 0 for none.
    pub sweep: Seconds,
    /// Relative standard error of what the policies believe about the job; 0 for none.
    pub profile_error: f64,
    /// What pausing costs, if wattune and clairvoyant may pause.
    pub pausing: Option<Pausing>,
    /// Seeds of that error; results do not depend on them without one.
    pub seeds: &'a [u64],
}

/// Why a study cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{policy} on {workload} from {start} with {budget}: {source}", start = start.format("%FT%TZ"))]
pub struct StudyError {
    /// The policy.
    pub policy: &'static str,
    /// The job.
    pub workload: String,
    /// When it began.
    pub start: DateTime<Utc>,
    /// The budget in words.
    pub budget: String,
    /// What happened.
    #[source]
    pub source: ReplayError,
}

/// A row and, where one replay stands behind it, what was done when.
pub struct Found {
    /// The row.
    pub row: Row,
    /// The replay; `None` where the row lies between several, or past the end of the trace.
    pub replayed: Option<Replayed>,
    /// All that its knob can reach, where it has one.
    pub frontier: Option<Arc<Frontier>>,
}

/// One job from one start on, as policies believe it to be.
#[derive(Clone, Copy)]
struct Case<'a> {
    study: &'a Study<'a>,
    setting: Setting<'a>,
    seed: u64,
}

impl Study<'_> {
    /// Replays everything, in the order job, start, seed, budget, policy; rows of a policy without a budget come last.
    /// `step` is called [`Study::steps`] times on the way.
    ///
    /// A row of a policy that runs past the end of the trace has no figures, and so has one beyond the last setting of a
    /// knob that does not.
    ///
    /// # Errors
    /// If a policy cannot decide, or if what the others are compared with runs past the end of the trace.
    pub fn run(&self, mut step: impl FnMut()) -> Result<Vec<Found>, StudyError> {
        let mut rows = Vec::new();
        if let Some(cap) = self.node_cap {
            self.together(cap, &mut rows, &mut step)?;
            return Ok(rows);
        }
        for job in self.jobs {
            for &start in self.starts {
                for &seed in self.seeds {
                    let measured = (self.profile_error > 0.0).then(|| job.measured(self.profile_error, seed));
                    let believed: &Profile = measured.as_ref().unwrap_or(&job.profile);
                    let profile_error = self.profile_error;
                    let (pausing, grid) = (self.pausing, self.grid);
                    let setting = Setting { job, believed, profile_error, start, pausing, grid };
                    Case { study: self, setting, seed }.run(&mut rows, &mut step)?;
                }
            }
        }
        Ok(rows)
    }

    fn together(&self, cap: Watts, rows: &mut Vec<Found>, step: &mut impl FnMut()) -> Result<(), StudyError> {
        for &start in self.starts {
            for &budget in self.budgets {
                for policy in self.policies {
                    let setting = |job| Setting {
                        job,
                        believed: &job.profile,
                        profile_error: 0.0,
                        start,
                        pausing: self.pausing,
                        grid: self.grid,
                    };
                    let settings: Vec<Setting<'_>> = self.jobs.iter().map(setting).collect();
                    let case = |setting| Case { study: self, setting, seed: 0 };
                    let under = UnderCap { cap, foresight: policy.name == "clairvoyant" };
                    let replayed = replay_together(&settings, Some(budget), under)
                        .map_err(|source| case(settings[0]).failed(policy, Some(budget), source))?;
                    for (setting, replayed) in settings.into_iter().zip(replayed) {
                        let case = case(setting);
                        let row = case.row(policy, Some(budget), Some(case.figures(&replayed)), None);
                        rows.push(Found { row, replayed: Some(replayed), frontier: None });
                    }
                    step();
                }
            }
        }
        Ok(())
    }

    /// How often [`Study::run`] tells that it has come further: for each policy and start with each budget and, unless jobs
    /// share a node, for each job and seed and once more for the knob.
    pub fn steps(&self) -> usize {
        let (starts, budgets, policies) = (self.starts.len(), self.budgets.len(), self.policies.len());
        match self.node_cap {
            Some(_) => starts * budgets * policies,
            None => self.jobs.len() * starts * self.seeds.len() * policies * (1 + budgets),
        }
    }
}

impl Case<'_> {
    fn run(&self, rows: &mut Vec<Found>, step: &mut impl FnMut()) -> Result<(), StudyError> {
        let frontiers = self.study.policies.iter().map(|policy| {
            let frontier = self.frontier(policy);
            step();
            frontier
        });
        let frontiers: Vec<Option<Arc<Frontier>>> = frontiers.collect::<Result<_, _>>()?;
        for &budget in self.study.budgets {
            let bound = |name| -> Result<Figures, StudyError> {
                let policy = super::policy::named(name).expect("the bounds are policies");
                let (Runs::Within(decide) | Runs::WithinAndFree(decide)) = policy.runs else {
                    unreachable!("the bounds keep a budget themselves")
                };
                let replayed = self.replay(&policy, Some(budget), decide);
                Ok(self.figures(&replayed.map_err(|source| self.failed(&policy, Some(budget), source))?))
            };
            let bounds = (bound("static")?, bound("clairvoyant")?);
            for (policy, frontier) in self.study.policies.iter().zip(&frontiers) {
                let replayed = match policy.runs {
                    Runs::Within(decide) | Runs::WithinAndFree(decide) => self.told(policy, Some(budget), decide)?,
                    Runs::Swept { .. } => None,
                };
                let between = || frontier.as_ref()?.at(100.0 * budget);
                let figures = replayed.as_ref().map(|replayed| self.figures(replayed)).or_else(between);
                let row = self.row(policy, Some(budget), figures, Some(bounds));
                rows.push(Found { row, replayed, frontier: frontier.clone() });
                step();
            }
        }
        for (policy, frontier) in self.study.policies.iter().zip(frontiers) {
            let replayed = match policy.runs {
                Runs::Within(_) => continue,
                Runs::WithinAndFree(decide) => self.told(policy, None, decide)?,
                Runs::Swept { decide, own } => self.told(policy, None, |view| decide(view, own))?,
            };
            let figures = replayed.as_ref().map(|replayed| self.figures(replayed));
            rows.push(Found { row: self.row(policy, None, figures, None), replayed, frontier });
        }
        Ok(())
    }

    /// What a policy gives; `None` if it runs past the end of the trace.
    fn told(
        &self,
        policy: &Policy,
        budget: Option<f64>,
        decide: impl Fn(&View<'_>) -> Decision,
    ) -> Result<Option<Replayed>, StudyError> {
        match self.replay(policy, budget, decide) {
            Err(ReplayError::BeyondTrace(_)) => Ok(None),
            replayed => replayed.map(Some).map_err(|source| self.failed(policy, budget, source)),
        }
    }

    fn failed(&self, policy: &Policy, budget: Option<f64>, source: ReplayError) -> StudyError {
        StudyError {
            policy: policy.name,
            workload: self.setting.job.workload.to_string(),
            start: self.setting.start,
            budget: budget.map_or("no budget".into(), |b| format!("{} % more time", 100.0 * b)),
            source,
        }
    }

    fn replay(
        &self,
        policy: &Policy,
        budget: Option<f64>,
        decide: impl Fn(&View<'_>) -> Decision,
    ) -> Result<Replayed, ReplayError> {
        if policy.learns {
            return replay(self.setting, budget, self.study.sweep, decide);
        }
        // Those that others are measured against know the job as it is.
        let exact = Setting { believed: &self.setting.job.profile, profile_error: 0.0, ..self.setting };
        replay(exact, budget, Seconds::ZERO, decide)
    }

    /// Where a policy has a knob: what all its settings give. Settings that run past the end of the trace are missing.
    fn frontier(&self, policy: &Policy) -> Result<Option<Arc<Frontier>>, StudyError> {
        let Runs::Swept { decide, .. } = policy.runs else { return Ok(None) };
        let runs = sweep().map(|knob| {
            let replayed = self.told(policy, None, |view| decide(view, knob))?;
            Ok(replayed.map(|replayed| self.figures(&replayed)))
        });
        Ok(Some(Arc::new(Frontier::new(runs.collect::<Result<_, _>>()?))))
    }

    fn figures(&self, replayed: &Replayed) -> Figures {
        let ledger::Comparison { energy_at_ceiling, carbon_reduction_pct, time_increase_pct, .. } =
            replayed.against_max;
        Figures {
            carbon_reduction_pct,
            time_increase_pct,
            energy_reduction_pct: 100.0 * (1.0 - replayed.energy / energy_at_ceiling),
            energy_effect_pct: replayed.against_max.energy_effect_pct,
            timing_effect_pct: replayed.against_max.timing_effect_pct,
        }
    }

    fn row(
        &self,
        policy: &Policy,
        budget: Option<f64>,
        figures: Option<Figures>,
        bounds: Option<(Figures, Figures)>,
    ) -> Row {
        let job = self.setting.job;
        Row::new(
            policy.name,
            job,
            self.study.grid_name,
            self.setting.start,
            (self.study.profile_error > 0.0).then_some(self.seed),
            budget,
            figures,
            bounds,
        )
    }
}
