//! The relaxation of one fleet by three solvers, on the problems of `benches/plan.rs`: the structured interior-point
//! method, the linear programme by `microlp`, and the same programme by `clarabel`, an interior-point solver.
//!
//!     cargo bench -p wattune-core --bench relaxation
//!
//! Takes a few minutes. The three answers to the smaller problems are compared first.

#[path = "../../../benches/fleets.rs"]
mod fleets;

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, ZeroConeT};
use divan::{Bencher, black_box};
use wattune_core::plan::fleet::{Programme, Relaxation, Solver};

/// Jobs, slots and limits.
type Size = (usize, usize, usize);
const SIZES: [Size; 4] = [(2, 48, 9), (8, 96, 20), (8, 288, 9), (8, 288, 50)];

fn main() {
    for size in SIZES.into_iter().take(2) {
        let relaxation = relaxation(size);
        let optimum = relaxation.solve(Solver::Structured).expect("solved");
        let others = [("microlp", relaxation.solve(Solver::Lp)), ("clarabel", by_clarabel(&relaxation.programme()))];
        for (name, other) in others {
            let other = other.expect("solved");
            let close = (other - optimum).abs() <= 1e-6 * (1.0 + optimum.abs());
            assert!(close, "{size:?}: {name} finds {other}, the structured method {optimum}");
        }
    }
    divan::main();
}

fn relaxation((jobs, slots, limits): Size) -> Relaxation {
    Relaxation::new(&fleets::fleet(jobs, slots, limits, Some(0.7)))
}

#[divan::bench(args = SIZES, sample_count = 20)]
fn structured(bencher: Bencher<'_, '_>, size: Size) {
    let relaxation = relaxation(size);
    bencher.bench_local(|| black_box(&relaxation).solve(Solver::Structured).expect("solved"));
}

#[divan::bench(args = SIZES, sample_count = 3)]
fn microlp(bencher: Bencher<'_, '_>, size: Size) {
    let relaxation = relaxation(size);
    bencher.bench_local(|| black_box(&relaxation).solve(Solver::Lp).expect("solved"));
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn clarabel(bencher: Bencher<'_, '_>, size: Size) {
    let programme = relaxation(size).programme();
    bencher.bench_local(|| by_clarabel(black_box(&programme)).expect("solved"));
}

/// The optimum, `None` where `clarabel` stops unsolved. Rows of blocks come first, then the rows that couple them, then
/// the signs of all variables.
fn by_clarabel(programme: &Programme) -> Option<f64> {
    let (blocks, rows) = (programme.blocks.len(), programme.rows.len());
    let mut columns: Vec<(f64, Vec<(usize, f64)>)> = Vec::new();
    for (block, of) in programme.blocks.iter().enumerate() {
        for column in of {
            let mut entries: Vec<_> = column.rows.iter().map(|(row, factor)| (blocks + row, *factor)).collect();
            entries.insert(0, (block, 1.0));
            columns.push((column.cost, entries));
        }
    }
    for (row, elastic) in programme.rows.iter().enumerate() {
        // On these problems no row need be missed; without the penalties the programme is easier to solve.
        let free = [(elastic.below, 1.0), (elastic.above, -1.0)].into_iter().filter(|(cost, _)| *cost == 0.0);
        columns.extend(free.map(|(cost, factor)| (cost, vec![(blocks + row, factor)])));
    }
    let n = columns.len();
    let (mut starts, mut places, mut values, mut cost) = (vec![0], Vec::new(), Vec::new(), Vec::new());
    for (column, (of, mut entries)) in columns.into_iter().enumerate() {
        entries.push((blocks + rows + column, -1.0));
        entries.sort_by_key(|(row, _)| *row);
        cost.push(of);
        places.extend(entries.iter().map(|(row, _)| *row));
        values.extend(entries.iter().map(|(_, value)| *value));
        starts.push(places.len());
    }
    let right = std::iter::repeat_n(1.0, blocks).chain(programme.rows.iter().map(|row| row.right));
    let right: Vec<f64> = right.chain(std::iter::repeat_n(0.0, n)).collect();
    let matrix = CscMatrix::new(blocks + rows + n, n, starts, places, values);
    let cones = [ZeroConeT(blocks + rows), NonnegativeConeT(n)];
    let settings = DefaultSettingsBuilder::default().verbose(false).build().expect("valid");
    let none = CscMatrix::zeros((n, n));
    let mut solver = DefaultSolver::new(&none, &cost, &matrix, &right, &cones, settings).expect("valid");
    solver.solve();
    let solved = matches!(solver.solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved);
    solved.then_some(solver.solution.obj_val)
}
