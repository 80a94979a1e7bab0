//! Savings of jobs with idle GPUs before the first and after the last report, and of jobs whose work changes.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use wattune::controller::{Caller, Controller, NewJob, ProgressReport, Settings};
use wattune_core::domain::JobId;
use wattune_core::units::{Joules, SamplesPerSecond, Seconds, Watts};

use crate::support::{self, one_gpu};

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
    /// Maximum slowdown of the job; with 0, it is never slowed.
    max_slowdown: f64,
    end: End,
}

/// Saving against the original limit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct EstimatedSaving {
    reduction_pct: f64,
    /// Mean power at the original limit.
    mean_power: Watts,
}

/// Returns the job's saving against the original limit, each minute after the work has changed and at the end;
/// the reason where it is unknown. The daemon only observes if the job's work never changes.
async fn savings(run: Run) -> Vec<Result<EstimatedSaving, String>> {
    let settings = Settings { observe: run.changes_at_s.is_infinite(), ..Settings::default() };
    let mut bench = one_gpu::OneGpu::new(settings).await;
    let load = |power, rate| one_gpu::load(Watts::new(power), SamplesPerSecond::new(rate));
    let (curve, changed) = (load(680.0, 100.0), load(400.0, 50.0));
    let mut controller = bench.start().await;
    let id = JobId::new(controller.register(job(run)).await.expect("registered").job_id).expect("an id");
    let begun = bench.seconds();
    let (mut next_report, mut next_look, mut found) = (0.0, run.changes_at_s, Vec::new());
    loop {
        let now = bench.seconds() - begun;
        if now >= run.before_s + run.training_s + run.after_s {
            break;
        }
        let trained = now - run.before_s;
        if trained >= 0.0 && trained < run.training_s {
            bench.gpu.run(Some(if trained < run.changes_at_s { &curve } else { &changed }.clone()));
            if trained >= next_report {
                next_report += run.report_every_s;
                let report = ProgressReport::new(bench.gpu.work_done(), None);
                controller.progress(&id, report).await.expect("taken");
            }
            if trained >= next_look {
                next_look += 60.0;
                found.push(saving(&mut controller, &id).await);
            }
        } else {
            bench.gpu.run(None);
        }
        bench.pass(STEP, &mut controller).await;
    }
    match run.end {
        End::Job => drop(controller.end(&id, Caller::Local).await.expect("ended")),
        End::Nothing => {}
        End::Stop => {
            controller.shut_down().await;
            controller = bench.start().await;
        }
        End::Kill => {
            drop(controller);
            controller = bench.start().await;
        }
    }
    found.push(saving(&mut controller, &id).await);
    controller.shut_down().await;
    found
}

async fn saving(controller: &mut Controller, id: &JobId) -> Result<EstimatedSaving, String> {
    let account = controller.account_of(id).await.expect("known");
    let savings = serde_json::to_value(&account.savings).expect("JSON");
    let against = &savings["against_original"];
    let reduction_pct =
        against["carbon_reduction_pct"]["mean"].as_f64().ok_or_else(|| against["unknown"].to_string())?;
    let number = |field: &str| against[field].as_f64().expect("a number");
    let mean_power = Joules::new(number("energy_at_reference_j")) / Seconds::new(number("time_at_reference_s"));
    Ok(EstimatedSaving { reduction_pct, mean_power })
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
            training_s: rng.random_range(300.0..600.0),
            after_s: rng.random_range(0.5..longest),
            report_every_s: [1.0, 2.0, 5.0][rng.random_range(0..3)],
            changes_at_s: f64::INFINITY,
            max_slowdown: 0.05,
            end: [End::Job, End::Nothing, End::Stop, End::Kill][rng.random_range(0..4)],
        };
        let found = savings(run).await;
        // The idle time is not part of the job's energy.
        let is_as_trained = |found: &EstimatedSaving| (found.mean_power / Watts::new(680.0) - 1.0).abs() <= 0.005;
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
