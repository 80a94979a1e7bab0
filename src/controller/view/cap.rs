//! The cap as the API shows it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// The node's cap now.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CapView {
    /// What the limits of all boards may add up to now; absent where there is no cap now.
    pub limit_w: Option<f64>,
    /// What makes the cap, in words.
    pub source: Option<String>,
    /// What the limits of all boards add up to, those on their way included.
    pub limits_sum_w: f64,
    /// What is left of the cap; negative where it is exceeded.
    pub headroom_w: Option<f64>,
    /// The lowest sum that can be reached: controllable boards at their lowest limits, others as they are.
    pub lowest_sum_w: f64,
    /// When the cap changes next.
    pub next_change: Option<DateTime<Utc>>,
    /// The strictest cap between that moment and the change after it; absent where there is none then.
    pub next_limit_w: Option<f64>,
    /// Limits are lowered this long before the cap falls.
    pub lead_s: f64,
}
