//! `wattune simulate carbon`: power traces × carbon traces × policies.

use std::path::PathBuf;

use anyhow::{Context, bail};
use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use clap::ValueEnum;

use super::progress::Progress;
use super::{Format, check_writable, deliver, once, page, warn, within, write};
use crate::cli::Issue;
use crate::simulate::policy::{self, Policy};
use crate::simulate::replay::{Foresight, Job, RecordedGrid, Sayings, Sight};
use crate::simulate::study::{Found, Row, Study};
use crate::simulate::{IssueTime, Workload, gpu_name, power_curve, read_grid};
use wattune_core::domain::{Pausing, Slot};
use wattune_core::ledger;
use wattune_core::units::{Seconds, Watts};

/// Replays jobs on recorded intensities under policies and says what each saves in carbon and costs in time.
///
/// A job does what the largest limit of its power trace does in --hours. Everything is compared with the largest limit
/// over the same work from the same start. Policies: max, static (the constant mix of two limits of least energy within
/// the budget), zeus (the one limit of least energy-time cost), carbon-zeus (every half hour the limit of least
/// carbon-time cost at the forecast; rows with a budget lie on the frontier of its knob), wattune (the daemon's plan,
/// made anew for each slot from what had been forecast by then), clairvoyant (the bound: planned once with what came).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Throughput and power at each limit as measured on a real board: a trace file of Zeus.
    #[arg(long, value_name = "FILE")]
    power_trace: PathBuf,
    /// Workload of the power trace, as dataset/network/batch size; several with commas, each a job of its own.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', required = true)]
    workload: Vec<Workload>,
    /// Which optimizer, where the power trace has several for the workload.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// What came: CSV or JSON, as for the file source. A forecast column in it counts as a rolling forecast.
    #[arg(long, value_name = "FILE")]
    carbon_trace: PathBuf,
    /// What had been forecast: CSV or JSON, as for the file source, or CSV with issue_date_utc, horizon_h and a value.
    #[arg(long, value_name = "FILE")]
    forecast_trace: Option<PathBuf>,
    /// When the values of --forecast-trace had been said, if the file does not say so itself.
    #[arg(long, value_enum, default_value_t = Issue::DayAhead, requires = "forecast_trace")]
    forecast_issue: Issue,
    /// What policies know of the grid to come.
    #[arg(long, value_enum, default_value_t = Forecast::AsIssued)]
    forecast: Forecast,
    /// How long a job takes at the largest limit.
    #[arg(long, value_name = "HOURS", default_value_t = 64.0, value_parser = hours)]
    hours: f64,
    /// How much slower a job may get: 0.03 is 3 %; several with commas.
    #[arg(long, value_name = "FRACTION", value_delimiter = ',', default_value = "0.03", value_parser = slowdown)]
    max_slowdown: Vec<f64>,
    /// Which policies; several with commas [default: all; under a node's cap wattune and clairvoyant, which plan].
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policy::named)]
    policy: Vec<Policy>,
    /// Watts that the limits of all workloads may add up to: they then run together on one node, from the same start.
    #[arg(long, value_name = "WATTS", value_parser = watts, conflicts_with_all = ["profiling", "profile_error"])]
    node_cap: Option<f64>,
    /// When jobs begin: a date (00:00 UTC) or a time; several with commas [default: the first time that the traces tell].
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = time)]
    start: Vec<DateTime<Utc>>,
    /// So many starts in place of --start, at whole slots, evenly spread over what the traces tell.
    #[arg(long, value_name = "N", conflicts_with = "start", value_parser = clap::value_parser!(u32).range(1..=1000))]
    starts: Option<u32>,
    /// Seconds at each limit, from the largest down, that zeus, carbon-zeus and wattune spend on measuring the job first.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    profiling: f64,
    /// Relative standard error of the throughputs and powers that policies know of the job: 0.003 is 0.3 %.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = error)]
    profile_error: f64,
    /// Seed of that error; several with commas.
    #[arg(long, value_name = "SEED", value_delimiter = ',', default_value = "1", requires = "profile_error")]
    seed: Vec<u64>,
    /// Lets wattune and clairvoyant pause the job, which costs what the four options below say.
    #[arg(long)]
    pausable: bool,
    /// What a pausing board draws, in watts.
    #[arg(long, value_name = "WATTS", default_value_t = 50.0, requires = "pausable", value_parser = watts)]
    idle_power: f64,
    /// The shortest run between two pauses.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0, requires = "pausable", value_parser = seconds)]
    min_run: f64,
    /// The shortest pause.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0, requires = "pausable", value_parser = seconds)]
    min_pause: f64,
    /// Time at running power without work that each pause costs.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, requires = "pausable", value_parser = seconds)]
    checkpoint: f64,
    /// How the rows are written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Where they are written [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    fn pausing(&self) -> Pausing {
        Pausing {
            idle_power: Watts::new(self.idle_power),
            min_run: Seconds::new(self.min_run),
            min_pause: Seconds::new(self.min_pause),
            checkpoint: Seconds::new(self.checkpoint),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forecast {
    /// What had been said by then, corrected and weighed as the daemon does.
    AsIssued,
    /// What came.
    Perfect,
    /// Only the past.
    None,
}

fn hours(text: &str) -> Result<f64, String> {
    within(text, 0.01, 24.0 * 366.0, "0.01 to 8784 hours")
}

fn slowdown(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.999, "a fraction from 0 to 0.999; 0.03 allows 3 % more time, so write 0.03 for 3 %")
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.0, 86_400.0, "0 to 86400 seconds")
}

fn watts(text: &str) -> Result<f64, String> {
    within(text, 0.0, 10_000.0, "0 to 10000 watts")
}

fn error(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.2, "a fraction from 0 to 0.2; 0.003 is 0.3 %")
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let date = text.parse::<NaiveDate>().ok().map(|date| date.and_time(NaiveTime::MIN).and_utc());
    date.or_else(|| text.parse().ok())
        .ok_or_else(|| "give a date like 2021-07-01 or a time like 2021-07-01T06:00:00Z".into())
}

/// Replays, and writes the rows.
///
/// # Errors
/// For traces that cannot be used, and jobs that do not fit into them.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let issue = match args.forecast_issue {
        Issue::DayAhead => IssueTime::DayAhead,
        Issue::Rolling => IssueTime::Rolling,
    };
    let grid = read_grid(&args.carbon_trace, args.forecast_trace.as_deref(), issue).context("carbon trace")?;
    let gpu = gpu_name(&args.power_trace);
    let at_max = Seconds::new(args.hours * 3600.0);
    let job = |workload: &Workload| {
        let curve = power_curve(&args.power_trace, workload, args.optimizer.as_deref())?;
        Ok(Job::new(gpu.clone(), workload.clone(), &curve, at_max))
    };
    // Alone, twice the same is once; together on a node it is two jobs.
    let workloads =
        if args.node_cap.is_some() { args.workload.clone() } else { once(&args.workload, Workload::to_string) };
    check_writable(args.output.as_deref())?;
    let policies = policies(args)?;
    let jobs = workloads.iter().map(job).collect::<anyhow::Result<Vec<_>>>()?;
    let longest = at_max * (1.0 + args.max_slowdown.iter().copied().fold(0.0, f64::max));
    let starts = once(&starts(args, &grid, longest)?, |start| *start);
    let foresight = match args.forecast {
        Forecast::AsIssued => Foresight::AsIssued,
        Forecast::Perfect => Foresight::Perfect,
        Forecast::None => Foresight::Nothing,
    };
    let sight = Sight::new(&grid, foresight, longest);
    let study = Study {
        jobs: &jobs,
        node_cap: args.node_cap.map(Watts::new),
        grid_name: &grid.name,
        grid: &sight,
        starts: &starts,
        budgets: &once(&args.max_slowdown, |budget| budget.to_bits()),
        policies: &policies,
        sweep: Seconds::new(args.profiling),
        profile_error: args.profile_error,
        pausing: args.pausable.then(|| args.pausing()),
        seeds: &once(&args.seed, |seed| *seed),
    };
    let mut progress = Progress::new(study.steps());
    let found = study.run(|| progress.step())?;
    drop(progress);
    warn(&without_figures(&found));
    let bytes = written(args, &jobs, &grid, &found)?;
    deliver(&bytes, args.output.as_deref())
}

/// For each policy and job, which rows have no figures, and what to do about it.
fn without_figures(found: &[Found]) -> Vec<String> {
    let rows: Vec<_> = found.iter().map(|f| &f.row).filter(|row| row.carbon_reduction_pct.is_none()).collect();
    let key = |row: &Row| (row.policy, row.workload.clone(), row.batch_size);
    let mut warnings = Vec::new();
    for (place, first) in rows.iter().enumerate().filter(|(i, row)| !rows[..*i].iter().any(|r| key(r) == key(row))) {
        let more = rows[place + 1..].iter().filter(|row| key(row) == key(first)).count();
        let budget = first.budget_pct.map_or_else(|| "its own weights".to_owned(), |b| format!("{b} % more time"));
        let others = if more > 0 { format!(" (and in {more} more rows)") } else { String::new() };
        warnings.push(format!(
            "no figures of {} on {}/{} from {} with {budget}{others}: the carbon trace ends before its slower runs do; \
             begin earlier, or give a longer trace",
            first.policy,
            first.workload,
            first.batch_size,
            shown(first.start)
        ));
    }
    warnings
}

/// The policies that were asked for, or all that apply.
fn policies(args: &Args) -> anyhow::Result<Vec<Policy>> {
    let plans = |policy: &Policy| ["wattune", "clairvoyant"].contains(&policy.name);
    let asked = once(&args.policy, |policy| policy.name);
    match (args.node_cap, asked.is_empty()) {
        (None, true) => Ok(policy::POLICIES.to_vec()),
        (Some(_), true) => Ok(policy::POLICIES.into_iter().filter(plans).collect()),
        (None, false) => Ok(asked),
        (Some(_), false) => match asked.iter().find(|policy| !plans(policy)) {
            Some(other) => bail!("--policy {}: under --node-cap only wattune and clairvoyant plan", other.name),
            None => Ok(asked),
        },
    }
}

fn written(args: &Args, jobs: &[Job], grid: &RecordedGrid, found: &[Found]) -> anyhow::Result<Vec<u8>> {
    let rows: Vec<_> = found.iter().map(|f| f.row.clone()).collect();
    Ok(match args.format {
        Format::Table => write::table(&rows).into_bytes(),
        Format::Json => write::json(&rows)?,
        Format::Csv => write::comma_separated(&rows)?,
        Format::Html => page::page(jobs, grid, found).into_bytes(),
    })
}

/// The starts that were asked for, each with room for the longest job.
fn starts(args: &Args, grid: &RecordedGrid, longest: Seconds) -> anyhow::Result<Vec<DateTime<Utc>>> {
    let named = args.carbon_trace.display();
    let (Some(first), Some(last)) = (grid.actual.start(), grid.actual.end()) else { bail!("{named} has no value") };
    // Where a forecast is to be used, a job begins when there is one.
    let said = grid.said().start().filter(|_| args.forecast == Forecast::AsIssued && *grid.said() != Sayings::Nothing);
    let first = said.map_or(first, |said| said.max(first));
    let last = grid.said().end().filter(|_| said.is_some()).map_or(last, |end| end.min(last));
    let latest = last - longest.to_delta();
    if last <= first {
        bail!(
            "{named} tells {} to {}, and the forecasts nothing of that time; use --forecast none to do without them",
            shown(grid.actual.start().unwrap_or(first)),
            shown(grid.actual.end().unwrap_or(last))
        );
    }
    if latest < first {
        let missing = Seconds::from_delta(first - latest).get() / 3600.0;
        bail!(
            "the traces tell {} to {}, {missing:.1} h less than the jobs may take ({:.1} h); give fewer --hours or a \
             smaller --max-slowdown",
            shown(first),
            shown(last),
            longest.get() / 3600.0
        );
    }
    let starts = match args.starts {
        Some(count) => spread(grid, first, latest, count),
        None if args.start.is_empty() => vec![first],
        None => args.start.clone(),
    };
    let (tells, ends) = (grid.actual.start().unwrap_or(first), grid.actual.end().unwrap_or(last));
    for start in &starts {
        let span = Slot::new(*start, *start + longest.to_delta()).context("the jobs have no length")?;
        if *start < tells || span.end() > ends {
            bail!(
                "--start {}: {named} tells {} to {}, and a job may take {:.1} h: begin between {} and {}",
                shown(*start),
                shown(tells),
                shown(ends),
                longest.get() / 3600.0,
                shown(tells),
                shown(ends - longest.to_delta())
            );
        }
        if said.is_some_and(|_| *start < first || *start >= last) {
            bail!(
                "--start {}: there are forecasts from {} to {} only; begin then, or use --forecast none",
                shown(*start),
                shown(first),
                shown(last)
            );
        }
        if ledger::mean_intensity(&grid.actual, &span).is_none() {
            let gap = grid.actual.gaps().find(|gap| gap.intersection(&span).is_some());
            bail!(
                "--start {}: {named} tells nothing about {}; fill the gap in the file, or choose starts and --hours that \
                 keep clear of it",
                shown(*start),
                gap.map_or(span.to_string(), |gap| gap.to_string())
            );
        }
    }
    Ok(starts)
}

/// So many starts from the first to the latest, each at the beginning of a slot.
fn spread(grid: &RecordedGrid, first: DateTime<Utc>, latest: DateTime<Utc>, count: u32) -> Vec<DateTime<Utc>> {
    let step =
        if count > 1 { (latest - first) / i32::try_from(count - 1).unwrap_or(i32::MAX) } else { TimeDelta::zero() };
    let at_slot = |i: u32| {
        let at = first + step * i32::try_from(i).unwrap_or(i32::MAX);
        grid.actual.at(at).map_or(at, |(slot, _)| slot.start().max(first))
    };
    (0..count).map(at_slot).collect()
}

fn shown(t: DateTime<Utc>) -> String {
    t.format("%FT%TZ").to_string()
}
