//! A recurring job on a board, as the traces know it: for each batch size the epochs that training runs needed, and what
//! an epoch takes at each power limit.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::traces::{Of, PowerRow, TraceError, TrainRow, power_rows, train_rows};
use crate::simulate::gpu_name;
use wattune_core::bandit::{Cost, Knob};
use wattune_core::units::{Joules, Seconds, Watts};

/// Both traces.
pub struct Traces {
    train: (PathBuf, Vec<TrainRow>),
    power: (PathBuf, Vec<PowerRow>),
    /// The board.
    gpu: String,
    /// The largest limit among the rows that both traces know.
    max_power: Watts,
}

/// Which job of the traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its data set.
    pub dataset: String,
    /// Its network.
    pub network: String,
    /// Its optimizer; needed only where the traces have several.
    pub optimizer: Option<String>,
    /// What a run is to reach.
    pub target_metric: f64,
    /// A run has so many epochs at the most.
    pub max_epochs: u32,
    /// What its first run takes; the largest that the power trace has, where that is less.
    pub default_batch_size: u64,
}

/// A job on a board.
#[derive(Clone, Debug)]
pub struct Job {
    /// The board.
    pub gpu: String,
    /// As dataset/network.
    pub workload: String,
    /// By batch size, ascending; not empty.
    pub arms: Vec<Arm>,
    /// The largest limit of the board.
    pub max_power: Watts,
    /// A run has so many epochs at the most.
    pub max_epochs: u32,
    /// The place of the default batch size among the arms.
    pub default: usize,
    /// 2·|B|·|P| over the batch sizes with runs for the target, and their limits.
    pub recurrences: u32,
    /// What the traces lack, in sentences: as in the published simulator, only what both know can be chosen.
    pub notes: Vec<String>,
}

/// A batch size.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Samples per step.
    pub batch_size: u64,
    /// After which epoch each training run was at its target, in the order of the trace; not empty.
    pub paths: Vec<Option<u32>>,
    /// Power limits, the largest first; not empty.
    pub levels: Vec<Level>,
}

/// A batch size at a power limit.
#[derive(Clone, Debug)]
pub struct Level {
    /// The limit.
    pub limit: Watts,
    /// Epochs as measured, in the order of the trace; not empty.
    pub epochs: Vec<Epoch>,
}

/// An epoch as measured once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// How long it takes.
    pub time: Seconds,
    /// What the board draws.
    pub power: Watts,
}

impl Epoch {
    /// What it takes from the wall.
    pub fn energy(&self) -> Joules {
        self.power * self.time
    }
}

impl Level {
    /// The mean cost of an epoch.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub fn epoch_cost(&self, knob: &Knob) -> Cost {
        let sum: Cost = self.epochs.iter().map(|e| knob.cost(e.energy(), e.time)).sum();
        Cost::new(sum.get() / self.epochs.len() as f64)
    }
}

impl Arm {
    /// Its largest limit.
    pub fn max_limit(&self) -> Watts {
        self.levels[0].limit
    }

    /// The limit of the cheapest epoch, the largest of equals.
    pub fn best_level(&self, knob: &Knob) -> usize {
        cheapest(self.levels.iter().map(|level| level.epoch_cost(knob)))
    }

    /// What an epoch takes on the mean of the measurements at these limits.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub fn mean_epoch(&self, levels: std::ops::RangeInclusive<usize>) -> (Joules, Seconds) {
        let epochs: Vec<&Epoch> = self.levels[levels].iter().flat_map(|level| &level.epochs).collect();
        let n = epochs.len() as f64;
        let energy: Joules = epochs.iter().map(|e| e.energy()).sum();
        let time: Seconds = epochs.iter().map(|e| e.time).sum();
        (energy / n, time / n)
    }
}

/// The place of the smallest, the first of equals.
pub(super) fn cheapest(costs: impl Iterator<Item = Cost>) -> usize {
    costs.enumerate().min_by(|a, b| a.1.get().total_cmp(&b.1.get())).map_or(0, |(place, _)| place)
}

impl Job {
    /// What a run costs here.
    pub fn knob(&self, eta: f64) -> Knob {
        Knob { eta, max_power: self.max_power }
    }

    /// The place of a batch size among the arms.
    pub fn place(&self, batch_size: u64) -> Option<usize> {
        self.arms.iter().position(|arm| arm.batch_size == batch_size)
    }

    /// Leaves only batch sizes that the other has too, which is the traces' job on that `side` of a switch, and clips the
    /// default to them. What that changes is noted.
    ///
    /// # Errors
    /// If the default is not among them.
    pub fn shared_with(&mut self, other: &Self, side: &str) -> Result<(), String> {
        let asked = self.arms[self.default].batch_size;
        let mut lacking: Vec<u64> = self.arms.iter().map(|arm| arm.batch_size).collect();
        lacking.retain(|batch_size| other.place(*batch_size).is_none());
        self.arms.retain(|arm| other.place(arm.batch_size).is_some());
        let largest = self.arms.last().ok_or("the traces before and after the switch share no batch size")?;
        let default = asked.min(largest.batch_size);
        let place = self.place(default);
        self.default =
            place.ok_or_else(|| format!("the traces of one side of the switch lack batch size {default}"))?;
        let job = format!("{} {}", self.gpu, self.workload);
        if !lacking.is_empty() {
            let sizes = listed(&lacking);
            self.notes.push(format!("{job}: batch sizes {sizes} are left out: the traces {side} the switch lack them"));
        }
        if default != asked {
            self.notes.push(format!("{job}: the default batch size is {default}, not {asked}, for the same reason"));
        }
        Ok(())
    }
}

impl Traces {
    /// Reads both.
    ///
    /// # Errors
    /// If one cannot be read, a value is wrong, or they share no training.
    pub fn read(train: &Path, power: &Path) -> Result<Self, TraceError> {
        let (train_rows, power_rows) = (train_rows(train)?, power_rows(power)?);
        let trained: HashSet<&Of> = train_rows.iter().map(|row| &row.of).collect();
        let limits = power_rows.iter().filter(|row| trained.contains(&row.of)).map(|row| row.limit);
        let Some(max_power) = limits.reduce(Watts::max) else {
            let why = format!("it has no training (dataset, network, optimizer, batch size) of {}", train.display());
            return Err(TraceError::Unusable { path: power.to_owned(), why });
        };
        let gpu = gpu_name(power);
        Ok(Self { train: (train.to_owned(), train_rows), power: (power.to_owned(), power_rows), gpu, max_power })
    }

    /// A job of theirs.
    ///
    /// # Errors
    /// If they do not have it, or it cannot reach its target at the default batch size; says what they have.
    pub fn job(&self, wanted: &Wanted) -> Result<Job, TraceError> {
        let train = |why: String| TraceError::Unusable { path: self.train.0.clone(), why };
        let power = |why: String| TraceError::Unusable { path: self.power.0.clone(), why };
        let workload = format!("{}/{}", wanted.dataset, wanted.network);
        let optimizer = self.optimizer(wanted)?;
        let fits = |of: &Of| of.dataset == wanted.dataset && of.network == wanted.network && of.optimizer == optimizer;
        let at_target = |metric: f64| (metric - wanted.target_metric).abs() < 1e-9;
        let trained: Vec<&TrainRow> = self.train.1.iter().filter(|row| fits(&row.of)).collect();
        let measured: Vec<&PowerRow> = self.power.1.iter().filter(|row| fits(&row.of)).collect();
        if !trained.iter().any(|row| at_target(row.target_metric)) {
            let known = sorted(trained.iter().map(|row| row.target_metric));
            let known = listed(&known);
            let why = format!("no runs of {workload} with target metric {}; there are {known}", wanted.target_metric);
            return Err(train(why));
        }
        let mut sizes: Vec<u64> = trained.iter().map(|row| row.of.batch_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let (mut arms, mut with_runs, mut limits) = (Vec::new(), 0, Vec::new());
        let mut holes = Holes::default();
        for batch_size in sizes {
            let levels = levels(measured.iter().filter(|row| row.of.batch_size == batch_size));
            if levels.is_empty() {
                holes.unmeasured.push(batch_size);
                continue;
            }
            let of_arm = trained.iter().filter(|row| row.of.batch_size == batch_size && at_target(row.target_metric));
            let mut paths: Vec<Option<u32>> = of_arm.map(|row| row.target_epoch).collect();
            if paths.is_empty() {
                // No run for this target: as if it never were reached.
                holes.without_target.push(batch_size);
                paths.push(None);
            } else {
                with_runs += 1;
                limits.extend(levels.iter().map(|level| level.limit.get()));
            }
            arms.push(Arm { batch_size, paths, levels });
        }
        let Some(largest) = measured.iter().map(|row| row.of.batch_size).max().filter(|_| !arms.is_empty()) else {
            return Err(power(format!("no rows of {workload} with {optimizer} at a batch size of the train trace")));
        };
        let asked = wanted.default_batch_size.min(largest);
        let Some(default) = arms.iter().position(|arm| arm.batch_size == asked) else {
            let known = listed(&arms.iter().map(|arm| arm.batch_size).collect::<Vec<_>>());
            return Err(power(format!("no batch size {asked} of {workload} to begin with; there are {known}")));
        };
        if !arms[default].paths.iter().flatten().any(|epoch| *epoch <= wanted.max_epochs) {
            return Err(train(format!(
                "no run of {workload} with batch size {asked} reached {} in {} epochs; the default batch size must: \
                 choose another, more epochs, or another target",
                wanted.target_metric, wanted.max_epochs
            )));
        }
        let recurrences = u32::try_from(2 * with_runs * sorted(limits.into_iter()).len()).unwrap_or(u32::MAX);
        let (gpu, max_power, max_epochs) = (self.gpu.clone(), self.max_power, wanted.max_epochs);
        let rows = measured.iter().map(|row| row.of.batch_size);
        holes.untrained = rows.filter(|b| !trained.iter().any(|row| row.of.batch_size == *b)).collect();
        let notes = holes.told(&format!("{gpu} {workload}"), &arms);
        Ok(Job { gpu, workload, arms, max_power, max_epochs, default, recurrences, notes })
    }

    fn optimizer(&self, wanted: &Wanted) -> Result<String, TraceError> {
        let named = |of: &&Of| of.dataset == wanted.dataset && of.network == wanted.network;
        let measured: HashSet<&str> =
            self.power.1.iter().map(|row| &row.of).filter(named).map(|of| of.optimizer.as_str()).collect();
        let trained = self.train.1.iter().map(|row| &row.of).filter(named).map(|of| of.optimizer.as_str());
        let mut known: Vec<&str> = trained.filter(|optimizer| measured.contains(optimizer)).collect();
        known.sort_unstable();
        known.dedup();
        let workload = format!("{}/{}", wanted.dataset, wanted.network);
        let why = match (known.as_slice(), &wanted.optimizer) {
            ([], _) => {
                let mut there: Vec<String> =
                    self.power.1.iter().map(|row| format!("{}/{}", row.of.dataset, row.of.network)).collect();
                there.sort_unstable();
                there.dedup();
                format!("no workload {workload} that the train trace has too; it has {}", there.join(", "))
            }
            ([one], None) => return Ok((*one).to_owned()),
            (several, None) => {
                format!("{workload} was traced with several optimizers; choose one: {}", several.join(", "))
            }
            (known, Some(asked)) if known.contains(&asked.as_str()) => return Ok(asked.clone()),
            (known, Some(asked)) => format!("no optimizer {asked} for {workload}; it has {}", known.join(", ")),
        };
        Err(TraceError::Unusable { path: self.power.0.clone(), why })
    }
}

/// Batch sizes that are not in both traces as they should be.
#[derive(Default)]
struct Holes {
    /// In the train trace alone.
    unmeasured: Vec<u64>,
    /// In the power trace alone, any number of times.
    untrained: Vec<u64>,
    /// Without a run for the target.
    without_target: Vec<u64>,
}

impl Holes {
    fn told(mut self, job: &str, arms: &[Arm]) -> Vec<String> {
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

fn listed<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
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
