//! The relaxation of the joint problem as a general linear programme, solved with `microlp` through `good_lp`.
//!
//! `microlp` reports no prices (dual values) of the rows. The dual programme, whose variables are these prices, is
//! therefore solved as well; equal optima of both programmes prove both optimal.

use std::panic::catch_unwind;

use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution as _, SolverModel, Variable, WithTimeLimit, constraint,
    microlp, variable,
};

use super::iterate::Method;
use super::model::ROUNDING;
use super::rows::Row;

/// Time limit for one programme in seconds, because the simplex method may cycle.
const TIME_LIMIT_S: f64 = 20.0;

/// A linear programme: blocks of non-negative variables that add up to 1 within each block, and rows (constraints) that
/// couple the blocks.
#[derive(Clone, Debug)]
pub struct Programme {
    /// For each block, the coefficients of its variables.
    pub blocks: Vec<Vec<Column>>,
    /// Rows that couple the blocks.
    pub rows: Vec<Elastic>,
}

/// Coefficients of one variable in the objective and in the rows.
#[derive(Clone, Debug)]
pub struct Column {
    /// Coefficient in the minimised objective.
    pub cost: f64,
    /// Rows in which the variable occurs: first the row's index in [`Programme::rows`], second the variable's
    /// coefficient.
    pub rows: Vec<(usize, f64)>,
}

/// A row `used + below − above = right` (a constraint that may be missed at a cost): `used` is the sum of the
/// programme's variables times their coefficients, `below` and `above` are non-negative variables of the row.
#[derive(Clone, Copy, Debug)]
pub struct Elastic {
    /// Right side of the row.
    pub right: f64,
    /// Cost of each unit by which `used` is below the right side.
    pub below: f64,
    /// Cost of each unit by which `used` is above the right side.
    pub above: f64,
}

/// Optimum of a programme and of its dual.
pub(super) struct Optimum {
    /// Values of the variables, block after block.
    pub(super) parts: Vec<f64>,
    /// Price (dual value) of each row.
    pub(super) prices: Vec<f64>,
}

impl Programme {
    /// Creates the programme of a relaxation. Its rows are those of the method, then those of the caps that can bind.
    pub(super) fn new(method: &Method<'_>) -> Self {
        let row = |row: &Row| Elastic { right: row.right, below: row.below.cost, above: row.above.cost };
        let rows = method.rows.iter().chain(method.caps.iter().flatten()).map(row).collect();
        let mut next_cap = method.rows.len();
        let cap_rows: Vec<Option<usize>> = method
            .caps
            .iter()
            .map(|cap| {
                cap.as_ref()?;
                next_cap += 1;
                Some(next_cap - 1)
            })
            .collect();
        let block = |(job, t): (usize, usize)| columns(method, job, t, cap_rows[t]);
        let blocks = method.blocks.iter().enumerate();
        let places = blocks.flat_map(|(job, blocks)| (0..blocks.span.len()).map(move |t| (job, t)));
        Self { blocks: places.map(block).collect(), rows }
    }

    /// Returns the number of variables in all blocks.
    pub fn variables(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }

    /// Solves the programme and its dual. `None` if a coefficient is not finite or `microlp` fails at either programme.
    pub(super) fn solve(&self) -> Option<Optimum> {
        let columns = || self.blocks.iter().flatten();
        let figures = columns().flat_map(|c| c.rows.iter().map(|(_, f)| *f).chain([c.cost]));
        let finite = figures.chain(self.rows.iter().flat_map(|row| [row.right, row.below, row.above]));
        if finite.into_iter().any(|figure| !figure.is_finite()) {
            return None;
        }
        // `microlp` panics if its own intermediate values are not finite.
        let solved = catch_unwind(|| {
            let parts = self.primal()?;
            let prices = self.dual(&parts)?;
            Ok::<_, ResolutionError>(Optimum { parts, prices })
        });
        solved.ok()?.ok()
    }

    fn primal(&self) -> Result<Vec<f64>, ResolutionError> {
        let mut variables = ProblemVariables::new();
        let mut cost = Expression::with_capacity(self.variables() + 2 * self.rows.len());
        let mut used = vec![Expression::default(); self.rows.len()];
        let mut add = |of: f64, rows: &[(usize, f64)], used: &mut [Expression]| {
            let variable = variables.add(variable().min(0.0));
            cost.add_mul(of, variable);
            rows.iter().for_each(|(row, factor)| used[*row].add_mul(*factor, variable));
            variable
        };
        let blocks: Vec<Vec<Variable>> = self
            .blocks
            .iter()
            .map(|block| block.iter().map(|column| add(column.cost, &column.rows, &mut used)).collect())
            .collect();
        for (place, row) in self.rows.iter().enumerate() {
            add(row.below, &[(place, 1.0)], &mut used);
            add(row.above, &[(place, -1.0)], &mut used);
        }
        let mut programme = variables.minimise(cost).using(microlp).with_time_limit(TIME_LIMIT_S);
        for block in &blocks {
            let all: Expression = block.iter().sum();
            programme = programme.with(constraint!(all == 1.0));
        }
        for (used, row) in used.into_iter().zip(&self.rows) {
            programme = programme.with(constraint!(used == row.right));
        }
        let solved = programme.solve()?;
        Ok(blocks.iter().flatten().map(|variable| solved.value(*variable)).collect())
    }

    /// Returns the prices of the rows at the optimum, in which the variables have the values `parts`. Few variables of
    /// a block need a constraint in the dual programme: the used ones, and those that turn out to be cheaper at the
    /// prices computed without them.
    fn dual(&self, parts: &[f64]) -> Result<Vec<f64>, ResolutionError> {
        let mut parts = parts.iter();
        let used = |block: &Vec<Column>| parts.by_ref().take(block.len()).map(|part| *part > ROUNDING).collect();
        let mut bounding: Vec<Vec<bool>> = self.blocks.iter().map(used).collect();
        loop {
            let prices = self.prices(&bounding)?;
            let mut added = false;
            for (block, bounding) in self.blocks.iter().zip(&mut bounding) {
                let reduced: Vec<f64> = block.iter().map(|column| column.reduced_cost(&prices)).collect();
                let known = (0..block.len()).filter(|l| bounding[*l]).map(|l| reduced[l]).fold(f64::INFINITY, f64::min);
                let least = (0..block.len()).min_by(|a, b| reduced[*a].total_cmp(&reduced[*b]));
                if let Some(least) = least.filter(|l| reduced[*l] < known - ROUNDING) {
                    (bounding[least], added) = (true, true);
                }
            }
            if !added {
                return Ok(prices);
            }
        }
    }

    /// Returns the prices of the rows, from the dual programme with constraints only for the variables marked in
    /// `bounding`.
    fn prices(&self, bounding: &[Vec<bool>]) -> Result<Vec<f64>, ResolutionError> {
        let mut variables = ProblemVariables::new();
        let mut total = Expression::with_capacity(self.blocks.len() + self.rows.len());
        let mut prices = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let price = variables.add(variable().min(-row.above).max(row.below));
            total.add_mul(row.right, price);
            prices.push(price);
        }
        let mut bounds = Vec::new();
        for (block, bounding) in self.blocks.iter().zip(bounding) {
            let columns: Vec<&Column> =
                block.iter().zip(bounding).filter(|(_, bounds)| **bounds).map(|c| c.0).collect();
            if let [column] = columns[..] {
                column.rows.iter().for_each(|(row, factor)| total.add_mul(-factor, prices[*row]));
                continue;
            }
            let worth = variables.add(variable());
            total.add_mul(1.0, worth);
            for column in columns {
                let mut least = Expression::from(worth);
                column.rows.iter().for_each(|(row, factor)| least.add_mul(*factor, prices[*row]));
                bounds.push(constraint!(least <= column.cost));
            }
        }
        let programme = variables.maximise(total).using(microlp).with_time_limit(TIME_LIMIT_S);
        let solved = programme.with_all(bounds).solve()?;
        Ok(prices.into_iter().map(|price| solved.value(price)).collect())
    }
}

impl Column {
    /// Returns the variable's reduced cost: its cost less the value of its coefficients at the prices of the rows.
    fn reduced_cost(&self, prices: &[f64]) -> f64 {
        self.cost - self.rows.iter().map(|(row, factor)| factor * prices[*row]).sum::<f64>()
    }
}

/// Returns the columns (variables) of the block of one job in one slot; `cap` is the index of the row of the slot's
/// cap.
fn columns(method: &Method<'_>, job: usize, t: usize, cap: Option<usize>) -> Vec<Column> {
    let [of_limit, of_rate, of_own, of_shared] = method.factors(job, t);
    let blocks = &method.blocks[job];
    let last = blocks.is_last(t);
    let (limit, rate, power) = method.model.jobs[job].features(t, last);
    let column = |l: usize| {
        let ended = last && l == 0;
        let rows = [
            (cap, of_limit * limit[l]),
            (Some(job), of_rate * rate[l]),
            (method.budget_row[job], of_own * power[l]),
            (method.shared_row(t), of_shared * power[l]),
        ];
        Column {
            cost: blocks.watt[t] * power[l] + if ended { 0.0 } else { blocks.time[t] },
            rows: rows.into_iter().filter_map(|(row, factor)| Some((row?, factor))).filter(|r| r.1 != 0.0).collect(),
        }
    };
    (0..limit.len()).map(column).collect()
}
