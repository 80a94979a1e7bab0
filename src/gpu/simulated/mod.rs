//! A simulated GPU with known physics and no hardware, labelled `simulated` in every view.
//!
//! A running job draws the power that its load curve gives at the power limit; an idle GPU draws its idle power. After
//! each change, draw and throughput approach their new values exponentially. For a job whose curve is given by clock, a
//! power limit and a clock lock both act by lowering the clock. The energy counter integrates the true draw exactly.
//! Power readings carry relative white noise; the counter, as on real GPUs, does not.

mod load;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

pub use load::{ClockPoint, CurvePoint, LoadCurve};

use super::{Capabilities, Depth, GpuDevice, GpuError, Reading};
use crate::clock::Clock;
use wattune_core::domain::{
    ClockLimit, ClockRange, EventReasons, GpuId, GpuIdentity, LimitRange, PowerLimit, SIMULATED_GPU,
};
use wattune_core::time::Monotonic;
use wattune_core::units::{Joules, Millijoules, Samples, SamplesPerSecond, Seconds, Watts};

/// The physics of a simulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Physics {
    /// The range of accepted power limits.
    pub range: LimitRange,
    /// The GPU's power limit at the start.
    pub original_limit: PowerLimit,
    /// The draw without a job.
    pub idle: Watts,
    /// The time constant with which draw and throughput follow a change.
    pub settling: Seconds,
    /// The relative standard deviation of each power reading.
    pub noise: f64,
    /// The seed of the noise.
    pub seed: u64,
}

/// The simulator's side of a simulated GPU: runs jobs and knows the ground truth.
#[derive(Clone)]
pub struct SimulatedGpu {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

struct State {
    physics: Physics,
    load: Option<LoadCurve>,
    limit: PowerLimit,
    clocks: Result<ClockRange, GpuError>,
    lock: Option<ClockLimit>,
    at: Monotonic,
    power: Watts,
    throughput: SamplesPerSecond,
    energy: Joules,
    work: Samples,
    noise: ChaCha8Rng,
}

impl State {
    /// Integrates up to `now` in closed form: draw and throughput approach their targets as e^(−t/τ).
    fn advance(&mut self, now: Monotonic) {
        let span = now.since(self.at);
        if span <= Seconds::ZERO {
            return;
        }
        self.at = now;
        let (power, throughput) = self.target();
        let tau = self.physics.settling;
        let left = if tau > Seconds::ZERO { (-(span / tau)).exp() } else { 0.0 };
        let lag = tau * (1.0 - left);
        self.energy += power * span + (self.power - power) * lag;
        self.work += throughput * span + (self.throughput - throughput) * lag;
        self.power = power + (self.power - power) * left;
        self.throughput = throughput + (self.throughput - throughput) * left;
    }

    fn target(&self) -> (Watts, SamplesPerSecond) {
        let at = |load: &LoadCurve| {
            let point = load.at_lock(self.limit.watts(), self.lock);
            (point.power, point.throughput)
        };
        self.load.as_ref().map_or((self.physics.idle, SamplesPerSecond::ZERO), at)
    }
}

impl SimulatedGpu {
    /// Creates an idle GPU at its original limit.
    pub fn new(physics: Physics, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            load: None,
            limit: physics.original_limit,
            clocks: Err(GpuError::NotSupported { call: "lock_clocks (simulated)" }),
            lock: None,
            at: clock.monotonic(),
            power: physics.idle,
            throughput: SamplesPerSecond::ZERO,
            energy: Joules::ZERO,
            work: Samples::ZERO,
            noise: ChaCha8Rng::seed_from_u64(physics.seed),
            physics,
        };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Lets the daemon lock the GPU's clocks to each of these steps. Call it before [`Self::device`].
    #[must_use]
    pub fn with_clocks(self, clocks: ClockRange) -> Self {
        self.lock().clocks = Ok(clocks);
        self
    }

    /// Returns the clock that the GPU is locked to, if any.
    pub fn clock_lock(&self) -> Option<ClockLimit> {
        self.lock().lock
    }

    /// Starts a job with this curve; `None` ends the running one.
    pub fn run(&self, load: Option<LoadCurve>) {
        self.lock().load = load;
    }

    /// Returns the true energy that the GPU has drawn so far.
    pub fn true_energy(&self) -> Joules {
        self.lock().energy
    }

    /// Returns the work in samples that jobs have done on the GPU so far.
    pub fn work_done(&self) -> Samples {
        self.lock().work
    }

    /// Returns the GPU's load from 0 to 1: its power above idle power, as a fraction of the largest power limit above
    /// idle power.
    pub fn load(&self) -> f64 {
        let state = self.lock();
        let most = state.physics.range.max.watts() - state.physics.idle;
        if most > Watts::ZERO { ((state.power - state.physics.idle) / most).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the current limit.
    pub fn limit(&self) -> PowerLimit {
        self.lock().limit
    }

    /// Returns the GPU as a device for the daemon, with this index and GPU model.
    pub fn device(&self, index: u32, model: &str) -> SimulatedDevice {
        let id = GpuId::new(format!("{SIMULATED_GPU}{index:08}-0000-0000-0000-000000000000"))
            .expect("letters, digits and dashes");
        let identity = GpuIdentity {
            id,
            index,
            pci_bus_id: format!("simulated:{index:02}"),
            model: format!("{model} (simulated)"),
            simulated: true,
        };
        let (limits, clocks) = {
            let state = self.lock();
            (Ok(state.physics.range), state.clocks.clone())
        };
        let capabilities = Capabilities {
            energy_counter: Ok(()),
            power: Ok(()),
            limit: Ok(()),
            limits,
            clocks,
            persistence: Err(GpuError::NotSupported { call: "nvmlDeviceGetPersistenceMode" }),
            mig: false,
            virtualised: false,
            driver: "simulated".into(),
        };
        SimulatedDevice { world: self.clone(), identity, capabilities }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(now);
        state
    }
}

/// A simulated GPU as the daemon sees it.
pub struct SimulatedDevice {
    world: SimulatedGpu,
    identity: GpuIdentity,
    capabilities: Capabilities,
}

impl GpuDevice for SimulatedDevice {
    fn identity(&self) -> &GpuIdentity {
        &self.identity
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read(&mut self, depth: Depth, _: Monotonic) -> Result<Reading, GpuError> {
        let mut state = self.world.lock();
        let deviation: f64 = StandardNormal.sample(&mut state.noise);
        let power = (state.power * (1.0 + state.physics.noise * deviation)).max(Watts::ZERO);
        let quick =
            Reading { energy: Some(Millijoules::from_joules(state.energy)), power: Some(power), ..Reading::default() };
        if depth == Depth::Quick {
            return Ok(quick);
        }
        let running = state.load.is_some();
        let power = state.target().0;
        let binds = running && power >= state.limit.watts() * 0.98;
        let reasons = match (running, binds) {
            (false, _) => EventReasons::IDLE,
            (true, true) => EventReasons::SW_POWER_CAP,
            (true, false) => EventReasons::default(),
        };
        Ok(Reading {
            requested: Some(state.limit),
            enforced: Some(state.limit),
            reasons: Some(reasons),
            sm_clock_mhz: state.load.as_ref().and_then(|load| load.clock(power)),
            processes: Some(u32::from(running)),
            ..quick
        })
    }

    fn set_power_limit(&mut self, limit: PowerLimit) -> Result<(), GpuError> {
        let mut state = self.world.lock();
        let range = state.physics.range;
        if range.clamp(limit) != limit {
            let message = format!("{limit} is outside {} to {}", range.min, range.max);
            return Err(GpuError::Driver { call: "set_power_limit (simulated)", message });
        }
        state.limit = limit;
        Ok(())
    }

    fn lock_clocks(&mut self, highest: ClockLimit) -> Result<(), GpuError> {
        let mut state = self.world.lock();
        let known = state.clocks.clone()?;
        if !known.steps().contains(&highest) {
            let message = format!("{highest} is not one of the clocks from {} to {}", known.min(), known.max());
            return Err(GpuError::Driver { call: "lock_clocks (simulated)", message });
        }
        state.lock = Some(highest);
        Ok(())
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.world.lock().lock = None;
        Ok(())
    }

    fn set_persistence(&mut self, _on: bool) -> Result<(), GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceSetPersistenceMode" })
    }

    fn reopen(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::clock::ManualClock;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    fn gpu(noise: f64) -> (Arc<ManualClock>, SimulatedGpu) {
        let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
        let range = LimitRange { min: w(100), max: w(300), default: w(300) };
        let physics = Physics {
            range,
            original_limit: w(300),
            idle: Watts::new(30.0),
            settling: Seconds::new(2.0),
            noise,
            seed: 7,
        };
        (clock.clone(), SimulatedGpu::new(physics, clock))
    }

    fn curve() -> LoadCurve {
        let point = |limit, throughput, power| CurvePoint {
            limit: Watts::new(limit),
            throughput: SamplesPerSecond::new(throughput),
            power: Watts::new(power),
        };
        LoadCurve::new(vec![point(300.0, 100.0, 240.0), point(100.0, 40.0, 100.0), point(200.0, 90.0, 180.0)])
            .expect("has points")
    }

    #[test]
    fn curves_are_linear_between_points_and_flat_beyond() {
        assert_eq!(curve().at(Watts::new(250.0)).power, Watts::new(210.0));
        assert_eq!(curve().at(Watts::new(150.0)).throughput, SamplesPerSecond::new(65.0));
        assert_eq!(curve().at(Watts::new(500.0)).power, Watts::new(240.0));
        assert_eq!(curve().at(Watts::new(1.0)).power, Watts::new(100.0));
    }

    #[test]
    fn energy_and_work_follow_the_curve_with_a_settling_lag() {
        let (clock, gpu) = gpu(0.0);
        gpu.run(Some(curve()));
        clock.advance(Seconds::new(100.0));
        // 240 W for 100 s, less the 210 W between idle and load times the time constant of 2 s.
        assert!((gpu.true_energy().get() - (24_000.0 - 420.0)).abs() < 1e-6);
        assert!((gpu.work_done().get() - (10_000.0 - 200.0)).abs() < 1e-6);
        let mut device = gpu.device(0, "A40");
        device.set_power_limit(w(200)).expect("in range");
        clock.advance(Seconds::new(50.0));
        let reading = device.read(Depth::Full, Monotonic::default()).expect("answers");
        assert!((reading.power.expect("drawn").get() - 180.0).abs() < 1e-6);
        assert_eq!((reading.requested, reading.processes), (Some(w(200)), Some(1)));
        assert!(device.identity().simulated && device.identity().model.contains("simulated"));
    }

    #[test]
    fn integration_does_not_depend_on_the_step() {
        let energy = |steps: u32| {
            let (clock, gpu) = gpu(0.0);
            gpu.run(Some(curve()));
            for _ in 0..steps {
                clock.advance(Seconds::new(12.0 / f64::from(steps)));
                gpu.true_energy();
            }
            gpu.true_energy().get()
        };
        assert!((energy(1) - energy(1000)).abs() < 1e-6);
    }

    #[test]
    fn power_readings_are_noisy_and_the_counter_is_exact() {
        let (clock, gpu) = gpu(0.01);
        gpu.run(Some(curve()));
        clock.advance(Seconds::new(1000.0));
        let mut device = gpu.device(0, "A40");
        let readings: Vec<f64> = (0..2000)
            .map(|_| device.read(Depth::Quick, Monotonic::default()).expect("answers").power.expect("drawn").get())
            .collect();
        let mean = readings.iter().sum::<f64>() / 2000.0;
        let deviation = (readings.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / 2000.0).sqrt();
        assert!((mean - 240.0).abs() < 0.3 && (deviation / 240.0 - 0.01).abs() < 0.001, "{mean} {deviation}");
        let counter = device.read(Depth::Quick, Monotonic::default()).expect("answers").energy.expect("counted");
        assert_eq!(counter, Millijoules::from_joules(gpu.true_energy()));
    }

    #[test]
    fn a_memory_bound_job_responds_to_clocks_and_not_to_limits() {
        let mhz = ClockLimit::from_megahertz;
        let point = |clock, throughput, power| ClockPoint {
            clock: mhz(clock),
            throughput: SamplesPerSecond::new(throughput),
            power: Watts::new(power),
        };
        let load =
            LoadCurve::over_clocks(vec![point(1500, 100.0, 150.0), point(500, 60.0, 80.0), point(1000, 96.0, 110.0)])
                .expect("has points");
        let (clock, gpu) = gpu(0.0);
        let gpu = gpu.with_clocks(ClockRange::new((5..=15).map(|i| mhz(100 * i)).collect()).expect("has steps"));
        gpu.run(Some(load));
        let mut device = gpu.device(0, "A40");
        let settled = || {
            clock.advance(Seconds::new(60.0));
            let (work, energy) = (gpu.work_done(), gpu.true_energy());
            clock.advance(Seconds::new(100.0));
            let (work, energy) = ((gpu.work_done() - work).get() / 100.0, (gpu.true_energy() - energy).get() / 100.0);
            (work.round(), energy.round())
        };
        assert_eq!(settled(), (100.0, 150.0));
        device.set_power_limit(w(160)).expect("in range");
        assert_eq!(settled(), (100.0, 150.0), "above its draw a limit changes nothing");
        device.lock_clocks(mhz(1000)).expect("allowed");
        assert_eq!((settled(), gpu.clock_lock()), ((96.0, 110.0), Some(mhz(1000))));
        assert_eq!(device.read(Depth::Full, Monotonic::default()).expect("answers").sm_clock_mhz, Some(1000));
        device.set_power_limit(w(100)).expect("in range");
        assert_eq!(settled().1, 100.0, "the stricter of the two counts");
        device.lock_clocks(mhz(1010)).expect_err("not one of its clocks");
        device.reset_clocks().expect("allowed");
        device.set_power_limit(w(300)).expect("in range");
        assert_eq!((settled(), gpu.clock_lock()), ((100.0, 150.0), None));
    }

    #[test]
    fn limits_outside_the_range_are_refused() {
        let (_, gpu) = gpu(0.0);
        let error = gpu.device(0, "A40").set_power_limit(w(50)).expect_err("too low").to_string();
        assert!(error.contains("50 W is outside 100 W to 300 W"), "{error}");
        assert_eq!(gpu.limit(), w(300));
    }
}
