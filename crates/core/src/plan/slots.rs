//! Converts a forecast into the slots to plan over.

use chrono::{DateTime, TimeDelta, Utc};

use super::job::PlanSlot;
use super::risk::FOUR_IN_FIVE;
use super::settings::Settings;
use crate::domain::{CarbonSeries, Slot};
use crate::forecast::{Horizon, HorizonPolicy, Model};
use crate::units::{GramsPerKwh, Seconds};

/// Step of the boundary between fine and coarse slots, so that far slots do not shift from plan to plan.
const NEAR_STEP: TimeDelta = TimeDelta::hours(6);

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
    planning_slots(&model.shrink_by_skill(&horizon), now, settings)
}

/// Returns the slots to plan over.
///
/// Values are time-weighted means. Boundaries are those of the forecast or multiples of the length since the epoch, so
/// that they do not shift over time and planning again with an unchanged forecast repeats the plan. For that, the
/// horizon should start at a multiple of `shortest_slot_s` at or before `now`; the planner cuts the past.
pub(super) fn planning_slots(horizon: &Horizon, now: DateTime<Utc>, settings: &Settings) -> Vec<PlanSlot> {
    let deviations = settings.risk.deviations() / FOUR_IN_FIVE;
    let slots: Vec<PlanSlot> = horizon
        .slots
        .iter()
        .map(|s| {
            let intensity = s.intensity + (s.high - s.intensity).max(GramsPerKwh::ZERO) * deviations;
            PlanSlot { slot: s.slot, intensity }
        })
        .collect();
    let near_end = floor(now, NEAR_STEP).checked_add_signed(settings.near_s.to_delta());
    let slots = cut(&slots, near_end);
    let far = near_end.map_or(slots.len(), |end| slots.partition_point(|s| s.slot.start() < end));
    let mut coarse = coarser(&slots[..far], settings.shortest_slot_s);
    coarse.extend(coarser(&slots[far..], settings.far_slot_s));
    coarse
}

/// Returns the last multiple of `step` since the epoch at or before `t`.
pub(super) fn floor(t: DateTime<Utc>, step: TimeDelta) -> DateTime<Utc> {
    let step_us = step.num_microseconds().unwrap_or(1).max(1);
    t - TimeDelta::microseconds(t.timestamp_micros().rem_euclid(step_us))
}

/// Splits slots at those `moments` that lie inside them.
fn cut(slots: &[PlanSlot], moments: impl IntoIterator<Item = DateTime<Utc>>) -> Vec<PlanSlot> {
    let mut moments: Vec<_> = moments.into_iter().collect();
    moments.sort_unstable();
    let mut pieces = Vec::with_capacity(slots.len());
    for s in slots {
        let first = moments.partition_point(|m| *m <= s.slot.start());
        let within = moments[first..].iter().copied().take_while(|m| *m < s.slot.end());
        let mut start = s.slot.start();
        for end in within.chain([s.slot.end()]) {
            pieces.extend(Slot::new(start, end).map(|slot| PlanSlot { slot, intensity: s.intensity }));
            start = end;
        }
    }
    pieces
}

/// Averages slots shorter than `step` between multiples of it since the epoch; keeps longer ones.
pub(super) fn coarser(slots: &[PlanSlot], step: Seconds) -> Vec<PlanSlot> {
    let short = |s: &PlanSlot| s.slot.duration() < step;
    let mut coarse: Vec<PlanSlot> = Vec::with_capacity(slots.len());
    for run in slots.chunk_by(|a, b| short(a) && short(b) && a.slot.end() == b.slot.start()) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        if run.len() == 1 {
            coarse.push(*first);
            continue;
        }
        let (start, end) = (first.slot.start(), last.slot.end());
        let half = (step * 0.5).to_delta();
        // The present cuts the first slot; that boundary must not shift the others.
        let earliest = if coarse.is_empty() { start } else { start + half };
        let (mut from, mut rest) = (start, run);
        while from < end {
            let mut to = floor(from, step.to_delta()) + step.to_delta();
            if to < earliest {
                to += step.to_delta();
            }
            if to + half > end {
                to = end;
            }
            let Some(slot) = Slot::new(from, to) else { break };
            coarse.push(PlanSlot { slot, intensity: mean(rest, &slot) });
            rest = &rest[rest.partition_point(|s| s.slot.end() <= to)..];
            from = to;
        }
    }
    coarse
}

/// Returns the time-weighted mean over a span that contiguous slots cover.
fn mean(slots: &[PlanSlot], span: &Slot) -> GramsPerKwh {
    let parts = slots.iter().map_while(|s| Some((s.slot.intersection(span)?, s.intensity)));
    parts.map(|(part, intensity)| intensity * (part.duration() / span.duration())).sum()
}

#[cfg(test)]
#[path = "tests/slots.rs"]
mod tests;
