//! Time shares as solvers return them: for each slot the operating points used, the faster first, and the time at each
//! point.

use super::problem::{PlanSlot, RESOLUTION};
use crate::domain::{Profile, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Samples, SamplesPerSecond, Seconds, Watts};

/// For each slot, its parts: first the index of the point, second the time at the point.
pub(in crate::plan) type Shares = Vec<Vec<(usize, Seconds)>>;

/// Minimum duration of a part of a slot, even if a shorter dwell (minimum time at one setting) is set.
pub(in crate::plan) const SHORTEST: Seconds = Seconds::new(1.0);

/// Returns the time-weighted mean carbon intensity; `None` without slots.
pub(in crate::plan) fn mean(slots: &[PlanSlot]) -> Option<GramsPerKwh> {
    let time: Seconds = slots.iter().map(|s| s.slot.duration()).sum();
    (time > Seconds::ZERO).then(|| slots.iter().map(|s| s.intensity * (s.slot.duration() / time)).sum())
}

/// Returns the total time of all parts.
pub(in crate::plan) fn time(shares: &[Vec<(usize, Seconds)>]) -> Seconds {
    shares.iter().flatten().map(|part| part.1).sum()
}

/// Returns the time shares of the points in `turns`, each used for its duration and one after the other, from the start
/// of the slots.
pub(in crate::plan) fn fill(slots: &[PlanSlot], turns: &[(usize, Seconds)]) -> Shares {
    let mut next = turns.iter().copied();
    let mut turn = next.next();
    let parts = |slot: &PlanSlot| {
        let (mut parts, mut free) = (Vec::new(), slot.slot.duration());
        while let Some((point, left)) = turn {
            let seconds = left.min(free);
            if seconds > Seconds::ZERO {
                parts.push((point, seconds));
                free -= seconds;
            }
            if seconds < left {
                turn = Some((point, left - seconds));
                break;
            }
            turn = next.next();
        }
        (!parts.is_empty()).then_some(parts)
    };
    slots.iter().map_while(parts).collect()
}

/// Returns the emissions of a constant power for a duration from the start of the slots. Time after the last slot has
/// the slots' mean intensity.
pub(in crate::plan) fn carbon(slots: &[PlanSlot], power: Watts, duration: Seconds) -> GramsCo2e {
    let parts = fill(slots, &[(0, duration)]);
    let within: GramsCo2e = slots.iter().zip(&parts).map(|(s, part)| power * part[0].1 * s.intensity).sum();
    let after = (duration - time(&parts)).max(Seconds::ZERO);
    within + power * after * mean(slots).unwrap_or_default()
}

/// Returns the consecutive time spans of a slot's parts, `None` for a part that is too short for a span. If less than
/// the time resolution remains after a part, that part lasts until the slot's end.
pub(in crate::plan) fn spans(slot: &Slot, parts: &[(usize, Seconds)]) -> Vec<Option<Slot>> {
    let (mut start, mut used) = (slot.start(), Seconds::ZERO);
    let span = |(_, seconds): &(usize, Seconds)| {
        used += *seconds;
        let full = slot.duration() - used < RESOLUTION;
        let end = if full { slot.end() } else { slot.start() + used.to_delta() };
        let span = Slot::new(start, end);
        start = if span.is_some() { end } else { start };
        span
    };
    parts.iter().map(span).collect()
}

/// Removes parts of a slot that are shorter than the dwell (minimum time at one setting): a short slower part takes the
/// faster point, and a short faster part is prolonged to the minimum, so that the work is still done. The minimum is at
/// most a twelfth of the slot: at most one slot of a plan has two points, and the surplus work of a longer prolongation
/// could not be compensated at the plan's end. Parts whose point continues in the adjacent slot, and parts of the last
/// slot, need only [`SHORTEST`]. Parts below the time resolution are dropped.
pub(super) fn without_short_parts(mut shares: Shares, dwell: Seconds) -> Shares {
    for slot in 0..shares.len() {
        let [(fast, fast_time), (slow, slow_time)] = shares[slot][..] else { continue };
        let both = fast_time + slow_time;
        // The last slot ends with the work, so surplus work cannot be compensated after it.
        let shortest = if slot + 1 < shares.len() { dwell.min(both / 12.0).max(SHORTEST) } else { SHORTEST };
        let goes_on = slot.checked_sub(1).and_then(|before| shares[before].last()).is_some_and(|p| p.0 == fast);
        let went_on = shares.get(slot + 1).and_then(|after| after.first()).is_some_and(|p| p.0 == slow);
        let least_fast = if goes_on { SHORTEST } else { shortest };
        let least_slow = if went_on { SHORTEST } else { shortest };
        shares[slot] = if fast_time < RESOLUTION {
            vec![(slow, both)]
        } else if both - fast_time.max(least_fast) < least_slow {
            vec![(fast, both)]
        } else {
            let fast_time = fast_time.max(least_fast);
            vec![(fast, fast_time), (slow, both - fast_time)]
        };
    }
    if shares.len() > 1 && shares.last().is_some_and(|parts| parts.iter().all(|part| part.1 < RESOLUTION)) {
        shares.pop();
    }
    shares
}

/// Returns the requested dwell (minimum time at one setting), or a tenth of the time that the work takes at the fastest
/// point if that is shorter, so that short jobs can still mix set points.
pub(in crate::plan) fn shortest_dwell(dwell: Seconds, work: Samples, profile: &Profile) -> Seconds {
    let rates = profile.points.iter().map(|p| p.throughput.mean);
    let fastest = rates.fold(SamplesPerSecond::ZERO, |fastest, rate| fastest.max(rate));
    if fastest > SamplesPerSecond::ZERO { dwell.min(work / fastest * 0.1) } else { dwell }
}
