//! `wattune carbon backtest`: makes forecasts of the past again, from the data known at the time, and scores them.

use std::path::PathBuf;

use anyhow::bail;
use chrono::{DateTime, TimeDelta, Utc};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::output::{deliver, say, to_json};
use crate::cli::simulate::grid;
use crate::cli::values::{Issue, begin, end};
use wattune_core::domain::CarbonSeries;
use wattune_core::forecast::{BacktestRow, PublishedForecasts, Score, backtest};
use wattune_lab::grid::PublishedForecasts as ReadForecasts;

/// Makes forecasts for a past span again, each only from the data known at the time of the forecast, and scores them.
///
/// For each horizon H of --horizon, a forecast of H hours is made every H hours from --from on, or every 24 hours if H
/// is longer. All H hours of each forecast are scored, together and separately by day ahead. The rows are the
/// forecasters: yesterday (repeats the last known day), local (wattune's own forecaster), provider (as published),
/// provider+bias (as published, with the recent bias corrected), and feed (what the daemon would use). All rows cover
/// the same hours; if a provider's forecast ends earlier, its last day is repeated.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file of actual values: CSV or JSON, as for the file source. Values in a forecast column count as published
    /// anew before each forecast.
    #[arg(long, value_name = "FILE")]
    actual: PathBuf,
    /// The file of published forecasts: CSV or JSON, as for the file source, or CSV with the columns issue_date_utc,
    /// horizon_h and forecast_gco2_per_kwh.
    #[arg(long, value_name = "FILE")]
    provider_forecast: Option<PathBuf>,
    /// The issue times to assume for the values in --provider-forecast, if that file does not state them.
    #[arg(long, value_enum, default_value_t = Issue::DayAhead, requires = "provider_forecast")]
    forecast_issue: Issue,
    /// The first time to forecast: a date (00:00 UTC) or a time [default: 24 h after the first value].
    #[arg(long, value_name = "TIME", value_parser = begin)]
    from: Option<DateTime<Utc>>,
    /// The end of the time to forecast: a date (its end) or a time [default: the end of the actual values].
    #[arg(long, value_name = "TIME", value_parser = end)]
    to: Option<DateTime<Utc>>,
    /// The horizons: the lengths of the forecasts in hours, several with commas. Each horizon is scored on its own.
    #[arg(long, value_name = "HOURS", value_delimiter = ',', default_value = "1,24",
          value_parser = clap::value_parser!(u32).range(1..=168))]
    horizon: Vec<u32>,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
    /// CSV for spreadsheets.
    Csv,
}

/// Backtests the forecasts and prints the scores.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let parsed = grid::recorded(&args.actual)?;
    let named = args.actual.display();
    let actual = parsed.actual;
    let read = match &args.provider_forecast {
        Some(path) => grid::published(path, args.forecast_issue)?,
        // If the file has only one column of values, these are actual values, and there are no forecasts.
        None if same(&parsed.expected, &actual) => ReadForecasts::Nothing,
        None => ReadForecasts::Rolling(parsed.expected),
    };
    let published = match &read {
        ReadForecasts::Nothing => PublishedForecasts::Nothing,
        ReadForecasts::Rolling(series) => PublishedForecasts::Rolling(series),
        ReadForecasts::Issued(issued) => PublishedForecasts::Issued(issued),
    };
    let (Some(first), Some(last)) = (actual.start(), actual.end()) else { bail!("{named} has no value") };
    let asked_from = args.from.unwrap_or(first + TimeDelta::hours(24));
    let asked_to = args.to.unwrap_or(last);
    let (from, to) = (asked_from.max(first), asked_to.min(last));
    if from >= to {
        if args.from.is_some_and(|from| from >= last) {
            bail!("{named} has no actual value from {asked_from} on; it covers {first} to {last}");
        }
        bail!("nothing to forecast from {asked_from} to {asked_to}; {named} covers {first} to {last}");
    }
    if asked_from < first {
        let early = format!("--from {asked_from} is before the first value of {named}; the forecasts begin at {first}");
        say("carbon backtest", &early);
    }
    let rows = backtest(&actual, published, from, to, &args.horizon);
    if rows.is_empty() {
        bail!(
            "{named} covers {first} to {last}: it has no actual value from {from} to {to} to compare a forecast with"
        );
    }
    if let Some(path) = &args.provider_forecast
        && !rows.iter().any(|row| row.source == "provider")
    {
        bail!("{} has no values from {from} to {to}", path.display());
    }
    let bytes = match args.format {
        Format::Json => to_json(&Report { rows: &rows })?,
        Format::Table => table(&rows).into_bytes(),
        Format::Csv => comma_separated(&rows)?,
    };
    deliver(&bytes, None)
}

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [BacktestRow],
}

fn same(a: &CarbonSeries, b: &CarbonSeries) -> bool {
    let values = |series: &CarbonSeries| series.map(|i| i.value);
    values(a) == values(b)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
}

/// Returns a row's scores, each after its day ahead: first the score over all days (`None`), then one score per day,
/// counted from 1.
fn scores(row: &BacktestRow) -> impl Iterator<Item = (Option<usize>, &Score)> {
    let by_day = row.by_day.iter().zip(1..).map(|(score, day)| (Some(day), score));
    std::iter::once((None, &row.score)).chain(by_day)
}

fn table(rows: &[BacktestRow]) -> String {
    let mut text = format!(
        "{:14} {:>9} {:>4} {:>8} {:>11} {:>9} {:>8} {:>9} {:>8}\n",
        "source", "horizon h", "day", "MAPE %", "bias g/kWh", "rank corr", "caught", "in 80 %", "hours"
    );
    for row in rows {
        for (day, score) in scores(row) {
            text += &format!(
                "{:14} {:>9} {:>4} {:>8} {:>11} {:>9} {:>8} {:>9} {:>8.0}\n",
                row.source,
                row.horizon_h,
                day.map_or_else(|| "all".to_owned(), |day| day.to_string()),
                shown(score.mape_pct, 2),
                shown(score.bias_g_per_kwh, 1),
                shown(score.rank_correlation, 3),
                shown(score.caught_gain, 3),
                shown(score.interval80_coverage, 3),
                score.hours
            );
        }
    }
    text
}

fn comma_separated(rows: &[BacktestRow]) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "source",
        "horizon_h",
        "day",
        "mape_pct",
        "bias_g_per_kwh",
        "rank_correlation",
        "caught_gain",
        "interval80_coverage",
        "slots",
        "hours",
    ])?;
    for row in rows {
        for (day, score) in scores(row) {
            let number = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
            writer.write_record([
                row.source.to_owned(),
                row.horizon_h.to_string(),
                day.map_or_else(String::new, |day| day.to_string()),
                number(score.mape_pct),
                number(score.bias_g_per_kwh),
                number(score.rank_correlation),
                number(score.caught_gain),
                number(score.interval80_coverage),
                score.slots.to_string(),
                score.hours.to_string(),
            ])?;
        }
    }
    Ok(writer.into_inner()?)
}
