//! The row of results of one policy in one case (job, start, seed and budget).

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use super::figures::{Figures, captured};
use super::frontier::Frontier;
use crate::replay::{Replayed, Setting};

/// Result of one policy in one case (job, start, seed and budget).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the policy, as for `--policy`.
    pub policy: &'static str,
    /// GPU of the job.
    pub gpu: String,
    /// Data set and network of the job.
    pub workload: String,
    /// Batch size: samples per step.
    pub batch_size: u64,
    /// Name of the grid on which the job was replayed.
    pub grid: String,
    /// Start of the job.
    #[serde(serialize_with = "rfc3339")]
    pub start: DateTime<Utc>,
    /// Budget of extra time, in percent: 3 % is 3.0. `None` for a policy that uses its own weights.
    pub budget_pct: Option<f64>,
    /// See [`Figures::carbon_reduction_pct`]. This and the other figures are `None` if the trace has no value before
    /// the job has done its work, or is zero for as long as the work takes at the largest limit.
    pub carbon_reduction_pct: Option<f64>,
    /// See [`Figures::time_increase_pct`].
    pub time_increase_pct: Option<f64>,
    /// (carbon of static − carbon of this policy) / (carbon of static − carbon of clairvoyant). `None` without a budget
    /// or without figures, or if the denominator is only noise.
    pub captured_headroom: Option<f64>,
    /// See [`Figures::energy_reduction_pct`].
    pub energy_reduction_pct: Option<f64>,
    /// See [`Figures::energy_effect_pct`]; energy effect and timing effect add up to the carbon reduction.
    pub energy_effect_pct: Option<f64>,
    /// See [`Figures::timing_effect_pct`].
    pub timing_effect_pct: Option<f64>,
    /// Seed of the profile's random errors; `None` if the profile has no errors.
    pub seed: Option<u64>,
    /// Number of the job in the study, from 1; jobs that share a node may have the same workload.
    pub job: usize,
    /// Carbon reduction of this policy minus that of static, in percentage points; `None` without a budget or without
    /// figures.
    #[serde(skip)]
    pub over_static: Option<f64>,
    /// Carbon reduction of clairvoyant minus that of static, in percentage points; `None` without a budget.
    #[serde(skip)]
    pub headroom: Option<f64>,
    /// True if the job would have no emissions at the largest limit, so that the row has no figures.
    #[serde(skip)]
    pub no_carbon: bool,
}

impl Row {
    pub(super) fn new(
        policy: &'static str,
        number: usize,
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
            // Removes rounding errors of the conversion to percent: 0.07 would become 7.000000000000001 %.
            budget_pct: budget.map(|b| (b * 1e11).round() / 1e9),
            carbon_reduction_pct,
            time_increase_pct: figures.map(|f| f.time_increase_pct),
            captured_headroom: captured(over_static, headroom),
            energy_reduction_pct: figures.map(|f| f.energy_reduction_pct),
            energy_effect_pct: figures.map(|f| f.energy_effect_pct),
            timing_effect_pct: figures.map(|f| f.timing_effect_pct),
            seed,
            job: number,
            over_static,
            headroom,
            no_carbon: false,
        }
    }
}

pub(crate) fn rfc3339<S: Serializer>(t: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&t.format("%FT%TZ"))
}

/// A row of results, with the replay that it describes.
pub struct CaseResult {
    /// The row of results.
    pub row: Row,
    /// The replay; `None` if the row is interpolated between several replays, or has no figures.
    pub replayed: Option<Replayed>,
    /// The frontier of the policy over its knob; `None` for policies without a knob.
    pub frontier: Option<Arc<Frontier>>,
}
