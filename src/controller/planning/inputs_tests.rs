use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::controller::jobs::PriorProfile;
use crate::controller::open_handles;
use crate::gpu::GpuDevice;
use crate::gpu::handle::Sampling;
use crate::gpu::journal::{Journal, boot_id};
use crate::gpu::simulated::{Physics, SimulatedGpu};
use crate::store::{LastReport, StoredProgress};
use wattune_core::domain::{GpuId, JobName, JobSpec, LimitRange, Pausing};
use wattune_core::profile::steps::GroupRange;
use wattune_core::profile::{ProgressAccount, Record, Settings as ProfileSettings};
use wattune_core::time::Monotonic;
use wattune_core::units::SamplesPerSecond;

const HOUR: Seconds = Seconds::new(3600.0);

fn now() -> Now {
    Now { utc: DateTime::UNIX_EPOCH, monotonic: Monotonic::default() }
}

fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

/// Returns the measurements of a job that does 100 samples/s at its ceiling of 300 W and 60 samples/s at 200 W.
fn record() -> Record {
    let two_chunks = |rate: f64| {
        let (ty, yy) = (rate * 200.0, rate * rate * 200.0);
        json!({"n": 2.0, "t": 20.0, "y": rate * 20.0, "tt": 200.0, "ty": ty, "yy": yy})
    };
    let point = |watts: u32, rate: f64| {
        let power = two_chunks(f64::from(watts));
        json!({"setting": [watts * 1000], "throughput": two_chunks(rate), "power": [power]})
    };
    let points = [point(300, 100.0), point(200, 60.0)];
    serde_json::from_value(json!({"points": points, "closed_at": [300_000], "thermal_trend": 0.0})).expect("a record")
}

/// Returns the progress of a job that has done nine tenths of 64 h without losing time.
fn progress() -> StoredProgress {
    let active = HOUR * 57.6;
    let samples = SamplesPerSecond::new(100.0) * active;
    StoredProgress {
        account: ProgressAccount { samples, active, ..ProgressAccount::default() },
        last: Some(LastReport { samples: samples.get(), at_s: None, received: now().utc }),
        started_at: Some(now().utc),
        ..StoredProgress::default()
    }
}

/// Returns a job of 64 h at its ceiling with that progress.
fn job(gpus: &[GpuId], objective: Objective) -> Job {
    continued(gpus, objective, record(), progress())
}

fn continued(gpus: &[GpuId], objective: Objective, record: Record, stored: StoredProgress) -> Job {
    let spec = JobSpec {
        name: JobName::new("a").expect("a name"),
        gpus: gpus.to_vec(),
        batch_size: None,
        work: Work::TotalSamples(SamplesPerSecond::new(100.0) * (HOUR * 64.0)),
        objective,
        lease: Seconds::new(60.0),
        control: true,
        priority: 0,
        tags: BTreeMap::new(),
        processes: None,
        offers: Default::default(),
    };
    let count = u32::try_from(gpus.len()).expect("a few");
    let range = GroupRange { gpus: count, ..GroupRange::of_limits(w(300), w(100)) };
    let group = Group { model: "A40".into(), members: gpus.to_vec(), range };
    let known = PriorProfile { record, expected: None };
    let profiling = Some((ProfileSettings::default(), known));
    Job::new(JobId::new("job-a").expect("an id"), spec, vec![group], profiling, stored, now().utc, now())
}

#[test]
fn the_horizon_reaches_as_far_as_the_slowdown_lets_a_pausable_job_take() {
    let gpus = [GpuId::new("GPU-0").expect("an id")];
    // Without pauses, the 6.4 h that are left take 10.7 h at 200 W.
    for (pausable, hours) in [(None, 6.4 / 0.6), (Some(Pausing::default_for(1)), 64.0 * 1.9 - 57.6)] {
        let objective = Objective { max_slowdown: Some(0.9), pausable, ..Objective::UNBOUND };
        let ahead = Seconds::from_delta(horizon_end(&job(&gpus, objective), HOUR, now()) - now().utc);
        assert!((ahead - HOUR * hours).abs() < Seconds::new(1.0), "{ahead:?} of {hours} h");
    }
}

/// Returns two simulated GPUs of 400 W at most, on which an operator has set 300 W, and their journal's directory.
fn gpus_at_300_w() -> (tempfile::TempDir, Gpus) {
    let clock = Arc::new(ManualClock::at(now().utc));
    let range = LimitRange { min: w(100), max: w(400), default: w(400) };
    let device = |index: u32| -> Box<dyn GpuDevice> {
        let (idle, settling) = (Watts::new(30.0), Seconds::new(1.0));
        let physics = Physics { range, original_limit: w(300), idle, settling, noise: 0.0, seed: u64::from(index) };
        Box::new(SimulatedGpu::new(physics, clock.clone()).device(index, "A40"))
    };
    let dyn_clock: Arc<dyn Clock> = clock.clone();
    let handles = open_handles((0..2).map(device).collect(), &dyn_clock, Sampling::OnRequest, Seconds::new(1.0));
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path(), boot_id()).expect("opens");
    let mut gpus = Gpus::new(journal, handles, Sampling::OnRequest, Vec::new());
    gpus.refresh(&gpus.ids());
    (state, gpus)
}

#[test]
fn time_costs_as_much_as_the_highest_limits_that_wattune_sets() {
    let (_state, gpus) = gpus_at_300_w();
    let ids = gpus.ids();
    assert_eq!(gpus.ceiling(&ids[0]), Some(w(300)));
    let outlook = Outlook {
        slots: Vec::new(),
        errors: Arc::default(),
        reference: GramsPerKwh::new(300.0),
        prices: None,
        dwell: Seconds::ZERO,
    };
    let input = job(&ids, Objective::DEFAULT).plan_input(&outlook, &gpus, HOUR, now());
    assert_eq!(input.max_power, Watts::new(600.0));
}

#[test]
fn the_first_plan_after_profiling_is_remembered_until_the_job_is_profiled_again() {
    let (_state, gpus) = gpus_at_300_w();
    let ids = gpus.ids();
    let mut first = job(&ids, Objective::DEFAULT);
    first.note_first_plan(&gpus, now());
    let of = first.first_plan();
    assert!((of.elapsed - HOUR * 57.6).abs() < Seconds::new(1.0), "{of:?}");
    assert!((of.reference_time - HOUR * 57.6).abs() < Seconds::new(1.0), "{of:?}");
    // The next daemon knows it, and its own first plan is a later one.
    let stored = serde_json::to_value(first.progress).and_then(serde_json::from_value::<StoredProgress>);
    let mut stored = stored.expect("as written");
    stored.account.active += HOUR;
    let mut next = continued(&ids, Objective::DEFAULT, record(), stored);
    next.note_first_plan(&gpus, now());
    next.drop_first_plan();
    assert_eq!((next.first_plan(), next.progress.first_plan.is_some()), (of, true));
    // Without a profile, the job is profiled again.
    let mut again = continued(&ids, Objective::DEFAULT, Record::default(), stored);
    again.drop_first_plan();
    assert_eq!(again.progress.first_plan, None);
    // A job that has not reported yet loads.
    let silent = StoredProgress { first_plan: None, started_at: None, ..stored };
    let mut silent = continued(&ids, Objective::DEFAULT, record(), silent);
    silent.note_first_plan(&gpus, now());
    assert_eq!(silent.progress.first_plan, None);
}
