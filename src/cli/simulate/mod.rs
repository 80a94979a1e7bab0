//! `wattune simulate`: experiments driven by traces.

mod carbon;
mod page;
mod progress;
mod write;

use clap::Subcommand;

/// Experiments on recorded traces: no daemon, no hardware, nothing is measured or set.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Carbon(Box<carbon::Args>),
}

/// Carries the subcommand out.
///
/// # Errors
/// What a person should read.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Carbon(args) => carbon::run(&args),
    }
}
