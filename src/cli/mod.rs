//! The command line, one file per subcommand. `main` parses it, runs the command and returns the exit code.

mod ask;
mod audit;
mod carbon;
mod chart;
mod daemon;
mod demo;
mod devices;
mod doctor;
mod output;
mod privileges;
mod report;
mod restore;
mod run;
mod serve;
mod settings;
mod signals;
mod simulate;
mod slurm;
mod state_dir;
mod status;
mod token;
mod values;
mod when;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use output::{Exit, WrongUse};
pub use settings::Overrides;

/// Shifts the power of GPU training to the clean hours of the grid.
///
/// A daemon beside training jobs: it learns each job's throughput and draw at every power limit, sets the limits by the
/// carbon-intensity forecast, and records energy and emissions. It never changes what a job computes.
#[derive(Debug, Parser)]
#[command(name = "wattune", version, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Demo(demo::Args),
    Run(Box<run::Args>),
    Carbon(carbon::Args),
    When(Box<when::Args>),
    Simulate(simulate::Args),
    Status(status::Args),
    Report(Box<report::Args>),
    Audit(audit::Args),
    Doctor(doctor::Args),
    Restore(restore::Args),
    Slurm(slurm::Args),
    Token(Box<token::Args>),
}

impl Cli {
    /// Parses the command line of this process.
    ///
    /// # Errors
    /// The exit code if there is nothing to run, after the help or the mistake was printed: 2 for a mistake. After a
    /// mistake in a call of `wattune slurm` it is 0, because Slurm drains a node whose Prolog fails.
    pub fn read() -> Result<Self, ExitCode> {
        let words: Vec<OsString> = std::env::args_os().collect();
        Self::try_parse_from(&words).map_err(|error| {
            if error.use_stderr() && words.get(1).is_some_and(|word| word == "slurm") {
                slurm::report_wrong_use(words.get(2).and_then(|word| word.to_str()), &error);
                return ExitCode::SUCCESS;
            }
            // If it cannot be written, only the exit code remains.
            let _ = error.print();
            u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        })
    }

    /// Runs the chosen command.
    ///
    /// # Errors
    /// An error to show to the user; the exit code is 2 for a [`WrongUse`], else 1.
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Demo(args) => block_on(demo::run(args)).map(|()| Exit::Done),
            Command::Run(args) => run::run(&args),
            Command::Carbon(args) => block_on(carbon::run(args)),
            Command::When(args) => block_on(when::run(*args)),
            Command::Simulate(args) => simulate::run(args).map(|()| Exit::Done),
            Command::Status(args) => block_on(status::run(args)).map(|()| Exit::Done),
            Command::Report(args) => block_on(report::run(*args)),
            Command::Audit(args) => block_on(audit::run(args)).map(|()| Exit::Done),
            Command::Doctor(args) => block_on(doctor::run(args)),
            Command::Restore(args) => restore::run(args),
            Command::Slurm(args) => Ok(slurm::run(args)),
            Command::Token(args) => token::run(*args),
        }
    }
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    serve::runtime()?.block_on(future)
}
