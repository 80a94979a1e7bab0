//! The figures of a comparison that have confidence intervals, and the errors of these figures.

use super::confidence::{Errors, student};
use super::counterfactual::Comparison;

/// One value for each figure of a comparison that has a confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures<T> {
    pub(super) reduction_pct: T,
    /// Reduction of emissions, in grams.
    pub(super) reduction_g: T,
    pub(super) time_increase_pct: T,
    pub(super) energy_effect_pct: T,
    pub(super) timing_effect_pct: T,
    pub(super) start_effect_pct: T,
    pub(super) suspension_effect_pct: T,
}

impl<T> Figures<T> {
    /// Combines the two values of each figure.
    pub(super) fn zip<U, V>(self, other: Figures<U>, combine: impl Fn(T, U) -> V) -> Figures<V> {
        Figures {
            reduction_pct: combine(self.reduction_pct, other.reduction_pct),
            reduction_g: combine(self.reduction_g, other.reduction_g),
            time_increase_pct: combine(self.time_increase_pct, other.time_increase_pct),
            energy_effect_pct: combine(self.energy_effect_pct, other.energy_effect_pct),
            timing_effect_pct: combine(self.timing_effect_pct, other.timing_effect_pct),
            start_effect_pct: combine(self.start_effect_pct, other.start_effect_pct),
            suspension_effect_pct: combine(self.suspension_effect_pct, other.suspension_effect_pct),
        }
    }
}

impl Figures<f64> {
    /// Returns the figures of a comparison.
    pub(super) fn of(found: &Comparison) -> Self {
        Self {
            reduction_pct: found.carbon_reduction_pct,
            reduction_g: (found.carbon_at_reference * (found.carbon_reduction_pct / 100.0)).get(),
            time_increase_pct: found.time_increase_pct,
            energy_effect_pct: found.energy_effect_pct,
            timing_effect_pct: found.timing_effect_pct,
            start_effect_pct: found.start_effect_pct,
            suspension_effect_pct: found.suspension_effect_pct,
        }
    }
}

impl Figures<Errors> {
    /// Adds one error of each figure: the figure's change when an input is shifted by its standard error, which was
    /// estimated with `freedom` degrees of freedom.
    pub(super) fn add_shift(&mut self, shift: Figures<f64>, freedom: f64) {
        *self = self.zip(shift, |mut errors, deviation| {
            errors.add(deviation, freedom);
            errors
        });
    }

    /// Adds one error of each figure: the figure's change when an input is shifted to the end of the range in which it
    /// lies with 95 % confidence.
    pub(super) fn add_range(&mut self, shift: Figures<f64>) {
        *self = self.zip(shift, |mut errors, half| {
            errors.add(half / student(f64::INFINITY), f64::INFINITY);
            errors
        });
    }
}
