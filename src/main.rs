//! Parses the command line, runs the command, and maps its end to an exit code: 0 done, 1 failed, 2 wrong use.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use wattune::cli::{Cli, Exit};

fn main() -> ExitCode {
    // Wrong use ends here with code 2.
    let ended = Cli::parse().run();
    wattune::telemetry::flush();
    match ended {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::FAILURE,
        Err(error) => {
            // The last resort for errors is stderr; where that is gone too, the exit code is left.
            let _ = writeln!(std::io::stderr(), "wattune: {error:#}");
            ExitCode::FAILURE
        }
    }
}
