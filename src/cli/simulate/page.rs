//! Renders the rows of results as a self-contained page with plots: no script, nothing to load, for light and dark
//! display.

use super::write::job_name;
use crate::reports::document::{Mark, Plot, document, escaped};
use wattune_core::domain::CarbonSeries;
use wattune_lab::grid::RecordedGrid;
use wattune_lab::replay::{Action, Job, Leg, Replayed};
use wattune_lab::study::{CaseResult, Mean, means};

/// Renders a table of means and plots for each job: carbon saved against time added, and, for runs from the first
/// start, power limits and carbon intensity over time.
pub(super) fn page(jobs: &[Job], grid: &RecordedGrid, found: &[CaseResult]) -> String {
    let rows: Vec<_> = found.iter().map(|f| f.row.clone()).collect();
    let means = means(&rows);
    let mut body = format!("<h1>Carbon and time on {}</h1>\n", escaped(&grid.name));
    body += "<p>Less carbon and more time than at the largest limit, in percent; means over starts and seeds.</p>\n";
    body += &table(&means);
    for (number, job) in (1_usize..).zip(jobs) {
        let is_repeated = jobs.iter().filter(|other| other.workload == job.workload).count() > 1;
        let number_shown = if is_repeated { format!(" #{number}") } else { String::new() };
        let name = format!("{} on {}{number_shown}", job.workload, job.gpu);
        body += &format!("<h2>{}</h2>\n", escaped(&name));
        let of_job: Vec<&CaseResult> = found.iter().filter(|f| f.row.job == number).collect();
        let own: Vec<&Mean> = means.iter().filter(|m| m.job == number).collect();
        body += &frontier(&own, &of_job, job);
        for f in drawn(&of_job) {
            body += &limits(f, &of_job, job, &grid.actual);
        }
    }
    document("wattune simulate carbon", &body)
}

fn table(means: &[Mean]) -> String {
    let mut text = String::from(
        "<table>\n<tr><th>job<th>budget %<th>policy<th>carbon % less<th>time % more<th>energy effect<th>timing \
         effect<th>captured headroom</tr>\n",
    );
    for m in means {
        let job = escaped(&job_name(m, means));
        let budget = m.budget_pct.map_or_else(|| "–".to_owned(), |b| b.to_string());
        let captured = m.captured_headroom.map_or_else(|| "–".to_owned(), |h| format!("{:.1} %", 100.0 * h));
        let figures = [m.carbon_reduction_pct, m.time_increase_pct, m.energy_effect_pct, m.timing_effect_pct];
        let figures = figures.map(|figure| figure.map_or_else(|| "<td>–".to_owned(), |f| format!("<td>{f:.2}")));
        text += &format!("<tr><td>{job}<td>{budget}<td>{}{}<td>{captured}</tr>\n", m.policy, figures.concat());
    }
    text + "</table>\n"
}

/// Plots carbon saved against time added for a job: each policy's means and, for the first policy that has a frontier,
/// the runs on it (no other setting is better in both). `means` are those of the job.
fn frontier(means: &[&Mean], of_job: &[&CaseResult], job: &Job) -> String {
    let mut plot = Plot::new("more time, %", "less carbon, %");
    let slowest = means.iter().filter_map(|m| m.time_increase_pct).fold(0.0, f64::max);
    if let Some((f, curve)) = of_job.iter().find_map(|f| Some((f, f.frontier.as_ref()?))) {
        let near = curve.best().iter().filter(|run| run.time_increase_pct <= 1.5 * slowest.max(1.0));
        let points = near.map(|run| (run.time_increase_pct, run.carbon_reduction_pct)).collect();
        plot.line(&format!("{}, all its settings", f.row.policy), points, Mark::Thin);
    }
    let mut policies: Vec<&str> = Vec::new();
    for m in means {
        if !policies.contains(&m.policy) {
            policies.push(m.policy);
        }
    }
    for policy in policies {
        let of_policy = means.iter().filter(|m| m.policy == policy);
        let points = of_policy.filter_map(|m| m.time_increase_pct.zip(m.carbon_reduction_pct)).collect();
        plot.line(policy, points, Mark::Points);
    }
    plot.svg(&format!("Carbon over time of {} on {}", job.workload, job.gpu))
}

/// Returns the runs whose limits are drawn: of the first start with emissions, by wattune, or else by another policy
/// that has runs.
fn drawn<'a>(of_job: &[&'a CaseResult]) -> Vec<&'a CaseResult> {
    let first = of_job.iter().find(|f| !f.row.no_carbon).map(|f| f.row.start);
    let runs = || of_job.iter().copied().filter(move |f| Some(f.row.start) == first && f.replayed.is_some());
    let wattune = runs().find(|f| f.row.policy == "wattune");
    let within_budget = || runs().rfind(|f| f.row.budget_pct.is_some());
    let policy = wattune.or_else(within_budget).or_else(|| runs().next_back()).map(|f| f.row.policy);
    runs().filter(|f| Some(f.row.policy) == policy).collect()
}

/// Plots three lines over time: a run's limits, the limits of policy clairvoyant (the best possible run), and the
/// carbon intensity.
fn limits(found: &CaseResult, of_job: &[&CaseResult], job: &Job, actual: &CarbonSeries) -> String {
    let Some(replayed) = &found.replayed else { return String::new() };
    let row = &found.row;
    let hours = |t: chrono::DateTime<chrono::Utc>| (t - row.start).as_seconds_f64() / 3600.0;
    let mut plot = Plot::new("hours since the start", "limit, W").beside("g/kWh");
    let steps = |run: &Replayed| -> Vec<(f64, f64)> {
        let leg = |leg: &Leg| {
            let limit = limit(job, &leg.action);
            [(hours(leg.slot.start()), limit), (hours(leg.slot.end()), limit)]
        };
        run.legs.iter().flat_map(leg).collect()
    };
    let span = replayed.legs.first().zip(replayed.legs.last());
    let span = span.and_then(|(a, b)| wattune_core::domain::Slot::new(a.slot.start(), b.slot.end()));
    let actual = span.map(|span| actual.within(&span)).unwrap_or_default();
    let intensity = actual
        .points()
        .iter()
        .flat_map(|(slot, i)| [(hours(slot.start()), i.value.get()), (hours(slot.end()), i.value.get())]);
    plot.line_beside("intensity", intensity.collect());
    let same = |f: &&&CaseResult| f.row.policy == "clairvoyant" && f.row.budget_pct == row.budget_pct;
    let bound = of_job.iter().filter(same).find(|f| f.row.start == row.start && f.row.seed == row.seed);
    if let Some(bound) = bound.filter(|_| row.policy != "clairvoyant").and_then(|f| f.replayed.as_ref()) {
        plot.line("clairvoyant", steps(bound), Mark::Thin);
    }
    plot.line(row.policy, steps(replayed), Mark::Line);
    let budget = row.budget_pct.map_or_else(|| "any".to_owned(), |b| b.to_string());
    let start = row.start.format("%F %R");
    let what = format!("Limits of {} with {budget} % more time allowed, from {start}", row.policy);
    format!("<h3>{}</h3>\n{}", escaped(&what), plot.svg(&what))
}

/// Returns the power limit of an action: the mean for a mix of limits, zero for a pause.
fn limit(job: &Job, action: &Action) -> f64 {
    match action {
        Action::Train(shares) => shares.iter().map(|(point, share)| job.limit(*point).get() * share).sum(),
        Action::Checkpoint(point) => job.limit(*point).get(),
        Action::Pause => 0.0,
    }
}
