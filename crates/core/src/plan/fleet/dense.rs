//! Cholesky factorisation of a small dense symmetric system.

/// Cholesky factor L of a symmetric matrix L·Lᵀ that is positive definite except for rounding.
pub(super) struct Cholesky {
    lower: Vec<f64>,
    n: usize,
}

impl Cholesky {
    /// Factors a matrix, given by its lower triangle row by row. An unknown of the system whose pivot is lost to
    /// rounding becomes 0.
    pub(super) fn new(mut matrix: Vec<f64>, n: usize) -> Self {
        for i in 0..n {
            let before = matrix[i * n + i];
            for j in 0..=i {
                let (head, row) = matrix.split_at_mut(i * n);
                let row = &mut row[..=i];
                let other = if j < i { &head[j * n..=j * n + j] } else { &row[..] };
                let dot: f64 = other[..j].iter().zip(&row[..j]).map(|(a, b)| a * b).sum();
                let rest = row[j] - dot;
                if j < i {
                    row[j] = rest / head[j * n + j];
                } else {
                    let lost = rest <= before * 1e-14 || rest <= 0.0;
                    row[i] = if lost { f64::INFINITY } else { rest.sqrt() };
                }
            }
        }
        Self { lower: matrix, n }
    }

    /// Solves the system for the right side in `x`, and overwrites `x` with the solution.
    pub(super) fn solve(&self, x: &mut [f64]) {
        let n = self.n;
        for i in 0..n {
            let dot: f64 = self.lower[i * n..i * n + i].iter().zip(&x[..i]).map(|(l, x)| l * x).sum();
            x[i] = (x[i] - dot) / self.lower[i * n + i];
        }
        for i in (0..n).rev() {
            x[i] /= self.lower[i * n + i];
            let xi = x[i];
            x[..i].iter_mut().zip(&self.lower[i * n..i * n + i]).for_each(|(x, l)| *x -= l * xi);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_solves() {
        let (n, lower) = (3, vec![4.0, 0.0, 0.0, 2.0, 5.0, 0.0, 1.0, 3.0, 6.0]);
        let full = [[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 6.0]];
        let mut x = [7.0, 10.0, 10.0];
        Cholesky::new(lower, n).solve(&mut x);
        let back: Vec<f64> = full.iter().map(|row| row.iter().zip(&x).map(|(a, x)| a * x).sum()).collect();
        assert!(back.iter().zip([7.0, 10.0, 10.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{back:?}");
    }

    #[test]
    fn an_unknown_that_does_not_matter_is_zero() {
        let mut x = [2.0, 2.0];
        Cholesky::new(vec![1.0, 0.0, 1.0, 1.0], 2).solve(&mut x);
        assert_eq!(x, [2.0, 0.0]);
    }
}
