//! Parts of a report for auditors: conditions, completeness, versions, corrections, sources and methods.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::ledger::Share;
use wattune_core::ledger::entry::{Boundary, METHOD, Terms};
use wattune_core::ledger::report::{Correction, Report};
use wattune_core::units::Millijoules;

/// The conditions under which the ledger was kept: node, versions and declared factors.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TermsView {
    /// The time from which these conditions apply.
    pub since: DateTime<Utc>,
    /// The name of the node.
    pub node: String,
    /// The version of wattune.
    pub software: String,
    /// The version of the accounting rules.
    pub method: u16,
    /// The SHA-256 digest of all settings.
    pub settings: String,
    /// The clocks by which durations and times are recorded.
    pub clock: String,
    /// The ratio of the node's energy to the energy of its metered devices; 1 if not declared.
    pub node_factor: f64,
    /// The source of the node factor; absent if not declared.
    pub node_factor_source: Option<String>,
    /// The ratio of the facility's energy to the energy of its computers (PUE); 1 if not declared.
    pub pue: f64,
    /// The source of the PUE; absent if not declared.
    pub pue_source: Option<String>,
    /// The date to which the declared PUE refers; absent if not declared.
    pub pue_date: Option<String>,
    /// The emission factor of an electricity contract, for market-based emissions; absent if not declared.
    pub contract_g_per_kwh: Option<f64>,
    /// The contract that states the emission factor; absent if not declared.
    pub contract_source: Option<String>,
}

/// The declared embodied emissions of the hardware.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbodiedView {
    /// The embodied emissions of one GPU, including those of the GPU's part of the node.
    pub per_gpu_g: f64,
    /// The service life of the hardware, over which the embodied emissions are spread.
    pub life_s: f64,
    /// The source of the embodied emissions and of the service life.
    pub source: String,
}

/// The completeness of the recorded energy.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletenessView {
    /// The number of hours in the report's span of time.
    pub hours: u64,
    /// The number of hours with recorded energy.
    pub hours_with_energy: u64,
    /// The energy whose emissions have not been computed (settled) yet, mostly of the current hour; all figures include
    /// this energy.
    pub unsettled_j: f64,
    /// The comparison of each device's recorded energy with the device's energy counter.
    pub devices: Vec<DeviceView>,
    /// The gaps in the readings of devices, oldest first.
    pub gaps: Vec<GapView>,
}

/// A device's recorded energy compared with the device's energy counter, over the ledger's blocks (the intervals of
/// about an hour each) of the report's span: jobs + idle + unattributed equals counter + integrated + difference,
/// exactly. A block belongs to the hour in which it was closed; up to ten minutes after a full hour, to the hour
/// before. If the daemon stopped in these minutes, the block also has their energy, which the rows have in the later
/// hour.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeviceView {
    /// The id of the device.
    pub device: String,
    /// The energy recorded for jobs.
    pub jobs_mj: u64,
    /// The energy recorded as idle.
    pub idle_mj: u64,
    /// The energy recorded as unattributed.
    pub unattributed_mj: u64,
    /// The increase of the device's counter; absent if the device has none.
    pub counter_mj: Option<i64>,
    /// The part of the recorded energy that was integrated from power.
    pub integrated_mj: u64,
    /// The difference between recorded energy and the counter: zero unless the ledger is wrong.
    pub difference_mj: i64,
    /// The number of blocks (of about an hour each) in which the difference is not zero.
    pub unequal_blocks: u64,
}

/// A gap in the readings of a device.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GapView {
    /// The id of the device.
    pub device: String,
    /// The start of the gap; if the gap's intervals were already summed by hour (rolled up), the start of the first
    /// hour.
    pub from: DateTime<Utc>,
    /// The end of the gap; if the gap's intervals were already summed by hour (rolled up), the end of the last hour.
    pub to: DateTime<Utc>,
    /// The energy used in the gap; absent if unknown, in which case no figure includes this energy.
    pub energy_j: Option<f64>,
    /// The method by which the energy was filled in, or the reason why the energy is unknown.
    pub filled: String,
}

/// The versions of the hourly settlements in a report. A settlement computes an hour's emissions; each later settlement
/// of the hour is a new version that replaces the previous one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionView {
    /// The highest version of the settlement (computed emissions) of any hour of the report's span; 0 before the first
    /// settlement.
    pub highest: u32,
    /// The number of settlements (computations of an hour's emissions) for hours of the report's span, all versions
    /// included.
    pub settlements: u64,
    /// The number of hours of the report's span whose emissions were computed more than once.
    pub resettled_hours: u64,
    /// The time at which the emissions of an hour of the report's span were last computed again; absent if that never
    /// happened.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// The change of an hour's emissions above which the hour is listed as restated.
    pub threshold_pct: f64,
    /// The hours whose emissions changed by more than the threshold, the newest first.
    pub restatements: Vec<RestatementView>,
    /// The number of further such changes that are not listed.
    pub restatements_left_out: u64,
}

/// An account of emissions, by the kind of carbon intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// The account uses average carbon intensities.
    Average,
    /// The account uses marginal carbon intensities.
    Marginal,
}

impl fmt::Display for AccountKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A change of an hour's emissions by a new settlement (computation of the hour's emissions).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RestatementView {
    /// The start of the hour.
    pub hour: DateTime<Utc>,
    /// The account of emissions: by average or by marginal intensities.
    pub kind: AccountKind,
    /// The version of the new settlement.
    pub version: u32,
    /// The time of the new settlement.
    pub at: DateTime<Utc>,
    /// The reason for the new settlement.
    pub reason: String,
    /// The hour's emissions as computed before.
    pub before_g: f64,
    /// The hour's emissions as computed anew. If the new settlement also changed the hour's energy, the emissions of
    /// the previous energy with the new intensities.
    pub after_g: f64,
}

/// A correction: the energy of some intervals was attributed to another owner.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CorrectionView {
    /// The number of the correction's entry in the ledger.
    pub entry: u64,
    /// The time of the correction.
    pub at: DateTime<Utc>,
    /// The person who made the correction.
    pub who: String,
    /// The reason for the correction.
    pub why: String,
    /// The previous owner: `job:` with an id, `idle` or `unattributed`.
    pub of: String,
    /// The new owner: `job:` with an id, `idle` or `unattributed`.
    pub given_to: String,
    /// The number of corrected intervals that begin in the report's span.
    pub intervals: u64,
    /// The energy of the corrected intervals that begin in the report's span.
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

/// A combination of sources whose carbon intensities were used for some hours.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IntensitySourceView {
    /// The account (average or marginal), the sources, their zones and scopes.
    pub description: String,
    /// The number of hours with these sources.
    pub hours: u64,
}

/// The methods and the boundary of the report, in words.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MethodView {
    /// The version of the accounting rules.
    pub version: u16,
    /// The version of wattune that made this report.
    pub software: &'static str,
    /// The method of measuring and attributing energy.
    pub energy: &'static str,
    /// The method of computing emissions.
    pub carbon: &'static str,
    /// The method of estimating the uncertainty of the energy and the emissions.
    pub uncertainty: &'static str,
    /// The boundary: the metered kinds of devices, and the declared node factor and PUE.
    pub boundary: String,
    /// The method of computing embodied emissions.
    pub embodied: String,
    /// The method of estimating savings.
    pub savings: &'static str,
    /// The method of computing the SCI (software carbon intensity).
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
                "{} g per GPU over {} s ({}), by the time of GPUs with and without a job",
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
            carbon: "location-based: each interval's energy times the average intensity of its time; emissions by marginal intensities are a separate account, never added to or subtracted from the others; market-based only by a declared contract's factor",
            uncertainty: "5 % gain of the counters' sensors, 10 % where energy was integrated or a gap was filled; gain \
                          errors do not average out. The sources give no uncertainty of their intensities",
            boundary,
            embodied,
            savings: "emissions of the same work at the GPUs' original limits, by each job's profile, minus the job's emissions; \
                      estimated when the job ended, and again before the job's rows per minute are merged into rows per \
                      hour. A job's saving counts at the time of its end, and for a GPU only if the job had no other; a \
                      job that was continued by its key ends with its last part, and its saving is that of all parts. \
                      The means of several jobs are summed, and so are the bounds of the intervals, as for fully \
                      correlated errors; jobs without an estimate do not count",
            sci: "ISO/IEC 21031: facility emissions with declared embodied ones of jobs that began and ended in the span, per \
                  declared functional unit; a job that was continued by its key is one job with all of its parts",
        }
    }
}

/// Returns a property of the accounting boundary in words, with the times at which it changed in the report's span.
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
