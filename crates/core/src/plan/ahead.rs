//! The slots ahead, from the model's outlook and the planner's settings.

use chrono::{DateTime, Utc};

use super::problem::PlanSlot;
use super::settings::Settings;
use super::slots::{floor, planning_slots};
use crate::domain::CarbonSeries;
use crate::forecast::{HorizonPolicy, Model};

/// What is planned over from `now` to `until`: the source's forecast as the model learnt to correct and extend it,
/// followed as far as its measured skill goes, in slots as the settings want them. The daemon and the simulator both
/// look ahead through this.
pub fn slots_ahead(
    model: &Model,
    expected: &CarbonSeries,
    (now, until): (DateTime<Utc>, DateTime<Utc>),
    policy: &HorizonPolicy,
    settings: &Settings,
) -> Vec<PlanSlot> {
    // From the begin of the present slot on, so that its value does not drift while it passes.
    let begun = floor(now, settings.shortest_slot_s.to_delta());
    let from = if expected.at(begun).is_some() { begun } else { now };
    let horizon = model.outlook(expected, from, until, policy);
    let followed = model.shrink_by_skill(&horizon);
    planning_slots(&followed, now, settings.risk, &settings.slots())
}
