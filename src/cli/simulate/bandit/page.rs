//! Renders the rows of results as a self-contained page with plots: no script, nothing to load, for light and dark
//! display.

use std::collections::BTreeMap;

use super::write::{by_policy, job, most_frequent_choice};
use crate::reports::document::{Mark, Plot, document, escaped};
use wattune_lab::bandit::{HistoryRow, Report, SummaryRow, mean_of};

/// Renders a table of means and, for each job, the cumulative regret over recurrences and the batch sizes that the runs
/// of the first seed used.
pub(super) fn page(report: &Report) -> String {
    let policies = by_policy(&report.summary);
    let mut body = String::from("<h1>Batch sizes of recurring jobs</h1>\n");
    body += "<p>Regret is what all runs cost beyond the oracle's expected cost, in its expected runs; means over seeds.</p>\n";
    body += &table(&policies);
    report.notes.iter().for_each(|note| body += &format!("<p>{}</p>\n", escaped(note)));
    let mut jobs: Vec<String> = policies.iter().map(|rows| job(rows[0])).collect();
    jobs.dedup();
    let history = report.history.as_deref().unwrap_or_default();
    for name in jobs {
        body += &format!("<h2>{}</h2>\n", escaped(&name));
        let (mut regret, mut choices) =
            (Plot::new("recurrence", "cumulative regret, runs"), Plot::new("recurrence", "batch size, log2"));
        for rows in policies.iter().filter(|rows| job(rows[0]) == name) {
            regret.line(rows[0].policy, mean_regret(rows, history), Mark::Line);
            choices.line(rows[0].policy, chosen(rows[0], history), Mark::Points);
        }
        let seed = policies.iter().find(|rows| job(rows[0]) == name).map_or(0, |rows| rows[0].seed);
        let regret = regret.svg(&format!("Cumulative regret over recurrences of {name}"));
        let choices = choices.svg(&format!("Batch sizes chosen over recurrences of {name}, seed {seed}"));
        body += &format!("{regret}<h3>Choices with seed {seed}</h3>\n{choices}");
    }
    document("wattune simulate bandit", &body)
}

fn table(policies: &[Vec<&SummaryRow>]) -> String {
    let mut text = String::from(
        "<table>\n<tr><th>job<th>policy<th>seeds<th>cost, J<th>regret, runs<th>final choice<th>of seeds, %</tr>\n",
    );
    for rows in policies {
        let (batch_size, limit, share) = most_frequent_choice(rows);
        text += &format!(
            "<tr><td>{}<td>{}<td>{}<td>{:.4e}<td>{:.2}<td>{batch_size} at {limit} W<td>{:.0}</tr>\n",
            escaped(&job(rows[0])),
            rows[0].policy,
            rows.len(),
            mean_of(rows, |row| row.cumulative_cost),
            mean_of(rows, |row| row.cumulative_regret_runs),
            100.0 * share
        );
    }
    text + "</table>\n"
}

fn of<'a>(row: &'a SummaryRow, history: &'a [HistoryRow]) -> impl Iterator<Item = &'a HistoryRow> {
    history.iter().filter(|run| {
        (run.policy, &run.workload, &run.first_gpu, &run.group, run.seed)
            == (row.policy, &row.workload, &row.gpu, &row.group, row.seed)
    })
}

/// Returns, for each recurrence, first its number, second the regret up to its end, as a mean over seeds and in runs of
/// the oracle. The last value equals the summary's. The oracle's expected cost is spread evenly over recurrences, so
/// that submissions of unequal length make the line uneven.
#[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
fn mean_regret(rows: &[&SummaryRow], history: &[HistoryRow]) -> Vec<(f64, f64)> {
    let mut spent: BTreeMap<u32, f64> = BTreeMap::new();
    for run in rows.iter().flat_map(|row| of(row, history)) {
        *spent.entry(run.recurrence).or_default() += run.oracle_runs / rows.len() as f64;
    }
    let last = mean_of(rows, |row| row.cumulative_regret_runs);
    let oracle_runs_per_recurrence = (spent.values().sum::<f64>() - last) / spent.len().max(1) as f64;
    let mut sum = 0.0;
    let after = |(recurrence, spent): (u32, f64)| {
        sum += spent - oracle_runs_per_recurrence;
        (f64::from(recurrence), sum)
    };
    spent.into_iter().map(after).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a batch size")]
fn chosen(row: &SummaryRow, history: &[HistoryRow]) -> Vec<(f64, f64)> {
    of(row, history).map(|run| (f64::from(run.recurrence), (run.batch_size as f64).log2())).collect()
}
