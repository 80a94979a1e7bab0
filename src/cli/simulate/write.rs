//! Renders the rows of results as a table, JSON and CSV.

use serde::Serialize;

use crate::cli::output::{to_csv, to_json};
use crate::reports::no_formula;
use wattune_lab::study::{Mean, Row, means};

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [Row],
    means: Vec<Mean>,
}

/// Renders JSON, `{"rows": […], "means": […]}`, with the means over starts and seeds.
pub(super) fn json(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    to_json(&Report { rows, means: means(rows) })
}

/// Renders CSV with a header line and a line per row.
pub(super) fn comma_separated(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    to_csv(rows.iter().cloned().map(|row| Row {
        gpu: no_formula(row.gpu),
        workload: no_formula(row.workload),
        grid: no_formula(row.grid),
        ..row
    }))
}

/// Renders the means, if there are several starts or seeds, then the rows by job, start and budget.
pub(super) fn table(rows: &[Row]) -> String {
    let over_starts = means(rows);
    let mut text = String::new();
    if over_starts.len() < rows.len() {
        text += &format!("Means over {} starts and seeds.\n", over_starts.first().map_or(0, |m| m.rows));
        text += &head("");
        let mut last = None;
        for mean in &over_starts {
            text += between(&mut last, mean.job);
            text += &line("", mean, &over_starts);
        }
        text.push('\n');
    }
    text += &head("start");
    let mut last = None;
    for row in rows {
        text += between(&mut last, (row.job, row.start));
        let start = row.start.format("%F %R").to_string();
        // The means over a single row are that row's values.
        text.extend(means(std::slice::from_ref(row)).iter().map(|own| line(&start, own, &over_starts)));
    }
    text
}

/// Returns a line feed if `group` differs from the `last` one, otherwise an empty text. Updates `last`.
fn between<T: PartialEq>(last: &mut Option<T>, group: T) -> &'static str {
    let new = last.as_ref().is_some_and(|last| *last != group);
    *last = Some(group);
    if new { "\n" } else { "" }
}

fn head(start: &str) -> String {
    format!(
        "{start:16} {:42} {:16} {:>8}  {:12} {:>9} {:>8} {:>9} {:>8} {:>9}\n",
        "job", "grid", "budget %", "policy", "carbon %", "time %", "energy", "timing", "headroom"
    )
}

/// Returns the name of a mean's job, with its number if another job among `all` has the same name.
pub(super) fn job_name(mean: &Mean, all: &[Mean]) -> String {
    let name = |of: &Mean| format!("{} {}/{}", of.gpu, of.workload, of.batch_size);
    let own = name(mean);
    let is_repeated = all.iter().any(|other| other.job != mean.job && name(other) == own);
    if is_repeated { format!("{own} #{}", mean.job) } else { own }
}

/// Renders a line of the table; `all` has the jobs of all lines.
fn line(start: &str, mean: &Mean, all: &[Mean]) -> String {
    let Mean { grid, policy, .. } = mean;
    let job = job_name(mean, all);
    let shown = |number: Option<f64>| number.map_or_else(|| "-".into(), |n| format!("{n:.2}"));
    let (carbon, energy) = (shown(mean.carbon_reduction_pct), shown(mean.energy_effect_pct));
    let timing = shown(mean.timing_effect_pct);
    let time = mean.time_increase_pct.map_or_else(|| "-".into(), |t| format!("{t:+.2}"));
    let budget = mean.budget_pct.map_or_else(|| "-".into(), |b| format!("{b}"));
    let headroom = mean.captured_headroom.map_or_else(|| "-".into(), |h| format!("{:.1} %", 100.0 * h));
    // Positive numbers mean less carbon (a saving) in the carbon column, but more time (a cost) in the time column.
    format!(
        "{start:16} {job:42} {grid:16} {budget:>8}  {policy:12} {carbon:>9} {time:>8} {energy:>9} {timing:>8} \
         {headroom:>9}\n"
    )
}
