//! Tests of the work on a GPU's thread, with simulated GPUs and with one that never answers.

use chrono::DateTime;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::gpu::simulated::{Physics, SimulatedGpu};
use wattune_core::domain::{GpuIdentity, LimitRange};
use wattune_core::units::Watts;

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

fn simulated(clock: &Arc<ManualClock>) -> SimulatedGpu {
    let range = LimitRange { min: w(100), max: w(300), default: w(300) };
    let idle = Watts::new(30.0);
    let physics = Physics { range, original_limit: w(300), idle, settling: Seconds::new(2.0), noise: 0.0, seed: 7 };
    SimulatedGpu::new(physics, clock.clone())
}

#[test]
fn a_limit_is_written_only_over_the_expected_one() {
    let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
    let gpu = simulated(&clock);
    let mut worker = Worker::new(Box::new(gpu.device(0, "A40")), Seconds::new(1.0), Arc::default(), Arc::default());
    worker.sample(|| clock.now(), true);
    assert_eq!(worker.write(Write::PowerLimit(w(250)), Some(w(300)), || clock.now(), || {}), Ok(()));
    let set_externally = |limit| gpu.device(0, "A40").set_power_limit(limit).expect("set by an external writer");
    // A limit read less than a millisecond ago counts as the present one.
    set_externally(w(290));
    assert_eq!(worker.write(Write::PowerLimit(w(250)), Some(w(250)), || clock.now(), || {}), Ok(()));
    set_externally(w(280));
    clock.advance(PRESENT);
    let refused = worker.write(Write::PowerLimit(w(200)), Some(w(250)), || clock.now(), || {});
    assert_eq!(refused, Err(GpuError::LimitChanged { call: "nvmlDeviceSetPowerManagementLimit", current: w(280) }));
    assert_eq!((gpu.limit(), worker.observation().reading.requested), (w(280), Some(w(280))));
    // Without an expected limit, as in a restore, any limit is overwritten.
    assert_eq!(worker.write(Write::PowerLimit(w(300)), None, || clock.now(), || {}), Ok(()));
    assert_eq!(gpu.limit(), w(300));
}

/// A GPU whose readings fail after a while; counts the attempts to reopen it.
struct Dead {
    simulated: Box<dyn GpuDevice>,
    clock: Arc<ManualClock>,
    hangs_for: Seconds,
    attempts: Arc<Mutex<u32>>,
}

impl Dead {
    fn worker(clock: &Arc<ManualClock>, hangs_for: Seconds) -> (Worker, Arc<Mutex<u32>>) {
        let attempts = Arc::new(Mutex::new(0));
        let simulated = Box::new(simulated(clock).device(0, "A40"));
        let dead = Self { simulated, clock: clock.clone(), hangs_for, attempts: attempts.clone() };
        (Worker::new(Box::new(dead), Seconds::new(1.0), Arc::default(), Arc::default()), attempts)
    }
}

const LOST: GpuError = GpuError::Lost { call: "nvmlDeviceGetHandleByUUID" };

impl GpuDevice for Dead {
    fn identity(&self) -> &GpuIdentity {
        self.simulated.identity()
    }
    fn capabilities(&self) -> &Capabilities {
        self.simulated.capabilities()
    }
    fn read(&mut self, _: Depth, _: Monotonic) -> Result<Reading, GpuError> {
        self.clock.advance(self.hangs_for);
        Err(LOST)
    }
    fn set_power_limit(&mut self, _: PowerLimit) -> Result<(), GpuError> {
        Err(LOST)
    }
    fn lock_clocks(&mut self, _: ClockLimit) -> Result<(), GpuError> {
        Err(LOST)
    }
    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        Err(LOST)
    }
    fn set_persistence(&mut self, _: bool) -> Result<(), GpuError> {
        Err(LOST)
    }
    fn reopen(&mut self) -> Result<(), GpuError> {
        *lock(&self.attempts) += 1;
        Err(LOST)
    }
}

#[test]
fn a_dead_gpu_is_reopened_less_and_less_often() {
    let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
    let (mut worker, attempts) = Dead::worker(&clock, Seconds::ZERO);
    let mut attempts_within = |minutes: u32| {
        for _ in 0..minutes * 600 {
            worker.sample(|| clock.now(), false);
            clock.advance(Seconds::new(0.1));
        }
        std::mem::take(&mut *lock(&attempts))
    };
    // In the first 40 s every two seconds.
    assert!((24..=31).contains(&attempts_within(1)));
    attempts_within(19);
    // A minute is a twentieth of twenty minutes.
    assert!((58..=60).contains(&attempts_within(60)));
    // A caller who requests a reading waits for no pause.
    worker.sample(|| clock.now(), true);
    assert_eq!(*lock(&attempts), 1);
}

#[test]
fn a_gpu_whose_call_hangs_and_fails_is_silent_since_the_beginning_of_the_call() {
    let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
    let began = clock.now();
    let (mut worker, _) = Dead::worker(&clock, Seconds::new(30.0));
    worker.sample(|| clock.now(), false);
    assert_eq!(worker.observation().fault, Some((LOST, began)));
}
