//! Rows as a table, JSON and CSV.

use serde::Serialize;

use crate::reports::no_formula;
use wattune_lab::study::{Mean, Row, means};

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [Row],
    means: Vec<Mean>,
}

/// `{"rows": […], "means": […]}`: the means over starts and seeds.
pub(super) fn json(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&Report { rows, means: means(rows) })?;
    text.push(b'\n');
    Ok(text)
}

/// A line for each row under a line of names.
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

/// Rows by job, start and budget; then the means, where there is more than one start or seed.
pub(super) fn table(rows: &[Row]) -> String {
    let means = means(rows);
    let mut text = String::new();
    if means.len() < rows.len() {
        text += &format!("Means over {} starts and seeds.\n", means.first().map_or(0, |m| m.rows));
        text += &head("");
        let mut last = None;
        for mean in &means {
            let group = (&mean.gpu, &mean.workload, mean.batch_size);
            text += between(&mut last, group);
            text += &line("", mean, mean.budget_pct, mean.captured_headroom);
        }
        text.push('\n');
    }
    text += &head("start");
    let mut last = None;
    for row in rows {
        let group = (&row.gpu, &row.workload, row.batch_size, row.start);
        text += between(&mut last, group);
        let start = row.start.format("%F %R").to_string();
        text += &line(&start, row, row.budget_pct, row.captured_headroom);
    }
    text
}

/// An empty line where something new begins.
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

/// The common columns of rows and means.
trait Line {
    fn words(&self) -> (String, &str, &str);
    fn numbers(&self) -> [Option<f64>; 4];
}

impl Line for Row {
    fn words(&self) -> (String, &str, &str) {
        (format!("{} {}/{}", self.gpu, self.workload, self.batch_size), &self.grid, self.policy)
    }

    fn numbers(&self) -> [Option<f64>; 4] {
        [self.carbon_reduction_pct, self.time_increase_pct, self.energy_effect_pct, self.timing_effect_pct]
    }
}

impl Line for Mean {
    fn words(&self) -> (String, &str, &str) {
        (format!("{} {}/{}", self.gpu, self.workload, self.batch_size), &self.grid, self.policy)
    }

    fn numbers(&self) -> [Option<f64>; 4] {
        [self.carbon_reduction_pct, self.time_increase_pct, self.energy_effect_pct, self.timing_effect_pct]
    }
}

fn line(start: &str, line: &impl Line, budget: Option<f64>, headroom: Option<f64>) -> String {
    let (job, grid, policy) = line.words();
    let [carbon, time, energy, timing] = line.numbers();
    let shown = |number: Option<f64>| number.map_or_else(|| "-".into(), |n| format!("{n:.2}"));
    let (carbon, energy, timing) = (shown(carbon), shown(energy), shown(timing));
    let time = time.map_or_else(|| "-".into(), |t| format!("{t:+.2}"));
    let budget = budget.map_or_else(|| "-".into(), |b| format!("{b}"));
    let headroom = headroom.map_or_else(|| "-".into(), |h| format!("{:.1} %", 100.0 * h));
    // Less carbon is shown as what it saves, more time as what it costs.
    format!(
        "{start:16} {job:42} {grid:16} {budget:>8}  {policy:12} {carbon:>9} {time:>8} {energy:>9} {timing:>8} \
         {headroom:>9}\n"
    )
}
