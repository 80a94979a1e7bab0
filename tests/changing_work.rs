//! Jobs whose throughput and power change while they run.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use wattune::controller::view::JobView;
use wattune::controller::{Caller, Controller, NewJob, Phase, ProgressReport, Settings};
use wattune_core::domain::{JobId, Work};
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

use crate::support::{self, one_gpu};

const STEP: Seconds = Seconds::new(1.0);
/// Tolerance for the error of a reported slowdown and for the time until a change is detected, as a fraction of the
/// job's time.
const TOLERANCE: f64 = 0.004;

#[derive(Clone, Copy, Debug)]
struct Run {
    training_s: f64,
    changes_at_s: f64,
    /// Throughput and power after the change, as multiples of those before.
    throughput: f64,
    power: f64,
    max_slowdown: f64,
    knows_total: bool,
}

/// Returns the job's true slowdown against the maximum usable limit, and its warnings at the end.
async fn slowdown(run: Run) -> (f64, Vec<String>) {
    let mut bench = one_gpu::OneGpu::new(Settings::default()).await;
    let load = |part: f64, power: f64| one_gpu::load(Watts::new(500.0) * power, SamplesPerSecond::new(100.0) * part);
    let phases = [load(1.0, 1.0), load(run.throughput, run.power)];
    let total = |phases: &[wattune::gpu::simulated::LoadCurve; 2]| {
        let rates = [0, 1].map(|i| phases[i].at(one_gpu::MAX).throughput);
        rates[0] * Seconds::new(run.changes_at_s) + rates[1] * Seconds::new(run.training_s - run.changes_at_s)
    };
    let work = if run.knows_total { Work::TotalSamples(total(&phases)) } else { Work::Unknown };
    let mut controller = bench.start().await;
    let job = NewJob { work, ..support::job("changes", run.max_slowdown) };
    let id = JobId::new(controller.register(job).await.expect("registered").job_id).expect("an id");
    let (mut full_speed, begun) = (Seconds::ZERO, bench.seconds());
    loop {
        let phase = &phases[usize::from(full_speed.get() >= run.changes_at_s)];
        if full_speed.get() >= run.training_s {
            break;
        }
        bench.gpu.run(Some(phase.clone()));
        let before = bench.gpu.work_done();
        bench.pass(STEP, &mut controller).await;
        let done = bench.gpu.work_done();
        full_speed += (done - before) / phase.at(one_gpu::MAX).throughput;
        controller.progress(&id, ProgressReport::new(done, None)).await.expect("taken");
    }
    let slowdown = (bench.seconds() - begun) / full_speed.get() - 1.0;
    let account = controller.end(&id, Caller::Local).await.expect("ended");
    controller.shut_down().await;
    (slowdown, account.warnings)
}

#[tokio::test]
async fn the_maximum_slowdown_holds_when_the_work_changes() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..6 {
        let training_s = rng.random_range(3000.0..5000.0);
        let run = Run {
            training_s,
            changes_at_s: rng.random_range(0.2..0.8) * training_s,
            throughput: [0.4, 0.7, 0.9, 1.2, 1.5, 2.5][rng.random_range(0..6)],
            power: rng.random_range(0.7..1.3),
            max_slowdown: [0.03, 0.1, 0.2][rng.random_range(0..3)],
            knows_total: rng.random_bool(0.5),
        };
        let (slowdown, warnings) = slowdown(run).await;
        assert!(slowdown <= run.max_slowdown + TOLERANCE, "{slowdown} {run:?}");
        let is_reported = warnings.iter().any(|warning| warning.contains("exceeded"));
        assert!(!is_reported || slowdown > run.max_slowdown - TOLERANCE, "{slowdown} {run:?} {warnings:?}");
    }
}

/// Trains with a report in each second until the job is as wanted.
async fn until(
    bench: &mut one_gpu::OneGpu,
    controller: &mut Controller,
    id: &JobId,
    is_so: impl Fn(&JobView) -> bool,
) -> JobView {
    for _ in 0..3000 {
        // On the heap: the test's future has few of these at once.
        Box::pin(bench.pass(STEP, controller)).await;
        let done = bench.gpu.work_done();
        controller.progress(id, ProgressReport::new(done, None)).await.expect("taken");
        let view = controller.job(id).await.expect("known");
        if is_so(&view) {
            return view;
        }
    }
    panic!("never so: {:#?}", controller.job(id).await.expect("known"))
}

#[tokio::test]
async fn a_job_that_waits_for_a_new_profile_waits_after_a_restart_too() {
    let mut bench = one_gpu::OneGpu::new(Settings::default()).await;
    let load = |part: f64| one_gpu::load(Watts::new(680.0), SamplesPerSecond::new(100.0) * part);
    let mut controller = bench.start().await;
    let job = NewJob { work: Work::TotalSamples(Samples::new(2e6)), ..support::job("changes", 0.1) };
    let id = JobId::new(controller.register(job).await.expect("registered").job_id).expect("an id");
    bench.gpu.run(Some(load(1.0)));
    until(&mut bench, &mut controller, &id, |view| view.phase == Some(Phase::Planned)).await;
    bench.gpu.run(Some(load(0.8)));
    let waits = |view: &JobView| view.reason.contains("throughput differs from the profile");
    until(&mut bench, &mut controller, &id, waits).await;
    for _ in 0..10 {
        assert!(waits(&until(&mut bench, &mut controller, &id, |_| true).await));
    }
    drop(controller);
    let mut controller = bench.start().await;
    let view = until(&mut bench, &mut controller, &id, |view| view.phase != Some(Phase::Waiting)).await;
    assert!(waits(&view) && view.power_limit_w == Some(one_gpu::MAX.get()), "{view:#?}");
    // The next daemon sees the difference, too, and profiles the job again.
    until(&mut bench, &mut controller, &id, |view| view.reason.starts_with("measuring throughput")).await;
    let view = until(&mut bench, &mut controller, &id, |view| view.phase == Some(Phase::Planned)).await;
    assert!(view.slowdown.is_none_or(|slowdown| slowdown < 0.1), "{view:#?}");
}
