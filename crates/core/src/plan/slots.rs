//! Converts a forecast into the slots to plan over.

use chrono::{DateTime, TimeDelta, Utc};

use super::problem::PlanSlot;
use super::risk::{FOUR_IN_FIVE, Risk};
use crate::domain::Slot;
use crate::forecast::Horizon;
use crate::units::{GramsPerKwh, Seconds};

/// Step of the boundary between fine and coarse slots, so that far slots do not shift from plan to plan.
const NEAR_STEP: TimeDelta = TimeDelta::hours(6);

/// Resolution of slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotPolicy {
    /// Length to which shorter slots are averaged.
    pub shortest: Seconds,
    /// Lead up to which `shortest` applies.
    pub near: Seconds,
    /// Length to which shorter slots are averaged beyond `near`.
    pub far: Seconds,
}

impl Default for SlotPolicy {
    /// Half an hour for two days, then three hours.
    fn default() -> Self {
        Self { shortest: Seconds::new(1800.0), near: Seconds::new(172_800.0), far: Seconds::new(10_800.0) }
    }
}

/// Returns the slots to plan over.
///
/// Values are time-weighted means. Boundaries are those of the forecast or multiples of the length since the epoch, so
/// that they do not shift over time and planning again with an unchanged forecast repeats the plan. For that, the
/// horizon should start at a multiple of `policy.shortest` at or before `now`; the planner cuts the past.
pub fn planning_slots(horizon: &Horizon, now: DateTime<Utc>, risk: Risk, policy: &SlotPolicy) -> Vec<PlanSlot> {
    let deviations = risk.deviations() / FOUR_IN_FIVE;
    let slots: Vec<PlanSlot> = horizon
        .slots
        .iter()
        .map(|s| {
            let intensity = s.intensity + (s.high - s.intensity).max(GramsPerKwh::ZERO) * deviations;
            PlanSlot { slot: s.slot, intensity }
        })
        .collect();
    let near_end = floor(now, NEAR_STEP).checked_add_signed(policy.near.to_delta());
    let slots = cut(&slots, near_end);
    let far = near_end.map_or(slots.len(), |end| slots.partition_point(|s| s.slot.start() < end));
    let mut coarse = coarser(&slots[..far], policy.shortest);
    coarse.extend(coarser(&slots[far..], policy.far));
    coarse
}

/// Returns the last multiple of `step` since the epoch at or before `t`.
pub fn floor(t: DateTime<Utc>, step: TimeDelta) -> DateTime<Utc> {
    let step_us = step.num_microseconds().unwrap_or(1).max(1);
    t - TimeDelta::microseconds(t.timestamp_micros().rem_euclid(step_us))
}

/// Splits slots at those `moments` that lie inside them.
pub fn cut(slots: &[PlanSlot], moments: impl IntoIterator<Item = DateTime<Utc>>) -> Vec<PlanSlot> {
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
