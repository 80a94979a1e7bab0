//! What an auditor asks for beside the figures.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::joules;
use wattune_core::ledger::Share;
use wattune_core::ledger::entry::Terms;
use wattune_core::ledger::report::Correction;

/// Terms under which books were kept.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TermsView {
    /// Since when.
    pub since: DateTime<Utc>,
    /// The node.
    pub node: String,
    /// wattune's version.
    pub software: String,
    /// The version of the rules.
    pub method: u16,
    /// SHA-256 of the settings.
    pub settings: String,
    /// Where time comes from.
    pub clock: String,
    /// The node's energy over the metered devices'; 1 where not declared.
    pub node_factor: f64,
    /// Its source; absent where not declared.
    pub node_factor_source: Option<String>,
    /// The facility's energy over the node's; 1 where not declared.
    pub pue: f64,
    /// Its source; absent where not declared.
    pub pue_source: Option<String>,
    /// Since when it is said to hold.
    pub pue_date: Option<String>,
    /// A contract's factor, for the market-based column.
    pub contract_g_per_kwh: Option<f64>,
    /// Which contract.
    pub contract_source: Option<String>,
}

/// Embodied emissions as they were declared.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbodiedView {
    /// Of one board with its part of the node.
    pub per_gpu_g: f64,
    /// The life over which they are spread.
    pub life_s: f64,
    /// Where the figures come from.
    pub source: String,
}

/// Whether all energy is accounted for.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletenessView {
    /// Hours of the span.
    pub hours: u64,
    /// Of them, those with energy in a settlement.
    pub hours_with_energy: u64,
    /// Energy that is booked and in no settlement yet, most of it of the hour in progress; it is in all figures.
    pub unsettled_j: f64,
    /// Each device's books against its counter.
    pub devices: Vec<DeviceView>,
    /// Times in which nobody watched a device, oldest first.
    pub gaps: Vec<GapView>,
}

/// A device's books against its counter, over the blocks closed in the span: jobs + idle + unattributed is counter +
/// integrated + difference, exactly.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeviceView {
    /// The device.
    pub device: String,
    /// Booked to jobs.
    pub jobs_mj: u64,
    /// Booked as idle.
    pub idle_mj: u64,
    /// Booked as unattributed.
    pub unattributed_mj: u64,
    /// What its counter gained; absent if it has none.
    pub counter_mj: Option<i64>,
    /// What was integrated from power.
    pub integrated_mj: u64,
    /// What is left: zero, or the books are wrong.
    pub difference_mj: i64,
    /// In how many blocks it is not zero.
    pub unequal_blocks: u64,
}

/// A time in which nobody watched a device.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GapView {
    /// The device.
    pub device: String,
    /// From when; of hours that were rolled up, the hour's beginning.
    pub from: DateTime<Utc>,
    /// Until when.
    pub to: DateTime<Utc>,
    /// Its energy; absent where nothing tells how much it was, and then it is in no figure.
    pub energy_j: Option<f64>,
    /// How that was found, or why it was not.
    pub filled: String,
}

/// Which version of the settlements a report shows.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionView {
    /// The highest version of any hour; 0 before the first is settled.
    pub highest: u32,
    /// How many settlements its hours have had: grows with each that is settled again.
    pub settlements: u64,
    /// Hours that were settled more than once.
    pub resettled_hours: u64,
    /// When the last one was settled again.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// An hour that changed by more than this is listed.
    pub threshold_pct: f64,
    /// Hours whose emissions changed, the newest first.
    pub restatements: Vec<RestatementView>,
    /// How many more there are.
    pub restatements_left_out: u64,
}

/// An hour that was settled again.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RestatementView {
    /// The hour's beginning.
    pub hour: DateTime<Utc>,
    /// `average` or `marginal`.
    pub book: &'static str,
    /// The version that came of it.
    pub version: u32,
    /// When.
    pub at: DateTime<Utc>,
    /// Why.
    pub reason: String,
    /// Emissions before.
    pub before_g: f64,
    /// Emissions after; where the version has more or less energy, of the energy that the one before had.
    pub after_g: f64,
}

/// Intervals that were given to somebody else than they were booked to.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CorrectionView {
    /// Its number in the ledger.
    pub entry: u64,
    /// When it was made.
    pub at: DateTime<Utc>,
    /// Who made it.
    pub who: String,
    /// Why.
    pub why: String,
    /// Whose they were: `job:` with an id, `idle` or `unattributed`.
    pub of: String,
    /// Whose they are.
    pub given_to: String,
    /// How many of them begin in the report's span.
    pub intervals: u64,
    /// Their energy.
    pub energy_j: f64,
}

impl CorrectionView {
    pub(super) fn of(made: &Correction) -> Self {
        let whose = |share: &Share| match share {
            Share::Job(id) => format!("job:{id}"),
            Share::Idle | Share::Unattributed => share.name().to_owned(),
        };
        Self {
            entry: made.entry,
            at: made.at,
            who: made.who.clone(),
            why: made.why.clone(),
            of: whose(&made.from),
            given_to: whose(&made.to),
            intervals: made.intervals,
            energy_j: joules(made.energy),
        }
    }
}

/// Whose intensities were used.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceOf {
    /// The book, the sources, their zones and scopes.
    pub said: String,
    /// For how many hours.
    pub hours: u64,
}

/// How the figures were found, in words.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MethodView {
    /// The version of the rules.
    pub version: u16,
    /// The software that wrote this.
    pub software: &'static str,
    /// Energy.
    pub energy: &'static str,
    /// Emissions.
    pub carbon: &'static str,
    /// Uncertainty.
    pub uncertainty: &'static str,
    /// What is counted.
    pub boundary: String,
    /// What embodied emissions are.
    pub embodied: String,
    /// Savings.
    pub savings: &'static str,
    /// SCI.
    pub sci: &'static str,
}

impl TermsView {
    pub(super) fn of(terms: &Terms) -> Self {
        let boundary = &terms.boundary;
        Self {
            since: terms.at,
            node: terms.node.clone(),
            software: terms.software.clone(),
            method: terms.method,
            settings: terms.settings.to_string(),
            clock: terms.clock.clone(),
            node_factor: boundary.node_factor,
            node_factor_source: boundary.node_factor_source.clone(),
            pue: boundary.pue,
            pue_source: boundary.pue_source.clone(),
            pue_date: boundary.pue_date.clone(),
            contract_g_per_kwh: boundary.contract_g_per_kwh.map(|g| g.get()),
            contract_source: boundary.contract_source.clone(),
        }
    }
}
