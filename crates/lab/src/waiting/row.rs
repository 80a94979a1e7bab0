//! The row of results of one policy for one submission.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::study::rfc3339;

/// Result of one policy for one submission.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitingRow {
    /// Name of the policy, as for `--policy`.
    pub policy: &'static str,
    /// Name of the grid.
    pub grid: String,
    /// Duration of the job, in hours.
    pub duration_h: f64,
    /// Time for which the start may wait, in hours.
    pub within_h: f64,
    /// Time of the submission.
    #[serde(serialize_with = "rfc3339")]
    pub submitted_at: DateTime<Utc>,
    /// Start that the policy chose.
    #[serde(serialize_with = "rfc3339")]
    pub start: DateTime<Utc>,
    /// Time from the submission to the start, in hours.
    pub waited_h: f64,
    /// Mean carbon intensity of starting at once, in g/kWh.
    pub at_once_g_per_kwh: f64,
    /// Reduction of emissions against starting at once, in percent; below zero is a loss.
    pub carbon_reduction_pct: f64,
    /// Reduction of emissions of the policy clairvoyant, in percent.
    pub best_reduction_pct: f64,
    /// Probability, as stated at the submission, that waiting for the window that looks best then emits more than
    /// starting at once, also if the job starts at once; `None` if the policy states none.
    pub loss_probability: Option<f64>,
    /// Reduction of emissions in the window for which `loss_probability` is stated, in percent; below zero is a loss.
    pub stated_window_reduction_pct: Option<f64>,
}
