//! The carbon budget as the API shows it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// The node's carbon budget: what all of its jobs together may emit within a span.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BudgetView {
    /// When the span begins.
    pub from: DateTime<Utc>,
    /// When it ends.
    pub until: DateTime<Utc>,
    /// What may be emitted within it.
    pub limit_g: f64,
    /// What all jobs have emitted within it, as far as it is booked.
    pub emitted_g: f64,
    /// What is left; negative where it is exceeded.
    pub left_g: f64,
    /// What will have been emitted at its end by the present plans; jobs without a plan are left out.
    pub expected_g: f64,
}
