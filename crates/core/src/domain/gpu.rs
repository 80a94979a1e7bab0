//! Identity and state of a GPU, independent of the driver.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::GpuId;
use crate::units::Watts;

/// Power management limit of one GPU in milliwatts, NVML's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PowerLimit {
    milliwatts: u32,
}

impl PowerLimit {
    /// Creates a limit in milliwatts.
    pub const fn from_milliwatts(milliwatts: u32) -> Self {
        Self { milliwatts }
    }

    /// Returns the limit in milliwatts.
    pub const fn milliwatts(self) -> u32 {
        self.milliwatts
    }

    /// Creates a limit from watts, rounded to the nearest milliwatt.
    pub fn from_watts(watts: Watts) -> Self {
        Self { milliwatts: watts.to_milliwatts() }
    }

    /// Returns the limit in watts, for planning and display.
    pub fn watts(self) -> Watts {
        Watts::from_milliwatts(self.milliwatts)
    }

    /// Returns true if both are the same setting: within 0.5 W, since some GPUs round limits.
    pub fn same_as(self, other: Self) -> bool {
        self.milliwatts.abs_diff(other.milliwatts) <= 500
    }
}

impl fmt::Display for PowerLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} W", f64::from(self.milliwatts) / 1e3)
    }
}

/// Power limits that a GPU accepts, and its default limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRange {
    /// Lowest limit that the GPU accepts.
    pub min: PowerLimit,
    /// Highest limit that the GPU accepts.
    pub max: PowerLimit,
    /// Default limit of the driver, which is in force after a reboot; on some GPUs it is below `max`.
    pub default: PowerLimit,
}

impl LimitRange {
    /// Returns the nearest limit that the GPU accepts.
    pub fn clamp(&self, limit: PowerLimit) -> PowerLimit {
        limit.clamp(self.min, self.max)
    }

    /// Returns the maximum usable limit (`planning.md` §5): the original limit `found` if it is below the default
    /// limit, else the highest limit that the GPU accepts.
    pub fn ceiling(&self, found: PowerLimit) -> PowerLimit {
        if found < self.default { self.clamp(found) } else { self.max }
    }
}

/// Identity of a GPU, which stays the same until the hardware is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// UUID, by which wattune identifies the GPU.
    pub id: GpuId,
    /// Index that the driver gave to the GPU at this boot, for display and the `gpu` label of metrics.
    pub index: u32,
    /// PCI bus id as the driver formats it.
    pub pci_bus_id: String,
    /// Product name of the GPU.
    pub model: String,
    /// True if the GPU is simulated.
    pub simulated: bool,
}

/// Reasons why a GPU's clocks are lower than requested (NVML's clocks event reasons), as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventReasons(u64);

impl EventReasons {
    /// No work is running on the GPU.
    pub const IDLE: Self = Self(0x1);
    /// The power limit lowers the clocks.
    pub const SW_POWER_CAP: Self = Self(0x4);
    /// The hardware lowers the clocks, for heat or power.
    pub const HW_SLOWDOWN: Self = Self(0x8);
    /// The clocks are held equal to those of other GPUs (sync boost).
    pub const SYNC_BOOST: Self = Self(0x10);
    /// The driver lowers the clocks because the GPU is too hot.
    pub const SW_THERMAL: Self = Self(0x20);
    /// The hardware lowers the clocks because the GPU is too hot.
    pub const HW_THERMAL: Self = Self(0x40);
    /// An external power brake signal lowers the clocks.
    pub const HW_POWER_BRAKE: Self = Self(0x80);
    /// The display clocks limit the graphics clock.
    const DISPLAY: Self = Self(0x100);

    const NAMES: [(Self, &'static str); 7] = [
        (Self::IDLE, "idle"),
        (Self::SW_POWER_CAP, "sw_power_cap"),
        (Self::HW_SLOWDOWN, "hw_slowdown"),
        (Self::SYNC_BOOST, "sync_boost"),
        (Self::SW_THERMAL, "sw_thermal_slowdown"),
        (Self::HW_THERMAL, "hw_thermal_slowdown"),
        (Self::HW_POWER_BRAKE, "hw_power_brake"),
    ];

    /// Creates reasons from NVML's bit mask.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns NVML's bit mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns true if any of `reasons` is present.
    pub const fn any_of(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// Returns true if heat or hardware slows the GPU, so that measurements do not show the effect of the power limit.
    pub const fn invalidate_profile(self) -> bool {
        self.any_of(Self(Self::HW_SLOWDOWN.0 | Self::SW_THERMAL.0 | Self::HW_THERMAL.0 | Self::HW_POWER_BRAKE.0))
    }

    /// Returns true if the GPU is working and nothing lowers its clocks.
    pub const fn leave_clocks_free(self) -> bool {
        let lowering = Self::IDLE.0 | Self::SW_POWER_CAP.0 | Self::SYNC_BOOST.0 | Self::DISPLAY.0;
        !self.any_of(Self(lowering)) && !self.invalidate_profile()
    }

    /// Returns the names of the reasons that are present; reasons without a name in wattune are omitted.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.any_of(*bit)).map(|(_, name)| name)
    }
}

impl std::ops::BitOr for EventReasons {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Relative gain error of a GPU's power sensor (Yang, Adámek, Armour, SC'24): 0.05 is 5 %.
pub const SENSOR_GAIN: f64 = 0.05;

/// Method by which an amount of energy was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// Increase of the hardware's energy counter between two readings.
    Counter,
    /// Power readings integrated over time, because the GPU has no counter or the counter was reset.
    IntegratedPower,
    /// Increase of the counter over an unmonitored time: the daemon did not run, or the device did not answer.
    CounterGap,
}

impl EnergySource {
    /// Returns the name of the method in the API, metrics and store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::IntegratedPower => "integrated_power",
            Self::CounterGap => "counter_gap",
        }
    }

    /// Returns true if the energy is part of the increase of a hardware counter.
    pub const fn is_of_counter(self) -> bool {
        !matches!(self, Self::IntegratedPower)
    }

    /// Returns the relative uncertainty of the energy in percent: [`SENSOR_GAIN`] for counters, and twice that for
    /// integrated power readings.
    pub const fn uncertainty_pct(self) -> f64 {
        match self {
            Self::Counter | Self::CounterGap => 100.0 * SENSOR_GAIN,
            Self::IntegratedPower => 200.0 * SENSOR_GAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn watts(w: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(w * 1000)
    }

    #[test]
    fn the_ceiling_respects_an_operators_lower_limit() {
        let range = LimitRange { min: watts(100), max: watts(1000), default: watts(700) };
        assert_eq!(range.ceiling(watts(500)), watts(500));
        assert_eq!(range.ceiling(watts(700)), watts(1000));
        assert_eq!(range.ceiling(watts(800)), watts(1000));
    }

    #[test]
    fn heat_invalidates_a_profile_and_the_cap_does_not() {
        assert!(!(EventReasons::SW_POWER_CAP | EventReasons::SYNC_BOOST).invalidate_profile());
        assert!((EventReasons::SW_POWER_CAP | EventReasons::HW_THERMAL).invalidate_profile());
        assert!(EventReasons::default().leave_clocks_free());
        for bits in [0x1, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100] {
            assert!(!EventReasons::from_bits(bits).leave_clocks_free(), "{bits:#x}");
        }
        let names: Vec<_> = EventReasons::from_bits(0x44).names().collect();
        assert_eq!(names, ["sw_power_cap", "hw_thermal_slowdown"]);
    }
}
