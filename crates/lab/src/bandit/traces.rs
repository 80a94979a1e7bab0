//! Recurring jobs, made from a train trace and a power trace.

use std::collections::HashSet;

use super::job::{Arm, Job, Level, listed};
use crate::traces::{
    PowerRow, TraceError, TraceFile, TrainRow, TrainingKey, chosen_optimizer, distinct, power_rows, train_rows,
};
use wattune_core::units::Watts;

/// A train trace and a power trace, joined by the trainings that both contain.
pub struct Traces<'a> {
    train: (&'a TraceFile, Vec<TrainRow>),
    power: (&'a TraceFile, Vec<PowerRow>),
    /// Largest power limit in the power trace, of the trainings that both traces contain.
    max_power: Watts,
}

/// Description of the job to make from the traces.
#[derive(Clone, Debug, PartialEq)]
pub struct JobQuery {
    /// Name of the job's data set.
    pub dataset: String,
    /// Name of the job's network.
    pub network: String,
    /// Name of the job's optimizer; required only if the traces contain several optimizers for the workload.
    pub optimizer: Option<String>,
    /// Target value of the metric, which a run is to reach.
    pub target_metric: f64,
    /// Maximum number of epochs of a run.
    pub max_epochs: u32,
    /// Batch size of the first run. If the largest batch size of the job in the power trace is smaller, the first run
    /// has that one.
    pub default_batch_size: u64,
}

impl<'a> Traces<'a> {
    /// Joins a train trace and a power trace.
    pub fn join(train: &'a TraceFile, power: &'a TraceFile) -> Result<Self, TraceError> {
        let (train_rows, power_rows) = (train_rows(train)?, power_rows(power)?);
        let trained: HashSet<&TrainingKey> = train_rows.iter().map(|row| &row.training).collect();
        let limits = power_rows.iter().filter(|row| trained.contains(&row.training)).map(|row| row.limit);
        let Some(max_power) = limits.reduce(Watts::max) else {
            let why =
                format!("it has no training (dataset, network, optimizer, batch size) of {}", train.path.display());
            return Err(power.unusable(why));
        };
        Ok(Self { train: (train, train_rows), power: (power, power_rows), max_power })
    }

    /// Returns a job that both traces contain.
    ///
    /// # Errors
    /// If a trace lacks the job, or the job cannot reach its target at the default batch size. The error names the
    /// alternatives.
    pub fn job(&self, query: &JobQuery) -> Result<Job, TraceError> {
        let train = |why| self.train.0.unusable(why);
        let power = |why| self.power.0.unusable(why);
        let workload = format!("{}/{}", query.dataset, query.network);
        let optimizer = self.optimizer(query)?;
        let fits =
            |of: &TrainingKey| of.dataset == query.dataset && of.network == query.network && of.optimizer == optimizer;
        let at_target = |metric: f64| (metric - query.target_metric).abs() < 1e-9;
        let trained: Vec<&TrainRow> = self.train.1.iter().filter(|row| fits(&row.training)).collect();
        let measured: Vec<&PowerRow> = self.power.1.iter().filter(|row| fits(&row.training)).collect();
        if !trained.iter().any(|row| at_target(row.target_metric)) {
            let known = sorted(trained.iter().map(|row| row.target_metric));
            let known = listed(&known);
            let why = format!("no runs of {workload} with target metric {}; there are {known}", query.target_metric);
            return Err(train(why));
        }
        let mut sizes: Vec<u64> = trained.iter().map(|row| row.training.batch_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let (mut arms, mut with_runs, mut limits) = (Vec::new(), 0, Vec::new());
        let mut gaps = TraceGaps::default();
        for batch_size in sizes {
            let levels = levels(measured.iter().filter(|row| row.training.batch_size == batch_size));
            if levels.is_empty() {
                gaps.unmeasured.push(batch_size);
                continue;
            }
            let of_arm =
                trained.iter().filter(|row| row.training.batch_size == batch_size && at_target(row.target_metric));
            let mut paths: Vec<Option<u32>> = of_arm.map(|row| row.target_epoch).collect();
            if paths.is_empty() {
                // Without a training run for this target, the batch size counts as never reaching the target.
                gaps.without_target.push(batch_size);
                paths.push(None);
            } else {
                with_runs += 1;
                limits.extend(levels.iter().map(|level| level.limit.get()));
            }
            arms.push(Arm { batch_size, paths, levels });
        }
        let Some(largest) = measured.iter().map(|row| row.training.batch_size).max().filter(|_| !arms.is_empty())
        else {
            return Err(power(format!("no rows of {workload} with {optimizer} at a batch size of the train trace")));
        };
        let asked = query.default_batch_size.min(largest);
        let Some(default) = arms.iter().position(|arm| arm.batch_size == asked) else {
            let known = listed(&arms.iter().map(|arm| arm.batch_size).collect::<Vec<_>>());
            return Err(power(format!(
                "no rows of {workload} at batch size {asked}, with which policies begin; there are rows at {known}"
            )));
        };
        if !arms[default].paths.iter().flatten().any(|epoch| *epoch <= query.max_epochs) {
            return Err(train(format!(
                "no run of {workload} with batch size {asked} reached {} in {} epochs; the default batch size must: \
                 choose another, more epochs, or another target",
                query.target_metric, query.max_epochs
            )));
        }
        let recurrences = u32::try_from(2 * with_runs * sorted(limits.into_iter()).len()).unwrap_or(u32::MAX);
        let (gpu, max_power, max_epochs) = (self.power.0.gpu(), self.max_power, query.max_epochs);
        let rows = measured.iter().map(|row| row.training.batch_size);
        gaps.untrained = rows.filter(|b| !trained.iter().any(|row| row.training.batch_size == *b)).collect();
        let notes = gaps.notes(&format!("{gpu} {workload}"), &arms);
        Ok(Job { gpu, workload, arms, max_power, max_epochs, default, recurrences, notes })
    }

    fn optimizer(&self, query: &JobQuery) -> Result<String, TraceError> {
        let named = |of: &&TrainingKey| of.dataset == query.dataset && of.network == query.network;
        let measured: HashSet<&String> =
            self.power.1.iter().map(|row| &row.training).filter(named).map(|of| &of.optimizer).collect();
        let trained = self.train.1.iter().map(|row| &row.training).filter(named).map(|of| &of.optimizer);
        let known = distinct(trained.filter(|optimizer| measured.contains(optimizer)).cloned());
        let workload = format!("{}/{}", query.dataset, query.network);
        let chosen = if known.is_empty() {
            let name = |row: &PowerRow| format!("{}/{}", row.training.dataset, row.training.network);
            let there = distinct(self.power.1.iter().map(name)).join(", ");
            Err(format!("no workload {workload} that the train trace has too; it has {there}"))
        } else {
            chosen_optimizer(&known, query.optimizer.as_deref(), &workload)
        };
        chosen.map(str::to_owned).map_err(|why| self.power.0.unusable(why))
    }
}

/// Batch sizes that are missing or incomplete in one of the traces.
#[derive(Default)]
struct TraceGaps {
    /// Batch sizes that only the train trace has.
    unmeasured: Vec<u64>,
    /// Batch sizes that only the power trace has; the list may repeat them.
    untrained: Vec<u64>,
    /// Batch sizes without a training run for the target.
    without_target: Vec<u64>,
}

impl TraceGaps {
    fn notes(mut self, job: &str, arms: &[Arm]) -> Vec<String> {
        self.untrained.sort_unstable();
        self.untrained.dedup();
        let mut notes = Vec::new();
        for (sizes, why) in [
            (&self.unmeasured, "left out: the power trace has no rows of them"),
            (&self.untrained, "left out: the train trace has no runs of them"),
            (&self.without_target, "tried, and never at the target: the train trace has no runs of them for it"),
        ] {
            if !sizes.is_empty() {
                notes.push(format!("{job}: batch sizes {} are {why}", listed(sizes)));
            }
        }
        let limits = sorted(arms.iter().flat_map(|arm| &arm.levels).map(|level| level.limit.get()));
        for arm in arms {
            let has = |limit: &f64| arm.levels.iter().any(|level| level.limit.get() == *limit);
            let lacks: Vec<f64> = limits.iter().copied().filter(|limit| !has(limit)).collect();
            if !lacks.is_empty() {
                let lacks = listed(&lacks);
                notes.push(format!("{job}: batch size {} was not measured at {lacks} W", arm.batch_size));
            }
        }
        notes
    }
}

fn levels<'a>(rows: impl Iterator<Item = &'a &'a PowerRow>) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for row in rows {
        match levels.iter_mut().find(|level| level.limit == row.limit) {
            Some(level) => level.epochs.push(row.epoch),
            None => levels.push(Level { limit: row.limit, epochs: vec![row.epoch] }),
        }
    }
    levels.sort_by(|a, b| b.limit.total_cmp(&a.limit));
    levels
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}
