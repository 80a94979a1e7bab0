//! Renders the rows of results as a table and CSV.

use crate::cli::output::to_csv;
use crate::reports::no_formula;
use wattune_lab::bandit::{HistoryRow, Report, SummaryRow, mean_of};

/// Renders CSV with a header line and a line per row: the history's rows if there is one, otherwise the summary's.
pub(super) fn comma_separated(report: &Report) -> anyhow::Result<Vec<u8>> {
    match &report.history {
        Some(history) => to_csv(history.iter().cloned().map(|row| HistoryRow {
            workload: no_formula(row.workload),
            gpu: no_formula(row.gpu),
            group: row.group.map(no_formula),
            ..row
        })),
        None => to_csv(report.summary.iter().cloned().map(|row| SummaryRow {
            workload: no_formula(row.workload),
            gpu: no_formula(row.gpu),
            group: row.group.map(no_formula),
            ..row
        })),
    }
}

/// Groups rows that differ only in their seeds; groups of one job are adjacent, in order of first appearance.
pub(super) fn by_policy(summary: &[SummaryRow]) -> Vec<Vec<&SummaryRow>> {
    let same = |a: &SummaryRow, b: &SummaryRow| {
        (a.policy, &a.workload, &a.gpu, &a.group) == (b.policy, &b.workload, &b.gpu, &b.group)
    };
    let mut found: Vec<Vec<&SummaryRow>> = Vec::new();
    let mut jobs: Vec<String> = Vec::new();
    for row in summary {
        match found.iter_mut().find(|rows| same(rows[0], row)) {
            Some(rows) => rows.push(row),
            None => found.push(vec![row]),
        }
        let job = job(row);
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    found.sort_by_cached_key(|rows| jobs.iter().position(|name| *name == job(rows[0])));
    found
}

/// Returns the most frequent final choice over seeds: first the batch size, second the power limit in watts, third the
/// fraction of seeds that ended with this choice.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub(super) fn most_frequent_choice(rows: &[&SummaryRow]) -> (u64, f64, f64) {
    let count = |row: &SummaryRow| {
        let same = |other: &&&SummaryRow| {
            (other.final_batch_size, other.final_power_limit_w) == (row.final_batch_size, row.final_power_limit_w)
        };
        rows.iter().filter(same).count()
    };
    let most = rows.iter().map(|row| count(row)).max().unwrap_or_default();
    let most_frequent_choice = rows.iter().find(|row| count(row) == most).unwrap_or(&rows[0]);
    (most_frequent_choice.final_batch_size, most_frequent_choice.final_power_limit_w, most as f64 / rows.len() as f64)
}

/// Returns the name of a row's job: GPU, workload and group.
pub(super) fn job(row: &SummaryRow) -> String {
    named(&row.gpu, &row.workload, row.group.as_deref())
}

fn named(gpu: &str, workload: &str, group: Option<&str>) -> String {
    format!("{gpu} {workload}{}", group.map(|group| format!(" group {group}")).unwrap_or_default())
}

/// Renders the means over seeds by job and policy, then the history, if the report has one, and the notes on the
/// traces.
pub(super) fn table(report: &Report) -> String {
    let mut text = format!(
        "{:44} {:8} {:>6} {:>14} {:>13}  {}\n",
        "job", "policy", "seeds", "cost", "regret, runs", "final choice, and of how many seeds"
    );
    let mut last = None;
    for rows in by_policy(&report.summary) {
        let job = job(rows[0]);
        if last.as_ref().is_some_and(|last| *last != job) {
            text.push('\n');
        }
        let (batch_size, limit, share) = most_frequent_choice(&rows);
        text += &format!(
            "{job:44} {:8} {:>6} {:>14.4e} {:>13.2}  {batch_size} at {limit} W, {:.0} %\n",
            rows[0].policy,
            rows.len(),
            mean_of(&rows, |row| row.cumulative_cost),
            mean_of(&rows, |row| row.cumulative_regret_runs),
            100.0 * share
        );
        last = Some(job);
    }
    if let Some(history) = &report.history {
        text += &format!(
            "\n{:44} {:8} {:>6} {:>10} {:>10} {:>7} {:>8} {:>12} {:>10} {:>12}\n",
            "job", "policy", "seed", "recurrence", "batch size", "limit W", "reached", "energy J", "time s", "cost"
        );
        history.iter().for_each(|row| text += &line(row));
    }
    if !report.notes.is_empty() {
        text.push('\n');
        report.notes.iter().for_each(|note| text += &format!("{note}\n"));
    }
    text
}

fn line(row: &HistoryRow) -> String {
    format!(
        "{:44} {:8} {:>6} {:>10} {:>10} {:>7} {:>8} {:>12.0} {:>10.1} {:>12.0}\n",
        named(&row.gpu, &row.workload, row.group.as_deref()),
        row.policy,
        row.seed,
        row.recurrence,
        row.batch_size,
        row.power_limit_w,
        if row.reached { "yes" } else { "no" },
        row.energy_j,
        row.time_s,
        row.cost
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_csv_are_no_formulas() {
        let summary = SummaryRow {
            policy: "zeus",
            workload: "=d/n".to_owned(),
            gpu: "+gpu".to_owned(),
            group: Some("@a".to_owned()),
            seed: 1,
            cumulative_cost: 2.0,
            cumulative_regret_runs: 0.5,
            final_batch_size: 8,
            final_power_limit_w: 250.0,
        };
        let run = HistoryRow {
            policy: "zeus",
            workload: summary.workload.clone(),
            gpu: summary.gpu.clone(),
            first_gpu: summary.gpu.clone(),
            group: summary.group.clone(),
            seed: 1,
            recurrence: 1,
            batch_size: 8,
            power_limit_w: 250.0,
            reached: true,
            energy_j: 1.0,
            time_s: 1.0,
            cost: 2.0,
            oracle_runs: 1.0,
        };
        for history in [None, Some(vec![run])] {
            let report = Report { summary: vec![summary.clone()], history, notes: Vec::new() };
            let csv = String::from_utf8(comma_separated(&report).expect("written")).expect("UTF-8");
            assert!(csv.contains("\nzeus,'=d/n,'+gpu,'@a,1,"), "{csv}");
        }
    }
}
