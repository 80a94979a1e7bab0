//! `wattune simulate carbon`: replays power traces on carbon traces under policies.

use std::path::PathBuf;

use anyhow::{Context, bail};
use chrono::{DateTime, TimeDelta, Utc};
use clap::ValueEnum;
use clap::builder::TypedValueParser;

use super::study::{Format, Progress, hours, once, shown, warn};
use super::{grid, page, waiting, write};
use crate::cli::output::{check_writable, deliver};
use crate::cli::values::{Issue, begin, one_of, within};
use wattune_core::domain::{CarbonSeries, Pausing, Slot};
use wattune_core::ledger;
use wattune_core::units::{Seconds, Watts};
use wattune_lab::grid::{Foresight, PublishedForecasts, RecordedGrid, VisibleGrid, covered_until};
use wattune_lab::policy::{self, POLICIES, Policy};
use wattune_lab::replay::Job;
use wattune_lab::study::{CaseResult, Row, Study};
use wattune_lab::traces::{TraceFile, Workload, power_profile};
use wattune_lab::waiting::START_POLICIES;

/// Replays jobs on recorded intensities under policies, and reports the carbon that each policy saves and the time that
/// it costs.
///
/// A job's work is the number of samples that it processes in --hours at the largest limit of its power trace. Each
/// result is compared with a run of the same work at the largest limit, from the same start.
///
/// With --within, jobs of constant power are submitted over the time that the traces cover and may wait; policies choose
/// their starts, and each result is compared with starting at once. No power trace is needed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Throughput and power at each power limit, measured on a real GPU: a trace file of the Zeus project.
    #[arg(long, value_name = "FILE", required_unless_present = "within", requires = "workload")]
    power_trace: Option<PathBuf>,
    /// Workload of the power trace, as dataset/network/batch size; several with commas, each a job of its own.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', requires = "power_trace")]
    workload: Vec<Workload>,
    /// The training's optimizer, needed if the power trace has the workload with several optimizers.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Actual intensities: CSV or JSON, as for the file source. Values in a forecast column count as known from 72
    /// hours before their slot (span of time with one value) on.
    #[arg(long, value_name = "FILE")]
    carbon_trace: PathBuf,
    /// Forecasts: CSV or JSON, as for the file source, or CSV with the columns issue_date_utc, horizon_h and
    /// forecast_gco2_per_kwh.
    #[arg(long, value_name = "FILE")]
    forecast_trace: Option<PathBuf>,
    /// The issue times to assume for the values in --forecast-trace, if that file does not state them.
    #[arg(long, value_enum, default_value_t = Issue::DayAhead, requires = "forecast_trace")]
    forecast_issue: Issue,
    /// The forecasts that policies use.
    #[arg(long, value_enum, default_value_t = Forecast::AsIssued)]
    forecast: Forecast,
    /// Duration of a job at the largest power limit; with --within, several with commas.
    #[arg(long, value_name = "HOURS", value_delimiter = ',', default_value = "64", value_parser = hours)]
    hours: Vec<f64>,
    #[command(flatten)]
    waiting: waiting::WaitingArgs,
    /// Maximum slowdown of a job: 0.03 is 3 %; several with commas.
    #[arg(long, value_name = "FRACTION", value_delimiter = ',', default_value = "0.03", value_parser = slowdown)]
    max_slowdown: Vec<f64>,
    /// The policies; several with commas [default: all that apply; with --node-cap only wattune and clairvoyant are
    /// possible, with --within only those that choose starts].
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policies())]
    policy: Vec<String>,
    /// Cap in watts on the sum of all workloads' power limits; they then run together on one node, from the same start.
    #[arg(long, value_name = "WATTS", value_parser = watts, conflicts_with_all = ["profiling", "profile_error"])]
    node_cap: Option<f64>,
    /// Starts of jobs: dates (00:00 UTC) or times; several with commas [default: the first time that the traces cover].
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = begin)]
    start: Vec<DateTime<Utc>>,
    /// Number of starts, in place of --start: at beginnings of slots, evenly spread over the time that the traces
    /// cover.
    #[arg(long, value_name = "N", conflicts_with = "start", value_parser = clap::value_parser!(u32).range(1..=1000))]
    starts: Option<u32>,
    /// Seconds for which zeus, carbon-zeus and wattune first measure the job at each limit, from the largest limit
    /// down.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    profiling: f64,
    /// Relative standard error of the measured throughputs and powers that policies use: 0.003 is 0.3 %.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = error)]
    profile_error: f64,
    /// Seed of the random errors of --profile-error; several with commas.
    #[arg(long, value_name = "SEED", value_delimiter = ',', default_value = "1", requires = "profile_error")]
    seed: Vec<u64>,
    /// Allow suspend, wattune and clairvoyant to pause the job, at the costs of --idle-power, --min-run, --min-pause and
    /// --checkpoint.
    #[arg(long, group = "stops")]
    pausable: bool,
    /// Allow suspend, wattune and clairvoyant to stop the job and to start it again: pauses in which the GPU is free for
    /// others, at the costs of --checkpoint and --restart for each stop.
    #[arg(long, group = "stops")]
    suspend: bool,
    /// Power of a GPU during a pause, in watts [default: 50; with --suspend 0, as the GPU is not kept].
    #[arg(long, value_name = "WATTS", requires = "stops", value_parser = watts)]
    idle_power: Option<f64>,
    /// The minimum running time between two pauses.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0, requires = "stops", value_parser = seconds)]
    min_run: f64,
    /// The minimum duration of a pause.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800.0, requires = "stops", value_parser = seconds)]
    min_pause: f64,
    /// Time that each pause costs for its checkpoint, in which the GPU draws its running power but does no work.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, requires = "stops", value_parser = seconds)]
    checkpoint: f64,
    /// Time that each stop costs until the restarted job does new work, in which the GPU draws its running power.
    #[arg(long, value_name = "SECONDS", default_value_t = 180.0, requires = "suspend", value_parser = seconds)]
    restart: f64,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The output file [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    /// Returns the conditions and costs of pauses; `None` if jobs may neither pause nor be stopped.
    fn pausing(&self) -> Option<Pausing> {
        let (idle, restart) = match (self.pausable, self.suspend) {
            (false, false) => return None,
            (true, _) => (50.0, 0.0),
            (false, true) => (0.0, self.restart),
        };
        Some(Pausing {
            idle_power: Watts::new(self.idle_power.unwrap_or(idle)),
            min_run: Seconds::new(self.min_run),
            min_pause: Seconds::new(self.min_pause),
            checkpoint: Seconds::new(self.checkpoint + restart),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forecast {
    /// The forecasts published before each decision, corrected and weighted as in the daemon.
    AsIssued,
    /// The actual values, known in advance.
    Perfect,
    /// No forecasts, only past actual values.
    None,
}

/// Creates a parser of the names of all policies, those that choose power limits and those that choose starts.
fn policies() -> impl TypedValueParser<Value = String> {
    let limits = POLICIES.iter().map(|p| (p.name, p.about));
    let starts = START_POLICIES.iter().map(|p| (p.name, p.about));
    one_of(limits.chain(starts.filter(|(name, _)| policy::named(name).is_err())))
}

fn slowdown(text: &str) -> Result<f64, String> {
    within(text, 0.0, 10.0, "a fraction from 0 to 10; 0.03 allows 3 % more time, 1 twice the time")
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

/// Runs the simulation and writes the rows.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let grid = grid::read(&args.carbon_trace, args.forecast_trace.as_deref(), args.forecast_issue);
    let grid = grid.context("carbon trace")?;
    let foresight = match args.forecast {
        Forecast::AsIssued => Foresight::AsIssued,
        Forecast::Perfect => Foresight::Perfect,
        Forecast::None => Foresight::Nothing,
    };
    if args.waiting.is_asked() {
        let output = (args.format, args.output.as_deref());
        return waiting::run(&args.waiting, &args.hours, &args.policy, (&grid, foresight), output);
    }
    let power_trace = args.power_trace.as_deref().context("--power-trace is missing")?;
    let power = TraceFile::read(power_trace).context("power trace")?;
    let [hours] = args.hours[..] else { bail!("--hours: several durations are possible only with --within") };
    let at_max = Seconds::new(hours * 3600.0);
    let job = |workload: &Workload| {
        let profile = power_profile(&power, workload, args.optimizer.as_deref()).context("power trace")?;
        Ok(Job::new(power.gpu(), workload.clone(), profile, at_max)?)
    };
    // Without a common node, a repeated workload is simulated once; on a common node, it is several jobs.
    let workloads =
        if args.node_cap.is_some() { args.workload.clone() } else { once(&args.workload, Workload::to_string) };
    check_writable("--output", args.output.as_deref())?;
    let policies = chosen(args)?;
    let jobs = workloads.iter().map(job).collect::<anyhow::Result<Vec<_>>>()?;
    let longest = at_max * (1.0 + args.max_slowdown.iter().copied().fold(0.0, f64::max));
    let starts = once(&starts(args, &grid, longest)?, |start| *start);
    let visible = VisibleGrid::new(&grid, foresight, longest);
    let study = Study {
        jobs: &jobs,
        node_cap: args.node_cap.map(Watts::new),
        grid: &visible,
        starts: &starts,
        budgets: &once(&args.max_slowdown, |budget| budget.to_bits()),
        policies: &policies,
        sweep: Seconds::new(args.profiling),
        profile_error: args.profile_error,
        pausing: args.pausing(),
        seeds: &once(&args.seed, |seed| *seed),
    };
    let mut progress = Progress::new(study.steps());
    let results = study.run(|| progress.step())?;
    drop(progress);
    warn(&without_figures(&results, &grid.actual));
    let bytes = written(args, &jobs, &grid, &results)?;
    deliver(&bytes, args.output.as_deref())
}

/// Describes the rows that have no results, and the remedy: one warning for each policy and job, or for each job if its
/// starts have no emissions.
fn without_figures(results: &[CaseResult], actual: &CarbonSeries) -> Vec<String> {
    let rows = results.iter().map(|r| &r.row).filter(|row| row.carbon_reduction_pct.is_none());
    let (zero, cut): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| row.no_carbon);
    let cut = first_of_each(&cut, |row| (row.policy, row.job)).into_iter().map(|(first, more)| {
        let budget = first.budget_pct.map_or_else(|| "its own weights".to_owned(), |b| format!("{b} % more time"));
        let others = if more > 0 { format!(" (and in {more} more rows)") } else { String::new() };
        format!(
            "no figures of {} on {}/{} from {} with {budget}{others}: the carbon trace has no value at {}, before its \
             slower runs end; begin earlier, or give a trace that covers them",
            first.policy,
            first.workload,
            first.batch_size,
            shown(first.start),
            shown(covered_until(actual, first.start))
        )
    });
    // No policy has figures there, so starts are counted and not rows.
    let zero = once(&zero, |row| (row.job, row.start));
    let zero = first_of_each(&zero, |row| row.job).into_iter().map(|(first, more)| {
        let others = if more > 0 { format!(" (and from {more} more starts)") } else { String::new() };
        format!(
            "no figures on {}/{} from {}{others}: the carbon trace is zero for as long as the work takes at the \
             largest limit, so there is nothing to reduce; means leave such starts out",
            first.workload,
            first.batch_size,
            shown(first.start)
        )
    });
    cut.chain(zero).collect()
}

/// Returns the first row of each key, and the number of the other rows with that key.
fn first_of_each<'a, K: PartialEq>(rows: &[&'a Row], key: impl Fn(&Row) -> K) -> Vec<(&'a Row, usize)> {
    let others = |first: &Row| rows.iter().filter(|row| key(row) == key(first)).count() - 1;
    once(rows, |row| key(row)).into_iter().map(|first| (first, others(first))).collect()
}

/// Returns the policies of `--policy`; without that option, all policies that are possible.
fn chosen(args: &Args) -> anyhow::Result<Vec<Policy>> {
    let plans = |policy: &Policy| ["wattune", "clairvoyant"].contains(&policy.name);
    let may_be_used = |policy: &Policy| policy.name != "suspend" || args.pausing().is_some();
    let named = |name: &String| {
        policy::named(name).map_err(|_| anyhow::anyhow!("--policy {name}: it chooses starts, which needs --within"))
    };
    let chosen = once(&args.policy, String::clone).iter().map(named).collect::<anyhow::Result<Vec<Policy>>>()?;
    match (args.node_cap, chosen.is_empty()) {
        (None, true) => Ok(POLICIES.iter().copied().filter(may_be_used).collect()),
        (Some(_), true) => Ok(POLICIES.iter().copied().filter(plans).collect()),
        (None, false) => match chosen.iter().find(|policy| !may_be_used(policy)) {
            Some(policy) => bail!("--policy {}: give --suspend, which allows jobs to be stopped", policy.name),
            None => Ok(chosen),
        },
        (Some(_), false) => match chosen.iter().find(|policy| !plans(policy)) {
            Some(other) => bail!("--policy {}: under --node-cap only wattune and clairvoyant plan", other.name),
            None => Ok(chosen),
        },
    }
}

fn written(args: &Args, jobs: &[Job], grid: &RecordedGrid, results: &[CaseResult]) -> anyhow::Result<Vec<u8>> {
    let rows: Vec<_> = results.iter().map(|r| r.row.clone()).collect();
    Ok(match args.format {
        Format::Table => write::table(&rows).into_bytes(),
        Format::Json => write::json(&rows)?,
        Format::Csv => write::comma_separated(&rows)?,
        Format::Html => page::page(jobs, grid, results).into_bytes(),
    })
}

/// Returns the starts of jobs, after a check that from each start the traces cover the longest job.
fn starts(args: &Args, grid: &RecordedGrid, longest: Seconds) -> anyhow::Result<Vec<DateTime<Utc>>> {
    let named = args.carbon_trace.display();
    let (Some(first), Some(last)) = (grid.actual.start(), grid.actual.end()) else { bail!("{named} has no value") };
    // With forecasts, the first start is the time at which the first forecast is available.
    let forecasts = Some(grid.forecasts()).filter(|_| args.forecast == Forecast::AsIssued);
    let forecast_from = forecasts.and_then(PublishedForecasts::start);
    let first = forecast_from.map_or(first, |from| from.max(first));
    let last = forecasts.and_then(PublishedForecasts::end).map_or(last, |end| end.min(last));
    let latest = last - longest.to_delta();
    if last <= first {
        bail!(
            "{named} covers {} to {}, and the forecasts nothing of that time; use --forecast none to do without them",
            shown(grid.actual.start().unwrap_or(first)),
            shown(grid.actual.end().unwrap_or(last))
        );
    }
    if latest < first {
        let missing = Seconds::from_delta(first - latest).get() / 3600.0;
        bail!(
            "the traces cover {} to {}, {missing:.1} h less than the jobs may take ({:.1} h); give fewer --hours or a \
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
    let (covered, ends) = (grid.actual.start().unwrap_or(first), grid.actual.end().unwrap_or(last));
    for start in &starts {
        let end = start.checked_add_signed(longest.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let span = Slot::new(*start, end).context("the jobs have no length")?;
        if *start < covered || span.end() > ends {
            bail!(
                "--start {}: {named} covers {} to {}, and a job may take {:.1} h: begin between {} and {}",
                shown(*start),
                shown(covered),
                shown(ends),
                longest.get() / 3600.0,
                shown(covered),
                shown(ends - longest.to_delta())
            );
        }
        if forecast_from.is_some_and(|_| *start < first || *start >= last) {
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
                "--start {}: {named} has no value for {}; fill the gap in the file, or choose starts and --hours that \
                 keep clear of it",
                shown(*start),
                gap.map_or(span.to_string(), |gap| gap.to_string())
            );
        }
    }
    Ok(starts)
}

/// Spreads `count` starts from the first to the latest, each at the beginning of a slot.
fn spread(grid: &RecordedGrid, first: DateTime<Utc>, latest: DateTime<Utc>, count: u32) -> Vec<DateTime<Utc>> {
    let step =
        if count > 1 { (latest - first) / i32::try_from(count - 1).unwrap_or(i32::MAX) } else { TimeDelta::zero() };
    let at_slot = |i: u32| {
        let at = first + step * i32::try_from(i).unwrap_or(i32::MAX);
        grid.actual.at(at).map_or(at, |(slot, _)| slot.start().max(first))
    };
    (0..count).map(at_slot).collect()
}
