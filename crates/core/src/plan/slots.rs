//! Converts a forecast of carbon intensity into the slots (time steps with one intensity each) to plan over.

use chrono::{DateTime, TimeDelta, Utc};

use super::job::PlanSlot;
use super::risk::FOUR_IN_FIVE;
use super::settings::Settings;
use crate::domain::{CarbonSeries, Slot};
use crate::forecast::{Horizon, Model};
use crate::units::{GramsPerKwh, Seconds};

/// Step in which the boundary between fine and coarse slots moves on with time, so that coarse slots do not shift from
/// one plan to the next.
const NEAR_STEP: TimeDelta = TimeDelta::hours(6);

/// Returns the slots to plan over from `now` to `until`. The local forecaster `model` corrects and extends `expected`,
/// the source's forecast; deviations of the result from its mean are shrunk by the measured skill of past forecasts; then
/// slots are averaged as `settings` says. The daemon and the simulator share this function.
pub fn slots_ahead(
    model: &Model,
    expected: &CarbonSeries,
    (now, until): (DateTime<Utc>, DateTime<Utc>),
    fallback: GramsPerKwh,
    settings: &Settings,
) -> Vec<PlanSlot> {
    // The horizon starts at the beginning of the present slot, so that the slot's mean does not change as time passes.
    let begun = floor(now, settings.shortest_slot_s.to_delta());
    let from = if expected.at(begun).is_some() { begun } else { now };
    let horizon = model.outlook(expected, from, until, fallback);
    planning_slots(&model.shrink_by_skill(&horizon), now, settings)
}

/// Returns the slots to plan over, with intensities at the quantile of the forecast that `settings.risk` selects.
///
/// Averaged slots have time-weighted means. Their boundaries are those of the forecast or multiples of the slot length
/// since the Unix epoch, so that they do not shift, and planning again with an unchanged forecast repeats the plan. For
/// this, the horizon should start at a multiple of `shortest_slot_s` at or before `now`; the planner drops the past.
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
    let slots = split_at(&slots, near_end);
    let far = near_end.map_or(slots.len(), |end| slots.partition_point(|s| s.slot.start() < end));
    let mut coarse = coarser(&slots[..far], settings.shortest_slot_s);
    coarse.extend(coarser(&slots[far..], settings.far_slot_s));
    coarse
}

/// Returns the latest multiple of `step` since the Unix epoch that is not after `t`.
pub(super) fn floor(t: DateTime<Utc>, step: TimeDelta) -> DateTime<Utc> {
    let step_us = step.num_microseconds().unwrap_or(1).max(1);
    t - TimeDelta::microseconds(t.timestamp_micros().rem_euclid(step_us))
}

/// Splits slots at those `times` that lie inside them.
fn split_at(slots: &[PlanSlot], times: impl IntoIterator<Item = DateTime<Utc>>) -> Vec<PlanSlot> {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_unstable();
    let mut pieces = Vec::with_capacity(slots.len());
    for s in slots {
        let first = times.partition_point(|m| *m <= s.slot.start());
        let within = times[first..].iter().copied().take_while(|m| *m < s.slot.end());
        let mut start = s.slot.start();
        for end in within.chain([s.slot.end()]) {
            pieces.extend(Slot::new(start, end).map(|slot| PlanSlot { slot, intensity: s.intensity }));
            start = end;
        }
    }
    pieces
}

/// Averages slots shorter than `step` into slots between multiples of `step` since the Unix epoch; keeps longer slots.
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
        // The first slot may start at the present; this start must not shift the boundaries of the following slots.
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
