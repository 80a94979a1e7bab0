//! Replays all combinations of jobs, starts, seeds, budgets and policies in a study.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::figures::Figures;
use super::frontier::Frontier;
use super::row::{CaseResult, Row};
use crate::grid::VisibleGrid;
use crate::policy::{Policy, RunMode, named};
use crate::replay::{Decision, Job, ReplayError, Replayed, Setting, UnderCap, View, replay, replay_jointly};
use wattune_core::domain::{Pausing, Profile};
use wattune_core::units::{Seconds, Watts};

/// Number of steps from 0 to 1 in which a policy's knob is varied; the values that policies' authors chose are among
/// them.
const KNOB_STEPS: u32 = 20;

/// The combinations to replay: each job from each start with each seed, under each policy with each budget of extra
/// time.
pub struct Study<'a> {
    /// The jobs; each is replayed alone, or all together if there is a `node_cap`.
    pub jobs: &'a [Job],
    /// Maximum sum of the jobs' power limits if they share a node; `None` if each job is replayed alone. Only the
    /// policies that plan, wattune and clairvoyant, are run under a cap, and rows have no captured headroom, because
    /// there is no constant mix to compare with.
    pub node_cap: Option<Watts>,
    /// The grid, as policies see it with their foresight.
    pub grid: &'a VisibleGrid<'a>,
    /// Times at which the jobs start.
    pub starts: &'a [DateTime<Utc>],
    /// Budgets: extra time that the jobs may take; 0.03 is 3 %.
    pub budgets: &'a [f64],
    /// The policies.
    pub policies: &'a [Policy],
    /// Time for which policies that learn first measure each limit; 0 if they do not measure.
    pub sweep: Seconds,
    /// Relative standard error of the profile that policies know; 0 if they know the true profile.
    pub profile_error: f64,
    /// Conditions and costs of pauses, for suspend, wattune and clairvoyant; `None` if the jobs may not pause.
    pub pausing: Option<Pausing>,
    /// Seeds of the profile's random errors. If there are no errors, results do not depend on the seeds.
    pub seeds: &'a [u64],
}

/// Reason why a study fails.
#[expect(missing_docs, reason = "the message explains the fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{policy} on {workload} from {start} with {budget}", start = start.format("%FT%TZ"))]
pub struct StudyError {
    pub policy: &'static str,
    pub workload: String,
    pub start: DateTime<Utc>,
    pub budget: String,
    #[source]
    pub source: ReplayError,
}

/// One job with one start, and the profile that policies know of the job.
#[derive(Clone, Copy)]
struct Case<'a> {
    study: &'a Study<'a>,
    /// Number of the job in the study, from 1.
    number: usize,
    setting: Setting<'a>,
    seed: u64,
}

impl Study<'_> {
    /// Replays all combinations, in the order job, start, seed, budget, policy; for each job, start and seed, rows
    /// without a budget come last. Calls `step` [`Study::steps`] times on the way, for a progress display.
    ///
    /// A row has no figures if the policy reaches a time without a value in the trace. For a policy with a knob, a row
    /// has none if a run of its frontier does and the budget is larger than the time increase of the slowest other run.
    /// No row of a start has figures if the job would have no emissions from there at the largest limit.
    ///
    /// # Errors
    /// If a policy cannot decide, or if one of the policies `static` and `clairvoyant`, with which all others are
    /// compared, reaches a time without a value in the trace.
    pub fn run(&self, mut step: impl FnMut()) -> Result<Vec<CaseResult>, StudyError> {
        let mut rows = Vec::new();
        if let Some(cap) = self.node_cap {
            self.run_jointly(cap, &mut rows, &mut step)?;
            return Ok(rows);
        }
        for (number, job) in (1..).zip(self.jobs) {
            for &start in self.starts {
                for &seed in self.seeds {
                    let measured = (self.profile_error > 0.0).then(|| job.measured(self.profile_error, seed));
                    let believed: &Profile = measured.as_ref().unwrap_or(&job.profile);
                    let profile_error = self.profile_error;
                    let (pausing, grid) = (self.pausing, self.grid);
                    let setting = Setting { job, believed, profile_error, start, pausing, grid };
                    Case { study: self, number, setting, seed }.run(&mut rows, &mut step)?;
                }
            }
        }
        Ok(rows)
    }

    fn run_jointly(&self, cap: Watts, rows: &mut Vec<CaseResult>, step: &mut impl FnMut()) -> Result<(), StudyError> {
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
                    let case = |(number, job)| Case { study: self, number, setting: setting(job), seed: 0 };
                    let cases: Vec<Case<'_>> = (1..).zip(self.jobs).map(case).collect();
                    let settings: Vec<Setting<'_>> = cases.iter().map(|case| case.setting).collect();
                    let under = UnderCap { cap, foresight: policy.name == "clairvoyant" };
                    let replayed: Vec<Option<Replayed>> = match replay_jointly(&settings, Some(budget), under) {
                        Ok(replayed) => replayed.into_iter().map(Some).collect(),
                        Err(ReplayError::NoCarbon) => vec![None; cases.len()],
                        Err(source) => return Err(cases[0].failed(policy, Some(budget), source)),
                    };
                    for (case, replayed) in cases.iter().zip(replayed) {
                        let figures = replayed.as_ref().map(Figures::of);
                        let row = case.row(policy, Some(budget), figures, None);
                        let row = Row { no_carbon: replayed.is_none(), ..row };
                        rows.push(CaseResult { row, replayed, frontier: None });
                    }
                    step();
                }
            }
        }
        Ok(())
    }

    /// Returns the number of calls of `step` in [`Study::run`]. If jobs share a node, this is one for each start,
    /// budget and policy. Else, for each job, start, seed and policy, it is one for each budget and one for the
    /// frontier.
    pub fn steps(&self) -> usize {
        let (starts, budgets, policies) = (self.starts.len(), self.budgets.len(), self.policies.len());
        match self.node_cap {
            Some(_) => starts * budgets * policies,
            None => self.jobs.len() * starts * self.seeds.len() * policies * (1 + budgets),
        }
    }
}

impl Case<'_> {
    fn run(&self, rows: &mut Vec<CaseResult>, step: &mut impl FnMut()) -> Result<(), StudyError> {
        if self.setting.is_without_carbon() {
            self.add_rows_without_carbon(rows, step);
            return Ok(());
        }
        let frontiers = self.study.policies.iter().map(|policy| {
            let frontier = self.frontier(policy);
            step();
            frontier
        });
        let frontiers: Vec<Option<Arc<Frontier>>> = frontiers.collect::<Result<_, _>>()?;
        for &budget in self.study.budgets {
            let bound = |name| -> Result<Figures, StudyError> {
                let policy = named(name).expect("the bounds are policies");
                let decide = policy.mode.within_budget().expect("the bounds keep a budget themselves");
                let replayed = self.replay(&policy, Some(budget), decide);
                Ok(Figures::of(&replayed.map_err(|source| self.failed(&policy, Some(budget), source))?))
            };
            let bounds = (bound("static")?, bound("clairvoyant")?);
            for (policy, frontier) in self.study.policies.iter().zip(&frontiers) {
                let replayed = match policy.mode.within_budget() {
                    Some(decide) => self.within_trace(policy, Some(budget), decide)?,
                    None => None,
                };
                let between = || frontier.as_ref()?.at(100.0 * budget);
                let figures = replayed.as_ref().map(Figures::of).or_else(between);
                let row = self.row(policy, Some(budget), figures, Some(bounds));
                rows.push(CaseResult { row, replayed, frontier: frontier.clone() });
                step();
            }
        }
        for (policy, frontier) in self.study.policies.iter().zip(frontiers) {
            let replayed = match policy.mode {
                RunMode::WithinBudget(_) => continue,
                RunMode::WithinBudgetAndFree(decide) => self.within_trace(policy, None, decide)?,
                RunMode::Swept { decide, authors_value } => {
                    self.within_trace(policy, None, |view| decide(view, authors_value))?
                }
            };
            let figures = replayed.as_ref().map(Figures::of);
            rows.push(CaseResult { row: self.row(policy, None, figures, None), replayed, frontier });
        }
        Ok(())
    }

    /// Adds the rows of a case in which the job would have no emissions at the largest limit: all are without figures.
    fn add_rows_without_carbon(&self, rows: &mut Vec<CaseResult>, step: &mut impl FnMut()) {
        let mut add = |policy: &Policy, budget: Option<f64>| {
            let row = Row { no_carbon: true, ..self.row(policy, budget, None, None) };
            rows.push(CaseResult { row, replayed: None, frontier: None });
        };
        for &budget in self.study.budgets {
            for policy in self.study.policies {
                add(policy, Some(budget));
                step();
            }
        }
        for policy in self.study.policies {
            if !matches!(policy.mode, RunMode::WithinBudget(_)) {
                add(policy, None);
            }
            step();
        }
    }

    /// Returns the replay of a policy; `None` if the policy reaches a time without a value in the trace.
    fn within_trace(
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
        // Policies that do not learn know the true profile without measuring it.
        let exact = Setting { believed: &self.setting.job.profile, profile_error: 0.0, ..self.setting };
        replay(exact, budget, Seconds::ZERO, decide)
    }

    /// Returns the frontier of a policy: the results for all values of its knob; `None` for a policy without a knob. A
    /// run that reaches a time without a value in the trace is missing in the frontier.
    fn frontier(&self, policy: &Policy) -> Result<Option<Arc<Frontier>>, StudyError> {
        let RunMode::Swept { decide, .. } = policy.mode else { return Ok(None) };
        let runs = (0..=KNOB_STEPS).map(|step| {
            let knob = f64::from(step) / f64::from(KNOB_STEPS);
            let replayed = self.within_trace(policy, None, |view| decide(view, knob))?;
            Ok(replayed.map(|replayed| Figures::of(&replayed)))
        });
        Ok(Some(Arc::new(Frontier::new(runs.collect::<Result<_, _>>()?))))
    }

    fn row(
        &self,
        policy: &Policy,
        budget: Option<f64>,
        figures: Option<Figures>,
        bounds: Option<(Figures, Figures)>,
    ) -> Row {
        let seed = (self.study.profile_error > 0.0).then_some(self.seed);
        Row::new(policy.name, self.number, self.setting, seed, budget, figures, bounds)
    }
}
