//! `wattune simulate`: experiments driven by traces.

mod bandit;
mod carbon;
pub(super) mod grid;
mod page;
mod study;
mod waiting;
mod write;

use clap::Subcommand;

/// Runs experiments on recorded traces, without a daemon or hardware: nothing is measured or set.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Carbon(Box<carbon::Args>),
    Bandit(Box<bandit::Args>),
}

/// Runs the subcommand.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Carbon(args) => carbon::run(&args),
        Command::Bandit(args) => bandit::run(&args),
    }
}
