//! Several jobs replayed together under a node's power cap.

use chrono::{DateTime, TimeDelta, Utc};

use super::planned::{objective, request, steps};
use super::run::{ReplayError, Replayed, Run, Setting};
use super::view::{Step, View};
use wattune_core::domain::{Objective, Slot, TimeSeries};
use wattune_core::plan::{Member, Settings, Shared, Unplannable, plan_jointly};
use wattune_core::profile::Curve;
use wattune_core::units::{Seconds, Watts};

/// The power cap that several jobs share, and the foresight with which they are planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnderCap {
    /// The maximum sum of the power limits of all jobs at any time. A job that has ended counts with its lowest limit.
    pub cap: Watts,
    /// True if plans use the actual future carbon intensities instead of forecasts.
    pub foresight: bool,
}

/// Runs jobs that begin together until each has ended: [`plan_jointly`] plans them anew for each slot (time step of the
/// plan), as the daemon does. `budget` is the extra time that each job may take (0.03 is 3 %); a job takes longer if
/// the cap leaves too little power. The results are in the order of `settings`.
///
/// # Errors
/// If the jobs do not fit under the cap, the carbon trace ends before the work does, or no plan is possible.
pub fn replay_jointly(
    settings: &[Setting<'_>],
    budget: Option<f64>,
    under: UnderCap,
) -> Result<Vec<Replayed>, ReplayError> {
    let UnderCap { cap, foresight } = under;
    let of_points = |s: &Setting<'_>| (0..s.job.profile.points.len()).map(|p| s.job.limit(p)).collect::<Vec<Watts>>();
    let limits: Vec<Vec<Watts>> = settings.iter().map(of_points).collect();
    let lowest = |limits: &[Watts]| limits.iter().copied().reduce(Watts::min).unwrap_or_default();
    let sum: Watts = limits.iter().map(|l| lowest(l)).sum();
    if sum > cap {
        return Err(ReplayError::NoRoom { lowest: sum, cap });
    }
    let curves = settings.iter().map(|s| Curve::from_profile(s.believed).ok_or(Unplannable::NoUsablePoint));
    let curves = curves.collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<Run<'_>> = settings.iter().map(Run::new).collect();
    let dwell = if foresight { Seconds::ZERO } else { Settings::default().dwell_s };
    while let Some(now) = runs.iter().filter(|run| !run.is_done()).map(Run::now).min() {
        let open: Vec<usize> = (0..runs.len()).filter(|&j| !runs[j].is_done()).collect();
        let grid = settings[open[0]].grid;
        let horizon = if foresight { grid.future(now) } else { grid.expected(now) };
        let errors = (!foresight).then(|| grid.errors(now));
        let until = horizon.iter().find(|s| s.slot.contains(now)).map(|s| s.slot.end());
        let until = until.ok_or(ReplayError::BeyondTrace(now))?;
        let views: Vec<_> =
            open.iter().map(|&j| View { now, ..runs[j].view(&settings[j], &curves[j], budget) }).collect();
        let objectives: Vec<Objective> = views.iter().map(objective).collect();
        let requests = views.iter().zip(&objectives);
        let requests = requests.map(|(view, objective)| request(view, &horizon, objective, dwell, errors.as_ref()));
        let member = |(request, &j): (_, &usize)| {
            let at_rest = lowest(&limits[j]);
            Member { request, priority: 0, limits: &limits[j], at_rest }
        };
        let members: Vec<Member<'_>> = requests.zip(&open).map(member).collect();
        let resting: Watts = (0..runs.len()).filter(|j| !open.contains(j)).map(|j| lowest(&limits[j])).sum();
        let left = constant(now, cap - resting);
        let made =
            plan_jointly(&members, &Shared { cap: &left, carbon_budget: None }, Settings::default().solver, &|| true);
        for (&j, plan) in open.iter().zip(made.plans) {
            let plan = plan?;
            let run = &mut runs[j];
            let planned = steps(&plan);
            let last = planned.last().cloned();
            // If rounding leaves work undone at the end of a plan, the plan's last step goes on.
            for step in planned.into_iter().chain(last.map(|step| Step { lasts: Seconds::new(f64::MAX), ..step })) {
                let room = Seconds::from_delta(until - run.now());
                if room > Seconds::ZERO {
                    run.apply(&Step { lasts: step.lasts.min(room), ..step })?;
                }
            }
            if !run.is_done() && run.now() < until {
                return Err(ReplayError::Idle(run.now()));
            }
        }
    }
    runs.into_iter().map(Run::end).collect()
}

fn constant(from: DateTime<Utc>, watts: Watts) -> TimeSeries<Watts> {
    let ever = Slot::new(from, from + TimeDelta::days(3650));
    TimeSeries::from_points(ever.map(|slot| (slot, watts)).into_iter().collect()).0
}
