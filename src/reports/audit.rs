//! The parts of a report for auditors.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::ledger::Share;
use wattune_core::ledger::entry::{Boundary, METHOD, Terms};
use wattune_core::ledger::report::{Correction, Report};
use wattune_core::units::Millijoules;

/// The terms under which the ledger was kept.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TermsView {
    /// The start of these terms.
    pub since: DateTime<Utc>,
    /// The node.
    pub node: String,
    /// wattune's version.
    pub software: String,
    /// The version of the accounting rules.
    pub method: u16,
    /// SHA-256 of the settings.
    pub settings: String,
    /// The source of time.
    pub clock: String,
    /// The ratio of the node's energy to the metered devices'; 1 if not declared.
    pub node_factor: f64,
    /// The source of the node factor; absent if not declared.
    pub node_factor_source: Option<String>,
    /// The ratio of the facility's energy to the node's (PUE); 1 if not declared.
    pub pue: f64,
    /// The source of the PUE; absent if not declared.
    pub pue_source: Option<String>,
    /// The start of the declared PUE's validity.
    pub pue_date: Option<String>,
    /// The emission factor of a contract, for the market-based column.
    pub contract_g_per_kwh: Option<f64>,
    /// The contract.
    pub contract_source: Option<String>,
}

/// Declared embodied emissions.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbodiedView {
    /// The emissions of one GPU with its part of the node.
    pub per_gpu_g: f64,
    /// The service life over which they are spread.
    pub life_s: f64,
    /// The source of the figures.
    pub source: String,
}

/// The completeness of the accounts.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletenessView {
    /// The hours of the span.
    pub hours: u64,
    /// The hours with energy in a settlement.
    pub hours_with_energy: u64,
    /// Energy recorded without hourly emissions so far, most of it of the current hour; it is in all figures.
    pub unsettled_j: f64,
    /// Each device's ledger against its counter.
    pub devices: Vec<DeviceView>,
    /// Gaps in the readings of devices, oldest first.
    pub gaps: Vec<GapView>,
}

/// A device's ledger against its counter, over the blocks closed in the span: jobs + idle + unattributed is counter +
/// integrated + difference, exactly.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeviceView {
    /// The device.
    pub device: String,
    /// The energy of jobs.
    pub jobs_mj: u64,
    /// The idle energy.
    pub idle_mj: u64,
    /// The unattributed energy.
    pub unattributed_mj: u64,
    /// The counter's increase; absent without a counter.
    pub counter_mj: Option<i64>,
    /// The energy integrated from power.
    pub integrated_mj: u64,
    /// The remainder: zero unless the ledger is wrong.
    pub difference_mj: i64,
    /// The number of blocks in which it is not zero.
    pub unequal_blocks: u64,
}

/// A gap in the readings of a device.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GapView {
    /// The device.
    pub device: String,
    /// The start; in hours that were rolled up, the start of the hour.
    pub from: DateTime<Utc>,
    /// The end.
    pub to: DateTime<Utc>,
    /// The energy; absent if unknown, and then in no figure.
    pub energy_j: Option<f64>,
    /// The source of the energy, or the reason why it is unknown.
    pub filled: String,
}

/// The version of the settlements in a report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionView {
    /// The highest version of any hour; 0 before the first settlement.
    pub highest: u32,
    /// The number of settlements of the span's hours; grows with each new one.
    pub settlements: u64,
    /// The hours with more than one settlement.
    pub resettled_hours: u64,
    /// The time of the latest restatement.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// The threshold for listing an hour.
    pub threshold_pct: f64,
    /// The hours whose emissions changed, the newest first.
    pub restatements: Vec<RestatementView>,
    /// The number of hours that are not listed.
    pub restatements_left_out: u64,
}

/// An account of emissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// By average intensities.
    Average,
    /// By marginal intensities.
    Marginal,
}

impl fmt::Display for AccountKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A restated hour.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RestatementView {
    /// The start of the hour.
    pub hour: DateTime<Utc>,
    /// The account.
    pub kind: AccountKind,
    /// The new version.
    pub version: u32,
    /// The time of the restatement.
    pub at: DateTime<Utc>,
    /// The reason.
    pub reason: String,
    /// The emissions before.
    pub before_g: f64,
    /// The emissions after; if the version has more or less energy, those of the energy that the one before had.
    pub after_g: f64,
}

/// A correction of the owner of intervals.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CorrectionView {
    /// The entry's number in the ledger.
    pub entry: u64,
    /// The time of the correction.
    pub at: DateTime<Utc>,
    /// The person who made it.
    pub who: String,
    /// The reason.
    pub why: String,
    /// The previous owner: `job:` with an id, `idle` or `unattributed`.
    pub of: String,
    /// The new owner.
    pub given_to: String,
    /// The number of intervals that begin in the report's span.
    pub intervals: u64,
    /// The energy of these intervals.
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

/// A source of intensities.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IntensitySourceView {
    /// The account (average or marginal), the sources, their zones and scopes.
    pub description: String,
    /// The number of hours.
    pub hours: u64,
}

/// A description of the methods.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MethodView {
    /// The version of the accounting rules.
    pub version: u16,
    /// The software that wrote this report.
    pub software: &'static str,
    /// The method for energy.
    pub energy: &'static str,
    /// The method for emissions.
    pub carbon: &'static str,
    /// The method for uncertainty.
    pub uncertainty: &'static str,
    /// The boundary of the accounts.
    pub boundary: String,
    /// The method for embodied emissions.
    pub embodied: String,
    /// The method for savings.
    pub savings: &'static str,
    /// The method for SCI.
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

impl MethodView {
    pub(super) fn of(report: &Report) -> Self {
        let split = &report.total.split;
        let mut metered = vec!["GPUs"];
        metered.extend((split.cpu > Millijoules::ZERO).then_some("processor packages"));
        metered.extend((split.dram > Millijoules::ZERO).then_some("memory"));
        let declared = |value: f64, source: &Option<String>, date: &Option<String>| match source {
            Some(source) => {
                format!("{value} ({source}{})", date.as_ref().map(|d| format!(", {d}")).unwrap_or_default())
            }
            None => "not declared (1)".to_owned(),
        };
        let factors = |b: &Boundary| {
            format!(
                "node factor: {}; PUE: {}",
                declared(b.node_factor, &b.node_factor_source, &None),
                declared(b.pue, &b.pue_source, &b.pue_date)
            )
        };
        let embodied = |b: &Boundary| match &b.embodied {
            Some(e) => format!(
                "{} g per GPU over {} s ({}), by the time for which jobs held GPUs",
                e.per_gpu_g, e.life_s, e.source
            ),
            None => "not declared".to_owned(),
        };
        let metered = format!("metered: {}", metered.join(", "));
        let has_terms = !report.data.terms.is_empty();
        let boundary = if has_terms { format!("{metered}; {}", over_time(report, factors)) } else { metered };
        let embodied = over_time(report, embodied);
        Self {
            version: METHOD,
            software: env!("CARGO_PKG_VERSION"),
            energy: "differences of the devices' energy counters in whole millijoules, power integrated where there is no \
                     counter; a GPU's energy belongs to its job, or is shared among its jobs by the rule in the ledger",
            carbon: "location-based: each interval's energy times the average intensity of its time; marginal intensities make \
                     a second account that is never netted with it; market-based only by a declared contract's factor",
            uncertainty: "5 % gain of the counters' sensors, 10 % where energy was integrated or a gap was filled; gain \
                          errors do not average out. The sources give no uncertainty of their intensities",
            boundary,
            embodied,
            savings: "emissions of the same work at the GPUs' original limits, by each job's profile, minus the job's emissions; \
                      estimated when the job ended, and again before its minutes are rolled up. A job's saving counts at the \
                      time of its end, and for a GPU only if the job had no other. The means of several jobs are summed, and \
                      so are the bounds of the intervals, as for fully correlated errors; jobs without an estimate do not count",
            sci: "ISO/IEC 21031: facility emissions with declared embodied ones of jobs that began and ended in the span, per \
                  declared functional unit",
        }
    }
}

/// Returns a property of the boundary, with the times of its changes.
fn over_time(report: &Report, of: impl Fn(&Boundary) -> String) -> String {
    let mut texts: Vec<(DateTime<Utc>, String)> = Vec::new();
    for period in &report.data.periods {
        let text = of(&period.boundary);
        if texts.last().is_none_or(|(_, before)| *before != text) {
            texts.push((period.span.start(), text));
        }
    }
    let since = |(i, (at, text)): (usize, &(DateTime<Utc>, String))| match i {
        0 => text.clone(),
        _ => format!("from {} on {text}", at.format("%FT%RZ")),
    };
    texts.iter().enumerate().map(since).collect::<Vec<_>>().join("; ")
}

pub(super) fn joules(energy: Millijoules) -> f64 {
    energy.to_joules().get()
}
