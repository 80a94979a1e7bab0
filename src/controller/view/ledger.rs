//! What shows of the books.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::IntervalView;

/// How the books stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LedgerView {
    /// Until when blocks are closed against the devices' counters; absent before the first close.
    pub closed_at: Option<DateTime<Utc>>,
    /// What was booked since the daemon's start.
    pub booked: Vec<BookedView>,
    /// How many times since the daemon's start a device's energy was found after a time in which nobody looked.
    pub gaps: u64,
    /// The energy of those times.
    pub gap_j: f64,
    /// How many times since the daemon's start a device used energy of which nothing tells how much: its counter was
    /// reset meanwhile.
    pub unknown_gaps: u64,
    /// How many gaps the books hold of the last 24 hours, whichever daemon found them; absent before they were looked at.
    pub gaps_last_day: Option<u64>,
    /// The same of times of which nothing tells how much energy was used.
    pub unknown_gaps_last_day: Option<u64>,
    /// By how much books and counters differ in blocks closed since the daemon's start; zero, or something is wrong.
    pub difference_j: f64,
    /// Settlements of hours written since the daemon's start, all versions.
    pub settlements: u64,
    /// Hours that wait to be settled.
    pub pending_hours: u64,
    /// The energy of the last 30 days by what is known of its intensity; absent before the first settlement.
    pub settled: Option<SettledView>,
    /// What jobs saved that ended in the last 30 days; absent before that was looked at.
    pub saved: Option<SavedView>,
}

/// What jobs saved together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SavedView {
    /// Emissions saved against the limit found on their boards, by those jobs of which it is known; absent if there is none.
    pub saved_g: Option<IntervalView>,
    /// How many these are.
    pub known_jobs: u64,
    /// How many jobs ended.
    pub jobs: u64,
}

/// Energy booked to one kind of share of a device.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BookedView {
    /// A GPU's UUID, or a part of the processors ("cpu:package-0").
    pub device: String,
    /// `job`, `idle` or `unattributed`.
    pub share: String,
    /// `counter`, `integrated_power` or `counter_gap`.
    pub source: String,
    /// The energy.
    pub energy_j: f64,
}

/// Energy by what is known of its intensity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SettledView {
    /// With a forecast or a filled-in intensity.
    pub forecast_j: f64,
    /// With one that may be revised.
    pub provisional_j: f64,
    /// With one that changes no more.
    pub final_j: f64,
    /// With none.
    pub unknown_j: f64,
    /// What the known part emitted.
    pub carbon_g: f64,
}
