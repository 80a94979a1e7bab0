//! A report as one page: figures with their states, plots, then the auditor's details.

use super::document::{Mark, Plot, document, escaped};
use super::view::{ReportRow, ReportView};

/// The maximum number of rows in the table; JSON and CSV have them all.
const ROWS: usize = 500;
/// The maximum number of bars in a plot.
const BARS: usize = 24;

/// Renders the page.
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

fn grams(grams: Option<f64>) -> String {
    match grams {
        Some(g) if g.abs() >= 1e4 => format!("{:.2} kg", g / 1e3),
        Some(g) => format!("{g:.2} g"),
        None => "unknown".to_owned(),
    }
}

fn summary(report: &ReportView) -> String {
    let total = &report.total;
    let declared = |grams_of: Option<f64>, what: &str| grams_of.map_or_else(|| what.to_owned(), |g| grams(Some(g)));
    let generated = if report.synthetic { "; from generated intensities, not a real grid's" } else { "" };
    let states = format!(
        "{} — final {:.1} %, provisional {:.1} %, forecast {:.1} %, unknown {:.1} %{generated}",
        total.state, total.final_pct, total.provisional_pct, total.forecast_pct, total.unknown_pct
    );
    pairs([
        (
            "Energy",
            format!("{:.4} kWh ({:.4} to {:.4})", total.energy_kwh, total.energy_low_kwh, total.energy_high_kwh),
        ),
        (
            "Emissions, location-based, in CO2 equivalent",
            format!("{} ({} to {})", grams(total.carbon_g), grams(total.carbon_low_g), grams(total.carbon_high_g)),
        ),
        (
            "Mean intensity",
            total.mean_intensity_g_per_kwh.map_or_else(|| "unknown".into(), |i| format!("{i:.1} gCO2e/kWh")),
        ),
        ("State", states),
        (
            "With node factor and PUE",
            format!("{:.4} kWh, {}", total.facility_energy_kwh, grams(total.facility_carbon_g)),
        ),
        ("Market-based", declared(total.market_based_carbon_g, "no contract declared for the whole time")),
        ("By marginal intensities, a separate account", declared(total.marginal_carbon_g, "no such source")),
        ("Embodied", declared(total.embodied_g, "not declared")),
        ("Saved, compared with the original limit", total.saved(|g| grams(Some(g)))),
    ])
}

/// Plots energy and emissions: over time as lines, other groupings as bars, the largest first.
fn plots(report: &ReportView) -> String {
    let over_time = matches!(report.by.as_str(), "day" | "month");
    if report.rows.is_empty() {
        return "<p>No energy was recorded in this time.</p>\n".to_owned();
    }
    if !over_time {
        return bars(report);
    }
    let step = if report.by == "day" { 1.0 } else { 30.0 };
    let mut plot = Plot::new("days since the beginning", "kWh").beside("g/kWh");
    let first = report.rows.first().map(|row| row.key.clone()).unwrap_or_default();
    let day = |row: &ReportRow| {
        let date = |key: &str| format!("{key}-01")[..10].parse::<chrono::NaiveDate>().ok();
        date(&row.key).zip(date(&first)).map_or(0.0, |(at, first)| (at - first).num_days() as f64)
    };
    let steps = |value: &dyn Fn(&ReportRow) -> Option<f64>| -> Vec<(f64, f64)> {
        let of = |row: &ReportRow| value(row).map(|v| [(day(row), v), (day(row) + step, v)]);
        report.rows.iter().filter_map(of).flatten().collect()
    };
    plot.line("energy", steps(&|row| Some(row.energy_kwh)), Mark::Line);
    plot.line("of it idle", steps(&|row| Some(row.energy_idle_j / 3.6e6)), Mark::Thin);
    plot.line_beside("mean intensity", steps(&|row| row.mean_intensity_g_per_kwh));
    format!("<figure>{}</figure>\n", plot.svg(&format!("Energy and mean intensity by {}", report.by)))
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
        let figures = format!("{:.3} kWh, {}", row.energy_kwh, grams(row.carbon_g));
        svg += &format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n", 238.0 + width, y + 12.0, escaped(&figures));
    }
    format!("<figure>{svg}</svg></figure>\n")
}

const TABLE_END: &str = "</tbody></table></div>\n";

/// Returns the head of a table that may be wider than the window, with a name for keyboard and screen-reader users.
fn table_of(name: &str, columns: &[&str]) -> String {
    let columns: String = columns.iter().map(|column| format!("<th scope=\"col\">{column}")).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table>\n<thead><tr>{columns}</tr></thead>\n\
         <tbody>\n"
    )
}

fn table(report: &ReportView) -> String {
    let mut text = table_of(
        "Rows",
        &[
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
        ],
    );
    for row in report.rows.iter().take(ROWS).chain([&report.total]) {
        let figure = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("<td>{value:.digits$}"),
            None => "<td>–".to_owned(),
        };
        let error = if row.energy_kwh > 0.0 { 100.0 * (row.energy_high_kwh / row.energy_kwh - 1.0) } else { 0.0 };
        let named = match &row.job_id {
            Some(id) => format!("{} <small>{}</small>", escaped(&row.shown()), escaped(id)),
            None => escaped(&row.shown()),
        };
        text += &format!("<tr><td>{named}{}<td>{}", figure(Some(row.energy_kwh), 4), row.state);
        text += &[
            figure(Some(error), 1),
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
            saved(row),
            figure(row.sci_g_per_unit, 4),
        ]
        .concat();
        text += "</tr>\n";
    }
    text += TABLE_END;
    if report.rows.len() > ROWS {
        text += &format!(
            "<p>{} more rows are in the JSON and CSV of this report; the last line is the sum of all.</p>\n",
            report.rows.len() - ROWS
        );
    }
    text + &format!("<p>SCI: {}.</p>\n", escaped(&report.total.sci_note))
}

/// Returns the saving, with the number of jobs that it covers if it does not cover all.
fn saved(row: &ReportRow) -> String {
    match row.saved_g {
        Some(g) if row.saved_of_jobs == row.jobs => format!("<td>{g:.2}"),
        Some(g) => format!("<td>{g:.2} <small>{} of {} jobs</small>", row.saved_of_jobs, row.jobs),
        None => "<td>–".to_owned(),
    }
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
    text += "<p>Jobs + idle + unattributed = counter + integrated + difference, in millijoules, over the blocks closed in \
             this time:</p>\n";
    text += &table_of("Books", &["device", "jobs", "idle", "unattributed", "counter", "integrated", "difference"]);
    for d in &whole.devices {
        let counter = d.counter_mj.map_or_else(|| "none".to_owned(), |mj| mj.to_string());
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{counter}<td>{}<td>{}</tr>\n",
            escaped(&d.device),
            d.jobs_mj,
            d.idle_mj,
            d.unattributed_mj,
            d.integrated_mj,
            d.difference_mj
        );
    }
    text += TABLE_END;
    if whole.gaps.is_empty() {
        return text + "<p>No gaps.</p>\n";
    }
    text += &table_of("Gaps", &["gap of", "from", "to", "J", "filled by"]);
    for gap in whole.gaps.iter().take(ROWS) {
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n",
            escaped(&gap.device),
            gap.from.format("%F %T"),
            gap.to.format("%F %T"),
            gap.energy_j.map_or_else(|| "unknown".to_owned(), |j| format!("{j:.1}")),
            escaped(&gap.filled)
        );
    }
    text + TABLE_END
}

fn versions(report: &ReportView) -> String {
    let version = &report.version;
    let last = version.last_restated_at.map_or_else(|| "never".to_owned(), |at| at.format("%F %T").to_string());
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
    text += &table_of("Restatements", &["hour", "kind", "version", "at", "g before", "g after", "why"]);
    for r in version.restatements.iter().take(50) {
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{:.3}<td>{:.3}<td>{}</tr>\n",
            r.hour.format("%F %R"),
            r.kind,
            r.version,
            r.at.format("%F %T"),
            r.before_g,
            r.after_g,
            escaped(&r.reason)
        );
    }
    text + TABLE_END
}

fn corrections(report: &ReportView) -> String {
    if report.corrections.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    let mut text = "<p>These intervals had another owner at first; the figures above are corrected.</p>\n".to_owned();
    text += &table_of("Corrections", &["entry", "at", "who", "intervals", "J", "of", "given to", "why"]);
    for made in report.corrections.iter().take(ROWS) {
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{:.1}<td>{}<td>{}<td>{}</tr>\n",
            made.entry,
            made.at.format("%F %T"),
            escaped(&made.who),
            made.intervals,
            made.energy_j,
            escaped(&made.of),
            escaped(&made.given_to),
            escaped(&made.why)
        );
    }
    text + TABLE_END
}

fn method(report: &ReportView) -> String {
    let method = &report.method;
    let sources: Vec<String> = report.sources.iter().map(|s| format!("{} ({} h)", s.description, s.hours)).collect();
    let mut text = pairs([
        ("Boundary", method.boundary.clone()),
        ("Energy", method.energy.to_owned()),
        ("Emissions", method.carbon.to_owned()),
        ("Uncertainty", method.uncertainty.to_owned()),
        ("Embodied", method.embodied.clone()),
        ("Savings", method.savings.to_owned()),
        ("SCI", method.sci.to_owned()),
        ("Intensities of", sources.join("; ")),
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
