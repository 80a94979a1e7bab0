//! The row of one policy in one case.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use super::figures::{Figures, captured};
use super::frontier::Frontier;
use crate::replay::{Replayed, Setting};

/// One policy in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name that `--policy` takes.
    pub policy: &'static str,
    /// The GPU.
    pub gpu: String,
    /// Data set and network.
    pub workload: String,
    /// Samples per step.
    pub batch_size: u64,
    /// The grid.
    pub grid: String,
    /// The job's start.
    #[serde(serialize_with = "rfc3339")]
    pub start: DateTime<Utc>,
    /// The maximum slowdown in percent: 3 % is 3.0. `None` for a policy by its own weights.
    pub budget_pct: Option<f64>,
    /// See [`Figures::carbon_reduction_pct`]. `None`, as the other figures then are, where the trace ends before
    /// the job does.
    pub carbon_reduction_pct: Option<f64>,
    /// See [`Figures::time_increase_pct`].
    pub time_increase_pct: Option<f64>,
    /// (carbon of static − carbon) / (carbon of static − carbon of clairvoyant); `None` where there was next to nothing
    /// to capture, and without a budget.
    pub captured_headroom: Option<f64>,
    /// See [`Figures::energy_reduction_pct`].
    pub energy_reduction_pct: Option<f64>,
    /// See [`Figures::energy_effect_pct`]; with the next field it adds up to the carbon reduction.
    pub energy_effect_pct: Option<f64>,
    /// See [`Figures::timing_effect_pct`].
    pub timing_effect_pct: Option<f64>,
    /// Seed of the profile's error, if it has one.
    pub seed: Option<u64>,
    /// More reduction than static, in points; `None` without a budget or without figures.
    #[serde(skip)]
    pub over_static: Option<f64>,
    /// More reduction of clairvoyant than of static, in points; `None` without a budget.
    #[serde(skip)]
    pub headroom: Option<f64>,
}

impl Row {
    pub(super) fn new(
        policy: &'static str,
        setting: Setting<'_>,
        seed: Option<u64>,
        budget: Option<f64>,
        figures: Option<Figures>,
        bounds: Option<(Figures, Figures)>,
    ) -> Self {
        let Setting { job, start, grid, .. } = setting;
        let carbon_reduction_pct = figures.map(|f| f.carbon_reduction_pct);
        let over_static = bounds.and_then(|(fixed, _)| Some(carbon_reduction_pct? - fixed.carbon_reduction_pct));
        let headroom = bounds.map(|(fixed, best)| best.carbon_reduction_pct - fixed.carbon_reduction_pct);
        Self {
            policy,
            gpu: job.gpu.clone(),
            workload: format!("{}/{}", job.workload.dataset, job.workload.network),
            batch_size: job.workload.batch_size,
            grid: grid.name().to_owned(),
            start,
            // A fraction as it was typed is not exact in percent: 0.07 is 7.000000000000001 %.
            budget_pct: budget.map(|b| (b * 1e11).round() / 1e9),
            carbon_reduction_pct,
            time_increase_pct: figures.map(|f| f.time_increase_pct),
            captured_headroom: captured(over_static, headroom),
            energy_reduction_pct: figures.map(|f| f.energy_reduction_pct),
            energy_effect_pct: figures.map(|f| f.energy_effect_pct),
            timing_effect_pct: figures.map(|f| f.timing_effect_pct),
            seed,
            over_static,
            headroom,
        }
    }
}

fn rfc3339<S: Serializer>(t: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&t.format("%FT%TZ"))
}

/// A row with the replay behind it.
pub struct CaseResult {
    /// The row.
    pub row: Row,
    /// The replay; `None` where the row lies between several, or past the end of the trace.
    pub replayed: Option<Replayed>,
    /// The frontier of its knob, if it has one.
    pub frontier: Option<Arc<Frontier>>,
}
