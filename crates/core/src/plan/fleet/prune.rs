//! Selection of the operating points that an optimal plan can need under a cap on limits (`planning.md` §2, "Hull").

use super::problem::FleetPoint;

/// Returns the indices of the points that no other point dominates, from the lowest limit up. A point dominates another
/// if its power and limit are not higher and its throughput is not lower. Among equal points the first is kept.
pub(super) fn undominated(points: &[FleetPoint]) -> Vec<usize> {
    let mut by_limit: Vec<usize> = (0..points.len()).collect();
    let raw = |i: usize| (points[i].limit.get(), points[i].power.get(), points[i].throughput.get());
    by_limit.sort_by(|&a, &b| {
        let ((ga, pa, ra), (gb, pb, rb)) = (raw(a), raw(b));
        ga.total_cmp(&gb).then(pa.total_cmp(&pb)).then(rb.total_cmp(&ra))
    });
    let mut kept: Vec<usize> = Vec::with_capacity(points.len());
    // A point that dominates another comes earlier in this order.
    for &new in &by_limit {
        let (_, p, r) = raw(new);
        if !kept.iter().any(|&old| raw(old).1 <= p && raw(old).2 >= r) {
            kept.push(new);
        }
    }
    kept
}

/// Returns the indices of the points that no mixture of a point with a lower and one with a higher limit dominates. The
/// points are in rising order of limits.
pub(super) fn on_average(points: &[FleetPoint]) -> Vec<usize> {
    let all: Vec<(f64, f64, f64)> = points.iter().map(|p| (p.limit.get(), p.power.get(), p.throughput.get())).collect();
    // A point that only mixtures of two lower limits dominate is kept: this costs computing time, but does no harm.
    let mixed = |x: usize| all[..x].iter().any(|a| all[x + 1..].iter().any(|b| mixture_dominates(*a, *b, all[x])));
    (0..all.len()).filter(|&x| !mixed(x)).collect()
}

/// Returns whether some mixture in time of the points a and b dominates x. Points are (limit, power, throughput).
fn mixture_dominates(a: (f64, f64, f64), b: (f64, f64, f64), x: (f64, f64, f64)) -> bool {
    // Range of the shares of b at which the mixture is no worse than x in limit, power and throughput.
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
