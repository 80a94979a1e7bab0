//! How good reported savings are: whole daemons in simulated worlds of which the truth is known, each with a noise, a
//! budget, a job, a grid and a found limit of its own. Prints how many intervals hold the truth and by how much their
//! means are off; fails below 90 %, or where they are further off than 0.3 points on the mean of all runs.
//!
//!     cargo run --release -p wattune-benches --example savings -- ../shared/data 200

use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use chrono::TimeDelta;
use wattune::controller::Handle;
use wattune::controller::view::{IntervalView, SavingView};
use wattune::demo::{Scenario, SimulatedJob, TraceProvider, World};
use wattune::gpu::simulated::LoadCurve;
use wattune::providers::{FileSettings, file};
use wattune_core::domain::{CarbonSeries, Objective, SignalKind, SignalScope, Zone};
use wattune_core::ledger::Comparison;
use wattune_core::units::{Seconds, Watts};
use wattune_lab::traces::{TraceFile, power_profile};

const NOISES: [f64; 3] = [0.005, 0.01, 0.02];
const BUDGETS: [f64; 4] = [0.01, 0.03, 0.05, 0.1];
/// What came, and what had been said where that is another file.
const GRIDS: [(&str, Option<&str>); 3] = [
    ("carbon/miso_mason_city_2022-10.csv", None),
    ("carbon/CISO_2021_hourly.csv", Some("carbon/CISO_2021H2_carboncast_dayahead.csv")),
    ("carbon/DE_2021_hourly.csv", Some("carbon/DE_2021H2_carboncast_dayahead.csv")),
];
const JOBS: [&str; 4] =
    ["imagenet/resnet50/128", "imagenet/resnet50/256", "librispeech/deepspeech2/64", "cifar100/shufflenetv2/1024"];

/// One figure of one run: the interval told, and the truth.
#[derive(Clone, Copy)]
struct Row {
    seed: u64,
    noise: f64,
    budget: f64,
    what: &'static str,
    reported: (f64, f64, f64),
    truth: f64,
}

impl Row {
    fn holds(&self) -> bool {
        self.reported.0 <= self.truth && self.truth <= self.reported.2
    }

    fn off(&self) -> f64 {
        self.reported.1 - self.truth
    }
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let traces = args.next().context("give the folder of the traces")?;
    let runs: u64 = args.next().map_or(Ok(200), |n| n.parse()).context("give the number of runs")?;
    let (next, rows) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    let worker = || -> anyhow::Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > runs {
                return Ok(());
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let found = runtime.block_on(one(Path::new(&traces), seed)).with_context(|| format!("run {seed}"))?;
            rows.lock().map_err(|_| anyhow::anyhow!("another run failed"))?.extend(found);
        }
    };
    let threads = std::thread::available_parallelism()?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow::anyhow!("a run panicked"))?)
    })?;
    let rows = rows.into_inner()?;
    report(&rows, runs)
}

/// A world to its end.
async fn one(traces: &Path, seed: u64) -> anyhow::Result<Vec<Row>> {
    let pick = |one_in: u64, of: usize| (seed / one_in) as usize % of;
    let (noise, budget) = (NOISES[pick(1, 3)], BUDGETS[pick(3, 4)]);
    let (grid, workload) = (GRIDS[pick(12, 3)], JOBS[pick(5, 4)]);
    let hours = Seconds::new(3600.0 * [6.0, 12.0, 24.0][pick(2, 3)]);
    let (expected, actual) = read(traces, grid)?;
    // Somewhere within the time that the forecast covers, with a day to spare on both sides.
    let (first, last) = (expected.start().context("no forecast")?, expected.end().context("no forecast")?);
    let room = (last.min(actual.end().context("no values")?) - first - TimeDelta::days(3)).num_minutes();
    let start = first + TimeDelta::days(1) + TimeDelta::minutes((seed * 7919) as i64 % room.max(1));
    let file = TraceFile::read(&traces.join("zeus-traces/summary_power_a40.csv"))?;
    let profile = power_profile(&file, &workload.parse().map_err(anyhow::Error::msg)?, None)?;
    let curve = LoadCurve::from_profile(&profile).context("the power trace has no point")?;
    let zone = Zone::new("trace")?;
    let scenario = Scenario {
        jobs: vec![SimulatedJob {
            name: "job".into(),
            gpus: 1,
            curve,
            duration_at_original: hours,
            objective: Objective::slower_by(budget)?,
            original_limit: (seed % 2 == 1).then_some(Watts::new(240.0)),
            pauses: None,
            within: None,
        }],
        model: "A40".into(),
        grid: TraceProvider::new(
            "trace",
            zone,
            (SignalKind::Average, SignalScope::Unspecified),
            expected,
            actual.clone(),
        ),
        actual,
        start,
        noise,
        seed,
    };
    let state = tempfile::tempdir()?;
    let (_handle, requests) = Handle::queue();
    let mut world = World::build(scenario, state.path(), requests).await?;
    while !world.is_done() {
        world.step().await;
    }
    world.wait_for_actuals().await;
    let outcome = world.outcomes().remove(0);
    world.end().await;
    let reported = outcome.reported.context("nothing reported")?;
    let mut rows = Vec::new();
    for (name, reported, truth) in [
        ("against the original limit", reported.against_original, outcome.against_original),
        ("against the maximum", reported.against_max, outcome.against_ceiling),
    ] {
        let truth: Comparison = truth.context("the truth is not known")?;
        let reported = match reported {
            SavingView::Known(reported) => reported,
            SavingView::Unknown(why) => bail!("{name}: {}", why.unknown),
        };
        let row = |what, reported: IntervalView, truth| Row {
            seed,
            noise,
            budget,
            what,
            reported: (reported.low, reported.mean, reported.high),
            truth,
        };
        rows.push(row(name, reported.carbon_reduction_pct, truth.carbon_reduction_pct));
        if name == "against the maximum" {
            if let Some(effect) = reported.energy_effect_pct {
                rows.push(row("energy effect", effect, truth.energy_effect_pct));
            }
            if let Some(effect) = reported.timing_effect_pct {
                rows.push(row("timing effect", effect, truth.timing_effect_pct));
            }
        }
    }
    Ok(rows)
}

/// What was said of a grid, and what came.
fn read(traces: &Path, (actual, said): (&str, Option<&str>)) -> anyhow::Result<(CarbonSeries, CarbonSeries)> {
    let parse = |name: &str| -> anyhow::Result<file::ParsedFile> {
        let bytes = std::fs::read(traces.join(name)).with_context(|| name.to_owned())?;
        file::parse(&bytes, &FileSettings::default(), None).with_context(|| name.to_owned())
    };
    let came = parse(actual)?;
    let expected = match said {
        Some(said) => parse(said)?.expected,
        None => came.expected,
    };
    Ok((expected, came.actual))
}

fn report(rows: &[Row], runs: u64) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{runs} runs; points of percent")?;
    writeln!(
        out,
        "{:<25} {:>6} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "figure", "of", "runs", "holds", "mean off", "worst off", "off (rms)", "half width"
    )?;
    let mut failed = false;
    for what in ["against the original limit", "against the maximum", "energy effect", "timing effect"] {
        let all: Vec<&Row> = rows.iter().filter(|r| r.what == what).collect();
        let mut groups = vec![("all".to_owned(), all.clone())];
        for noise in NOISES {
            groups
                .push((format!("±{:.1} %", 100.0 * noise), all.iter().filter(|r| r.noise == noise).copied().collect()));
        }
        for budget in BUDGETS {
            groups.push((
                format!("{:.0} %", 100.0 * budget),
                all.iter().filter(|r| r.budget == budget).copied().collect(),
            ));
        }
        for (name, group) in groups {
            let count = group.len().max(1) as f64;
            let mean = |of: &dyn Fn(&Row) -> f64| group.iter().map(|r| of(r)).sum::<f64>() / count;
            let holds = mean(&|r| f64::from(u8::from(r.holds())));
            let off = mean(&Row::off);
            let worst = group.iter().map(|r| r.off().abs()).fold(0.0, f64::max);
            let rms = mean(&|r| r.off().powi(2)).sqrt();
            let half = mean(&|r| (r.reported.2 - r.reported.0) / 2.0);
            writeln!(
                out,
                "{what:<25} {name:>6} {:>5} {:>6.1}% {off:>+9.4} {worst:>9.4} {rms:>9.4} {half:>9.4}",
                group.len(),
                100.0 * holds
            )?;
            if name == "all" && what.starts_with("against") {
                // Written so that a value that is no number fails too.
                failed |= !(group.len() as u64 == runs && holds >= 0.9 && off.abs() <= 0.3);
            }
        }
    }
    if std::env::var_os("SHOW").is_some() {
        for row in rows.iter().filter(|r| !r.holds()) {
            writeln!(
                out,
                "{} {} noise {} budget {}: {:?}, truth {}",
                row.seed, row.what, row.noise, row.budget, row.reported, row.truth
            )?;
        }
    }
    if failed {
        bail!(
            "an interval holds the truth in fewer than 90 % of the runs, or they are off by more than 0.3 points on the mean"
        )
    }
    Ok(())
}
