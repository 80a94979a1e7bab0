//! What a GPU is and says, independent of who asks it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::GpuId;
use crate::units::Watts;

/// A power management limit of one board, to the milliwatt that NVML counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PowerLimit {
    milliwatts: u32,
}

impl PowerLimit {
    /// From NVML's unit.
    pub const fn from_milliwatts(milliwatts: u32) -> Self {
        Self { milliwatts }
    }

    /// In NVML's unit.
    pub const fn milliwatts(self) -> u32 {
        self.milliwatts
    }

    /// Rounded to the milliwatt.
    pub fn from_watts(watts: Watts) -> Self {
        Self { milliwatts: watts.to_milliwatts() }
    }

    /// For planning and display.
    pub fn watts(self) -> Watts {
        Watts::from_milliwatts(self.milliwatts)
    }

    /// Whether two readings mean the same setting: some boards round what they are given.
    pub fn same_as(self, other: Self) -> bool {
        self.milliwatts.abs_diff(other.milliwatts) <= 500
    }
}

impl fmt::Display for PowerLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} W", f64::from(self.milliwatts) / 1e3)
    }
}

/// The limits a board accepts, and the one it has after a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRange {
    /// The lowest.
    pub min: PowerLimit,
    /// The highest.
    pub max: PowerLimit,
    /// The driver's default; on some boards below `max`.
    pub default: PowerLimit,
}

impl LimitRange {
    /// The nearest limit that the board accepts.
    pub fn clamp(&self, limit: PowerLimit) -> PowerLimit {
        limit.clamp(self.min, self.max)
    }

    /// The highest limit wattune may set on a board found at `found` (`planning.md` §5): the limit found, where
    /// somebody had lowered it below the default; else the maximum.
    pub fn ceiling(&self, found: PowerLimit) -> PowerLimit {
        if found < self.default { self.clamp(found) } else { self.max }
    }
}

/// A board as it was identified. All of it stays the same until the board is swapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// The board's UUID: its identity everywhere.
    pub id: GpuId,
    /// The driver's index at this boot, for people and for metrics' `gpu` label.
    pub index: u32,
    /// PCI bus id, as the driver writes it.
    pub pci_bus_id: String,
    /// The product's name.
    pub model: String,
    /// Whether this is a simulation and no hardware at all.
    pub simulated: bool,
}

/// Why a GPU's clocks are below what was asked for (NVML's clocks event reasons).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventReasons(u64);

impl EventReasons {
    /// Nothing runs.
    pub const IDLE: Self = Self(0x1);
    /// The power limit binds.
    pub const SW_POWER_CAP: Self = Self(0x4);
    /// Hardware slowdown.
    pub const HW_SLOWDOWN: Self = Self(0x8);
    /// Clocks follow another board.
    pub const SYNC_BOOST: Self = Self(0x10);
    /// Software thermal slowdown.
    pub const SW_THERMAL: Self = Self(0x20);
    /// Hardware thermal slowdown.
    pub const HW_THERMAL: Self = Self(0x40);
    /// External power brake.
    pub const HW_POWER_BRAKE: Self = Self(0x80);
    /// Display clocks limit the graphics clock.
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

    /// From NVML's bit mask.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// NVML's bit mask.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether any of `reasons` is present.
    pub const fn any_of(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// Whether what is measured now says nothing about the power limit: heat or hardware slows the board.
    pub const fn voids_profile(self) -> bool {
        self.any_of(Self(Self::HW_SLOWDOWN.0 | Self::SW_THERMAL.0 | Self::HW_THERMAL.0 | Self::HW_POWER_BRAKE.0))
    }

    /// Whether something works and nothing is given as a reason for a clock below the highest.
    pub const fn leave_clocks_free(self) -> bool {
        let lowering = Self::IDLE.0 | Self::SW_POWER_CAP.0 | Self::SYNC_BOOST.0 | Self::DISPLAY.0;
        !self.any_of(Self(lowering)) && !self.voids_profile()
    }

    /// The names of the known reasons that are present.
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

/// How an amount of energy was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// The difference of two readings of the hardware's energy counter.
    Counter,
    /// Power readings, integrated: the board has no counter, or it was reset in between.
    IntegratedPower,
    /// The counter's difference over a time in which nobody looked (the daemon was down, the board was lost).
    CounterGap,
}

impl EnergySource {
    /// The name used in the API, the metrics and the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::IntegratedPower => "integrated_power",
            Self::CounterGap => "counter_gap",
        }
    }

    /// Whether an amount found that way is a part of what the hardware's counter gained.
    pub const fn is_of_counter(self) -> bool {
        !matches!(self, Self::IntegratedPower)
    }

    /// Relative uncertainty of an amount found that way, in percent: [`SENSOR_GAIN`], and twice that where power was
    /// sampled in place of the counter.
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
    fn heat_voids_a_profile_and_the_cap_does_not() {
        assert!(!(EventReasons::SW_POWER_CAP | EventReasons::SYNC_BOOST).voids_profile());
        assert!((EventReasons::SW_POWER_CAP | EventReasons::HW_THERMAL).voids_profile());
        assert!(EventReasons::default().leave_clocks_free());
        for bits in [0x1, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100] {
            assert!(!EventReasons::from_bits(bits).leave_clocks_free(), "{bits:#x}");
        }
        let names: Vec<_> = EventReasons::from_bits(0x44).names().collect();
        assert_eq!(names, ["sw_power_cap", "hw_thermal_slowdown"]);
    }
}
