//! How good the plans are on the recorded traces: prints the tables of `docs/src/explanation/evidence.md`, and fails
//! where a bound that is stated there does not hold.
//!
//!     cargo run --release -p wattune-benches --example evidence [-- [--quick] [miso] [optimality] [forecasts] [pausing] [suspension] [waiting] [GRID]…]
//!
//! `--quick` prints smaller tables, whose bounds all hold: two grids, fewer sets and starts. Words choose among the tables,
//! names of grids (CISO, "DE 96 h") among their rows.
//! The traces are read from `WATTUNE_TRACES` (default: `../shared/data` beside the repository).

mod bound;
mod line;
mod pausing;
mod suspension;
mod waiting;

use std::io::Write;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use wattune::providers::{FileSettings, file};
use wattune_core::domain::Pausing;
use wattune_core::units::Seconds;
use wattune_lab::grid::{Foresight, PublishedForecasts, RecordedGrid, VisibleGrid};
use wattune_lab::policy::{self, Policy};
use wattune_lab::replay::Job;
use wattune_lab::study::{CaseResult, Study};
use wattune_lab::traces::{TraceFile, Workload, power_profile};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const TABLES: [&str; 6] = ["miso", "optimality", "forecasts", "pausing", "suspension", "waiting"];
const GRIDS: [&str; 5] = ["MISO", "CISO", "PJM", "DE", "SE"];
/// Grids once more, with all four days of each forecast and not the first alone.
const FAR_SIGHTED: [&str; 4] = ["CISO 96 h", "PJM 96 h", "DE 96 h", "SE 96 h"];
const GPUS: [&str; 4] = ["a40", "p100", "rtx6000", "v100"];
/// Data set, network, optimizer and default batch size of each job; where a GPU has no such batch size, its largest.
const JOBS: [(&str, &str, &str, u64); 6] = [
    ("cifar100", "shufflenetv2", "adadelta", 1024),
    ("imagenet", "resnet50", "adadelta", 256),
    ("squad", "bert_base_uncased", "adamw", 32),
    ("librispeech", "deepspeech2", "adamw", 192),
    ("movielens-1m", "ncf", "adam", 1024),
    ("sentiment140", "bert_base_uncased", "adamw", 128),
];
/// Points by which a mean may lie below what it is compared with and still count as no worse.
const NO_WORSE: f64 = 0.02;
/// Points by which a budget may be exceeded.
const OVER: f64 = 0.05;

/// The traces, and what they are cut into.
struct Bench {
    folder: PathBuf,
    quick: bool,
    /// The grids asked for; all if none is.
    only: Vec<String>,
}

/// One grid with the jobs that fit into it.
struct Ground {
    name: &'static str,
    grid: RecordedGrid,
    jobs: Vec<Job>,
    hours: f64,
}

fn main() -> std::process::ExitCode {
    let mut out = std::io::stdout().lock();
    match run(&mut out) {
        Ok(missed) if missed.is_empty() => std::process::ExitCode::SUCCESS,
        Ok(missed) => {
            for what in missed {
                let _ = writeln!(out, "MISSED: {what}");
            }
            std::process::ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(out, "evidence: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<Vec<String>, Failed> {
    let folder = std::env::var_os("WATTUNE_TRACES").map_or_else(|| "../shared/data".into(), PathBuf::from);
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.contains(&"--quick".to_owned());
    words.retain(|word| word != "--quick");
    let (tables, only): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| TABLES.contains(&word.as_str()));
    if let Some(word) = only.iter().find(|word| !GRIDS.iter().chain(&FAR_SIGHTED).any(|grid| grid == word)) {
        let (tables, grids, far) = (TABLES.join(", "), GRIDS.join(", "), FAR_SIGHTED.join(", "));
        let known = format!("there are the tables {tables} and the grids {grids}, {far}");
        return Err(format!("no table or grid {word}; {known}, and --quick makes them smaller").into());
    }
    let bench = Bench { folder, quick, only };
    let mut missed = Vec::new();
    for table in TABLES.into_iter().filter(|table| tables.is_empty() || tables.iter().any(|word| word == table)) {
        match table {
            "miso" => miso(&bench, out, &mut missed)?,
            "optimality" => optimality(&bench, out, &mut missed)?,
            "forecasts" => real_forecasts(&bench, out, &mut missed)?,
            "pausing" => pausing::table(&bench, out, &mut missed)?,
            "suspension" => suspension::table(&bench, out, &mut missed)?,
            _ => waiting::table(&bench, out, &mut missed)?,
        }
    }
    Ok(missed)
}

impl Bench {
    /// Those of a table's grids that were asked for; a table without any is not what was meant.
    fn among(&self, table: &str, grids: &[&'static str]) -> Result<Vec<&'static str>, Failed> {
        let asked = |name: &&str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let found: Vec<_> = grids.iter().copied().filter(asked).collect();
        if found.is_empty() {
            return Err(
                format!("the table {table} has none of {}, but {}", self.only.join(", "), grids.join(", ")).into()
            );
        }
        Ok(found)
    }

    fn power(&self, gpu: &str) -> PathBuf {
        self.folder.join(format!("zeus-traces/summary_power_{gpu}.csv"))
    }

    fn grid(&self, name: &str) -> Result<RecordedGrid, Failed> {
        let read =
            |file: &str| std::fs::read(self.folder.join("carbon").join(file)).map_err(|e| format!("{file}: {e}"));
        let parse = |name: &str| -> Result<file::ParsedFile, Failed> {
            Ok(file::parse(&read(name)?, &FileSettings::default(), None)?)
        };
        let (actual, forecasts) = if name == "MISO" {
            let parsed = parse("miso_mason_city_2022-10.csv")?;
            (parsed.actual, PublishedForecasts::Rolling(parsed.expected))
        } else {
            let region = name.strip_suffix(" 96 h").unwrap_or(name);
            let issued = if region == name {
                file::day_ahead(&parse(&format!("{region}_2021H2_carboncast_dayahead.csv"))?.expected)
            } else {
                file::parse_issued(&read(&format!("{region}_2021H2_carboncast_96h.csv"))?)?
            };
            (parse(&format!("{region}_2021_hourly.csv"))?.actual, PublishedForecasts::Issued(issued))
        };
        Ok(RecordedGrid::new(name.to_owned(), actual, forecasts))
    }

    /// All jobs on all GPUs, of so many hours each.
    fn jobs(&self, hours: f64) -> Result<Vec<Job>, Failed> {
        let mut jobs = Vec::new();
        for gpu in GPUS {
            for (dataset, network, optimizer, default) in JOBS {
                let path = self.power(gpu);
                let sizes = std::iter::successors(Some(default), |size| (*size > 1).then_some(size / 2));
                let job = sizes.map(|batch_size| {
                    let workload = Workload { dataset: dataset.into(), network: network.into(), batch_size };
                    job(&path, workload, optimizer, hours)
                });
                let found = job.into_iter().find_map(Result::ok);
                jobs.push(found.ok_or_else(|| format!("{}: no {dataset}/{network}", path.display()))?);
            }
        }
        Ok(jobs)
    }

    fn ground(&self, name: &'static str) -> Result<Ground, Failed> {
        // The MISO trace has 83 hours: short jobs leave room for several starts.
        let hours = if name == "MISO" { 24.0 } else { 64.0 };
        Ok(Ground { name, grid: self.grid(name)?, jobs: self.jobs(hours)?, hours })
    }
}

fn job(path: &Path, workload: Workload, optimizer: &str, hours: f64) -> Result<Job, Failed> {
    let file = TraceFile::read(path)?;
    let profile = power_profile(&file, &workload, Some(optimizer))?;
    Ok(Job::new(file.gpu(), workload, profile, Seconds::new(hours * 3600.0))?)
}

/// Twelve starts: every other week of the half-year, or every two and a half hours of the MISO trace, of which so much is
/// left after the last that jobs may take twice their time; sets differ in the day of the week and the time of day.
fn starts(ground: &Ground, set: u32) -> Result<Vec<DateTime<Utc>>, Failed> {
    if ground.name == "MISO" {
        let first = ground.grid.actual.start().ok_or("the MISO trace is empty")?;
        let at = |i: i64| first + TimeDelta::minutes(150 * i + 40 * i64::from(set));
        return Ok((0..12).map(at).collect());
    }
    let first: DateTime<Utc> = "2021-07-06T00:00:00Z".parse()?;
    let shift = TimeDelta::hours([0, 5 * 24 + 6, 9 * 24 + 15, 2 * 24 + 20][set as usize % 4]);
    Ok((0..12).map(|i| first + TimeDelta::days(14 * i) + shift).collect())
}

fn policies(names: &[&str]) -> Result<Vec<Policy>, Failed> {
    names.iter().map(|name| Ok(policy::named(name)?)).collect()
}

fn study(
    ground: &Ground,
    foresight: Foresight,
    starts: &[DateTime<Utc>],
    budgets: &[f64],
    policies: &[Policy],
) -> Result<Vec<CaseResult>, Failed> {
    study_pausing(ground, foresight, starts, budgets, policies, None)
}

fn study_pausing(
    ground: &Ground,
    foresight: Foresight,
    starts: &[DateTime<Utc>],
    budgets: &[f64],
    policies: &[Policy],
    pausing: Option<Pausing>,
) -> Result<Vec<CaseResult>, Failed> {
    let most = budgets.iter().copied().fold(0.0, f64::max);
    let visible = VisibleGrid::new(&ground.grid, foresight, Seconds::new(ground.hours * 3600.0 * (1.0 + most)));
    let study = Study {
        jobs: &ground.jobs,
        node_cap: None,
        grid: &visible,
        starts,
        budgets,
        policies,
        sweep: Seconds::ZERO,
        profile_error: 0.0,
        pausing,
        seeds: &[1],
    };
    Ok(study.run(|| ())?)
}

/// Runs `f` for each grid, on as many threads as there are processors; answers in the order of the grids.
fn on_each_grid<T: Send>(
    bench: &Bench,
    grids: &[&'static str],
    f: impl Fn(&Ground) -> Result<T, Failed> + Sync,
) -> Result<Vec<T>, Failed> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(name) = grids.get(place) else { return Ok(done) };
            done.push((place, f(&bench.ground(name)?)?));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(grids.len());
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        ended.collect::<Result<Vec<Vec<_>>, Failed>>()
    })?
    .into_iter()
    .flatten()
    .collect();
    all.sort_by_key(|(place, _)| *place);
    Ok(all.into_iter().map(|(_, t)| t).collect())
}

/// ResNet-50 on an A40 over 64 hours of MISO at 3 %, a sweep of 10 s per limit charged.
fn miso(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    bench.among("miso", &["MISO"])?;
    writeln!(out, "## ResNet-50 on an A40, 64 hours of MISO\n")?;
    writeln!(
        out,
        "wattune, carbon-zeus and zeus first measure the job for 10 s at each limit, which costs time and energy. A"
    )?;
    writeln!(out, "budget of \"-\" marks a policy without a budget, with its own weights.\n")?;
    writeln!(
        out,
        "| batch size | policy | budget, % | carbon reduction, % | time increase, % | bound of the carbon reduction, % |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for (batch_size, least) in [(128, 14.8), (256, 16.0)] {
        let workload = Workload { dataset: "imagenet".into(), network: "resnet50".into(), batch_size };
        let job = job(&bench.power("a40"), workload, "adadelta", 64.0)?;
        let grid = bench.grid("MISO")?;
        let start = grid.actual.start().ok_or("the MISO trace is empty")?;
        let visible = VisibleGrid::new(&grid, Foresight::AsIssued, Seconds::new(64.0 * 3600.0 * 1.1));
        let study = Study {
            jobs: &[job],
            node_cap: None,
            grid: &visible,
            starts: &[start],
            budgets: &[0.025, 0.03],
            policies: &policies(&["static", "carbon-zeus", "wattune", "clairvoyant"])?,
            sweep: Seconds::new(10.0),
            profile_error: 0.0,
            pausing: None,
            seeds: &[1],
        };
        for found in study.run(|| ())? {
            let row = &found.row;
            let bound = row.policy == "wattune" && row.budget_pct == Some(3.0);
            let budget = row.budget_pct.map_or("-".into(), |b| b.to_string());
            let (carbon, time) = (carbon(&found), time(&found));
            let shown = if bound { least.to_string() } else { String::new() };
            writeln!(out, "| {batch_size} | {} | {budget} | {carbon:.2} | {time:.2} | {shown} |", row.policy)?;
            if bound && !(carbon >= least && time <= 3.0 + OVER) {
                missed.push(format!("MISO, batch {batch_size}: {carbon:.2} % less carbon at {time:.2} % more time"));
            }
        }
    }
    writeln!(out)?;
    Ok(())
}

/// Perfect forecasts: the receding horizon against planning once.
fn optimality(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    const BUDGETS: [f64; 6] = [0.01, 0.02, 0.03, 0.05, 0.10, 0.20];
    writeln!(out, "## Perfect forecasts\n")?;
    writeln!(
        out,
        "Plans made anew for each slot, with perfect forecasts, in percent of clairvoyant's reduction. The values"
    )?;
    writeln!(out, "are the least and the largest of 24 pairs and two starts.\n")?;
    writeln!(
        out,
        "| grid | budget, % | least share of the optimum, % | largest excess over the budget, points of time |"
    )?;
    writeln!(out, "|---|---|---|---|")?;
    let policies = policies(&["wattune", "clairvoyant"])?;
    let grids = bench.among("optimality", if bench.quick { &["MISO", "DE"] } else { &GRIDS })?;
    let found = on_each_grid(bench, &grids, |ground| {
        let starts = starts(ground, 0)?;
        study(ground, Foresight::Perfect, &[starts[1], starts[7]], &BUDGETS, &policies)
    })?;
    for (name, found) in grids.iter().zip(found) {
        for budget in BUDGETS {
            let of = |policy| of(&found, policy, budget);
            let parts = of("wattune").zip(of("clairvoyant"));
            let part = parts.map(|(a, b)| part(carbon(a), carbon(b)));
            let least = 100.0 * least(part);
            let over = most_over(&found, budget);
            writeln!(out, "| {name} | {:.0} | {least:.3} | {over:.4} |", 100.0 * budget)?;
            if !(least >= 99.5 && over <= OVER) {
                missed.push(format!("{name}, {budget}: {least:.3} % of the optimum, {over:.3} points over the budget"));
            }
        }
    }
    writeln!(out)?;
    Ok(())
}

/// What part of the bound was reached; all of it where there is nothing to reach.
fn part(reached: f64, bound: f64) -> f64 {
    if bound.abs() < 1e-6 { 1.0 } else { reached / bound }
}

fn of<'a>(found: &'a [CaseResult], policy: &'a str, budget: f64) -> impl Iterator<Item = &'a CaseResult> {
    let same = move |pct: f64| (pct - 100.0 * budget).abs() < 1e-6;
    found.iter().filter(move |f| f.row.policy == policy && f.row.budget_pct.is_some_and(same))
}

/// Percent less carbon, and more time; no number where the trace ends before it can be told, so that no bound holds.
fn carbon(found: &CaseResult) -> f64 {
    found.row.carbon_reduction_pct.unwrap_or(f64::NAN)
}

fn time(found: &CaseResult) -> f64 {
    found.row.time_increase_pct.unwrap_or(f64::NAN)
}

fn most_over(found: &[CaseResult], budget: f64) -> f64 {
    -least(of(found, "wattune", budget).map(|f| 100.0 * budget - time(f)))
}

/// Forecasts as issued: all pairs, all grids, several sets of starts.
fn real_forecasts(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    const BUDGETS: [f64; 2] = [0.03, 0.10];
    let all = [&GRIDS[..], &FAR_SIGHTED[..]].concat();
    let (grids, sets): (&[_], u32) = if bench.quick { (&["MISO", "PJM"], 1) } else { (&all, 4) };
    let grids = bench.among("forecasts", grids)?;
    writeln!(out, "## Forecasts as issued\n")?;
    writeln!(
        out,
        "Carbon reductions in percent and their differences in points, as means over 24 pairs and the twelve starts of"
    )?;
    writeln!(out, "a set; sets: {sets}. carbon-zeus is compared at the slowdown of wattune.\n")?;
    writeln!(
        out,
        "| grid | budget, % | set | static | wattune | clairvoyant | captured, % | − static, worst pair | − carbon-zeus | \
         − carbon-zeus, worst pair | − carbon-zeus, one knob | largest excess over the budget, points of time |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    let policies = policies(&["static", "carbon-zeus", "wattune", "clairvoyant"])?;
    let found = on_each_grid(bench, &grids, |ground| {
        let run = |set| study(ground, Foresight::AsIssued, &starts(ground, set)?, &BUDGETS, &policies);
        (0..sets).map(run).collect::<Result<Vec<_>, Failed>>()
    })?;
    for (name, sets) in grids.iter().zip(found) {
        for budget in BUDGETS {
            for (set, found) in sets.iter().enumerate() {
                let result = line::Line::of(found, budget);
                writeln!(out, "| {name} | {:.0} | {set} | {result} |", 100.0 * budget)?;
                missed.extend(result.missed(name, budget).map(|what| format!("{name}, {budget}, set {set}: {what}")));
            }
        }
    }
    writeln!(out)?;
    Ok(())
}

/// No number if one of them is none.
fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, |least, value| if least.is_nan() || least < value { least } else { value })
}

#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = values.collect();
    all.iter().sum::<f64>() / all.len() as f64
}
