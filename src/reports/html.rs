//! A report as one HTML page: figures with their states, plots, then details for auditors.

use chrono::{DateTime, Months, NaiveDate, Utc};

use super::audit::{CorrectionView, DeviceView, GapView, RestatementView};
use super::document::{Mark, Plot, document, escaped};
use super::table::figure;
use super::view::{ReportRow, ReportView};

/// The maximum number of rows in the table, and of gaps and corrections; the JSON has them all.
const ROWS: usize = 500;
/// The maximum number of restatements.
const RESTATEMENTS: usize = 50;
/// The maximum number of bars in a plot.
const BARS: usize = 24;

/// Renders the report as an HTML page.
pub fn html(report: &ReportView) -> String {
    let title = format!("Energy and carbon, {} to {} UTC", report.from.format("%F %R"), report.to.format("%F %R"));
    let mut body = format!("<h1>{}</h1>\n", escaped(&title));
    if let Some(simulated) = report.total.simulated() {
        body += &format!("<p><strong>Simulated:</strong> {}.</p>\n", escaped(&simulated));
    }
    body += &summary(report);
    body += &plots(report);
    body += &format!("<h2>By {}</h2>\n", escaped(&report.by));
    body += &table(report);
    body += "<h2>Completeness</h2>\n";
    body += &completeness(report);
    body += "<h2>Versions</h2>\n";
    body += &versions(report);
    body += "<h2>Corrections</h2>\n";
    body += &corrections(report);
    body += "<h2>Method and boundary</h2>\n";
    body += &method(report);
    document(&escaped(&title), &body)
}

fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let pair = |(name, value): (&str, String)| format!("<dt>{name}<dd>{}\n", escaped(&value));
    format!("<dl>\n{}</dl>\n", pairs.into_iter().map(pair).collect::<String>())
}

fn grams(grams: f64) -> String {
    if grams.abs() >= 1e4 { format!("{:.2} kg", grams / 1e3) } else { format!("{grams:.2} g") }
}

fn summary(report: &ReportView) -> String {
    let total = &report.total;
    let or = |value: Option<f64>, absent: &str| value.map_or_else(|| absent.to_owned(), grams);
    let others = [
        ("Market-based", or(total.market_based_carbon_g, "no contract declared for the whole time")),
        ("By marginal intensities, a separate account", or(total.marginal_carbon_g, "no such source")),
    ];
    pairs(total.figures(report.synthetic, 1, grams).into_iter().chain(others))
}

/// Plots energy and emissions: as lines over time in groupings by day or month, otherwise as bars, the largest first.
fn plots(report: &ReportView) -> String {
    let over_time = matches!(report.by.as_str(), "day" | "month");
    if report.rows.is_empty() {
        return "<p>No energy was recorded in this time.</p>\n".to_owned();
    }
    if !over_time {
        return bars(report);
    }
    let mut plot = Plot::new("days since the beginning", "kWh").beside("g/kWh");
    let first = report.rows.first().map(|row| row.key.clone()).unwrap_or_default();
    let steps = |value: &dyn Fn(&ReportRow) -> Option<f64>| -> Vec<(f64, f64)> {
        let of =
            |row: &ReportRow| value(row).zip(days_of(&row.key, &first)).map(|(v, (from, to))| [(from, v), (to, v)]);
        report.rows.iter().filter_map(of).flatten().collect()
    };
    plot.line("energy", steps(&|row| Some(row.energy_kwh)), Mark::Line);
    plot.line("of it idle", steps(&|row| Some(row.energy_idle_j / 3.6e6)), Mark::Thin);
    plot.line_beside("mean intensity", steps(&|row| row.mean_intensity_g_per_kwh));
    format!("<figure>{}</figure>\n", plot.svg(&format!("Energy and mean intensity by {}", report.by)))
}

/// Returns the days from the beginning of the row `first` to the beginning and to the end of the row `key`. Keys are days
/// or months.
fn days_of(key: &str, first: &str) -> Option<(f64, f64)> {
    let date = |key: &str| format!("{key}-01").get(..10)?.parse::<NaiveDate>().ok();
    let (first, at) = (date(first)?, date(key)?);
    let is_month = key.len() == "2026-01".len();
    let end = if is_month { at.checked_add_months(Months::new(1)) } else { at.succ_opt() }?;
    Some(((at - first).num_days() as f64, (end - first).num_days() as f64))
}

fn bars(report: &ReportView) -> String {
    let mut rows: Vec<&ReportRow> = report.rows.iter().collect();
    rows.sort_by(|a, b| b.energy_j.total_cmp(&a.energy_j));
    let most = rows.first().map_or(0.0, |row| row.energy_j);
    if most <= 0.0 {
        return String::new();
    }
    let shown = rows.len().min(BARS);
    let height = 22.0 * shown as f64 + 10.0;
    let label = format!("Energy of the {shown} largest rows");
    let mut svg = format!("<svg viewBox=\"0 0 860 {height}\" role=\"img\" aria-label=\"{}\">\n", escaped(&label));
    for (place, row) in rows.iter().take(BARS).enumerate() {
        let (y, width) = (22.0 * place as f64 + 4.0, 430.0 * row.energy_j / most);
        let name: String = row.shown().chars().take(32).collect();
        svg += &format!("<text x=\"226\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n", y + 12.0, escaped(&name));
        svg += &format!("<rect x=\"232\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"15\" fill=\"var(--c0)\"/>\n");
        let figures =
            format!("{:.3} kWh, {}", row.energy_kwh, row.carbon_g.map_or_else(|| "unknown".to_owned(), grams));
        svg += &format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n", 238.0 + width, y + 12.0, escaped(&figures));
    }
    format!("<figure>{svg}</svg></figure>\n")
}

/// Renders a table that may be wider than the window, with a name for keyboard and screen-reader users. Does not escape
/// the cells.
fn table_of(name: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let columns: String = columns.iter().map(|column| format!("<th scope=\"col\">{column}")).collect();
    let rows: String = rows.map(|cells| format!("<tr><td>{}</tr>\n", cells.join("<td>"))).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table>\n\
         <thead><tr>{columns}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

const COLUMNS: [&str; 16] = [
    "row",
    "energy kWh",
    "state",
    "± %",
    "carbon g",
    "g/kWh",
    "final %",
    "unknown %",
    "estimated %",
    "marginal g",
    "market g",
    "facility kWh",
    "facility g",
    "embodied g",
    "saved g",
    "SCI g",
];

fn table(report: &ReportView) -> String {
    let cells = |row: &ReportRow| {
        let id = row.job_id.as_ref().map(|id| format!(" <small>{}</small>", escaped(id))).unwrap_or_default();
        // Show the number of jobs that the saving covers, unless it covers all.
        let covers = match row.saved_g {
            Some(_) if row.saved_of_jobs != row.jobs => {
                format!(" <small>{} of {} jobs</small>", row.saved_of_jobs, row.jobs)
            }
            _ => String::new(),
        };
        vec![
            escaped(&row.shown()) + &id,
            figure(Some(row.energy_kwh), 4),
            row.state.to_string(),
            figure(Some(row.error_pct()), 1),
            figure(row.carbon_g, 2),
            figure(row.mean_intensity_g_per_kwh, 1),
            figure(Some(row.final_pct), 1),
            figure(Some(row.unknown_pct), 1),
            figure(Some(row.estimated_pct), 1),
            figure(row.marginal_carbon_g, 2),
            figure(row.market_based_carbon_g, 2),
            figure(Some(row.facility_energy_kwh), 4),
            figure(row.facility_carbon_g, 2),
            figure(row.embodied_g, 2),
            figure(row.saved_g, 2) + &covers,
            figure(row.sci_g_per_unit, 4),
        ]
    };
    let rows = report.rows.iter().take(ROWS).chain([&report.total]);
    let mut text = table_of("Rows", &COLUMNS, rows.map(cells));
    if report.rows.len() > ROWS {
        text += &format!(
            "<p>{} more rows are in the JSON and CSV of this report; the last line is the sum of all.</p>\n",
            report.rows.len() - ROWS
        );
    }
    if let Some(parts) = report.total.saved_by_waiting(|g| format!("{g:.2} g")) {
        text += &format!("<p>Saved {}.</p>\n", escaped(&parts));
    }
    text + &format!("<p>SCI: {}.</p>\n", escaped(&report.total.sci_note))
}

fn completeness(report: &ReportView) -> String {
    let whole = &report.completeness;
    let mut text = format!(
        "<p>{} of {} hours have energy; {:.1} J are recorded without hourly emissions so far, and are in all figures. {:.2} % of the \
         energy does not come from a continuously read counter, {:.2} % is unattributed.</p>\n",
        whole.hours_with_energy,
        whole.hours,
        whole.unsettled_j,
        report.total.estimated_pct,
        if report.total.energy_j > 0.0 {
            100.0 * report.total.energy_unattributed_j / report.total.energy_j
        } else {
            0.0
        },
    );
    text += "<p>Jobs + idle + unattributed = counter + integrated + difference, in millijoules, over the blocks of \
             this time. A block that was closed up to ten minutes after a full hour belongs to the hour before, with all \
             of its energy:</p>\n";
    let columns = ["device", "jobs", "idle", "unattributed", "counter", "integrated", "difference"];
    let balance = |d: &DeviceView| {
        let counter = d.counter_mj.map_or_else(|| "none".to_owned(), |mj| mj.to_string());
        let [jobs, idle, unattributed] = [d.jobs_mj, d.idle_mj, d.unattributed_mj].map(|mj| mj.to_string());
        let (integrated, difference) = (d.integrated_mj.to_string(), d.difference_mj.to_string());
        vec![escaped(&d.device), jobs, idle, unattributed, counter, integrated, difference]
    };
    text += &table_of("Ledger against counters", &columns, whole.devices.iter().map(balance));
    if whole.gaps.is_empty() {
        return text + "<p>No gaps.</p>\n";
    }
    let gap = |gap: &GapView| {
        let energy = gap.energy_j.map_or_else(|| "unknown".to_owned(), |j| format!("{j:.1}"));
        vec![escaped(&gap.device), second(gap.from), second(gap.to), energy, escaped(&gap.filled)]
    };
    text += &table_of("Gaps", &["gap of", "from", "to", "J", "filled by"], whole.gaps.iter().take(ROWS).map(gap));
    text + &left_out(whole.gaps.len(), ROWS)
}

/// Returns a note on the number of items that a list with `shown` of `all` items leaves out; empty if there are none.
fn left_out(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("<p>{more} more are in the JSON.</p>\n"),
    }
}

fn second(at: DateTime<Utc>) -> String {
    at.format("%F %T").to_string()
}

fn versions(report: &ReportView) -> String {
    let version = &report.version;
    let last = version.last_restated_at.map_or_else(|| "never".to_owned(), second);
    let mut text = format!(
        "<p>Highest version of an hour: {}. {} settlements; {} hours were settled more than once, the last time: {last}. \
         An hour’s emissions changed {} time(s) by more than {} %.</p>\n",
        version.highest,
        version.settlements,
        version.resettled_hours,
        version.restatements.len() as u64 + version.restatements_left_out,
        version.threshold_pct
    );
    if version.restatements.is_empty() {
        return text;
    }
    let columns = ["hour", "kind", "version", "at", "g before", "g after", "why"];
    let restatement = |r: &RestatementView| {
        let (hour, grams) = (r.hour.format("%F %R").to_string(), [r.before_g, r.after_g].map(|g| format!("{g:.3}")));
        let [before, after] = grams;
        vec![hour, r.kind.to_string(), r.version.to_string(), second(r.at), before, after, escaped(&r.reason)]
    };
    text += &table_of("Restatements", &columns, version.restatements.iter().take(RESTATEMENTS).map(restatement));
    text + &left_out(version.restatements.len(), RESTATEMENTS)
}

fn corrections(report: &ReportView) -> String {
    if report.corrections.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    let columns = ["entry", "at", "who", "intervals", "J", "of", "given to", "why"];
    let correction = |made: &CorrectionView| {
        let (entry, intervals, energy) = (made.entry.to_string(), made.intervals.to_string(), made.energy_j);
        let [who, of, given_to, why] = [&made.who, &made.of, &made.given_to, &made.why].map(|text| escaped(text));
        vec![entry, second(made.at), who, intervals, format!("{energy:.1}"), of, given_to, why]
    };
    "<p>These intervals had another owner at first; the figures above are corrected.</p>\n".to_owned()
        + &table_of("Corrections", &columns, report.corrections.iter().take(ROWS).map(correction))
        + &left_out(report.corrections.len(), ROWS)
}

fn method(report: &ReportView) -> String {
    let method = &report.method;
    let mut text = pairs([
        ("Boundary", method.boundary.clone()),
        ("Energy", method.energy.to_owned()),
        ("Emissions", method.carbon.to_owned()),
        ("Uncertainty", method.uncertainty.to_owned()),
        ("Embodied", method.embodied.clone()),
        ("Savings", method.savings.to_owned()),
        ("SCI", method.sci.to_owned()),
        ("Intensities of", report.describe_sources()),
        (
            "Written by",
            format!("wattune {}, method {}, {}", method.software, method.version, report.made_at.format("%F %TZ")),
        ),
    ]);
    for terms in &report.terms {
        text += &pairs([(
            "Terms",
            format!(
                "since {}: {}wattune {}, method {}, settings {}, {}",
                terms.since.format("%F %TZ"),
                if terms.node.is_empty() { String::new() } else { format!("node {}, ", terms.node) },
                terms.software,
                terms.method,
                terms.settings,
                terms.clock
            ),
        )]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use chrono::TimeDelta;

    use super::*;
    use wattune_core::domain::{DeviceId, SignalKind, Slot};
    use wattune_core::ledger::Share;
    use wattune_core::ledger::report::{
        Correction, Gap, Grouping, LedgerData, ReportRequest, Restatement, Version, build,
    };
    use wattune_core::units::{Micrograms, Millijoules};

    #[test]
    fn lists_state_the_number_of_items_that_they_leave_out() {
        let at = |second| DateTime::UNIX_EPOCH + TimeDelta::seconds(second);
        let slot = |from, to| Slot::new(at(from), at(to)).expect("from < to");
        let device = DeviceId::new("GPU-0").expect("an id");
        let gap = |n| Gap {
            device: device.clone(),
            slot: slot(n, n + 1),
            is_rolled_up: false,
            energy: Ok(Millijoules::ZERO),
        };
        let restatement = Restatement {
            hour: at(0),
            kind: SignalKind::Average,
            version: 2,
            at: at(3600),
            reason: "new intensities".into(),
            before: Micrograms::new(1),
            after: Micrograms::new(2),
        };
        let correction = Correction {
            entry: 1,
            at: at(3600),
            who: "ada".into(),
            why: "a test".into(),
            from: Share::Idle,
            to: Share::Unattributed,
            intervals: 1,
            energy: Millijoules::ZERO,
        };
        let data = LedgerData {
            periods: Vec::new(),
            jobs: Vec::new(),
            holders: BTreeSet::new(),
            devices: Vec::new(),
            gaps: (0..501).map(gap).collect(),
            terms: Vec::new(),
            sources: Vec::new(),
            synthetic: false,
            first_seen: BTreeMap::new(),
            last_seen: BTreeMap::new(),
            recorded_span: None,
            hours_with_energy: 0,
            unsettled: Millijoules::ZERO,
            version: Version { restatements: vec![restatement; 52], ..Version::default() },
            corrections: vec![correction; 503],
        };
        let (by, unit, restated_by_pct) = (Grouping::Job, None, 5.0);
        let request = ReportRequest { by, span: slot(0, 3600), unit, restated_by_pct, now: at(3600) };
        let page = html(&ReportView::of(&build(request, data)));
        for more in 1..=3 {
            assert_eq!(page.matches(&format!("<p>{more} more are in the JSON.</p>")).count(), 1, "{more}");
        }
    }

    #[test]
    fn a_month_ends_where_the_next_one_begins() {
        let months = ["2026-01", "2026-02", "2026-03"].map(|key| days_of(key, "2026-01"));
        assert_eq!(months, [Some((0.0, 31.0)), Some((31.0, 59.0)), Some((59.0, 90.0))]);
        assert_eq!(days_of("2026-03-02", "2026-02-27"), Some((3.0, 4.0)));
        assert_eq!(days_of("total", "2026-01"), None);
    }
}
