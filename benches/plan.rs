//! Planning time over slots × limits × jobs.
//!
//!     cargo bench -p wattune-benches --bench plan
//!
//! `benches/peer.sh` compares with a general solver on the same problems.

mod fleets;

use divan::{Bencher, black_box};
use wattune_core::plan::fleet::{Solver, solve_fleet};

fn main() {
    divan::main();
}

/// One job without a cap: marginal costs alone.
#[divan::bench(args = [(96, 9), (288, 9), (288, 50), (2016, 50)])]
fn one_job(bencher: Bencher<'_, '_>, (slots, limits): (usize, usize)) {
    let problem = fleets::fleet(1, slots, limits, None);
    bencher.bench_local(|| solve_fleet(black_box(&problem), Solver::default(), &|| true));
}

/// Jobs under a cap per slot.
#[divan::bench(args = [(2, 48, 9), (8, 96, 20), (8, 288, 9), (8, 288, 50), (16, 288, 50)], sample_count = 20)]
fn under_a_cap(bencher: Bencher<'_, '_>, (jobs, slots, limits): (usize, usize, usize)) {
    let problem = fleets::fleet(jobs, slots, limits, Some(0.7));
    bencher.bench_local(|| solve_fleet(black_box(&problem), Solver::default(), &|| true));
}

/// The largest that is promised: 64 jobs, two days of five minutes, 50 limits.
#[divan::bench(sample_count = 3)]
fn a_large_fleet(bencher: Bencher<'_, '_>) {
    let problem = fleets::fleet(64, 576, 50, Some(0.7));
    bencher.bench_local(|| solve_fleet(black_box(&problem), Solver::default(), &|| true));
}
