//! State of the interior-point method ([`super::interior`]): values and prices of blocks (one job in one slot) and rows
//! (constraints), scaled to about 1.

use super::model::{End, Job, Model};
use super::rows::{Blocks, Row};

/// Quantity that a relaxation minimises.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    /// The plans' cost, with penalties for missed work and exceeded carbon budgets.
    Cost {
        /// Factor of the penalty for missed work, as a multiple of the largest possible cost.
        work: f64,
        /// Factor of the penalty for exceeded carbon budgets, as a multiple of the largest possible cost.
        budget: f64,
        /// True if the penalty for missed work rises with priority, because some work must be missed.
        ranked: bool,
    },
    /// Misses alone, whatever the cost: missed work weighted by priority, then exceeded carbon budgets.
    Misses,
}

/// Penalty factor (see [`Aim::Cost`]) of missed work and of exceeded budgets in the first relaxation of a search.
pub(super) const FIRST_FACTOR: f64 = 30.0;

/// Weight of work of one priority relative to work of the next lower priority.
const PRIORITY: f64 = 30.0;

/// State of the interior-point method.
pub(super) struct Method<'a> {
    pub(super) model: &'a Model,
    pub(super) blocks: Vec<Blocks>,
    /// Row of each slot's cap; `None` if the cap cannot bind.
    pub(super) caps: Vec<Option<Row>>,
    /// Factor that scales each cap's row, per watt-second of limit.
    pub(super) cap_scale: Vec<f64>,
    /// Rows of the jobs' work, one per job, then of the jobs' own carbon budgets, then of the shared ones.
    pub(super) rows: Vec<Row>,
    /// Index in `rows` of each job's own carbon budget, `None` without one; `budget_scale` is the unit of the row in
    /// grams.
    pub(super) budget_row: Vec<Option<usize>>,
    pub(super) budget_scale: Vec<f64>,
    /// Index in `rows` of the first shared carbon budget; `shared_scale` is the unit of the rows of all shared budgets
    /// in grams.
    pub(super) first_shared: usize,
    pub(super) shared_scale: f64,
    /// Unit of the objective in grams.
    pub(super) scale: f64,
    /// For each capped slot, the coefficients that couple the slot's cap with all other rows in the Newton system;
    /// `pivots` has the diagonal elements of the caps.
    pub(super) coupling: Vec<Vec<f64>>,
    pub(super) pivots: Vec<f64>,
}

impl<'a> Method<'a> {
    /// Creates the relaxation of a model in which the slots in which the jobs end are given.
    pub(super) fn new(model: &'a Model, ends: &[End], aim: Aim) -> Self {
        let scale = cost_unit(model, aim);
        let mut rows = work_rows(model, ends, aim, scale);
        let budget_scale: Vec<f64> = model.jobs.iter().map(|job| carbon_unit(model, job)).collect();
        let shared_scale = budget_scale.iter().sum::<f64>();
        let penalty = match aim {
            Aim::Cost { budget, .. } => budget * ends.iter().map(|end| (end.slot + 1) as f64).sum::<f64>(),
            Aim::Misses => 0.01,
        };
        let own_row = |(job, scale): (&Job, &f64)| {
            rows.push(carbon_row(job.budget? / scale, penalty));
            Some(rows.len() - 1)
        };
        let budget_row = model.jobs.iter().zip(&budget_scale).map(own_row).collect();
        let first_shared = rows.len();
        rows.extend(model.budgets.iter().map(|budget| carbon_row(budget / shared_scale, penalty)));
        let (caps, cap_scale) = cap_rows(model, ends, &rows);
        Self {
            model,
            blocks: ends.iter().enumerate().map(|(j, end)| Blocks::new(model, j, *end, scale)).collect(),
            coupling: caps.iter().map(|cap| vec![0.0; if cap.is_some() { rows.len() } else { 0 }]).collect(),
            pivots: vec![0.0; model.seconds.len()],
            caps,
            cap_scale,
            rows,
            budget_row,
            budget_scale,
            first_shared,
            shared_scale,
            scale: if scale.is_finite() { scale } else { 1.0 },
        }
    }

    /// Returns the index of the row of the shared carbon budget that a slot belongs to; `None` if it belongs to none.
    pub(super) fn shared_row(&self, t: usize) -> Option<usize> {
        self.model.budget_of[t].map(|budget| self.first_shared + budget)
    }

    /// Returns the factors by which a block enters rows: its limit in the cap's row, its throughput in the row of the
    /// job's work, its power in the rows of the job's own and of the shared carbon budget.
    pub(super) fn factors(&self, j: usize, t: usize) -> [f64; 4] {
        let span = self.blocks[j].span[t];
        let grams = span * self.model.carbon[t];
        let work = span / self.model.jobs[j].work;
        [span * self.cap_scale[t], work, grams / self.budget_scale[j], grams / self.shared_scale]
    }
}

/// Returns the unit of the objective in grams: the mean of the largest costs of each job in each slot; infinite if only
/// misses count.
fn cost_unit(model: &Model, aim: Aim) -> f64 {
    let blocks = (model.seconds.len() * model.jobs.len()) as f64;
    let scale = match aim {
        Aim::Cost { .. } => model.jobs.iter().map(|job| max_cost(model, job)).sum::<f64>() / blocks,
        Aim::Misses => f64::INFINITY,
    };
    if scale > 0.0 { scale } else { 1.0 }
}

/// Returns the unit of the row of a job's own carbon budget in grams: the job's emissions at its greatest power.
fn carbon_unit(model: &Model, job: &Job) -> f64 {
    let grams = job.draw() * model.seconds.iter().zip(&model.carbon).map(|(s, c)| s * c).sum::<f64>();
    if grams > 0.0 { grams } else { 1.0 }
}

/// Returns the cost of a job that has its greatest power in all slots, in grams.
fn max_cost(model: &Model, job: &Job) -> f64 {
    model.seconds.iter().enumerate().map(|(t, seconds)| job.max_second_cost(t) * seconds).sum()
}

/// Returns the rows of the jobs' work. Each unit of the right side is all of a job's work.
fn work_rows(model: &Model, ends: &[End], aim: Aim, scale: f64) -> Vec<Row> {
    let row = |(job, end): (&Job, &End)| {
        let dual = usual_price(model, job, *end) * job.work / scale;
        let rank = PRIORITY.powi(job.rank.min(4));
        let penalty = match aim {
            Aim::Cost { work, ranked, .. } => {
                let lateness = if end.late { model.lateness * end.seconds / scale } else { 0.0 };
                let worth = max_cost(model, job) / scale + dual.abs() + lateness + 1.0;
                work * worth * if ranked { rank } else { 1.0 }
            }
            Aim::Misses => {
                let slots = model.seconds.len() as f64;
                rank * job.work / job.fastest() * slots / model.seconds.iter().sum::<f64>()
            }
        };
        Row::new(1.0, penalty, penalty, dual)
    };
    model.jobs.iter().zip(ends).map(row).collect()
}

/// Returns the row of a carbon budget, in which each unit above the budget costs `penalty`.
fn carbon_row(budget: f64, penalty: f64) -> Row {
    Row::new(budget, 0.0, penalty, -(penalty / 2.0).min(1.0))
}

/// Returns first the row of each slot's cap, `None` where it cannot bind, second the factor that scales it. Exceeding a
/// cap costs far more than missing any of the other `rows`.
fn cap_rows(model: &Model, ends: &[End], rows: &[Row]) -> (Vec<Option<Row>>, Vec<f64>) {
    let highest = 100.0 * rows.iter().map(|row| row.below.cost.max(row.above.cost)).fold(1.0, f64::max);
    let row = |(t, seconds): (usize, &f64)| {
        let most = model.most(t, ends);
        let cap = model.cap(t, ends).filter(|cap| *cap < most);
        let scaled = |cap: f64| (Some(Row::new(cap / most, 0.0, highest, -1.0)), 1.0 / (most * seconds));
        cap.map_or((None, 0.0), scaled)
    };
    model.seconds.iter().enumerate().map(row).unzip()
}

/// Returns a first guess of λ in gCO2e per sample: the cost per additional sample of raising a job from its lowest to
/// its highest limit.
fn usual_price(model: &Model, job: &Job, end: End) -> f64 {
    let last = job.points() - 1;
    let gain = job.rate[last] - job.rate[0];
    if gain <= 0.0 {
        return 0.0;
    }
    let slots = 0..=end.slot;
    let mean = slots.clone().map(|t| job.joule_cost[t] * model.seconds[t]).sum::<f64>()
        / slots.map(|t| model.seconds[t]).sum::<f64>();
    mean * (job.power[last] - job.power[0]).max(0.0) / gain
}
