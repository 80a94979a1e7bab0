//! Figures with 95 % confidence intervals.

use serde::{Deserialize, Serialize};

pub use crate::profile::{LEAST_FREEDOM, student};

/// A figure with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// Lower end of the interval.
    pub low: f64,
    /// Estimated figure.
    pub mean: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl ConfidenceInterval {
    /// Returns a figure with an interval of ± `half`.
    pub fn about(mean: f64, half: f64) -> Self {
        Self { low: mean - half, mean, high: mean + half }
    }

    /// Returns the figure and its interval multiplied by `factor`, for example to convert the unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let ends = (self.low * factor, self.high * factor);
        Self { low: ends.0.min(ends.1), mean: self.mean * factor, high: ends.0.max(ends.1) }
    }

    /// Widens the interval for a relative gain error `gain` that all measurements share: each end moves outwards by
    /// this fraction of its own value.
    #[must_use]
    pub fn with_gain(self, gain: f64) -> Self {
        Self { low: self.low - self.low.abs() * gain, mean: self.mean, high: self.high + self.high.abs() * gain }
    }
}

/// Independent errors of one figure, combined by adding the squares of their standard deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    squares: f64,
    fourths: f64,
}

impl Errors {
    /// Adds an error with the standard deviation `deviation`, which was estimated with `freedom` degrees of freedom.
    pub fn add(&mut self, deviation: f64, freedom: f64) {
        let square = deviation * deviation;
        self.squares += square;
        self.fourths += square * square / freedom;
    }

    /// Returns half the width of the 95 % confidence interval: Student's quantile with Welch–Satterthwaite degrees of
    /// freedom (*Biometrics Bulletin* 2, 1946).
    pub fn half_width(&self) -> f64 {
        if self.squares <= 0.0 {
            return 0.0;
        }
        student(self.squares * self.squares / self.fourths) * self.squares.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_errors_add_their_degrees_of_freedom() {
        let mut errors = Errors::default();
        assert_eq!(errors.half_width(), 0.0);
        errors.add(2.0, 5.0);
        assert!((errors.half_width() - 2.0 * student(5.0)).abs() < 1e-12);
        errors.add(2.0, 5.0);
        assert!((errors.half_width() - 8.0_f64.sqrt() * student(10.0)).abs() < 1e-12);
    }

    #[test]
    fn a_gain_moves_the_ends_outwards() {
        let figure = ConfidenceInterval { low: -10.0, mean: 5.0, high: 20.0 }.with_gain(0.05);
        assert_eq!(figure, ConfidenceInterval { low: -10.5, mean: 5.0, high: 21.0 });
        assert_eq!(
            ConfidenceInterval::about(100.0, 10.0).with_gain(0.1),
            ConfidenceInterval { low: 81.0, mean: 100.0, high: 121.0 }
        );
        assert_eq!(
            ConfidenceInterval::about(2.0, 1.0).times(-2.0),
            ConfidenceInterval { low: -6.0, mean: -4.0, high: -2.0 }
        );
    }
}
