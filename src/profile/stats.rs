//! Means of rates with their standard error, updated chunk by chunk.

use serde::{Deserialize, Serialize};

/// The rate Σy/Σt over independent chunks (t, y), as a ratio estimator: long chunks count for more.
///
/// Keeps sums only, so that it can be stored, resumed and added to. The standard error is that of a ratio of means
/// (Cochran, *Sampling Techniques*, ch. 6): √(n/(n−1)·Σ(y−R·t)²)/Σt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateStats {
    n: f64,
    t: f64,
    y: f64,
    tt: f64,
    ty: f64,
    yy: f64,
}

impl RateStats {
    /// Adds `y` units that came in `t` seconds.
    pub fn add(&mut self, t: f64, y: f64) {
        self.n += 1.0;
        self.t += t;
        self.y += y;
        self.tt += t * t;
        self.ty += t * y;
        self.yy += y * y;
    }

    /// The chunks of both.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        Self {
            n: self.n + other.n,
            t: self.t + other.t,
            y: self.y + other.y,
            tt: self.tt + other.tt,
            ty: self.ty + other.ty,
            yy: self.yy + other.yy,
        }
    }

    /// How many chunks.
    pub fn count(&self) -> f64 {
        self.n
    }

    /// Seconds measured in all.
    pub fn seconds(&self) -> f64 {
        self.t
    }

    /// Units per second; `None` before the first chunk.
    pub fn rate(&self) -> Option<f64> {
        (self.t > 0.0).then(|| self.y / self.t)
    }

    /// Standard error of the rate, relative to it; `None` while it cannot be told (fewer than two chunks, or no rate).
    pub fn relative_error(&self) -> Option<f64> {
        let rate = self.rate().filter(|r| *r > 0.0)?;
        if self.n < 2.0 {
            return None;
        }
        let squares = (self.yy - 2.0 * rate * self.ty + rate * rate * self.tt).max(0.0);
        Some((squares * self.n / (self.n - 1.0)).sqrt() / self.t / rate)
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
    fn little_evidence_has_no_error_rather_than_none() {
        let mut stats = RateStats::default();
        assert_eq!((stats.rate(), stats.relative_error()), (None, None));
        stats.add(2.0, 10.0);
        assert_eq!((stats.rate(), stats.relative_error()), (Some(5.0), None));
        stats.add(2.0, 10.0);
        assert_eq!(stats.relative_error(), Some(0.0));
    }
}
