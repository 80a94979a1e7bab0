//! Two independent solvers of the planning problem of one job: an interior-point solver, and brute force over all
//! vertices of its linear programme.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, ZeroConeT};

use super::instances::{Instance, MAX_POWER, REFERENCE};

/// Returns the cost of a second at a point in a slot from the definition of the objective, in g/s.
fn second_cost(instance: &Instance, slot: usize, point: usize) -> f64 {
    let (intensity, power) = (instance.slots[slot].1, instance.points[point].0);
    (instance.eta * intensity * power + (1.0 - instance.eta) * REFERENCE.get() * MAX_POWER.get()) / 3.6e6
}

/// Returns the part of each slot before the latest end, in seconds.
fn usable(instance: &Instance) -> Vec<f64> {
    let mut left = instance.latest_end().unwrap_or(f64::INFINITY);
    let take = |&(seconds, _): &(f64, f64)| {
        let usable = seconds.min(left);
        left -= usable;
        usable
    };
    instance.slots.iter().map(take).collect()
}

/// Returns the optimal cost over all finishing slots (slots in which the work ends), computed by clarabel; `None` if no
/// plan is feasible.
pub(super) fn by_interior_point(instance: &Instance) -> Option<f64> {
    let usable = usable(instance);
    let open = (0..usable.len()).filter(|&last| usable[last] > 0.0);
    open.filter_map(|last| finish_by_interior_point(instance, &usable, last, None)).reduce(f64::min)
}

/// Returns the optimal cost of plans that emit at most `budget` grams, computed by clarabel; `None` if no plan is
/// feasible.
pub(super) fn within_budget_by_interior_point(instance: &Instance, budget: f64) -> Option<f64> {
    let usable = usable(instance);
    let open = (0..usable.len()).filter(|&last| usable[last] > 0.0);
    open.filter_map(|last| finish_by_interior_point(instance, &usable, last, Some(budget))).reduce(f64::min)
}

fn finish_by_interior_point(instance: &Instance, usable: &[f64], last: usize, budget: Option<f64>) -> Option<f64> {
    let (l, n) = (instance.points.len(), (last + 1) * instance.points.len());
    let work = instance.work();
    let cost = |v: usize| second_cost(instance, v / l, v % l) * usable[v / l];
    let scale = (0..n).map(cost).fold(1e-300, f64::max);
    // Rows: one per full slot, the work, the last slot, the budget if any, and non-negativity.
    let extra = usize::from(budget.is_some());
    let columns: Vec<Vec<(usize, f64)>> = (0..n)
        .map(|v| {
            let (slot, point) = (v / l, v % l);
            let work_part = instance.points[point].1 * usable[slot] / work;
            // The rows of a column must be in rising order: the row of a full slot comes before that of the work, the
            // row of the last slot after it.
            let mut column = vec![(last, work_part)];
            column.insert(if slot < last { 0 } else { 1 }, (if slot < last { slot } else { last + 1 }, 1.0));
            if let Some(budget) = budget {
                let carbon = instance.slots[slot].1 * instance.points[point].0 * usable[slot] / 3.6e6;
                column.push((last + 2, carbon / budget));
            }
            column.push((last + 2 + extra + v, -1.0));
            column
        })
        .collect();
    let mut starts = vec![0];
    starts.extend(columns.iter().scan(0, |sum, c| {
        *sum += c.len();
        Some(*sum)
    }));
    let (rows, values) = columns.into_iter().flatten().unzip();
    let a = CscMatrix::new(last + 2 + extra + n, n, starts, rows, values);
    let mut b = vec![1.0; last + 2 + extra];
    b.resize(last + 2 + extra + n, 0.0);
    let q: Vec<f64> = (0..n).map(|v| cost(v) / scale).collect();
    let cones = [ZeroConeT(last + 1), NonnegativeConeT(1 + extra + n)];
    let settings =
        DefaultSettingsBuilder::default().verbose(false).tol_gap_abs(1e-10).tol_gap_rel(1e-10).build().expect("valid");
    let mut solver = DefaultSolver::new(&CscMatrix::zeros((n, n)), &q, &a, &b, &cones, settings).expect("valid");
    solver.solve();
    let solved = matches!(solver.solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved);
    solved.then_some(solver.solution.obj_val * scale)
}

/// Returns the optimal cost over all vertices: each full slot at one point, with either one slot shared by two points,
/// or a last slot partly filled by one point or filled by two.
pub(super) fn by_brute_force(instance: &Instance) -> Option<f64> {
    let usable = usable(instance);
    let l = instance.points.len();
    let rate = |point: usize| instance.points[point].1;
    let mut best: Option<f64> = None;
    for last in (0..usable.len()).filter(|&last| usable[last] > 0.0) {
        for choice in 0..l.pow(last as u32 + 1) {
            let point = |slot: usize| choice / l.pow(slot as u32) % l;
            let full: f64 = (0..last).map(|slot| rate(point(slot)) * usable[slot]).sum();
            let cost: f64 = (0..last).map(|slot| second_cost(instance, slot, point(slot)) * usable[slot]).sum();
            let mut keep = |cost: f64| best = Some(best.map_or(cost, |b| b.min(cost)));
            // All full slots stay at one point, and one point in the last slot does the remaining work.
            let seconds = (instance.work() - full) / rate(point(last));
            if (0.0..=usable[last]).contains(&seconds) {
                keep(cost + second_cost(instance, last, point(last)) * seconds);
            }
            for other in 0..l {
                // One slot gives part of its time to another point; the last slot is full or empty.
                let filled = [0.0, usable[last]];
                for (shared, in_last) in (0..last).flat_map(|s| filled.map(|f| (s, f))).chain([(last, usable[last])]) {
                    let gain = rate(other) - rate(point(shared));
                    let done = full + rate(point(last)) * in_last;
                    let seconds = (instance.work() - done) / gain;
                    if gain != 0.0 && (0.0..=usable[shared]).contains(&seconds) {
                        let cost_difference =
                            second_cost(instance, shared, other) - second_cost(instance, shared, point(shared));
                        keep(cost + second_cost(instance, last, point(last)) * in_last + cost_difference * seconds);
                    }
                }
            }
        }
    }
    best
}
