//! Newton system of the interior-point method ([`super::interior`]). First the blocks (a block is one job in one slot)
//! are eliminated, which leaves the covariance of each block's limit, throughput and power; then the caps are
//! eliminated, since no two slots share a cap. A dense system with one row per job and per carbon budget remains.

use super::dense::Cholesky;
use super::iterate::Method;
use super::rows::Row;

/// Newton step: increase of the prices (dual values) of the caps and of the other rows.
pub(super) struct Step {
    pub(super) cap: Vec<f64>,
    pub(super) row: Vec<f64>,
}

impl Method<'_> {
    /// Computes the weights of all blocks, and factors the system that remains after eliminating blocks and caps.
    pub(super) fn assemble(&mut self) -> Cholesky {
        let n = self.rows.len();
        let mut dense = vec![0.0; n * n];
        for (i, row) in self.rows.iter().enumerate() {
            dense[i * n + i] = row.weight();
        }
        for (t, cap) in self.caps.iter().enumerate() {
            self.pivots[t] = cap.as_ref().map_or(0.0, Row::weight);
            self.coupling[t].fill(0.0);
        }
        for j in 0..self.blocks.len() {
            for t in 0..self.blocks[j].span.len() {
                let [fg, fr, fb, fs] = self.factors(j, t);
                let [gg, gr, rr] = self.weigh(j, t);
                let capped = self.caps[t].is_some();
                if capped {
                    self.pivots[t] += fg * fg * gg;
                    self.coupling[t][j] += fg * fr * gr;
                }
                dense[j * n + j] += fr * fr * rr;
                let (own, shared) = (self.budget_row[j], self.shared_row(t));
                if own.is_none() && shared.is_none() {
                    continue;
                }
                let [gp, rp, pp] = self.weigh_power(j, t);
                for (row, f) in [(own, fb), (shared, fs)] {
                    let Some(row) = row else { continue };
                    if capped {
                        self.coupling[t][row] += fg * f * gp;
                    }
                    dense[row * n + j] += fr * f * rp;
                    dense[row * n + row] += f * f * pp;
                }
                if let (Some(own), Some(shared)) = (own, shared) {
                    dense[shared * n + own] += fb * fs * pp;
                }
            }
        }
        for (coupling, pivot) in self.coupling.iter().zip(&self.pivots) {
            for (i, c) in coupling.iter().enumerate().filter(|(_, c)| **c != 0.0) {
                let factor = c / pivot;
                let row = &mut dense[i * n..=i * n + i];
                row.iter_mut().zip(coupling).for_each(|(d, c)| *d -= factor * c);
            }
        }
        Cholesky::new(dense, n)
    }

    /// Updates a block's means, the sum of its weights y/z (share of time / reduced cost) and the predictor's right
    /// sides. Returns the weighted covariances of limit with limit, limit with throughput, and throughput with
    /// throughput.
    fn weigh(&mut self, j: usize, t: usize) -> [f64; 3] {
        let blocks = &mut self.blocks[j];
        let (range, last) = (blocks.range(t), blocks.is_last(t));
        let (y, z) = (&blocks.y[range.clone()], &blocks.z[range.clone()]);
        let inverse = &mut blocks.inverse[range];
        let (g, r, p) = self.model.jobs[j].features(t, last);
        let (mut sum, mut mg, mut mr, mut mp) = (0.0, 0.0, 0.0, 0.0);
        for l in 0..y.len() {
            inverse[l] = 1.0 / z[l];
            let weight = y[l] * inverse[l];
            sum += weight;
            mg += weight * g[l];
            mr += weight * r[l];
            mp += weight * p[l];
        }
        let mean = [mg / sum, mr / sum, mp / sum];
        let (mut gg, mut gr, mut rr) = (0.0, 0.0, 0.0);
        for l in 0..y.len() {
            let weight = y[l] * inverse[l];
            let (dg, dr) = (g[l] - mean[0], r[l] - mean[1]);
            gg += weight * dg * dg;
            gr += weight * dg * dr;
            rr += weight * dr * dr;
        }
        (blocks.mean[t], blocks.weight[t]) = (mean, sum);
        (blocks.right[t], blocks.contribution[t]) = (1.0, mean);
        [gg, gr, rr]
    }

    /// Returns the weighted covariances of a block's power with its limit, with its throughput and with its power.
    fn weigh_power(&self, j: usize, t: usize) -> [f64; 3] {
        let blocks = &self.blocks[j];
        let (range, [mg, mr, mp]) = (blocks.range(t), blocks.mean[t]);
        let (limit, rate, power) = self.model.jobs[j].features(t, blocks.is_last(t));
        let weights = blocks.y[range.clone()].iter().zip(&blocks.inverse[range]);
        let (mut gp, mut rp, mut pp) = (0.0, 0.0, 0.0);
        for (l, (y, inverse)) in weights.enumerate() {
            let weighed = y * inverse * (power[l] - mp);
            gp += weighed * (limit[l] - mg);
            rp += weighed * (rate[l] - mr);
            pp += weighed * (power[l] - mp);
        }
        [gp, rp, pp]
    }

    /// Returns the step in prices for the blocks' current right sides; `right` gives the right side of each row.
    pub(super) fn solve(&self, dense: &Cholesky, right: fn(&Row) -> f64) -> Step {
        let mut row: Vec<f64> = self.rows.iter().map(right).collect();
        let mut cap: Vec<f64> = self.caps.iter().map(|cap| cap.as_ref().map_or(0.0, right)).collect();
        for (j, blocks) in self.blocks.iter().enumerate() {
            for (t, [g, r, p]) in blocks.contribution.iter().enumerate() {
                let [fg, fr, fb, fs] = self.factors(j, t);
                cap[t] -= fg * g;
                row[j] -= fr * r;
                self.budget_row[j].into_iter().for_each(|own| row[own] -= fb * p);
                self.shared_row(t).into_iter().for_each(|shared| row[shared] -= fs * p);
            }
        }
        for (t, coupling) in self.coupling.iter().enumerate().filter(|(_, c)| !c.is_empty()) {
            let factor = cap[t] / self.pivots[t];
            row.iter_mut().zip(coupling).for_each(|(r, c)| *r -= factor * c);
        }
        dense.solve(&mut row);
        for (t, coupling) in self.coupling.iter().enumerate() {
            let coupled: f64 = coupling.iter().zip(&row).map(|(c, r)| c * r).sum();
            cap[t] = if coupling.is_empty() { 0.0 } else { (cap[t] - coupled) / self.pivots[t] };
        }
        Step { cap, row }
    }

    /// Returns by how much a step lowers a block's reduced costs per unit of limit, of throughput and of power.
    pub(super) fn slopes(&self, step: &Step, j: usize, t: usize) -> [f64; 3] {
        let [fg, fr, fb, fs] = self.factors(j, t);
        let own = self.budget_row[j].map_or(0.0, |row| fb * step.row[row]);
        let shared = self.shared_row(t).map_or(0.0, |row| fs * step.row[row]);
        [fg * step.cap[t], fr * step.row[j], own + shared]
    }

    /// Stores in each block the part of a step's decrease of reduced costs that is the same for all variables of the
    /// block.
    pub(super) fn set_bases(&mut self, step: &Step) {
        for j in 0..self.blocks.len() {
            for t in 0..self.blocks[j].span.len() {
                let [sg, sr, sp] = self.slopes(step, j, t);
                let blocks = &mut self.blocks[j];
                let [g, r, p] = blocks.mean[t];
                blocks.base[t] = blocks.right[t] / blocks.weight[t] - (sg * g + sr * r + sp * p);
            }
        }
    }
}
