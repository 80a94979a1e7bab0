//! Planning slots from a forecast model.

use chrono::{DateTime, Utc};

use super::problem::PlanSlot;
use super::settings::Settings;
use super::slots::{floor, planning_slots};
use crate::domain::CarbonSeries;
use crate::forecast::{HorizonPolicy, Model};

/// Returns the slots to plan over from `now` to `until`: the source's forecast as corrected and extended by the model,
/// shrunk by its measured skill, at the resolution of the settings. The daemon and the simulator share this function.
pub fn slots_ahead(
    model: &Model,
    expected: &CarbonSeries,
    (now, until): (DateTime<Utc>, DateTime<Utc>),
    policy: &HorizonPolicy,
    settings: &Settings,
) -> Vec<PlanSlot> {
    // Start at the beginning of the present slot so that its value does not drift.
    let begun = floor(now, settings.shortest_slot_s.to_delta());
    let from = if expected.at(begun).is_some() { begun } else { now };
    let horizon = model.outlook(expected, from, until, policy);
    let followed = model.shrink_by_skill(&horizon);
    planning_slots(&followed, now, settings.risk, &settings.slots())
}
