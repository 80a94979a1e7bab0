//! Renders the rows of results as a table, JSON and CSV.

use serde::Serialize;

use crate::reports::no_formula;
use wattune_lab::study::{Mean, Row, means};

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [Row],
    means: Vec<Mean>,
}

/// Renders JSON, `{"rows": […], "means": […]}`, with the means over starts and seeds.
pub(super) fn json(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&Report { rows, means: means(rows) })?;
    text.push(b'\n');
    Ok(text)
}

/// Renders CSV with a header line and a line per row.
pub(super) fn comma_separated(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        let row = row.clone();
        writer.serialize(Row {
            gpu: no_formula(row.gpu),
            workload: no_formula(row.workload),
            grid: no_formula(row.grid),
            ..row
        })?;
    }
    Ok(writer.into_inner()?)
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
            let group = (&mean.gpu, &mean.workload, mean.batch_size);
            text += between(&mut last, group);
            text += &line("", mean);
        }
        text.push('\n');
    }
    text += &head("start");
    let mut last = None;
    for row in rows {
        let group = (&row.gpu, &row.workload, row.batch_size, row.start);
        text += between(&mut last, group);
        let start = row.start.format("%F %R").to_string();
        // The means over a single row are that row's values.
        text.extend(means(std::slice::from_ref(row)).iter().map(|own| line(&start, own)));
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

fn line(start: &str, mean: &Mean) -> String {
    let Mean { gpu, workload, batch_size, grid, policy, .. } = mean;
    let job = format!("{gpu} {workload}/{batch_size}");
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
