//! Identity of the forecast that an entry of the ledger rests on.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::Zone;

/// Identity of a carbon-intensity forecast: source, zone and time of publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastId {
    /// Name of the source that published the forecast.
    pub source: String,
    /// Grid zone that the forecast refers to.
    pub zone: Zone,
    /// Time at which the source published the forecast.
    pub issued_at: DateTime<Utc>,
}
