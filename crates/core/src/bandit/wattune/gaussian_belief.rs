//! Gaussian belief about one quantity (log epochs or log epoch cost) at each batch size (arm).

use crate::bandit::Generator;

/// Prior of the change of a quantity with log₂ of the batch size: a line with an uncertain slope, plus a random walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    pub(super) slope: f64,
    pub(super) slope_deviation: f64,
    /// Standard deviation of the random walk after an octave (doubling of the batch size).
    pub(super) walk: f64,
}

/// Means and covariances of a quantity at all arms.
#[derive(Clone, Debug)]
pub(super) struct GaussianBelief {
    mean: Vec<f64>,
    /// Covariance matrix, row by row.
    covariance: Vec<f64>,
}

impl GaussianBelief {
    /// Returns the belief that the quantity is `level` ± `deviation` at the arm `from`, and changes by `drift` with the
    /// distance from that arm. `octaves` is log₂ of each arm's batch size.
    pub(super) fn new(octaves: &[f64], from: usize, level: f64, deviation: f64, drift: Drift) -> Self {
        let n = octaves.len();
        let mut made = Self { mean: vec![level; n], covariance: vec![0.0; n * n] };
        made.shift_by_unknown(octaves, from, deviation, drift);
        made
    }

    /// Adds an unknown shift to the quantity: 0 ± `deviation` at the arm `from`, changing by `drift` with the distance
    /// from that arm.
    pub(super) fn shift_by_unknown(&mut self, octaves: &[f64], from: usize, deviation: f64, drift: Drift) {
        for a in 0..octaves.len() {
            let x = octaves[a] - octaves[from];
            self.mean[a] += drift.slope * x;
            for b in 0..octaves.len() {
                let y = octaves[b] - octaves[from];
                let shared = if x * y > 0.0 { x.abs().min(y.abs()) } else { 0.0 };
                *self.at(a, b) +=
                    deviation.powi(2) + drift.slope_deviation.powi(2) * x * y + drift.walk.powi(2) * shared;
            }
        }
    }

    /// Adds to an arm a variance that is independent of the other arms.
    pub(super) fn add_variance(&mut self, arm: usize, variance: f64) {
        *self.at(arm, arm) += variance;
    }

    pub(super) fn arms(&self) -> usize {
        self.mean.len()
    }

    pub(super) fn mean(&self, arm: usize) -> f64 {
        self.mean[arm]
    }

    pub(super) fn variance(&self, arm: usize) -> f64 {
        self.covariance[arm * self.mean.len() + arm].max(0.0)
    }

    fn at(&mut self, a: usize, b: usize) -> &mut f64 {
        &mut self.covariance[a * self.mean.len() + b]
    }

    fn column(&self, arm: usize) -> Vec<f64> {
        self.covariance.iter().skip(arm).step_by(self.mean.len()).copied().collect()
    }

    /// Conditions the belief on an observation of `arm`: `value`, with noise of the variance `noise`.
    pub(super) fn observe(&mut self, arm: usize, value: f64, noise: f64) {
        let variance = self.variance(arm) + noise;
        self.shift(arm, variance, value - self.mean[arm], 1.0);
    }

    /// Conditions the belief on an observation of `arm` that is above `value`, with noise of the variance `noise`. The
    /// truncated distribution that results is replaced by the Gaussian with the same mean and variance.
    pub(super) fn observe_above(&mut self, arm: usize, value: f64, noise: f64) {
        let variance = self.variance(arm) + noise;
        let z = (value - self.mean[arm]) / variance.sqrt();
        let h = hazard(z);
        self.shift(arm, variance, variance.sqrt() * h, h * (h - z));
    }

    /// Shifts the mean of an observation of `arm`, which has the variance `variance`, by `by`, and lowers this variance
    /// by the fraction `part`. The beliefs about all arms change according to their covariances with `arm`.
    fn shift(&mut self, arm: usize, variance: f64, by: f64, part: f64) {
        if variance <= 0.0 {
            return;
        }
        let column = self.column(arm);
        for (a, c) in column.iter().enumerate() {
            self.mean[a] += c / variance * by;
            for (b, d) in column.iter().enumerate() {
                *self.at(a, b) -= c * d / variance * part;
            }
        }
    }

    /// Draws the deviations of all arms from their means jointly, with the covariances of the belief (Cholesky
    /// decomposition).
    pub(super) fn draw(&self, generator: &mut Generator) -> Vec<f64> {
        let n = self.mean.len();
        let mut factor = self.covariance.clone();
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| factor[i * n + k] * factor[j * n + k]).sum();
                let rest = factor[i * n + j] - sum;
                factor[i * n + j] = if i == j { rest.max(1e-9).sqrt() } else { rest / factor[j * n + j] };
            }
        }
        let normals: Vec<f64> = (0..n).map(|_| generator.normal()).collect();
        (0..n).map(|i| (0..=i).map(|k| factor[i * n + k] * normals[k]).sum()).collect()
    }
}

/// Returns φ(z)/(1 − Φ(z)) of the standard normal distribution: the mean of all values above z.
///
/// Uses the series Φ(z) = ½ + φ(z)·(z + z³/3 + z⁵/(3·5) + …) below 2, and the continued fraction z + 1/(z + 2/(z + 3/(z
/// + …))) above.
pub(super) fn hazard(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z < -8.0 {
        return density;
    }
    if z > 2.0 {
        return (1..60).rev().fold(z, |rest, k| z + f64::from(k) / rest);
    }
    let (mut term, mut sum, mut odd) = (z, z, 3.0);
    while term.abs() > 1e-17 * sum.abs() {
        term *= z * z / odd;
        sum += term;
        odd += 2.0;
    }
    density / (0.5 - density * sum)
}

/// Returns P(x > later | x > earlier) of the standard normal distribution: (1 − Φ(later))/(1 − Φ(earlier)).
pub(super) fn survival(earlier: f64, later: f64) -> f64 {
    // Below −8, all but 10⁻¹⁵ of the probability lies above, and squares would overflow.
    let (earlier, later) = (earlier.max(-8.0), later.max(-8.0));
    (0.5 * (earlier - later) * (earlier + later)).exp() * hazard(earlier) / hazard(later)
}
