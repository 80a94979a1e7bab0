//! Noise of a job's throughput, pooled over all settings.

use serde::{Deserialize, Serialize};

use super::stats::{MOST_CORRELATED, RateStats, Scatter};
use super::student::{LEAST_FREEDOM, NORMAL, student_rare};
use crate::units::Seconds;

/// Degrees of freedom from which a variance counts as well known: its relative error is then about a third.
const ENOUGH_FREEDOM: f64 = 15.0;

/// Relative fluctuation of a job's throughput. Limits change the throughput but hardly its relative fluctuation, so all
/// settings are pooled. Pooling gives a realistic error even for a setting measured for a few seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Variance of the mean rate over one second, divided by the squared rate. The mean over τ seconds has 1/τ of this
    /// variance.
    per_second: f64,
    degrees_of_freedom: f64,
}

impl Noise {
    /// Estimates the noise from the chunks (times between two reports) of several settings; `None` if there are too few
    /// chunks.
    pub(super) fn pooled<'a>(rates: impl Iterator<Item = &'a RateStats>) -> Option<Self> {
        let mut sum = Scatter::default();
        for scatter in rates.filter_map(RateStats::scatter) {
            sum.squares += scatter.squares;
            sum.lag_products += scatter.lag_products;
            sum.seconds += scatter.seconds;
            sum.degrees_of_freedom += scatter.degrees_of_freedom;
        }
        if sum.seconds <= 0.0 || sum.degrees_of_freedom < LEAST_FREEDOM - 1.0 {
            return None;
        }
        // A first-order autoregressive process, as in `RateStats::autocorrelated_error`.
        let correlation =
            if sum.squares > 0.0 { sum.lag_products / sum.squares + 1.0 / sum.degrees_of_freedom } else { 0.0 };
        // The part of the correlation that may be due to chance is subtracted.
        let correlation = (correlation - NORMAL / sum.degrees_of_freedom.sqrt()).clamp(0.0, MOST_CORRELATED);
        let inflation = (1.0 + correlation) / (1.0 - correlation);
        Some(Self { per_second: sum.squares / sum.seconds * inflation, degrees_of_freedom: sum.degrees_of_freedom })
    }

    /// Returns true if this noise comes from enough chunks (times between two reports) to be used alone, without the
    /// chunks of other settings.
    pub(super) fn is_well_known(&self) -> bool {
        self.degrees_of_freedom >= ENOUGH_FREEDOM
    }

    /// Returns the degrees of freedom of the noise's estimate.
    pub fn degrees_of_freedom(&self) -> f64 {
        self.degrees_of_freedom
    }

    /// Returns the relative standard error of a rate measured for a duration; 1 for zero duration.
    pub fn error_after(&self, measured: Seconds) -> f64 {
        if measured <= Seconds::ZERO {
            return 1.0;
        }
        (self.per_second / measured.get()).sqrt().min(1.0)
    }

    /// Returns the 99.5 % quantile of a rate's error, in standard errors.
    pub fn rare(&self) -> f64 {
        student_rare(self.degrees_of_freedom)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_distr::{Distribution, Normal};

    use super::*;
    use crate::profile::student;

    #[test]
    fn chunks_of_many_settings_pool_to_a_calibrated_error() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        let noise = Normal::new(1.0, 0.02).expect("finite");
        let (mut covered, cases) = (0, 400);
        for _ in 0..cases {
            let mut rates = vec![RateStats::default(); 4];
            for (n, rate) in rates.iter_mut().enumerate() {
                for _ in 0..3 {
                    rate.add(2.0, 2.0 * (100.0 - 10.0 * n as f64) * noise.sample(&mut rng));
                }
            }
            let known = Noise::pooled(rates.iter()).expect("eight degrees of freedom");
            let error = known.error_after(Seconds::new(6.0)) * student(known.degrees_of_freedom);
            let off = rates[3].rate().expect("measured") / 70.0 - 1.0;
            covered += i32::from(off.abs() <= error);
        }
        assert!((370..=392).contains(&covered), "{covered} of {cases} intervals cover the rate");
        assert_eq!(Noise::pooled([RateStats::default()].iter()), None);
    }
}
