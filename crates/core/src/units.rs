//! Physical quantities as types. Only products that exist in physics compile, such as watts × seconds = joules.
//!
//! Each type is a transparent `f64` in the unit that its name states. Values are finite: parsing rejects NaN and
//! infinity, and arithmetic on finite planning quantities stays finite. The ledger uses integers instead:
//! [`Millijoules`] and [`Micrograms`].

use std::fmt;
use std::ops::{Div, Mul};

use serde::{Deserialize, Deserializer, Serialize, de};

/// Joules per kilowatt-hour.
pub const JOULES_PER_KWH: f64 = 3.6e6;

/// Implements addition and sums for a type with one number.
macro_rules! sums {
    ($name:ident) => {
        impl std::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                // The standard library's sum of no floats is -0.0.
                all.fold(Self::ZERO, std::ops::Add::add)
            }
        }
    };
}

/// Implements subtraction, factors and ratios for a type with one float.
macro_rules! scales {
    ($name:ident) => {
        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl std::ops::SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl std::ops::Neg for $name {
            type Output = Self;
            fn neg(self) -> Self {
                Self(-self.0)
            }
        }
        impl std::ops::Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl std::ops::Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }
        impl std::ops::Div for $name {
            type Output = f64;
            fn div(self, divisor: Self) -> f64 {
                self.0 / divisor.0
            }
        }
    };
}
pub(crate) use {scales, sums};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name(f64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// Creates a quantity of `value` units. Use [`Self::try_new`] for values from users.
            pub const fn new(value: f64) -> Self {
                debug_assert!(value.is_finite());
                Self(value)
            }

            /// Creates a quantity; `None` if `value` is NaN or infinite.
            pub fn try_new(value: f64) -> Option<Self> {
                value.is_finite().then_some(Self(value))
            }

            /// Returns the number in the type's unit.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// Returns the larger of this quantity and `other`.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// Returns the smaller of this quantity and `other`.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// Returns the absolute value.
            #[must_use]
            pub fn abs(self) -> Self {
                Self(self.0.abs())
            }

            /// Compares two quantities; values are never NaN, so that there is a total order.
            pub fn total_cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)?;
                f.write_str(concat!(" ", $unit))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = f64::deserialize(deserializer)?;
                Self::try_new(value).ok_or_else(|| {
                    de::Error::invalid_value(de::Unexpected::Float(value), &concat!("a finite number of ", $unit))
                })
            }
        }

        sums!($name);
        scales!($name);
    };
}

macro_rules! product {
    ($a:ident * $b:ident = $c:ident) => {
        impl Mul<$b> for $a {
            type Output = $c;
            fn mul(self, other: $b) -> $c {
                $c(self.0 * other.0)
            }
        }
        impl Mul<$a> for $b {
            type Output = $c;
            fn mul(self, other: $a) -> $c {
                $c(self.0 * other.0)
            }
        }
        impl Div<$a> for $c {
            type Output = $b;
            fn div(self, divisor: $a) -> $b {
                $b(self.0 / divisor.0)
            }
        }
        impl Div<$b> for $c {
            type Output = $a;
            fn div(self, divisor: $b) -> $a {
                $a(self.0 / divisor.0)
            }
        }
    };
}

quantity!(/** Power, for example of a GPU or of a power limit. */ Watts, "W");
quantity!(/** Energy in planning; the ledger uses [`Millijoules`] instead. */ Joules, "J");
quantity!(/** A duration. Points in time are `chrono::DateTime<Utc>` or [`crate::time::Monotonic`]. */ Seconds, "s");
quantity!(/** Work of a training job in the unit that the job reports: images, tokens, steps. */ Samples, "samples");
quantity!(/** Throughput of a training job. */ SamplesPerSecond, "samples/s");
quantity!(/** Greenhouse gas emissions in grams of CO2 equivalent. */ GramsCo2e, "gCO2e");
quantity!(/** Carbon intensity of electricity, in gCO2e per kilowatt-hour. */ GramsPerKwh, "gCO2e/kWh");
quantity!(
    /** Price of electricity per megawatt-hour, in the currency that the settings name; negative prices are normal. */
    PricePerMwh, "per MWh"
);

product!(Watts * Seconds = Joules);
product!(SamplesPerSecond * Seconds = Samples);

impl Mul<GramsPerKwh> for Joules {
    type Output = GramsCo2e;
    fn mul(self, intensity: GramsPerKwh) -> GramsCo2e {
        GramsCo2e(self.0 * intensity.0 / JOULES_PER_KWH)
    }
}

impl Mul<Joules> for GramsPerKwh {
    type Output = GramsCo2e;
    fn mul(self, energy: Joules) -> GramsCo2e {
        energy * self
    }
}

impl Watts {
    /// Converts from milliwatts, NVML's unit.
    pub fn from_milliwatts(milliwatts: u32) -> Self {
        Self(f64::from(milliwatts) / 1e3)
    }

    /// Returns milliwatts, rounded to the nearest; negative power is 0 mW.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range of u32")]
    pub fn to_milliwatts(self) -> u32 {
        (self.0 * 1e3).round().clamp(0.0, f64::from(u32::MAX)) as u32
    }
}

/// Display of a number in full, as its sender gave it; with an exponent below 10⁻⁶ and from 10¹⁵ on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = self;
        let plain = *value == 0.0 || !value.is_finite() || (1e-6..1e15).contains(&value.abs());
        if plain { write!(f, "{value}") } else { write!(f, "{value:e}") }
    }
}

/// Display of a number in a sentence: at most three decimals below 10, at most one below 100, none above; with an
/// exponent from 10¹⁵ on, and in words below 0.001.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounded(pub f64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_finite() && value.abs() >= 1e15 => write!(f, "{value:.0e}"),
            value if value == 0.0 || value.abs() >= 100.0 => write!(f, "{value:.0}"),
            value if value.abs() < 1e-3 => f.write_str("less than 0.001"),
            value => {
                let decimals = if value.abs() < 10.0 { 3 } else { 1 };
                let text = format!("{value:.decimals$}");
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// Display of a difference of two fractions in percentage points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Points(pub f64);

/// Percentage points above which [`Points`] shows no value, only "more than".
const MOST_POINTS: f64 = 10_000.0;

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match 100.0 * self.0 {
            points if points.abs() <= MOST_POINTS => write!(f, "{points:.2} points"),
            _ => write!(f, "more than {MOST_POINTS} points"),
        }
    }
}

/// Display of a duration in a sentence, in a readable unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lasting(pub Seconds);

/// Duration from which [`Lasting`] uses hours instead of seconds.
const LONGEST_IN_SECONDS: f64 = 7200.0;
const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 86_400.0;
const YEAR_S: f64 = 365.25 * DAY_S;

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get() {
            seconds if seconds.abs() < LONGEST_IN_SECONDS => write!(f, "{seconds:.0} s"),
            seconds if seconds.abs() < 2.0 * DAY_S => write!(f, "{:.1} h", seconds / HOUR_S),
            seconds if seconds.abs() < 2.0 * YEAR_S => write!(f, "{:.0} days", seconds / DAY_S),
            seconds if seconds.abs() <= 100.0 * YEAR_S => write!(f, "{:.0} years", seconds / YEAR_S),
            // Durations that overflowed to infinity are shown like this too.
            _ => f.write_str("more than 100 years"),
        }
    }
}

impl Seconds {
    /// Checks that the value of the setting `key` is between `low` and `high` seconds. The error names key, value and
    /// range.
    pub fn check(self, key: &str, low: f64, high: f64) -> Result<(), String> {
        match (low..=high).contains(&self.0) {
            true => Ok(()),
            false => Err(format!("{key} = {} must be from {low} to {high} seconds", Short(self.0))),
        }
    }

    /// Converts from a signed duration.
    pub fn from_delta(delta: chrono::TimeDelta) -> Self {
        Self(delta.as_seconds_f64())
    }

    /// Returns a signed duration, rounded to the microsecond.
    #[expect(clippy::cast_possible_truncation, reason = "saturates far outside any horizon")]
    pub fn to_delta(self) -> chrono::TimeDelta {
        chrono::TimeDelta::microseconds((self.0 * 1e6).round() as i64)
    }

    /// Returns an unsigned duration; negative values become zero.
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.0.max(0.0))
    }
}

impl From<std::time::Duration> for Seconds {
    fn from(duration: std::time::Duration) -> Self {
        Self(duration.as_secs_f64())
    }
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);

            /// Creates a count of `value` units.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// Returns the count in the type's unit.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        sums!($name);
    };
}

count!(/** Energy in the ledger: integer millijoules, so that sums are exact in any order. */ Millijoules);
count!(
    /** Emissions in the ledger: integer micrograms of CO2 equivalent, so that sums are exact in any order. */
    Micrograms
);

impl Millijoules {
    /// Returns the increase since `earlier`; `None` if `earlier` is larger, which means that the counter was reset.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<Self> {
        self.0.checked_sub(earlier.0).map(Self)
    }

    /// Rounds to the nearest millijoule; negative energy becomes zero.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped at zero; 2^64 mJ is 5 TWh")]
    pub fn from_joules(joules: Joules) -> Self {
        Self((joules.0 * 1e3).round().max(0.0) as u64)
    }

    /// Returns joules, for planning and display.
    #[expect(clippy::cast_precision_loss, reason = "2^53 mJ is 2.5 GWh")]
    pub fn to_joules(self) -> Joules {
        Joules(self.0 as f64 / 1e3)
    }
}

impl Micrograms {
    /// Rounds to the nearest microgram; negative emissions become zero.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped at zero; 2^64 µg is 18,000 t")]
    pub fn from_grams(grams: GramsCo2e) -> Self {
        Self((grams.0 * 1e6).round().max(0.0) as u64)
    }

    /// Returns grams, for display.
    #[expect(clippy::cast_precision_loss, reason = "2^53 µg is 9 t")]
    pub fn to_grams(self) -> GramsCo2e {
        GramsCo2e(self.0 as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_keep_their_units() {
        let energy = Watts::new(250.0) * Seconds::new(3600.0);
        assert_eq!(energy, Joules::new(900_000.0));
        assert_eq!(energy * GramsPerKwh::new(400.0), GramsCo2e::new(100.0));
        assert_eq!(energy / Seconds::new(3600.0), Watts::new(250.0));
        assert_eq!(Samples::new(90.0) / Seconds::new(3.0), SamplesPerSecond::new(30.0));
    }

    #[test]
    fn only_finite_numbers_are_read() {
        assert!(Watts::try_new(f64::NAN).is_none());
        let refused = serde_json::from_str::<Watts>("\"NaN\"");
        assert!(refused.is_err());
        #[derive(Debug, Deserialize)]
        struct Table {
            #[expect(dead_code, reason = "only its refusal matters")]
            limit: Watts,
        }
        let refused = toml::from_str::<Table>("limit = inf").expect_err("infinite").to_string();
        assert!(refused.contains("finite number of W"), "{refused}");
    }

    #[test]
    fn millijoules_never_run_backwards() {
        let (a, b) = (Millijoules::new(5), Millijoules::new(7));
        assert_eq!(b.checked_since(a), Some(Millijoules::new(2)));
        assert_eq!(a.checked_since(b), None);
        assert_eq!(Millijoules::from_joules(Joules::new(1.2346)), Millijoules::new(1235));
    }

    #[test]
    fn sentences_hold_no_long_numbers() {
        let table = [
            (0.4, "0 s"),
            (7000.0, "7000 s"),
            (99_456.0, "27.6 h"),
            (172_800.0, "2 days"),
            (3.0 * YEAR_S, "3 years"),
            (101.0 * YEAR_S, "more than 100 years"),
            (1e300, "more than 100 years"),
        ];
        for (seconds, reported) in table {
            assert_eq!(Lasting(Seconds::new(seconds)).to_string(), reported);
        }
        assert_eq!(Lasting(Seconds::new(1e300) * 1e300).to_string(), "more than 100 years");
        let numbers = [
            (0.0, "0"),
            (0.4, "0.4"),
            (0.05, "0.05"),
            (1e-9, "less than 0.001"),
            (12.34, "12.3"),
            (30.0, "30"),
            (1234.5, "1234"),
            (-7.0, "-7"),
            (1e15, "1e15"),
            (1e300, "1e300"),
        ];
        for (number, reported) in numbers {
            assert_eq!(Rounded(number).to_string(), reported);
        }
        assert!([0.0; 0].into_iter().map(Joules::new).sum::<Joules>().get().is_sign_positive(), "no -0.0");
        assert_eq!(Short(5e-324).to_string(), "5e-324");
        for (fraction, reported) in
            [(0.0314, "3.14 points"), (1e300, "more than 10000 points"), (f64::INFINITY, "more than 10000 points")]
        {
            assert_eq!(Points(fraction).to_string(), reported);
        }
    }

    #[test]
    fn milliwatts_round_trip() {
        assert_eq!(Watts::from_milliwatts(225_500).to_milliwatts(), 225_500);
        assert_eq!(Watts::new(-3.0).to_milliwatts(), 0);
    }
}
