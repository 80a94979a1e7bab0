//! Traces of the numbers of epochs that training runs needed to reach a target: `summary_train.csv`.

use super::file::{TraceError, TraceFile};
use super::rows::{Fault, Row, TrainingKey, rows};

/// A row of a train trace: one training run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainRow {
    /// The training that the run repeated.
    pub training: TrainingKey,
    /// Target value of the metric, which the run was to reach.
    pub target_metric: f64,
    /// Number of epochs after which the run reached the target; `None` if the run did not reach it.
    pub target_epoch: Option<u32>,
}

/// Returns the rows of a train trace. An empty or `nan` target epoch means that the run did not reach the target.
pub fn train_rows(file: &TraceFile) -> Result<Vec<TrainRow>, TraceError> {
    rows(file, &["dataset", "network", "optimizer", "batch_size", "target_metric", "target_epoch"], &[], |row| {
        let (training, target_metric) = (TrainingKey::of(row)?, row.finite(4)?);
        Ok(TrainRow { training, target_metric, target_epoch: target_epoch(row)? })
    })
}

fn target_epoch(row: &Row<'_>) -> Result<Option<u32>, Fault> {
    let text = row.text(5);
    if text.is_empty() || text.eq_ignore_ascii_case("nan") {
        return Ok(None);
    }
    let whole = text.parse::<f64>().ok().filter(|e| *e >= 1.0 && *e <= 1e6 && e.fract() == 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, from 1 to a million")]
    let epoch = whole.map(|e| e as u32);
    epoch.map(Some).ok_or_else(|| row.fault(5, "a whole number of epochs, or nothing where it was not reached"))
}
