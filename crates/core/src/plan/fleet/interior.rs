//! Primal–dual interior-point method for the relaxation in which each slot keeps its cap on average and the slot in
//! which each job ends is given (predictor and corrector: S. Mehrotra, "On the implementation of a primal–dual interior
//! point method", SIAM J. Optim. 2, 1992).
//!
//! A *block* is one job in one slot; its variables are the shares of the slot's time at each point and add up to 1.
//! Blocks are coupled by a few *rows*: a cap per slot, the work of each job, carbon budgets. Any row may be missed at a
//! penalty, so there is always a strictly feasible solution. The *price* of a row is its dual value.

use super::iterate::Method;
use super::newton::Step;
use super::rows::Row;

/// Duality gap, relative to the objective, and miss of the scaled rows at which the method stops.
const CLOSE: f64 = 1e-9;
/// Duality gap and miss, measured as for [`CLOSE`], up to which an iterate counts as solved if rounding keeps the
/// method from converging.
pub(super) const CLOSE_ENOUGH: f64 = 1e-6;
/// Maximum number of iterations.
pub(super) const MOST_ITERATIONS: usize = 100;
/// Fraction of the longest possible step that is taken, so that all variables stay positive.
const SHORT_OF_BOUNDARY: f64 = 0.99;

/// Prices (dual values) of the relaxation's constraints.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// Price of each job's work, λ, in gCO2e per sample.
    pub(super) work: Vec<f64>,
    /// Price of each slot's cap in gCO2e per watt-second of limit; not negative.
    pub(super) cap: Vec<f64>,
    /// Price of each job's own carbon budget in grams of cost per gram of carbon; not negative.
    pub(super) budget: Vec<f64>,
    /// Price of each shared carbon budget in the same unit as `budget`; not negative. `shared` has for each slot the
    /// price of the shared budget that the slot belongs to.
    pub(super) budgets: Vec<f64>,
    pub(super) shared: Vec<f64>,
}

/// Result of the interior-point method.
pub(super) struct Interior {
    /// For each job, the shares of the slots' time at each of its points, slot after slot; the last value is the share
    /// of the last slot's time after the job's end.
    pub(super) parts: Vec<Vec<f64>>,
    pub(super) prices: Prices,
    /// Fraction of each job's work that is not done.
    pub(super) missing: Vec<f64>,
    /// Surplus of each job, as a fraction of its work, if even the slowest points before its last slot do more than its
    /// work.
    pub(super) surplus: Vec<f64>,
    /// Excess over each job's own carbon budget in grams; `over_shared` is the excess over each shared budget.
    pub(super) over_budget: Vec<f64>,
    pub(super) over_shared: Vec<f64>,
    /// Value of the objective including penalties, in the unit [`Method::scale`].
    pub(super) objective: f64,
    /// True if the method converged.
    pub(super) solved: bool,
}

/// Distance of an iterate from the optimum.
pub(super) struct Measure {
    /// Duality gap: Σ value × reduced cost over all variables; `variables` is the number of terms in this sum.
    product: f64,
    variables: usize,
    /// Largest miss of a row.
    infeasible: f64,
    pub(super) objective: f64,
}

impl Measure {
    /// Returns the larger of the duality gap, relative to the objective, and the largest miss of a row.
    pub(super) fn off(&self) -> f64 {
        (self.product / (1.0 + self.objective.abs())).max(self.infeasible)
    }
}

impl Method<'_> {
    /// Sets a starting point whose shares add up to 1 in each block and whose reduced costs are positive.
    fn start(&mut self) {
        self.reduce_costs();
        let (mut product, mut count) = (0.0, 0);
        for blocks in &mut self.blocks {
            for t in 0..blocks.span.len() {
                let range = blocks.range(t);
                let z = &mut blocks.z[range.clone()];
                let least = z.iter().fold(f64::INFINITY, |a, b| a.min(*b));
                let most = z.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                let part = 1.0 / z.len() as f64;
                for z in z.iter_mut() {
                    *z += (most - least).max(0.1) - least;
                    product += *z * part;
                }
                count += range.len();
                blocks.y[range].fill(part);
            }
        }
        let mu = product / count.max(1) as f64;
        self.rows.iter_mut().chain(self.caps.iter_mut().flatten()).for_each(|row| row.centre(mu));
    }

    /// Computes the reduced costs of the blocks' variables from the rows' prices, up to a constant per block.
    pub(super) fn reduce_costs(&mut self) {
        let prices = Step {
            cap: self.caps.iter().map(|cap| cap.map_or(0.0, |row| row.dual)).collect(),
            row: self.rows.iter().map(|row| row.dual).collect(),
        };
        for j in 0..self.blocks.len() {
            for t in 0..self.blocks[j].span.len() {
                let [sg, sr, sp] = self.slopes(&prices, j, t);
                let blocks = &mut self.blocks[j];
                let (range, last) = (blocks.range(t), blocks.is_last(t));
                let (watt, time) = (blocks.watt[t], blocks.time[t]);
                let (g, r, p) = self.model.jobs[j].features(t, last);
                for (l, z) in blocks.z[range].iter_mut().enumerate() {
                    let time = if last && l == 0 { 0.0 } else { time };
                    *z = (watt - sp) * p[l] + time - sg * g[l] - sr * r[l];
                }
            }
        }
    }

    /// Iterates until the method converges, rounding or the maximum number of iterations stops it, or `go_on` returns
    /// false.
    pub(super) fn run(mut self, most_iterations: usize, go_on: &dyn Fn() -> bool) -> Interior {
        self.start();
        // Rounding can make late steps worse, so the iterate closest to the optimum is kept.
        let mut closest = f64::INFINITY;
        let mut kept = None;
        for _ in 0..most_iterations {
            let measure = self.measure();
            let Measure { product, variables, objective, .. } = measure;
            let off = measure.off();
            if off <= CLOSE {
                return self.finish(objective, true);
            }
            let lost = off.is_nan() || off > 1e3 * closest;
            if (lost && closest <= CLOSE_ENOUGH) || !go_on() {
                break;
            }
            if off < closest && off <= CLOSE_ENOUGH {
                kept = Some((objective, self.blocks.clone(), self.rows.clone(), self.caps.clone()));
            }
            closest = closest.min(off);
            let dense = self.assemble();
            // The predictor step leads towards the optimum.
            let predictor = self.solve(&dense, |row| row.right);
            self.set_bases(&predictor);
            let (primal, dual, sums) = self.step_lengths(&predictor);
            let after = sums[0] + dual * sums[1] + primal * sums[2] + primal * dual * sums[3];
            let target = (after / product).clamp(0.0, 1.0).powi(3) * product / variables as f64;
            // The corrector step also leads towards the centre, and includes the predictor's second-order terms.
            self.correct(&predictor, target);
            let step = self.solve(&dense, Row::corrected);
            self.set_bases(&step);
            self.advance(&step);
        }
        let Some((objective, blocks, rows, caps)) = kept else { return self.finish(f64::NAN, false) };
        (self.blocks, self.rows, self.caps) = (blocks, rows, caps);
        self.finish(objective, true)
    }

    pub(super) fn measure(&self) -> Measure {
        let (mut product, mut variables, mut objective, mut infeasible) = (0.0, 0, 0.0, 0.0_f64);
        let (mut used, mut capped) = (vec![0.0; self.rows.len()], vec![0.0; self.caps.len()]);
        for (j, blocks) in self.blocks.iter().enumerate() {
            variables += blocks.y.len();
            for (t, capped) in capped.iter_mut().enumerate().take(blocks.span.len()) {
                let [fg, fr, fb, fs] = self.factors(j, t);
                let (y, z) = (&blocks.y[blocks.range(t)], &blocks.z[blocks.range(t)]);
                let last = blocks.is_last(t);
                let ended = if last { y[0] } else { 0.0 };
                let (limit, rate, power) = self.model.jobs[j].features(t, last);
                let (mut sum, mut g, mut r, mut p) = (0.0, 0.0, 0.0, 0.0);
                for l in 0..y.len() {
                    product += y[l] * z[l];
                    sum += y[l];
                    g += y[l] * limit[l];
                    r += y[l] * rate[l];
                    p += y[l] * power[l];
                }
                let running = sum - ended;
                infeasible = infeasible.max((sum - 1.0).abs());
                objective += p * blocks.watt[t] + running * blocks.time[t];
                *capped += fg * g;
                used[j] += fr * r;
                self.budget_row[j].into_iter().for_each(|row| used[row] += fb * p);
                self.shared_row(t).into_iter().for_each(|row| used[row] += fs * p);
            }
        }
        let caps = self.caps.iter().zip(&capped).filter_map(|(row, used)| Some((row.as_ref()?, used)));
        for (row, used) in self.rows.iter().zip(&used).chain(caps) {
            infeasible = infeasible.max((row.rest() - used).abs());
            variables += 2;
            for single in [row.below, row.above] {
                product += single.value * single.slack;
                objective += single.value * single.cost;
            }
        }
        Measure { product, variables, infeasible, objective }
    }

    /// Returns first the maximum step of a predictor in the shares, second that in the prices, third the coefficients
    /// of the duality gap after both steps: the constant, and the factors of the step in prices, of the step in shares
    /// and of the product of both.
    fn step_lengths(&self, step: &Step) -> (f64, f64, [f64; 4]) {
        let (mut primal, mut dual) = (1.0_f64, 1.0_f64);
        let mut sums = [0.0; 4];
        for (j, blocks) in self.blocks.iter().enumerate() {
            for t in 0..blocks.span.len() {
                let ([sg, sr, sp], base) = (self.slopes(step, j, t), blocks.base[t]);
                let (range, last) = (blocks.range(t), blocks.is_last(t));
                let (y, z, inverse) =
                    (&blocks.y[range.clone()], &blocks.z[range.clone()], &blocks.inverse[range.clone()]);
                let (g, r, p) = self.model.jobs[j].features(t, last);
                let (mut high, mut low, mut both, mut turned, mut twice) = (0.0_f64, 0.0_f64, 0.0, 0.0, 0.0);
                for l in 0..y.len() {
                    // `turn` is the relative decrease of the reduced cost, and 1 − `turn` that of the share.
                    let turn = (base + sg * g[l] + sr * r[l] + sp * p[l]) * inverse[l];
                    let product = y[l] * z[l];
                    high = high.max(turn);
                    low = low.min(turn);
                    both += product;
                    turned += product * turn;
                    twice += product * turn * turn;
                }
                for (sum, part) in sums.iter_mut().zip([both, -turned, turned - both, turned - twice]) {
                    *sum += part;
                }
                dual = dual.max(high);
                primal = primal.max(1.0 - low);
            }
        }
        let caps = self.caps.iter().zip(&step.cap).filter_map(|(row, rise)| Some((row.as_ref()?, *rise)));
        for (row, rise) in self.rows.iter().zip(step.row.iter().copied()).chain(caps) {
            for (single, turn) in row.turns(rise) {
                let both = single.value * single.slack;
                let parts = [both, -both * turn, both * (turn - 1.0), both * turn * (1.0 - turn)];
                sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
                dual = dual.max(turn);
                primal = primal.max(1.0 - turn);
            }
        }
        (1.0 / primal, 1.0 / dual, sums)
    }

    /// Prepares the corrector: computes its addition to each variable, and the right sides of its Newton system.
    /// `target` is the product of value and reduced cost that the corrector aims at.
    fn correct(&mut self, predictor: &Step, target: f64) {
        for j in 0..self.blocks.len() {
            for t in 0..self.blocks[j].span.len() {
                let [sg, sr, sp] = self.slopes(predictor, j, t);
                let blocks = &mut self.blocks[j];
                let (range, last) = (blocks.range(t), blocks.is_last(t));
                let (base, mean) = (blocks.base[t], blocks.mean[t]);
                let (y, inverse) = (&blocks.y[range.clone()], &blocks.inverse[range.clone()]);
                let extra = &mut blocks.extra[range];
                let (g, r, p) = self.model.jobs[j].features(t, last);
                let mut contribution = [0.0; 3];
                let mut sum = 0.0;
                for l in 0..y.len() {
                    let turn = (base + sg * g[l] + sr * r[l] + sp * p[l]) * inverse[l];
                    let added = target * inverse[l] + y[l] * turn * (turn - 1.0);
                    extra[l] = added;
                    sum += added;
                    contribution[0] += added * (g[l] - mean[0]);
                    contribution[1] += added * (r[l] - mean[1]);
                    contribution[2] += added * (p[l] - mean[2]);
                }
                blocks.right[t] = 1.0 - sum;
                blocks.contribution[t] =
                    [mean[0] + contribution[0], mean[1] + contribution[1], mean[2] + contribution[2]];
            }
        }
        self.rows.iter_mut().zip(&predictor.row).for_each(|(row, rise)| row.correct(*rise, target));
        let caps = self.caps.iter_mut().zip(&predictor.cap);
        caps.for_each(|(row, rise)| row.iter_mut().for_each(|row| row.correct(*rise, target)));
    }

    /// Takes as much of a step as keeps all variables positive.
    fn advance(&mut self, step: &Step) {
        let (mut primal, mut dual) = (SHORT_OF_BOUNDARY, SHORT_OF_BOUNDARY);
        for (j, blocks) in self.blocks.iter().enumerate() {
            for t in 0..blocks.span.len() {
                let ([sg, sr, sp], base) = (self.slopes(step, j, t), blocks.base[t]);
                let (range, last) = (blocks.range(t), blocks.is_last(t));
                let (y, inverse) = (&blocks.y[range.clone()], &blocks.inverse[range.clone()]);
                let extra = &blocks.extra[range];
                let (g, r, p) = self.model.jobs[j].features(t, last);
                for l in 0..y.len() {
                    let turn = (base + sg * g[l] + sr * r[l] + sp * p[l]) * inverse[l];
                    dual = dual.max(turn);
                    primal = primal.max(1.0 - turn - extra[l] / y[l]);
                }
            }
        }
        let caps = self.caps.iter().zip(&step.cap).filter_map(|(row, rise)| Some((row.as_ref()?, *rise)));
        for (row, rise) in self.rows.iter().zip(step.row.iter().copied()).chain(caps) {
            for (single, turn) in row.turns(rise) {
                dual = dual.max(turn);
                primal = primal.max(1.0 - turn - single.extra / single.value);
            }
        }
        let (primal, dual) = (SHORT_OF_BOUNDARY / primal, SHORT_OF_BOUNDARY / dual);
        for j in 0..self.blocks.len() {
            for t in 0..self.blocks[j].span.len() {
                let [sg, sr, sp] = self.slopes(step, j, t);
                let blocks = &mut self.blocks[j];
                let (range, last, base) = (blocks.range(t), blocks.is_last(t), blocks.base[t]);
                let (y, z) = (&mut blocks.y[range.clone()], &mut blocks.z[range.clone()]);
                let (inverse, extra) = (&blocks.inverse[range.clone()], &blocks.extra[range]);
                let (g, r, p) = self.model.jobs[j].features(t, last);
                for l in 0..y.len() {
                    let fall = base + sg * g[l] + sr * r[l] + sp * p[l];
                    y[l] += primal * (y[l] * (fall * inverse[l] - 1.0) + extra[l]);
                    z[l] -= dual * fall;
                }
            }
        }
        self.rows.iter_mut().zip(&step.row).for_each(|(row, rise)| row.advance(*rise, primal, dual));
        let caps = self.caps.iter_mut().zip(&step.cap);
        caps.for_each(|(row, rise)| row.iter_mut().for_each(|row| row.advance(*rise, primal, dual)));
    }

    /// Returns the current iterate as the result, in physical units.
    pub(super) fn finish(self, objective: f64, solved: bool) -> Interior {
        let work = |j: usize| self.rows[j].dual * self.scale / self.model.jobs[j].work;
        let over = |row: Option<usize>| row.map_or(0.0, |row| self.rows[row].above.value);
        let price = |row: Option<usize>, scale: f64| row.map_or(0.0, |row| -self.rows[row].dual * self.scale / scale);
        let jobs = 0..self.blocks.len();
        let shared = self.first_shared..self.rows.len();
        let cap = |(row, scale): (&Option<Row>, &f64)| row.map_or(0.0, |row| (-row.dual * self.scale * scale).max(0.0));
        Interior {
            prices: Prices {
                work: jobs.clone().map(work).collect(),
                cap: self.caps.iter().zip(&self.cap_scale).map(cap).collect(),
                budget: jobs.clone().map(|j| price(self.budget_row[j], self.budget_scale[j]).max(0.0)).collect(),
                shared: (0..self.caps.len()).map(|t| price(self.shared_row(t), self.shared_scale).max(0.0)).collect(),
                budgets: shared.clone().map(|row| price(Some(row), self.shared_scale).max(0.0)).collect(),
            },
            missing: jobs.clone().map(|j| self.rows[j].below.value).collect(),
            surplus: jobs.clone().map(|j| self.rows[j].above.value).collect(),
            over_budget: jobs.map(|j| over(self.budget_row[j]) * self.budget_scale[j]).collect(),
            over_shared: shared.map(|row| over(Some(row)) * self.shared_scale).collect(),
            objective,
            solved,
            parts: self.blocks.iter().zip(&self.model.jobs).map(|(blocks, job)| blocks.parts(job)).collect(),
        }
    }
}
