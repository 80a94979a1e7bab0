//! `wattune slurm`: what Slurm's Prolog, TaskProlog and Epilog call, so that each job joins without its user's help.

mod api;
mod deadline;
pub(super) mod facts;
mod gpus;
pub(super) mod job_gpus;
mod report;
mod steps;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use clap::error::ErrorKind;

use super::output::Exit;
use super::values::lease;
use api::Api;
use deadline::Deadline;

/// Registers and ends Slurm jobs; called by Slurm's Prolog, TaskProlog and Epilog.
///
/// Always ends with exit code 0 within two seconds, because Slurm drains a node whose Prolog fails. Failures, wrong
/// options included, are written to standard error and to the system log.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Registers the Slurm job that starts on this node, with the GPUs that Slurm gave it.
    Prolog(PrologArgs),
    /// Ends the Slurm job that has finished on this node.
    Epilog(AddressArgs),
    /// Prints environment variables with which a task finds its job and the daemon.
    TaskProlog(AddressArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct PrologArgs {
    #[command(flatten)]
    address: AddressArgs,
    /// The lease in seconds: the time after which the job counts as dead if none of its processes runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = lease)]
    lease: f64,
    /// Record jobs only: never set the limits of their GPUs, even if they report progress.
    #[arg(long)]
    observe: bool,
}

#[derive(Clone, Debug, Default, clap::Args)]
struct AddressArgs {
    /// The daemon's Unix socket, tried first [default: WATTUNE_SOCKET, else /run/wattune/wattune.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The daemon's TCP address, tried next [default: WATTUNE_LISTEN, else 127.0.0.1:4938].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// The time that a call may take in all. Slurm's documentation asks for short scripts, and a job waits for them.
const PATIENCE: Duration = Duration::from_millis(1800);

/// The time that a task waits for its variables.
const TASK_PATIENCE: Duration = Duration::from_millis(900);

/// Names of the subcommands.
const STEPS: [&str; 3] = ["prolog", "epilog", "task-prolog"];

/// Reports a call with a wrong command line. `step` is the word after `slurm`.
pub(super) fn report_wrong_use(step: Option<&str>, error: &clap::Error) {
    let step = step.filter(|word| STEPS.contains(word)).unwrap_or("call");
    report::problem(step, &format!("nothing was done, since the command line is wrong: {}", describe(error)));
}

/// Returns what is wrong with a command line, in one line.
fn describe(error: &clap::Error) -> String {
    let is_missing =
        matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand);
    if is_missing {
        return format!("give one of {}", STEPS.join(", "));
    }
    // The parser's message has the mistake in its first paragraph, and tips and the usage below.
    let text = error.to_string();
    let mistake = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    mistake.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs one of the subcommands. Never fails: an error is only logged, and the exit code is 0.
pub(super) fn run(args: Args) -> Exit {
    let (what, patience, address) = match &args.command {
        Command::Prolog(prolog) => ("prolog", PATIENCE, &prolog.address),
        Command::Epilog(address) => ("epilog", PATIENCE, address),
        Command::TaskProlog(address) => ("task-prolog", TASK_PATIENCE, address),
    };
    let until = Arc::new(Deadline::within(patience));
    let (socket, listen, theirs) = (address.socket.clone(), address.listen, until.clone());
    let work = move || {
        let api = Api::new(socket, listen, theirs.clone())?;
        match &args.command {
            Command::Prolog(prolog) => steps::prolog(&api, prolog.lease, !prolog.observe, &theirs),
            Command::Epilog(_) => steps::epilog(&api),
            Command::TaskProlog(_) => steps::task_prolog(&api),
        }
    };
    // On a thread of its own, so that neither a hanging file system nor a panic holds the job up.
    let (sender, receiver) = std::sync::mpsc::channel();
    let worker = std::thread::Builder::new().name(what.into()).spawn(move || {
        // The receiver is gone once the time is over.
        let _ = sender.send(work());
    });
    let outcome = match worker {
        Ok(_) => receiver.recv_timeout(until.left()),
        Err(error) => {
            report::problem(what, &format!("cannot start a thread: {error}"));
            return Exit::Done;
        }
    };
    match outcome {
        Ok(Ok(lines)) => lines.iter().for_each(|line| report::success(what, line)),
        Ok(Err(error)) => report::problem(what, &format!("{error:#}")),
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
            report::problem(
                what,
                &format!("not finished within {:.1} s; the job continues without it", patience.as_secs_f64()),
            );
        }
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            report::problem(what, "it panicked; please report this as a defect");
        }
    }
    Exit::Done
}
