//! wattune itself: the daemon's planner with the forecasts that the daemon would have, which plans anew for each slot
//! (time step of the plan).

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, View, planned};
use wattune_core::plan::Settings;

pub(super) const POLICY: Policy = Policy {
    name: "wattune",
    about: "the daemon's plan, made anew for each slot from the forecasts published by then",
    mode: RunMode::WithinBudget(decide),
    learns: true,
};

/// Returns the steps for the present slot, from a plan over the forecasts published by now (`planning.md` §4).
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
