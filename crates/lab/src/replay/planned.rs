//! Decisions of policies that use the daemon's planner.

use super::view::{Action, Decision, Step, View};
use wattune_core::domain::{Objective, Work};
use wattune_core::forecast::ErrorPaths;
use wattune_core::plan::{InvalidProblem, JobActivity, Plan, PlanSlot, Progress, Request, Unplannable, WINDOW, plan};
use wattune_core::units::{GramsCo2e, GramsPerKwh, Seconds, Watts};

/// Returns the steps of the daemon's plan over `horizon`, up to the end of the work.
pub(crate) fn planned(view: &View<'_>, horizon: &[PlanSlot], dwell: Seconds, errors: Option<&ErrorPaths>) -> Decision {
    Ok(steps(&plan(&request(view, horizon, &objective(view), dwell, errors))?))
}

/// Returns the objective of the job in `view`.
pub(super) fn objective(view: &View<'_>) -> Objective {
    Objective { max_slowdown: view.budget, pausable: view.pausing, ..Objective::UNBOUND }
}

pub(super) fn request<'a>(
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
            samples: view.samples_done,
            elapsed: view.elapsed,
            excess_before: Seconds::ZERO,
            reserve: 0.5 * view.profile_error,
            pauses_ahead: Seconds::ZERO,
            pause_power: Watts::ZERO,
            restart_left: Seconds::ZERO,
            carbon: GramsCo2e::ZERO,
            first_plan: view.first_plan,
            past_emissions: view.past_emissions,
        },
        max_power: view.max_power,
        // The reference intensity converts other costs to carbon; here carbon is the only cost, so that any value will
        // do.
        reference_intensity: horizon.first().map_or(GramsPerKwh::ZERO, |s| s.intensity),
        prices: None,
        window: WINDOW,
        allowed: None,
        dwell,
        activity: Some(view.activity),
        errors,
    }
}

pub(super) fn steps(plan: &Plan) -> Vec<Step> {
    let action = |activity, point| match activity {
        JobActivity::Training => Action::Train(vec![(point, 1.0)]),
        JobActivity::Paused => Action::Pause,
        JobActivity::Resuming => Action::Checkpoint(point),
    };
    plan.segments.iter().map(|s| Step { action: action(s.activity, s.point), lasts: s.slot.duration() }).collect()
}

/// Returns the error of a policy for a horizon without slots.
pub(crate) fn no_horizon() -> Unplannable {
    Unplannable::Invalid(InvalidProblem::NoSlots)
}
