//! `wattune carbon`: the carbon signal, and how good its forecasts are.

mod backtest;

use clap::Subcommand;

/// The carbon signal, and how good its forecasts are.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Backtest(backtest::Args),
}

/// Carries the subcommand out.
///
/// # Errors
/// What a person should read.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Backtest(args) => backtest::run(&args),
    }
}
