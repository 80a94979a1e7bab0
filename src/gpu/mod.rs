//! GPU access: the device trait, its implementations, one worker thread per GPU, and the journal that restores limits.
//!
//! [`GpuDevice`] is small, synchronous and object-safe. It has two implementations: [`nvml`] (the NVIDIA driver's
//! library) and [`simulated`] (no hardware; labelled as simulated everywhere). The daemon never calls a device
//! directly: each GPU has a thread of its own behind a [`handle::GpuHandle`], so that a hanging driver call blocks that
//! GPU only. [`journal`] records the original limits, [`restore`] writes them back.

pub mod handle;
pub mod journal;
pub mod nvml;
pub mod restore;
pub mod simulated;
mod thread;
mod worker;

pub use worker::{Availability, EnergyReading, Observation, ProcessWeights, Write, WriteOutcome};

use wattune_core::domain::{ClockLimit, ClockRange, EventReasons, GpuIdentity, LimitRange, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Millijoules, Seconds, Watts};

/// The reason for a failed device call. `call` is the driver's own name of the call, so that a person can look it up.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// The GPU fell off the bus or was reset.
    #[error("{call}: the GPU is lost (fell off the bus or was reset)")]
    Lost { call: &'static str },
    /// The process lacks the permission for the call.
    #[error("{call}: no permission; it needs root (or CAP_SYS_ADMIN in a container)")]
    NoPermission { call: &'static str },
    /// The GPU or this driver does not support the call.
    #[error("{call}: not supported by this GPU")]
    NotSupported { call: &'static str },
    /// The driver's library is older than the call.
    #[error("{call}: not in this driver's library; a newer driver has it")]
    MissingSymbol { call: &'static str },
    /// The driver did not answer within the time-out.
    #[error("{call}: no answer from the driver for {:.1} s", after.get())]
    TimedOut { call: &'static str, after: Seconds },
    /// The power limit changed since the caller read it, so wattune did not overwrite it.
    #[error(
        "{call}: an external writer set the limit to {current} just before this write; wattune did not overwrite it"
    )]
    LimitChanged { call: &'static str, current: PowerLimit },
    /// The present power limit cannot be read, so wattune wrote none: it may be an external writer's.
    #[error("{call}: the present limit cannot be read; wattune does not overwrite a limit that it does not know")]
    LimitUnknown { call: &'static str },
    /// Any other failure, with the driver's message.
    #[error("{call}: {message}")]
    Driver { call: &'static str, message: String },
}

impl GpuError {
    /// Returns the driver's name of the failed call.
    pub fn call(&self) -> &'static str {
        match self {
            Self::Lost { call }
            | Self::NoPermission { call }
            | Self::NotSupported { call }
            | Self::MissingSymbol { call }
            | Self::TimedOut { call, .. }
            | Self::LimitChanged { call, .. }
            | Self::LimitUnknown { call }
            | Self::Driver { call, .. } => call,
        }
    }

    /// Returns true if the GPU or the driver does not support the call. Drivers report that temporarily, too.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NotSupported { .. } | Self::MissingSymbol { .. })
    }
}

/// Maximum difference between the reported and the requested limit that counts as the driver's rounding; the fraction
/// `ROUNDED_PART` of the requested limit counts as rounding too, where it is larger.
const ROUNDED: Watts = Watts::new(3.0);
const ROUNDED_PART: f64 = 0.02;

/// Returns whether the reported limit is `requested`, up to a driver's rounding.
pub fn is_rounded(requested: PowerLimit, shown: PowerLimit) -> bool {
    let (requested, shown) = (requested.watts(), shown.watts());
    (requested - shown).abs() <= ROUNDED.max(requested * ROUNDED_PART)
}

/// An upper bound of any GPU's power, for GPUs whose power limits are unknown.
const HIGHEST_POWER: Watts = Watts::new(5000.0);

/// The capabilities of a GPU, as the driver's latest answers show them. Calls that the driver refused are retried at
/// growing intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The energy counter, or why it is unavailable; the daemon then integrates power.
    pub energy_counter: Result<(), GpuError>,
    /// Power readings, or why they are unavailable.
    pub power: Result<(), GpuError>,
    /// Readings of the requested power limit, or why they are unavailable.
    pub limit: Result<(), GpuError>,
    /// The range of accepted power limits, or why the power limit cannot be controlled.
    pub limits: Result<LimitRange, GpuError>,
    /// The range of clocks to which the GPU can be locked, or why there is none. The first lock shows whether this
    /// process has the permission.
    pub clocks: Result<ClockRange, GpuError>,
    /// Readings of persistence mode (the driver keeps the GPU initialised without clients), or why they are
    /// unavailable.
    pub persistence: Result<(), GpuError>,
    /// True if MIG is on: the GPU's energy is recorded as a whole, and its power limit is not controlled.
    pub mig: bool,
    /// True for a virtual GPU, whose power limit its host controls.
    pub virtualised: bool,
    /// The driver's version.
    pub driver: String,
}

impl Capabilities {
    /// Returns the reason why this GPU's power limit cannot be controlled, if there is one.
    pub fn why_no_control(&self) -> Option<String> {
        if self.mig {
            return Some(
                "MIG is on: slices have no power limit of their own, so wattune does not change the GPU's".into(),
            );
        }
        if self.virtualised {
            return Some("this is a virtual GPU; its host owns the power limit".into());
        }
        self.limits.as_ref().err().map(ToString::to_string)
    }

    /// Returns an upper bound of the GPU's mean power: the maximum limit that its range allows or the limit `known`
    /// from a reading, whichever is higher; 5 kW if neither is known.
    pub fn highest_power(&self, known: Option<PowerLimit>) -> Watts {
        let largest = self.limits.as_ref().ok().map(|range| range.max);
        largest.max(known).map_or(HIGHEST_POWER, PowerLimit::watts)
    }

    /// Returns true if the GPU's clock under load can show that the clock lock `lock` was removed. The clock can show
    /// that if the lock is more than about 13 % below the highest lockable clock.
    pub fn can_verify_unlock(&self, lock: ClockLimit) -> bool {
        let is_low = |range: &ClockRange| lock.megahertz() * 103 / 100 < range.max().megahertz() * 9 / 10;
        self.clocks.as_ref().is_ok_and(is_low)
    }

    /// Returns the reason why the GPU's clocks cannot be locked, if there is one that is known before the first
    /// attempt.
    pub fn why_no_clocks(&self) -> Option<String> {
        self.why_no_control().or_else(|| self.clocks.as_ref().err().map(ToString::to_string))
    }
}

/// The extent of a GPU reading: which values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Energy and power only, which is cheap enough for many reads per second.
    Quick,
    /// The requested power limit only, even if the GPU refused the call recently: before the write of a limit.
    Requested,
    /// The requested and the enforced power limit only, even if the GPU refused the calls recently: after such a write.
    Limits,
    /// All values, except those whose calls the GPU refused recently.
    Full,
    /// All values, including those whose calls the GPU refused recently: for writes and restores.
    Retry,
}

/// One reading of a GPU. Absent values are `None`, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The energy counter.
    pub energy: Option<Millijoules>,
    /// The power draw: the newest sample if the driver offers it, otherwise the one-second average.
    pub power: Option<Watts>,
    /// The power limit that software on the host requested last, wattune or another program.
    pub requested: Option<PowerLimit>,
    /// The power limit in force: the lowest of the host's, the GPU's own and any out-of-band limit.
    pub enforced: Option<PowerLimit>,
    /// The driver's reasons why clocks are lowered now.
    pub reasons: Option<EventReasons>,
    /// The core temperature in degrees Celsius.
    pub temperature_c: Option<f64>,
    /// The clock of the streaming multiprocessors in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// True if persistence mode is on.
    pub persistence: Option<bool>,
    /// The number of compute processes.
    pub processes: Option<u32>,
}

/// The recent use of a GPU by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// The process id in the host's namespace.
    pub pid: u32,
    /// The process's share of streaming-multiprocessor time in percent.
    pub percent: u32,
}

/// One GPU, as the daemon reads and sets it. Calls may block for as long as the driver blocks.
pub trait GpuDevice: Send {
    /// Returns the GPU's identity.
    fn identity(&self) -> &GpuIdentity;

    /// Returns the GPU's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// Reads the GPU, at least the values of `depth`. `now` decides which refused calls are due for a retry;
    /// [`Depth::Requested`], [`Depth::Limits`] and [`Depth::Retry`] retry all that they make.
    ///
    /// # Errors
    /// [`GpuError::Lost`] if the GPU is gone. As long as the GPU answers any call, each value that is unsupported or
    /// fails for another reason is `None`.
    fn read(&mut self, depth: Depth, now: Monotonic) -> Result<Reading, GpuError>;

    /// Returns each process's use of the GPU since the last call, without idle processes. Called only while several
    /// jobs share the GPU.
    ///
    /// # Errors
    /// [`GpuError::NotSupported`] where the GPU does not report its use by process; otherwise the driver's error.
    fn process_use(&mut self) -> Result<Vec<ProcessUse>, GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceGetProcessUtilization" })
    }

    /// Returns the ids, in the host's namespace, of the compute processes that have the GPU open, idle ones included.
    ///
    /// # Errors
    /// [`GpuError::NotSupported`] where the GPU does not report them; otherwise the driver's error.
    fn processes(&mut self) -> Result<Vec<u32>, GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceGetComputeRunningProcesses_v3" })
    }

    /// Sets the power limit. Needs root.
    ///
    /// # Errors
    /// [`GpuError::NoPermission`] without root; otherwise the driver's error. The limit must lie in the GPU's range:
    /// the caller clamps the limit to the range and reports the change.
    fn set_power_limit(&mut self, limit: PowerLimit) -> Result<(), GpuError>;

    /// Locks the multiprocessors' clocks to at most `highest`. Needs root. No driver reports an existing lock, so an
    /// earlier lock is replaced and cannot be restored.
    fn lock_clocks(&mut self, highest: ClockLimit) -> Result<(), GpuError>;

    /// Removes any lock of the clocks, whoever set it. Needs root.
    fn reset_clocks(&mut self) -> Result<(), GpuError>;

    /// Locks the multiprocessors' clocks to a range in MHz, as a client requested it. Needs root.
    fn lock_clock_range(&mut self, _min_mhz: u32, _max_mhz: u32) -> Result<(), GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceSetGpuLockedClocks" })
    }

    /// Locks the memory's clocks to a range in MHz. Needs root. No driver reports an existing lock.
    fn lock_memory_clocks(&mut self, _min_mhz: u32, _max_mhz: u32) -> Result<(), GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceSetMemoryLockedClocks" })
    }

    /// Removes any lock of the memory's clocks, whoever set it. Needs root.
    fn reset_memory_clocks(&mut self) -> Result<(), GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceResetMemoryLockedClocks" })
    }

    /// Turns persistence mode on or off. Needs root.
    fn set_persistence(&mut self, on: bool) -> Result<(), GpuError>;

    /// Opens a lost GPU again, found by its UUID.
    fn reopen(&mut self) -> Result<(), GpuError>;
}
