//! The trial: the real daemon on the fake driver in real time, with jobs, faults, other programs, kills, signals, full disks,
//! hostile clients and a source that fails, all at once, against what must hold. One seed is one trial.
//!
//!     cargo test --test trial -- --seeds 20 --minutes 10 --at-once 4
//!     cargo test --test trial -- --case tests/trial/found/NAME.json
//!
//! `docs/src/contributing/trial.md` has the rest.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a command of its own, in real time")]

mod case;
mod client;
mod hostile;
mod laws;
mod ledger;
mod scene;
mod shrink;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the integration tests, which use more of it")]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;

use case::{BOARDS, Case};
use ledger::Energy;
use scene::Scene;
use support::LedgerFile;

/// Trials of the daemon under all kinds of faults at once.
#[derive(Debug, Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first one on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// How long each trial takes.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// How many trials run at the same time.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Case files to run, or folders of them, in place of seeds.
    #[arg(long)]
    case: Vec<PathBuf>,
    /// At most this long for 99 of 100 reports, in milliseconds; for trials that run alone.
    #[arg(long)]
    p99_ms: Option<f64>,
    /// Where cases that fail are written, with the daemon's log.
    #[arg(long, default_value_os_t = std::env::temp_dir().join("wattune-trial"))]
    keep: PathBuf,
    /// Runs a case that failed again and again, each time with fewer steps, at most this often.
    #[arg(long, default_value_t = 0)]
    shrink: usize,
    /// Runs this one case in this process.
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(file) = &args.child {
        return alone(file, args.p99_ms);
    }
    std::fs::create_dir_all(&args.keep).expect("a folder for what fails");
    let cases =
        if args.case.is_empty() { random(&args) } else { args.case.iter().flat_map(|path| files(path)).collect() };
    let failed = run_all(&args, &cases);
    println!("{} passed, {} failed", cases.len() - failed.len(), failed.len());
    for file in &failed {
        let small = if args.shrink > 0 { shrunk(&args, file) } else { file.clone() };
        println!("again: cargo test --test trial -- --case {}", small.display());
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cases of the seeds, in files.
fn random(args: &Args) -> Vec<PathBuf> {
    let file = |seed| {
        let path = args.keep.join(format!("seed-{seed}.json"));
        write(&path, &Case::random(seed, args.minutes * 60.0));
        path
    };
    (args.seed..args.seed + args.seeds).map(file).collect()
}

fn write(path: &Path, case: &Case) {
    std::fs::write(path, serde_json::to_string_pretty(case).expect("JSON")).expect("written");
}

fn files(path: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    files
}

/// Each case in a process of its own, so that one that panics ends no other. Answers with those that failed.
fn run_all(args: &Args, cases: &[PathBuf]) -> Vec<PathBuf> {
    let mut waiting = cases.iter().rev().cloned().collect::<Vec<_>>();
    let (mut running, mut failed): (Vec<(PathBuf, Child)>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < args.at_once.max(1)
            && let Some(file) = waiting.pop()
        {
            let child = child(args, &file);
            running.push((file, child));
        }
        std::thread::sleep(Duration::from_millis(100));
        running.retain_mut(|(file, child)| match child.try_wait().expect("known") {
            None => true,
            Some(status) => {
                if !status.success() {
                    failed.push(file.clone());
                }
                false
            }
        });
    }
    failed.sort();
    failed
}

fn child(args: &Args, file: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.arg("--child").arg(file).stdin(Stdio::null());
    if let Some(bound) = args.p99_ms {
        command.arg("--p99-ms").arg(bound.to_string());
    }
    command.spawn().expect("starts")
}

fn shrunk(args: &Args, file: &Path) -> PathBuf {
    let case = read(file);
    let name = file.file_stem().expect("a file").to_string_lossy().into_owned();
    let next = args.keep.join(format!("{name}-smaller.json"));
    let smallest = shrink::smallest(case, args.shrink, |candidate| {
        write(&next, candidate);
        !child(args, &next).wait().expect("ends").success()
    });
    write(&next, &smallest);
    println!("{}: {} steps are left", next.display(), smallest.steps.len());
    next
}

fn read(file: &Path) -> Case {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// One trial, and what it broke.
fn alone(file: &Path, p99_ms: Option<f64>) -> ExitCode {
    let name = file.file_stem().expect("a file").to_string_lossy().into_owned();
    let case = read(file);
    let length = Duration::from_secs_f64(case.length_s);
    let steps = case.steps.len();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let begun = Instant::now();
    let (breaches, figures) = runtime.block_on(trial(case, length, p99_ms, file));
    let took = begun.elapsed().as_secs_f64();
    let outcome = if breaches.is_empty() { "held".to_owned() } else { format!("{} broken", breaches.len()) };
    println!("{name}: {steps} steps in {took:.0} s, {figures}: {outcome}");
    for breach in &breaches {
        println!("{name}:   {breach}");
    }
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn trial(case: Case, length: Duration, p99_ms: Option<f64>, file: &Path) -> (Vec<String>, String) {
    let mut scene = Scene::set_up(case).await;
    let before: [f64; BOARDS] = std::array::from_fn(|gpu| scene.driver.used_j(gpu));
    scene.play().await;
    let records = scene.tear_down().await;
    let ledger = LedgerFile::open(scene.state.path());
    let mut energies = [Energy { used_j: 0.0, recorded_j: 0.0 }; BOARDS];
    for (gpu, energy) in energies.iter_mut().enumerate() {
        let used_j = scene.driver.used_j(gpu) - before[gpu];
        *energy = Energy { used_j, recorded_j: ledger.total_j(gpu) };
        let limit = scene.driver.limit_w(gpu).unwrap_or(f64::NAN);
        if !scene.laws.is_found(gpu, limit) {
            let found = scene.laws.found(gpu);
            scene.laws.breach(format!("at the end GPU {gpu} has {limit} W, found at {found}"));
        }
    }
    ledger::energy(&mut scene.laws, &scene.disturbances, energies);
    for (plan, record) in &records {
        let recorded_j = match &record.id {
            Some(id) => ledger.of_job_j(id),
            None => 0.0,
        };
        ledger::job(&mut scene.laws, &scene.disturbances, plan, record, recorded_j);
    }
    let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
    let p99 = ledger::answers(&mut scene.laws, &records, p99_ms);
    let state_mb = ledger::state_directory(&mut scene.laws, scene.state.path(), length);
    let log = scene.log();
    if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
        scene.laws.breach(format!("the daemon panicked: {line}"));
    }
    if let Err(text) = scene.verify() {
        scene.laws.breach(format!("the ledger does not verify: {text}"));
    }
    if !scene.laws.breaches.is_empty() {
        // For whoever looks into it.
        let _ = std::fs::write(file.with_extension("log"), log);
    }
    let figures = format!("reports p99 {p99:.0} ms, state {state_mb:.1} MB");
    (scene.laws.breaches.clone(), figures)
}
