//! Data structure of a report, from which all formats are rendered; serialised, it is the report's JSON.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::{DeviceKind, SignalKind};
use wattune_core::ledger::entry::{Finality, METHOD};
use wattune_core::ledger::report::{Report, Row, RowKey};
use wattune_core::units::{JOULES_PER_KWH, Joules, Millijoules};

use super::audit::{
    AccountKind, CompletenessView, CorrectionView, DeviceView, EmbodiedView, GapView, IntensitySourceView, MethodView,
    RestatementView, TermsView, VersionView, joules,
};

/// Energy and emissions of a span of time, with details for auditors. In every grouping, the energy and emissions of
/// `rows` add up to those of `total`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReportView {
    /// The time at which the report was made.
    pub made_at: DateTime<Utc>,
    /// The start of the report's span of time, a full UTC hour.
    pub from: DateTime<Utc>,
    /// The end of the report's span of time, a full UTC hour.
    pub to: DateTime<Utc>,
    /// The grouping: `job`, `name`, `gpu`, `day`, `month`, or `tag:` with a tag's key.
    pub by: String,
    /// The rows. In groupings by job, name or tag, energy without a job has rows of its own.
    pub rows: Vec<ReportRow>,
    /// The sum of all rows.
    pub total: ReportRow,
    /// The conditions and declared factors that were in force in the report's span, oldest first.
    pub terms: Vec<TermsView>,
    /// The declared embodied emissions of the hardware; absent if not declared.
    pub embodied: Option<EmbodiedView>,
    /// The completeness of the recorded energy.
    pub completeness: CompletenessView,
    /// The versions of the hourly settlements (computations of an hour's emissions), and the changes of emissions by
    /// new versions.
    pub version: VersionView,
    /// The corrections that gave intervals of the report's span to another owner, oldest first.
    pub corrections: Vec<CorrectionView>,
    /// The combinations of sources of carbon intensities, each with its number of hours.
    pub sources: Vec<IntensitySourceView>,
    /// True if some intensities come from a generator: such emissions are not those of a real grid.
    pub synthetic: bool,
    /// True if some of the energy was used by simulated devices, which means that no hardware used it.
    pub simulated: bool,
    /// The methods and the boundary, in words.
    pub method: MethodView,
}

/// The kind of a row's subject, such as a job or a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RowKind {
    /// The row covers one job.
    Job,
    /// The row covers all jobs with the same name.
    Name,
    /// The row covers one GPU.
    Gpu,
    /// The row covers one processor package.
    Cpu,
    /// The row covers the memory of one processor package.
    Dram,
    /// The row covers all jobs with the same value of the tag by which the report groups.
    Tag,
    /// The row covers one UTC day.
    Day,
    /// The row covers one calendar month, in UTC.
    Month,
    /// The row covers all jobs without the tag by which the report groups.
    None,
    /// The row covers idle energy: no job and no other process used the device. For a CPU, it is the energy of the
    /// CPU's unused capacity.
    Idle,
    /// The row covers energy without a known owner: of processes outside of jobs, or of times without monitoring.
    Unattributed,
    /// The row is the sum of all rows.
    Total,
}

/// The state of the carbon intensities of a row's energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RowState {
    /// All carbon intensities of the row's energy are final.
    Final,
    /// All carbon intensities of the row's energy are actual values that are not final: their source may revise them,
    /// or a generator made them.
    Provisional,
    /// All carbon intensities of the row's energy are forecasts or interpolated.
    Forecast,
    /// Parts of the row's energy have carbon intensities in different states.
    Mixed,
    /// No carbon intensity of the row's energy is known.
    Unknown,
}

impl fmt::Display for RowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A row of a report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReportRow {
    /// The kind of subject: that of the grouping, `none` (jobs without the tag), `idle`, `unattributed` or `total`.
    pub kind: RowKind,
    /// The subject: a job's name, a device, a tag's value, a day or a month.
    pub key: String,
    /// The id of the job; only in a row of one job.
    pub job_id: Option<String>,
    /// The start of the report's span.
    pub from: DateTime<Utc>,
    /// The end of the report's span.
    pub to: DateTime<Utc>,
    /// The version of the accounting rules.
    pub method: u16,
    /// The recorded energy of the row.
    pub energy_j: f64,
    /// The recorded energy of the row, in kilowatt-hours.
    pub energy_kwh: f64,
    /// The lower bound of the energy, by the sensors' error.
    pub energy_low_kwh: f64,
    /// The upper bound of the energy, by the sensors' error.
    pub energy_high_kwh: f64,
    /// The part of the energy that GPUs used.
    pub energy_gpu_j: f64,
    /// The part of the energy that processor packages used.
    pub energy_cpu_j: f64,
    /// The part of the energy that memory used.
    pub energy_dram_j: f64,
    /// The part of the energy that belongs to jobs.
    pub energy_jobs_j: f64,
    /// The part of the energy that is idle: used for no job and no other process.
    pub energy_idle_j: f64,
    /// The part of the energy without a known owner: of processes outside of jobs, or of times without monitoring.
    pub energy_unattributed_j: f64,
    /// The part of the energy that was used by simulated devices, which means that no hardware used it.
    pub energy_simulated_j: f64,
    /// The location-based emissions by average intensities, of energy with a known intensity; absent if none is known.
    pub carbon_g: Option<f64>,
    /// The lower bound of the location-based emissions, by the sensors' error.
    pub carbon_low_g: Option<f64>,
    /// The upper bound of the location-based emissions, by the sensors' error.
    pub carbon_high_g: Option<f64>,
    /// The mean carbon intensity of the energy with a known intensity.
    pub mean_intensity_g_per_kwh: Option<f64>,
    /// The state of the intensities: `final`, `provisional` or `forecast` if the state is the same for all energy;
    /// otherwise `mixed`, or `unknown` if none is known.
    pub state: RowState,
    /// The energy with a forecast or an interpolated intensity.
    pub forecast_j: f64,
    /// The energy with a forecast or an interpolated intensity, in percent of the row's energy.
    pub forecast_pct: f64,
    /// The energy with an intensity that may be revised.
    pub provisional_j: f64,
    /// The energy with an intensity that may be revised, in percent of the row's energy.
    pub provisional_pct: f64,
    /// The energy with a final intensity.
    pub final_j: f64,
    /// The energy with a final intensity, in percent of the row's energy.
    pub final_pct: f64,
    /// The energy without a known intensity, which `carbon_g` does not include.
    pub unknown_j: f64,
    /// The energy without a known intensity, in percent of the row's energy.
    pub unknown_pct: f64,
    /// The energy that was not measured by a continuously read counter: integrated from power, or filled in for a gap.
    pub estimated_j: f64,
    /// The energy that was not measured by a continuously read counter, in percent of the row's energy.
    pub estimated_pct: f64,
    /// The emissions by marginal intensities, absent if no marginal intensity is known: a separate account, for the
    /// effect of using more or less energy. Never subtract it from `carbon_g`.
    pub marginal_carbon_g: Option<f64>,
    /// The energy without a known marginal intensity.
    pub marginal_unknown_j: Option<f64>,
    /// The market-based emissions, by the factor of a declared contract; absent unless declared for all of the energy.
    pub market_based_carbon_g: Option<f64>,
    /// The energy times the node factor and the PUE.
    pub facility_energy_kwh: f64,
    /// The location-based emissions times the node factor and the PUE.
    pub facility_carbon_g: Option<f64>,
    /// The time for which jobs occupied GPUs, summed over GPUs; in the row of idle energy, the time of GPUs without a
    /// job. The total and the rows of a GPU, a day or a month contain both.
    pub held_s: f64,
    /// The embodied emissions of the hardware for the time `held_s`; absent unless declared for all of this time.
    pub embodied_g: Option<f64>,
    /// The number of jobs. In the row of a day or month, the number of jobs that ended on that day or in that month;
    /// the total also counts jobs that still run.
    pub jobs: u64,
    /// The number of jobs that ended in the report's span.
    pub ended_jobs: u64,
    /// The lower bound of the emissions saved in comparison with the GPUs' original limits; absent if unknown for all
    /// jobs. No other figure includes the savings.
    pub saved_low_g: Option<f64>,
    /// The best estimate of the emissions saved.
    pub saved_g: Option<f64>,
    /// The upper bound of the emissions saved.
    pub saved_high_g: Option<f64>,
    /// The number of jobs with a known saving; the figures for savings cover only these jobs.
    pub saved_of_jobs: u64,
    /// The part of `saved_g` due to later starts than asked; absent unless known for all jobs with a known saving. The
    /// four parts add up to `saved_g`.
    pub saved_by_start_g: Option<f64>,
    /// The part of `saved_g` due to suspensions, with the emissions of saving and restarting.
    pub saved_by_suspension_g: Option<f64>,
    /// The part of `saved_g` due to lower power limits.
    pub saved_by_energy_g: Option<f64>,
    /// The part of `saved_g` due to limits that follow the carbon intensity.
    pub saved_by_timing_g: Option<f64>,
    /// The SCI (software carbon intensity, ISO/IEC 21031): facility and embodied emissions per functional unit.
    pub sci_g_per_unit: Option<f64>,
    /// The number of functional units in the score; absent if there is no score.
    pub sci_units: Option<f64>,
    /// The functional unit and the number of jobs in the score, or the reason why there is no score.
    pub sci_note: String,
}

impl ReportView {
    /// Converts a computed report to the form in which it is shown.
    pub fn of(report: &Report) -> Self {
        let (request, data) = (&report.request, &report.data);
        let row = |row| ReportRow::of(row, report);
        let hours = (request.span.end() - request.span.start()).num_hours();
        let device = |d: &wattune_core::ledger::report::DeviceBalance| DeviceView {
            device: d.device.to_string(),
            jobs_mj: d.jobs.get(),
            idle_mj: d.idle.get(),
            unattributed_mj: d.unattributed.get(),
            counter_mj: d.counter_mj,
            integrated_mj: d.integrated.get(),
            difference_mj: d.difference_mj,
            unequal_blocks: d.unequal_blocks,
        };
        let gap = |g: &wattune_core::ledger::report::Gap| GapView {
            device: g.device.to_string(),
            from: g.slot.start(),
            to: g.slot.end(),
            energy_j: g.energy.as_ref().ok().map(|energy| joules(*energy)),
            filled: match &g.energy {
                Ok(_) if g.is_rolled_up => {
                    "the counter's increase in one or more gaps within these hours, whose minutes were rolled up".into()
                }
                Ok(_) => "the counter's increase, spread evenly over the time".into(),
                Err(why) => format!("not filled: {why}"),
            },
        };
        let restated = |r: &wattune_core::ledger::report::Restatement| RestatementView {
            hour: r.hour,
            kind: if r.kind == SignalKind::Marginal { AccountKind::Marginal } else { AccountKind::Average },
            version: r.version,
            at: r.at,
            reason: r.reason.clone(),
            before_g: r.before.to_grams().get(),
            after_g: r.after.to_grams().get(),
        };
        Self {
            made_at: request.now,
            from: request.span.start(),
            to: request.span.end(),
            by: request.by.to_string(),
            rows: report.rows.iter().map(row).collect(),
            total: row(&report.total),
            terms: data.terms.iter().map(TermsView::of).collect(),
            embodied: report.embodied.as_ref().map(|e| EmbodiedView {
                per_gpu_g: e.per_gpu_g,
                life_s: e.life_s,
                source: e.source.clone(),
            }),
            completeness: CompletenessView {
                hours: u64::try_from(hours).unwrap_or_default(),
                hours_with_energy: data.hours_with_energy,
                unsettled_j: joules(data.unsettled),
                devices: data.devices.iter().map(device).collect(),
                gaps: data.gaps.iter().map(gap).collect(),
            },
            version: VersionView {
                highest: data.version.highest,
                settlements: data.version.settlements,
                resettled_hours: data.version.resettled_hours,
                last_restated_at: data.version.last_restated_at,
                threshold_pct: request.restated_by_pct,
                restatements: data.version.restatements.iter().map(restated).collect(),
                restatements_left_out: data.version.restatements_left_out,
            },
            corrections: data.corrections.iter().map(CorrectionView::of).collect(),
            sources: data
                .sources
                .iter()
                .map(|(source, hours)| IntensitySourceView { description: source.clone(), hours: *hours })
                .collect(),
            synthetic: data.synthetic,
            simulated: report.total.split.simulated > Millijoules::ZERO,
            method: MethodView::of(report),
        }
    }

    /// Describes the sources of carbon intensities, each with its number of hours.
    pub(super) fn describe_sources(&self) -> String {
        self.sources.iter().map(|s| format!("{} ({} h)", s.description, s.hours)).collect::<Vec<_>>().join("; ")
    }
}

fn kwh(energy: Joules) -> f64 {
    energy.get() / JOULES_PER_KWH
}

/// Returns a row's kind, the name of the row's subject, and the job's id (`None` unless the row is of one job).
fn named(key: &RowKey, by: &str) -> (RowKind, String, Option<String>) {
    match key {
        RowKey::Time(t) if by == "month" => (RowKind::Month, t.format("%Y-%m").to_string(), None),
        RowKey::Time(t) => (RowKind::Day, t.format("%F").to_string(), None),
        RowKey::Device(device) => {
            let kind = match device.kind() {
                DeviceKind::Gpu => RowKind::Gpu,
                DeviceKind::Cpu => RowKind::Cpu,
                DeviceKind::Dram => RowKind::Dram,
            };
            (kind, device.to_string(), None)
        }
        RowKey::Job(name, id) => (RowKind::Job, name.to_string(), Some(id.to_string())),
        RowKey::Name(name) => (RowKind::Name, name.to_string(), None),
        RowKey::Tag(value) => (RowKind::Tag, value.clone(), None),
        RowKey::Untagged => (RowKind::None, "(none)".into(), None),
        RowKey::Idle => (RowKind::Idle, "(idle)".into(), None),
        RowKey::Unattributed => (RowKind::Unattributed, "(unattributed)".into(), None),
        RowKey::Total => (RowKind::Total, "total".into(), None),
    }
}

/// The texts that rows without a name of their own show as their subject.
const RESERVED: [&str; 4] = ["(none)", "(idle)", "(unattributed)", "total"];

impl ReportRow {
    /// Returns a note on the part of the energy that simulated devices used; `None` if there is no such energy.
    pub fn simulated(&self) -> Option<String> {
        let part = if self.energy_j > 0.0 { 100.0 * self.energy_simulated_j / self.energy_j } else { 0.0 };
        let energy = if part >= 99.95 { "the energy".to_owned() } else { format!("{part:.1} % of the energy") };
        (self.energy_simulated_j > 0.0).then(|| format!("{energy} is of simulated GPUs: no hardware used it"))
    }

    /// Returns the subject as text: a name that equals a reserved label, or begins with a quote, is quoted.
    pub fn shown(&self) -> String {
        let is_name = matches!(self.kind, RowKind::Job | RowKind::Name | RowKind::Tag);
        let is_like_others = RESERVED.contains(&self.key.as_str()) || self.key.starts_with('"');
        if is_name && is_like_others { format!("{:?}", self.key) } else { self.key.clone() }
    }

    /// Returns the saving with its interval in words, and the number of jobs that the saving covers.
    pub fn saved(&self, grams: impl Fn(f64) -> String) -> String {
        let (known, jobs) = (self.saved_of_jobs, self.jobs);
        match self.saved_g.zip(self.saved_low_g).zip(self.saved_high_g) {
            Some(((mean, low), high)) => {
                let of = if known == jobs { String::new() } else { format!(", known of {known} of {jobs} jobs") };
                format!("{} ({} to {}){of}", grams(mean), grams(low), grams(high))
            }
            None if self.ended_jobs == 0 && jobs > 0 => format!("unknown, as none of {jobs} job(s) has ended"),
            None => format!("unknown of {jobs} job(s)"),
        }
    }

    /// Returns the parts of the saving and whose saving it is, in one sentence; `None` if no job waited for its start or
    /// was suspended.
    pub fn saved_by_waiting(&self, grams: impl Fn(f64) -> String) -> Option<String> {
        let (start, suspension) = self.saved_by_start_g.zip(self.saved_by_suspension_g)?;
        let (energy, timing) = self.saved_by_energy_g.zip(self.saved_by_timing_g)?;
        (start != 0.0 || suspension != 0.0).then(|| {
            format!(
                "{} by later starts, {} by suspensions, {} by lower limits, {} by the timing of limits; the saving is that \
                 of the jobs, not of the machine or the cluster: other jobs may use the GPUs meanwhile, so that its \
                 emissions fall by less",
                grams(start),
                grams(suspension),
                grams(energy),
                grams(timing)
            )
        })
    }

    /// Returns the main figures with their labels; the intensity and percentages have `digits` decimal places.
    pub(super) fn figures(
        &self,
        is_synthetic: bool,
        digits: usize,
        grams: fn(f64) -> String,
    ) -> Vec<(&'static str, String)> {
        let or = |value: Option<f64>, absent: &str| value.map_or_else(|| absent.to_owned(), grams);
        let interval = self.carbon_g.zip(self.carbon_low_g).zip(self.carbon_high_g);
        let carbon = interval.map(|((g, low), high)| format!("{} CO2e ({} to {})", grams(g), grams(low), grams(high)));
        let intensity = self.mean_intensity_g_per_kwh.map(|i| format!("{i:.digits$} gCO2e/kWh"));
        let generated = if is_synthetic { ", from generated intensities, not a real grid's" } else { "" };
        let energy = format!("{:.4} kWh ({:.4} to {:.4})", self.energy_kwh, self.energy_low_kwh, self.energy_high_kwh);
        let facility = format!("{:.4} kWh, {}", self.facility_energy_kwh, or(self.facility_carbon_g, "unknown"));
        let state = format!(
            "{} (final {:.digits$} %, provisional {:.digits$} %, forecast {:.digits$} %, unknown {:.digits$} %){generated}",
            self.state, self.final_pct, self.provisional_pct, self.forecast_pct, self.unknown_pct
        );
        vec![
            ("Energy", energy),
            ("Emissions, location-based", carbon.unwrap_or_else(|| "unknown".into())),
            ("Mean intensity", intensity.unwrap_or_else(|| "unknown".into())),
            ("State", state),
            ("With node factor and PUE", facility),
            ("Embodied", or(self.embodied_g, "not declared")),
            ("Saved, compared with the original limit", self.saved(grams)),
        ]
    }

    /// Returns the sensors' error of the energy in percent.
    pub(super) fn error_pct(&self) -> f64 {
        if self.energy_kwh > 0.0 { 100.0 * (self.energy_high_kwh / self.energy_kwh - 1.0) } else { 0.0 }
    }

    fn of(row: &Row, report: &Report) -> Self {
        let request = &report.request;
        let (kind, key, job_id) = named(&row.key, &request.by.to_string());
        let total = &row.total;
        let known = total.energy > total.unknown || total.energy == Millijoules::ZERO;
        let grams = |g: wattune_core::units::GramsCo2e| known.then(|| g.get());
        let (energy_low, energy_high) = row.energy_interval();
        let (carbon_low, carbon_high) = row.carbon_interval();
        let score = row.score.as_ref().ok();
        // Without marginal intensities there are no marginal emissions either.
        let marginal = row.marginal.filter(|(_, unknown)| *unknown < total.energy);
        let unit = request.unit.map(wattune_core::ledger::report::FunctionalUnit::name).unwrap_or_default();
        Self {
            kind,
            key,
            job_id,
            from: request.span.start(),
            to: request.span.end(),
            method: METHOD,
            energy_j: joules(total.energy),
            energy_kwh: kwh(total.energy.to_joules()),
            energy_low_kwh: kwh(energy_low),
            energy_high_kwh: kwh(energy_high),
            energy_gpu_j: joules(row.split.gpu),
            energy_cpu_j: joules(row.split.cpu),
            energy_dram_j: joules(row.split.dram),
            energy_jobs_j: joules(row.split.jobs),
            energy_idle_j: joules(row.split.idle),
            energy_unattributed_j: joules(row.split.unattributed),
            energy_simulated_j: joules(row.split.simulated),
            carbon_g: grams(total.carbon.to_grams()),
            carbon_low_g: grams(carbon_low),
            carbon_high_g: grams(carbon_high),
            mean_intensity_g_per_kwh: total.mean_intensity().map(|i| i.get()),
            state: match total.state() {
                "final" => RowState::Final,
                "provisional" => RowState::Provisional,
                "forecast" => RowState::Forecast,
                "unknown" => RowState::Unknown,
                _ => RowState::Mixed,
            },
            forecast_j: joules(row.in_state(Finality::Forecast)),
            forecast_pct: row.pct(row.in_state(Finality::Forecast)),
            provisional_j: joules(row.in_state(Finality::Provisional)),
            provisional_pct: row.pct(row.in_state(Finality::Provisional)),
            final_j: joules(row.in_state(Finality::Final)),
            final_pct: row.pct(row.in_state(Finality::Final)),
            unknown_j: joules(total.unknown),
            unknown_pct: row.pct(total.unknown),
            estimated_j: joules(total.estimated),
            estimated_pct: row.pct(total.estimated),
            marginal_carbon_g: marginal.map(|(carbon, _)| carbon.to_grams().get()),
            marginal_unknown_j: row.marginal.map(|(_, unknown)| joules(unknown)),
            market_based_carbon_g: row.market.map(|g| g.get()),
            facility_energy_kwh: kwh(row.facility_energy),
            facility_carbon_g: grams(row.facility_carbon),
            held_s: row.occupied.get(),
            embodied_g: row.embodied.map(|g| g.get()),
            jobs: row.jobs,
            ended_jobs: row.ended,
            saved_low_g: row.saved.map(|(saved, _)| saved.low.get()),
            saved_g: row.saved.map(|(saved, _)| saved.mean.get()),
            saved_high_g: row.saved.map(|(saved, _)| saved.high.get()),
            saved_by_start_g: row.effects.map(|effects| effects.start.get()),
            saved_by_suspension_g: row.effects.map(|effects| effects.suspension.get()),
            saved_by_energy_g: row.effects.map(|effects| effects.energy.get()),
            saved_by_timing_g: row.effects.map(|effects| effects.timing.get()),
            saved_of_jobs: row.saved.map_or(0, |(_, jobs)| jobs),
            sci_g_per_unit: score.map(|s| s.per_unit.get()),
            sci_units: score.map(|s| s.units),
            sci_note: match &row.score {
                Ok(score) => format!("per {unit}, {} job(s)", score.jobs),
                Err(why) => why.clone(),
            },
        }
    }
}
