//! Settings that a sweep measures, and inferred settings for jobs on unequal GPUs.

use crate::domain::{ClockRange, Estimate, OperatingPoint, PowerLimit, SetPoint};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// Set points of a job, one per group of equal GPUs.
pub type Setting = Vec<SetPoint>;

/// Returns the set points or limits of a job's groups of GPUs as text, such as "250 W + 200 W".
pub fn joined<T: std::fmt::Display>(of_groups: &[T]) -> String {
    of_groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
}

/// Power limits and clocks that a group of equal GPUs allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRange {
    /// Number of GPUs in the group.
    pub gpus: u32,
    /// Maximum usable limit (`planning.md` §5).
    pub ceiling: PowerLimit,
    /// Original limit (in force before wattune's first write), if all GPUs of the group have the same one. If the job
    /// has only this group, its sweep measures that limit too.
    pub original: Option<PowerLimit>,
    /// Lowest power limit that the GPUs accept.
    pub min: PowerLimit,
    /// Lockable clocks; `None` if clocks are not used.
    pub clocks: Option<ClockRange>,
}

impl GroupRange {
    /// Returns the range of one GPU whose clocks are not controlled and whose original limit is not measured.
    pub const fn of_limits(ceiling: PowerLimit, min: PowerLimit) -> Self {
        Self { gpus: 1, ceiling, original: None, min, clocks: None }
    }
}

/// Returns the settings of a sweep, one list per group, each from the maximum usable limit (ceiling) down. A list
/// lowers one group's limit and keeps the others at their ceilings. With a single group, the usual case, this is Zeus's
/// sweep plus the original limit, which savings are compared with.
pub fn limit_steps(groups: &[GroupRange], step: Watts, lowest: Option<Watts>) -> Vec<Vec<Setting>> {
    let ceiling: Setting = groups.iter().map(|g| g.ceiling.into()).collect();
    let step = step.to_milliwatts().max(1_000);
    let descend = |(index, group): (usize, &GroupRange)| {
        let floor = lowest.map_or(group.min, |l| group.min.max(PowerLimit::from_watts(l)));
        let limits = std::iter::successors(Some(group.ceiling.milliwatts()), |l| l.checked_sub(step));
        let limits = limits.take_while(|l| *l >= floor.milliwatts() || *l == group.ceiling.milliwatts());
        let mut limits: Vec<u32> = limits.collect();
        let is_new = |original: &PowerLimit| {
            let known = limits.iter().any(|l| PowerLimit::from_milliwatts(*l).same_as(*original));
            (floor..group.ceiling).contains(original) && groups.len() == 1 && !known
        };
        if let Some(original) = group.original.filter(is_new).map(PowerLimit::milliwatts) {
            limits.insert(limits.partition_point(|l| *l > original), original);
        }
        let at = |limit| {
            let mut setting = ceiling.clone();
            setting[index] = PowerLimit::from_milliwatts(limit).into();
            setting
        };
        limits.into_iter().map(at).collect()
    };
    groups.iter().enumerate().map(descend).collect()
}

/// Returns the settings of a clock sweep at the maximum usable limit: clocks unlocked first, then down to the lowest in
/// steps of at least `step_mhz`. Empty if clocks are not used, and for unequal GPUs, because single-group sweeps do not
/// show which clocks slow the groups equally.
pub fn clock_steps(groups: &[GroupRange], step_mhz: u32) -> Vec<Setting> {
    let [GroupRange { ceiling, clocks: Some(range), .. }] = groups else { return Vec::new() };
    let set = |clock| vec![SetPoint { limit: *ceiling, clock }];
    let mut steps = vec![set(None)];
    let mut last = range.max();
    for clock in range.steps().iter().rev() {
        if clock.megahertz() + step_mhz.max(1) <= last.megahertz() {
            steps.push(set(Some(*clock)));
            last = *clock;
        }
    }
    steps
}

/// Measurement of one group at one limit, with the other groups at their maximum usable limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupPoint {
    /// Power limit of the group's GPUs.
    pub limit: PowerLimit,
    /// Throughput of the whole job. Training is synchronous, so the slowest GPU determines it.
    pub throughput: SamplesPerSecond,
    /// Total power of this group's GPUs.
    pub power: Watts,
}

/// Infers settings that slow all groups equally: for each measured throughput, the lowest limit of each group that
/// still reaches it. Throughput and power of such a setting come from the groups' own sweeps and get `relative_error`.
///
/// `curves` holds one sweep per group, the maximum usable limit first. The returned points, fastest first, omit the
/// setting of maximum usable limits.
pub fn equalised(curves: &[Vec<GroupPoint>], relative_error: f64) -> Vec<OperatingPoint> {
    let Some(top) = curves.iter().filter_map(|c| c.first()).map(|p| p.throughput).reduce(SamplesPerSecond::max) else {
        return Vec::new();
    };
    let mut levels: Vec<SamplesPerSecond> =
        curves.iter().flatten().map(|p| p.throughput).filter(|r| *r < top * 0.999).collect();
    levels.sort_by(|a, b| b.total_cmp(a));
    levels.dedup_by(|a, b| (*b - *a) < top * 0.005);
    let mut points: Vec<OperatingPoint> = Vec::new();
    for level in levels {
        let chosen: Vec<GroupPoint> = curves.iter().filter_map(|curve| slowest_that_reaches(curve, level)).collect();
        if chosen.len() < curves.len() {
            continue;
        }
        let setting: Setting = chosen.iter().map(|p| p.limit.into()).collect();
        if points.iter().any(|p| p.setting == setting) {
            continue;
        }
        points.push(OperatingPoint {
            setting,
            throughput: Estimate { mean: level, relative_error },
            power: Estimate { mean: chosen.iter().map(|p| p.power).sum(), relative_error },
            measured: Seconds::ZERO,
        });
    }
    points
}

/// Returns the lowest limit at which a group reaches the throughput `level`, interpolated between measured limits and
/// rounded up to 1 W. `None` if no measured limit reaches it.
fn slowest_that_reaches(curve: &[GroupPoint], level: SamplesPerSecond) -> Option<GroupPoint> {
    let last = curve.iter().rposition(|p| p.throughput >= level * 0.999)?;
    let above = curve[last];
    let Some(below) = curve.get(last + 1) else { return Some(above) };
    let drop = above.throughput - below.throughput;
    let share = if drop > SamplesPerSecond::ZERO { ((above.throughput - level) / drop).clamp(0.0, 1.0) } else { 0.0 };
    let exact = above.limit.watts() - (above.limit.watts() - below.limit.watts()) * share;
    Some(GroupPoint {
        limit: PowerLimit::from_watts(Watts::new(exact.get().ceil())).min(above.limit),
        throughput: level,
        power: above.power - (above.power - below.power) * share,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ClockLimit;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    #[test]
    fn a_sweep_goes_down_from_the_ceiling_in_steps() {
        let group = GroupRange::of_limits(w(260), w(100));
        let steps = limit_steps(std::slice::from_ref(&group), Watts::new(50.0), None);
        assert_eq!(steps, [[260, 210, 160, 110].map(|limit| vec![w(limit).into()])]);
        let short = limit_steps(&[group], Watts::new(50.0), Some(Watts::new(160.0)));
        assert_eq!(short[0].len(), 3);
        let found = GroupRange { original: Some(w(200)), ..GroupRange::of_limits(w(260), w(100)) };
        let steps = limit_steps(std::slice::from_ref(&found), Watts::new(50.0), None);
        assert_eq!(steps, [[260, 210, 200, 160, 110].map(|limit| vec![w(limit).into()])]);
        let at_ceiling = GroupRange { original: Some(w(260)), ..found };
        assert_eq!(limit_steps(&[at_ceiling], Watts::new(50.0), None)[0].len(), 4);
        let fixed = limit_steps(&[GroupRange::of_limits(w(100), w(100))], Watts::new(25.0), None);
        assert_eq!(fixed, [vec![vec![w(100).into()]]]);
    }

    #[test]
    fn clocks_go_down_in_steps_that_the_gpu_has() {
        let range = ClockRange::new((0..=100).map(|i| ClockLimit::from_megahertz(240 + 15 * i)).collect());
        let group = GroupRange { clocks: range, ..GroupRange::of_limits(w(300), w(100)) };
        let steps = clock_steps(std::slice::from_ref(&group), 400);
        let clocks: Vec<_> = steps.iter().map(|s| (s[0].limit, s[0].clock.map(ClockLimit::megahertz))).collect();
        assert_eq!(clocks, [None, Some(1335), Some(930), Some(525)].map(|clock| (w(300), clock)));
        assert!(clock_steps(&[group.clone(), group], 400).is_empty(), "unequal GPUs");
        assert!(clock_steps(&[GroupRange::of_limits(w(300), w(100))], 400).is_empty());
    }

    #[test]
    fn unequal_gpus_get_the_limits_that_slow_them_equally() {
        let point = |limit, throughput, power| GroupPoint {
            limit: w(limit),
            throughput: SamplesPerSecond::new(throughput),
            power: Watts::new(power),
        };
        // Lowering the big GPU's limit slows the job only below 200 W.
        let big =
            vec![point(400, 100.0, 300.0), point(300, 100.0, 280.0), point(200, 100.0, 200.0), point(100, 60.0, 100.0)];
        let small = vec![point(250, 100.0, 240.0), point(200, 90.0, 195.0), point(150, 70.0, 150.0)];
        let points = equalised(&[big, small], 0.01);
        let at_90 = points.iter().find(|p| p.throughput.mean == SamplesPerSecond::new(90.0)).expect("a level");
        assert_eq!(at_90.setting, [w(175), w(200)].map(SetPoint::from));
        assert_eq!(at_90.power.mean, Watts::new(175.0 + 195.0));
        assert!(points.windows(2).all(|p| p[1].throughput.mean < p[0].throughput.mean));
    }
}
