//! Reports as they are written: JSON, CSV and a page. The command line and the API write the same.

mod audit;
mod cell;
mod page;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::SignalKind;
use wattune_core::ledger::entry::{Boundary, METHOD, State};
use wattune_core::ledger::report::{Key, Report, Row};
use wattune_core::units::{JOULES_PER_KWH, Joules, Millijoules};

pub use audit::{
    CompletenessView, CorrectionView, DeviceView, EmbodiedView, GapView, MethodView, RestatementView, SourceOf,
    TermsView, VersionView,
};
use cell::no_formula;
pub use page::page;

/// What a span of time used and emitted, with all that an auditor asks for beside it. Energy and emissions of `rows` add
/// up to `total`, whatever they are grouped by.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReportView {
    /// When it was made.
    pub made_at: DateTime<Utc>,
    /// The span's beginning, a full UTC hour.
    pub from: DateTime<Utc>,
    /// The span's end, a full UTC hour.
    pub to: DateTime<Utc>,
    /// `job`, `name`, `gpu`, `day`, `month`, or `tag:` with a label's key.
    pub by: String,
    /// The rows; energy without a job is in rows of its own where rows are of jobs.
    pub rows: Vec<ReportRow>,
    /// Everything.
    pub total: ReportRow,
    /// What is counted beside what the devices' own meters tell: the terms in force, oldest first.
    pub terms: Vec<TermsView>,
    /// What making the hardware emitted; absent where it was not declared.
    pub embodied: Option<EmbodiedView>,
    /// Whether all energy is accounted for.
    pub completeness: CompletenessView,
    /// Which version of the settlements this is.
    pub version: VersionView,
    /// Intervals of the span that were given to somebody else than they were booked to, oldest first.
    pub corrections: Vec<CorrectionView>,
    /// Whose intensities.
    pub sources: Vec<SourceOf>,
    /// Whether a generator made some of them: such emissions are those of no real grid.
    pub synthetic: bool,
    /// Whether some of the energy is of simulated devices: such figures are of no hardware.
    pub simulated: bool,
    /// How the figures were found.
    pub method: MethodView,
}

/// A row of a report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReportRow {
    /// `job`, `name`, `gpu`, `cpu`, `dram`, `tag`, `day`, `month`, `none` (jobs without the label), `idle`, `unattributed` or `total`.
    pub kind: &'static str,
    /// What it is about: a name, a device, a value, a day or a month.
    pub key: String,
    /// The job's id, where it is about one.
    pub job_id: Option<String>,
    /// The span's beginning.
    pub from: DateTime<Utc>,
    /// The span's end.
    pub to: DateTime<Utc>,
    /// The version of the rules by which energy is booked and settled.
    pub method: u16,
    /// Energy.
    pub energy_j: f64,
    /// The same in kilowatt-hours.
    pub energy_kwh: f64,
    /// At the least, with the sensors' error.
    pub energy_low_kwh: f64,
    /// At the most.
    pub energy_high_kwh: f64,
    /// Of it, GPUs'.
    pub energy_gpu_j: f64,
    /// Of it, processors'.
    pub energy_cpu_j: f64,
    /// Of it, memory's.
    pub energy_dram_j: f64,
    /// Of it, jobs'.
    pub energy_jobs_j: f64,
    /// Of it, nobody's.
    pub energy_idle_j: f64,
    /// Of it, somebody's who cannot be named.
    pub energy_unattributed_j: f64,
    /// Of it, simulated devices': no hardware used it.
    pub energy_simulated_j: f64,
    /// Location-based emissions by average intensities, of the energy with a known intensity; absent where none is known.
    pub carbon_g: Option<f64>,
    /// At the least, with the sensors' error.
    pub carbon_low_g: Option<f64>,
    /// At the most.
    pub carbon_high_g: Option<f64>,
    /// Mean intensity of the energy whose intensity is known.
    pub mean_intensity_g_per_kwh: Option<f64>,
    /// `final`, `provisional` or `forecast` where all of it is; else `mixed`, or `unknown` where nothing is known.
    pub state: &'static str,
    /// Energy with a forecast or a filled-in intensity.
    pub forecast_j: f64,
    /// The same in percent of the row's energy.
    pub forecast_pct: f64,
    /// Energy with an intensity that may be revised.
    pub provisional_j: f64,
    /// The same in percent.
    pub provisional_pct: f64,
    /// Energy with an intensity that changes no more.
    pub final_j: f64,
    /// The same in percent.
    pub final_pct: f64,
    /// Energy without an intensity: not in `carbon_g`.
    pub unknown_j: f64,
    /// The same in percent.
    pub unknown_pct: f64,
    /// Energy that was not read off a watched counter.
    pub estimated_j: f64,
    /// The same in percent.
    pub estimated_pct: f64,
    /// Emissions by marginal intensities, where any is known: another book, for the impact of changes. Never to be
    /// subtracted from `carbon_g`.
    pub marginal_carbon_g: Option<f64>,
    /// Energy without a marginal intensity.
    pub marginal_unknown_j: Option<f64>,
    /// Market-based emissions, by the factor of a declared contract.
    pub market_based_carbon_g: Option<f64>,
    /// Energy times node factor and PUE.
    pub facility_energy_kwh: f64,
    /// Location-based emissions times the same.
    pub facility_carbon_g: Option<f64>,
    /// Time in which boards were held, summed over boards.
    pub held_s: f64,
    /// Embodied emissions of that time; absent unless they were declared for all of it.
    pub embodied_g: Option<f64>,
    /// Jobs in it; in a row of a day or month those that ended then, so that the total has more where jobs go on.
    pub jobs: u64,
    /// Of them, those that ended in the span.
    pub ended_jobs: u64,
    /// Emissions saved against the limit found on their boards, at the least; never subtracted from anything here. Absent where it is
    /// known of no job.
    pub saved_low_g: Option<f64>,
    /// Most likely.
    pub saved_g: Option<f64>,
    /// At the most.
    pub saved_high_g: Option<f64>,
    /// Of how many of `jobs` that is known: the others are not in it.
    pub saved_of_jobs: u64,
    /// SCI (ISO/IEC 21031): grams per functional unit, of the facility and with declared embodied emissions.
    pub sci_g_per_unit: Option<f64>,
    /// How many units.
    pub sci_units: Option<f64>,
    /// What a unit is; or why there is no score.
    pub sci_note: String,
}

impl ReportView {
    /// What a report shows.
    pub fn of(report: &Report) -> Self {
        let (wanted, books) = (&report.wanted, &report.books);
        let row = |row| ReportRow::of(row, report);
        let hours = (wanted.span.end() - wanted.span.start()).num_hours();
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
                    "the counter's differences of one gap or several within these hours, whose minutes were rolled up"
                        .into()
                }
                Ok(_) => "the counter's difference, spread evenly over the time".into(),
                Err(why) => format!("not filled: {why}"),
            },
        };
        let restated = |r: &wattune_core::ledger::report::Restatement| RestatementView {
            hour: r.hour,
            book: if r.book == SignalKind::Marginal { "marginal" } else { "average" },
            version: r.version,
            at: r.at,
            reason: r.reason.clone(),
            before_g: r.before.to_grams().get(),
            after_g: r.after.to_grams().get(),
        };
        Self {
            made_at: wanted.now,
            from: wanted.span.start(),
            to: wanted.span.end(),
            by: wanted.by.to_string(),
            rows: report.rows.iter().map(row).collect(),
            total: row(&report.total),
            terms: books.terms.iter().map(TermsView::of).collect(),
            embodied: report.embodied.as_ref().map(|e| EmbodiedView {
                per_gpu_g: e.per_gpu_g,
                life_s: e.life_s,
                source: e.source.clone(),
            }),
            completeness: CompletenessView {
                hours: u64::try_from(hours).unwrap_or_default(),
                hours_with_energy: books.hours_booked,
                unsettled_j: joules(books.unsettled),
                devices: books.devices.iter().map(device).collect(),
                gaps: books.gaps.iter().map(gap).collect(),
            },
            version: VersionView {
                highest: books.version.highest,
                settlements: books.version.settlements,
                resettled_hours: books.version.resettled_hours,
                last_restated_at: books.version.last_restated_at,
                threshold_pct: wanted.restated_by_pct,
                restatements: books.version.restatements.iter().map(restated).collect(),
                restatements_left_out: books.version.restatements_left_out,
            },
            corrections: books.corrections.iter().map(CorrectionView::of).collect(),
            sources: books.sources.iter().map(|(said, hours)| SourceOf { said: said.clone(), hours: *hours }).collect(),
            synthetic: books.synthetic,
            simulated: report.total.split.simulated > Millijoules::ZERO,
            method: method(report),
        }
    }

    /// The rows as CSV under a line of names; the total is left out, so that a column may be summed.
    ///
    /// # Errors
    /// If a row cannot be written.
    pub fn csv(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            let (key, sci_note) = (no_formula(row.key.clone()), no_formula(row.sci_note.clone()));
            writer.serialize(ReportRow { key, sci_note, ..row.clone() })?;
        }
        if self.rows.is_empty() {
            // The names all the same.
            writer.serialize(&self.total)?;
            let mut bytes = writer.into_inner().map_err(|e| e.into_error())?;
            bytes.truncate(bytes.iter().position(|b| *b == b'\n').map_or(0, |end| end + 1));
            return Ok(bytes);
        }
        writer.into_inner().map_err(|e| e.into_error().into())
    }
}

fn joules(energy: Millijoules) -> f64 {
    energy.to_joules().get()
}

fn kwh(energy: Joules) -> f64 {
    energy.get() / JOULES_PER_KWH
}

/// A row's kind, what it is about in words, and the job's id.
fn named(key: &Key, by: &str) -> (&'static str, String, Option<String>) {
    match key {
        Key::Time(t) if by == "month" => ("month", t.format("%Y-%m").to_string(), None),
        Key::Time(t) => ("day", t.format("%F").to_string(), None),
        Key::Device(device) => (device.kind().name(), device.to_string(), None),
        Key::Job(name, id) => ("job", name.to_string(), Some(id.to_string())),
        Key::Name(name) => ("name", name.to_string(), None),
        Key::Tag(value) => ("tag", value.clone(), None),
        Key::Untagged => ("none", "(none)".into(), None),
        Key::Idle => ("idle", "(idle)".into(), None),
        Key::Unattributed => ("unattributed", "(unattributed)".into(), None),
        Key::Total => ("total", "total".into(), None),
    }
}

/// What rows that are of no name are called.
const RESERVED: [&str; 4] = ["(none)", "(idle)", "(unattributed)", "total"];

impl ReportRow {
    /// Says so where some of its energy is of simulated devices.
    pub fn simulated(&self) -> Option<String> {
        let part = if self.energy_j > 0.0 { 100.0 * self.energy_simulated_j / self.energy_j } else { 0.0 };
        let energy = if part >= 99.95 { "the energy".to_owned() } else { format!("{part:.1} % of the energy") };
        (self.energy_simulated_j > 0.0).then(|| format!("{energy} is of simulated GPUs: no hardware used it"))
    }

    /// What it is about, for people: a name that would look like a row of another kind stands in quotes.
    pub fn shown(&self) -> String {
        let is_name = matches!(self.kind, "job" | "name" | "tag");
        let is_like_others = RESERVED.contains(&self.key.as_str()) || self.key.starts_with('"');
        if is_name && is_like_others { format!("{:?}", self.key) } else { self.key.clone() }
    }

    /// What was saved as an interval in words, and of how many jobs that is known.
    pub fn saved(&self, grams: impl Fn(f64) -> String) -> String {
        let (known, jobs) = (self.saved_of_jobs, self.jobs);
        match self.saved_g.zip(self.saved_low_g).zip(self.saved_high_g) {
            Some(((mean, low), high)) => {
                let of = if known == jobs { String::new() } else { format!(", known of {known} of {jobs} jobs") };
                format!("{} ({} to {}){of}", grams(mean), grams(low), grams(high))
            }
            None => format!("unknown of {jobs} job(s)"),
        }
    }

    fn of(row: &Row, report: &Report) -> Self {
        let wanted = &report.wanted;
        let (kind, key, job_id) = named(&row.key, &wanted.by.to_string());
        let total = &row.total;
        let known = total.energy > total.unknown || total.energy == Millijoules::ZERO;
        let grams = |g: wattune_core::units::GramsCo2e| known.then(|| g.get());
        let (energy_low, energy_high) = row.energy_interval();
        let (carbon_low, carbon_high) = row.carbon_interval();
        let score = row.score.as_ref().ok();
        // Where that book knows nothing, it has no grams either.
        let marginal = row.marginal.filter(|(_, unknown)| *unknown < total.energy);
        let unit = wanted.unit.map(wattune_core::ledger::report::FunctionalUnit::name).unwrap_or_default();
        Self {
            kind,
            key,
            job_id,
            from: wanted.span.start(),
            to: wanted.span.end(),
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
            state: total.state(),
            forecast_j: joules(row.in_state(State::Forecast)),
            forecast_pct: row.pct(row.in_state(State::Forecast)),
            provisional_j: joules(row.in_state(State::Provisional)),
            provisional_pct: row.pct(row.in_state(State::Provisional)),
            final_j: joules(row.in_state(State::Final)),
            final_pct: row.pct(row.in_state(State::Final)),
            unknown_j: joules(total.unknown),
            unknown_pct: row.pct(total.unknown),
            estimated_j: joules(total.estimated),
            estimated_pct: row.pct(total.estimated),
            marginal_carbon_g: marginal.map(|(carbon, _)| carbon.to_grams().get()),
            marginal_unknown_j: row.marginal.map(|(_, unknown)| joules(unknown)),
            market_based_carbon_g: row.market.map(|g| g.get()),
            facility_energy_kwh: kwh(row.facility_energy),
            facility_carbon_g: grams(row.facility_carbon),
            held_s: row.held.get(),
            embodied_g: row.embodied.map(|g| g.get()),
            jobs: row.jobs,
            ended_jobs: row.ended,
            saved_low_g: row.saved.map(|(saved, _)| saved.low.get()),
            saved_g: row.saved.map(|(saved, _)| saved.mean.get()),
            saved_high_g: row.saved.map(|(saved, _)| saved.high.get()),
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

/// What the boundary says of something, and since when where that changed on the way.
fn over_time(report: &Report, of: impl Fn(&Boundary) -> String) -> String {
    let mut said: Vec<(DateTime<Utc>, String)> = Vec::new();
    for piece in &report.books.pieces {
        let text = of(&piece.boundary);
        if said.last().is_none_or(|(_, before)| *before != text) {
            said.push((piece.span.start(), text));
        }
    }
    let since = |(i, (at, text)): (usize, &(DateTime<Utc>, String))| match i {
        0 => text.clone(),
        _ => format!("from {} on {text}", at.format("%FT%RZ")),
    };
    said.iter().enumerate().map(since).collect::<Vec<_>>().join("; ")
}

fn method(report: &Report) -> MethodView {
    let split = &report.total.split;
    let mut metered = vec!["GPUs"];
    metered.extend((split.cpu > Millijoules::ZERO).then_some("processor packages"));
    metered.extend((split.dram > Millijoules::ZERO).then_some("memory"));
    let declared = |value: f64, source: &Option<String>, date: &Option<String>| match source {
        Some(source) => format!("{value} ({source}{})", date.as_ref().map(|d| format!(", {d}")).unwrap_or_default()),
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
            "{} g per board over {} s ({}), by the time for which boards were held",
            e.per_gpu_g, e.life_s, e.source
        ),
        None => "not declared".to_owned(),
    };
    let metered = format!("metered: {}", metered.join(", "));
    let is_told = !report.books.terms.is_empty();
    let boundary = if is_told { format!("{metered}; {}", over_time(report, factors)) } else { metered };
    let embodied = over_time(report, embodied);
    MethodView {
        version: METHOD,
        software: env!("CARGO_PKG_VERSION"),
        energy: "differences of the devices' energy counters in whole millijoules, power integrated where there is no \
                 counter; a board held by one job is that job's, of several jobs on one board by the rule in the books",
        carbon: "location-based: each interval's energy times the average intensity of its time; marginal intensities make \
                 a second book that is never netted with it; market-based only by a declared contract's factor",
        uncertainty: "5 % gain of the counters' sensors, 10 % where energy was integrated or a gap was filled; errors of \
                      gain do not average out. Intensities come without an uncertainty of their sources",
        boundary,
        embodied,
        savings: "emissions of the same work at the limit found on the boards, by each job's profile, less what the job emitted; \
                  as reckoned when it ended, and once more before its minutes are rolled up. A job's saving stands where \
                  its end lies, and with a GPU only if it had no other. Of several jobs means add up, and so do the ends \
                  of the intervals, as if all errors went the same way; jobs of which it is unknown are not in it",
        sci: "ISO/IEC 21031: facility emissions with declared embodied ones of jobs that began and ended in the span, per \
              declared functional unit",
    }
}
