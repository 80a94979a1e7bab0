//! `wattune demo`: the real daemon on simulated GPUs, an accelerated clock, and a generated or recorded grid.

mod report;
mod screen;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use report::{Report, job_report, table};
use screen::Screen;

use super::output::Format;
use super::signals::{Hangup, stopped};
use super::values::{slowdown, within};
use crate::clock::{Clock, SystemClock};
use crate::controller::Handle;
use crate::demo::{Scenario, SimulatedJob, SyntheticGrid, TraceProvider, World};
use crate::gpu::simulated::LoadCurve;
use crate::http;
use crate::providers::{FileSettings, file};
use crate::recurring::Recurring;
use wattune_core::domain::{
    CarbonSeries, ClockLimit, LimitRange, Objective, PowerLimit, SignalKind, SignalScope, Slot, Zone,
};
use wattune_core::ledger;
use wattune_core::units::{Rounded, SamplesPerSecond, Seconds, Watts};
use wattune_lab::grid::covered_until;
use wattune_lab::traces::{TraceFile, Workload, power_profile};

/// Shows the whole daemon at work in a minute: simulated GPUs, an accelerated clock, and a generated grid or recorded
/// traces. Nothing is measured or set on hardware.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address of the demo daemon's API.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: std::net::SocketAddr,
    /// Approximate duration in real seconds, longer if the machine is too slow; 0 runs as fast as the machine allows.
    #[arg(long, value_name = "SECONDS", default_value_t = 45.0, value_parser = seconds)]
    duration: f64,
    /// Duration of the jobs at the largest power limit, in simulated days [default: 2, or 64 hours with a power trace].
    #[arg(long, value_name = "DAYS", conflicts_with = "hours", value_parser = days)]
    days: Option<f64>,
    /// Duration of the jobs at the largest power limit, in simulated hours.
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    hours: Option<f64>,
    /// The number of jobs [default: 2, or 1 with a power trace].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    jobs: Option<u32>,
    /// Seed of the generated grid and of the noise of the GPUs' readings.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum slowdown of the jobs: 0.03 is 3 %.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.03, value_parser = slowdown)]
    max_slowdown: f64,
    /// Relative noise of each power reading and each progress reading: 0.01 is 1 %.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.01, value_parser = noise)]
    noise: f64,
    /// A recorded grid in place of the generated one: CSV or JSON. Plans use its forecast, the ledger its actual
    /// values.
    #[arg(long, value_name = "FILE")]
    carbon_trace: Option<PathBuf>,
    /// Column of the start times of slots (spans of time with one value), needed if wattune does not recognise its
    /// name.
    #[arg(long, value_name = "NAME", requires = "carbon_trace")]
    time_column: Option<String>,
    /// Column of the forecast, needed if wattune does not recognise its name.
    #[arg(long, value_name = "NAME", requires = "carbon_trace")]
    value_column: Option<String>,
    /// Column of the actual values, needed if wattune does not recognise its name.
    #[arg(long, value_name = "NAME", requires = "carbon_trace")]
    actual_column: Option<String>,
    /// Start of the jobs within the recorded grid [default: the start of the first actual value].
    #[arg(long, value_name = "TIME", requires = "carbon_trace")]
    start: Option<DateTime<Utc>>,
    /// Throughput and power at each power limit, measured on a real GPU: a trace file of the Zeus project.
    #[arg(long, value_name = "FILE", requires = "workload")]
    power_trace: Option<PathBuf>,
    /// Workload to take from the power trace: dataset/network/batch size.
    #[arg(long, value_name = "WORKLOAD", requires = "power_trace")]
    workload: Option<Workload>,
    /// The training's optimizer, needed if the power trace has the workload with several optimizers.
    #[arg(long, value_name = "NAME", requires = "power_trace")]
    optimizer: Option<String>,
    /// Simulate memory-bound jobs: they draw less power than most limits allow, so locked clocks save more than limits.
    #[arg(long, conflicts_with = "power_trace")]
    memory_bound: bool,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e6, "0 or more seconds, such as 45; with 0 it is as fast as the machine allows")
}

fn days(text: &str) -> Result<f64, String> {
    within(text, 0.01, 366.0, "0.01 to 366 days")
}

fn hours(text: &str) -> Result<f64, String> {
    within(text, 0.25, 24.0 * 366.0, "0.25 to 8784 hours")
}

fn noise(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.5, "a fraction from 0 to 0.5; 0.01 is 1 % per reading")
}

/// Runs the demo to its end, or until it is interrupted.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let (scenario, source) = scenario(&args)?;
    let (actual, start) = (scenario.actual.clone(), scenario.start);
    let longest = scenario.jobs.iter().map(|j| j.duration_at_original).fold(Seconds::ZERO, Seconds::max);
    let stopped = stopped(Hangup::Ends);
    let state = StateDir::make().context("cannot make a temporary directory for the demo's state")?;
    let (handle, requests) = Handle::queue();
    let cancel = CancellationToken::new();
    // On simulated GPUs, everything may be tried out.
    let settings = http::Settings { listen: Some(args.listen), loopback_control: true, ..http::Settings::default() };
    let ready = http::Ready::default();
    let server = http::Server::bind(&settings, handle, ready.clone()).await?;
    let address = server.tcp_address();
    let mut world = World::build(scenario, &state.0, requests).await?;
    let recurring = Recurring::new(world.controller().store(), Arc::new(SystemClock::start()));
    let serving = tokio::spawn(server.serve(
        recurring,
        world.controller().devices(),
        http::ZeusSettings::default(),
        cancel.clone(),
    ));
    ready.set(true);
    let mut screen = Screen::new();
    screen.say(&announcement(&source, longest, args.duration));
    if let Some(address) = address {
        screen.say(&format!(
            "the daemon's API: http://{address}/v1/status and its page: http://{address}/ (Ctrl-C ends the demo)"
        ));
    }
    let finished = tokio::select! {
        () = run_at_speed(&mut world, &mut screen, longest, start, args.duration) => true,
        () = stopped => false,
    };
    screen.end();
    let outcomes = world.outcomes();
    world.end().await;
    cancel.cancel();
    // The server has ended because its token was cancelled, so its result says nothing new.
    let _ = serving.await;
    if !finished {
        screen.say("interrupted; the simulated GPUs have their original limits back");
        return Ok(());
    }
    let report = Report {
        simulated: true,
        carbon_source: source,
        noise_per_reading: args.noise,
        jobs: outcomes.iter().map(|o| job_report(o, &actual, start)).collect::<anyhow::Result<_>>()?,
    };
    args.format.print(&report, || table(&report))
}

/// Describes the demo in one line: its grid, its simulated time, and about how long that takes, in real seconds.
fn announcement(source: &str, simulated: Seconds, duration: f64) -> String {
    let hours = Rounded(simulated.get() / 3600.0);
    let pace = if duration > 0.0 {
        format!("in about {} s", Rounded(duration))
    } else {
        "as fast as the machine allows".to_owned()
    };
    format!("wattune demo — simulated GPUs, {source}, {hours} simulated hours {pace}")
}

/// Runs the world to its end, at the speed at which the simulated time `span` takes about `duration` real seconds; with
/// a `duration` of 0, as fast as possible.
async fn run_at_speed(world: &mut World, screen: &mut Screen, span: Seconds, start: DateTime<Utc>, duration: f64) {
    let real = SystemClock::start();
    let begun = real.monotonic();
    let rate = if duration > 0.0 { span / Seconds::new(duration) } else { f64::INFINITY };
    while !world.is_done() {
        world.step().await;
        let simulated = Seconds::from_delta(world.now() - start);
        let elapsed = real.monotonic().since(begun);
        screen.show(world, elapsed);
        let ahead = simulated / rate - elapsed;
        if ahead > Seconds::new(0.005) {
            // The API keeps answering while the demo waits.
            let mut left = ahead;
            while left > Seconds::ZERO {
                tokio::time::sleep(left.min(Seconds::new(0.02)).to_std()).await;
                world.answer().await;
                left -= Seconds::new(0.02);
            }
        } else {
            tokio::task::yield_now().await;
        }
    }
    world.wait_for_actuals().await;
}

fn scenario(args: &Args) -> anyhow::Result<(Scenario, String)> {
    let traced = args.power_trace.is_some();
    let hours = args.hours.or(args.days.map(|d| d * 24.0)).unwrap_or(if traced { 64.0 } else { 48.0 });
    let count = args.jobs.unwrap_or(if traced { 1 } else { 2 });
    let objective = Objective::slower_by(args.max_slowdown).context("--max-slowdown")?;
    let duration_at_original = Seconds::new(hours * 3600.0);
    let needed = duration_at_original * (1.0 + args.max_slowdown) + Seconds::new(1800.0);
    let (grid, actual, start, source) = match &args.carbon_trace {
        Some(path) => recorded(args, path, needed)?,
        None => generated(args, needed)?,
    };
    // The job that waits starts and ends before the others have done their work.
    let waits = args.jobs.is_none() && !args.memory_bound && hours >= 6.0;
    let waiting = waits.then(|| waiting(count + 1, duration_at_original, objective));
    let (jobs, model) = match (&args.power_trace, &args.workload) {
        (Some(path), Some(workload)) => {
            let file = TraceFile::read(path)?;
            let profile = power_profile(&file, workload, args.optimizer.as_deref())?;
            let curve = LoadCurve::from_profile(&profile).context("the power trace has no point")?;
            let job = |n| SimulatedJob {
                name: if count == 1 { workload.to_string() } else { format!("{workload}-{n}") },
                gpus: 1,
                curve: curve.clone(),
                duration_at_original,
                objective,
                original_limit: None,
                pauses: None,
                within: None,
            };
            ((1..=count).map(job).collect(), file.gpu().to_uppercase())
        }
        _ => (
            (1..=count)
                .map(|n| invented(n, args.memory_bound, duration_at_original, objective))
                .chain(waiting)
                .collect(),
            "Demo GPU".to_owned(),
        ),
    };
    Ok((Scenario { jobs, model, grid, actual, start, noise: args.noise, seed: args.seed }, source))
}

/// Creates job number `n` of a demo without traces: jobs differ in power, and every second one trains on two GPUs.
fn invented(n: u32, memory_bound: bool, duration_at_original: Seconds, objective: Objective) -> SimulatedJob {
    let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
    let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
    let demand = Watts::new(295.0 - 30.0 * f64::from((n - 1) % 3));
    let (floor, peak) = (Watts::new(70.0), SamplesPerSecond::new(400.0));
    let curve = if memory_bound {
        LoadCurve::memory_bound(ClockLimit::from_megahertz(1_980), demand * 0.6, floor, peak)
    } else {
        LoadCurve::saturating(&range, demand, floor, peak)
    };
    let shrink = 1.0 - 0.25 * f64::from((n - 1) % 3);
    let name = ["resnet50", "bert-base", "gpt2-small"][((n - 1) % 3) as usize];
    let name = if n <= 3 { name.to_owned() } else { format!("{name}-{n}") };
    let (gpus, duration_at_original) = (1 + (n - 1) % 2, duration_at_original * shrink);
    SimulatedJob {
        name,
        gpus,
        curve,
        duration_at_original,
        objective,
        original_limit: None,
        pauses: None,
        within: None,
    }
}

/// Creates the job of a demo that waits for its start, for at most half of the time `longest` of the longest job. It is
/// short, so that it ends before the others.
fn waiting(n: u32, longest: Seconds, objective: Objective) -> SimulatedJob {
    let (duration_at_original, within) = (longest * (1.0 / 12.0), Some(longest * 0.5));
    SimulatedJob { name: "finetune".to_owned(), within, gpus: 1, ..invented(n, false, duration_at_original, objective) }
}

type Grid = (TraceProvider, CarbonSeries, DateTime<Utc>, String);

fn generated(args: &Args, needed: Seconds) -> anyhow::Result<Grid> {
    let start: DateTime<Utc> = "2026-06-01T00:00:00Z".parse()?;
    let (expected, actual) = SyntheticGrid { seed: args.seed }.generate(start, needed + Seconds::new(86_400.0));
    let kind = (SignalKind::Average, SignalScope::Unspecified);
    let provider = TraceProvider::new("synthetic", Zone::new("synthetic")?, kind, expected, actual.clone());
    Ok((provider, actual, start, format!("synthetic, generated with seed {}", args.seed)))
}

fn recorded(args: &Args, path: &std::path::Path, needed: Seconds) -> anyhow::Result<Grid> {
    let settings = FileSettings {
        path: Some(path.to_owned()),
        time_column: args.time_column.clone(),
        value_column: args.value_column.clone(),
        actual_column: args.actual_column.clone(),
        ..FileSettings::default()
    };
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the carbon trace {}", path.display()))?;
    // The demo reads no settings.
    let parsed = file::parse(&bytes, &settings, None).map_err(file::ParseError::without_setting);
    let parsed = parsed.with_context(|| format!("carbon trace {}", path.display()))?;
    let expected = if parsed.expected.is_empty() { parsed.actual.clone() } else { parsed.expected };
    let actual = if parsed.actual.is_empty() { expected.clone() } else { parsed.actual };
    let first = actual.start().context("the carbon trace has no value")?;
    let start = args.start.unwrap_or(first);
    let end = start.checked_add_signed(needed.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    let span = Slot::new(start, end).context("the jobs have no length")?;
    if ledger::mean_intensity(&actual, &span).is_none() {
        let (end, missing) = (actual.end().unwrap_or(first), covered_until(&actual, start));
        bail!(
            "the carbon trace {} covers {first} to {end} and has no value at {missing}, and the jobs need {span}; give \
             fewer --hours or another --start",
            path.display()
        );
    }
    let zone = parsed.zone.unwrap_or(Zone::new(path.file_stem().unwrap_or_default().to_string_lossy())?);
    let provider = TraceProvider::new("trace", zone, (parsed.kind, parsed.scope), expected, actual.clone());
    Ok((provider, actual, start, format!("the recorded grid {}", path.display())))
}

/// A temporary directory, removed when dropped.
struct StateDir(PathBuf);

impl StateDir {
    fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("wattune-demo-{}", uuid::Uuid::new_v4()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_rounds_no_time_to_nothing() {
        let said = |hours: f64, duration| announcement("a grid", Seconds::new(hours * 3600.0), duration);
        assert!(said(0.25, 0.0).ends_with("a grid, 0.25 simulated hours as fast as the machine allows"));
        assert!(said(48.0, 45.0).ends_with("a grid, 48 simulated hours in about 45 s"));
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Returns the error of a demo on a trace of 100 hours, of which two hours are missing twice.
    fn refused(more: &[&str]) -> String {
        use clap::Parser;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grid.csv");
        let hours = (0..100).filter(|hour| ![10, 11, 60, 61].contains(hour));
        let rows: String =
            hours.map(|hour| format!("2021-07-{:02}T{:02}:00:00Z,300\n", 1 + hour / 24, hour % 24)).collect();
        std::fs::write(&path, format!("timestamp,value\n{rows}")).expect("written");
        let path = path.to_str().expect("UTF-8").to_owned();
        let line = [&["demo", "--carbon-trace", &path], more].concat();
        let args = Line::try_parse_from(line).expect("accepted").args;
        scenario(&args).err().expect("the jobs need a value that is missing").to_string()
    }

    #[test]
    fn a_trace_that_lacks_a_value_is_refused_with_the_time() {
        let within = refused(&["--start", "2021-07-02T00:00:00Z", "--hours", "40"]);
        assert!(within.contains("has no value at 2021-07-03 12:00:00 UTC"), "not the first gap: {within}");
        let never = refused(&["--start", "+262142-12-31T00:00:00Z", "--hours", "40"]);
        assert!(never.contains("has no value at +262142-12-31 00:00:00 UTC"), "{never}");
    }
}
