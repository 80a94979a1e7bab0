//! A report as a plain-text table and as Markdown.

use super::view::{ReportRow, ReportView};
use wattune_core::domain::legible;

const HEAD: [&str; 9] = ["row", "kWh", "±%", "gCO2e", "g/kWh", "state", "final %", "unknown %", "estimated %"];

/// Name of a column, and the function that returns a row's value in it.
type Column = (&'static str, fn(&ReportRow) -> Option<String>);

fn three(value: Option<f64>) -> Option<String> {
    value.map(|v| format!("{v:.3}"))
}

/// Returns a row's saving, with the number of jobs that the saving covers unless it covers all.
fn saved(row: &ReportRow) -> Option<String> {
    let of =
        if row.saved_of_jobs == row.jobs { String::new() } else { format!(" ({} of {})", row.saved_of_jobs, row.jobs) };
    three(row.saved_g).map(|g| g + &of)
}

/// Returns the optional columns for which the report has values, such as those that need declared factors.
fn more(view: &ReportView) -> Vec<Column> {
    let all: [Column; 7] = [
        ("marginal g", |row| three(row.marginal_carbon_g)),
        ("market g", |row| three(row.market_based_carbon_g)),
        ("facility kWh", |row| three(Some(row.facility_energy_kwh))),
        ("facility g", |row| three(row.facility_carbon_g)),
        ("embodied g", |row| three(row.embodied_g)),
        ("saved g (jobs)", saved),
        ("SCI g", |row| three(row.sci_g_per_unit)),
    ];
    let facility = view.terms.iter().any(|t| t.node_factor_source.is_some() || t.pue_source.is_some());
    let rows = || view.rows.iter().chain([&view.total]);
    let is_shown = |(name, of): &Column| match *name {
        "facility kWh" | "facility g" => facility,
        _ => rows().any(|row| of(row).is_some()),
    };
    all.into_iter().filter(is_shown).collect()
}

/// Formats a figure with this number of decimal places; a dash stands for an unknown one.
pub(super) fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

fn figures(row: &ReportRow, more: &[Column]) -> Vec<String> {
    let name = match &row.job_id {
        Some(id) => format!("{} {id}", legible(&row.shown())),
        None => legible(&row.shown()),
    };
    let mut cells = vec![
        name,
        format!("{:.4}", row.energy_kwh),
        format!("{:.1}", row.error_pct()),
        figure(row.carbon_g, 2),
        figure(row.mean_intensity_g_per_kwh, 1),
        row.state.to_string(),
        format!("{:.1}", row.final_pct),
        format!("{:.1}", row.unknown_pct),
        format!("{:.1}", row.estimated_pct),
    ];
    cells.extend(more.iter().map(|(_, of)| of(row).unwrap_or_else(|| "–".to_owned())));
    cells
}

fn cells(view: &ReportView) -> Vec<Vec<String>> {
    let more = more(view);
    let head = HEAD.iter().copied().chain(more.iter().map(|(name, _)| *name)).map(str::to_owned).collect();
    let rows = view.rows.iter().chain([&view.total]).map(|row| figures(row, &more));
    std::iter::once(head).chain(rows).collect()
}

/// The maximum number of corrections below the figures; the JSON has them all.
const CORRECTIONS: usize = 20;

/// Returns the notes below the table, one item each.
fn notes(view: &ReportView) -> Vec<String> {
    let (total, whole, version) = (&view.total, &view.completeness, &view.version);
    let generated = if view.synthetic { " from a generator, not a real grid's" } else { "" };
    let mut notes = vec![
        format!("Emissions are location-based, by average intensities{generated}; {}.", states(total)),
        format!("Boundary: {}. Embodied: {}.", view.method.boundary, view.method.embodied),
    ];
    if let Some(simulated) = total.simulated() {
        notes.insert(0, format!("Simulated: {simulated}."));
    }
    let unequal: u64 = whole.devices.iter().map(|d| d.unequal_blocks).sum();
    let balance = match unequal {
        0 => "jobs + idle + unattributed equals the counters' increase, to the millijoule".to_owned(),
        blocks => format!("the ledger differs from the counters in {blocks} block(s); see the JSON"),
    };
    let covered = match whole.hours_with_energy {
        0 => format!("none of the {} hour(s) has energy in the ledger", whole.hours),
        with => format!("{with} of {} hour(s) have energy", whole.hours),
    };
    let filled: Vec<f64> = whole.gaps.iter().filter_map(|gap| gap.energy_j).collect();
    let lost = match whole.gaps.len() - filled.len() {
        0 => String::new(),
        times => format!("{times} gap(s) with unknown energy, which is in no figure here; "),
    };
    if whole.hours_with_energy == 0 && whole.devices.is_empty() {
        notes.push(format!("Completeness: {covered}; {lost}there is nothing to compare with counters."));
    } else {
        notes.push(format!(
            "Completeness: {covered}; {balance}; {} gap(s) with {:.0} J, filled from the counters; {lost}{:.0} J not settled yet.",
            filled.len(),
            // The sum of no numbers would be −0, so the fold begins with 0.
            filled.iter().fold(0.0, |sum, j| sum + j),
            whole.unsettled_j
        ));
    }
    if total.jobs > 0 {
        notes.push(format!(
            "Saved, compared with the original limit: {}; not part of the emissions above.",
            total.saved(|g| format!("{g:.2} g"))
        ));
        if let Some(parts) = total.saved_by_waiting(|g| format!("{g:.2} g")) {
            notes.push(format!("Saved {parts}."));
        }
    }
    let last = version.last_restated_at.map_or_else(|| "never".to_owned(), |at| at.format("%F %TZ").to_string());
    notes.push(format!(
        "Version: {} settlements (computed emissions of an hour), at most {} of one hour; last computed again: {last}; an hour's emissions changed {} time(s) by more than {} %.",
        version.settlements,
        version.highest,
        version.restatements.len() as u64 + version.restatements_left_out,
        version.threshold_pct
    ));
    for made in view.corrections.iter().take(CORRECTIONS) {
        notes.push(format!(
            "Corrected in entry {} at {} by {}: {} interval(s) with {:.0} J of {} given to {}: {}",
            made.entry,
            made.at.format("%F %TZ"),
            made.who,
            made.intervals,
            made.energy_j,
            made.of,
            made.given_to,
            made.why
        ));
    }
    if view.corrections.len() > CORRECTIONS {
        notes.push(format!("{} more corrections are in the JSON.", view.corrections.len() - CORRECTIONS));
    }
    if !view.sources.is_empty() {
        notes.push(format!("Intensities: {}.", view.describe_sources()));
    }
    if let Some(terms) = view.terms.last() {
        notes.push(format!(
            "wattune {}, method {}, settings {}{}.",
            terms.software,
            terms.method,
            &terms.settings[..16.min(terms.settings.len())],
            if terms.node.is_empty() { String::new() } else { format!(", node {}", terms.node) }
        ));
    }
    if total.sci_note != "no functional unit was declared" {
        notes.push(format!("SCI: {}.", total.sci_note));
    }
    notes
}

fn states(row: &ReportRow) -> String {
    format!(
        "final {:.0} J ({:.1} %), provisional {:.0} J ({:.1} %), forecast {:.0} J ({:.1} %), unknown {:.0} J ({:.1} %)",
        row.final_j,
        row.final_pct,
        row.provisional_j,
        row.provisional_pct,
        row.forecast_j,
        row.forecast_pct,
        row.unknown_j,
        row.unknown_pct
    )
}

fn title(view: &ReportView) -> String {
    format!("{} to {} UTC, by {}", view.from.format("%F %R"), view.to.format("%F %R"), view.by)
}

/// Returns the lines of a table whose columns have the same width in all rows; `is_right` chooses those whose cells are
/// aligned to the right.
pub(super) fn aligned<R: AsRef<[String]>>(rows: &[R], is_right: impl Fn(usize) -> bool) -> Vec<String> {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if is_right(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Renders the report as a plain-text table, with numbers aligned to the right, and notes below.
pub fn table(view: &ReportView) -> String {
    let mut lines = aligned(&cells(view), |column| column > 0);
    // The last column is aligned to the right, so that each line has the width of the table.
    let rule = "-".repeat(lines[0].chars().count());
    lines.insert(lines.len() - 1, rule);
    let notes = notes(view).join("\n");
    format!("{}\n\n{}\n\n{notes}\n", title(view), lines.join("\n"))
}

/// Renders the report as Markdown.
pub fn markdown(view: &ReportView) -> String {
    let mut text = format!("# Energy and carbon, {}\n\n", title(view));
    for (place, row) in cells(view).iter().enumerate() {
        let row: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        text += &format!("| {} |\n", row.join(" | "));
        if place == 0 {
            text += &format!("|---|{}\n", "--:|".repeat(row.len() - 1));
        }
    }
    text.push('\n');
    for note in notes(view) {
        text += &format!("- {}\n", plain(&note));
    }
    text
}

/// Escapes text for Markdown, on one line.
pub(super) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in legible(text).chars() {
        match c {
            '<' => safe += "&lt;",
            '&' => safe += "&amp;",
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => safe.extend(['\\', c]),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchecked_old_names_stay_on_one_line() {
        assert_eq!(plain("a\n# b | c\u{1b}[2J\u{202e}d\u{0}"), "a�# b \\| c�\\[2J�d�");
    }
}
