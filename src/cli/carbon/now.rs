//! `wattune carbon`: the current signal, the forecast, and the sources.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::ask::DaemonAddress;
use crate::cli::chart::Chart;
use crate::cli::output::{Exit, Format};
use crate::cli::settings::Overrides;
use crate::cli::values::time_of;
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::controller::{describe_feed, price_view};
use crate::providers::{self, Feed, FeedOptions};
use wattune_core::time::Now;

/// Hours of the forecast that the chart shows.
const AHEAD_H: i64 = 48;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
    /// Query the sources directly instead of a running daemon.
    #[arg(long)]
    direct: bool,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The carbon signal to show, and where it was queried.
#[derive(Debug, Serialize)]
struct Shown {
    /// `daemon` or `sources`: the origin of these values.
    asked: &'static str,
    now: DateTime<Utc>,
    carbon: Value,
    forecast: Value,
    price: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// Prints the carbon signal. The exit code is 1 if there is no current intensity.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.overrides.settings()?;
    let jump_factor = args.overrides.value_use(&settings).jump_factor;
    let mut shown = if args.direct || args.overrides.other_signal() {
        ask_sources(&settings, jump_factor).await?
    } else {
        match ask_daemon(&settings).await {
            Ok(shown) => shown,
            // A user who names a daemon wants that daemon's answer, so the sources do not replace it.
            Err(error) if args.overrides.names_daemon() => return Err(error),
            Err(_) => ask_sources(&settings, jump_factor).await?,
        }
    };
    if shown.advice.is_none() {
        shown.advice = args.overrides.describe_foreign_zone(&settings, &shown.carbon["source"]);
    }
    args.format.print(&shown, || page(&shown))?;
    let known = shown.carbon["intensity_g_per_kwh"].is_number();
    Ok(if known { Exit::Done } else { Exit::Failed })
}

async fn ask_daemon(settings: &Settings) -> anyhow::Result<Shown> {
    let address = DaemonAddress::of(settings);
    let get = async |path| anyhow::Ok(serde_json::from_str::<Value>(&address.get(path).await?)?);
    let status = get("/v1/status").await?;
    Ok(Shown {
        asked: "daemon",
        now: time_of(&status["now"]).unwrap_or_else(|| SystemClock::start().utc()),
        carbon: status["carbon"].clone(),
        forecast: get("/v1/carbon/forecast").await?,
        price: get("/v1/price").await?,
        advice: advice_in(&status["problems"]),
    })
}

/// Returns the daemon's advice on its carbon signal, from the list of problems in the daemon's status; `None` if it has
/// no advice.
fn advice_in(problems: &Value) -> Option<String> {
    let mut problems = problems.as_array()?.iter().filter_map(Value::as_str);
    problems.find_map(|problem| problem.strip_prefix("carbon signal: ")).map(str::to_owned)
}

async fn ask_sources(settings: &Settings, jump_factor: f64) -> anyhow::Result<Shown> {
    // These requests count towards the same quota as the daemon's own.
    let groups = providers::build(&settings.carbon, Some(&settings.state_dir()))?;
    let options = FeedOptions { jump_factor, ..FeedOptions::default() };
    let now = SystemClock::start().now();
    let state = Feed::start(groups, options, now).await.poll_due(now).await;
    let (carbon, forecast) = describe_feed(&state, settings.carbon.fallback_g_per_kwh, now.utc);
    Ok(Shown {
        asked: "sources",
        now: now.utc,
        carbon: serde_json::to_value(carbon)?,
        forecast: serde_json::to_value(forecast)?,
        price: price(settings, now).await?,
        advice: providers::advice(&settings.carbon),
    })
}

async fn price(settings: &Settings, now: Now) -> anyhow::Result<Value> {
    let sources = providers::build_price(&settings.price, &settings.carbon, Some(&settings.state_dir()))?;
    if sources.is_empty() {
        return Ok(Value::Null);
    }
    let options = FeedOptions { signal: "price", ..FeedOptions::default() };
    let state = Feed::start(sources, options, now).await.poll_due(now).await;
    Ok(serde_json::to_value(price_view(&state, &settings.price.counted_in(), now.utc))?)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn clock(value: &Value) -> String {
    time_of(value).map_or_else(|| "–".to_owned(), |t| t.format("%m-%d %H:%MZ").to_string())
}

fn page(shown: &Shown) -> String {
    let carbon = &shown.carbon;
    let mut page = headline(shown);
    if carbon["basis"] != "constant" {
        page += &Chart::hours(shown.now, AHEAD_H).draw(&shown.forecast);
    }
    page += &format!(
        "\n{:<20} {:<14} {:<24} {:<9} {:<13} {:<13} {:>10}\n",
        "source", "zone", "kind, scope", "state", "forecast to", "actual until", "requests/h"
    );
    for source in carbon["sources"].as_array().into_iter().flatten() {
        let mark = if source["followed"] == json!(true) { "* " } else { "  " };
        let asked = match (source["requests_last_hour"].as_u64(), source["requests_allowed_per_hour"].as_u64()) {
            (Some(asked), Some(allowed)) => format!("{asked} of {allowed}"),
            _ => "–".to_owned(),
        };
        page += &format!(
            "{mark}{:<18} {:<14} {:<24} {:<9} {:<13} {:<13} {asked:>10}\n",
            text(&source["source"]),
            text(&source["zone"]),
            format!("{}, {}", text(&source["kind"]), text(&source["scope"])),
            text(&source["freshness"]),
            clock(&source["forecast_until"]),
            clock(&source["actual_until"]),
        );
        let notes = source["notes"].as_array().into_iter().flatten().map(text);
        for line in source["last_error"].as_str().into_iter().chain(notes) {
            page += &format!("    {line}\n");
        }
    }
    if let Some(advice) = &shown.advice {
        page += &format!("\n{advice}\n");
    }
    page
}

fn headline(shown: &Shown) -> String {
    let carbon = &shown.carbon;
    let from = format!("{} in {}", text(&carbon["source"]), text(&carbon["zone"]));
    let since = clock(&carbon["basis_since"]);
    let basis = match text(&carbon["basis"]) {
        "source" => format!("{} of {from}", text(&carbon["origin"])),
        "local" => format!("the local forecaster, after {from}, since {since}"),
        "daily_shape" => format!("the last known daily shape, after {from}, since {since}"),
        _ => "the configured constant; no source has a value".to_owned(),
    };
    let value = carbon["planned_with_g_per_kwh"].as_f64().unwrap_or_default();
    let mut line = format!("{value:.0} gCO2e/kWh now: {basis}\n");
    if let Some(price) = shown.price["price_per_mwh"].as_f64() {
        line += &format!("{price:.2} {}/MWh now in {}\n", text(&shown.price["currency"]), text(&shown.price["zone"]));
    }
    if let Some(followed) = carbon["followed"].as_f64().filter(|_| carbon["basis"] != "constant") {
        // A bias of less than half a gram is not shown: it would be rounded to zero.
        let bias = carbon["bias_g_per_kwh"].as_f64().filter(|b| b.abs() >= 0.5);
        let bias = bias.map_or_else(String::new, |b| format!(", its bias of {b:+.0} g/kWh corrected"));
        line += &format!("Plans use the forecast with a weight of {:.0} %{bias}.\n", 100.0 * followed);
    }
    let by = if shown.asked == "daemon" { "the running daemon" } else { "the sources themselves" };
    line += &format!("Source of these values: {by}.\n");
    line
}
