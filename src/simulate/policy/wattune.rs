//! wattune itself: the daemon's planner over the daemon's view of the forecast, made anew for each slot.

use crate::domain::{Objective, Work};
use crate::plan::{PlanSlot, Progress, Request, WINDOW, plan};
use crate::simulate::replay::{Decision, Step, View};
use crate::units::{GramsCo2e, GramsPerKwh, Seconds};

/// [`plan`] with what had been said by now; its first slot is carried out (`planning.md` §4).
pub(super) fn decide(view: &View<'_>) -> Decision {
    carry_out(view, &view.grid.expected(view.now), true)
}

/// The steps of a plan over `horizon`: of its first slot, or all of them.
pub(super) fn carry_out(view: &View<'_>, horizon: &[PlanSlot], first_only: bool) -> Decision {
    let objective = Objective { max_slowdown: view.budget, ..Objective::UNBOUND };
    let plan = plan(&Request {
        now: view.now,
        profile: view.profile,
        horizon,
        objective: &objective,
        work: Work::TotalSamples(view.work),
        progress: Progress {
            samples: view.done,
            elapsed: view.elapsed,
            reference_error: view.profile_error,
            carbon: GramsCo2e::ZERO,
        },
        max_power: view.max_power,
        // Carbon alone is weighed: nothing is made commensurable with it.
        reference_intensity: horizon.first().map_or(GramsPerKwh::ZERO, |s| s.intensity),
        prices: None,
        window: WINDOW,
        allowed: None,
        dwell: Seconds::ZERO,
        activity: None,
    })?;
    let until = horizon.first().filter(|_| first_only).map(|s| s.slot.end());
    let segments = plan.segments.iter().take_while(|s| until.is_none_or(|until| s.slot.start() < until));
    Ok(segments.map(|s| Step::at(s.point, s.slot.duration())).collect())
}
