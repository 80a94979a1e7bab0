//! Savings of jobs whose GPUs are idle before the first report, as while a program loads its data, and after the last
//! one, and of jobs whose work changes. What was never slowed has saved nothing.

use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use wattune::clock::{Clock as _, ManualClock};
use wattune::controller::{Caller, Controller, NewJob, Parts, ProgressReport, Settings};
use wattune::demo::{SyntheticGrid, TraceProvider};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Feed, FeedOptions};
use wattune_core::domain::{JobId, LimitRange, PowerLimit, SignalKind, SignalScope, Zone};
use wattune_core::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

use crate::support;

const STEP: Seconds = Seconds::new(0.5);

/// Event that ends the idle time after the last report.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Job,
    /// No event: the job sends no more reports, and ends if its lease expires.
    Nothing,
    /// The daemon is stopped and started again.
    Stop,
    /// The daemon is killed and started again.
    Kill,
}

/// A job between two times at which its GPU is idle.
#[derive(Clone, Copy, Debug)]
struct Run {
    before_s: f64,
    training_s: f64,
    after_s: f64,
    report_every_s: f64,
    /// Time of training from which on a sample takes twice the time, at less power.
    changes_at_s: f64,
    /// Slowdown that the job allows; with none, it is never slowed.
    max_slowdown: f64,
    end: End,
}

/// Saving against the original limit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    reduction_pct: f64,
    /// Mean power at the original limit.
    mean_power: Watts,
}

/// Returns the job's saving against the original limit, each minute after the work has changed and at the end;
/// the reason where it is unknown. A job whose work never changes has a daemon that sets no limits.
async fn savings(run: Run) -> Vec<Result<Found, String>> {
    let clock = Arc::new(ManualClock::at("2026-03-01T10:10:03Z".parse().expect("a time")));
    let limit = |w| PowerLimit::from_watts(Watts::new(w));
    let range = LimitRange { min: limit(200.0), max: limit(700.0), default: limit(700.0) };
    let load =
        |power, rate| LoadCurve::saturating(&range, Watts::new(power), Watts::new(150.0), SamplesPerSecond::new(rate));
    let (curve, changed) = (load(680.0, 100.0), load(400.0, 50.0));
    let physics = Physics {
        range,
        original_limit: limit(700.0),
        idle: Watts::new(75.0),
        settling: Seconds::new(0.3),
        noise: 0.01,
        seed: 1,
    };
    let gpu = SimulatedGpu::new(physics, clock.clone());
    let days = Seconds::new(4.0 * 86_400.0);
    let (expected, actual) = SyntheticGrid { seed: 1 }.generate(clock.now().utc - chrono::TimeDelta::days(2), days);
    let kind = (SignalKind::Average, SignalScope::Unspecified);
    let grid = TraceProvider::new("trace", Zone::new("trace").expect("a zone"), kind, expected, actual);
    let mut feed = Feed::start(vec![vec![Arc::new(grid)]], FeedOptions::default(), clock.now()).await;
    feed.poll_due(clock.now()).await;
    let state = tempfile::tempdir().expect("a directory");
    let feeds = feed.subscribe();
    let start = async || {
        let devices: Vec<Box<dyn wattune::gpu::GpuDevice>> = vec![Box::new(gpu.device(0, "GPU"))];
        let parts = Parts {
            settings: Settings { observe: run.changes_at_s.is_infinite(), ..Settings::default() },
            ..Parts::new(state.path(), clock.clone(), devices, Sampling::OnRequest, feeds.clone())
        };
        let mut controller = Controller::start(parts).await.expect("starts");
        controller.tick().await;
        controller
    };
    let mut controller = start().await;
    let id = JobId::new(controller.register(job(run)).await.expect("registered").job_id).expect("an id");
    let begun = clock.monotonic();
    let (mut next_report, mut next_look, mut found) = (0.0, run.changes_at_s, Vec::new());
    let work_until = |seconds: f64| {
        let before = seconds.min(run.changes_at_s);
        Samples::new(100.0 * before + 50.0 * (seconds - before))
    };
    loop {
        let now = clock.monotonic().since(begun).get();
        if now >= run.before_s + run.training_s + run.after_s {
            break;
        }
        let trained = now - run.before_s;
        if trained >= 0.0 && trained < run.training_s {
            gpu.run(Some(if trained < run.changes_at_s { &curve } else { &changed }.clone()));
            if trained >= next_report {
                next_report += run.report_every_s;
                let report = ProgressReport::new(work_until(trained), None);
                controller.progress(&id, report).await.expect("taken");
            }
            if trained >= next_look {
                next_look += 60.0;
                found.push(saving(&mut controller, &id).await);
            }
        } else {
            gpu.run(None);
        }
        clock.advance(STEP);
        feed.poll_due(clock.now()).await;
        controller.tick().await;
    }
    match run.end {
        End::Job => drop(controller.end(&id, Caller::Local).await.expect("ended")),
        End::Nothing => {}
        End::Stop => {
            controller.shut_down().await;
            controller = start().await;
        }
        End::Kill => {
            drop(controller);
            controller = start().await;
        }
    }
    found.push(saving(&mut controller, &id).await);
    controller.shut_down().await;
    found
}

async fn saving(controller: &mut Controller, id: &JobId) -> Result<Found, String> {
    let account = controller.account_of(id).await.expect("known");
    let savings = serde_json::to_value(&account.savings).expect("JSON");
    let against = &savings["against_original"];
    let reduction_pct =
        against["carbon_reduction_pct"]["mean"].as_f64().ok_or_else(|| against["unknown"].to_string())?;
    let number = |field: &str| against[field].as_f64().expect("a number");
    let mean_power = Joules::new(number("energy_at_reference_j")) / Seconds::new(number("time_at_reference_s"));
    Ok(Found { reduction_pct, mean_power })
}

fn job(run: Run) -> NewJob {
    let lease = Some(Seconds::new(if run.end == End::Nothing { 60.0 } else { 3600.0 }));
    NewJob { lease, ..support::job("ends", run.max_slowdown) }
}

#[tokio::test]
async fn an_idle_gpu_before_and_after_the_training_saves_nothing() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..40 {
        let longest = [15.0, 40.0, 100.0][rng.random_range(0..3)];
        let run = Run {
            before_s: rng.random_range(0.0..55.0),
            training_s: rng.random_range(100.0..400.0),
            after_s: rng.random_range(0.5..longest),
            report_every_s: [1.0, 2.0, 5.0, 10.0][rng.random_range(0..4)],
            changes_at_s: f64::INFINITY,
            max_slowdown: 0.05,
            end: [End::Job, End::Nothing, End::Stop, End::Kill][rng.random_range(0..4)],
        };
        let found = savings(run).await;
        // The idle time is not part of the job's energy.
        let is_as_trained = |found: &Found| (found.mean_power / Watts::new(680.0) - 1.0).abs() <= 0.005;
        assert!(matches!(&found[..], [Ok(it)] if it.reduction_pct == 0.0 && is_as_trained(it)), "{run:?}: {found:?}");
    }
}

const CHANGING: Run = Run {
    before_s: 0.0,
    training_s: 7200.0,
    after_s: 0.5,
    report_every_s: 1.0,
    changes_at_s: 3600.0,
    max_slowdown: 0.0,
    end: End::Job,
};

#[tokio::test]
async fn a_job_that_is_never_slowed_saves_nothing_when_its_work_changes() {
    let found = savings(CHANGING).await;
    assert!(
        found.len() > 25 && found.iter().all(|it| it.as_ref().is_ok_and(|it| it.reduction_pct == 0.0)),
        "{found:?}"
    );
}

#[tokio::test]
async fn no_saving_is_given_while_a_job_is_profiled_again() {
    let found = savings(Run { max_slowdown: 0.2, ..CHANGING }).await;
    let unknown = found.iter().filter(|found| found.as_ref().is_err_and(|why| why.contains("profiled again"))).count();
    assert!(unknown > 0, "{found:?}");
    assert!(found.last().is_some_and(Result::is_ok), "{found:?}");
}
