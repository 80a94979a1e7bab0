//! Independent solutions by a general interior-point solver, for given ends of the jobs: of the relaxation, in which
//! caps hold on average over a slot, and of the problem in which they hold at every instant.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, ZeroConeT};

use crate::plan::fleet::FleetProblem;
use crate::units::Watts;

/// A linear programme `min c·x`, `x ≥ 0`, with rows that are equal to or at most their right sides.
#[derive(Default)]
struct Programme {
    cost: Vec<f64>,
    /// Rows that equal their right side: first the terms as (column, coefficient), second the right side.
    equal: Vec<(Vec<(usize, f64)>, f64)>,
    at_most: Vec<(Vec<(usize, f64)>, f64)>,
}

/// Error: the solver stopped without a solution.
#[derive(Debug)]
pub(super) struct Unsolved;

impl Programme {
    /// Returns the least cost; `None` if the programme is infeasible.
    fn solve(&self) -> Result<Option<f64>, Unsolved> {
        let n = self.cost.len();
        let scale = self.cost.iter().fold(1e-300_f64, |a, c| a.max(c.abs()));
        let mut columns: Vec<Vec<(usize, f64)>> = vec![Vec::new(); n];
        let mut right = Vec::new();
        for (row, (parts, b)) in self.equal.iter().chain(&self.at_most).enumerate() {
            let size = parts.iter().fold(1e-300_f64, |a, p| a.max(p.1.abs())).max(b.abs());
            parts.iter().for_each(|(column, a)| columns[*column].push((row, a / size)));
            right.push(b / size);
        }
        let rows = right.len();
        for (column, entries) in columns.iter_mut().enumerate() {
            entries.push((rows + column, -1.0));
            right.push(0.0);
        }
        let mut starts = vec![0];
        starts.extend(columns.iter().scan(0, |sum, c| {
            *sum += c.len();
            Some(*sum)
        }));
        let (places, values) = columns.into_iter().flatten().unzip();
        let a = CscMatrix::new(rows + n, n, starts, places, values);
        let q: Vec<f64> = self.cost.iter().map(|c| c / scale).collect();
        let cones = [ZeroConeT(self.equal.len()), NonnegativeConeT(self.at_most.len() + n)];
        let settings = DefaultSettingsBuilder::default()
            .verbose(false)
            .tol_gap_abs(1e-10)
            .tol_gap_rel(1e-10)
            .tol_feas(1e-10)
            .reduced_tol_gap_abs(1e-8)
            .reduced_tol_gap_rel(1e-8)
            .reduced_tol_feas(1e-8)
            .build()
            .expect("valid");
        let mut solver =
            DefaultSolver::new(&CscMatrix::zeros((n, n)), &q, &a, &right, &cones, settings).expect("valid");
        solver.solve();
        match solver.solution.status {
            SolverStatus::Solved | SolverStatus::AlmostSolved => Ok(Some(solver.solution.obj_val * scale)),
            SolverStatus::PrimalInfeasible => Ok(None),
            _ => Err(Unsolved),
        }
    }
}

/// Ends of the jobs: for each job, first the index of the slot in which it ends, second the usable seconds of this
/// slot.
pub(super) type Ends<'a> = &'a [(usize, f64)];

fn rest(problem: &FleetProblem, job: usize) -> f64 {
    problem.jobs[job].points.iter().fold(problem.jobs[job].at_rest.get(), |a, p| a.min(p.limit.get()))
}

/// Returns the cost of a second at a point, from the definition of the objective, in g.
fn second(problem: &FleetProblem, job: usize, t: usize, point: usize) -> f64 {
    let j = &problem.jobs[job];
    let c = j.weighed.as_ref().map_or(problem.slots[t].intensity, |w| w[t]).get();
    let time = (1.0 - j.eta) * j.reference_intensity.get() * j.max_power.get();
    (j.eta * c * j.points[point].power.get() + time) / 3.6e6
}

fn grams(problem: &FleetProblem, job: usize, t: usize, point: usize) -> f64 {
    problem.slots[t].intensity.get() * problem.jobs[job].points[point].power.get() / 3.6e6
}

/// Returns the least cost with given ends if caps hold on average over a slot and at least the work is done; `None` if
/// that is infeasible. Variables are the seconds of each slot at each point.
pub(super) fn relaxed(problem: &FleetProblem, ends: Ends<'_>) -> Result<Option<f64>, Unsolved> {
    let mut programme = Programme::default();
    let mut caps = vec![Vec::new(); problem.slots.len()];
    let mut resting = vec![0.0; problem.slots.len()];
    let mut shared = vec![Vec::new(); problem.carbon_budgets.points().len()];
    for (job, j) in problem.jobs.iter().enumerate() {
        let (mut work, mut budget) = (Vec::new(), Vec::new());
        for (t, slot) in problem.slots.iter().enumerate() {
            resting[t] += rest(problem, job) * slot.slot.duration().get();
            if t > ends[job].0 {
                continue;
            }
            let mut used = Vec::new();
            for (l, point) in j.points.iter().enumerate() {
                // A point whose limit does not fit under the cap at any instant is not used in averages either.
                let others: f64 = (0..problem.jobs.len()).filter(|o| *o != job).map(|o| rest(problem, o)).sum();
                let most = problem.caps[t].map_or(f64::INFINITY, |cap| cap.get() - others);
                if point.limit.get() > most * (1.0 + 1e-12) {
                    continue;
                }
                let column = programme.cost.len();
                programme.cost.push(second(problem, job, t, l));
                used.push((column, 1.0));
                work.push((column, point.throughput.get()));
                caps[t].push((column, point.limit.get() - rest(problem, job)));
                budget.push((column, grams(problem, job, t, l)));
                problem.budget_of(t).into_iter().for_each(|b| shared[b].push((column, grams(problem, job, t, l))));
            }
            if t < ends[job].0 {
                programme.equal.push((used, slot.slot.duration().get()));
            } else {
                programme.at_most.push((used, ends[job].1));
            }
        }
        programme.at_most.push((work.iter().map(|(column, r)| (*column, -r)).collect(), -j.work.get()));
        programme.at_most.extend(j.carbon_budget.map(|b| (budget, b.get())));
    }
    for (t, row) in caps.into_iter().enumerate() {
        let seconds = problem.slots[t].slot.duration().get();
        // The solver takes a cap that equals the sum of the limits for infeasible if rounding has made it any less.
        let cap = |cap: Watts| cap.get() * (1.0 + 1e-10) * seconds - resting[t];
        programme.at_most.extend(problem.caps[t].map(|of| (row, cap(of))));
    }
    let budgets = problem.carbon_budgets.points().iter().map(|(_, grams)| grams.get());
    programme.at_most.extend(shared.into_iter().zip(budgets));
    programme.solve()
}

/// Returns the least cost with given ends if caps hold at every instant and at least the work is done; `None` if that
/// is infeasible. Variables are the seconds of each slot for which all jobs together are at some combination of points
/// that keeps the cap.
pub(super) fn instantaneous(problem: &FleetProblem, ends: Ends<'_>) -> Result<Option<f64>, Unsolved> {
    let mut programme = Programme::default();
    let jobs = problem.jobs.len();
    let (mut work, mut budgets) = (vec![Vec::new(); jobs], vec![Vec::new(); jobs]);
    let mut shared = vec![Vec::new(); problem.carbon_budgets.points().len()];
    for (t, slot) in problem.slots.iter().enumerate() {
        // The last choice of each job stands for a job that has ended.
        let choices: Vec<Vec<usize>> = (0..jobs)
            .map(|job| {
                let ended = problem.jobs[job].points.len();
                match t.cmp(&ends[job].0) {
                    std::cmp::Ordering::Less => (0..ended).collect(),
                    std::cmp::Ordering::Equal => (0..=ended).collect(),
                    std::cmp::Ordering::Greater => vec![ended],
                }
            })
            .collect();
        let combinations: usize = choices.iter().map(Vec::len).product();
        let mut used = Vec::new();
        let mut running = vec![Vec::new(); jobs];
        for combination in 0..combinations {
            let mut rest_of = combination;
            let of = |job: usize, rest_of: &mut usize| {
                let choice = choices[job][*rest_of % choices[job].len()];
                *rest_of /= choices[job].len();
                choice
            };
            let chosen: Vec<usize> = (0..jobs).map(|job| of(job, &mut rest_of)).collect();
            let limit = |job: usize| match problem.jobs[job].points.get(chosen[job]) {
                Some(point) => point.limit.get(),
                None => rest(problem, job),
            };
            let sum: f64 = (0..jobs).map(limit).sum();
            if problem.caps[t].is_some_and(|cap| sum > cap.get() * (1.0 + 1e-12)) {
                continue;
            }
            let column = programme.cost.len();
            let mut cost = 0.0;
            for (job, &l) in chosen.iter().enumerate() {
                if let Some(point) = problem.jobs[job].points.get(l) {
                    cost += second(problem, job, t, l);
                    work[job].push((column, point.throughput.get()));
                    budgets[job].push((column, grams(problem, job, t, l)));
                    let grams = grams(problem, job, t, l);
                    problem.budget_of(t).into_iter().for_each(|b| shared[b].push((column, grams)));
                    running[job].push((column, 1.0));
                }
            }
            programme.cost.push(cost);
            used.push((column, 1.0));
        }
        programme.equal.push((used, slot.slot.duration().get()));
        for (job, running) in running.into_iter().enumerate() {
            if t == ends[job].0 && ends[job].1 < slot.slot.duration().get() {
                programme.at_most.push((running, ends[job].1));
            }
        }
    }
    for (job, row) in work.into_iter().enumerate() {
        let row = row.into_iter().map(|(column, rate)| (column, -rate)).collect();
        programme.at_most.push((row, -problem.jobs[job].work.get()));
    }
    for (job, row) in budgets.into_iter().enumerate() {
        programme.at_most.extend(problem.jobs[job].carbon_budget.map(|b| (row, b.get())));
    }
    let budgets = problem.carbon_budgets.points().iter().map(|(_, grams)| grams.get());
    programme.at_most.extend(shared.into_iter().zip(budgets));
    programme.solve()
}

/// Returns all combinations of slots in which the jobs can end in time, each with the usable seconds of the slot.
pub(super) fn all_ends(problem: &FleetProblem) -> Vec<Vec<(usize, f64)>> {
    let start = problem.slots[0].slot.start();
    let of_job = |job: usize| -> Vec<(usize, f64)> {
        let usable = |t: usize| {
            let slot = problem.slots[t].slot;
            let until = problem.jobs[job].latest_end.map_or(slot.end(), |end| end.min(slot.end()));
            ((until - start).as_seconds_f64() - (slot.start() - start).as_seconds_f64()).max(0.0)
        };
        (0..problem.slots.len()).map(|t| (t, usable(t))).filter(|(_, seconds)| *seconds > 0.0).collect()
    };
    let mut all: Vec<Vec<(usize, f64)>> = vec![Vec::new()];
    for job in 0..problem.jobs.len() {
        let ways = of_job(job);
        let longer =
            |ends: &Vec<(usize, f64)>| ways.iter().map(|way| [&ends[..], &[*way]].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(longer).collect();
    }
    all
}
