//! `wattune carbon`: the carbon signal, and how good its forecasts are.

mod backtest;
mod chart;
mod now;
mod score;
mod zones;

use clap::Subcommand;

use super::ask::{Place, USUAL};
use super::{Exit, Format, Overrides};
use crate::config::Settings;

/// What the grid's signal says: now, the forecast as a chart, the sources and their state.
///
/// Asks the daemon that runs with these settings. Where none does, or with --direct, --zone or --carbon-file, it asks
/// the sources themselves.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    now: now::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    Zones(zones::Args),
    Score(score::Args),
    Backtest(backtest::Args),
}

/// Carries the subcommand out.
///
/// # Errors
/// What a person should read.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        None => now::run(args.now).await,
        Some(Command::Zones(args)) => zones::run(args).await,
        Some(Command::Score(args)) => score::run(args).await,
        Some(Command::Backtest(args)) => backtest::run(&args).map(|()| Exit::Done),
    }
}

/// Where a daemon with these settings listens.
fn daemon(settings: &Settings) -> Place {
    match (&settings.http.listen, &settings.http.socket) {
        (_, Some(socket)) => Place::Socket(socket.clone()),
        (Some(address), None) => Place::Tcp(*address),
        (None, None) => Place::Tcp(USUAL),
    }
}
