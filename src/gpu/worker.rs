//! The work on a GPU's own thread: sampling, metering, writing, and reopening a lost GPU.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Capabilities, Depth, GpuDevice, GpuError, Reading};
use wattune_core::domain::{ClockLimit, EventReasons, PowerLimit};
use wattune_core::ledger::{CounterJump, Disagreement, Meter, Metered, PowerBound};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Millijoules, Seconds, Watts};

/// The interval between attempts to reopen a lost GPU, as a fraction of the time since the loss. Attempts become rarer
/// because a driver may write to the kernel's log at each one.
const REOPEN_FRACTION: f64 = 0.05;
/// The shortest and the longest such interval.
const REOPEN_SHORTEST: Seconds = Seconds::new(2.0);
const REOPEN_LONGEST: Seconds = Seconds::new(60.0);

/// The longest interval between two energy readings that does not count as a gap. During a gap, another job may have
/// used the GPU.
const LONGEST_INTERVAL: Seconds = Seconds::new(1.0);

/// The interval before a retry of a refused process-use call.
const REFUSED_RETRY: Seconds = Seconds::new(10.0);

/// The longest time since the last reading of the power limit for which that reading counts as the present limit before a
/// write. The driver's own call takes a good part of that, and another program may set a limit during it, too.
const PRESENT: Seconds = Seconds::new(0.001);

/// The interval between two warnings about increases of the energy counter that are too large.
const JUMP_WARNING_INTERVAL: Seconds = Seconds::new(60.0);

/// A write to a GPU's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets the power limit, within the GPU's range.
    PowerLimit(PowerLimit),
    /// Limits the clocks to at most this clock, which must be one that the GPU can lock.
    LockClocks(ClockLimit),
    /// Removes any clock lock.
    ResetClocks,
    /// Locks the clocks to a range in MHz that a client requested.
    LockClockRange {
        /// The lowest clock.
        min_mhz: u32,
        /// The highest clock.
        max_mhz: u32,
    },
    /// Locks the memory's clocks to a range in MHz.
    LockMemoryClocks {
        /// The lowest clock.
        min_mhz: u32,
        /// The highest clock.
        max_mhz: u32,
    },
    /// Removes any lock of the memory's clocks.
    ResetMemoryClocks,
    /// Turns persistence mode on or off.
    Persistence(bool),
}

impl Write {
    /// Returns NVML's name of the call.
    pub fn call(&self) -> &'static str {
        match self {
            Self::PowerLimit(_) => "nvmlDeviceSetPowerManagementLimit",
            Self::LockClocks(_) | Self::LockClockRange { .. } => "nvmlDeviceSetGpuLockedClocks",
            Self::ResetClocks => "nvmlDeviceResetGpuLockedClocks",
            Self::LockMemoryClocks { .. } => "nvmlDeviceSetMemoryLockedClocks",
            Self::ResetMemoryClocks => "nvmlDeviceResetMemoryLockedClocks",
            Self::Persistence(_) => "nvmlDeviceSetPersistenceMode",
        }
    }
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOutcome {
    /// The requested write.
    pub write: Write,
    /// The time of the driver's answer.
    pub at: Now,
    /// The driver's answer.
    pub result: Result<(), GpuError>,
    /// The power limit read back right after the write: some GPUs round limits, some ignore them.
    pub shown: Option<PowerLimit>,
}

/// The accumulated use of the GPU by process id, in percent of multiprocessor time × milliseconds. Values only grow;
/// only their proportions have a meaning.
pub type ProcessWeights = BTreeMap<u32, u64>;

/// A reading of the energy that a GPU has used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnergyReading {
    /// The time of the reading.
    pub at: Now,
    /// The energy since the daemon opened the GPU.
    pub metered: Metered,
    /// The latest value of the energy counter, up to which `metered` includes the counter's increase; `None` if the
    /// counter was never read.
    pub counter: Option<Millijoules>,
}

impl EnergyReading {
    /// Returns the mean power since the reading `earlier`.
    pub fn mean_power_since(&self, earlier: &Self) -> Watts {
        let used = self.metered.drawn.checked_since(earlier.metered.drawn).unwrap_or_default();
        used.to_joules() / self.at.monotonic.since(earlier.at.monotonic)
    }
}

/// The availability of one value that the GPU reports, such as its power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Availability {
    /// True if the value was available at least once since the daemon opened the GPU.
    pub ever: bool,
    /// The start of the current outage of the value, if there is one.
    pub missing_since: Option<Now>,
}

impl Availability {
    /// Records whether the value is available now. A new outage starts at `missing_since`; a continuing one keeps its
    /// start.
    fn observe(&mut self, is_available: bool, missing_since: Now) {
        self.ever |= is_available;
        self.missing_since = (!is_available).then(|| self.missing_since.unwrap_or(missing_since));
    }

    /// Returns the start of the current outage if the outage exceeds `patience` or the value was never available.
    pub fn missing_longer_than(&self, patience: Seconds, now: Monotonic) -> Option<Now> {
        self.missing_since.filter(|since| !self.ever || now.since(since.monotonic) > patience)
    }
}

/// The latest state of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The time of the GPU's latest answer, if there is one.
    pub at: Option<Now>,
    /// The latest reading. Values beyond energy and power are up to one full-read interval old ([`Depth::Full`]).
    pub reading: Reading,
    /// The energy since the daemon opened the GPU.
    pub metered: Metered,
    /// The time up to which `metered` is known, which is earlier than `at` while neither energy nor power can be read.
    pub metered_at: Option<Now>,
    /// The latest value of the energy counter, up to which `metered` includes the counter's increase; `None` if the
    /// counter was never read.
    pub counter: Option<Millijoules>,
    /// The first energy reading after the latest gap (more than a second without energy readings), if there was a gap.
    pub after_gap: Option<EnergyReading>,
    /// The number of counter resets since the daemon opened the GPU.
    pub counter_resets: u32,
    /// The number of times that the GPU was lost and reopened.
    pub reopened: u32,
    /// The ratio of counted energy to integrated power over the last ten seconds.
    pub counter_over_power: Option<f64>,
    /// A lasting disagreement between counted energy and integrated power.
    pub disagreement: Option<Disagreement>,
    /// The last increase of the energy counter that was rejected as impossible, and its time.
    pub counter_jump: Option<(CounterJump, Now)>,
    /// The reason why the GPU does not answer, and the start of the fault.
    pub fault: Option<(GpuError, Now)>,
    /// The availability of the energy counter.
    pub energy_availability: Availability,
    /// The availability of power readings.
    pub power_availability: Availability,
    /// The availability of readings of the requested power limit.
    pub limit_availability: Availability,
    /// The outcome of the latest write.
    pub last_write: Option<WriteOutcome>,
    /// The GPU's use by process; `None` while it is not read, an error if the GPU does not report it.
    pub process_use: Option<Result<ProcessWeights, GpuError>>,
    /// The compute processes that have the GPU open, with the time of the answer; `None` while they are not read or the
    /// GPU does not report them.
    pub processes: Option<(Now, Vec<u32>)>,
}

impl Observation {
    /// Returns the last reading of the GPU's energy; `None` if it was never read.
    pub fn energy_reading(&self) -> Option<EnergyReading> {
        self.metered_at.map(|at| EnergyReading { at, metered: self.metered, counter: self.counter })
    }

    /// Returns the clock in MHz if the driver reports event reasons, and none of them lowers the clock. A low clock then
    /// means a clock lock.
    pub fn unexplained_clock(&self) -> Option<u32> {
        let reading = self.reading;
        // If the driver does not report event reasons, a power limit may have lowered the clock.
        let free = reading.reasons.is_some_and(EventReasons::leave_clocks_free);
        reading.sm_clock_mhz.filter(|_| self.fault.is_none() && free)
    }

    /// Returns how often, since the daemon opened the GPU, the GPU or its driver may have restarted. A restart sets the
    /// power limit back to the default.
    pub fn restarts(&self) -> u32 {
        self.counter_resets + self.reopened
    }
}

/// Data about processes that the thread reads.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// True while the use by process is to be read.
    pub(super) utilization: AtomicBool,
    /// True while the list of processes is to be read.
    pub(super) list: AtomicBool,
}

pub(super) struct Worker {
    device: Box<dyn GpuDevice>,
    capabilities: Arc<Capabilities>,
    meter: Meter,
    /// The duration of the last read that included the energy counter: the time of that reading is uncertain by so
    /// much.
    took: Seconds,
    last_full: Option<Monotonic>,
    /// The time of the last reading of the power limit; `None` if the GPU has not answered since.
    limit_at: Option<Monotonic>,
    last_reopen: Option<Monotonic>,
    full_every: Seconds,
    observation: Observation,
    watching: Arc<Watching>,
    processes_at: Option<Monotonic>,
    /// The part of the counter's next increase that an earlier daemon has recorded already; `None` if there is no
    /// earlier ledger to continue, or once the meter has this value.
    recorded_ahead: Arc<Mutex<Option<Millijoules>>>,
}

impl Worker {
    pub(super) fn new(
        device: Box<dyn GpuDevice>,
        full_every: Seconds,
        watching: Arc<Watching>,
        recorded_ahead: Arc<Mutex<Option<Millijoules>>>,
    ) -> Self {
        Self {
            capabilities: Arc::new(device.capabilities().clone()),
            device,
            meter: Meter::default(),
            took: Seconds::ZERO,
            last_full: None,
            limit_at: None,
            last_reopen: None,
            full_every,
            observation: Observation::default(),
            watching,
            processes_at: None,
            recorded_ahead,
        }
    }

    /// Returns the GPU's capabilities, which are read again after each reopening.
    pub(super) fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    pub(super) fn observation(&self) -> &Observation {
        &self.observation
    }

    /// Reads the GPU once, after an attempt to reopen it if it did not answer last time. If `full`, reads all values,
    /// including recently refused ones. Otherwise reads all values if a full read is due, else energy and power only.
    /// Reads `clock` after the driver's answer, so that the time fits the energy.
    pub(super) fn sample(&mut self, clock: impl Fn() -> Now, full: bool) {
        self.sample_to(if full { Depth::Retry } else { Depth::Quick }, clock);
    }

    /// Reads the GPU once to at least this depth, like [`Self::sample`]. With [`Depth::Requested`] and
    /// [`Depth::Limits`], leaves energy and power alone unless a full read is due: each driver call delays a write.
    fn sample_to(&mut self, least: Depth, clock: impl Fn() -> Now) {
        let now = clock();
        if self.observation.fault.is_some() && !self.reopen(now, least != Depth::Quick) {
            return;
        }
        let due = self.last_full.is_none_or(|last| now.monotonic.since(last) >= self.full_every);
        let resets = self.meter.resets();
        let depth = match least {
            Depth::Quick if due => Depth::Full,
            Depth::Requested | Depth::Limits if due => Depth::Retry,
            Depth::Requested | Depth::Limits => return self.read_limits(least, &clock),
            least => least,
        };
        self.read(depth, &clock);
        if self.meter.resets() > resets {
            // The driver restarted: limits read before the restart may no longer be in force.
            self.read(Depth::Full, &clock);
        }
    }

    fn read(&mut self, depth: Depth, clock: &impl Fn() -> Now) {
        let start = clock();
        match self.device.read(depth, start.monotonic) {
            Ok(reading) => self.record(reading, depth, start.monotonic, clock()),
            // The GPU has been silent since the beginning of a call that hung.
            Err(error) => return self.fail(error, start),
        }
        self.take_capabilities();
        if matches!(depth, Depth::Full | Depth::Retry) {
            self.count_processes(clock());
            self.list_processes(clock());
        }
    }

    fn read_limits(&mut self, depth: Depth, clock: &impl Fn() -> Now) {
        let start = clock();
        match self.device.read(depth, start.monotonic) {
            Ok(reading) => {
                let seen = &mut self.observation;
                seen.reading.requested = reading.requested;
                if depth == Depth::Limits {
                    seen.reading.enforced = reading.enforced;
                }
                seen.limit_availability.observe(reading.requested.is_some(), clock());
                self.limit_at = Some(start.monotonic);
            }
            Err(error) => return self.fail(error, start),
        }
        self.take_capabilities();
    }

    fn take_capabilities(&mut self) {
        if *self.capabilities != *self.device.capabilities() {
            self.capabilities = Arc::new(self.device.capabilities().clone());
        }
    }

    fn list_processes(&mut self, now: Now) {
        let is_wanted = self.watching.list.load(Ordering::Relaxed);
        // A failure leaves no list: a list that is missing is not one without processes.
        let listed = is_wanted.then(|| self.device.processes().ok()).flatten();
        self.observation.processes = listed.map(|list| (now, list));
    }

    fn count_processes(&mut self, now: Now) {
        if !self.watching.utilization.load(Ordering::Relaxed) {
            (self.observation.process_use, self.processes_at) = (None, None);
            return;
        }
        let since = |at: Monotonic| now.monotonic.since(at);
        let is_refused = matches!(self.observation.process_use, Some(Err(_)));
        if is_refused && self.processes_at.is_some_and(|at| since(at) < REFUSED_RETRY) {
            return;
        }
        let before = self.processes_at.replace(now.monotonic).filter(|_| !is_refused);
        match self.device.process_use() {
            Ok(list) => {
                if is_refused {
                    self.observation.process_use = None;
                }
                let counted = self.observation.process_use.get_or_insert_with(|| Ok(ProcessWeights::new()));
                // The use of the GPU before the first reading is not counted.
                let (Ok(counted), Some(before)) = (counted, before) else { return };
                let millis = u64::try_from(now.monotonic.since(before).to_std().as_millis()).unwrap_or_default();
                for process in list {
                    *counted.entry(process.pid).or_default() += u64::from(process.percent) * millis;
                }
            }
            Err(error) if error.is_unsupported() => self.observation.process_use = Some(Err(error)),
            // This error may be temporary, so the next call tries again; the regular reading detects a lost GPU.
            Err(_) => {}
        }
    }

    /// Writes, then reads back: the limits after a write of a power limit, everything after any other. If `expected` is
    /// given, a power limit is written only if the GPU is seen to have `expected` still, since the caller's reading may be
    /// one sample old; a limit read less than [`PRESENT`] ago is not read again for that. Calls `accepted` once the driver has
    /// accepted the write, before reading back.
    pub(super) fn write(
        &mut self,
        write: Write,
        expected: Option<PowerLimit>,
        clock: impl Fn() -> Now,
        accepted: impl FnOnce(),
    ) -> Result<(), GpuError> {
        if let (Write::PowerLimit(_), Some(expected)) = (write, expected)
            && let Err(error) = self.check_limit(expected, write.call(), &clock)
        {
            let shown = self.observation.reading.requested;
            self.observation.last_write = Some(WriteOutcome { write, at: clock(), result: Err(error.clone()), shown });
            return Err(error);
        }
        let result = match write {
            Write::PowerLimit(limit) => self.device.set_power_limit(limit),
            Write::LockClocks(highest) => self.device.lock_clocks(highest),
            Write::ResetClocks => self.device.reset_clocks(),
            Write::LockClockRange { min_mhz, max_mhz } => self.device.lock_clock_range(min_mhz, max_mhz),
            Write::LockMemoryClocks { min_mhz, max_mhz } => self.device.lock_memory_clocks(min_mhz, max_mhz),
            Write::ResetMemoryClocks => self.device.reset_memory_clocks(),
            Write::Persistence(on) => self.device.set_persistence(on),
        };
        let at = clock();
        if result.is_ok() {
            accepted();
        }
        if let Err(error @ GpuError::Lost { .. }) = &result {
            self.fail(error.clone(), clock());
        }
        let read_back = if matches!(write, Write::PowerLimit(_)) { Depth::Limits } else { Depth::Retry };
        self.sample_to(read_back, &clock);
        let shown = self.observation.reading.requested;
        self.observation.last_write = Some(WriteOutcome { write, at, result: result.clone(), shown });
        result
    }

    /// Checks that the GPU has the power limit `expected`.
    fn check_limit(
        &mut self,
        expected: PowerLimit,
        call: &'static str,
        clock: &impl Fn() -> Now,
    ) -> Result<(), GpuError> {
        let now = clock().monotonic;
        if self.limit_at.is_none_or(|read| now.since(read) >= PRESENT) {
            self.sample_to(Depth::Requested, clock);
        }
        if self.observation.reading.requested.is_some_and(|current| !current.same_as(expected)) {
            // The counter then shows whether the driver was restarted.
            self.sample_to(Depth::Retry, clock);
        }
        match self.observation.reading.requested.filter(|_| self.observation.fault.is_none()) {
            Some(current) if current.same_as(expected) => Ok(()),
            Some(current) => Err(GpuError::LimitChanged { call, current }),
            None => Err(GpuError::LimitUnknown { call }),
        }
    }

    fn record(&mut self, reading: Reading, depth: Depth, start: Monotonic, now: Now) {
        let (took, before) = (now.monotonic.since(start), self.took);
        if reading.energy.is_some() {
            self.took = took;
        }
        let known = reading.enforced.max(reading.requested).or(self.observation.reading.requested);
        let highest = self.capabilities.highest_power(known);
        self.meter.set_bound(PowerBound { highest, slack: before + took });
        if let Some(ahead) = lock(&self.recorded_ahead).take() {
            self.meter.continue_ledger(ahead);
        }
        self.meter.observe(now.monotonic, reading.energy, reading.power);
        let still_since = self.meter.still_since().filter(|_| reading.energy.is_some());
        let counts = reading.energy.is_some() && still_since.is_none();
        let seen = &mut self.observation;
        if depth == Depth::Quick {
            (seen.reading.energy, seen.reading.power) = (reading.energy, reading.power);
        } else {
            seen.reading = reading;
            seen.limit_availability.observe(reading.requested.is_some(), now);
            (self.last_full, self.limit_at) = (Some(now.monotonic), Some(start));
        }
        seen.at = Some(now);
        seen.fault = None;
        seen.energy_availability.observe(counts, still_since.map_or(now, |since| now.back_to(since)));
        seen.power_availability.observe(reading.power.is_some(), now);
        seen.metered = self.meter.metered();
        // Without the energy counter, the meter integrates power.
        let is_metered = reading.energy.is_some() || reading.power.is_some();
        seen.counter = reading.energy.or(seen.counter);
        if is_metered {
            let before = seen.metered_at.replace(now);
            if before.is_some_and(|before| now.monotonic.since(before.monotonic) > LONGEST_INTERVAL) {
                seen.after_gap = Some(EnergyReading { at: now, metered: seen.metered, counter: seen.counter });
            }
        }
        seen.counter_resets = self.meter.resets();
        seen.counter_over_power = self.meter.counter_over_power();
        seen.disagreement = self.meter.disagreement();
        if let Some(jump) = self.meter.jump().filter(|jump| jump.at == now.monotonic) {
            let before = seen.counter_jump.replace((jump, now));
            if before.is_none_or(|(_, before)| now.monotonic.since(before.monotonic) > JUMP_WARNING_INTERVAL) {
                let id = &self.device.identity().id;
                tracing::warn!(gpu.uuid = %id, "GPU {id}: its energy counter rose by {:.0} J in {:.1} s, but the GPU can \
                    have used {:.0} J at most: the rise is ignored, and power is integrated instead",
                    jump.gained.to_joules().get(), jump.span.get(), jump.possible.get());
            }
        }
    }

    fn fail(&mut self, error: GpuError, now: Now) {
        let seen = &mut self.observation;
        let since = seen.fault.as_ref().map_or(now, |(_, since)| *since);
        seen.fault = Some((error, since));
        // The state of an unresponsive GPU is unknown. The last counter value is kept, to measure the energy of the gap
        // later.
        seen.reading = Reading::default();
        (self.last_full, self.limit_at) = (None, None);
    }

    fn reopen(&mut self, now: Now, retry_now: bool) -> bool {
        let lost_for = self.observation.fault.as_ref().map(|(_, since)| now.monotonic.since(since.monotonic));
        let pause = (lost_for.unwrap_or_default() * REOPEN_FRACTION).max(REOPEN_SHORTEST).min(REOPEN_LONGEST);
        let lately = self.last_reopen.is_some_and(|last| now.monotonic.since(last) < pause);
        if lately && !retry_now {
            return false;
        }
        self.last_reopen = Some(now.monotonic);
        match self.device.reopen() {
            Ok(()) => {
                self.capabilities = Arc::new(self.device.capabilities().clone());
                self.observation.reopened += 1;
                true
            }
            Err(error) => {
                self.fail(error, now);
                false
            }
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
