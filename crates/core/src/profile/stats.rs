//! Rates with their standard errors, updated chunk by chunk.

use serde::{Deserialize, Serialize};

/// The rate Σy/Σt over independent chunks, as a ratio estimator: long chunks count for more. A chunk is a time t, such
/// as that between two reports, with an amount y (samples or joules).
///
/// Stores sums only, so it can be saved, resumed and merged. The standard error is that of a ratio of means
/// (Cochran, *Sampling Techniques*, ch. 6): √(n/(n−1)·Σ(y−R·t)²)/Σt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateStats {
    n: f64,
    t: f64,
    y: f64,
    tt: f64,
    ty: f64,
    yy: f64,
    /// Sums over pairs of successive chunks, for the autocorrelation. Absent in records of older versions.
    #[serde(default, skip_serializing_if = "Lagged::is_empty")]
    lagged: Lagged,
}

/// Sums over pairs of successive chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Lagged {
    last: Option<(f64, f64)>,
    tt: f64,
    ty: f64,
    yy: f64,
}

impl Lagged {
    fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    fn add(&mut self, t: f64, y: f64) {
        if let Some((before_t, before_y)) = self.last.replace((t, y)) {
            self.tt += before_t * t;
            self.ty += before_t * y + before_y * t;
            self.yy += before_y * y;
        }
    }

    fn merged(&self, other: &Self) -> Self {
        Self { last: other.last.or(self.last), tt: self.tt + other.tt, ty: self.ty + other.ty, yy: self.yy + other.yy }
    }
}

/// Sums over the residuals y − R·t of chunks (times t with amounts y) from their common rate R, each relative to R.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scatter {
    /// Σ(y − R·t)²/R², in s².
    pub(super) squares: f64,
    /// Sum of the products of successive residuals, divided by R², in s².
    pub(super) lag_products: f64,
    /// Total duration of the chunks in seconds, less that of an average chunk, because R is estimated from the same
    /// chunks.
    pub(super) seconds: f64,
    /// Degrees of freedom of `squares`.
    pub(super) degrees_of_freedom: f64,
}

/// Upper bound of the estimated autocorrelation; a stronger correlation looks like a change of the rate.
pub(super) const MOST_CORRELATED: f64 = 0.95;

impl RateStats {
    /// Adds a chunk of `y` units (samples or joules) in `t` seconds.
    pub fn add(&mut self, t: f64, y: f64) {
        self.n += 1.0;
        self.t += t;
        self.y += y;
        self.tt += t * t;
        self.ty += t * y;
        self.yy += y * y;
        self.lagged.add(t, y);
    }

    /// Returns the statistics over the chunks of both operands.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        Self {
            n: self.n + other.n,
            t: self.t + other.t,
            y: self.y + other.y,
            tt: self.tt + other.tt,
            ty: self.ty + other.ty,
            yy: self.yy + other.yy,
            lagged: self.lagged.merged(&other.lagged),
        }
    }

    /// Returns the number of added chunks (times t with amounts y).
    pub fn count(&self) -> f64 {
        self.n
    }

    /// Returns the total duration of the added chunks in seconds.
    pub fn seconds(&self) -> f64 {
        self.t
    }

    /// Returns the rate in units per second; `None` before the first chunk is added.
    pub fn rate(&self) -> Option<f64> {
        (self.t > 0.0).then(|| self.y / self.t)
    }

    /// Returns the relative standard error of the rate; `None` for fewer than two chunks or a zero rate.
    pub fn relative_error(&self) -> Option<f64> {
        let rate = self.rate().filter(|r| *r > 0.0)?;
        if self.n < 2.0 {
            return None;
        }
        Some((self.squares(rate) * self.n / (self.n - 1.0)).sqrt() / self.t / rate)
    }

    /// Returns the relative standard error (first) and its degrees of freedom (second) for autocorrelated chunks: a
    /// first-order autoregressive process, whose mean has (1 + ρ)/(1 − ρ) times the variance (Wilks, *Statistical
    /// Methods in the Atmospheric Sciences*, ch. 5). Chunks of unequal length count as (Σt)²/Σt² equal ones (Kish).
    /// `None` for fewer than two chunks or a zero rate.
    pub fn autocorrelated_error(&self) -> Option<(f64, f64)> {
        let (rate, error) = self.rate().zip(self.relative_error())?;
        let squares = self.squares(rate);
        let lag_products = self.lagged.yy - rate * self.lagged.ty + rate * rate * self.lagged.tt;
        // An autocorrelation estimated from n pairs is too low by about 1/n.
        let correlation = if squares > 0.0 { lag_products / squares + 1.0 / self.n } else { 0.0 };
        let correlation = correlation.clamp(0.0, MOST_CORRELATED);
        let inflation = ((1.0 + correlation) / (1.0 - correlation)).sqrt();
        Some((error * inflation, self.t * self.t / self.tt - 1.0))
    }

    /// Returns the sums over the residuals of the chunks; `None` for fewer than two chunks or a zero rate.
    pub(super) fn scatter(&self) -> Option<Scatter> {
        let rate = self.rate().filter(|r| *r > 0.0 && self.n >= 2.0)?;
        let lag_products = self.lagged.yy - rate * self.lagged.ty + rate * rate * self.lagged.tt;
        Some(Scatter {
            squares: self.squares(rate) / (rate * rate),
            lag_products: lag_products / (rate * rate),
            seconds: self.t * (1.0 - 1.0 / self.n),
            degrees_of_freedom: self.t * self.t / self.tt - 1.0,
        })
    }

    /// Returns the sum of the squared residuals y − `rate`·t of all chunks.
    fn squares(&self, rate: f64) -> f64 {
        (self.yy - 2.0 * rate * self.ty + rate * rate * self.tt).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_distr::{Distribution, Normal};

    use super::*;

    #[test]
    fn the_stated_error_is_the_error() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let noise = Normal::new(1.0, 0.01).expect("finite");
        let (mut squared, mut stated) = (0.0, 0.0);
        for _ in 0..400 {
            let mut stats = RateStats::default();
            for chunk in 0..50 {
                let seconds = 1.0 + f64::from(chunk % 3);
                stats.add(seconds, 100.0 * seconds * noise.sample(&mut rng));
            }
            squared += (stats.rate().expect("has chunks") / 100.0 - 1.0).powi(2) / 400.0;
            stated += stats.relative_error().expect("has chunks") / 400.0;
        }
        assert!((squared.sqrt() / stated - 1.0).abs() < 0.1, "{} {stated}", squared.sqrt());
    }

    #[test]
    fn autocorrelation_increases_the_error() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
        let noise = Normal::new(0.0, 0.01).expect("finite");
        for correlation in [0.0, 0.5, 0.8] {
            let (mut squared, mut stated, mut plain) = (0.0, 0.0, 0.0);
            for _ in 0..400 {
                let (mut stats, mut error) = (RateStats::default(), 0.0);
                for _ in 0..200 {
                    error = correlation * error + noise.sample(&mut rng);
                    stats.add(1.0, 100.0 * (1.0 + error));
                }
                squared += (stats.rate().expect("has chunks") / 100.0 - 1.0).powi(2) / 400.0;
                let (lasting, degrees_of_freedom) = stats.autocorrelated_error().expect("has chunks");
                assert!((degrees_of_freedom - 199.0).abs() < 1e-6, "{degrees_of_freedom}");
                stated += lasting / 400.0;
                plain += stats.relative_error().expect("has chunks") / 400.0;
            }
            let ratio = squared.sqrt() / stated;
            assert!((0.8..1.1).contains(&ratio), "{correlation}: {ratio}");
            assert!(correlation == 0.0 || squared.sqrt() / plain > 1.5, "{correlation}");
        }
    }

    #[test]
    fn the_error_of_too_few_chunks_is_unknown() {
        let mut stats = RateStats::default();
        assert_eq!((stats.rate(), stats.relative_error()), (None, None));
        stats.add(2.0, 10.0);
        assert_eq!((stats.rate(), stats.relative_error()), (Some(5.0), None));
        stats.add(2.0, 10.0);
        assert_eq!(stats.relative_error(), Some(0.0));
    }
}
