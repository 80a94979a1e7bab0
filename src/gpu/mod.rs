//! The hardware seam: what a GPU can be asked and told, and who answers.
//!
//! [`GpuDevice`] is small, synchronous and object-safe. Two implementations: [`nvml`] (the driver's library) and
//! [`simulated`] (no hardware; labelled as such everywhere). Nobody calls a device directly: each board lives on a
//! thread of its own behind a [`thread::GpuHandle`], so that a driver that hangs stops nothing but its board.
//! [`journal`] remembers the limits found, [`restore`] gives them back.

pub mod journal;
pub mod nvml;
pub mod restore;
pub mod simulated;
pub mod thread;
mod worker;

pub use worker::{Metering, Observation, ProcessWeights, Telling, Write, WriteOutcome};

use wattune_core::domain::{Board, ClockLimit, ClockRange, EventReasons, LimitRange, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Millijoules, Seconds, Watts};

/// Why a call to a device failed. `call` is the driver's own name for it, so that a person can look it up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// The board fell off the bus or was reset.
    #[error("{call}: the GPU is lost (fell off the bus or was reset)")]
    Lost {
        /// The failed call.
        call: &'static str,
    },
    /// The process lacks the right.
    #[error("{call}: no permission; it needs root (or CAP_SYS_ADMIN in a container)")]
    NoPermission {
        /// The failed call.
        call: &'static str,
    },
    /// The board or this driver cannot do it.
    #[error("{call}: not supported by this board")]
    NotSupported {
        /// The failed call.
        call: &'static str,
    },
    /// The driver's library is older than the call.
    #[error("{call}: not in this driver's library; a newer driver has it")]
    MissingSymbol {
        /// The failed call.
        call: &'static str,
    },
    /// The call did not come back in time.
    #[error("{call}: no answer from the driver for {:.1} s", after.get())]
    TimedOut {
        /// The failed call.
        call: &'static str,
        /// How long it has been waited for.
        after: Seconds,
    },
    /// The limit is no longer the one that was to be replaced, so nothing was written.
    #[error("{call}: somebody else set {found} a moment before; nothing was written over it")]
    SetMeanwhile {
        /// The call that was not made.
        call: &'static str,
        /// The limit that was found.
        found: PowerLimit,
    },
    /// Anything else, in the driver's words.
    #[error("{call}: {message}")]
    Driver {
        /// The failed call.
        call: &'static str,
        /// What the driver said.
        message: String,
    },
}

impl GpuError {
    /// The driver's name of the failed call.
    pub fn call(&self) -> &'static str {
        match self {
            Self::Lost { call }
            | Self::NoPermission { call }
            | Self::NotSupported { call }
            | Self::MissingSymbol { call }
            | Self::TimedOut { call, .. }
            | Self::SetMeanwhile { call, .. }
            | Self::Driver { call, .. } => call,
        }
    }

    /// Whether the board or the driver says that it cannot do it at all. Drivers say so for a moment, too.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NotSupported { .. } | Self::MissingSymbol { .. })
    }
}

/// What a board can do, by its last answers. What it refused is asked again over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The energy counter: while it is away power is integrated.
    pub energy_counter: Result<(), GpuError>,
    /// Power readings.
    pub power: Result<(), GpuError>,
    /// Readings of the limit that was asked for.
    pub limit: Result<(), GpuError>,
    /// The limits it accepts, or why it has none to set.
    pub limits: Result<LimitRange, GpuError>,
    /// The clocks it can be locked to, or why it has none. Whether this process may lock them shows at the first try.
    pub clocks: Result<ClockRange, GpuError>,
    /// Persistence mode, where the platform has it.
    pub persistence: Result<(), GpuError>,
    /// Whether the board is cut into MIG slices: accounted as a whole, not controlled.
    pub mig: bool,
    /// Whether this is a virtual GPU of a host that keeps power to itself.
    pub virtualised: bool,
    /// The driver's version.
    pub driver: String,
}

impl Capabilities {
    /// Why limits cannot be steered on this board at all; `None` if nothing speaks against it.
    pub fn why_no_control(&self) -> Option<String> {
        if self.mig {
            return Some("MIG is on: a slice has no power limit of its own, the board's is left alone".into());
        }
        if self.virtualised {
            return Some("a virtual GPU: its host owns the power limit".into());
        }
        self.limits.as_ref().err().map(ToString::to_string)
    }

    /// Why clocks cannot be locked on this board at all; `None` if nothing speaks against it before it is tried.
    pub fn why_no_clocks(&self) -> Option<String> {
        self.why_no_control().or_else(|| self.clocks.as_ref().err().map(ToString::to_string))
    }
}

/// How much to ask a board for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Energy and power only: cheap enough for many times a second.
    Quick,
    /// Everything, but for what was refused a moment ago.
    Full,
    /// Everything, at once: for a write, and for giving a limit back.
    Anew,
}

/// What a board says at one moment. Absent values are `None`, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The energy counter.
    pub energy: Option<Millijoules>,
    /// Power drawn: the newest sample where the driver offers it, else its one-second average.
    pub power: Option<Watts>,
    /// The limit that was asked for from the host, whoever asked.
    pub requested: Option<PowerLimit>,
    /// The limit in force: the strictest of the host's, the board's and any out-of-band one.
    pub enforced: Option<PowerLimit>,
    /// Why clocks are lowered.
    pub reasons: Option<EventReasons>,
    /// Core temperature in degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Clock of the streaming multiprocessors in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Whether persistence mode is on.
    pub persistence: Option<bool>,
    /// How many compute processes run on it.
    pub processes: Option<u32>,
}

/// What a process used of a board lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its number, as the host counts.
    pub pid: u32,
    /// The multiprocessors' time that it had, in percent.
    pub percent: u32,
}

/// One board. Calls may block for as long as the driver likes.
pub trait GpuDevice: Send {
    /// Who it is.
    fn board(&self) -> &Board;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// What it says now. With [`Depth::Quick`] only energy and power are filled in. `now` tells what was refused long
    /// enough ago to be asked again; with [`Depth::Anew`] all is.
    ///
    /// # Errors
    /// [`GpuError::Lost`] if the board is gone. Values that this board does not offer, or that fail for another
    /// reason while the board answers at all, are `None`.
    fn read(&mut self, depth: Depth, now: Monotonic) -> Result<Reading, GpuError>;

    /// What each process used since this was asked last; those that used nothing are left out. Asked for only while
    /// several jobs hold the board.
    ///
    /// # Errors
    /// [`GpuError::NotSupported`] where the board cannot tell; whatever the driver says otherwise.
    fn process_use(&mut self) -> Result<Vec<ProcessUse>, GpuError> {
        Err(GpuError::NotSupported { call: "nvmlDeviceGetProcessUtilization" })
    }

    /// Sets the power limit. Needs root.
    ///
    /// # Errors
    /// [`GpuError::NoPermission`] without it; whatever the driver says otherwise. The limit must lie in the board's
    /// range: clamping is the caller's, so that it can be said.
    fn set_power_limit(&mut self, limit: PowerLimit) -> Result<(), GpuError>;

    /// Locks the clocks of the multiprocessors to `highest` and below. Needs root. No driver tells what clocks are locked
    /// to: a lock that was there before is gone then, and cannot be found again.
    ///
    /// # Errors
    /// As for [`Self::set_power_limit`].
    fn lock_clocks(&mut self, highest: ClockLimit) -> Result<(), GpuError>;

    /// Takes any lock of the clocks away, whoever made it. Needs root.
    ///
    /// # Errors
    /// As for [`Self::set_power_limit`].
    fn reset_clocks(&mut self) -> Result<(), GpuError>;

    /// Turns persistence mode on or off. Needs root.
    ///
    /// # Errors
    /// As for [`Self::set_power_limit`].
    fn set_persistence(&mut self, on: bool) -> Result<(), GpuError>;

    /// Finds the board again by its identity after it was lost.
    ///
    /// # Errors
    /// [`GpuError::Lost`] while it has not come back.
    fn reopen(&mut self) -> Result<(), GpuError>;
}
