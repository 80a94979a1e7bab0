//! Which settings a sweep visits, and what is inferred for boards that are not equal.

use crate::domain::{ClockRange, Estimate, OperatingPoint, PowerLimit, SetPoint};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// One set point per group of equal boards.
pub type Setting = Vec<SetPoint>;

/// What one group of equal boards may be set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRange {
    /// How many boards they are.
    pub boards: u32,
    /// The highest limit (`planning.md` §5).
    pub ceiling: PowerLimit,
    /// The limit they were found at, where it is one and the same: it is measured too.
    pub found: Option<PowerLimit>,
    /// The lowest limit.
    pub min: PowerLimit,
    /// The clocks to which they may be locked; none where clocks are left alone.
    pub clocks: Option<ClockRange>,
}

impl GroupRange {
    /// One board that is steered by its limit alone.
    pub const fn of_limits(ceiling: PowerLimit, min: PowerLimit) -> Self {
        Self { boards: 1, ceiling, found: None, min, clocks: None }
    }
}

/// The settings of a sweep, from the ceiling down, one list per group: in each list one group's limit is lowered step
/// by step while the others stay at their ceilings. With one group, which is the usual case, this is Zeus's sweep, and
/// the found limit is among its steps: what was saved is told against it.
pub fn ladders(groups: &[GroupRange], step: Watts, lowest: Option<Watts>) -> Vec<Vec<Setting>> {
    let ceiling: Setting = groups.iter().map(|g| g.ceiling.into()).collect();
    let step = step.to_milliwatts().max(1_000);
    let descend = |(index, group): (usize, &GroupRange)| {
        let floor = lowest.map_or(group.min, |l| group.min.max(PowerLimit::from_watts(l)));
        let rungs = std::iter::successors(Some(group.ceiling.milliwatts()), |l| l.checked_sub(step));
        let rungs = rungs.take_while(|l| *l >= floor.milliwatts() || *l == group.ceiling.milliwatts());
        let mut rungs: Vec<u32> = rungs.collect();
        let is_new = |found: &PowerLimit| {
            let known = rungs.iter().any(|l| PowerLimit::from_milliwatts(*l).same_as(*found));
            (floor..group.ceiling).contains(found) && groups.len() == 1 && !known
        };
        if let Some(found) = group.found.filter(is_new).map(PowerLimit::milliwatts) {
            rungs.insert(rungs.partition_point(|l| *l > found), found);
        }
        let at = |limit| {
            let mut setting = ceiling.clone();
            setting[index] = PowerLimit::from_milliwatts(limit).into();
            setting
        };
        rungs.into_iter().map(at).collect()
    };
    groups.iter().enumerate().map(descend).collect()
}

/// The settings of a sweep of clocks at the ceiling's limit, from the ceiling, whose clocks are free, down to the lowest
/// clock in steps of about `step_mhz`. Empty where clocks are left alone, and for unequal boards: which of their clocks
/// slow a job equally cannot be told from sweeps of one group at a time.
pub fn clock_ladder(groups: &[GroupRange], step_mhz: u32) -> Vec<Setting> {
    let [GroupRange { ceiling, clocks: Some(range), .. }] = groups else { return Vec::new() };
    let set = |clock| vec![SetPoint { limit: *ceiling, clock }];
    let mut ladder = vec![set(None)];
    let mut last = range.max();
    for clock in range.steps().iter().rev() {
        if clock.megahertz() + step_mhz.max(1) <= last.megahertz() {
            ladder.push(set(Some(*clock)));
            last = *clock;
        }
    }
    ladder
}

/// What one group's sweep showed at one of its limits, the others being at their ceilings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupPoint {
    /// The group's limit.
    pub limit: PowerLimit,
    /// The whole job's throughput: training is synchronous, the slowest board decides.
    pub throughput: SamplesPerSecond,
    /// The power of this group's boards.
    pub power: Watts,
}

/// Settings that slow every group equally: for each throughput that some group showed, the lowest limit of each group
/// that still reaches it. Throughput and power are inferred from the groups' own sweeps; measurement replaces them
/// once a setting has been in force.
///
/// `curves` has one sweep per group, ceiling first. The answer goes from the ceiling down and leaves the ceiling out.
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

/// The lowest limit at which a group still reaches `level`, interpolated between its measured limits and rounded up to
/// the watt.
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
        let ladder = ladders(std::slice::from_ref(&group), Watts::new(50.0), None);
        assert_eq!(ladder, [[260, 210, 160, 110].map(|limit| vec![w(limit).into()])]);
        let short = ladders(&[group], Watts::new(50.0), Some(Watts::new(160.0)));
        assert_eq!(short[0].len(), 3);
        let found = GroupRange { found: Some(w(200)), ..GroupRange::of_limits(w(260), w(100)) };
        let ladder = ladders(std::slice::from_ref(&found), Watts::new(50.0), None);
        assert_eq!(ladder, [[260, 210, 200, 160, 110].map(|limit| vec![w(limit).into()])]);
        let at_ceiling = GroupRange { found: Some(w(260)), ..found };
        assert_eq!(ladders(&[at_ceiling], Watts::new(50.0), None)[0].len(), 4);
        let fixed = ladders(&[GroupRange::of_limits(w(100), w(100))], Watts::new(25.0), None);
        assert_eq!(fixed, [vec![vec![w(100).into()]]]);
    }

    #[test]
    fn clocks_go_down_in_steps_that_the_board_has() {
        let range = ClockRange::new((0..=100).map(|i| ClockLimit::from_megahertz(240 + 15 * i)).collect());
        let group = GroupRange { clocks: range, ..GroupRange::of_limits(w(300), w(100)) };
        let ladder = clock_ladder(std::slice::from_ref(&group), 400);
        let clocks: Vec<_> = ladder.iter().map(|s| (s[0].limit, s[0].clock.map(ClockLimit::megahertz))).collect();
        assert_eq!(clocks, [None, Some(1335), Some(930), Some(525)].map(|clock| (w(300), clock)));
        assert!(clock_ladder(&[group.clone(), group], 400).is_empty(), "unequal boards");
        assert!(clock_ladder(&[GroupRange::of_limits(w(300), w(100))], 400).is_empty());
    }

    #[test]
    fn unequal_boards_get_the_limits_that_slow_them_equally() {
        let point = |limit, throughput, power| GroupPoint {
            limit: w(limit),
            throughput: SamplesPerSecond::new(throughput),
            power: Watts::new(power),
        };
        // The big board has slack: it only slows the job below 200 W.
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
