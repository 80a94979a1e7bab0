//! `wattune when`: the best start of a job that may wait.

mod formats;
mod page;
mod question;
mod signal;

use serde_json::Value;

use self::formats::PlannedStart;
use self::question::QuestionArgs;
use super::output::{Exit, deliver, say, to_json};
use super::settings::Overrides;
use crate::clock::{Clock, SystemClock};
use crate::providers;

/// Finds the best start of a job that may wait: the time at which it emits least, or now if waiting is not worth its risk.
///
/// Queries the daemon that runs with these settings, at its Unix socket first. If no daemon answers, or with --direct,
/// --zone or --carbon-file, queries the sources themselves. If these fail too, the answer is the last known forecast,
/// the usual course of the day or "now", and a message on standard error says so.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    question: QuestionArgs,
    /// Query the sources directly instead of a running daemon.
    #[arg(long)]
    direct: bool,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    overrides: Overrides,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table and a chart for people.
    Table,
    /// JSON for programs.
    Json,
    /// The time for `sbatch --begin`: in this machine's time zone, or `now`.
    Slurm,
    /// The first five fields of a line for cron, in this machine's time zone.
    Cron,
    /// The time for `at -t`, in this machine's time zone.
    At,
}

/// Prints the advice. The exit code is 0 also if the advice is to start now for lack of any data.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    if let Err(why) = args.question.check() {
        return Ok(wrong_use(&why));
    }
    let for_scheduler = matches!(args.format, Format::Slurm | Format::Cron | Format::At);
    let zone = std::env::var("TZ").ok().filter(|_| for_scheduler);
    if let Some(why) = zone.as_deref().and_then(formats::why_unknown) {
        return Ok(wrong_use(&why));
    }
    let settings = args.overrides.settings()?;
    if let Some(why) = providers::unknown_zone(&settings.carbon).filter(|_| args.overrides.other_signal()) {
        return Ok(wrong_use(&why));
    }
    let direct = args.direct || args.overrides.other_signal();
    let values = args.overrides.value_use(&settings);
    let mut answer = match signal::ask(&args.question, &settings, direct, values).await? {
        Ok(answer) => answer,
        Err(refusal) => return Ok(wrong_use(&question::describe_refusal(&refusal))),
    };
    let missing_zone = args.overrides.describe_foreign_zone(&settings, &answer["source"]);
    if let (Some(missing_zone), Some(warnings)) = (missing_zone, answer["warnings"].as_array_mut()) {
        warnings.push(missing_zone.into());
    }
    if args.format != Format::Table {
        answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).for_each(warn);
    }
    let text = match args.format {
        Format::Json => to_json(&answer)?,
        Format::Table => page::page(&answer).into_bytes(),
        Format::Slurm | Format::Cron | Format::At => {
            let now = SystemClock::start().utc();
            let planned = PlannedStart::of(&answer, now)?;
            let text = match args.format {
                Format::Slurm => planned.slurm(&chrono::Local),
                Format::Cron => planned.cron(&chrono::Local),
                _ => planned.at(&chrono::Local),
            };
            if args.format != Format::Slurm {
                planned.describe_deviations(&chrono::Local).iter().for_each(|deviation| warn(deviation));
            }
            if args.format == Format::Cron {
                planned.describe_earlier_year(&chrono::Local).iter().for_each(|earlier| warn(earlier));
            }
            (text + "\n").into_bytes()
        }
    };
    deliver(&text, None)?;
    Ok(Exit::Done)
}

fn warn(message: &str) {
    say("when", message);
}

/// Says which value is wrong.
fn wrong_use(why: &str) -> Exit {
    warn(why);
    Exit::Code(2)
}
