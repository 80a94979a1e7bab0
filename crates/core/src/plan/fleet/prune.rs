//! Points that no optimal plan needs under a cap on limits (`planning.md` §2, "Hull").

use super::problem::FleetPoint;

/// Returns the indices of the points that no single other dominates with at most the power, at most the limit and at
/// least the throughput, from the lowest limit up. Of equal points the first counts.
pub(super) fn undominated(points: &[FleetPoint]) -> Vec<usize> {
    let mut by_limit: Vec<usize> = (0..points.len()).collect();
    let raw = |i: usize| (points[i].limit.get(), points[i].power.get(), points[i].throughput.get());
    by_limit.sort_by(|&a, &b| {
        let ((ga, pa, ra), (gb, pb, rb)) = (raw(a), raw(b));
        ga.total_cmp(&gb).then(pa.total_cmp(&pb)).then(rb.total_cmp(&ra))
    });
    let mut kept: Vec<usize> = Vec::with_capacity(points.len());
    // A point that is at least as good comes earlier in this order.
    for &new in &by_limit {
        let (_, p, r) = raw(new);
        if !kept.iter().any(|&old| raw(old).1 <= p && raw(old).2 >= r) {
            kept.push(new);
        }
    }
    kept
}

/// Returns which of these points, in rising order of limits, no mixture of two others dominates on average.
pub(super) fn on_average(points: &[FleetPoint]) -> Vec<usize> {
    let all: Vec<(f64, f64, f64)> = points.iter().map(|p| (p.limit.get(), p.power.get(), p.throughput.get())).collect();
    // Points that only mixtures of two lower limits dominate stay; they do no harm.
    let mixed = |x: usize| all[..x].iter().any(|a| all[x + 1..].iter().any(|b| mixture_dominates(*a, *b, all[x])));
    (0..all.len()).filter(|&x| !mixed(x)).collect()
}

/// Returns whether some mixture of a and b is no worse than x.
fn mixture_dominates(a: (f64, f64, f64), b: (f64, f64, f64), x: (f64, f64, f64)) -> bool {
    // Shares of b that satisfy each of the three conditions.
    let (mut least, mut most) = (0.0_f64, 1.0_f64);
    let mut at_most = |from: f64, to: f64, limit: f64| {
        let (rise, room) = (to - from, limit - from);
        if rise > 0.0 {
            most = most.min(room / rise);
        } else if rise < 0.0 {
            least = least.max(room / rise);
        } else if room < 0.0 {
            most = -1.0;
        }
    };
    at_most(a.0, b.0, x.0);
    at_most(a.1, b.1, x.1);
    at_most(-a.2, -b.2, -x.2);
    least <= most
}
