//! Parses the command line, runs the command, and maps the result to an exit code: 0 done, 1 failed, 2 wrong use.

use std::io::Write as _;
use std::process::ExitCode;

use wattune::cli::{Cli, Exit, WrongUse};

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let ended = cli.run();
    wattune::telemetry::flush();
    match ended {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::FAILURE,
        Ok(Exit::Code(code)) => ExitCode::from(code),
        Err(error) => {
            // Errors go to stderr; if that is closed, only the exit code remains.
            let _ = writeln!(std::io::stderr(), "wattune: {error:#}");
            if error.is::<WrongUse>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
