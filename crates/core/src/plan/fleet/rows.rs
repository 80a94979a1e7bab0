//! Parts of the state of the interior-point method ([`super::interior`]): rows (constraints that couple blocks), and
//! the blocks of one job (one block per slot).

use std::ops::Range;

use super::model::{End, Job, Model};

/// A row (constraint) that couples blocks, `used + below − above = right`, where `used` is the sum over the blocks.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) right: f64,
    /// Slack variable: at the optimum, the right-hand side minus `used` where that is positive.
    pub(super) below: Single,
    /// Surplus variable: at the optimum, `used` minus the right-hand side where that is positive.
    pub(super) above: Single,
    pub(super) dual: f64,
}

/// One of a row's own two variables, which are the amounts below and above the right side.
#[derive(Clone, Copy)]
pub(super) struct Single {
    pub(super) value: f64,
    pub(super) cost: f64,
    /// Reduced cost of the variable; not negative.
    pub(super) slack: f64,
    /// Addition of the corrector (second part of a step) to the value.
    pub(super) extra: f64,
}

impl Row {
    /// Creates a row in which each unit below the right side costs `below`, and each unit above it `above`. The row's
    /// price starts at `dual`, which must be between −`above` and `below`.
    pub(super) fn new(right: f64, below: f64, above: f64, dual: f64) -> Self {
        let single = |cost: f64, slack: f64| Single { value: 0.0, cost, slack, extra: 0.0 };
        Self { right, below: single(below, below - dual), above: single(above, above + dual), dual }
    }

    /// Returns the sum of value / slack over the row's own variables, which is their part of the Newton system's
    /// diagonal.
    pub(super) fn weight(&self) -> f64 {
        self.below.value / self.below.slack + self.above.value / self.above.slack
    }

    /// Sets the values of the row's own variables so that value × slack is `mu`.
    pub(super) fn centre(&mut self, mu: f64) {
        self.below.value = mu / self.below.slack;
        self.above.value = mu / self.above.slack;
    }

    /// Sets the row's own variables to a miss of the right side (`missed` is positive if below), and sets the row's
    /// price.
    pub(super) fn set_miss(&mut self, missed: f64, price: f64) {
        (self.below.value, self.above.value) = (missed.max(0.0), (-missed).max(0.0));
        self.dual = price.clamp(-self.above.cost, self.below.cost);
        (self.below.slack, self.above.slack) = (self.below.cost - self.dual, self.above.cost + self.dual);
    }

    /// Returns the right side less the row's own variables.
    pub(super) fn rest(&self) -> f64 {
        self.right - self.below.value + self.above.value
    }

    /// Returns the right side with the corrector's additions.
    pub(super) fn corrected(&self) -> f64 {
        self.right - self.below.extra + self.above.extra
    }

    /// Returns the row's own variables, each with the relative decrease of its slack if the price rises by `rise`.
    pub(super) fn turns(&self, rise: f64) -> [(Single, f64); 2] {
        [(self.below, rise / self.below.slack), (self.above, -rise / self.above.slack)]
    }

    /// Prepares the corrector after a predictor that raises the row's price by `rise`.
    pub(super) fn correct(&mut self, rise: f64, target: f64) {
        for (single, rise) in [(&mut self.below, rise), (&mut self.above, -rise)] {
            let turn = rise / single.slack;
            single.extra = target / single.slack + single.value * turn * (turn - 1.0);
        }
    }

    /// Takes the fraction `primal` of a step in the values and the fraction `dual` of the step in the price.
    pub(super) fn advance(&mut self, rise: f64, primal: f64, dual: f64) {
        for (single, rise) in [(&mut self.below, rise), (&mut self.above, -rise)] {
            let turn = rise / single.slack;
            single.value += primal * (single.value * (turn - 1.0) + single.extra);
            single.slack -= dual * rise;
        }
        self.dual += dual * rise;
    }
}

/// Blocks of one job: for each slot up to the job's end, the shares of the slot's time at each point.
#[derive(Clone)]
pub(super) struct Blocks {
    /// Index of each block's first variable; the last entry is the number of all variables.
    starts: Vec<usize>,
    /// Usable seconds of each block. `watt` and `time` are the costs of a watt and of being active during these
    /// seconds, in the method's unit of cost.
    pub(super) span: Vec<f64>,
    pub(super) watt: Vec<f64>,
    pub(super) time: Vec<f64>,
    /// Shares of time, block after block, one for each point that the best average can need; in the last block, the
    /// share of the time after the job's end comes first. `z` has the reduced costs in the same order.
    pub(super) y: Vec<f64>,
    pub(super) z: Vec<f64>,
    /// Inverse of each reduced cost, 1/z.
    pub(super) inverse: Vec<f64>,
    /// Addition of the corrector to each share.
    pub(super) extra: Vec<f64>,
    /// For each block, the means of limit, throughput and power, weighted with y/z; `weight` is the sum of these
    /// weights.
    pub(super) mean: Vec<[f64; 3]>,
    pub(super) weight: Vec<f64>,
    /// Right side of each block's own row (sum of shares); `contribution` is what the block contributes to the other
    /// rows per unit of its factors ([`Method::factors`](super::iterate::Method::factors)).
    pub(super) right: Vec<f64>,
    pub(super) contribution: Vec<[f64; 3]>,
    /// Constant part of the decrease of each block's reduced costs in a step; the decrease is `base + slopes·point`.
    pub(super) base: Vec<f64>,
}

impl Blocks {
    pub(super) fn new(model: &Model, place: usize, end: End, scale: f64) -> Self {
        let job = &model.jobs[place];
        let count = end.slot + 1;
        let span = |t: usize| if t == end.slot { end.seconds } else { model.span(place, t) };
        // The time in full slots is constant, so only the time in the last slot has a cost.
        let second = job.time_cost + if end.late { model.lateness } else { 0.0 };
        let mut starts = vec![0];
        for t in 0..count {
            starts.push(starts[t] + job.needed(t).points.len() + usize::from(t == end.slot));
        }
        let variables = starts[count];
        Self {
            starts,
            span: (0..count).map(span).collect(),
            watt: (0..count).map(|t| span(t) * job.joule_cost[t] / scale).collect(),
            time: (0..count).map(|t| if t == end.slot { span(t) * second / scale } else { 0.0 }).collect(),
            y: vec![0.0; variables],
            z: vec![0.0; variables],
            inverse: vec![0.0; variables],
            extra: vec![0.0; variables],
            mean: vec![[0.0; 3]; count],
            weight: vec![0.0; count],
            right: vec![0.0; count],
            contribution: vec![[0.0; 3]; count],
            base: vec![0.0; count],
        }
    }

    /// Returns the range of a block's variables in `y`, `z`, `inverse` and `extra`.
    pub(super) fn range(&self, t: usize) -> Range<usize> {
        self.starts[t]..self.starts[t + 1]
    }

    /// Returns whether a block is that of the slot in which the job ends.
    pub(super) fn is_last(&self, t: usize) -> bool {
        t + 1 == self.span.len()
    }

    /// Returns the shares of time of all blocks, one for each of the job's points, and at the end the share of the last
    /// block's time after the job's end.
    pub(super) fn parts(&self, job: &Job) -> Vec<f64> {
        let points = job.points();
        let mut parts = vec![0.0; self.span.len() * points + 1];
        for t in 0..self.span.len() {
            let (y, last) = (&self.y[self.range(t)], usize::from(self.is_last(t)));
            for (point, y) in job.needed(t).points.iter().zip(&y[last..]) {
                parts[t * points + point] = *y;
            }
            if last == 1 {
                parts[(t + 1) * points] = y[0];
            }
        }
        parts
    }
}
