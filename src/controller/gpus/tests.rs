//! Tests of finding GPUs, setting their limits and restoring them, on simulated GPUs.

use std::sync::Arc;

use chrono::DateTime;

use super::*;
use crate::clock::ManualClock;
use crate::controller::open_handles;
use crate::files::LOCK;
use crate::gpu::Write;
use crate::gpu::journal::boot_id;
use crate::gpu::simulated::{Physics, SimulatedGpu};
use wattune_core::domain::LimitRange;

fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

struct Room {
    clock: Arc<ManualClock>,
    state: tempfile::TempDir,
    gpus: Gpus,
}

impl Room {
    /// Creates `count` simulated GPUs whose original limit is 280 W.
    fn of(count: u32) -> Self {
        let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
        let state = tempfile::tempdir().expect("a directory");
        let devices = (0..count).map(|index| device(&clock, index)).collect();
        let dyn_clock: Arc<dyn Clock> = clock.clone();
        let handles = open_handles(devices, &dyn_clock, Sampling::OnRequest, Seconds::new(1.0));
        let journal = Journal::open(state.path(), boot_id()).expect("opens");
        let mut gpus = Gpus::new(journal, handles, Sampling::OnRequest, Vec::new());
        gpus.observe();
        Self { clock, state, gpus }
    }

    /// Advances the clock by a second, and does one step towards the limit `wanted`, in watts, on each GPU; `None`
    /// stands for the original limit.
    fn act(&mut self, wanted: Option<u32>) -> Vec<(GpuId, Act)> {
        self.clock.advance(Seconds::new(1.0));
        self.gpus.observe();
        let target = Target { wanted: wanted.map(|watts| w(watts).into()), may_write: true };
        let targets = self.gpus.ids().into_iter().map(|id| (id, target)).collect();
        let done = self.gpus.act(&targets, &Settings::default(), self.clock.now());
        self.gpus.observe();
        done
    }

    /// Opens the journal as a daemon does that has locked the state directory, and returns the lock file.
    fn lock(&mut self) -> std::fs::File {
        let lock = std::fs::File::create(self.state.path().join(LOCK)).expect("made");
        self.gpus.journal = Journal::open(self.state.path(), boot_id()).expect("opens");
        lock
    }

    fn limits(&self) -> Vec<Option<PowerLimit>> {
        self.gpus.iter().map(|gpu| gpu.observed.reading.requested).collect()
    }
}

fn device(clock: &Arc<ManualClock>, index: u32) -> Box<dyn GpuDevice> {
    let range = LimitRange { min: w(100), max: w(300), default: w(300) };
    let (idle, settling) = (Watts::new(30.0), Seconds::new(1.0));
    let physics = Physics { range, original_limit: w(280), idle, settling, noise: 0.0, seed: u64::from(index) };
    Box::new(SimulatedGpu::new(physics, clock.clone()).device(index, "A40"))
}

#[test]
fn people_name_gpus_by_index_uuid_or_bus() {
    let room = Room::of(2);
    let ids = room.gpus.ids();
    for (name, found) in [("1", &ids[1]), (ids[0].as_str(), &ids[0]), ("SIMULATED:01", &ids[1])] {
        assert_eq!(room.gpus.resolve(&GpuRef::parse(name)).expect("known"), *found, "{name}");
    }
    let refused = room.gpus.resolve(&GpuRef::Index(7)).expect_err("unknown").to_string();
    assert!(refused.contains("no GPU \"7\"") && refused.contains("GPUs of this machine: 0 ("), "{refused}");
}

#[test]
fn what_is_wanted_is_written_once_and_what_was_found_comes_back() {
    let mut room = Room::of(2);
    let done = room.act(Some(200));
    assert!(done.iter().all(|(_, act)| matches!(act, Act::Requested { .. })) && done.len() == 2, "{done:?}");
    assert_eq!(room.limits(), [Some(w(200)); 2]);
    room.act(Some(190));
    // Each write goes to the audit log; the ledger gets only each GPU's last one.
    assert_eq!(room.gpus.finished_writes(), 4);
    let changed = room.gpus.take_changed_limits();
    let written: Vec<Write> = changed.iter().map(|(_, write)| write.write).collect();
    assert_eq!(written, [Write::PowerLimit(w(190)); 2]);
    assert!(room.gpus.take_changed_limits().is_empty());
    assert_eq!(room.gpus.take_finished_writes().len(), 2);
    assert!(room.act(Some(190)).is_empty() && room.gpus.take_finished_writes().is_empty());
    let id = room.gpus.ids().remove(0);
    assert_eq!((room.gpus.original_limit(&id), room.gpus.ceiling(&id)), (Some(w(280)), Some(w(280))));
    room.act(None);
    assert_eq!(room.limits(), [Some(w(280)); 2]);
    room.act(None);
    assert!(room.gpus.journal().entry(&id).is_none());
}

#[test]
fn without_a_journal_nothing_is_set() {
    let mut room = Room::of(1);
    // A directory stands where the journal is written.
    std::fs::create_dir(room.state.path().join("found-limits.json")).expect("made");
    assert!(room.act(Some(200)).is_empty());
    let fault = room.gpus.journal_fault().expect("reported").clone();
    assert!(fault.contains("found-limits.json"), "{fault}");
    assert_eq!(room.limits(), [Some(w(280))]);
    std::fs::remove_dir(room.state.path().join("found-limits.json")).expect("removed");
    room.act(Some(200));
    assert_eq!((room.limits(), room.gpus.journal_fault()), (vec![Some(w(200))], None));
}

#[test]
fn a_lock_file_that_is_gone_is_noticed_without_a_change() {
    let mut room = Room::of(1);
    let _lock = room.lock();
    room.act(Some(200));
    room.act(Some(200));
    assert_eq!(room.gpus.journal_fault(), None);
    std::fs::remove_file(room.state.path().join(LOCK)).expect("removed");
    assert!(room.act(Some(200)).is_empty());
    let fault = room.gpus.journal_fault().expect("reported");
    assert!(fault.contains("lock file of the state directory"), "{fault}");
}

#[tokio::test]
async fn without_the_journal_a_gpu_comes_as_near_to_its_original_limit_as_the_cap_allows() {
    let mut room = Room::of(1);
    let _lock = room.lock();
    room.act(Some(200));
    std::fs::remove_file(room.state.path().join(LOCK)).expect("removed");
    let (gpus, restored) = room.gpus.restore(Seconds::new(1.0), Some(240_000)).await;
    let limits: Vec<_> = gpus.iter().map(|gpu| gpu.observed.reading.requested).collect();
    assert_eq!(limits, [Some(w(240))], "{restored:?}");
    let outcome = restored.first().expect("an outcome").1.to_string();
    assert!(outcome.contains("NOT restored to 280 W") && outcome.contains("-pl 280"), "{outcome}");
}

#[tokio::test]
async fn a_gpu_that_comes_late_is_taken_up_once() {
    let mut room = Room::of(1);
    let (sender, devices) = tokio::sync::mpsc::channel(4);
    let problem = "GPU 1 cannot be used".to_owned();
    room.gpus.problems.push(problem.clone());
    room.gpus.await_arrivals(Arrivals { devices, problems: [(1, problem)].into() });
    for index in [1, 0, 1] {
        sender.try_send(device(&room.clock, index)).expect("room for it");
    }
    let clock: Arc<dyn Clock> = room.clock.clone();
    let mut came = 0;
    while let Some(gpu) = room.gpus.next_arrival(&clock, Seconds::new(1.0)).await {
        assert!(gpu.arrived_late && gpu.observed.at.is_some());
        room.gpus.add(gpu);
        came += 1;
    }
    assert_eq!((came, room.gpus.ids().len(), room.gpus.handles().all().len()), (1, 2, 2));
    assert!(room.gpus.problems().is_empty());
}

#[tokio::test]
async fn at_the_end_all_are_restored() {
    let mut room = Room::of(2);
    room.act(Some(150));
    let (gpus, restored) = room.gpus.restore(Seconds::new(1.0), None).await;
    assert_eq!(restored.len(), 2, "{restored:?}");
    assert!(gpus.iter().all(|gpu| gpu.observed.reading.requested == Some(w(280))));
}

#[test]
fn a_recent_state_is_shared_until_it_is_too_old() {
    let room = Room::of(1);
    let gpu = room.gpus.iter().next().expect("one GPU");
    gpu.handle.refresh();
    room.clock.advance(Seconds::new(0.001));
    let recent = gpu.handle.recent(Seconds::new(0.001), |observed, _| observed.clone());
    assert_eq!(recent.map(|(observed, _)| observed), Some(gpu.handle.observe()));
    room.clock.advance(Seconds::new(0.001));
    assert_eq!(gpu.handle.recent(Seconds::new(0.001), |observed, _| observed.clone()), None);
}

#[test]
fn an_enforced_limit_below_the_requested_one_is_no_cap_right_after_a_write() {
    let mut room = Room::of(1);
    room.act(Some(200));
    let id = room.gpus.ids()[0].clone();
    let gpu = room.gpus.get_mut(&id).expect("exists");
    let written = gpu.observed.last_write.take().expect("a write").at;
    let mut cap = |after: f64, enforced: u32| {
        let later = written.monotonic.after(Seconds::new(after));
        gpu.observed.at = Some(Now { monotonic: later, ..written });
        gpu.observed.reading.enforced = Some(w(enforced));
        gpu.detect_cap();
        gpu.out_of_band_cap()
    };
    assert_eq!(cap(0.5, 150), None, "not in force yet");
    assert_eq!(cap(10.0, 150), Some(w(150)));
    assert_eq!(cap(10.0, 200), None);
}

#[test]
fn a_low_clock_without_event_reasons_is_not_taken_for_a_lock() {
    let mut room = Room::of(1);
    room.act(None);
    let id = room.gpus.ids()[0].clone();
    let observed = &mut room.gpus.get_mut(&id).expect("exists").observed;
    (observed.reading.sm_clock_mhz, observed.reading.processes) = (Some(900), Some(1));
    observed.reading.reasons = Some(Default::default());
    assert_eq!(observed.unexplained_clock(), Some(900));
    observed.reading.reasons = None;
    assert_eq!(observed.unexplained_clock(), None);
}
