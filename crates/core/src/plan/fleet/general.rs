//! Choice of the solver of the relaxation (caps hold on average over a slot): one solver is tried first, and the other
//! replaces it where it fails.
//!
//! On 100,000 random fleets with five choices of penalties each, rounding stopped the structured method on 75 of
//! 500,000 relaxations; the linear programme solved all 75 (`stress` in the tests). On `benches/relaxation.rs` it took
//! 18 to 940 times as long, and `clarabel` 13 to 66 times, so the structured method is the default.

use serde::{Deserialize, Serialize};

use super::interior::{CLOSE_ENOUGH, Interior, MOST_ITERATIONS};
use super::iterate::{Aim, FIRST_FACTOR, Method};
use super::model::{End, Model, ROUNDING};
use super::problem::FleetProblem;
use super::programme::Programme;

/// Maximum number of variables of a linear programme: `microlp` takes too long for larger ones, and cannot be stopped.
const MOST_VARIABLES: usize = 15_000;

/// Solver for the joint plans of jobs that share power caps or carbon budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Solver {
    /// Structured interior-point method; if it fails, the linear programme.
    #[default]
    Structured,
    /// Linear programme; if it is too large or fails, the structured interior-point method.
    Lp,
}

/// Settings for solving relaxations (problems in which caps hold on average over a slot).
#[derive(Clone, Copy, Debug)]
pub(super) struct Relaxer {
    pub(super) solver: Solver,
    /// Maximum number of iterations of the interior-point method.
    pub(super) most_iterations: usize,
}

impl Relaxer {
    pub(super) fn new(solver: Solver) -> Self {
        Self { solver, most_iterations: MOST_ITERATIONS }
    }

    /// Solves the relaxation with the given ends of the jobs. If both solvers fail, returns the last iterate of the
    /// interior-point method.
    pub(super) fn solve(&self, model: &Model, ends: &[End], aim: Aim, go_on: &dyn Fn() -> bool) -> Interior {
        let structured = || Method::new(model, ends, aim).run(self.most_iterations, go_on);
        let general = || go_on().then(|| Method::new(model, ends, aim).run_programme())?;
        match self.solver {
            Solver::Structured => {
                let interior = structured();
                if interior.solved { interior } else { general().unwrap_or(interior) }
            }
            Solver::Lp => general().unwrap_or_else(structured),
        }
    }
}

impl Method<'_> {
    /// Solves the relaxation as a linear programme; `None` if the programme is too large or the solver fails.
    fn run_programme(self) -> Option<Interior> {
        let programme = Programme::new(&self);
        (programme.variables() <= MOST_VARIABLES).then(|| self.adopt(&programme))?
    }

    /// Solves a programme and returns its optimum as a result of the interior-point method; `None` if the solver fails.
    fn adopt(mut self, programme: &Programme) -> Option<Interior> {
        let mut optimum = programme.solve()?;
        let mut used = vec![0.0; programme.rows.len()];
        let mut parts = &mut optimum.parts[..];
        for block in &programme.blocks {
            let (y, rest) = parts.split_at_mut(block.len());
            parts = rest;
            y.iter_mut().for_each(|y| *y = if *y > ROUNDING { *y } else { 0.0 });
            let sum: f64 = y.iter().sum();
            for (y, column) in y.iter_mut().zip(block) {
                *y /= sum;
                column.rows.iter().for_each(|(row, factor)| used[*row] += factor * *y);
            }
        }
        let mut parts = optimum.parts.iter();
        self.blocks.iter_mut().flat_map(|blocks| &mut blocks.y).zip(&mut parts).for_each(|(y, part)| *y = *part);
        let rows = self.rows.iter_mut().chain(self.caps.iter_mut().flatten());
        for ((row, used), price) in rows.zip(used).zip(optimum.prices) {
            let missed = row.right - used;
            row.set_miss(if missed.abs() > ROUNDING { missed } else { 0.0 }, price);
        }
        self.reduce_costs();
        for blocks in &mut self.blocks {
            for t in 0..blocks.span.len() {
                let range = blocks.range(t);
                let z = &mut blocks.z[range];
                let least = z.iter().fold(f64::INFINITY, |a, b| a.min(*b));
                z.iter_mut().for_each(|z| *z -= least);
            }
        }
        let measure = self.measure();
        let solved = measure.off() <= CLOSE_ENOUGH;
        solved.then(|| self.finish(measure.objective, true))
    }
}

/// Relaxation (caps hold on average over a slot) in which each job ends at its latest end, for comparing solvers.
pub struct Relaxation {
    model: Model,
    ends: Vec<End>,
}

impl Relaxation {
    const AIM: Aim = Aim::Cost { work: FIRST_FACTOR, budget: FIRST_FACTOR, ranked: false };

    /// Creates the relaxation of a problem.
    pub fn new(problem: &FleetProblem) -> Self {
        let model = Model::new(problem);
        let ends = (0..model.jobs.len()).map(|job| model.latest(job)).collect();
        Self { model, ends }
    }

    /// Solves the relaxation with one solver alone, whatever the problem's size, and returns the optimum in the units
    /// of [`Self::programme`]. `None` if the solver fails.
    pub fn solve(&self, solver: Solver) -> Option<f64> {
        let method = Method::new(&self.model, &self.ends, Self::AIM);
        let interior = match solver {
            Solver::Structured => Some(method.run(MOST_ITERATIONS, &|| true)).filter(|interior| interior.solved),
            Solver::Lp => {
                let programme = Programme::new(&method);
                method.adopt(&programme)
            }
        };
        interior.map(|interior| interior.objective)
    }

    /// Returns the relaxation as a linear programme for other solvers.
    pub fn programme(&self) -> Programme {
        Programme::new(&Method::new(&self.model, &self.ends, Self::AIM))
    }
}
