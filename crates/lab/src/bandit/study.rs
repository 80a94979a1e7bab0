//! Simulations of recurring jobs × policies × seeds, compared with the oracle: the rows of `wattune simulate bandit`.

use super::job::Job;
use super::oracle;
use super::overlap::overlap;
use super::policy::{Knobs, Policy, SimulationError};
use super::recur::{Recurring, Switch, recur};
use super::rows::{Expected, Report, RowKey, history, summary};
use super::run::JobRuns;
use crate::traces::Submission;
use wattune_core::bandit::Cost;

/// The recurrences of a job: how its runs are started.
pub enum Recurrences<'a> {
    /// The recurrences follow one another: their number (first), and a switch to other traces (second), if there is
    /// one.
    InTurn(u32, Option<Switch>),
    /// Submissions, which may overlap, start the runs: name of a group (first), and the group's submissions in the
    /// order of their starts (second).
    Overlapping(Vec<(String, Vec<&'a Submission>)>),
}

/// A job on one GPU, with its recurrences.
pub struct Case<'a> {
    /// The job, with its traces before a switch, if there is one.
    pub job: Job,
    /// The job's recurrences.
    pub recurrences: Recurrences<'a>,
}

/// The combinations to run: each case under each policy with each seed.
pub struct Study<'a> {
    /// The jobs to simulate.
    pub cases: &'a [Case<'a>],
    /// The policies to compare.
    pub policies: &'a [Policy],
    /// Seeds of the random numbers.
    pub seeds: &'a [u64],
    /// Settings of all policies.
    pub knobs: Knobs,
    /// True if the report has a row for each run.
    pub history: bool,
}

/// Reason why a study fails.
#[expect(missing_docs, reason = "the message explains the fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("policy {policy}, {workload} on {gpu}")]
pub struct StudyError {
    pub policy: &'static str,
    pub workload: String,
    pub gpu: String,
    #[source]
    pub source: SimulationError,
}

impl Study<'_> {
    /// Simulates all combinations, in the order case, policy, seed. Calls `step` [`Study::steps`] times on the way, for
    /// a progress display.
    pub fn run(&self, mut step: impl FnMut()) -> Result<Report, StudyError> {
        let mut report = Report { summary: Vec::new(), history: self.history.then(Vec::new), notes: self.notes() };
        for case in self.cases {
            for policy in self.policies {
                for &seed in self.seeds {
                    self.add(case, policy, seed, &mut report).map_err(|source| StudyError {
                        policy: policy.name,
                        workload: case.job.workload.clone(),
                        gpu: case.job.gpu.clone(),
                        source,
                    })?;
                    step();
                }
            }
        }
        Ok(report)
    }

    /// Returns the number of calls of `step` in [`Study::run`].
    pub fn steps(&self) -> usize {
        self.cases.len() * self.policies.len() * self.seeds.len()
    }

    /// Returns the notes of all jobs on gaps of the traces, each note once.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for case in self.cases {
            let after = match &case.recurrences {
                Recurrences::InTurn(_, Some(switch)) => Some(&switch.job),
                _ => None,
            };
            for note in std::iter::once(&case.job).chain(after).flat_map(|job| &job.notes) {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        notes
    }

    fn add(&self, case: &Case<'_>, policy: &Policy, seed: u64, report: &mut Report) -> Result<(), SimulationError> {
        let (job, knobs) = (&case.job, self.knobs);
        let run = self.expected_cost(job)?;
        match &case.recurrences {
            Recurrences::Overlapping(groups) => {
                for (group, submissions) in groups {
                    let runs = overlap(job, &knobs, submissions, policy, seed)?;
                    let expected = |recurrence: u32| {
                        let submission = submissions.get(recurrence as usize - 1);
                        Expected { run, runs: submission.map_or(0.0, |s| s.runtime_ratio) }
                    };
                    let submitted = u32::try_from(submissions.len()).unwrap_or(u32::MAX);
                    add_rows(report, (policy.name, job, Some(group), seed), &runs, submitted, |_| &job.gpu, expected);
                }
            }
            Recurrences::InTurn(recurrences, switch) => {
                let switch = switch.as_ref();
                let after =
                    switch.map(|switch| self.expected_cost(&switch.job).map(|cost| (switch, cost))).transpose()?;
                let runs = recur(&Recurring { job, recurrences: *recurrences, knobs, switch }, policy, seed)?;
                let later = |recurrence: u32| after.filter(|(switch, _)| recurrence >= switch.at);
                let expected =
                    |recurrence| Expected { run: later(recurrence).map_or(run, |(_, cost)| cost), runs: 1.0 };
                let gpu = |recurrence| later(recurrence).map_or(&job.gpu, |(switch, _)| &switch.job.gpu);
                add_rows(report, (policy.name, job, None, seed), &runs, *recurrences, gpu, expected);
            }
        }
        Ok(())
    }

    fn expected_cost(&self, job: &Job) -> Result<Cost, SimulationError> {
        let best = oracle::best(job, &job.knob(self.knobs.eta));
        best.map(|best| best.cost).ok_or(SimulationError::Hopeless { max_epochs: job.max_epochs })
    }
}

fn add_rows<'a>(
    report: &mut Report,
    key: RowKey<'_>,
    runs: &JobRuns,
    recurrences: u32,
    gpu: impl Fn(u32) -> &'a String,
    expected: impl Fn(u32) -> Expected,
) {
    report.summary.push(summary(key, runs, recurrences, &expected));
    if let Some(rows) = &mut report.history {
        rows.extend(history(key, runs, gpu, expected));
    }
}
