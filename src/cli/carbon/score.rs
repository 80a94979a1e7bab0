//! `wattune carbon score`: the recent forecast skill of each source.

use serde_json::Value;

use crate::cli::ask::DaemonAddress;
use crate::cli::output::Exit;
use crate::cli::settings::ShowFlags;
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::controller;
use crate::store::{FILE_NAME, Store};

/// Scores each source's forecasts of the last two weeks, as they were published, against the actual values.
///
/// Queries the daemon that runs with these settings; if no daemon answers, reads the daemon's database.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    show: ShowFlags,
}

/// Prints the forecast scores.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.show.overrides.settings()?;
    let scores = match DaemonAddress::of(&settings).get("/v1/carbon").await {
        Ok(text) => serde_json::from_str::<Value>(&text)?["scores"].take(),
        Err(no_daemon) => from_database(&settings).await.map_err(|error| error.context(no_daemon))?,
    };
    args.show.format.print(&scores, || table(&scores)).map(|()| Exit::Done)
}

async fn from_database(settings: &Settings) -> anyhow::Result<Value> {
    let dir = settings.state_dir();
    // Opening a missing database would create one.
    anyhow::ensure!(dir.join(FILE_NAME).exists(), "{} has no database: no daemon has run with it yet", dir.display());
    let store = Store::open(&dir).await?;
    let scores = controller::scores(&store, SystemClock::start().utc()).await?;
    store.close().await;
    Ok(serde_json::to_value(scores)?)
}

fn table(scores: &Value) -> String {
    let rows = scores.as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return "Nothing to score yet: a forecast is scored once its time has passed.\n".to_owned();
    }
    let mut table = format!(
        "{:<20} {:<14} {:>7} {:>8} {:>10} {:>9} {:>12} {:>7}\n",
        "source", "zone", "ahead", "MAPE", "bias g/kWh", "rank cor.", "caught gain", "hours"
    );
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("–").to_owned();
        let number = |key: &str, digits: usize, unit: &str| {
            row[key].as_f64().map_or_else(|| "–".to_owned(), |v| format!("{v:.digits$}{unit}"))
        };
        table += &format!(
            "{:<20} {:<14} {:>7} {:>8} {:>10} {:>9} {:>12} {:>7}\n",
            text("source"),
            text("zone"),
            number("horizon_h", 0, " h"),
            number("mape_pct", 1, " %"),
            number("bias_g_per_kwh", 1, ""),
            number("rank_correlation", 2, ""),
            number("caught_gain", 2, ""),
            number("hours", 0, ""),
        );
    }
    table
        + "Caught gain: the saving with the forecast's 6 cleanest hours of each day, as a share of the saving with perfect foresight.\n"
}
