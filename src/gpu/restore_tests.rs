//! Tests of GPUs that are absent: they stay in the journal until a person has them forgotten.

use std::fs;
use std::sync::Arc;

use chrono::DateTime;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::gpu::handle::Sampling;
use crate::gpu::journal::FILE_NAME;
use crate::gpu::simulated::{Physics, SimulatedGpu};
use wattune_core::domain::LimitRange;
use wattune_core::units::Watts;

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

fn gpu(id: &str) -> GpuId {
    GpuId::new(id).expect("an id")
}

/// A GPU that is present.
fn present() -> GpuHandle {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
    let range = LimitRange { min: w(100), max: w(300), default: w(300) };
    let idle = Watts::new(30.0);
    let physics = Physics { range, original_limit: w(300), idle, settling: Seconds::new(2.0), noise: 0.0, seed: 7 };
    let device = SimulatedGpu::new(physics, clock.clone()).device(0, "A40");
    GpuHandle::start(Box::new(device), clock, Sampling::OnRequest, Seconds::new(1.0), Seconds::new(60.0))
}

#[test]
fn only_absent_gpus_of_the_journal_are_forgotten() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Journal::open(dir.path(), "boot-1".into()).expect("readable");
    let stored = || fs::read(dir.path().join(FILE_NAME)).expect("readable");
    let handles = [present()];
    let (present, gone, of_job) = (handles[0].identity().id.clone(), gpu("GPU-1"), gpu("GPU-2"));
    let mut journal = open();
    for gpu in [&present, &gone] {
        journal.record_write(gpu, w(300), w(200), None, DateTime::UNIX_EPOCH).expect("written");
    }
    journal.record_original(&of_job, w(250), None, DateTime::UNIX_EPOCH).expect("written");
    let before = stored();
    for (last, part) in [
        (&present, format!("GPU {present} is present")),
        (&gpu("GPU-9"), format!("the journal has no GPU GPU-9; it has {gone}, {of_job}")),
    ] {
        let asked = [gone.clone(), last.clone()];
        let error = forget_absent(&mut journal, &asked, &handles).expect_err("refused").to_string();
        assert!(error.contains(&part), "{error}");
        assert_eq!((stored(), absent(&journal, &handles).len()), (before.clone(), 1), "all or none");
    }
    let asked = [gone.clone(), of_job.clone(), gone.clone()];
    let forgotten = forget_absent(&mut journal, &asked, &handles).expect("both are absent");
    assert_eq!(forgotten, BTreeMap::from([(gone, w(300)), (of_job, w(250))]));
    assert_eq!((absent(&journal, &handles), open().gpus().into_iter().collect::<Vec<_>>()), (vec![], vec![&present]));
    let error = forget_absent(&mut open(), &asked, &handles).expect_err("they are forgotten").to_string();
    assert!(error.ends_with(&format!("it has {present}")), "{error}");
}

#[test]
fn an_empty_journal_has_no_gpu_to_forget() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    let error = forget_absent(&mut journal, &[gpu("GPU-1")], &[]).expect_err("unknown").to_string();
    assert_eq!(error, "the journal has no GPU GPU-1; it has none");
}

#[test]
fn the_message_of_an_absent_gpu_names_the_way_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    journal.record_write(&gpu("GPU-1"), w(300), w(200), None, DateTime::UNIX_EPOCH).expect("written");
    let outcomes = absent(&journal, &[]);
    let [(id, outcome)] = outcomes.as_slice() else { panic!("one GPU: {outcomes:?}") };
    let text = outcome.to_string();
    assert_eq!(*id, gpu("GPU-1"));
    assert!(text.starts_with("NOT restored to 300 W: the GPU is missing"), "{text}");
    assert!(text.contains("`wattune restore --forget GPU-1` if it was removed for good"), "{text}");
}
