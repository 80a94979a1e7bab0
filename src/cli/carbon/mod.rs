//! `wattune carbon`: the carbon signal and the quality of its forecasts.

mod backtest;
mod now;
mod score;
mod zones;

use clap::Subcommand;

use super::output::Exit;

/// Shows the carbon signal: the current intensity, the forecast as a chart, the sources and their state.
///
/// Queries the daemon that runs with these settings. If no daemon answers, or with --direct, --zone or --carbon-file,
/// queries the sources themselves.
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

/// Runs the subcommand.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        None => now::run(args.now).await,
        Some(Command::Zones(args)) => zones::run(args).await,
        Some(Command::Score(args)) => score::run(args).await,
        Some(Command::Backtest(args)) => backtest::run(&args).map(|()| Exit::Done),
    }
}
