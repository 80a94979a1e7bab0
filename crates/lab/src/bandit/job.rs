//! A recurring job on a GPU: for each batch size, the numbers of epochs that training runs needed, and the epochs
//! measured at each power limit.

use crate::traces::Epoch;
use wattune_core::bandit::{Cost, Knob};
use wattune_core::units::{Joules, Seconds, Watts};

/// A recurring job on one GPU, with training runs and measurements for each batch size.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the job's GPU.
    pub gpu: String,
    /// Name of the job: dataset/network.
    pub workload: String,
    /// Batch sizes of the job, ascending; not empty.
    pub arms: Vec<Arm>,
    /// Largest power limit of the GPU.
    pub max_power: Watts,
    /// Maximum number of epochs of a run.
    pub max_epochs: u32,
    /// Index of the default batch size among the arms.
    pub default: usize,
    /// Default number of recurrences: 2·|B|·|P|, where B are the batch sizes with training runs for the target, and P
    /// are the power limits at which these batch sizes were measured.
    pub recurrences: u32,
    /// Notes on batch sizes that cannot be chosen or were not measured at all limits. As in the published simulator,
    /// only batch sizes in both traces can be chosen.
    pub notes: Vec<String>,
}

/// A batch size that can be chosen (an arm of the bandit).
#[derive(Clone, Debug)]
pub struct Arm {
    /// Batch size: samples per step.
    pub batch_size: u64,
    /// For each training run in the trace, the number of epochs after which the run reached its target, or `None`; not
    /// empty.
    pub paths: Vec<Option<u32>>,
    /// Measurements at each power limit, the largest limit first; not empty.
    pub levels: Vec<Level>,
}

/// Measurements of a batch size at one power limit.
#[derive(Clone, Debug)]
pub struct Level {
    /// Power limit of the measurements.
    pub limit: Watts,
    /// Measured epochs, in the order of the trace; not empty.
    pub epochs: Vec<Epoch>,
}

impl Level {
    /// Returns the mean cost of an epoch at this limit.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub fn epoch_cost(&self, knob: &Knob) -> Cost {
        let sum: Cost = self.epochs.iter().map(|e| knob.cost(e.energy(), e.time)).sum();
        Cost::new(sum.get() / self.epochs.len() as f64)
    }
}

impl Arm {
    /// Returns the largest power limit of this batch size.
    pub fn max_limit(&self) -> Watts {
        self.levels[0].limit
    }

    /// Returns the index of the limit with the cheapest epoch; of limits with equal costs, that of the largest.
    pub fn best_level(&self, knob: &Knob) -> usize {
        cheapest(self.levels.iter().map(|level| level.epoch_cost(knob)))
    }

    /// Returns the mean energy (first) and the mean time (second) of an epoch, over the measurements at a range of
    /// limits.
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    pub fn mean_epoch(&self, levels: std::ops::RangeInclusive<usize>) -> (Joules, Seconds) {
        let epochs: Vec<&Epoch> = self.levels[levels].iter().flat_map(|level| &level.epochs).collect();
        let n = epochs.len() as f64;
        let energy: Joules = epochs.iter().map(|e| e.energy()).sum();
        let time: Seconds = epochs.iter().map(|e| e.time).sum();
        (energy / n, time / n)
    }
}

/// Returns the index of the smallest cost; of equal costs, that of the first.
pub(super) fn cheapest(costs: impl Iterator<Item = Cost>) -> usize {
    costs.enumerate().min_by(|a, b| a.1.get().total_cmp(&b.1.get())).map_or(0, |(index, _)| index)
}

impl Job {
    /// Returns the cost function of the job's runs; `eta` is the weight of energy against time, from 0 to 1.
    pub fn knob(&self, eta: f64) -> Knob {
        Knob { eta, max_power: self.max_power }
    }

    /// Returns the index of a batch size among the arms; `None` if the job does not have this batch size.
    pub fn arm_of(&self, batch_size: u64) -> Option<usize> {
        self.arms.iter().position(|arm| arm.batch_size == batch_size)
    }

    /// Removes the batch sizes that `other` lacks, and adapts the default batch size. `other` is the same job with the
    /// traces on the other side of a switch of traces, and `side` says on which side ("before" or "after"). Adds notes
    /// about the changes.
    ///
    /// # Errors
    /// If no batch size is left, or the new default batch size is not among those that are left.
    pub fn shared_with(&mut self, other: &Self, side: &str) -> Result<(), String> {
        let asked = self.arms[self.default].batch_size;
        let mut lacking: Vec<u64> = self.arms.iter().map(|arm| arm.batch_size).collect();
        lacking.retain(|batch_size| other.arm_of(*batch_size).is_none());
        self.arms.retain(|arm| other.arm_of(arm.batch_size).is_some());
        let largest = self.arms.last().ok_or("the traces before and after the switch share no batch size")?;
        let default = asked.min(largest.batch_size);
        let arm = self.arm_of(default);
        self.default = arm.ok_or_else(|| format!("the traces of one side of the switch lack batch size {default}"))?;
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

pub(super) fn listed<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
