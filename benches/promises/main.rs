//! Whether jobs keep the slowdown that they allow: whole daemons with simulated GPUs, and jobs of which the truth is
//! known. Every job runs five times under one name; the first, second and fifth run count. Fails where a bound of
//! `BOUNDS` does not hold.
//!
//!     cargo run --release -p wattune-benches --example promises -- ../shared/data short [seed]
//!     cargo run --release -p wattune-benches --example promises -- ../shared/data long [jobs] [seed]
//!     cargo run --release -p wattune-benches --example promises -- ../shared/data ten [seeds]
//!     cargo run --release -p wattune-benches --example promises -- ../shared/data rare [seeds]
//!
//! `short` are all combinations of up to half an hour, `long` are drawn at random from 8 and 64 hours, `ten` compares what
//! jobs of ten minutes save with the best constant mix of limits, `rare` compares jobs of 8 hours that report as training
//! frameworks do (every 5 s, in whole batches of work, from step 40 000 on) with jobs that report every second. With `SHOW` in the environment each run beyond its
//! bound is listed; `THREADS` bounds the threads.

mod job;
mod table;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use job::{Job, Pauses};
use rand::{RngExt as _, SeedableRng};
use rand_chacha::ChaCha8Rng;
use wattune::clock::{Clock as _, ManualClock};
use wattune::controller::{Caller, Controller, GpuRef, NewJob, Parts, Phase, ProgressReport, Settings};
use wattune::demo::{SyntheticGrid, TraceProvider};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Feed, FeedOptions};
use wattune_core::domain::{JobId, JobName, LimitRange, Objective, PowerLimit, SignalKind, SignalScope, Work, Zone};
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, Seconds, Watts};
use wattune_lab::traces::{TraceFile, power_profile};

/// Times a job runs under its name.
const RUNS: usize = 5;
/// Time between two ticks of the daemon, and while nothing is measured and the job is long.
const TICK: Seconds = Seconds::new(1.0);
const COARSE: Seconds = Seconds::new(10.0);

/// Time constant with which the simulated GPU comes to a new speed.
const SETTLING: Seconds = Seconds::new(0.3);

/// One job, and the noise that its daemon sees.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// GPU and workload, as in the power traces.
    pub(crate) workload: String,
    /// Time at the original limit.
    pub(crate) duration: Seconds,
    /// Half the range in which the speed is drawn, relative.
    pub(crate) noise: f64,
    /// Time between two reports.
    pub(crate) every: Seconds,
    /// Whether it pauses for evaluations.
    pub(crate) pauses: bool,
    /// Whether it reports as training frameworks do, or may be compared with a job that does: pauses are evaluations of a
    /// minute each, and nothing is left out while the job is long.
    pub(crate) framework: Option<Framework>,
    /// The slowdown that it allows.
    pub(crate) budget: f64,
    /// Seed of all that is drawn.
    pub(crate) seed: u64,
}

/// How a training framework reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Framework {
    /// Each report has the exact count.
    Exact,
    /// Counts are of whole lumps of work, with the time at which the last one was done: steps with gradient accumulation.
    /// Reports are late at random, and the run goes on from a checkpoint.
    Lumps,
}

/// Work after which a framework counts again, in seconds at the original limit.
const LUMP: Seconds = Seconds::new(2.0);
/// Count at which a resumed run begins, in seconds of work at the original limit.
const RESUMED: Seconds = Seconds::new(40_000.0);

/// How one run of a case came out.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// From 0.
    pub(crate) run: usize,
    /// True slowdown.
    pub(crate) slowdown: f64,
    /// The slowdown that the daemon reported at the end; `None` where it did not know.
    pub(crate) reported: Option<f64>,
    /// The part of the energy that it saved.
    pub(crate) saved: f64,
    /// Whether any answer had a warning.
    pub(crate) warned: bool,
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let traces = PathBuf::from(args.first().context("give the folder of the traces")?);
    let what = args.get(1).map_or("short", String::as_str);
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |n| n.parse());
    let cases = match what {
        "short" => short(number(2, 1)?),
        "long" => long(number(2, 200)?, number(3, 1)?),
        "ten" => ten(number(2, 20)?),
        "rare" => rare(number(2, 20)?),
        other => bail!("{other:?} is not known; there are short, long, ten and rare"),
    };
    let (next, found) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    let worker = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        loop {
            let Some(case) = next.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?.next() else { return Ok(()) };
            let outcomes = runtime.block_on(play(&traces, case)).with_context(|| format!("{case:?}"))?;
            found.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?.push((case.clone(), outcomes));
        }
    };
    let threads = std::env::var("THREADS").ok().and_then(|n| n.parse().ok());
    let threads = threads.unwrap_or(std::thread::available_parallelism()?.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow::anyhow!("a run panicked"))?)
    })?;
    let found = found.into_inner()?;
    match what {
        "ten" => table::savings(&traces, &found),
        "rare" => table::rare(&found),
        _ => table::promises(&found),
    }
}

/// All combinations of up to half an hour.
fn short(seed: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for minutes in [2.0, 5.0, 10.0, 30.0] {
        for noise in [0.0, 0.02, 0.05, 0.1] {
            for every in [1.0, 5.0, 10.0, 30.0] {
                for pauses in [false, true] {
                    for budget in [0.01, 0.03, 0.1] {
                        cases.push(Case {
                            workload: "a40/imagenet/resnet50/128".into(),
                            duration: Seconds::new(60.0 * minutes),
                            noise,
                            every: Seconds::new(every),
                            pauses,
                            framework: None,
                            budget,
                            seed: seed * 10_000 + cases.len() as u64,
                        });
                    }
                }
            }
        }
    }
    cases
}

const WORKLOADS: [&str; 8] = [
    "a40/imagenet/resnet50/128",
    "a40/librispeech/deepspeech2/192",
    "v100/imagenet/resnet50/256",
    "v100/squad/bert_base_uncased/32",
    "p100/cifar100/shufflenetv2/1024",
    "p100/imagenet/resnet50/128",
    "rtx6000/sentiment140/bert_base_uncased/128",
    "rtx6000/librispeech/deepspeech2/64",
];

/// Combinations of hours, drawn at random.
fn long(count: u64, seed: u64) -> Vec<Case> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut cases = Vec::new();
    for n in 0..count {
        cases.push(Case {
            workload: WORKLOADS[rng.random_range(0..WORKLOADS.len())].into(),
            duration: Seconds::new(3600.0 * [8.0, 64.0][rng.random_range(0..2)]),
            noise: [0.0, 0.02, 0.05, 0.1][rng.random_range(0..4)],
            every: Seconds::new([1.0, 5.0, 10.0, 30.0][rng.random_range(0..4)]),
            pauses: rng.random_range(0..2) == 1,
            framework: None,
            budget: [0.01, 0.03, 0.1][rng.random_range(0..3)],
            seed: seed * 1_000_000 + n,
        });
    }
    cases
}

/// Jobs of ten minutes that have to reach half of what their static mix saves by the third run.
fn ten(seeds: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for workload in WORKLOADS {
        for budget in [0.03, 0.1] {
            for noise in [0.0, 0.02] {
                for every in [1.0, 5.0] {
                    for seed in 0..seeds {
                        cases.push(Case {
                            workload: workload.into(),
                            duration: Seconds::new(600.0),
                            noise,
                            every: Seconds::new(every),
                            pauses: false,
                            framework: None,
                            budget,
                            seed,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Jobs of 8 hours that report as frameworks do, and the same jobs with a report every second.
fn rare(seeds: u64) -> Vec<Case> {
    let each = (0..seeds).flat_map(|seed| {
        let case = move |every, framework| Case {
            workload: WORKLOADS[seed as usize % WORKLOADS.len()].into(),
            duration: Seconds::new(8.0 * 3600.0),
            noise: 0.02,
            every: Seconds::new(every),
            pauses: true,
            framework: Some(framework),
            budget: 0.03,
            // With an even seed jobs state their own time, as all clients of wattune do.
            seed: 2 * seed,
        };
        [case(5.0, Framework::Lumps), case(1.0, Framework::Exact)]
    });
    each.collect()
}

/// The curve of a case's workload on its GPU.
pub(crate) fn curve(traces: &Path, workload: &str) -> anyhow::Result<LoadCurve> {
    let (gpu, workload) = workload.split_once('/').context("written gpu/dataset/network/batch size")?;
    let path = traces.join(format!("zeus-traces/summary_power_{gpu}.csv"));
    let profile = power_profile(&TraceFile::read(&path)?, &workload.parse().map_err(anyhow::Error::msg)?, None)?;
    LoadCurve::from_profile(&profile).context("the power trace has no point")
}

/// The part of the energy that the best constant mix within the budget saves.
pub(crate) fn static_saving(curve: &LoadCurve, budget: f64) -> Option<f64> {
    let known = Curve::from_profile(&curve.profile(1.0))?;
    let top = *known.ceiling();
    let rate = (top.throughput * (1.0 / (1.0 + budget))).max(known.most_efficient().throughput);
    let power = known.power_at(rate)?;
    Some(1.0 - (power / top.power) * (top.throughput / rate))
}

/// Runs a case's job five times beside one daemon.
async fn play(traces: &Path, case: &Case) -> anyhow::Result<Vec<Outcome>> {
    let curve = curve(traces, &case.workload)?;
    let start: DateTime<Utc> = "2026-01-01T00:20:00Z".parse()?;
    let clock = Arc::new(ManualClock::at(start));
    let limit = |w: Option<Watts>| PowerLimit::from_watts(w.unwrap_or(Watts::ZERO));
    let (min, max) = (limit(curve.points().first().map(|p| p.limit)), limit(curve.points().last().map(|p| p.limit)));
    let physics = Physics {
        range: LimitRange { min, max, default: max },
        original_limit: max,
        idle: Watts::new(25.0),
        settling: SETTLING,
        noise: 0.01,
        seed: case.seed,
    };
    let simulated = SimulatedGpu::new(physics, clock.clone());
    let span = case.duration * (RUNS as f64 * 3.0) + Seconds::new(7.0 * 86_400.0);
    let (expected, actual) = SyntheticGrid { seed: case.seed }.generate(start - chrono::TimeDelta::days(2), span);
    let known = (SignalKind::Average, SignalScope::Unspecified);
    let grid = TraceProvider::new("trace", Zone::new("trace")?, known, expected, actual);
    let mut feed = Feed::start(vec![vec![Arc::new(grid)]], FeedOptions::default(), clock.now()).await;
    feed.poll_due(clock.now()).await;
    let state = match Path::new("/dev/shm") {
        memory if memory.is_dir() => tempfile::tempdir_in(memory)?,
        _ => tempfile::tempdir()?,
    };
    let patient = Seconds::new(86_400.0);
    let parts = Parts {
        settings: Settings { solve_limit_s: patient, ..Settings::default() },
        ..Parts::new(
            state.path(),
            clock.clone(),
            vec![Box::new(simulated.device(0, "GPU"))],
            Sampling::OnRequest,
            feed.subscribe(),
        )
    };
    let mut controller = Controller::start(parts).await?;
    controller.tick().await;
    let mut rng = ChaCha8Rng::seed_from_u64(case.seed.wrapping_mul(7919));
    let mut outcomes = Vec::new();
    for run in 0..if case.framework.is_some() { 2 } else { RUNS } {
        let seed = case.seed.wrapping_mul(1009) + run as u64;
        let drawn = Pauses {
            every: Seconds::new(rng.random_range(20.0..120.0)),
            length: Seconds::new(rng.random_range(5.0..60.0)),
            power: Watts::new(rng.random_range(30.0..120.0)),
        };
        let minute = Pauses { every: Seconds::new(600.0), length: Seconds::new(60.0), ..drawn };
        let pauses = case.pauses.then_some(if case.framework.is_some() { minute } else { drawn });
        let job = Job::start(simulated.clone(), curve.clone(), SETTLING, case.duration, case.noise, pauses, seed);
        let daemon = Daemon { clock: &clock, controller: &mut controller, feed: &mut feed };
        outcomes.push(Outcome { run, ..once(daemon, job, case, max.watts(), &mut rng).await? });
        // The next run begins a while later.
        for _ in 0..5 {
            clock.advance(TICK);
            controller.tick().await;
        }
    }
    controller.shut_down().await;
    Ok(outcomes)
}

struct Daemon<'a> {
    clock: &'a ManualClock,
    controller: &'a mut Controller,
    feed: &'a mut Feed,
}

/// One run from its registration to its end.
async fn once(
    daemon: Daemon<'_>,
    mut job: Job,
    case: &Case,
    original: Watts,
    rng: &mut ChaCha8Rng,
) -> anyhow::Result<Outcome> {
    let Daemon { clock, controller, feed } = daemon;
    let in_lumps = case.framework == Some(Framework::Lumps);
    let (before, lump) = if in_lumps { (job.work_in(RESUMED), job.work_in(LUMP)) } else { Default::default() };
    let new = NewJob {
        name: JobName::new("job")?,
        processes: None,
        replaces: None,
        offers: Default::default(),
        by: Caller::Local,
        user: None,
        gpus: vec![GpuRef::Index(0)],
        batch_size: None,
        work: Work::TotalSamples(job.total() + before),
        objective: Objective::slower_by(case.budget)?,
        lease: Some(Seconds::new(600.0)),
        control: true,
        priority: 0,
        tags: Default::default(),
    };
    let id = JobId::new(controller.register(new).await?.job_id)?;
    // Some clients give their own time, and some say nothing in pauses.
    let (own_clock, silent) = (case.seed.is_multiple_of(2), case.seed.is_multiple_of(3));
    let begun = clock.monotonic();
    let mut tick_due = Seconds::new(rng.random_range(0.0..1.0));
    let mut report_due = Seconds::ZERO;
    let mut profiling = true;
    let mut warned = false;
    // The last whole lump of work, and when it was done.
    let (mut counted, mut reported_last) = ((Samples::ZERO, Seconds::ZERO), None);
    while !job.is_done() {
        let now = clock.monotonic().since(begun);
        let coarse = !profiling && case.duration > Seconds::new(7200.0) && case.framework.is_none();
        let due = tick_due.min(report_due) - now;
        let span = due.max(Seconds::ZERO).min(job.longest_step());
        if span > Seconds::ZERO {
            clock.advance(span);
            let done = job.done();
            job.step(span);
            let lumps = if in_lumps { lump * (job.done() / lump).floor() } else { job.done() };
            if lumps > counted.0 {
                let part = (lumps - done) / (job.done() - done).max(Samples::new(1e-9));
                counted = (lumps, now + span * part.clamp(0.0, 1.0));
            }
        }
        let now = clock.monotonic().since(begun);
        if now + Seconds::new(1e-6) >= report_due {
            let late = if in_lumps { case.every * rng.random_range(0.0..0.5) } else { Seconds::ZERO };
            report_due += late + if coarse { case.every.max(COARSE) } else { case.every };
            let is_new = !in_lumps || Some(counted) != reported_last;
            if !(silent && job.is_pausing()) && is_new {
                reported_last = Some(counted);
                let (samples, at) = if in_lumps { counted } else { (job.done(), now) };
                let report = ProgressReport::new(before + samples, own_clock.then_some(at));
                let answer = controller.progress(&id, report).await?;
                profiling = answer.phase == Phase::Profiling;
                warned |= !answer.warnings.is_empty();
            }
        }
        if now + Seconds::new(1e-6) >= tick_due {
            tick_due += if coarse { COARSE } else { TICK };
            feed.poll_due(clock.now()).await;
            controller.tick().await;
        }
    }
    let at = own_clock.then(|| clock.monotonic().since(begun));
    let answer = controller.progress(&id, ProgressReport::new(before + job.done(), at)).await?;
    let reported = answer.slowdown;
    controller.end(&id, Caller::Local).await?;
    let (slowdown, saved) = (job.slowdown(), job.energy_saved(original));
    Ok(Outcome { run: 0, slowdown, reported, saved, warned })
}
