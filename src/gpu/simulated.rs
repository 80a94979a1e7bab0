//! A board without hardware, whose physics can be stated. Labelled `simulated` wherever it shows.
//!
//! A running job draws the power that its curve gives at the enforced limit, an idle board its idle power; after each
//! change the draw settles exponentially. Where a job is given by what it does at each clock, a limit works by lowering
//! the clock, and so does a lock. The energy counter integrates the true draw exactly. Throughput follows the
//! curve in the same way. Readings of power carry relative white noise; the counter, like real ones, does not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::{Capabilities, Depth, GpuDevice, GpuError, Reading};
use crate::clock::Clock;
use wattune_core::domain::{Board, ClockLimit, ClockRange, EventReasons, GpuId, LimitRange, PowerLimit, SIMULATED_GPU};
use wattune_core::time::Monotonic;
use wattune_core::units::{Joules, Millijoules, Samples, SamplesPerSecond, Seconds, Watts};

/// What a job does on one board at one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The limit in force.
    pub limit: Watts,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The board's draw.
    pub power: Watts,
}

/// What a job does on one board at one clock, if no limit lowers it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockPoint {
    /// The clock.
    pub clock: ClockLimit,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The board's draw.
    pub power: Watts,
}

/// A throughput–power curve over limits: linear between its points, flat beyond them.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    points: Vec<CurvePoint>,
    /// How it answers to a lock of the clocks, from the lowest clock up; empty where it does not.
    clocks: Vec<ClockPoint>,
}

impl LoadCurve {
    /// `None` without points. The order does not matter.
    pub fn new(mut points: Vec<CurvePoint>) -> Option<Self> {
        points.sort_by(|a, b| a.limit.total_cmp(&b.limit));
        (!points.is_empty()).then_some(Self { points, clocks: Vec::new() })
    }

    /// A board that computes as fast as its clocks go, with the clocks that a limit affords: throughput saturates as
    /// `1 − e^(−k·share)` in the share of dynamic power, as measured curves roughly do.
    ///
    /// `demand` is what the job would draw unlimited, `floor` what the board needs before it computes at all.
    pub fn saturating(range: &LimitRange, demand: Watts, floor: Watts, peak: SamplesPerSecond) -> Self {
        let (low, high) = (range.min.watts().get(), range.max.watts().get());
        let full = 1.0 - (-4.0_f64).exp();
        let points = (0..=40).map(|i| {
            let limit = Watts::new(low + (high - low) * f64::from(i) / 40.0);
            let power = limit.min(demand);
            let share = ((power - floor) / (demand - floor)).max(0.02);
            CurvePoint { limit, throughput: peak * ((1.0 - (-4.0 * share).exp()) / full), power }
        });
        Self { points: points.collect(), clocks: Vec::new() }
    }

    /// A job by what it does at each clock: linear between these points, flat beyond. Power must rise with the clock. A
    /// limit allows the highest clock whose draw is within it: one above all draws changes nothing, which is how
    /// memory-bound work looks. `None` without points.
    pub fn over_clocks(mut clocks: Vec<ClockPoint>) -> Option<Self> {
        clocks.sort_by_key(|p| p.clock);
        let points = clocks.iter().map(Self::affordable).collect();
        (!clocks.is_empty()).then_some(Self { points, clocks })
    }

    /// A job that waits for memory nine tenths of its time at `highest`, and computes in the rest: clocks hardly slow it,
    /// and limits above `demand` change nothing. Of the draw `floor` does not depend on the clock, the rest falls with
    /// its square.
    pub fn memory_bound(highest: ClockLimit, demand: Watts, floor: Watts, peak: SamplesPerSecond) -> Self {
        let point = |i: u32| {
            let clock = ClockLimit::from_megahertz(highest.megahertz() * i / 40);
            let part = f64::from(clock.megahertz()) / f64::from(highest.megahertz());
            let power = floor + (demand - floor) * part.powi(2);
            ClockPoint { clock, throughput: peak / (0.9 + 0.1 / part), power }
        };
        let clocks: Vec<ClockPoint> = (5..=40).map(point).collect();
        let points = clocks.iter().map(Self::affordable).collect();
        Self { points, clocks }
    }

    /// The limit that allows a clock and none above it.
    fn affordable(point: &ClockPoint) -> CurvePoint {
        CurvePoint { limit: point.power, throughput: point.throughput, power: point.power }
    }

    /// The clocks of a job that is given over them, in the steps of 15 MHz that boards have; `None` for one that is
    /// given over limits.
    pub fn clocks(&self) -> Option<ClockRange> {
        let (low, high) = (self.clocks.first()?.clock.megahertz(), self.clocks.last()?.clock.megahertz());
        ClockRange::new((low..=high).rev().step_by(15).map(ClockLimit::from_megahertz).collect())
    }

    /// The points, by limit.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// What the job does at a limit.
    pub fn at(&self, limit: Watts) -> CurvePoint {
        let (a, b, share) = between(&self.points, |p| p.limit.get(), limit.get());
        CurvePoint {
            limit,
            throughput: a.throughput + (b.throughput - a.throughput) * share,
            power: a.power + (b.power - a.power) * share,
        }
    }

    /// What the job does at a limit with the clocks locked to `lock`. A job that is given over limits alone does not
    /// answer to a lock.
    pub fn at_lock(&self, limit: Watts, lock: Option<ClockLimit>) -> CurvePoint {
        let unlocked = self.at(limit);
        let (Some(lock), false) = (lock, self.clocks.is_empty()) else { return unlocked };
        let (a, b, share) = between(&self.clocks, |p| f64::from(p.clock.megahertz()), f64::from(lock.megahertz()));
        let power = a.power + (b.power - a.power) * share;
        if power >= unlocked.power {
            return unlocked;
        }
        CurvePoint { limit, throughput: a.throughput + (b.throughput - a.throughput) * share, power }
    }

    /// The clock that the board runs at; `None` for a job that is given over limits alone.
    fn clock(&self, power: Watts) -> Option<u32> {
        if self.clocks.is_empty() {
            return None;
        }
        let (a, b, share) = between(&self.clocks, |p| p.power.get(), power.get());
        let (a, b) = (f64::from(a.clock.megahertz()), f64::from(b.clock.megahertz()));
        Some((a + (b - a) * share).round() as u32)
    }
}

/// The points around `x` and how far it is from the first to the second; at the ends one point twice.
fn between<P: Copy>(points: &[P], of: impl Fn(&P) -> f64, x: f64) -> (P, P, f64) {
    let next = points.partition_point(|p| of(p) < x);
    let (a, b) = match (next.checked_sub(1).map(|i| points[i]), points.get(next)) {
        (Some(a), Some(b)) => (a, *b),
        (Some(only), None) | (None, Some(&only)) => (only, only),
        (None, None) => unreachable!("a curve has at least one point"),
    };
    let span = of(&b) - of(&a);
    (a, b, if span > 0.0 { (x - of(&a)) / span } else { 0.0 })
}

/// How a simulated board behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Physics {
    /// The limits it takes.
    pub range: LimitRange,
    /// The limit it is found at.
    pub found: PowerLimit,
    /// Its draw without a job.
    pub idle: Watts,
    /// Time constant with which draw and throughput follow a change.
    pub settling: Seconds,
    /// Relative standard deviation of each power reading.
    pub noise: f64,
    /// Seed of that noise.
    pub seed: u64,
}

/// The world's end of a simulated board: runs jobs on it and knows the truth.
#[derive(Clone)]
pub struct SimulatedBoard {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

struct State {
    physics: Physics,
    load: Option<LoadCurve>,
    limit: PowerLimit,
    clocks: Result<ClockRange, GpuError>,
    locking: Result<(), GpuError>,
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

impl SimulatedBoard {
    /// A board at rest, at its found limit.
    pub fn new(physics: Physics, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            load: None,
            limit: physics.found,
            clocks: Err(GpuError::NotSupported { call: "lock_clocks (simulated)" }),
            locking: Ok(()),
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

    /// Gives the board clocks that can be locked. Call it before [`Self::device`].
    #[must_use]
    pub fn with_clocks(self, clocks: ClockRange) -> Self {
        self.lock().clocks = Ok(clocks);
        self
    }

    /// Whether locking clocks is allowed from now on; unlocking goes with it.
    pub fn permit_clocks(&self, allowed: bool) {
        self.lock().locking =
            if allowed { Ok(()) } else { Err(GpuError::NoPermission { call: "lock_clocks (simulated)" }) };
    }

    /// What its clocks are locked to.
    pub fn clock_lock(&self) -> Option<ClockLimit> {
        self.lock().lock
    }

    /// Starts a job with this curve, or with `None` ends the one that runs.
    pub fn run(&self, load: Option<LoadCurve>) {
        self.lock().load = load;
    }

    /// The true energy drawn so far.
    pub fn true_energy(&self) -> Joules {
        self.lock().energy
    }

    /// The work that jobs could do on it so far.
    pub fn work_done(&self) -> Samples {
        self.lock().work
    }

    /// How hard it works now: what it draws above idle, of what its largest limit allows; from 0 to 1.
    pub fn load(&self) -> f64 {
        let state = self.lock();
        let most = state.physics.range.max.watts() - state.physics.idle;
        if most > Watts::ZERO { ((state.power - state.physics.idle) / most).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The limit it has now.
    pub fn limit(&self) -> PowerLimit {
        self.lock().limit
    }

    /// The device that the daemon sees, as the `index`th board of its machine.
    pub fn device(&self, index: u32, model: &str) -> SimulatedDevice {
        let id = GpuId::new(format!("{SIMULATED_GPU}{index:08}-0000-0000-0000-000000000000"))
            .expect("letters, digits and dashes");
        let board = Board {
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
        SimulatedDevice { world: self.clone(), board, capabilities }
    }

    /// The state, integrated up to now.
    fn lock(&self) -> MutexGuard<'_, State> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(now);
        state
    }
}

/// A simulated board as the daemon sees it.
pub struct SimulatedDevice {
    world: SimulatedBoard,
    board: Board,
    capabilities: Capabilities,
}

impl GpuDevice for SimulatedDevice {
    fn board(&self) -> &Board {
        &self.board
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
        state.locking.clone()?;
        let known = state.clocks.clone()?;
        if !known.steps().contains(&highest) {
            let message = format!("{highest} is not among its clocks of {} to {}", known.min(), known.max());
            return Err(GpuError::Driver { call: "lock_clocks (simulated)", message });
        }
        state.lock = Some(highest);
        Ok(())
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        let mut state = self.world.lock();
        state.locking.clone()?;
        state.lock = None;
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

    fn board(noise: f64) -> (Arc<ManualClock>, SimulatedBoard) {
        let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
        let range = LimitRange { min: w(100), max: w(300), default: w(300) };
        let physics =
            Physics { range, found: w(300), idle: Watts::new(30.0), settling: Seconds::new(2.0), noise, seed: 7 };
        (clock.clone(), SimulatedBoard::new(physics, clock))
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
    fn energy_and_work_are_the_curve_times_time_less_what_settling_costs() {
        let (clock, board) = board(0.0);
        board.run(Some(curve()));
        clock.advance(Seconds::new(100.0));
        // 240 W for 100 s, less the 210 W between idle and load times the time constant of 2 s.
        assert!((board.true_energy().get() - (24_000.0 - 420.0)).abs() < 1e-6);
        assert!((board.work_done().get() - (10_000.0 - 200.0)).abs() < 1e-6);
        let mut device = board.device(0, "A40");
        device.set_power_limit(w(200)).expect("in range");
        clock.advance(Seconds::new(50.0));
        let reading = device.read(Depth::Full, Monotonic::default()).expect("answers");
        assert!((reading.power.expect("drawn").get() - 180.0).abs() < 1e-6);
        assert_eq!((reading.requested, reading.processes), (Some(w(200)), Some(1)));
        assert!(device.board().simulated && device.board().model.contains("simulated"));
    }

    #[test]
    fn the_path_of_time_does_not_matter() {
        let energy = |steps: u32| {
            let (clock, board) = board(0.0);
            board.run(Some(curve()));
            for _ in 0..steps {
                clock.advance(Seconds::new(12.0 / f64::from(steps)));
                board.true_energy();
            }
            board.true_energy().get()
        };
        assert!((energy(1) - energy(1000)).abs() < 1e-6);
    }

    #[test]
    fn readings_are_noisy_and_the_counter_is_true() {
        let (clock, board) = board(0.01);
        board.run(Some(curve()));
        clock.advance(Seconds::new(1000.0));
        let mut device = board.device(0, "A40");
        let readings: Vec<f64> = (0..2000)
            .map(|_| device.read(Depth::Quick, Monotonic::default()).expect("answers").power.expect("drawn").get())
            .collect();
        let mean = readings.iter().sum::<f64>() / 2000.0;
        let deviation = (readings.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / 2000.0).sqrt();
        assert!((mean - 240.0).abs() < 0.3 && (deviation / 240.0 - 0.01).abs() < 0.001, "{mean} {deviation}");
        let counter = device.read(Depth::Quick, Monotonic::default()).expect("answers").energy.expect("counted");
        assert_eq!(counter, Millijoules::from_joules(board.true_energy()));
    }

    #[test]
    fn a_memory_bound_job_answers_to_clocks_and_not_to_limits() {
        let mhz = ClockLimit::from_megahertz;
        let point = |clock, throughput, power| ClockPoint {
            clock: mhz(clock),
            throughput: SamplesPerSecond::new(throughput),
            power: Watts::new(power),
        };
        let load =
            LoadCurve::over_clocks(vec![point(1500, 100.0, 150.0), point(500, 60.0, 80.0), point(1000, 96.0, 110.0)])
                .expect("has points");
        let (clock, board) = board(0.0);
        let board = board.with_clocks(ClockRange::new((5..=15).map(|i| mhz(100 * i)).collect()).expect("has steps"));
        board.run(Some(load));
        let mut device = board.device(0, "A40");
        let settled = || {
            clock.advance(Seconds::new(60.0));
            let (work, energy) = (board.work_done(), board.true_energy());
            clock.advance(Seconds::new(100.0));
            let (work, energy) =
                ((board.work_done() - work).get() / 100.0, (board.true_energy() - energy).get() / 100.0);
            (work.round(), energy.round())
        };
        assert_eq!(settled(), (100.0, 150.0));
        device.set_power_limit(w(160)).expect("in range");
        assert_eq!(settled(), (100.0, 150.0), "above its draw a limit changes nothing");
        device.lock_clocks(mhz(1000)).expect("allowed");
        assert_eq!((settled(), board.clock_lock()), ((96.0, 110.0), Some(mhz(1000))));
        assert_eq!(device.read(Depth::Full, Monotonic::default()).expect("answers").sm_clock_mhz, Some(1000));
        device.set_power_limit(w(100)).expect("in range");
        assert_eq!(settled().1, 100.0, "the stricter of the two counts");
        device.lock_clocks(mhz(1010)).expect_err("not one of its clocks");
        board.permit_clocks(false);
        assert!(matches!(device.reset_clocks(), Err(GpuError::NoPermission { .. })));
        board.permit_clocks(true);
        device.reset_clocks().expect("allowed");
        device.set_power_limit(w(300)).expect("in range");
        assert_eq!((settled(), board.clock_lock()), ((100.0, 150.0), None));
    }

    #[test]
    fn limits_outside_the_range_are_refused() {
        let (_, board) = board(0.0);
        let error = board.device(0, "A40").set_power_limit(w(50)).expect_err("too low").to_string();
        assert!(error.contains("50 W is outside 100 W to 300 W"), "{error}");
        assert_eq!(board.limit(), w(300));
    }
}
