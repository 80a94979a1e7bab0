//! Throughput of a job over its power, and the concave hull of this curve (`planning.md` §2).

use crate::domain::{OperatingPoint, Profile};
use crate::units::{SamplesPerSecond, Watts};

/// Relative tolerance for rounding: a throughput at most this far above that of the fastest hull point still counts as
/// reachable.
const ROUNDING: f64 = 1e-9;

/// Usable operating point on a job's throughput–power curve; usually on the concave hull of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HullPoint {
    /// Index in [`Profile::points`].
    pub index: usize,
    /// Average power of all GPUs of the job.
    pub power: Watts,
    /// Throughput of the whole job, above zero.
    pub throughput: SamplesPerSecond,
}

/// Time-sharing of one or two hull points (operating points on the concave hull of throughput over power) that reaches
/// a given average throughput with the least average power.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Hull points with their shares of the time, the faster point first; shares are above 0 and sum to 1.
    pub parts: Vec<(HullPoint, f64)>,
}

impl Mix {
    /// Returns the average power of the mix.
    pub fn power(&self) -> Watts {
        self.parts.iter().map(|(point, share)| point.power * *share).sum()
    }

    /// Returns the average throughput of the mix.
    pub fn throughput(&self) -> SamplesPerSecond {
        self.parts.iter().map(|(point, share)| point.throughput * *share).sum()
    }
}

/// Throughput of a job over its power: the usable operating points of its profile, and their concave hull. Has at least
/// one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<OperatingPoint>,
    hull: Vec<HullPoint>,
    ceiling: HullPoint,
}

impl Curve {
    /// Returns the curve through the profile's usable points, those with power and throughput above zero; `None` if the
    /// profile has none. Points measured during a stall are not usable.
    pub fn from_profile(profile: &Profile) -> Option<Self> {
        let usable: Vec<HullPoint> = (0..).zip(&profile.points).filter_map(|(i, p)| HullPoint::of(i, p)).collect();
        let ceiling = *usable.first()?;
        let coordinates: Vec<_> = usable.iter().map(|p| (p.power, p.throughput)).collect();
        let hull = concave_envelope(&coordinates).into_iter().map(|i| usable[i]).collect();
        let mut sorted = usable;
        sorted.sort_by(|a, b| a.power.total_cmp(&b.power).then(b.throughput.total_cmp(&a.throughput)));
        let points = sorted.into_iter().map(|p| profile.points[p.index].clone()).collect();
        Some(Self { points, hull, ceiling })
    }

    /// Returns the usable operating points by increasing power; at equal power the faster one first.
    pub fn points(&self) -> &[OperatingPoint] {
        &self.points
    }

    /// Returns the hull: the points on the upper concave envelope of throughput over power, in order of strictly rising
    /// power and throughput. Any other point is dominated by a hull point or by time-sharing two of them (`planning.md`
    /// §2, "Hull").
    pub fn hull(&self) -> &[HullPoint] {
        &self.hull
    }

    /// Returns the point at the maximum usable limit, even if a lower limit is faster: every slowdown is measured
    /// against the throughput of this point, r(l_max) of `planning.md` §1. If this point is unusable, returns the point
    /// at the highest limit that is usable.
    pub fn ceiling(&self) -> &HullPoint {
        &self.ceiling
    }

    /// Returns the hull point with the least energy per sample; of two equal ones, the faster. Slower hull points need
    /// at least as much energy per sample.
    pub fn most_efficient(&self) -> &HullPoint {
        let joules_per_sample = |p: &HullPoint| p.power.get() / p.throughput.get();
        self.hull.iter().fold(
            &self.hull[0],
            |best, p| {
                if joules_per_sample(p) <= joules_per_sample(best) { p } else { best }
            },
        )
    }

    /// Returns the average power of the mix that [`Self::mix_at`] returns; `None` if even the fastest point is too
    /// slow.
    pub fn power_at(&self, throughput: SamplesPerSecond) -> Option<Watts> {
        Some(self.mix_at(throughput)?.power())
    }

    /// Returns the mix of hull points that reaches a throughput with the least average power: the next faster and the
    /// next slower hull point, or the slowest hull point alone if even that point exceeds the throughput. `None` if the
    /// fastest hull point is slower than the throughput.
    pub fn mix_at(&self, throughput: SamplesPerSecond) -> Option<Mix> {
        let above = self.hull.partition_point(|p| p.throughput < throughput);
        let Some(fast) = self.hull.get(above) else {
            let top = *self.hull.last()?;
            let reached = throughput.get() <= top.throughput.get() * (1.0 + ROUNDING);
            return reached.then(|| Mix { parts: vec![(top, 1.0)] });
        };
        let Some(slow) = above.checked_sub(1).map(|below| self.hull[below]) else {
            return Some(Mix { parts: vec![(*fast, 1.0)] });
        };
        let share = (throughput - slow.throughput) / (fast.throughput - slow.throughput);
        let parts = [(*fast, share), (slow, 1.0 - share)];
        Some(Mix { parts: parts.into_iter().filter(|(_, share)| *share > 0.0).collect() })
    }
}

impl HullPoint {
    fn of(index: usize, point: &OperatingPoint) -> Option<Self> {
        let (power, throughput) = (point.power.mean, point.throughput.mean);
        point.is_usable().then_some(Self { index, power, throughput })
    }
}

/// Returns the indices of the points on the upper concave envelope of throughput over power, from least power to
/// greatest throughput. Omits duplicates and points on a straight line between others.
pub(crate) fn concave_envelope(points: &[(Watts, SamplesPerSecond)]) -> Vec<usize> {
    let mut by_power: Vec<usize> = (0..points.len()).collect();
    by_power.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0).then(points[b].1.total_cmp(&points[a].1)));
    let mut hull: Vec<usize> = Vec::new();
    for new in by_power {
        // A point with at least the power and at most the throughput of another is dominated; the last hull point is
        // the fastest so far.
        if hull.last().is_some_and(|&last| points[new].1 <= points[last].1) {
            continue;
        }
        while let [.., before, last] = hull[..]
            && !bends_down(points[before], points[last], points[new])
        {
            hull.pop();
        }
        hull.push(new);
    }
    hull
}

/// Returns true if the throughput gained per watt is lower from `b` to `c` than from `a` to `b`, by more than rounding.
/// With such bends only, the watts per gained sample/s rise strictly from each segment of the hull to the next.
fn bends_down(a: (Watts, SamplesPerSecond), b: (Watts, SamplesPerSecond), c: (Watts, SamplesPerSecond)) -> bool {
    let before = (b.1 - a.1).get() * (c.0 - b.0).get();
    let beyond = (c.1 - b.1).get() * (b.0 - a.0).get();
    beyond < before * (1.0 - 1e-12)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Estimate, PowerLimit};
    use crate::units::Seconds;

    fn profile(points: &[(f64, f64)]) -> Profile {
        let point = |(i, &(power, throughput)): (usize, &(f64, f64))| OperatingPoint {
            setting: vec![PowerLimit::from_milliwatts(300_000 - 25_000 * i as u32).into()],
            throughput: Estimate { mean: SamplesPerSecond::new(throughput), relative_error: 0.0 },
            power: Estimate { mean: Watts::new(power), relative_error: 0.0 },
            measured: Seconds::new(10.0),
        };
        Profile { points: points.iter().enumerate().map(point).collect() }
    }

    fn hull_of(points: &[(f64, f64)]) -> Vec<usize> {
        let curve = Curve::from_profile(&profile(points)).expect("usable");
        curve.hull().iter().map(|p| p.index).collect()
    }

    #[test]
    fn the_hull_omits_dominated_points() {
        assert_eq!(hull_of(&[(300.0, 100.0), (200.0, 80.0), (100.0, 50.0)]), [2, 1, 0]);
        assert_eq!(hull_of(&[(300.0, 100.0), (200.0, 70.0), (100.0, 50.0)]), [2, 0], "below the line");
        assert_eq!(hull_of(&[(300.0, 100.0), (200.0, 75.0), (100.0, 50.0)]), [2, 0], "on the line");
        assert_eq!(hull_of(&[(300.0, 90.0), (200.0, 95.0), (100.0, 50.0)]), [2, 1], "ceiling slower than below it");
        assert_eq!(hull_of(&[(300.0, 100.0), (100.0, 60.0), (120.0, 50.0)]), [1, 0], "slowest draws more");
        assert_eq!(hull_of(&[(300.0, 100.0), (300.0, 100.0), (300.0, 90.0)]), [0], "duplicates");
        assert_eq!(hull_of(&[(300.0, 0.0), (200.0, 80.0), (0.0, 50.0)]), [1], "stalled and unread points");
    }

    #[test]
    fn the_reference_is_the_ceiling_even_off_the_hull() {
        let curve = Curve::from_profile(&profile(&[(300.0, 90.0), (200.0, 95.0), (100.0, 50.0)])).expect("usable");
        assert_eq!((curve.ceiling().index, curve.ceiling().throughput.get()), (0, 90.0));
        assert_eq!(curve.points().iter().map(|p| p.power.mean.get()).collect::<Vec<_>>(), [100.0, 200.0, 300.0]);
        assert_eq!(curve.most_efficient().index, 2);
        assert_eq!(Curve::from_profile(&profile(&[(300.0, 0.0)])), None);
        assert_eq!(Curve::from_profile(&Profile::default()), None);
    }

    #[test]
    fn a_static_mix_interpolates_the_hull() {
        let curve = Curve::from_profile(&profile(&[(300.0, 100.0), (200.0, 80.0), (100.0, 50.0)])).expect("usable");
        let at = |throughput| curve.power_at(SamplesPerSecond::new(throughput)).map(Watts::get);
        assert_eq!(at(90.0), Some(250.0));
        assert_eq!(at(80.0), Some(200.0));
        assert_eq!(at(20.0), Some(100.0), "slower than the slowest: that one reaches it");
        assert_eq!(at(100.1), None);
        let mix = curve.mix_at(SamplesPerSecond::new(95.0)).expect("reachable");
        assert_eq!(mix.parts.iter().map(|(p, s)| (p.index, *s)).collect::<Vec<_>>(), [(0, 0.75), (1, 0.25)]);
        assert_eq!(mix.throughput().get(), 95.0);
    }

    proptest! {
        #[test]
        fn no_point_lies_above_the_hull(points in prop::collection::vec((0u8..40, 0u8..40), 1..12)) {
            let points: Vec<_> = points.iter().map(|&(p, r)| (f64::from(p) * 7.3, f64::from(r) * 1.9)).collect();
            let Some(curve) = Curve::from_profile(&profile(&points)) else {
                prop_assert!(points.iter().all(|p| p.0 <= 0.0 || p.1 <= 0.0));
                return Ok(());
            };
            for pair in curve.hull().windows(2) {
                prop_assert!(pair[0].power < pair[1].power && pair[0].throughput < pair[1].throughput);
            }
            for point in curve.points() {
                let least = curve.power_at(point.throughput.mean).expect("within the curve");
                prop_assert!(least.get() <= point.power.mean.get() * (1.0 + 1e-9));
            }
        }
    }
}
