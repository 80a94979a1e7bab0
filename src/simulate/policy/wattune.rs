//! wattune itself: the daemon's planner over the daemon's view of the forecast, made anew for each slot.

use crate::simulate::replay::{Act, Decision, Step, View};
use wattune_core::domain::{Objective, Work};
use wattune_core::forecast::ErrorPaths;
use wattune_core::plan::{Doing, Plan, PlanSlot, Progress, Request, Settings, WINDOW, plan};
use wattune_core::units::{GramsCo2e, GramsPerKwh, Seconds};

/// [`plan`] with what had been said by now; its first slot is carried out (`planning.md` §4).
pub(super) fn decide(view: &View<'_>) -> Decision {
    let horizon = view.grid.expected(view.now);
    let errors = view.grid.errors(view.now);
    let present = horizon.iter().find(|s| s.slot.contains(view.now)).map(|s| s.slot.end());
    let mut steps = planned(view, &horizon, Settings::default().dwell_s, Some(&errors))?;
    if let Some(end) = present {
        let mut at = view.now;
        steps.retain(|step| {
            let begun = at;
            at = at.checked_add_signed(step.lasts.to_delta()).unwrap_or(end);
            begun < end
        });
    }
    Ok(steps)
}

/// The steps of a plan over `horizon`, to the end of the work.
pub(super) fn planned(view: &View<'_>, horizon: &[PlanSlot], dwell: Seconds, errors: Option<&ErrorPaths>) -> Decision {
    let objective = Objective { max_slowdown: view.budget, pausable: view.pausing, ..Objective::UNBOUND };
    Ok(steps(&plan(&request(view, horizon, &objective, dwell, errors))?))
}

/// What the planner is asked.
pub(crate) fn request<'a>(
    view: &View<'a>,
    horizon: &'a [PlanSlot],
    objective: &'a Objective,
    dwell: Seconds,
    errors: Option<&'a ErrorPaths>,
) -> Request<'a> {
    Request {
        now: view.now,
        profile: view.profile,
        horizon,
        objective,
        work: Work::TotalSamples(view.work),
        progress: Progress {
            samples: view.done,
            elapsed: view.elapsed,
            reserve: 0.5 * view.profile_error,
            carbon: GramsCo2e::ZERO,
            past: view.past,
        },
        max_power: view.max_power,
        // Carbon alone is weighed: nothing is made commensurable with it.
        reference_intensity: horizon.first().map_or(GramsPerKwh::ZERO, |s| s.intensity),
        prices: None,
        window: WINDOW,
        allowed: None,
        dwell,
        activity: Some(view.activity),
        errors,
    }
}

/// A plan as steps.
pub(crate) fn steps(plan: &Plan) -> Vec<Step> {
    let act = |doing, point| match doing {
        Doing::Training => Act::Train(vec![(point, 1.0)]),
        Doing::Paused => Act::Pause,
        Doing::Resuming => Act::Checkpoint(point),
    };
    plan.segments.iter().map(|s| Step { act: act(s.doing, s.point), lasts: s.slot.duration() }).collect()
}
