//! The flags of `wattune run`.

use std::ffi::OsString;
use std::path::PathBuf;

use chrono::{DateTime, Utc};

use super::lines::Expressions;
use super::offers::StartArgs;
use crate::cli::ask::DaemonFlags;
use crate::cli::values::lease;

/// Runs a command as a job: registers it, finds its progress without any change to it, and prints what it used and
/// saved.
///
/// The command keeps its terminal, its signals and its exit code, and runs even if no daemon answers. Of several
/// processes that torchrun, MPI or srun starts on a node, the one with local rank 0 registers the job, with the GPUs of
/// all; a process inside another `wattune run` registers no job.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The job's name; runs with the same name, batch size and GPU models share a profile [default: SLURM_JOB_NAME,
    /// else the script's name].
    #[arg(long)]
    pub(super) name: Option<String>,
    /// The maximum increase of the job's duration over that at the GPUs' maximum usable limits: 0.03 is 3 % [default:
    /// 0.03 if neither --deadline nor the job file sets an objective].
    #[arg(long, value_name = "FRACTION", value_parser = slowdown)]
    pub(super) max_slowdown: Option<f64>,
    /// The time by which the job must be done, in RFC 3339, such as 2026-12-24T18:00:00Z. Needs --total-samples.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub(super) deadline: Option<String>,
    /// A job file: TOML with the fields name, gpus, batch_size, work, objective, lease_s, control, priority, tags, key,
    /// start and suspend of POST /v1/jobs; flags override it.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The job's GPUs by index, UUID or PCI bus id, separated by commas [default: those visible through
    /// CUDA_VISIBLE_DEVICES, the container or Slurm; otherwise all].
    #[arg(long, value_name = "LIST")]
    pub(super) gpus: Option<String>,
    /// The number of samples per optimizer step over all GPUs, with gradient accumulation those of all accumulated
    /// batches; without it, a step counts as one sample.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: Option<u64>,
    /// The total number of samples, or of steps without --batch-size; the Hugging Face Trainer, Lightning and Keras
    /// mostly report it themselves.
    #[arg(long, value_name = "N")]
    pub(super) total_samples: Option<f64>,
    /// A tag of the job; can be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub(super) tags: Vec<(String, String)>,
    /// The priority when the cap on the node's power requires lower limits, from -1000 to 1000: jobs with a lower
    /// number get lower limits first.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) priority: Option<i32>,
    /// The lease in seconds, from 1 to 86400: the daemon ends the job after this time without a message from this
    /// process [default: the daemon's, usually 60].
    #[arg(long, value_name = "SECONDS", value_parser = lease)]
    pub(super) lease_s: Option<f64>,
    #[command(flatten)]
    pub(super) start: StartArgs,
    /// Record the job's energy, but leave the power limits alone.
    #[arg(long)]
    pub(super) no_control: bool,
    /// Find progress in the lines that the command prints, if no other source reports: auto, tqdm, step, or a regular
    /// expression with a group `step` and, if the lines show a total, a group `total`. The command then writes into
    /// pipes instead of the terminal.
    #[arg(long, value_name = "EXPRESSION", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
          value_parser = Expressions::parse)]
    pub(super) log_progress: Option<Expressions>,
    /// Write the command, its exit code, its job ids and the final account to a file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Print no messages and no summary.
    #[arg(long, short)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) daemon: DaemonFlags,
    /// The command and its arguments.
    #[arg(last = true, required_unless_present_all = ["key", "start_now"], value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

fn slowdown(text: &str) -> Result<f64, String> {
    let fraction: f64 =
        text.parse().map_err(|_| "give a fraction of the job's time: 0.03 allows 3 % more".to_owned())?;
    if (0.0..1.0).contains(&fraction) {
        return Ok(fraction);
    }
    Err(format!("{text} is not between 0 and 1; 0.03 allows 3 % more time"))
}

/// Accepts a time, and returns it as it was written.
fn deadline(text: &str) -> Result<String, String> {
    let time: Result<DateTime<Utc>, _> = text.parse();
    time.map(|_| text.to_owned()).map_err(|_| "give a time like 2026-12-24T18:00:00Z".to_owned())
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give a key and a value, such as team=vision")?;
    Ok((key.to_owned(), value.to_owned()))
}
