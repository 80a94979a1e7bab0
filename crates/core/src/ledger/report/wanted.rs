//! The request for a report.

use chrono::{DateTime, Utc};

use super::functional_unit::FunctionalUnit;
use super::grouping::By;
use crate::domain::Slot;

/// What a report is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What its rows are.
    pub by: By,
    /// Of which time, in whole UTC hours.
    pub span: Slot,
    /// What SCI is counted per; without one there is no score.
    pub unit: Option<FunctionalUnit>,
    /// An hour whose emissions changed by more than this, in percent, is listed as restated.
    pub restated_by_pct: f64,
    /// The present.
    pub now: DateTime<Utc>,
}
