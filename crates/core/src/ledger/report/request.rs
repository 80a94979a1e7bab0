//! Request for a report.

use chrono::{DateTime, Utc};

use super::functional_unit::FunctionalUnit;
use super::grouping::Grouping;
use crate::domain::Slot;

/// Request for a report.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportRequest {
    /// Grouping.
    pub by: Grouping,
    /// Time, in whole UTC hours.
    pub span: Slot,
    /// Functional unit of SCI; without one there is no score.
    pub unit: Option<FunctionalUnit>,
    /// Minimum change of an hour's emissions, in percent, to be listed as restated.
    pub restated_by_pct: f64,
    /// Current time.
    pub now: DateTime<Utc>,
}
