//! Parses the command line, runs the command, and maps its end to an exit code: 0 done, 1 failed, 2 wrong use.

use std::process::ExitCode;

use clap::Parser;
use wattune::cli::{Cli, Exit};

#[expect(clippy::print_stderr, reason = "the last resort for errors is stderr")]
fn main() -> ExitCode {
    // Wrong use ends here with code 2.
    match Cli::parse().run() {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("wattune: {error:#}");
            ExitCode::FAILURE
        }
    }
}
