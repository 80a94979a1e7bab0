//! The planning problem of one job as a linear programme (`planning.md` §2), with which the solution by marginal costs
//! (dual form) is compared.

use good_lp::{Expression, ProblemVariables, Solution as _, SolverModel, Variable, constraint, microlp, variable};

use crate::plan::{Infeasible, Problem, Solution};
use crate::units::Seconds;

/// Reason why the linear programme has no solution.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum LinearError {
    /// There is no plan.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The solver found no solution for any finishing slot (slot in which the work ends); holds its last error message.
    #[error("the linear programme was not solved: {0}")]
    Unsolved(String),
}

/// Solves one linear programme per finishing slot (slot in which the work ends) and returns the cheapest solution.
///
/// # Errors
/// If even the fastest point cannot do the work in time, or the solver fails.
pub(super) fn solve_linear(problem: &Problem) -> Result<Solution, LinearError> {
    let work = problem.reachable_work()?.get();
    let mut best: Option<Solution> = None;
    let mut failure = String::new();
    for finishing in 0..problem.open_slots().len() {
        match finish_in(problem, finishing, work) {
            Ok(solution) if best.as_ref().is_none_or(|b| solution.cost < b.cost) => best = Some(solution),
            Ok(_) | Err(good_lp::ResolutionError::Infeasible) => {}
            Err(error) => failure = error.to_string(),
        }
    }
    best.ok_or(LinearError::Unsolved(failure))
}

/// Returns the cheapest plan that fills the slots before `finishing` and ends in `finishing`.
///
/// Each variable is a point's share of a slot's time. The work and the largest cost are scaled to 1, so that rows and
/// objective have the same magnitude in any unit.
fn finish_in(problem: &Problem, finishing: usize, work: f64) -> Result<Solution, good_lp::ResolutionError> {
    let points = problem.points();
    // Limits the length of a slot much longer than the work takes, because shares of its whole time would be tiny.
    let longest = 2.0 * work / problem.fastest().get();
    let span = |slot: usize| {
        if slot < finishing {
            problem.slots()[slot].slot.duration().get()
        } else {
            problem.usable(&problem.slots()[slot]).get().min(longest)
        }
    };
    let cost = |slot: usize, point: usize| problem.second_cost(slot, point) * span(slot);
    let every = || (0..=finishing).flat_map(|slot| (0..points.len()).map(move |point| (slot, point)));
    let maximum = every().map(|(slot, point)| cost(slot, point)).fold(f64::MIN_POSITIVE, f64::max);

    let mut variables = ProblemVariables::new();
    let parts: Vec<Vec<Variable>> =
        (0..=finishing).map(|_| points.iter().map(|_| variables.add(variable().min(0.0))).collect()).collect();
    let objective: Expression = every().map(|(slot, point)| parts[slot][point] * (cost(slot, point) / maximum)).sum();
    let done: Expression =
        every().map(|(slot, point)| parts[slot][point] * (points[point].throughput.get() * span(slot) / work)).sum();
    let mut programme = variables.minimise(objective).using(microlp).with(constraint!(done == 1.0));
    for (slot, parts) in parts.iter().enumerate() {
        let used: Expression = parts.iter().sum();
        if slot < finishing {
            programme = programme.with(constraint!(used == 1.0));
        } else {
            let usable = problem.usable(&problem.slots()[slot]).get();
            programme = programme.with(constraint!(used <= usable / span(slot).max(f64::MIN_POSITIVE)));
        }
    }
    let solved = programme.solve()?;
    let shares = parts.iter().enumerate().map(|(slot, parts)| {
        let seconds = |part: &Variable| Seconds::new(solved.value(*part).max(0.0) * span(slot));
        parts.iter().map(seconds).enumerate().filter(|share| share.1 > Seconds::ZERO).collect()
    });
    Ok(problem.evaluate(shares.collect()))
}
