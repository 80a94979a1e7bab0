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
        // Whoever reads the output has had enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wattune: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    of_io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
