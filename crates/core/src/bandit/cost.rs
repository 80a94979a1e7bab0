//! What a run costs, as one number.

use serde::{Deserialize, Serialize};

use crate::units::{Joules, Seconds, Watts};

/// What policies minimise, in joules (of energy, and of time times the largest power). Rewards are costs with the other
/// sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cost(f64);

impl Cost {
    /// Nothing.
    pub const ZERO: Self = Self(0.0);
    /// More than anything.
    pub const INFINITE: Self = Self(f64::INFINITY);
    /// More than any trial can cost: 10 times the largest power for the longest time, and what a failure adds to that,
    /// come to less.
    pub const MOST: Self = Self(1e30);

    /// So many joules.
    pub const fn new(joules: f64) -> Self {
        Self(joules)
    }

    /// The bare number.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The smaller one.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl std::ops::Sub for Cost {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::Mul<f64> for Cost {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }
}

impl std::ops::Div for Cost {
    type Output = f64;
    fn div(self, other: Self) -> f64 {
        self.0 / other.0
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, |a, b| a + b)
    }
}

/// How energy and time are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    /// From 0, time alone, to 1, energy alone.
    pub eta: f64,
    /// What the boards of a run may draw at the most, together.
    pub max_power: Watts,
}

impl Knob {
    /// η·E + (1−η)·P_max·T (Zeus, equation 2).
    ///
    /// Where carbon is to count in place of energy, the same number stands for it: energy times a constant reference
    /// intensity orders runs as energy does, and a dirty week does not look like a bad batch size.
    pub fn cost(&self, energy: Joules, time: Seconds) -> Cost {
        Cost(self.eta * energy.get() + (1.0 - self.eta) * self.max_power.get() * time.get())
    }
}
