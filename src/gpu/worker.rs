//! What happens on a board's own thread: sampling, metering, writing, and finding a lost board again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Capabilities, Depth, GpuDevice, GpuError, Reading};
use wattune_core::domain::{ClockLimit, PowerLimit};
use wattune_core::ledger::{Meter, Metered};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Millijoules, Seconds};

/// A lost board is looked for this often.
const REOPEN_EVERY: Seconds = Seconds::new(2.0);

/// Readings further apart than this leave a time in which who holds the board may change without its energy being read.
const SILENT: Seconds = Seconds::new(1.0);

/// What processes use is asked again so long after it was refused.
const REFUSED_WAITS: Seconds = Seconds::new(10.0);

/// Something to tell a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A power limit, within the board's range.
    PowerLimit(PowerLimit),
    /// The highest clock, one of those that the board can be locked to.
    LockClocks(ClockLimit),
    /// No lock of the clocks any more.
    ResetClocks,
    /// Persistence mode.
    Persistence(bool),
}

impl Write {
    /// NVML's name of the call, for messages.
    pub fn call(&self) -> &'static str {
        match self {
            Self::PowerLimit(_) => "nvmlDeviceSetPowerManagementLimit",
            Self::LockClocks(_) => "nvmlDeviceSetGpuLockedClocks",
            Self::ResetClocks => "nvmlDeviceResetGpuLockedClocks",
            Self::Persistence(_) => "nvmlDeviceSetPersistenceMode",
        }
    }
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOutcome {
    /// What was asked for.
    pub write: Write,
    /// When it ended.
    pub at: Now,
    /// What the driver said.
    pub result: Result<(), GpuError>,
    /// The limit that the board showed right after it: some round, some ignore.
    pub shown: Option<PowerLimit>,
}

/// What each process used of a board since it is asked, in percent of the multiprocessors times milliseconds. Numbers only
/// grow, and only their proportions mean something.
pub type ProcessWeights = BTreeMap<u32, u64>;

/// A reading of a board's energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metering {
    /// When.
    pub at: Now,
    /// Energy since the daemon opened the board.
    pub metered: Metered,
    /// The counter's value, consistent with `metered`.
    pub counter: Option<Millijoules>,
}

/// Whether a board tells something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Telling {
    /// Whether it ever has since the daemon opened it.
    pub ever: bool,
    /// Since when it has not.
    pub missing_since: Option<Now>,
}

impl Telling {
    /// Takes in whether it is told now; if not, it has not been since `missing_since` or for longer.
    fn observe(&mut self, is_told: bool, missing_since: Now) {
        self.ever |= is_told;
        self.missing_since = (!is_told).then(|| self.missing_since.unwrap_or(missing_since));
    }

    /// Since when it has been missing, of what has been missing for longer than `patience`, or was never told.
    pub fn missing_longer_than(&self, patience: Seconds, now: Monotonic) -> Option<Now> {
        self.missing_since.filter(|since| !self.ever || now.since(since.monotonic) > patience)
    }
}

/// Everything known of a board at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// When the board last answered; `None` before it ever did.
    pub at: Option<Now>,
    /// What it said then. Values of [`Depth::Full`] are up to one full interval old.
    pub reading: Reading,
    /// Energy since the daemon opened the board.
    pub metered: Metered,
    /// Up to when that is known: a board whose counter fell silent may answer otherwise.
    pub metered_at: Option<Now>,
    /// The counter's last value, consistent with `metered`.
    pub counter: Option<Millijoules>,
    /// The first reading of its energy after it had told none for a while.
    pub found_again: Option<Metering>,
    /// How often the counter was reset meanwhile.
    pub counter_resets: u32,
    /// How often it was found again after it had gone.
    pub reopened: u32,
    /// Counter over integrated power during the last minute.
    pub counter_over_power: Option<f64>,
    /// Why it does not answer, and since when.
    pub fault: Option<(GpuError, Now)>,
    /// Whether its energy counter can be read.
    pub tells_energy: Telling,
    /// Whether its power can be read.
    pub tells_power: Telling,
    /// Whether the limit that it was asked for can be read.
    pub tells_limit: Telling,
    /// How the last write ended.
    pub last_write: Option<WriteOutcome>,
    /// What its processes used; absent while nobody wants to know, and an error where it cannot be told.
    pub process_use: Option<Result<ProcessWeights, GpuError>>,
}

impl Observation {
    /// How often the board or its driver may have started anew, with its default limit, since the daemon opened it.
    pub fn restarts(&self) -> u32 {
        self.counter_resets + self.reopened
    }
}

pub(super) struct Worker {
    device: Box<dyn GpuDevice>,
    capabilities: Arc<Capabilities>,
    meter: Meter,
    last_full: Option<Monotonic>,
    last_reopen: Option<Monotonic>,
    full_every: Seconds,
    observation: Observation,
    /// Whether somebody wants to know what processes use, and when that was asked last.
    watching: Arc<AtomicBool>,
    processes_at: Option<Monotonic>,
    /// Millijoules of what the counter gains next that the books have already.
    owed: Arc<AtomicU64>,
}

impl Worker {
    pub(super) fn new(
        device: Box<dyn GpuDevice>,
        full_every: Seconds,
        watching: Arc<AtomicBool>,
        owed: Arc<AtomicU64>,
    ) -> Self {
        let observation = Observation {
            at: None,
            reading: Reading::default(),
            metered: Metered::default(),
            metered_at: None,
            counter: None,
            found_again: None,
            counter_resets: 0,
            reopened: 0,
            counter_over_power: None,
            fault: None,
            tells_energy: Telling::default(),
            tells_power: Telling::default(),
            tells_limit: Telling::default(),
            last_write: None,
            process_use: None,
        };
        let capabilities = Arc::new(device.capabilities().clone());
        let meter = Meter::default();
        let (last_full, last_reopen, processes_at) = (None, None, None);
        Self {
            device,
            capabilities,
            meter,
            last_full,
            last_reopen,
            full_every,
            observation,
            watching,
            processes_at,
            owed,
        }
    }

    /// What the board can do. It is asked again whenever the board was lost and found.
    pub(super) fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    pub(super) fn observation(&self) -> &Observation {
        &self.observation
    }

    /// Reads the board once: everything if that is due, or if `full` asks for it, and then also what was refused a moment ago; else energy and power only.
    /// `clock` is read after the driver answered, so that energy and time belong together.
    pub(super) fn sample(&mut self, clock: impl Fn() -> Now, full: bool) {
        let now = clock();
        if self.observation.fault.is_some() && !self.find_again(now, full) {
            return;
        }
        let due = self.last_full.is_none_or(|last| now.monotonic.since(last) >= self.full_every);
        let resets = self.meter.resets();
        let depth = match (full, due) {
            (true, _) => Depth::Anew,
            (false, true) => Depth::Full,
            (false, false) => Depth::Quick,
        };
        self.read(depth, &clock);
        if self.meter.resets() > resets {
            // The driver started anew: what it said of limits before does not go with this counter.
            self.read(Depth::Full, &clock);
        }
    }

    fn read(&mut self, depth: Depth, clock: &impl Fn() -> Now) {
        match self.device.read(depth, clock().monotonic) {
            Ok(reading) => self.take(reading, depth, clock()),
            Err(error) => return self.fail(error, clock()),
        }
        if *self.capabilities != *self.device.capabilities() {
            self.capabilities = Arc::new(self.device.capabilities().clone());
        }
        if depth != Depth::Quick {
            self.count_processes(clock());
        }
    }

    fn count_processes(&mut self, now: Now) {
        if !self.watching.load(Ordering::Relaxed) {
            (self.observation.process_use, self.processes_at) = (None, None);
            return;
        }
        let since = |at: Monotonic| now.monotonic.since(at);
        let is_refused = matches!(self.observation.process_use, Some(Err(_)));
        if is_refused && self.processes_at.is_some_and(|at| since(at) < REFUSED_WAITS) {
            return;
        }
        let before = self.processes_at.replace(now.monotonic).filter(|_| !is_refused);
        match self.device.process_use() {
            Ok(list) => {
                if is_refused {
                    self.observation.process_use = None;
                }
                let counted = self.observation.process_use.get_or_insert_with(|| Ok(ProcessWeights::new()));
                // What came before the first time that somebody asked is of no interest.
                let (Ok(counted), Some(before)) = (counted, before) else { return };
                let millis = u64::try_from(now.monotonic.since(before).to_std().as_millis()).unwrap_or_default();
                for process in list {
                    *counted.entry(process.pid).or_default() += u64::from(process.percent) * millis;
                }
            }
            Err(error) if error.is_unsupported() => self.observation.process_use = Some(Err(error)),
            // It may answer the next time; a lost board is noticed by its readings.
            Err(_) => {}
        }
    }

    /// Writes, then reads everything back. With `over`, a limit is written only while the board still has that one: what
    /// the caller knows of it may be a sample old.
    pub(super) fn write(
        &mut self,
        write: Write,
        over: Option<PowerLimit>,
        clock: impl Fn() -> Now,
    ) -> Result<(), GpuError> {
        let meanwhile = match (write, over) {
            (Write::PowerLimit(_), Some(over)) => {
                self.sample(&clock, true);
                self.observation.reading.requested.filter(|found| !found.same_as(over))
            }
            _ => None,
        };
        if let Some(found) = meanwhile {
            let result = Err(GpuError::SetMeanwhile { call: write.call(), found });
            self.observation.last_write =
                Some(WriteOutcome { write, at: clock(), result: result.clone(), shown: Some(found) });
            return result;
        }
        let result = match write {
            Write::PowerLimit(limit) => self.device.set_power_limit(limit),
            Write::LockClocks(highest) => self.device.lock_clocks(highest),
            Write::ResetClocks => self.device.reset_clocks(),
            Write::Persistence(on) => self.device.set_persistence(on),
        };
        if let Err(error @ GpuError::Lost { .. }) = &result {
            self.fail(error.clone(), clock());
        }
        self.sample(&clock, true);
        let shown = self.observation.reading.requested;
        self.observation.last_write = Some(WriteOutcome { write, at: clock(), result: result.clone(), shown });
        result
    }

    fn take(&mut self, reading: Reading, depth: Depth, now: Now) {
        self.meter.owe(Millijoules::new(self.owed.swap(0, Ordering::Relaxed)));
        self.meter.observe(now.monotonic, reading.energy, reading.power);
        let still_since = self.meter.still_since().filter(|_| reading.energy.is_some());
        let counts = reading.energy.is_some() && still_since.is_none();
        let seen = &mut self.observation;
        match depth {
            Depth::Full | Depth::Anew => {
                seen.reading = reading;
                seen.tells_limit.observe(reading.requested.is_some(), now);
                self.last_full = Some(now.monotonic);
            }
            Depth::Quick => {
                seen.reading.energy = reading.energy;
                seen.reading.power = reading.power;
            }
        }
        seen.at = Some(now);
        seen.fault = None;
        seen.tells_energy.observe(counts, still_since.map_or(now, |since| now.back_to(since)));
        seen.tells_power.observe(reading.power.is_some(), now);
        seen.metered = self.meter.metered();
        // While the counter is away, power is integrated.
        let has_told = reading.energy.is_some() || reading.power.is_some();
        seen.counter = reading.energy.or(seen.counter);
        if has_told {
            let before = seen.metered_at.replace(now);
            if before.is_some_and(|before| now.monotonic.since(before.monotonic) > SILENT) {
                seen.found_again = Some(Metering { at: now, metered: seen.metered, counter: seen.counter });
            }
        }
        seen.counter_resets = self.meter.resets();
        seen.counter_over_power = self.meter.counter_over_power();
    }

    fn fail(&mut self, error: GpuError, now: Now) {
        let seen = &mut self.observation;
        let since = seen.fault.as_ref().map_or(now, |(_, since)| *since);
        seen.fault = Some((error, since));
        // Nothing is known of a board that does not answer; its last counter value stays, for the gap.
        seen.reading = Reading::default();
        self.last_full = None;
    }

    fn find_again(&mut self, now: Now, at_once: bool) -> bool {
        let lately = self.last_reopen.is_some_and(|last| now.monotonic.since(last) < REOPEN_EVERY);
        if lately && !at_once {
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

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::gpu::simulated::{Physics, SimulatedBoard};
    use wattune_core::domain::LimitRange;
    use wattune_core::units::Watts;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    #[test]
    fn a_limit_is_written_only_over_the_one_that_it_is_to_replace() {
        let clock = Arc::new(ManualClock::at(DateTime::UNIX_EPOCH));
        let range = LimitRange { min: w(100), max: w(300), default: w(300) };
        let idle = Watts::new(30.0);
        let physics = Physics { range, found: w(300), idle, settling: Seconds::new(2.0), noise: 0.0, seed: 7 };
        let board = SimulatedBoard::new(physics, clock.clone());
        let mut worker =
            Worker::new(Box::new(board.device(0, "A40")), Seconds::new(1.0), Arc::default(), Arc::default());
        worker.sample(|| clock.now(), true);
        assert_eq!(worker.write(Write::PowerLimit(w(250)), Some(w(300)), || clock.now()), Ok(()));
        board.device(0, "A40").set_power_limit(w(280)).expect("set by somebody else");
        let refused = worker.write(Write::PowerLimit(w(200)), Some(w(250)), || clock.now());
        assert_eq!(refused, Err(GpuError::SetMeanwhile { call: "nvmlDeviceSetPowerManagementLimit", found: w(280) }));
        assert_eq!((board.limit(), worker.observation().reading.requested), (w(280), Some(w(280))));
        // What gives a board back asks for no certain limit.
        assert_eq!(worker.write(Write::PowerLimit(w(300)), None, || clock.now()), Ok(()));
        assert_eq!(board.limit(), w(300));
    }
}
