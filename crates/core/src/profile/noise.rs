//! Noise of a job's speed, pooled over all settings: how well a rate is known after so many seconds.

use super::stats::{RateStats, Scatter};
use super::student::{LEAST_FREEDOM, NORMAL, student_rare};
use crate::units::Seconds;

/// A correlation of successive chunks above this cannot be separated from the rate itself.
const MOST_CORRELATED: f64 = 0.95;

/// With so many degrees of freedom a variance is known to a third or so.
const ENOUGH_FREEDOM: f64 = 15.0;

/// Relative fluctuation of a job's speed. Limits change the speed, hardly its fluctuation, so all settings tell about it
/// together: a setting that was in force for a few seconds then has an honest error too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Variance of a mean over one second, relative to the squared rate: that over τ seconds is this over τ.
    per_second: f64,
    freedom: f64,
}

impl Noise {
    /// The noise that the chunks of several settings show. `None` where these are too few.
    pub(super) fn pooled<'a>(rates: impl Iterator<Item = &'a RateStats>) -> Option<Self> {
        let mut sum = Scatter::default();
        for scatter in rates.filter_map(RateStats::scatter) {
            sum.squares += scatter.squares;
            sum.alike += scatter.alike;
            sum.seconds += scatter.seconds;
            sum.freedom += scatter.freedom;
        }
        if sum.seconds <= 0.0 || sum.freedom < LEAST_FREEDOM - 1.0 {
            return None;
        }
        // As for one rate, see `RateStats::lasting_error`: an autoregressive process of first order.
        let correlation = if sum.squares > 0.0 { sum.alike / sum.squares + 1.0 / sum.freedom } else { 0.0 };
        // A correlation that chance explains is none.
        let correlation = (correlation - NORMAL / sum.freedom.sqrt()).clamp(0.0, MOST_CORRELATED);
        let inflation = (1.0 + correlation) / (1.0 - correlation);
        Some(Self { per_second: sum.squares / sum.seconds * inflation, freedom: sum.freedom })
    }

    /// Whether it needs no other measurements to be known well.
    pub(super) fn is_well_known(&self) -> bool {
        self.freedom >= ENOUGH_FREEDOM
    }

    /// The standard error of a rate that was measured for so long, relative to it; 1 for no time at all.
    pub fn error_after(&self, measured: Seconds) -> f64 {
        if measured <= Seconds::ZERO {
            return 1.0;
        }
        (self.per_second / measured.get()).sqrt().min(1.0)
    }

    /// How many standard errors above its mean a rate lies in one of 200 cases.
    pub fn rare(&self) -> f64 {
        student_rare(self.freedom)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_distr::{Distribution, Normal};

    use super::*;
    use crate::profile::student;

    #[test]
    fn few_chunks_of_many_settings_make_one_honest_error() {
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
            let error = known.error_after(Seconds::new(6.0)) * student(known.freedom);
            let off = rates[3].rate().expect("measured") / 70.0 - 1.0;
            covered += i32::from(off.abs() <= error);
        }
        assert!((370..=392).contains(&covered), "{covered} of {cases} intervals cover the rate");
        assert_eq!(Noise::pooled([RateStats::default()].iter()), None);
    }
}
