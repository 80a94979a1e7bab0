//! Quantiles of Student's distribution.

/// The 97.5 % quantile of the standard normal distribution.
pub(super) const NORMAL: f64 = 1.959_964;

/// The 97.5 % quantile of Student's distribution, for three degrees of freedom and more; for fewer it is asked as for
/// three. The expansion of Abramowitz and Stegun, 26.7.5: off by less than a part in 500.
pub fn student(freedom: f64) -> f64 {
    const TERMS: [f64; 4] = [
        (NORMAL * NORMAL * NORMAL + NORMAL) / 4.0,
        (5.0 * odd(5) + 16.0 * odd(3) + 3.0 * NORMAL) / 96.0,
        (3.0 * odd(7) + 19.0 * odd(5) + 17.0 * odd(3) - 15.0 * NORMAL) / 384.0,
        (79.0 * odd(9) + 776.0 * odd(7) + 1482.0 * odd(5) - 1920.0 * odd(3) - 945.0 * NORMAL) / 92_160.0,
    ];
    let each = 1.0 / freedom.max(LEAST_FREEDOM);
    TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * each) + NORMAL
}

/// With fewer degrees of freedom an error is not known at all.
pub const LEAST_FREEDOM: f64 = 3.0;

/// A power of the normal quantile.
const fn odd(power: u32) -> f64 {
    let mut product = 1.0;
    let mut i = 0;
    while i < power {
        product *= NORMAL;
        i += 1;
    }
    product
}

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
}
