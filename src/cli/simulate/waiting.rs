//! `wattune simulate carbon --within`: jobs that may wait, submitted over the time that the traces cover.

use std::fmt::Write;
use std::path::Path;

use anyhow::bail;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::study::{Format, Progress, hours, once, shown, warn};
use crate::cli::output::{check_writable, deliver, to_csv, to_json};
use crate::cli::values::{begin, end};
use crate::reports::no_formula;
use wattune_core::domain::Slot;
use wattune_core::ledger::mean_intensity;
use wattune_core::units::Seconds;
use wattune_lab::grid::{Foresight, RecordedGrid, VisibleGrid};
use wattune_lab::waiting::{
    CalibrationBin, START_POLICIES, StartPolicy, WaitingMean, WaitingRow, WaitingStudy, calibration, start_policy,
    waiting_means,
};

/// Jobs that may wait.
#[derive(Debug, clap::Args)]
pub(super) struct WaitingArgs {
    /// Time for which a job's start may wait: policies then choose starts in place of power limits; several with commas.
    #[arg(
        long,
        value_name = "HOURS",
        value_delimiter = ',',
        value_parser = hours,
        conflicts_with_all = ["power_trace", "start", "starts", "node_cap", "pausable", "suspend", "profiling", "profile_error"]
    )]
    within: Vec<f64>,
    /// Time between two submissions.
    #[arg(long, value_name = "HOURS", default_value = "3", value_parser = hours, requires = "within")]
    submit_every: f64,
    /// The first submission: a date (00:00 UTC) or a time [default: the first time that the traces cover].
    #[arg(long, value_name = "TIME", value_parser = begin, requires = "within")]
    submit_from: Option<DateTime<Utc>>,
    /// The end of submissions: a date (its end) or a time [default: as long as the trace covers the longest job and
    /// there are forecasts].
    #[arg(long, value_name = "TIME", value_parser = end, requires = "within")]
    submit_until: Option<DateTime<Utc>>,
}

impl WaitingArgs {
    /// Returns true if jobs may wait.
    pub(super) fn is_asked(&self) -> bool {
        !self.within.is_empty()
    }
}

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [WaitingRow],
    means: Vec<WaitingMean>,
    calibration: Vec<CalibrationBin>,
}

/// Runs the simulation and writes the rows.
pub(super) fn run(
    args: &WaitingArgs,
    durations: &[f64],
    policies: &[String],
    (grid, foresight): (&RecordedGrid, Foresight),
    (format, output): (Format, Option<&Path>),
) -> anyhow::Result<()> {
    let named = |name: &String| start_policy(name).map_err(|error| anyhow::anyhow!("--policy: {error}"));
    let chosen = once(policies, String::clone).iter().map(named).collect::<anyhow::Result<Vec<StartPolicy>>>()?;
    let chosen = if chosen.is_empty() { START_POLICIES.to_vec() } else { chosen };
    if format == Format::Html {
        bail!("--format html: jobs that may wait have no page; use table, json or csv");
    }
    check_writable("--output", output)?;
    let seconds = |hours: &[f64]| -> Vec<Seconds> {
        once(hours, |hours| hours.to_bits()).iter().map(|hours| Seconds::new(hours * 3600.0)).collect()
    };
    let (durations, freedoms) = (seconds(durations), seconds(&args.within));
    let most = |all: &[Seconds]| all.iter().copied().fold(Seconds::ZERO, Seconds::max);
    let longest = most(&durations) + most(&freedoms);
    let submissions = submissions(args, grid, foresight, longest)?;
    let visible = VisibleGrid::new(grid, foresight, longest);
    let study = WaitingStudy {
        grid: &visible,
        durations: &durations,
        freedoms: &freedoms,
        submissions: &submissions,
        policies: &chosen,
    };
    let mut progress = Progress::new(study.steps());
    let rows = study.run(|| progress.step());
    drop(progress);
    deliver(&written(format, &rows)?, output)
}

/// Returns the times of submissions. Those are left out, with a warning, from which on the trace lacks an actual value,
/// and those for which no forecast is left.
fn submissions(
    args: &WaitingArgs,
    grid: &RecordedGrid,
    foresight: Foresight,
    longest: Seconds,
) -> anyhow::Result<Vec<DateTime<Utc>>> {
    let (Some(first), Some(last)) = (grid.actual.start(), grid.actual.end()) else {
        bail!("the carbon trace has no value")
    };
    let forecasts = Some(grid.forecasts()).filter(|_| foresight == Foresight::AsIssued);
    let first = forecasts.and_then(|forecasts| forecasts.start()).map_or(first, |from| from.max(first));
    let forecast_end = forecasts.and_then(|forecasts| forecasts.end());
    let latest = last.checked_sub_signed(longest.to_delta()).unwrap_or(first);
    let from = args.submit_from.unwrap_or(first);
    if let Some(end) = forecast_end.filter(|end| from.max(first) >= *end) {
        bail!(
            "--submit-from {}: the forecasts end at {}; begin before that, or use --forecast none",
            shown(from),
            shown(end)
        );
    }
    if from < first || from > latest || args.submit_until.is_some_and(|until| until <= from) {
        bail!(
            "the traces allow submissions from {} to {}, since a job may wait and take {:.1} h in all; choose \
             --submit-from and --submit-until in that time, or give less --within or fewer --hours",
            shown(first),
            shown(forecast_end.map_or(latest, |end| end.min(latest))),
            longest.get() / 3600.0
        );
    }
    let step = Seconds::new(args.submit_every * 3600.0).to_delta();
    let is_due = |at: &DateTime<Utc>| *at <= latest && args.submit_until.is_none_or(|until| *at < until);
    let times = std::iter::successors(Some(from), |at| at.checked_add_signed(step)).take_while(is_due);
    let has_forecast = |at: &DateTime<Utc>| forecast_end.is_none_or(|end| *at < end);
    let (times, late): (Vec<_>, Vec<_>) = times.partition(has_forecast);
    if let Some(first_late) = late.first() {
        let (count, first_late) = (late.len(), shown(*first_late));
        warn(&[format!(
            "{count} submissions are left out, the first at {first_late}: the forecasts have ended by then"
        )]);
    }
    let is_covered = |at: &DateTime<Utc>| {
        let span = at.checked_add_signed(longest.to_delta()).and_then(|end| Slot::new(*at, end));
        span.is_some_and(|span| mean_intensity(&grid.actual, &span).is_some())
    };
    let (covered, gaps): (Vec<_>, Vec<_>) = times.into_iter().partition(is_covered);
    let first_gap = gaps.first().map(|at| shown(*at)).unwrap_or_default();
    if covered.is_empty() {
        bail!("the carbon trace lacks values after each submission, first after {first_gap}; fill its gaps");
    }
    if !gaps.is_empty() {
        let count = gaps.len();
        warn(&[format!("{count} submissions are left out, the first at {first_gap}: the carbon trace has gaps there")]);
    }
    Ok(covered)
}

fn written(format: Format, rows: &[WaitingRow]) -> anyhow::Result<Vec<u8>> {
    let (means, calibration) = (waiting_means(rows), calibration(rows));
    Ok(match format {
        Format::Json => to_json(&Report { rows, means, calibration })?,
        Format::Csv => to_csv(rows.iter().cloned().map(|row| WaitingRow { grid: no_formula(row.grid), ..row }))?,
        Format::Table | Format::Html => table(&means, &calibration).into_bytes(),
    })
}

fn table(means: &[WaitingMean], calibration: &[CalibrationBin]) -> String {
    let count = means.first().map_or(0, |mean| mean.submissions);
    let mut text = format!("Means over {count} submissions, against starting at once.\n");
    let _ = writeln!(
        text,
        "{:16} {:>7} {:>8}  {:14} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
        "grid", "hours", "within", "policy", "carbon %", "best %", "captured", "waited h", "losing %", "over 2 %"
    );
    let mut last = None;
    for mean in means {
        let group = (mean.duration_h, mean.within_h);
        if last.replace(group).is_some_and(|last| last != group) {
            text.push('\n');
        }
        let captured = mean.captured.map_or_else(|| "-".into(), |part| format!("{:.1} %", 100.0 * part));
        let _ = writeln!(
            text,
            "{:16} {:>7} {:>8}  {:14} {:>9.2} {:>9.2} {:>9} {:>8.1} {:>9.1} {:>9.1}",
            mean.grid,
            mean.duration_h,
            mean.within_h,
            mean.policy,
            mean.carbon_reduction_pct,
            mean.best_reduction_pct,
            captured,
            mean.waited_h,
            mean.losing_pct,
            mean.losing_over_2_pct
        );
    }
    if calibration.iter().any(|bin| bin.submissions > 0) {
        let _ = writeln!(
            text,
            "\nProbability that waiting for the best window loses, as stated at each submission and as observed; and how many \
             of the jobs that waited, and decided again, lost."
        );
        let columns = ["submissions", "stated %", "observed %", "waited", "lost %"];
        let _ = writeln!(text, "{:>11} {}", "bin %", columns.map(|name| format!("{name:>11}")).join(" "));
        for bin in calibration {
            let percent = |part: Option<f64>| part.map_or_else(|| "-".into(), |part| format!("{:.1}", 100.0 * part));
            let bounds = format!("{:.0} to {:.0}", 100.0 * bin.from, 100.0 * bin.to);
            let (stated, observed, lost) = (percent(bin.stated), percent(bin.observed), percent(bin.lost_waiting));
            let (submissions, waited) = (bin.submissions, bin.waited);
            let _ =
                writeln!(text, "{bounds:>11} {submissions:>11} {stated:>11} {observed:>11} {waited:>11} {lost:>11}");
        }
    }
    text
}
