//! Quantiles of Student's t-distribution.

/// The 97.5 % quantile of the standard normal distribution.
pub(super) const NORMAL: f64 = 1.959_964;

/// The 99.5 % quantile of the standard normal distribution.
const RARE: f64 = 2.575_829;

/// Returns the 97.5 % quantile of Student's t-distribution for at least three degrees of freedom, with a relative error
/// below 1/500. Fewer degrees of freedom count as three.
pub fn student(freedom: f64) -> f64 {
    quantile(NORMAL, freedom)
}

/// Returns the 99.5 % quantile of Student's t-distribution with a relative error below 1/100, otherwise as [`student`].
pub(super) fn student_rare(freedom: f64) -> f64 {
    quantile(RARE, freedom)
}

/// Converts a quantile of the normal distribution into one of Student's: Abramowitz and Stegun, 26.7.5.
fn quantile(normal: f64, freedom: f64) -> f64 {
    let odd = |power: i32| normal.powi(power);
    let terms = [
        (odd(3) + normal) / 4.0,
        (5.0 * odd(5) + 16.0 * odd(3) + 3.0 * normal) / 96.0,
        (3.0 * odd(7) + 19.0 * odd(5) + 17.0 * odd(3) - 15.0 * normal) / 384.0,
        (79.0 * odd(9) + 776.0 * odd(7) + 1482.0 * odd(5) - 1920.0 * odd(3) - 945.0 * normal) / 92_160.0,
    ];
    let each = 1.0 / freedom.max(LEAST_FREEDOM);
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) * each) + normal
}

/// Minimum degrees of freedom for which quantiles are computed.
pub const LEAST_FREEDOM: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, quantile) in
            [(3.0, 3.182), (4.0, 2.776), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (120.0, 1.980), (1e9, 1.960)]
        {
            assert!((student(freedom) / quantile - 1.0).abs() < 0.002, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn rare_quantiles_are_those_of_the_tables() {
        for (freedom, quantile) in
            [(3.0, 5.841), (4.0, 4.604), (5.0, 4.032), (10.0, 3.169), (30.0, 2.750), (1e9, 2.576)]
        {
            assert!((student_rare(freedom) / quantile - 1.0).abs() < 0.01, "{freedom}: {}", student_rare(freedom));
        }
    }
}
